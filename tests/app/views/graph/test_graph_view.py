import sys
import threading
from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QHelpEvent, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QInputDialog, QToolTip

from documents import document_of
from enplace.machine import simulate
from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.text import count
from enplace.values.plan import Plan
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.views.graph.camera import READABLE
from enplace_studio.views.graph.colours import MODES
from enplace_studio.views.graph.graph_view import GraphView
from enplace_studio.views.graph.paint import (
    fitted_name,
    has_room_for_pin,
    in_lines,
    quiet_ink,
    tinted,
)
from enplace_studio.widgets.pictures import write_picture
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of
from threads import finish_work
from turns import take_turns, turn_wheel

LEFT, NO_KEY, CTRL = (
    Qt.MouseButton.LeftButton,
    Qt.KeyboardModifier.NoModifier,
    Qt.KeyboardModifier.ControlModifier,
)


def model_document(capacity_bytes: int = 1 << 30, gpus: int = 2) -> Document:
    """Two unrolled layers with gradients; layer 0 on GPU 0, layer 1 on GPU 1."""
    names = [
        f"{prefix}lstm{layer}/t{step}/MatMul_{i}"
        for prefix in ("", "gradients/")
        for layer in range(2)
        for step in range(12)
        for i in range(4)
    ]
    edges = [(a, b, 4) for a, b in pairwise(names)]
    edges += [(f"lstm0/t{t}/MatMul_3", f"lstm1/t{t}/MatMul_0", 4) for t in range(12)]
    profile = profile_of(
        dict.fromkeys(names, 100.0), edges, persistent=dict.fromkeys(names, 1 << 20)
    )
    places = {name: int("lstm1" in name) for name in names}
    cluster = cluster_of(gpus, capacity_bytes=capacity_bytes, b1_us_per_byte=0.1)
    return document_of(profile, cluster, places)


@pytest.fixture
def open_view(qtbot):
    kept = []

    def open_it(document, width=900, height=640):
        view = GraphView(document)
        qtbot.addWidget(view)
        kept.append(view)
        view.resize(width, height)
        with qtbot.waitExposed(view):
            view.show()
        view.model.wait()
        return view

    return open_it


@pytest.fixture
def view(open_view):
    return open_view(model_document())


def centre(view, group) -> QPoint:
    return view.canvas.camera.transform().map(view.model.scene.rects[group].center()).toPoint()


def chip_rect(bar, device) -> QRect:
    """Return the area of a device's chip."""
    return next(rect for rect, item in bar._placed if item.device == device)


def chip(view, device) -> QPoint:
    """Return the centre of a device's chip, in canvas coordinates."""
    place = view.devices.mapToGlobal(chip_rect(view.devices, device).center())
    return view.canvas.mapFromGlobal(place)


def group_called(view, name) -> int:
    return view.model.level.grouping.names.index(name)


def ops_of(view, *groups) -> frozenset[int]:
    return frozenset(view.model.scene.ops(groups))


def drag_to(view, group, pos, modifier=NO_KEY):
    QTest.mousePress(view.canvas, LEFT, NO_KEY, centre(view, group))
    QTest.mouseMove(view.canvas, centre(view, group) + QPoint(30, 5))
    QTest.mouseMove(view.canvas, pos)
    if modifier is not None:
        QTest.mouseRelease(view.canvas, LEFT, modifier, pos)


def test_a_click_selects_a_group_and_control_adds_another(view):
    QTest.mouseClick(view.canvas, LEFT, NO_KEY, centre(view, 3))
    assert view.document.selection == ops_of(view, 3)
    QTest.mouseClick(view.canvas, LEFT, CTRL, centre(view, 5))
    assert view.document.selection == ops_of(view, 3, 5)
    QTest.mouseClick(view.canvas, LEFT, CTRL, centre(view, 3))
    assert view.document.selection == ops_of(view, 5)


def test_a_click_outside_the_cards_clears_the_selection(view):
    QTest.mouseClick(view.canvas, LEFT, NO_KEY, centre(view, 3))
    QTest.mouseClick(view.canvas, LEFT, NO_KEY, QPoint(3, 3))
    assert not view.document.selection


def test_a_rubber_band_selects_what_it_touches(view):
    corner = view.canvas.rect().bottomRight() - QPoint(2, 2)
    QTest.mousePress(view.canvas, LEFT, NO_KEY, QPoint(2, 2))
    QTest.mouseMove(view.canvas, QPoint(60, 60))
    QTest.mouseMove(view.canvas, corner)
    QTest.mouseRelease(view.canvas, LEFT, NO_KEY, corner)
    assert view.document.selection == ops_of(view, *range(view.model.scene.n))


def test_a_rubber_band_shows_what_it_will_take(view):
    corner = view.canvas.rect().bottomRight() - QPoint(2, 2)
    QTest.mousePress(view.canvas, LEFT, NO_KEY, QPoint(2, 2))
    QTest.mouseMove(view.canvas, QPoint(60, 60))
    QTest.mouseMove(view.canvas, corner)
    ring = view.canvas.camera.transform().map(view.model.scene.rects[0].topLeft())
    shown = view.canvas.grab().toImage().pixelColor((ring + QPointF(30, 0)).toPoint())
    assert np.allclose(shown.getRgb(), theme.tokens.accent.getRgb(), atol=3)
    assert not view.document.selection
    QTest.mouseRelease(view.canvas, LEFT, NO_KEY, corner)


def test_dropping_a_group_on_a_device_moves_and_pins_it(view):
    group = group_called(view, "lstm 0 / t 0")
    drag_to(view, group, chip(view, 1))
    ops = ops_of(view, group)
    assert set(view.document.schedule.plan.device[list(ops)]) == {1}
    assert all(view.document.problem.pins[op] == 1 for op in ops)
    assert not view.drag.ghost.isVisible()


def test_a_drop_with_shift_moves_without_a_pin(view):
    drag_to(view, 0, chip(view, 1), Qt.KeyboardModifier.ShiftModifier)
    assert set(view.document.schedule.plan.device[list(ops_of(view, 0))]) == {1}
    assert not view.document.problem.pins


def test_a_drop_elsewhere_changes_nothing(view):
    before = view.document.schedule
    drag_to(view, 0, QPoint(5, view.canvas.height() - 5))
    assert view.document.schedule is before
    assert not view.drag.ghost.isVisible()


def test_escape_cancels_a_drag(view):
    drag_to(view, 0, chip(view, 1), modifier=None)
    assert view.drag.ghost.isVisible()
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)
    assert not view.drag.ghost.isVisible()
    QTest.mouseRelease(view.canvas, LEFT, NO_KEY, chip(view, 1))
    assert not view.document.problem.pins
    assert view.document.selection == ops_of(view, 0)


def test_a_drag_ends_when_another_graph_opens_under_it(open_view):
    document = model_document()
    view = open_view(document)
    target = chip(view, 1)
    drag_to(view, 0, target, modifier=None)
    assert view.drag.ghost.isVisible()
    document.open(model_document().project)
    assert not view.drag.ghost.isVisible()
    QTest.mouseRelease(view.canvas, LEFT, NO_KEY, target)
    assert not document.undo_stack.canUndo()
    assert not document.selection


def test_while_dragging_the_change_in_time_and_memory_is_shown(view):
    drag_to(view, 0, chip(view, 1), modifier=None)
    delta_us = view.document.previews.get(view.document.selection, 1).delta_us
    texts = [text for text, _ in view.drag.ghost.lines]
    assert texts[0] == view.model.level.grouping.names[0]
    assert f"{abs(delta_us) / 1000:.1f}"[:3] in texts[1]
    assert "GPU 1" in texts[2]
    assert "at the peak" in texts[2]


def test_a_drag_onto_a_device_that_is_too_small_shows_that(open_view):
    view = open_view(model_document(capacity_bytes=120 << 20))
    view.document.select(range(view.document.problem.profile.n_ops))
    drag_to(view, 0, chip(view, 1), modifier=None)
    assert view.drag.ghost.lines[-1][0].endswith("does not fit")


def test_a_selection_is_dragged_as_a_whole(view):
    view.canvas.select([0, 1])
    drag_to(view, 1, chip(view, 1))
    assert set(view.document.problem.pins) == set(ops_of(view, 0, 1))


def test_number_keys_place_the_selection(view):
    view.canvas.select([0])
    QTest.keyClick(view.canvas, Qt.Key.Key_2)
    assert set(view.document.schedule.plan.device[list(ops_of(view, 0))]) == {1}
    QTest.keyClick(view.canvas, Qt.Key.Key_8)
    assert set(view.document.schedule.plan.device[list(ops_of(view, 0))]) == {1}


def test_a_click_on_a_chip_places_the_selection(view):
    view.canvas.select([0])
    QTest.mouseClick(view.devices, LEFT, NO_KEY, chip_rect(view.devices, 1).center())
    assert set(view.document.problem.pins) == set(ops_of(view, 0))


def test_keys_move_from_card_to_card(view):
    view.canvas.setFocus()
    QTest.keyClick(view.canvas, Qt.Key.Key_Tab)
    first = view.canvas.current
    QTest.keyClick(view.canvas, Qt.Key.Key_Right)
    second = view.canvas.current
    rects = view.model.scene.rects
    assert rects[second].top() == rects[first].top()
    assert rects[second].left() > rects[first].left()
    assert view.document.selection == ops_of(view, second)
    QTest.keyClick(view.canvas, Qt.Key.Key_Left)
    assert view.canvas.current == first


def test_a_double_click_opens_a_group_down_to_its_ops_and_backspace_leaves(view, qtbot):
    group = group_called(view, "lstm 0 / t 0")
    whole = ops_of(view, group)
    QTest.mouseDClick(view.canvas, LEFT, NO_KEY, centre(view, group))
    qtbot.waitUntil(lambda: view.model.scene is not None)
    assert [level.title for level in view.model.levels] == ["All groups", "lstm 0 / t 0"]
    assert ops_of(view, *range(view.model.scene.n)) == whole
    assert view.model.level.grouping.labels == tuple(f"MatMul_{i}" for i in range(4))
    assert not view.model.open(0)
    QTest.keyClick(view.canvas, Qt.Key.Key_Backspace)
    assert len(view.model.levels) == 1


def test_enter_opens_and_escape_leaves(view):
    view.canvas.reveal(0)
    QTest.keyClick(view.canvas, Qt.Key.Key_Return)
    assert len(view.model.levels) == 2
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)
    assert len(view.model.levels) == 1


def test_search_highlights_and_steps_through_the_matches(view):
    QTest.keyClick(view.canvas, Qt.Key.Key_F, CTRL)
    assert view.search.isVisible()
    view.search.line.setText("t7/matmul_2")
    found = sorted(view.model.matches)
    assert {view.model.level.grouping.names[group] for group in found} == {
        f"{row} / t 7" for row in ("lstm 0", "lstm 1", "gradients of lstm 0", "gradients of lstm 1")
    }
    assert view.search.found.whole == "4 ops in 4 groups"
    hits = set(np.flatnonzero(view.model.found).tolist())
    QTest.keyClick(view.search.line, Qt.Key.Key_Return)
    assert view.document.selection == hits
    QTest.keyClick(view.search.line, Qt.Key.Key_F3)
    assert view.document.selection == ops_of(view, found[0]) & hits
    QTest.keyClick(view.search.line, Qt.Key.Key_F3)
    assert view.document.selection == ops_of(view, found[1]) & hits
    QTest.keyClick(view.search.line, Qt.Key.Key_F3, Qt.KeyboardModifier.ShiftModifier)
    assert view.document.selection == ops_of(view, found[0]) & hits
    QTest.keyClick(view.search.line, Qt.Key.Key_Escape)
    assert view.model.matches is None


@pytest.mark.parametrize(
    ("query", "groups"),
    [("device:1", 24), ("type:op", 48), ("type:matmul", 0), ("scope:lstm1", 24), ("pinned", 0)],
)
def test_a_query_may_name_a_field(view, query, groups):
    view.start_search()
    view.search.line.setText(query)
    assert len(view.model.matches) == groups


def test_all_ops_that_a_query_finds_can_be_selected(view):
    view.start_search()
    view.search.line.setText("device:1 lstm1")
    assert view.search.all.text() == "Select all 96"
    view.search.all.click()
    places = view.document.current.plan.device
    assert len(view.document.selection) == 96
    assert {int(places[op]) for op in view.document.selection} == {1}


def test_a_query_that_cannot_be_understood_says_what_to_write(view):
    view.start_search()
    view.search.line.setText("time>1foo")
    assert "time>1ms" in view.search.found.whole
    assert not view.search.all.isVisible()


def test_the_line_stays_where_it_is_while_counts_and_faults_change(view, qtbot):
    view.start_search()
    where = set()
    for query in ("t", "ty", "type:op", "time>abc", "device:GPU:7 typ:MatMul and many more words"):
        view.search.line.setText(query)
        QApplication.processEvents()
        corner = view.search.line.mapTo(view, QPoint())
        where.add((corner.toTuple(), view.search.line.size().toTuple()))
        assert view.rect().contains(view.search.geometry())
    assert len(where) == 1
    assert view.search.geometry().bottom() < view.canvas.geometry().top(), "it covers no card"


def test_nothing_fades_while_a_word_is_half_typed(view):
    view.start_search()
    view.search.line.setText("lst-nothing")
    assert view.model.marks(None).matches is None
    view.search.line.setText("lstm")
    assert view.model.marks(None).matches


@pytest.mark.parametrize("query", ["scope:lstm 1", 'scope:"lstm 1"', "scope:LSTM 1 -type:none"])
def test_a_scope_can_be_written_as_it_is_printed(view, query):
    view.start_search()
    view.search.line.setText(query)
    grouping = view.model.level.grouping
    assert {grouping.rows[group] for group in view.model.matches} == {"lstm 1"}


def test_a_query_follows_the_plan(view):
    view.start_search()
    view.search.line.setText("device:1")
    before = view.model.found.sum()
    moved = sorted(ops_of(view, 0))
    view.document.place(moved, 1)
    assert view.model.found.sum() == before + len(moved)


def test_a_query_can_be_saved_and_used_again(view, monkeypatch):
    view.start_search()
    view.search.line.setText("device:1 lstm1")
    monkeypatch.setattr(QInputDialog, "getText", lambda *_, **__: ("second layer", True))
    save = next(a for a in view.search.saved_menu().actions() if a.text() == "Save this query…")
    save.trigger()
    assert view.document.queries == {"second layer": "device:1 lstm1"}
    assert view.document.modified
    view.search.line.clear()
    view.search.saved_menu().actions()[0].trigger()
    assert view.search.line.text() == "device:1 lstm1"
    remove = view.search.saved_menu().actions()[-1]
    assert remove.text() == "Remove “second layer”"
    remove.trigger()
    assert view.document.queries == {}


POPUP = (r"raise\(\)", "grabbing the keyboard")
"""What the offscreen platform says of a popup."""


@pytest.mark.qt_log_ignore(*POPUP, extend=True)
def test_the_query_is_completed(view):
    view.start_search()
    view.search.line.textEdited.emit("device:")
    offered = view.search.completer.model().stringList()
    assert offered == ["device:GPU:0", "device:GPU:1"]
    view.search.line.textEdited.emit("scope:lstm 1")
    offered = view.search.completer.model().stringList()
    assert 'scope:"lstm 1"' in offered


@pytest.mark.qt_log_ignore(*POPUP, extend=True)
def test_the_list_of_completions_leaves_what_is_found_visible(view):
    view.start_search()
    QTest.keyClicks(view.search.line, "type:")
    popup, bar = view.search.completer.popup(), view.search
    assert popup.isVisible()
    assert popup.y() >= bar.mapToGlobal(bar.rect().bottomLeft()).y()
    QTest.keyClick(popup, Qt.Key.Key_Down)
    QTest.keyClick(popup, Qt.Key.Key_Return)
    assert view.search.line.text() == "type:Op"
    assert not popup.isVisible()


@pytest.mark.qt_log_ignore(*POPUP, extend=True)
def test_tab_takes_the_first_way_to_go_on_and_stays_in_the_line(view):
    view.start_search()
    line, popup = view.search.line, view.search.completer.popup()
    for presses, taken in ((0, "device:GPU:0"), (2, "device:GPU:1")):
        line.setText("device")
        QTest.keyClicks(line, ":")
        assert popup.isVisible()
        for _ in range(presses):
            QTest.keyClick(popup, Qt.Key.Key_Down)
        QTest.keyClick(popup, Qt.Key.Key_Tab)
        assert line.text() == taken
        assert not popup.isVisible()


def test_edges_between_devices_are_marked_as_crossing(view):
    scene = view.model.scene
    edges, device = scene.level.edges, scene.facts.device
    ends = device[edges.source] != device[edges.target]
    assert ends.any()
    assert np.array_equal(scene.crossing, ends)


def test_a_split_group_shows_each_device_by_its_share(view):
    ops = sorted(ops_of(view, 0))
    view.document.place(ops[:1], 1)
    scene = view.model.scene
    assert scene.facts.share[0].tolist() == [0.75, 0.25]
    assert [share for _, share in scene.looks[0].stripes] == [0.75, 0.25]
    assert scene.looks[0].notes == ("on 2",)
    assert scene.facts.n_pinned[0] == 1


def test_a_pin_stands_beside_the_name_where_it_would_hide_the_time(view):
    view.document.place(sorted(ops_of(view, 0)), 1)
    scene = view.model.scene
    assert has_room_for_pin(scene, 0, 1.0)
    time = QFontMetricsF(theme.font(11)).horizontalAdvance(scene.looks[0].line)
    scene.rects[0].setWidth(time + 20)  # the time has room alone
    assert not has_room_for_pin(scene, 0, 1.0)
    scene.rects[0].setWidth(time + 40)
    assert has_room_for_pin(scene, 0, 1.0)


@pytest.mark.parametrize("number", range(len(MODES)))
def test_every_colour_mode_paints_and_has_a_legend(view, number):
    view.set_mode(number)
    assert not view.grab().isNull()
    assert MODES[number].title in view.modes.text()
    finish_work(view)
    assert number == 0 or MODES[number].legend(view.model.scene.facts)


@pytest.mark.parametrize("mode", MODES, ids=[mode.title for mode in MODES])
def test_chips_show_the_colours_of_devices_only_where_the_cards_do(view, mode):
    view.set_mode(MODES.index(mode))
    finish_work(view)
    chips = [item for _, item in view.devices._placed if item.device is not None]
    assert chips
    shown = [run.color for item in chips for run in item.runs if run.color is not None]
    assert bool(shown) == (mode.title in ("device", "stage", "moved"))
    checked = [action.text() for action in view.modes.menu().actions() if action.isChecked()]
    assert checked == [mode.title.capitalize()]
    # Chips that explain no colour come after the legend, and are in no picture.
    items = [item for _, item in view.devices._placed]
    assert (items.index(chips[0]) == 0) == bool(shown)
    assert any(item in chips for _, item in view.devices.legend()) == bool(shown)


def test_ops_that_an_edit_moved_have_the_colour_of_their_device(open_view):
    times = {"a/x": 10.0, "b/x": 10.0, "b/y": 10.0}
    document = document_of(profile_of(times), cluster_of(2), dict.fromkeys(times, 0))
    view, mode = open_view(document), next(mode for mode in MODES if mode.title == "moved")
    view.set_mode(MODES.index(mode))
    document.place([1], 1)
    finish_work(view)
    scene = view.model.scene
    group = view.model.level.grouping.group
    assert scene.looks[group[0]].line == "same"
    assert scene.looks[group[1]].line == "1 moved"
    assert scene.looks[group[1]].stripes[0][0] == theme.device_color(1)
    assert "1 op moved" in mode.legend(scene.facts)[0].text


@pytest.mark.parametrize("title", ["compute time", "critical path"])
def test_a_longer_time_has_a_stronger_colour_and_the_legend_is_a_scale(open_view, title):
    times = {"a/x": 10.0, "b/x": 100.0, "c/x": 1000.0}
    edges = [(one, other, 4) for one, other in pairwise(times)]
    view = open_view(document_of(profile_of(times, edges), cluster_of(2), dict.fromkeys(times, 0)))
    mode = next(mode for mode in MODES if mode.title == title)
    view.set_mode(MODES.index(mode))
    finish_work(view)
    scene = view.model.scene
    times = {"compute time": scene.facts.time_us, "critical path": scene.facts.critical_us}[title]
    shortest, longest = (int(pick(times)) for pick in (np.argmin, np.argmax))
    scale = next(one for one in mode.legend(scene.facts) if one.to is not None)
    assert scene.looks[longest].stripes[0][0] == scale.to
    assert scene.looks[shortest].stripes[0][0] != scale.to
    assert "0 to " in scale.text


def test_ops_that_break_contiguity_are_marked(view):
    """Ops whose inputs left the device and came back are in a further subgraph."""
    profile, document = view.document.problem.profile, view.document
    order = profile.topological_order.tolist()
    source = profile.edge_source.tolist()
    middle = next(
        op for op in order
        if op in source and profile.in_ptr[op] < profile.in_ptr[op + 1]
    )  # fmt: skip
    view.set_mode([mode.title for mode in MODES].index("contiguity"))
    assert view.model.scene.facts.n_further.sum() == 0
    document.place(range(profile.n_ops), 0)
    document.place([middle], 1)
    facts = view.model.scene.facts
    assert facts.n_further.sum() > 0
    assert "further" in " ".join(look.line for look in view.model.scene.looks)


def show_stages(view):
    view.set_mode([mode.title for mode in MODES].index("stage"))


def test_groups_show_their_main_stage_with_the_pipeline_pages_number(view, qtbot):
    document, model = view.document, view.model
    show_stages(view)
    document.place(range(document.problem.profile.n_ops), 0)
    document.place(sorted(ops_of(view, 0))[:1], 1)
    qtbot.waitUntil(lambda: bool(model.scene.facts.stages))
    schedule, scene = document.schedule, model.scene
    kind = "1f1b" if backward_ops(schedule.problem).any() else "inference"
    played = simulate_pipeline(schedule.problem, schedule.plan, kind, 2).stages
    time_us = schedule.op_finish_us - schedule.op_start_us
    for group, look in enumerate(scene.looks):
        ops = list(ops_of(view, group))
        spent_us = [time_us[np.intersect1d(stage.ops, ops)].sum() for stage in played]
        assert look.line == f"stage {np.argmax(spent_us) + 1}"
    several = sum(len(np.intersect1d(stage.ops, list(ops_of(view, 0)))) > 0 for stage in played)
    assert several > 1
    assert scene.looks[0].notes == (f"{count(several - 1, 'more stage')} · GPU 0", "GPU 0")


def staged_document(gpus=2) -> Document:
    """The model as a pipeline: layers and their gradients distributed over the GPUs."""
    document = model_document(gpus=gpus)
    profile = document.problem.profile
    layer = ["lstm1" in name for name in profile.op_names]
    plan = Plan(
        np.array(layer, dtype=np.int64) * (gpus - 1),
        np.argsort(profile.topological_order),
        "max-load-dp",
        objective="throughput",
        value_us=5000.0,
    )
    document.add_plan(PlanEntry("pipeline", plan, simulate(document.problem, plan)))
    return document


def test_a_pipeline_is_coloured_by_stage_and_other_plans_by_device(open_view, qtbot):
    view = open_view(staged_document())
    qtbot.waitUntil(lambda: view.modes.text() == "colour: stage ▾")
    qtbot.waitUntil(lambda: view.model.scene.looks[0].line == "stage 1")
    by_hand, pipeline = view.document.plans
    view.document.choose_plan(by_hand)
    qtbot.waitUntil(lambda: view.modes.text() == "colour: device ▾")
    assert "stage" not in view.model.scene.looks[0].line
    view.document.choose_plan(pipeline)
    qtbot.waitUntil(lambda: view.modes.text() == "colour: stage ▾")


def test_a_chosen_colour_mode_holds_for_every_plan(open_view, qtbot):
    view = open_view(staged_document())
    view.set_mode([mode.title for mode in MODES].index("device"))
    for entry in (*view.document.plans, *view.document.plans):
        view.document.choose_plan(entry)
        take_turns()
        assert view.modes.text() == "colour: device ▾"
    view.document.open(None)
    assert view.model.mode.title == "device"


def test_a_backward_stage_is_hatched_in_its_devices_colour(open_view, qtbot):
    view = open_view(staged_document())
    qtbot.waitUntil(lambda: bool(view.model.scene.facts.stages))
    looks, device = view.model.scene.looks, view.model.scene.facts.device
    backward = [name.startswith("gradients") for name in view.model.level.grouping.names]
    assert [look.hatched for look in looks] == backward
    assert any(backward)
    for group, look in enumerate(looks):
        assert look.stripes == ((theme.device_color(device[group]), 1.0),)
    picture = view.canvas.grab().toImage()

    def shades(group) -> set[int]:
        """Return the colours along a line of the card without text."""
        bottom = view.canvas.camera.transform().map(view.model.scene.rects[group].bottomLeft())
        return {picture.pixel(int(bottom.x()) + 10 + dx, int(bottom.y()) - 4) for dx in range(24)}

    assert len(shades(backward.index(False))) == 1
    assert len(shades(backward.index(True))) > 1


def test_a_devices_chip_lists_its_stages_of_both_passes(open_view, qtbot):
    view = open_view(staged_document())
    qtbot.waitUntil(lambda: bool(view.model.scene.facts.stages))
    stages = [(stage.number, stage.where, stage.way) for stage in view.model.scene.facts.stages]
    assert stages == [
        (1, "GPU 0", "forward"),
        (2, "GPU 1", "forward"),
        (3, "GPU 0", "backward"),
        (4, "GPU 1", "backward"),
    ]
    legend = view.model.mode.legend(view.model.scene.facts)
    entries = [(one.device, one.text, one.hatched) for one in legend]
    assert entries[:4] == [(0, "1", False), (0, "3", True), (1, "2", False), (1, "4", True)]
    assert entries[4:] == [(None, "forward stage", False), (None, "backward stage", True)]
    chips, in_words = view.devices, "forward stage 2\nbackward stage 4"
    qtbot.waitUntil(lambda: in_words in chips.tip_at(QPointF(chip_rect(chips, 1).center())))


def test_a_card_and_its_tip_name_stage_and_device(open_view, qtbot):
    view = open_view(staged_document())
    qtbot.waitUntil(lambda: bool(view.model.scene.facts.stages))
    group = view.model.level.grouping.names.index("gradients of lstm 1 / t 0")
    look = view.model.scene.looks[group]
    assert (look.line, look.notes, look.short) == ("stage 4", ("GPU 1",), "4 · GPU 1")
    assert "stage 4: GPU 1, backward" in view.canvas.tip(group)
    view.model.open(group)
    view.model.wait()
    assert "stage 4: GPU 1, backward" in view.canvas.tip(0)


def test_a_long_legend_leaves_space_for_the_graph(open_view, qtbot):
    view = open_view(staged_document(gpus=17), 450, 500)
    document = view.document
    for group in range(view.model.scene.n):
        document.place(ops_of(view, group), group % 17)
    qtbot.waitUntil(lambda: len(view.model.scene.facts.stages) > 34)
    chips = view.devices
    qtbot.waitUntil(lambda: "stage" in chips.tip_at(QPointF(chip_rect(chips, 16).center())))
    assert view.devices.height() < 170
    assert view.devices.rect().contains(chip_rect(view.devices, 16))
    assert view.canvas.height() > 200


@pytest.mark.parametrize("dark", [False, True])
def test_card_texts_are_readable_on_every_tint(view, dark):
    theme.set_mode("dark" if dark else "light")
    try:
        colors = [theme.device_color(device) for device in range(17)]
        colors += [theme.tokens.faint, theme.tokens.accent, theme.tokens.bad]
        grounds = [tinted(color, hatched) for color in colors for hatched in (False, True)]
        for ground in [*grounds, theme.tokens.panel]:
            assert contrast(quiet_ink(), ground) >= 4.5
    finally:
        theme.set_mode("light")


@pytest.mark.parametrize("dark", [False, True])
def test_texts_are_readable_on_every_ground(dark):
    theme.set_mode("dark" if dark else "light")
    try:
        tokens = theme.tokens
        texts = (tokens.text, tokens.dim, tokens.accent, tokens.good, tokens.bad)
        for ground in (tokens.bg, tokens.panel, tokens.lane, tokens.hover):
            assert min(contrast(text, ground) for text in texts) >= 4.5
    finally:
        theme.set_mode("light")


def contrast(one: QColor, other: QColor) -> float:
    """Compute the contrast ratio as defined by WCAG 2."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(color: QColor) -> float:
    parts = [color.redF(), color.greenF(), color.blueF()]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_the_wheel_zooms_at_the_pointer_with_control(view):
    pos = QPointF(300, 200)
    fixed = view.canvas.camera.to_scene(pos)
    scale = view.canvas.camera.scale
    wheel = QWheelEvent(
        pos,
        view.canvas.mapToGlobal(pos),
        QPoint(),
        QPoint(0, 120),
        Qt.MouseButton.NoButton,
        CTRL,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(view.canvas, wheel)
    assert view.canvas.camera.scale > scale
    assert (view.canvas.camera.to_scene(pos) - fixed).manhattanLength() < 1e-6


def test_fit_shows_everything_and_focus_shows_the_selection(view):
    view.canvas.select([7])
    QTest.keyClick(view.canvas, Qt.Key.Key_F)
    assert view.canvas.visible().contains(view.model.scene.rects[7])
    QTest.keyClick(view.canvas, Qt.Key.Key_D)
    QTest.keyClick(view.canvas, Qt.Key.Key_0)
    assert view.canvas.visible().contains(view.model.scene.bounds)


@pytest.mark.parametrize("key", [Qt.Key.Key_W, Qt.Key.Key_A, Qt.Key.Key_S, Qt.Key.Key_D])
def test_keys_do_not_move_the_graph_out_of_view(view, key):
    canvas = view.canvas
    before = canvas.visible()
    for _ in range(100):
        QTest.keyClick(canvas, key)
    assert canvas.visible() != before
    assert canvas.visible().intersects(canvas.scene.bounds)


def test_the_menu_pins_forbids_and_colocates(view):
    from enplace_studio.widgets.op_menu import op_menu

    view.canvas.select([0])
    ops = ops_of(view, 0)
    menu = op_menu(view.document, view.document.project, view)
    actions = {action.text().partition("\t")[0]: action for action in menu.actions()}
    actions["Pin here"].trigger()
    assert set(view.document.problem.pins) == set(ops)
    actions["Unpin"].trigger()
    assert not view.document.problem.pins
    forbid = actions["Forbid on"].menu().actions()
    forbid[1].trigger()
    assert view.document.problem.forbidden == {(op, 1) for op in ops}
    menu = op_menu(view.document, view.document.project, view)
    again = next(a for a in menu.actions() if a.text() == "Forbid on").menu().actions()[1]
    assert again.isChecked()
    again.trigger()
    assert not view.document.problem.forbidden


def test_a_name_that_looks_like_html_is_shown_verbatim(view, monkeypatch):
    shown = []
    monkeypatch.setattr(QToolTip, "showText", lambda at, text, widget: shown.append(text))
    project = type(view.document.project)
    monkeypatch.setattr(project, "device_label", lambda self, device: f"<b>{device}</b>")
    at = centre(view, 0)
    QApplication.sendEvent(view.canvas, QHelpEvent(QEvent.Type.ToolTip, at, at))
    assert "&lt;b&gt;0" in shown[0]


def test_a_tooltip_has_the_full_name_and_the_numbers(view):
    tip = view.canvas.tip(group_called(view, "lstm 0 / t 0"))
    assert tip.splitlines() == [
        "lstm 0 / t 0",
        "4 ops · 0.40 ms",
        "4.0 MiB of weights · 16 B of outputs",
        "on GPU 0",
    ]


def test_an_empty_pane_explains_what_to_do(open_view):
    view = open_view(Document())
    assert view.model.scene is None
    assert not view.grab().isNull()


def irregular_document() -> Document:
    """Ops without common scopes and with random edges, so that their cards form layers."""
    random = np.random.default_rng(1)
    names = [f"node{i}" for i in range(60)]
    ends = {tuple(sorted(pair)) for pair in random.integers(0, 60, (200, 2)).tolist()}
    edges = [(names[a], names[b], 4) for a, b in sorted(ends) if a != b]
    profile = profile_of(dict.fromkeys(names, 5.0), edges)
    return document_of(profile, cluster_of(2), dict.fromkeys(names, 0))


def test_an_irregular_graph_is_laid_out_along_its_edges(open_view):
    scene = open_view(irregular_document()).model.scene
    tops = np.array([rect.top() for rect in scene.rects])
    assert (tops[scene.level.edges.source] < tops[scene.level.edges.target]).all()


def test_a_pane_may_close_while_its_graph_is_laid_out(qtbot):
    view = GraphView(irregular_document())
    view.show()
    assert view.model._layout.is_busy
    view.close()
    view.deleteLater()
    QApplication.sendPostedEvents(view, QEvent.Type.DeferredDelete)


def test_a_small_pane_still_shows_cards_and_chips(open_view, qtbot):
    view = open_view(model_document(gpus=6), 420, 320)
    qtbot.waitUntil(lambda: view.canvas.height() > 150)
    assert all(view.devices.rect().contains(chip_rect(view.devices, d)) for d in range(6))
    assert not view.minimap.isVisible()


def test_edges_tell_that_cards_are_out_of_view_where_no_overview_has_room(open_view, qtbot):
    view = open_view(model_document(gpus=6), 420, 320)
    canvas = view.canvas
    qtbot.waitUntil(lambda: canvas.height() > 150)
    assert not view.minimap.isVisible()
    turn_wheel(canvas)
    image, at = canvas.grab().toImage(), canvas.width() - 2
    bar = theme.tokens.line.name()
    shown = [image.pixelColor(at, y).name() == bar for y in range(canvas.height())]
    assert any(shown)
    assert not all(shown)


@pytest.mark.parametrize("width", [620, 760, 900])
def test_chips_that_explain_no_colour_stay_on_one_line(open_view, qtbot, width):
    view = open_view(model_document(), width, 500)
    view.set_mode([mode.title for mode in MODES].index("critical path"))
    hint = [rect for rect, item in view.devices._placed if item.is_hint]
    chips = [rect for rect, item in view.devices._placed if item.device is not None]
    assert len({rect.top() for rect in [*hint, *chips]}) == 1


def test_the_picture_is_written_with_its_legend(view, tmp_path):
    path = tmp_path / "graph.svg"
    writer = threading.Thread(  # as the window does
        target=write_picture, args=(path, view.drawing(), "The graph")
    )
    writer.start()
    writer.join()
    content = path.read_bytes()
    assert b"crosses devices" in content
    assert b"drag a group" not in content
    assert "drag a group" in view.devices._hint()


def test_repainting_loses_no_reference_to_none(view):
    view.grab()
    before = sys.getrefcount(None)
    for _ in range(400):
        view.canvas.update()
    assert sys.getrefcount(None) > before - 200


def test_the_legend_names_only_number_keys_that_work(view):
    n_devices = view.document.problem.cluster.n_devices
    assert view.devices._placed[-1][1].runs[-1].text.endswith(f"press 1 … {n_devices}")


def test_the_hint_on_dragging_goes_with_the_first_edit(view):
    def texts():
        return [run.text for _, item in view.devices._placed for run in item.runs]

    assert any("drag a group" in text for text in texts())
    view.document.place([0], 1 - int(view.document.current.plan.device[0]), pin=False)
    take_turns()
    assert not any("drag a group" in text for text in texts())


def test_while_the_cards_of_an_open_model_are_made_the_graph_asks_for_none(view):
    view.model._clear()
    image = view.canvas.grab().toImage()
    line = {image.pixel(x, image.height() // 2) for x in range(image.width())}
    assert len(line) == 1


def test_a_group_opens_with_all_its_ops_in_view(view):
    view.canvas.open(0)
    view.model.wait()
    assert view.model.level.of_ops
    assert view.canvas.visible().contains(view.model.scene.bounds)


def test_a_card_that_is_too_narrow_keeps_the_numbers_that_tell_it_from_its_neighbours(qapp):
    font = theme.font(12)
    texts = ("head 8–15", "head 16–23", "gradients of softmax 2", "embedding 1", "embedding 1")

    def narrow(text: str) -> str:
        return fitted_name(text, font, QFontMetricsF(font).horizontalAdvance(text) - 2, texts)

    assert fitted_name("head 8–15", font, 1000, texts) == "head 8–15"
    assert narrow("head 8–15") == "8–15"
    assert narrow("embedding 1").startswith("emb"), "it has no neighbour of another number"
    assert narrow("embedding 1").endswith("… 1")
    assert narrow("gradients of softmax 2").startswith("grad")
    assert narrow("layer normalization 1.2").endswith("… 1.2")
    assert narrow("embedding layer") == "embedding …"


def test_cards_of_one_family_are_all_shortened_if_one_must_be(qapp):
    font, texts = theme.font(12), ("conv 4.1", "conv 4.1–10", "mid 0")
    room = QFontMetricsF(font).horizontalAdvance("conv 4.1–10") - 2
    assert [fitted_name(text, font, room, texts) for text in texts] == ["4.1", "4.1–10", "mid 0"]
    assert fitted_name("conv 4.1", font, room + 3, texts) == "conv 4.1"


def test_narrow_cards_of_names_that_begin_alike_keep_the_words_that_differ(qapp):
    font, texts = theme.font(12), ("block_down", "block_up", "block_down_own")
    width = QFontMetricsF(font).horizontalAdvance("bloc…down")
    assert fitted_name("block_down", font, width + 1, texts) == "bloc…down"
    assert fitted_name("block_down_own", font, width, texts) == "block…own"


def test_the_title_of_a_row_leaves_out_outer_scopes_before_it_is_cut(qapp):
    font, ways = theme.font(12), ("outer scope / text encoder 1 / block 3.1", "block 3.1")
    width = QFontMetricsF(font).horizontalAdvance("transformer ")
    assert in_lines(ways, font, 1000).replace("\N{NO-BREAK SPACE}", " ") == ways[0]
    assert in_lines(ways, font, width) == "block 3.1"
    title = "gradients of transformer blocks"
    assert in_lines((title,), font, width) == "gradients of\ntransformer\nblocks"


def test_a_graph_that_was_fitted_fits_again_when_its_pane_grows(view, qtbot):
    canvas = view.canvas
    view.resize(520, 420)
    view.model.wait()
    QTest.keyClick(canvas, Qt.Key.Key_Right)  # goes to a card that is in view already
    small = canvas.camera.scale
    view.resize(1300, 900)
    qtbot.waitUntil(lambda: canvas.camera.scale > small)
    assert canvas.visible().contains(view.model.scene.bounds)


def test_several_resizes_in_one_go_arrange_the_cards_once(view, qtbot, monkeypatch):
    widths = []
    monkeypatch.setattr(view.model, "set_size", lambda width, height: widths.append(width))
    for width in (600, 700, 800):
        view.resize(width, 600)
    take_turns()
    assert set(widths) == {view.canvas.width()}


def test_groups_open_at_a_size_one_can_read(open_view):
    names = [f"lstm{layer}/t{step}/op" for layer in range(40) for step in range(4)]
    document = document_of(
        profile_of(dict.fromkeys(names, 1.0)), cluster_of(1), dict.fromkeys(names, 0)
    )
    view = open_view(document, 500, 260)
    assert view.canvas.camera.scale == pytest.approx(READABLE)
    assert view.canvas.visible().contains(view.model.scene.rects[0])
