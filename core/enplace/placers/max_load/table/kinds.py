"""Kinds of devices, among which a partition chooses.

Devices of a kind can be exchanged: they take the same time, hold as much, pay the same for their
transfers and are allowed to the same ops. So a dynamic program need not know which of them are
used, only how many. A pin sets its device apart from all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from enplace.machine.host_links import machine_of, sample_us
from enplace.machine.op_passes import work_per_sample_us
from enplace.values.load_rule import LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

MOST_CELLS, CELLS_AND_UNITS = 8192, 1 << 24
"""Most ways to count the devices of each kind that are used, and what their number times that of
the placement units may be; with more, kinds are joined."""


@dataclass(frozen=True, eq=False)
class Kinds:
    """The devices of each kind, accelerators first.

    Of partitions that are equal, the one found uses few of the first kinds, so the first
    accelerators are of the last of theirs.

    Attributes
    ----------
    devices : tuple of int arrays
    is_gpu : bool array, shape (n_kinds,)
    are_exact : bool
        Whether the devices of a kind can be exchanged. Otherwise each counts as the slowest and
        smallest of them.
    constrained : bool
        Whether constraints on ops count.
    """

    devices: tuple[IntArray, ...]
    is_gpu: BoolArray
    are_exact: bool = True
    constrained: bool = True

    @property
    def counts(self) -> IntArray:
        """The number of devices of each kind."""
        return np.array([len(each) for each in self.devices])


def find_kinds(problem: Problem, rule: LoadRule) -> Kinds:
    """Find kinds of devices; those most alike are joined if they are too many to count each.

    Where accelerators take turns, or are divided between machines, all of them count as one kind.
    """
    takes_turns = rule.pipeline == "interleaved"
    in_machines = rule.two_level and bool(machine_of(problem.cluster).any())
    if takes_turns or in_machines:
        return join_kinds(problem)
    return _join_most_alike(problem, _find_alike(problem))


def _join_most_alike(problem: Problem, found: Kinds) -> Kinds:
    """Join kinds that are allowed to the same ops until there are few enough."""
    devices, us = list(found.devices), problem.time_us
    work_us = np.where(np.isfinite(us), us, 0.0).sum(axis=0)
    capacity = problem.cluster.capacity_bytes.astype(np.float64)
    on_gpu = np.isin(np.arange(len(capacity)), problem.cluster.gpus)

    def loss(one: IntArray, other: IntArray) -> float:
        """Return the share of speed and memory that is lost if two kinds are joined."""
        both = np.concatenate([one, other])
        allowed = problem.unit_allowed[:, both]
        if on_gpu[one[0]] != on_gpu[other[0]] or (allowed != allowed[:, :1]).any():
            return np.inf
        slowest_us, smallest = work_us[both].max(), capacity[both].min()
        slower = 1.0 - work_us[both] / slowest_us if slowest_us > 0 else np.zeros(len(both))
        return float((slower + 1.0 - smallest / capacity[both]).sum())

    most = min(MOST_CELLS, CELLS_AND_UNITS // problem.n_units)
    while np.prod([len(each) + 1.0 for each in devices]) > most:
        pairs = list(combinations(range(len(devices)), 2))
        losses = [loss(devices[a], devices[b]) for a, b in pairs]
        if not pairs or np.isinf(min(losses)):
            return join_kinds(problem)
        a, b = pairs[int(np.argmin(losses))]
        devices[a] = np.sort(np.concatenate([devices[a], devices.pop(b)]))
    if len(devices) == len(found.devices):
        return found
    is_gpu: BoolArray = on_gpu[[each[0] for each in devices]]
    return Kinds(tuple(devices), is_gpu, are_exact=False)


def join_kinds(problem: Problem) -> Kinds:
    """Make one kind of all accelerators, and one of all CPUs."""
    cluster = problem.cluster
    devices = tuple(np.array(each, dtype=np.int64) for each in (cluster.gpus, cluster.cpus))
    most = [len(each) for each in devices if len(each)]
    are_exact = most == [len(each) for each in _find_alike(problem).devices]
    return Kinds(devices, np.array([True, False]), are_exact, constrained=are_exact)


def _find_alike(problem: Problem) -> Kinds:
    cluster, us = problem.cluster, sample_us(problem)
    found: dict[tuple[object, ...], list[int]] = {}
    for d in range(cluster.n_devices):
        columns = problem.time_us[:, d], us[:, d], problem.unit_allowed[:, d]
        key = (*(each.tobytes() for each in columns), cluster.capacity_bytes[d], d in cluster.gpus)
        found.setdefault(key, []).append(d)
    every = [np.array(each, dtype=np.int64) for each in found.values()]
    on_gpu = [each for each in every if each[0] in cluster.gpus]
    on_cpu = [each for each in every if each[0] in cluster.cpus]
    is_gpu = np.arange(len(every)) < len(on_gpu)
    return Kinds((*on_gpu[::-1], *on_cpu), is_gpu)


def times_us(problem: Problem, kinds: Kinds, rule: LoadRule) -> FloatArray:
    """Find the time of each op on each kind of device; (n_ops, n_kinds), inf where it may not run.

    The time is that per sample. Of devices that differ, the slowest counts.
    """
    us = work_per_sample_us(problem, rule.microbatches)
    if kinds.constrained:
        us = np.where(problem.unit_allowed[problem.unit], us, np.inf)
    nowhere = np.full(len(us), np.inf)
    return np.column_stack(
        [us[:, each].max(axis=1) if len(each) else nowhere for each in kinds.devices]
    )


def capacities_bytes(problem: Problem, kinds: Kinds) -> FloatArray:
    """Find the memory of each kind of device, of the smallest if they differ; (n_kinds,)."""
    capacity = problem.cluster.capacity_bytes
    smallest = [min(capacity[each].tolist(), default=np.inf) for each in kinds.devices]
    return np.array(smallest, dtype=np.float64)


def prices_of_kinds_us(problem: Problem, kinds: Kinds) -> tuple[FloatArray, IntArray]:
    """Find what the accelerators of each kind pay for a tensor that crosses their border.

    Returns
    -------
    float array, shape (n_tensors, n_prices)
        Different prices only.
    int array, shape (n_kinds,)
        The number of the price; -1 for CPUs, which pay nothing.
    """
    us, price = sample_us(problem), np.full(len(kinds.devices), -1, dtype=np.int64)
    found: dict[bytes, int] = {}
    columns: list[FloatArray] = []
    for kind in np.flatnonzero(kinds.is_gpu).tolist():
        column = us[:, kinds.devices[kind]].max(axis=1, initial=0.0)
        price[kind] = found.setdefault(column.tobytes(), len(found))
        if len(found) > len(columns):
            columns.append(column)
    return np.column_stack(columns or [np.zeros(len(us))]), price
