"""The plans pane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from PySide6.QtCore import QPointF, Qt, QTimer
from PySide6.QtGui import QKeySequence, QPainter, QPaintEvent, QPen, QShortcut
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu, QWidget

from enplace.text import count
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.jobs.call_later import call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.open_project import OpenProject
from enplace_studio.views.plans.card import GO_ON_S, PlanCard
from enplace_studio.views.plans.comparison import Comparison
from enplace_studio.views.plans.live import LiveCard
from enplace_studio.views.plans.measured import ResultCard
from enplace_studio.views.plans.replicas import Replicas
from enplace_studio.widgets.labels import paragraph
from enplace_studio.widgets.layouts import clear, hbox, vbox
from enplace_studio.widgets.menu import add_action, new_menu, offer_menu
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.panel import ScrollPanel
from enplace_studio.widgets.tables import copy_on_request
from enplace_studio.widgets.theme import theme


def make_view(document: Document, solver: Solver) -> PlansView:
    """Make the pane: the search above the list, the measured run below it."""
    view = PlansView(document)
    live = LiveCard(document, solver)
    view.add_on_top(live)
    view.found_by = live.found_by
    solver.changed.connect(lambda: view.show_busy(solver.is_asked))
    view.add_below(Replicas(document))
    view.add_below(ResultCard(document))
    return view


def _rank(entry: PlanEntry) -> tuple[bool, bool, bool, int, float]:
    """Sort key: plans for a step, then for samples, for queries; the fastest of each on top.

    Those that do not fit come after them, and plans for another cluster last. Starred plans come
    before all.
    """
    us = entry.plan.value_us
    own = entry.schedule.makespan_us if us is None else us
    objective = (STEP_TIME, THROUGHPUT, LATENCY).index(entry.plan.objective)
    elsewhere = entry.cluster is not None
    return not entry.starred, elsewhere, not entry.schedule.fits, objective, own


CROWD = 8
"""Most plans that have a card of several lines each; of more, only the shown plan has."""


INDENT_PX, MOST_INDENTS = 14, 3
"""How far a plan is indented below the one that it was made from, and how often at most."""
SEARCHED_S = 0.3
"""A plan that took less came from a method that ends on its own."""


def _was_searched(project: OpenProject, entry: PlanEntry) -> bool:
    """Return whether a search found it, and can go on with it on the open graph."""
    plan = entry.plan
    is_open = entry.cluster is None and plan.splits == project.problem.splits
    took_long = not entry.is_expert and (plan.solve_seconds or 0.0) > SEARCHED_S
    return is_open and plan.value_us is None and took_long


def _is_expert_elsewhere(entry: PlanEntry) -> bool:
    return entry.cluster is not None and entry.is_expert and not entry.starred


def as_tree(entries: Sequence[PlanEntry]) -> list[tuple[PlanEntry, int]]:
    """Put each plan below the one that it was made from; return them with their depths.

    A plan and all that was made from it are where the best of them is in the given order.
    """
    known = {entry.name for entry in entries}
    below: dict[str, list[PlanEntry]] = {}
    for entry in entries:
        below.setdefault(entry.parent if entry.parent in known else "", []).append(entry)
    at = {entry.name: number for number, entry in enumerate(entries)}

    def first(entry: PlanEntry) -> int:
        return min([at[entry.name], *map(first, below.get(entry.name, ()))])

    def walk(name: str, depth: int) -> Iterator[tuple[PlanEntry, int]]:
        for entry in sorted(below.get(name, ()), key=first):
            yield entry, depth
            yield from walk(entry.name, depth + 1)

    found = list(walk("", 0))
    placed = {entry for entry, _ in found}
    return found + [(entry, 0) for entry in entries if entry not in placed]  # a damaged circle


class Branch(QWidget):
    """A card, indented below the card of the plan that its plan was made from."""

    def __init__(self, card: PlanCard, depth: int) -> None:
        super().__init__()
        self._indent_px = round(INDENT_PX * min(depth, MOST_INDENTS) * theme.scale)
        hbox(card, on=self, margins=(self._indent_px, 0, 0, 0))

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._indent_px:
            x, y = self._indent_px - INDENT_PX * theme.scale / 2, self.height() / 2
            with QPainter(self) as painter:
                painter.setPen(QPen(theme.tokens.line, 1.4))
                painter.drawPolyline(
                    [QPointF(x, 0), QPointF(x, y), QPointF(self._indent_px - 2, y)]
                )


class PlansView(ScrollPanel):
    """All plans, best first; a click shows a plan, Ctrl + click compares it with the current.

    Attributes
    ----------
    found_by : callable
        Says of a plan which engines of a search found it.
    others : QPushButton
        Shows and hides the expert's plans for other clusters.
    """

    def __init__(self, document: Document, parent: QWidget | None = None) -> None:
        super().__init__("Plans", parent=parent)
        self._document = document
        self._against: str | None = None
        self._shown: PlanEntry | None = None
        self._busy = self._shows_others = False
        self.found_by: Callable[[Plan], str] = lambda plan: ""
        self.cards: list[PlanCard] = []
        self.comparison: Comparison | None = None
        self._shows, cards = self.column.fill(), QWidget()
        self._list = vbox(on=cards, margins=(0, 0, 0, 0))
        self._shows.addWidget(cards)
        self.others = button("", self._toggle_others, kind="link")
        self.others.setProperty("flush", True)
        self._shows.addWidget(self.others, 0, Qt.AlignmentFlag.AlignLeft)
        self._empty = paragraph(
            "There is no plan yet. All plans are listed here, the best first; Solve finds more."
        )
        self._shows.addWidget(self._empty)
        self.offer_picture(document.requests.save_picture.emit)
        copy_on_request(cards, self.rows, self)
        self._later = call_later(
            self,
            self.rebuild,
            document.opened,
            document.plans_changed,
            document.current_changed,
            document.problem_changed,
            document.bounds.changed,
        )
        document.opened.connect(self._forget_comparison)
        self.rebuild()

    def rebuild(self) -> None:
        """List the document's plans."""
        focused = next((card.entry.name for card in self.cards if card.hasFocus()), None)
        scrolled = self.column.verticalScrollBar().value()
        if focused is not None:
            self.column.setFocus()  # a hidden card would hand it to a widget far below
        clear(self._list)
        project = self._document.project
        entries = sorted(project.plans, key=_rank) if project is not None else []
        elsewhere = [entry for entry in entries if _is_expert_elsewhere(entry)]
        self._show_others(len(elsewhere))
        listed = [e for e in entries if self._shows_others or e not in elsewhere]
        self.cards = []
        if project is not None:
            for entry, depth in as_tree(listed):
                self.cards.append(self._make_card(project, entry))
                self._list.addWidget(Branch(self.cards[-1], depth))
        self._list.setSpacing(4 if len(entries) > CROWD else 8)
        self._empty.setVisible(not entries)
        self._show_comparison()
        for card in self.cards:
            if card.entry.name == focused:
                card.setFocus()
        shown, self._shown = self._shown, self._document.current
        changed = self._shown if self._shown is not shown else None
        QTimer.singleShot(0, self, partial(self._scroll, scrolled, changed))  # once they are there

    def _scroll(self, to: int, entry: PlanEntry | None) -> None:
        """Scroll back, and from there to the card of a plan."""
        self.column.lay_out_now()
        self.column.verticalScrollBar().setValue(to)
        for card in self.cards:
            if card.entry is entry:
                self.column.ensureWidgetVisible(card, 0, 0)

    def show_busy(self, busy: bool) -> None:
        """Offer no further search while the user waits for one."""
        if busy != self._busy:
            self._busy = busy
            self._later.start()

    def _show_others(self, n: int) -> None:
        arrow = "▾" if self._shows_others else "▸"
        self.others.setText(f"{arrow} {count(n, 'expert plan')} for other clusters")
        self.others.setVisible(n > 0)

    def _toggle_others(self) -> None:
        self._shows_others = not self._shows_others
        self.rebuild()

    def _make_card(self, project: OpenProject, entry: PlanEntry) -> PlanCard:
        is_shown = entry is project.current
        card = PlanCard(
            project,
            self._document.bounds,
            entry,
            brief=len(project.plans) > CROWD and not is_shown,
            can_go_on=is_shown and not self._busy and _was_searched(project, entry),
            found_by=self.found_by(entry.plan),
        )
        card.go_on_wanted.connect(partial(self._document.requests.polish_plan.emit, entry.plan))
        card.clicked.connect(partial(self._clicked, entry))
        card.renew_wanted.connect(partial(self._document.requests.renew_plan.emit, entry))
        card.fit_wanted.connect(partial(self._document.requests.run_action.emit, "make-fit"))
        offer_menu(card, lambda at: self.menu_of(card))
        return card

    def _clicked(self, entry: PlanEntry) -> None:
        if QApplication.keyboardModifiers() & Qt.KeyboardModifier.ControlModifier:
            self.compare_with(entry)
            return
        other = entry.cluster
        if self._document.choose_plan(entry) and other is not None:
            self._document.noticed.emit(
                f"Now on {cluster_title(other)}, which “{entry.name}” is for"
            )

    def rows(self) -> list[tuple[str, ...]]:
        """Return what the cards say as texts: a row for each plan, its notes last."""
        heads = ("plan", "time", "standing", "notes")
        cards = [(c.entry.name, c.step, c.standing, ", ".join(c.notes)) for c in self.cards]
        return [heads, *cards]

    def add_on_top(self, widget: QWidget) -> None:
        """Add a widget above the list."""
        self._shows.insertWidget(0, widget)

    def add_below(self, widget: QWidget) -> None:
        """Add a widget below the list."""
        self._shows.addWidget(widget)

    # Comparing

    def compare_with(self, entry: PlanEntry) -> None:
        """Compare the current plan with another; choosing the same one again ends that."""
        self._against = None if entry.name == self._against else entry.name
        self._show_comparison()
        QTimer.singleShot(0, self, self._scroll_to_comparison)  # once it has its place

    @property
    def pair(self) -> list[PlanEntry]:
        """The plans that are compared now, if any are."""
        current = self._document.current
        other = next((e for e in self._document.plans if e.name == self._against), None)
        return [] if not current or not other or other is current else [other, current]

    def _scroll_to_comparison(self) -> None:
        if self.comparison is not None:
            self.column.lay_out_now()
            self.column.ensureWidgetVisible(self.comparison, 0, 0)

    def _forget_comparison(self) -> None:
        """Forget the compared plan, since another model is open."""
        self._against = None

    def _close_comparison(self) -> None:
        self._against = None
        self._show_comparison()

    def _show_comparison(self) -> None:
        self._replace_comparison()
        if (self.comparison is not None) != self.holds_room:
            self.hold_room(self.comparison is not None)

    def _replace_comparison(self) -> None:
        if self.comparison is not None:
            self.comparison.hide()
            self.comparison.setParent(None)
            self.comparison.deleteLater()
            self.comparison = None
        project, pair = self._document.project, self.pair
        for card in self.cards:
            card.mark_compared(bool(pair) and card.entry is pair[0])
        if project and pair:
            other, current = pair
            self.comparison = Comparison(project, self._document.bounds, current, other)
            self.comparison.closed.connect(self._close_comparison)
            self.comparison.moved_wanted.connect(self._document.select)
            beside = partial(self._document.requests.compare_plans.emit, pair)
            self.comparison.side_by_side_wanted.connect(beside)
            self._shows.insertWidget(self._shows.indexOf(self._empty) + 1, self.comparison)

    # The menu of a card

    def menu_of(self, card: PlanCard) -> QMenu:
        """Make the menu of a plan."""
        entry, document, menu = card.entry, self._document, new_menu(card)
        requests, current = document.requests, document.current
        if card.stale:
            add_action(menu, "Solve again here", partial(requests.renew_plan.emit, entry))
        if current is not None and entry is not current:
            compare = partial(self.compare_with, entry)
            add_action(menu, f"Compare with “{current.name}”", compare)
        if document.problem is not None and entry.plan.splits == document.problem.splits:
            add_action(
                menu, f"Continue for {GO_ON_S} s", partial(requests.polish_plan.emit, entry.plan)
            )
        star = "Take the star away" if entry.starred else "Star"
        add_action(menu, star, partial(document.star_plan, entry))
        add_action(menu, "Rename", partial(self.edit_name, card))
        add_action(menu, "Note…", partial(self.edit_remark, card))
        add_action(menu, "Duplicate", partial(document.duplicate_plan, entry))
        add_action(menu, "Remove", partial(document.remove_plan, entry))
        add_action(menu, "Export plan.json…", partial(requests.export_plan.emit, entry))
        return menu

    def edit_name(self, card: PlanCard) -> None:
        """Edit the name in the card's place; Enter keeps it, Esc does not."""
        self._edit(card, card.entry.name, self._document.rename_plan)

    def edit_remark(self, card: PlanCard) -> None:
        """Edit the note on a plan in the card's place."""
        self._edit(card, card.entry.remark, self._document.remark_plan).setPlaceholderText(
            "Your note on this plan"
        )

    def _edit(self, card: PlanCard, text: str, keep: Callable[[PlanEntry, str], bool]) -> QLineEdit:
        editor = QLineEdit(text, card)
        editor.setGeometry(card.rect().adjusted(2, 2, -2, -2))
        editor.selectAll()
        editor.editingFinished.connect(partial(self._finish_edit, card, editor, keep))
        leave = QShortcut(QKeySequence.StandardKey.Cancel, editor)
        leave.setContext(Qt.ShortcutContext.WidgetShortcut)
        leave.activated.connect(partial(self._leave_name, editor))
        editor.show()
        editor.setFocus()
        return editor

    def _leave_name(self, editor: QLineEdit) -> None:
        editor.blockSignals(True)
        self._later.start()

    def _finish_edit(
        self, card: PlanCard, editor: QLineEdit, keep: Callable[[PlanEntry, str], bool]
    ) -> None:
        editor.blockSignals(True)  # losing focus would end the editing a second time
        if not keep(card.entry, editor.text()):
            self._later.start()
