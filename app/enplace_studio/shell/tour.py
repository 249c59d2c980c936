"""The tour: five steps through the window, with a frame around what each explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QWidget

from enplace_studio.widgets.labels import label, named
from enplace_studio.widgets.layouts import hbox, vbox
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.theme import theme

WIDTH = 320
GAP = 12


@dataclass(frozen=True)
class Step:
    """A step of the tour.

    Attributes
    ----------
    target : str
        What it is about: a view, or a button of the header.
    """

    target: str
    title: str
    text: str


STEPS = (
    Step(
        "graph",
        "Your model",
        "Each card is a group of ops in the colour of its device. Double-click one to look inside; "
        "Ctrl+F finds ops.",
    ),
    Step(
        "timeline",
        "What a step does",
        "Every op and transfer over time. The line is the critical path: only what shortens it "
        "shortens the step.",
    ),
    Step(
        "solve",
        "A better plan",
        "The first plan is an expert’s. Solve finds a faster one, and the list of plans compares "
        "them. The button on its left chooses the method.",
    ),
    Step(
        "inspector",
        "Overrule it",
        "Drag a card onto a device, or press the device’s number: the step time updates at once. "
        "This pane says why; Ctrl+Z takes it back.",
    ),
    Step(
        "export",
        "Hand it over",
        "Export the plan for your training script, or a page for a teammate. Ctrl+Shift+P finds "
        "everything else by its name.",
    ),
)


class Tour(QFrame):
    """A card at the bottom of the selection pane, and a frame around what it explains.

    That pane is the emptiest; and as the card stays, so does its button under the pointer.

    Parameters
    ----------
    targets : callable
        Returns what steps are about, by name.
    """

    def __init__(self, window: QWidget, targets: Callable[[], Mapping[str, QWidget]]) -> None:
        super().__init__(window)
        self.setObjectName("tour")
        self._window, self._targets = window, targets
        self._frame = named(QWidget(window), "tour-frame")
        self._frame.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._frame.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.at = 0
        self.title, self.text = label("", "heading"), label("", wraps=True)
        self._count = label("", "dim")
        self.back = button("Back", lambda: self.show_step(self.at - 1))
        self.next = button("Next", self.go_on, kind="accent")
        self.close_button = button("Close", self.end, kind="link")
        head = hbox((self.title, 1), self.close_button)
        foot = hbox((self._count, 1), self.back, self.next)
        vbox(head, self.text, foot, on=self, spacing=10, margins=(16, 12, 12, 12))
        self.hide()
        self._frame.hide()
        window.installEventFilter(self)

    def begin(self) -> None:
        """Show the first step."""
        self.show_step(0)

    def go_on(self) -> None:
        """Show the next step; after the last one, end."""
        if self.at + 1 < len(STEPS):
            self.show_step(self.at + 1)
        else:
            self.end()

    def end(self) -> None:
        """Hide the tour."""
        self.hide()
        self._frame.hide()

    def show_step(self, number: int) -> None:
        """Show a step, and frame what it is about."""
        self.at = number
        step = STEPS[number]
        self.title.setText(step.title)
        self.text.setText(step.text)
        self._count.setText(f"{number + 1} of {len(STEPS)}")
        self.back.setVisible(number > 0)
        self.next.setText("Done" if number + 1 == len(STEPS) else "Next")
        self.setAccessibleName(f"{step.title}. {step.text}")
        self.show()
        self._settle()
        self.next.setFocus()

    def _settle(self) -> None:
        targets = self._targets()
        target = targets.get(STEPS[self.at].target)
        self._frame.setVisible(target is not None and target.isVisible())
        if target is not None:
            self._frame.setGeometry(self._inside(target).adjusted(-3, -3, 3, 3))
            self._frame.raise_()
        pane = targets.get("inspector")
        room = self._inside(pane) if pane is not None and pane.isVisible() else self._window.rect()
        self.setFixedWidth(min(round(WIDTH * theme.scale), room.width() - 2 * GAP))
        self.setFixedHeight(self.heightForWidth(self.width()))
        corner = room.adjusted(0, 0, -GAP, -GAP).bottomRight()
        self.move(corner - self.rect().bottomRight())
        self.raise_()

    def _inside(self, widget: QWidget) -> QRect:
        return QRect(widget.mapTo(self._window, QPoint()), widget.size())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.Resize, QEvent.Type.LayoutRequest) and self.isVisible():
            self._settle()
        return False

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.end()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._press_focused()
        else:
            super().keyPressEvent(event)

    def _press_focused(self) -> None:
        """Press the button that has the focus: outside a dialog, Enter does not by itself."""
        for each in (self.back, self.next, self.close_button):
            if each.hasFocus():
                each.click()
                return
