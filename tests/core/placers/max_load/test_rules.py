"""Load rules by hand; the best partition for each rule against trying all partitions."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.max_load.drawn import tiny_problems
from tests.core.solvers.warm import warm_solvers

from enplace.coarsen.grouped import op_memory_bytes
from enplace.errors import ProblemError
from enplace.machine.host_links import machine_of
from enplace.machine.pipelines.loads import max_load_us, pass_loads_us
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.placers import PlaceOptions, place
from enplace.placers.max_load.search.anneal import anneal
from enplace.placers.max_load.search.hypergraph import build_hypergraph, loads_us
from enplace.placers.max_load.search.throughput_search import search_anywhere
from enplace.placers.max_load.table.contract import contract
from enplace.placers.max_load.table.dp import partition_along_order, partition_exactly
from enplace.placers.max_load.table.two_level import partition_over_machines
from enplace.placing.options import load_values
from enplace.placing.stop import Stop
from enplace.values.load_rule import PIPELINES, TRANSFERS, LoadRule
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from problems import cluster_of, planned_problems, profile_of
from properties import examples

RULES = [LoadRule(t, p, in_flight=False) for t in TRANSFERS for p in ("1f1b", "gpipe")]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.transfers}-{r.pipeline}")


def partitions(problem, rule):
    """Yield all partitions of the contracted graph into ordered stages that fit."""
    nodes, cluster = contract(problem, rule), problem.cluster
    edges = list(zip(nodes.source.tolist(), nodes.target.tolist(), strict=True))
    need = op_memory_bytes(problem)
    for devices in itertools.product(range(cluster.n_devices), repeat=nodes.n_nodes):
        device = np.array(devices)[nodes.node]
        between = nx.DiGraph((devices[a], devices[b]) for a, b in edges if devices[a] != devices[b])
        held = np.bincount(device, weights=need, minlength=cluster.n_devices)
        fits = (held <= cluster.capacity_bytes).all()
        if nx.is_directed_acyclic_graph(between) and fits:
            yield device


def least_us(problem, rule):
    found = (max_load_us(problem, device, rule) for device in partitions(problem, rule))
    return min(found, default=np.inf)


def test_the_rule_decides_how_computing_and_transfers_add_up():
    """A takes 10 µs and sends 3; b takes 4 µs, receives 3 and sends 2; c takes 7 µs."""
    profile = profile_of({"a": 10, "b": 4, "c": 7}, [("a", "b", 3), ("b", "c", 2)])
    problem, device = Problem(profile, cluster_of(3, b0_us=0.0)), np.array([0, 1, 2])
    for transfers, expected in (
        ("sum", [13, 9, 9]),
        ("overlap", [10, 5, 7]),
        ("duplex", [10, 4, 7]),
    ):
        loads = pass_loads_us(problem, device, LoadRule(transfers))
        assert loads[:, 0].tolist() == expected


def test_stages_do_not_depend_on_how_deep_scopes_are():
    names = ("a", "b", "c", "gradients/c", "gradients/b", "gradients/a")
    times = dict(zip(names, (10, 4, 7, 14, 8, 20), strict=True))
    edges = [(one, then, 2) for one, then in itertools.pairwise(names)]
    flat = replace(profile_of(times, edges), scopes=names, measured=Measurement(backward=[3, 4, 5]))
    deep = replace(flat, scopes=tuple(f"{name}/dense/{at}" for at, name in enumerate(names)))
    one, other = (place(Problem(each, cluster_of(2)), "max-load-dp").plan for each in (flat, deep))
    assert one.device.tolist() == other.device.tolist()
    assert one.value_us == other.value_us


def test_gpipe_adds_the_largest_loads_of_both_passes():
    """Device 0 has the largest forward load, device 1 the largest backward load."""
    times = {"f": 10, "g": 4, "bg": 9, "bf": 5}
    edges = [("f", "g", 1), ("g", "bg", 1), ("bg", "bf", 2), ("f", "bf", 1)]
    profile = replace(profile_of(times, edges), measured=Measurement(backward=[2, 3]))
    problem, device = Problem(profile, cluster_of(2, b0_us=0.0)), np.array([0, 1, 1, 0])
    loads = pass_loads_us(problem, device, LoadRule(pipeline="gpipe"))
    assert loads.tolist() == [[10 + 1, 5 + 2], [4 + 1, 9 + 2]]
    assert max_load_us(problem, device, LoadRule(pipeline="gpipe")) == 11 + 11
    assert max_load_us(problem, device, LoadRule()) == 11 + 7


@given(planned=planned_problems())
def test_more_overlap_lowers_the_loads(planned):
    problem, plan = planned
    for pipeline in PIPELINES:
        total, overlap, duplex = (
            max_load_us(problem, plan.device, LoadRule(t, pipeline)) for t in TRANSFERS
        )
        assert duplex <= overlap * (1 + 1e-9)
        assert overlap <= total * (1 + 1e-9)
    both, apart = (
        max_load_us(problem, plan.device, LoadRule(pipeline=p)) for p in ("1f1b", "gpipe")
    )
    assert both <= apart * (1 + 1e-9)


@each_rule
@examples(10)
@given(problem=tiny_problems())
def test_no_partition_beats_the_exact_one(rule, problem):
    expected = least_us(problem, rule)
    exact = partition_exactly(problem, rule)
    assert exact.load_us == pytest.approx(expected)
    assert exact.optimal
    along = partition_along_order(problem, rule)
    assert along.load_us >= expected * (1 - 1e-9)
    assert along.bound_us <= expected * (1 + 1e-9)
    for found in (exact, along):
        if np.isfinite(found.load_us):
            assert max_load_us(problem, found.device, rule) == pytest.approx(found.load_us)


@each_rule
@examples(6)
@given(problem=tiny_problems(slower=(1.0, 3.0)), seed=st.integers(0, 9))
def test_unit_loads_equal_op_loads_even_after_annealing(rule, problem, seed):
    graph = build_hypergraph(problem, rule)
    start = np.argmax(problem.unit_allowed, axis=1)
    for device in (start, anneal(graph, start, lambda: False, seed)):
        np.testing.assert_allclose(
            loads_us(graph, device), pass_loads_us(problem, device[problem.unit], rule), atol=1e-9
        )


@each_rule
@examples(4)
@given(problem=tiny_problems(4, slower=(1.0, 3.0)))
@warm_solvers()
def test_no_placement_beats_that_of_the_program(rule, problem):
    need = op_memory_bytes(problem)
    expected = np.inf
    for devices in itertools.product(range(problem.cluster.n_devices), repeat=problem.n_units):
        device = np.array(devices)[problem.unit]
        held = np.bincount(device, weights=need, minlength=problem.cluster.n_devices)
        if (held <= problem.cluster.capacity_bytes).all():
            expected = min(expected, max_load_us(problem, device, rule))
    found = search_anywhere(problem, Stop(600.0), rule)
    assert found.objective_us == pytest.approx(expected)
    assert not np.isfinite(expected) or found.proven


def least_with_replicas_us(problem, rule):
    """Return the least load over all partitions and all numbers of replicas."""
    cluster, best = problem.cluster, np.inf
    for device in partitions(problem, rule):
        gpus = [d for d in cluster.gpus if (device == d).any()]
        spare = [d for d in cluster.gpus if d not in gpus]
        # The stage that each spare device is a replica of, or None.
        for replica_of in itertools.product([None, *gpus], repeat=len(spare)):
            groups = []
            for gpu in gpus:
                others = [d for d, other in zip(spare, replica_of, strict=True) if other == gpu]
                groups += [(gpu, *others)] if others else []
            best = min(best, max_load_us(problem, device, rule, groups))
    return best


@pytest.mark.parametrize("rule", [replace(r, replicate=True) for r in RULES[:3]])
@examples(8)
@given(problem=tiny_problems(4))
def test_no_replicas_beat_the_exact_ones(rule, problem):
    found = partition_exactly(problem, rule)
    assert found.load_us == pytest.approx(least_with_replicas_us(problem, rule))
    assert partition_along_order(problem, rule).bound_us <= found.load_us * (1 + 1e-9)
    if np.isfinite(found.load_us):
        load_us = max_load_us(problem, found.device, rule, found.replicas)
        assert load_us == pytest.approx(found.load_us)


def test_replicas_share_the_samples_and_reduce_the_weights():
    """30 µs on three replicas: 10 µs per sample, plus two thirds of 12 bytes at 1 µs each."""
    profile = profile_of({"f": 10, "b": 20}, [("f", "b", 5)], persistent={"f": 12})
    training = replace(profile, measured=Measurement(backward=[1]))
    device, together = np.array([0, 0]), [(0, 1, 2)]
    for each, expected in ((profile, 10), (training, 10 + 12 * 2 / 3)):
        problem = Problem(each, cluster_of(3, b0_us=0.0))
        assert max_load_us(problem, device, LoadRule(replicate=True), together) == expected
    assert max_load_us(problem, device, LoadRule("overlap"), together) == 10
    found = partition_exactly(problem, LoadRule("overlap", replicate=True))
    assert (found.load_us, found.replicas) == (10, ((0, 1, 2),))


def test_the_slowest_link_decides_the_time_of_an_all_reduce():
    """Links within the pairs 0-1 and 2-3 take 0.01 µs per byte, all others 10 µs."""
    one_unit = {"persistent": {"f": 100}, "colocation": {"f": "x", "b": "x"}}
    profile = profile_of({"f": 20, "b": 20}, [("f", "b", 0)], **one_unit)
    profile = replace(profile, measured=Measurement(backward=[1]))
    problem = Problem(profile, two_machines(2, 10.0, within_us=0.01))
    device, rule = np.array([0, 0]), LoadRule(replicate=True)
    pair_us, all_us = 40 / 2 + 0.01 * 100 / 2, 40 / 4 + 10 * 100 * 3 / 4
    for group, expected in (((0, 1), pair_us), ((0, 1, 2, 3), all_us)):
        assert max_load_us(problem, device, rule, [group]) == pytest.approx(expected)
        plan = Plan(device, np.arange(2), "by hand", replicas=(group,))
        pipeline = simulate_pipeline(problem, plan, "1f1b", 8, rule)
        assert pipeline.time_per_sample_us == pytest.approx(expected)
    options = PlaceOptions(values=load_values(replace(rule, two_level=True)))
    plan = place(problem, "max-load-dp", options=options).plan
    assert (plan.value_us, plan.proven) == (pytest.approx(pair_us), True)


@pytest.mark.parametrize("rule", [replace(r, replicate=True) for r in RULES[:2]])
@examples(4)
@given(problem=tiny_problems(4), network_us=st.sampled_from([0.5, 10.0]))
def test_bounds_hold_for_replicas_whose_links_differ(rule, problem, network_us):
    try:
        problem = Problem(problem.profile, two_machines(2, network_us))
    except ProblemError:
        return
    found = partition_exactly(problem, rule)
    best = least_with_replicas_us(problem, rule)
    assert found.bound_us <= best * (1 + 1e-9)
    assert not found.optimal or found.load_us == pytest.approx(best)
    load_us = max_load_us(problem, found.device, rule, found.replicas)
    assert best * (1 - 1e-9) <= load_us <= found.load_us * (1 + 1e-9)


def two_machines(n_each, network_us, within_us=1.0):
    """Return two machines of ``n_each`` GPUs, with the time per byte between and within them."""
    flat = cluster_of(2 * n_each, b0_us=0.0, b1_us_per_byte=within_us)
    slow = [
        replace(link, b1_us_per_byte=network_us)
        if link.source // n_each != link.target // n_each
        else link
        for link in flat.links
    ]
    return replace(flat, links=tuple(slow))


@pytest.mark.parametrize("rule", [replace(r, two_level=True) for r in RULES[:3]])
@examples(5)
@given(problem=tiny_problems(4), network_us=st.sampled_from([2.0, 5.0]))
def test_no_two_level_partition_beats_the_exact_one(rule, problem, network_us):
    """The machines are ordered too: all edges between them have one direction."""
    try:
        problem = Problem(problem.profile, two_machines(2, network_us))
    except ProblemError:
        return
    expected = least_over_machines_us(problem, rule)
    found = partition_over_machines(problem, rule)
    assert found.load_us == pytest.approx(expected)
    if np.isfinite(expected):
        assert max_load_us(problem, found.device, rule) == pytest.approx(expected)
    along = partition_over_machines(problem, rule, along_order=True)
    assert along.load_us >= expected * (1 - 1e-9)


def least_over_machines_us(problem, rule):
    """Return the least load if all edges between two machines have one direction."""
    nodes, machine = contract(problem, rule), machine_of(problem.cluster)
    edges = list(zip(nodes.source.tolist(), nodes.target.tolist(), strict=True))
    least = np.inf
    for device in partitions(problem, rule):
        of_node = np.zeros(nodes.n_nodes, dtype=int)
        of_node[nodes.node] = machine[device]
        if len({(of_node[a], of_node[b]) for a, b in edges if of_node[a] != of_node[b]}) <= 1:
            least = min(least, max_load_us(problem, device, rule))
    return least


@examples(6)
@given(problem=tiny_problems(4), network_us=st.sampled_from([2.0, 5.0]))
def test_unequal_machines_get_the_best_partition_in_any_order(problem, network_us):
    """One GPU on a slow network, and two with a fast link between them."""
    flat, rule = cluster_of(3, b0_us=0.0, b1_us_per_byte=0.5), replace(RULES[0], two_level=True)
    links = [
        replace(link, b1_us_per_byte=network_us) if 0 in (link.source, link.target) else link
        for link in flat.links
    ]
    try:
        problem = Problem(problem.profile, replace(flat, links=tuple(links)))
    except ProblemError:
        return
    expected = least_over_machines_us(problem, rule)
    assert partition_over_machines(problem, rule).load_us == pytest.approx(expected)


@pytest.mark.parametrize("two_level", [False, True])
def test_interleaved_stages_have_no_replicas_on_each_other(two_level):
    """A stage would be a replica of another one on the same GPU."""
    times = {"a": 6.0, "b": 3.0, "back": 5.0}
    profile = profile_of(times, [("a", "b", 1), ("b", "back", 1)])
    profile = replace(profile, measured=Measurement(backward=[2]))
    problem = Problem(profile, two_machines(1 + two_level, 1.0))
    rule = LoadRule(pipeline="interleaved", replicate=True, two_level=two_level)
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=load_values(rule))).plan
    assert plan.value_us == pytest.approx(14 / len(plan.replicas[0]))
    found = simulate_pipeline(problem, plan, "interleaved", 16)
    assert found.time_per_sample_us == pytest.approx(plan.value_us)


def test_machines_may_have_different_numbers_of_devices():
    """A machine of one GPU on a slow network runs a; a machine of two GPUs runs b and c."""
    profile = profile_of({"a": 10, "b": 10, "c": 10}, [("a", "b", 1), ("b", "c", 1)])
    flat = cluster_of(3, b0_us=0.0, b1_us_per_byte=0.1)
    links = [
        replace(link, b1_us_per_byte=2.0) if {link.source, link.target} & {0} else link
        for link in flat.links
    ]
    problem = Problem(profile, replace(flat, links=tuple(links)))
    found = partition_over_machines(problem, LoadRule(two_level=True))
    assert found.device.tolist() == [0, 1, 2]
    assert not found.optimal
    assert found.load_us == max_load_us(problem, found.device, LoadRule(two_level=True))


def test_a_partition_crosses_a_slow_network_where_little_is_sent():
    """The even cut sends 9 bytes over the network, which would take 90 µs."""
    edges = [("a", "b", 1), ("b", "c", 9), ("c", "d", 1)]
    profile = profile_of(dict.fromkeys("abcd", 10), edges)
    problem = Problem(profile, two_machines(2, 10.0))
    found = partition_over_machines(problem, LoadRule(two_level=True))
    first, second, third, fourth = found.device.tolist()
    assert second == third
    assert len({first // 2, second // 2, fourth // 2}) == 2
    assert found.load_us == max(10 + 1, 20 + 1 + 1, 10 + 1)
