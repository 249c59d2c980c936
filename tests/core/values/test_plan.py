"""A plan checks itself and is checked against its problem."""

import numpy as np
import pytest

from enplace.errors import PlanError
from enplace.values.plan import Plan, check_plan
from enplace.values.problem import Problem
from problems import cluster_of, plan_of, profile_of

PROFILE = profile_of(
    {"a": 1.0, "b": 1.0, "c": 1.0}, [("a", "b", 8)], colocation={"a": "g", "b": "g"}
)
PROBLEM = Problem(PROFILE, cluster_of(2, cpu_lanes=1))


def test_positions_must_be_a_permutation() -> None:
    with pytest.raises(PlanError, match="permutation"):
        Plan(np.zeros(3, dtype=np.int64), np.array([0, 0, 1]), "hand")


def test_device_and_position_go_together() -> None:
    with pytest.raises(PlanError, match="one device and one position"):
        Plan(np.zeros(2, dtype=np.int64), np.arange(3), "hand")


@pytest.mark.parametrize("setting", [{"policy": "random"}, {"links": "lifo"}])
def test_unknown_policies_are_refused(setting: dict[str, str]) -> None:
    with pytest.raises(PlanError, match="priority, strict, fifo"):
        Plan(np.zeros(1, dtype=np.int64), np.arange(1), "hand", **setting)


def test_a_plan_for_another_graph() -> None:
    plan = Plan(np.zeros(2, dtype=np.int64), np.arange(2), "hand")
    with pytest.raises(PlanError, match="places 2 ops, the profile has 3"):
        check_plan(PROBLEM, plan)


def test_a_device_that_does_not_exist() -> None:
    with pytest.raises(PlanError, match="a device that the cluster does not have"):
        check_plan(PROBLEM, plan_of(PROBLEM, {"a": 0, "b": 0, "c": 7}))


def test_an_op_where_it_cannot_run() -> None:
    with pytest.raises(PlanError, match="op 'c' is placed on CPU:0, where it cannot run"):
        check_plan(PROBLEM, plan_of(PROBLEM, {"a": 0, "b": 0, "c": 2}))


def test_a_separated_group() -> None:
    with pytest.raises(PlanError, match=r"op '[ab]' .* but op '[ab]', colocated with it"):
        check_plan(PROBLEM, plan_of(PROBLEM, {"a": 0, "b": 1, "c": 0}))


def test_a_broken_pin_and_a_forbidden_device() -> None:
    plan = plan_of(PROBLEM, {"a": 0, "b": 0, "c": 0})
    pinned = Problem(PROFILE, PROBLEM.cluster, pins={2: 1})
    with pytest.raises(PlanError, match="op 'c' is placed on GPU:0, but pinned to GPU:1"):
        check_plan(pinned, plan)
    forbidding = Problem(PROFILE, PROBLEM.cluster, forbidden=frozenset({(2, 0)}))
    with pytest.raises(PlanError, match="op 'c' is placed on GPU:0, which is forbidden"):
        check_plan(forbidding, plan)
    check_plan(PROBLEM, plan)
