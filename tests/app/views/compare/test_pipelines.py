"""Two pipelines side by side on one time axis."""

from itertools import pairwise

import numpy as np
import pytest

from documents import document_of
from enplace.machine import simulate
from enplace.values.plan import Plan
from enplace_studio.model.document import PlanEntry
from enplace_studio.views.compare.compare_view import CompareView
from problems import cluster_of, profile_of
from threads import finish_work


@pytest.fixture
def view(opener):
    """One plan of a model that is trained on two GPUs."""
    names = ["a", "b", "gradients/b", "gradients/a"]
    edges = [(*pair, 1) for pair in pairwise(names)]
    document = document_of(profile_of(dict.fromkeys(names, 100), edges), cluster_of(2))
    plan = Plan(np.array([0, 1, 1, 0]), np.arange(4), "max-load-dp", objective="throughput")
    document.add_plan(PlanEntry("split", plan, simulate(document.problem, plan)))
    view = opener(CompareView, document, 1000, 600)
    view.pipeline_button.click()
    finish_work(view)
    return view


def test_one_plan_is_compared_in_two_schedules(view):
    first, second = (side.canvas for side in view.pair.sides)
    assert (first.pipeline.kind, second.pipeline.kind) == ("1f1b", "zb-h1")
    assert first.scale == second.scale, "they share the time axis"
    assert second.isVisible()


def test_pipelines_zoom_together_and_follow_the_choice_of_a_kind(view):
    first, second = view.pair.sides
    first.canvas.zoom(2)
    assert second.canvas.scale == first.canvas.scale
    second.kind.setCurrentIndex(second.kind.findData("gpipe"))
    second.kind.activated.emit(0)
    finish_work(view)
    assert second.canvas.pipeline.kind == "gpipe"
    assert "(as fast)" in second.facts.toolTip() + second.facts.text()


def test_the_button_leads_back_to_the_plans_of_one_step(view):
    view.pipeline_button.click()
    assert not view.pair.isVisible()
    assert view.chooser.isVisible()
