"""Lower bounds that are computed while the window is free."""

from dataclasses import replace

import pytest

from enplace.bounds import Proof, lower_bound_us, with_bound
from enplace.machine import simulate
from enplace.values.problem import Problem, split_problem
from enplace.values.splits import RECOMPUTE, Split
from enplace_studio.model.bounds import Bounds
from problems import cluster_of, plan_of, profile_of


@pytest.fixture
def problem():
    """Three independent ops of 10 µs for two devices: no step is below 20 µs."""
    return Problem(profile_of(dict.fromkeys("abc", 10.0)), cluster_of(2))


@pytest.fixture
def computed(monkeypatch):
    """The problems whose bounds were computed."""
    asked = []

    def compute(problem, stop=None):
        asked.append(problem)
        return lower_bound_us(problem, stop)

    monkeypatch.setattr("enplace.bounds.proofs.lower_bound_us", compute)
    return asked


def step(problem):
    """Return the schedule of a plan on one device, or where ops are pinned."""
    ops = enumerate("abc")
    return simulate(problem, plan_of(problem, {op: dict(problem.pins).get(n, 0) for n, op in ops}))


def test_a_bound_is_announced_once_it_is_known(problem, qtbot):
    bounds = Bounds()
    with qtbot.waitSignal(bounds.changed):
        assert bounds.find_us(step(problem)) is None
    assert bounds.find_us(step(problem)) == lower_bound_us(problem)


def test_the_gap_is_measured_from_the_bound(problem, qtbot):
    bounds = Bounds()
    schedule = simulate(problem, plan_of(problem, dict.fromkeys("abc", 0)))
    assert bounds.gap(schedule) is None
    bounds.add(problem, Proof(20.0))
    assert bounds.gap(schedule) == pytest.approx(1 - 20.0 / 30.0)


def test_a_bound_holds_after_a_pin_until_that_of_the_pin_is_known(problem, computed, qtbot):
    bounds = Bounds()
    bounds.add(problem, Proof(20.0))
    pinned = problem.constrained(pins={0: 1, 1: 1, 2: 1})
    with qtbot.waitSignal(bounds.changed):
        assert bounds.find_us(step(pinned)) == 20.0
    assert computed == [pinned]
    assert bounds.find_us(step(pinned)) == with_bound(step(pinned)).bound_us == 30.0


def test_other_costs_need_a_bound_of_their_own(problem, computed, qtbot):
    bounds = Bounds()
    bounds.add(problem, Proof(20.0))
    slower = replace(
        problem, measured_profile=problem.profile.with_costs(problem.profile.time_us * 2)
    )
    with qtbot.waitSignal(bounds.changed):
        assert bounds.find_us(step(slower)) is None
    assert bounds.find_us(step(slower)) == lower_bound_us(slower)
    assert computed == [slower]


def test_only_a_better_proof_replaces_a_bound(problem):
    bounds = Bounds()
    for proven_us in (18.0, 20.0, 19.0):
        bounds.add(problem, Proof(proven_us))
    assert bounds.find_us(step(problem)) == 20.0


def test_of_several_requests_in_a_row_only_the_last_is_computed(problem, computed, qtbot):
    bounds = Bounds()
    several = [
        replace(
            problem, measured_profile=problem.profile.with_costs(problem.profile.time_us * factor)
        )
        for factor in (1, 2, 3)
    ]
    for each in several:
        bounds.find_us(step(each))
    qtbot.waitUntil(lambda: bounds.find_us(step(several[-1])) is not None)
    assert computed == [several[-1]]


def test_a_request_during_the_computation_does_not_repeat_it(problem, computed, qtbot):
    bounds = Bounds()
    with qtbot.waitSignal(bounds.changed):
        for _ in range(3):
            assert bounds.find_us(step(problem)) is None
    bounds._background.wait()
    assert computed == [problem]


def test_a_plan_that_recomputes_has_the_bound_that_files_and_commands_show(qtbot):
    chain = profile_of({"a": 10.0, "b": 10.0, "c": 10.0}, [("a", "b", 8), ("a", "c", 8)])
    problem = Problem(replace(chain, op_types=("Relu",) * 3), cluster_of(1))
    graph = split_problem(problem, (Split("a", RECOMPUTE, 2, ("c",), "b"),))
    names = ("a", "b", "a/recomputed", "c")
    plan = replace(plan_of(graph, dict.fromkeys(names, 0)), splits=graph.splits)
    schedule, bounds = simulate(graph, plan), Bounds()
    with qtbot.waitSignal(bounds.changed):
        bounds.find_us(schedule)
    assert bounds.find_us(schedule) == with_bound(schedule).bound_us == 30.0
    assert bounds.gap(schedule) == pytest.approx(0.25)
