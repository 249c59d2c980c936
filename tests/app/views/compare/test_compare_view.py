"""Plans side by side, as the user sees and uses them."""

from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QFontMetricsF, QGuiApplication, QImage, QPainter
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QScrollArea

from documents import add_plan, chain_document, document_of, split_layer, wide_document
from enplace.machine import simulate
from enplace.placers import place
from enplace_studio.explain.intervals import Interval
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.views.compare.compare_view import CompareView
from enplace_studio.views.compare.paint import rest_lines
from enplace_studio.views.compare.panels import share_room
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of
from threads import finish_work

LEFT = Qt.MouseButton.LeftButton
NONE = Qt.KeyboardModifier.NoModifier
LAYER_ON_ONE_GPU = dict.fromkeys(("batch", "w", "conv", "relu"), 0)


@pytest.fixture
def open_view(opener):
    def open_it(document, width=1000, height=760):
        view = opener(CompareView, document, width, height)
        finish_work(document)  # the bounds
        settle(view)
        return view

    return open_it


def settle(view):
    """Do at once what waits for the event loop."""
    view._later.start()
    view.wait()


def three_plans():
    """Chains a -> b -> c: c elsewhere, all on one GPU, and all on the other by the expert."""
    document = chain_document()
    add_plan(document, "together", {"a": 0, "b": 0, "c": 0})
    add_plan(document, "expert", {"a": 1, "b": 1, "c": 1}, method="expert")
    document.undo_stack.clear()
    return document


def shown(view):
    return [entry.name for entry in view.shown]


def bar_of(view, place, op):
    """Return the centre of an op's bar in the block of a plan."""
    stack = view.canvas.stack
    block = stack.blocks[place]
    for index, row in enumerate(block.lanes.rows):
        if row.is_device and op in row.numbers:
            bar = int(np.flatnonzero(row.numbers == op)[0])
            middle = (row.start_us[bar] + row.finish_us[bar]) / 2
            y = block.lanes.row_area(index).center().y() + stack.offset(block).y()
            return QPoint(round(stack.left + stack.scale.x(middle)), round(y))
    raise AssertionError(f"op {op} has no bar")


def drag(view, start_us, stop_us):
    """Drag across time, beside all lanes of the first block."""
    stack = view.canvas.stack
    y = stack.axis_px + 4
    points = [QPoint(round(stack.left + stack.scale.x(t)), y) for t in (start_us, stop_us)]
    QTest.mousePress(view.canvas, LEFT, NONE, points[0])
    QTest.mouseMove(view.canvas, points[1])
    QTest.mouseRelease(view.canvas, LEFT, NONE, points[1])


def choose_in(button, name):
    """Choose a plan in the menu of a button."""
    action = next(a for a in button.menu().actions() if a.text().startswith(f"{name}   "))
    action.trigger()


def colours(image, point):
    """Return the colour of a pixel at a point of a widget's picture."""
    ratio = image.devicePixelRatio()
    return image.pixelColor(round(point.x() * ratio), round(point.y() * ratio))


def test_the_experts_plan_and_the_current_one_stand_side_by_side(open_view):
    view = open_view(three_plans())
    assert shown(view) == ["expert", "plan 1"]
    assert [button.text() for button in view.chooser.buttons] == ["expert  ▾", "plan 1  ▾"]


def test_a_menu_swaps_a_plan_and_another_is_added_and_taken_away(open_view):
    view = open_view(three_plans())
    choose_in(view.chooser.buttons[1], "together")
    settle(view)
    assert shown(view) == ["expert", "together"]
    choose_in(view.chooser.adder, "plan 1")
    settle(view)
    assert shown(view) == ["expert", "together", "plan 1"]
    assert view.chooser.adder is None
    view.chooser.removers[0].click()
    settle(view)
    assert shown(view) == ["together", "plan 1"]
    assert view.chooser.removers == []


def test_choosing_a_plan_that_is_shown_swaps_the_two(open_view):
    view = open_view(three_plans())
    choose_in(view.chooser.buttons[0], "plan 1")
    settle(view)
    assert shown(view) == ["plan 1", "expert"]


def test_the_view_follows_edits_and_undo(open_view):
    document = three_plans()
    view = open_view(document)
    document.place([2], 0)
    settle(view)
    assert shown(view) == ["expert", "plan 1, edited"]
    document.undo_stack.undo()
    settle(view)
    assert shown(view) == ["expert", "plan 1"]


def test_a_selection_in_another_model_does_not_meet_the_old_plans(open_view):
    document = wide_document()
    add_plan(document, "same", dict.fromkeys(document.problem.profile.op_names, 0))
    view = open_view(document)
    assert len(view.canvas.stack.blocks) == 2
    document.open(three_plans().project)
    document.select([2])
    view.hide()
    document.select([1])
    view.show()
    settle(view)
    assert shown(view) == ["expert", "plan 1"]


def test_one_plan_alone_asks_for_another(open_view):
    view = open_view(chain_document())
    assert view._few.isVisible()
    assert not view.canvas.isVisible()


def test_a_hidden_view_computes_nothing_until_it_is_shown(qtbot):
    document = three_plans()
    view = CompareView(document)
    qtbot.addWidget(view)
    document.choose_plan(document.plans[1])
    assert view.shown == []
    view.show()
    view.wait()
    assert shown(view) == ["expert", "together"]


def test_plans_of_another_cluster_are_not_offered(open_view):
    document = three_plans()
    view = open_view(document)
    document.set_cluster(replace(cluster_of(1), name="small"))
    settle(view)
    assert shown(view) == ["together"]
    assert not view.canvas.isVisible()
    assert view._few.text().startswith("Two plans for this cluster are needed to compare")


def test_ops_on_another_device_than_in_a_have_its_full_colour(open_view):
    """Plan 1 has a and b where plan "together" has them, and c elsewhere."""
    theme.set_mode("light")
    document = three_plans()
    view = open_view(document)
    view.compare([document.plans[1], document.plans[0]])
    settle(view)
    image: QImage = view.canvas.grab().toImage()
    full = theme.device_color(0).saturation()
    above = QPoint(0, 5)  # clear of the name and the critical path
    assert colours(image, bar_of(view, 0, 0) - above).saturation() < full
    assert colours(image, bar_of(view, 0, 2) - above).saturation() == full, "it moves away"
    assert colours(image, bar_of(view, 1, 0) - above).saturation() < full
    assert colours(image, bar_of(view, 1, 2) - above) == theme.device_color(1)


def test_a_plan_that_splits_ops_stands_beside_others_and_shares_their_selection(open_view):
    """A click on a part selects the whole op where the model is open, and the other way round."""
    document = document_of(split_layer(), cluster_of(2, b1_us_per_byte=1e-5), LAYER_ON_ONE_GPU)
    plan = place(document.problem, "os-dpos").plan
    document.add_plan(PlanEntry("parts", plan, simulate(document.problem, plan)), choose=False)
    parts = document.plans[1]
    view = open_view(document)
    assert shown(view) == ["plan 1", "parts"]
    assert any(line.text.endswith("that A keeps whole") for line in view.differs.lines)

    in_parts = parts.schedule.problem.profile.index
    half = in_parts["conv/split/part_1"]
    QTest.mouseClick(view.canvas, LEFT, NONE, bar_of(view, 1, half))
    conv = document.problem.profile.index["conv"]
    assert document.selection == {conv}
    assert half in view.canvas.stack.blocks[1].picture.selection

    document.choose_plan(parts)
    settle(view)
    assert shown(view) == ["plan 1", "parts"], "the choice stays, though another graph is shown"
    QTest.mouseClick(view.canvas, LEFT, NONE, bar_of(view, 0, conv))
    names = {document.problem.profile.op_names[op] for op in document.selection}
    assert names >= {"conv/split/part_0", "conv/split/part_1"}
    assert all(name.startswith("conv/") for name in names)
    assert list(view.canvas.stack.blocks[0].selected) == [conv]


def test_a_selection_leaves_the_colours_that_compare_the_plans(open_view):
    theme.set_mode("light")
    document = three_plans()
    view = open_view(document)
    above = QPoint(0, 5)
    before = view.canvas.grab().toImage()
    document.select([0])
    after = view.canvas.grab().toImage()
    for op in (0, 1, 2):
        at = bar_of(view, 1, op) - above
        assert colours(after, at) == colours(before, at)
    assert after != before


def test_a_click_selects_the_op_in_all_plans(open_view):
    document = three_plans()
    view = open_view(document)
    QTest.mouseClick(view.canvas, LEFT, NONE, bar_of(view, 1, 2))
    assert document.selection == {2}
    assert all(block.picture.selected for block in view.canvas.stack.blocks)
    document.select([])
    assert not any(block.picture.selected for block in view.canvas.stack.blocks)


def test_all_plans_zoom_and_pan_together(open_view):
    canvas = open_view(three_plans()).canvas
    whole = canvas.stack.scale
    QTest.keyClick(canvas, Qt.Key.Key_W)
    QTest.keyClick(canvas, Qt.Key.Key_D)
    zoomed = canvas.stack.scale
    assert zoomed.us_per_px < whole.us_per_px
    assert zoomed.start_us > 0
    assert {block.lanes.scale for block in canvas.stack.blocks} == {zoomed}
    QTest.keyClick(canvas, Qt.Key.Key_0)
    assert canvas.stack.scale == whole


def test_the_axis_reaches_to_the_end_of_the_longest_step(open_view):
    view = open_view(three_plans())
    slowest = max(entry.schedule.makespan_us for entry in view.shown)
    assert slowest <= view.canvas.stack.scale.stop_us < 1.1 * slowest


def test_each_plan_shows_its_difference_from_a(open_view):
    """Together 30 µs, apart 51."""
    document = three_plans()
    view = open_view(document)
    view.compare([document.plans[1], document.plans[0]])
    settle(view)
    assert view.canvas.changes == ["", "+0.021 ms"]
    assert "transfers +0.021 ms" in view.bars.accessibleName()


def test_a_drag_across_time_selects_an_interval_in_all_plans(open_view):
    view = open_view(three_plans())
    assert not view.table.isVisible()
    drag(view, 10, 20)
    interval = view.canvas.interval
    assert interval.start_us == pytest.approx(10, abs=0.5)
    assert interval.stop_us == pytest.approx(20, abs=0.5)
    assert view.table.isVisible()
    assert view.table.reasons[0].startswith("GPU 0 idle for 0.030 ms")
    assert "waiting for the transfer of b from GPU 0" in view.table.reasons[1]


def test_escape_forgets_the_interval_first_and_the_selection_then(open_view):
    document = three_plans()
    view = open_view(document)
    document.select([1])
    QTest.keyClick(view.canvas, Qt.Key.Key_I)
    assert view.table.isVisible()
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)
    assert not view.table.isVisible()
    assert document.selection == {1}
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)
    assert document.selection == frozenset()


def test_show_goes_to_a_plan(open_view):
    document = three_plans()
    view = open_view(document)
    asked = []
    document.requests.run_action.connect(asked.append)
    drag(view, 10, 20)
    names = {button.accessibleName(): button for button in view.table.findChildren(QPushButton)}
    names["Show expert"].click()
    assert document.current.name == "expert"
    assert asked == ["side-by-side"]


def test_what_differs_selects_its_ops(open_view):
    document = three_plans()
    view = open_view(document)
    view.compare([document.plans[1], document.plans[0]])
    settle(view)
    names = {button.accessibleName(): button for button in view.differs.findChildren(QPushButton)}
    names["Select 1 op"].click()
    assert document.selection in ({1}, {2})


@pytest.mark.parametrize("height", [560, 590, 610, 640])
def test_no_line_of_what_differs_is_cut(open_view, height):
    document = wide_document(n_gpus=6)
    names = document.problem.profile.op_names
    add_plan(document, "other", {name: at % 6 for at, name in enumerate(names)})
    view = open_view(document, height=height)
    QApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
    column = view.differs.findChild(QScrollArea)
    lines = [text for text in column.findChildren(QLabel) if text.isVisible()]
    spans = [(text.mapTo(column, QPoint()).y(), text.height()) for text in lines]
    assert spans[0][0] >= 0
    assert spans[-1][0] > column.height(), "not all lines fit"
    assert not [y for y, high in spans if y < column.height() < y + high]


def test_the_difference_is_to_the_last_plan_or_to_a_chosen_one(open_view):
    document = three_plans()
    view = open_view(document)
    view.compare([document.plans[1], document.plans[0], document.plans[2]])
    settle(view)
    assert view.differs.target.text() == "A → C  ▾"
    view.differs.target.menu().actions()[0].trigger()
    settle(view)
    assert view.differs.target.text() == "A → B  ▾"
    assert "+0.021 ms" in view.bars.accessibleName()


def test_tooltips_name_ops_memory_and_plans(open_view):
    view = open_view(three_plans())
    canvas, stack = view.canvas, view.canvas.stack
    assert canvas.tip_at(QPointF(bar_of(view, 1, 2))).startswith("c\n")
    memory = stack.memory_area(stack.blocks[1]).center()
    assert "GPU 0: " in canvas.tip_at(memory)
    assert canvas.tip_at(QPointF(2, stack.rows_area(stack.blocks[0]).center().y())) == "A   expert"
    assert "compute on the critical path" in view.bars.tip_at(QPointF(view.bars.width() * 0.3, 9))
    idle = QPointF(bar_of(view, 1, 0).x(), bar_of(view, 1, 2).y())
    assert canvas.tip_at(idle).startswith("GPU 1 idle")


def test_the_bound_is_shown_once_it_is_known(open_view):
    document = three_plans()
    view = open_view(document)
    finish_work(document)
    assert view.canvas.bound_us == pytest.approx(30)


def test_blocks_that_do_not_fit_scroll(open_view):
    document = wide_document(n_gpus=6)
    names = document.problem.profile.op_names
    add_plan(document, "other", {name: at % 6 for at, name in enumerate(names)})
    view = open_view(document, height=460)
    assert view._scroll_bar.isVisible()
    view._scroll_bar.setValue(60)
    assert view.canvas.stack.scroll_px == 60
    QTest.keyClick(view.canvas, Qt.Key.Key_Up)
    assert view._scroll_bar.value() == 20


def test_the_picture_shows_what_is_below_the_buttons(open_view):
    document = three_plans()
    view = open_view(document)
    wanted = []
    document.requests.save_picture.connect(wanted.append)
    view._save.click()
    assert wanted[0].name == "Plans side by side"
    assert wanted[0].size.width() == view.width()
    assert view.height() / 2 < wanted[0].size.height() < view.height()


def test_the_picture_shows_what_is_scrolled_out_of_sight(open_view):
    document = wide_document(n_gpus=6)
    names = document.problem.profile.op_names
    for turn in range(1, 4):
        add_plan(document, f"plan {turn}", {name: (at + turn) % 6 for at, name in enumerate(names)})
    view = open_view(document, height=620)
    view.compare(document.plans)
    settle(view)
    stack, size = view.canvas.stack, view.size()
    view._scroll_bar.setValue(60)
    hidden_px = stack.content_px - stack.visible_px
    assert len(view.shown) == 4
    assert hidden_px > 100
    drawing = view.drawing()
    assert drawing.size.height() >= view.height() - view.chooser.geometry().bottom() + hidden_px - 5
    image = QImage(drawing.size, QImage.Format.Format_RGB32)
    image.fill(Qt.GlobalColor.white)
    painter = QPainter(image)
    drawing.paint(painter)
    painter.end()
    lowest = image.copy(0, image.height() - 60, image.width(), 40)
    assert len({lowest.pixel(x, 20) for x in range(lowest.width())}) > 2  # lanes of plan D
    assert (view.size(), stack.scroll_px) == (size, 60)


def test_long_names_of_four_plans_leave_the_window_narrow(open_view):
    document = three_plans()
    for entry in document.plans:
        document.rename_plan(entry, f"{entry.name} with a very long name that says what differs")
    add_plan(
        document, "one more with a name that is as long as all of these", {"a": 0, "b": 1, "c": 1}
    )
    view = open_view(document, width=720, height=520)
    view.compare(document.plans)
    settle(view)
    assert len(view.shown) == 4
    assert view.minimumSizeHint().width() <= 720
    assert view.chooser.layout().sizeHint().width() <= view.chooser.width()


def test_names_that_fit_are_not_shortened(open_view):
    document = three_plans()
    document.duplicate_plan(document.plans[0])
    document.duplicate_plan(document.plans[0])
    copies = [entry for entry in document.plans if "copy" in entry.name]
    view = open_view(document, width=900)
    view.compare(copies)
    settle(view)
    shown = [button.text().removesuffix("  ▾") for button in view.chooser.buttons]
    assert shown == [entry.name for entry in copies]
    assert shown[0] != shown[1]


def test_a_shortened_name_ends_with_a_word(open_view):
    document = three_plans()
    for entry in document.plans:
        document.rename_plan(entry, f"{entry.name}, with a long tail, and more of it")
    view = open_view(document, width=700)
    view.compare(document.plans)
    settle(view)
    shown = [button.text().removesuffix("  ▾") for button in view.chooser.buttons]
    assert all(text.endswith("…") for text in shown)
    assert not [text for text in shown if text.endswith((", …", ",…", " …"))]


def test_names_that_need_less_than_their_share_leave_it_to_longer_ones():
    assert share_room([40, 30, 50], 200) == [40, 30, 50]
    assert share_room([40, 90, 200], 200) == [40, 80, 80]
    assert share_room([60, 90, 200], 200) == [60, 70, 70]


def test_many_devices_share_a_column(open_view):
    document = wide_document(n_gpus=6)
    names = document.problem.profile.op_names
    add_plan(document, "other", {name: at % 6 for at, name in enumerate(names)})
    view = open_view(document)
    QTest.keyClick(view.canvas, Qt.Key.Key_I)
    heads = [label.text() for label in view.table.findChildren(QLabel)]
    assert "6 devices busy" in heads


def test_every_control_has_a_name(open_view):
    view = open_view(three_plans())
    for button in view.findChildren(QPushButton):
        assert button.accessibleName() or button.text()
    assert view.canvas.accessibleName()
    assert view.bars.accessibleName()


def test_a_plan_that_does_not_fit_is_marked(open_view):
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 8)], persistent={"a": 60, "b": 60})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 1})
    add_plan(document, "full", {"a": 0, "b": 0})
    view = open_view(document)
    assert not view.shown[1].schedule.fits
    view.canvas.grab()


def test_what_plans_do_in_an_interval_is_copied_as_text(open_view, qtbot):
    view = open_view(three_plans())
    with qtbot.waitActive(view):
        view.activateWindow()
    drag(view, 10, 20)
    view.table.setFocus()
    QTest.keyClick(view.table, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    heads, *rows = [row.split("\t") for row in QGuiApplication.clipboard().text().split("\n")]
    assert heads[0] == "plan"
    assert [row[0] for row in rows] == [entry.name for entry in view.shown]
    assert [row[-1] for row in rows] == view.table.reasons


def test_the_waterfall_tells_each_device_what_changes_there(open_view):
    view = open_view(three_plans())
    assert view.bars.rows
    for row in view.bars.rows:
        assert f"{row.name}: " in view.bars.accessibleName()


def test_selecting_time_keeps_the_waterfall_and_what_differs(open_view):
    view = open_view(three_plans(), height=560)
    view.canvas.set_interval(Interval(0.0, 20.0))
    assert view.table.isVisible()
    assert view.bars.isVisible()
    assert view.differs.isVisible()


def test_in_plan_a_the_ops_stand_out_that_move_away(open_view):
    view = open_view(three_plans())
    first, last = view.canvas.stack.blocks[0], view.canvas.stack.blocks[-1]
    moved = first.schedule.plan.device != last.schedule.plan.device
    for row in first.lanes.rows:
        if row.is_device:
            assert row.odd.tolist() == (~moved[row.numbers]).tolist()
    assert first.moved_text == f"{moved.sum()} leave"
    assert last.moved_text.endswith(" arrive")


def test_a_bar_has_the_menu_of_its_op(open_view):
    document = three_plans()
    view = open_view(document)
    menu = view.canvas.menu_at(QPointF(bar_of(view, 1, 2)))
    assert document.selection == {2}
    assert "Why here?" in [action.text() for action in menu.actions()]


def test_what_tells_plans_apart_is_legible_beside_their_lanes():
    metrics = QFontMetricsF(theme.font(11))
    text = "12 pins, 1 order, 10 s"
    width = metrics.horizontalAdvance("12 pins, 1 order,") + 1
    assert rest_lines(text, metrics, width, 2) == ["12 pins, 1 order,", "10 s"]
    assert rest_lines(text, metrics, width, 1) == ["12 pins, …"], "no half of a number"
    assert rest_lines("", metrics, width, 2) == [""]


def test_names_have_the_room_that_is_there(open_view):
    document = three_plans()
    name = "Enplace with split ops, 12 pins, 1 order, 10 s"
    document.rename_plan(document.current, name)
    view = open_view(document, width=1366)
    assert view.chooser.buttons[1].text().startswith(name)


def test_every_device_that_computes_has_a_lane_and_all_can_be_scrolled_to(open_view):
    """Seven GPUs do next to nothing in one plan, and nothing in the other."""
    times = {"large": 1000.0, **{f"op{n}": 1.0 for n in range(7)}}
    profile, cluster = profile_of(times), cluster_of(10)
    there = {name: number for number, name in enumerate(times)}
    document = document_of(profile, cluster, there, dict.fromkeys(times, 0))
    view = open_view(document, height=420)
    for block in view.canvas.stack.blocks:
        lanes = [row for row in block.lanes.rows if row.is_device]
        assert [row.title for row in lanes] == [f"GPU {n}" for n in range(8)]
        assert [row.thin for row in lanes] == [False] + [True] * 7
    assert any(line.text.startswith("7 others: ") for line in view.differs.lines)
    stack = view.canvas.stack
    assert stack.content_px > stack.visible_px
    assert view._scroll_bar.isVisible()
    assert view._scroll_bar.width() > 0
    view._scroll_bar.setValue(view._scroll_bar.maximum())
    assert stack.memory_area(stack.blocks[-1]).bottom() <= view.canvas.height()


def test_plans_that_are_being_drawn_are_awaited_in_words_not_on_an_empty_page(open_view):
    view = open_view(three_plans())
    blocks = view.canvas.stack.blocks
    view.canvas.stack.blocks = []  # as before they are there
    waiting = view.canvas.grab().toImage()
    view.canvas.await_blocks(False)
    assert waiting != view.canvas.grab().toImage()
    view.canvas.stack.blocks = blocks
