"""The independent verifier finds every kind of fault in corrupted schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from tests.core.machine.schedule_faults import find_faults

from enplace.errors import DeadlockError
from enplace.machine import simulate
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.constraints import Constraints
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import make_profile
from problems import planned_problems


def two_gpus(links_b0=10.0):
    return Cluster(
        name="two",
        devices=(Device("GPU:0", "gpu", 1000), Device("GPU:1", "gpu", 1000)),
        channels=("there", "back"),
        links=(Link(0, 1, links_b0, 0.5, (0,)), Link(1, 0, links_b0, 0.5, (1,))),
    )


def problem(**constraints):
    """Return ops a to f: b and c consume the output of a, d that of b, e that of c; f is alone."""
    profile = make_profile(
        "six",
        op_names=list("abcdef"),
        op_types=["Op"] * 6,
        scopes=[""] * 6,
        time_us=np.array([(t, np.nan) for t in (10.0, 20.0, 30.0, 0.0, 5.0, 30.0)]),
        persistent_bytes=[0, 100, 0, 0, 0, 0],
        temporary_bytes=[7, 0, 0, 0, 0, 0],
        colocation=[""] * 6,
        edge_source=[0, 0, 1, 2],
        edge_output=[0, 0, 0, 0],
        edge_op=[1, 2, 3, 4],
        edge_bytes=[8, 8, 4, 6],
    )
    return Problem(profile, two_gpus(), Constraints(**constraints))


@pytest.fixture
def schedule():
    device = np.array([0, 1, 1, 0, 1, 1])
    return simulate(problem(), Plan(device, np.arange(6), "by hand"))


def with_op(schedule, op, start=None, finish=None):
    starts, finishes = schedule.op_start_us.copy(), schedule.op_finish_us.copy()
    starts[op] = starts[op] if start is None else start
    finishes[op] = finishes[op] if finish is None else finish
    return replace(schedule, op_start_us=starts, op_finish_us=finishes)


def with_transfer(schedule, index, start, finish):
    starts, finishes = schedule.transfer_start_us.copy(), schedule.transfer_finish_us.copy()
    starts[index], finishes[index] = start, finish
    return replace(schedule, transfer_start_us=starts, transfer_finish_us=finishes)


def has_fault(schedule, text):
    return any(text in fault for fault in find_faults(schedule))


def test_the_hand_made_schedule_has_no_fault(schedule):
    assert schedule.op_start_us.tolist() == [0, 30, 50, 62, 80, 0]
    assert find_faults(schedule) == []


@given(planned=planned_problems())
def test_simulated_schedules_have_no_fault_under_any_policy(planned):
    try:
        schedule = simulate(*planned)
    except DeadlockError:
        assume(False)
    assert find_faults(schedule) == []


def test_a_wrong_duration_is_found(schedule):
    assert has_fault(with_op(schedule, 4, finish=86.0), "'e' takes 6.0, not 5.0")


def test_an_op_that_starts_before_its_inputs_is_found(schedule):
    assert has_fault(with_op(schedule, 4, start=0.0, finish=5.0), "'e' starts at 0.0")


def test_two_ops_at_once_are_found(schedule):
    assert has_fault(with_op(schedule, 2, start=45.0, finish=75.0), "overlap on one lane")


def test_an_idle_lane_is_found(schedule):
    assert has_fault(with_op(schedule, 4, start=81.0, finish=86.0), "while a lane is free")


def test_an_op_that_runs_too_early_in_the_order_is_found(schedule):
    swapped = with_op(with_op(schedule, 2, 30.0, 60.0), 1, 60.0, 80.0)
    assert has_fault(swapped, "'c' starts while op 'b' should go first")


def test_a_missing_transfer_is_found(schedule):
    names = ("transfer_tensor", "transfer_to", "transfer_start_us", "transfer_finish_us")
    fewer = replace(schedule, **{name: getattr(schedule, name)[1:] for name in names})
    assert has_fault(fewer, "is needed, but never sent")


def test_a_superfluous_transfer_is_found(schedule):
    to = schedule.transfer_to.copy()
    to[:] = 0
    assert has_fault(replace(schedule, transfer_to=to), "is sent, but not needed")


def test_a_transfer_of_the_wrong_duration_is_found(schedule):
    assert has_fault(with_transfer(schedule, 0, 10.0, 23.0), "takes 13.0, not 14.0")


def test_a_transfer_before_its_tensor(schedule):
    assert has_fault(with_transfer(schedule, 0, 5.0, 19.0), "is sent before it is made")


def test_a_transfer_that_starts_late_is_found(schedule):
    assert has_fault(with_transfer(schedule, 1, 52.0, 64.0), "while a channel is free")


def test_a_lane_that_does_not_exist_is_found(schedule):
    lanes = schedule.op_lane.copy()
    lanes[0] = 1
    assert has_fault(replace(schedule, op_lane=lanes), "is on lane 1, which does not exist")


@pytest.mark.parametrize(
    ("constraints", "fault"),
    [
        ({"pins": {1: 0}}, "'b' is on device 1, but it is pinned to"),
        ({"forbidden": frozenset({(2, 1)})}, "'c' is on device 1, but it is forbidden"),
        ({"together": ((0, 1),)}, "apart from an op it is colocated with"),
    ],
)
def test_a_placement_that_breaks_a_constraint_is_found(schedule, constraints, fault):
    assert has_fault(replace(schedule, problem=problem(**constraints)), fault)


def test_a_departure_from_a_strict_order_is_found(schedule):
    order = np.array([0, 2, 1, 3, 4, 5])
    strict = replace(schedule, plan=replace(schedule.plan, position=order, policy="strict"))
    assert has_fault(strict, "starts before its predecessor")


def test_a_wrong_memory_curve_is_found(schedule, monkeypatch):
    first, curve = schedule.memory
    assert curve.peak_bytes == 118
    wrong = (first, replace(curve, bytes=curve.bytes + 1))
    monkeypatch.setattr(type(schedule), "memory", wrong)
    assert has_fault(schedule, "device 1 uses")


def test_overlap_and_overtaking_on_a_shared_channel_are_found():
    profile = make_profile(
        "fan",
        op_names=list("abcd"),
        op_types=["Op"] * 4,
        scopes=[""] * 4,
        time_us=np.array([(t, np.nan) for t in (10.0, 1.0, 5.0, 5.0)]),
        persistent_bytes=[0] * 4,
        temporary_bytes=[0] * 4,
        colocation=[""] * 4,
        edge_source=[0, 1],
        edge_output=[0, 0],
        edge_op=[2, 3],
        edge_bytes=[20, 20],
    )
    plan = Plan(np.array([0, 0, 1, 1]), np.arange(4), "by hand")
    good = simulate(Problem(profile, two_gpus()), plan)
    assert find_faults(good) == []
    assert good.transfer_start_us.tolist() == [10, 30]
    assert has_fault(with_transfer(good, 1, 20.0, 40.0), "overlap on channel 'there'")
    late_first = with_transfer(with_transfer(good, 1, 11.0, 31.0), 0, 31.0, 51.0)
    assert has_fault(late_first, "overtakes")
