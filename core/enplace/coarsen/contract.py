"""Contraction: a problem whose ops are groups of ops, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from enplace.compiling import kernel
from enplace.machine.layout import Machine, build_machine
from enplace.values.arrays import BoolArray, IntArray, adjacency, csr_offsets, inverse
from enplace.values.columns import Merge
from enplace.values.components import components
from enplace.values.constraints import Constraints
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import OpKind
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL, OP_COLUMNS, Profile, make_profile


def contract(problem: Problem, group: IntArray) -> Problem:
    """Make a problem in which each group is one op.

    A group has the time and the variables of all its ops. Tensors that leave it stay unchanged, so
    each is still sent once; the others are memory that it needs while it runs. It is allowed where
    all its ops are allowed, and shares a device with every group that has ops of one of its
    placement units.

    Parameters
    ----------
    group : int array, shape (n_ops,)
        Group of each op, numbered from 0 without gaps; contracting them must leave no cycle.

    Raises
    ------
    CycleError
        If it leaves one.
    """
    profile, cluster = problem.profile, problem.cluster
    n = int(group.max()) + 1
    order = np.lexsort((inverse(problem.profile.topological_order), group))
    order_ptr = csr_offsets(group[order], n)
    first = order[order_ptr[:-1]]
    source, target = group[profile.edge_source], group[profile.edge_op]
    leaves = source != target
    control = profile.tensor_output[profile.edge_tensor] == CONTROL
    columns = {
        label: _FOUND[label](problem, group, order)
        if each.merge is Merge.OWN
        else _merged(each.merge, getattr(profile, label), group, first)
        for label, each in OP_COLUMNS.items()
    }
    for number, (op, size) in enumerate(zip(first.tolist(), np.diff(order_ptr), strict=True)):
        if size > 1 and profile.kinds[op] == OpKind.VARIABLE:
            columns["op_kinds"][number] = OpKind.OTHER  # it gives out more than the variable
    contracted = make_profile(
        profile.name,
        op_names=[profile.op_names[op] for op in first.tolist()],
        **columns,
        edge_source=source[leaves],
        edge_output=np.where(control, CONTROL, profile.edge_tensor)[leaves],
        edge_op=target[leaves],
        edge_bytes=profile.tensor_bytes[profile.edge_tensor][leaves],
        **_memory_between(profile, group, leaves),
        measured=_backward_groups(profile, group),
    )
    allowed = np.ones((n, cluster.n_devices), dtype=bool)
    op_allowed = problem.unit_allowed[problem.unit]
    for device in range(cluster.n_devices):
        allowed[group[~op_allowed[:, device]], device] = False
    could = ~np.isnan(contracted.time_us)[:, cluster.kind]
    forbidden = map(tuple, np.argwhere(could & ~allowed).tolist())
    return Problem(contracted, cluster, Constraints(forbidden=forbidden))


def _memory_between(profile: Profile, group: IntArray, leaves: BoolArray) -> dict[str, IntArray]:
    """Find the holds of tensors that leave their group, and which of these share memory.

    Of tensors that lie in memory which their group makes, one that leaves stands for it: the memory
    itself, or else the largest. The other holds end with their group.
    """
    maker, buffer = group[profile.tensor_op], _buffers(profile, group)
    left = np.unique(profile.edge_tensor[leaves])
    last_is_best = left[np.lexsort((profile.tensor_bytes[left], buffer[left] == left))]
    stands = np.full(profile.n_tensors, -1)
    stands[buffer[last_is_best]] = last_is_best
    stands = stands[buffer]
    held = stands[profile.hold_tensor] >= 0
    tensor, op = stands[profile.hold_tensor[held]], profile.hold_op[held]
    of = np.where(stands[left] != left, stands[left], profile.tensor_base[buffer[left]])
    share, of = left[of >= 0], of[of >= 0]
    return {
        "holds": np.stack([maker[tensor], tensor, group[op]], axis=1),
        "shares": np.stack([maker[share], share, maker[of], of], axis=1),
    }


def _buffers(profile: Profile, group: IntArray) -> IntArray:
    """Find the tensor of its group in whose memory each lies, or itself; shape (n_tensors,)."""
    maker, buffer = group[profile.tensor_op], np.arange(profile.n_tensors)
    for tensor in profile.sharing[::-1].tolist():
        base = profile.tensor_base[tensor]
        if maker[base] == maker[tensor]:
            buffer[tensor] = buffer[base]
    return buffer


def _backward_groups(profile: Profile, group: IntArray) -> Measurement:
    """Find groups with backward ops if an input of 2020 lists these; nothing for other profiles."""
    backward = profile.measured.backward
    if backward is None:
        return Measurement()
    return Measurement(backward=tuple(np.unique(group[list(backward)]).tolist()))


def expand(problem: Problem, group: IntArray, plan: Plan) -> Plan:
    """Turn a plan of the contracted problem into one of the ops; a group's ops are consecutive.

    Parameters
    ----------
    problem : Problem
        The problem that was contracted by ``group``.
    """
    order = np.lexsort((inverse(problem.profile.topological_order), plan.position[group]))
    return Plan(
        plan.device[group], inverse(order), plan.method, policy=plan.policy, links=plan.links
    )


def _merged(merge: Merge, values: Any, group: IntArray, first: IntArray) -> Any:
    """Find what each group has of a column."""
    if merge is Merge.FIRST:
        return [values[op] for op in first.tolist()]
    total = np.zeros((len(first), *values.shape[1:]), dtype=values.dtype)
    np.add.at(total, group, values)
    return total


def _together(problem: Problem, group: IntArray, order: IntArray) -> list[str]:
    """Name each group's colocation group: groups that have ops of one placement unit share it."""
    n = int(group[order[-1]]) + 1
    units = n + problem.unit
    size = n + problem.n_units
    label = components(size, group, units)
    shared = np.bincount(label[:n], minlength=size) > 1
    return [str(number) if shared[number] else "" for number in label[:n].tolist()]


def _peak_inside(problem: Problem, group: IntArray, order: IntArray) -> IntArray:
    """Find the most bytes that a group needs besides variables and the tensors that leave it."""
    profile, n = problem.profile, problem.profile.n_tensors
    buffer = _buffers(profile, group)
    readers = adjacency(buffer[profile.edge_tensor], profile.edge_op, n)
    ends = adjacency(buffer[profile.hold_tensor], profile.hold_op, n)
    return _peaks(build_machine(problem), *readers, *ends, group, order, inverse(order))


_FOUND: dict[str, Callable[[Problem, IntArray, IntArray], Any]] = {
    "temporary_bytes": _peak_inside,
    "colocation": _together,
}
"""Columns of groups that are more than a sum."""


@kernel
def _peaks(
    machine: Machine,
    reader_ptr: IntArray,
    reader: IntArray,
    until_ptr: IntArray,
    until: IntArray,
    group: IntArray,
    order: IntArray,
    place: IntArray,
) -> IntArray:  # pragma: no cover - compiled
    """Run each group's ops in order; memory that stays inside is freed after its last use.

    ``reader`` and ``until`` have the ops that read a tensor, or until which it is held, and those
    of all that lies in its memory.
    """
    n_ops = len(order)
    dies = np.zeros(n_ops, np.int64)  # bytes that are freed after the op at a place
    peak = np.zeros(group[order[n_ops - 1]] + 1, np.int64)
    live, current = 0, -1
    for i in range(n_ops):
        op = order[i]
        if group[op] != current:
            live, current = 0, group[op]
        for tensor in range(machine.tensor_ptr[op], machine.tensor_ptr[op + 1]):
            last, inside = i, True
            for at in range(reader_ptr[tensor], reader_ptr[tensor + 1]):
                inside &= group[reader[at]] == current
                last = max(last, place[reader[at]])
            for at in range(until_ptr[tensor], until_ptr[tensor + 1]):
                if group[until[at]] == current:
                    last = max(last, place[until[at]])
            if inside:
                live += machine.held_bytes[tensor]
                dies[last] += machine.held_bytes[tensor]
        peak[current] = max(peak[current], live + machine.temporary_bytes[op])
        live -= dies[i]
    return peak
