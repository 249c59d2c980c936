"""The table of the dynamic program over ideals, and the kernel that fills it (section 5.1.1).

The nodes between two ideals go to one device, or with replication (appendix C.2) to several. Where
the paper lists all pairs of ideals, this walks up the lattice from each ideal and turns back once a
device would have more work than in a known partition; it stores no pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from enplace.compiling import helper, kernel, loop, step
from enplace.machine.op_passes import return_ops
from enplace.machine.pipelines.patterns import CLOSE, wait_for_room
from enplace.placers.max_load.table.contract import Nodes
from enplace.placers.max_load.table.hyperedges import KEPT, ONE, RECEIVED
from enplace.placers.max_load.table.ideals import Lattice
from enplace.placers.max_load.table.kinds import capacities_bytes
from enplace.placers.max_load.table.walk import (
    TransferCosts,
    Walk,
    add_transfers,
    advance,
    begin,
    build_transfer_costs,
    new_walk,
    node_between,
    remove_transfers,
    turn_back,
)
from enplace.values.load_rule import LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

VISITS_AT_ONCE = 1_000_000
"""Ideals reached between two checks for whether to stop: some tenths of a second."""

BYTES_PER_CELL = 8 + 4 + 2

NEITHER, AHEAD, BACK, FREELY = range(4)
"""Passes that are taken first, or samples that never wait for each other."""

_wait_for_room = step(wait_for_room)

BYTES, SYNC, OPS, BACK_OPS = range(4)
"""Indices into the sums of a share: sizes of nodes, time of an all-reduce, number of ops, and of
backward ops."""


class NodeCosts(NamedTuple):
    """The nodes for the kernel, and the devices that share them.

    The passes are those of the rule. The load in the last pass is minimised; the load in the first
    of two passes is only limited.

    Attributes
    ----------
    work_us : float array, shape (n_kinds, n_nodes, n_passes)
        0 where a node may not run.
    runs : bool array, shape (n_kinds, n_nodes)
    forward_us : float array, shape (n_kinds, n_nodes)
        The compute time of a node's forward ops.
    memory_bytes, sync_us : float arrays, shape (n_nodes,)
    n_ops, back_ops : float arrays, shape (n_nodes,)
        The number of a node's ops, and of those to which samples return.
    transfers : TransferCosts
    n_channels : int
        Channels of the transfers at each price.
    held : TransferCosts
        Bytes that a device holds, in the channels of
        :func:`~enplace.placers.max_load.table.hyperedges.find_held`.
    devices, most_replicas : int arrays, shape (n_kinds,)
        Number of devices of each kind, and how many of them may be replicas of one stage.
    price : int array, shape (n_kinds,)
        Which price of the transfers a kind pays; -1 for CPUs, which pay nothing.
    capacity_bytes : float array, shape (n_kinds,)
    sums_sync : bool
        Whether the all-reduce of replicas adds to the load, or overlaps with it.
    samples : int array, shape (n_cells,)
        Samples in flight on the accelerators of the stage that follows a cell.
    period_us : float
        If positive, samples follow each other at this pace, and those in flight on a stage follow
        from the time for which each stays. The value of a cell is then that time, counted from the
        last stage back.
    taken_first : int
        If samples visit the stages in the same order on their way back, the pass of a stage that
        shortens the time between its passes; the other pass lengthens that of the next stage.
        :data:`NEITHER` if samples return the other way, so that both passes lengthen it. With
        :data:`FREELY` they do that, and need not wait where they meet: no schedule is faster.
    recompute : bool
        Whether a stage may run its forward ops again instead of keeping what they make.
    cpu_op_us : float
        If not negative, the sum over stages is minimised of their loads, plus this for each op on
        a CPU. All loads must still be below the limits.
    is_plain : bool
        Whether nothing counts but the largest load and the memory of one sample.
    """

    work_us: FloatArray
    runs: BoolArray
    forward_us: FloatArray
    memory_bytes: FloatArray
    sync_us: FloatArray
    n_ops: FloatArray
    back_ops: FloatArray
    transfers: TransferCosts
    n_channels: int
    held: TransferCosts
    devices: IntArray
    most_replicas: IntArray
    price: IntArray
    capacity_bytes: FloatArray
    sums_sync: bool
    samples: IntArray
    period_us: float
    taken_first: int
    recompute: bool
    cpu_op_us: float
    is_plain: bool


class Table(NamedTuple):
    """The table dp[ideal][devices used of each kind], and how each cell was reached.

    Cells are numbered like the entries of an array whose shape is the number of devices of each
    kind plus 1.

    Attributes
    ----------
    best_us : float array, shape (n_ideals, n_cells)
        The smallest largest load of the last pass; inf if nothing below the limit was found.
    from_ideal : int32 array, from_cell : int16 array
        The cell before the last stage, plus the number of cells if the stage recomputes.
    """

    best_us: FloatArray
    from_ideal: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    from_cell: np.ndarray[tuple[int, ...], np.dtype[np.int16]]


class _Share(NamedTuple):
    """The nodes between the base of a walk and its current ideal, as the load of one device.

    Attributes
    ----------
    pins : int array, shape (n_hyperedges,)
        Number of these nodes in each hyperedge.
    channel_us : float array, shape (n_channels,)
        Time of the transfers, at each price.
    work_us : float array, shape (n_kinds, n_passes)
    forward_us : float array, shape (n_kinds,)
    total : float array, shape (4,)
        Sums over the nodes, by :data:`BYTES` to :data:`BACK_OPS`.
    held_pins : int array, held : float array, shape (n_channels,)
        The same as ``pins`` and ``channel_us``, for the bytes that a device holds.
    barred : int array, shape (n_kinds,)
        Number of nodes that may not run on a kind of device.
    may_take : bool array, shape (n_kinds,)
        Whether a device of a kind may take these nodes, before their transfers count.
    """

    pins: IntArray
    channel_us: FloatArray
    work_us: FloatArray
    forward_us: FloatArray
    total: FloatArray
    held_pins: IntArray
    held: FloatArray
    barred: IntArray
    may_take: BoolArray


class _Stage(NamedTuple):
    """A stage between two ideals.

    Attributes
    ----------
    base, reached : int
    first_us, last_us, sync_us : float
        Its load in the first and last pass, and its all-reduce.
    taken_us : float
        The part of the load in the pass that is taken first.
    own_bytes, further_bytes : float
        Memory for one sample, and for each further one in flight.
    extra_us : float
        What counts besides the load if the sum over stages is minimised.
    """

    base: int
    reached: int
    first_us: float
    last_us: float
    sync_us: float
    taken_us: float
    own_bytes: float
    further_bytes: float
    extra_us: float


class _Place(NamedTuple):
    """Where a stage goes.

    Attributes
    ----------
    kind, stride : int
        The kind of device, and how far the cells of one more device of it are.
    mark : int
        What to add to the number of the cell that the stage follows.
    """

    kind: int
    stride: int
    mark: int


def build_node_costs(
    problem: Problem, nodes: Nodes, rule: LoadRule, devices: IntArray, samples: IntArray
) -> NodeCosts:
    """Build the costs for a number of devices of each kind, and of samples in flight."""
    runs: BoolArray = np.isfinite(nodes.work_us.sum(axis=2))
    return NodeCosts(
        np.where(runs[:, :, None], nodes.work_us, 0.0),
        runs,
        nodes.forward_us,
        nodes.memory_bytes.astype(np.float64),
        nodes.sync_us,
        np.bincount(nodes.node, minlength=nodes.n_nodes).astype(np.float64),
        np.bincount(nodes.node, return_ops(problem), nodes.n_nodes).astype(np.float64),
        build_transfer_costs(nodes.hyperedges, nodes.n_nodes),
        rule.n_passes * rule.n_resources,
        build_transfer_costs(nodes.held, nodes.n_nodes),
        devices,
        devices if rule.replicate else np.ones_like(devices),
        nodes.price,
        capacities_bytes(problem, nodes.kinds),
        rule.transfers == "sum",
        samples,
        0.0,
        NEITHER,
        rule.recompute,
        -1.0,
        bool(samples.max() == 1),
    )


def count_cells(devices: IntArray) -> int:
    """Count the cells of each ideal."""
    return int(np.prod(devices + 1))


def empty_table(
    lattice: Lattice, devices: IntArray, first: int = 0, *, anywhere: bool = False
) -> Table:
    """Make an empty table, to be filled from an ideal on.

    If ``anywhere``, the first devices may stay unused. The cells before a stage then say how many
    devices there are from this stage on.
    """
    shape = lattice.n_ideals, count_cells(devices)
    best = np.full(shape, np.inf)
    best[first, : None if anywhere else 1] = 0.0
    return Table(best, np.full(shape, -1, dtype=np.int32), np.full(shape, -1, dtype=np.int16))


@kernel
def sum_below(lattice: Lattice, of_node: FloatArray) -> FloatArray:  # pragma: no cover - compiled
    """Sum over the nodes of each ideal; shape (n_ideals, n_columns).

    Parameters
    ----------
    of_node : float array, shape (n_nodes, n_columns)
    """
    ptr = lattice.ptr
    total = np.zeros((len(ptr) - 1, of_node.shape[1]))
    for ideal in range(len(ptr) - 1):
        for edge in range(ptr[ideal], ptr[ideal + 1]):
            total[lattice.next_ideal[edge]] = total[ideal] + of_node[lattice.added[edge]]
    return total


@kernel
def fill(
    lattice: Lattice,
    costs: NodeCosts,
    limit_us: FloatArray,
    capable: BoolArray,
    table: Table,
    first: int,
    budget: int,
) -> int:  # pragma: no cover - compiled
    """Fill the table from an ideal on; return the next ideal when the budget is spent.

    Parameters
    ----------
    limit_us : float array, shape (n_passes,)
        Upper limits of the loads.
    capable : bool array, shape (n_ideals, n_cells)
        False where the remaining devices cannot do the remaining work.
    budget : int
        Number of ideals to reach before returning.
    """
    n_ideals = len(lattice.ptr) - 1
    walk = new_walk(lattice, len(costs.memory_bytes))
    share = _new_share(costs, len(limit_us))
    cells = np.zeros(table.best_us.shape[1], dtype=np.int64)
    least_us = np.zeros(table.best_us.shape[1])
    used, stride = _count_used(costs.devices, table.best_us.shape[1])
    # Where the samples in flight depend on the cell, fewer devices are not always as good.
    fewer_do = costs.samples.min() == costs.samples.max()
    visits = 0
    for base in range(first, n_ideals):
        # The caller then checks whether to stop; between two bases the walk keeps no state.
        if visits > budget:
            return base
        is_largest = costs.cpu_op_us < 0.0 and costs.period_us <= 0.0
        most_us = limit_us[-1] if is_largest else np.inf
        if fewer_do:
            _close_needless_cells(table.best_us[base], used, stride, least_us, capable[base])
        n_open = _find_open_cells(table.best_us[base], capable[base], most_us, cells)
        if n_open > 0:
            _clear(share)
            begin(walk, lattice, base)
            visits += _extend(
                lattice, costs, limit_us, table, walk, share, cells[:n_open], used, stride
            )
    return n_ideals


@helper
def _count_used(
    devices: IntArray, n_cells: int
) -> tuple[IntArray, IntArray]:  # pragma: no cover - compiled
    """Count the devices of each kind in each cell, and how far apart the cells of one more are."""
    n_kinds = len(devices)
    used, stride = np.zeros((n_cells, n_kinds), np.int64), np.ones(n_kinds, np.int64)
    for kind in range(n_kinds - 2, -1, -1):
        stride[kind] = stride[kind + 1] * (devices[kind + 1] + 1)
    for cell in range(n_cells):
        for kind in range(n_kinds):
            used[cell, kind] = cell // stride[kind] % (devices[kind] + 1)
    return used, stride


@loop
def _extend(
    lattice: Lattice,
    costs: NodeCosts,
    limit_us: FloatArray,
    table: Table,
    walk: Walk,
    share: _Share,
    cells: IntArray,
    used: IntArray,
    stride: IntArray,
) -> int:  # pragma: no cover - compiled
    """Try the nodes between the base of a walk and each ideal as a stage; return how many."""
    depth, visits, base, last = 0, 0, walk.ideal[0], len(limit_us) - 1
    fewest = costs.samples[cells[0]]
    for cell in cells:
        fewest = min(fewest, costs.samples[cell])
    while True:
        before = depth
        depth = advance(walk, lattice, before)
        if depth < 0:
            return visits
        node = node_between(walk, lattice, before, depth)
        if depth < before:
            _remove(share, costs, node)
            continue
        visits += 1
        _add(share, costs, node)
        if not _find_takers(share, costs, limit_us, fewest):
            turn_back(walk, lattice, depth)
            continue
        for kind in range(len(costs.devices)):
            if not share.may_take[kind]:
                continue
            place = _Place(kind, stride[kind], 0)
            reached, on_cpu = walk.ideal[depth], costs.price[kind] < 0
            own, kept = share.held[ONE], _kept_bytes(share)
            loads_us = (
                _load_us(share, costs, kind, 0, 0.0),
                _load_us(share, costs, kind, last, 0.0),
            )
            taken_us = _taken_us(share, costs, kind)
            sync_us, extra_us = share.total[SYNC], 0.0
            if on_cpu:
                sync_us, extra_us = 0.0, max(costs.cpu_op_us, 0.0) * share.total[OPS]
            stage = _Stage(base, reached, *loads_us, sync_us, taken_us, own, kept, extra_us)
            _offer(table, costs, limit_us, stage, cells, used, place)
            if costs.recompute and not on_cpu and share.held[RECEIVED] < kept:
                again_us = share.forward_us[kind]
                loads_us = (
                    _load_us(share, costs, kind, 0, 0.0 if last > 0 else again_us),
                    _load_us(share, costs, kind, last, again_us),
                )
                if costs.taken_first == BACK:
                    taken_us += again_us
                kept = share.held[RECEIVED]
                stage = _Stage(base, reached, *loads_us, sync_us, taken_us, own, kept, 0.0)
                place = _Place(kind, stride[kind], table.best_us.shape[1])
                _offer(table, costs, limit_us, stage, cells, used, place)


@helper
def _new_share(costs: NodeCosts, n_passes: int) -> _Share:  # pragma: no cover - compiled
    """Make the load of a device without nodes."""
    return _Share(
        np.zeros(len(costs.transfers.size), dtype=np.int64),
        np.zeros(costs.transfers.own_us.shape[1]),
        np.zeros((len(costs.devices), n_passes)),
        np.zeros(len(costs.devices)),
        np.zeros(4),
        np.zeros(len(costs.held.size), dtype=np.int64),
        np.zeros(costs.held.own_us.shape[1]),
        np.zeros(len(costs.devices), dtype=np.int64),
        np.zeros(len(costs.devices), dtype=np.bool_),
    )


@loop
def _clear(share: _Share) -> None:  # pragma: no cover - compiled
    """Reset the share, to drop rounding errors; the last walk has already left all pins at 0."""
    share.channel_us[:], share.work_us[:], share.forward_us[:] = 0.0, 0.0, 0.0
    share.total[:], share.held[:], share.barred[:] = 0.0, 0.0, 0


@loop
def _close_needless_cells(
    best_us: FloatArray,
    used: IntArray,
    stride: IntArray,
    least_us: FloatArray,
    capable: BoolArray,
) -> None:  # pragma: no cover - compiled
    """Close the cells of an ideal to which fewer devices offer the same value, or a smaller one."""
    for cell in range(len(best_us)):
        fewer_us = np.inf
        for kind in range(len(stride)):
            if used[cell, kind] > 0:
                fewer_us = min(fewer_us, least_us[cell - stride[kind]])
        capable[cell] &= best_us[cell] < fewer_us
        least_us[cell] = min(best_us[cell], fewer_us)


@loop
def _find_open_cells(
    best_us: FloatArray, capable: BoolArray, limit_us: float, cells: IntArray
) -> int:  # pragma: no cover - compiled
    """Write the cells of an ideal to continue from into ``cells``; return their number."""
    n = 0
    for cell in range(len(best_us)):
        if best_us[cell] < limit_us and capable[cell]:
            cells[n] = cell
            n += 1
    return n


@step
def _add(share: _Share, costs: NodeCosts, node: int) -> None:  # pragma: no cover - compiled
    """Add a node to the share."""
    share.total[BYTES] += costs.memory_bytes[node]
    share.total[SYNC] += costs.sync_us[node]
    for kind in range(len(share.barred)):
        share.barred[kind] += not costs.runs[kind, node]
        for p in range(share.work_us.shape[1]):
            share.work_us[kind, p] += costs.work_us[kind, node, p]
    add_transfers(costs.transfers, node, share.pins, share.channel_us)
    if costs.is_plain:
        return
    for kind in range(len(share.barred)):
        share.forward_us[kind] += costs.forward_us[kind, node]
    share.total[OPS] += costs.n_ops[node]
    share.total[BACK_OPS] += costs.back_ops[node]
    add_transfers(costs.held, node, share.held_pins, share.held)


@step
def _remove(share: _Share, costs: NodeCosts, node: int) -> None:  # pragma: no cover - compiled
    """Remove a node from the share."""
    share.total[BYTES] -= costs.memory_bytes[node]
    share.total[SYNC] -= costs.sync_us[node]
    for kind in range(len(share.barred)):
        share.barred[kind] -= not costs.runs[kind, node]
        for p in range(share.work_us.shape[1]):
            share.work_us[kind, p] -= costs.work_us[kind, node, p]
    remove_transfers(costs.transfers, node, share.pins, share.channel_us)
    if costs.is_plain:
        return
    for kind in range(len(share.barred)):
        share.forward_us[kind] -= costs.forward_us[kind, node]
    share.total[OPS] -= costs.n_ops[node]
    share.total[BACK_OPS] -= costs.back_ops[node]
    remove_transfers(costs.held, node, share.held_pins, share.held)


# Only work, memory and barred nodes decide where a walk turns back, because they grow with every
# node, while the time of transfers may fall again.


@step
def _kept_bytes(share: _Share) -> float:  # pragma: no cover - compiled
    """Return what a device keeps of each further sample: nothing if none returns to it."""
    return float(share.held[KEPT]) if share.total[BACK_OPS] > 0.0 else 0.0


@step
def _find_takers(
    share: _Share, costs: NodeCosts, limit_us: FloatArray, fewest: int
) -> bool:  # pragma: no cover - compiled
    """Find the kinds of devices that may take the share, before its transfers count.

    ``fewest`` is the least number of samples in flight. As in the paper, the sizes of all nodes
    must fit too; what they are depends on the rule.
    """
    any_may = False
    counts_samples = not (costs.is_plain or costs.recompute)
    for kind in range(len(costs.devices)):
        n_replicas, held = costs.most_replicas[kind], share.total[BYTES]
        if counts_samples:
            samples = fewest
            if n_replicas > 1:
                samples = -(-fewest // n_replicas)
            own = share.held[ONE] + (samples - 1) * _kept_bytes(share)
            held = max(held, own)
        may = share.barred[kind] == 0 and held <= costs.capacity_bytes[kind]
        may &= costs.devices[kind] > 0
        for p in range(len(limit_us)):
            may &= share.work_us[kind, p] < limit_us[p] * n_replicas
        share.may_take[kind] = may
        any_may |= may
    return any_may


@step
def _load_us(
    share: _Share, costs: NodeCosts, kind: int, p: int, again_us: float
) -> float:  # pragma: no cover - compiled
    """Return a device's load in a pass: compute shares the first resource with transfers.

    CPUs pay for no transfers. ``again_us`` is the time of forward ops that run again.
    """
    load = float(share.work_us[kind, p] + again_us)
    if costs.price[kind] >= 0:
        n_channels = costs.n_channels
        n_resources = n_channels // share.work_us.shape[1]
        first = costs.price[kind] * n_channels + p * n_resources
        load += share.channel_us[first]
        for c in range(first + 1, first + n_resources):
            load = max(load, share.channel_us[c])
    return load


@step
def _offer(
    table: Table,
    costs: NodeCosts,
    limit_us: FloatArray,
    stage: _Stage,
    cells: IntArray,
    used: IntArray,
    place: _Place,
) -> None:  # pragma: no cover - compiled
    """Improve the cells of an ideal with a stage on one device, or on several replicas."""
    last = len(limit_us) - 1
    for count in range(1, costs.most_replicas[place.kind] + 1):
        reduce_us = (count - 1) * stage.sync_us / count
        load_us = stage.last_us / count
        load_us = load_us + reduce_us if costs.sums_sync else max(load_us, reduce_us)
        if load_us < limit_us[last] and (last == 0 or stage.first_us / count < limit_us[0]):
            _improve(table, costs, stage, cells, used, load_us, count, place)


@loop
def _improve(
    table: Table,
    costs: NodeCosts,
    stage: _Stage,
    cells: IntArray,
    used: IntArray,
    load_us: float,
    count: int,
    place: _Place,
) -> None:  # pragma: no cover - compiled
    """Record each cell where a stage on some devices makes the value smaller, if its samples fit.

    ``count`` is the number of devices.
    """
    kind = place.kind
    for cell in cells:
        if used[cell, kind] + count > costs.devices[kind]:
            continue
        to = cell + count * place.stride
        before_us = table.best_us[stage.base, cell]
        value_us = max(before_us, load_us)
        if not costs.is_plain:
            samples = -(-costs.samples[cell] // count)
            if costs.period_us > 0.0:
                period_us, whole_us = count * costs.period_us, count * load_us
                room_us = period_us - whole_us
                if costs.taken_first == FREELY:
                    gap_us = before_us
                    samples = int(np.ceil((gap_us + whole_us) / period_us - CLOSE))
                else:
                    gap_us = _wait_for_room(before_us - stage.taken_us, period_us, room_us)
                    samples = int(gap_us // period_us) + 1
                value_us = gap_us + whole_us - stage.taken_us
            elif costs.cpu_op_us >= 0.0:
                value_us = before_us + load_us + stage.extra_us
            held_bytes = stage.own_bytes + (samples - 1) * stage.further_bytes
            if held_bytes > costs.capacity_bytes[kind]:
                continue
        if value_us < table.best_us[stage.reached, to]:
            table.best_us[stage.reached, to] = value_us
            table.from_ideal[stage.reached, to] = stage.base
            table.from_cell[stage.reached, to] = cell + place.mark


@step
def _taken_us(share: _Share, costs: NodeCosts, kind: int) -> float:  # pragma: no cover - compiled
    """Return the part of a share's work on a device that is in the pass that is taken first."""
    if costs.taken_first == AHEAD:
        return float(share.forward_us[kind])
    if costs.taken_first == BACK:
        return float(share.work_us[kind, -1] - share.forward_us[kind])
    return 0.0
