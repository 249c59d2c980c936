"""The timeline's drawing surface: what is on screen, the pointer and the keys."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from PySide6.QtCore import QEvent, QLineF, QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QFont,
    QFontMetricsF,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QApplication, QToolTip, QWidget

from enplace.frameworks.measured import MeasuredRun
from enplace.machine import critical_path
from enplace.text import device_label, elide_middle, ms
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule
from enplace_studio.document import Document
from enplace_studio.panel import plain_tip
from enplace_studio.theme import theme
from enplace_studio.timeline import paint
from enplace_studio.timeline.busy import BusyCurve
from enplace_studio.timeline.gestures import EXTEND, Band, Gesture, Move, Pan
from enplace_studio.timeline.rows import Place, Row, arrange, rows_of
from enplace_studio.timeline.scale import TimeScale
from enplace_studio.timeline.trace import Trace, summary, trace_path
from enplace_studio.timeline.waiting import (
    describe_gap,
    describe_measured,
    describe_op,
    describe_transfer,
)

ZOOM_STEP = 1.25
PAN_SHARE = 0.12
"""How much of the window one press of A or D moves it."""
SLACK_PX = 3
"""A bar this near to the pointer is meant."""
_PATH_DELAY_MS = 30
_NARROW_PX = 420
_RIGHT_PX = 8


class TimelineCanvas(QWidget):
    """Rows of bars over time.

    Attributes
    ----------
    scale : TimeScale
        The part of the step on screen; its pixels count from the left edge of the lanes.
    rows, places : lists of Row and Place
        What is drawn, and where.
    """

    summary_changed = Signal(str)
    """What the step time consists of, worked out a moment after the schedule changed."""
    extent_changed = Signal()
    """The rows need another height, or scrolled."""

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.document = document
        self.rows: list[Row] = []
        self.places: list[Place] = []
        self.scale = TimeScale.fit(1.0, 1.0)
        self.scroll_px = 0.0
        self.marker_us: float | None = None
        self.trace: Trace | None = None
        self._ghosts: dict[int, BusyCurve] = {}
        self._chosen: dict[int, tuple[BusyCurve, BusyCurve]] = {}
        self._gesture: Gesture | None = None
        self._pressed: QPointF | None = None
        self._pointer: QPointF | None = None
        self._path_timer = QTimer(self, singleShot=True, interval=_PATH_DELAY_MS)
        self._path_timer.timeout.connect(self._trace_path)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)
        self.setAccessibleName("Timeline")
        document.opened.connect(self._open)
        document.current_changed.connect(self._show_schedule)
        document.selection_changed.connect(self._show_selection)
        theme.changed.connect(self.update)
        self._open()

    # What is shown

    @property
    def schedule(self) -> Schedule | None:
        return self.document.schedule

    @property
    def run(self) -> MeasuredRun | None:
        """What was measured when the current plan ran."""
        return self.document.current.run if self.document.current else None

    def _open(self) -> None:
        self.marker_us = None
        self.scroll_px = 0.0
        self.scale = TimeScale.fit(1.0, self._lane_px())
        self._show_schedule()

    def _show_schedule(self) -> None:
        """Begin anew with a schedule; its critical path follows a moment later."""
        self._gesture = self._pressed = self.trace = None
        self.rows, self._ghosts = [], {}
        if self.schedule is not None:
            grouping = self.document.grouping
            self.rows = rows_of(self.schedule, grouping.group if grouping else None, self.run)
            self._ghosts = self._ghost_curves()
            self._path_timer.start()
        else:
            self.summary_changed.emit("")
        self.__dict__.pop("_gutter", None)
        self._arrange()
        self._show_selection()

    def _ghost_curves(self) -> dict[int, BusyCurve]:
        """Busy time of each device in the schedule before the person's edits."""
        baseline = self.document.baseline
        if baseline is None:
            return {}
        device = baseline.plan.device
        return {
            d: BusyCurve(baseline.op_start_us[device == d], baseline.op_finish_us[device == d])
            for d in range(baseline.problem.cluster.n_devices)
        }

    def _show_selection(self) -> None:
        """The selected bars of each row."""
        self._chosen = {}
        if self.schedule is not None and self.document.selection:
            selected = np.zeros(self.schedule.problem.profile.n_ops, dtype=bool)
            selected[list(self.document.selection)] = True
            for index, row in enumerate(self.rows):
                mine = selected[row.number] if row.is_device else np.zeros(0, dtype=bool)
                if mine.any():
                    even, odd = mine & ~row.odd, mine & row.odd
                    self._chosen[index] = (
                        BusyCurve(row.start_us[even], row.finish_us[even]),
                        BusyCurve(row.start_us[odd], row.finish_us[odd]),
                    )
        self.update()

    def _trace_path(self) -> None:
        if self.schedule is not None:
            path = critical_path(self.schedule)
            self.trace = trace_path(path, self.rows)
            self.summary_changed.emit(summary(path))
            self.update()

    def _end_us(self) -> float:
        """The last moment worth showing: the end of the step, of its ghost or of its run."""
        baseline = self.document.baseline
        ends = [s.makespan_us for s in (self.schedule, baseline) if s is not None]
        ends += [float(row.finish_us.max()) for row in self.rows if row.measured]
        return max(ends, default=1.0)

    # Geometry

    @property
    def _axis_px(self) -> int:
        return round(22 * theme.scale)

    @cached_property
    def _gutter(self) -> tuple[int, int]:
        """Width of the titles, and with the notes; a narrow pane has no notes."""
        titles = QFontMetricsF(theme.font(12, QFont.Weight.DemiBold))
        notes = QFontMetricsF(theme.font(11))
        title = max((titles.horizontalAdvance(self._title(row)) for row in self.rows), default=0)
        title = round(title) + 12
        if self.width() < _NARROW_PX * theme.scale:
            return title, title
        note = max((notes.horizontalAdvance(row.note) for row in self.rows), default=0)
        return title, title + round(note) + 14

    @staticmethod
    def _title(row: Row) -> str:
        return elide_middle(device_label(row.title), 24)

    def _lane_px(self) -> float:
        return max(self.width() - self._left - _RIGHT_PX, 10)

    @property
    def _left(self) -> int:
        return self._gutter[1]

    def _arrange(self) -> None:
        height = self.height() - self._axis_px
        self.places = arrange(self.rows, height, theme.scale)
        self.scale = self.scale.resized(self._end_us(), self._lane_px())
        self.scroll_rows(0)

    @property
    def content_px(self) -> int:
        """Height that all rows take."""
        return self.places[-1].bottom + 4 if self.places else 0

    @property
    def room_px(self) -> int:
        """Height that is there for rows."""
        return self.height() - self._axis_px

    def scroll_rows(self, pixels: float) -> None:
        """Move the rows up."""
        last = max(self.content_px - self.room_px, 0)
        self.scroll_px = min(max(self.scroll_px + pixels, 0), last)
        self.extent_changed.emit()
        self.update()

    def set_scale(self, scale: TimeScale) -> None:
        """Show another part of the step."""
        self.scale = scale
        self.update()

    def edges_us(self) -> FloatArray:
        """Moments at the edges of the physical pixel columns."""
        return self.scale.edges(self.devicePixelRatioF())

    def row_area(self, index: int) -> QRectF:
        """Where a row's lane is drawn."""
        place = self.places[index]
        top = self._axis_px + place.top - self.scroll_px
        return QRectF(self._left, top, self.scale.width_px, place.height)

    def lanes_of(self, device: int) -> list[QRectF]:
        """The lanes of a device in the plan."""
        lanes = enumerate(self.rows)
        return [self.row_area(i) for i, row in lanes if row.is_planned and row.device == device]

    def time_at(self, at: QPointF) -> float:
        return self.scale.time(at.x() - self._left)

    def row_at(self, at: QPointF) -> int | None:
        """Index of the row below the pointer; the gap below a row belongs to it."""
        y = at.y() - self._axis_px + self.scroll_px
        if at.y() < self._axis_px:
            return None
        tops = [place.top - 2 for place in self.places]
        index = int(np.searchsorted(tops, y, side="right")) - 1
        return index if index >= 0 and y <= self.places[index].bottom + 4 else None

    def device_at(self, at: QPointF) -> int | None:
        """Device of the lane below the pointer, if ops can be dragged there."""
        index = self.row_at(at)
        planned = index is not None and self.rows[index].is_planned
        return self.rows[index].device if index is not None and planned else None

    def bar_at(self, at: QPointF) -> tuple[Row, int] | None:
        """The row and the op or transfer number below the pointer."""
        index = self.row_at(at)
        if index is None or at.x() < self._left:
            return None
        row = self.rows[index]
        bar = row.nearest(self.time_at(at), SLACK_PX * self.scale.us_per_px)
        return None if bar is None else (row, int(row.number[bar]))

    def op_at(self, at: QPointF) -> int | None:
        """The op below the pointer."""
        found = self.bar_at(at)
        return found[1] if found and found[0].is_device else None

    def ops_in(self, area: QRectF) -> IntArray:
        """Ops whose bars touch a rectangle."""
        start, stop = self.time_at(area.topLeft()), self.time_at(area.topRight())
        found = [np.zeros(0, dtype=np.int64)]
        for index, row in enumerate(self.rows):
            lane = self.row_area(index)
            if row.is_device and lane.top() < area.bottom() and lane.bottom() > area.top():
                near = row.within(start, stop)
                touching = (row.finish_us[near] > start) & (row.start_us[near] < stop)
                found.append(row.number[near][touching])
        return np.concatenate(found)

    # Drawing

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            self._paint(painter)

    def _paint(self, painter: QPainter) -> None:
        if self.schedule is None:
            self._paint_empty(painter)
            return
        painter.setRenderHint(QPainter.RenderHint.TextAntialiasing)
        bottom = min(self._axis_px + self.content_px - self.scroll_px, self.height())
        paint.draw_axis(painter, self.scale, self._left, self._axis_px, bottom)
        painter.save()
        painter.setClipRect(0, self._axis_px - 3, self.width(), self.height())
        edges_us = self.edges_us()
        for index in range(len(self.rows)):
            self._paint_row(painter, index, edges_us)
        self._paint_ends(painter, bottom)
        self._paint_trace(painter)
        painter.restore()
        self._paint_marker(painter)
        if self._gesture is not None:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self._gesture.paint(painter)

    def _paint_empty(self, painter: QPainter) -> None:
        painter.setFont(theme.font(12))
        painter.setPen(theme.tokens.dim)
        text = "Open a model and press Solve: each device's ops appear here over time."
        flags = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
        painter.drawText(self.rect(), int(flags), text)

    def _paint_row(self, painter: QPainter, index: int, edges_us: FloatArray) -> None:
        row, area = self.rows[index], self.row_area(index)
        if area.bottom() < 0 or area.top() > self.height():
            return
        self._paint_title(painter, row, area)
        if row.is_planned and row.device in self._ghosts and row.title:
            ghost = QRectF(area.left(), area.top() - 3, area.width(), 2)
            paint.draw_ghost(painter, self._ghosts[row.device], ghost, edges_us)
        chosen = self._chosen.get(index)
        paint.draw_row(painter, row, area, edges_us, chosen, bool(self._chosen) and row.is_device)
        if chosen:
            strip = QRectF(area.left(), area.bottom(), area.width(), 2)
            for curve in chosen:
                paint.draw_marks(painter, curve, strip, edges_us, theme.tokens.accent)
        wide = paint.wide_bars(row, self.scale)
        xs = self._left + self.scale.xs(row.finish_us[wide])
        painter.save()
        painter.setClipRect(area, Qt.ClipOperation.IntersectClip)
        paint.draw_gaps(painter, row, xs, area)
        if row.is_device and not row.thin and self.schedule:
            names = self.schedule.problem.profile.op_names
            selection = self.document.selection if self._chosen else ()
            paint.draw_labels(painter, row, wide, names, self.scale, area, selection)
        painter.restore()

    def _paint_title(self, painter: QPainter, row: Row, area: QRectF) -> None:
        tokens = theme.tokens
        line = area.adjusted(0, -4, 0, 4)
        align = Qt.AlignmentFlag.AlignVCenter
        title_px, all_px = self._gutter
        weight = QFont.Weight.DemiBold if row.is_planned else QFont.Weight.Normal
        painter.setFont(theme.font(12 if row.is_planned and not row.thin else 11, weight))
        painter.setPen(tokens.text if row.is_planned else tokens.dim)
        line.setLeft(0)
        line.setWidth(title_px)
        painter.drawText(line, align, self._title(row))
        if all_px > title_px:
            painter.setFont(theme.font(11))
            painter.setPen(tokens.dim)
            line.setLeft(title_px)
            line.setWidth(all_px - title_px)
            painter.drawText(line, align, row.note)

    def _paint_ends(self, painter: QPainter, bottom: float) -> None:
        """A line at the end of the step, and a dashed one where it ended before the edits."""
        assert self.schedule is not None
        self._paint_end(painter, self.schedule.makespan_us, Qt.PenStyle.SolidLine, bottom)
        baseline = self.document.baseline
        if baseline is not None:
            self._paint_end(painter, baseline.makespan_us, Qt.PenStyle.DashLine, bottom)

    def _paint_end(
        self, painter: QPainter, time_us: float, style: Qt.PenStyle, bottom: float
    ) -> None:
        x = self.scale.x(time_us)
        if 0 <= x <= self.scale.width_px + 1:
            painter.setPen(QPen(theme.tokens.faint, 1, style))
            painter.drawLine(QLineF(self._left + x, self._axis_px - 2, self._left + x, bottom))

    def _paint_trace(self, painter: QPainter) -> None:
        if self.trace is None:
            return
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setClipRect(
            QRectF(self._left, self._axis_px, self.scale.width_px, self.height()),
            Qt.ClipOperation.IntersectClip,
        )
        top = self._axis_px - self.scroll_px
        paint.draw_trace(painter, self.trace, self.rows, self.places, self.scale, self._left, top)
        painter.restore()

    def _paint_marker(self, painter: QPainter) -> None:
        """The marker, and how far the pointer is from it."""
        if self.marker_us is None:
            return
        x = self._left + self.scale.x(self.marker_us)
        if not self._left <= x <= self._left + self.scale.width_px:
            return
        painter.setPen(QPen(theme.tokens.accent, 1))
        painter.drawLine(QLineF(x, 0, x, self.height()))
        text = ms(self.marker_us)
        if self._pointer is not None and self._pointer.x() >= self._left:
            text += (
                f"   {ms(self.time_at(self._pointer) - self.marker_us, signed=True)} to the pointer"
            )
        self._paint_flag(painter, x, text)

    def _paint_flag(self, painter: QPainter, x: float, text: str) -> None:
        font = theme.font(11)
        metrics = QFontMetricsF(font)
        box = QRectF(x, 0, metrics.horizontalAdvance(text) + 12, metrics.height() + 2)
        if box.right() > self.width():
            box.moveRight(x)
        painter.fillRect(box, theme.tokens.accent)
        painter.setFont(font)
        painter.setPen(theme.tokens.on_accent)
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter, text)

    # The pointer

    def mousePressEvent(self, event: QMouseEvent) -> None:
        at = event.position()
        if event.button() == Qt.MouseButton.MiddleButton:
            self._gesture = Pan(self, at)
        elif event.button() == Qt.MouseButton.LeftButton and self.schedule is not None:
            if at.y() < self._axis_px and at.x() >= self._left:
                self._mark(at)
            else:
                self._pressed = at

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        at = event.position()
        self._pointer = at
        if self._gesture is None and self._pressed is not None:
            moved = (at - self._pressed).manhattanLength()
            if moved >= QApplication.startDragDistance():
                self._gesture = self._begin(self._pressed, at)
        if self._gesture is not None:
            self._gesture.move(at)
        if self._gesture is not None or self.marker_us is not None:
            self.update()

    def _begin(self, start: QPointF, at: QPointF) -> Gesture:
        """Up or down from a planned bar moves it; anything else is a rubber band."""
        op, way = self.op_at(start), at - start
        if op is None or abs(way.x()) > abs(way.y()) or self.device_at(start) is None:
            return Band(self, start)
        if op not in self.document.selection:
            self.document.select([op])
        return Move(self, self.document.selection, start)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        gesture, pressed = self._gesture, self._pressed
        self._gesture = self._pressed = None
        if gesture is not None:
            gesture.finish(event.position(), event.modifiers())
        elif pressed is not None:
            self._click(event)
        self.update()

    def _click(self, event: QMouseEvent) -> None:
        op = self.op_at(event.position())
        extend = bool(event.modifiers() & EXTEND)
        if op is not None or not extend:
            self.document.select([] if op is None else [op], extend=extend)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Select all of the group."""
        op, grouping = self.op_at(event.position()), self.document.grouping
        if op is not None and grouping is not None and grouping.group[op] >= 0:
            self.document.select(grouping.ops(int(grouping.group[op])))

    def _mark(self, at: QPointF) -> None:
        """Put the time marker here; a second click on it takes it away."""
        near = SLACK_PX * self.scale.us_per_px
        is_there = self.marker_us is not None and abs(self.time_at(at) - self.marker_us) <= near
        self.marker_us = None if is_there else max(self.time_at(at), 0.0)
        self.update()

    def leaveEvent(self, event: QEvent) -> None:
        self._pointer = None
        if self.marker_us is not None:
            self.update()

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            text = plain_tip(self.tip_at(QPointF(event.pos())))
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)

    def tip_at(self, at: QPointF) -> str:
        """What is below the pointer, in words."""
        found, index = self.bar_at(at), self.row_at(at)
        if self.schedule is None or index is None:
            return ""
        row = self.rows[index]
        if at.x() < self._left:
            return row.tip
        if found is None:
            return describe_gap(self.schedule, row, self.time_at(at)) if row.is_planned else ""
        return self._describe(row, found[1])

    def _describe(self, row: Row, number: int) -> str:
        """What a bar is."""
        assert self.schedule is not None
        if row.measured:
            assert self.run is not None
            return describe_measured(self.schedule, self.run, number)
        describe = describe_op if row.is_device else describe_transfer
        return describe(self.schedule, number)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Ctrl zooms at the pointer; Shift, or having nothing to scroll, goes along the step."""
        turns = event.angleDelta()
        notches = (turns.y() or turns.x()) / 120
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self._zoom(ZOOM_STEP**notches, event.position().x() - self._left)
        elif (
            event.modifiers() & Qt.KeyboardModifier.ShiftModifier
            or turns.x()
            or self.content_px <= self.room_px
        ):
            self.set_scale(self.scale.panned(-notches * PAN_SHARE * self.scale.width_px))
        else:
            self.scroll_rows(-notches * 40)
        event.accept()

    # The keys

    def keyPressEvent(self, event: QKeyEvent) -> None:
        pan = PAN_SHARE * self.scale.width_px
        middle = self.scale.width_px / 2
        if self._pointer is not None and self._pointer.x() > self._left:
            middle = self._pointer.x() - self._left
        actions = {
            Qt.Key.Key_W: lambda: self._zoom(ZOOM_STEP, middle),
            Qt.Key.Key_S: lambda: self._zoom(1 / ZOOM_STEP, middle),
            Qt.Key.Key_A: lambda: self.set_scale(self.scale.panned(-pan)),
            Qt.Key.Key_D: lambda: self.set_scale(self.scale.panned(pan)),
            Qt.Key.Key_Left: lambda: self.set_scale(self.scale.panned(-pan)),
            Qt.Key.Key_Right: lambda: self.set_scale(self.scale.panned(pan)),
            Qt.Key.Key_Up: lambda: self.scroll_rows(-40),
            Qt.Key.Key_Down: lambda: self.scroll_rows(40),
            Qt.Key.Key_0: self.fit,
            Qt.Key.Key_F: self.focus_selection,
            Qt.Key.Key_Escape: self._escape,
        }
        plain = Qt.KeyboardModifier.NoModifier | Qt.KeyboardModifier.KeypadModifier
        action = actions.get(Qt.Key(event.key())) if not event.modifiers() & ~plain else None
        if action is None:
            super().keyPressEvent(event)
        else:
            action()

    def _zoom(self, factor: float, at_px: float) -> None:
        self.set_scale(self.scale.zoomed(factor, at_px))

    def fit(self) -> None:
        """Show the whole step."""
        self.set_scale(TimeScale.fit(self._end_us(), self._lane_px()))

    def focus_selection(self) -> None:
        """Show the time in which the selected ops run."""
        if self.schedule is not None and self.document.selection:
            ops = np.fromiter(self.document.selection, dtype=np.int64)
            start, finish = self.schedule.op_start_us[ops], self.schedule.op_finish_us[ops]
            self.set_scale(self.scale.around(float(start.min()), float(finish.max())))

    def _escape(self) -> None:
        """Leave a drag; otherwise drop the selection."""
        if self._gesture is None:
            self.document.select([])
        self._gesture = self._pressed = None
        self.update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.__dict__.pop("_gutter", None)
        self._arrange()

    def sizeHint(self) -> QSize:
        return QSize(700, self._axis_px + 150)

    def minimumSizeHint(self) -> QSize:
        return QSize(200, self._axis_px + 60)
