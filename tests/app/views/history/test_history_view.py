import numpy as np
from PySide6.QtTest import QSignalSpy

from documents import chain_document
from enplace.machine import simulate
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.views.history.history_view import HistoryView
from problems import plan_of


def lines(view):
    return [(row.title, row.columns[0]) for row in view.list.rows]


def click(view, number):
    view.list.setCurrentRow(number)
    view.list.itemClicked.emit(view.list.item(number))


def open_history(opener, qtbot):
    document = chain_document()
    view = opener(HistoryView, document, 300, 300)
    document.place([2], 0)
    document.unpin([2])
    qtbot.waitUntil(lambda: len(view.list.rows) == 3)
    return document, view


def test_every_edit_is_a_line_with_the_step_time_it_led_to(opener, qtbot):
    _, view = open_history(opener, qtbot)
    titles, times = zip(*lines(view), strict=True)
    assert titles[0] == "As opened"
    assert titles[1].startswith("Pin “c”")
    assert titles[2].startswith("Unpin “c”")
    assert times == ("0.051 ms", "0.030 ms", "0.030 ms")
    assert view.list.currentRow() == 2


def test_a_click_goes_back_and_forward(opener, qtbot):
    document, view = open_history(opener, qtbot)
    click(view, 0)
    assert document.problem.pins == {}
    assert document.current.plan.device[2] == 1
    assert view.list.currentRow() == 0
    qtbot.waitUntil(lambda: [row.faint for row in view.list.rows] == [False, True, True])
    click(view, 1)
    assert document.problem.pins == {2: 0}
    assert document.undo_stack.undoText() == titles_of(document)[1]


def test_a_title_that_is_too_wide_continues_on_the_next_line(opener, qtbot):
    document = chain_document()
    view = opener(HistoryView, document, 220, 300)
    document.colocate([0, 1, 2])
    document.place([0, 1, 2], 1, pin=False)
    qtbot.waitUntil(lambda: len(view.list.rows) == 3)
    heights = [view.list.visualItemRect(view.list.item(row)).height() for row in range(3)]
    assert heights[2] > heights[0], view.list.rows[2].title
    assert view.contents_height() == sum(heights)
    picture = view.list.viewport().grab().toImage()
    wide = view.list.visualItemRect(view.list.item(2))
    lines = len(view.list.lines(view.list.rows[2]))
    middles = wide.top() + wide.height() * (2 * np.arange(lines) + 1) // (2 * lines)
    for y in middles.tolist():  # each line has ink where it belongs
        colours = {picture.pixel(x, y) for x in range(12, 100)}
        assert len(colours) > 1, y


def test_a_history_longer_than_its_pane_keeps_the_heights_of_its_rows(opener, qtbot):
    document = chain_document()
    view = opener(HistoryView, document, 220, 120)
    for at in range(8):
        document.place([0, 1, 2], at % 2)
    qtbot.waitUntil(lambda: len(view.list.rows) == 9)
    heights = [view.list.sizeHintForRow(row) for row in range(9)]
    lines = [len(view.list.lines(row)) for row in view.list.rows]
    assert heights[0] == view.list.line_height < 2 * heights[0]
    assert all((heights[0] < high) == (n > 1) for high, n in zip(heights, lines, strict=True))


def titles_of(document):
    return [state.title for state in document.undo_stack.states()]


def test_views_see_only_the_state_that_was_chosen(opener, qtbot):
    document, view = open_history(opener, qtbot)
    seen = QSignalSpy(document.current_changed)
    click(view, 0)
    assert seen.count() == 1
    click(view, 0)
    assert seen.count() == 1


def test_an_edit_after_going_back_replaces_what_came_later(opener, qtbot):
    document, view = open_history(opener, qtbot)
    click(view, 1)
    document.forbid([0], 1)
    wanted = ["As", "Pin", "Keep"]
    qtbot.waitUntil(lambda: [title.split()[0] for title, _ in lines(view)] == wanted)


def bring(document, name, device):
    """Let a job end that runs everything on a device."""
    problem = document.problem
    plan = plan_of(problem, dict.fromkeys("abc", device))
    made = PlanEntry(name, plan, simulate(problem, plan))
    document.take_plan(made, document.project.cluster)


def marked(view):
    return lines(view)[view.list.currentRow()]


def test_the_row_marked_is_that_of_the_plan_on_the_screen(opener, qtbot):
    document = chain_document()
    view = opener(HistoryView, document, 300, 300)

    def is_marked(*row):
        qtbot.waitUntil(lambda: marked(view) == row)

    document.forbid([0], 1)
    bring(document, "METIS", 0)
    is_marked("Found “METIS”", "0.030 ms")
    document.undo_stack.undo()
    is_marked("Show “METIS”", "0.030 ms")
    bring(document, "Enplace", 1)
    is_marked("Found “Enplace”", "0.030 ms")
    document.undo_stack.redo()
    is_marked("Show “Enplace”", "0.030 ms")
    rows = lines(view)
    click(view, view.list.currentRow())
    is_marked("Show “Enplace”", "0.030 ms")
    assert lines(view) == rows
    click(view, 0)
    is_marked("As opened", "0.051 ms")


def test_another_model_begins_a_new_history(opener, qtbot):
    document, view = open_history(opener, qtbot)
    document.open(document.project)
    qtbot.waitUntil(lambda: [title for title, _ in lines(view)] == ["As opened"])
    document.open(None)
    assert [title for title, _ in lines(view)] == ["As opened"]
