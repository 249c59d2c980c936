"""The memory of one device: a bar against its capacity, and the curve over the step."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QEvent, QLineF, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
)
from PySide6.QtWidgets import QWidget

from enplace.machine.caching_allocator import reserved_on_devices
from enplace.machine.pipelines.pipeline import PipelineSchedule
from enplace.pictures.busy import highest_per_column
from enplace.pictures.palette import colour_numbers
from enplace.text import count, elide_middle, ms, size
from enplace.values.profile import CONTROL
from enplace.values.schedule import Schedule
from enplace.values.spare_memory import is_nearly_full
from enplace_studio.explain.holdings import Holding, holdings_at, split_at_peak
from enplace_studio.widgets.drawing import RIGHT, draw_text
from enplace_studio.widgets.labels import TipWidget
from enplace_studio.widgets.theme import blend, theme

STRENGTHS = (1.0, 0.62, 0.34)
"""Strength of the device's colour for weights, activations and received tensors."""
TEXT_PX, BAR_PX, CURVE_TOP_PX, CURVE_PX = 17, 13, 40, (48, 120)
"""Heights of the text and the bar, the top of the curve, and its least and largest height."""
AXIS_PX = 46
"""Width of the curve's axis, which has the capacity and 0."""
NEXT_TO_NOTHING = 0.01
"""A device that never uses more than this share of its capacity gets one line of text."""
_NAME_LENGTH = 48


class DeviceMemory(TipWidget):
    """A device's memory: text, bar, curve; the tooltip of the curve names the largest tensors.

    A click asks for all of them at that moment, or at the peak.

    Parameters
    ----------
    schedule : Schedule
    device : int
    pipeline : PipelineSchedule, optional
        Show its memory, with all samples in flight, and not that of one step.
    """

    asked = Signal(int, float)
    """Emitted with the device and the moment whose contents the user asked for."""

    def __init__(
        self,
        schedule: Schedule,
        device: int,
        pipeline: PipelineSchedule | None = None,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.schedule, self.device, self.pipeline = schedule, device, pipeline
        shown = schedule if pipeline is None else pipeline
        self.curve, self._end_us = shown.memory[device], max(shown.makespan_us, 1e-9)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        if pipeline is None:
            self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.split = split_at_peak(self.curve)
        self.owner = schedule.problem.cluster.devices[device]
        self.colour = colour_numbers(schedule.problem.cluster)[device]
        self.capacity_bytes = self.owner.capacity_bytes
        self.curve_px = CURVE_PX[0]
        """Height of the curve; 0 if there is only the bar."""
        self._pointer_us: float | None = None
        self.setMouseTracking(True)
        self.setAccessibleName(f"{self.title}: {self.verdict}")
        theme.changed.connect(self.update)

    @property
    def title(self) -> str:
        return self.owner.label

    @property
    def over_bytes(self) -> int:
        """Bytes above the capacity; 0 if the plan fits."""
        return max(self.split.peak_bytes - self.capacity_bytes, 0)

    @property
    def verdict(self) -> str:
        """The peak against the capacity, in words."""
        return self._verdicts[0]

    @property
    def _verdicts(self) -> list[str]:
        """The verdict in ever fewer words."""
        if self.over_bytes:
            short = f"does not fit: {size(self.over_bytes)} over"
            return [f"{short}{self._flying}", short]
        short = _of(self.split.peak_bytes, self.capacity_bytes)
        if is_nearly_full(self.owner, self.split.peak_bytes):
            short = f"nearly full: {short}"
        return [f"{short} at the peak{self._flying}", f"{short}{self._flying}", short]

    @property
    def _flying(self) -> str:
        """The samples in flight, in words; empty for one step."""
        if self.pipeline is None:
            return ""
        return f", {count(self.pipeline.in_flight[self.device], 'sample')} in flight"

    @property
    def _reserve(self) -> list[str]:
        reserve_bytes = self.owner.reserve_bytes
        return [f"in reserve   {size(reserve_bytes)}"] if reserve_bytes else []

    @property
    def _allocated(self) -> list[str]:
        """What PyTorch's allocator would reserve in a step; empty where it does not run."""
        found = {} if self.pipeline is not None else reserved_on_devices(self.schedule)
        n_bytes = found.get(self.device)
        return [] if n_bytes is None else [f"reserved by PyTorch, predicted   {size(n_bytes)}"]

    @property
    def is_compact(self) -> bool:
        return self.split.peak_bytes < NEXT_TO_NOTHING * self.capacity_bytes

    # Geometry, in units of the text's scale

    def _px(self, pixels: float) -> float:
        return pixels * theme.scale

    @property
    def _bar_area(self) -> QRectF:
        return QRectF(0, self._px(TEXT_PX + 3), self.width(), self._px(BAR_PX))

    @property
    def curve_area(self) -> QRectF:
        """Area of the curve, right of its axis."""
        left = self._px(AXIS_PX)
        return QRectF(left, self._px(CURVE_TOP_PX), self.width() - left, self._px(self.curve_px))

    @property
    def has_curve(self) -> bool:
        return self.curve_px > 0 and not self.is_compact

    def show_curve(self, pixels: int) -> None:
        """Give the curve a height; 0 leaves it out."""
        if pixels != self.curve_px:
            self.curve_px = pixels
            self.updateGeometry()
            self.update()

    def height_with(self, curve_px: int) -> int:
        """Return the height of the widget with a curve of this height, or without one (0)."""
        if self.is_compact:
            return round(self._px(TEXT_PX + 1))
        low = CURVE_TOP_PX + curve_px + 4 if curve_px else TEXT_PX + 3 + BAR_PX + 2
        return round(self._px(low))

    def sizeHint(self) -> QSize:
        return QSize(round(self._px(240)), self.height_with(self.curve_px))

    def minimumSizeHint(self) -> QSize:
        return QSize(round(self._px(120)), self.sizeHint().height())

    def time_at(self, x: float) -> float:
        """Return the moment of the step at a pixel."""
        area = self.curve_area
        share = (x - area.left()) / max(area.width(), 1)
        return min(max(share, 0.0), 1.0) * self._end_us

    # Drawing

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            self._paint(painter)

    def _paint(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_text(painter)
        if not self.is_compact:
            self._paint_bar(painter)
        if self.has_curve:
            self._paint_curve(painter)

    def _paint_text(self, painter: QPainter) -> None:
        tokens = theme.tokens
        line = QRectF(0, 0, self.width(), self._px(17))
        font = theme.font(12, QFont.Weight.Medium)
        draw_text(painter, line, self.title, font, tokens.text)
        line.setLeft(QFontMetricsF(font).horizontalAdvance(self.title) + 8)
        quiet = theme.font(11, QFont.Weight.DemiBold if self.over_bytes else QFont.Weight.Normal)
        color, verdict = tokens.bad if self.over_bytes else tokens.dim, self.fitting_verdict
        draw_text(painter, line, verdict(quiet, line.width()), quiet, color, RIGHT)

    def fitting_verdict(self, font: QFont, width: float) -> str:
        """Return the verdict with as many words as fit."""
        metrics, verdicts = QFontMetricsF(font), self._verdicts
        fits = (text for text in verdicts if metrics.horizontalAdvance(text) <= width)
        short = metrics.elidedText(verdicts[-1], Qt.TextElideMode.ElideRight, width)
        return next(fits, short)

    def colors(self) -> list[QColor]:
        """Colours of weights, activations and received tensors."""
        ground = theme.tokens.panel
        own = theme.device_color(self.colour)
        return [blend(own, ground, strength) for strength in STRENGTHS]

    def _paint_bar(self, painter: QPainter) -> None:
        area, tokens = self._bar_area, theme.tokens
        whole = max(self.split.peak_bytes, self.capacity_bytes)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        painter.fillRect(area, tokens.lane)
        left = 0.0
        split = self.split
        parts = (split.weights_bytes, split.activation_bytes, split.received_bytes)
        for part, color in zip(parts, self.colors(), strict=True):
            width = part / whole * area.width()
            if width >= 0.5:
                shown = max(width - 1, 1)
                painter.fillRect(QRectF(left, area.top(), shown, area.height()), color)
            left += width
        if self.over_bytes:
            x = self.capacity_bytes / whole * area.width()
            painter.fillRect(QRectF(x, area.top(), area.width() - x, area.height()), tokens.bad)
            painter.fillRect(QRectF(x - 1, area.top() - 2, 2, area.height() + 4), tokens.text)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)

    def _paint_curve(self, painter: QPainter) -> None:
        painter.translate(self.curve_area.left(), 0)
        area, tokens = self.curve_area, theme.tokens
        area.moveLeft(0)
        whole = max(self.split.peak_bytes, self.capacity_bytes)
        top = area.top() + 4
        height = area.bottom() - top
        y_capacity = round(area.bottom() - self.capacity_bytes / whole * height) + 0.5
        painter.setPen(
            QPen(tokens.bad if self.over_bytes else tokens.faint, 1, Qt.PenStyle.DashLine)
        )
        painter.drawLine(QLineF(0, y_capacity, area.width(), y_capacity))
        self._paint_axis(painter, area, y_capacity)
        edges_us = np.linspace(0, self._end_us, max(int(area.width()), 2) + 1)
        curve = self.curve
        highest = highest_per_column(curve.time_us, curve.bytes, edges_us)
        ys = area.bottom() - highest / whole * height
        points = [QPointF(x + 0.5, y) for x, y in enumerate(ys.tolist())]
        self._fill_below(painter, points, area)
        self._paint_moments(painter, area, ys)

    def _paint_axis(self, painter: QPainter, area: QRectF, y_capacity: float) -> None:
        """Paint the capacity and 0 left of the curve, with a line at 0."""
        tokens, half = theme.tokens, self._px(7)
        ends = {y_capacity: size(self.capacity_bytes).replace(".0 ", " "), area.bottom(): "0"}
        for y, text in ends.items():
            middle = min(max(y, area.top() + half - 4), area.bottom() - half + 4)
            box = QRectF(-self._px(AXIS_PX), middle - half, self._px(AXIS_PX) - 6, 2 * half)
            color = tokens.bad if self.over_bytes and y == y_capacity else tokens.dim
            draw_text(painter, box, text, theme.font(10), color, RIGHT)
        painter.setPen(tokens.line)
        painter.drawLine(QLineF(0, area.bottom(), area.width(), area.bottom()))

    def _fill_below(self, painter: QPainter, points: list[QPointF], area: QRectF) -> None:
        own, soft = self.colors()[0], self.colors()[2]
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(blend(soft, theme.tokens.panel, 0.6))
        corners = [QPointF(0, area.bottom()), QPointF(area.width(), area.bottom())]
        painter.drawPolygon(QPolygonF([corners[0], *points, corners[1]]))
        painter.setPen(QPen(own, 1.3))
        painter.drawPolyline(QPolygonF(points))

    def _paint_moments(self, painter: QPainter, area: QRectF, ys: np.ndarray) -> None:
        """Paint a dot at the peak and a hairline at the pointer."""
        tokens = theme.tokens
        x = self.split.peak_us / self._end_us * area.width()
        y = float(ys[min(int(x), len(ys) - 1)])
        painter.setPen(QPen(tokens.panel, 1.5))
        painter.setBrush(self.colors()[0])
        painter.drawEllipse(QPointF(min(max(x, 3.5), area.width() - 3.5), y), 3.5, 3.5)
        if self._pointer_us is not None:
            x = self._pointer_us / self._end_us * area.width()
            painter.setPen(QPen(tokens.dim, 1))
            painter.drawLine(QLineF(x, area.top(), x, area.bottom()))

    # The pointer

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        inside = self.has_curve and self.curve_area.contains(event.position())
        self._pointer_us = self.time_at(event.position().x()) if inside else None
        self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        at = event.position()
        is_left = event.button() == Qt.MouseButton.LeftButton
        if is_left and self.pipeline is None and self.rect().contains(at.toPoint()):
            on_curve = self.has_curve and self.curve_area.contains(at)
            self.asked.emit(self.device, self.time_at(at.x()) if on_curve else self.split.peak_us)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self.pipeline is None and event.key() in (
            Qt.Key.Key_Return,
            Qt.Key.Key_Enter,
            Qt.Key.Key_Space,
        ):
            self.asked.emit(self.device, self.split.peak_us)
        else:
            super().keyPressEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        self._pointer_us = None
        self.update()

    def tip_at(self, at: QPointF) -> str:
        """List the tensors in memory at a moment of the curve or, over the bar, at the peak."""
        if self.has_curve and self.curve_area.contains(at):
            return self._tip_of_moment(self.time_at(at.x()))
        split = self.split
        what = "step" if self.pipeline is None else f"pipeline{self._flying}"
        hint = ["Click to list everything in it"] if self.pipeline is None else []
        return "\n".join(
            [
                f"{self.title} at its peak, {ms(split.peak_us)} into the {what}",
                f"weights and optimiser   {size(split.weights_bytes)}",
                f"activations   {size(split.activation_bytes)}",
                f"received from other devices   {size(split.received_bytes)}",
                *self._allocated,
                f"capacity   {size(self.capacity_bytes)}",
                *self._reserve,
                *hint,
            ]
        )

    def _tip_of_moment(self, time_us: float) -> str:
        curve = self.curve
        at = curve.index_at(time_us)
        lines = [f"{self.title} at {ms(time_us)}: {size(int(curve.bytes[at]))}"]
        if self.pipeline is not None:
            received, held = int(curve.sent_bytes[at]), int(curve.bytes[at]) - curve.weights_bytes
            lines += [f"{size(held - received)}   activations", f"{size(received)}   received"]
        else:
            lines += [self._line(held) for held in holdings_at(self.schedule, self.device, time_us)]
        lines.append(f"{size(curve.weights_bytes)}   weights and optimiser")
        return "\n".join(lines)

    def _line(self, held: Holding) -> str:
        name = elide_middle(self.schedule.problem.profile.op_names[held.op], _NAME_LENGTH)
        what = ""
        if held.output is None:
            what = ", while it runs"
        elif held.output != CONTROL and held.output > 0:
            what = f", output {held.output}"
        return f"{size(held.bytes)}   {name}{what}{', received' if held.received else ''}"


def _of(used: int, capacity: int) -> str:
    """Format two sizes, with one unit if they share it: ``11.9 of 16.0 GiB``."""
    first, second = size(used), size(capacity).replace(".0 ", " ")
    unit = second.rpartition(" ")[2]
    return f"{first.removesuffix(' ' + unit)} of {second}"
