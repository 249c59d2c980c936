"""``enplace.apply`` in a script that runs in a process of its own, as users run it."""

import json
import re
import runpy
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.apply.apply_plan import _allow_memory_growth
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open.load import load
from enplace.machine import simulate
from enplace.placers import place
from enplace.placers.os_dpos import data_parallel
from enplace.values.problem import Problem, split_problem
from enplace.values.result import Result
from enplace.writers.plans import write_plan
from steps import STYLES, problem_of, scattered_plan, write_script

PLACED = """
import enplace
applied = enplace.apply("plan.json")
compiled = True
"""
CONVOLUTIONS = """
import keras, numpy as np
keras.utils.clear_session()  # names start again
keras.utils.set_random_seed(1)
image = keras.Input((8, 8, 3))
sides = [keras.layers.Conv2D(4, 3, activation="relu")(image) for _ in range(2)]
flat = keras.layers.Flatten()(keras.layers.Concatenate()(sides))
model = keras.Model(image, keras.layers.Dense(3)(flat))
model.compile("sgd", "mse")
rng = np.random.default_rng(0)
model.fit(rng.random((32, 8, 8, 3), "float32"), rng.random((32, 3), "float32"), verbose=0)
"""
TWO_PLANS = """
import enplace
applied = enplace.apply("plan.json", order=False)
other = enplace.apply("other.json")
"""
REPORT = """
import json
variables = [variable.value for variable in model.variables]
found = {
    "losses": losses,
    "weights": [weight.tolist() for weight in weights],
    "devices": [variable.device.rpartition("device:")[2] for variable in variables],
}
for each in applied.functions:
    counts = each.check.checked, each.check.as_planned, each.order_edges, each.variables_moved
    found.update(zip(("checked", "as_planned", "order_edges", "moved"), counts))
found["summary"] = str(applied)
if "other" in globals():
    found["other"] = [len(other.functions), str(other)]
print(json.dumps(found))
"""


def write_scattered_plan(folder, step):
    """Write a plan for two CPUs, with ops on both, and return its problem."""
    problem = problem_of(step, parse_devices("cpu:2").cluster)
    plan = scattered_plan(problem, seed=1, policy="strict")
    write_plan(folder / "plan.json", Result(simulate(problem, plan)))
    return problem


@pytest.fixture(scope="module")
def planned(all_steps, tmp_path_factory):
    """Folders with a ``plan.json``, by style."""
    folders = {style: tmp_path_factory.mktemp(style) for style in STYLES}
    for style, folder in folders.items():
        write_scattered_plan(folder, all_steps[style])
    return folders


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Losses and weights of each style without a plan, run in this process without rewriting."""
    folder = tmp_path_factory.mktemp("plain")
    return {style: run_plain(write_script(folder, style)) for style in STYLES}


def run_plain(script):
    found = runpy.run_path(str(script), run_name="__main__")
    return found["losses"], [weight.tolist() for weight in found["weights"]]


@pytest.fixture
def run_placed(run_python):
    """A function that runs a script with a plan; returns its results and its standard error."""

    def run(folder, style, head=PLACED, change=("", "")):
        script = write_script(folder, style, head, REPORT)
        script.write_text(script.read_text().replace(*change))
        done = run_python(folder, str(script))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


def run_cold(folder, *words):
    """Run Python anew, for what happens before TensorFlow is imported."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("style", STYLES)
def test_an_unchanged_script_trains_as_before_on_the_planned_devices(
    style, planned, plain, run_placed
):
    placed, stderr = run_placed(planned[style], style)
    assert len(placed["losses"]) == 21
    assert (placed["losses"], placed["weights"]) == plain[style]
    assert placed["as_planned"] == placed["checked"] > 100
    assert placed["order_edges"] > 30
    if style != "branches":  # a conditional that updates all variables keeps them together
        assert placed["moved"] > 0
        assert set(placed["devices"]) == {"CPU:0", "CPU:1"}
    summary = f"{placed['checked']} of {placed['checked']} ops run where planned"
    assert summary in placed["summary"]
    assert summary in stderr.splitlines()[-1]
    assert "other batches" not in stderr


@pytest.mark.parametrize("style", ["fit", "custom"])
def test_an_unchanged_script_trains_as_a_pipeline(style, tmp_path, run_python):
    pipeline = "applied = enplace.apply('plan.json', pipeline='1f1b', microbatches=4)"
    script = write_script(tmp_path, style, f"import enplace\n{pipeline}\n", REPORT)
    # The last batch is half as large as the others.
    script.write_text(script.read_text().replace("80", "76"))
    problem = write_scattered_plan(tmp_path, load(source_of(str(script))))
    done = run_python(tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    cut = json.loads(done.stdout.splitlines()[-1])
    usual = write_script(tmp_path, style)
    usual.write_text(usual.read_text().replace("80", "76"))
    losses, weights = run_plain(usual)
    np.testing.assert_allclose(cut["losses"], losses, rtol=1e-5)
    for ours, theirs in zip(cut["weights"], weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert cut["as_planned"] == cut["checked"] > problem.profile.n_ops
    assert cut["summary"].endswith("4 micro-batches, 1f1b")
    assert done.stderr.count("batches of other shapes than") == (style == "fit")


ONE_BY_ONE = """
class OneByOne(keras.Sequential):
    def train_step(self, data):
        trained, moving = self.trainable_variables, self.non_trainable_variables
        start = [variable.value + 0 for variable in moving]
        gradients, moved = [], []
        for x, y in zip(*(tf.split(part, 4) for part in data)):
            for variable, value in zip(moving, start):
                variable.assign(value)
            with tf.GradientTape() as tape:
                loss = loss_of(y, self(x, training=True))
            gradients.append(tape.gradient(loss, trained))
            moved.append([variable.value + 0 for variable in moving])
        for variable, *values in zip(moving, *moved):
            variable.assign(tf.add_n(values) / 4)
        self.optimizer.apply([tf.add_n(each) / 4 for each in zip(*gradients)], trained)
        return {"loss": loss}

"""


def test_micro_batches_with_statistics_of_their_own_train_as_one_by_one(tmp_path, run_python):
    """Their gradients and moving averages are averaged, and the optimiser runs once."""
    changes = {"layers.Dropout(0.2)": "layers.BatchNormalization(momentum=0.5)"}
    changes['"adam"'] = "keras.optimizers.SGD(0.5)"
    wanted = "pipeline='1f1b', microbatches=4, own_statistics=True"
    head = f"import enplace\napplied = enplace.apply('plan.json', {wanted})\n"
    script = write_script(tmp_path, "fit", head, REPORT)
    change_text(script, changes)
    write_scattered_plan(tmp_path, load(source_of(str(script))))
    done = run_python(tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    cut = json.loads(done.stdout.splitlines()[-1])
    assert cut["summary"].endswith("4 micro-batches, 1f1b")
    usual = write_script(tmp_path, "fit")
    own = {"layers = keras.layers": f"layers = keras.layers\n{ONE_BY_ONE}"}
    change_text(usual, {**own, "model = keras.Sequential": "model = OneByOne", **changes})
    losses, weights = run_plain(usual)
    np.testing.assert_allclose(cut["losses"][-1], losses[-1], rtol=1e-5)
    for ours, theirs in zip(cut["weights"], weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def change_text(path, changes):
    text = path.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


CONFIGURED = """
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.set_visible_devices([], "GPU")
"""
WISHES = [
    ("fit", ("loss_of, jit_compile=", "loss_of, steps_per_execution=4, jit_compile=True or ")),
    ("custom", ("@tf.function", "@tf.function(jit_compile=True)")),
    ("custom", ("@tf.function", "tf.config.optimizer.set_jit(True)\n@tf.function")),
]


@pytest.mark.parametrize(("style", "change"), WISHES)
def test_what_a_script_asks_of_tensorflow_is_done_or_named_once(style, change, planned, run_placed):
    """It configures TensorFlow after the plan is applied; no plan works with XLA, nor in loops."""
    placed, stderr = run_placed(planned[style], style, PLACED + CONFIGURED, change=change)
    assert placed["as_planned"] == placed["checked"] > 100
    assert stderr.count("XLA does not compile") == 1
    assert stderr.count("steps_per_execution is 1") == (style == "fit")


@pytest.mark.parametrize(
    ("style", "change", "size"),
    [
        ("fit", ("x, y, batch_size=8", "x, y, batch_size=16"), "16"),
        ("custom", ("+ 8)", "+ 9)"), "9"),
    ],
)
def test_other_batches_than_those_of_the_plan_are_named(style, change, size, planned, run_placed):
    _, stderr = run_placed(planned[style], style, change=change)
    assert f"shapes are {size} × 4, {size}, and those of the profile 8 × 4, 8" in stderr
    assert "ops run where planned" in stderr


def test_devices_that_the_script_takes_away_again_are_missed_when_it_trains(planned, run_python):
    one = (
        "cpus = tf.config.list_physical_devices('CPU')\n"
        "one = [tf.config.LogicalDeviceConfiguration()]\n"
        "tf.config.set_logical_device_configuration(cpus[0], one)\n"
    )
    script = write_script(planned["fit"], "fit", PLACED + CONFIGURED + one)
    done = run_python(planned["fit"], str(script))
    assert done.returncode == 1
    assert "uses /device:CPU:1, which this process does not have" in done.stderr


def test_memory_growth_is_for_gpus_that_the_plan_does_not_split(monkeypatch):
    asked = []
    split = {"GPU:0": [tf.config.LogicalDeviceConfiguration(1024)] * 2}
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda gpu, on: asked.append((gpu, on))
    )
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", split.get)
    _allow_memory_growth()
    for gpu in ("GPU:0", "GPU:1"):
        tf.config.experimental.set_memory_growth(gpu, True)
    assert asked == [("GPU:1", True)]


APPLY = 'import enplace\napplied = enplace.apply("plan.json")\n'
WITH_USUAL_KERNELS = f"""
import os
os.environ.pop("TF_ENABLE_ONEDNN_OPTS")
{APPLY}
print(os.environ.get("TF_ENABLE_ONEDNN_OPTS"))
"""


def test_a_plan_keeps_the_kernels_of_a_script_even_if_they_break_its_order(tmp_path, run_python):
    """By default, oneDNN fuses a convolution with its bias: an order between the two is dropped."""
    (tmp_path / "train.py").write_text(CONVOLUTIONS)
    write_scattered_plan(tmp_path, load(source_of(tmp_path / "train.py")))
    kept = run_python(tmp_path, "-c", f"{APPLY}{CONVOLUTIONS}print(applied)")
    assert kept.returncode == 0, kept.stderr
    assert "control edges keep the order" in kept.stdout
    assert " 0 control edges" not in kept.stdout
    usual = run_cold(tmp_path, "-c", f"{WITH_USUAL_KERNELS}{CONVOLUTIONS}print(applied)")
    assert usual.returncode == 0, usual.stderr
    setting, applied = usual.stdout.splitlines()[0], usual.stdout.splitlines()[-1]
    assert setting == "None"
    assert " ops run where planned" in applied


def test_a_tensorflow_that_cannot_apply_plans_is_refused_in_one_line(planned, run_python):
    lacking = (
        "from tensorflow.python.eager.context import Context\n"
        "del Context.export_run_metadata\n"
        "import enplace\nenplace.apply('plan.json')\n"
    )
    done = run_python(planned["fit"], "-c", lacking)
    last = done.stderr.splitlines()[-1]
    assert "which has no Context.export_run_metadata; install one of 2.16 to" in last


READ_BY_A_DATASET = """
import tensorflow as tf
seen, weight = tf.Variable(0.0, name="seen"), tf.Variable(tf.ones((4, 2)), name="weight")
data = tf.data.Dataset.range(9).map(lambda i: tf.ones((3, 4)) * (seen + tf.cast(i, tf.float32)))
at_once = tf.data.Options()
at_once.autotune.enabled = False
at_once.experimental_optimization.inject_prefetch = False
data = data.with_options(at_once)

@tf.function
def train_step(x):
    seen.assign_add(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight) ** 2)
    weight.assign_sub(0.001 * tape.gradient(loss, weight))
    return loss

print(*[float(train_step(x)) for x in data])
"""


@pytest.fixture(scope="module")
def read_by_a_dataset(tmp_path_factory, run_python):
    """A folder with the script and a plan for two CPUs, and what the script prints without it."""
    folder = tmp_path_factory.mktemp("dataset")
    (folder / "train.py").write_text(READ_BY_A_DATASET)
    write_scattered_plan(folder, load(source_of(folder / "train.py")))
    plain = run_python(folder, "-c", READ_BY_A_DATASET)
    assert plain.returncode == 0, plain.stderr
    return folder, plain.stdout.strip()


def _run_with_plan(run_python, folder, head):
    placed = run_python(folder, "-c", f"{head}{READ_BY_A_DATASET}print(applied)")
    assert placed.returncode == 0, placed.stderr
    return placed


def test_a_variable_that_a_dataset_reads_is_not_moved(read_by_a_dataset, run_python):
    folder, printed = read_by_a_dataset
    placed = _run_with_plan(run_python, folder, APPLY)
    assert placed.stdout.splitlines()[0] == printed
    assert " ops run where planned" in placed.stdout


MOMENTUM = """
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
weights = [tf.Variable(tf.ones((4, 4)) / (i + 4), name=f"weight_{i}") for i in range(4)]
optimizer = tf.compat.v1.train.MomentumOptimizer(0.01, 0.9)

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        for weight in weights:
            x = tf.tanh(x @ weight)
        loss = tf.reduce_mean(x ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss
"""

FUSED_UPDATES = f"""{MOMENTUM}
data = tf.data.Dataset.range(9).map(lambda i: tf.ones((3, 4)) + 0 * weights[0][0, 0])

print(*[float(train_step(x)) for x in data])
"""


def test_variables_that_one_op_uses_move_or_stay_together(tmp_path, run_python):
    """A dataset reads the first weight, so its momentum must stay, too; the others move."""
    script = tmp_path / "train.py"
    script.write_text(FUSED_UPDATES)
    problem = problem_of(load(source_of(script)), parse_devices("cpu:2").cluster)
    write_plan(tmp_path / "plan.json", Result(place(problem, "round-robin").schedule))
    plain = run_python(tmp_path, "-c", FUSED_UPDATES)
    placed = run_python(tmp_path, "-c", f"{APPLY}{FUSED_UPDATES}print(applied)")
    assert placed.returncode == 0, placed.stderr
    losses, summary = placed.stdout.splitlines()
    assert losses == plain.stdout.strip()
    moved = int(re.search(r"(\d+) variables moved", summary)[1])
    assert moved in (2, 4, 6)  # each with its momentum
    assert "kept where their data is: weight_0" in summary


EARLY_HANDLES = f"""{MOMENTUM}
halves = [weight.assign(weight / 2) for weight in weights]

of_3, of_2 = (train_step.get_concrete_function(tf.TensorSpec((n, 4))) for n in (3, 2))
losses = [float(step(tf.ones((n, 4)))) for _ in range(2) for step, n in ((of_3, 3), (of_2, 2))]
print(*losses, *[float(tf.reduce_sum(each)) for each in (*weights, *halves)])
"""


def test_variables_move_with_all_that_has_their_handles(tmp_path, run_python):
    """Values that assignments returned, and a second function traced before the first step."""
    script = tmp_path / "train.py"
    script.write_text(EARLY_HANDLES)
    write_scattered_plan(tmp_path, load(source_of(script)))
    plain = run_python(tmp_path, "-c", EARLY_HANDLES)
    placed = run_python(tmp_path, "-c", f"{APPLY}{EARLY_HANDLES}print(len(applied.functions))")
    assert placed.returncode == 0, placed.stderr
    assert placed.stdout.splitlines() == [plain.stdout.strip(), "2"]
    assert "does not run" not in placed.stderr


ONE_AFTER_ANOTHER = """
import gc, weakref
import tensorflow as tf

def train_a_model():
    weights = [tf.Variable(tf.ones((4, 4)) / (i + 4), name=f"weight_{i}") for i in range(4)]

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(x @ weight)
            loss = tf.reduce_mean(x ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(gradient)
        return loss

    train_step(tf.ones((3, 4)))
    return [weakref.ref(weight.handle) for weight in weights]

handles = [*train_a_model(), *train_a_model()]
gc.collect()
print(sum(handle() is not None for handle in handles))
"""


def test_weights_of_models_that_the_script_has_dropped_are_freed(tmp_path, run_python):
    """A search for good settings trains model after model; the memory of all would be too much."""
    script = tmp_path / "train.py"
    script.write_text(ONE_AFTER_ANOTHER)
    write_scattered_plan(tmp_path, load(source_of(script)))
    placed = run_python(tmp_path, "-c", f"{APPLY}{ONE_AFTER_ANOTHER}print(applied)")
    assert placed.returncode == 0, placed.stderr
    alive, *ran = placed.stdout.splitlines()
    assert alive == "0"
    assert len(ran) == 2
    assert all("variable" in line and "0 variables moved" not in line for line in ran)


MOSTLY_FROZEN = """
import tensorflow as tf
weight = tf.Variable(tf.ones((4, 4)))

def model(x):
    for _ in range(20):
        x = tf.tanh(x)
    return tf.reduce_mean((x @ weight) ** 2)

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = model(x)
    weight.assign_sub(tape.gradient(loss, weight))

step(tf.ones((3, 4)))
tf.function(model)(tf.ones((3, 4)))
"""


def test_a_function_for_tests_is_no_second_step(tmp_path, run_python):
    """It has most of the step's ops, but nobody expects it to run placed."""
    script = tmp_path / "train.py"
    script.write_text(MOSTLY_FROZEN)
    write_scattered_plan(tmp_path, load(source_of(script)))
    placed = run_python(tmp_path, "-c", f"{APPLY}{MOSTLY_FROZEN}print(applied)")
    assert placed.stdout.startswith("step: "), placed.stderr
    assert "does not fit" not in placed.stderr


NOWHERE = """
import enplace, enplace.frameworks.tensorflow.apply.apply_plan
usual = enplace.frameworks.tensorflow.apply.apply_plan.place_graph

def misplaced(*arguments):
    graph = usual(*arguments)
    next(n for n in graph.node if n.op == "MatMul").device = "/job:nowhere/device:CPU:0"
    return graph

enplace.frameworks.tensorflow.apply.apply_plan.place_graph = misplaced
applied = enplace.apply("plan.json")
"""


def test_a_function_that_cannot_be_rewritten_runs_unchanged(read_by_a_dataset, run_python):
    folder, printed = read_by_a_dataset
    placed = _run_with_plan(run_python, folder, NOWHERE)
    assert placed.stdout.splitlines()[0] == printed
    assert "TensorFlow does not run train_step as the plan says" in placed.stderr


def test_loading_a_script_ignores_the_plan_that_it_applies(planned, all_steps):
    with_plan = load(source_of(str(write_script(planned["custom"], "custom", PLACED))))
    assert with_plan.graph_def == all_steps["custom"].graph_def


def test_one_script_can_apply_an_unordered_plan_and_one_of_another_model(planned, run_placed):
    folder = planned["custom"]
    plan = json.loads((folder / "plan.json").read_text())
    plan["ops"][-1]["op"] = "no_more"
    (folder / "other.json").write_text(json.dumps(plan))
    placed, stderr = run_placed(folder, "custom", TWO_PLANS)
    n_functions, summary = placed["other"]
    assert n_functions == 0
    assert summary == "other.json: no function with the plan's ops has run yet"
    assert "1 op of the plan is missing ('no_more'), 1 op is new" in stderr
    assert len([line for line in stderr.splitlines() if "does not fit" in line]) == 1
    assert placed["as_planned"] == placed["checked"] > 100
    assert placed["order_edges"] == 0


TAKING_TURNS = """
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
weights = [tf.Variable(tf.ones((4, 4)) / (i + 4), name=f"weight_{i}") for i in range(4)]

def train(x, some):
    with tf.GradientTape() as tape:
        for weight in weights:
            x = tf.tanh(x @ weight)
        loss = tf.reduce_mean(x ** 2)
    for weight, gradient in zip(some, tape.gradient(loss, some)):
        weight.assign_sub(gradient)
    return loss

first = tf.function(lambda x: train(x, weights[:2]), jit_compile="compiled" in globals())
second = tf.function(lambda x: train(x, weights[2:]), jit_compile="compiled" in globals())
print(*[float(step(tf.ones((3, 4)))) for _ in range(3) for step in (first, second)])
"""


def test_two_plans_can_share_variables(tmp_path, run_python):
    """They stay where the first function needs them; XLA compiles neither."""
    script = tmp_path / "train.py"
    for seed, (name, turns) in enumerate({"plan": "first, second", "other": "second,"}.items()):
        script.write_text(TAKING_TURNS.replace("first, second", turns))
        problem = problem_of(load(source_of(script)), parse_devices("cpu:2").cluster)
        plan = scattered_plan(problem, seed=seed, policy="strict")
        write_plan(tmp_path / f"{name}.json", Result(simulate(problem, plan)))
    plain = run_python(tmp_path, "-c", TAKING_TURNS)
    both = f"{TWO_PLANS}compiled = True\n{TAKING_TURNS}"
    placed = run_python(tmp_path, "-c", f"{both}print(*map(str, (applied, other)), sep='\\n')")
    assert placed.returncode == 0, placed.stderr
    assert "does not fit" not in placed.stderr
    losses, ran_first, ran_second = placed.stdout.splitlines()
    assert losses == plain.stdout.strip()
    assert re.search(r"(\d+) of \1 ops run where planned", ran_first), ran_first
    assert "ops run where planned" in ran_second
    assert "kept where their data is: weight_" in ran_second


def test_momentum_follows_a_weight_that_moves_for_another_function(tmp_path, run_python):
    update = "    for weight, gradient in zip(some, tape.gradient(loss, some)):\n"
    fused = "    optimizer.apply_gradients(zip(tape.gradient(loss, some), some))\n"
    text = TAKING_TURNS.replace(update, fused).replace("        weight.assign_sub(gradient)\n", "")
    made = "optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)\nfirst = "
    text = text.replace("first = ", made)
    script = tmp_path / "train.py"
    script.write_text(text)
    write_scattered_plan(tmp_path, load(source_of(script)))
    late = text.replace("print(*[", "print(float(second(tf.ones((3, 4)))), *[")
    plain = run_python(tmp_path, "-c", late)
    placed = run_python(tmp_path, "-c", f"{APPLY}{late}print(applied)")
    assert placed.returncode == 0, placed.stderr
    losses, ran, *_ = placed.stdout.splitlines()
    assert losses == plain.stdout.strip()
    assert re.search(r"(\d+) of \1 ops run where planned", ran), ran


AGAIN = """weights = model.get_weights()
model.compile("rmsprop", loss_of)
model.fit(x, y, batch_size=8, verbose=0)
"""


def test_a_second_step_of_a_script_runs_unchanged_and_is_told_how_to_be_placed(planned, run_placed):
    change = "weights = model.get_weights()", AGAIN
    placed, stderr = run_placed(planned["fit"], "fit", change=change)
    assert placed["as_planned"] == placed["checked"] > 100
    assert "does not fit the function multi_step_on_iterator, which" in stderr
    assert "the plan is for the step that ran before; to place this one as well" in stderr


COMPILED = """weights = model.get_weights()
early = float(compiled(x[:8]))  # traced before the variables were moved
late = tf.function(lambda rows: tf.reduce_sum(model(rows)), jit_compile=True)
same = [abs(float(late(x[:8])) - early) < 1e-5, abs(float(late(x[:8])) - first) > 1e-5]
assert all(same), same
"""
EARLY = """
compiled = tf.function(lambda rows: tf.reduce_sum(model(rows)), jit_compile=True)
first = float(compiled(x[:8]))
"""


def test_what_xla_compiles_besides_the_step_still_runs_once_variables_have_moved(
    planned, tmp_path, run_python
):
    shutil.copy(planned["custom"] / "plan.json", tmp_path)
    script = write_script(tmp_path, "custom", PLACED)
    text = script.read_text().replace("weights = model.get_weights()", COMPILED)
    script.write_text(text.replace("@tf.function", EARLY + "@tf.function", 1))
    done = run_python(tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("enplace: XLA does not compile") == 2


TROUBLE = """
import enplace
from enplace.errors import EnplaceError
def apply(path):
    try:
        return enplace.apply(path)
    except EnplaceError as error:
        print(error)
apply("hosts.json")
import tensorflow as tf
tf.zeros(1)
apply("plan.json")
applied = apply("one.json")
"""


def test_problems_with_a_plan_are_explained_in_one_line(planned, run_python):
    folder = planned["fit"]
    text = (folder / "plan.json").read_text()
    (folder / "hosts.json").write_text(text.replace('"CPU:', '"/job:worker/task:0/device:CPU:'))
    one = json.loads(text.replace('"CPU:1"', '"CPU:0"'))
    one["cluster"].update(devices=one["cluster"]["devices"][:1], links=[], channels=[])
    (folder / "one.json").write_text(json.dumps(one))
    done = run_python(folder, "-c", TROUBLE)
    assert done.returncode == 0, done.stderr
    hosts, late = done.stdout.splitlines()
    assert "run it with 'enplace run'" in hosts
    assert "uses /device:CPU:1, which this process does not have" in late
    assert "at the start of the script" in late
    assert "enplace: not used: one.json: no function with the plan's ops" in done.stderr


def test_an_unchanged_script_can_run_a_plan_with_splits(tmp_path, all_steps, plain, run_placed):
    """With the ops of the custom loop split by samples, losses and weights stay the same."""
    step = all_steps["custom"]
    devices = parse_devices("cpu:2")
    profile = graph_profile(step, devices)
    times = np.where(np.isnan(profile.time_us), np.nan, 10.0)
    problem = Problem(profile.with_costs(times), devices.cluster)
    problem = split_problem(problem, data_parallel(problem))
    assert problem.splits
    plan = place(problem, "round-robin").plan
    write_plan(tmp_path / "plan.json", Result(simulate(problem, plan)))
    placed, stderr = run_placed(tmp_path, "custom")
    losses, weights = plain["custom"]
    assert np.allclose(placed["losses"], losses, rtol=0, atol=1e-6)
    for one, other in zip(placed["weights"], weights, strict=True):
        assert np.allclose(one, other, rtol=0, atol=1e-6)
    assert placed["checked"] == placed["as_planned"] > len(plan.splits), stderr


LEGACY = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
keras = tf.keras
keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x, y = rng.random((80, 4)).astype("float32"), rng.integers(0, 3, 80)
layers = keras.layers
inputs = keras.Input((4,))
sides = [layers.Dense(8, "relu")(inputs), layers.Dense(8, "tanh")(inputs)]
outputs = layers.Dense(3)(layers.Dropout(0.2, seed=1)(layers.concatenate(sides)))
model = keras.Model(inputs, outputs)
losses = []
class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs):
        losses.append(logs["loss"])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
model.compile("adam", loss, steps_per_execution=globals().get("at_once", 1))
model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Watch()], validation_split=0.2)
print(losses, [weight.tolist() for weight in model.get_weights()])
"""


# tf_keras before 2.18 draws its seeds with it.
@pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning")
def test_a_script_with_keras_2_runs_placed(tmp_path):
    pytest.importorskip("tf_keras")
    script = tmp_path / "train.py"
    script.write_text(LEGACY)
    plain = run_cold(tmp_path, str(script))
    write_scattered_plan(tmp_path, load(source_of(script)))
    script.write_text(f"import enplace\nenplace.apply('plan.json')\nat_once = 4\n{LEGACY}")
    placed = run_cold(tmp_path, str(script))
    assert placed.returncode == 0, placed.stderr
    assert placed.stdout == plain.stdout
    assert " ops run where planned" in placed.stderr
    assert "steps_per_execution is 1" in placed.stderr
