"""Constraints on a whole plan: placers need not know them, and every plan keeps them."""

from dataclasses import replace

import numpy as np
import pytest
from tests.core.placers.problems import gpus, line

from enplace.errors import PlanError
from enplace.machine import simulate
from enplace.placers import PlaceOptions, place
from enplace.placing.obey import PASSES, known_to_placers, move_units, obey
from enplace.values.constraints import Constraints
from enplace.values.plan import check_plan
from enplace.values.problem import Problem

HOME = (0, 0, 0, 0, 1, 1, 1, 1)
CHAIN = line([10.0, 20, 10, 20, 10, 20, 10, 20], [(i, i + 1, 4) for i in range(7)])


def close_to(device=HOME, most=2, **others):
    placement = tuple(enumerate(device))
    return Problem(CHAIN, gpus(2), Constraints(stay_close=[(placement, most)], **others))


def moved(plan, device=HOME):
    return int(np.count_nonzero(plan.device != np.array(device)))


@pytest.mark.parametrize("method", ["single", "heft", "expert", "m-etf", "metis", "enplace"])
@pytest.mark.parametrize("most", [0, 3])
def test_every_method_stays_close(method, most):
    reports = []
    options = PlaceOptions(
        seed=1,
        values={"rounds": 1} if method == "enplace" else {},
        progress=lambda report: reports.append(report.incumbent),
    )
    result = place(close_to(most=most), method, options=options)
    assert moved(result.plan) <= most
    assert all(moved(plan) <= most for plan in reports if plan is not None)


@pytest.mark.parametrize("seed", range(4))
def test_a_search_returns_the_best_of_its_repaired_plans(seed):
    """Repaired, a plan that the search found better may be worse than one before it."""
    reports = []
    options = PlaceOptions(seed=seed, values={"rounds": 3}, progress=reports.append)
    result = place(close_to((0, 1) * 4, most=3), "local-search", options=options)
    reported = [each.objective_us for each in reports if each.incumbent is not None]
    assert sorted(reported, reverse=True) == reported
    assert result.schedule.makespan_us == pytest.approx(min(reported))


@pytest.mark.parametrize("method", ["max-load-dp", "greedy-latency"])
def test_other_objectives_stay_close(method):
    objective = "throughput" if method == "max-load-dp" else "latency"
    plan = place(close_to(most=1), method, options=PlaceOptions(objective)).plan
    assert moved(plan) <= 1
    assert plan.value_us > 0


def test_the_moves_that_help_most_are_kept():
    home = (0, 1, 0, 0, 1, 1, 1, 1)
    made = place(close_to(home, most=1), "single")
    assert np.flatnonzero(made.plan.device != np.array(home)).tolist() == [1]
    assert "4 ops moved back" in made.plan.note


def test_ops_go_back_together_with_their_unit():
    problem = close_to(most=0, together=((0, 1),))
    plan = place(known_to_placers(problem), "single").plan
    assert obey(problem, plan).device.tolist() == list(HOME)


def test_a_plan_that_cannot_stay_close_is_refused_in_one_line():
    problem = close_to(most=1, pins={0: 1, 1: 1})
    with pytest.raises(PlanError, match=r"2 of 8 ops would run elsewhere.*1 may, and other"):
        place(problem, "heft")


def close_to_both(first, then, most, n_devices=2, **others):
    limits = [
        (tuple(enumerate(home)), at_most) for home, at_most in zip((first, then), most, strict=True)
    ]
    return Problem(CHAIN, gpus(n_devices), Constraints(stay_close=limits, **others))


@pytest.mark.parametrize("method", ["single", "heft", "expert", "m-etf", "enplace"])
def test_a_plan_stays_close_to_two_plans_far_apart(method):
    options = PlaceOptions(values={"rounds": 1} if method == "enplace" else {})
    other = tuple(1 - device for device in HOME)
    plan = place(close_to_both(HOME, other, (4, 4), 3), method, options=options).plan
    assert moved(plan) == moved(plan, other) == 4


THREES = {"together": ((0, 1, 2), (3, 4, 5), (6, 7))}
ON_1 = (1, 1, 1, 1, 1, 1, 0, 0)


def test_moves_that_help_only_together_are_found():
    """Five ops must be on the second device: a unit of three goes, and that of two comes."""
    problem = close_to_both((0,) * 8, (1,) * 8, (5, 3), **THREES)
    plan = replace(place(known_to_placers(problem), "single").plan, device=np.array(ON_1))
    assert np.count_nonzero(obey(problem, plan).device) == 5


def moved_in_turn(spends, allowed, device, order, anyway, most):
    """Do what :func:`move_units` does, in short."""

    def cost(unit, there):
        spent = spends[range(len(device)), np.where(np.arange(len(device)) == unit, there, device)]
        over = np.maximum(spent.sum(axis=0) - most, 0.0).sum()
        stays = device[unit] == there and not anyway[unit]
        return over, -np.inf if stays else spent.sum()

    for unit in [*order] * PASSES:
        if cost(unit, device[unit])[0] == 0 and not anyway[unit]:
            return
        there = [device[unit], *np.flatnonzero(allowed[unit])]
        device[unit] = min(there, key=lambda each: cost(unit, each))


@pytest.mark.parametrize("seed", range(20))
def test_units_move_to_where_all_limits_are_exceeded_least(seed):
    draw = np.random.default_rng(seed)
    spends = draw.integers(0, 4, (9, 3, 2)).astype(float)
    allowed, device = draw.random((9, 3)) < 0.8, draw.integers(0, 3, 9)
    n_anyway, most = seed % 4 * 3, draw.integers(5, 15, 2).astype(float)
    order, anyway = draw.permutation(9), np.zeros(9, dtype=bool)
    anyway[order[:n_anyway]] = True
    expected = device.copy()
    moved_in_turn(spends, allowed, expected, order, anyway, most)
    move_units(spends, allowed, device, order, anyway, most)
    assert device.tolist() == expected.tolist()


def test_a_search_that_ends_does_not_blame_other_constraints(monkeypatch):
    problem = close_to_both((0,) * 8, (1,) * 8, (5, 3), **THREES)
    plan = replace(place(known_to_placers(problem), "single").plan, device=np.array(ON_1))
    monkeypatch.setattr("highspy.Highs.run", lambda _: None)  # ends before it knows anything
    with pytest.raises(
        PlanError, match=r"6 of 8 ops .* 5 may; a search for other plans found none"
    ):
        obey(problem, plan)


def test_replicas_and_recomputation_stay_or_the_plan_is_refused():
    device = np.array([0, 0, 2, 2, 2, 2, 2, 2])
    home = (0, 0, 0, 0, 2, 2, 2, 2)
    problem = close_to_both(home, home, (1, 1), 3)
    plan = place(known_to_placers(problem), "single").plan
    plan = replace(plan, device=device, replicas=((0, 1),), recompute=(2,))
    made = obey(problem, plan)
    assert moved(made, home) <= 1
    assert (made.replicas, made.recompute) == (((0, 1),), (2,))
    problem = close_to_both((1,) * 8, home, (0, 8), 3)
    with pytest.raises(PlanError, match=r"8 of 8 ops .* and replicas or other constraints keep"):
        obey(problem, plan)


def test_what_was_said_of_the_plan_before_is_said_of_that_plan():
    problem = close_to(most=0)
    plan = place(known_to_placers(problem), "single").plan.with_notes("the best of 60 orders")
    said = "4 ops moved back for the constraints on the whole plan; before that: the best of 60"
    assert obey(problem, plan).note.startswith(said)


def test_a_plan_that_moves_more_ops_is_no_plan_of_the_problem():
    problem = close_to(most=2)
    plan = place(problem, "heft").plan
    check_plan(problem, plan)
    with pytest.raises(PlanError, match="8 of 8 ops would run elsewhere"):
        simulate(problem, replace(plan, device=1 - np.array(HOME)))
