"""Curves of step time over speed in the what-if pane."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtTest import QTest

from documents import add_plan, chain_document, document_of
from enplace.values.measurement import Measurement
from enplace_studio.jobs.solver import Job, Solver
from enplace_studio.views.whatif.methods import MethodSweep
from enplace_studio.views.whatif.plot import STYLES, CurvePlot
from enplace_studio.views.whatif.speed_curves import (
    BATCH,
    COMPUTE,
    FACTORS,
    GPUS,
    LINKS,
    MEMORY,
    METHODS,
    MICROBATCHES,
    QUICK,
    Curve,
    find_curve,
    swept_plans,
)
from enplace_studio.views.whatif.whatif_view import WhatIfView
from enplace_studio.widgets.plot import spread
from enplace_studio.widgets.theme import theme
from problems import cluster_of, profile_of
from turns import turn_wheel


@pytest.fixture
def document():
    """A chain on two GPUs, and the same on one."""
    document = chain_document()
    add_plan(document, "one GPU", {"a": 0, "b": 0, "c": 0})
    return document


@pytest.fixture
def without_search(monkeypatch):
    """Sweep with the quick methods only, in a moment."""
    monkeypatch.setattr("enplace_studio.views.whatif.methods.METHODS", QUICK)
    monkeypatch.setattr(MethodSweep, "_search", lambda *_: None)


def drawn(view):
    return [(curve.name, len(curve.steps_us)) for curve in view.plot.curves]


def test_a_curve_shows_what_the_step_would_take_at_each_speed(document):
    project = document.project
    two, one = swept_plans(project)
    at = dict(zip(FACTORS, find_curve(project, two, LINKS).steps_us, strict=True))
    assert at[1.0] == pytest.approx(51)
    assert at[0.5] == pytest.approx(30 + 42)
    assert set(find_curve(project, one, LINKS).steps_us) == {30.0}, "it sends nothing"
    at = dict(zip(FACTORS, find_curve(project, one, COMPUTE).steps_us, strict=True))
    assert at[2.0] == pytest.approx(15)


def test_the_other_speed_stays_as_it_is(document):
    document.set_scale(2.0, 1.0)
    project = document.project
    at = dict(zip(FACTORS, find_curve(project, project.current, LINKS).steps_us, strict=True))
    assert at[1.0] == pytest.approx(15 + 21)


def test_the_pane_draws_every_plan_the_current_one_first(document, opener, qtbot):
    view = opener(WhatIfView, document, 320, 300)
    assert not view.plot.isVisible()
    view.curve_buttons[LINKS].click()
    qtbot.waitUntil(lambda: len(view.plot.curves) == 2)
    assert drawn(view) == [("plan 1", len(FACTORS)), ("one GPU", len(FACTORS))]
    assert view.plot.isVisible()
    view.curve_buttons[COMPUTE].click()
    qtbot.waitUntil(lambda: len(view.plot.curves) == 2)
    tip = view.plot.tip_at(view.plot.rect().topLeft())
    assert tip.startswith("at 0.25")
    assert "one GPU: 0.12 ms" in tip


def test_a_second_click_stops_and_hides_the_curves(document, opener, qtbot):
    view = opener(WhatIfView, document, 320, 300)
    view.curve_buttons[LINKS].click()
    assert view.legend == "2 curves to simulate"
    view.curve_buttons[LINKS].click()
    assert (view.plot.isVisible(), view.legend) == (False, "")


def test_curves_follow_an_edit(document, opener, qtbot):
    view = opener(WhatIfView, document, 320, 300)
    view.curve_buttons[LINKS].click()
    qtbot.waitUntil(lambda: len(view.plot.curves) == 2)
    document.place([2], 0)
    qtbot.waitUntil(lambda: len(view.plot.curves) == 3)
    assert view.plot.curves[0].name == document.current.name


def test_without_a_plan_there_is_nothing_to_draw(document, opener, qtbot):
    while document.plans:
        document.remove_plan(document.plans[-1])
    view = opener(WhatIfView, document, 320, 300)
    view.sweep(LINKS)
    assert not view.plot.isVisible()
    assert not view.curve_buttons[LINKS].isEnabled()


def test_methods_make_new_plans_for_more_gpus(opener, qtbot):
    document = document_of(
        profile_of({"a": 10, "b": 10, "c": 10, "d": 10}), cluster_of(2), dict.fromkeys("abcd", 0)
    )
    view = opener(WhatIfView, document, 320, 300)
    view.curve_buttons[GPUS].click()
    assert view.legend == f"{len(GPUS.values) * len(METHODS)} plans to make"
    qtbot.waitUntil(lambda: view.legend == "", timeout=60_000)
    at = {
        curve.name: dict(zip(GPUS.values, curve.steps_us, strict=True))
        for curve in view.plot.curves
    }
    assert [at["heft"][n] for n in (1, 2, 4)] == [40, 20, 10]
    assert at["enplace in 2 s"][4] == 10
    view.curve_buttons[GPUS].click()
    assert not view.plot.isVisible()


def test_the_search_starts_from_the_plan_of_the_quick_method_before_it(document, monkeypatch):
    asked = []
    monkeypatch.setattr(Solver, "solve", lambda self, *given, **details: asked.append(details))
    sweep, problem = MethodSweep(document), document.problem
    sweep._solve([problem])
    heft, expert = (Job(n, problem, name, 2.0, False) for n, name in enumerate(("heft", "expert")))
    for job in (expert, heft):
        sweep._take(job, document.current.plan)
    sweep._leave_out(heft, "no plan")
    assert [each.get("start") for each in asked] == [None, document.current.plan, None]
    sweep.stop()


@pytest.mark.usefixtures("without_search")
def test_what_does_not_fit_is_left_out_of_the_curve(opener, qtbot):
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 60, "b": 60})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 1})
    view = opener(WhatIfView, document, 320, 300)
    view.curve_buttons[MEMORY].click()
    qtbot.waitUntil(lambda: view.legend == "", timeout=60_000)
    heft = next(curve for curve in view.plot.curves if curve.name == "heft")
    assert [math.isnan(us) for us in heft.steps_us] == [True, True, False, False, False]
    assert "heft: –" in view.plot.tip_at(view.plot.rect().topLeft())
    view.grab()


@pytest.mark.usefixtures("without_search")
def test_a_larger_batch_takes_longer_until_it_does_not_fit(opener, qtbot):
    profile = profile_of({"read": 10, "work": 10}, [("read", "work", 30)])
    profile = replace(profile, measured=Measurement(config={"batch": 16}))
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"read": 0, "work": 0})
    view = opener(WhatIfView, document, 320, 300)
    view.curve_buttons[BATCH].click()
    qtbot.waitUntil(lambda: view.legend == "", timeout=60_000)
    heft = next(curve for curve in view.plot.curves if curve.name == "heft")
    assert heft.steps_us[:4] == (5, 10, 20, 40)
    assert math.isnan(heft.steps_us[4])


def test_a_batch_that_the_profile_does_not_know_cannot_change(document, opener):
    view = opener(WhatIfView, document, 320, 300)
    assert not view.curve_buttons[BATCH].isEnabled()
    assert "does not say how large" in view.curve_buttons[BATCH].toolTip()
    assert view.curve_buttons[GPUS].isEnabled()


def test_names_beside_the_curves_keep_apart_and_inside():
    places = spread([10.0, 12.0, 95.0, 96.0], 14.0, 93.0)
    assert all(below - above >= 14.0 for above, below in pairwise(places))
    assert places[-1] == 93.0


def test_the_caption_says_what_is_swept_and_hides_the_curves(document, opener, qtbot):
    view = opener(WhatIfView, document, 320, 300)
    view.curve_buttons[LINKS].click()
    assert view.caption.text() == "Step time over the link speed"
    view.hide_button.click()
    assert not view.plot.isVisible()
    assert not view.caption.isVisible()


def test_equal_ratios_of_step_times_are_equally_far_apart():
    plot = CurvePlot()
    plot.resize(300, 200)
    plot.show_curves([Curve("a", (8.0, 4.0, 2.0))], replace(GPUS, values=(1.0, 2.0, 4.0)), 1.0)
    first, second, third = (
        point.y() for point in plot._points(plot.curves_now()[0], plot.area(True))
    )
    assert second - first == pytest.approx(third - second)


def test_pipelines_have_curves_of_time_and_memory(document, opener, qtbot):
    view = opener(WhatIfView, document, 320, 400)
    view.toggle_curve(MICROBATCHES)
    qtbot.waitUntil(lambda: len(view.memory_plot.curves) == 1)
    (curve,) = view.plot.curves
    assert curve.steps_us[0] > curve.steps_us[-1]
    assert len(curve.peak_bytes) == len(MICROBATCHES.values)
    assert view.memory_plot.isVisible()
    view.toggle_curve(COMPUTE)
    assert not view.memory_plot.isVisible()


def test_curves_that_coincide_are_all_seen():
    plot = CurvePlot()
    plot.resize(320, 200)
    same = [Curve(name, (8.0, 4.0, 2.0)) for name in "abcd"]
    plot.show_curves(same, replace(GPUS, values=(1.0, 2.0, 4.0)), 1.0)
    shot = plot.grab(plot.area(True).toRect()).toImage()
    pixels = [shot.pixelColor(x, y) for x in range(shot.width()) for y in range(shot.height())]
    seen = np.array([pixel.getRgb()[:3] for pixel in pixels])
    for color, *_ in STYLES:
        wanted = np.array(theme.device_color(color).getRgb()[:3])
        assert np.abs(seen - wanted).max(axis=1).min() < 40  # edges are smoothed


def test_one_gpu_does_not_tell_how_more_would_be_linked(opener):
    document = document_of(profile_of({"a": 10}), cluster_of(1), {"a": 0})
    view = opener(WhatIfView, document, 300, 500)
    gpus = view.curve_buttons[GPUS]
    assert not gpus.isEnabled()
    assert gpus.toolTip().startswith("One GPU does not tell")
    assert view.curve_buttons[MEMORY].isEnabled()


def test_the_wheel_scrolls_past_a_slider_that_does_not_have_the_focus(document, qtbot):
    view = WhatIfView(document)
    qtbot.addWidget(view)
    view.show()
    turn_wheel(view._links)
    assert view._links.value() == 0
    view.activateWindow()
    assert QTest.qWaitForWindowActive(view)
    view._links.setFocus()
    turn_wheel(view._links)
    assert view._links.value() != 0


def test_step_times_along_the_axis_are_round(qtbot):
    view = CurvePlot()
    qtbot.addWidget(view)
    for slowest_us, fastest_us, texts in (
        (3_053_900.0, 228_900.0, ["300 ms", "1,000 ms", "3,000 ms"]),
        (570_000.0, 550_000.0, ["550 ms", "576.8 ms", "605 ms"]),
    ):
        steps_us = np.geomspace(slowest_us, fastest_us, len(COMPUTE.values)).tolist()
        view.show_curves([Curve("plan", tuple(steps_us))], COMPUTE, 1.0)
        assert [text for _, text in view.up.shown()] == texts
