"""Latencies and proofs that plans claim, against trying all placements."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from tests.core.placers.latency import reference
from tests.core.placers.latency.drawn import fits, has_room, least_us, small_problems
from tests.core.solvers.warm import warm_solvers

from enplace.machine import simulate
from enplace.placers import LATENCY, PlaceOptions, place
from enplace.readers.clusters import cluster_from
from enplace.readers.dnn_partitioning import read_dnn_partitioning
from enplace.readers.registry import Content
from enplace.values.constraints import Constraints
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, profile_of
from properties import examples

PROGRAMS = {"latency-ip": 1, "latency-ip-q": 2}
BASELINES = ("greedy-latency", "max-load-dp", "local-search")


def plan_by(method, problem):
    return place(problem, method, options=PlaceOptions(objective=LATENCY)).plan


@pytest.mark.parametrize("method", PROGRAMS)
def test_a_proven_latency_is_the_least_of_all(method):
    subgraphs = PROGRAMS[method]

    @examples(12)
    @given(problem=small_problems(5 - subgraphs // 2, least_us=0))
    @warm_solvers()
    def holds(problem):
        proven = plan_by(method, problem)
        assert proven.proven
        assert proven.bound_us == proven.value_us
        assert proven.value_us == pytest.approx(least_us(problem, subgraphs))
        assert fits(problem, proven.device)
        assert reference.find_pass_subgraphs(problem, proven.device).max() < subgraphs
        for other in (plan_by(baseline, problem) for baseline in BASELINES):
            few = reference.find_pass_subgraphs(problem, other.device).max() < subgraphs
            if few and fits(problem, other.device):
                assert other.value_us >= proven.value_us * (1 - 1e-9)

    holds()


@given(problem=small_problems(7, least_us=0))
def test_the_greedy_plan_fits_accelerators_and_has_the_latency_it_claims(problem):
    plan = plan_by("greedy-latency", problem)
    assert has_room(problem, plan.device)[problem.cluster.gpus].all()
    assert plan.value_us == pytest.approx(reference.latency_us(problem, plan.device))
    assert plan.proven is False


def training_graph():
    """Return three forward ops, colocated with their backward ops, on two accelerators."""
    forward = [(0, 1, 2, 0), (1, 2, 4, 0), (2, 3, 6, 0)]
    backward = [(100, 1, 9, 1), (101, 1, 9, 1), (102, 0, 0, 1)]
    edges = [(0, 2, 2), (1, 2, 2), (102, 100, 1), (102, 101, 1), (1, 101, 2)]
    data = {
        "maxSizePerFPGA": 1e9,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": number,
                "supportedOnFpga": 1,
                "fpgaLatency": gpu,
                "cpuLatency": cpu,
                "isBackwardNode": of,
                "colorClass": number % 100,
                "size": 1,
            }
            for number, gpu, cpu, of in forward + backward
        ],
        "edges": [{"sourceId": a, "destId": b, "cost": cost} for a, b, cost in edges],
    }
    profile = read_dnn_partitioning(Content(b"", "six", data))
    return Problem(profile, cluster_from("from-file", profile))


def test_no_baseline_beats_a_proof_on_a_training_graph():
    problem = training_graph()
    one, two = (plan_by(method, problem) for method in PROGRAMS)
    assert one.proven
    assert two.proven
    assert one.value_us == pytest.approx(10_000)
    assert two.value_us <= one.value_us
    for baseline in BASELINES:
        assert plan_by(baseline, problem).value_us >= two.value_us


@pytest.mark.parametrize("method", ["greedy-latency", *PROGRAMS])
def test_a_zero_time_op_is_placed_where_it_fits(method):
    """Together with its reader it would need 11 of 8 bytes."""
    profile = profile_of(
        {"free": 0.0, "op": 10.0}, [("free", "op", 1)], persistent={"free": 5, "op": 5}
    )
    problem = Problem(profile, cluster_of(2, b0_us=0.0, b1_us_per_byte=0.25, capacity_bytes=8))
    plan = plan_by(method, problem)
    assert plan.device[0] != plan.device[1]
    assert simulate(problem, plan).fits
    assert plan.value_us == 0.25 + 0.25 + 10
    if method in PROGRAMS:
        assert plan.proven
        assert plan.bound_us == plan.value_us


@pytest.mark.parametrize("method", PROGRAMS)
def test_a_small_host_takes_what_fits(method):
    """All four ops would be as quick there, but need 61 of 60 bytes at once."""
    times = {"a": 0.0, "b": 0.0, "c": 2.0, "d": 2.0}
    profile = profile_of(
        times,
        [("a", "b", 8)],
        persistent={"b": 13, "c": 20, "d": 20},
        cpu={op: us / 2 for op, us in times.items()},
    )
    problem = Problem(profile, cluster_of(1, b0_us=0.0, cpu_lanes=8, capacity_bytes=60))
    plan = plan_by(method, problem)
    assert fits(problem, plan.device)
    assert plan.value_us == plan.bound_us == 1.0
    assert plan.proven


def test_a_zero_time_op_without_memory_joins_its_reader():
    profile = profile_of({"a": 10.0, "free": 0.0, "b": 10.0}, [("a", "b", 1), ("free", "b", 1)])
    problem = Problem(
        profile, cluster_of(2, b0_us=0.0, cpu_lanes=1), Constraints(pins={0: 0, 2: 1})
    )
    device = plan_by("latency-ip", problem).device
    assert np.array_equal(device, [0, 1, 1])


def test_without_known_costs_to_the_host_nothing_is_proven():
    profile = profile_of({"f": 1000.0, "b": 1000.0}, [("f", "b", 2000)])
    profile = replace(profile, measured=Measurement(backward=[1]))
    alone, two = (Problem(profile, cluster_of(n), Constraints(pins={0: 0, 1: 0})) for n in (1, 2))
    plan = plan_by("latency-ip", alone)
    assert not plan.proven
    assert "the cost of a transfer to the host's" in plan.note
    assert plan_by("latency-ip", two).proven


@pytest.mark.parametrize("method", PROGRAMS)
def test_where_copies_of_tensors_exceed_memory_another_plan_that_fits_is_taken(method):
    """The quickest plan puts the last two ops where the input of the first needs a copy."""
    profile = profile_of(
        {"a": 50.0, "b": 9.0, "c": 1.0},
        [("a", "b", 400), ("b", "c", 10)],
        persistent={"b": 46, "c": 1000},
        cpu={"a": 150.0, "c": 40.0},
    )
    machine = cluster_of(3, b0_us=4.0, b1_us_per_byte=0.0, cpu_lanes=4)
    rooms = (1324, 567, 567, 145)
    devices = zip(machine.devices, rooms, strict=True)
    small = tuple(replace(device, capacity_bytes=room) for device, room in devices)
    made = place(
        Problem(profile, replace(machine, devices=small)),
        method,
        options=PlaceOptions(objective=LATENCY),
    )
    assert made.schedule.fits
    assert made.plan.proven
    assert made.plan.value_us == 68


def test_units_that_share_no_device_are_placed_where_they_may_run():
    """They depend on each other both ways: as one subgraph, they could run nowhere."""
    edges = [("a", "b", 2000), ("b", "c", 2000)]
    profile = profile_of(
        dict.fromkeys("abc", 1.0),
        edges,
        cpu=dict.fromkeys("abc", 1.0),
        colocation={"a": "x", "c": "x"},
    )
    machine = cluster_of(1, cpu_lanes=1, capacity_bytes=3000)
    problem = Problem(profile, machine, Constraints(pins={0: 1, 1: 0, 2: 1}))
    plan = place(problem, "latency-ip", options=PlaceOptions(objective=LATENCY)).plan
    assert plan.device.tolist() == [1, 0, 1]
