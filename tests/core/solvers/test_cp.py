"""CP-SAT: valid bounds, plans that are no worse, and a missing solver."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from tests.core.placers.problems import gpus, line, problems
from tests.core.solvers.warm import warm_solvers

from enplace.bounds.step_time import lower_bound_us
from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place
from enplace.placing.stopwatch import Stopwatch
from enplace.processes.wire import Message
from enplace.solvers import cp
from enplace.solvers.cp import solve_cp
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from problems import GIB, cluster_of, plan_of, profile_of
from properties import examples

pytest.importorskip("ortools")


GUARD_S = 600.0
"""Longer than the slowest machine takes for a proof."""

UNEVEN_US = [7.0, 5.0, 5.0, 3.0, 3.0]
"""Times of ops that no two devices share evenly."""


def answers(problem, known):
    """Return all answers of CP-SAT, which is given the cheap lower bound."""
    with warm_solvers():
        return list(solve_cp(problem, known, lower_bound_us(problem), GUARD_S, lambda: False))


@pytest.fixture
def no_trial(monkeypatch):
    """Do not try all plans of a small problem, which would leave nothing to the solver."""
    monkeypatch.setattr("enplace.placing.run.is_small", lambda _: False)


@pytest.fixture
def solver_only(no_trial, monkeypatch):
    """Leave no time for the searches before CP-SAT, and end with its proof."""
    monkeypatch.setattr("enplace.placers.enplace.starts.SEARCH_SHARE", 1e-12)
    monkeypatch.setattr("enplace.placers.enplace.search.EXACT_SHARE", 1e-9)
    monkeypatch.setattr("enplace.placers.enplace.phases.PhasedSearch.restart", lambda _: None)


def prove(problem):
    with warm_solvers():
        return place(problem, "enplace", options=PlaceOptions(stop=Stop(GUARD_S)))


def ticking():
    """Return a stopwatch by which 1 ms passes whenever somebody looks at it."""
    looks = itertools.count()
    return Stopwatch(lambda: 1e-3 * next(looks))


@examples(5)
@given(problem=problems(8))
@warm_solvers()
def test_no_schedule_that_fits_beats_the_bound(problem):
    known = simulate(problem, place(problem, "single").plan)
    plans = [place(problem, method).plan for method in ("heft", "expert")]
    plans.append(place(problem, "enplace", options=PlaceOptions(values={"rounds": 1})).plan)
    schedules = [simulate(problem, plan) for plan in plans]
    # The bound covers only plans that fit.
    best = min((each.makespan_us for each in schedules if each.fits), default=np.inf)
    found = answers(problem, known)
    assert np.isinf(best) or found[-1].status == "optimal"
    assert found[-1].bound_us <= best * (1 + 1e-6)
    for one in found:
        if one.plan is not None:
            assert problem.unit_allowed[problem.unit, one.plan.device].all()
            simulate(problem, one.plan)


@examples(6)
@given(problem=problems(8), method=st.sampled_from(["heft", "round-robin", "m-etf"]))
@warm_solvers()
def test_the_bound_is_below_a_plan_that_just_fits(problem, method):
    """The devices have exactly the memory that the plan needs."""
    plan = place(problem, method).plan
    peak = simulate(problem, plan).peak_bytes.tolist()
    devices = [
        replace(device, capacity_bytes=max(1, held))
        for device, held in zip(problem.cluster.devices, peak, strict=True)
    ]
    try:
        tight = replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))
        known = simulate(tight, place(tight, "single").plan)
    except EnplaceError:
        reject()  # A device that the plan does not use is too small for an op that must be there.
    fitting = simulate(tight, plan)
    assert fitting.fits
    found = answers(tight, known)
    assert found[-1].status == "optimal"
    assert found[-1].bound_us <= fitting.makespan_us * (1 + 1e-6)


def test_an_order_that_fits_is_found():
    """Memory holds one of two outputs at a time; the known plan makes both first."""
    costs, sizes = [2.0, 2.0, 3.0, 3.0], [(0, 2, 60), (1, 3, 60)]
    problem = Problem(line(costs, sizes), gpus(1, capacity=100))
    known = simulate(problem, plan_of(problem, {f"op{i}": 0 for i in range(4)}, policy="strict"))
    assert not known.fits
    *_, best = (f.plan for f in answers(problem, known) if f.plan)
    assert simulate(problem, best).fits


def test_if_one_op_is_too_large_nothing_fits():
    problem = Problem(line([2.0, 2.0], [(0, 1, 200)]), gpus(2, capacity=100))
    known = simulate(problem, place(problem, "heft").plan)
    assert [f.status for f in answers(problem, known)][-1] == "infeasible"


def test_the_serial_time_uses_the_times_of_each_ops_device():
    """If the known plan exceeds memory, the horizon is the sum of the ops' times."""
    profile = profile_of({"a": 4}, [("a", "b", 60), ("a", "c", 60)], cpu={"b": 5, "c": 7})
    cluster = cluster_of(1, cpu_lanes=1, b0_us=1.0, b1_us_per_byte=0.0)
    assert cp._serial_us(Problem(profile, cluster)) == 4 + 5 + 7 + 2


@pytest.mark.usefixtures("no_trial")
def test_time_that_the_solver_does_not_use_goes_to_the_search(monkeypatch):
    """The solver ends at once here, and the plan can still improve."""
    monkeypatch.setattr("enplace.placers.enplace.exact.solve_cp", lambda *_: iter(()))
    problem = Problem(line([3.0, 5.0, 7.0, 2.0, 4.0], [(0, 3, 9), (1, 4, 9)]), gpus(2))
    options = PlaceOptions(stop=Stop(1.0, clock=ticking()))
    result = place(problem, "enplace", options=options)
    assert result.gap > 0
    assert result.plan.solve_seconds + result.compile_seconds >= 1.0


@pytest.mark.usefixtures("solver_only")
def test_the_solver_closes_a_gap_that_the_cheap_bound_leaves():
    """Five ops on two devices: the bound by work is 11.5, the optimum 7 + 5."""
    problem = Problem(line(UNEVEN_US, []), gpus(2))
    result = prove(problem)
    assert result.value_us == result.schedule.makespan_us == 12
    assert (result.bound_us, result.proven_by) == (pytest.approx(12, rel=1e-5), "CP-SAT")
    assert lower_bound_us(problem) == 11.5


@pytest.mark.usefixtures("no_trial")
def test_without_the_solver_the_search_continues(monkeypatch):
    missing = cp.CpAnswer(0.0, status="missing", why="No module named 'ortools'")
    monkeypatch.setattr("enplace.placers.enplace.exact.solve_cp", lambda *_: iter([missing]))
    problem = Problem(line(UNEVEN_US, []), gpus(2))
    messages = []
    options = PlaceOptions(
        stop=Stop(1.0, clock=ticking()), progress=lambda p: messages.append(p.message)
    )
    plan = place(problem, "enplace", options=options).plan
    assert simulate(problem, plan).makespan_us == 12
    assert any("ortools" in line for line in messages)
    assert "CP-SAT (No module named 'ortools')" in plan.note


def test_cancelling_ends_the_solver_at_once():
    """The solver cannot prove anything so soon: 400 ops with three random consumers each."""
    rng, n = np.random.default_rng(0), 400
    costs = rng.integers(1, 100, n).astype(float).tolist()
    pairs = {(i, int(j)) for i in range(n - 1) for j in rng.integers(i + 1, min(n, i + 40), 3)}
    profile = line(costs, [(a, b, 50) for a, b in sorted(pairs)])
    problem = Problem(profile, gpus(3, b1=0.1))
    known = simulate(problem, place(problem, "heft").plan)
    asked = []

    def cancelled():
        asked.append(True)
        return len(asked) > 20

    found = list(solve_cp(problem, known, lower_bound_us(problem), GUARD_S, cancelled))
    assert all(each.status != "optimal" for each in found)


def test_a_shorter_schedule_with_another_placement_is_found():
    """With the known placement as a hint, OR-Tools 9.15 called 113 optimal instead of 108."""
    profile = profile_of(
        {"a": 20, "b": 6, "c": 2, "d": 85},
        [("b", "d", 8)],
        control=[("a", "b"), ("a", "c"), ("b", "c")],
        colocation={"a": "g", "c": "g"},
        cpu={"a": 1, "b": 1, "c": 170, "d": 170},
    )
    problem = Problem(profile, cluster_of(1, cpu_lanes=1, b0_us=0.0, b1_us_per_byte=0.0))
    known = simulate(problem, place(problem, "single").plan)
    assert known.makespan_us == 113
    last = answers(problem, known)[-1]
    assert last.status == "optimal"
    assert last.bound_us == pytest.approx(108, rel=1e-5)


def test_a_known_schedule_that_exceeds_memory_is_no_upper_bound():
    """Using only the faster GPU is short but exceeds memory; plans that fit take longer."""
    profile = profile_of({"a": 10, "b": 10}, persistent=dict.fromkeys("ab", 3 * GIB // 4))
    problem = Problem(profile, cluster_of(2, speeds=(1.0, 0.1)))
    known = simulate(problem, plan_of(problem, {"a": 0, "b": 0}))
    assert not known.fits
    plans = [found.plan for found in answers(problem, known) if found.plan]
    assert simulate(problem, plans[-1]).fits
    assert simulate(problem, plans[-1]).makespan_us == 100


@pytest.mark.usefixtures("solver_only")
def test_it_is_proven_that_no_plan_fits():
    """Three ops of 60 on two devices of 100: the total fits, but no device holds two ops."""
    variables = dict.fromkeys("abc", 60 << 10)
    profile = profile_of(dict.fromkeys("abc", 10), persistent=variables)
    problem = Problem(profile, cluster_of(2, capacity_bytes=100 << 10))
    known = simulate(problem, plan_of(problem, {"a": 0, "b": 0, "c": 1}))
    assert answers(problem, known)[-1].status == "infeasible"
    plan = prove(problem).plan
    assert plan.nothing_fits
    assert plan.note.startswith("No plan that keeps what ops make fits, proven by CP-SAT")


SLOW, SHARED, SMALL, PINNED = "a slower link", "a shared channel", "less memory", "a pin"


def nearly_identical_gpus(difference):
    """Return two ops between CPU ops, and two GPUs that differ in one respect.

    Because of it, the heavier op should not be on the first GPU. The shared channel leads to the
    first GPU and from the second.
    """
    times, cpu = {"heavy": 10.0, "other": 2.0}, {"input": 1.0, "next": 1.0, "last": 1.0}
    edges = [("input", "other", 0), ("next", "heavy", 20), ("heavy", "last", 4)]
    edges.append(("other", "last", 40))
    profile = profile_of(times, edges, cpu=cpu, persistent={"heavy": 800})
    capacities = [500 if difference == SMALL else 1000, 1000, GIB]
    devices = tuple(
        Device(f"{kind.upper()}:{i}", kind, size)
        for kind, i, size in zip(("gpu", "gpu", "cpu"), (0, 1, 0), capacities, strict=True)
    )
    links = []
    for a, b in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)):
        slow = difference == SLOW and (a, b) == (2, 0)
        channel = 3 if difference == SHARED and (a, b) == (1, 2) else len(links)
        links.append(Link(a, b, 19.0 if slow else 1.0, 1.0, (channel,)))
    cluster = Cluster("nearly alike", devices, tuple("abcdef"), tuple(links))
    pins = {1: 0} if difference == PINNED else {}
    return Problem(profile, cluster, Constraints(pins=pins))


@pytest.mark.parametrize(
    ("difference", "optimum_us"), [(SLOW, 51), (SHARED, 46), (SMALL, 46), (PINNED, 46)]
)
def test_devices_that_differ_in_any_respect_are_not_interchangeable(difference, optimum_us):
    problem = nearly_identical_gpus(difference)
    known = simulate(problem, place(problem, "single").plan)
    found = answers(problem, known)
    assert found[-1].status == "optimal"
    assert found[-1].bound_us == pytest.approx(optimum_us, rel=1e-5)
    last = [each.plan for each in found if each.plan is not None][-1]
    assert simulate(problem, last).makespan_us == optimum_us


@pytest.mark.usefixtures("solver_only")
def test_the_heaviest_op_is_fixed_to_one_of_identical_devices():
    """Ten ops of 2 to 11 on four identical GPUs can be proven only by breaking the symmetry."""
    problem = Problem(line([float(t) for t in range(2, 12)], []), gpus(4))
    result = prove(problem)
    assert result.value_us == 17
    assert result.gap < 1e-5


def test_the_optimum_is_found_on_different_devices_with_little_memory():
    """OR-Tools 9.15 called 26 optimal when optional intervals shared an end; the optimum is 21."""
    profile = profile_of(
        {"a": 4, "b": 0, "c": 4, "d": 3.5, "e": 8},
        [("a", "c", 6), ("a", "d", 6), ("d", "e", 9)],
        control=[("b", "e"), ("c", "e")],
        persistent={"c": 20, "d": 10, "e": 5},
        temporary={"a": 10, "b": 5, "c": 5, "d": 5},
    )
    devices = (Device("D0", "gpu", 30, speed=2.0), Device("D1", "gpu", 60, speed=0.5))
    links = tuple(Link(a, 1 - a, 0.0, 0.0, (a,)) for a in (0, 1))
    problem = Problem(profile, Cluster("unlike", devices, ("there", "back"), links))
    known = simulate(problem, place(problem, "heft").plan)
    assert known.makespan_us == 26
    last = answers(problem, known)[-1]
    assert (last.status, last.bound_us) == ("optimal", pytest.approx(21, rel=1e-5))


@pytest.mark.parametrize("answer", [{"status": "infeasible"}, {"bound": 1e9}])
def test_an_answer_that_contradicts_a_known_plan_is_rejected(monkeypatch, answer):
    problem = Problem(line([2.0] * 5, []), gpus(2))
    known = simulate(problem, place(problem, "single").plan)
    monkeypatch.setattr(cp, "ask_solver", lambda *_: iter([Message("progress", answer)]))
    (found,) = answers(problem, known)
    assert (found.bound_us, found.status) == (lower_bound_us(problem), "failed")
    assert "does not count" in found.why
