"""Partitions for pipelines, against the paper's figures, by hand and by trying all of them."""

import itertools
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from enplace.coarsen.grouped import op_memory_bytes
from enplace.errors import DoesNotFitError
from enplace.machine import simulate
from enplace.machine.pipelines.loads import max_load_us, pass_loads_us
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.placers.max_load.table import dp, kinds
from enplace.placers.max_load.table.contract import contract
from enplace.placers.max_load.table.dp import partition_along_order, partition_exactly
from enplace.placers.max_load.table.ideals import bound_ideals, find_ideals
from enplace.placing.options import load_values
from enplace.placing.rebalance import TIE
from enplace.placing.small import Placements
from enplace.placing.stopwatch import Stopwatch
from enplace.readers.clusters import cluster_from
from enplace.readers.dnn_partitioning import read_dnn_partitioning
from enplace.readers.registry import Content
from enplace.values.constraints import Constraints
from enplace.values.load_rule import LoadRule
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.rivals import ALL
from problems import cluster_of, profile_of


def test_optimum_and_number_of_ideals_match_table_1(bert):
    found = partition_exactly(bert)
    assert found.n_ideals == 2774
    assert round(found.load_us / 1000, 2) == 65.30
    assert max_load_us(bert, found.device) == pytest.approx(found.load_us, rel=1e-9)
    assert found.bound_us == found.load_us


def test_with_too_many_ideals_the_best_of_some_orders_is_found(bert):
    found = partition_exactly(bert, limit=100)
    assert not found.optimal
    assert found.bound_us < found.load_us
    assert found.load_us >= partition_exactly(bert).load_us
    assert found.load_us <= partition_along_order(bert).load_us


def test_a_tensor_costs_its_producer_and_each_reading_device_once():
    profile = profile_of(
        {"a": 10, "b": 20, "c": 30, "d": 5}, [("a", "b", 3), ("a", "c", 3), ("a", "d", 3)]
    )
    problem = Problem(profile, cluster_of(3, b0_us=1.0, b1_us_per_byte=1.0))
    assert pass_loads_us(problem, np.array([0, 1, 1, 2])).sum(axis=1).tolist() == [14, 54, 9]
    assert pass_loads_us(problem, np.array([0, 0, 0, 0])).sum(axis=1).tolist() == [65, 0, 0]


def test_a_chain_is_cut_into_equal_halves():
    times = {"a": 10, "b": 10, "c": 10, "d": 10}
    profile = profile_of(times, [("a", "b", 1), ("b", "c", 5), ("c", "d", 1)])
    found = partition_exactly(Problem(profile, cluster_of(2, b0_us=0.0)))
    assert found.device.tolist() == [0, 0, 1, 1]
    assert found.load_us == 25


def test_all_ops_are_placed_even_without_a_contiguous_partition():
    """The middle op needs a CPU, and the ops around it must share a device."""
    profile = profile_of(
        {"a": 1, "c": 1},
        [("a", "b", 1), ("b", "c", 1)],
        cpu={"b": 1},
        colocation={"a": "g", "c": "g"},
    )
    plan = place(Problem(profile, cluster_of(1, cpu_lanes=1)), "max-load-dp").plan
    assert plan.device.tolist() == [0, 0, 1]
    assert plan.proven
    assert plan.rivals == ALL


@pytest.mark.parametrize(
    "method", ["max-load-dp", "max-load-dpl", "max-load-ip", "max-load-ip-noncontiguous"]
)
def test_a_model_whose_ops_together_exceed_memory_still_gets_a_partition(method):
    names = "abcdef"
    profile = profile_of(dict.fromkeys(names, 30.0), [(a, b, 10) for a, b in pairwise(names)])
    # Five tensors of 10 bytes; at most two are alive at any time.
    problem = Problem(profile, cluster_of(2, b0_us=0.0, capacity_bytes=22))
    plan = place(problem, method).plan
    assert max_load_us(problem, plan.device) == 100
    assert simulate(problem, plan).fits
    # All others than max-load-dpl try all placements.
    assert plan.proven == (method != "max-load-dpl")
    assert ("as if each had" in plan.note) != plan.proven


def test_forward_and_backward_ops_of_a_group_stay_together(bert):
    nodes = contract(bert)
    for unit in range(bert.n_units):
        assert len(np.unique(nodes.node[bert.unit == unit])) == 1
    graph = nx.DiGraph(zip(nodes.source.tolist(), nodes.target.tolist(), strict=True))
    assert nx.is_directed_acyclic_graph(graph)


@st.composite
def small_problems(draw):
    n = draw(st.integers(2, 6))
    names = "abcdef"[:n]
    sizes = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=9))
    times = draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    memory = draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    # Each op runs on GPUs, or on the CPU, or on either.
    kinds = draw(st.lists(st.sampled_from("gggcb"), min_size=n, max_size=n))
    cpus = draw(st.integers(0, 1))
    ops = list(zip(names, times, kinds, strict=True))
    profile = profile_of(
        {a: t if kind in "gb" or not cpus else float("nan") for a, t, kind in ops},
        [(names[i], names[j], sizes[i]) for i, j in chosen],
        persistent=dict(zip(names, memory, strict=True)),
        cpu={a: 2 * t for a, t, kind in ops if cpus and kind in "cb"},
    )
    capacity_bytes = draw(st.sampled_from([60, 120, 10_000]))
    gpus = draw(st.integers(1, 3))
    try:
        return Problem(profile, cluster_of(gpus, capacity_bytes=capacity_bytes, cpu_lanes=cpus))
    except DoesNotFitError:
        reject()


def least_load_us(problem, size=None):
    """Return the least maximum load over all placements whose devices can be ordered."""
    profile, n_devices = problem.profile, problem.cluster.n_devices
    size = op_memory_bytes(problem) if size is None else size
    best = np.inf
    for devices in itertools.product(range(n_devices), repeat=profile.n_ops):
        device = np.array(devices)
        if not np.isfinite(problem.time_us[np.arange(profile.n_ops), device]).all():
            continue
        ends = device[profile.edge_source], device[profile.edge_op]
        between = nx.DiGraph((a, b) for a, b in zip(*ends, strict=True) if a != b)
        held = np.bincount(device, weights=size, minlength=n_devices)
        fits = (held <= problem.cluster.capacity_bytes).all()
        if nx.is_directed_acyclic_graph(between) and fits:
            best = min(best, max_load_us(problem, device))
    return best


@given(problem=small_problems())
def test_no_partition_beats_the_search(problem):
    expected = least_load_us(problem)
    found = partition_exactly(problem)
    assert found.load_us == pytest.approx(expected)
    if np.isfinite(expected):
        assert max_load_us(problem, found.device) == pytest.approx(found.load_us)
        assert partition_along_order(problem).load_us >= found.load_us * (1 - 1e-9)
        assert partition_along_order(problem).bound_us <= found.load_us * (1 + 1e-9)


def chains(n_chains, length, **machine):
    """Return independent chains of ops with 10 bytes each."""
    names = [[f"{c}/{i}" for i in range(length)] for c in range(n_chains)]
    edges = [(a, b, 1) for chain in names for a, b in itertools.pairwise(chain)]
    times = {name: 1.0 + number % 3 for number, name in enumerate(itertools.chain(*names))}
    profile = profile_of(times, edges, persistent=dict.fromkeys(times, 10))
    return Problem(profile, cluster_of(3, b0_us=0.0, **machine))


def test_independent_chains_multiply_their_numbers_of_ideals():
    nodes = contract(chains(3, 30))
    assert find_ideals(90, nodes.source, nodes.target, 100_000).n_ideals == 31**3
    assert find_ideals(90, nodes.source, nodes.target, 31**3 - 1) is None
    assert find_ideals(90, nodes.source, nodes.target, 100_000, lambda: True) is None


@given(st.integers(1, 9), st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20))
def test_the_widest_level_gives_a_lower_bound_on_the_ideals(n_nodes, edges):
    edges = sorted((a, b) for a, b in edges if a < b < n_nodes)
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    found = find_ideals(n_nodes, source, target, 1 << n_nodes)
    assert 2 <= bound_ideals(n_nodes, source, target) <= found.n_ideals


def test_too_many_ideals_are_reported_without_counting_them():
    profile = profile_of({f"op{i}": 1 for i in range(30)}, [])
    found = partition_exactly(Problem(profile, cluster_of(2)), stopped=lambda: True)
    assert "there are more than" in found.note


def test_a_long_order_is_first_partitioned_with_few_cuts(monkeypatch):
    """With no time there is still a partition; with time it is as good as with all cuts."""
    problem = chains(2, 30)
    best = partition_along_order(problem)
    monkeypatch.setattr(dp, "FIRST_WORK", 500)
    first = partition_along_order(problem, stopped=lambda: True)
    assert best.load_us < first.load_us < 1.5 * best.load_us
    assert max_load_us(problem, first.device) == first.load_us
    assert partition_along_order(problem).load_us == best.load_us


def test_few_cuts_separate_ops_that_only_a_cpu_can_run(monkeypatch):
    """Or else every order would be searched in full, however little time there is."""
    names = [f"op{i}" for i in range(60)]
    edges = [("input", names[0], 1), *((a, b, 1) for a, b in itertools.pairwise(names))]
    profile = profile_of(dict.fromkeys(names, 1.0), edges, cpu={"input": 1.0})
    problem = Problem(profile, cluster_of(2, cpu_lanes=1, b0_us=0.0))
    monkeypatch.setattr(dp, "FIRST_WORK", 100)
    searched = []
    monkeypatch.setattr(dp, "_solve_over", spy(dp._solve_over, searched))
    first = partition_along_order(problem, stopped=lambda: True)
    assert np.isfinite(first.load_us)
    assert len(searched) == 1
    assert searched[0] > 1


def spy(solve_over, searched):
    """Note how far apart the cuts of each search are."""

    def note(task, lattice, stopped, every=1):
        searched.append(every)
        return solve_over(task, lattice, stopped, every)

    return note


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(1, 2),
)
def test_the_quick_bound_is_below_every_partition(times, n_gpus):
    """A time of 0 means that the op does not run on that kind of device."""
    times = [(gpu, cpu) for gpu, cpu in times if gpu or cpu] or [(1, 1)]
    names = [f"op{i}" for i in range(len(times))]
    gpu_us = {name: gpu for name, (gpu, _) in zip(names, times, strict=True) if gpu}
    cpu_us = {name: cpu for name, (_, cpu) in zip(names, times, strict=True) if cpu}
    problem = Problem(profile_of(gpu_us, [], cpu=cpu_us), cluster_of(n_gpus, cpu_lanes=1))
    places = [np.flatnonzero(np.isfinite(row)) for row in problem.time_us]
    least = min(max_load_us(problem, np.array(each)) for each in itertools.product(*places))
    assert partition_along_order(problem).bound_us <= least * (1 + 1e-9)


def test_a_plan_notes_that_only_linear_orders_were_searched():
    options = PlaceOptions(
        stop=Stop(clock=Stopwatch(itertools.count().__next__))
    )  # a second per look
    plan = place(chains(40, 1, capacity_bytes=150), "max-load-dp", options=options).plan
    assert "linear orders" in plan.note
    assert not plan.proven


def test_a_stopped_search_returns_the_best_so_far():
    problem = chains(3, 20)
    exact, checks = partition_exactly(problem), []

    def stopped():
        checks.append(None)
        return len(checks) > 20

    found = partition_exactly(problem, stopped=stopped)
    assert exact.load_us <= found.load_us <= partition_along_order(problem).load_us
    assert not found.optimal
    assert "stopped" in found.note


@given(problem=small_problems())
def test_every_claim_of_a_plan_is_true(problem):
    """A plan has the least load of all contiguous ones that fit, or of all; it may be a tie."""
    result, every = place(problem, "max-load-dp"), Placements(problem)
    plan, rivals = result.plan, [each for each in every.device if every.fit(each) is not None]
    assert plan.nothing_fits == (not rivals)
    if rivals:
        contiguous = [each for each in rivals if is_contiguous(problem, each)]
        least = min(max_load_us(problem, each) for each in contiguous or rivals)
        assert result.schedule.fits
        assert plan.bound_us == pytest.approx(least)
        assert plan.value_us == pytest.approx(least, rel=TIE)


def test_pins_swap_identical_devices():
    problem = Problem(
        profile_of({"a": 5, "b": 5}, [("a", "b", 1)]),
        cluster_of(2, b0_us=0.0),
        Constraints(pins={0: 1}),
    )
    plan = place(problem, "max-load-dp").plan
    assert plan.device.tolist() == [1, 0]
    assert plan.proven


def test_a_plan_notes_pins_that_no_partition_respects():
    chain = profile_of({"a": 5, "b": 5, "c": 5}, [("a", "b", 1), ("b", "c", 1)])
    problem = Problem(chain, cluster_of(2, b0_us=0.0), Constraints(pins={0: 0, 1: 1, 2: 0}))
    plan = place(problem, "max-load-dpl").plan
    assert plan.device.tolist() == [0, 1, 0]
    assert not plan.proven
    assert "no partition that respects the pins" in plan.note


def test_nothing_is_proven_if_devices_differ_in_too_many_ways(monkeypatch):
    monkeypatch.setattr(kinds, "MOST_CELLS", 1)
    chain = profile_of({"a": 5, "b": 5}, [("a", "b", 1)])
    problem = Problem(chain, cluster_of(2, b0_us=0.0, speeds=(1.0, 0.25)))
    plan = place(problem, "max-load-dpl").plan
    exact = place(problem, "max-load-ip").plan
    assert not plan.proven
    assert "differ" in plan.note
    assert plan.bound_us <= exact.value_us


def chain_of_four(**machine):
    """Return a chain of 10 µs ops that send one byte each; the fastest links take 1 µs per byte."""
    profile = profile_of(dict.fromkeys("abcd", 10.0), [(a, b, 1) for a, b in pairwise("abcd")])
    return Problem(profile, cluster_of(b0_us=0.0, cpu_lanes=1, **machine))


THROUGHPUT_METHODS = ["max-load-dp", "max-load-dpl", "max-load-ip", "max-load-ip-noncontiguous"]


@pytest.mark.parametrize("method", THROUGHPUT_METHODS)
def test_a_gpu_sends_over_its_own_link(method):
    problem = chain_of_four(n_gpus=2, slower=(1.0, 100.0))
    loads_us = pass_loads_us(problem, np.array([0, 0, 1, 1]))
    assert loads_us.tolist() == [[20 + 1], [20 + 100], [0]]
    plan = place(problem, method).plan
    assert plan.value_us == 40
    assert plan.device.tolist() == [0, 0, 0, 0]
    assert plan.proven == (method != "max-load-dpl")


@pytest.mark.parametrize("method", THROUGHPUT_METHODS[2:])
def test_integer_programs_avoid_a_gpu_with_a_slow_link(method):
    problem = chain_of_four(n_gpus=3, slower=(100.0, 1.0, 1.0))
    plan = place(problem, method).plan
    assert plan.value_us == 21
    assert plan.proven
    assert 0 not in plan.device


def cluster_with_links(cost_us):
    """Return three GPUs without a CPU; ``cost_us`` maps ends to latency and time per byte."""
    fast = cluster_of(3)
    links = []
    for link in fast.links:
        b0, b1 = cost_us[min(link.source, link.target), max(link.source, link.target)]
        links.append(replace(link, b0_us=b0, b1_us_per_byte=b1))
    return replace(fast, links=tuple(links))


@pytest.mark.parametrize("method", [*THROUGHPUT_METHODS, "latency-ip", "latency-ip-q"])
@pytest.mark.parametrize(
    "cost_us",
    [
        {(0, 1): (0.0, 1.0), (1, 2): (0.0, 1.0), (0, 2): (0.0, 50.0)},
        # All of these take equally long for a megabyte.
        {(0, 1): (1000.0, 0.0), (1, 2): (500.0, 5e-4), (0, 2): (0.0, 1e-3)},
    ],
)
def test_different_links_without_a_cpu_prevent_a_proof(method, cost_us):
    problem = Problem(chain_of_four(n_gpus=2).profile, cluster_with_links(cost_us))
    objective = "latency" if "latency" in method else "throughput"
    plan = place(problem, method, options=PlaceOptions(objective=objective)).plan
    assert not plan.proven
    assert "links differ" in plan.note


@pytest.mark.parametrize("method", ["max-load-dp", "max-load-dpl", "pipedream"])
def test_a_device_with_pinned_ops_is_not_used_as_a_replica(method):
    times = {"a": 10.0, "b": 1.0, "c": 1.0, "d": 30.0}
    profile = profile_of(times, [(a, b, 0) for a, b in pairwise("abcd")])
    rule = LoadRule(replicate=True)
    problem = Problem(profile, cluster_of(4, b0_us=0.0))
    free = place(problem, method, options=PlaceOptions(values=load_values(rule))).plan
    assert free.replicas
    copies = [device for group in free.replicas for device in group[1:]]
    pinned = Problem(profile, problem.cluster, Constraints(pins={0: copies[-1], 3: copies[-1]}))
    plan = place(pinned, method, options=PlaceOptions(values=load_values(rule))).plan
    assert plan.device[[0, 3]].tolist() == [copies[-1]] * 2
    assert copies[-1] not in {device for group in plan.replicas for device in group[1:]}
    assert plan.value_us == max_load_us(pinned, plan.device, rule, plan.replicas)


@pytest.mark.parametrize("solver", ["HiGHS", "CBC"])
def test_a_bad_start_does_not_make_a_proof_wrong(solver):
    """One GPU is 10,000 times slower, and the DP treats both as the slow one."""
    names = "abcdef"
    times = {name: 90.0 + 7 * i for i, name in enumerate(names)}
    profile = profile_of(times, [(a, b, 3 + ord(b) % 5) for a, b in pairwise(names)])
    problem = Problem(profile, cluster_of(2, b0_us=0.0, b1_us_per_byte=1e-4, speeds=(1e-4, 1.0)))
    devices = itertools.product(range(2), repeat=len(names))
    least = min(max_load_us(problem, np.array(each)) for each in devices)
    options = PlaceOptions(values={"solver": solver})
    plan = place(problem, "max-load-ip-noncontiguous", options=options).plan
    assert plan.bound_us <= least * (1 + 1e-9)
    assert plan.value_us <= least * (1 + 1e-5)
    assert plan.proven


def test_backward_ops_are_contiguous_too_though_the_table_cuts_the_forward_graph():
    # Forward 0, 1 and 2 -> 3; backward 4 -> 5 -> 6, tied to 3, 2 and 1: on GPU, CPU and GPU.
    times = [(5, 7), (5, 4), (2, 6), (1, 11), (8, 38), (5, 2), (1, 34)]
    nodes = [
        {
            "id": i,
            "fpgaLatency": gpu,
            "cpuLatency": cpu,
            "isBackwardNode": int(i > 3),
            "size": 0,
            **({"colorClass": colour} if colour is not None else {}),
        }
        for i, ((gpu, cpu), colour) in enumerate(zip(times, (None, 2, 1, 0, 0, 1, 2), strict=True))
    ]
    ends = [(2, 3, 0), (4, 5, 2), (5, 6, 2), (0, 4, 3), (0, 5, 3), (1, 5, 0), (2, 4, 0)]
    edges = [{"sourceId": a, "destId": b, "cost": cost} for a, b, cost in ends]
    data = {"maxFPGAs": 1, "maxCPUs": 1, "nodes": nodes, "edges": edges}
    profile = read_dnn_partitioning(Content(b"", "seven", data))
    problem = Problem(profile, cluster_from("from-file", profile))
    plan = place(problem, "max-load-dp").plan
    exact = place(problem, "max-load-ip").plan
    assert partition_exactly(problem).load_us < exact.value_us
    assert exact.proven
    assert plan.proven
    assert plan.value_us == exact.value_us
    assert is_contiguous(problem, plan.device)


def test_a_plan_that_fits_because_it_frees_outputs_is_not_said_not_to():
    chain = profile_of(dict.fromkeys("abcd", 5.0), [(*pair, 400) for pair in ("ab", "bc", "cd")])
    problem = Problem(chain, cluster_of(1, capacity_bytes=1000))
    plan = place(problem, "max-load-dpl").plan
    assert simulate(problem, plan).fits
    assert "this does not fit either" not in plan.note


@pytest.mark.parametrize("method", ["max-load-dp", "max-load-ip", "max-load-ip-noncontiguous"])
def test_a_plan_notes_that_nothing_fits(method):
    times = dict.fromkeys("abc", 5.0)
    profile = profile_of(times, [("a", "b", 1)], persistent=dict.fromkeys(times, 600))
    problem = Problem(profile, cluster_of(2, capacity_bytes=1000))
    plan = place(problem, method).plan
    assert plan.nothing_fits
    assert ".;" not in plan.note
    assert not plan.proven


def test_zero_time_ops_are_placed_where_they_fit():
    """The weights take no time, but do not fit a GPU together with the op that reads them."""
    profile = profile_of(
        {"weights": 0, "dense": 5, "x": 5},
        [("weights", "dense", 0), ("dense", "x", 0)],
        persistent={"weights": 5, "dense": 5, "x": 1},
        cpu={"weights": 0},
    )
    problem = Problem(profile, cluster_of(2, capacity_bytes=8, cpu_lanes=1))
    for method in ("max-load-dp", "max-load-ip", "max-load-ip-noncontiguous"):
        plan = place(problem, method).plan
        held = np.bincount(plan.device, weights=profile.persistent_bytes, minlength=3)
        assert (held[:2] <= 8).all()


def test_nothing_is_proven_for_replicas_if_gpu_links_differ():
    profile = profile_of({"f": 20, "b": 20}, [("f", "b", 0)], persistent={"f": 200})
    profile = replace(profile, measured=Measurement(backward=[1]))
    flat = cluster_of(4, b0_us=0.0, cpu_lanes=1)
    links = tuple(
        replace(link, b1_us_per_byte=0.01) if {link.source, link.target} == {0, 1} else link
        for link in flat.links
    )
    problem = Problem(profile, replace(flat, links=links))
    options = PlaceOptions(values={"replicate": True})
    plan = place(problem, "max-load-dp", options=options).plan
    assert not plan.proven
    assert "replicas" in plan.note
