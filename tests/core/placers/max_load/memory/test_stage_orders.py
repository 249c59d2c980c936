"""The order of the ops of a stage, where a pipeline needs less memory in one than in others."""

import itertools
from dataclasses import replace

import numpy as np

from enplace.machine.pipelines.pipeline import fill_pipeline
from enplace.placers import THROUGHPUT, PlaceOptions, place
from enplace.placers.max_load.memory.in_flight import find_fullest
from enplace.placers.max_load.memory.stage_orders import find_orders, with_least_needs
from enplace.placing.candidates import unordered
from enplace.values.load_rule import USUAL
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

FORWARD = ("in", "side", "middle", "last", "loss")


def training(small: int = 1000) -> Problem:
    """Return a model with a side branch, whose gradient may be computed first or last."""
    edges = [("in", "side", 26), ("in", "middle", 26), ("middle", "last", 7), ("last", "loss", 8)]
    edges += [("loss", "d loss", 18), ("last", "d loss", 8), ("d loss", "d last", 8)]
    edges += [("middle", "d last", 7), ("d last", "d middle", 7), ("in", "d middle", 26)]
    edges += [("side", "d side", 8), ("in", "d side", 26), ("d side", "d in", 26)]
    edges += [("d middle", "d in", 26)]
    times = {"in": 10, "side": 3, "middle": 10, "last": 10, "loss": 7}
    times |= {f"d {name}": 2 * us for name, us in times.items()}
    weights = {"in": 90, "side": 40, "middle": 60, "last": 10, "loss": 80}
    together = {name: name.removeprefix("d ") for name in times}
    profile = profile_of(times, edges, persistent=weights, colocation=together)
    passes = tuple("forward" if name in FORWARD else "backward" for name in profile.op_names)
    cluster = cluster_of(2, b0_us=0.1, b1_us_per_byte=0.001, capacity_bytes=10_000)
    first, second = cluster.devices
    devices = (first, replace(second, capacity_bytes=small))
    return Problem(replace(profile, op_passes=passes), replace(cluster, devices=devices))


def apart(problem: Problem) -> np.ndarray:
    """Return a placement with the side branch, the last layer and the loss on one device."""
    there = ("side", "last", "loss")
    return np.array([int(name.endswith(there)) for name in problem.profile.op_names])


def test_orders_of_some_ops_are_all_that_keep_their_edges():
    profile = profile_of(dict.fromkeys("abcd", 1.0), [("a", "c", 1), ("b", "c", 1)])
    edges = [(0, 2), (1, 2)]
    expected = [
        order
        for order in itertools.permutations(range(4))
        if all(order.index(a) < order.index(b) for a, b in edges)
    ]
    assert sorted(map(tuple, find_orders(profile, range(4)))) == sorted(expected)
    assert next(find_orders(profile, [3, 1, 0, 2])) == [3, 1, 0, 2]


def test_no_order_of_all_ops_needs_less_memory_than_that_of_each_stage():
    problem = training()
    (plan,) = unordered(problem, apart(problem), "")
    found = with_least_needs(problem, plan, USUAL)
    orders = [*itertools.islice(find_orders(problem.profile, range(10)), 2000)]
    assert len(orders) < 2000

    def fullest(position: np.ndarray) -> float:
        return find_fullest(problem, plan.device, USUAL, order=replace(plan, position=position))

    needs = [fullest(np.argsort(order)) for order in orders]
    assert fullest(found.position) == min(needs) < max(needs)


def test_a_plan_whose_pipeline_fits_in_one_order_only_is_found():
    free = training()
    (plan,) = unordered(free, apart(free), "")
    orders = with_least_needs(free, plan, USUAL), plan
    least, usual = (find_fullest(free, plan.device, USUAL, order=each) for each in orders)
    assert least < usual
    problem = training(round(1000 * least))
    found = place(problem, "max-load-dp", options=PlaceOptions(objective=THROUGHPUT))
    pipeline = fill_pipeline(problem, found.plan)
    assert (pipeline.peak_bytes <= problem.cluster.capacity_bytes).all()
    assert found.plan.device.tolist() == plan.device.tolist()
