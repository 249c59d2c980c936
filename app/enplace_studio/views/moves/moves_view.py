"""The pane of the next moves."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtGui import QHideEvent, QShowEvent

from enplace.placing.incumbents import PROVEN_GAP
from enplace.values.schedule import Schedule
from enplace_studio.jobs.call_later import InPause, call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.widgets.labels import paragraph
from enplace_studio.widgets.move_list import MoveList
from enplace_studio.widgets.panel import Need, ScrollPanel

IN_SIGHT = 4
"""Moves that the pane shows at least, if there are so many; with less room, it is folded."""

NO_PLAN = "The edits that would shorten a plan most appear here."
OPTIMAL = "This plan is proven optimal: no edit shortens it."
NOTHING = "Nothing that was tried shortens this plan. Solve searches more widely."


def make_view(document: Document, solver: Solver) -> MovesView:
    """Make the pane."""
    return MovesView(document, solver)


class MovesView(ScrollPanel):
    """The edits that improve the current plan most; looked for only while the pane is open."""

    def __init__(self, document: Document, solver: Solver) -> None:
        super().__init__("Next moves")
        self._document, self._solver = document, solver
        self.offer_picture(document.requests.save_picture.emit)
        self.list = MoveList(document, solver, NOTHING)
        self.about = paragraph(NO_PLAN)
        shows = self.column.fill()
        shows.addWidget(self.about)
        shows.addWidget(self.list)
        self.list.changed.connect(self._show_legend)
        solver.changed.connect(self._show_legend)
        self._asking = InPause(self, self._ask)
        changes = document.opened, document.problem_changed, document.current_changed
        document.bounds.changed.connect(self._follow)
        call_later(self, self._follow, document.grouping_changed, *changes)
        self._follow()

    def need(self) -> Need:
        usual, cards_px = super().need(), self.list.height_of(IN_SIGHT)
        least = max(usual.least, self.around_height + cards_px)
        wanted = max(usual.wanted, least)
        return replace(usual, least=least, wanted=wanted, most=wanted)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._follow()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._follow()

    def set_folded(self, folded: bool) -> None:
        super().set_folded(folded)
        self._follow()

    def _follow(self) -> None:
        """Forget the moves of another plan, and look for those of this one after a pause."""
        if not hasattr(self, "_asking"):  # while the panel is being made
            return
        project, schedule = self._document.project, self._document.schedule
        is_shown = self.isVisible() and not self.is_folded
        self._document.show_moves(is_shown)
        is_optimal = is_shown and schedule is not None and self._is_optimal(schedule)
        self.about.setText(OPTIMAL if is_optimal else NO_PLAN)
        self.about.setVisible(is_optimal or schedule is None)
        if project is None or schedule is None or is_optimal or not is_shown:
            self.list.forget()
            self._asking.stop()
            return
        asked, model = self.list.asked, project.problem.measured_profile
        if asked is not None and asked.problem.measured_profile is not model:
            self.list.forget()  # another model's
        now = (schedule, project.problem, tuple(project.grouping.opened))
        if (self.list.asked, self.list.problem, self.list.opened) != now:
            self._asking.ask()

    def _is_optimal(self, schedule: Schedule) -> bool:
        """Whether no edit can help: the bound is reached, and there is no GPU to split ops to."""
        gap = self._document.bounds.gap(schedule)
        has_one = len(schedule.problem.cluster.gpus) == 1 and schedule.plan.value_us is None
        return has_one and schedule.fits and gap is not None and gap <= PROVEN_GAP

    def _ask(self) -> None:
        project, schedule = self._document.project, self._document.schedule
        if project is not None and schedule is not None:
            self.list.ask(project.problem, schedule)

    def _show_legend(self) -> None:
        search = self.list.search
        n_shown = len(self.list.cards) if search.moves else 0
        found = f"{n_shown} found" if n_shown else ""
        looking = "looking on" if found else "looking"
        if search.is_over:
            looking = ""
        elif self._solver.busy:
            looking = "goes on after Solve"
        self.set_legend(" · ".join(filter(None, [found, looking])))
