"""Stamping: the choice made for one block of ops, made for all blocks like it. No Qt."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from enplace.errors import EnplaceError
from enplace.names.blocks import find_blocks
from enplace.text import count, listed
from enplace.values.constraints import OP, Constraints, Kind, Pin, Row, same
from enplace.values.pins import FREE, Pins
from enplace.values.profile import IntArray
from enplace_studio.model.edits import constrain
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.previews import peak_text
from enplace_studio.model.prices import change_text, price_text


@dataclass(frozen=True, eq=False)
class Stamp:
    """A choice about to be made for several blocks.

    Attributes
    ----------
    blocks : int array, shape (n_blocks, n_ops)
        The block that the choice was made for, then those like it.
    title, price : str
        What would be done, and the step time and memory then.
    """

    blocks: IntArray
    title: str
    price: str

    @property
    def ops(self) -> frozenset[int]:
        """The ops of all blocks."""
        return frozenset(self.blocks.ravel().tolist())


def find_stamp(project: OpenProject, ops: Collection[int]) -> Stamp:
    """Find the blocks like some ops, and what the same choice for all of them would cost.

    Raises
    ------
    EnplaceError
        If no block is like them, nothing was chosen for them, or the others cannot follow.
    """
    # An order is no edge of the model: it does not make a block unlike the others.
    blocks = find_blocks(project.problem.measured_profile, ops)
    what = project.describe(ops)
    if len(blocks) == 1:
        raise EnplaceError(
            f"no other layer has a part like {what}: the same ops with the same edges between them"
        )
    after = stamp(project, blocks)
    more = count(len(blocks) - 1, "more block")
    title = f"{more} of {count(blocks.shape[1], 'op')} like {what}"
    return Stamp(blocks, title, f"{_choice(project, blocks[0])}: {_price(project, after)}")


def stamp(project: OpenProject, blocks: IntArray) -> OpenProject:
    """Make the choice for the first block for all blocks.

    Devices are those of the current plan, pinned, or else those that the ops are pinned to.

    Raises
    ------
    EnplaceError
        If nothing was chosen, an op cannot or must not run on its device, or ops would wait for
        each other.
    """
    problem, plan = project.problem, project.current.plan if project.current else None
    pinned_to = problem.pinned_to.copy()
    if plan is not None:
        devices = plan.device.copy()
        devices[blocks] = devices[blocks[0]]
        pinned_to[blocks] = devices[blocks]
        plan = replace(plan, device=devices)
    else:
        chosen = pinned_to[blocks[0]] != FREE
        pinned_to[blocks[:, chosen]] = pinned_to[blocks[0, chosen]]
    # Ops that are pinned need not be kept off the other devices.
    said = problem.constraints if plan is None else problem.constraints.replaced(forbidden=())
    constraints = problem.constraints.with_rows(_copies(said, blocks.tolist()))
    constraints = constraints.replaced(pins=Pins(pinned_to))
    if plan is None and constraints == problem.constraints:
        raise EnplaceError("nothing was chosen for these ops yet; solve, pin or colocate first")
    return constrain(project, plan=plan, **constraints.by_field)


def _copies(constraints: Constraints, blocks: list[list[int]]) -> dict[str, list[Row]]:
    """Return what holds within the first block, but for pins, for all blocks."""
    column = {op: at for at, op in enumerate(blocks[0])}

    def copies(kind: Kind, row: Row) -> Iterator[Row]:
        inner = tuple(op for op in row if op in column) if kind.many else row
        ends = list(kind.ends([inner], OP))
        if len(ends) > kind.many and all(op in column for op in ends):
            for ops in blocks:
                others = {op: [ops[at]] for op, at in column.items()}
                yield from kind.mapped(inner, others.__getitem__, same)

    return {
        kind.key: [copy for row in rows for copy in copies(kind, row)]
        for kind, rows in constraints.items()
        if kind.key != Pin.key
    }


def _choice(project: OpenProject, ops: IntArray) -> str:
    """Name the devices that the blocks will be pinned to."""
    if project.current is None:
        return "The same constraints for all"
    devices = np.unique(project.current.plan.device[ops]).tolist()
    return f"All pinned to {listed([project.device_label(device) for device in devices])}"


def _price(project: OpenProject, after: OpenProject) -> str:
    """Say what step time and memory would be; empty without a plan."""
    if project.current is None or after.current is None:
        return "there is no plan yet"
    before, schedule = project.current.schedule, after.current.schedule
    peak = peak_text(project, schedule.peak_bytes)
    return f"{change_text(before, schedule)}, {price_text(schedule)} · {peak}"
