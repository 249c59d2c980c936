"""Drawing of the timeline: rows as exact busy fractions, labels, axis and critical path.

Every function draws its arguments within the window of a scale; none keeps state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QImage,
    QPainter,
    QPen,
    QStaticText,
)

from enplace.names.groups import Grouping
from enplace.names.titles import shorter_titles
from enplace.pictures.busy import BusyCurve, highest_per_column
from enplace.pictures.tracks import PathTrace
from enplace.values.profile import FloatArray
from enplace_studio.explain.queues import Queue
from enplace_studio.explain.shortened import brief
from enplace_studio.timelines.lanes import Lanes
from enplace_studio.timelines.rows import Row
from enplace_studio.timelines.scale import TimeScale, tick_texts
from enplace_studio.widgets.theme import blend, theme

Pixels = NDArray[np.uint8]

WIDE_PX = 4
"""Bars at least this wide have a gap after them, and an outline when selected."""
LABEL_PX, GROUP_PX = 34, 52
"""Bars at least this wide have a label, and bars of one group together."""
LEAST_PX = 0.1
"""Bars narrower than this do not end a stretch of the groups of one scope."""
FILLED = 0.75
"""Bars that are named together take at least this share of their time."""
DIMMED = 0.55
"""Share of its colour that a bar keeps while others are selected."""
SECOND_SHADE = 0.78
"""Share of a device's colour in the second of its shades."""
QUEUE_SHADE = 0.4
"""Share of the colour of transfers in what shows how many wait."""
PATH_PX = 3.4
"""Width of the critical path with the ground on both sides of it."""
LONG_STRETCH_PX = 3
"""Steps of the critical path between two stretches shorter than this are left out: a wall of lines
would hide the lanes."""
_DENSEST_LABELS = 500


def rgb(color: QColor) -> FloatArray:
    """Return red, green and blue from 0 to 255."""
    return np.array([color.red(), color.green(), color.blue()], dtype=np.float64)


def shades(colour: int, second: float = SECOND_SHADE) -> tuple[QColor, QColor]:
    """Return a row's two shades: a device's colour and a paler one; for −1, neutral ones."""
    if colour < 0:
        return theme.tokens.dim, blend(theme.tokens.dim, theme.tokens.panel, second)
    color = theme.device_color(colour)
    ground = theme.tokens.bg if theme.dark else QColor("white")
    return color, blend(color, ground, second)


def mix(ground: QColor, layers: Sequence[tuple[FloatArray, QColor]]) -> Pixels:
    """Mix opaque pixels in which each layer's colour covers its fraction of the column.

    Returns
    -------
    uint8 array, shape (n_columns, 4)
        Blue, green, red, alpha.
    """
    base = rgb(ground)
    shares = np.clip([fraction for fraction, _ in layers], 0, 1)
    changes = np.array([rgb(color) for _, color in layers]) - base
    pixels = np.rint(base + shares.T @ changes)
    image = np.full((len(pixels), 4), 255, dtype=np.uint8)
    image[:, :3] = np.clip(pixels[:, ::-1], 0, 255)
    return image


def draw_columns(painter: QPainter, pixels: Pixels, area: QRectF) -> None:
    """Stretch one line of pixels over an area."""
    line = np.ascontiguousarray(pixels)
    image = QImage(line.data, len(line), 1, 4 * len(line), QImage.Format.Format_ARGB32)
    painter.drawImage(area, image, QRectF(0, 0, len(line), 1))


def draw_row(
    painter: QPainter,
    row: Row,
    area: QRectF,
    edges_us: FloatArray,
    colors: tuple[QColor, QColor],
    selected: tuple[BusyCurve, BusyCurve] | None,
    dimmed: bool,
) -> None:
    """Draw a row's bars; each column shows its exact busy fraction.

    Parameters
    ----------
    selected : pair of BusyCurve, optional
        The selected bars of either shade; they keep their colour while the others are dimmed.
    """
    lane = theme.tokens.lane
    layers = []
    for shade, color in enumerate(colors):
        busy = row.curves[shade].fractions(edges_us) / row.channels
        if selected is not None:
            chosen = selected[shade].fractions(edges_us) / row.channels
            layers.append((chosen, color))
            busy = busy - chosen
        layers.append((busy, blend(color, lane, DIMMED) if dimmed else color))
    draw_columns(painter, mix(lane, layers), area)


def draw_marks(
    painter: QPainter, curve: BusyCurve, area: QRectF, edges_us: FloatArray, color: QColor
) -> None:
    """Paint every column in which a curve is not zero."""
    touched = np.diff(curve.before(edges_us)) > 1e-6
    pixels = np.zeros((len(touched), 4), dtype=np.uint8)
    pixels[touched] = [*rgb(color)[::-1], 255]
    draw_columns(painter, pixels, area)


def draw_ghost(painter: QPainter, curve: BusyCurve, area: QRectF, edges_us: FloatArray) -> None:
    """Draw the busy time of an earlier schedule as a thin strip."""
    tokens = theme.tokens
    draw_columns(painter, mix(tokens.panel, [(curve.fractions(edges_us), tokens.faint)]), area)


def bars_area(row: Row, area: QRectF) -> QRectF:
    """Return the part of a row's area in which its bars are."""
    return QRectF(area.left(), area.top(), area.width(), round(row.sent_share * area.height()))


def draw_queue(painter: QPainter, queue: Queue, area: QRectF, edges_us: FloatArray) -> None:
    """Draw how many wait, at most in each column, as high as the area for the longest queue."""
    depth = highest_per_column(queue.time_us, queue.depth, edges_us)
    # Roots, so that one that waits is seen beside a hundred.
    heights = (area.height() - 2) * np.sqrt(depth / max(queue.most, 1))
    width = area.width() / max(len(depth), 1)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(blend(theme.tokens.dim, theme.tokens.lane, QUEUE_SHADE))
    painter.drawRects(
        [
            QRectF(
                area.left() + column * width,
                area.bottom() - heights[column],
                width,
                heights[column],
            )
            for column, height in enumerate(heights.tolist())
            if height > 0
        ]
    )


def draw_gaps(painter: QPainter, row: Row, xs: FloatArray, area: QRectF) -> None:
    """Draw a hairline between bars that are wide enough for one."""
    if len(xs) and (row.is_device or row.queue is not None):
        painter.setPen(QPen(theme.tokens.lane, 1))
        lines = [QLineF(x - 0.5, area.top(), x - 0.5, area.bottom()) for x in xs.tolist()]
        painter.drawLines(lines)


def wide_bars(row: Row, scale: TimeScale) -> NDArray[np.int64]:
    """Find the bars on screen that are at least :data:`WIDE_PX` wide."""
    near = row.within(scale.start_us, scale.stop_us)
    lengths = row.finish_us[near] - row.start_us[near]
    return near.start + np.flatnonzero(lengths >= WIDE_PX * scale.us_per_px)


def _text_top(area: QRectF, metrics: QFontMetricsF) -> float:
    """Return where texts of a lane begin: in its middle or, in a low one, clear of a path."""
    middle = area.top() + (area.height() - metrics.height()) / 2
    above_path = _path_y(area) - PATH_PX / 2 - metrics.height()
    highest = area.top() + 1 - (metrics.ascent() - metrics.capHeight())
    return max(min(middle, above_path), highest)


def _path_y(area: QRectF) -> float:
    return area.bottom() - 0.16 * area.height()


def draw_labels(
    painter: QPainter,
    row: Row,
    wide: NDArray[np.int64],
    names: Sequence[str] | Mapping[int, str],
    scale: TimeScale,
    area: QRectF,
    grounds: tuple[QColor, QColor],
    selection: Collection[int],
) -> None:
    """Write names of ops into bars that are wide enough; all but the selected may be dimmed."""
    width = (row.finish_us[wide] - row.start_us[wide]) / scale.us_per_px
    labelled = wide[width >= LABEL_PX][:_DENSEST_LABELS]
    font = theme.font(11)
    metrics = QFontMetricsF(font)
    if area.height() < metrics.height():
        return
    painter.setFont(font)
    top = _text_top(area, metrics)
    for bar in labelled.tolist():
        left = max(scale.x(row.start_us[bar]), 0.0)
        right = min(scale.x(row.finish_us[bar]), scale.width_px)
        if right - left < LABEL_PX:
            continue
        op, ground = int(row.numbers[bar]), grounds[int(row.odd[bar])]
        if selection and op not in selection:
            ground = blend(ground, theme.tokens.lane, DIMMED)
        painter.setPen(ink_on(ground))
        name = names[op]
        text = fitted((name, name.rpartition("/")[2]), int(right - left - 8), font.key())
        painter.drawStaticText(QPointF(area.left() + left + 4, top), text)


def draw_groups(
    painter: QPainter,
    row: Row,
    groups: Grouping,
    scale: TimeScale,
    area: QRectF,
    grounds: tuple[QColor, QColor],
) -> None:
    """Write names over bars that are too narrow for their own: of groups, or of their scopes."""
    font = theme.font(11)
    metrics = QFontMetricsF(font)
    if area.height() < metrics.height():
        return
    painter.setFont(font)
    top = _text_top(area, metrics)
    scope = np.unique(groups.rows, return_inverse=True)[1]
    own = groups.group[row.numbers]
    named = [(each, groups.names) for each in _narrow_stretches(row, scale, row.odd)]
    wider = _narrow_stretches(row, scale, np.where(own >= 0, scope[own], own), LEAST_PX)
    for each in wider:
        if not any(each[1] <= start_us < each[2] for (_, start_us, _), _ in named):
            named.append((each, groups.rows))
    shorter = shorter_titles((*groups.names, *groups.rows))
    for (first, start_us, finish_us), names in named:
        left = max(scale.x(start_us), 0.0)
        right = min(scale.x(finish_us), scale.width_px)
        if right - left < GROUP_PX or own[first] < 0:
            continue
        ways, ground = shorter[names[own[first]]], grounds[int(row.odd[first])]
        text = fitted(ways, int(right - left - 12), font.key())
        # On a plain ground: the gaps between the bars would run through the letters.
        plate = QRectF(area.left() + left + 3, top, text.size().width() + 6, metrics.height())
        painter.fillRect(plate.intersected(area), ground)
        painter.setPen(ink_on(ground))
        painter.drawStaticText(plate.topLeft() + QPointF(3, 0), text)


def _narrow_stretches(
    row: Row, scale: TimeScale, key: NDArray[np.generic], least_px: float = 0.0
) -> Iterator[tuple[int, float, float]]:
    """Find bars with one key close to each other, none of them wide enough for a label.

    They fill most of the time: a name's plain ground would look like one long bar.

    Yields
    ------
    first : int
        The first of the bars.
    start_us, finish_us : float
    """
    near = row.within(scale.start_us, scale.stop_us)
    start_us, finish_us = row.start_us[near], row.finish_us[near]
    bars = np.flatnonzero(finish_us - start_us >= least_px * scale.us_per_px)
    if not len(bars):
        return
    # Bars that are too narrow to end a stretch are no idle time.
    idle_us = start_us[1:] - np.maximum.accumulate(finish_us)[:-1]
    stretch = np.append(0, np.cumsum(idle_us > WIDE_PX * scale.us_per_px))
    busy_us = np.append(0.0, np.cumsum(finish_us - start_us))
    start_us, finish_us = start_us[bars], finish_us[bars]
    ends = (np.diff(key[near][bars].astype(np.int64)) != 0) | (np.diff(stretch[bars]) != 0)
    firsts = np.flatnonzero(np.append(True, ends))
    until_us = np.maximum.reduceat(finish_us, firsts)
    longest_us = np.maximum.reduceat(finish_us - start_us, firsts)
    wide = until_us - start_us[firsts] >= GROUP_PX * scale.us_per_px
    lasts = np.append(firsts[1:], len(bars)) - 1
    filled_us = busy_us[bars[lasts] + 1] - busy_us[bars[firsts]]
    wide &= filled_us >= FILLED * (until_us - start_us[firsts])
    wide &= longest_us < LABEL_PX * scale.us_per_px
    for at in np.flatnonzero(wide)[:_DENSEST_LABELS].tolist():
        first = int(firsts[at])
        yield near.start + int(bars[first]), float(start_us[first]), float(until_us[at])


LEAST_LETTERS = 9
"""Fewest letters of a name worth showing."""


@lru_cache(maxsize=4096)
def fitted(names: tuple[str, ...], width: int, font_key: str) -> QStaticText:
    """Fit a name into a width: the first form that fits, or the last, abbreviated or elided."""
    font = theme.font(11)
    metrics = QFontMetricsF(font)
    length = metrics.horizontalAdvance
    shown = next((n for n in names if length(n) <= width), brief(names[-1], length, width))
    shown = metrics.elidedText(shown, Qt.TextElideMode.ElideMiddle, width)
    if "…" in shown and len(shown) < LEAST_LETTERS:
        shown = ""
    text = QStaticText(shown)
    text.setTextFormat(Qt.TextFormat.PlainText)
    text.prepare(font=font)
    return text


def ink_on(ground: QColor) -> QColor:
    """Return black or white, whichever reads better on a colour (WCAG luminance)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (ground.redF(), ground.greenF(), ground.blueF())
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return QColor("#1B1F24") if luminance > 0.179 else QColor("white")


def draw_axis(
    painter: QPainter, scale: TimeScale, left: float, axis_px: int, bottom: float
) -> None:
    """Draw tick texts above the rows and faint lines through them."""
    tokens = theme.tokens
    ticks = scale.ticks(90 * theme.scale)
    font = theme.font(11)
    metrics = QFontMetricsF(font)
    painter.setFont(font)
    last_right = -1e9
    for x, text in zip(scale.xs(ticks).tolist(), tick_texts(ticks), strict=True):
        painter.setPen(QPen(tokens.line, 1))
        painter.drawLine(QLineF(left + x, axis_px - 2, left + x, bottom))
        width = metrics.horizontalAdvance(text)
        begin = min(max(left + x - width / 2, left - 8), left + scale.width_px - width)
        if begin > last_right + 8:
            painter.setPen(tokens.dim)
            painter.drawText(QPointF(begin, metrics.ascent() + 1), text)
            last_right = begin + width


def draw_trace(painter: QPainter, trace: PathTrace, lanes: Lanes, color: QColor) -> None:
    """Draw a path low in the lanes, clear of labels, stepping between them."""
    scale, left = lanes.scale, lanes.left
    first = max(int(np.searchsorted(trace.finish_us, scale.start_us)) - 1, 0)
    last = int(np.searchsorted(trace.start_us, scale.stop_us)) + 1
    part = slice(first, last)
    if not len(trace.row[part]):
        return
    areas = [bars_area(row, lanes.row_area(index)) for index, row in enumerate(lanes.rows)]
    heights = [
        area.center().y() if row.thin else _path_y(area)
        for row, area in zip(lanes.rows, areas, strict=True)
    ]
    ys = np.array(heights)[trace.row[part]]
    far = 4 * scale.width_px  # the raster engine is slow with far-away points
    begin = np.clip(scale.xs(trace.start_us[part]), -far, far) + left
    end = np.maximum(np.clip(scale.xs(trace.finish_us[part]), -far, far) + left, begin + 0.75)
    along = [QLineF(a, y, b, y) for a, b, y in zip(begin, end, ys, strict=True)]
    long = end - begin >= LONG_STRETCH_PX
    steps = np.flatnonzero(long[:-1] | long[1:])
    across = [QLineF(end[i], ys[i], begin[i + 1], ys[i + 1]) for i in steps.tolist()]
    thin = np.array([row.thin for row in lanes.rows])[trace.row[part]]
    in_lanes = [line for line, is_thin in zip(along, thin, strict=True) if not is_thin]
    for lines, pen, width in (
        (in_lanes, theme.tokens.panel, PATH_PX),
        (across, color, 1.0),
        (along, color, 1.6),
    ):
        painter.setPen(QPen(pen, width))
        painter.drawLines(lines)
