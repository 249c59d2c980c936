"""The constraints pane."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PySide6.QtCore import QObject, QPoint, QSignalBlocker, Qt
from PySide6.QtGui import QHideEvent, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QMenu

from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import InPause, call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.constraints import (
    describe,
    list_constraints,
    ops_of,
    step_without,
    ways_to_say,
)
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import Constraint, OpenProject
from enplace_studio.model.prices import PER
from enplace_studio.views.constraints.rows import (
    HEIGHT,
    MOST_NAMED,
    Rows,
    cost_text,
    height_of,
    make_row,
    show_cost,
    texts_of,
)
from enplace_studio.widgets.labels import paragraph
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.panel import Need, Panel
from enplace_studio.widgets.tables import copy_on_request
from enplace_studio.widgets.theme import theme

EMPTY = (
    "Drag a group onto a device to pin it, or a selected bar along its lane to order it: "
    "what you ask for is listed here."
)
MOST_ROWS, MOST_COSTS = 300, 30
LEAST_ROWS, USUAL_ROWS = 2, 6


def make_view(document: Document, solver: Solver) -> ConstraintsView:
    """Make the pane; it needs no solver."""
    return ConstraintsView(document)


class ConstraintsView(Panel):
    """A row for each constraint, on or off, with what it costs; a click selects its ops."""

    def __init__(self, document: Document) -> None:
        super().__init__("Constraints")
        self._document = document
        self.constraints: list[Constraint] = []
        self._n_held = 0
        run = document.requests.run_action.emit
        self.import_button = button("Import…", partial(run, "import-constraints"), kind="link")
        self.export_button = button("Export…", partial(run, "export-constraints"), kind="link")
        self.header.addWidget(self.import_button)
        self.header.addWidget(self.export_button)
        self.empty = paragraph(EMPTY)
        self.empty.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.list = self._make_list()
        self.body.addWidget(self.empty, 1)
        self.body.addWidget(self.list, 1)
        self._waiting: list[int] = []
        self._costs = Background(QObject(self))  # no widget, so no busy cursor
        self._in_pause = InPause(self, self._find_costs)
        self._later = call_later(
            self,
            self.rebuild,
            document.opened,
            document.problem_changed,
            document.grouping_changed,
            document.current_changed,
            theme.changed,
        )
        document.selection_changed.connect(self._follow_selection)
        self.rebuild()

    def _make_list(self) -> QListWidget:
        made = QListWidget()
        made.setProperty("plain", True)
        made.setItemDelegate(Rows(made))
        made.setVerticalScrollMode(QListWidget.ScrollMode.ScrollPerPixel)
        made.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        made.setAccessibleName("Constraints")
        made.itemChanged.connect(self._switch)
        made.itemSelectionChanged.connect(self._select)
        made.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        made.customContextMenuRequested.connect(self._open_menu)
        self.offer_picture(self._document.requests.save_picture.emit)
        copy_on_request(made, self.rows, self)
        remove = QShortcut(QKeySequence.StandardKey.Delete, made)
        remove.setContext(Qt.ShortcutContext.WidgetShortcut)
        remove.activated.connect(self._remove_chosen)
        return made

    # The room it needs

    def need(self) -> Need:
        wanted = self.around_height + self.contents_height()
        if not self.constraints:
            return Need(self.title_height, wanted, wanted, wanted)
        row = round(HEIGHT * theme.scale)
        least, usual = (self.around_height + n * row for n in (LEAST_ROWS, USUAL_ROWS))
        return Need(self.title_height, min(wanted, least), min(wanted, usual), wanted)

    def contents_height(self) -> int:
        if not self.constraints:
            return self.empty.heightForWidth(self.inner_width)
        rows = (self.list.item(row).text() for row in range(self.list.count()))
        return sum(map(height_of, rows)) + 2

    # Rows

    def rebuild(self) -> None:
        """List the constraints that hold, then those that are off."""
        project, chosen = self._document.project, self.chosen
        held = list_constraints(project.problem, project.grouping, project.locks) if project else []
        off = [each for each in project.off if each not in held] if project else []
        self.constraints = [*held, *off][:MOST_ROWS]
        self._n_held = len(held)
        self._show_rows(project, chosen)
        hidden = len(held) + len(off) - len(self.constraints)
        self.set_legend(f"and {hidden:,} more" if hidden else "")
        self.empty.setVisible(not self.constraints)
        self.list.setVisible(bool(self.constraints))
        self.export_button.setEnabled(bool(held))
        self.need_changed.emit()
        self._start_costs()

    def _show_rows(self, project: OpenProject | None, chosen: Constraint | None) -> None:
        scrolled = self.list.verticalScrollBar().value()
        with QSignalBlocker(self.list):
            self.list.clear()
            for each in self.constraints if project else []:
                assert project is not None
                names = project.problem.profile.op_names
                ops = np.concatenate(ops_of(project.problem, each)).tolist()
                few = [names[op] for op in ops] if len(ops) <= MOST_NAMED else []
                ways = ways_to_say(describe(project, each), project.grouping)
                self.list.addItem(make_row(ways, len(ops), self.is_on(each), few))
            if chosen in self.constraints:
                self.list.setCurrentRow(self.constraints.index(chosen))
            self.list.verticalScrollBar().setValue(scrolled)

    @property
    def chosen(self) -> Constraint | None:
        """The constraint of the selected row."""
        rows = self.list.selectedIndexes()
        return self.constraints[rows[0].row()] if rows else None

    def rows(self) -> list[list[str]]:
        """Return the chosen constraint as texts, or all if none is chosen, below the heads."""
        chosen = self.list.selectedItems()
        rows = chosen or [self.list.item(row) for row in range(self.list.count())]
        return [["constraint", "ops", "step time"], *map(texts_of, rows)]

    def is_on(self, constraint: Constraint) -> bool:
        """Whether a listed constraint holds."""
        return self.constraints.index(constraint) < self._n_held

    # What the constraints cost

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._start_costs()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._costs.forget()
        self._in_pause.stop()

    def _start_costs(self) -> None:
        """Find the costs again once the user pauses."""
        self._costs.forget()
        self._in_pause.ask()

    def _find_costs(self) -> None:
        """Find the costs of the first rows, one at a time."""
        self._waiting = list(range(min(self._n_held, len(self.constraints), MOST_COSTS)))
        project = self._document.project
        rows_are_old = self._later.isActive()  # the new ones will ask again
        if not self.isVisible() or rows_are_old or project is None:
            return
        self._find_next_cost(project)

    def _find_next_cost(self, project: OpenProject) -> None:
        """Find a cost in the project that is listed; the document may have a later one by now."""
        if self._waiting:
            row = self._waiting.pop(0)
            work = partial(step_without, project, self.constraints[row])
            self._costs.start(work, partial(self._show_cost, project, row))

    def _show_cost(self, project: OpenProject, row: int, step_us: float | None) -> None:
        current = project.current
        now_us = current.schedule.value_us if current else 0.0
        per = PER.get(current.plan.objective, "") if current else ""
        text = cost_text(self.constraints[row].kind, now_us, step_us, per)
        show_cost(self.list.item(row), text)
        self._find_next_cost(project)

    # Requests

    def _select(self) -> None:
        project, chosen = self._document.project, self.chosen
        if project is not None and chosen is not None:
            self._document.select(_all_ops(project, chosen))

    def _follow_selection(self) -> None:
        """Deselect the row once other ops are selected."""
        project, chosen = self._document.project, self.chosen
        if project and chosen and self._document.selection != _all_ops(project, chosen):
            self.list.clearSelection()

    def _switch(self, item: QListWidgetItem) -> None:
        constraint = self.constraints[self.list.row(item)]
        on = item.checkState() == Qt.CheckState.Checked
        if on != self.is_on(constraint):  # otherwise something else of the row changed
            self._document.switch_constraint(constraint, on)
            self._later.start()  # the check mark is wrong if it was refused

    def _remove_chosen(self) -> None:
        if self.chosen is not None:
            self._document.remove_constraint(self.chosen)

    def _open_menu(self, at: QPoint) -> None:
        row = self.list.indexAt(at).row()
        menu = self.menu_of(self.constraints[row] if row >= 0 else None)
        menu.popup(self.list.viewport().mapToGlobal(at))

    def menu_of(self, constraint: Constraint | None) -> QMenu:
        """Make the menu of a constraint, or that of the pane."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        if constraint is not None:
            self._add_requests(menu, constraint)
            menu.addSeparator()
        menu.addActions(self.actions())
        return menu

    def _add_requests(self, menu: QMenu, constraint: Constraint) -> None:
        document, on = self._document, self.is_on(constraint)
        actions: list[tuple[str, Callable[[], object]]] = [
            (
                "Switch off" if on else "Switch on",
                partial(document.switch_constraint, constraint, not on),
            ),
            ("Remove", partial(document.remove_constraint, constraint)),
        ]
        if document.project is not None and (ops := _all_ops(document.project, constraint)):
            actions.append(("Select its ops", partial(document.select, ops)))
        for title, run in actions:
            menu.addAction(title).triggered.connect(lambda _, run=run: run())


def _all_ops(project: OpenProject, constraint: Constraint) -> frozenset[int]:
    first, then = ops_of(project.problem, constraint)
    return frozenset([*first.tolist(), *then.tolist()])
