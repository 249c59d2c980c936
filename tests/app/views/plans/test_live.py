"""The card of the last search."""

import pytest

from documents import add_plan, document_of
from enplace_studio.jobs import Job, Report, SearchRecord, Solver
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
    """Return a function that shows a search that found a plan of this step time."""

    def show(step_us):
        solver = Solver()
        job = Job(1, document.problem, "enplace", 10.0, choose=True)
        solver.last_search = SearchRecord(
            job, Report("", history=((1.0, step_us),), engines=("",)), 10.0
        )
        card = LiveCard(document, solver)
        qtbot.addWidget(card)
        card.refresh()
        return card

    return show


@pytest.mark.parametrize(
    ("step_us", "text", "role"),
    [
        (10.0, "−50.0 % vs expert", "good"),
        (30.0, "+50.0 % vs expert", "bad"),
        (20.000001, "0.0 % vs expert", "dim"),
    ],
)
def test_a_search_is_compared_with_the_expert(card_after, step_us, text, role):
    card = card_after(step_us)
    assert (card.standing.text(), card.standing.property("role")) == (text, role)


def test_the_times_of_a_search_are_hidden_while_speeds_are_others(card_after, document):
    card = card_after(10.0)
    document.set_scale(8.0, 1.0)
    assert card.isHidden()
    document.set_scale(1.0, 1.0)
    assert not card.isHidden()
    assert card.standing.text() == "−50.0 % vs expert"


def test_a_long_text_does_not_widen_the_pane(card_after, monkeypatch):
    monkeypatch.setattr(Solver, "title", lambda self, method: "A method with a long title")
    monkeypatch.setattr(Solver, "waiting", 12)
    card = card_after(30.0)
    assert card.state.whole == "10 s  ·  12 more to come"
    assert card.minimumSizeHint().width() < 240
