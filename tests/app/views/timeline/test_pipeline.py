"""A plan as a pipeline: schedule, loads, subgraphs that break contiguity, and the switch."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, QRect
from PySide6.QtGui import QColor, QFontMetricsF
from PySide6.QtTest import QTest

from documents import document_of
from enplace.machine import simulate
from enplace.machine.pipelines.loads import COMPUTE
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.values.load_rule import LoadRule
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace_studio.explain.pipelines import further_stages, visits_as_meant
from enplace_studio.model.document import PlanEntry
from enplace_studio.timelines.pipeline_canvas import sample_color
from enplace_studio.views.memory.memory_view import MemoryView
from enplace_studio.views.timeline.timeline_view import TimelineView
from enplace_studio.widgets.labels import BETWEEN_FACTS, ElidedLabel
from enplace_studio.widgets.theme import theme
from problems import cluster_of, plan_of, profile_of
from threads import finish_work
from turns import take_turns

CHAIN = [("a", "b", 1), ("b", "c", 1), ("c", "d", 1)]


def with_plan(opener, document, plan, width, height):
    """Open a timeline, and show the pipeline of a plan in it."""
    view = opener(TimelineView, document, width, height)
    document.add_plan(PlanEntry("split", plan, simulate(document.problem, plan)))
    take_turns()
    finish_work(view)
    take_turns()
    return view


@pytest.fixture
def opened(opener):
    """A view on a chain of four ops, with a plan that was made for a pipeline."""

    def open_it(device, objective="throughput", **fields):
        profile = profile_of(dict.fromkeys("abcd", 10), CHAIN)
        document = document_of(profile, cluster_of(2, b0_us=1.0, b1_us_per_byte=0.0))
        plan = Plan(np.array(device), np.arange(4), "max-load-dp", objective=objective, **fields)
        return with_plan(opener, document, plan, 900, 260)

    return open_it


def test_a_plan_for_a_pipeline_shows_as_one(opened):
    view = opened([0, 0, 1, 1])
    assert view.pages.currentWidget() is view.pipeline
    found = view.pipeline.canvas.pipeline
    assert [len(stage.ops) for stage in found.stages] == [2, 2]
    assert found.n_microbatches == 8
    assert "0.021 ms per sample once full" in view.legend
    view._document.set_scale(1.0, 3.0)
    assert view.legend.startswith("what if: links 3 ×")
    view._document.set_scale(1.0, 1.0)
    assert not view.pipeline.further_button.isVisible()


def test_a_plan_for_a_pipeline_that_is_open_before_the_view_shows_as_one(opened, opener):
    document = opened([0, 0, 1, 1])._document
    view = opener(TimelineView, document, 900, 260)
    assert view.pages.currentWidget() is view.pipeline


def test_a_plan_for_a_step_shows_as_a_step_and_a_click_shows_its_pipeline(opened):
    view = opened([0, 0, 1, 1], objective="step-time")
    assert view.pages.currentWidget() is not view.pipeline
    view.switch.button(1).click()
    finish_work(view)
    assert view.pipeline.canvas.pipeline is not None
    view.switch.button(0).click()
    assert "per sample" not in view.legend


def test_more_samples_are_simulated_on_request(opened):
    view = opened([0, 0, 1, 1])
    view.pipeline.samples.setValue(3)
    finish_work(view)
    assert view.pipeline.canvas.pipeline.n_microbatches == 3


def test_the_kind_is_shown_whole_where_there_is_room(opened):
    kind = opened([0, 0, 1, 1]).pipeline.kind
    assert kind.shown_text() == kind.currentText()


def test_a_kind_that_does_not_fit_ends_in_an_ellipsis(opened):
    kind = opened([0, 0, 1, 1]).pipeline.kind
    kind.addItem("Training, 1F1B (PipeDream)")
    kind.setCurrentIndex(kind.count() - 1)
    kind.setMaximumWidth(400)
    kind.resize(400, kind.height())
    assert kind.shown_text() == "Training, 1F1B (PipeDream)"
    kind.resize(120, kind.height())
    assert kind.shown_text().startswith("Training")
    assert kind.shown_text().endswith("…")


@pytest.mark.parametrize(("on_cpu_us", "rows"), [(0.01, [0, 1]), (5.0, [0, 1, 2])])
def test_an_idle_cpu_has_no_row(opener, on_cpu_us, rows):
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 1)], cpu={"read": on_cpu_us})
    document = document_of(profile, cluster_of(2, cpu_lanes=1), {"a": 0, "b": 1, "read": 2})
    plan = replace(document.current.plan, objective="throughput")
    view = with_plan(opener, document, plan, 900, 260)
    canvas = view.pipeline.canvas
    assert {slot.device for slot in canvas._slots()} == {*rows}
    assert canvas._rows == rows
    canvas.grab()


def test_facts_that_do_not_fit_are_left_out_as_a_whole(opened):
    view = opened([0, 0, 1, 1])
    shown = next(each for each in view.findChildren(ElidedLabel) if each.whole == view.legend)
    first, second = view.legend.split(BETWEEN_FACTS)[:2]
    shown.resize(shown.fontMetrics().horizontalAdvance(f"{first}{BETWEEN_FACTS}{second[:5]}"), 20)
    assert shown.text() == f"{first} …"
    assert second in shown.toolTip()
    shown.resize(shown.fontMetrics().horizontalAdvance(first[:9]), 20)
    assert shown.text().endswith("…")
    assert first.startswith(shown.text()[:-1].rstrip())


def test_further_subgraphs_are_named_and_selected(opened):
    view = opened([0, 1, 0, 1])
    assert "Not contiguous: GPU 0, GPU 1." in view.pipeline.message.text()
    view.pipeline.further_button.click()
    assert view.pipeline._document.selection == {2, 3}


def test_stages_that_a_schedule_means_to_visit_again_break_nothing():
    for kind, row in (("zbv", [0, 1, 1, 0]), ("interleaved", [0, 1, 0, 1])):
        way = [f"f{n}" for n in range(4)] + [f"gradients/b{n}" for n in (3, 2, 1, 0)]
        profile = profile_of(dict.fromkeys(way, 10), [(a, b, 1) for a, b in pairwise(way)])
        problem = Problem(profile, cluster_of(2, b0_us=0.0))
        plan = plan_of(problem, {name: row[int(name[-1])] for name in way})
        assert visits_as_meant(simulate_pipeline(problem, plan, kind, 4))
        assert not visits_as_meant(simulate_pipeline(problem, plan, "1f1b", 4))
        other = plan_of(problem, {name: [0, 1, 0, 0][int(name[-1])] for name in way})
        assert not visits_as_meant(simulate_pipeline(problem, other, kind, 4))


def test_gradients_of_weights_are_no_further_subgraph():
    way = ["f0", "f1", "b1", "b0"]
    edges = [(a, b, 0) for a, b in [*pairwise(way), ("b1", "w1"), ("b0", "w0")]]
    profile = profile_of(dict.fromkeys([*way, "w1", "w0"], 1), edges)
    profile = replace(profile, measured=Measurement(backward=[2, 3, 4, 5]))
    problem = Problem(profile, cluster_of(2, b0_us=0.0))
    plan = plan_of(problem, {name: int(name[1:]) for name in profile.op_names})
    found = simulate_pipeline(problem, plan, "zb-h1", 4)
    assert {((1,), 1), ((1,), 2)} <= {(stage.devices, stage.of) for stage in found.stages}
    assert further_stages(found) == []


def test_the_tooltip_describes_the_slot_at_the_pointer(opened):
    view = opened([0, 0, 1, 1])
    canvas = view.pipeline.canvas
    slot = next(s for row in canvas.pipeline.computing for s in row if s.microbatch == 2)
    tip = canvas.tip_at(canvas.box(slot).center())
    assert "sample 3, stage 1, forward: GPU 0 computes for 0.020 ms" in tip
    load = canvas.tip_at(canvas.lane(1).topLeft() + QPointF(-9, 9))
    assert load.startswith("GPU 1, for one sample: 0.021 ms")
    assert "in   0.0010 ms" in load


def test_a_load_counts_as_it_did_when_the_plan_was_made(opened):
    made = {"value_us": 20.0, "load_rule": LoadRule(transfers="overlap")}
    canvas = opened([0, 0, 1, 1], **made).pipeline.canvas
    load = canvas.tip_at(canvas.lane(1).topLeft() + QPointF(-9, 9))
    assert load.startswith("GPU 1, for one sample: 0.020 ms")


def test_nothing_overlaps_on_a_device(opened):
    view = opened([0, 1, 0, 1])
    for row in view.pipeline.canvas.pipeline.computing:
        assert all(slot.part == COMPUTE for slot in row)
        starts = [slot.start_us for slot in row]
        finishes = [slot.finish_us for slot in row]
        assert all(f <= s for f, s in zip(finishes[:-1], starts[1:], strict=True))


def test_a_pipeline_slower_than_its_busiest_device_has_an_explanation(opened, monkeypatch):
    assert "busiest device works" not in opened([0, 1, 0, 1]).pipeline.message.text()
    monkeypatch.setattr("enplace_studio.views.timeline.pipeline.SLOWER", 0.9)
    message = opened([0, 1, 0, 1]).pipeline.message
    assert message.isVisible()
    assert "busiest device works 0.023 ms" in message.text()


def test_a_plan_for_gpipe_is_simulated_as_gpipe(opener):
    profile = profile_of({"a": 10, "gradients/a": 20}, [("a", "gradients/a", 1)])
    document = document_of(profile, cluster_of(2))
    view = opener(TimelineView, document, 900, 260)
    made = ("1f1b", "gpipe", "1f1b")
    for pipeline in made:
        made_for = {"objective": "throughput", "load_rule": LoadRule(pipeline=pipeline)}
        plan = Plan(np.array([0, 0]), np.arange(2), "max-load-dp", **made_for)
        document.add_plan(PlanEntry(pipeline, plan, simulate(document.problem, plan)))
        take_turns()
        finish_work(view)
        assert view.pipeline.canvas.pipeline.kind == pipeline
        document.opened.emit()  # a project opens with a plan
        take_turns()
        assert view.pipeline.kind.currentData() == pipeline
    view.pipeline.kind.setCurrentIndex(view.pipeline.kind.findData("gpipe"))
    view.pipeline.refresh()
    finish_work(view)
    assert view.pipeline.canvas.pipeline.kind == "gpipe"


def simulated_as_gpipe(opener, times, edges, device):
    """Make the timeline of a split over free links, simulated as GPipe."""
    document = document_of(profile_of(times, edges), cluster_of(2, b0_us=0.0, b1_us_per_byte=0.0))
    view = opener(TimelineView, document, 900, 260)
    plan = Plan(np.array(device), np.arange(len(device)), "max-load-dp")
    document.add_plan(PlanEntry("split", plan, simulate(document.problem, plan)))
    view.switch.button(1).click()
    view.pipeline.kind.setCurrentIndex(view.pipeline.kind.findData("gpipe"))
    view.pipeline.refresh()
    finish_work(view)
    return view


def test_gpipe_shows_the_largest_load_of_each_pass(opener):
    """The largest loads of the passes add up to the headline, even if from different devices."""
    times = {"a": 10, "b": 20, "gradients/b": 30, "gradients/a": 40}
    edges = [("a", "b", 1), ("b", "gradients/b", 1), ("gradients/b", "gradients/a", 1)]
    view = simulated_as_gpipe(opener, times, edges, [0, 1, 1, 0])
    assert "0.060 ms per sample once full" in view.legend
    assert "forward 0.020 ms, backward 0.040 ms" in view.pipeline.message.text()
    view.pipeline.kind.setCurrentIndex(view.pipeline.kind.findData("1f1b"))
    view.pipeline.refresh()
    finish_work(view)
    assert "backward" not in view.pipeline.message.text()


def test_the_view_explains_why_gpipe_is_faster_than_its_loads(opener):
    times = {"a": 10, "b": 50, "gradients/a": 40}
    edges = [("a", "b", 1), ("a", "gradients/a", 1)]
    view = simulated_as_gpipe(opener, times, edges, [0, 1, 0])
    assert "0.050 ms per sample once full" in view.legend
    assert "add up to 0.090 ms; the pipeline is faster" in view.pipeline.message.text()


def test_a_plan_with_too_many_stages_is_not_drawn(opened, monkeypatch):
    monkeypatch.setattr("enplace_studio.explain.pipelines.MOST_STAGES", 3)
    view = opened([0, 1, 0, 1])
    assert view.pipeline.canvas.pipeline is None
    assert "would have 4 stages" in view.pipeline.message.text()


def trained_on(opener, n_devices, width, height):
    """Make the timeline of a model trained on some GPUs, one layer on each."""
    forward = [f"layer{i}" for i in range(n_devices)]
    names = forward + [f"gradients/{name}" for name in reversed(forward)]
    profile = profile_of(dict.fromkeys(names, 100), [(a, b, 1) for a, b in pairwise(names)])
    document = document_of(profile, cluster_of(n_devices, b0_us=1.0, b1_us_per_byte=0.0))
    device = np.array([int(name.removeprefix("gradients/")[5:]) for name in names])
    plan = Plan(device, np.arange(2 * n_devices), "max-load-dp", objective="throughput")
    return with_plan(opener, document, plan, width, height)


def test_updates_stand_at_the_end_of_each_row(opener):
    names = ["f0", "f1", "gradients/b1", "gradients/b0"]
    edges = [*pairwise(names), ("gradients/b1", "update/u1"), ("gradients/b0", "update/u0")]
    times = dict.fromkeys(names, 100) | {"update/u0": 300, "update/u1": 400}
    profile = profile_of(times, [(a, b, 1) for a, b in edges])
    document = document_of(profile, cluster_of(2, b0_us=1.0, b1_us_per_byte=0.0))
    device = np.array([int(name[-1]) for name in profile.op_names])
    plan = Plan(device, np.arange(6), "max-load-dp", objective="throughput")
    view = with_plan(opener, document, plan, 900, 300)
    canvas = view.pipeline.canvas
    for update, us in zip(canvas.pipeline.updates, (300, 400), strict=True):
        box = canvas.once_box(update)
        assert all(
            canvas.box(slot).right() <= box.left() + 1
            for slot in canvas._slots()
            if slot.device == update.device
        )
        assert f"GPU {update.device} updates its variables, once per step, for" in canvas.tip_at(
            box.center()
        )
        assert update.finish_us - update.start_us == us
        shown = canvas.grab().toImage().pixelColor(box.topLeft().toPoint() + QPoint(3, 3))
        assert far_apart(shown, theme.tokens.lane) > 60


def place_in(view, widget) -> QRect:
    """Return the area of a part of the pipeline page."""
    return QRect(widget.mapTo(view.pipeline, QPoint()), widget.size())


def test_eight_devices_fit_in_a_small_window(opener, qtbot):
    view = trained_on(opener, 8, 476, 340)
    canvas, rows, page = view.pipeline.canvas, view.pipeline.rows, view.pipeline
    qtbot.waitUntil(lambda: place_in(view, rows).bottom() <= place_in(view, page).bottom())
    lanes = [canvas.lane(device) for device in range(8)]
    assert all(above.bottom() < below.top() for above, below in pairwise(lanes))
    assert min(lane.height() for lane in lanes) >= 16
    assert not rows.verticalScrollBar().isVisible()
    assert canvas.rect().contains(lanes[-1].toAlignedRect())


def test_devices_that_do_not_fit_can_be_scrolled_to(opener):
    view = trained_on(opener, 24, 476, 300)
    assert view.minimumSizeHint().height() < 360
    bar = view.pipeline.rows.verticalScrollBar()
    bar.setValue(bar.maximum())
    last = view.pipeline.canvas.lane(23).toAlignedRect()
    assert view.pipeline.canvas.visibleRegion().contains(last.center())


def test_a_long_message_keeps_all_its_lines_and_covers_no_row(opened, qtbot):
    view = opened([0, 1, 0, 1])
    page = view.pipeline
    page.message.setText("Each device takes its part of the stages in a fixed order. " * 4)
    view.resize(view.minimumSizeHint().width(), 100)
    message = page.message
    qtbot.waitUntil(lambda: message.height() >= message.heightForWidth(message.width()))
    qtbot.waitUntil(lambda: place_in(view, message).bottom() < place_in(view, page.rows).top())


@pytest.mark.parametrize("dark", [False, True])
def test_backward_is_hatched_in_its_devices_colour(opener, dark):
    theme.set_mode("dark" if dark else "light")
    try:
        view = trained_on(opener, 2, 900, 300)
        canvas = view.pipeline.canvas
        picture = canvas.grab().toImage()
        colour = theme.device_color(1)
        for slot in canvas.pipeline.computing[1]:
            box = canvas.box(slot).toAlignedRect().adjusted(2, 0, -3, 0)
            seen = [picture.pixelColor(x, box.top() + 3) for x in range(box.left(), box.right())]
            near = [far_apart(colour, one) < far_apart(theme.tokens.lane, one) for one in seen]
            assert any(near)
            assert all(near) == (not slot.backward)
    finally:
        theme.set_mode("light")


def far_apart(one: QColor, other: QColor) -> int:
    return sum(abs(a - b) for a, b in zip(one.getRgb(), other.getRgb(), strict=True))


def test_the_memory_pane_shows_the_pipeline_while_the_timeline_does(opener, qtbot):
    view = trained_on(opener, 2, 900, 300)
    document = view.pipeline._document
    memory = opener(MemoryView, document, 320, 400)
    found = view.pipeline.canvas.pipeline
    assert document.pipeline is found
    peaks = [each.split.peak_bytes for each in memory.devices]
    assert peaks == found.peak_bytes[[each.device for each in memory.devices]].tolist()
    device, font = memory.devices[0], theme.font(11)
    assert "at the peak, 2 samples in flight" in device.verdict
    narrow = QFontMetricsF(font).horizontalAdvance(device.verdict) - 1
    assert device.fitting_verdict(font, narrow) == device.verdict.replace(" at the peak", "")
    view.show_page(0)
    qtbot.waitUntil(lambda: "in flight" not in memory.devices[0].verdict)
    assert document.pipeline is None


def test_the_sample_at_the_pointer_stands_out_on_every_device(opener):
    canvas = trained_on(opener, 2, 900, 300).pipeline.canvas
    first, other = canvas.pipeline.computing[0][0], canvas.pipeline.computing[1][2]
    assert first.microbatch != other.microbatch
    colours = []
    for pointer in (canvas.box(first).center().toPoint(), QPoint(1, 1)):
        QTest.mouseMove(canvas, pointer)
        at = canvas.box(other).toAlignedRect().center()
        box = canvas.box(other).toAlignedRect()
        colours.append(canvas.grab().toImage().pixelColor(at.x(), box.top() + 1).name())
    assert colours[0] != colours[1] == sample_color(other.microbatch).name()
