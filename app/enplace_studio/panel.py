"""The card that frames every pane of the studio: a title, a legend and a body."""

from __future__ import annotations

import html
from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, QPointF, QRect, Qt, QTimer, SignalInstance
from PySide6.QtGui import QAction, QHelpEvent
from PySide6.QtWidgets import (
    QFormLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QScrollArea,
    QSizePolicy,
    QSpinBox,
    QToolTip,
    QVBoxLayout,
    QWidget,
)

from enplace_studio.pictures import Drawing, draw_widget

SAVE_PICTURE = "Save picture of this view…"


class Panel(QFrame):
    """A card with a title; its contents go into ``body``.

    Attributes
    ----------
    body : QVBoxLayout
        The layout of the contents.
    header : QHBoxLayout
        Title and legend; a small button may be added at its end.
    """

    def __init__(self, title: str, legend: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("card", True)
        self._title = label(title, "title")
        self._legend = ElidedLabel("dim")
        self._legend.set_text(legend)
        self._legend.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.header = QHBoxLayout()
        self.header.addWidget(self._title)
        self.header.addStretch(1)
        self.header.addWidget(self._legend, 1000)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 10, 12, 12)
        layout.setSpacing(10)
        layout.addLayout(self.header)
        self.body = QVBoxLayout()
        self.body.setSpacing(8)
        layout.addLayout(self.body, 1)

    def drawing(self) -> Drawing | None:
        """Return what is below the title as a picture; None if there is nothing to show."""
        below = self.header.geometry().bottom() + 6
        area = QRect(12, below, self.width() - 24, self.height() - below - 8)
        return draw_widget(self._title.text(), self, area)

    def offer_picture(self, save: Callable[[Drawing], object]) -> None:
        """Offer to save a picture in a menu at the right mouse button."""
        action = QAction(SAVE_PICTURE, self)
        action.triggered.connect(lambda: (drawing := self.drawing()) and save(drawing))
        self.addAction(action)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)

    def set_title(self, title: str) -> None:
        self._title.setText(title)

    @property
    def legend(self) -> str:
        """The full legend, even if it is shown elided."""
        return self._legend.whole

    def set_legend(self, legend: str) -> None:
        self._legend.set_text(legend)


class ElidedLabel(QLabel):
    """A label that can shrink; a text that does not fit ends in an ellipsis."""

    def __init__(self, role: str = "") -> None:
        super().__init__()
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
        mode = Qt.TextElideMode.ElideRight
        shown = self.fontMetrics().elidedText(self.whole, mode, self.width())
        if shown != self.text():
            self.setText(shown)
            self.setToolTip("" if shown == self.whole else plain_tip(self.whole))


def label(text: str, role: str = "") -> QLabel:
    """Make a text with a role from the style sheet: ``title``, ``dim``, ``number``, ``good``..."""
    made = QLabel(text)
    made.setTextFormat(Qt.TextFormat.PlainText)
    if role:
        made.setProperty("role", role)
    return made


def paragraph(text: str) -> QLabel:
    """Make a dim text that wraps."""
    made = label(text, "dim")
    made.setWordWrap(True)
    return made


class Column(QScrollArea):
    """A column of widgets that scrolls if they do not fit; :meth:`fill` replaces them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)

    def fill(self, spacing: int = 8) -> QVBoxLayout:
        """Remove the contents and return the layout for new ones; the scroll position stays."""
        contents, scrolled = QWidget(), self.verticalScrollBar().value()
        column = QVBoxLayout(contents)
        column.setContentsMargins(0, 0, 4, 0)  # clear of the scroll bar
        column.setSpacing(spacing)
        column.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.setWidget(contents)
        contents.setAutoFillBackground(False)  # setWidget has just turned it on
        QTimer.singleShot(0, self, lambda: self.verticalScrollBar().setValue(scrolled))
        return column


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


def call_later(owner: QObject, slot: Callable[[], None], *changes: SignalInstance) -> QTimer:
    """Call a slot once after any number of changes, when the event that caused them is over.

    Several signals follow one edit, and a click may replace the button that was clicked.

    Returns
    -------
    QTimer
        Starting it calls the slot too.
    """
    timer = QTimer(owner, singleShot=True, interval=0)
    timer.timeout.connect(slot)
    for change in changes:
        change.connect(timer.start)
    return timer


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


def number_field(low: int, high: int, value: int) -> QSpinBox:
    """Make a field for a whole number, which arrow keys and wheel change too."""
    made = QSpinBox(minimum=low, maximum=high, value=value)
    made.setGroupSeparatorShown(True)
    made.lineEdit().setTextMargins(7, 0, 7, 0)  # the style sheet's padding does not apply to it
    return made


class Form(QFormLayout):
    """A form with names on the left and fields as wide as possible on the right."""

    def __init__(self) -> None:
        super().__init__()
        self.setHorizontalSpacing(16)
        self.setVerticalSpacing(8)
        self.setLabelAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)

    def add(self, name: str, field: QWidget, help_text: str = "") -> None:
        """Add a row, its name vertically centred on the field, with a help text below."""
        if not help_text:
            self.addRow(_name_of(name, field), field)
            return
        both = QVBoxLayout()
        both.setSpacing(3)
        both.addWidget(field)
        both.addWidget(paragraph(help_text))
        self.addRow(_name_of(name, field), both)

    def add_heading(self, text: str) -> None:
        """Add a heading above the next rows."""
        shown = label(text, "title")
        shown.setMinimumHeight(shown.sizeHint().height() + (14 if self.rowCount() else 0))
        shown.setAlignment(Qt.AlignmentFlag.AlignBottom)
        self.addRow(shown)

    def add_first(self, name: str, field: QWidget) -> None:
        """Add a row above all others."""
        self.insertRow(0, _name_of(name, field), field)


def _name_of(name: str, field: QWidget) -> QLabel:
    shown = label(name)
    shown.setMinimumHeight(field.sizeHint().height())
    shown.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
    shown.setBuddy(field)
    return shown
