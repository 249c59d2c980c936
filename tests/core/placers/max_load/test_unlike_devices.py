"""The default for throughput on cards and hosts that differ, against all placements."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.solvers.warm import warm_solvers

from enplace.errors import ProblemError
from enplace.machine import simulate
from enplace.machine.pipelines.loads import max_load_us
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.max_load import methods
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.placing.candidates import unordered
from enplace.placing.packing import pack
from enplace.placing.rebalance import TIE
from enplace.placing.small import Placements
from enplace.placing.stopwatch import Stopwatch
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.constraints import Constraints
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.rivals import CONTIGUOUS
from problems import cluster_of, profile_of
from properties import examples

WITHIN = 1 + 1e-6


def cards(sizes, host_bytes, *, b1_us_per_byte=1e-4, speeds=None):
    """Return cards of some sizes and a host, with equal links."""
    n = len(sizes)
    gpus = [Device(f"GPU:{i}", "gpu", sizes[i], (speeds or [1.0] * n)[i]) for i in range(n)]
    devices = (*gpus, Device("CPU:0", "cpu", host_bytes))
    pairs = list(itertools.permutations(range(n + 1), 2))
    links = tuple(Link(a, b, 0.0, b1_us_per_byte, (i,)) for i, (a, b) in enumerate(pairs))
    return Cluster("cards", devices, tuple(f"{a}-{b}" for a, b in pairs), links)


def layers(n, each_bytes=10, each_us=1000.0):
    """Return layers in a row; the host needs 40 times as long for each."""
    names = [f"layer{i}" for i in range(n)]
    return profile_of(
        dict.fromkeys(names, each_us),
        [(a, b, 1) for a, b in itertools.pairwise(names)],
        cpu=dict.fromkeys(names, 40 * each_us),
        persistent=dict.fromkeys(names, each_bytes),
    )


def test_a_larger_card_gets_more_layers():
    """As many layers fit as both cards have room for; the host would take 40 times as long."""
    problem = Problem(layers(32), cards([245, 82], 10_000))
    plan = place(problem, "max-load-dp").plan
    assert np.bincount(plan.device, minlength=3).tolist() == [24, 8, 0]
    assert plan.value_us == pytest.approx(24_000, rel=1e-6)
    assert plan.proven


def test_a_small_host_is_left_alone():
    problem = Problem(layers(32), cards([245, 82], 5))
    result = place(problem, "max-load-dp")
    assert result.schedule.fits
    assert result.plan.proven
    assert 2 not in result.plan.device


def test_a_faster_card_gets_more_layers():
    problem = Problem(layers(12), cards([10_000] * 3, 10_000, speeds=[1.0, 2.0, 1.0]))
    plan = place(problem, "max-load-dp").plan
    assert np.bincount(plan.device, minlength=3).tolist() == [3, 6, 3]
    assert plan.proven


def test_pins_and_forbidden_devices_are_known_to_the_dynamic_program():
    constraints = Constraints(pins={5: 0}, forbidden=frozenset({(4, 2), (3, 2)}))
    problem = Problem(layers(6), cards([10_000] * 3, 10), constraints)
    plan = place(problem, "max-load-dp").plan
    assert plan.device[5] == 0
    assert plan.device[3] != 2 != plan.device[4]
    assert plan.value_us == pytest.approx(2000, rel=1e-6)
    assert plan.proven


def test_a_pin_that_leaves_no_stages_is_kept_by_another_search():
    """The first and the last layer share a card, the one between them is elsewhere."""
    constraints = Constraints(pins={0: 0, 1: 1, 2: 0})
    plan = place(Problem(layers(3), cards([10_000] * 2, 10), constraints), "max-load-dp").plan
    assert plan.device.tolist() == [0, 1, 0]
    assert plan.rivals is None or not plan.rivals.staged


def test_that_nothing_fits_is_said_with_a_proof():
    """Three layers are too large for two cards and a host, though not in sum."""
    problem = Problem(layers(3, each_bytes=60), cards([100, 100], 10))
    result = place(problem, "max-load-dp")
    assert result.plan.nothing_fits
    assert (
        result.schedule.fit_verdict
        == "Does not fit, proven for every plan that keeps what ops make"
    )


def test_without_a_proof_only_the_time_of_the_search_is_said():
    problem = Problem(layers(3, each_bytes=60), cards([100, 100], 10))
    plan = replace(place(problem, "max-load-dp").plan, nothing_fits=False, solve_seconds=8.0)
    schedule = simulate(problem, plan)
    assert schedule.fit_verdict == "Nothing found in 8.0 s that fits; not proven"


@pytest.mark.parametrize(("n", "most_s"), [(12, 4), (7000, 4.8)])
def test_the_table_leaves_time_to_the_programs_if_they_can_be_solved(monkeypatch, n, most_s):
    limits_s = []

    def note(problem, rule, *, stopped, **_):
        limits_s.append(stopped.limit_s)
        raise InterruptedError

    monkeypatch.setattr(methods, "find_fitting", note)
    options = PlaceOptions(THROUGHPUT, Stop(8, clock=Stopwatch(lambda: 0.0)))
    with pytest.raises(InterruptedError):
        methods.max_load_dp(Problem(layers(n), cards([10**6] * 2, 10**6)), options)
    assert limits_s == [most_s]


@pytest.mark.parametrize("limit_s", [None, 4])
def test_a_contiguous_answer_says_what_another_split_takes(limit_s):
    """Every other layer takes the host no time, but the host can only take one as a stage."""
    names = [f"layer{i}" for i in range(20)]
    chain = [(a, b, 1) for a, b in itertools.pairwise(names)]
    profile = profile_of(dict.fromkeys(names, 1000), chain, cpu=dict.fromkeys(names[1::2], 1))
    problem, options = Problem(profile, cards([1000] * 2, 1000)), PlaceOptions(stop=Stop(limit_s))
    plan = place(problem, "max-load-dp", options=options).plan
    assert plan.value_us == pytest.approx(10_000, rel=0.01)
    assert is_contiguous(problem, plan.device)
    assert "a split that is not contiguous takes 5.0 ms: max-load-ip-noncontiguous" in plan.note
    plan = place(problem, "max-load-ip-noncontiguous", options=options).plan
    assert plan.value_us == pytest.approx(5000, rel=0.01)


@pytest.mark.parametrize("method", ["max-load-dp", "max-load-ip", "max-load-ip-noncontiguous"])
def test_all_methods_find_what_fits_only_because_outputs_take_turns(method):
    """All outputs at once exceed every card; of a step, only two are there at a time."""
    chain = [("a", "b", 20), ("b", "c", 20), ("c", "d", 20)]
    profile = profile_of(dict.fromkeys("abcd", 10), chain, persistent=dict.fromkeys("abcd", 10))
    result = place(Problem(profile, cards([85, 5], 5)), method, options=PlaceOptions(stop=Stop(5)))
    assert result.schedule.fits


@pytest.mark.parametrize(("method", "objective"), [("max-load-dp", THROUGHPUT), ("heft", "")])
def test_a_plan_that_fits_only_in_another_order_gets_that_order(method, objective):
    """Both of the large tensors are there at once unless each is read before the next is made."""
    edges = [("a", "b", 60), ("c", "d", 60)]
    profile = profile_of(dict.fromkeys("acbd", 10), edges)
    problem = Problem(profile, cluster_of(1, capacity_bytes=100))
    assert not simulate(problem, unordered(problem, np.zeros(4, np.int64), "")[0]).fits
    assert place(problem, method, options=PlaceOptions(objective)).schedule.fits


@st.composite
def unlike_problems(draw):
    """Draw a few ops on two or three cards of two kinds and a host, with some constraints."""
    n = draw(st.integers(2, 5))
    names = "abcde"[:n]
    pairs = draw(st.sets(st.sampled_from(list(itertools.combinations(names, 2))), max_size=6))
    size = {name: draw(st.sampled_from([1, 8])) for name in names}
    free = draw(st.sets(st.sampled_from(names)))
    profile = profile_of(
        {name: draw(st.integers(1, 20)) for name in names},
        [(a, b, size[a]) for a, b in sorted(pairs)],
        cpu={name: draw(st.integers(1, 60)) for name in free},
        persistent={name: draw(st.integers(0, 40)) for name in names},
        temporary={name: draw(st.sampled_from([0, 0, 9])) for name in names},
        colocation={name: draw(st.sampled_from(["", "", "x"])) for name in names},
    )
    large, small = draw(st.integers(20, 110)), draw(st.integers(10, 60))
    sizes = draw(st.sampled_from([[large, small], [large, small, small], [large, large, small]]))
    speeds = [draw(st.sampled_from([1.0, 0.5])) if each == small else 1.0 for each in sizes]
    cluster = cards(sizes, draw(st.sampled_from([5, 30, 500])), b1_us_per_byte=0.3, speeds=speeds)
    ops, devices = st.integers(0, n - 1), st.integers(0, len(sizes))
    pins = draw(st.dictionaries(ops, devices, max_size=1))
    forbidden = frozenset(draw(st.sets(st.tuples(ops, devices), max_size=2)))
    try:
        return Problem(profile, cluster, Constraints(pins=pins, forbidden=forbidden))
    except ProblemError:
        return Problem(profile, cards([1000, 500], 500))


def placements(problem):
    """Yield all placements whose variables fit, and whether a step does."""
    choices = [np.flatnonzero(each) for each in problem.unit_allowed]
    weights, capacity = problem.profile.persistent_bytes, problem.cluster.capacity_bytes
    for placed in itertools.product(*choices):
        device = np.array(placed)[problem.unit]
        if (np.bincount(device, weights, len(capacity)) <= capacity).all():
            (plan,) = unordered(problem, device, "")
            yield device, simulate(problem, plan).fits


def is_staged(problem, device):
    """Whether no two devices wait for each other."""
    ends = np.column_stack([device[problem.profile.edge_source], device[problem.profile.edge_op]])
    graph = nx.DiGraph((a, b) for a, b in ends.tolist() if a != b)
    return nx.is_directed_acyclic_graph(graph)


def least_us(problem, devices):
    return min((max_load_us(problem, device) for device in devices), default=np.inf)


@warm_solvers()
@examples(12)
@given(problem=unlike_problems())
def test_every_claim_is_true_of_all_placements(problem):
    result = place(problem, "max-load-dp", options=PlaceOptions(THROUGHPUT, Stop(20.0)))
    plan, every = result.plan, list(placements(problem))
    if not result.schedule.fits:
        assert not any(fits for _, fits in every)
        return
    is_rival = is_contiguous
    if plan.rivals is not None and plan.rivals.staged:
        is_rival = is_staged
    best_us = least_us(problem, (d for d, fits in every if fits and is_contiguous(problem, d)))
    assert plan.value_us <= best_us * (1 + TIE)
    find_fit = Placements(problem).fit
    rivals = (d for d, fits in every if is_rival(problem, d) and (fits or find_fit(d)))
    rival_us = least_us(problem, rivals)
    assert (plan.bound_us or 0.0) <= rival_us * WITHIN
    assert plan.value_us <= rival_us * WITHIN or not plan.proven


@warm_solvers()
@examples(12)
@given(problem=unlike_problems())
def test_what_cannot_be_packed_fits_in_no_order(problem):
    found = pack(problem, Stop(20.0))
    assert not (found.is_impossible and any(fits for _, fits in placements(problem)))
    if found.is_impossible:
        assert (
            found.device is None
            or not simulate(problem, unordered(problem, found.device, "")[0]).fits
        )


def test_like_cards_need_no_other_search():
    problem = Problem(layers(6), cluster_of(2, b0_us=0.0, b1_us_per_byte=1e-4))
    plan = place(problem, "max-load-dp").plan
    assert plan.proven
    assert plan.rivals == CONTIGUOUS
    assert plan.details["ideals"] == 7
