from dataclasses import replace
from itertools import pairwise

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QFontMetricsF, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QScrollArea

from documents import chain_document, document_of
from enplace.machine.limits import find_limits
from enplace.text import ms
from enplace.values.plan import Claim
from enplace_studio.model.document import Document
from enplace_studio.timelines.rows import rows_of
from enplace_studio.timelines.waiting import find_gap
from enplace_studio.views.inspector.inspector_view import InspectorView
from enplace_studio.widgets.fact_widgets import Line, WhyLine
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of
from threads import finish_work
from turns import take_turns

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def open_view(opener):
    def open_it(document, width=300, height=420):
        return opener(InspectorView, document, width, height)

    return open_it


def texts(view: InspectorView) -> str:
    return "\n".join(made.text() for made in view.findChildren(QLabel))


def select(view: InspectorView, document: Document, ops, qtbot) -> None:
    document.select(ops)
    qtbot.waitUntil(lambda: view.where is not None)


def test_the_pane_names_the_selection_and_its_device(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [2], qtbot)
    assert "1 op · 0.010 ms" in texts(view)
    assert [button.isChecked() for button in view.where.buttons] == [False, True]


def test_a_device_button_places_the_selection(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [1], qtbot)
    QTest.mouseClick(view.where.buttons[1], LEFT)
    assert document.current.plan.device.tolist() == [0, 1, 1]
    qtbot.waitUntil(lambda: view.where.buttons[1].isChecked())
    assert "Pinned to GPU 1." in view.sentence.text()


def test_other_devices_show_the_change_in_step_time(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [1], qtbot)
    qtbot.waitUntil(lambda: view.where.buttons[1].note == "−0.012 ms")
    assert view.where.buttons[0].note == ""
    assert document.undo_stack.count() == 0


def test_a_device_that_an_op_cannot_use_gives_the_reason(open_view, qtbot):
    profile = profile_of({"a": 1, "b": 1}, cpu={"c": 1})
    document = document_of(profile, cluster_of(2, cpu_lanes=1), {"a": 0, "b": 0, "c": 2})
    view = open_view(document)
    select(view, document, [0], qtbot)
    cpu = view.where.buttons[2]
    qtbot.waitUntil(lambda: not cpu.isEnabled())
    assert "cannot run" in cpu.toolTip()


def test_the_selection_is_told_why_it_is_here_and_not_elsewhere(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [1], qtbot)
    qtbot.waitUntil(lambda: "The step is" in texts(view))
    assert "Why here" in texts(view)
    assert "On GPU 1" in texts(view)
    assert "On the critical path for" in texts(view)


def test_reasons_here_and_elsewhere_stand_equally_far_apart(open_view, qtbot):
    document = chain_document()
    view = open_view(document, height=900)
    select(view, document, [1], qtbot)
    qtbot.waitUntil(lambda: 1 in view.reasons)
    QApplication.processEvents()
    lines = sorted((line for line in view.findChildren(WhyLine) if line.isVisible()), key=bottom)
    assert len(lines) > 2
    gaps = {bottom(below) - bottom(line) for line, below in pairwise(lines)}
    own_px = lines[0].height() + 8
    assert min(gaps) >= own_px


def bottom(line: WhyLine) -> int:
    return line.mapTo(line.window(), QPoint(0, line.height())).y()


def test_a_reason_marks_the_timeline_and_leads_to_the_op_and_back(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [2], qtbot)
    line = next(each for each in view.findChildren(WhyLine) if each.kind == "waits for")
    assert (line.about, line.figure) == ("b", "20 B over GPU 0 → GPU 1, 0.041 ms")
    line.pointed.emit(True)
    assert [mark.source for mark in document.marks] == [None, 0]
    line.pointed.emit(False)
    assert document.marks == ()
    QTest.mouseClick(line, LEFT)
    assert document.selection == {1}
    assert document.marks, "they stay while the op is selected"
    qtbot.waitUntil(lambda: "asked" in view.buttons)
    view.buttons["asked"].click()
    assert (document.selection, document.marks) == ({2}, ())


def test_a_device_without_a_measured_time_is_told_in_plain_words(open_view, qtbot):
    document = document_of(profile_of({"a": 10}), cluster_of(1, cpu_lanes=1), {"a": 0})
    view = open_view(document)
    select(view, document, [0], qtbot)
    qtbot.waitUntil(lambda: "Why not on CPU 0" in texts(view))
    line = next(each for each in view.findChildren(WhyLine) if each.kind == "cannot run")
    assert (line.about, line.figure) == ("a", "no measured time on a CPU")


def test_devices_that_refuse_for_one_reason_are_told_together(open_view, qtbot):
    profile = profile_of({"a": 10}, cpu={"load": 10})
    document = document_of(profile, cluster_of(3, cpu_lanes=1), {"a": 0, "load": 3})
    view = open_view(document)
    select(view, document, [1], qtbot)
    qtbot.waitUntil(lambda: "Why not on GPU 0, GPU 1, GPU 2" in texts(view))
    assert [each.kind for each in view.findChildren(WhyLine)].count("cannot run") == 1


def test_a_device_that_is_forbidden_names_the_selection_as_a_whole(open_view, qtbot):
    profile = profile_of({"block/one": 10, "block/two": 10})
    document = document_of(profile, cluster_of(2), {"block/one": 0, "block/two": 0})
    document.forbid([0, 1], 1)
    view = open_view(document)
    select(view, document, [0, 1], qtbot)
    qtbot.waitUntil(lambda: "Why not on GPU 1" in texts(view))
    line = next(each for each in view.findChildren(WhyLine) if each.kind == "must not run there")
    assert line.about == document.project.describe([0, 1])


def test_a_button_without_room_shows_its_number_below_its_name(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [1], qtbot)
    button = view.where.buttons[1]
    button.set_note("+1,166.1 ms", "bad")
    assert button.is_stacked(93)
    assert not button.is_stacked(200)


def test_large_tensors_leave_out_what_their_names_share(open_view, qtbot):
    names = [f"gradients/t{step}/cell_0/MatMul_grad/MatMul_1" for step in range(12, 16)]
    every = [*names, "sum"]
    profile = profile_of(dict.fromkeys(every, 1.0), [(name, "sum", 128) for name in names])
    view = open_view(document := document_of(profile, cluster_of(2), dict.fromkeys(every, 0)))
    select(view, document, list(range(len(names))), qtbot)
    lines = [line for line in view.findChildren(WhyLine) if line.kind == "128 B"]
    shown = [line.shown_about(QFontMetricsF(theme.font(12)), 120) for line in lines]
    assert len(set(shown)) == len(names)
    assert all(f"t{step}" in text for step, text in zip(range(12, 16), shown, strict=True))


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ("RandomUniform of encoder / layer 0", "RandomUniform"),
        ("Mean of encoder / layer 1", "Mean of encoder/layer 1"),
    ],
)
def test_a_reason_leaves_out_the_group_that_the_title_names(about, shown):
    line = WhyLine("waits for", about, "", "", True, known=" of encoder / layer 0")
    metrics = QFontMetricsF(theme.font(12))
    assert line.shown_about(metrics, metrics.horizontalAdvance(about) + 1) == about
    assert line.shown_about(metrics, metrics.horizontalAdvance(about) - 4) == shown


def test_what_limits_the_step_is_listed_and_selects_its_ops(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    lines = [line for line in view.findChildren(Line) if line.can_click]
    assert "What limits the step" in texts(view)
    assert any("GPU 0 → GPU 1" in line.left for line in lines)
    first = next(line for line in lines if "on GPU 1" in line.left)
    QTest.mouseClick(first, LEFT)
    assert document.selection == {2}


def test_each_of_many_devices_shows_the_cost_of_a_move(open_view, qtbot):
    profile = profile_of({"a": 1, "b": 1})
    document = document_of(profile, cluster_of(12), {"a": 0, "b": 0})
    view = open_view(document)
    select(view, document, [1], qtbot)
    qtbot.waitUntil(lambda: all(": step " in b.toolTip() for b in view.where.buttons[1:]))
    assert view.where.buttons[11].note


def test_a_preview_of_an_earlier_plan_is_dropped(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [1], qtbot)
    document.previews.start([1], 1)
    document.place([1], 1)
    qtbot.waitUntil(lambda: view.where.buttons[0].note == "+0.012 ms")
    assert view.where.buttons[1].note == ""


def test_a_selection_is_shown_once_the_mouse_is_released(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [1], qtbot)
    QTest.mousePress(view, LEFT)
    document.previews.start([1], 1)
    document.select([2])
    finish_work(document)
    take_turns()
    assert [button.isChecked() for button in view.where.buttons] == [True, False]
    assert view.where.buttons[1].note == ""
    QTest.mouseRelease(view, LEFT)
    qtbot.waitUntil(lambda: view.where.buttons[1].isChecked())


def test_a_selection_waits_a_second_for_the_mouse_and_no_longer(open_view, qtbot, monkeypatch):
    """Qt may not notice that a button is released."""
    document, now_s = chain_document(), 1000.0
    view = open_view(document)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    QTest.mousePress(view, LEFT)
    document.select([2])
    take_turns()
    assert view.where is None
    now_s += 1.1
    qtbot.waitUntil(lambda: view.where is not None)


def test_what_else_has_changed_is_shown_while_the_mouse_is_pressed(open_view, qtbot):
    """Such as by the sliders of a what-if, which are held."""
    document = chain_document()
    view = open_view(document)
    QTest.mousePress(view, LEFT)
    document.set_scale(1.0, 3.0)
    qtbot.waitUntil(lambda: "(what if: links 3 ×)" in texts(view))


def test_pin_unpin_and_colocate(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [0, 1], qtbot)
    view.buttons["Pin here"].click()
    assert document.problem.pins == {0: 0, 1: 0}
    qtbot.waitUntil(lambda: "Unpin" in view.buttons)
    assert not view.buttons["Pin here"].isEnabled()
    view.buttons["Unpin"].click()
    assert document.problem.pins == {}
    qtbot.waitUntil(lambda: "Unpin" not in view.buttons)
    view.buttons["Colocate"].click()
    assert document.problem.together == ((0, 1),)
    qtbot.waitUntil(lambda: "Separate" in view.buttons)
    view.buttons["Separate"].click()
    assert document.problem.together == ()


def test_the_menu_of_a_device_forbids_and_allows(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    select(view, document, [2], qtbot)

    def actions(device):
        menu = view.where.menu_of(view.where.buttons[device])
        return {action.text(): action for action in menu.actions()}

    actions(0)["Keep off GPU 0"].trigger()
    assert document.problem.forbidden == {(2, 0)}
    actions(0)["Allow GPU 0 again"].trigger()
    assert document.problem.forbidden == frozenset()
    actions(0)["Move to GPU 0 without a pin"].trigger()
    assert document.current.plan.device.tolist() == [0, 0, 0]
    assert document.problem.pins == {}


def test_an_empty_selection_shows_an_introduction(open_view):
    assert "Open a model" in texts(open_view(Document()))
    assert "Select a group" in texts(open_view(chain_document()))


def test_an_empty_selection_shows_the_methods_note_on_the_plan(open_view):
    document = chain_document()
    entry = document.current
    plan = replace(entry.plan, note="the best of 60 linear orders")
    document.add_plan(replace(entry, name="noted", plan=plan))
    assert "The best of 60 linear orders." in texts(open_view(document))


def test_what_a_file_claims_stands_once_it_is_more_than_what_is_known(open_view, qtbot):
    document = chain_document()
    entry, step_us = document.current, document.schedule.makespan_us
    plan = replace(entry.plan, claim=Claim(0.99 * step_us, problem=document.problem))
    schedule = replace(entry.schedule, plan=plan)
    document.add_plan(replace(entry, name="claimed", plan=plan, schedule=schedule))
    view = open_view(document)
    qtbot.waitUntil(lambda: f"Not below {ms(0.99 * step_us)}, says its file." in texts(view))
    document.set_scale(1.0, 3.0)
    qtbot.waitUntil(lambda: "what if" in texts(view))
    assert "says its file" not in texts(view)


def test_a_note_that_tells_times_says_when_in_a_what_if(open_view, qtbot):
    document = chain_document()
    entry, step_us = document.current, document.schedule.makespan_us
    told = {"note": "the best of 3: 1.6 ms", "noted_us": step_us}
    plan = replace(entry.plan, **told, noted_for=document.problem.costs_digest)
    schedule = replace(entry.schedule, plan=plan)
    document.add_plan(replace(entry, name="noted", plan=plan, schedule=schedule))
    view = open_view(document)
    assert "\nThe best of 3: 1.6 ms." in texts(view)
    document.set_scale(1.0, 3.0)
    took = ms(step_us)
    dated = f"\nFound for other costs or memory, where it took {took}: The best of 3: 1.6 ms."
    qtbot.waitUntil(lambda: dated in texts(view))
    document.undo_stack.undo()
    qtbot.waitUntil(lambda: "\nThe best of 3: 1.6 ms." in texts(view))


def test_the_step_time_of_a_what_if_is_marked(open_view):
    document = chain_document()
    document.set_scale(1.0, 3.0)
    assert "per step (what if: links 3 ×)." in texts(open_view(document))


def test_without_a_plan_the_pane_says_so(open_view, qtbot):
    profile = profile_of({"a": 1, "b": 1})
    document = document_of(profile, cluster_of(2))
    view = open_view(document)
    assert "There is no plan yet" in texts(view)
    select(view, document, [0], qtbot)
    assert not any(button.isEnabled() for button in view.where.buttons)


def rows(widgets):
    return len({widget.y() for widget in widgets})


def test_in_a_narrow_pane_the_buttons_stand_below_each_other(open_view, qtbot):
    document = chain_document()
    view = open_view(document, width=200)
    select(view, document, [1], qtbot)
    devices, actions = view.where.buttons, [view.buttons["Pin here"], view.buttons["Colocate"]]
    qtbot.waitUntil(lambda: rows(devices) == rows(actions) == 2)
    assert view.where.minimumSizeHint().width() < 200 - 2 * 16
    view.resize(400, 420)
    qtbot.waitUntil(lambda: rows(devices) == rows(actions) == 1)


def test_a_narrow_pane_cuts_nothing_beside_its_scroll_bar(open_view, qtbot):
    document = chain_document()
    view = open_view(document, width=200, height=200)
    select(view, document, [1], qtbot)
    column = view.findChild(QScrollArea)
    qtbot.waitUntil(column.verticalScrollBar().isVisible)
    assert column.widget().minimumSizeHint().width() <= column.viewport().width()


def test_a_gap_lists_what_the_device_waits_for_and_each_step_selects_its_ops(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    rows = rows_of(document.schedule)
    document.select([], gap=find_gap(document.schedule, rows[-1], 20.0))
    qtbot.waitUntil(lambda: "idle for" in texts(view))
    qtbot.waitUntil(lambda: "Why is GPU 1 idle?" in texts(view))
    assert "GPU 1 idle for 0.041 ms, until c." in texts(view)
    lines = [line for line in view.findChildren(Line) if line.can_click and line.isVisible()]
    assert [(line.left, line.right) for line in lines] == [
        ("a on GPU 0", "0.010 ms"),
        ("b: GPU 0 → GPU 1", "0.021 ms"),
        ("b on GPU 0", "0.010 ms"),
    ]
    lines[2].click()
    assert document.selection == {1}
    qtbot.waitUntil(lambda: "gap" in view.buttons)
    view.buttons["gap"].click()
    assert document.selection == frozenset()
    qtbot.waitUntil(lambda: "GPU 1 idle for" in texts(view))
    document.select([0])
    document.select([])
    assert document.gap is None


def test_a_part_of_the_step_has_a_menu(open_view):
    view = open_view(document := chain_document())
    limits = find_limits(document.schedule, document.project.grouping)
    limit = next(each for each in limits if each.name == "c on GPU 1")
    actions = {action.text(): action for action in view.menu_of(limit).actions()}
    assert {"Why here?", "Copy as text", "Save picture of this view…"} <= set(actions)
    actions["Select the 1 op"].trigger()
    assert document.selection == {2}


def test_what_limits_the_step_tells_the_gain_if_it_were_free(open_view, qtbot):
    view = open_view(chain_document())
    lines = [line for line in view.findChildren(Line) if line.can_click]
    qtbot.waitUntil(lambda: all("−" in line.right for line in lines))
    assert {line.left: line.right for line in lines} == {
        "GPU 0 → GPU 1": "0.021 ms   −0.021 ms",
        "a on GPU 0": "0.010 ms   −0.010 ms",
        "b on GPU 0": "0.010 ms   −0.010 ms",
        "c on GPU 1": "0.010 ms   −0.010 ms",
    }
    assert "the same plan simulated again" in lines[0].toolTip()


def test_what_limits_the_step_is_copied_as_text(open_view, qtbot):
    view = open_view(chain_document())
    with qtbot.waitActive(view):
        view.activateWindow()
    first = next(line for line in view.findChildren(Line) if line.can_click)
    first.setFocus()
    QTest.keyClick(first, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    copied = QGuiApplication.clipboard().text().split("\n")
    assert f"{first.left}\t{first.right}" in copied
    assert len(copied) == len(view.findChildren(Line))


def test_no_line_overlaps_another_as_soon_as_the_selection_is_shown(open_view):
    document = chain_document()
    view = open_view(document)
    for ops in ([2], [0, 1], [1], []):
        document.select(ops)
        view.rebuild()  # and no turn of the event loop, in which it might be painted
        rows = view.column.widget().layout().itemAt(0).layout()
        places = [rows.itemAt(at).geometry() for at in range(rows.count())]
        for one, other in pairwise(places):
            assert one.bottom() < other.top(), ops
