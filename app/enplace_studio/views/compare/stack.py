"""The stacked timelines: one block of lanes for each plan, all on one time axis."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFont, QFontMetricsF

from enplace.machine import CriticalPath, critical_path
from enplace.pictures.tracks import trace_path
from enplace.values.memory import MemoryCurve
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.differences import count_whole, moved_ops, same_ops
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.timelines.lanes import Gutter, Lanes, row_title
from enplace_studio.timelines.navigation import Surface
from enplace_studio.timelines.picture import Picture, selected_curves
from enplace_studio.timelines.rows import Row, rows_of
from enplace_studio.timelines.scale import TimeScale
from enplace_studio.views.compare.compare_facts import LETTERS, busy_devices, used_devices
from enplace_studio.widgets.theme import theme

SAME = 0.45
"""Share of a device's colour in a bar whose op runs on the same device in plan A."""
NAME_PX, END_PX = 128, 76
"""Room for a plan's name before its lanes, and for a difference after the end of its step."""
NAME_SHARE, BESIDE_NAME_PX = 0.13, 33
"""Share of a wide canvas that long names of plans may take, and the room that one leaves there."""
MEMORY_PX, MOST_MEMORY_PX, GAP_PX = 24, 220, 18
MEMORY_SHARE = 0.28
"""Share of a block's height for its memory, within these limits."""
LEAST_ROWS_PX = 40


@dataclass(frozen=True, eq=False)
class Contents:
    """What is drawn of a schedule, whatever plans it is compared with."""

    path: CriticalPath
    rows: list[Row]
    memory: tuple[MemoryCurve, ...]

    @staticmethod
    def of(schedule: Schedule) -> Contents:
        """Compute everything; on a huge graph this takes longer than a frame."""
        return Contents(critical_path(schedule), rows_of(schedule), schedule.memory)


class Block:
    """One plan: its lanes, and below them its memory.

    Parameters
    ----------
    reference : Schedule
        That of plan A: ops that run elsewhere than there stand out; in A itself, those that
        another plan runs elsewhere.
    devices : collection of int
        The devices that have lanes; those that do next to nothing in this plan have low ones.

    Attributes
    ----------
    top : float
        Upper edge on the canvas before scrolling.
    selected : int array
        The selected ops, numbered as in this plan's graph.
    """

    def __init__(
        self,
        entry: PlanEntry,
        letter: str,
        contents: Contents,
        reference: Schedule,
        devices: Collection[int],
    ) -> None:
        self.entry, self.letter, self.contents = entry, letter, contents
        self.schedule = entry.schedule
        self.picture = Picture(Lanes(), self.schedule, second=SAME, dims=False)
        self.top, self.moved_text = 0.0, ""
        self.selected: IntArray = np.zeros(0, dtype=np.int64)
        self._is_reference = self.schedule is reference
        busy = busy_devices([self.schedule])
        self.lanes.rows = [
            replace(row, thin=row.thin or (row.is_device and row.device not in busy))
            for row in contents.rows
            if row.device in devices or not row.is_device
        ]
        self.compare_with(reference)
        self.picture.trace = trace_path(contents.path, self.lanes.rows)

    def compare_with(self, other: Schedule) -> None:
        """Let the ops stand out that another plan runs elsewhere."""
        problem = self.schedule.problem
        moved, same = moved_ops(self.schedule, other), np.ones(problem.profile.n_ops, dtype=bool)
        same[moved] = False
        self.lanes.rows = [
            replace(row, odd=same[row.numbers]) if row.is_device else row for row in self.lanes.rows
        ]
        n_moved = 0 if moved is None else count_whole(moved, problem, other.problem)
        way = "leave" if self._is_reference else "arrive"
        self.moved_text = f"{n_moved:,} {way}" if n_moved else ""

    @property
    def lanes(self) -> Lanes:
        return self.picture.lanes

    def select(self, selection: Collection[int], shown: Problem) -> None:
        """Highlight ops of the graph that the user selects in."""
        problem = self.schedule.problem
        self.selected = same_ops(selection, shown, problem)
        self.picture.selection = frozenset(self.selected.tolist())
        n_ops = problem.profile.n_ops
        self.picture.selected = selected_curves(self.lanes.rows, n_ops, self.picture.selection)

    @property
    def rows_px(self) -> float:
        return self.lanes.content_px


def make_blocks(entries: Sequence[PlanEntry], known: Mapping[Schedule, Contents]) -> list[Block]:
    """Make the blocks of these plans, the reference first; any thread may call it.

    Parameters
    ----------
    known : mapping
        The contents that have been computed before.
    """
    schedules = [entry.schedule for entry in entries]
    devices = used_devices(schedules)
    blocks = [
        Block(entry, letter, known.get(entry.schedule) or Contents.of(entry.schedule),
              schedules[0], devices)
        for letter, entry in zip(LETTERS, entries, strict=False)
    ]  # fmt: skip
    if len(blocks) > 1:
        blocks[0].compare_with(schedules[-1])
    for block in blocks:
        for row in block.lanes.rows:
            _ = row.curves  # sorted here and not in the first frame
    return blocks


class Stack(Surface):
    """The blocks from top to bottom and the time from left to right.

    All blocks show the same part of the time axis.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.devices: list[int] = []
        super().__init__()
        self._gutter, self._memory_px = Gutter(0, 0), 0.0

    # Contents

    def show(self, blocks: Sequence[Block]) -> None:
        """Show these blocks, that of the reference first."""
        self.blocks = list(blocks)
        self.end_us = max((block.schedule.makespan_us for block in blocks), default=1.0)
        self.devices = sorted(used_devices([block.schedule for block in blocks]))

    def select(self, selection: Collection[int], shown: Problem) -> None:
        """Highlight ops of the graph that the user selects in, in all blocks."""
        for block in self.blocks:
            block.select(selection, shown)

    @property
    def most_bytes(self) -> float:
        """The highest peak of all plans and devices: the top of every memory curve."""
        peaks = [int(b.schedule.peak_bytes[self.devices].max(initial=0)) for b in self.blocks]
        return float(max(peaks, default=0)) or 1.0

    # Geometry

    @property
    def scale(self) -> TimeScale:
        return self._scale

    @scale.setter
    def scale(self, scale: TimeScale) -> None:
        self._scale = scale
        for block in self.blocks:
            block.lanes.scale = scale

    @property
    def left(self) -> int:
        """Left edge of the lanes."""
        return self._gutter.all_px

    @property
    def name_px(self) -> int:
        """Width of the column with the names of the plans."""
        return self._gutter.indent_px

    def lay_out(self, width: int, height: int, pixel_ratio: float) -> None:
        """Stack the blocks on a canvas of this size; if they do not fit, they scroll."""
        self._gutter = self._find_gutter(width)
        self.visible_px = max(height - self.axis_px, 0)
        gap_px, most_px = GAP_PX * theme.scale, MOST_MEMORY_PX * theme.scale
        each = self.visible_px / max(len(self.blocks), 1) - gap_px
        memory_px = min(max(MEMORY_SHARE * each, MEMORY_PX * theme.scale), most_px)
        rows_px = round(max(each - memory_px, LEAST_ROWS_PX)) + self.axis_px
        lane_width = width - round(END_PX * theme.scale)
        for block in self.blocks:
            block.lanes.pixel_ratio = pixel_ratio
            rows = block.lanes.rows
            block.lanes.lay_out(rows, self.end_us, lane_width, rows_px, self._gutter)
        highest = max((block.rows_px for block in self.blocks), default=0)
        self._memory_px = min(max(each - highest, memory_px), most_px)
        top = 0.0
        for block in self.blocks:
            block.top = top
            top += block.rows_px + self._memory_px + gap_px
        self.content_px = top
        lane_px = self.blocks[0].lanes.lane_px if self.blocks else 10.0
        self.scale = self.scale.resized(self.end_us, lane_px)
        self.scroll(0)

    def _find_gutter(self, width: int) -> Gutter:
        metrics = QFontMetricsF(theme.font(12, QFont.Weight.DemiBold))
        rows = [row for block in self.blocks for row in block.lanes.rows]
        titles = [*map(row_title, rows), "memory"]
        names = [metrics.horizontalAdvance(block.entry.name) for block in self.blocks]
        wanted = max(names, default=0) + BESIDE_NAME_PX * theme.scale
        indent = round(max(NAME_PX * theme.scale, min(wanted, NAME_SHARE * width)))
        right = indent + round(max(map(metrics.horizontalAdvance, titles))) + 12
        return Gutter(right, right, indent)

    def edges_us(self) -> FloatArray:
        """Compute the moments at the edges of the physical pixel columns."""
        return self.blocks[0].lanes.edges_us()

    def offset(self, block: Block) -> QPointF:
        """Return how far down a block's lanes are from where they would be alone."""
        return QPointF(0, block.top - self.scroll_px)

    def rows_area(self, block: Block) -> QRectF:
        """Return the area of a block's lanes on the canvas."""
        top = self.axis_px + block.top - self.scroll_px
        return QRectF(self.left, top, self.scale.width_px, block.rows_px)

    def memory_area(self, block: Block) -> QRectF:
        """Return the area of a block's memory curves on the canvas."""
        rows = self.rows_area(block)
        return QRectF(rows.left(), rows.bottom(), rows.width(), self._memory_px)

    # From pixels to contents

    def time_at(self, x: float) -> float:
        return self.scale.time(x - self.left)

    def block_at(self, at: QPointF) -> Block | None:
        """Find the block at the pointer, its memory included."""
        for block in self.blocks:
            if self.rows_area(block).top() <= at.y() <= self.memory_area(block).bottom():
                return block if at.y() >= self.axis_px else None
        return None

    def bar_at(self, at: QPointF) -> tuple[Block, Row, int] | None:
        """Find the block, the row and the op or transfer at the pointer."""
        block = self.block_at(at)
        found = block.lanes.bar_at(at - self.offset(block)) if block else None
        return None if block is None or found is None else (block, *found)

    def row_at(self, at: QPointF) -> tuple[Block, Row] | None:
        """Find the block and the row at the pointer."""
        block = self.block_at(at)
        if block is None or self.memory_area(block).contains(QPointF(self.left, at.y())):
            return None
        index = block.lanes.row_at(at - self.offset(block))
        return None if index is None else (block, block.lanes.rows[index])

    def op_at(self, at: QPointF) -> tuple[Problem, int] | None:
        """Find the op at the pointer, and the problem whose graph it is in."""
        found = self.bar_at(at)
        return (found[0].schedule.problem, found[2]) if found and found[1].is_device else None
