"""Drawing of the stacked timelines: names, ends, memory, the proven bound and an interval."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPen, QPolygonF

from enplace.pictures.busy import highest_per_column
from enplace.pictures.palette import colour_numbers
from enplace.text import ms, size
from enplace.values.profile import FloatArray
from enplace_studio.explain.intervals import Interval
from enplace_studio.timelines.paint import draw_axis
from enplace_studio.views.compare.stack import GAP_PX, SAME, Block, Stack
from enplace_studio.widgets.drawing import draw_text
from enplace_studio.widgets.theme import blend, theme

BADGE_PX = 18
_OTHER_LINES = 5
"""Lines beside a block with more than the rest of the plan's name."""
_INTERVAL_ALPHA = 0.16


def paint_stack(
    painter: QPainter,
    stack: Stack,
    area: QRectF,
    changes: list[str],
    bound_us: float | None,
    interval: Interval | None,
) -> None:
    """Paint the axis and all blocks.

    Parameters
    ----------
    changes : list of str
        The difference of each plan's step time from that of A; empty for A.
    bound_us : float, optional
        What no plan can beat.
    interval : Interval, optional
        The selected part of the time axis.
    """
    painter.setRenderHint(QPainter.RenderHint.TextAntialiasing)
    bottom = min(stack.axis_px + stack.content_px - stack.scroll_px, area.bottom())
    draw_axis(painter, stack.scale, stack.left, stack.axis_px, bottom)
    _paint_legend(painter, stack)
    painter.save()
    painter.setClipRect(area.adjusted(0, stack.axis_px - 3, 0, 0))
    for block, change in zip(stack.blocks, changes, strict=True):
        whole = stack.rows_area(block).united(stack.memory_area(block))
        if whole.bottom() >= stack.axis_px and whole.top() <= area.bottom():
            _paint_block(painter, stack, block, area, change)
    _clip_to_lanes(painter, stack, area)
    if bound_us is not None:
        _paint_bound(painter, stack, bound_us, bottom)
    if interval is not None:
        _paint_interval(painter, stack, interval, bottom)
    painter.restore()


def _paint_legend(painter: QPainter, stack: Stack) -> None:
    """Say beside the axis what the two strengths of a colour mean, in grey: they hold for all."""
    full = theme.tokens.dim
    pale = blend(full, theme.tokens.bg if theme.dark else QColor("white"), SAME)
    font, side = theme.font(11), 9 * theme.scale
    metrics = QFontMetricsF(font)
    painter.setFont(font)
    x, baseline = 0.0, metrics.ascent() + 1
    for color, text in ((pale, "same"), (full, "moved from / to")):
        painter.fillRect(QRectF(x, baseline - side + 1, side, side), color)
        painter.setPen(theme.tokens.dim)
        painter.drawText(QPointF(x + side + 4, baseline), text)
        x += side + metrics.horizontalAdvance(text) + 14


def _paint_block(painter: QPainter, stack: Stack, block: Block, area: QRectF, change: str) -> None:
    offset = stack.offset(block)
    painter.save()
    painter.translate(offset)
    block.picture.paint_rows(painter, area.translated(-offset))
    painter.restore()
    _paint_name(painter, stack, block)
    _paint_memory(painter, stack, block)
    _paint_end(painter, stack, block, change)


def paint_badge(painter: QPainter, letter: str, at: QPointF) -> float:
    """Paint a plan's letter on a small square; return the square's width."""
    tokens, side = theme.tokens, BADGE_PX * theme.scale
    box = QRectF(at.x(), at.y(), side, side)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(tokens.text)
    painter.drawRoundedRect(box, 4, 4)
    centre, font = Qt.AlignmentFlag.AlignCenter, theme.font(11, QFont.Weight.DemiBold)
    draw_text(painter, box, letter, font, tokens.panel, centre)
    painter.restore()
    return side


def _paint_name(painter: QPainter, stack: Stack, block: Block) -> None:
    """Paint badge, name, step time and highest peak in the column on the left."""
    tokens, rows = theme.tokens, stack.rows_area(block)
    side = paint_badge(painter, block.letter, QPointF(0, rows.top()))
    line = QRectF(side + 7, rows.top(), stack.name_px - side - 13, side)
    font, quiet = theme.font(12, QFont.Weight.DemiBold), theme.font(11)
    name, rest = block.entry.name, ""
    if QFontMetricsF(font).horizontalAdvance(name) > line.width():
        name, _, rest = name.partition(", ")
    room = int((rows.height() + stack.memory_area(block).height()) / (16 * theme.scale))
    ways = rest_lines(rest, QFontMetricsF(quiet), line.width(), max(room - _OTHER_LINES, 1))
    peak = int(block.schedule.peak_bytes[stack.devices].max(initial=0))
    step = ms(block.schedule.makespan_us)
    unfit = "" if block.schedule.fits else "does not fit"
    for text, shown, color in (
        (name, font, tokens.text),
        *((way, quiet, tokens.text) for way in ways),
        (step, theme.font(12), tokens.text),
        (f"peak {size(peak)}", quiet, tokens.dim),
        (block.moved_text, quiet, tokens.dim),
        (unfit, theme.font(11, QFont.Weight.Medium), tokens.bad),
    ):
        if text:
            draw_text(painter, line, text, shown, color)
            line.translate(0, 16 * theme.scale)


def rest_lines(text: str, metrics: QFontMetricsF, width: float, most: int) -> list[str]:
    """Break what follows the first part of a name into so many lines, at its commas."""
    lines: list[str] = []
    for part in text.split(", "):
        longer = f"{lines[-1]}, {part}" if lines else part
        is_free = len(lines) < most and metrics.horizontalAdvance(f"{longer},") > width
        if lines and is_free:
            lines[-1] += ","
            lines.append(part)
        else:
            lines = [*lines[:-1], longer]
    return [_shortened(line, metrics, width) for line in lines]


def _shortened(line: str, metrics: QFontMetricsF, width: float) -> str:
    """Leave out the last parts of a line that is too wide: half a number would mislead."""
    parts, shown = line.split(", "), line
    while metrics.horizontalAdvance(shown) > width and len(parts) > 1:
        parts.pop()
        shown = f"{', '.join(parts)}, …"
    return metrics.elidedText(shown, Qt.TextElideMode.ElideRight, width)


def _paint_memory(painter: QPainter, stack: Stack, block: Block) -> None:
    """Paint one curve for each device, on a scale that all plans share."""
    tokens, area = theme.tokens, stack.memory_area(block)
    font, beside = theme.font(11), QRectF(area.right() + 5, area.top() - 4, 90, area.height() + 8)
    title = area.translated(stack.name_px - stack.left, 0)
    draw_text(painter, title, "memory", font, tokens.dim)
    most = size(stack.most_bytes)
    draw_text(painter, beside, most, font, tokens.dim, Qt.AlignmentFlag.AlignTop)
    painter.save()
    _clip_to_lanes(painter, stack, area)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    edges_us, unit = stack.edges_us(), (area.height() - 4) / stack.most_bytes
    last = int(np.searchsorted(edges_us, block.schedule.makespan_us))
    colours = colour_numbers(block.schedule.problem.cluster)
    for device in stack.devices:
        curve = block.contents.memory[device]
        highest = highest_per_column(curve.time_us, curve.bytes, edges_us)[:last]
        painter.setPen(QPen(theme.device_color(colours[device]), 1.3))
        painter.drawPolyline(_curve(highest * unit, area, block.lanes.pixel_ratio))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.setPen(QPen(tokens.line, 1))
    painter.drawLine(area.bottomLeft(), area.bottomRight())
    painter.restore()


def _curve(heights: FloatArray, area: QRectF, ratio: float) -> QPolygonF:
    """Make a line of the heights above an area's bottom in pixel columns; only its bends."""
    ys = np.rint(2 * heights) / 2
    bends = np.ones(len(ys), dtype=bool)
    bends[1:-1] = (ys[1:-1] != ys[:-2]) | (ys[1:-1] != ys[2:])
    xs = area.left() + (np.flatnonzero(bends) + 0.5) / ratio
    points = zip(xs.tolist(), (area.bottom() - 1 - ys[bends]).tolist(), strict=True)
    return QPolygonF([QPointF(x, y) for x, y in points])


def _paint_end(painter: QPainter, stack: Stack, block: Block, change: str) -> None:
    """Paint a line at the end of the step, and beside it the difference from A."""
    tokens, rows = theme.tokens, stack.rows_area(block)
    x = rows.left() + stack.scale.x(block.schedule.makespan_us)
    if not rows.left() <= x <= rows.right() + 1:
        return
    painter.setPen(QPen(tokens.text, 1))
    painter.drawLine(QLineF(x, rows.top() - 2, x, rows.bottom() + 2))
    color = change_color(change) if block.schedule.fits else tokens.bad
    beside = QRectF(x + 5, rows.top(), 200, rows.height())
    draw_text(painter, beside, change, theme.font(12, QFont.Weight.DemiBold), color)


def change_color(change: str) -> QColor:
    """Return green for less time, red for more."""
    tokens = theme.tokens
    return {"−": tokens.good, "+": tokens.bad}.get(change[:1], tokens.dim)


def _clip_to_lanes(painter: QPainter, stack: Stack, area: QRectF) -> None:
    lanes = QRectF(stack.left, area.top(), stack.scale.width_px + 1, area.height() + 2)
    painter.setClipRect(lanes, Qt.ClipOperation.IntersectClip)


def _paint_bound(painter: QPainter, stack: Stack, bound_us: float, bottom: float) -> None:
    """Paint a dashed line at the proven bound; below a block, what it is."""
    x = stack.left + stack.scale.x(bound_us)
    if not stack.left <= x <= stack.left + stack.scale.width_px:
        return
    painter.setPen(QPen(theme.tokens.good, 1.3, Qt.PenStyle.DashLine))
    painter.drawLine(QLineF(x, stack.axis_px - 2, x, bottom))
    font = theme.font(11)
    room = max(x - stack.left, stack.left + stack.scale.width_px - x) - 6
    texts = f"nothing is shorter than this: {ms(bound_us)}, proven", f"bound {ms(bound_us)}"
    widths = [QFontMetricsF(font).horizontalAdvance(text) for text in texts]
    text, wide = texts[widths[0] > room], widths[widths[0] > room]
    fits_right = x + 6 + wide <= stack.left + stack.scale.width_px
    lowest = [stack.memory_area(block).bottom() + GAP_PX * theme.scale for block in stack.blocks]
    y = max((y for y in lowest if y <= bottom + 6), default=stack.axis_px)
    painter.setFont(font)
    painter.drawText(QPointF(x + 6 if fits_right else x - 6 - wide, y - 5), text)


def _paint_interval(painter: QPainter, stack: Stack, interval: Interval, bottom: float) -> None:
    tokens, scale = theme.tokens, stack.scale
    far = 4 * scale.width_px  # the raster engine is slow with far-away points
    left, right = (
        stack.left + min(max(scale.x(time), -far), far)
        for time in (interval.start_us, interval.stop_us)
    )
    fill = QColor(tokens.accent)
    fill.setAlphaF(_INTERVAL_ALPHA)
    top = stack.axis_px - 3
    painter.fillRect(QRectF(left, top, right - left, bottom - top), fill)
    painter.setPen(QPen(blend(tokens.accent, tokens.panel, 0.8), 1.2))
    for x in (left, right):
        painter.drawLine(QLineF(x, top, x, bottom))
