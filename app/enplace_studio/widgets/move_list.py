"""A list of next moves: each with its price and its reason; a click makes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFont, QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QWidget

from enplace.pictures.palette import colour_numbers
from enplace.placing.next_moves import Idle, NextMove
from enplace.text import ms
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule
from enplace_studio.explain.reasons import Mark
from enplace_studio.explain.shortened import brief, by_words
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.moves import MoveSearch
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.model.prices import PER, simulate_changed
from enplace_studio.widgets.drawing import RIGHT, PointingButton, draw_text
from enplace_studio.widgets.labels import paragraph, plain_tip
from enplace_studio.widgets.layouts import clear, vbox
from enplace_studio.widgets.theme import theme

CARD_PX, BETWEEN_PX, PAD, CHIP_PX = 40, 4, 10, 3
MOST_MARKS = 12
"""Most bars that show where the ops of a move would run, the longest ones."""


_SCOPE = re.compile(r"\S+/(?=\S+ of )")

ABOUT = "Click to make it; Ctrl+Z takes it back"


class MoveCard(PointingButton):
    """What a move does, shortened ``among`` others, and its price; below, why it helps."""

    def __init__(
        self, move: NextMove, change: str, colour: int | None, among: Sequence[str]
    ) -> None:
        super().__init__()
        self.move_made, self.change, self._colour, self._among = move, change, colour, among
        self.setToolTip(plain_tip(f"{move.title}: {change}\n{move.reason}\n{ABOUT}"))
        self.setAccessibleName(f"{move.title}: {change}, {move.reason}")

    def sizeHint(self) -> QSize:
        return QSize(round(200 * theme.scale), round(CARD_PX * theme.scale))

    def paint(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens, area, is_on = theme.tokens, QRectF(self.rect()), self.isEnabled()
        is_at = is_on and (self.underMouse() or self.hasFocus())
        painter.setPen(QPen(tokens.accent if is_at else tokens.line, 1))
        painter.setBrush(tokens.hover if is_at else tokens.panel)
        painter.drawRoundedRect(area.adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        left = PAD + CHIP_PX + 6
        if self._colour is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.device_color(self._colour))
            chip = QRectF(PAD - 1, area.height() * 0.22, CHIP_PX, area.height() * 0.56)
            painter.drawRoundedRect(chip, 1.5, 1.5)
        strong, quiet = theme.font(12, QFont.Weight.DemiBold), theme.font(11)
        is_good = self.move_made.after_us < self.move_made.before_us
        text = tokens.text if is_on else tokens.faint
        line = area.adjusted(left, 3, -PAD, -area.height() / 2 + 1)
        price = tokens.good if is_good and is_on else text
        draw_text(painter, line, self.change, strong, price, RIGHT)
        width_of = QFontMetricsF(strong).horizontalAdvance
        line.setRight(line.right() - width_of(self.change) - 8)
        what, where = what_and_where(self.move_made.title)
        shown = fitted(what, self._among, width_of, line.width())
        draw_text(painter, line, shown, strong, text)
        below = area.adjusted(left, area.height() / 2 - 1, -PAD, -3)
        reason = " · ".join(filter(None, [where, self.move_made.reason]))
        end = Qt.TextElideMode.ElideRight
        reason = QFontMetricsF(quiet).elidedText(reason, end, below.width())
        draw_text(painter, below, reason, quiet, tokens.dim if is_on else text)


def fitted(what: str, among: Sequence[str], width_of: Callable[[str], float], width: float) -> str:
    """Shorten a title only as far as it must be, so that it stays apart from the others."""
    shown, others = brief(what, width_of, width), [each for each in among if each != what]
    # What kind of op it is says more than the scope within its layer, if that tells no two apart.
    plain, plain_others = _SCOPE.sub("", what), [_SCOPE.sub("", each) for each in others]
    if width_of(shown) > width and plain not in plain_others:
        shown, others = brief(plain, width_of, width), plain_others
    return by_words(shown, [brief(each, width_of, 0) for each in others], width_of, width)


def what_and_where(title: str) -> tuple[str, str]:
    """Split the title of a move into ops and what a click does with them, if the title has both.

    >>> what_and_where("layer 2 → GPU 1"), what_and_where("layer 2 before layer 1")
    (('layer 2', 'move to GPU 1'), ('layer 2', 'run before layer 1'))
    >>> what_and_where("Swap a and b")
    ('Swap a and b', '')
    """
    for sign, does in ((" → ", "move to"), (" before ", "run before")):
        what, found, where = title.partition(sign)
        if found:
            return what, f"{does} {where}"
    return title, ""


class MoveList(QWidget):
    """The best moves so far; the one under the pointer keeps its place as others come in.

    Parameters
    ----------
    nothing : str
        What to say if there is none.
    """

    changed = Signal()

    def __init__(self, document: Document, solver: Solver, nothing: str) -> None:
        super().__init__()
        self._document, self._nothing = document, nothing
        self.search = MoveSearch(solver, self)
        self.search.changed.connect(self._show_found)
        self.cards: list[MoveCard] = []
        self.asked: Schedule | None = None
        self.problem: Problem | None = None
        self.opened: tuple[str, ...] = ()
        self._is_held = False
        self._background = Background(self.search)  # no widget, so no busy cursor
        self._column = vbox(on=self, spacing=BETWEEN_PX, margins=(0, 0, 0, 0))

    def height_of(self, most: int) -> int:
        """Return the height of as many cards, or of all if it is known that there are fewer."""
        is_known = self.asked is not None and self.search.is_over
        shown = min(len(self.cards), most) if is_known else most
        return shown * (round(CARD_PX * theme.scale) + BETWEEN_PX) - BETWEEN_PX

    def ask(self, problem: Problem, schedule: Schedule, idle: Idle | None = None) -> None:
        """Look for the next moves of the plan of a schedule; the last ones stay until then.

        Parameters
        ----------
        problem : Problem
            With the constraints that hold now.
        """
        self.asked, self.problem = schedule, problem
        project = self._document.project
        self.opened = () if project is None else tuple(project.grouping.opened)
        self.search.ask(problem, schedule.plan, idle, self.opened)
        for card in self.cards:
            card.setEnabled(False)
        if not self.cards:
            self._fill()
        self.changed.emit()

    def forget(self) -> None:
        """Show nothing."""
        self.asked = self.problem = None
        self.search.forget()
        self._fill()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        if self._is_held:
            self._fill()

    def hideEvent(self, event: object) -> None:
        self._point(None, False)

    def _show_found(self) -> None:
        """Show what has been found; the card under the pointer stays as it is, and where it is."""
        row = next((n for n, card in enumerate(self.cards) if card.underMouse()), None)
        self._fill(row if row is not None and self.cards[row].isEnabled() else None)

    def _fill(self, kept: int | None = None) -> None:
        """Show the moves in order, around the card of a row to keep."""
        self._is_held = kept is not None
        found = self.search.moves
        among = [what_and_where(move.title)[0] for move in found]
        if kept is None:
            clear(self._column)
            self.cards = [self._card(move, among) for move in found]
        else:
            card = self.cards[kept]
            self._column.removeWidget(card)
            clear(self._column)
            others = [move for move in found if not move.plan.acts_like(card.move_made.plan)]
            self.cards = [self._card(move, among) for move in others]
            self.cards.insert(kept, card)
        for each in self.cards:
            self._column.addWidget(each)
        if not self.cards and self.asked is not None:
            self._column.addWidget(paragraph(self._nothing if self.search.is_over else "Looking …"))
        self.changed.emit()

    def _card(self, move: NextMove, among: Sequence[str]) -> MoveCard:
        assert self.asked is not None
        colours = colour_numbers(self.asked.problem.cluster)
        change = move.change + PER.get(move.plan.objective, "")
        colour = colours[move.devices[0]] if move.devices else None
        card = MoveCard(move, change, colour, among)
        card.clicked.connect(partial(self._make, move))
        card.pointed.connect(partial(self._point, move))
        return card

    def _make(self, move: NextMove) -> None:
        if self._document.schedule is self.asked:  # else the plan has changed a moment ago
            self._point(None, False)
            self._document.make_move(move)

    def _point(self, move: NextMove | None, is_on: bool) -> None:
        """Show in all views which ops a move is about, and where they would run."""
        self._background.forget()
        asked = self.asked
        if not is_on or move is None or asked is None or self._document.schedule is not asked:
            if self._document.hovered or self._document.marks:
                self._document.hover(())
                self._document.point_at(())
            return
        self._document.hover(move.ops.tolist())
        if move.plan.splits == asked.plan.splits:
            self._background.start(
                lambda: marks_of(asked, move), lambda marks: self._document.point_at(marks)
            )


def marks_of(before: Schedule, move: NextMove) -> tuple[Mark, ...]:
    """Simulate a move, and mark where the longest of its ops would run."""
    after = simulate_changed(before.problem, move.plan)
    time_us = (after.op_finish_us - after.op_start_us)[move.ops]
    longest = move.ops[np.argsort(-time_us, kind="stable")[:MOST_MARKS]].tolist()
    marks = [
        Mark(
            int(after.plan.device[op]),
            float(after.op_start_us[op]),
            float(after.op_finish_us[op]),
            "",
        )
        for op in longest
    ]
    told = f"then, {ms(move.after_us - move.before_us, signed=True)}"
    return (replace(marks[0], text=told), *marks[1:]) if marks else ()
