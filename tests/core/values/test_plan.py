"""Plans and results as values."""

from dataclasses import replace

import numpy as np
import pytest

from enplace.errors import PlanError
from enplace.machine import simulate
from enplace.values.plan import Plan, find_gap
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.result import Result
from enplace.values.splits import Split
from problems import cluster_of, profile_of

PLAN = Plan(np.array([0, 1]), np.array([0, 1]), "mine")


@pytest.mark.parametrize(
    "change",
    [
        {"device": np.array([0, 0])},
        {"position": np.array([1, 0])},
        {"policy": "strict"},
        {"links": "priority"},
        {"replicas": ((0, 2),)},
        {"splits": (Split("a", "batch", 2),)},
    ],
)
def test_plans_that_act_differently_do_not_act_alike(change):
    assert not PLAN.acts_like(replace(PLAN, **change))


@pytest.mark.parametrize("change", [{"method": "yours"}, {"note": "by hand"}, {"value_us": 3.0}])
def test_plans_that_differ_only_in_reported_facts_act_alike(change):
    assert PLAN.acts_like(replace(PLAN, **change))


@pytest.mark.parametrize("name", ["device", "position"])
@pytest.mark.parametrize("values", [np.arange(2.0), np.array([False, True]), [0, 1]])
def test_devices_and_positions_that_are_not_whole_numbers_are_refused(name, values):
    with pytest.raises(PlanError, match=f"{name}: a plan needs an array of whole numbers"):
        replace(PLAN, **{name: values})


def test_a_plan_keeps_its_values_when_its_caller_holds_the_array_behind_a_view():
    device = np.array([0, 1])
    view = device.view()
    view.flags.writeable = False
    plan = Plan(view, np.arange(2), "heft")
    device[0] = 7
    assert plan.device.tolist() == [0, 1]


def test_a_plan_does_not_freeze_the_arrays_of_its_caller():
    device, position = np.array([0, 1]), np.array([0, 1])
    plan = Plan(device, position, "mine")
    device[0], position[:] = 1, [1, 0]
    assert plan.device.tolist() == plan.position.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        plan.device[0] = 1


def test_renaming_a_plan_drops_everything_it_reported():
    plan = replace(PLAN, replicas=((0, 2),), note="by hand", objective=THROUGHPUT, value_us=3.0)
    other = plan.under_name("yours")
    assert other.acts_like(plan)
    assert (other.method, other.note, other.value_us) == ("yours", "", None)


def test_a_gap_is_a_fraction_of_the_value():
    assert find_gap(10.0, 8.0) == pytest.approx(0.2)
    assert find_gap(7.0, 8.0) == 0.0


def test_a_result_has_the_value_and_the_gap_of_its_objective():
    problem = Problem(profile_of({"a": 10, "b": 10}), cluster_of(2, capacity_bytes=90))
    schedule = simulate(problem, PLAN)
    result = Result(schedule, 8.0, "CP-SAT")
    assert (result.value_us, result.gap, result.step_bound_us) == (10.0, pytest.approx(0.2), 8.0)
    assert Result(schedule).gap is None
    pipeline = replace(PLAN, objective=THROUGHPUT, value_us=20.0)
    result = Result(simulate(problem, pipeline), 5.0)
    assert (result.value_us, result.gap, result.step_bound_us) == (20.0, 0.75, None)


def test_a_plan_that_exceeds_memory_has_no_gap():
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 60, "b": 60})
    problem = Problem(profile, cluster_of(2, capacity_bytes=100))
    together = simulate(problem, replace(PLAN, device=np.array([0, 0])))
    assert Result(together, 5.0).gap is None
