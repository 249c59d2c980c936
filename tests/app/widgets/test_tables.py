"""Tables are sorted by value and copied as text."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest

from enplace_studio.widgets.tables import Number, Table, to_text


def make_table(qtbot):
    rows = [
        ("big", Number("1.0 GiB", 1 << 30)),
        ("small", Number("9 B", 9)),
        ("middle", Number("61 MiB", 61 << 20)),
    ]
    table = Table(("Op", "Memory"), rows)
    qtbot.addWidget(table)
    return table


def first_column(table):
    return [table.item(row, 0).text() for row in range(table.rowCount())]


def test_rows_stay_in_their_order_until_a_column_is_chosen(qtbot):
    table = make_table(qtbot)
    assert first_column(table) == ["big", "small", "middle"]
    table.sortItems(1, Qt.SortOrder.AscendingOrder)
    assert first_column(table) == ["small", "middle", "big"]


def test_the_whole_table_or_the_selected_rows_are_copied(qtbot):
    table = make_table(qtbot)
    with qtbot.waitActive(table):
        table.show()
    QTest.keyClick(table, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == (
        "Op\tMemory\nbig\t1.0 GiB\nsmall\t9 B\nmiddle\t61 MiB"
    )
    table.selectRow(1)
    QTest.keyClick(table, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "Op\tMemory\nsmall\t9 B"


def test_a_copied_name_is_no_formula_and_a_change_stays_as_it_is_shown():
    rows = [("=HYPERLINK(0)", "+2.1 ms"), ("a\t=1", "−2.1 ms")]
    assert to_text(rows) == "'=HYPERLINK(0)\t+2.1 ms\na '=1\t−2.1 ms"
