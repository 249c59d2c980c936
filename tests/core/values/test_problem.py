"""A problem refuses constraints that no plan can meet, and names op, device and remedy."""

import numpy as np
import pytest

from enplace.errors import (
    DoesNotFitError,
    PinConflictError,
    PlanError,
    ProblemError,
    UnplaceableOpError,
)
from enplace.values.constraints import Constraints
from enplace.values.plan import check_plan
from enplace.values.problem import Problem
from problems import GIB, cluster_of, plan_of, profile_of

CHAIN = profile_of({"a": 1.0, "b": 2.0, "c": 3.0}, [("a", "b", 8), ("b", "c", 8)])


def test_an_op_that_no_device_can_run_is_refused_with_what_it_needs() -> None:
    profile = profile_of({"a": 1.0}, cpu={"read": 5.0})
    with pytest.raises(
        UnplaceableOpError, match="op 'read' runs only on a cpu, and cluster 'hand'"
    ):
        Problem(profile, cluster_of(2))
    assert Problem(profile, cluster_of(2, cpu_lanes=1)).time_us[1].tolist() == [np.inf, np.inf, 5.0]


def test_time_is_divided_by_speed() -> None:
    problem = Problem(CHAIN, cluster_of(2, speeds=[1.0, 4.0]))
    assert problem.time_us[2].tolist() == [3.0, 0.75]


def test_pins_that_contradict_a_colocation_group_name_both_ops_and_devices() -> None:
    profile = profile_of({"a": 1.0, "b": 1.0}, colocation={"a": "g", "b": "g"})
    with pytest.raises(PinConflictError) as caught:
        Problem(profile, cluster_of(2), Constraints(pins={0: 0, 1: 1}))
    for word in ("'a'", "'b'", "GPU:0", "GPU:1", "colocated"):
        assert word in str(caught.value)


def test_pins_that_contradict_a_user_group_are_refused() -> None:
    with pytest.raises(PinConflictError, match="colocated"):
        Problem(CHAIN, cluster_of(2), Constraints(pins={0: 0, 2: 1}, together=((0, 2),)))


def test_a_locked_device_runs_only_what_is_pinned_to_it() -> None:
    problem = Problem(
        CHAIN, cluster_of(2), Constraints(pins={0: 0}, together=((0, 1),), locked=frozenset({0}))
    )
    assert problem.unit_allowed[problem.unit].tolist() == [[True, False]] * 2 + [[False, True]]
    with pytest.raises(
        UnplaceableOpError, match="'b' has no device left; remove one of the pins or locks"
    ):
        Problem(CHAIN, cluster_of(1), Constraints(pins={0: 0, 2: 0}, locked=frozenset({0})))
    with pytest.raises(ProblemError, match="device number 2"):
        Problem(CHAIN, cluster_of(2), Constraints(locked=frozenset({2})))


def test_a_plan_that_adds_to_a_locked_device_is_refused() -> None:
    problem = Problem(CHAIN, cluster_of(2), Constraints(pins={0: 0}, locked=frozenset({0})))
    with pytest.raises(PlanError, match="'b' is placed on GPU:0, but that device is locked"):
        check_plan(problem, plan_of(problem, {"a": 0, "b": 0, "c": 1}))


def test_a_pin_to_a_device_that_cannot_run_the_op_is_refused() -> None:
    with pytest.raises(
        PinConflictError, match="op 'b' is pinned to CPU:0, but it cannot run there"
    ):
        Problem(CHAIN, cluster_of(2, cpu_lanes=1), Constraints(pins={1: 2}))


def test_a_pin_to_a_forbidden_device_is_refused() -> None:
    with pytest.raises(
        PinConflictError, match="op 'a' is pinned to GPU:1, but it is forbidden there"
    ):
        Problem(CHAIN, cluster_of(2), Constraints(pins={0: 1}, forbidden=frozenset({(0, 1)})))


def test_a_group_without_a_common_device_is_refused() -> None:
    profile = profile_of({"a": 1.0}, cpu={"b": 1.0}, colocation={"a": "g", "b": "g"})
    with pytest.raises(
        UnplaceableOpError, match="op 'a' and the 1 op colocated with it have no device"
    ):
        Problem(profile, cluster_of(1, cpu_lanes=1))


@pytest.mark.parametrize(
    "constraints", [{"pins": {9: 0}}, {"together": ((0, 9),)}, {"forbidden": frozenset({(9, 0)})}]
)
def test_a_constraint_on_an_unknown_op_is_refused(constraints: dict[str, object]) -> None:
    with pytest.raises(ProblemError, match="op number 9"):
        Problem(CHAIN, cluster_of(2), Constraints(**constraints))  # type: ignore[arg-type]


def test_a_pin_to_an_unknown_device_is_refused() -> None:
    with pytest.raises(ProblemError, match="device number 5"):
        Problem(CHAIN, cluster_of(2), Constraints(pins={0: 5}))


def test_variables_too_large_for_every_device_are_refused() -> None:
    profile = profile_of({"a": 1.0}, persistent={"a": 2 * GIB})
    with pytest.raises(
        DoesNotFitError, match=r"op 'a' has variables of 2.0 GiB, more than the 1.0 GiB"
    ):
        Problem(profile, cluster_of(2))


def test_variables_too_large_for_the_cluster_are_refused() -> None:
    profile = profile_of(dict.fromkeys("abc", 1.0), persistent=dict.fromkeys("abc", GIB))
    with pytest.raises(
        DoesNotFitError, match=r"variables of 3\.0 GiB cannot fit the 2\.0 GiB of GPU:0, GPU:1"
    ):
        Problem(profile, cluster_of(2))
    assert Problem(profile, cluster_of(3)).n_units == 3


def test_pins_can_make_memory_too_small() -> None:
    profile = profile_of(dict.fromkeys("ab", 1.0), persistent=dict.fromkeys("ab", GIB))
    with pytest.raises(DoesNotFitError, match=r"cannot fit the 1\.0 GiB of GPU:0"):
        Problem(profile, cluster_of(2), Constraints(pins={0: 0, 1: 0}))


def test_placement_units_combine_colocation_and_user_groups() -> None:
    profile = profile_of(dict.fromkeys("abcd", 1.0), colocation={"a": "g", "c": "g"})
    problem = Problem(profile, cluster_of(2), Constraints(together=((2, 3),)))
    assert problem.unit.tolist() == [0, 1, 0, 0]
