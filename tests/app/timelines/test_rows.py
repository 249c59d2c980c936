from itertools import pairwise

import numpy as np
import pytest

from documents import chain_document, document_of, wide_document
from enplace.machine import critical_path, simulate
from enplace.pictures.tracks import trace_path
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.splits import OFFLOAD, Split
from enplace_studio.explain.start_times import find_chain
from enplace_studio.timelines.rows import MAX_CHANNEL_ROWS, arrange, rows_of
from enplace_studio.timelines.waiting import (
    describe_gap,
    describe_op,
    describe_path,
    describe_transfer,
    find_gap,
)
from enplace_studio.widgets.labels import BETWEEN_FACTS
from problems import cluster_of, profile_of


def test_a_lane_per_device_with_the_channel_between_them():
    schedule = chain_document().schedule
    rows = rows_of(schedule)
    assert [row.title for row in rows] == ["GPU 0", "0 → 1", "GPU 1"]
    assert [row.note for row in rows] == ["39 % busy", "20 B", "20 % busy"]


def test_a_plan_without_an_op_on_a_gpu_begins_with_the_cpu():
    profile = profile_of({}, [("a", "b", 1)], cpu={"a": 10, "b": 10})
    schedule = document_of(profile, cluster_of(2, cpu_lanes=1), {"a": 2, "b": 2}).schedule
    assert [row.title for row in rows_of(schedule)] == ["CPU 0", "GPU 0", "GPU 1"]


def test_a_plan_that_keeps_outputs_on_the_host_shows_the_transfers_to_it():
    profile = profile_of(
        {"a": 10, "b": 10, "c": 10}, [("a", "b", 50), ("b", "c", 1), ("a", "c", 50)]
    )
    problem = Problem(profile, cluster_of(1, cpu_lanes=1))
    problem = split_problem(problem, (Split("a", OFFLOAD, 2, ("c",)),))
    device = np.zeros(4, dtype=np.int64)
    device[problem.profile.index["a/fetched"]] = 1
    order = np.argsort(problem.profile.topological_order)
    schedule = simulate(problem, Plan(device, order, "by hand", splits=problem.splits))
    sent = [(row.title, row.note) for row in rows_of(schedule) if not row.is_device]
    assert sent == [("0 → CPU 0", "50 B"), ("CPU 0 → 0", "50 B")]


def test_a_row_on_which_transfers_wait_long_shows_their_queue():
    profile = profile_of({"a": 10, "x": 1, "y": 1}, [("a", "x", 50), ("a", "y", 50)])
    schedule = document_of(profile, cluster_of(3, shared=True), {"a": 0, "x": 1, "y": 2}).schedule
    (row,) = [row for row in rows_of(schedule, queues=True) if not row.is_device]
    assert row.note == "100 B, queue of 1"
    assert not row.thin
    assert all(row.queue is None for row in rows_of(chain_document().schedule, queues=True))


def test_every_transfer_and_every_op_that_takes_time_has_one_bar():
    schedule = wide_document().schedule
    rows = rows_of(schedule)
    ops = np.concatenate([row.numbers for row in rows if row.is_device])
    sent = np.concatenate([row.numbers for row in rows if not row.is_device])
    assert sorted(ops.tolist()) == list(range(schedule.problem.profile.n_ops))
    assert sorted(sent.tolist()) == list(range(len(schedule.transfer_tensor)))


def test_many_channels_share_a_row_for_each_sender():
    document = wide_document(n_gpus=5)
    channels = [row for row in rows_of(document.schedule) if not row.is_device]
    assert [row.title for row in channels] == [f"from {d}" for d in range(5)]
    assert len(channels) <= MAX_CHANNEL_ROWS


def test_a_cpu_has_a_row_for_each_lane_it_uses():
    times = {f"op{i}": 10.0 for i in range(3)}
    profile = profile_of({}, cpu=times)
    document = document_of(profile, cluster_of(1, cpu_lanes=4), dict.fromkeys(times, 1))
    assert [row.title for row in rows_of(document.schedule)] == ["CPU 0", "", "", "GPU 0"]


def test_an_almost_idle_cpu_is_thin():
    assert [row.thin for row in rows_with_a_cpu(busy_us=10)] == [False, True]


def test_a_cpu_that_would_read_0_percent_has_no_row():
    assert [row.device for row in rows_with_a_cpu(busy_us=1)] == [0]


def rows_with_a_cpu(busy_us):
    profile = profile_of({"a": 1000}, [("in", "a", 1)], cpu={"in": busy_us})
    document = document_of(profile, cluster_of(1, cpu_lanes=4), {"a": 0, "in": 1})
    return rows_of(document.schedule)


def test_the_nearest_bar_is_found_only_within_the_slack():
    row = rows_of(chain_document().schedule)[2]
    assert row.nearest(45.0, 0.0) == 0
    assert row.nearest(39.0, 3.0) == 0
    assert row.nearest(30.0, 3.0) is None


def test_bars_on_screen_are_exactly_those_that_touch_the_window():
    for row in rows_of(wide_document().schedule):
        touching = np.flatnonzero((row.finish_us >= 300) & (row.start_us <= 420))
        near = row.within(300, 420)
        assert set(touching.tolist()) <= set(range(near.start, near.stop))
        assert near.stop - near.start <= len(touching) + 1


def test_shades_change_with_the_group():
    schedule = chain_document().schedule
    row = rows_of(schedule, np.array([5, 5, 1]))[0]
    assert row.odd[0] == row.odd[1]
    assert rows_of(schedule)[0].odd.tolist() in ([True, False], [False, True])


@pytest.mark.parametrize("height", [20, 200, 2000])
def test_rows_never_overlap(height):
    rows = rows_of(wide_document().schedule)
    places = arrange(rows, height)
    assert all(a.bottom < b.top for a, b in pairwise(places))


def test_the_critical_path_steps_between_the_rows():
    schedule = chain_document().schedule
    path = critical_path(schedule)
    trace = trace_path(path, rows_of(schedule))
    assert trace.row.tolist() == [0, 1, 2]
    assert trace.start_us.tolist() == [0, 20, 41]
    assert trace.finish_us.tolist() == [20, 41, 51]
    facts = describe_path(path).split(BETWEEN_FACTS)
    assert facts == ["critical path   compute 0.030 ms", "transfers 0.021 ms", "waiting 0 ms"]


def test_an_op_names_what_it_waited_for():
    schedule = chain_document().schedule
    assert "idle for 0.041 ms, waiting for the transfer of b from GPU 0" in describe_op(schedule, 2)
    assert "Starts with the step" in describe_op(schedule, 0)


def test_a_gap_shows_its_length_and_the_op_that_ends_it():
    schedule = chain_document().schedule
    first, _, second = rows_of(schedule)
    assert describe_gap(schedule, second, 20.0).startswith("GPU 1 idle for 0.041 ms, until c\n")
    assert describe_gap(schedule, first, 30.0) == (
        "GPU 0 idle for 0.031 ms, to the end of the step"
    )
    assert describe_gap(schedule, first, 60.0) == ""


def test_a_gap_is_explained_back_to_what_was_at_work_as_it_began():
    document = chain_document()
    schedule, grouping = document.schedule, document.project.grouping
    gap = find_gap(schedule, rows_of(schedule)[2], 20.0)
    chain = find_chain(schedule, grouping, gap)
    assert [(step.name, step.time_us) for step in chain.steps] == [
        ("b: GPU 0 → GPU 1", pytest.approx(21)),
        ("b on GPU 0", pytest.approx(10)),
        ("a on GPU 0", pytest.approx(10)),
    ]
    assert [step.ops for step in chain.steps] == [(1,), (1,), (0,)]


def test_a_chain_ends_where_the_gap_began():
    profile = profile_of({"early": 15, "a": 10, "b": 10, "c": 5}, [("a", "b", 1), ("b", "c", 4)])
    document = document_of(profile, cluster_of(2), {"early": 1, "a": 0, "b": 0, "c": 1})
    schedule = document.schedule
    gap = find_gap(schedule, rows_of(schedule)[-1], 16.0)
    steps = find_chain(schedule, document.project.grouping, gap).steps
    assert steps[-1].name == "b on GPU 0"
    assert steps[-1].time_us == pytest.approx(5), "only its time within the gap"
    assert sum(step.time_us for step in steps) == pytest.approx(gap.until_us - gap.since_us)


def test_at_the_end_of_the_step_the_chain_is_what_the_step_waits_for():
    schedule = chain_document().schedule
    grouping = chain_document().project.grouping
    gap = find_gap(schedule, rows_of(schedule)[0], 30.0)
    assert gap.op is None
    assert [step.name for step in find_chain(schedule, grouping, gap).steps] == [
        "c on GPU 1",
        "b: GPU 0 → GPU 1",
    ]


def test_a_ready_op_names_the_op_that_occupied_its_device():
    profile = profile_of({"long": 30, "late": 5})
    document = document_of(profile, cluster_of(1), {"long": 0, "late": 0})
    assert "ready 0.030 ms earlier; its device was busy until long" in describe_op(
        document.schedule, 1
    )


def test_a_transfer_shows_its_tensor_and_its_wait():
    profile = profile_of({"a": 10, "x": 1, "y": 1}, [("a", "x", 50), ("a", "y", 50)])
    document = document_of(profile, cluster_of(3, shared=True), {"a": 0, "x": 1, "y": 2})
    schedule = document.schedule
    second = int(np.argmax(schedule.transfer_start_us))
    assert "50 B of a" in describe_transfer(schedule, second)
    assert "Waited 0.051 ms for its channel" in describe_transfer(schedule, second)
    assert "Sent at once" in describe_transfer(schedule, 1 - second)
