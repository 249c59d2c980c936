"""Orders that a person wants: as control edges of the graph that every solver sees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.machine.schedule_faults import find_faults
from tests.core.placers.problems import problems
from tests.core.values.splits.test_splits import training_step

from enplace.bounds.proofs import Proof, Proofs
from enplace.errors import OrderError, ProblemError
from enplace.machine import simulate
from enplace.placers import place
from enplace.values.arrays import inverse
from enplace.values.plan import Plan, follow_graph
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import MOST_PAIRS, find_pairs
from problems import cluster_of, profile_of

FREE = profile_of(dict.fromkeys("abcd", 10.0))
CHAIN = profile_of({"a": 10, "b": 10, "c": 1}, [("a", "b", 8)])


def problem_of(profile, before=()):
    return Problem(profile, cluster_of(2)).constrained(before=before)


def test_the_second_op_waits_for_the_first_and_across_devices_for_a_message():
    problem = problem_of(FREE, [(0, 1), (2, 3)])
    plan = Plan(np.array([0, 0, 0, 1]), np.array([1, 0, 2, 3]), "hand")
    schedule = simulate(problem, plan)
    assert schedule.op_start_us.tolist() == [0.0, 10.0, 20.0, 31.0]
    assert find_faults(schedule) == []


def test_a_schedule_that_breaks_the_order_has_a_fault():
    schedule = simulate(problem_of(FREE), Plan(np.zeros(4, int), np.arange(4), "hand"))
    wanted = problem_of(FREE, [(1, 0)])
    faults = find_faults(
        replace(schedule, problem=schedule.problem.constrained(before=wanted.before))
    )
    assert "op 'a' starts before op 'b' has ended" in faults


def test_an_order_can_be_taken_back():
    problem = problem_of(FREE)
    wanted = problem.constrained(before=[(0, 1)])
    assert wanted.measured_profile is problem.profile
    assert wanted.constrained(before=[]).profile is problem.profile
    assert wanted.constrained(before=[(2, 3)]).before == ((2, 3),)
    assert wanted.constrained(before=[(0, 1)]) is wanted


def test_what_the_graph_implies_is_left_out():
    assert problem_of(CHAIN, [(0, 1), (1, 2), (1, 2)]).before == ((1, 2),)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ([(1, 0)], "b -> a -> b; choose an order that follows the graph"),
        ([(2, 2)], "wait for each other: c"),
        ([(1, 2), (2, 0)], "wait for each other"),
    ],
)
def test_an_order_against_the_graph_is_refused_with_its_cycle(before, words):
    with pytest.raises(OrderError, match=words):
        problem_of(CHAIN, before)


def test_ops_that_do_not_exist_and_too_many_pairs_are_refused():
    with pytest.raises(ProblemError, match="does not exist"):
        problem_of(CHAIN, [(0, 9)])
    with pytest.raises(OrderError, match="order fewer ops"):
        problem_of(CHAIN, ((0, op) for op in range(MOST_PAIRS + 1)))


def test_too_many_pairs_are_refused_before_they_are_made():
    many = profile_of(dict.fromkeys(map(str, range(2000)), 1.0))
    with pytest.raises(OrderError, match="1,000,000 pairs of ops"):
        find_pairs(many, range(1000), range(1000, 2000))


def test_parts_of_a_split_op_keep_its_order():
    problem = Problem(training_step(), cluster_of(2, b1_us_per_byte=1e-6))
    splits = place(problem, "os-dpos").plan.splits
    names = problem.profile.op_names
    op, parts = names.index(splits[0].op), splits[0].parts
    free = np.setdiff1d(np.arange(len(names)), [names.index(split.op) for split in splits])
    rank = inverse(problem.profile.topological_order)
    later = int(free[np.argmax(rank[free])])
    split = split_problem(problem.constrained(before=[(op, later)]), splits)
    ends = {(split.profile.op_names[a], split.profile.op_names[b]) for a, b in split.before}
    assert len(ends) == parts
    assert {b for _, b in ends} == {names[later]}
    assert all(a.startswith(splits[0].op) for a, _ in ends)


def test_other_costs_keep_the_order():
    problem = problem_of(FREE, [(0, 1)])
    slower = replace(problem, measured_profile=FREE.with_costs(FREE.time_us * 2))
    assert slower.before == ((0, 1),)
    assert slower.measured_profile.time_us[0, 0] == 20.0
    assert slower.profile.time_us[0, 0] == 20.0
    assert slower.profile.n_edges == 1


def test_a_bound_holds_for_more_orders_and_not_for_fewer():
    free = problem_of(FREE)
    more = free.constrained(before=[(0, 1)])
    proofs = Proofs()
    proofs.add(free, Proof(5.0))
    assert proofs.known(more).bound_us == 5.0
    proofs = Proofs()
    proofs.add(more, Proof(5.0))
    assert proofs.known(free) is None


@given(problems(), st.integers(0, 2**32 - 1))
def test_few_pairs_order_all_ops(problem, seed):
    rng = np.random.default_rng(seed)
    profile = problem.measured_profile
    order = profile.topological_order
    cut = int(rng.integers(len(order) + 1))
    first, then = (rng.permutation(part)[:6].tolist() for part in (order[:cut], order[cut:]))
    wanted = problem.constrained(before=find_pairs(profile, first, then))
    schedule = place(wanted, "m-etf").schedule
    for a in first:
        assert (schedule.op_finish_us[a] <= schedule.op_start_us[then] + 1e-9).all()


@given(problems(), st.integers(0, 2**32 - 1))
def test_positions_follow_the_graph_and_otherwise_the_key(problem, seed):
    profile = problem.profile
    key = np.random.default_rng(seed).random(profile.n_ops)
    position = follow_graph(profile, key)
    assert sorted(position.tolist()) == list(range(profile.n_ops))
    assert (position[profile.edge_source] < position[profile.edge_op]).all()
    rank = position.astype(float)
    assert follow_graph(profile, rank).tolist() == position.tolist()
