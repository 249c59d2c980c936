"""Tells what loads a batch from what else runs before the first module.

Ops that depend on parameters, such as averages of them that follow the step before or a penalty on
large ones, run where the parameters are. A tensor that outlives the step and depends on one
parameter is part of that parameter's state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from enplace.frameworks.torch.step import INPUT, MODULE, STATE, RecordedOp, Step
from enplace.values.op_kinds import OpPass


def told_apart(step: Step) -> Step:
    """Return a step in which only what loads the batch is at the place of inputs."""
    owners = _owners(step)
    of_average = {
        number: min(owners[number])
        for number, each in enumerate(step.storages)
        if each.first < 0 and each.last >= len(step.ops) and not each.role
        if len(owners.get(number, ())) == 1
    }
    storages = tuple(
        replace(each, role=STATE, owner=of_average[n]) if n in of_average else each
        for n, each in enumerate(step.storages)
    )
    touched = {number for number, found in owners.items() if found}
    ops = [
        replace(op, place=MODULE)
        if op.place == INPUT
        and (op.pass_ != OpPass.FORWARD or not touched.isdisjoint(_touches(op)))
        else op
        for op in step.ops
    ]
    held = {number for number, each in enumerate(storages) if each.role}
    updates = _updates(step.ops, ops, held)
    return replace(
        step,
        storages=storages,
        ops=tuple(
            replace(op, pass_=OpPass.UPDATE) if n in updates else op for n, op in enumerate(ops)
        ),
    )


def _touches(op: RecordedOp) -> list[int]:
    return [*(number for number, _ in op.reads), *op.writes]


def _owners(step: Step) -> dict[int, set[str]]:
    """Find what parameters and buffers each storage depends on, apart from modules and losses."""
    found: dict[int, set[str]] = defaultdict(set)
    for number, each in enumerate(step.storages):
        if each.role:
            found[number].add(each.owner)
    for op in step.ops:
        if op.step_call or not (op.place == INPUT or op.pass_ == OpPass.UPDATE):
            continue
        given = set().union(*(found[number] for number, _ in op.reads if number in found))
        for number in (*op.makes, *op.writes):
            if not step.storages[number].role:
                found[number] |= given
    return found


def _updates(before: Sequence[RecordedOp], ops: Sequence[RecordedOp], held: set[int]) -> set[int]:
    """Find the ops moved out of the inputs whose results no loss depends on."""
    asked: set[int] = set()
    found: set[int] = set()
    for number in range(len(ops) - 1, -1, -1):
        op, reads = ops[number], {storage for storage, _ in ops[number].reads}
        if op is not before[number] and op.pass_ == OpPass.FORWARD:
            if asked.isdisjoint({*op.makes, *op.writes} - held):
                found.add(number)
                continue
        elif op.pass_ == OpPass.UPDATE or op.place == INPUT:
            continue
        asked |= reads
    return found
