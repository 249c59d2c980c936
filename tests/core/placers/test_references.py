"""The plans that others are compared with."""

from enplace.placers.references import (
    ALONE,
    EXPERT,
    TITLES,
    reference_schedule,
    reference_schedules,
)
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

PROFILE = profile_of({"a": 10.0, "b": 10.0}, [("a", "b", 8)])


def test_tensorflow_alone_uses_one_gpu_whatever_a_person_demands():
    found = reference_schedules(Problem(PROFILE, cluster_of(2), pins={1: 1}))
    assert found[TITLES[ALONE]].plan.device.tolist() == [0, 0]
    assert found[TITLES[EXPERT]].plan.device[1] == 1


def test_a_cancelled_reference_is_none():
    problem = Problem(PROFILE, cluster_of(2))
    assert reference_schedule(problem, EXPERT, lambda: True) is None
