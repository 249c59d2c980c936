"""How two schedules of one model differ. No Qt.

A plan that splits ops has a graph of its own. Where two graphs differ, ops are compared by the op
of the model that they are, or are made for.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import numpy as np

from enplace.machine import CriticalPath
from enplace.values.plan import find_reordered
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL, IntArray
from enplace.values.schedule import Schedule
from enplace.values.splits import Split, whole_names

_OUTPUT_BITS = 32


def path_parts(path: CriticalPath) -> dict[str, float]:
    """Return what a step time is made of, by name, in microseconds; the parts add up to it."""
    return {
        "compute": path.compute_us,
        "transfers": path.transfer_us,
        "waiting": path.waiting_us,
    }


def are_alike(one: Problem, other: Problem) -> bool:
    """Whether the graphs of two problems of one model have the same ops."""
    return one.splits == other.splits


@lru_cache(maxsize=4)
def _whole(problem: Problem) -> list[str]:
    return whole_names(problem.profile.op_names, problem.splits)


def same_ops(ops: Collection[int] | IntArray, one: Problem, other: Problem) -> IntArray:
    """Return the ops of another graph that are these, or are made for the same op of the model."""
    numbers = np.array(list(ops), dtype=np.int64)
    if are_alike(one, other):
        return numbers
    names = _whole(one)
    return ops_for({names[op] for op in numbers.tolist()}, other)


def ops_for(names: Collection[str], problem: Problem) -> IntArray:
    """Return the ops of a graph that are, or are made for, these ops of the model."""
    found = [op for op, name in enumerate(_whole(problem)) if name in names]
    return np.array(found, dtype=np.int64)


def count_whole(ops: IntArray, one: Problem, other: Problem) -> int:
    """Count ops; where the graphs differ, all parts of an op as one."""
    names = None if are_alike(one, other) else _whole(one)
    return len(ops) if names is None else len({names[op] for op in ops.tolist()})


def moved_ops(first: Schedule, second: Schedule) -> IntArray | None:
    """Return the ops of the first plan's graph that the second places differently.

    A split op is elsewhere, with all its parts, if any part is. None if the devices differ.
    """
    one, other = first.problem, second.problem
    if one.cluster.devices != other.cluster.devices:
        return None
    if are_alike(one, other):
        return np.flatnonzero(first.plan.device != second.plan.device)
    before, after = _devices_of(first), _devices_of(second)
    moved = [op for op, name in enumerate(_whole(one)) if before[name] != after.get(name)]
    return np.array(moved, dtype=np.int64)


def _devices_of(schedule: Schedule) -> dict[str, set[int]]:
    """Return on which devices each op of the model runs, in parts or as a whole."""
    found: dict[str, set[int]] = {}
    for name, device in zip(_whole(schedule.problem), schedule.plan.device.tolist(), strict=True):
        found.setdefault(name, set()).add(device)
    return found


def reordered_ops(first: Schedule, second: Schedule) -> IntArray:
    """Find the fewest ops that, moved within their device, give the one order from the other.

    They are ops of the first plan's graph; only ops that both graphs have can be among them.
    """
    one, there = first.plan, second.problem.profile.index
    if are_alike(first.problem, second.problem):
        ops = others = np.arange(len(one.device))
    else:
        both = [
            (op, there[name])
            for op, name in enumerate(first.problem.profile.op_names)
            if name in there
        ]
        ops, others = np.array(both, dtype=np.int64).reshape(-1, 2).T
    here, other = one.device[ops], second.plan.device[others]
    device = np.where(here == other, here, -1)
    return ops[find_reordered(device, one.position[ops], second.plan.position[others])]


def split_ops(one: Problem, other: Problem) -> tuple[set[str], set[str], set[str]]:
    """Name the ops that only the first graph splits, only the second, and both but differently."""
    first, second = _splits_of(one), _splits_of(other)
    both = first.keys() & second.keys()
    return (
        first.keys() - both,
        second.keys() - both,
        {op for op in both if first[op] != second[op]},
    )


def _splits_of(problem: Problem) -> dict[str, set[Split]]:
    """Return how each split op of the model is split, its parts included."""
    found: dict[str, set[Split]] = {}
    wholes = whole_names((split.op for split in problem.splits), problem.splits)
    for op, split in zip(wholes, problem.splits, strict=True):
        found.setdefault(op, set()).add(split)
    return found


def sent_bytes(schedule: Schedule) -> int:
    """Sum the bytes sent between devices in a step."""
    return int(schedule.transfer_bytes.sum())


def sent_outputs(schedule: Schedule) -> IntArray:
    """List the outputs that leave their device, in ascending order, as :func:`op_of` reads them.

    Numbers of tensors would not do: graphs with other orders number them differently.
    """
    sent, profile = np.unique(schedule.transfer_tensor), schedule.problem.profile
    sent = sent[profile.tensor_output[sent] != CONTROL]
    return (profile.tensor_op[sent] << _OUTPUT_BITS) + profile.tensor_output[sent]


def op_of(output: IntArray) -> IntArray:
    """Return the ops that make some outputs of :func:`sent_outputs`."""
    return output >> _OUTPUT_BITS
