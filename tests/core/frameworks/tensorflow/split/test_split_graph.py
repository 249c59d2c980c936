"""Splits of real graphs keep the results and make the nodes that the plan names."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from enplace.errors import SplitError
from enplace.frameworks.measured import run_from, run_message
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.apply import run as running
from enplace.frameworks.tensorflow.apply.run import run_plan
from enplace.frameworks.tensorflow.capture import step_of
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open.load import load
from enplace.frameworks.tensorflow.split.split_graph import split_step
from enplace.machine import simulate
from enplace.placers import place
from enplace.placers.os_dpos import data_parallel
from enplace.placing.again import Kept
from enplace.values.problem import Problem, split_problem
from enplace.values.splits import RECOMPUTE, Split, legal_dimensions, without_broken_groups
from problems import cluster_of

MODEL = """
import keras, numpy as np
import tensorflow as tf

keras.utils.clear_session()
keras.utils.set_random_seed(3)
layers = keras.layers
model = keras.Sequential([
    keras.Input((8, 8, 3)),
    layers.Conv2D(8, 3, padding="same", activation="relu"),
    layers.BatchNormalization(),
    layers.Conv2D(8, 3, padding="same", activation="relu"),
    layers.MaxPooling2D(),
    layers.Flatten(),
    layers.Dense(16, activation="tanh"),
    layers.Dense(4),
])
rng = np.random.default_rng(0)
x, y = rng.random((24, 8, 8, 3)).astype("float32"), rng.integers(0, 4, 24)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
model.fit(x, y, batch_size=8, verbose=0)
"""
GROUPED = """
import keras, numpy as np
import tensorflow as tf

keras.utils.clear_session()
keras.utils.set_random_seed(3)
layers = keras.layers
model = keras.Sequential([
    keras.Input((8, 8, 4)),
    layers.Conv2D(8, 3, padding="same", groups=2, trainable=False),
    layers.Conv2D(8, 3, padding="same", activation="relu"),
    layers.Flatten(),
    layers.Dense(4),
])
rng = np.random.default_rng(0)
x, y = rng.random((3 * BATCH, 8, 8, 4)).astype("float32"), rng.integers(0, 4, 3 * BATCH)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
model.fit(x, y, batch_size=BATCH, verbose=0)
"""
"""A grouped convolution, placed first because TensorFlow has no CPU gradient for its input."""

NORM = "    layers.BatchNormalization(),\n"
CHAOTIC = MODEL.replace("    layers.Flatten(),", 3 * NORM + "    layers.Flatten(),").replace(
    "SGD(0.1)", "SGD(3.0)"
)
"""With this learning rate, a change in the last bit of the weights soon changes the loss."""

N_STEPS = 3
LAST_BIT = 2.0**-16
"""Tolerance relative to the largest variable; Keras sums the losses of over 128 samples."""


@pytest.fixture(scope="module")
def two_cpus():
    return parse_devices("cpu:2")


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "train.py"
    path.write_text(MODEL)
    return load(source_of(str(path)))


@pytest.fixture(scope="module")
def problem(step, two_cpus):
    return problem_of(step, two_cpus)


def problem_of(step, devices):
    profile = graph_profile(step, devices)
    times = np.where(np.isnan(profile.time_us), np.nan, 50.0)
    return Problem(profile.with_costs(times), devices.cluster)


def grouped_step(folder, batch):
    path = folder / "grouped.py"
    path.write_text(GROUPED.replace("BATCH", str(batch)))
    return load(source_of(str(path)))


def move_to_gpus(problem):
    """Move the problem to GPUs where convolutions are slow, so that os-dpos splits them."""
    long = np.array([kind.startswith("Conv2D") for kind in problem.profile.op_types])
    times = np.where(long, 1000.0, 5.0)
    profile = problem.profile.with_costs(np.stack([times, times], axis=1))
    return Problem(profile, cluster_of(2, b0_us=0.1, b1_us_per_byte=1e-6))


def split_everything(problem, last):
    """Split every op along the first or the last of its dimensions."""
    profile = problem.profile
    splits = [
        Split(name, legal[-1 if last else 0], 2)
        for op, name in enumerate(profile.op_names)
        if (legal := legal_dimensions(profile, op, 2))
    ]
    return without_broken_groups(profile, splits)


def run(step, problem, splits, two_cpus, steps=N_STEPS):
    graph = split_problem(problem, tuple(splits))
    return run_plan(step, graph, place(graph, "round-robin").plan, two_cpus, steps)


@pytest.mark.parametrize("last", [False, True])
def test_splitting_any_op_keeps_the_results(last, step, problem, two_cpus):
    splits = split_everything(problem, last)
    types = Counter(problem.profile.op_types[problem.profile.index[s.op]] for s in splits)
    assert {"Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "MatMul"} <= set(types)
    done = run(step, problem, splits, two_cpus)
    assert done.loss_difference <= 1e-6
    assert done.weights_difference <= LAST_BIT
    assert not done.changes_result
    assert done.ops_on_planned_device == done.ops_checked
    assert done.ops_checked > problem.profile.n_ops
    assert done.order_violations == 0


def test_the_data_parallel_graph_gives_the_same_results(step, problem, two_cpus):
    splits = data_parallel(problem)
    done = run(step, problem, splits, two_cpus)
    assert done.loss_difference <= 1e-6
    assert done.weights_difference <= LAST_BIT
    nodes = {n.name: n.op for n in split_step(step, splits).graph_def.node}
    graph = split_problem(problem, splits).profile
    known = [name for name in graph.op_names if name in nodes]
    assert len(known) > 0.98 * graph.n_ops
    assert {"Split", "ConcatV2", "AddN"} <= set(nodes.values())


def test_splitting_parts_again_keeps_the_results(step, problem, two_cpus):
    profile = problem.profile
    conv = next(n for n, t in zip(profile.op_names, profile.op_types, strict=True) if t == "Conv2D")
    splits = [Split(conv, "batch", 2), Split(f"{conv}/split/part_1", "channel", 4)]
    done = run(step, problem, splits, two_cpus)
    assert done.loss_difference <= 1e-6
    assert done.weights_difference <= LAST_BIT


def test_computing_again_keeps_the_results_to_the_last_bit(step, problem, two_cpus):
    kept = Kept(problem)
    base = simulate(problem, place(problem, "single").plan)
    splits = kept.copied(base, np.flatnonzero(kept.can).tolist()).splits
    types = {problem.profile.op_types[problem.profile.index[each.op]] for each in splits}
    assert {"Conv2D", "Relu", "MaxPool", "Tanh"} <= types
    done = run(step, problem, splits, two_cpus)
    assert done.loss_difference == 0
    assert done.weights_difference == 0
    assert done.ops_on_planned_device == done.ops_checked
    assert done.order_violations == 0


def test_fetching_from_the_host_keeps_the_results_to_the_last_bit(step, problem, two_cpus):
    everywhere = problem.profile.with_costs(np.full_like(problem.profile.time_us, 50.0))
    with_host = Problem(everywhere, cluster_of(1, cpu_lanes=1))
    kept = Kept(with_host)
    base = simulate(with_host, place(with_host, "single").plan)
    given = problem.profile.variable_given >= 0
    may_go = np.flatnonzero(~kept.backward & ~given & (kept.late_bytes > 0)).tolist()
    sent = {op: op for op in may_go[::2]}
    again = [op for op in np.flatnonzero(kept.can).tolist() if op not in sent]
    splits = kept.copied(base, again, sent).splits
    assert sum(each.is_offload for each in splits) > 3
    assert any(each.is_again for each in splits)
    fetched = {each.added for each in splits if each.is_offload}
    nodes = {node.name: node for node in split_step(step, splits).graph_def.node}
    assert {nodes[name].op for name in fetched} == {"IdentityN"}
    done = run(step, problem, splits, two_cpus)
    assert done.loss_difference == 0
    assert done.weights_difference == 0
    assert done.ops_on_planned_device == done.ops_checked
    assert done.order_violations == 0


def test_a_graph_that_does_not_have_what_is_computed_again_is_refused(step, problem):
    relu = next(name for name in problem.profile.op_names if name.endswith("Relu"))
    with pytest.raises(SplitError, match="no such op"):
        split_step(step, [Split("gone", RECOMPUTE, 2, (relu,))])
    with pytest.raises(SplitError, match="does not read it"):
        split_step(step, [Split(relu, RECOMPUTE, 2, (relu,))])


def step_of_text(folder, text):
    path = folder / "train.py"
    path.write_text(text)
    return load(source_of(str(path)))


def test_a_drifting_loss_is_not_blamed_on_the_splits(tmp_path, two_cpus):
    step = step_of_text(tmp_path, CHAOTIC)
    problem = problem_of(step, two_cpus)
    done = run(step, problem, data_parallel(problem), two_cpus, 10)
    assert done.loss_difference > 1e-4
    assert not done.changes_result
    assert "round differently" in done.drift
    arrived = run_from(run_message(done), problem)
    assert arrived.first_step_difference == done.first_step_difference <= 1e-6
    assert 0 < arrived.rounding_difference == done.rounding_difference <= 1e-5


def test_an_optimiser_that_divides_by_gradients_may_amplify_rounding(tmp_path, two_cpus):
    """A bias just before batch normalisation has only rounding errors as its gradient."""
    before = 'layers.Conv2D(8, 3, padding="same", activation="relu"),\n    layers.Batch'
    text = MODEL.replace(before, 'layers.Conv2D(8, 3, padding="same"),\n    layers.Batch')
    step = step_of_text(tmp_path, text.replace("SGD(0.1)", "Adam(0.001)"))
    problem = problem_of(step, two_cpus)
    done = run(step, problem, data_parallel(problem), two_cpus)
    assert done.weights_difference > 1e-5
    assert not done.changes_result


def test_a_sum_that_omits_a_part_is_detected(step, problem, two_cpus, monkeypatch):
    """A gradient is summed without the samples of one part."""

    def split_wrongly(step, splits):
        made = split_step(step, splits)
        join = next(n for n in made.graph_def.node if n.op == "AddN" and "BackpropFilter" in n.name)
        join.input[1] = join.input[0]
        return made

    monkeypatch.setattr(running, "split_step", split_wrongly)
    assert run(step, problem, data_parallel(problem), two_cpus).changes_result


def test_a_dimension_that_does_not_divide_evenly_is_refused(step, problem):
    profile = problem.profile
    conv = next(n for n, t in zip(profile.op_names, profile.op_types, strict=True) if t == "Conv2D")
    with pytest.raises(SplitError, match=f"op '{conv}' .* 8 is not a multiple of 3"):
        split_step(step, [Split(conv, "batch", 3)])


def test_splitting_an_op_missing_from_the_graph_is_refused(step):
    with pytest.raises(SplitError, match=r"op 'conv9' .* profile the model again"):
        split_step(replace(step), [Split("conv9", "batch", 2)])


def test_a_grouped_convolution_keeps_its_results(tmp_path, two_cpus):
    step = grouped_step(tmp_path, 8)
    problem = problem_of(step, two_cpus)
    splits = place(move_to_gpus(problem), "os-dpos").plan.splits
    types = Counter(problem.profile.op_types[problem.profile.index[s.op]] for s in splits)
    assert types["Conv2D"] == 2
    done = run(step, problem, splits, two_cpus)
    assert done.loss_difference <= 1e-6


def test_a_grouped_convolution_is_not_split_by_channel(two_cpus):
    @tf.function
    def gradients(x, filters):
        with tf.GradientTape() as tape:
            tape.watch([x, filters])
            y = tf.nn.conv2d(x, filters, 1, "SAME")
        return tape.gradient(y, [x, filters], tf.square(y))

    given = [tf.ones((6, 5, 5, 8)), tf.ones((3, 3, 4, 8))]
    step = step_of("grouped", gradients.get_concrete_function(*given), [given])
    profile = graph_profile(step, two_cpus)
    convolutions = [n.name for n in step.graph_def.node if n.op.startswith("Conv2D")]
    assert len(convolutions) == 3
    for op in convolutions:
        assert profile.measured.split_lengths[op] == {"batch": 6}
        with pytest.raises(SplitError, match=f"'{op}' .* along 'channel': it is a grouped conv"):
            split_step(step, [Split(op, "channel", 2)])


def test_a_batch_of_seven_is_never_halved(tmp_path, two_cpus):
    step = grouped_step(tmp_path, 7)
    problem = problem_of(step, two_cpus)
    profile = problem.profile
    splits = place(move_to_gpus(problem), "os-dpos").plan.splits
    assert not any(s.dimension in ("batch", "rows", "inner") for s in splits)
    conv = profile.index[next(n.name for n in step.graph_def.node if n.op == "Conv2D")]
    assert legal_dimensions(profile, conv, 7) == ("batch",)
    done = run(step, problem, split_everything(problem, last=True), two_cpus)
    assert done.loss_difference <= 1e-6


def test_ops_without_a_sample_dimension_stay_whole(two_cpus):
    @tf.function
    def train(x, table, ids):
        rows, columns = tf.gather(table, ids), tf.gather(table, ids, axis=1)
        both = tf.raw_ops.BatchMatMulV2(x=x, y=x)
        vector = tf.nn.softmax(tf.reduce_sum(x, axis=1))
        return tf.reduce_sum(rows) + tf.reduce_sum(columns) + tf.reduce_sum(both) + vector[0]

    given = [tf.ones((4, 4)), tf.ones((6, 8)), tf.constant([1, 3, 0, 2])]
    step = step_of("gathers", train.get_concrete_function(*given), [given])
    lengths = graph_profile(step, two_cpus).measured.split_lengths
    kinds = {"GatherV2": [], "BatchMatMulV2": [], "Softmax": []}
    for node in step.graph_def.node:
        if node.op in kinds:
            kinds[node.op].append(lengths[node.name])
    assert sorted(kinds["GatherV2"], key=len) == [{}, {"batch": 4}]
    assert kinds["BatchMatMulV2"] == kinds["Softmax"] == [{}]
