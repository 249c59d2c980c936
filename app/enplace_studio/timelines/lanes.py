"""The positions of the timeline's rows and of the step's moments on the canvas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QFont, QFontMetricsF

from enplace.text import elide_middle
from enplace.values.device_names import device_label
from enplace.values.profile import FloatArray, IntArray
from enplace_studio.timelines.navigation import Surface
from enplace_studio.timelines.rows import Place, Row, arrange, highest
from enplace_studio.widgets.theme import theme

SLACK_PX = 3
"""Distance from the pointer within which a bar counts as hit."""
TITLE_LENGTH = 24
_NARROW_PX = 420
_RIGHT_PX = 8


@dataclass(frozen=True)
class Gutter:
    """Right edges of the titles and the notes before the lanes; a narrow canvas has no notes.

    Titles begin at ``indent_px``.
    """

    titles_px: int
    all_px: int
    indent_px: int = 0


class Lanes(Surface):
    """The geometry of the canvas: rows from top to bottom, time from left to right.

    Attributes
    ----------
    rows, places : sequences of Row and Place
        The rows drawn, and their places.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: Sequence[Row] = ()
        self.places: Sequence[Place] = ()
        self.pixel_ratio = 1.0
        self.gutter = Gutter(0, 0)
        self._width = self._height = 0

    def lay_out(
        self,
        rows: Sequence[Row],
        end_us: float,
        width: int,
        height: int,
        gutter: Gutter | None = None,
    ) -> None:
        """Arrange the rows of a step on a canvas of this size.

        Parameters
        ----------
        gutter : Gutter, optional
            One that several canvases share; otherwise that of these rows.
        """
        self.rows, self._width, self._height = rows, width, height
        self.gutter = gutter or find_gutter(rows, width)
        self.places = arrange(list(rows), height - self.axis_px, theme.scale)
        self.end_us, self.scale = end_us, self.scale.resized(end_us, self.lane_px)
        self.content_px = self.places[-1].bottom + 4 if self.places else 0
        self.visible_px = height - self.axis_px
        self.scroll(0)

    # Sizes

    @property
    def left(self) -> int:
        """Left edge of the lanes."""
        return self.gutter.all_px

    @property
    def lane_px(self) -> float:
        return max(self._width - self.left - _RIGHT_PX, 10)

    @property
    def wanted_px(self) -> int:
        """Height at which the lanes are as high as they get."""
        return self.axis_px + highest(self.rows, theme.scale) + 4

    @property
    def bottom(self) -> float:
        """Lower edge of the last visible row."""
        return min(self.axis_px + self.content_px - self.scroll_px, self._height)

    def edges_us(self) -> FloatArray:
        """Compute the moments at the edges of the physical pixel columns."""
        return self.scale.edges(self.pixel_ratio)

    # From rows to pixels

    def row_area(self, index: int) -> QRectF:
        """Return the area of a row's lane."""
        place = self.places[index]
        top = self.axis_px + place.top - self.scroll_px
        return QRectF(self.left, top, self.scale.width_px, place.height)

    def lanes_of(self, device: int) -> list[QRectF]:
        """Return the areas of a device's planned lanes."""
        lanes = enumerate(self.rows)
        return [self.row_area(i) for i, row in lanes if row.is_planned and row.device == device]

    def part(self, lane: QRectF, start_us: float, stop_us: float, least_px: float = 0.0) -> QRectF:
        """Return the part of a lane between two moments, as far as it is on screen."""
        left, right = (
            lane.left() + min(max(self.scale.x(time_us), 0.0), self.scale.width_px)
            for time_us in (start_us, stop_us)
        )
        return QRectF(left, lane.top(), max(right - left, least_px), lane.height())

    # From pixels to rows

    def time_at(self, at: QPointF) -> float:
        return self.scale.time(at.x() - self.left)

    def row_at(self, at: QPointF) -> int | None:
        """Find the index of the row at the pointer; the gap below a row belongs to it."""
        y = at.y() - self.axis_px + self.scroll_px
        if at.y() < self.axis_px:
            return None
        tops = [place.top - 2 for place in self.places]
        index = int(np.searchsorted(tops, y, side="right")) - 1
        return index if index >= 0 and y <= self.places[index].bottom + 4 else None

    def device_at(self, at: QPointF) -> int | None:
        """Find the device of the lane at the pointer, if ops can be dragged there."""
        index = self.row_at(at)
        planned = index is not None and self.rows[index].is_planned
        return self.rows[index].device if index is not None and planned else None

    def bar_at(self, at: QPointF) -> tuple[Row, int] | None:
        """Find the row and the op or transfer number at the pointer."""
        index = self.row_at(at)
        if index is None or at.x() < self.left:
            return None
        row = self.rows[index]
        bar = row.nearest(self.time_at(at), SLACK_PX * self.scale.us_per_px)
        return None if bar is None else (row, int(row.numbers[bar]))

    def op_at(self, at: QPointF) -> int | None:
        """Find the op at the pointer."""
        found = self.bar_at(at)
        return found[1] if found and found[0].is_device else None

    def bars_in(self, area: QRectF) -> Iterator[tuple[QRectF, Row, IntArray]]:
        """Find the bars of devices that touch a rectangle: a lane, its row and places in it."""
        start, stop = self.time_at(area.topLeft()), self.time_at(area.topRight())
        for index, row in enumerate(self.rows):
            lane = self.row_area(index)
            if row.is_device and lane.top() < area.bottom() and lane.bottom() > area.top():
                near = row.within(start, stop)
                touching = (row.finish_us[near] > start) & (row.start_us[near] < stop)
                yield lane, row, near.start + np.flatnonzero(touching)

    def ops_in(self, area: QRectF) -> IntArray:
        """Find the ops whose bars touch a rectangle."""
        found = [row.numbers[bars] for _, row, bars in self.bars_in(area)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *found])


def row_title(row: Row) -> str:
    """Return the title of a row as it is drawn."""
    return elide_middle(device_label(row.title), TITLE_LENGTH)


def find_gutter(rows: Sequence[Row], width: int) -> Gutter:
    """Find the widths of the titles and notes for a canvas of this width."""
    titles = QFontMetricsF(theme.font(12, QFont.Weight.DemiBold))
    notes = QFontMetricsF(theme.font(11))
    title = max((titles.horizontalAdvance(row_title(row)) for row in rows), default=0)
    title_px = round(title) + 12
    if width < _NARROW_PX * theme.scale:
        return Gutter(title_px, title_px)
    note = max((notes.horizontalAdvance(row.note) for row in rows), default=0)
    return Gutter(title_px, title_px + round(note) + 14)
