import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QHelpEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QToolTip

from documents import add_plan, chain_document, document_of, wide_document
from enplace_studio.explain.start_times import Gap
from enplace_studio.model.document import Document
from enplace_studio.timelines.paint import mix, shades
from enplace_studio.views.timeline.timeline_view import TimelineView
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of
from turns import take_turns

FREE = profile_of({"a": 10_000, "b": 20_000, "c": 10_000})
CHAIN = profile_of(dict.fromkeys("abcd", 10_000), [("a", "b", 8), ("b", "c", 8), ("c", "d", 8)])
LEFT = Qt.MouseButton.LeftButton
NONE = Qt.KeyboardModifier.NoModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier


@pytest.fixture
def open_view(opener):
    def open_it(document, width=900, height=260):
        return opener(TimelineView, document, width, height)

    return open_it


def bar_of(view: TimelineView, op: int) -> QPoint:
    """Return the centre of an op's bar."""
    canvas = view.canvas
    for index, row in enumerate(canvas.lanes.rows):
        if row.is_device and op in row.numbers:
            bar = int(np.flatnonzero(row.numbers == op)[0])
            time = (row.start_us[bar] + row.finish_us[bar]) / 2
            area = canvas.lanes.row_area(index)
            return QPoint(round(area.left() + canvas.lanes.scale.x(time)), round(area.center().y()))
    raise AssertionError(f"op {op} has no bar")


def lane_of(view: TimelineView, device: int, x: int) -> QPoint:
    return QPoint(x, round(view.canvas.lanes.lanes_of(device)[0].center().y()))


def drag(view: TimelineView, start: QPoint, end: QPoint, keys=NONE, release=True) -> None:
    canvas = view.canvas
    QTest.mousePress(canvas, LEFT, keys, start)
    QTest.mouseMove(canvas, start + (end - start) / 2)
    QTest.mouseMove(canvas, end)
    if release:
        QTest.mouseRelease(canvas, LEFT, keys, end)


def test_dragging_a_bar_to_another_lane_places_and_pins_it(open_view):
    document = chain_document()
    view = open_view(document)
    start = bar_of(view, 1)
    drag(view, start, lane_of(view, 1, start.x()))
    assert document.current.plan.device.tolist() == [0, 1, 1]
    assert document.problem.pins == {1: 1}
    assert "pin" in document.undo_stack.undoText()


def test_shift_moves_without_a_pin(open_view):
    document = chain_document()
    view = open_view(document)
    start = bar_of(view, 1)
    drag(view, start, lane_of(view, 1, start.x()), SHIFT)
    assert document.current.plan.device.tolist() == [0, 1, 1]
    assert document.problem.pins == {}


def test_a_drag_moves_the_whole_selection(open_view):
    document = chain_document()
    view = open_view(document)
    document.select([0, 1])
    start = bar_of(view, 1)
    drag(view, start, lane_of(view, 1, start.x()))
    assert document.current.plan.device.tolist() == [1, 1, 1]


def test_escape_cancels_a_drag_without_a_change(open_view):
    document = chain_document()
    view = open_view(document)
    start = bar_of(view, 1)
    end = lane_of(view, 1, start.x())
    drag(view, start, end, release=False)
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)
    QTest.mouseRelease(view.canvas, LEFT, NONE, end)
    assert document.undo_stack.count() == 0


def test_the_lane_below_a_drag_shows_the_effect_of_a_drop(open_view):
    document = chain_document()
    view = open_view(document)
    start = bar_of(view, 1)
    drag(view, start, lane_of(view, 1, start.x()), release=False)
    # a's 8 bytes would cross instead of b's 20: 12 µs less.
    assert view.canvas._gesture.drop.text.startswith("on GPU 1: −0.012 ms")
    assert view.canvas._gesture.drop.is_good
    view.canvas.grab()
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)


def test_a_drag_over_capacity_shows_the_excess(open_view):
    profile = profile_of(
        {"a": 10, "b": 10, "c": 10}, [("a", "b", 8), ("b", "c", 20)], persistent={"b": 60, "c": 60}
    )
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 0, "c": 1})
    view = open_view(document)
    start = bar_of(view, 1)
    drag(view, start, lane_of(view, 1, start.x()), release=False)
    # Two times 60 bytes of variables and both tensors would share GPU 1.
    assert view.canvas._gesture.drop.text.endswith(
        "GPU 1: 148 B of 100 B at the peak, does not fit"
    )
    assert not view.canvas._gesture.drop.is_good
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)


def test_a_lane_where_the_op_cannot_run_refuses_the_drop(open_view):
    profile = profile_of({"a": 10, "b": 5}, cpu={"c": 10})
    document = document_of(profile, cluster_of(1, cpu_lanes=1), {"a": 0, "b": 0, "c": 1})
    view = open_view(document)
    refused = []
    document.failed.connect(refused.append)
    start = bar_of(view, 0)
    end = lane_of(view, 1, start.x())
    drag(view, start, end, release=False)
    assert view.canvas._gesture.drop.text.startswith("may not run on CPU 0:\n")
    QTest.mouseRelease(view.canvas, LEFT, NONE, end)
    assert document.current.plan.device.tolist() == [0, 0, 1]
    assert refused == ["choose another device; a cannot run on a CPU: no measured time there"]


def test_a_click_selects_an_op_and_a_click_elsewhere_clears_the_selection(open_view):
    document = chain_document()
    view = open_view(document)
    QTest.mouseClick(view.canvas, LEFT, NONE, bar_of(view, 2))
    assert document.selection == {2}
    QTest.mouseClick(view.canvas, LEFT, SHIFT, bar_of(view, 0))
    assert document.selection == {0, 2}
    between = lane_of(view, 0, round(view.canvas.lanes.row_area(0).right()) - 4)
    QTest.mouseClick(view.canvas, LEFT, NONE, between)
    assert document.selection == frozenset()


def test_a_double_click_selects_the_group(open_view):
    document = wide_document()
    view = open_view(document)
    op = int(np.argmax(document.schedule.op_finish_us - document.schedule.op_start_us))
    QTest.mouseDClick(view.canvas, LEFT, NONE, bar_of(view, op))
    clicked = next(iter(document.selection))
    group = document.project.grouping.group
    assert document.selection == set(np.flatnonzero(group == group[clicked]).tolist())


def test_a_rubber_band_selects_what_it_touches(open_view):
    document = chain_document()
    view = open_view(document)
    idle = lane_of(view, 1, bar_of(view, 0).x())
    drag(view, idle, bar_of(view, 2))
    assert document.selection == {2}


def test_dragging_a_selected_bar_along_its_lane_reorders_it(open_view):
    document = document_of(FREE, cluster_of(2), dict.fromkeys("abc", 0))
    view = open_view(document)
    drag(view, bar_of(view, 2), bar_of(view, 0), release=False)
    assert "click it first" in view.canvas._gesture.hint
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)
    document.select([2])
    end = bar_of(view, 0)
    drag(view, bar_of(view, 2), end - QPoint(3, 0), release=False)
    gesture = view.canvas._gesture
    assert "before a" in gesture.drop.text
    assert "Its place in the order may be from 0 ms to 40.0 ms" in gesture.drop.text
    QTest.mouseRelease(view.canvas, LEFT, NONE, end - QPoint(3, 0))
    assert document.problem.before == ((2, 0),)
    assert np.argsort(document.schedule.op_start_us).tolist() == [2, 0, 1]


def test_escape_leaves_the_order_as_it_was(open_view):
    document = document_of(FREE, cluster_of(2), dict.fromkeys("abc", 0))
    view = open_view(document)
    document.select([2])
    drag(view, bar_of(view, 2), bar_of(view, 0), release=False)
    QTest.keyClick(view.canvas, Qt.Key.Key_Escape)
    QTest.mouseRelease(view.canvas, LEFT, NONE, bar_of(view, 0))
    assert document.problem.before == ()


def test_a_bar_dropped_where_it_is_changes_nothing(open_view):
    document = document_of(FREE, cluster_of(2), dict.fromkeys("abc", 0))
    view = open_view(document)
    document.select([2])
    drag(view, bar_of(view, 2), bar_of(view, 2) + QPoint(15, 0))
    assert document.undo_stack.count() == 0


def test_dragging_along_a_lane_selects_instead_of_moving(open_view):
    document = chain_document()
    view = open_view(document)
    drag(view, bar_of(view, 0), bar_of(view, 1))
    assert document.selection == {0, 1}
    assert document.undo_stack.count() == 0


def test_the_tooltip_describes_the_bar_at_the_pointer(open_view):
    view = open_view(chain_document())
    assert view.canvas.tip_at(QPointF(bar_of(view, 2))).startswith("c\n")
    channel = view.canvas.lanes.row_area(1)
    middle = QPointF(channel.left() + view.canvas.lanes.scale.x(30), channel.center().y())
    assert view.canvas.tip_at(middle).startswith("20 B of b")
    assert view.canvas.tip_at(QPointF(1, 1)) == ""


def test_keys_zoom_pan_and_fit(open_view):
    canvas = open_view(wide_document()).canvas
    whole = canvas.lanes.scale
    QTest.keyClick(canvas, Qt.Key.Key_W)
    assert canvas.lanes.scale.us_per_px < whole.us_per_px
    before = canvas.lanes.scale.start_us
    QTest.keyClick(canvas, Qt.Key.Key_D)
    assert canvas.lanes.scale.start_us > before
    QTest.keyClick(canvas, Qt.Key.Key_A)
    assert canvas.lanes.scale.start_us == pytest.approx(before)
    QTest.keyClick(canvas, Qt.Key.Key_0)
    assert canvas.lanes.scale == whole


def test_f_shows_the_selection(open_view):
    document = wide_document()
    canvas = open_view(document).canvas
    document.select([200])
    QTest.keyClick(canvas, Qt.Key.Key_F)
    schedule = document.schedule
    assert canvas.lanes.scale.start_us <= schedule.op_start_us[200]
    assert canvas.lanes.scale.stop_us >= schedule.op_finish_us[200]
    assert canvas.lanes.scale.stop_us - canvas.lanes.scale.start_us < 2 * (
        schedule.op_finish_us[200] - schedule.op_start_us[200]
    )


def test_a_click_on_the_axis_sets_the_marker_and_another_removes_it(open_view):
    canvas = open_view(chain_document()).canvas
    axis = QPoint(round(canvas.lanes.row_area(0).left() + canvas.lanes.scale.x(20)), 4)
    QTest.mouseClick(canvas, LEFT, NONE, axis)
    assert canvas.marker_us == pytest.approx(20, abs=canvas.lanes.scale.us_per_px)
    QTest.mouseClick(canvas, LEFT, NONE, axis)
    assert canvas.marker_us is None


def test_the_summary_follows_the_schedule(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    qtbot.waitUntil(lambda: "transfers 0.021 ms" in view.summary.whole)
    document.place([1], 1)
    qtbot.waitUntil(lambda: "transfers 0.0090 ms" in view.summary.whole)


def test_a_ghost_stays_after_an_edit(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    document.place([1], 1)
    assert "−0.012 ms since your edits" in view.legend
    qtbot.waitUntil(lambda: set(view.canvas.picture.ghosts) == {0, 1})
    document.undo_stack.undo()
    qtbot.waitUntil(lambda: view.canvas.picture.ghosts == {})


def test_a_columns_colour_shows_how_busy_it_is(open_view):
    """A bar over a third of a column gives it a third of its colour."""
    document = wide_document(n_ops=300)
    view = open_view(document, width=400)
    canvas = view.canvas
    canvas.picture.trace = None
    canvas._path_timer.stop()
    picture: QImage = canvas.grab().toImage()
    row, area = canvas.lanes.rows[0], canvas.lanes.row_area(0)
    edges = canvas.lanes.edges_us()
    y = round(area.center().y())
    for column in range(5, len(edges) - 1, 37):
        left, right = edges[column], edges[column + 1]
        layers = [
            (np.array([covered(row.start_us[odd], row.finish_us[odd], left, right)]), color)
            for odd, color in zip((~row.odd, row.odd), shades(row.device), strict=True)
        ]
        blue, green, red, _ = mix(theme.tokens.lane, layers)[0].tolist()
        seen = picture.pixelColor(round(area.left()) + column, y)
        if not on_gap(canvas, row, column):
            assert (seen.red(), seen.green(), seen.blue()) == (red, green, blue)


def covered(start, finish, left, right) -> float:
    overlap = np.minimum(finish, right) - np.maximum(start, left)
    return float(np.maximum(overlap, 0).sum() / (right - left))


def on_gap(canvas, row, column: int) -> bool:
    """Return whether a hairline between wide bars is drawn in this column."""
    ends = canvas.lanes.scale.xs(row.finish_us)
    return bool((np.abs(ends - 0.5 - column) <= 1.5).any())


def test_many_rows_scroll(open_view):
    document = wide_document(n_gpus=5)
    view = open_view(document, height=150)
    canvas = view.canvas
    assert canvas.lanes.content_px > canvas.lanes.visible_px
    canvas.scroll_by(10_000)
    last = canvas.lanes.row_area(len(canvas.lanes.rows) - 1)
    assert last.bottom() <= canvas.height()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [(280, 200), (1400, 300)])
def test_it_draws_in_both_themes_at_every_size(open_view, dark, size):
    theme.set_mode("dark" if dark else "light")
    try:
        document = wide_document()
        document.select(range(50))
        view = open_view(document, *size)
        picture = view.grab().toImage()
        colors = {picture.pixel(x, y) for x in range(0, size[0], 7) for y in range(0, size[1], 7)}
        assert len(colors) > 8
    finally:
        theme.set_mode("light")


def test_an_empty_pane_explains_what_will_appear(open_view):
    view = open_view(Document())
    view.grab()
    assert view.canvas.lanes.rows == []


def test_a_name_that_looks_like_html_is_shown_verbatim(open_view, monkeypatch):
    profile = profile_of({"<img src=x>": 10})
    view = open_view(document_of(profile, cluster_of(1), {"<img src=x>": 0}))
    shown = []
    monkeypatch.setattr(QToolTip, "showText", lambda at, text, widget: shown.append(text))
    at = bar_of(view, 0)
    QApplication.sendEvent(view.canvas, QHelpEvent(QEvent.Type.ToolTip, at, at))
    assert "&lt;img src=x&gt;" in shown[0]


def test_a_click_on_idle_time_asks_why_and_marks_what_it_waits_for(open_view):
    document = chain_document()
    view = open_view(document)
    canvas = view.canvas
    x = round(canvas.lanes.left + canvas.lanes.scale.x(20.0))
    before = canvas.grab().toImage()
    QTest.mouseClick(canvas, Qt.MouseButton.LeftButton, pos=lane_of(view, 1, x))
    assert (document.gap.device, document.gap.op) == (1, 2)
    assert canvas.picture.chain.row.tolist() == [0, 1], "GPU 0, then its link"
    assert canvas.grab().toImage() != before
    QTest.mouseClick(canvas, Qt.MouseButton.LeftButton, pos=bar_of(view, 0))
    assert (document.gap, canvas.picture.chain) == (None, None)


def test_another_plan_forgets_the_gap(open_view):
    document = chain_document()
    view = open_view(document)
    document.select([], gap=Gap(1, 0.0, 41.0, 2))
    document.place([2], 0)
    assert (document.gap, view.canvas.picture.gap) == (None, None)


def titles(menu) -> list[str]:
    return [action.text().partition("\t")[0] for action in menu.actions() if action.text()]


def choose(menu, title) -> None:
    next(a for a in menu.actions() if a.text().partition("\t")[0] == title).trigger()


def test_a_bar_has_the_menu_of_the_graph(open_view):
    document = chain_document()
    view = open_view(document)
    menu = view.canvas.menu_at(QPointF(bar_of(view, 1)))
    assert document.selection == {1}
    assert {"Why here?", "Select", "Place on", "Pin here", "Run earlier"} <= set(titles(menu))
    choose(menu, "Pin here")
    assert document.problem.pins == {1: 0}


def test_the_menu_of_a_bar_keeps_a_selection_that_it_belongs_to(open_view):
    document = chain_document()
    view = open_view(document)
    document.select([0, 1])
    choose(view.canvas.menu_at(QPointF(bar_of(view, 1))), "Colocate")
    assert document.problem.together == ((0, 1),)


def test_a_transfer_leads_to_its_ends(open_view):
    document = chain_document()
    view = open_view(document)
    lanes = view.canvas.lanes
    index = next(i for i, row in enumerate(lanes.rows) if not row.is_device)
    row, area = lanes.rows[index], lanes.row_area(index)
    at = QPointF(lanes.left + lanes.scale.x(float(row.start_us[0]) + 5), area.center().y())
    choose(view.canvas.menu_at(at), "Select its producer")
    assert document.selection == {1}
    choose(view.canvas.menu_at(at), "Select its 1 consumer")
    assert document.selection == {2}
    choose(view.canvas.menu_at(at), "Select all 1 op that send over GPU 0 → GPU 1")
    assert document.selection == {1}


def test_an_idle_time_can_be_asked_about(open_view):
    document = chain_document()
    view = open_view(document)
    lane = view.canvas.lanes.lanes_of(1)[0]
    at = QPointF(view.canvas.lanes.left + view.canvas.lanes.scale.x(20.0), lane.center().y())
    choose(view.canvas.menu_at(at), "Why this gap, and what fits?")
    assert document.gap is not None
    assert document.gap.op == 2


def test_a_drop_beyond_the_range_does_nothing_and_says_so(open_view, qtbot):
    document = document_of(CHAIN, cluster_of(2), dict.fromkeys("abcd", 0))
    view = open_view(document)
    document.select([1])
    drag(view, bar_of(view, 1), bar_of(view, 3), release=False)
    assert "Not here: c needs it earlier" in view.canvas._gesture.drop.text
    with qtbot.waitSignal(document.dropped) as dropped:
        QTest.mouseRelease(view.canvas, LEFT, NONE, bar_of(view, 3))
    assert "c needs it earlier" in dropped.args[0]
    assert document.undo_stack.count() == 0


def test_a_dragged_group_shows_the_price(open_view):
    document = document_of(FREE, cluster_of(2), dict.fromkeys("abc", 0))
    view = open_view(document)
    document.select([1, 2])
    start = bar_of(view, 1)
    drag(view, start, start - QPoint(140, 0), release=False)
    assert "step 40.0 ms" in view.canvas._gesture.drop.text
    QTest.mouseRelease(view.canvas, LEFT, NONE, start - QPoint(140, 0))
    assert np.argsort(document.schedule.op_start_us).tolist() == [1, 2, 0]


def test_the_price_leaves_the_lane_free(open_view):
    document = document_of(FREE, cluster_of(2), dict.fromkeys("abc", 0))
    view = open_view(document)
    document.select([2])
    before = view.canvas.grab().toImage()
    drag(view, bar_of(view, 2), bar_of(view, 0), release=False)
    lane, after = view.canvas.lanes.lanes_of(0)[0], view.canvas.grab().toImage()
    panel = theme.tokens.panel.rgb()
    row, ratio = lane.center().y(), after.devicePixelRatio()
    for x in range(round(lane.left()) + 4, round(lane.right()) - 4, 3):
        at = QPoint(round(x * ratio), round(row * ratio))
        assert after.pixel(at) != panel or before.pixel(at) == panel


def test_a_click_among_slivers_picks_the_longest_until_zoomed_in(open_view):
    times = {"wide": 6_600, "sliver": 12, "other": 60_000}
    document = document_of(profile_of(times), cluster_of(2), dict.fromkeys(times, 0))
    view = open_view(document)
    sliver = bar_of(view, 1)
    QTest.mouseClick(view.canvas, LEFT, NONE, sliver)
    assert document.selection == {2}
    view.canvas.set_scale(view.canvas.lanes.scale.around(6_590.0, 6_620.0))
    QTest.mouseClick(view.canvas, LEFT, NONE, bar_of(view, 1))
    assert document.selection == {1}


def test_another_plan_is_shown_whole_and_an_edit_keeps_the_zoom(opener):
    document = chain_document()
    canvas = opener(TimelineView, document, 700, 300).canvas
    take_turns()
    canvas.zoom(8)
    document.place([2], 0, pin=False)
    take_turns()
    assert not canvas.scale.is_fit
    add_plan(document, "other", {"a": 1, "b": 1, "c": 1}, choose=True)
    take_turns()
    assert canvas.scale.is_fit


def test_the_strip_shows_what_is_on_screen_and_a_click_moves_it(opener):
    view = opener(TimelineView, chain_document(), 700, 300)
    take_turns()
    canvas, strip = view.canvas, view.overview
    canvas.zoom(8)
    before = strip.frame
    assert before.width() < canvas.scale.width_px / 4
    end = QPoint(round(canvas.left + canvas.scale.width_px) - 2, strip.height() // 2)
    QTest.mouseClick(strip, LEFT, NONE, end)
    assert strip.frame.right() > before.right()
    assert canvas.scale.stop_us == pytest.approx(canvas.scale.end_us)
    canvas.zoom(-20)
    QTest.mouseClick(strip, LEFT, NONE, end)
    assert canvas.scale.is_fit


def test_the_strip_has_no_room_for_devices_that_run_nothing(opener):
    where = {"a": 0, "b": 1}
    few, many = (
        opener(TimelineView, document_of(profile_of({"a": 1, "b": 1}), cluster, where), 700, 300)
        for cluster in (cluster_of(2), cluster_of(8))
    )
    assert many.overview.sizeHint() == few.overview.sizeHint()


def test_a_drag_along_the_axis_selects_a_span_and_says_what_it_adds_up_to(open_view, qtbot):
    document = chain_document()
    view = open_view(document)
    canvas = view.canvas
    left, middle = canvas.lanes.left, canvas.lanes.scale.x(25.5)
    drag(view, QPoint(round(left), 4), QPoint(round(left + middle), 6))
    span = document.span
    assert (span.start_us, span.stop_us) == pytest.approx((0, 25.5), abs=0.2)
    assert document.selection == frozenset()
    assert "compute 0.020 ms" in view.summary.whole
    canvas.grab()
    with qtbot.waitSignal(document.requests.list_rows):
        view.span_links[0].click()
    view.span_links[-1].click()
    assert document.span is None
    assert not view.span_links[0].isVisible()


def test_a_click_on_a_transfer_says_what_it_waits_for(open_view):
    profile = profile_of({"a": 10, "x": 1, "y": 1}, [("a", "x", 50), ("a", "y", 50)])
    document = document_of(profile, cluster_of(3, shared=True), {"a": 0, "x": 1, "y": 2})
    view = open_view(document)
    lanes = view.canvas.lanes
    index = next(at for at, row in enumerate(lanes.rows) if row.queue is not None)
    last = round(lanes.left + lanes.scale.x(float(lanes.rows[index].finish_us[-1]) - 10))
    place = lanes.row_area(index)
    QTest.mouseClick(view.canvas, LEFT, NONE, QPoint(last, round(place.top() + 5)))
    assert document.selection == {0}
    assert "waits 0.051 ms" in view.summary.whole
    assert "behind 50 B of a" in view.summary.whole
    view.canvas.grab()
    waits = QPointF(lanes.left + lanes.scale.x(30), place.bottom() - 2)
    assert view.canvas.tip_at(waits) == "1 transfer waits at 0.030 ms\n50 B of a"
    document.select([])
    assert document.transfer is None
    assert "waits" not in view.summary.whole
