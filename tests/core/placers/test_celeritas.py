"""Celeritas: the rules of Algorithm 2 by hand, and the kernel against a slow reference."""

import numpy as np
import pytest
from hypothesis import given
from tests.core.placers.problems import gpus, line, problems

from enplace.coarsen import cpd_topo, group_graph, mean_link
from enplace.machine import simulate
from enplace.placers import PlaceOptions, place
from enplace.placers.celeritas import adjust, fill_in_order
from enplace.placing.capacity import claims_of
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem


def adjusted_devices(problem):
    """Run Adjusting Placement on the ungrouped graph."""
    graph = group_graph(problem, np.arange(problem.profile.n_ops))
    order = cpd_topo(graph, graph.edge_us(mean_link(problem.cluster)))
    return adjust(problem, graph, order, PlaceOptions()).tolist()


def reference_adjust(problem, graph, order):
    """Run Algorithm 2 with lists of busy intervals; the devices are the GPUs.

    The ops are the nodes. The first op of a colocation group takes the memory of all (section 6.1).
    """
    cluster, devices = problem.cluster, problem.cluster.gpus
    busy = {d: [] for d in devices}
    unit_bytes = np.bincount(problem.unit, weights=graph.memory_bytes).astype(int).tolist()
    free = {d: int(cluster.capacity_bytes[d]) for d in range(cluster.n_devices)}
    decided = set()
    for unit, allowed in enumerate(problem.unit_allowed):
        if allowed.sum() == 1:
            decided.add(unit)
            free[int(np.argmax(allowed))] -= unit_bytes[unit]
    mean, device, finish, last = mean_link(cluster), {}, {}, None
    edges = list(zip(graph.source, graph.target, graph.tensors, graph.edge_bytes, strict=True))

    def slot(ends, ready, duration):
        if not duration:
            return ready
        taken = [interval for d in ends for interval in busy[d]]
        candidates = sorted([ready, *(end for _, end in taken if end > ready)])
        return next(c for c in candidates if not any(c < e and b < c + duration for b, e in taken))

    def send_us(tensors, size, a, b):
        return tensors * cluster.b0_us[a, b] + size * cluster.b1_us_per_byte[a, b]

    def time_us(node, d):
        return graph.time_us[node, d] if np.isfinite(graph.time_us[node, d]) else 0.0

    for node in order.tolist():
        back = max((n * mean[0] + s * mean[1] for a, _, n, s in edges if a == node), default=0.0)
        inputs = [(a, n, s) for a, b, n, s in edges if b == node]
        est, unit = {}, int(problem.unit[node])
        needed = 0 if unit in decided else unit_bytes[unit]
        for d in devices:
            ready = max(
                (finish[a] + send_us(n, s, device[a], d) for a, n, s in inputs), default=0.0
            )
            fits = free[d] >= needed
            est[d] = slot([d], ready, time_us(node, d)) if fits else np.inf
        best = min(devices, key=lambda d: est[d])
        if np.isinf(est[best]):
            last = max(devices, key=lambda d: free[d])
        elif last is None or est[last] - est[best] > back:
            last = best
        ready = 0.0
        for a, n, s in inputs:
            there = finish[a]
            if device[a] != last:
                duration = send_us(n, s, device[a], last)
                begin = slot([device[a], last], there, duration)
                there = begin + duration
                for d in (device[a], last):
                    busy[d] += [(begin, there)] if duration else []
            ready = max(ready, there)
        begin = slot([last], ready, time_us(node, last))
        device[node], finish[node] = last, begin + time_us(node, last)
        busy[last] += [(begin, finish[node])] if finish[node] > begin else []
        free[last] -= needed
        decided.add(unit)
    return [device[node] for node in range(graph.n_groups)]


@given(problem=problems())
def test_the_kernel_equals_the_reference(problem):
    graph = group_graph(problem, np.arange(problem.profile.n_ops))
    order = cpd_topo(graph, graph.edge_us(mean_link(problem.cluster)))
    found = adjust(problem, graph, order, PlaceOptions()).tolist()
    assert found == reference_adjust(problem, graph, order)


def test_a_node_moves_only_if_it_gains_more_than_the_transfer_back():
    """Equation 9: waiting 10 for the first device, against a transfer back of 4 or 12."""
    costs, edges = [10.0, 5.0, 5.0, 1.0], [(0, 3, 4), (1, 2, 4), (2, 3, 4)]
    assert adjusted_devices(Problem(line(costs, edges), gpus(2, b0=4.0))) == [1, 0, 0, 1]
    assert adjusted_devices(Problem(line(costs, edges), gpus(2, b0=12.0))) == [0, 0, 0, 0]


def test_a_full_device_hands_over_to_the_next():
    profile = line([1.0] * 4, [(i, i + 1, 0) for i in range(3)], persistent=[400] * 4)
    assert adjusted_devices(Problem(profile, gpus(2, b0=50.0, capacity=1000))) == [0, 0, 1, 1]


def order_place_devices(sizes, capacities):
    """Return the devices that Order-Place chooses for nodes of these sizes."""
    problem = Problem(line([1.0] * len(sizes), [], persistent=sizes), gpus(len(capacities)))
    claims = claims_of(problem, np.arange(len(sizes)))
    claims.free_bytes[:] = capacities
    return fill_in_order(claims, np.arange(len(sizes)), np.arange(len(capacities))).tolist()


def test_when_all_devices_are_full_the_emptiest_takes_the_rest():
    assert order_place_devices([6, 6, 6, 6, 1], [10, 14]) == [0, 1, 1, 0, 1]


def test_order_place_never_returns_to_a_device():
    assert order_place_devices([6, 5, 1, 4], [10, 10]) == [0, 1, 1, 1]


@pytest.mark.parametrize("method", ["celeritas", "order-place", "m-topo", "heft"])
@pytest.mark.parametrize("constraint", ["group", "pin"])
def test_memory_of_colocated_and_pinned_ops_is_reserved(method, constraint):
    """Memory is reserved for group members and pinned ops that come later in the order."""
    group = ["g", "", "g"] if constraint == "group" else ["", "", ""]
    profile = line([10.0] * 3, [(0, 1, 0), (1, 2, 0)], persistent=[100, 800, 500], colocation=group)
    pins = {2: 0} if constraint == "pin" else {}
    problem = Problem(profile, gpus(2, capacity=1000), Constraints(pins=pins))
    assert simulate(problem, place(problem, method).plan).fits


def test_order_place_uses_one_gpu_if_all_ops_fit():
    problem = Problem(line([1.0] * 20, [(i, i + 1, 8) for i in range(19)]), gpus(3))
    assert place(problem, "order-place").plan.device.tolist() == [0] * 20


def test_order_place_spills_in_cpd_topo_order():
    edges = [(i, i + 1, 0) for i in range(9)]
    profile = line([1.0] * 10, edges, persistent=[100] * 10)
    problem = Problem(profile, gpus(2, capacity=800))
    plan = place(problem, "order-place").plan
    assert plan.device.tolist() == [0] * 8 + [1] * 2
    assert simulate(problem, plan).fits
