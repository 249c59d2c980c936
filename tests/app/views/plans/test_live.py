"""The card of the last search."""

from dataclasses import replace

import pytest
from PySide6.QtWidgets import QLabel, QPushButton

from documents import add_plan, document_of
from enplace_studio.jobs.solver import Job, Method, Report, Solver
from enplace_studio.shell.status import solver_state
from enplace_studio.views.plans.live import LiveCard
from problems import cluster_of, profile_of


@pytest.fixture
def document():
    """Two independent ops of 10 µs; the expert takes 20."""
    made = document_of(profile_of({"a": 10, "b": 10}), cluster_of(2), {"a": 0, "b": 0})
    add_plan(made, "expert", {"a": 1, "b": 1}, method="expert")
    return made


@pytest.fixture
def card_after(qtbot, document):
    """Return a function that shows a running search that found a plan of this step time."""
    kept = []

    def show(step_us, **known):
        solver = Solver()
        solver.methods = {
            "enplace": Method("enplace", "Enplace", "", ("step-time",), ("anytime",), "")
        }
        solver.job = Job(1, document.problem, "enplace", 10.0, True)
        solver._started_s -= 5
        solver.report = Report("", history=((1.0, step_us),), engines=("",), provers=("",), **known)
        card = LiveCard(document, solver)
        qtbot.addWidget(card)
        kept.append(solver)
        card.refresh()
        return card

    return show


@pytest.mark.parametrize(
    ("step_us", "text", "role"),
    [
        (10.0, "−50.0 % vs expert", "good"),
        (30.0, "+50.0 % vs expert", "bad"),
        (20.000001, "as fast as expert", "dim"),
    ],
)
def test_a_search_is_compared_with_the_expert(card_after, step_us, text, role):
    card = card_after(step_us)
    assert (card.standing.text(), card.standing.property("role")) == (text, role)


@pytest.fixture
def comparison(qtbot, document, monkeypatch):
    """The card of a solver that runs one method and has two more to run."""
    monkeypatch.setattr(Solver, "start", lambda self: StudioWorkerDouble())
    solver = Solver()
    solver.methods = {
        name: Method(name, title, "", ("step-time",), capabilities, "")
        for name, title, capabilities in (
            ("enplace", "Enplace, a search with a very long title indeed", ("anytime",)),
            ("heft", "HEFT, a list schedule with a long title", ()),
            ("single", "One GPU", ()),
        )
    }
    card = LiveCard(document, solver)
    qtbot.addWidget(card)
    card.show()
    solver.solve(document.problem, ["enplace", "heft", "single", "enplace"], 10.0)
    card.refresh()
    yield card, solver
    solver._tick.stop()  # it would show the closed card again


class StudioWorkerDouble:
    """A worker that never answers."""

    def send(self, message):
        pass


def test_waiting_methods_are_listed_with_their_time(comparison):
    card, _ = comparison
    assert card.waiting.summary.text() == "▸ 3 more, about 12 s"
    card.waiting.summary.click()
    assert card.waiting.summary.text().startswith("▾")
    texts = [each.text() for each in card.waiting.list.findChildren(QLabel)]
    assert texts == ["HEFT", "about 1 s", "One GPU", "about 1 s", "Enplace", "up to 10 s"]


def test_a_waiting_method_can_be_dropped(comparison):
    card, solver = comparison
    drop = next(
        each
        for each in card.waiting.list.findChildren(QPushButton)
        if each.accessibleName() == "Drop One GPU"
    )
    drop.click()
    assert [job.method for job in solver.waiting] == ["heft", "enplace"]
    assert "2 more" in card.waiting.summary.text()


def test_a_long_text_does_not_widen_the_pane(comparison):
    card, _ = comparison
    assert card.minimumSizeHint().width() < 240


def test_a_running_search_says_so_if_its_times_are_those_of_other_speeds(comparison, document):
    card, solver = comparison
    solver._started_s -= 1  # it has run long enough to be shown
    card.refresh()
    assert "speeds" not in card.state.whole
    document.set_scale(2.0, 1.0)
    assert card.state.whole.startswith("at the earlier speeds, ")
    solver.report = Report("", history=((1.0, 10.0),), engines=("",))
    assert "best 0.010 ms at the earlier speeds" in solver_state(solver, document.project)


def test_a_running_search_names_its_cluster_if_another_one_is_open(comparison, document):
    card, solver = comparison
    solver._started_s -= 1
    job = replace(solver.job, cluster=document.project.cluster)
    document.set_cluster(cluster_of(3))
    solver.job = job
    card.refresh()
    assert card.state.whole.startswith(f"for {job.cluster.name}, ")


def test_a_running_search_says_what_is_proven(card_after, document):
    plan = document.current.plan
    card = card_after(10.0, incumbent=plan, bound_us=9.0)
    assert card.bound.text() == "proven not below 0.0090 ms"
    card = card_after(10.0, incumbent=plan, bound_us=10.0)
    assert card.bound.text() == "optimal: proven not below 0.010 ms"
