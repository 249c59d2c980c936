"""The latency of places for groups, compiled; :mod:`enplace.machine.latency` is the reference."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import kernel, loop, step
from enplace.placers.latency.groups import Groups
from enplace.values.arrays import adjacency, csr_offsets
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray

_SPREAD = 0.02
"""Weight of the subgraphs' mean finish: it falls when one off the longest path ends earlier."""


class Graph(NamedTuple):
    """The arrays of :class:`Groups` for the kernel, with edges by source and by target."""

    group: IntArray
    backward: IntArray
    op_us: FloatArray
    allowed: BoolArray
    group_bytes: FloatArray
    capacity_bytes: FloatArray
    out_ptr: IntArray
    target: IntArray
    in_ptr: IntArray
    source: IntArray
    hyperedge_ptr: IntArray
    hyperedge_op: IntArray
    hyperedge_us: FloatArray


class Scratch(NamedTuple):
    """Arrays that every evaluation reuses. Parts are the subgraphs, then the ops on CPUs.

    Attributes
    ----------
    part : int array, shape (n_ops,)
        The part that contains each op.
    waiting, ready_us, busy_us : arrays, shape (n_parts,)
        Number of inputs yet to arrive, when the last one arrives, and the time the part takes.
    first_op, next_op : int arrays, shapes (n_parts,) and (n_ops,)
        A linked list of the ops of each part; it ends with -1.
    stamp : int array, shape (n_parts,)
        The last hyperedge that the part has paid for.
    queue : int array, shape (n_parts,)
        Parts in the order in which they run.
    next_subgraph : int array, shape (n_subgraphs,)
        The next subgraph of the same accelerator; -1 for the last one.
    """

    part: IntArray
    waiting: IntArray
    ready_us: FloatArray
    busy_us: FloatArray
    first_op: IntArray
    next_op: IntArray
    stamp: IntArray
    queue: IntArray
    next_subgraph: IntArray


def places_us(groups: Groups, place: IntArray, n_slots: int) -> float:
    """Find the latency of places with the kernel; inf if subgraphs wait for each other.

    Parameters
    ----------
    place : int array, shape (n_groups, 2)
    """
    latency_us, _ = evaluate(lay_out(groups), new_scratch(groups, n_slots), place, n_slots)
    return float(latency_us)


def lay_out(groups: Groups) -> Graph:
    """Lay out the groups of a problem for the kernel."""
    n = groups.n_ops
    return Graph(
        groups.group,
        groups.backward.astype(np.int64),
        groups.op_us,
        groups.allowed,
        groups.group_bytes.astype(np.float64),
        groups.capacity_bytes,
        csr_offsets(groups.source, n),
        np.ascontiguousarray(groups.target),  # of one edge it already is: another type
        *adjacency(groups.target, groups.source, n),
        groups.hyperedge_ptr,
        groups.hyperedge_op,
        groups.hyperedge_us,
    )


def new_scratch(groups: Groups, n_slots: int) -> Scratch:
    """Allocate the arrays for ``n_slots`` subgraphs of an accelerator in each pass."""
    n_subgraphs = 2 * n_slots * groups.cpu
    n_parts = n_subgraphs + groups.n_ops

    def ints(size: int) -> IntArray:
        return np.zeros(size, dtype=np.int64)

    return Scratch(
        part=ints(groups.n_ops),
        waiting=ints(n_parts),
        ready_us=np.zeros(n_parts),
        busy_us=np.zeros(n_parts),
        first_op=ints(n_parts),
        next_op=ints(groups.n_ops),
        stamp=ints(n_parts),
        queue=ints(n_parts),
        next_subgraph=ints(n_subgraphs),
    )


@kernel
def evaluate_all(
    graph: Graph,
    scratch: Scratch,
    places: IntArray,
    n_slots: int,
    us: FloatArray,
    slots: IntArray,
) -> None:  # pragma: no cover - compiled
    """Find the least latency of each placement, over all subgraphs.

    Parameters
    ----------
    places : int array, shape (n_placements, n_groups)
    us, slots : arrays, shapes (n_placements,) and (n_placements, n_groups), written
    """
    cpu, n_groups = graph.op_us.shape[1] - 1, places.shape[1]
    place = np.zeros((n_groups, 2), np.int64)
    for number in range(len(places)):
        place[:, 0] = places[number]
        us[number], at = np.inf, 0
        while at < n_groups:
            found_us, _ = evaluate(graph, scratch, place, n_slots)
            if found_us < us[number]:
                us[number], slots[number] = found_us, place[:, 1]
            at = 0
            while at < n_groups:  # count up
                place[at, 1] += 1
                if place[at, 0] < cpu and place[at, 1] < n_slots:
                    break
                place[at, 1] = 0
                at += 1


@kernel
def evaluate(
    graph: Graph, scratch: Scratch, place: IntArray, n_slots: int
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Find the latency and the annealing energy; inf if subgraphs wait for each other."""
    n_subgraphs = 2 * n_slots * (graph.op_us.shape[1] - 1)
    scratch.waiting[:], scratch.ready_us[:], scratch.busy_us[:] = 0, 0.0, 0.0
    scratch.first_op[:], scratch.stamp[:] = -1, -1
    _fill_parts(graph, scratch, place, n_slots)
    _add_transfers(graph, scratch, n_subgraphs)
    for op in range(len(graph.group)):
        for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
            if scratch.part[graph.target[edge]] != scratch.part[op]:
                scratch.waiting[scratch.part[graph.target[edge]]] += 1
    _chain_subgraphs(scratch, n_slots)
    return _run(graph, scratch, n_subgraphs)


@loop
def _fill_parts(
    graph: Graph, scratch: Scratch, place: IntArray, n_slots: int
) -> None:  # pragma: no cover - compiled
    """Put each op into its subgraph, or into a part of its own on a CPU."""
    cpu = graph.op_us.shape[1] - 1
    for op in range(len(graph.group)):
        group = graph.group[op]
        gpu = place[group, 0]
        part = 2 * n_slots * cpu + op
        if gpu < cpu:
            part = (gpu * 2 + graph.backward[op]) * n_slots + place[group, 1]
        scratch.part[op] = part
        scratch.busy_us[part] += graph.op_us[op, gpu]
        scratch.next_op[op], scratch.first_op[part] = scratch.first_op[part], op


@loop
def _chain_subgraphs(scratch: Scratch, n_slots: int) -> None:  # pragma: no cover - compiled
    """Make each subgraph of an accelerator wait for the previous one."""
    n_subgraphs = len(scratch.next_subgraph)
    for first in range(0, n_subgraphs, 2 * n_slots):
        last = -1
        for part in range(first, first + 2 * n_slots):
            if scratch.first_op[part] >= 0:
                scratch.next_subgraph[part] = -1
                if last >= 0:
                    scratch.next_subgraph[last] = part
                    scratch.waiting[part] += 1
                last = part


@loop
def _add_transfers(
    graph: Graph, scratch: Scratch, n_subgraphs: int
) -> None:  # pragma: no cover - compiled
    """Charge each subgraph once for every hyperedge that crosses its border."""
    per_gpu = n_subgraphs // max(graph.hyperedge_us.shape[1], 1)
    for hyperedge in range(len(graph.hyperedge_us)):
        first, last = graph.hyperedge_ptr[hyperedge], graph.hyperedge_ptr[hyperedge + 1]
        home, crossing = scratch.part[graph.hyperedge_op[first]], False
        for pin in range(first + 1, last):
            crossing |= scratch.part[graph.hyperedge_op[pin]] != home
        if not crossing:
            continue
        for pin in range(first, last):
            part = scratch.part[graph.hyperedge_op[pin]]
            if part < n_subgraphs and scratch.stamp[part] != hyperedge:
                scratch.stamp[part] = hyperedge
                scratch.busy_us[part] += graph.hyperedge_us[hyperedge, part // per_gpu]


@loop
def _run(
    graph: Graph, scratch: Scratch, n_subgraphs: int
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Run each part as soon as the parts it waits for have ended."""
    n_queued, n_parts = 0, 0
    for part in range(len(scratch.waiting)):
        if scratch.first_op[part] >= 0:
            n_parts += 1
            if scratch.waiting[part] == 0:
                scratch.queue[n_queued] = part
                n_queued += 1
    n_done, latency_us, total_us, n_finished = 0, 0.0, 0.0, 0
    while n_done < n_queued:
        part = scratch.queue[n_done]
        n_done += 1
        finish_us = scratch.ready_us[part] + scratch.busy_us[part]
        latency_us = max(latency_us, finish_us)
        if part < n_subgraphs:
            total_us += finish_us
            n_finished += 1
            if scratch.next_subgraph[part] >= 0:
                n_queued = _arrive(scratch, scratch.next_subgraph[part], finish_us, n_queued)
        op = scratch.first_op[part]
        while op >= 0:
            for edge in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
                other = scratch.part[graph.target[edge]]
                if other != part:
                    n_queued = _arrive(scratch, other, finish_us, n_queued)
            op = scratch.next_op[op]
    # Subgraphs that wait for each other never run, and would win with the latency so far.
    if n_done < n_parts:
        return np.inf, np.inf
    return latency_us, latency_us + _SPREAD * total_us / max(n_finished, 1)


@step
def _arrive(
    scratch: Scratch, part: int, at_us: float, n_queued: int
) -> int:  # pragma: no cover - compiled
    """Count an input of a part as arrived; queue the part after the last; return queue length."""
    scratch.ready_us[part] = max(scratch.ready_us[part], at_us)
    scratch.waiting[part] -= 1
    if scratch.waiting[part] == 0:
        scratch.queue[n_queued] = part
        n_queued += 1
    return n_queued
