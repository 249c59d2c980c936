"""The parts around the timelines: which plans, what differs, and the selected interval."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import (
    QGridLayout,
    QLabel,
    QMenu,
    QPushButton,
    QSizePolicy,
    QWidget,
)

from enplace.text import count, elide_middle, ms, size
from enplace.values.profile import IntArray
from enplace_studio.explain.intervals import Interval, busy_shares, bytes_within
from enplace_studio.explain.shortened import GAP, shorten_among
from enplace_studio.explain.start_times import device_of
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.views.compare.compare_facts import (
    FEWEST,
    LETTERS,
    MOST,
    Line,
    why_idle,
)
from enplace_studio.views.compare.paint import BADGE_PX
from enplace_studio.views.compare.stack import Block
from enplace_studio.widgets.column import Column
from enplace_studio.widgets.labels import ElidedLabel, label, paragraph, plain_tip
from enplace_studio.widgets.layouts import STRETCH, clear, hbox
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.panel import Panel
from enplace_studio.widgets.tables import copy_on_request
from enplace_studio.widgets.theme import theme

MOST_DEVICES = 4
"""If more devices are in use, the table of an interval has one column for all of them."""
LEAST_NAME_PX = 24
"""Least width of the name of a plan in the row that chooses them."""
ALIKE = "Nothing: both plans run every op on the same device, in the same order."
_CHOICE = "  ▾"
_NAME_LENGTH = 22
_DANGLING = re.compile(rf"[\s,]+{GAP}$")
"""What would stand between the last word that is shown and the ellipsis."""


def share_room(wanted: Sequence[int], room: int) -> list[int]:
    """Give each name the width it wants; those that want more than their share get the rest."""
    given, left = [0] * len(wanted), room
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    for n_before, at in enumerate(order):
        given[at] = max(min(wanted[at], left // (len(wanted) - n_before)), LEAST_NAME_PX)
        left -= given[at]
    return given


class Chooser(QWidget):
    """A row with a menu for each plan, a button to add one, and buttons to take one away."""

    chosen = Signal(object)
    """Emitted with the list of plans that the user wants, the reference first."""

    def __init__(self) -> None:
        super().__init__()
        self._row = hbox(on=self, spacing=6, margins=(0, 0, 0, 0))
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._shown: Sequence[PlanEntry] = ()
        self.buttons: list[QPushButton] = []
        self.removers: list[QPushButton] = []
        self.adder: QPushButton | None = None

    def show_plans(self, shown: Sequence[PlanEntry], offered: Sequence[PlanEntry]) -> None:
        """Show the chosen plans; each menu offers the others."""
        focused = next((at for at, b in enumerate(self.buttons) if b.hasFocus()), None)
        self._shown = shown
        clear(self._row)
        self.buttons, self.removers, self.adder = [], [], None
        for place, entry in enumerate(shown):
            self._add_plan(shown, offered, place, entry)
        others = [entry for entry in offered if entry not in shown]
        if len(shown) < MOST and others:
            self.adder = button("+ add", kind="link")
            self.adder.setToolTip("Compare one more plan")
            add = partial(self._add, shown)
            self.adder.setMenu(_menu(self.adder, others, None, add))
            self._row.addWidget(self.adder)
        self._row.addStretch(1)
        self._fit_names()
        if focused is not None and focused < len(self.buttons):
            self.buttons[focused].setFocus()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._fit_names()

    def _fit_names(self) -> None:
        """Elide the names of the plans so that all fit."""
        if not self.buttons:
            return
        for made in self.buttons:
            made.ensurePolished()  # with the font that it will have
            made.setText(_CHOICE)
        # The row itself counts no widget that is not shown yet.
        items = filter(None, map(self._row.itemAt, range(self._row.count())))
        widgets = filter(None, (item.widget() for item in items))
        used = sum(widget.sizeHint().width() + self._row.spacing() for widget in widgets)
        names, metrics = [entry.name for entry in self._shown], QFontMetrics(self.buttons[0].font())
        wanted = [metrics.horizontalAdvance(name) + 1 for name in names]
        widths = share_room(wanted, self.width() - used)
        for name, made, width in zip(names, self.buttons, widths, strict=True):
            if metrics.horizontalAdvance(name) > width:
                name = shorten_among(name, names, metrics.horizontalAdvance, width)
            name = metrics.elidedText(name, Qt.TextElideMode.ElideRight, width)
            name = _DANGLING.sub(GAP, name)
            made.setText(f"{name}{_CHOICE}".replace("&", "&&"))

    def _add_plan(
        self,
        shown: Sequence[PlanEntry],
        offered: Sequence[PlanEntry],
        place: int,
        entry: PlanEntry,
    ) -> None:
        role = ", the reference" if place == 0 else ""
        made = button("")
        made.setAccessibleName(f"Plan {LETTERS[place]}{role}: {entry.name}")
        made.setToolTip(plain_tip(f"{entry.name}{role}: choose another plan"))
        made.setMenu(_menu(made, offered, entry, partial(self._swap, shown, place)))
        self.buttons.append(made)
        self._row.addWidget(badge(LETTERS[place]))
        self._row.addWidget(made)
        if len(shown) > FEWEST:
            rest = [other for other in shown if other is not entry]
            remove = button("×", partial(self.chosen.emit, rest), kind="link")
            remove.setAccessibleName(f"Compare without {entry.name}")
            remove.setToolTip(plain_tip(f"Compare without {entry.name}"))
            self.removers.append(remove)
            self._row.addWidget(remove)

    def _add(self, shown: Sequence[PlanEntry], entry: PlanEntry) -> None:
        self.chosen.emit([*shown, entry])

    def _swap(self, shown: Sequence[PlanEntry], place: int, entry: PlanEntry) -> None:
        """Show a plan in this place; if it has another place, the two swap."""
        wanted = list(shown)
        if entry in wanted:
            wanted[wanted.index(entry)] = wanted[place]
        wanted[place] = entry
        self.chosen.emit(wanted)


def _menu(
    owner: QPushButton,
    offered: Sequence[PlanEntry],
    checked: PlanEntry | None,
    choose: Callable[[PlanEntry], object],
) -> QMenu:
    """Make a menu of plans that is gone with its button, for it keeps the plans alive."""
    menu = QMenu(owner)
    for entry in offered:
        text = f"{entry.name}   {ms(entry.schedule.makespan_us)}".replace("&", "&&")
        action = menu.addAction(text)
        action.setCheckable(checked is not None)
        action.setChecked(entry is checked)
        action.triggered.connect(lambda _, entry=entry: choose(entry))
    return menu


def badge(letter: str) -> QLabel:
    """Make a small square with a plan's letter."""
    made = label(letter, "badge")
    made.setAlignment(Qt.AlignmentFlag.AlignCenter)
    side = round(BADGE_PX * theme.scale)
    made.setFixedSize(side, side)
    return made


class DiffersPanel(Panel):
    """What differs between A and another plan; a click selects the ops in question."""

    ops_wanted = Signal(object)
    target_wanted = Signal(int)
    """Emitted with the place of the plan to compare A with."""

    def __init__(self) -> None:
        super().__init__("What differs")
        self.target = button("", kind="link")
        self._targets = QMenu(self.target)
        self.target.setMenu(self._targets)
        self.header.addWidget(self.target)
        self.lines: list[Line] = []
        self._column = Column("What differs")
        self.body.addWidget(self._column, 1)
        self.body.addStretch(0)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        copy_on_request(self, lambda: [(line.text,) for line in self.lines])

    def show_lines(self, lines: Sequence[Line], place: int, n_plans: int) -> None:
        """Show the differences between A and the plan in a place."""
        self.lines = list(lines)
        column = self._column.fill(spacing=3)
        for line in lines:
            text = label(line.text)
            text.setWordWrap(True)
            text.setMinimumHeight(self.target.sizeHint().height())  # as high as with a button
            select = [self._selector(line.ops)] if len(line.ops) else []
            column.addLayout(hbox((text, 1), *select))
        if not lines:
            column.addWidget(paragraph(ALIKE))
        self._end_between_lines()
        many = n_plans > FEWEST
        self.target.setText(f"A → {LETTERS[place]}  ▾")
        self.target.setVisible(many)
        self.set_legend("" if many else f"A → {LETTERS[place]}")
        self.target.setAccessibleName("The plan that A is compared with")
        self._targets.clear()
        for other in range(1, n_plans):
            action = self._targets.addAction(f"A → {LETTERS[other]}")
            action.triggered.connect(lambda _, other=other: self.target_wanted.emit(other))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._end_between_lines()

    def _end_between_lines(self) -> None:
        self._column.end_between_rows(self.inner_width, self.height() - self.around_height)

    def _selector(self, ops: IntArray) -> QPushButton:
        made = button("Select", lambda: self.ops_wanted.emit(ops.tolist()), kind="link")
        made.setAccessibleName(f"Select {count(len(ops), 'op')}")
        return made


class IntervalPanel(Panel):
    """What each plan does in the selected interval."""

    plan_wanted = Signal(object)
    closed = Signal()

    def __init__(self) -> None:
        super().__init__("")
        self.header.addWidget(button("Close", self.closed.emit, kind="link"))
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(16)
        self._grid.setVerticalSpacing(4)
        self.body.addLayout(self._grid)
        self.reasons: list[str] = []
        self.rows: list[list[str]] = []
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        copy_on_request(self, lambda: self.rows)

    def show_interval(
        self, blocks: Sequence[Block], devices: Sequence[int], interval: Interval
    ) -> None:
        """Show a line for each plan."""
        start, stop = ms(interval.start_us), ms(interval.stop_us)
        self.set_title(f"Selected: {start} to {stop} ({ms(interval.length_us)})")
        self.set_legend("in both plans" if len(blocks) == 2 else f"in all {len(blocks)} plans")
        clear(self._grid)
        names = [f"{device_of(blocks[0].schedule, device)} busy" for device in devices]
        if len(devices) > MOST_DEVICES:
            names = [f"{len(devices)} devices busy"]
        reason = 2 + len(names) + 1
        for column, name in enumerate([*names, "sent", "why idle"], start=2):
            self._grid.addWidget(label(name, "dim"), 0, column)
        self._grid.setColumnStretch(reason, 1)
        self.reasons = [why_idle(b.schedule, b.lanes.rows, interval) for b in blocks]
        self.rows = [["plan", *names, "sent", "why idle"]]
        for line, (block, why) in enumerate(zip(blocks, self.reasons, strict=True), start=1):
            shares = busy_shares(block.schedule, interval, devices)
            if len(devices) > MOST_DEVICES:
                shares = [sum(shares) / len(shares)]
            texts = [f"{share * 100:.0f} %" for share in shares]
            texts.append(size(bytes_within(block.schedule, interval)))
            self.rows.append([block.entry.name, *texts, why])
            self._grid.addWidget(badge(block.letter), line, 0)
            name = elide_middle(block.entry.name, _NAME_LENGTH)
            self._grid.addWidget(label(name), line, 1)
            for column, text in enumerate(texts, start=2):
                self._grid.addWidget(label(text), line, column)
            self._grid.addWidget(_told(why), line, reason)
            show = button("Show", partial(self.plan_wanted.emit, block.entry), kind="link")
            show.setAccessibleName(f"Show {block.entry.name}")
            self._grid.addWidget(show, line, reason + 1)


def _told(text: str) -> QWidget:
    """Make a text that is elided if there is no room, and leaves room that it does not need."""
    made, told = QWidget(), ElidedLabel()
    told.set_text(text)
    hbox((told, 1000), STRETCH, on=made, margins=(0, 0, 0, 0))
    return made
