"""Plans of the same method have names that say what differs."""

from dataclasses import replace

from enplace.machine import simulate
from enplace.placers import placers
from enplace.readers.clusters import presets
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from enplace.values.splits import Split, part_names
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.explain.titles import short_title
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.solve.solving import distinct_name
from problems import cluster_of, plan_of, profile_of


def entry_of(name, others=(), pins=(), solve_s=None, cluster=None, off=()):
    """Make a plan with the name that it gets beside others."""
    profile = profile_of({"a": 1.0, "b": 1.0})
    forbidden = frozenset((op, 1) for op in off)
    problem = Problem(
        profile,
        cluster or cluster_of(2),
        Constraints(pins=dict.fromkeys(pins, 0), forbidden=forbidden),
    )
    plan = replace(plan_of(problem, {"a": 0, "b": 0}), solve_seconds=solve_s)
    own = distinct_name(name, plan, problem, others)
    return PlanEntry(own, plan, simulate(problem, plan))


def name_of(others, **asked):
    return entry_of("Enplace", others, **asked).name


FIRST = entry_of("Enplace", solve_s=10.2)


def test_a_name_is_as_short_as_it_can_be():
    assert name_of([]) == "Enplace"
    assert name_of([entry_of("HEFT")], pins=[0, 1], solve_s=10.0) == "Enplace"


def test_a_second_plan_says_what_differs_and_only_that():
    assert name_of([FIRST], solve_s=30.0) == "Enplace, 30 s"
    assert name_of([FIRST], pins=[0, 1], solve_s=9.9) == "Enplace, 2 ops pinned"
    assert name_of([FIRST], pins=[0, 1], solve_s=30.0) == "Enplace, 2 ops pinned, 30 s"
    assert name_of([FIRST], off=[0], solve_s=9.9) == "Enplace, 1 op kept off"


def test_what_a_plan_has_not_is_said_only_if_nothing_else_tells_it_apart():
    pinned = entry_of("Enplace", pins=[0])
    assert name_of([pinned]) == "Enplace, no ops pinned"
    near = pinned.schedule.problem.constrained(pins={}, stay_close=[(((0, 0), (1, 0)), 1)])
    nearer = distinct_name("Enplace", pinned.plan, near, [pinned])
    assert nearer == "Enplace, close to a plan"
    plain = entry_of("Enplace")
    close = replace(plain, name=nearer, schedule=replace(plain.schedule, problem=near))
    assert name_of([plain, close]) == "Enplace, run 2", "not: not close to a plan"


def test_a_plan_for_another_cluster_says_which():
    cluster = next(iter(presets().values()))
    name = name_of([FIRST], solve_s=9.9, cluster=cluster)
    assert name == f"Enplace, {cluster_title(cluster)}"


def test_a_plan_that_differs_in_nothing_is_another_run():
    again = entry_of("Enplace", [FIRST], solve_s=9.9)
    assert again.name == "Enplace, run 2"
    assert name_of([FIRST, again], solve_s=9.9) == "Enplace, run 3"


def test_no_two_methods_have_one_name():
    names = [short_title(placer.title) for placer in placers().values()]
    assert sorted({*names}) == sorted(names)


def test_a_plan_of_split_ops_counts_pins_as_the_pane_does_and_orders_as_they_were_asked_for():
    """One op is pinned and ordered; split, it is two pinned parts and four ordered pairs."""
    splits = tuple(Split(op, "batch", 2) for op in "ab")
    names = [name for op in "ab" for name in part_names(op, 2)]
    pairs = ((0, 2), (0, 3), (1, 2), (1, 3))
    free = Problem(
        profile_of(dict.fromkeys(names, 1.0)), cluster_of(2), Constraints(pins={0: 0, 1: 0})
    )
    problem = replace(free.constrained(before=pairs), splits=splits)
    plan = replace(plan_of(problem, dict.fromkeys(names, 0)), splits=splits)
    assert distinct_name("Enplace", plan, problem, [FIRST]) == "Enplace, 2 ops pinned, 1 order"
    pinned = entry_of("Enplace", [FIRST], pins=[0])
    free = replace(free, splits=splits)
    assert distinct_name("Enplace", plan, free, [pinned]) == "Enplace", "the same is pinned"
