import numpy as np
import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.step_stats_pb2 import StepStats

from enplace.frameworks.measured import NOT_SEEN
from enplace.frameworks.tensorflow.apply.check import (
    check_placement,
    count_violations,
    first_start_us,
    not_in_plan,
    op_times_us,
)
from enplace.frameworks.tensorflow.step import Step

DEVICES = ["/device:CPU:0", "/device:CPU:1"]
NAMES = ["x", "k", "a", "b", "unused", "gone", "other"]


def graph_of(*nodes):
    graph = GraphDef()
    for name, op, device, *inputs in nodes:
        graph.node.add(name=name, op=op, device=device, input=inputs)
    return graph


def on(number):
    return f"/job:localhost/replica:0/task:0{DEVICES[number]}"


STEP = Step(
    "hand",
    graph_of(
        ("x", "Placeholder", ""),
        ("k", "Const", ""),
        ("a", "Add", "", "x", "k"),
        ("b", "Mul", "", "a", "gone"),
        ("gone", "Neg", "", "x"),
        ("unused", "Neg", "", "a"),
    ),
    variables={},
    batches=[],
    inputs=("x",),
    outputs=("b:0",),
)
PARTITIONS = [
    graph_of(
        ("_arg_x_0_0", "_Arg", on(0)),
        ("k/replicate/_0", "Const", on(0)),
        ("a", "Add", on(0), "_arg_x_0_0", "k/replicate/_0"),
        ("a/_1", "_Send", on(0), "a"),
    ),
    graph_of(
        ("a/_2", "_Recv", on(1)), ("b", "Mul", on(1), "a/_2"), ("_retval_b_0_0", "_Retval", on(1))
    ),
]


def check(*planned):
    return check_placement(PARTITIONS, STEP, NAMES, np.array(planned), DEVICES)


def test_every_op_that_did_not_run_has_a_reason():
    found = check(0, 0, 0, 1, 0, 0, 0)
    assert (found.checked, found.as_planned) == (2, 2)
    assert found.op_device.tolist() == [NOT_SEEN, NOT_SEEN, 0, 1, NOT_SEEN, NOT_SEEN, NOT_SEEN]
    assert found.facts["not_run"]["reasons"] == {
        "fed": 1,
        "a constant, copied to its consumers": 1,
        "no result depends on it": 1,
        "left out or renamed by TensorFlow": 1,
        "not in the graph": 1,
    }
    assert found.facts["added"] == {"ends of transfers": 2, "copies of constants": 1}


def test_an_op_on_another_device_is_named():
    found = check(0, 0, 0, 0, 0, 0, 0)
    assert (found.checked, found.as_planned) == (2, 1)
    assert found.facts["elsewhere"]["ops"] == ["b"]
    assert found.facts["elsewhere"]["reasons"] == {"on /device:CPU:1": 1}


def test_a_device_outside_the_plan_counts_as_another_device():
    graph = graph_of(("a", "Add", on(0).replace("CPU:0", "CPU:5")))
    found = check_placement([graph], STEP, ["a"], np.array([0]), DEVICES)
    assert (found.checked, found.as_planned) == (1, 0)
    assert found.op_device.tolist() == [NOT_SEEN]


def test_ops_missing_from_the_plan_are_listed():
    missing = not_in_plan(STEP, ["x", "k", "a"])
    assert missing == {"count": 3, "reasons": {"Mul": 1, "Neg": 2}, "ops": ["b", "gone", "unused"]}


@pytest.mark.parametrize(
    ("starts", "order", "violations"),
    [
        ([0, 1, 2, 3], [[0, 1, 2, 3]], 0),
        ([0, 2, 1, 3], [[0, 1, 2, 3]], 1),
        ([3, 0, 1, 2], [[0, 1, 2, 3]], 3),
        ([3, 0, 1, 2], [[0], [1, 2, 3]], 0),
        ([0, np.nan, 1, 0.5], [[0, 1, 2, 3]], 1),
        ([5, 4], [[]], 0),
    ],
)
def test_an_op_that_starts_before_an_earlier_one_is_a_violation(starts, order, violations):
    assert count_violations(np.array(starts, dtype=float), order) == violations


def row(stats, device, name, begin_us, length_us):
    device_stats = next((d for d in stats.dev_stats if d.device == device), None)
    if device_stats is None:
        device_stats = stats.dev_stats.add(device=device)
    device_stats.node_stats.add(
        node_name=name,
        all_start_nanos=round(begin_us * 1e3),
        op_start_rel_nanos=500,
        op_end_rel_nanos=500 + round(length_us * 1e3),
    )


def test_times_are_relative_to_the_first_op_of_the_plan():
    stats = StepStats()
    row(stats, DEVICES[0], "_SOURCE", 1000, 1)
    row(stats, DEVICES[0], "a", 1010, 5)
    row(stats, DEVICES[1], "b", 1030, 2)
    start, finish = op_times_us(stats, {"a": 0, "b": 1, "never": 2})
    np.testing.assert_allclose(start, [0, 20, np.nan])
    np.testing.assert_allclose(finish, [5, 22, np.nan])


def test_a_gpu_op_runs_from_its_launch_to_the_end_of_its_last_kernel():
    stats = StepStats()
    row(stats, "/device:GPU:0", "a", 100, 3)
    row(stats, "/device:GPU:0/stream:all", "a:MatMul", 105, 40)
    start, finish = op_times_us(stats, {"a": 0})
    np.testing.assert_allclose([start[0], finish[0]], [0, 45])


def test_a_trace_without_planned_ops_gives_no_times():
    start, finish = op_times_us(StepStats(), {"a": 0})
    assert np.isnan([start, finish]).all()


def test_rows_without_a_time_do_not_begin_a_step():
    stats = StepStats()
    rows = stats.dev_stats.add().node_stats
    rows.add(node_name="received", all_start_nanos=0, op_end_rel_nanos=5)
    rows.add(node_name="a", all_start_nanos=1_800_000_000_000_000_000, op_start_rel_nanos=2000)
    assert first_start_us(stats) == 1_800_000_000_000_002.0
