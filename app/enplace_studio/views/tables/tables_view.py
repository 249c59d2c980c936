"""The pane of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from PySide6.QtCore import QItemSelection, QItemSelectionModel, QPoint, Qt
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QHeaderView, QMenu, QTableView

from enplace.text import ms
from enplace_studio.explain.listings import (
    DEVICE,
    LAYER,
    TYPE,
    Listing,
    Names,
    list_memory,
    list_ops,
    list_transfers,
)
from enplace_studio.jobs.call_later import call_later
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.prices import what_if_text
from enplace_studio.model.requests import Wanted
from enplace_studio.views.tables.rows_model import RowsModel
from enplace_studio.widgets.labels import BETWEEN_FACTS, BORDER, paragraph
from enplace_studio.widgets.layouts import STRETCH, hbox
from enplace_studio.widgets.menu import offer_menu
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.op_menu import op_menu
from enplace_studio.widgets.panel import Panel
from enplace_studio.widgets.switch import make_switch
from enplace_studio.widgets.tables import copy_on_request, show_rows
from enplace_studio.widgets.theme import theme

OPS, TRANSFERS, MEMORY = KINDS = "ops", "transfers", "memory"
SUMS = ("", TYPE, LAYER, DEVICE)
MOST_MARKED = 200
"""Most rows that are marked, and scrolled to, as their ops are selected elsewhere."""
LEAST_PER_NAME, SPARE = 130, ("Type", "Output", "Start")
"""With less room for each column of names, these are left out, one after the other."""
ROOM_OF_HEAD = 28
"""What a column's title needs besides its text."""
MEASURED_ROWS = 60
"""Rows by whose texts the widths of columns are chosen."""


def make_view(document: Document, solver: Solver) -> TablesView:
    """Make the pane; it needs no solver."""
    return TablesView(document)


class TablesView(Panel):
    """All ops, all transfers, or all that fills the memory, one a row or summed.

    A span that is selected in the timeline leaves what runs within it.

    Attributes
    ----------
    kinds, sums : QButtonGroup
        Which table is shown, and what it is summed by: one of :data:`SUMS`.
    only_selected : QCheckBox
    table : QTableView
    rows : RowsModel
    """

    def __init__(self, document: Document) -> None:
        super().__init__("Tables")
        self._document = document
        self._where: tuple[int, float] | None = None
        self._is_choosing = False
        self.offer_picture(document.requests.save_picture.emit)
        self.kinds = make_switch(
            self,
            [
                ("Ops", "What each op costs, and where and when it runs"),
                ("Transfers", "What is sent between devices, and how long it waits for its link"),
                ("Memory", "What fills the memory of each device at its peak"),
            ],
        )
        self.sums = make_switch(
            self,
            [
                ("Each", "A row for each"),
                ("By type", "Sums of all ops of one type"),
                ("By layer", "Sums of the groups of the graph"),
                ("By device", "Sums of each device, or of each link"),
            ],
        )
        for at, made in enumerate(self.kinds.buttons()):
            self.header.insertWidget(2 + at, made)
        close = partial(document.requests.run_action.emit, "tables")
        self.header.addSpacing(8)
        self.header.addWidget(button("Back to the graph", close, kind="link"))
        self.only_selected = QCheckBox("Selected ops only")
        self.rows, self.table = RowsModel(self), QTableView()
        self._set_up_table()
        self._empty = paragraph("")
        self.body.addLayout(hbox(*self.sums.buttons(), STRETCH, self.only_selected, spacing=4))
        self.body.addWidget(self._empty)
        self.body.addWidget(self.table, 1)
        self._later = call_later(
            self,
            self.rebuild,
            document.opened,
            document.current_changed,
            document.grouping_changed,
            document.span_changed,
        )
        document.opened.connect(self._forget)
        document.selection_changed.connect(self._follow_selection)
        self.kinds.idClicked.connect(self._choose_kind)
        self.sums.idClicked.connect(self._later.start)
        for switch in (self.kinds, self.sums):
            switch.idClicked.connect(self.table.scrollToTop)  # it is another table
        self.only_selected.toggled.connect(self._later.start)
        self.rebuild()

    def _set_up_table(self) -> None:
        table = self.table
        table.setModel(self.rows)
        show_rows(table)
        table.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        table.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        table.setAccessibleName("Table")
        header = table.horizontalHeader()
        header.setResizeContentsPrecision(MEASURED_ROWS)
        header.setHighlightSections(False)
        # With the table's selection, the header would ask each row of a column whether it is in it.
        header.setSelectionModel(QItemSelectionModel(self.rows, table))
        header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        table.setSortingEnabled(True)
        table.selectionModel().selectionChanged.connect(self._choose)
        copy_on_request(table, lambda: self.rows.copied(self._chosen_rows()), self)
        offer_menu(table, self._menu_at)

    # Which table

    def show_wanted(self, wanted: Wanted) -> None:
        """Show a table that another view asks for."""
        self._where = wanted.where
        self.kinds.button(KINDS.index(wanted.what)).setChecked(True)
        self.sums.button(SUMS.index(wanted.by)).setChecked(True)
        self.only_selected.setChecked(False)
        self.table.scrollToTop()
        self.rebuild()

    def commands(self) -> Iterable[tuple[str, Callable[[], object]]]:
        """Return a command for each table, and for each sum of it."""
        whats = {OPS: "Ops", TRANSFERS: "Transfers", MEMORY: "Memory at the peak"}
        want = self._document.requests.list_rows.emit
        for what, title in whats.items():
            for by in SUMS:
                full = f"{title} by {by}" if by else f"Table: {title.lower()}"
                yield full, partial(want, Wanted(what, by))

    @property
    def _kind(self) -> str:
        return KINDS[self.kinds.checkedId()]

    def _choose_kind(self) -> None:
        self._where = None
        self._later.start()

    def _forget(self) -> None:
        self._where = None
        self.only_selected.setChecked(False)

    # Contents

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.rebuild()

    def rebuild(self) -> None:
        """Show the table of the current plan; nothing while it is out of sight."""
        project = self._document.project
        if not self.isVisible():
            return
        if project is None or project.current is None:
            self.set_legend("")
            self._show_only("As soon as there is a plan, what it does is listed here.")
            return
        listing = self._list(project)
        if self.only_selected.isChecked():
            listing = listing.keep(np.isin(listing.op, list(self._document.selection)))
        facts = [what_if_text(*project.scale), self._about(project), *listing.facts]
        self._show_only("" if len(listing.op) else f"There is no {listing.noun} here.")
        by = SUMS[self.sums.checkedId()]
        self._show(listing.sum_by(by) if by else listing)
        self.set_legend(BETWEEN_FACTS.join(filter(None, facts)))

    def _show_only(self, text: str) -> None:
        """Show a text instead of the table; the table if it is empty."""
        self._empty.setText(text)
        self._empty.setVisible(bool(text))
        self.table.setVisible(not text)

    def _list(self, project: OpenProject) -> Listing:
        assert project.current is not None
        schedule, grouping = project.current.schedule, project.grouping
        if self._kind == MEMORY:
            return list_memory(schedule, grouping, *(self._where or ()))
        lister = list_ops if self._kind == OPS else list_transfers
        return lister(schedule, grouping, self._document.span)

    def _about(self, project: OpenProject) -> str:
        """Say what part of the step the rows are about."""
        if self._kind != MEMORY:
            return self._document.span.title if self._document.span is not None else ""
        if self._where is None:
            return "each device at its peak"
        return f"{project.device_label(self._where[0])} at {ms(self._where[1])}"

    def _show(self, listing: Listing) -> None:
        self._is_choosing = True
        self.rows.show(listing)
        header = self.table.horizontalHeader()
        header.setSortIndicator(self.rows.sorted_column, header.sortIndicatorOrder())
        self._is_choosing = False
        self._share_width()
        self._mark_selection()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._share_width()

    def _share_width(self) -> None:
        """Give numbers and devices their width; names share the rest."""
        columns = self.rows.listing.columns if self.rows.listing is not None else ()
        bar = self.table.verticalScrollBar().sizeHint().width()
        left = self.table.width() - bar - 2 * BORDER
        names = [at for at, c in enumerate(columns) if isinstance(c, Names) and c.sums != DEVICE]
        widths = [self._wanted_width(at) for at in range(len(columns))]
        left -= sum(width for at, width in enumerate(widths) if at not in names)
        shown, titles = set(range(len(columns))), [column.title for column in columns]
        for at in (titles.index(title) for title in SPARE if title in titles):
            if left < LEAST_PER_NAME * len(names) * theme.scale:
                shown.discard(at)
                left += 0 if at in names else widths[at]
                names = [name for name in names if name != at]
        for n_before, at in enumerate(reversed(names)):
            widths[at] = min(widths[at], left // (len(names) - n_before)) if at else left
            left -= widths[at]
        for at, width in enumerate(widths):
            self.table.setColumnHidden(at, at not in shown)
            self.table.setColumnWidth(at, width)

    def _wanted_width(self, column: int) -> int:
        header = self.table.horizontalHeader()
        title = str(self.rows.headerData(column, Qt.Orientation.Horizontal))
        head = header.fontMetrics().horizontalAdvance(title) + ROOM_OF_HEAD
        return max(head, self.table.sizeHintForColumn(column) + 2)

    # The selection

    def _chosen_rows(self) -> list[int]:
        """Return the rows that are marked, from top to bottom."""
        marked = self.table.selectionModel().selection()
        ranges = (marked.at(number) for number in range(marked.count()))
        return sorted({row for each in ranges for row in range(each.top(), each.bottom() + 1)})

    def _choose(self) -> None:
        """Select the ops of the rows that the user has marked."""
        if self._is_choosing or self.rows.listing is None:
            return
        self._is_choosing = True
        rows = self.rows.order[self._chosen_rows()]
        self._document.select(self.rows.listing.ops_of(rows.tolist()))
        self._is_choosing = False

    def _follow_selection(self) -> None:
        if self._is_choosing or not self.isVisible():
            return
        if self.only_selected.isChecked():
            self._later.start()
        else:
            self._mark_selection()

    def _mark_selection(self) -> None:
        """Mark the rows of the selected ops, and scroll to the first; of very many, none."""
        listing, chosen = self.rows.listing, self._document.selection
        if listing is None:
            return
        has_all = np.bincount(listing.row, ~np.isin(listing.op, list(chosen)), listing.n_rows) == 0
        at = np.flatnonzero(has_all[self.rows.order]).tolist()
        marked = QItemSelection()
        for row in at if len(at) <= MOST_MARKED else ():
            index = self.rows.index(row, 0)
            marked.select(index, index)
        self._is_choosing = True
        flags = QItemSelectionModel.SelectionFlag
        self.table.selectionModel().select(marked, flags.ClearAndSelect | flags.Rows)
        self._is_choosing = False
        if marked.count():
            self.table.scrollTo(self.rows.index(at[0], 0))

    def _menu_at(self, at: QPoint) -> QMenu | None:
        """Make the menu of the selected ops; the click has just selected them."""
        project = self._document.project
        if project is None or not self._document.selection:
            return None
        menu = op_menu(self._document, project, self.table)
        menu.addSeparator()
        menu.addActions(self.actions())
        return menu
