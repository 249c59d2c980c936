"""Moves of single units: update the loads in time proportional to the unit's hyperedges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import loop, step
from enplace.placers.max_load.search.hypergraph import (
    Hypergraph,
    channels_us,
    count_present,
    held_bytes,
)
from enplace.values.profile import FloatArray, IntArray


class UnitCosts(NamedTuple):
    """The arrays of a :class:`Hypergraph` for the kernel, and the hyperedges of each unit."""

    unit_us: FloatArray
    unit_bytes: FloatArray
    capacity_bytes: FloatArray
    price: IntArray
    ptr: IntArray
    pin: IntArray
    touched_us: FloatArray
    inside_us: FloatArray
    own_us: FloatArray
    unit_ptr: IntArray
    unit_hyperedge: IntArray


class Loads(NamedTuple):
    """A placement of the units, and its loads.

    Attributes
    ----------
    device : int array, shape (n_units,)
    held_bytes : float array, shape (n_devices,)
    channel_us : float array, shape (n_devices, n_channels)
    load_us : float array, shape (n_devices, n_passes)
    present : int array, shape (n_hyperedges, n_devices)
        Number of units of each hyperedge on each device.
    """

    device: IntArray
    held_bytes: FloatArray
    channel_us: FloatArray
    load_us: FloatArray
    present: IntArray


def build_unit_costs(graph: Hypergraph) -> UnitCosts:
    """Lay out a hypergraph by unit."""
    hyperedges = graph.hyperedges
    return UnitCosts(
        graph.unit_us,
        graph.unit_bytes.astype(np.float64),
        graph.capacity_bytes,
        graph.price,
        hyperedges.ptr,
        hyperedges.node,
        hyperedges.touched_us,
        hyperedges.inside_us,
        hyperedges.own_us,
        *hyperedges.by_node(graph.n_units),
    )


def build_loads(graph: Hypergraph, device: IntArray) -> Loads:
    """Find the loads of a placement; they share the placement's array."""
    rule, channel_us = graph.rule, channels_us(graph, device)
    load_us = channel_us.reshape(-1, rule.n_passes, rule.n_resources).max(axis=2)
    held = held_bytes(graph, device)
    return Loads(device, held, channel_us, load_us, count_present(graph, device))


@loop
def move(
    costs: UnitCosts, loads: Loads, unit: int, target: int
) -> None:  # pragma: no cover - compiled
    """Move one unit to a device, and update the loads of the two devices."""
    source = loads.device[unit]
    if source == target:
        return
    loads.device[unit] = target
    _move_work(costs, loads, unit, source, target)
    for edge in range(costs.unit_ptr[unit], costs.unit_ptr[unit + 1]):
        _move_pin(costs, loads, costs.unit_hyperedge[edge], source, target)
    _update_load(loads, source)
    _update_load(loads, target)


@step
def _move_work(
    costs: UnitCosts, loads: Loads, unit: int, source: int, target: int
) -> None:  # pragma: no cover - compiled
    """Move the bytes of a unit, its time, and the cost of its own transfers."""
    channel_us = loads.channel_us
    n_channels, n_passes = channel_us.shape[1], loads.load_us.shape[1]
    n_resources = n_channels // n_passes
    loads.held_bytes[source] -= costs.unit_bytes[unit, source]
    loads.held_bytes[target] += costs.unit_bytes[unit, target]
    for p in range(n_passes):
        channel_us[source, p * n_resources] -= costs.unit_us[unit, source, p]
        channel_us[target, p * n_resources] += costs.unit_us[unit, target, p]
    a, b = costs.price[source], costs.price[target]
    for c in range(n_channels):
        if a >= 0:
            channel_us[source, c] -= costs.own_us[a, unit, c]
        if b >= 0:
            channel_us[target, c] += costs.own_us[b, unit, c]


@step
def _move_pin(
    costs: UnitCosts, loads: Loads, hyperedge: int, source: int, target: int
) -> None:  # pragma: no cover - compiled
    """Move one end of a hyperedge: it may leave the source, or now be entirely on the target."""
    channel_us, present = loads.channel_us, loads.present
    size = costs.ptr[hyperedge + 1] - costs.ptr[hyperedge]
    a, b = costs.price[source], costs.price[target]
    if a >= 0:
        if present[hyperedge, source] == size:
            for c in range(channel_us.shape[1]):
                channel_us[source, c] += costs.inside_us[a, hyperedge, c]
        if present[hyperedge, source] == 1:
            for c in range(channel_us.shape[1]):
                channel_us[source, c] -= costs.touched_us[a, hyperedge, c]
    if b >= 0:
        if present[hyperedge, target] == 0:
            for c in range(channel_us.shape[1]):
                channel_us[target, c] += costs.touched_us[b, hyperedge, c]
        if present[hyperedge, target] == size - 1:
            for c in range(channel_us.shape[1]):
                channel_us[target, c] -= costs.inside_us[b, hyperedge, c]
    present[hyperedge, source] -= 1
    present[hyperedge, target] += 1


@step
def _update_load(loads: Loads, device: int) -> None:  # pragma: no cover - compiled
    """Set the load of a device in each pass to its busiest resource."""
    n_passes = loads.load_us.shape[1]
    n_resources = loads.channel_us.shape[1] // n_passes
    for p in range(n_passes):
        highest = loads.channel_us[device, p * n_resources]
        for c in range(p * n_resources + 1, (p + 1) * n_resources):
            highest = max(highest, loads.channel_us[device, c])
        loads.load_us[device, p] = highest


@loop
def find_busiest(loads: Loads, p: int) -> int:  # pragma: no cover - compiled
    """Return the first of the devices with the highest load in a pass."""
    busiest = 0
    for device in range(len(loads.load_us)):
        if loads.load_us[device, p] > loads.load_us[busiest, p]:
            busiest = device
    return busiest


@loop
def largest_us(loads: Loads) -> float:  # pragma: no cover - compiled
    """Return the highest load of each pass, summed."""
    total_us = 0.0
    for p in range(loads.load_us.shape[1]):
        total_us += loads.load_us[find_busiest(loads, p), p]
    return total_us
