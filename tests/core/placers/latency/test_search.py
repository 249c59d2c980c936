"""Searches for the least latency, against trying all placements."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.latency.drawn import least_us, small_problems
from tests.core.solvers.warm import warm_solvers

from enplace.machine.latency import latency_us
from enplace.machine.op_passes import backward_ops
from enplace.placers.latency import search
from enplace.placers.latency.anneal import anneal
from enplace.placers.latency.evaluate import places_us
from enplace.placers.latency.greedy import greedy_places
from enplace.placers.latency.groups import build_groups, choose_devices, spread_places
from enplace.placers.latency.levels import anneal_by_levels, merge_groups
from enplace.placers.latency.search import place_greedily, search_latency
from enplace.placing.stop import Stop
from enplace.placing.stopwatch import Stopwatch
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from problems import cluster_of, profile_of
from properties import examples


def never():
    return False


STOP = Stop(600.0, clock=Stopwatch(lambda: 0.0))
"""A time limit by a clock that stands still."""


@pytest.mark.parametrize(("q", "most", "largest"), [(1, 5, 9), (2, 4, 9), (1, 5, 40), (2, 4, 40)])
def test_the_program_finds_the_least_latency(q, most, largest):
    """However little memory there is: a step of it must fit, not all outputs at once."""

    @examples(6)
    @given(problem=small_problems(most, largest=largest))
    @warm_solvers()
    def holds(problem):
        found = search_latency(problem, STOP, q)
        assert found.objective_us == pytest.approx(least_us(problem, q))
        assert found.proven
        assert latency_us(problem, found.device, found.subgraph) == pytest.approx(
            found.objective_us
        )

    holds()


@given(problem=small_problems(8), seed=st.integers(0, 9))
def test_annealing_agrees_with_the_evaluator(problem, seed):
    groups, rng = build_groups(problem), np.random.default_rng(seed)
    place = np.stack(
        [rng.integers(0, groups.cpu + 1, groups.n_groups), rng.integers(0, 2, groups.n_groups)], 1
    )
    of_op = spread_places(groups, place)
    device = choose_devices(problem, of_op[:, 0])
    assert places_us(groups, place, 2) == pytest.approx(latency_us(problem, device, of_op[:, 1]))


@pytest.mark.parametrize("by_levels", [False, True])
@examples(6)
@given(problem=small_problems(8), seed=st.integers(0, 9))
def test_annealing_never_gets_worse_and_stays_within_memory(by_levels, problem, seed):
    groups = build_groups(problem)
    start = np.zeros((groups.n_groups, 2), dtype=np.int64)
    start[:, 0] = greedy_places(groups)
    if by_levels:
        best = anneal_by_levels(groups, start, 1, never, seed)
    else:
        best = anneal(groups, start, 1, 2000, never, seed)
    assert places_us(groups, best, 1) <= places_us(groups, start, 1)
    held = np.bincount(best[:, 0], groups.group_bytes, len(groups.capacity_bytes))
    assert (held <= groups.capacity_bytes).all()
    assert groups.allowed[np.arange(groups.n_groups), best[:, 0]].all()


@given(problem=small_problems(8), seed=st.integers(0, 9))
def test_clusters_have_the_latency_of_their_groups(problem, seed):
    groups, rng = build_groups(problem), np.random.default_rng(seed)
    label = rng.integers(0, groups.n_groups, groups.n_groups)
    label = np.unique(label, return_inverse=True)[1]
    merged = merge_groups(groups, label)
    place = np.stack([rng.integers(0, size, merged.n_groups) for size in (groups.cpu + 1, 2)], 1)
    assert places_us(merged, place, 2) == places_us(groups, place[label], 2)
    assert merged.group_bytes.sum() == groups.group_bytes.sum()
    assert (merged.allowed[label] <= groups.allowed).all()


@given(problem=small_problems(8))
def test_the_greedy_placement_fits_and_is_contiguous(problem):
    groups = build_groups(problem)
    place = greedy_places(groups)
    held = np.bincount(place, groups.group_bytes, len(groups.capacity_bytes))
    assert (held <= groups.capacity_bytes).all()
    if not backward_ops(problem).any():
        one_subgraph = np.zeros(problem.profile.n_ops, dtype=np.int64)
        assert np.isfinite(latency_us(problem, place_greedily(problem), one_subgraph))


def test_greedy_fills_one_accelerator_after_another():
    times = {"a": 1, "b": 1, "c": 1, "d": 1}
    profile = profile_of(
        times,
        [("a", "b", 1), ("b", "c", 1), ("c", "d", 1)],
        persistent=dict.fromkeys(times, 9),
        cpu=dict.fromkeys(times, 5),
    )
    problem = Problem(profile, cluster_of(1, cpu_lanes=1, capacity_bytes=25))
    assert place_greedily(problem).tolist() == [0, 0, 1, 1]


def test_two_subgraphs_are_never_worse_than_one():
    profile = profile_of(
        {"a": 5, "c": 5},
        [("a", "b", 1), ("b", "c", 1)],
        cpu={"a": 500, "b": 5, "c": 500},
    )
    problem = Problem(profile, cluster_of(1, b0_us=0.0, cpu_lanes=1))
    one, two = (search_latency(problem, STOP, q) for q in (1, 2))
    # Only the CPU can run b, between a and c, which are best on the accelerator.
    assert one.objective_us == 500 + 5 + 1 + 5
    assert two.objective_us == (5 + 1) + 5 + (1 + 5)
    assert one.proven
    assert two.proven


def test_ops_on_cpus_run_on_the_fastest_allowed_cpu():
    machine = cluster_of(2, b0_us=0.0, cpu_lanes=1)
    gpu, _, slow = machine.devices
    machine = replace(machine, devices=(gpu, slow, replace(slow, name="CPU:1", speed=4.0)))
    profile = profile_of({}, [("a", "b", 1)], cpu={"a": 8, "b": 4})
    found = search_latency(Problem(profile, machine), STOP)
    assert found.objective_us == 2 + 1
    assert found.proven
    pinned = search_latency(Problem(profile, machine, Constraints(pins={0: 1})), STOP)
    assert pinned.objective_us == 8 + 1
    assert pinned.proven


def test_reported_latencies_only_improve():
    times = {f"op{i}": 3.0 + i % 5 for i in range(30)}
    profile = profile_of(
        times,
        [(f"op{i}", f"op{i + 3}", 2) for i in range(27)],
        persistent=dict.fromkeys(times, 10),
        cpu={name: 10 * us for name, us in times.items()},
    )
    problem = Problem(profile, cluster_of(8, b0_us=0.0, cpu_lanes=1, capacity_bytes=100))
    reported, stop = [], Stop(1.5, clock=Stopwatch(count(0.0, 0.001).__next__))
    found = search_latency(problem, stop, report=reported.append)
    latencies, bounds = [f.objective_us for f in reported], [f.bound_us for f in reported]
    assert latencies == sorted(latencies, reverse=True)
    assert bounds == sorted(bounds)
    assert found.objective_us == latencies[-1]
    assert found.objective_us <= latency_us(problem, place_greedily(problem))


@pytest.mark.parametrize(("one_s", "two_s"), [(0.1, 1.9), (4.0, 4.0)])
def test_with_two_subgraphs_it_makes_no_less_of_one_on_a_busy_machine(monkeypatch, one_s, two_s):
    """Each annealing takes as long as the test says; the time limit is worth five of them.

    Those with two subgraphs find nothing.
    """
    names = [f"op{i}" for i in range(60)]
    problem = Problem(
        profile_of(
            {name: 3.0 + i * i % 7 for i, name in enumerate(names)},
            [(names[i], names[i + step], 2) for step in (1, 4, 9) for i in range(0, 51, step)],
            persistent=dict.fromkeys(names, 10),
            cpu=dict.fromkeys(names, 40.0),
        ),
        cluster_of(3, b0_us=0.5, cpu_lanes=1, capacity_bytes=180),
    )
    monkeypatch.setattr(search, "count_rounds", lambda groups, limit_s: 5)
    monkeypatch.setattr(search, "repeated_aside", one_after_another)
    monkeypatch.setattr(search._Search, "solve", lambda self, solver, take=None: self._best.found)
    monkeypatch.setattr("enplace.placers.latency.levels.STEPS_PER_GROUP", 1)
    monkeypatch.setattr(search, "STEPS", 50)
    seconds = 0.0

    def latency_us_of(q, each_s, seed):
        def took(run, groups, start, n_slots, *more):
            nonlocal seconds
            seconds += each_s
            return run(groups, start, n_slots, *more) if n_slots == 1 else start

        for name, run in (("anneal", anneal), ("anneal_by_levels", anneal_by_levels)):
            monkeypatch.setattr(search, name, partial(took, run))
        stop = Stop(12.0, clock=Stopwatch(lambda: seconds))
        return search_latency(problem, stop, q, seed).objective_us

    for seed in range(3):
        assert latency_us_of(2, two_s, seed) <= latency_us_of(1, one_s, seed)


@contextmanager
def one_after_another(run, stop, offer, times=None):
    """Run in place of a thread: a few times if nothing says how often."""
    for number in range(1, (times or 2) + 1):
        if not stop():
            offer(run(number, stop))
    yield lambda: None
