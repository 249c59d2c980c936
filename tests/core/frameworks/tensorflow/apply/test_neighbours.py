"""What else a script does with TensorFlow beside its training, with a plan and without."""

import pytest

from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open.load import load
from enplace.machine import simulate
from enplace.values.problem import Problem
from enplace.values.result import Result
from enplace.writers.plans import write_plan
from steps import scattered_plan

APPLY = 'import enplace\napplied = enplace.apply("plan.json")\n'

TRAIN = """
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
net = tf.Module()
net.layers = [tf.Variable(tf.ones((4, 4)) / (i + 4), name=f"weight_{i}") for i in range(6)]

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        for weight in net.layers:
            x = tf.tanh(x @ weight)
        loss = tf.reduce_mean(x ** 2)
    for weight, gradient in zip(net.layers, tape.gradient(loss, net.layers)):
        weight.assign_sub(gradient)
    return loss
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a plan that scatters the step over two CPUs."""
    folder = tmp_path_factory.mktemp("neighbours")
    script = folder / "train.py"
    script.write_text(f"{TRAIN}train_step(tf.ones((3, 4)))\n")
    devices = parse_devices("cpu:2")
    problem = Problem(graph_profile(load(source_of(script)), devices), devices.cluster)
    plan = scattered_plan(problem, seed=1, policy="strict")
    write_plan(folder / "plan.json", Result(simulate(problem, plan)))
    return folder


@pytest.fixture
def both(folder, run_python):
    """A function that runs a script without and with the plan; returns what it prints."""

    def run(script, with_plan=""):
        plain = run_python(folder, "-c", script)
        assert plain.returncode == 0, plain.stderr
        placed = run_python(folder, "-c", f"{APPLY}{script}{with_plan}")
        assert placed.returncode == 0, placed.stderr
        return plain.stdout.splitlines(), placed.stdout.splitlines()

    return run


AS_WORKER = """
import json, os, socket
with socket.create_server(("localhost", 0)) as free:
    address = f"localhost:{free.getsockname()[1]}"
task = {"type": "worker", "index": 0}
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [address]}, "task": task})
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""


def test_ops_are_found_where_they_run_in_a_worker_of_several(both):
    """Its devices are called ``/job:worker/...``."""
    count = "each = applied.functions[0].check\nprint(each.as_planned == each.checked > 50)\n"
    moved = "print(applied.functions[0].variables_moved > 0)\n"
    plain, placed = both(
        f"{AS_WORKER}{TRAIN}print(*[float(train_step(tf.ones((3, 4)))) for _ in range(3)])\n",
        count + moved,
    )
    assert placed == [*plain, "True", "True"]


TRACED = """
from tensorflow.python.eager import context
@tf.function
def before(x):
    return tf.cos(x)

@tf.function
def after(x):
    return tf.sin(x)

def types(metadata):
    graphs = [each.pre_optimization_graph for each in metadata.function_graphs]
    nodes = [n.op for g in graphs for n in (*g.node, *(n for f in g.library.function
                                                       for n in f.node_def))]
    return sorted(set(nodes))

x = tf.ones((3, 4))
tf.summary.trace_on(graph=True, profiler=False)
before(x), train_step(x), after(x)
print(*types(context.context().export_run_metadata()))
tf.summary.trace_off()
train_step(x)
print(len(context.context().export_run_metadata().function_graphs))
"""


def test_graphs_that_a_script_collects_are_whole(both):
    plain, placed = both(TRAIN + TRACED)
    for lines in (plain, placed):
        assert {"Cos", "Sin", "Tanh", "TanhGrad"} <= set(lines[0].split())
    assert plain[1:] == placed[1:] == ["0"]


FROZEN = """
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
@tf.function
def layer(x, i):
    return tf.tanh(x @ net.layers[i])

@tf.function(input_signature=[tf.TensorSpec((None, 4))])
def predict(x):
    for i in range(6):
        x = layer(x, i)
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x @ net.layers[0], lambda: x @ net.layers[1])

net.predict = predict
x = tf.ones((3, 4))
early = predict.get_concrete_function()
for _ in range(3):
    train_step(x)
for function in (early, predict.get_concrete_function()):
    frozen = convert_variables_to_constants_v2(function)
    inputs = [node.name for node in frozen.graph.as_graph_def().node if node.op == "Placeholder"]
    print(frozen(x)[0].numpy().tolist(), inputs)
tf.saved_model.save(net, "saved", signatures={"early": early, "now": predict})
back = tf.saved_model.load("saved")
print([back.signatures[name](x)["output_0"].numpy().tolist() for name in ("early", "now")])
frozen = convert_variables_to_constants_v2(back.signatures["early"])
print(frozen(x)[0].numpy().tolist())
"""


def test_functions_traced_before_variables_moved_freeze_and_save_as_without_a_plan(both):
    plain, placed = both(TRAIN + FROZEN, "print(applied.functions[0].variables_moved > 1)\n")
    assert placed == [*plain, "True"]


CALL = "train_step(tf.ones((3, 4)))\n"
WIDER = TRAIN.replace("tf.ones((4, 4))", "tf.ones((5, 5))")
OTHER = f"""{TRAIN}
other = tf.Variable(1.0)

@tf.function
def other_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(other * x)
    other.assign_sub(tape.gradient(loss, other))

for _ in range(12):
    other_step(tf.ones((3, 4)))
"""
EAGER = f"""{TRAIN}
tf.config.run_functions_eagerly(True)
train_step(tf.ones((3, 4)))
"""
UNFIT = "plan.json does not fit the function other_step, which runs unchanged: "


@pytest.mark.parametrize(
    ("script", "said", "not_said"),
    [
        (f"{TRAIN}{CALL}", "run where planned", "other"),
        (f"{TRAIN}{CALL.replace('3', '5')}", "the plan was made for other batches", "have other"),
        (f"{WIDER}{CALL.replace('4', '5')}", "('weight_0' 64 B, now 100 B)", "does not fit"),
        (OTHER, UNFIT, "not used"),
        (OTHER.replace("range(12)", "range(2)"), UNFIT, "not used"),
        (f"{OTHER}{CALL}", "run where planned", "not used"),
        (EAGER, "gradients are taken eagerly, where a plan places nothing", "does not fit"),
    ],
)
def test_a_step_that_the_plan_was_not_made_for_is_named(script, said, not_said, folder, run_python):
    placed = run_python(folder, "-c", f"{APPLY}{script}")
    assert placed.returncode == 0, placed.stderr
    assert said.lower() in placed.stderr.lower()
    assert not_said not in placed.stderr
    assert placed.stderr.count("does not fit") <= 1


def test_scopes_of_the_script_that_a_plan_overrules_are_counted(folder, run_python):
    inside = "with tf.device('/CPU:1'):\n            for weight in net.layers:\n    "
    script = TRAIN.replace("for weight in net.layers:\n", inside, 1)
    assert script != TRAIN
    placed = run_python(folder, "-c", f"{APPLY}{script}{CALL}")
    assert placed.returncode == 0, placed.stderr
    assert "ops elsewhere with tf.device; the plan decides instead" in placed.stderr
    assert "run where planned" in placed.stderr
