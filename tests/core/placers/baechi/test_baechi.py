"""m-etf and m-sct on small cases from Baechi's tests and reference runs."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.core.placers.problems import GIB, gpus, line, problems
from tests.core.placers.reference import EarliestFirst

from enplace.coarsen import find_leaders
from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.baechi.m_etf import earliest_first
from enplace.placers.baechi.m_sct import favourite_children
from enplace.placing.settle import natural_position
from enplace.placing.stopwatch import Stopwatch
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.problem import Problem
from enplace.values.profile import make_profile
from properties import examples


def edge_costs(costs, edges, **extra):
    """Return a profile with one tensor per edge; on the clusters here, one byte takes 1 µs."""
    n = len(costs)
    return make_profile(
        "baechi",
        op_names=[f"op{i}" for i in range(n)],
        op_types=["Op"] * n,
        scopes=[""] * n,
        time_us=np.array([(c, np.nan) for c in costs], dtype=float),
        persistent_bytes=extra.get("persistent", [0] * n),
        temporary_bytes=[0] * n,
        colocation=extra.get("colocation", [""] * n),
        edge_source=[a for a, _, _ in edges],
        edge_output=[b for _, b, _ in edges],
        edge_op=[b for _, b, _ in edges],
        edge_bytes=[cost for _, _, cost in edges],
    )


def diamond(comm, **extra):
    """Return case 1: a2 -> {b5, c5} -> d2."""
    edges = [(0, 1, comm), (0, 2, comm), (1, 3, comm), (2, 3, comm)]
    return edge_costs([2.0, 5.0, 5.0, 2.0], edges, **extra)


def solve(profile, method, n=2, **cluster):
    problem = Problem(profile, gpus(n, b0=0.0, b1=1.0, **cluster))
    plan = place(problem, method).plan
    return plan.device.tolist(), simulate(problem, plan).makespan_us


@pytest.mark.parametrize("method", ["m-etf", "m-sct"])
def test_a_diamond_is_spread_if_transfers_are_cheap(method):
    assert solve(diamond(1), method) == ([0, 0, 1, 1], 10)


def test_a_diamond_stays_together_if_transfers_are_expensive():
    assert solve(diamond(6), "m-etf") == ([0] * 4, 14)


def test_the_first_op_of_a_group_decides_the_device_of_all():
    device, step = solve(diamond(1, colocation=["g", "", "g", ""]), "m-etf")
    assert device[0] == device[2]
    assert step == 14


FORK = [(0, 1, 3), (0, 2, 3), (0, 3, 3)]


def test_m_etf_continues_with_the_first_child():
    assert solve(edge_costs([1.0, 2.0, 1.0, 5.0], FORK), "m-etf") == ([0] * 4, 9)


def test_m_sct_continues_with_the_favourite_child():
    assert solve(edge_costs([1.0, 2.0, 1.0, 5.0], FORK), "m-sct") == ([0, 1, 0, 0], 7)


TAIL = [(0, 1, 1), (0, 2, 1), (2, 3, 4)]


def test_the_favourite_child_is_on_the_longest_path():
    profile = edge_costs([2.0, 6.0, 6.0, 2.0], TAIL)
    assert solve(profile, "m-etf") == ([0, 0, 1, 1], 11)
    assert solve(profile, "m-sct") == ([0, 1, 0, 0], 10)


def test_without_time_for_its_programs_m_sct_places_as_m_etf_does_and_says_so():
    problem = Problem(edge_costs([2.0, 6.0, 6.0, 2.0], TAIL), gpus(2, b0=0.0, b1=1.0))
    clock = map(float, itertools.count()).__next__
    options = PlaceOptions(stop=Stop(1.0, clock=Stopwatch(clock)))
    plan = place(problem, "m-sct", options=options).plan
    assert plan.device.tolist() == place(problem, "m-etf").plan.device.tolist()
    assert plan.note == "There was too little time for 100.0 % of the linear programs."


@pytest.mark.parametrize(
    ("persistent", "expected"), [(10, ([0, 0, 1, 1], 11)), (0, ([0, 0, 0, 0], 10))]
)
def test_variables_stay_and_outputs_are_freed(persistent, expected):
    """Outputs of a chain are variables, which stay, or temporary, which are freed after use."""
    size = 1 if persistent else 10
    profile = line(
        [2.0, 3.0, 4.0, 1.0], [(i, i + 1, size) for i in range(3)], persistent=[persistent] * 4
    )
    problem = Problem(profile, gpus(2, b0=1.0, capacity=25))
    plan = place(problem, "m-etf").plan
    assert (plan.device.tolist(), simulate(problem, plan).makespan_us) == expected


def test_half_duplex_devices_send_one_tensor_at_a_time():
    """Case 5: s1 -> u9, v9, w9; each device has one channel for sending and receiving."""
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    cluster = Cluster(
        "half duplex",
        tuple(Device(f"GPU:{i}", "gpu", GIB) for i in range(3)),
        tuple(f"port {i}" for i in range(3)),
        tuple(Link(a, b, 0.0, 1.0, (a, b)) for a, b in pairs),
    )
    edges = [(0, i, 4) for i in (1, 2, 3)]
    problem = Problem(edge_costs([1.0, 9.0, 9.0, 9.0], edges), cluster)
    schedule = simulate(problem, place(problem, "m-etf").plan)
    assert schedule.op_start_us.tolist() == [0, 1, 5, 9]
    assert schedule.makespan_us == 18


@given(problem=problems(), data=st.data())
def test_the_kernel_equals_the_reference(problem, data):
    """Favourite children are arbitrary or absent; memory is ample."""
    assume(problem.cluster.capacity_bytes.min() >= GIB)
    profile = problem.profile
    favourite = np.full(profile.n_ops, -1)
    for edge in data.draw(st.lists(st.integers(0, profile.n_edges - 1))) if profile.n_edges else []:
        favourite[profile.edge_source[edge]] = profile.edge_op[edge]
    device, start = earliest_first(problem, favourite, PlaceOptions())
    expected = EarliestFirst(problem, natural_position(problem), favourite.tolist()).run()
    assert (device.tolist(), start.tolist()) == expected


@examples(8)
@given(problem=problems(), window=st.integers(1, 30))
def test_with_any_window_each_child_is_the_favourite_of_one_parent(problem, window):
    favourite, decided = favourite_children(problem, PlaceOptions(), window)
    assert decided == 1
    profile = problem.profile
    parents = np.flatnonzero(favourite >= 0)
    assert len(set(favourite[parents].tolist())) == len(parents)
    edges = set(zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True))
    leader = find_leaders(problem, natural_position(problem)).tolist()
    led = {(leader[a], leader[b]) for a, b in edges}
    assert {(op, int(favourite[op])) for op in parents.tolist()} <= led


@pytest.mark.parametrize(
    ("capacity", "rule", "devices"),
    [
        # One GPU would hold 300 and 300 bytes at a time.
        (700, "", [0, 0, 0, 0]),
        # Summed up, two ops take 600 bytes.
        (700, "sums", [0, 0, 1, 0]),
        # This rule counts no copies; with them, memory would be exceeded too.
        (500, "makers", [0, 1, 0, 0]),
    ],
)
def test_the_memory_rule_decides_what_counts_as_memory(capacity, rule, devices):
    profile = edge_costs([10.0] * 4, [(0, 1, 300), (1, 2, 300), (2, 3, 300)])
    problem = Problem(profile, gpus(2, b0=0.0, capacity=capacity))
    nobody = np.full(4, -1)
    device, _ = earliest_first(problem, nobody, PlaceOptions(values={"memory-rule": rule}))
    assert device.tolist() == devices


def test_other_methods_refuse_a_memory_rule():
    problem = Problem(line([1.0] * 3, []), gpus(2))
    with pytest.raises(EnplaceError, match=r"no option 'memory-rule'.*of m-etf, m-sct"):
        place(problem, "heft", options=PlaceOptions(values={"memory-rule": "sums"}))
