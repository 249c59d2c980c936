"""The timeline's surface: follows the document, and translates input into requests."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QMenu, QWidget

from enplace.errors import OrderError, PlanError
from enplace.machine import critical_path
from enplace.pictures.tracks import trace_path
from enplace.values.schedule import Schedule
from enplace_studio.explain.queues import describe_queue, find_wait
from enplace_studio.explain.start_times import Gap, find_chain
from enplace_studio.jobs.call_later import call_later
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.notes import notes_about
from enplace_studio.model.ordering import find_range
from enplace_studio.timelines.lanes import SLACK_PX, Lanes
from enplace_studio.timelines.navigation import TimeCanvas
from enplace_studio.timelines.paint import bars_area
from enplace_studio.timelines.picture import (
    Picture,
    device_curves,
    paint_empty,
    paint_marker,
    paint_span,
    selected_curves,
)
from enplace_studio.timelines.rows import Row, rows_of
from enplace_studio.timelines.waiting import (
    describe_gap,
    describe_measured,
    describe_op,
    describe_path,
    describe_transfer,
    find_gap,
)
from enplace_studio.views.timeline.gestures import Band, Gesture, Move, Reorder, Span
from enplace_studio.widgets.device_menu import device_menu
from enplace_studio.widgets.dragging import EXTEND, is_drag
from enplace_studio.widgets.op_menu import gap_menu, op_menu, transfer_menu

_PATH_DELAY_MS = 30
AROUND = 3
"""Time shown before and after them then, as a multiple of theirs."""
LEAST_SHARE = 0.02
"""Marks over less of the time on screen than this are zoomed to when a reason is followed."""
SELECT_FIRST = "to move a bar along its lane, click it first"


class TimelineCanvas(TimeCanvas):
    """Rows of bars over time.

    Attributes
    ----------
    lanes : Lanes
        The positions of rows and moments.
    picture : Picture or None
        The picture shown; None without a plan.
    """

    wait_changed = Signal()
    summary_changed = Signal(str)
    """The parts of the step time; sent shortly after the schedule changed."""

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        self.lanes = Lanes()
        super().__init__("Timeline", self.lanes, (200, 60), (700, 150), parent)
        self.document = document
        self.picture: Picture | None = None
        self.marker_us: float | None = None
        self._entry: PlanEntry | None = None
        self._gesture: Gesture | None = None
        self._pressed: QPointF | None = None
        self._path_timer = QTimer(self, singleShot=True, interval=_PATH_DELAY_MS)
        self._path_timer.timeout.connect(self._trace_path)
        document.opened.connect(self._open)
        call_later(self, self._show_schedule, document.current_changed, document.grouping_changed)
        document.selection_changed.connect(self._show_selection)
        document.gap_changed.connect(self._show_gap)
        document.marks_changed.connect(self._show_marks)
        document.span_changed.connect(self.update)
        document.transfer_changed.connect(self._show_wait)
        self._open()

    # Contents

    def _open(self) -> None:
        """Show another model from its start."""
        self.marker_us = None
        self.lanes.scroll_px = 0.0
        self.lanes.end_us = 1.0
        self.fit()
        self._show_schedule()

    def _show_schedule(self) -> None:
        """Show another schedule; its critical path follows shortly after."""
        self._gesture = self._pressed = self.picture = None
        project, rows = self.document.project, []
        if project is not None and (current := project.current) is not None:
            rows = rows_of(current.schedule, project.grouping.group, current.run, queues=True)
            self.picture = Picture(
                self.lanes, current.schedule, project.baseline, groups=project.grouping
            )
            if self.picture.baseline is not None:
                self.picture.ghosts = device_curves(self.picture.baseline)
            self._path_timer.start()
        else:
            self.summary_changed.emit("")
        self.lanes.rows = rows
        self.lay_out()
        self._keep_zoom()
        self._show_selection()

    def _keep_zoom(self) -> None:
        """Keep the part of the step on screen while a plan is edited; show all of another plan."""
        before, self._entry = self._entry, self.document.current
        if before and self._entry and not self._entry.is_edit_of(before):
            self.fit()

    def _show_selection(self) -> None:
        picture, selection = self.picture, self.document.selection
        if picture is not None:
            n_ops = picture.schedule.problem.profile.n_ops
            picture.selection = selection
            picture.selected = selected_curves(self.lanes.rows, n_ops, selection)
            picture.marks = self.document.marks
        self.update()

    def _trace_path(self) -> None:
        if self.picture is not None:
            path = critical_path(self.picture.schedule)
            self.picture.trace = trace_path(path, self.lanes.rows)
            self.summary_changed.emit(describe_path(path))
            self.update()

    def _show_gap(self) -> None:
        """Mark the gap that the user asks about, and what the device waits for."""
        gap, project, picture = self.document.gap, self.document.project, self.picture
        if picture is not None and project is not None:
            picture.gap = gap
            picture.chain = None
            if gap is not None:
                path = find_chain(picture.schedule, project.grouping, gap).path
                picture.chain = trace_path(path, self.lanes.rows) if len(path.number) else None
        self.update()

    def _show_wait(self) -> None:
        """Mark the transfer that the user asks about, and those that it waits for."""
        transfer, picture = self.document.transfer, self.picture
        if picture is not None:
            picture.wait = None if transfer is None else find_wait(picture.schedule, transfer)
        self.wait_changed.emit()
        self.update()

    def _show_marks(self, reveal: bool) -> None:
        """Mark what a reason points at, and bring it into view if asked."""
        marks, scale = self.document.marks, self.lanes.scale
        if self.picture is not None:
            self.picture.marks = marks
        if reveal and marks:
            first = min(mark.start_us for mark in marks)
            last = max(mark.finish_us for mark in marks)
            is_small = last - first < LEAST_SHARE * (scale.stop_us - scale.start_us)
            if first < scale.start_us or last > scale.stop_us or is_small:
                around_us = AROUND * (last - first)
                self.set_scale(scale.around(first - around_us, last + around_us))
        self.update()

    def _end_us(self) -> float:
        """Return the last moment to show: the end of the step, its ghost or its run."""
        shown = (self.picture.schedule, self.picture.baseline) if self.picture else ()
        ends = [schedule.makespan_us for schedule in shown if schedule is not None]
        ends += [float(row.finish_us.max()) for row in self.lanes.rows if row.measured]
        return max(ends, default=1.0)

    def lay_out(self) -> None:
        self.lanes.pixel_ratio = self.devicePixelRatioF()
        self.lanes.lay_out(self.lanes.rows, self._end_us(), self.width(), self.height())
        super().lay_out()

    # Navigation

    def focus_selection(self) -> None:
        if self.picture is not None and self.document.selection:
            schedule = self.picture.schedule
            ops = np.fromiter(self.document.selection, dtype=np.int64)
            start, finish = schedule.op_start_us[ops], schedule.op_finish_us[ops]
            self.set_scale(self.lanes.scale.around(float(start.min()), float(finish.max())))

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            self._paint(painter, QRectF(self.rect()))

    def _paint(self, painter: QPainter, area: QRectF) -> None:
        if self.picture is None:
            paint_empty(painter, area)
            return
        self.picture.paint(painter, area)
        if (span := self.document.span) is not None:
            paint_span(painter, self.lanes, span, area)
        if self.marker_us is not None:
            paint_marker(painter, self.lanes, self.marker_us, self._pointer, area)
        if self._gesture is not None:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self._gesture.paint(painter, area)

    # The pointer

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        at = event.position()
        if event.button() == Qt.MouseButton.LeftButton and self.picture is not None:
            self._pressed = at

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        at = event.position()
        if self._gesture is None and self._pressed is not None:
            self._gesture = self._begin(self._pressed, at)
        if self._gesture is not None:
            self._gesture.move(at)
        if self._gesture is not None or self.marker_us is not None:
            self.update()

    def _begin(self, start: QPointF, at: QPointF) -> Gesture | None:
        """Move a planned bar if dragged up or down, or along the lane if it is selected.

        Along the axis, it selects a span. Everywhere else a drag is a rubber band.
        """
        if self.picture is None or not is_drag(at - start):
            return None
        if self._is_on_axis(start):
            return Span(self.document, self.lanes, start)
        op, way, schedule = self.lanes.op_at(start), at - start, self.picture.schedule
        is_along, is_selected = abs(way.x()) > abs(way.y()), op in self.document.selection
        if op is None or self.lanes.device_at(start) is None:
            return Band(self.document, self.lanes, start)
        if is_along and not is_selected:  # in a full lane, every band begins on a bar
            return Band(self.document, self.lanes, start, SELECT_FIRST)
        if not is_selected:
            self.document.select([op])
        if is_along:
            try:
                where = find_range(schedule, self.document.selection)
            except OrderError as error:
                self.document.failed.emit(str(error))
                return Band(self.document, self.lanes, start)
            except PlanError:  # on several devices
                return Band(self.document, self.lanes, start)
            return Reorder(self.document, self.lanes, schedule, where, start)
        return Move(self.document, self.lanes, schedule, start)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        super().mouseReleaseEvent(event)
        gesture, pressed = self._gesture, self._pressed
        self._gesture = self._pressed = None
        if gesture is not None:
            gesture.finish(event.position(), event.modifiers())
        elif pressed is not None:
            self._click(event)
        self.update()

    def _is_on_axis(self, at: QPointF) -> bool:
        return at.y() < self.lanes.axis_px and at.x() >= self.lanes.left

    def _click(self, event: QMouseEvent) -> None:
        if self._is_on_axis(event.position()):
            self._mark(event.position())
            return
        found = self.lanes.bar_at(event.position())
        op = found[1] if found and found[0].is_device else None
        extend = bool(event.modifiers() & EXTEND)
        if found is not None and op is None and self.picture is not None:
            schedule = self.picture.schedule
            sender = schedule.problem.profile.tensor_op[schedule.transfer_tensor[found[1]]]
            self.document.select([int(sender)], extend=extend, transfer=found[1])
            return
        if op is not None:
            self.document.select([op], extend=extend)
        elif not extend:
            self.document.select([], gap=self._gap_at(event.position()))

    def _gap_at(self, at: QPointF) -> Gap | None:
        """Find the idle time of a device at a point."""
        index = self.lanes.row_at(at)
        if self.picture is None or index is None or at.x() < self.lanes.left:
            return None
        row = self.lanes.rows[index]
        if not row.is_planned or self.lanes.bar_at(at) is not None:
            return None
        return find_gap(self.picture.schedule, row, self.lanes.time_at(at))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Select all of the group."""
        op, project = self.lanes.op_at(event.position()), self.document.project
        if op is not None and project is not None and project.grouping.group[op] >= 0:
            self.document.select(project.grouping.ops(int(project.grouping.group[op])))

    def _mark(self, at: QPointF) -> None:
        """Set the time marker; a second click on it removes it."""
        near_us, time_us = SLACK_PX * self.lanes.scale.us_per_px, self.lanes.time_at(at)
        is_there = self.marker_us is not None and abs(time_us - self.marker_us) <= near_us
        self.marker_us = None if is_there else max(time_us, 0.0)
        self.update()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        if self.marker_us is not None:
            self.update()

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Zoom at the pointer with Ctrl; move along the step with Shift or if all rows fit."""
        keys, rows_fit = event.modifiers(), self.lanes.content_px <= self.lanes.visible_px
        is_along = keys & Qt.KeyboardModifier.ShiftModifier or event.angleDelta().x()
        zooms = bool(keys & Qt.KeyboardModifier.ControlModifier)
        self.wheel(event, zooms, pans=bool(is_along) or rows_fit)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Open the menu of what is at the pointer; by key, that of the selection."""
        by_key = event.reason() == QContextMenuEvent.Reason.Keyboard
        menu = self._selection_menu() if by_key else None
        if menu is None:
            super().contextMenuEvent(event)
        else:
            menu.popup(event.globalPos())

    def menu_at(self, at: QPointF) -> QMenu | None:
        """Make the menu of the device, op, transfer or idle time at a point."""
        if self.picture is None:
            return None
        if at.x() < self.lanes.left:
            device = self.lanes.device_at(at)
            return None if device is None else device_menu(self.document, device, self)
        found = self.lanes.bar_at(at)
        if found is None:
            gap = self._gap_at(at)
            return None if gap is None else gap_menu(self.document, gap, self)
        row, number = found
        if not row.is_device:
            return transfer_menu(self.document, self.picture.schedule, number, self)
        if number not in self.document.selection:
            self.document.select([number])
        return self._selection_menu()

    def _selection_menu(self) -> QMenu | None:
        project = self.document.project
        if project is None or not self.document.selection:
            return None
        return op_menu(self.document, project, self)

    # Tooltips

    def tip_at(self, at: QPointF) -> str:
        """Return the tooltip at a point."""
        found, index = self.lanes.bar_at(at), self.lanes.row_at(at)
        if self.picture is None or index is None:
            return ""
        row, schedule = self.lanes.rows[index], self.picture.schedule
        if at.x() < self.lanes.left:
            return row.tip
        project, lane = self.document.project, self.lanes.row_area(index)
        if row.queue is not None and project is not None and at.y() > bars_area(row, lane).bottom():
            time_us = self.lanes.time_at(at)
            return describe_queue(schedule, project.grouping, row.numbers, time_us)
        if found is None:
            gap = describe_gap(schedule, row, self.lanes.time_at(at)) if row.is_planned else ""
            return f"{gap}\nClick to see what it waits for, and what fits" if gap else ""
        return self._describe(schedule, row, found[1])

    def _describe(self, schedule: Schedule, row: Row, number: int) -> str:
        """Return the tooltip of a bar."""
        run = self.document.current.run if self.document.current else None
        if row.measured and run is not None:
            return describe_measured(schedule, run, number)
        if not row.is_device:
            return describe_transfer(schedule, number)
        project = self.document.project
        found = notes_about(project, [number]) if project is not None else []
        notes = [f"Note: {each.text}" for each in found]
        return "\n".join([describe_op(schedule, number), *notes])

    def escape(self) -> None:
        """Cancel a drag; without one, an offer or the selection."""
        if self._gesture is None:
            self.document.escape()
        self._gesture = self._pressed = None
        self.update()
