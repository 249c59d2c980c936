"""What widgets that paint themselves share: a text in an area, and a painted button."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QAbstractButton, QSizePolicy, QWidget

from enplace_studio.widgets.theme import theme

LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


def draw_text(
    painter: QPainter,
    area: QRectF,
    text: str,
    font: QFont,
    color: QColor,
    align: Qt.AlignmentFlag = LEFT,
) -> None:
    """Draw a text as far as it fits, elided in the middle."""
    painter.setFont(font)
    painter.setPen(color)
    elide = Qt.TextElideMode.ElideMiddle
    painter.drawText(area, align, QFontMetricsF(font).elidedText(text, elide, area.width()))


class PaintedButton(QAbstractButton):
    """A button that paints itself; it may be narrower than its hint, so that no pane clips it.

    Parameters
    ----------
    can_click : bool
        False for one that only shows something.
    """

    least_px = 80

    def __init__(self, parent: QWidget | None = None, *, can_click: bool = True) -> None:
        super().__init__(parent)
        self.can_click = can_click
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus if can_click else Qt.FocusPolicy.NoFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        if can_click:
            self.setCursor(Qt.CursorShape.PointingHandCursor)
        theme.changed.connect(self.update)

    def minimumSizeHint(self) -> QSize:
        return QSize(round(self.least_px * theme.scale), self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            self.paint(painter)

    def paint(self, painter: QPainter) -> None:
        """Paint the button."""
        raise NotImplementedError

    def paint_hover(self, painter: QPainter) -> None:
        """Fill the ground of a button that can be clicked, under the pointer or with the focus."""
        if self.can_click and (self.underMouse() or self.hasFocus()):
            painter.fillRect(self.rect(), theme.tokens.hover)


_POINTS = {
    QEvent.Type.Enter: True,
    QEvent.Type.Leave: False,
    QEvent.Type.FocusIn: True,
    QEvent.Type.FocusOut: False,
}


class PointingButton(PaintedButton):
    """A painted button that tells when the pointer or the focus comes to it, or leaves it."""

    pointed = Signal(bool)

    def event(self, event: QEvent) -> bool:
        if (is_here := _POINTS.get(event.type())) is not None:
            self.pointed.emit(is_here)
        return super().event(event)
