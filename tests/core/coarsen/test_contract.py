"""Contracting a graph and expanding a plan conserve work, memory and constraints."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.coarsen.reference import merge_chains_slowly, peaks_slowly
from tests.core.placers.problems import gpus, line, problems

from enplace.coarsen import chains, contract, expand, merge_batches, merge_chains
from enplace.errors import CycleError
from enplace.machine import simulate
from enplace.placers import place
from enplace.values.constraints import Constraints
from enplace.values.plan import check_plan
from enplace.values.problem import Problem
from problems import planned_problems


def allowed_work_us(problem):
    """Sum the times of the ops that each device may run."""
    allowed = problem.unit_allowed[problem.unit]
    return np.where(allowed, problem.time_us, 0.0).sum(axis=0)


@given(problem=problems(), target=st.integers(1, 6))
def test_contracting_conserves_times_and_bytes(problem, target):
    group = merge_batches(problem, target)
    small = contract(problem, group)
    fine, coarse = problem.profile, small.profile
    assert np.allclose(allowed_work_us(problem), allowed_work_us(small))
    assert fine.persistent_bytes.sum() == coarse.persistent_bytes.sum()
    assert coarse.temporary_bytes.max() >= fine.temporary_bytes.max()
    crossing = group[fine.edge_source] != group[fine.edge_op]
    sent = np.unique(fine.edge_tensor[crossing])
    assert fine.tensor_bytes[sent].sum() == coarse.tensor_bytes.sum()


@given(problem=problems(), target=st.integers(1, 6))
def test_the_memory_inside_groups_equals_the_reference(problem, target):
    group = merge_batches(problem, target)
    profile = problem.profile
    position = np.argsort(profile.topological_order)
    order = np.lexsort((position, group))
    inside = contract(problem, group).profile.temporary_bytes
    assert inside.tolist() == peaks_slowly(problem, group, order)


@given(planned=planned_problems())
def test_groups_of_one_op_need_as_much_memory_as_the_ops(planned):
    problem, plan = planned
    small = contract(problem, np.arange(problem.profile.n_ops))
    assert simulate(small, plan).peak_bytes.tolist() == simulate(problem, plan).peak_bytes.tolist()


@given(problem=problems())
def test_merging_chains_equals_the_reference(problem):
    group = merge_chains(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "_merge", merge_chains_slowly)
        assert merge_chains(problem).tolist() == group.tolist()


@given(problem=problems(), target=st.integers(1, 6))
def test_a_plan_of_the_contracted_graph_expands_to_a_valid_plan(problem, target):
    group = merge_batches(problem, target)
    small = contract(problem, group)
    plan = place(small, "heft").plan
    back = expand(problem, group, plan)
    check_plan(problem, back)
    assert (back.device == plan.device[group]).all()
    profile = problem.profile
    assert (back.position[profile.edge_source] < back.position[profile.edge_op]).all()


@given(problem=problems())
def test_contracting_keeps_the_step_time_on_one_device(problem):
    """On one device the step time is the sum of all times, merged or not."""
    single = problem.unit_allowed.all(axis=0) & (problem.cluster.lanes == 1)
    if not single.any():
        return
    gpu = int(np.argmax(single))
    group = merge_chains(problem)
    small = contract(problem, group)
    fine = simulate(problem, place_all(problem, gpu))
    coarse = simulate(small, place_all(small, gpu))
    assert coarse.makespan_us == pytest.approx(fine.makespan_us)
    assert (coarse.peak_bytes >= 0).all()


def place_all(problem, device):
    plan = place(problem, "single").plan
    return type(plan)(np.full(problem.profile.n_ops, device), plan.position.copy(), "all")


@given(problem=problems())
def test_merging_chains_makes_no_cycle(problem):
    group = merge_chains(problem)
    graph = nx.DiGraph()
    graph.add_nodes_from(group.tolist())
    a, b = group[problem.profile.edge_source], group[problem.profile.edge_op]
    graph.add_edges_from((int(x), int(y)) for x, y in zip(a, b, strict=True) if x != y)
    assert nx.is_directed_acyclic_graph(graph)


def test_a_chain_is_merged_and_a_branch_is_not():
    problem = Problem(line([1.0] * 5, [(0, 1, 4), (1, 2, 4), (1, 3, 4), (2, 4, 4)]), gpus(2))
    group = merge_chains(problem)
    assert group[0] == group[1]
    assert group[2] == group[4]
    assert len(set(group.tolist())) == 3


def test_a_constant_is_merged_with_its_only_consumer():
    problem = Problem(line([0.0, 1.0, 1.0], [(0, 1, 4), (2, 1, 4)]), gpus(2))
    group = merge_chains(problem)
    assert group[0] == group[1]


def test_pins_and_colocation_survive_contraction():
    profile = line([1.0] * 4, [(0, 1, 4), (2, 3, 4)], colocation=["v", "", "", "v"])
    problem = Problem(profile, gpus(2), Constraints(pins={1: 1}))
    small = contract(problem, np.array([0, 0, 1, 2]))
    assert small.unit[0] == small.unit[2]
    assert small.unit_allowed[small.unit[0]].tolist() == [False, True]


def test_a_tensor_inside_a_group_becomes_temporary_memory():
    profile = line([1.0] * 3, [(0, 1, 100), (1, 2, 7)])
    small = contract(Problem(profile, gpus(2)), np.array([0, 0, 1]))
    assert small.profile.temporary_bytes.tolist() == [100, 0]
    assert small.profile.tensor_bytes.tolist() == [7]


def test_what_lies_in_memory_of_a_group_shares_that_of_what_leaves_it():
    """b and c lie in a's memory; d, which leaves only as b and c, lies in neither's op's."""
    edges = [(0, 1, 100), (1, 2, 100), (1, 3, 100), (2, 3, 60)]
    profile = line([1.0] * 4, edges)
    shared = replace(profile, tensor_base=np.array([-1, 0, 1]))
    inside = contract(Problem(shared, gpus(2)), np.array([0, 0, 0, 1])).profile
    assert inside.temporary_bytes.tolist() == [0, 0]
    assert inside.tensor_base.tolist() == [-1, 0]
    across = contract(Problem(shared, gpus(2)), np.array([0, 1, 1, 2])).profile
    assert across.tensor_base.tolist() == [-1, 0, 1]


def test_groups_that_form_a_cycle_are_refused():
    problem = Problem(line([1.0] * 3, [(0, 1, 4), (1, 2, 4)]), gpus(2))
    with pytest.raises(CycleError):
        contract(problem, np.array([0, 1, 0]))
