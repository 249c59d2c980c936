import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest

from documents import chain_document, wide_document
from enplace_studio.explain.intervals import Interval
from enplace_studio.model.document import Document
from enplace_studio.model.requests import Wanted
from enplace_studio.views.tables.tables_view import TablesView
from turns import take_turns


@pytest.fixture
def open_view(opener):
    def open_it(document, width=900, height=400):
        return opener(TablesView, document, width, height)

    return open_it


def column(view, title):
    rows, heads = view.rows, range(view.rows.columnCount())
    at = next(c for c in heads if rows.headerData(c, Qt.Orientation.Horizontal) == title)
    return [rows.index(row, at).data() for row in range(rows.rowCount())]


def test_ops_begin_with_the_longest_and_are_sorted_by_value(open_view):
    view = open_view(wide_document())
    times = [float(text) for text in column(view, "Compute, ms")]
    assert len(times) == 400
    assert times == sorted(times, reverse=True)
    view.table.sortByColumn(4, Qt.SortOrder.AscendingOrder)
    starts = [float(text) for text in column(view, "Start, ms")]
    assert starts == sorted(starts)


def test_rows_and_ops_are_selected_together(open_view):
    document = wide_document()
    view = open_view(document)
    view.table.selectRow(3)
    (op,) = document.selection
    assert document.problem.profile.op_names[op] == column(view, "Op")[3]
    document.select([int(view.rows.order[7] * 0 + view.rows.listing.op[view.rows.order[7]])])
    assert [index.row() for index in view.table.selectionModel().selectedRows()] == [7]


def test_sums_select_all_of_their_ops(open_view):
    document = wide_document()
    view = open_view(document)
    view.show_wanted(Wanted("ops", "device"))
    at = column(view, "Device").index("GPU 1")
    view.table.selectRow(at)
    assert sorted(document.selection) == np.flatnonzero(document.current.plan.device == 1).tolist()


def test_only_the_selection_is_listed_if_asked(open_view):
    document = wide_document()
    view = open_view(document)
    document.select([5, 6, 7])
    view.only_selected.click()
    take_turns()
    assert view.rows.rowCount() == 3
    view.table.selectRow(0)  # a click in the table leaves it as it is
    take_turns()
    assert view.rows.rowCount() == 3


def test_a_span_leaves_what_runs_within_it(open_view):
    document = chain_document()
    view = open_view(document)
    document.select_span(Interval(15, 30))
    take_turns()
    assert (column(view, "Op"), column(view, "Compute, ms")) == (["b"], ["0.005"])
    document.select([])
    document.escape()
    take_turns()
    assert document.span is None
    assert len(column(view, "Op")) == 3


def test_a_table_is_copied_with_numbers_that_can_be_added(open_view, qtbot):
    view = open_view(chain_document())
    with qtbot.waitActive(view):
        view.activateWindow()
    view.show_wanted(Wanted("transfers"))
    view.table.setFocus()
    QTest.keyClick(view.table, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text().splitlines() == [
        "Sent by\tType\tLayer\tLink\tStart, ms\tSending, ms\tWaiting, ms\tSent, bytes",
        "b\tOp\tb\tGPU 0 → GPU 1\t0.020000\t0.021000\t0.000000\t20",
    ]


def test_memory_is_listed_at_a_moment_or_at_each_peak(open_view):
    document = chain_document()
    view = open_view(document)
    view.show_wanted(Wanted("memory"))
    assert set(column(view, "Device")) == {"GPU 0", "GPU 1"}
    view.show_wanted(Wanted("memory", where=(1, 45.0)))
    assert column(view, "What") == ["received"]
    assert "GPU 1 at 0.045 ms" in view.legend


def test_without_a_plan_a_sentence_says_what_will_be_here(open_view):
    view = open_view(Document())
    assert not view.table.isVisible()
    view.grab()


def test_a_large_plan_makes_no_text_that_is_not_on_screen(open_view, monkeypatch):
    view = open_view(wide_document(2000))
    made = []
    listing = view.rows.listing
    monkeypatch.setattr(type(listing.columns[0]), "shown", lambda self, row: made.append(row) or "")
    view.table.sortByColumn(0, Qt.SortOrder.DescendingOrder)
    view.grab()
    assert len(set(made)) < 200
