"""Pipelines of micro-batches run in order and train as the whole step does."""

import re
from dataclasses import replace

import numpy as np
import pytest

from enplace.cli.runs import describe_run
from enplace.errors import PipelineError
from enplace.frameworks.measured import run_from, run_message
from enplace.frameworks.microbatches import WHOLE, Microbatches
from enplace.frameworks.source import source_of
from enplace.frameworks.tensorflow.apply.pipelines import pipeline_step
from enplace.frameworks.tensorflow.apply.run import run_plan
from enplace.frameworks.tensorflow.devices import parse_devices
from enplace.frameworks.tensorflow.measure.profile import graph_profile
from enplace.frameworks.tensorflow.open.load import load
from enplace.machine import simulate
from enplace.machine.op_passes import backward_ops
from enplace.names.passes import split_pass
from enplace.placers import place
from enplace.values.plan import Plan, follow_graph
from enplace.values.problem import Problem
from steps import profile_of_step

HEAD = """
import keras, numpy as np
import tensorflow as tf

keras.utils.clear_session()
keras.utils.set_random_seed(3)
layers, optimizer = keras.layers, "adam"
rng = np.random.default_rng(0)
"""
FOOT = """
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
model.fit(x, rng.integers(0, 4, len(x)), batch_size=8, verbose=0)
"""
DENSE = """
x = rng.random((24, 6)).astype("float32")
model = keras.Sequential([
    keras.Input((6,)), layers.Dense(16, "relu"), layers.Dropout(0.2), layers.Dense(16, "tanh"),
    layers.Dense(4),
])
"""
CONVOLUTIONS = """
x = rng.random((24, 8, 8, 3)).astype("float32")
model = keras.Sequential([
    keras.Input((8, 8, 3)),
    layers.Conv2D(8, 3, padding="same", activation="relu"),
    layers.SeparableConv2D(8, 3, padding="same"),
    layers.MaxPooling2D(), layers.GroupNormalization(4), layers.UpSampling2D(),
    layers.AveragePooling2D(2), layers.Flatten(), layers.Dense(4),
])
"""
ATTENTION = """
x = rng.integers(0, 50, (24, 8))
tokens = keras.Input((8,), dtype="int32")
h = layers.Embedding(50, 16)(tokens)
h = layers.LayerNormalization()(h + layers.Dropout(0.1)(layers.MultiHeadAttention(2, 8)(h, h)))
h = layers.GlobalAveragePooling1D()(layers.Dense(32, "gelu")(h))
model = keras.Model(tokens, layers.Dense(4)(h))
optimizer = "sgd"  # it joins the rows of gradients of all micro-batches
"""
MODELS = {"dense": DENSE, "convolutions": CONVOLUTIONS, "attention": ATTENTION}
NORMALISED = DENSE.replace('layers.Dense(16, "tanh")', "layers.BatchNormalization()")
MASKED = """
x = rng.integers(0, 50, (24, 8))
model = keras.Sequential([
    keras.Input((8,), dtype="int32"), layers.Embedding(50, 16, mask_zero=True),
    layers.Dense(16, "relu"), layers.Dense(4),
])
"""
PARTS = 4


@pytest.fixture(scope="module")
def two_cpus():
    return parse_devices("cpu:2")


def step_of_model(folder, model):
    path = folder / "train.py"
    path.write_text(HEAD + model + FOOT)
    return load(source_of(str(path)))


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return {
        name: step_of_model(tmp_path_factory.mktemp(name), model) for name, model in MODELS.items()
    }


def problem_of(step, devices):
    profile = graph_profile(step, devices)
    times = np.where(np.isnan(profile.time_us), np.nan, 50.0)
    return Problem(profile.with_costs(times), devices.cluster)


def two_stages(problem):
    """Plan the first half of the layers, forward and backward, on the first device."""
    profile = problem.profile
    layer = ["/".join(split_pass(scope)[1].split("/")[:2]) for scope in profile.scopes]
    backward = backward_ops(problem)
    order = [op for op in profile.topological_order.tolist() if not backward[op]]
    # What the model does beside its layers, such as a cast of its inputs, runs where these are.
    forward = [layer[op] for op in order if re.match("(functional|sequential)[^/]*/", layer[op])]
    distinct = list(dict.fromkeys(forward))
    second = distinct[len(distinct) // 2 :]
    wish = np.zeros(profile.n_ops, dtype=np.int64)
    for op in profile.topological_order.tolist():
        edges = profile.in_edges[profile.in_ptr[op] : profile.in_ptr[op + 1]]
        before = profile.edge_source[edges]
        wish[op] = layer[op] in second if layer[op] in distinct else wish[before].max(initial=0)
    unit_device = np.zeros(problem.n_units, dtype=np.int64)
    np.maximum.at(unit_device, problem.unit, wish)
    return Plan(
        unit_device[problem.unit], follow_graph(profile, profile.topological_order), "two stages"
    )


def made(step, problem, kind, devices, parts=PARTS):
    _, found = pipeline_step(
        step, problem, two_stages(problem), Microbatches(kind, parts), devices.host
    )
    return found


@pytest.mark.parametrize(
    ("name", "kind"), [("dense", "gpipe"), ("convolutions", "1f1b"), ("attention", "1f1b")]
)
def test_a_pipeline_trains_as_the_whole_step_does(name, kind, steps, two_cpus):
    step = steps[name]
    problem = problem_of(step, two_cpus)
    plan = two_stages(problem)
    run = run_plan(step, problem, plan, two_cpus, 3, microbatches=Microbatches(kind, PARTS))
    assert not run.facts["elsewhere"]["ops"]
    assert run.ops_on_planned_device == run.ops_checked > problem.profile.n_ops
    assert run.order_violations == 0
    assert run.loss_difference < 1e-5
    assert run.first_step_difference < 1e-6
    assert run.as_planned
    rows = run.pipeline["devices"]
    assert [row["in_flight"] for row in rows] == [row["planned_in_flight"] for row in rows]
    assert [row["device"] for row in rows] == ["CPU:0", "CPU:1"]
    assert all(row["busy_share"] > 0 and row["peak_bytes"] > 0 for row in rows)
    arrived = run_from(run_message(run), problem)
    assert arrived.profile.op_names == run.profile.op_names
    text = describe_run(arrived, "cpu:2")
    assert f"{kind}, 4 micro-batches" in text
    assert "time per sample" in text


def slots_of(pipeline, device):
    """List the passes and micro-batches in which a device runs, in order, without repeats."""
    profile, plan = pipeline.problem.profile, pipeline.plan
    backward = backward_ops(pipeline.problem)
    ops = np.flatnonzero((plan.device == device) & (pipeline.part != WHOLE) & pipeline.on_path)
    kept = [
        op
        for op in ops[np.argsort(plan.position[ops])].tolist()
        if profile.op_names[op].endswith(f"part_{pipeline.part[op]}")
    ]
    slots = [("FB"[int(backward[op])], int(pipeline.part[op])) for op in kept]
    return [slot for i, slot in enumerate(slots) if i == 0 or slot != slots[i - 1]]


def text_of(slots):
    return " ".join(f"{letter}{number}" for letter, number in slots)


def test_devices_run_micro_batches_in_the_order_of_the_schedule(steps, two_cpus):
    step = steps["dense"]
    problem = problem_of(step, two_cpus)
    found = made(step, problem, "1f1b", two_cpus)
    first = slots_of(found, 0)
    assert [sample for letter, sample in first if letter == "F"] == [0, 1, 2, 3]
    # Its gradients begin before all is forward.
    assert first.index(("B", 0)) < first.index(("F", 3))
    assert text_of(slots_of(found, 1)) == "F0 B0 F1 B1 F2 B2 F3 B3"
    found = made(step, problem, "gpipe", two_cpus)
    for device in (0, 1):
        assert text_of(slots_of(found, device)) == "F0 F1 F2 F3 B0 B1 B2 B3"


def test_metrics_do_not_hurry_the_next_micro_batch(steps, two_cpus):
    """Here the metrics are not on the device that makes the predictions."""
    step = steps["dense"]
    problem = problem_of(step, two_cpus)
    plan = place(problem, "max-load-dp").plan
    _, found = pipeline_step(step, problem, plan, Microbatches("1f1b", PARTS), two_cpus.host)
    last = found.schedule.stages[-1].devices[0]
    assert found.schedule.in_flight[last] == 1
    assert text_of(slots_of(found, last)) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_the_loss_of_masked_tokens_waits_for_the_masks_of_all_micro_batches(tmp_path, two_cpus):
    """They need the batch alone, no variable, so they are there before the pipeline begins."""
    path = tmp_path / "train.py"
    path.write_text(HEAD + MASKED + FOOT.replace("4, len(x)", "4, x.shape"))
    step = load(source_of(str(path)))
    problem = problem_of(step, two_cpus)
    found = made(step, problem, "1f1b", two_cpus)
    names = found.problem.profile.op_names
    masks = [op for op, name in enumerate(names) if name.endswith("NotEqual/split/part_1")]
    assert masks
    assert not found.on_path[masks].any()
    begun = dict.fromkeys(slots_of(found, 1))
    assert text_of(begun) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_one_forward_one_backward_holds_fewer_activations(steps, two_cpus):
    step = steps["convolutions"]
    problem = problem_of(step, two_cpus)
    peaks = {}
    for kind in ("1f1b", "gpipe"):
        found = made(step, problem, kind, two_cpus, 8)
        peaks[kind] = simulate(found.problem, found.plan).peak_bytes
    assert (peaks["1f1b"] < peaks["gpipe"]).all()


def test_costs_of_parts_add_up_to_those_of_the_step(steps, two_cpus):
    step = steps["convolutions"]
    problem = problem_of(step, two_cpus)
    found = made(step, problem, "1f1b", two_cpus)
    profile, whole = found.problem.profile, problem.profile
    name = next(n for n, t in zip(whole.op_names, whole.op_types, strict=True) if t == "Conv2D")
    parts = [profile.index[f"{name}/split/part_{i}"] for i in range(PARTS)]
    assert 50 <= profile.time_us[parts, 1].sum() <= 60
    assert profile.persistent_bytes.sum() == whole.persistent_bytes.sum()
    size = whole.tensor_bytes[whole.tensor_op == whole.index[name]].sum()
    assert profile.tensor_bytes[np.isin(profile.tensor_op, parts)].sum() == size


def test_a_plan_without_profile_runs_as_a_pipeline_without_a_prediction(steps, two_cpus):
    step = steps["dense"]
    problem = problem_of(step, two_cpus)
    plan = two_stages(problem)
    bare = replace(profile_of_step(step), op_types=("",) * problem.profile.n_ops)
    run = run_plan(
        step,
        Problem(bare, two_cpus.cluster),
        plan,
        two_cpus,
        1,
        compare=False,
        microbatches=Microbatches("1f1b", 2),
    )
    assert np.isnan(run.predicted_step_time_us)
    assert "predicted_busy_share" not in run.pipeline["devices"][0]
    assert run.order_violations == 0
    assert "Give --profile" in describe_run(run, "cpu:2")


def test_batch_normalisation_needs_leave_to_use_statistics_of_micro_batches(tmp_path, two_cpus):
    step = step_of_model(tmp_path, NORMALISED)
    problem = problem_of(step, two_cpus)
    with pytest.raises(PipelineError, match=r"batch_normalization\S*/moments/mean") as caught:
        made(step, problem, "1f1b", two_cpus)
    assert "\n" not in str(caught.value)
    assert "--own-statistics" in str(caught.value)
    wanted = Microbatches("1f1b", PARTS, own_statistics=True)
    run = run_plan(step, problem, two_stages(problem), two_cpus, 2, microbatches=wanted)
    assert run.as_planned
    assert run.order_violations == 0
    assert run.first_step_difference < 1e-6  # from the same micro-batches without the plan
    assert run.pipeline["whole_difference"] > 1e-4  # from the whole batch
    text = describe_run(run, "cpu:2")
    assert re.search(r"the loss of the first step differs by 0\.\d+", text)
    assert re.search(r"took its own mean or sum in '\S*batch_normalization\S*/moments/mean'", text)


def test_a_plan_with_splits_or_replicas_is_refused(steps, two_cpus):
    step = steps["dense"]
    problem = problem_of(step, two_cpus)
    plan = replace(two_stages(problem), replicas=((0, 1),))
    with pytest.raises(PipelineError, match="replicas"):
        pipeline_step(step, problem, plan, Microbatches("1f1b", 2), two_cpus.host)
