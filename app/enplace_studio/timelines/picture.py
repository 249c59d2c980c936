"""The picture of a schedule on the timeline, and its painting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPen

from enplace.names.groups import Grouping
from enplace.pictures.busy import BusyCurve
from enplace.pictures.palette import colour_numbers
from enplace.pictures.tracks import PathTrace
from enplace.text import ms
from enplace.values.profile import FloatArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.intervals import Interval
from enplace_studio.explain.queues import Queue, Wait, name_transfer
from enplace_studio.explain.reasons import Mark
from enplace_studio.explain.start_times import Gap
from enplace_studio.timelines import paint
from enplace_studio.timelines.lanes import Lanes, row_title
from enplace_studio.timelines.marks import paint_marks
from enplace_studio.timelines.rows import Row
from enplace_studio.widgets.drawing import draw_text
from enplace_studio.widgets.theme import theme

VEIL = 0.5
"""How far bars beyond the selected span fade."""


@dataclass
class Picture:
    """A schedule on its lanes.

    Attributes
    ----------
    baseline : Schedule or None
        The schedule before the user's edits.
    ghosts : dict of int to BusyCurve
        Busy time of each device in the baseline.
    selected : dict of int to pair of BusyCurve
        The selected bars of each row, even and odd ones separately.
    gap : Gap or None
        The idle time that the user asks about.
    chain : PathTrace or None
        What the device waits for then; painted instead of the critical path, ``trace``.
    marks : tuple of Mark
        What a reason points at.
    wait : Wait or None
        The wait of a transfer that the user asks about.
    groups : Grouping or None
        What bars of one shade after each other belong to; their names stand over narrow bars.
    second : float
        Share of a device's colour in the second of its shades.
    dims : bool
        Whether bars that are not selected fade while others are. Where the strength of a colour has
        a meaning they do not; selected bars are marked above and below then.
    """

    lanes: Lanes
    schedule: Schedule
    baseline: Schedule | None = None
    ghosts: dict[int, BusyCurve] = field(default_factory=dict)
    selection: Collection[int] = ()
    selected: dict[int, tuple[BusyCurve, BusyCurve]] = field(default_factory=dict)
    trace: PathTrace | None = None
    gap: Gap | None = None
    chain: PathTrace | None = None
    marks: tuple[Mark, ...] = ()
    wait: Wait | None = None
    groups: Grouping | None = None
    second: float = paint.SECOND_SHADE
    dims: bool = True

    def paint(self, painter: QPainter, area: QRectF) -> None:
        """Paint axis, rows, ends and the critical path."""
        lanes = self.lanes
        painter.setRenderHint(QPainter.RenderHint.TextAntialiasing)
        paint.draw_axis(painter, lanes.scale, lanes.left, lanes.axis_px, lanes.bottom)
        painter.save()
        painter.setClipRect(area.adjusted(0, lanes.axis_px - 3, 0, lanes.axis_px - 3))
        self.paint_rows(painter, area)
        painter.restore()

    def paint_rows(self, painter: QPainter, area: QRectF) -> None:
        """Paint the rows within an area, the end of the step and the critical path."""
        lanes = self.lanes
        edges_us = lanes.edges_us()
        for index in range(len(lanes.rows)):
            row_area = lanes.row_area(index)
            if row_area.bottom() >= area.top() and row_area.top() <= area.bottom():
                self._paint_row(painter, index, row_area, edges_us)
        self._paint_ends(painter)
        self._paint_trace(painter, area)
        if self.wait is not None:
            self._paint_wait(painter, self.wait)
        if self.marks:
            paint_marks(painter, lanes, self.marks, area)

    def _paint_row(self, painter: QPainter, index: int, area: QRectF, edges_us: FloatArray) -> None:
        row, lanes = self.lanes.rows[index], self.lanes
        self._paint_title(painter, row, area)
        if row.is_planned and row.device in self.ghosts and row.title:
            ghost = QRectF(area.left(), area.top() - 3, area.width(), 2)
            paint.draw_ghost(painter, self.ghosts[row.device], ghost, edges_us)
        chosen = self.selected.get(index)
        dimmed = self.dims and bool(self.selected) and row.is_device
        colours = colour_numbers(self.schedule.problem.cluster)
        shades = paint.shades(colours[row.device] if row.is_device else -1, self.second)
        if row.queue is not None:
            self._paint_queue(painter, row, row.queue, area, edges_us, shades)
            return
        paint.draw_row(painter, row, area, edges_us, shades, chosen, dimmed)
        if chosen:
            strips = [QRectF(area.left(), area.bottom(), area.width(), 2)]
            if not self.dims:
                strips.append(QRectF(area.left(), area.top() - 2, area.width(), 2))
            for strip in strips:
                for curve in chosen:
                    paint.draw_marks(painter, curve, strip, edges_us, theme.tokens.accent)
        wide = paint.wide_bars(row, lanes.scale)
        xs = lanes.left + lanes.scale.xs(row.finish_us[wide])
        painter.save()
        painter.setClipRect(area, Qt.ClipOperation.IntersectClip)
        paint.draw_gaps(painter, row, xs, area)
        if row.is_device and not row.thin:
            names = self.schedule.problem.profile.op_names
            selection = self.selection if self.selected and self.dims else ()
            paint.draw_labels(painter, row, wide, names, lanes.scale, area, shades, selection)
            if self.groups is not None and not dimmed:
                paint.draw_groups(painter, row, self.groups, lanes.scale, area, shades)
        painter.restore()

    def _paint_queue(
        self,
        painter: QPainter,
        row: Row,
        queue: Queue,
        area: QRectF,
        edges_us: FloatArray,
        shades: tuple[QColor, QColor],
    ) -> None:
        """Paint transfers with their names, and below them how many wait."""
        bars, waits = paint.bars_area(row, area), QRectF(area)
        waits.setTop(bars.bottom())
        paint.draw_row(painter, row, bars, edges_us, shades, None, False)
        painter.fillRect(waits, theme.tokens.lane)
        paint.draw_queue(painter, queue, waits, edges_us)
        painter.save()
        painter.setClipRect(bars, Qt.ClipOperation.IntersectClip)
        wide = paint.wide_bars(row, self.lanes.scale)
        names = {
            number: name_transfer(self.schedule, self.groups, number)
            for number in row.numbers[wide].tolist()
        }
        scale = self.lanes.scale
        paint.draw_gaps(painter, row, self.lanes.left + scale.xs(row.finish_us[wide]), bars)
        paint.draw_labels(painter, row, wide, names, scale, bars, shades, ())
        if self.groups is not None:
            senders = self.schedule.problem.profile.tensor_op[self.schedule.transfer_tensor]
            sent = replace(self.groups, group=self.groups.group[senders])
            paint.draw_groups(painter, row, sent, scale, bars, shades)
        painter.restore()

    def _paint_wait(self, painter: QPainter, wait: Wait) -> None:
        """Mark a transfer, the time that it waits, and the transfers that it waits for."""
        lanes, tokens = self.lanes, theme.tokens
        for index, row in enumerate(lanes.rows):
            if row.is_device:
                continue
            area = paint.bars_area(row, lanes.row_area(index))
            behind = np.isin(row.numbers, wait.behind)
            curve = BusyCurve(row.start_us[behind], row.finish_us[behind])
            strip = QRectF(area.left(), area.top() - 2, area.width(), 3)
            paint.draw_marks(painter, curve, strip, lanes.edges_us(), tokens.accent)
            for bar in np.flatnonzero(row.numbers == wait.transfer).tolist():
                own = lanes.part(area, float(row.start_us[bar]), float(row.finish_us[bar]), 2)
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.setPen(QPen(tokens.accent, 2))
                painter.drawRect(own.adjusted(0, 0, 0, -1))
                waits = lanes.part(area, wait.requested_us, wait.start_us)
                painter.setPen(QPen(tokens.accent, 1.4, Qt.PenStyle.DashLine))
                y = area.bottom() + 1
                painter.drawLine(QLineF(waits.left(), y, waits.right(), y))
                painter.drawLine(QLineF(waits.left(), y - 4, waits.left(), y + 4))

    def _paint_title(self, painter: QPainter, row: Row, area: QRectF) -> None:
        tokens, gutter = theme.tokens, self.lanes.gutter
        line = area.adjusted(0, -4, 0, 4)
        weight = QFont.Weight.DemiBold if row.is_planned else QFont.Weight.Normal
        font = theme.font(12 if row.is_planned and not row.thin else 11, weight)
        line.setLeft(gutter.indent_px)
        line.setRight(gutter.titles_px)
        color = tokens.text if row.is_planned else tokens.dim
        draw_text(painter, line, row_title(row), font, color)
        if gutter.all_px > gutter.titles_px:
            line.setLeft(gutter.titles_px)
            line.setWidth(gutter.all_px - gutter.titles_px)
            draw_text(painter, line, row.note, theme.font(11), tokens.dim)

    def _paint_ends(self, painter: QPainter) -> None:
        """Paint a line at the end of the step, and a dashed one where it ended before the edits."""
        self._paint_end(painter, self.schedule.makespan_us, Qt.PenStyle.SolidLine)
        if self.baseline is not None:
            self._paint_end(painter, self.baseline.makespan_us, Qt.PenStyle.DashLine)

    def _paint_end(self, painter: QPainter, time_us: float, style: Qt.PenStyle) -> None:
        lanes = self.lanes
        x = lanes.scale.x(time_us)
        if 0 <= x <= lanes.scale.width_px + 1:
            painter.setPen(QPen(theme.tokens.faint, 1, style))
            across = lanes.left + x
            painter.drawLine(QLineF(across, lanes.axis_px - 2, across, lanes.bottom))

    def _paint_trace(self, painter: QPainter, area: QRectF) -> None:
        """Paint the critical path, or the gap that the user asks about and what it waits for."""
        lanes, tokens = self.lanes, theme.tokens
        asked = self.gap is not None
        if self.gap is not None:
            painter.setPen(QPen(tokens.accent, 1.4, Qt.PenStyle.DashLine))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            for lane in lanes.lanes_of(self.gap.device):
                part = lanes.part(lane, self.gap.since_us, self.gap.until_us)
                if part.width():
                    painter.drawRect(part.adjusted(0.5, 0.5, -0.5, -0.5))
        trace, color = (self.chain, tokens.accent) if asked else (self.trace, tokens.text)
        if trace is None:
            return
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setClipRect(
            QRectF(lanes.left, lanes.axis_px, lanes.scale.width_px, area.bottom()),
            Qt.ClipOperation.IntersectClip,
        )
        paint.draw_trace(painter, trace, lanes, color)
        painter.restore()


@lru_cache(maxsize=2)  # an edit does not change the plan that it began with
def device_curves(schedule: Schedule) -> dict[int, BusyCurve]:
    """Compute the busy time of each device."""
    device = schedule.plan.device
    return {
        d: BusyCurve(schedule.op_start_us[device == d], schedule.op_finish_us[device == d])
        for d in range(schedule.problem.cluster.n_devices)
    }


def selected_curves(
    rows: Sequence[Row], n_ops: int, selection: Collection[int]
) -> dict[int, tuple[BusyCurve, BusyCurve]]:
    """Compute the selected bars of each row that has any, even and odd ones separately."""
    selected = np.zeros(n_ops, dtype=bool)
    selected[list(selection)] = True
    found = {}
    for index, row in enumerate(rows):
        mine = selected[row.numbers] if row.is_device else np.zeros(0, dtype=bool)
        if mine.any():
            even, odd = mine & ~row.odd, mine & row.odd
            found[index] = (
                BusyCurve(row.start_us[even], row.finish_us[even]),
                BusyCurve(row.start_us[odd], row.finish_us[odd]),
            )
    return found


def paint_empty(painter: QPainter, area: QRectF) -> None:
    """Paint a hint on what will appear here."""
    painter.setFont(theme.font(12))
    painter.setPen(theme.tokens.dim)
    text = "As soon as there is a plan, each device's ops appear here over time."
    flags = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
    painter.drawText(area, int(flags), text)


def paint_span(painter: QPainter, lanes: Lanes, span: Interval, area: QRectF) -> None:
    """Paint the ends of a span through all lanes, and dim what is beyond them."""
    ends = [
        lanes.left + min(max(lanes.scale.x(time_us), 0.0), lanes.scale.width_px)
        for time_us in (span.start_us, span.stop_us)
    ]
    veil = QColor(theme.tokens.panel)
    veil.setAlphaF(VEIL)
    whole = QRectF(lanes.left, lanes.axis_px, lanes.scale.width_px, area.bottom())
    painter.fillRect(QRectF(whole.topLeft(), QPointF(ends[0], area.bottom())), veil)
    painter.fillRect(QRectF(QPointF(ends[1], whole.top()), whole.bottomRight()), veil)
    painter.fillRect(QRectF(ends[0], lanes.axis_px - 4, ends[1] - ends[0], 3), theme.tokens.accent)
    painter.setPen(QPen(theme.tokens.accent, 1))
    for x in ends:
        painter.drawLine(QLineF(x, lanes.axis_px - 4, x, lanes.bottom))


def paint_marker(
    painter: QPainter, lanes: Lanes, marker_us: float, pointer: QPointF | None, area: QRectF
) -> None:
    """Paint the marker, and the time from it to the pointer."""
    x = lanes.left + lanes.scale.x(marker_us)
    if not lanes.left <= x <= lanes.left + lanes.scale.width_px:
        return
    painter.setPen(QPen(theme.tokens.accent, 1))
    painter.drawLine(QLineF(x, 0, x, area.height()))
    text = ms(marker_us)
    if pointer is not None and pointer.x() >= lanes.left:
        text += f"   {ms(lanes.time_at(pointer) - marker_us, signed=True)} to the pointer"
    font = theme.font(11)
    metrics = QFontMetricsF(font)
    box = QRectF(x, 0, metrics.horizontalAdvance(text) + 12, metrics.height() + 2)
    if box.right() > area.width():
        box.moveRight(x)
    painter.fillRect(box, theme.tokens.accent)
    draw_text(painter, box, text, font, theme.tokens.on_accent, Qt.AlignmentFlag.AlignCenter)
