"""The card that frames every pane of the studio: a title, a legend and a body."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QPointF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QHelpEvent, QMouseEvent, QPaintEvent
from PySide6.QtWidgets import (
    QComboBox,
    QFormLayout,
    QFrame,
    QLabel,
    QLayout,
    QScrollArea,
    QSizePolicy,
    QSpinBox,
    QStyle,
    QStyleOptionComboBox,
    QStylePainter,
    QToolButton,
    QToolTip,
    QVBoxLayout,
    QWidget,
)

from enplace_studio.explain.shortened import shorten_among
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.pictures import NOT_IN_PICTURES, Drawing, draw_widget

NO_LIMIT = 16_777_215
"""The maximum size of a widget that has none."""
SAVE_PICTURE = "Save picture of this view…"
BETWEEN_FACTS = "   ·   "
LEAST_HEIGHT = 150
"""A pane with more to show is of no use if it is lower."""


ARROW_PX, BORDER, ROOM_OF_BAR = 12, 1, 4
TOP_MARGIN, SIDE_MARGIN, LOW_MARGIN, SPACING = 10, 12, 12, 10


@dataclass(frozen=True)
class Need:
    """Heights of a pane in pixels: the title alone, the least of use, everything, the most of use.

    A pane that gets less than ``least`` is folded to its title.
    """

    title: int
    least: int
    wanted: int
    most: int


class Panel(QFrame):
    """A card with a title; its contents go into ``body``.

    Attributes
    ----------
    body : QVBoxLayout
        The layout of the contents.
    header : QHBoxLayout
        Title and legend; a small button may be added at its end.
    is_folded : bool
        Whether only the title is shown.
    holds_room : bool
        Whether it shows something that the user asked for, so that it has the room it needs.
    """

    asked = Signal()
    """The user asked for something that this panel shows: it should have the room."""
    released = Signal()
    """The user no longer asks for it."""
    fold_pressed = Signal()
    """The user pressed the line with the title, if the panel can be folded."""
    need_changed = Signal()
    """The contents need another height."""

    def __init__(self, title: str, legend: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("card", True)
        self.is_folded = self.holds_room = False
        self._title = ElidedLabel("title")
        self.set_title(title)
        self._arrow = QToolButton(self)
        self._arrow.setProperty("fold", True)
        self._arrow.clicked.connect(self.fold_pressed)
        self._arrow.setFixedWidth(ARROW_PX)
        self._arrow.hide()
        self._legend = ElidedLabel("dim")
        self.set_legend(legend)
        self._legend.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.header = hbox(
            self._arrow, (self._title, 3000), STRETCH, (self._legend, 1000), spacing=5
        )
        self._contents = QWidget()
        self.body = vbox(on=self._contents, spacing=8, margins=(0, 0, 0, 0))
        margins = (SIDE_MARGIN, TOP_MARGIN, SIDE_MARGIN, LOW_MARGIN)
        vbox(self.header, (self._contents, 1), on=self, spacing=SPACING, margins=margins)

    # Folding, and the room it needs

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """Fold at a click beside the buttons of the first line."""
        in_header = 0 <= event.position().y() < self.header.geometry().bottom()
        if in_header and event.button() == Qt.MouseButton.LeftButton:
            self.fold_pressed.emit()

    def hold_room(self, holds: bool) -> None:
        """Have the room that it needs as long as the user asks for what it shows."""
        if holds or self.holds_room:
            self.holds_room = holds
            (self.asked if holds else self.released).emit()

    def make_foldable(self) -> None:
        """Show the arrow that folds the panel to its title."""
        self._arrow.show()
        self._title.setCursor(Qt.CursorShape.PointingHandCursor)
        self.set_folded(self.is_folded)

    def set_folded(self, folded: bool) -> None:
        """Show only the title, or everything."""
        self.is_folded = folded
        self._contents.setVisible(not folded)
        self._arrow.setText("▸" if folded else "▾")
        name = self._title.whole
        self._arrow.setToolTip(plain_tip(f"{'Show' if folded else 'Fold'} “{name}”"))
        self._arrow.setAccessibleName(f"{'Show' if folded else 'Fold'} {name}")

    @property
    def title_height(self) -> int:
        """The height of the folded panel."""
        return self.header.sizeHint().height() + 2 * (TOP_MARGIN + BORDER)

    @property
    def around_height(self) -> int:
        """The height of everything but the contents."""
        above = self.header.sizeHint().height() + TOP_MARGIN + SPACING
        return above + LOW_MARGIN + 2 * BORDER

    @property
    def inner_width(self) -> int:
        """The width of the contents."""
        return self.width() - 2 * (SIDE_MARGIN + BORDER)

    def need(self) -> Need:
        """Return the heights of use, at the present width."""
        wanted = self.around_height + self.contents_height()
        return Need(self.title_height, min(wanted, LEAST_HEIGHT), wanted, wanted)

    def contents_height(self) -> int:
        """Return the height of the contents at the present width."""
        return height_at(self.body, self.inner_width)

    def drawing(self) -> Drawing | None:
        """Return what is below the title as a picture; None if there is nothing to show."""
        with self._unfolded():
            return draw_widget(self._title.whole, self._contents)

    @contextmanager
    def _unfolded(self) -> Iterator[None]:
        """Let the contents count as visible, for a picture; nothing is painted meanwhile."""
        self._contents.show()
        try:
            yield
        finally:
            self._contents.setVisible(not self.is_folded)

    def offer_picture(self, save: Callable[[Drawing], object]) -> None:
        """Offer to save a picture in a menu at the right mouse button."""
        action = QAction(SAVE_PICTURE, self)
        action.triggered.connect(lambda: (drawing := self.drawing()) and save(drawing))
        self.addAction(action)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)

    def set_title(self, title: str) -> None:
        self._title.ensurePolished()
        self._title.set_text(title)

    @property
    def title(self) -> str:
        """The full title, even if it is shown elided."""
        return self._title.whole

    @property
    def legend(self) -> str:
        """The full legend, even if it is shown elided."""
        return self._legend.whole

    def set_legend(self, legend: str, is_hint: bool = False) -> None:
        """Set the text on the right; a hint, such as on keys, is in no picture."""
        self._legend.setProperty(NOT_IN_PICTURES, is_hint)
        self._legend.set_text(legend)
        self._legend.setVisible(bool(legend))


class ScrollPanel(Panel):
    """A panel whose contents scroll as one if they do not fit.

    Attributes
    ----------
    column : Column
        The contents.
    """

    def __init__(self, title: str, legend: str = "", parent: QWidget | None = None) -> None:
        super().__init__(title, legend, parent)
        self.column = Column(f"Contents of {title}")
        self.column.changed.connect(self.need_changed)
        self.body.addWidget(self.column, 1)

    def contents_height(self) -> int:
        return self.column.height_at(self.inner_width)

    def drawing(self) -> Drawing | None:
        """Return all contents as a picture, those scrolled out of sight too."""
        contents = self.column.widget()
        layout = contents.layout() if contents is not None else None
        if contents is None or layout is None:
            return None
        with self._unfolded():
            width = self.inner_width
            contents.resize(width, self.column.height_at(width))
            layout.activate()
            return draw_widget(self._title.whole, contents)


def height_at(layout: QLayout, width: int) -> int:
    """Return the height that a layout needs at a width."""
    if layout.hasHeightForWidth():
        return layout.totalHeightForWidth(max(width, 1))
    return layout.sizeHint().height()


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


class Column(QScrollArea):
    """A column of widgets that scrolls if they do not fit; :meth:`fill` replaces them.

    The widgets are as wide as the column, however narrow it is.

    Parameters
    ----------
    name : str
        What screen readers say when the Tab key comes to it.
    """

    changed = Signal()
    """The widgets need another height."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)
        self._rows: QVBoxLayout | None = None

    def fill(self, spacing: int = 8) -> QVBoxLayout:
        """Remove the contents and return the layout for new ones; the scroll position stays."""
        contents, scrolled = QWidget(), self.verticalScrollBar().value()
        self._rows = column = vbox(spacing=spacing)
        # AlignTop would give texts that wrap the height that they need in an endless column.
        vbox(column, STRETCH, on=contents, spacing=0, margins=(0, 0, ROOM_OF_BAR, 0))
        contents.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.setWidget(contents)
        contents.setAutoFillBackground(False)  # setWidget has just turned it on
        contents.installEventFilter(self)
        QTimer.singleShot(0, self, lambda: self.verticalScrollBar().setValue(scrolled))
        return column

    def height_at(self, width: int) -> int:
        """Return the height of the contents in a column of this width."""
        contents = self.widget()
        layout = contents.layout() if contents is not None else None
        if contents is None or layout is None:
            return 0
        _show_new(contents)
        return height_at(layout, width)

    def end_between_rows(self, width: int, room: int) -> None:
        """Be no higher than this, and so high that no row is cut until the user scrolls."""
        contents = self.widget()
        rows = self._rows
        if contents is None or rows is None:
            return
        _show_new(contents)
        end, most = -rows.spacing(), 0
        for item in filter(None, map(rows.itemAt, range(rows.count()))):
            wide = item.hasHeightForWidth()
            high = item.heightForWidth(width - ROOM_OF_BAR) if wide else item.sizeHint().height()
            end += rows.spacing() + high
            most = end if end <= room else most
        self.setMaximumHeight(most or room)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest and watched is self.widget():
            self.changed.emit()
        return super().eventFilter(watched, event)


def _show_new(contents: QWidget) -> None:
    """Show the widgets that were just added: until then, layouts give them no room."""
    if contents.isVisible():
        for child in contents.findChildren(QWidget):
            decided = child.testAttribute(Qt.WidgetAttribute.WA_WState_ExplicitShowHide)
            if not decided and not child.isWindow():
                child.show()


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
        self.addRow(_name_of(name, field), vbox(field, paragraph(help_text), spacing=3))

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
