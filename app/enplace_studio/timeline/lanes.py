"""Where the rows of the timeline and the moments of the step are on the canvas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFont, QFontMetricsF

from enplace.text import device_label, elide_middle
from enplace.values.profile import FloatArray, IntArray
from enplace_studio.theme import theme
from enplace_studio.timeline.rows import Place, Row, arrange
from enplace_studio.timeline.scale import TimeScale

SLACK_PX = 3
"""A bar this near to the pointer is meant."""
TITLE_LENGTH = 24
_NARROW_PX = 420
_RIGHT_PX = 8


@dataclass(frozen=True)
class Gutter:
    """Width of the titles, and of titles and notes; a narrow canvas has no notes."""

    titles_px: int
    all_px: int


class Lanes:
    """The geometry of the canvas: rows from top to bottom, time from left to right.

    Attributes
    ----------
    scale : TimeScale
        The part of the step on screen; its pixels count from the left edge of the lanes.
    rows, places : sequences of Row and Place
        What is drawn, and where.
    scroll_px : float
        How far the rows have moved up.
    """

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()
        self.places: Sequence[Place] = ()
        self.scale = TimeScale.fit(1.0, 1.0)
        self.scroll_px = 0.0
        self.pixel_ratio = 1.0
        self.gutter = Gutter(0, 0)
        self._width = self._height = 0

    def lay_out(self, rows: Sequence[Row], end_us: float, width: int, height: int) -> None:
        """Arrange rows, of a step that ends at a moment, on a canvas of some size."""
        self.rows, self._width, self._height = rows, width, height
        self.gutter = find_gutter(rows, width)
        self.places = arrange(list(rows), height - self.axis_px, theme.scale)
        self.scale = self.scale.resized(end_us, self.lane_px)
        self.scroll(0)

    def fit(self, end_us: float) -> None:
        """Show the whole of a step."""
        self.scale = TimeScale.fit(end_us, self.lane_px)

    def scroll(self, pixels: float) -> None:
        """Move the rows up."""
        last = max(self.content_px - self.visible_px, 0)
        self.scroll_px = min(max(self.scroll_px + pixels, 0), last)

    # Sizes

    @property
    def axis_px(self) -> int:
        return round(22 * theme.scale)

    @property
    def left(self) -> int:
        """Where the lanes begin."""
        return self.gutter.all_px

    @property
    def lane_px(self) -> float:
        return max(self._width - self.left - _RIGHT_PX, 10)

    @property
    def content_px(self) -> int:
        """Height that all rows take."""
        return self.places[-1].bottom + 4 if self.places else 0

    @property
    def visible_px(self) -> int:
        """Height that there is for rows."""
        return self._height - self.axis_px

    @property
    def bottom(self) -> float:
        """Where the last visible row ends."""
        return min(self.axis_px + self.content_px - self.scroll_px, self._height)

    def edges_us(self) -> FloatArray:
        """Moments at the edges of the physical pixel columns."""
        return self.scale.edges(self.pixel_ratio)

    # From rows to pixels

    def row_area(self, index: int) -> QRectF:
        """Where a row's lane is drawn."""
        place = self.places[index]
        top = self.axis_px + place.top - self.scroll_px
        return QRectF(self.left, top, self.scale.width_px, place.height)

    def lanes_of(self, device: int) -> list[QRectF]:
        """The lanes of a device in the plan."""
        lanes = enumerate(self.rows)
        return [self.row_area(i) for i, row in lanes if row.is_planned and row.device == device]

    # From pixels to rows

    def time_at(self, at: QPointF) -> float:
        return self.scale.time(at.x() - self.left)

    def row_at(self, at: QPointF) -> int | None:
        """Index of the row below the pointer; the gap below a row belongs to it."""
        y = at.y() - self.axis_px + self.scroll_px
        if at.y() < self.axis_px:
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
        if index is None or at.x() < self.left:
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


def row_title(row: Row) -> str:
    """The title of a row as it is drawn."""
    return elide_middle(device_label(row.title), TITLE_LENGTH)


def find_gutter(rows: Sequence[Row], width: int) -> Gutter:
    """Find the widths of the titles and notes, on a canvas of some width."""
    titles = QFontMetricsF(theme.font(12, QFont.Weight.DemiBold))
    notes = QFontMetricsF(theme.font(11))
    title = max((titles.horizontalAdvance(row_title(row)) for row in rows), default=0)
    title_px = round(title) + 12
    if width < _NARROW_PX * theme.scale:
        return Gutter(title_px, title_px)
    note = max((notes.horizontalAdvance(row.note) for row in rows), default=0)
    return Gutter(title_px, title_px + round(note) + 14)
