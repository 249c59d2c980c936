"""Moves of single units: what the loads are afterwards, in time proportional to the unit's nets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from enplace.placers.max_load.hypergraph import Hypergraph, channels_us, held_bytes
from enplace.values.profile import FloatArray, IntArray


class Costs(NamedTuple):
    """A :class:`Hypergraph` for the kernel, and the nets of each unit."""

    unit_us: FloatArray
    unit_bytes: FloatArray
    capacity_bytes: FloatArray
    price: IntArray
    net_ptr: IntArray
    net_unit: IntArray
    touched_us: FloatArray
    inside_us: FloatArray
    own_us: FloatArray
    unit_ptr: IntArray
    unit_net: IntArray


class State(NamedTuple):
    """Where units are, and what follows; ``present`` counts the units of a net on a device.

    ``level_us`` has the channels of each device's load, ``load_us`` the load in each pass.
    """

    device: IntArray
    held_bytes: FloatArray
    level_us: FloatArray
    load_us: FloatArray
    present: IntArray


def costs_of(graph: Hypergraph) -> Costs:
    """What moves need to know of a hypergraph."""
    nets = graph.nets
    by_unit = np.argsort(nets.node, kind="stable")
    net_of_pin = np.repeat(np.arange(nets.n_nets), np.diff(nets.ptr))
    return Costs(
        graph.unit_us,
        graph.unit_bytes.astype(np.float64),
        graph.capacity_bytes,
        graph.price,
        nets.ptr,
        nets.node,
        nets.touched_us,
        nets.inside_us,
        nets.own_us,
        np.searchsorted(nets.node[by_unit], np.arange(graph.n_units + 1)),
        net_of_pin[by_unit],
    )


def state_of(graph: Hypergraph, device: IntArray) -> State:
    """The state of a placement, which shares the array."""
    nets, rule = graph.nets, graph.rule
    count = np.zeros((nets.n_nets, graph.n_devices), dtype=np.int64)
    net_of_pin = np.repeat(np.arange(nets.n_nets), np.diff(nets.ptr))
    np.add.at(count, (net_of_pin, device[nets.node]), 1)
    level = channels_us(graph, device)
    load = level.reshape(-1, rule.n_passes, rule.n_resources).max(axis=2)
    return State(device, held_bytes(graph, device), level, load, count)


@njit(cache=True, nogil=True)
def move(costs: Costs, state: State, unit: int, target: int) -> None:  # pragma: no cover - compiled
    """Move one unit; what it does to the loads is what :func:`loads_us` would say."""
    source, level = state.device[unit], state.level_us
    if source == target:
        return
    n_channels, n_passes = level.shape[1], state.load_us.shape[1]
    n_resources = n_channels // n_passes
    state.device[unit] = target
    state.held_bytes[source] -= costs.unit_bytes[unit]
    state.held_bytes[target] += costs.unit_bytes[unit]
    for p in range(n_passes):
        level[source, p * n_resources] -= costs.unit_us[unit, source, p]
        level[target, p * n_resources] += costs.unit_us[unit, target, p]
    a, b = costs.price[source], costs.price[target]
    for c in range(n_channels):
        if a >= 0:
            level[source, c] -= costs.own_us[a, unit, c]
        if b >= 0:
            level[target, c] += costs.own_us[b, unit, c]
    for edge in range(costs.unit_ptr[unit], costs.unit_ptr[unit + 1]):
        net = costs.unit_net[edge]
        size = costs.net_ptr[net + 1] - costs.net_ptr[net]
        if a >= 0:
            if state.present[net, source] == size:
                for c in range(n_channels):
                    level[source, c] += costs.inside_us[a, net, c]
            if state.present[net, source] == 1:
                for c in range(n_channels):
                    level[source, c] -= costs.touched_us[a, net, c]
        if b >= 0:
            if state.present[net, target] == 0:
                for c in range(n_channels):
                    level[target, c] += costs.touched_us[b, net, c]
            if state.present[net, target] == size - 1:
                for c in range(n_channels):
                    level[target, c] -= costs.inside_us[b, net, c]
        state.present[net, source] -= 1
        state.present[net, target] += 1
    for device in (source, target):
        for p in range(n_passes):
            highest = level[device, p * n_resources]
            for c in range(p * n_resources + 1, (p + 1) * n_resources):
                highest = max(highest, level[device, c])
            state.load_us[device, p] = highest
