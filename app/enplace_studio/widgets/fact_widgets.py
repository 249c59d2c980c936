"""The small parts of the inspector: a line with two texts, a button for a device."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QPainter,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QGridLayout, QWidget

from enplace_studio.explain.shortened import brief, by_ends, shorten_among
from enplace_studio.widgets.drawing import LEFT, RIGHT, PaintedButton, PointingButton, draw_text
from enplace_studio.widgets.hatch import paint_notches
from enplace_studio.widgets.labels import plain_tip
from enplace_studio.widgets.theme import theme

COLUMN_PX = 118
"""Least width of a column of buttons with a name and a note."""

_NOTE_GAP = 6  # px between the name and the note of a button
USUAL_TIME, USUAL_GAIN = "888.8 ms", "88.8 ms   −88.8 ms"
"""Room for the values of lines of one list, so that their names have the same: times, and times
with what they would gain."""


class Line(PaintedButton):
    """A name on the left and a value on the right; with ``can_click``, also a button.

    Long texts are elided in the middle; ``elide`` sets another place for the name. A name ``among``
    others leaves out what they share first; all of them leave room for the ``usual`` value. With a
    ``colour`` of devices, a bar has it, so ``where``, the words for it after the name, are left out
    before anything else.
    """

    def __init__(
        self,
        left: str,
        right: str,
        tip: str = "",
        parent: QWidget | None = None,
        elide: Qt.TextElideMode = Qt.TextElideMode.ElideMiddle,
        can_click: bool = False,
        among: Sequence[str] = (),
        colour: int | None = None,
        where: str = "",
        usual: str = "",
    ) -> None:
        super().__init__(parent, can_click=can_click)
        self._name, self.left, self._usual = left, f"{left}{where}", usual
        self._elide, self._among, self._colour = elide, among, colour
        self.set_right(right, tip or f"{self.left}: {right}")

    def set_right(self, right: str, tip: str) -> None:
        """Show another value."""
        self.right, self.tip = right, tip
        self.setToolTip(plain_tip(tip))
        self.setAccessibleName(f"{self.left}: {right}")
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(round(180 * theme.scale), round(20 * theme.scale))

    def shown_left(self, metrics: QFontMetricsF, width: float) -> str:
        """Return the name as far as it fits."""
        name, where = self._name, self.left.removeprefix(self._name)
        if self._among:  # all of them leave the same out
            length = metrics.horizontalAdvance
            if max(map(length, self._among)) + length(where) <= width:
                return self.left
            return by_ends(shorten_among(name, self._among, length, width), length, width)
        return metrics.elidedText(name, self._elide, width)

    def paint(self, painter: QPainter) -> None:
        area, font = QRectF(self.rect()), theme.font(12)
        self.paint_hover(painter)
        if self._colour is not None:
            self._paint_bar(painter, self._colour, area)
        if self._among:  # those without a device are in line with the others
            area.setLeft(area.left() + 10)
        metrics = QFontMetricsF(font)
        least_left = min(metrics.horizontalAdvance(self.left), area.width() * 0.4)
        elide = Qt.TextElideMode.ElideMiddle
        right = metrics.elidedText(self.right, elide, area.width() - least_left - 12)
        draw_text(painter, area, right, font, theme.tokens.dim, RIGHT)
        right_width = max(map(metrics.horizontalAdvance, (right, self._usual)))
        left = self.shown_left(metrics, area.width() - right_width - 12)
        draw_text(painter, area, left, font, theme.tokens.text)

    @staticmethod
    def _paint_bar(painter: QPainter, colour: int, area: QRectF) -> None:
        color = theme.device_color(colour)
        bar = QRectF(area.left(), area.top() + 3, 4, area.height() - 6)
        painter.fillRect(bar, color)
        paint_notches(painter, bar, theme.tokens.panel, theme.notches(color))


class WhyLine(PointingButton):
    """A reason on two lines: its kind and what it is about, and the figure below.

    It points at its marks while the pointer or the focus is on it; a click follows it. Without room
    for it, what it is about leaves out what it shares with those ``among`` which it stands, or the
    end that says what is ``known``.
    """

    def __init__(
        self,
        kind: str,
        about: str,
        figure: str,
        tip: str,
        can_click: bool,
        among: Sequence[str] = (),
        known: str = "",
    ) -> None:
        super().__init__(can_click=can_click)
        self._among, self._known = among, known
        self.kind, self.about, self.figure = kind, about, figure
        self.setToolTip(plain_tip(f"{tip}\nClick to go there" if can_click else tip))
        self.setAccessibleName(f"{kind} {about}: {figure}" if figure else f"{kind} {about}")

    def sizeHint(self) -> QSize:
        return QSize(round(180 * theme.scale), round((36 if self.figure else 20) * theme.scale))

    def paint(self, painter: QPainter) -> None:
        tokens, line = theme.tokens, QRectF(self.rect()).adjusted(8, 0, 0, 0)
        font, quiet = theme.font(12), theme.font(11)
        self.paint_hover(painter)
        if self.figure:
            line.setHeight(line.height() / 2)
            below = line.translated(0, line.height())
            draw_text(painter, below, self.figure, quiet, tokens.text)
        draw_text(painter, line, self.kind, quiet, tokens.dim)
        line.setLeft(line.left() + QFontMetricsF(quiet).horizontalAdvance(self.kind) + 8)
        about = self.shown_about(QFontMetricsF(font), line.width())
        draw_text(painter, line, about, font, tokens.accent if self.can_click else tokens.text)

    def shown_about(self, metrics: QFontMetricsF, width: float) -> str:
        """Return what it is about as far as it fits."""
        about = self.about
        if self._among:
            about = shorten_among(about, self._among, metrics.horizontalAdvance, width)
        elif metrics.horizontalAdvance(about) > width:
            about = brief(about.removesuffix(self._known), metrics.horizontalAdvance, width)
        return by_ends(about, metrics.horizontalAdvance, width)


class Columns(QWidget):
    """Widgets in equal columns, as many as are wide enough.

    Parameters
    ----------
    least_px : int
        Least width of a column.
    most : int
        Largest number of columns.
    """

    def __init__(self, least_px: int, most: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._least_px, self._most, self._n = least_px, most, most
        self._widgets: Sequence[QWidget] = ()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(6)

    def fill(self, widgets: Sequence[QWidget]) -> None:
        """Show these widgets."""
        self._widgets = widgets
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        least_px = round(self._least_px * theme.scale)
        n = min(max(event.size().width() // least_px, 1), self._most)
        if n != self._n:
            self._n = n
            self._arrange()

    def _arrange(self) -> None:
        for column in range(self._most):
            self._grid.setColumnStretch(column, int(column < self._n))
        for at, widget in enumerate(self._widgets):
            self._grid.addWidget(widget, at // self._n, at % self._n)


class DeviceButton(PaintedButton):
    """A device that the selection may move to, with its name and the change in step time.

    Checked if the selection runs there.
    """

    least_px = 44

    def __init__(
        self,
        device: int,
        name: str,
        colour: int,
        compact: bool,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.device, self.compact, self._colour = device, compact, colour
        self.note, self._role = "", "dim"
        self.setText(name)
        self.setCheckable(True)
        self.setAccessibleName(name)

    def set_note(self, note: str, role: str = "dim") -> None:
        """Set the text after the name: a change in step time, or the number of ops there."""
        self.note, self._role = note, role
        self.setAccessibleName(f"{self.text()} {note}")
        self.update()

    def nextCheckState(self) -> None:
        """Do nothing: the plan, not the click, decides where the selection is."""

    def sizeHint(self) -> QSize:
        width, height = (60, 38) if self.compact else (110, 30)
        return QSize(round(width * theme.scale), round(height * theme.scale))

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.EnabledChange:
            self.setCursor(
                Qt.CursorShape.PointingHandCursor
                if self.isEnabled()
                else Qt.CursorShape.ArrowCursor
            )
        super().changeEvent(event)

    def paint(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens = theme.tokens
        strong = self.isChecked() or self.hasFocus()
        pen = QPen(tokens.accent if strong else tokens.line, 2 if self.isChecked() else 1)
        inset = pen.widthF() / 2
        painter.setPen(pen)
        filled = self.isEnabled() and (self.isChecked() or self.underMouse())
        painter.setBrush(tokens.hover if filled else tokens.panel)
        area = QRectF(self.rect())
        painter.drawRoundedRect(area.adjusted(inset, inset, -inset, -inset), 6, 6)
        self._paint_chip(painter, area)
        self._paint_text(
            painter, area.adjusted(13, 0, -3, 0) if self.compact else area.adjusted(16, 0, -8, 0)
        )

    def _paint_chip(self, painter: QPainter, area: QRectF) -> None:
        color = QColor(theme.device_color(self._colour))
        color.setAlphaF(1.0 if self.isEnabled() else 0.3)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
        painter.drawRoundedRect(QRectF(6, area.height() * 0.25, 3, area.height() * 0.5), 1.5, 1.5)

    def _paint_text(self, painter: QPainter, inner: QRectF) -> None:
        """Paint name and note side by side, or one above the other if space is short."""
        tokens = theme.tokens
        is_stacked = self.is_stacked(inner.width())
        name_font, note_font = self._fonts(is_stacked)
        name, note = QRectF(inner), QRectF(inner)
        if is_stacked and self.note:
            name.setBottom(inner.center().y() + 1)
            note.setTop(inner.center().y() - 1)
        color = tokens.text if self.isEnabled() else tokens.faint
        draw_text(painter, name, self.text(), name_font, color)
        color = {"good": tokens.good, "bad": tokens.bad}.get(self._role, tokens.dim)
        draw_text(painter, note, self.note, note_font, color, LEFT if is_stacked else RIGHT)

    def is_stacked(self, width: float) -> bool:
        """Return whether the note is below the name, because it would be elided beside it."""
        fonts = zip(self._fonts(False), (self.text(), self.note), strict=True)
        needed = sum(QFontMetricsF(font).horizontalAdvance(text) for font, text in fonts)
        return self.compact or needed + _NOTE_GAP > width

    @staticmethod
    def _fonts(is_stacked: bool) -> tuple[QFont, QFont]:
        """Return the fonts of the name and the note."""
        name_px, note_px = (11, 10) if is_stacked else (12, 11)
        weight = QFont.Weight.Medium
        return theme.font(name_px, weight), theme.font(note_px, weight)
