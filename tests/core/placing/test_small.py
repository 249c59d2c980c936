"""Small problems are solved exactly: nothing that the simulator runs is better."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.errors import PlanError, ProblemError
from enplace.machine import simulate
from enplace.machine.kernel import run
from enplace.machine.layout import build_machine
from enplace.machine.placement import lay_out
from enplace.placers import place
from enplace.placing.options import PlaceOptions
from enplace.placing.rebalance import TIE
from enplace.placing.small import find_roomiest, find_shortest, fullest_percent
from enplace.placing.stop import Stop
from enplace.values.plan import LINK_POLICIES, POLICIES, Plan, check_plan
from enplace.values.problem import Problem
from problems import cluster_of, clusters, plan_of, profile_of, profiles
from properties import examples


def all_schedules(problem, most_us=np.inf):
    """Simulate every placement, order and policy; yield what keeps the constraints and fits.

    Every schedule is shorter than the one before, unless all up to a step time are asked for.
    """
    n_ops, shortest_us = problem.profile.n_ops, most_us
    machine = build_machine(problem)
    orders = [np.array(order) for order in permutations(range(n_ops))]
    for chosen in product(range(problem.cluster.n_devices), repeat=problem.n_units):
        if not problem.unit_allowed[np.arange(problem.n_units), chosen].all():
            continue
        device = np.array(chosen)[problem.unit]
        try:
            check_plan(problem, Plan(device, orders[0], ""))
        except PlanError:
            continue
        for position, policy, links in product(orders, range(3), range(3)):
            times = run(machine, lay_out(machine, device, position, policy, links))
            ends = times.finish_us.max(), times.sent_finish_us.max(initial=0.0)
            if times.n_finished < n_ops or max(ends) > shortest_us:
                continue
            plan = Plan(device, position, "", policy=POLICIES[policy], links=LINK_POLICIES[links])
            schedule = simulate(problem, plan)
            if schedule.fits:
                shortest_us = max(ends) * (1 - 1e-9) if most_us == np.inf else most_us
                yield schedule


@st.composite
def tight_problems(draw):
    """Draw a few ops on devices with about as much memory as they need, and constraints."""
    profile, cluster = draw(profiles(max_ops=4)), draw(clusters())
    room = int(profile.persistent_bytes.sum() + profile.temporary_bytes.max()) + 30
    devices = tuple(
        replace(device, capacity_bytes=1 + int(room * draw(st.sampled_from([0.3, 0.6, 0.9, 2]))))
        for device in cluster.devices[:2]
    )
    links = tuple(link for link in cluster.links if max(link.source, link.target) < 2)
    kinds = {
        "forbidden": [(0, draw(st.integers(0, 1)))] * draw(st.booleans()),
        "before": [(0, profile.n_ops - 1)] * (profile.n_ops > 1 and draw(st.booleans())),
        "stay_close": [(((0, 0), (profile.n_ops - 1, 1)), 1)] * (profile.n_ops > 1),
    }
    try:
        problem = Problem(profile, replace(cluster, devices=devices, links=links))
    except ProblemError:
        return draw(tight_problems())
    try:
        return problem.constrained(**kinds) if draw(st.booleans()) else problem
    except ProblemError:
        return problem


@examples(2)
@given(tight_problems())
def test_no_plan_is_shorter_than_the_one_found(problem):
    exact = find_shortest(problem, "x")
    rivals = [schedule.makespan_us for schedule in all_schedules(problem)]
    assert exact.is_settled or exact.nothing_fits
    assert exact.nothing_fits == (not rivals)
    if rivals:
        assert exact.schedule.fits
        assert exact.schedule.makespan_us == pytest.approx(min(rivals))
        assert exact.bound_us == pytest.approx(min(rivals))
        check_plan(problem, exact.schedule.plan)


def five_ops() -> Problem:
    """Return ops of which few placements fit; list schedules do not find them."""
    profile = profile_of(
        {"a": 59, "b": 9, "c": 7, "d": 0, "e": 50},
        persistent={"c": 881, "d": 406},
        temporary={"b": 489, "e": 195},
    )
    cluster = cluster_of(2, b1_us_per_byte=0.05, shared=True)
    devices = zip(cluster.devices, (643, 1287), strict=True)
    devices = tuple(replace(device, capacity_bytes=size) for device, size in devices)
    return Problem(profile, replace(cluster, devices=devices))


def test_five_ops_that_only_just_fit_are_solved_with_a_proof():
    found = place(five_ops(), "enplace", options=PlaceOptions(stop=Stop(0.5)))
    assert found.schedule.fits
    assert (found.value_us, found.bound_us, found.gap) == (66, 66, 0)
    assert found.proven_by == "exhaustive search"


@pytest.mark.parametrize("method", ["heft", "m-etf", "dpos", "celeritas", "pesto"])
def test_a_method_whose_plan_does_not_fit_takes_one_that_does(method):
    found = place(five_ops(), method, options=PlaceOptions(stop=Stop(0.5)))
    assert found.schedule.fits
    assert found.value_us == 66
    assert "own plan exceeds memory" in found.plan.note


@pytest.mark.parametrize("method", ["enplace", "heft"])
def test_that_nothing_fits_is_proven(method):
    profile = profile_of(
        dict.fromkeys("abc", 1), [("a", "c", 60), ("b", "c", 60)], persistent={"c": 10}
    )
    problem = Problem(profile, cluster_of(2, capacity_bytes=129))
    found = place(problem, method, options=PlaceOptions(stop=Stop(0.5)))
    assert found.plan.nothing_fits


def test_a_plan_to_begin_from_is_kept_if_none_is_better():
    problem = Problem(profile_of({"a": 2, "b": 2}), cluster_of(2))
    start = replace(plan_of(problem, {"a": 1, "b": 0}), policy="strict")
    exact = find_shortest(problem, "x", start)
    assert exact.is_settled
    assert exact.plan.acts_like(start)


@examples(2)
@given(tight_problems())
def test_no_plan_that_is_as_short_leaves_more_memory(problem):
    exact = find_shortest(problem, "x")
    if exact.nothing_fits:
        return
    longest_us = exact.schedule.makespan_us * (1 + TIE)
    rivals = list(all_schedules(problem, longest_us))
    least = min(map(fullest_percent, rivals))
    found = find_roomiest(exact.schedule, longest_us, 0)
    assert fullest_percent(found) == least
    fewest = min(len(r.transfer_tensor) for r in rivals if fullest_percent(r) == least)
    assert len(found.transfer_tensor) == fewest
