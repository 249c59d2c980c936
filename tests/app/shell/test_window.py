import gc
import sys
import weakref

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPointF, QRect, Qt
from PySide6.QtGui import QCursor, QEnterEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QMessageBox, QPushButton, QWidget
from tests.app.shell.windows import BUTTON, answer, open_path, press, project_with_a_plan, trigger

from documents import add_plan, chain_document, document_of
from enplace.readers.clusters import presets
from enplace.writers import write_project
from enplace_studio.files.session import to_project
from enplace_studio.jobs.solver import Method
from enplace_studio.model.open_project import start_project
from enplace_studio.shell.actions import all_actions
from enplace_studio.shell.key_sheet import KeySheet
from enplace_studio.shell.window import usual_geometry
from enplace_studio.views.graph.canvas import Canvas
from enplace_studio.views.timeline.canvas import TimelineCanvas
from enplace_studio.views.whatif.whatif_view import value_at
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of
from stops import nameless_stops
from turns import take_turns


def test_the_start_page_explains_and_shows_no_panes(make_window):
    window = make_window()
    assert window.start_page.isVisible()
    assert not window.bar.isVisible()
    assert len(window.start_page.cards) >= 3


def test_number_keys_pin_the_selection(window, qtbot):
    window.document.select([2])
    press(window, Qt.Key.Key_1)
    assert window.document.problem.pins == {2: 0}
    qtbot.waitUntil(lambda: window.toast.text == "Pinned c to GPU 0: −0.021 ms.")
    press(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert window.document.problem.pins == {}


@pytest.mark.qt_log_ignore("does not support (raise|grabbing)", extend=True)
def test_an_open_menu_closes_when_another_graph_opens(window):
    menu = QMenu(window)
    menu.addAction("Pin here")
    menu.popup(window.mapToGlobal(window.rect().center()))
    assert menu.isVisible()
    window.document.open(project_with_a_plan())
    assert not menu.isVisible()


def test_the_toast_takes_back_its_own_edit_or_is_gone(window, qtbot):
    for op, key in ((2, Qt.Key.Key_1), (1, Qt.Key.Key_2)):
        window.document.select([op])
        press(window, key)
    qtbot.waitUntil(lambda: window.toast.isVisibleTo(window))
    press(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert window.document.problem.pins == {2: 0}
    assert not window.toast.isVisibleTo(window)


def test_no_message_covers_the_figures_of_the_status_line(window):
    window.resize(700, 500)
    take_turns()
    window.studio.done.emit("a long line about something that was found " * 3)
    assert 0 < window.status_line.figures_px < window.toast.geometry().left()
    assert window.toast.geometry().right() <= window.width()


def test_the_toast_covers_no_row_of_the_graph(window, qtbot):
    window.document.place([0], 1)
    qtbot.waitUntil(lambda: window.toast.isVisible())
    graph = window.panes.views["graph"].canvas
    bottom = graph.mapTo(window, graph.rect().bottomLeft()).y()
    assert window.toast.geometry().top() > bottom


def test_a_plan_that_does_not_fit_is_red_in_the_status_line(window, qtbot):
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 60, "b": 60})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 0})
    window.document.open(document.project)
    step = window.status_line.step
    text = "Predicted step 0.020 ms, this plan does not fit: GPU 0 needs 20 B more"
    qtbot.waitUntil(lambda: step.text() == text)
    assert step.property("role") == "bad"


def test_news_of_an_edit_says_that_the_plan_no_longer_fits(window, qtbot):
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 60, "b": 60})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 1})
    window.document.open(document.project)
    window.document.select([1])
    press(window, Qt.Key.Key_1)
    qtbot.waitUntil(
        lambda: window.toast.text.endswith(", but it does not fit: GPU 0 needs 20 B more.")
    )


def test_every_stop_of_the_tab_key_has_a_name_for_screen_readers(window, qtbot):
    window.document.select([0])
    qtbot.waitUntil(lambda: not nameless_stops(window))


def test_the_stops_of_the_start_page_and_of_the_sheet_of_keys_have_names(make_window, qtbot):
    window = make_window()
    sheet = KeySheet(window.menus.specs, window)
    qtbot.addWidget(sheet)
    sheet.show()
    assert not nameless_stops(window)


def test_a_number_without_a_device_does_nothing(window):
    window.document.select([2])
    press(window, Qt.Key.Key_8)
    assert window.document.problem.pins == {}


def test_keys_pin_unpin_colocate_and_separate(window):
    window.document.select([0, 1])
    press(window, Qt.Key.Key_P)
    assert window.document.problem.pins == {0: 0, 1: 0}
    press(window, Qt.Key.Key_U)
    assert window.document.problem.pins == {}
    press(window, Qt.Key.Key_G)
    assert window.document.problem.together == ((0, 1),)
    press(window, Qt.Key.Key_G, Qt.KeyboardModifier.ShiftModifier)
    assert window.document.problem.together == ()


def test_a_refused_request_is_explained_in_the_banner_until_the_next_edit(window):
    window.document.pin_here([0])
    window.document.forbid([0], 0)
    assert window.banner.isVisible()
    assert "pinned" in window.banner.text
    window.document.place([2], 0)
    assert not window.banner.isVisible()


def test_what_went_wrong_with_a_search_is_gone_once_the_next_begins(window, monkeypatch):
    monkeypatch.setattr(window.solver, "solve", lambda *_, **__: None)
    window.banner.show_error("stopped before there was a plan")
    window.studio.solving.solve()
    assert not window.banner.isVisible()


def test_the_status_line_names_the_unsaved_change(window, qtbot):
    window.document.place([2], 0)
    qtbot.waitUntil(lambda: "pin “c” to GPU 0" in window.status_line.unsaved.whole)


def test_a_change_of_cluster_is_one_undo_step(window, monkeypatch):
    monkeypatch.setattr(window.solver, "solve", lambda *_, **__: None)
    window.document.set_cluster(presets()["cpu-2"])
    assert "runs only on a gpu" in window.banner.text
    window.document.set_cluster(presets()["pesto"])
    assert "V100" in window.header.cluster_button.text()
    window.document.undo_stack.undo()
    assert window.document.project.cluster.name == "hand"


def test_two_drags_of_a_what_if_slider_are_two_undo_steps(window, qtbot):
    slider = window.panes.views["whatif"]._compute
    for positions in ((3, 6, 8), (12, 16)):
        slider.setSliderDown(True)
        for position in positions:
            slider.setValue(position)
            qtbot.waitUntil(lambda at=position: window.document.project.scale[0] == value_at(at))
        slider.setSliderDown(False)
    assert window.document.undo_stack.count() == 2
    window.document.undo_stack.undo()
    assert window.document.project.scale == (2.0, 1.0)
    window.document.undo_stack.undo()
    assert window.document.project.scale == (1.0, 1.0)


def test_what_if_sliders_scale_the_cluster(window, qtbot):
    slider = window.panes.views["whatif"]._compute
    slider.setValue(8)
    qtbot.waitUntil(lambda: window.document.project.scale == (2.0, 1.0))
    assert window.document.schedule.op_finish_us[0] == 5
    end = window.menus.by_id["end-what-if"]
    assert end.isEnabled()
    end.trigger()
    assert slider.value() == 0
    assert not end.isEnabled()


def test_closed_panes_can_be_reopened_and_the_next_start_remembers_them(
    window, make_window, monkeypatch
):
    window.panes.docks["inspector"].toggleViewAction().trigger()
    assert not window.panes.docks["inspector"].isVisible()
    state = window.document.project
    answer(monkeypatch, BUTTON.Discard)
    window.close()
    again = make_window()
    again.document.open(state)
    again.panes.restore()
    assert not again.panes.docks["inspector"].isVisible()
    assert again.panes.docks["plans"].isVisible()
    trigger(again, "reset-layout")
    assert again.panes.docks["inspector"].isVisible()


def open_panes(window):
    return {name for name, dock in window.panes.docks.items() if not dock.isHidden()}


def test_panes_open_at_their_first_use_and_then_stay_as_the_user_leaves_them(
    window, make_window, monkeypatch, qtbot
):
    first = {"plans", "timeline", "inspector"}
    assert open_panes(window) == first
    window.document.place([0], 1)
    qtbot.waitUntil(lambda: open_panes(window) == {*first, "constraints", "history"})
    window.panes.docks["history"].toggleViewAction().trigger()
    window.document.set_scale(2.0, 1.0)
    qtbot.waitUntil(lambda: open_panes(window) == {*first, "constraints", "whatif"})
    window.document.place([1], 1)
    take_turns()
    left = {*first, "constraints", "whatif"}
    assert open_panes(window) == left, "closed by the user, whatever comes"
    answer(monkeypatch, BUTTON.Discard)
    window.close()
    again = make_window()
    again.document.open(project_with_a_plan())
    again.panes.restore()
    assert open_panes(again) == left
    again.document.place([0], 1)
    take_turns()
    assert open_panes(again) == left
    trigger(again, "reset-layout")
    qtbot.waitUntil(lambda: open_panes(again) == {*first, "constraints", "history"})


def test_a_pane_also_opens_at_its_first_use_in_a_later_session(window, make_window, qtbot):
    other = chain_document()
    other.place([0], 1)
    window.close()
    again = make_window()
    again.document.open(other.project)
    take_turns()
    assert open_panes(again) == {"plans", "timeline", "inspector", "constraints"}


def test_memory_opens_by_itself_once_a_plan_does_not_fit(make_window, qtbot):
    window = make_window()
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 1 << 29)])
    window.document.open(start_project(profile, cluster_of(2, capacity_bytes=1 << 28)))
    assert "memory" not in open_panes(window)
    add_plan(window.document, "too large", {"a": 0, "b": 0}, choose=True)
    qtbot.waitUntil(lambda: "memory" in open_panes(window))


@pytest.mark.parametrize(("pane", "kind"), [("graph", Canvas), ("timeline", TimelineCanvas)])
def test_a_key_acts_on_the_pane_under_the_pointer(window, monkeypatch, pane, kind):
    fitted = []
    for each in (Canvas, TimelineCanvas):
        monkeypatch.setattr(each, "fit", lambda self, *_: fitted.append(type(self)))
    view = window.panes.views[pane]
    QCursor.setPos(view.mapToGlobal(view.rect().center()))
    window.panes.views["plans"].setFocus()
    take_turns()
    fitted.clear()
    press(window, Qt.Key.Key_0)
    assert fitted == [kind]


def test_the_canvas_that_the_pointer_comes_to_takes_the_keys_unless_someone_types(window):
    graph = window.panes.views["graph"]
    canvas, timeline = graph.canvas, window.panes.views["timeline"].canvas
    enter = QEnterEvent(QPointF(1, 1), QPointF(1, 1), QPointF(1, 1))
    window.activateWindow()
    assert QTest.qWaitForWindowActive(window)
    canvas.setFocus()
    QApplication.sendEvent(timeline, enter)
    assert timeline.hasFocus()
    before = timeline.scale.us_per_px
    press(window.focusWidget(), Qt.Key.Key_Plus, Qt.KeyboardModifier.ShiftModifier)
    assert timeline.scale.us_per_px < before
    press(window.focusWidget(), Qt.Key.Key_Minus)
    assert timeline.scale.us_per_px == pytest.approx(before)
    graph.start_search()
    typing = window.focusWidget()
    QApplication.sendEvent(timeline, enter)
    assert typing.hasFocus()


def test_the_theme_is_remembered(window, make_window):
    trigger(window, "theme-dark")
    assert theme.dark
    theme.set_mode("light")
    make_window()
    assert theme.dark


def test_every_action_has_its_own_id_and_keys():
    ids = [spec.id for spec in all_actions()]
    keys = [key for spec in all_actions() for key in spec.keys]
    assert len(set(ids)) == len(ids)
    assert len(set(keys)) == len(keys)


def test_the_palette_runs_what_is_typed(window, qtbot):
    from enplace_studio.shell.palette import Palette

    def run(typed):
        palette = Palette(window.menus, window.studio, window)
        qtbot.addWidget(palette)
        QTest.keyClicks(palette.search.field, typed)
        QTest.keyClick(palette.search.field, Qt.Key.Key_Return)

    window.document.select([0])
    run("pin where")
    assert window.document.problem.pins == {0: 0}
    run("colour time")
    assert window.panes.views["graph"].model.mode.title == "compute time"
    run("select op c")
    assert window.document.selection == {2}
    window.document.place([1], 1)
    run("select the critical path")
    assert window.document.selection == {0, 1, 2}, "a, b and c run one after the other"


@pytest.mark.parametrize(
    ("typed", "first"), [("dark", "Dark"), ("light", "Light"), ("select all", "Select all")]
)
def test_the_exact_words_come_first_in_the_palette(window, qtbot, typed, first):
    from enplace_studio.shell.palette import Palette

    palette = Palette(window.menus, window.studio, window)
    qtbot.addWidget(palette)
    palette.search.field.setText(typed)
    assert palette.search.current.title == first


def test_the_palette_shows_plans_and_groups_and_solves_with_any_method(window, qtbot, monkeypatch):
    from enplace_studio.shell.commands import all_commands

    asked = []
    monkeypatch.setattr(
        window.solver, "solve", lambda *args, **details: asked.append((args, details))
    )
    solver, document = window.solver, window.document
    solver.methods = {"m": Method("m", "M", "", ("step-time", "latency"), (), "")}
    first = document.current
    document.place([0], 1)
    kinds = all_commands(window.menus, window.studio)
    assert [c.title for c in kinds["Methods"]] == ["Solve with M", "Solve with M: shortest query"]
    kinds["Methods"][1].run()
    assert asked[0][0][1:3] == (["m"], window.studio.chosen.time_limit_s)
    assert asked[0][1]["objective"] == "latency"
    next(c for c in kinds["Plans"] if c.title == "Show plan first").run()
    assert document.current is first
    kinds["Groups"][0].run()
    assert document.selection


def test_the_palette_locks_devices_and_keeps_the_selection_off_them(window):
    from enplace_studio.shell.commands import all_commands

    def run(title):
        found = all_commands(window.menus, window.studio)["Devices"]
        next(command for command in found if command.title == title).run()

    document = window.document
    document.select([2])
    run("Lock GPU 0 as it is")
    assert document.problem.locked == {0}
    run("Unlock GPU 0")
    assert document.problem.locked == frozenset()
    run("Keep the selection off GPU 0")
    assert document.problem.forbidden == {(2, 0)}
    run("Allow the selection on GPU 0 again")
    assert document.problem.forbidden == frozenset()
    run("Select what runs on GPU 0")
    assert document.selection == set(np.flatnonzero(document.current.plan.device == 0).tolist())


def test_the_key_sheet_names_every_shortcut(window, qtbot):
    from PySide6.QtWidgets import QLabel

    from enplace_studio.shell.key_sheet import KeySheet

    sheet = KeySheet(window.menus.specs, window)
    qtbot.addWidget(sheet)
    shown = {label.text() for label in sheet.findChildren(QLabel)}
    assert {"Pin selection where it is", "P", "Ctrl+Shift+P", "Search ops"} <= shown
    assert {"1 … 8", "Pin selection to a device", "W A S D"} <= shown


def test_keys_are_listed_by_topic_in_columns_of_like_height():
    from enplace_studio.shell.key_sheet import in_columns, topics

    found = topics(all_actions())
    assert [title for title, _ in found][:4] == ["File", "Edit", "Select", "Plan"]
    listed = [line for _, lines in found for line in lines]
    assert len(set(listed)) == len(listed)
    columns = in_columns(found, 2)
    assert [topic for column in columns for topic in column] == found
    heights = [sum(len(lines) + 2 for _, lines in column) for column in columns]
    assert max(heights) < 2 * min(heights)


def test_an_unexpected_error_is_reported_and_the_studio_keeps_running(
    window, monkeypatch, tmp_path
):
    from enplace_studio.widgets.messages import install_excepthook

    texts = []
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    install_excepthook(tmp_path / "studio.log")
    sys.excepthook(ValueError, ValueError("boom"), None)
    assert texts == ["The studio had an internal error. Your work is safe; you can continue."]
    assert window.isVisible()


@pytest.mark.parametrize(
    "screen",
    [(0, 0, 1024, 700), (0, 0, 1366, 768), (1920, 30, 2560, 1410), (0, 0, 683, 384)],
)
def test_a_new_window_is_inside_its_screen(screen):
    area = QRect(*screen)
    found = usual_geometry(area)
    assert area.contains(found)
    assert found.top() > area.top()  # room for the frame
    assert found.width() >= min(area.width(), 1440)


def test_repainting_loses_no_reference_to_none(qtbot):
    """PySide6 6.12 loses one per call, and Python crashes when none is left."""
    widget = QWidget()
    qtbot.addWidget(widget)
    widget.update()
    before = sys.getrefcount(None)
    for _ in range(500):
        widget.update()
    assert sys.getrefcount(None) > before - 100


def test_plans_are_renamed_and_removed(window, monkeypatch):
    from PySide6.QtWidgets import QInputDialog

    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    monkeypatch.setattr(QInputDialog, "getText", lambda *_, **__: ("mine", True))
    trigger(window, "rename-plan")
    assert window.document.current.name == "mine"
    trigger(window, "remove-plan")
    assert [entry.name for entry in window.document.plans] == ["second"]


def test_closed_panes_stay_closed_after_the_start_page(window, monkeypatch):
    state = window.document.project
    window.panes.docks["inspector"].toggleViewAction().trigger()
    answer(monkeypatch, BUTTON.Discard)
    trigger(window, "start")
    assert not window.panes.docks["plans"].isVisible()
    window.document.open(state)
    assert window.panes.docks["plans"].isVisible()
    assert not window.panes.docks["inspector"].isVisible()


def test_plans_side_by_side_take_the_place_of_the_graph_and_give_it_back(window):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    for name in ("constraints", "history", "memory"):
        window.panes.docks[name].toggleViewAction().trigger()
    press(window, Qt.Key.Key_C)
    view = window.panes.views["compare"]
    view.wait()
    assert [entry.name for entry in view.shown] == ["first", "second"]
    visible = {name for name, dock in window.panes.docks.items() if dock.isVisible()}
    assert visible == {"plans", "constraints", "history"}
    assert window.menus.by_id["side-by-side"].isChecked()
    press(window, Qt.Key.Key_C)
    assert window.panes.views["graph"].isVisible()
    visible = {name for name, dock in window.panes.docks.items() if dock.isVisible()}
    side = {"plans", "constraints", "history", "inspector", "memory"}
    assert visible == {*side, "timeline"}
    assert not window.menus.by_id["side-by-side"].isChecked()


def test_tables_take_the_place_of_the_graph_alone(window):
    window.panes.docks["memory"].toggleViewAction().trigger()
    before = {name for name, dock in window.panes.docks.items() if dock.isVisible()}
    press(window, Qt.Key.Key_T)
    assert window.panes.views["tables"].table.isVisible()
    assert {name for name, dock in window.panes.docks.items() if dock.isVisible()} == before
    press(window, Qt.Key.Key_C)  # plans side by side, and back
    press(window, Qt.Key.Key_C)
    assert window.panes.views["graph"].isVisible()
    window.panes.views["memory"].table_button.click()
    assert window.panes.views["tables"].kinds.checkedId() == 2
    assert {name for name, dock in window.panes.docks.items() if dock.isVisible()} == before
    trigger(window, "tour")
    assert window.panes.views["graph"].isVisible()  # which the tour is about
    window.tour.end()
    press(window, Qt.Key.Key_T)
    window.document.open(window.document.project)
    assert window.panes.views["graph"].isVisible()  # a model never opens as a table


def test_a_search_for_ops_shows_the_graph_again(window):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    trigger(window, "side-by-side")
    trigger(window, "search")
    assert window.panes.views["graph"].search.isVisible()
    assert window.panes.docks["timeline"].isVisible()
    assert not window.menus.by_id["side-by-side"].isChecked()


def test_a_model_that_was_closed_does_not_stay_in_memory(window, monkeypatch, tmp_path):
    answer(monkeypatch, BUTTON.Discard)
    path, profiles = tmp_path / "work.enplace", []
    write_project(path, to_project(window.document.project, window.document.view))
    for _ in range(4):  # the last ones may: panes keep what they show, and caches what was shown
        open_path(window, path)
        add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
        press(window, Qt.Key.Key_C)
        window.panes.views["compare"].wait()
        window.document.place([0], 1)
        take_turns()
        profiles.append(weakref.ref(window.document.problem.profile))
    QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    gc.collect()
    assert profiles[0]() is None


def test_fit_works_on_the_plans_side_by_side(window):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    trigger(window, "side-by-side")
    view = window.panes.views["compare"]
    view.wait()
    whole = view.canvas.stack.scale
    QTest.keyClick(view.canvas, Qt.Key.Key_W)
    trigger(window, "fit")
    assert view.canvas.stack.scale == whole


def test_a_comparison_in_the_list_opens_these_plans_side_by_side(window):
    second = add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    third = add_plan(window.document, "third", {"a": 1, "b": 1, "c": 1}, choose=True)
    plans = window.panes.views["plans"]
    plans.rebuild()
    plans.compare_with(second)
    buttons = plans.comparison.findChildren(QPushButton)
    next(b for b in buttons if b.text() == "Side by side").click()
    view = window.panes.views["compare"]
    view.wait()
    assert view.isVisible()
    assert view.shown == [second, third]


def test_another_model_brings_the_graph_back(window):
    add_plan(window.document, "second", {"a": 0, "b": 0, "c": 0})
    trigger(window, "side-by-side")
    window.document.open(chain_document().project)
    assert window.panes.views["graph"].isVisible()
    assert window.panes.docks["timeline"].isVisible()


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("rnnlm-2-2048", "RNNLM 2 × 2048"),
        ("vgg-19", "VGG-19"),
        ("bert-3-training", "BERT 3 training"),
        ("my-own_model-3", "my-own_model-3"),
    ],
)
def test_well_known_models_have_their_usual_names(name, title):
    from enplace_studio.explain.titles import model_title

    assert model_title(name) == title


def test_an_error_while_one_view_paints_does_not_affect_the_others(window, monkeypatch):
    """A traceback keeps the failed frame alive; a painter left in it would break the next one."""
    with monkeypatch.context() as patch:
        patch.setattr("enplace_studio.views.graph.canvas.paint_scene", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError) as fault:
            window.findChild(Canvas).repaint()
    assert fault.traceback
    assert _is_painted(window.findChild(Canvas))
    assert _is_painted(window.findChild(TimelineCanvas))


def _is_painted(widget: QWidget) -> bool:
    image = widget.grab().toImage()
    return len({image.pixel(x, y) for x in range(0, image.width(), 3) for y in (5, 30)}) > 1


def test_a_what_if_pane_keeps_its_height_so_that_no_slider_moves_under_the_pointer(window):
    view = window.panes.views["whatif"]
    before = view.minimumSizeHint().height()
    window.document.set_scale(2.0, 1.0)
    assert view.reset_button.isVisibleTo(view)
    view.layout().activate()
    assert view.minimumSizeHint().height() == before


def test_a_choice_for_all_layers_is_offered_and_done_once_accepted(window):
    names = [f"layer_{n}/{op}" for n in range(3) for op in "ab"]
    document = window.document
    document.open(start_project(profile_of(dict.fromkeys(names, 10)), cluster_of(2)))
    add_plan(document, "first", dict.fromkeys(names, 0), choose=True)
    document.place([0], 1)
    document.select([0])
    press(window, Qt.Key.Key_L)
    assert window.offer.isVisible()
    assert "2 more blocks of 1 op" in window.offer.text
    window.offer.cancel.click()
    assert not window.offer.isVisible()
    assert document.selection == {0}
    press(window, Qt.Key.Key_L)
    for pane in (window, *(window.panes.views[v].canvas for v in ("graph", "timeline", "compare"))):
        document.offer_stamp([0])
        QTest.keyClick(pane, Qt.Key.Key_Escape)
        assert not window.offer.isVisible()
        assert document.selection == {0}, pane
    press(window, Qt.Key.Key_L)
    window.offer.accept.click()
    assert not window.offer.isVisible()
    assert document.problem.pins == {0: 1, 2: 1, 4: 1}


def test_escape_clears_the_selection_wherever_the_focus_is(window):
    window.document.select([0, 1])
    window.header.solve_button.setFocus()
    QTest.keyClick(window.header.solve_button, Qt.Key.Key_Escape)
    assert window.document.selection == frozenset()


def test_layers_are_kept_whole_by_the_guessed_regex(window, monkeypatch):
    from PySide6.QtWidgets import QInputDialog

    layers = {f"layer_{i}/{part}": 10.0 for i in range(2) for part in ("MatMul", "Relu")}
    window.document.open(start_project(profile_of(layers), cluster_of(2)))
    monkeypatch.setattr(QInputDialog, "getText", lambda *_, text: (text, True))
    trigger(window, "keep-whole")
    assert window.document.problem.together == ((0, 1), (2, 3))
