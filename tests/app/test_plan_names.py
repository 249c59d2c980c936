"""Plans of the same method have names that say what differs."""

from dataclasses import replace

from enplace.values.problem import Problem
from enplace_studio.solving import distinct_name
from problems import cluster_of, plan_of, profile_of


def name_of(taken, pins=(), solve_s=None):
    problem = Problem(profile_of({"a": 1.0, "b": 1.0}), cluster_of(2), pins=dict.fromkeys(pins, 0))
    plan = replace(plan_of(problem, {"a": 0, "b": 0}), solve_seconds=solve_s)
    return distinct_name("Enplace", plan, problem, taken)


def test_a_name_is_as_short_as_it_can_be():
    assert name_of([]) == "Enplace"
    assert name_of(["HEFT"], pins=[0, 1], solve_s=10.0) == "Enplace"


def test_a_second_plan_says_what_differs():
    assert name_of(["Enplace"], solve_s=30.0) == "Enplace, 30 s"
    assert name_of(["Enplace"], pins=[0, 1], solve_s=30.0) == "Enplace, 2 pins"
    taken = ["Enplace", "Enplace, 2 pins"]
    assert name_of(taken, pins=[0, 1], solve_s=30.0) == "Enplace, 30 s"
    taken.append("Enplace, 30 s")
    assert name_of(taken, pins=[0, 1], solve_s=30.0) == "Enplace, 2 pins, 30 s"


def test_a_plan_that_differs_in_nothing_gets_a_number_from_the_list():
    assert name_of(["Enplace"]) == "Enplace"
