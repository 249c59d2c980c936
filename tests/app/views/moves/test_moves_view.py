import threading

import numpy as np
import pytest
from PySide6.QtCore import QCoreApplication, QEvent, Qt

from documents import chain_document, document_of, split_layer, wide_document
from enplace.machine import simulate
from enplace.placing.next_moves import SPLIT, next_moves
from enplace.placing.next_moves.search import climb
from enplace.placing.stop import Stop
from enplace.processes import codecs
from enplace.readers.clusters import presets
from enplace_studio.jobs.move_worker import moves_from, moves_message, serve_search
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.views.moves.moves_view import OPTIMAL, MovesView
from enplace_studio.widgets.move_list import fitted
from problems import cluster_of, profile_of
from turns import take_turns


class Answering(Solver):
    """A solver whose worker finds moves at once, in this process."""

    def __init__(self):
        super().__init__()
        self.searches, self.dropped = [], []

    def find_moves(self, problem, plan, details):
        self.searches.append(plan)
        number, sent = len(self.searches), []
        shared = {"search": number, "problem": codecs.problem_to_json(problem)}
        message = codecs.plan_message("find moves", plan, {**shared, **details})
        free = threading.Event()
        free.set()
        serve_search(problem.measured_profile, message, (), free, sent.append)
        self.answers = sent
        return number

    def drop_moves(self, number):
        self.dropped.append(number)

    def answer(self):
        for message in self.answers:
            self.moves_found.emit(message)


@pytest.fixture
def solver(qapp):
    return Answering()


@pytest.fixture
def open_moves(opener, solver, qtbot):
    def open_them(document):
        view = opener(lambda document: MovesView(document, solver), document, 320, 400)
        qtbot.waitUntil(lambda: len(solver.searches) == 1)
        solver.answer()
        return view

    return open_them


def titles(view):
    return [(card.move_made.title, card.change) for card in view.list.cards]


def test_a_click_makes_the_move_at_its_price_and_undo_takes_it_back(open_moves, solver, qtbot):
    document = chain_document()
    view = open_moves(document)
    assert titles(view)[0] == ("c → GPU 0", "−0.021 ms")
    assert view.legend == f"{len(view.list.cards)} found"
    view.list.cards[0].click()
    assert document.schedule.makespan_us == 30
    assert not document.problem.pins
    assert document.current.name == "plan 1, edited"
    qtbot.waitUntil(lambda: len(solver.searches) == 2)
    document.undo_stack.undo()
    assert document.schedule.makespan_us == 51


def test_the_offers_for_a_model_are_gone_once_another_one_is_open(open_moves, solver, qtbot):
    document = chain_document()
    view = open_moves(document)
    assert view.list.cards
    document.open(wide_document(60).project)
    qtbot.waitUntil(lambda: len(solver.searches) == 2)
    assert not view.list.cards
    solver.answer()
    assert view.list.cards


def test_the_price_of_every_offer_is_what_the_click_gives(open_moves, solver):
    document = wide_document(60)
    view = open_moves(document)
    assert len(view.list.cards) > 3
    for at in range(len(view.list.cards)):
        move = view.list.cards[at].move_made
        document.make_move(move)
        assert document.schedule.makespan_us == pytest.approx(move.after_us)
        assert document.undo_stack.undoText() == f"next move: {move.title}"
        document.undo_stack.undo()


@pytest.mark.parametrize("name", ["pcie-2", "celeritas", "pesto"])
def test_the_first_offers_lead_on_where_single_edits_end(name, opener, solver, qtbot):
    profile = wide_document(16).problem.profile
    document = document_of(profile, presets()[name], dict.fromkeys(profile.op_names, 0))
    plan = climb(document.problem, document.current.plan, Stop())
    reached = simulate(document.problem, plan)
    document.add_plan(PlanEntry("reached", plan, reached))
    view = opener(lambda document: MovesView(document, solver), document, 320, 400)
    for clicks in range(1, 11):
        qtbot.waitUntil(lambda clicks=clicks: len(solver.searches) == clicks)
        solver.answer()
        if not view.list.cards:
            break
        first = view.list.cards[0].move_made
        view.list.cards[0].click()
        assert document.schedule.makespan_us == first.after_us < first.before_us
    assert document.schedule.makespan_us < reached.makespan_us


def test_a_plan_that_has_changed_a_moment_ago_is_not_changed_again(open_moves):
    document = chain_document()
    view = open_moves(document)
    card = view.list.cards[0]
    document.place([0], 1)
    before = document.schedule
    card.click()
    assert document.schedule is before


def test_the_pointer_shows_which_ops_and_where_they_would_run(open_moves, qtbot):
    document = chain_document()
    view = open_moves(document)
    view.list.cards[0].pointed.emit(True)
    assert document.hovered == {2}
    qtbot.waitUntil(lambda: bool(document.marks))
    mark = document.marks[0]
    assert (mark.device, mark.start_us, mark.finish_us, mark.text) == (0, 20, 30, "then, −0.021 ms")
    view.list.cards[0].pointed.emit(False)
    assert not document.hovered
    assert not document.marks


def test_the_offer_under_the_pointer_stays_in_its_place_as_better_ones_come_in(open_moves):
    view = open_moves(wide_document(60))
    found = view.list.search.moves
    assert len(found) > 4
    view.list.search.moves = found[2:4]
    view.list.search.changed.emit()
    pointed = view.list.cards[1]
    pointed.setAttribute(Qt.WidgetAttribute.WA_UnderMouse)
    view.list.search.moves = found
    view.list.search.changed.emit()
    expected = [found[0], found[3], *found[1:3], *found[4:]]
    assert [card.move_made for card in view.list.cards] == expected
    assert view.list.cards[1] is pointed
    assert view.legend == f"{len(found)} found"
    QCoreApplication.sendEvent(view.list, QEvent(QEvent.Type.Leave))
    assert [card.move_made for card in view.list.cards] == [*found]


def test_nothing_is_searched_while_the_pane_is_closed(opener, solver, qtbot):
    document = chain_document()
    view = opener(lambda document: MovesView(document, solver), document, 320, 400)
    qtbot.waitUntil(lambda: len(solver.searches) == 1)
    view.hide()
    assert solver.dropped == [1]
    document.place([0], 1)
    qtbot.wait(500)
    assert len(solver.searches) == 1
    view.show()
    qtbot.waitUntil(lambda: len(solver.searches) == 2)


def test_a_split_makes_a_plan_of_its_own_graph(open_moves):
    cluster = cluster_of(2, b1_us_per_byte=1e-5)
    document = document_of(split_layer(), cluster, dict.fromkeys(("batch", "w", "conv", "relu"), 0))
    view = open_moves(document)
    card = next(card for card in view.list.cards if card.move_made.kind == SPLIT)
    card.click()
    assert document.current.name == "plan 1, split"
    assert document.schedule.makespan_us == pytest.approx(card.move_made.after_us)
    assert document.problem.splits == card.move_made.plan.splits
    document.undo_stack.undo()
    assert document.current.name == "plan 1"
    assert not document.problem.splits


def test_moves_survive_the_way_from_the_worker():
    problem = wide_document(60).problem
    plan = wide_document(60).current.plan
    for move in next_moves(problem, plan, most=30):
        again = moves_from(moves_message(1, [move], plan, over=True), plan)[0]
        assert (again.kind, again.title, again.devices) == (move.kind, move.title, move.devices)
        assert np.array_equal(again.ops, move.ops)
        assert simulate(problem, again.plan).makespan_us == move.after_us


def test_moves_name_the_parts_of_an_open_group(open_moves, solver, qtbot):
    names = [f"layer{i}/{part}/op{n}" for i in range(40) for part in "ab" for n in range(2)]
    others = [name for name in names if not name.startswith("layer0/b")]
    times = dict.fromkeys(others, 0.0) | {name: 100.0 for name in names if name not in others}
    document = document_of(profile_of(times), cluster_of(2), dict.fromkeys(names, 0))
    view = open_moves(document)
    assert "layer 0" in titles(view)[0][0]
    document.turn_groups([document.problem.profile.index["layer0/a/op0"]])
    qtbot.waitUntil(lambda: len(solver.searches) == 2)
    solver.answer()
    assert "layer 0 / b" in titles(view)[0][0]


def test_the_pane_asks_for_the_same_room_before_it_has_found_anything(opener, solver, qtbot):
    view = opener(lambda document: MovesView(document, solver), wide_document(), 320, 400)
    before = view.need()
    qtbot.waitUntil(lambda: len(solver.searches) == 1)
    assert not view.list.cards
    assert view.need() == before
    solver.answer()
    assert view.need().least == before.least


def test_the_pane_needs_room_for_some_moves_or_is_folded(open_moves):
    view = open_moves(wide_document())
    cards = view.list.cards
    assert len(cards) > 4
    view.resize(view.width(), view.need().least)
    take_turns()
    shown = view.column.viewport()
    low = [card.mapTo(shown, card.rect().bottomLeft()).y() for card in cards]
    assert sum(y < shown.height() for y in low) == 4


@pytest.mark.parametrize(
    ("title", "room", "shown"),
    [
        ("6 ops of decoder / layer 4", 26, "6 ops of decoder / layer 4"),
        ("6 ops of decoder / layer 4", 24, "6 ops of decoder/layer 4"),
        ("self/drop/Mul of decoder / layer 4", 22, "Mul of decoder/layer 4"),
        ("self/drop/Mul of decoder / layer 4", 17, "Mul of decoder…"),
    ],
)
def test_a_title_is_shortened_only_as_far_as_it_must_be(title, room, shown):
    others = ["Add of decoder / layer 1", "Sum of decoder / layer 2"]
    assert fitted(title, [title, *others], len, room) == shown


def test_titles_that_only_the_scope_within_a_layer_tells_apart_keep_it():
    titles = [f"self/{letter}/MatMul of decoder / layer 4 and 9 more" for letter in "qk"]
    assert len({fitted(title, titles, len, 26) for title in titles}) == 2


def test_a_title_that_shares_no_words_keeps_its_beginning_and_whole_words():
    title = "1,683 ops from encoder / layer 5 to softmax"
    assert fitted(title, [title, "MatMul of emb"], len, 22) == "1,683 ops … to softmax"


def test_of_a_plan_that_is_proven_optimal_on_one_gpu_moves_are_no_longer_looked_for(
    opener, solver, qtbot
):
    profile = profile_of({"a": 1.0, "b": 2.0}, [("a", "b", 1)])
    document = document_of(profile, cluster_of(1), {"a": 0, "b": 0})
    view = opener(lambda document: MovesView(document, solver), document, 320, 400)
    qtbot.waitUntil(lambda: document.bounds.gap(document.schedule) == 0)
    qtbot.waitUntil(lambda: view.about.text() == OPTIMAL and view.about.isVisible())
    assert view.list.asked is None
