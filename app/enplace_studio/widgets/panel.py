"""The card that frames every pane of the studio: a title, a legend and a body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QMouseEvent
from PySide6.QtWidgets import QFrame, QToolButton, QWidget

from enplace_studio.widgets.column import Column, height_at
from enplace_studio.widgets.labels import BORDER, ElidedLabel, plain_tip
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.pictures import Drawing, draw_widget

NO_LIMIT = 16_777_215
"""The maximum size of a widget that has none."""
SAVE_PICTURE = "Save picture of this view…"
LEAST_HEIGHT = 150
"""A pane with more to show is of no use if it is lower."""
ARROW_PX = 12
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

    def set_legend(self, legend: str) -> None:
        """Set the text on the right."""
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
