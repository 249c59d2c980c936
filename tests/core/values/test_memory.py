"""Memory over time, by hand and against a brute-force count."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from enplace.machine import simulate
from enplace.values.memory import one_device_peak_bytes
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from problems import cluster_of, plan_of, planned_problems, profile_of, profiles


def test_a_sent_tensor_occupies_memory_on_both_devices():
    """a (0-2) sends 4 bytes (2-7) to b (7-10); a's copy ends with the transfer, b's with b."""
    profile = profile_of(
        {"a": 2, "b": 3},
        [("a", "b", 4)],
        persistent={"a": 100},
        temporary={"b": 7},
    )
    problem = Problem(profile, cluster_of())
    here, there = simulate(problem, plan_of(problem, {"a": 0, "b": 1})).memory
    assert list(zip(here.time_us, here.bytes, strict=True)) == [(0, 104), (7, 100)]
    assert list(zip(there.time_us, there.bytes, strict=True)) == [(0, 0), (2, 4), (7, 11), (10, 0)]
    assert there.sent_bytes.tolist() == [0, 4, 4, 0]
    assert (here.weights_bytes, there.weights_bytes) == (100, 0)
    assert (here.peak_bytes, there.peak_bytes) == (104, 11)


def test_a_held_tensor_stays_until_an_op_elsewhere_has_ended_and_is_not_sent():
    """a (0-2) makes 4 bytes for b (2-3); c (0-9) on the other device ends later, and reads none."""
    profile = profile_of({"a": 2, "b": 1, "c": 9}, [("a", "b", 4)])
    profile = replace(profile, hold_tensor=np.array([0]), hold_op=np.array([2]))
    problem = Problem(profile, cluster_of())
    schedule = simulate(problem, plan_of(problem, {"a": 0, "b": 0, "c": 1}))
    here, there = schedule.memory
    assert list(zip(here.time_us, here.bytes, strict=True)) == [(0, 4), (9, 0)]
    assert there.peak_bytes == len(schedule.transfer_tensor) == 0
    assert schedule.makespan_us == 9


def test_the_content_of_a_variable_takes_memory_only_elsewhere():
    """Both readers of w (10 bytes, read by r) are beside it or not; r passes it on."""
    profile = profile_of(
        {"w": 0, "r": 0, "near": 1, "far": 1},
        [("w", "r", 0), ("r", "near", 10), ("r", "far", 10)],
        persistent={"w": 30},
        colocation={"w": "w", "r": "w"},
    )
    types = ("VariableV2", "Identity", "MatMul", "MatMul")
    problem = Problem(replace(profile, op_types=types), cluster_of())
    devices = {"w": 0, "r": 0, "near": 0, "far": 1}
    assert simulate(problem, plan_of(problem, devices)).peak_bytes.tolist() == [30, 10]


def test_views_keep_the_memory_in_which_they_lie():
    """x (0-1) makes 8 bytes; v (1-2) shows them; r (2-4) reads v beside it, and f elsewhere."""
    edges = [("x", "v", 8), ("v", "r", 8), ("v", "w", 8), ("w", "f", 8)]
    profile = profile_of({"x": 1, "v": 1, "r": 2, "w": 1, "f": 1}, edges)
    profile = replace(profile, tensor_base=np.array([-1, 0, 1]))
    problem = Problem(profile, cluster_of())
    here, there = simulate(
        problem, plan_of(problem, {**dict.fromkeys("xvr", 0), "w": 1, "f": 1})
    ).memory
    # Until v has been sent (2-11); there, w's view of the copy is read until 13.
    assert list(zip(here.time_us, here.bytes, strict=True)) == [(0, 8), (11, 0)]
    assert list(zip(there.time_us, there.bytes, strict=True)) == [(0, 0), (2, 8), (13, 0)]
    assert profile.running_bytes.tolist() == [8, 8, 8, 8, 8]


def test_frees_come_before_allocations():
    """A chain never holds more than two neighbouring tensors."""
    names = "abcd"
    edges = [(x, y, 10) for x, y in itertools.pairwise(names)]
    problem = Problem(profile_of(dict.fromkeys(names, 1), edges), cluster_of())
    schedule = simulate(problem, plan_of(problem, dict.fromkeys(names, 0)))
    assert schedule.peak_bytes.tolist() == [20, 0]


def test_a_device_that_exceeds_memory_is_reported():
    problem = Problem(profile_of({"a": 1, "b": 1}, [("a", "b", 9)]), cluster_of(capacity_bytes=8))
    schedule = simulate(problem, plan_of(problem, {"a": 0, "b": 0}))
    assert not schedule.fits
    assert schedule.overfull.tolist() == [True, False]


@given(planned_problems())
def test_the_peak_equals_a_brute_force_count(drawn):
    """Just after each event, add up all live tensors."""
    problem, plan = drawn
    schedule = simulate(problem, plan)
    profile, lives = problem.profile, schedule.lives
    times = np.unique([0, *lives.start_us, *lives.end_us, *schedule.op_start_us])
    for device in range(problem.cluster.n_devices):
        on = plan.device == device
        weights = profile.persistent_bytes[on].sum()
        used = []
        for now in times:
            alive = (lives.device == device) & (lives.start_us <= now) & (now < lives.end_us)
            running = on & (schedule.op_start_us <= now) & (now < schedule.op_finish_us)
            copies = alive & (np.arange(len(alive)) >= profile.n_tensors)
            tensors = profile.held_bytes[lives.tensor[alive & ~copies]].sum()
            tensors += profile.copy_bytes[lives.tensor[copies]].sum()
            used.append(weights + tensors + profile.temporary_bytes[running].sum())
        assert schedule.memory[device].peak_bytes == pytest.approx(max(used))


@given(profiles())
def test_the_peak_on_one_device_equals_the_simulated_one(profile):
    everywhere = np.nanmin(profile.time_us, axis=1, keepdims=True)
    problem = Problem(profile.with_costs(np.repeat(everywhere, 2, axis=1)), cluster_of(1))
    position = np.argsort(profile.topological_order)
    plan = Plan(np.zeros(profile.n_ops, dtype=np.int64), position, "single", policy="strict")
    peak_bytes = simulate(problem, plan).peak_bytes[0]
    assert one_device_peak_bytes(problem) == pytest.approx(peak_bytes, rel=1e-9)
