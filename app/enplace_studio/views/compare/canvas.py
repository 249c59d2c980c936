"""The surface with the stacked timelines: translates input into requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import (
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QMenu

from enplace.text import ms, size
from enplace.values.problem import Problem
from enplace_studio.explain.differences import are_alike, same_ops
from enplace_studio.explain.intervals import Interval
from enplace_studio.explain.start_times import device_of
from enplace_studio.model.document import Document
from enplace_studio.timelines.navigation import TimeCanvas
from enplace_studio.timelines.waiting import describe_gap, describe_op, describe_transfer
from enplace_studio.views.compare.paint import paint_stack
from enplace_studio.views.compare.stack import Block, Stack
from enplace_studio.widgets.dragging import EXTEND, is_drag
from enplace_studio.widgets.drawing import draw_text
from enplace_studio.widgets.op_menu import op_menu, transfer_menu
from enplace_studio.widgets.theme import theme

_CENTRE = Qt.AlignmentFlag.AlignCenter


class CompareCanvas(TimeCanvas):
    """Timelines one below the other; a drag across time selects an interval in all of them.

    Attributes
    ----------
    stack : Stack
        The plans and their positions.
    changes : list of str
        The difference of each plan's step time from that of A; empty for A.
    bound_us : float or None
        What no plan can beat.
    interval : Interval or None
        The selected part of the time axis.
    is_awaited : bool
        Whether plans are being drawn that nothing is shown of yet.
    """

    interval_changed = Signal()

    def __init__(self, document: Document) -> None:
        self.stack = Stack()
        super().__init__("Timelines of the compared plans", self.stack, (260, 80), (700, 300))
        self._document = document
        self.changes: list[str] = []
        self.bound_us: float | None = None
        self.interval: Interval | None = None
        self.is_awaited = False
        self._pressed: QPointF | None = None
        self._is_dragging = False

    # Contents

    def show_blocks(self, blocks: Sequence[Block], changes: list[str]) -> None:
        """Show these plans, the reference first."""
        self.stack.show(blocks)
        self.changes = changes
        self.lay_out()
        self.show_selection()

    def await_blocks(self, awaited: bool) -> None:
        """Say that plans are being drawn, as long as none is shown."""
        self.is_awaited = awaited
        self.update()

    def show_target(self, place: int) -> None:
        """Let the ops of A stand out that the plan in a place runs elsewhere."""
        blocks = self.stack.blocks
        blocks[0].compare_with(blocks[place].schedule)
        self.show_selection()

    def show_selection(self) -> None:
        """Highlight the document's selection."""
        if self._document.problem is not None:
            self.stack.select(self._document.selection, self._document.problem)
        self.update()

    def show_bound(self, bound_us: float | None) -> None:
        """Show what no plan can beat."""
        self.bound_us = bound_us
        self.update()

    def set_interval(self, interval: Interval | None) -> None:
        """Select a part of the time axis, or none."""
        self.interval = interval
        self.interval_changed.emit()
        self.update()

    def lay_out(self) -> None:
        self.stack.lay_out(self.width(), self.height(), self.devicePixelRatioF())
        super().lay_out()

    # Navigation

    def focus_selection(self) -> None:
        """Show the time in which the selected ops run in any of the plans."""
        runs = [(b.schedule, b.selected) for b in self.stack.blocks if len(b.selected)]
        if runs:
            start_us = min(float(s.op_start_us[ops].min()) for s, ops in runs)
            finish_us = max(float(s.op_finish_us[ops].max()) for s, ops in runs)
            self.set_scale(self.stack.scale.around(start_us, finish_us))

    def _select_shown(self) -> None:
        """Select the interval that is on screen."""
        scale = self.stack.scale
        self.set_interval(Interval(scale.start_us, min(scale.stop_us, self.stack.end_us)))

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            area = QRectF(self.rect())
            if self.stack.blocks:
                bound_us, interval = self.bound_us, self.interval
                paint_stack(painter, self.stack, area, self.changes, bound_us, interval)
            elif self.is_awaited:
                draw_text(painter, area, "Drawing …", theme.font(12), theme.tokens.dim, _CENTRE)

    # The pointer

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        if event.button() == Qt.MouseButton.LeftButton:
            self._pressed, self._is_dragging = event.position(), False

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        at = event.position()
        if self._pressed is not None and self._pressed.x() >= self.stack.left:
            self._is_dragging |= is_drag(at - self._pressed)
            if self._is_dragging:
                self._drag_to(self._pressed, at)

    def _drag_to(self, start: QPointF, at: QPointF) -> None:
        """Select the interval between two points."""
        times = sorted(self.stack.time_at(point.x()) for point in (start, at))
        start_us, stop_us = (min(max(time, 0.0), self.stack.end_us) for time in times)
        self.set_interval(Interval(start_us, stop_us) if stop_us > start_us else None)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if self._pressed is not None and not self._is_dragging:
            self._click(event)
        super().mouseReleaseEvent(event)
        self._pressed = None
        self._is_dragging = False

    def _click(self, event: QMouseEvent) -> None:
        """Select the op at the pointer; a click beside all bars clears selection and interval."""
        found = self.stack.op_at(event.position())
        extend = bool(event.modifiers() & EXTEND)
        if found is not None or not extend:
            ops = [] if found is None else self._same_ops([found[1]], found[0])
            self._document.select(ops, extend=extend)
        if found is None and not extend:
            self.set_interval(None)

    def _same_ops(self, ops: Sequence[int], problem: Problem) -> list[int]:
        """Return the ops of the open graph that are these of a plan's graph."""
        shown = self._document.problem
        return [] if shown is None else same_ops(ops, problem, shown).tolist()

    def menu_at(self, at: QPointF) -> QMenu | None:
        """Make the menu of the op or transfer at a point."""
        found, project = self.stack.bar_at(at), self._document.project
        if found is None or project is None:
            return None
        block, row, number = found
        problem = block.schedule.problem
        if not row.is_device and are_alike(problem, project.problem):
            return transfer_menu(self._document, block.schedule, number, self)
        if not row.is_device:
            return None  # what it sends may not be a tensor of the open graph
        if number not in block.selected:
            self._document.select(self._same_ops([number], problem))
        return op_menu(self._document, project, self)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Zoom at the pointer; move along time with Shift, and up or down beside the lanes."""
        keys = event.modifiers()
        pans = bool(keys & Qt.KeyboardModifier.ShiftModifier or event.angleDelta().x())
        over_lanes = event.position().x() >= self.left
        zooms = over_lanes or bool(keys & Qt.KeyboardModifier.ControlModifier)
        self.wheel(event, zooms and not pans, pans)

    # Tooltips

    def tip_at(self, at: QPointF) -> str:
        """Return the tooltip at a point."""
        block = self.stack.block_at(at)
        if block is None:
            return ""
        if at.x() < self.stack.left:
            return f"{block.letter}   {block.entry.name}"
        if self.stack.memory_area(block).contains(at):
            return self._tip_of_memory(block, self.stack.time_at(at.x()))
        found, row = self.stack.bar_at(at), self.stack.row_at(at)
        if found is not None:
            describe = describe_op if found[1].is_device else describe_transfer
            return describe(block.schedule, found[2])
        if row is not None and row[1].is_planned:
            return describe_gap(block.schedule, row[1], self.stack.time_at(at.x()))
        return ""

    def _tip_of_memory(self, block: Block, time_us: float) -> str:
        """List the memory of each device at a moment."""
        capacity = block.schedule.problem.cluster.capacity_bytes
        lines = [f"Memory at {ms(time_us)}, of plan {block.letter}"]
        for device in self.stack.devices:
            curve = block.contents.memory[device]
            held = int(curve.bytes[curve.index_at(time_us)])
            lines.append(
                f"{device_of(block.schedule, device)}: {size(held)}, "
                f"peak {size(curve.peak_bytes)} of {size(int(capacity[device]))}"
            )
        return "\n".join(lines)

    # The keys

    def keys(self) -> dict[Qt.Key, Callable[[], None]]:
        return {**super().keys(), Qt.Key.Key_I: self._select_shown}

    def escape(self) -> None:
        """Forget the interval; without one, clear the selection."""
        self._pressed = None
        if self.interval is None:
            self._document.escape()
        self.set_interval(None)
