"""Schedules as values."""

from dataclasses import fields, replace

import numpy as np
import pytest

from enplace.machine import simulate
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule
from problems import cluster_of, plan_of, profile_of

ARRAYS = [field.name for field in fields(Schedule) if field.name not in ("problem", "plan")]


def schedule():
    problem = Problem(profile_of({"a": 10, "b": 20}, [("a", "b", 8)]), cluster_of(2))
    return simulate(problem, plan_of(problem, {"a": 0, "b": 1}))


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_cannot_be_changed_afterwards(name):
    with pytest.raises(ValueError, match="read-only"):
        getattr(schedule(), name)[0] = 1


@pytest.mark.parametrize("name", ARRAYS)
def test_a_schedule_keeps_its_values_when_its_caller_changes_the_array(name):
    mine = np.array(getattr(schedule(), name))
    kept = replace(schedule(), **{name: mine})
    before = mine.copy()
    mine[:] = 99
    np.testing.assert_array_equal(getattr(kept, name), before)
