"""The kernels of the dynamic programs, against the definitions in the paper."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.table import dp, two_level
from enplace.placers.max_load.table.dp_table import empty_table, fill
from enplace.placers.max_load.table.ideals import find_ideals
from enplace.values.load_rule import PAPER, LoadRule
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

RULES = [
    LoadRule(in_flight=False),
    LoadRule("duplex", "gpipe", in_flight=False),
    LoadRule("overlap", "1f1b", replicate=True, in_flight=False),
]


def draw_task(seed, rule, speeds=(1.0, 1.0), slower=(1.0, 1.0), small_bytes=120):
    """Draw seven ops, the last two backward, on two GPUs, which may differ, and a CPU."""
    rng, names = np.random.default_rng(seed), "abcdefg"
    size = {name: int(rng.integers(1, 9)) for name in names}
    edges = [(a, b, size[a]) for a, b in itertools.combinations(names, 2) if rng.random() < 0.4]
    profile = profile_of(
        {name: int(rng.integers(1, 20)) for name in names},
        edges,
        cpu={name: int(rng.integers(1, 60)) for name in names},
        persistent={name: int(rng.integers(1, 40)) for name in names},
    )
    profile = replace(profile, measured=Measurement(backward=[5, 6]))
    machine = cluster_of(
        2, b0_us=0.0, cpu_lanes=1, capacity_bytes=120, speeds=speeds, slower=slower
    )
    first, second, host = machine.devices
    devices = first, replace(second, capacity_bytes=small_bytes), host
    return dp.build_task(Problem(profile, replace(machine, devices=devices)), rule)


def find_sets(lattice):
    """Return the nodes of each ideal."""
    sets = [frozenset()] * lattice.n_ideals
    for ideal in range(lattice.n_ideals):
        for edge in range(lattice.ptr[ideal], lattice.ptr[ideal + 1]):
            sets[lattice.next_ideal[edge]] = sets[ideal] | {int(lattice.added[edge])}
    return sets


def channels_us(hyperedges, nodes, price=0):
    """Sum the transfer times of a set of nodes from the definition of hyperedges."""
    total = sum((hyperedges.own_us[price, node] for node in nodes), np.zeros(()))
    for i in range(hyperedges.n_hyperedges):
        ends = set(hyperedges.node[hyperedges.ptr[i] : hyperedges.ptr[i + 1]].tolist())
        if ends & nodes:
            total = total + hyperedges.touched_us[price, i]
        if ends <= nodes:
            total = total - hyperedges.inside_us[price, i]
    return total


def stage_loads_us(task, nodes):
    """Return the load of a stage in the last pass, by the kind and number of its devices."""
    costs, rule, at = task.costs, task.rule, sorted(nodes)
    loads = {}
    for kind in range(len(costs.devices)):
        channel, sync_us = np.zeros(rule.n_resources), 0.0
        if task.nodes.price[kind] >= 0:
            each_us = channels_us(task.nodes.hyperedges, nodes, task.nodes.price[kind])
            channel = each_us.reshape(rule.n_passes, -1)[-1].copy()
            sync_us = costs.sync_us[at].sum()
        channel[0] += costs.work_us[kind, at, -1].sum()
        fits = costs.memory_bytes[at].sum() <= costs.capacity_bytes[kind]
        if costs.runs[kind, at].all() and fits:
            for count in range(1, costs.most_replicas[kind] + 1):
                own_us, reduce_us = channel.max() / count, (count - 1) / count * sync_us
                sums = costs.sums_sync
                loads[kind, count] = own_us + reduce_us if sums else max(own_us, reduce_us)
    return loads


def best_of_all_pairs(task, sets):
    """Return the paper's table over all pairs of ideals, by the devices used of each kind."""
    shape = tuple((task.costs.devices + 1).tolist())
    best = np.full((len(sets), *shape), np.inf)
    best[(0,) * best.ndim] = 0.0
    for low, high in itertools.product(range(len(sets)), repeat=2):
        if not sets[low] < sets[high]:
            continue
        for (kind, count), load_us in stage_loads_us(task, sets[high] - sets[low]).items():
            before = np.moveaxis(best[low], kind, 0)[: shape[kind] - count]
            after = np.moveaxis(best[high], kind, 0)[count:]
            np.minimum(after, np.maximum(before, load_us), out=after)
    return best


UNLIKE = {"speeds": (1.0, 0.5), "slower": (1.0, 3.0), "small_bytes": 50}


@pytest.mark.parametrize("unlike", [{}, UNLIKE], ids=["like", "unlike"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_the_table_equals_a_search_of_all_pairs_of_ideals(rule, seed, unlike):
    task = draw_task(seed, rule, **unlike)
    assert len(task.costs.devices) == (3 if unlike else 2)
    lattice = find_ideals(task.nodes.n_nodes, task.nodes.source, task.nodes.target, 10_000)
    table = empty_table(lattice, task.costs.devices)
    capable = np.ones(table.best_us.shape, dtype=bool)
    limit_us = np.full(rule.n_passes, np.inf)
    at = 0
    while at < lattice.n_ideals:
        at = fill(lattice, task.costs, limit_us, capable, table, at, 5)
    expected = best_of_all_pairs(task, find_sets(lattice))
    # The table has no value for devices that are of no use.
    found = table.best_us.reshape(expected.shape)
    for kind in range(1, expected.ndim):
        found, expected = (np.minimum.accumulate(best, axis=kind) for best in (found, expected))
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("seed", range(4))
def test_network_loads_are_computed_for_the_nodes_between_two_ideals(seed):
    task = draw_task(seed, LoadRule("duplex", "gpipe", in_flight=False))
    lattice = find_ideals(task.nodes.n_nodes, task.nodes.source, task.nodes.target, 10_000)
    sets, hyperedges = find_sets(lattice), task.nodes.hyperedges
    base = lattice.n_ideals // 3
    found = two_level._network_channels_us(lattice, task.costs.transfers, base)
    for ideal, nodes in enumerate(sets):
        if nodes > sets[base]:
            expected = channels_us(hyperedges, nodes - sets[base])
            np.testing.assert_allclose(found[ideal], expected, atol=1e-9)
        elif nodes != sets[base]:
            assert np.isinf(found[ideal]).all()


def test_a_search_without_light_inputs_and_outputs_proves_no_more_than_is_true(monkeypatch):
    monkeypatch.setattr(dp, "LIGHT", 1.0)
    proven = 0
    for seed in range(30):
        problem = draw_task(seed, PAPER).problem
        exact, merged = dp.partition_exactly(problem), dp.partition_exactly(problem, limit=1)
        assert merged.bound_us <= exact.load_us * (1 + 1e-9)
        assert merged.load_us >= exact.load_us * (1 - 1e-9)
        proven += merged.optimal and np.isfinite(exact.load_us)
    assert proven


def test_a_search_that_begins_without_light_inputs_and_outputs_ends_at_the_optimum(monkeypatch):
    problems = [draw_task(seed, PAPER).problem for seed in range(30)]
    exact = [dp.partition_exactly(problem) for problem in problems]
    monkeypatch.setattr(dp, "LIGHT", 1.0)
    monkeypatch.setattr(dp, "FEW_IDEALS", 1)
    monkeypatch.setattr(dp, "NEAR", 0.0)
    went_on = 0
    for problem, best in zip(problems, exact, strict=True):
        found = dp.partition_exactly(problem)
        assert found.load_us == pytest.approx(best.load_us)
        assert found.optimal
        went_on += found.n_ideals > 0
    assert 0 < went_on < 30


def test_copies_in_a_row_are_solved_as_a_whole():
    """Each copy has an input of its own, so there are about 2 ** 24 times as many ideals."""
    names = [f"{kind}{copy}" for copy in range(24) for kind in ("in", "a", "b", "out")]
    edges = [(f"in{i}", f"a{i}", 8) for i in range(24)]
    edges += [(f"in{i}", f"b{i}", 8) for i in range(24)]
    edges += [(f"a{i}", f"b{i}", 8) for i in range(24)] + [
        (f"b{i}", f"out{i}", 8) for i in range(24)
    ]
    edges += [(f"out{i}", f"a{i + 1}", 8) for i in range(23)]
    work = {"in": 0, "a": 70, "b": 50, "out": 30}
    times = {name: work[name.rstrip("0123456789")] for name in names}
    problem = Problem(profile_of(times, edges), cluster_of(6, b0_us=0.0))
    found = dp.partition_exactly(problem, limit=100_000)
    assert found.optimal
    assert found.load_us == pytest.approx(max_load_us(problem, found.device))
