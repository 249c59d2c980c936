"""Texts: labels with a role from the style sheet, such that can shrink, and tooltips."""

from __future__ import annotations

import html
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QEnterEvent, QHelpEvent, QPaintEvent
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QLabel,
    QSizePolicy,
    QStyle,
    QStyleOptionComboBox,
    QStylePainter,
    QToolTip,
    QWidget,
)

from enplace_studio.explain.shortened import shorten_among
from enplace_studio.widgets.wheel import scroll_past

BETWEEN_FACTS = "   ·   "
BORDER = 1


class ElidedLabel(QLabel):
    """A label that can shrink; a text that does not fit ends in an ellipsis.

    A text ``among`` others leaves out what they share first. Facts on one line, with
    :data:`BETWEEN_FACTS` between them, are left out as a whole, the last first.
    """

    def __init__(self, role: str = "", among: Sequence[str] = ()) -> None:
        super().__init__()
        self._among = among
        self.setProperty("role", role)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.whole = ""

    def set_text(self, text: str) -> None:
        self.whole = text
        self.setMaximumWidth(self.fontMetrics().horizontalAdvance(text) + 8)
        self._elide()

    def resizeEvent(self, event: object) -> None:
        self._elide()

    def _elide(self) -> None:
        mode, metrics, shown = Qt.TextElideMode.ElideRight, self.fontMetrics(), self.whole
        if self._among:
            shown = shorten_among(shown, self._among, metrics.horizontalAdvance, self.width())
            mode = Qt.TextElideMode.ElideMiddle
        while metrics.horizontalAdvance(shown) > self.width() and BETWEEN_FACTS in shown:
            shown = f"{shown.rpartition(BETWEEN_FACTS)[0]} …"
        shown = metrics.elidedText(shown, mode, self.width())
        if shown != self.text():
            self.setText(shown)
            self.setToolTip("" if shown == self.whole else plain_tip(self.whole))


class ElidedCombo(QComboBox):
    """A box in which a choice that does not fit ends in an ellipsis."""

    def __init__(self) -> None:
        super().__init__()
        scroll_past(self)

    def shown_text(self) -> str:
        """Return the choice as far as it fits."""
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        field = self.style().subControlRect(
            QStyle.ComplexControl.CC_ComboBox,
            option,
            QStyle.SubControl.SC_ComboBoxEditField,
            self,
        )
        elide, room = Qt.TextElideMode.ElideRight, field.width() - 2 * BORDER
        return self.fontMetrics().elidedText(self.currentText(), elide, room)

    def paintEvent(self, event: QPaintEvent) -> None:
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        option.currentText = self.shown_text()
        painter = QStylePainter(self)
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)
        painter.end()


def label(text: str, role: str = "", *, wraps: bool = False) -> QLabel:
    """Make a text with a role from the style sheet: ``title``, ``dim``, ``number``, ``good``..."""
    made = QLabel(text, wordWrap=wraps)
    made.setTextFormat(Qt.TextFormat.PlainText)
    if role:
        made.setProperty("role", role)
    return made


def paragraph(text: str) -> QLabel:
    """Make a dim text that wraps."""
    return label(text, "dim", wraps=True)


def set_role(widget: QLabel, role: str) -> None:
    """Give a label another role and the style of that role."""
    if widget.property("role") != role:
        widget.setProperty("role", role)
        widget.style().unpolish(widget)
        widget.style().polish(widget)


def named(widget: QWidget, name: str) -> QWidget:
    """Set the name of a widget for the style sheet, and return the widget."""
    widget.setObjectName(name)
    return widget


def plain_tip(text: str) -> str:
    """Make a tooltip that shows a text verbatim, even if it looks like HTML."""
    shown = html.escape(text, quote=False)
    return f'<p style="white-space: pre-wrap">{shown}</p>' if text else ""


class TipWidget(QWidget):
    """A painted widget whose tooltip depends on the point under the pointer."""

    def tip_at(self, at: QPointF) -> str:
        """Return the tooltip at a point; empty for none."""
        raise NotImplementedError

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            text = plain_tip(self.tip_at(QPointF(event.pos())))
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)


class KeyCanvas(TipWidget):
    """A painted widget whose keys act as soon as the pointer comes to it."""

    def enterEvent(self, event: QEnterEvent) -> None:
        focused = QApplication.focusWidget()
        is_typing = focused and focused.testAttribute(Qt.WidgetAttribute.WA_InputMethodEnabled)
        if self.isActiveWindow() and not is_typing:
            self.setFocus(Qt.FocusReason.MouseFocusReason)
