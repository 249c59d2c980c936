from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QEnterEvent, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QPushButton

from documents import add_plan, chain_document, document_of
from enplace.machine import simulate
from enplace.values.problem import THROUGHPUT
from enplace.writers import write_project
from enplace_studio.files import session
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.model.plan_facts import brief_standing, compare, standing, tooltip, why_stale
from enplace_studio.model.prices import what_if_text
from enplace_studio.views.plans.plans_view import CROWD, PlansView, as_tree
from problems import cluster_of, profile_of
from threads import finish_work
from turns import take_turns

LEFT = Qt.MouseButton.LeftButton
NONE = Qt.KeyboardModifier.NoModifier
CTRL = Qt.KeyboardModifier.ControlModifier


def three_plans() -> Document:
    """Two independent ops of 10 µs: one GPU takes 20 µs, two take 10; the expert takes 20."""
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 100})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 0})
    add_plan(document, "expert", {"a": 1, "b": 1}, method="expert")
    add_plan(document, "both", {"a": 0, "b": 1})
    document.undo_stack.clear()
    return document


@pytest.fixture
def open_view(opener):
    def open_it(document, width=260, height=420):
        view = opener(PlansView, document, width, height)
        finish_work(document)  # the cards show the bounds
        view._later.stop()
        view.rebuild()
        return view

    return open_it


def names(view: PlansView) -> list[str]:
    return [card.entry.name for card in view.cards]


def card_of(view: PlansView, name: str):
    return next(card for card in view.cards if card.entry.name == name)


def test_each_card_soon_has_the_gap_of_its_plans_own_constraints(open_view):
    document = three_plans()
    slow = next(entry for entry in document.plans if entry.name == "plan 1")
    pinned = simulate(document.problem.constrained(pins={0: 0, 1: 0}), slow.plan)
    document.bounds.proofs.of_rivals(document.schedule)
    document.add_plan(PlanEntry("pinned", slow.plan, pinned))
    view = open_view(document)
    assert card_of(view, "plan 1").notes[0] == "gap 50.0 %"
    assert card_of(view, "pinned").notes[0] == "optimal"


@pytest.mark.parametrize(("method", "goes_on"), [("enplace", True), ("expert", False)])
def test_a_long_search_can_go_on_but_the_experts_plan_is_none(open_view, method, goes_on):
    document = three_plans()
    slow = next(entry for entry in document.plans if entry.name == "plan 1")
    searched = replace(slow.plan, method=method, solve_seconds=30.0)
    schedule = replace(slow.schedule, plan=searched)
    document.add_plan(PlanEntry("found", searched, schedule), choose=True)
    view = open_view(document)
    card = card_of(view, "found")
    assert card.go_on.isHidden() != goes_on


def test_plans_are_listed_fastest_first(open_view):
    view = open_view(three_plans())
    assert names(view)[0] == "both"
    assert set(names(view)[1:]) == {"plan 1", "expert"}


def test_a_card_compares_the_plan_with_the_expert(open_view):
    document = three_plans()
    card = card_of(open_view(document), "both")
    assert (card.step, card.standing) == ("0.010 ms", "−50.0 % vs expert")
    assert card.notes[0] == "optimal"
    assert standing(document.project, document.project.expert) == ("reference", "dim")


def test_a_tie_with_the_expert_is_no_percentage():
    document = three_plans()
    mine = next(e for e in document.plans if e.name not in ("both", "expert"))
    assert standing(document.project, mine) == ("as fast as expert", "dim")
    assert brief_standing("as fast as expert") == "as fast"
    assert brief_standing("−50.0 % vs expert") == "−50.0 %"


def test_a_plan_for_a_pipeline_is_listed_last_with_its_own_number(open_view):
    document = three_plans()
    entry = document.plans[-1]
    for name, value_us, bound_us, proven in (
        ("slower", 12.0, 6.0, False),
        ("best", 8.0, 8.0, True),
        ("unsure", 9.0, 9.0, False),
    ):
        plan = replace(
            entry.plan,
            objective=THROUGHPUT,
            value_us=value_us,
            bound_us=bound_us,
            proven=proven,
        )
        document.add_plan(replace(entry, name=name, plan=plan))
    view = open_view(document)
    assert names(view)[-3:] == ["best", "unsure", "slower"]
    best, unsure, slower = view.cards[-3:]
    assert (best.step, best.standing) == ("0.0080 ms/sample", "proven best")
    assert (unsure.step, unsure.standing) == ("0.0090 ms/sample", "gap 0.0 %")
    assert (slower.step, slower.standing) == ("0.012 ms/sample", "gap 50.0 %")
    assert best.notes[0] == "one step 0.010 ms"


def test_a_note_of_the_method_is_in_the_tooltip(open_view):
    document = three_plans()
    entry = document.plans[-1]
    noted = replace(entry, plan=replace(entry.plan, note="Linear orders only."))
    assert "Linear orders only." in tooltip(document.project, document.bounds, noted, "")


def test_a_plan_that_does_not_fit_is_marked(open_view):
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 60, "b": 60})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 0})
    card = open_view(document).cards[0]
    assert (card.standing, card._standing_role) == ("does not fit", "bad")
    assert card.notes[0] == "GPU 0 needs 20 B more"
    assert "does not fit: GPU 0 needs 20 B more" in tooltip(
        document.project, document.bounds, card.entry, ""
    )


def test_a_plan_that_does_not_fit_is_listed_last_however_fast(open_view):
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 8)], persistent={"a": 60, "b": 60})
    cluster = cluster_of(2, b0_us=50.0, capacity_bytes=100)
    document = document_of(profile, cluster, {"a": 0, "b": 0}, {"a": 0, "b": 1})
    slow, fast = open_view(document).cards
    assert (slow.entry.name, fast.entry.name) == ("plan 2", "plan 1")
    assert fast.entry.schedule.makespan_us < slow.entry.schedule.makespan_us


def test_a_click_shows_a_plan(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    QTest.mouseClick(card_of(view, "both"), LEFT)
    assert document.current.name == "both"
    qtbot.waitUntil(lambda: card_of(view, "both").isChecked())
    assert sum(card.isChecked() for card in view.cards) == 1


def test_the_shown_plan_stays_checked_when_clicked_again(open_view, qtbot):
    view = open_view(three_plans())
    QTest.mouseClick(card_of(view, "plan 1"), LEFT)
    qtbot.waitUntil(lambda: card_of(view, "plan 1").isChecked())


def test_ctrl_click_compares_with_the_shown_plan(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    with qtbot.waitExposed(view):
        pass
    QTest.mouseClick(card_of(view, "both"), LEFT, CTRL)
    assert document.current.name == "plan 1"
    lines = {line.label: line for line in view.comparison.differences}
    assert lines["step time"].values == ("0.020 ms", "0.010 ms")
    assert lines["step time"].better == 1
    assert lines["peak GPU 0"].values == ("100 B", "100 B")
    assert lines["ops elsewhere"].values[0] == "1"
    assert [lines[f"  {part}"].values for part in ("compute", "transfers", "waiting")] == [
        ("0.020 ms", "0.010 ms"),
        ("0 ms", "0 ms"),
        ("0 ms", "0 ms"),
    ]
    assert card_of(view, "both").is_compared
    select = next(b for b in view.comparison.findChildren(QPushButton) if "Select" in b.text())
    assert select.text() == "Select 1 op elsewhere"
    select.click()
    assert document.selection == {1}


def test_a_plan_for_another_cluster_is_last_and_not_compared_with_the_expert(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    document.set_cluster(cluster_of(1, capacity_bytes=100))
    qtbot.waitUntil(lambda: any(card.entry.cluster for card in view.cards))
    kept = [card for card in view.cards if card.entry.cluster is not None]
    assert view.cards[-len(kept) :] == kept
    for card in kept:
        assert card.standing == "another cluster"
        assert card.stale == f"for {card.entry.cluster.name}"
        assert "click to switch back" in card.tip()


def test_a_comparison_follows_the_shown_plan_and_closes(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    view.compare_with(card_of(view, "both").entry)
    document.choose_plan(document.project.expert)

    def against_expert():
        found = {line.label: line.values for line in view.comparison.differences}
        return found["vs expert"]

    qtbot.waitUntil(lambda: against_expert() == ("reference", "−50.0 %"))
    view.compare_with(card_of(view, "both").entry)
    assert view.comparison is None


def test_transfers_are_compared():
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 50)])
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 1}, {"a": 0, "b": 0})
    first, second = document.plans
    lines = {
        line.label: line.values
        for line in compare(document.project, document.bounds, first, second)
    }
    assert lines["transfers"] == ("1", "0")
    assert lines["sent"] == ("50 B", "0 B")
    assert lines["sending"] == ("0.051 ms", "0 ms")


def test_the_menu_renames_in_place(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    card = card_of(view, "both")
    with qtbot.waitExposed(view):
        view.edit_name(card)
    editor = card.findChild(QLineEdit)
    editor.setText("halves")
    QTest.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: "halves" in names(view))
    document.undo_stack.undo()
    qtbot.waitUntil(lambda: "both" in names(view))


def test_the_menu_duplicates_removes_and_exports(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    actions = {a.text(): a for a in view.menu_of(card_of(view, "both")).actions()}
    with qtbot.waitSignal(document.requests.export_plan) as exported:
        actions["Export plan.json…"].trigger()
    assert exported.args[0].name == "both"
    actions["Duplicate"].trigger()
    qtbot.waitUntil(lambda: "both, copy" in names(view))
    card = card_of(view, "both, copy")
    {a.text(): a for a in view.menu_of(card).actions()}["Remove"].trigger()
    qtbot.waitUntil(lambda: "both, copy" not in names(view))


def test_a_plan_that_breaks_a_pin_is_marked(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    document.pin_here([0])
    expert = document.project.expert
    assert why_stale(document.problem, expert) == "without your pins"
    assert why_stale(document.problem, document.current) == ""
    qtbot.waitUntil(lambda: card_of(view, "expert").notes[0] == "without your pins")


def test_an_empty_list_explains_how_to_make_a_plan(open_view):
    view = open_view(Document())
    view.grab()
    assert view.cards == []


def test_nothing_is_compared_with_an_expert_plan_that_does_not_fit():
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 600, "b": 600})
    document = document_of(profile, cluster_of(2, capacity_bytes=1000), {"a": 0, "b": 0})
    add_plan(document, "spread", {"a": 0, "b": 1})
    expert = replace(document.plans[0], plan=replace(document.plans[0].plan, method="expert"))
    document.open(replace(document.project, plans=(expert, document.plans[1])))
    assert document.project.expert is not None
    assert standing(document.project, document.project.expert) == ("does not fit", "bad")
    assert standing(document.project, document.plans[1]) == ("expert does not fit", "dim")


def test_a_starred_plan_comes_first_and_undo_takes_the_star_back(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    last = view.cards[-1].entry
    document.star_plan(last)
    qtbot.waitUntil(lambda: view.cards[0].entry.starred)
    assert view.cards[0].entry.name == last.name
    assert "starred" in view.cards[0].accessibleName()
    document.undo_stack.undo()
    qtbot.waitUntil(lambda: view.cards[-1].entry.name == last.name)


def test_a_note_is_written_in_place_and_shown_on_the_card(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    name = view.cards[0].entry.name
    view.edit_remark(view.cards[0])
    editor = view.cards[0].findChild(QLineEdit)
    editor.setText("for the paper")
    QTest.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: view.cards[0].entry.remark == "for the paper")
    assert "for the paper" in view.cards[0].notes
    QApplication.sendEvent(view.cards[0], QEnterEvent(QPointF(), QPointF(), QPointF()))
    assert "your note: for the paper" in view.cards[0].toolTip()
    assert document.plans[[e.name for e in document.plans].index(name)].remark == "for the paper"
    assert "note on" in document.undo_stack.undoText()


def test_stars_and_notes_are_saved_with_the_project(tmp_path):
    document = three_plans()
    document.star_plan(document.current)
    document.remark_plan(document.current, "for the paper")
    write_project(tmp_path / "p.enplace", session.to_project(document.project, {}))
    opened = session.open_file(tmp_path / "p.enplace").project
    assert (opened.current.starred, opened.current.remark) == (True, "for the paper")


def test_the_list_and_the_comparison_are_copied_as_text(open_view, qtbot):
    view = open_view(three_plans())
    with qtbot.waitActive(view):
        view.activateWindow()
    card = card_of(view, "both")
    QTest.mouseClick(card, LEFT, CTRL)
    card.setFocus()
    QTest.keyClick(card, Qt.Key.Key_C, CTRL)
    rows = [row.split("\t") for row in QGuiApplication.clipboard().text().split("\n")]
    assert rows[0] == ["plan", "time", "standing", "notes"]
    assert ["both", "0.010 ms"] in [row[:2] for row in rows]
    qtbot.waitUntil(view.comparison.isVisible)
    QTest.mouseClick(view.comparison, LEFT)
    QTest.keyClick(view.comparison, Qt.Key.Key_C, CTRL)
    lines = QGuiApplication.clipboard().text().split("\n")
    assert lines[0] == "\tplan 1\tboth"
    assert "step time\t0.020 ms\t0.010 ms" in lines


def test_the_memory_that_a_plan_lacks_is_legible_in_a_narrow_pane(open_view, qtbot):
    weights = dict.fromkeys("ab", 900 << 20)
    profile = profile_of({"a": 10, "b": 10}, persistent=weights)
    cluster = cluster_of(2, capacity_bytes=1000 << 20)
    view = open_view(document_of(profile, cluster, {"a": 0, "b": 0}), 170)
    card = view.cards[0]
    assert card.notes[0] == "GPU 0 needs 800 MiB more"
    assert card.heightForWidth(150) > card.heightForWidth(600)
    qtbot.waitUntil(lambda: card.height() == card.heightForWidth(card.width()))


def test_a_plan_for_another_cluster_is_solved_again_from_its_card(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    assert not view.cards[0].renew.isVisible()
    document.set_cluster(cluster_of(1, capacity_bytes=100))
    qtbot.waitUntil(lambda: any(card.entry.cluster for card in view.cards))
    asked = []
    document.requests.renew_plan.connect(asked.append)
    view.cards[-1].renew.click()
    assert asked == [view.cards[-1].entry]


def test_a_click_that_switches_the_cluster_says_so(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    document.set_cluster(cluster_of(1, capacity_bytes=100))
    qtbot.waitUntil(lambda: any(card.entry.cluster for card in view.cards))
    name = view.cards[-1].entry.name
    noticed, failed = [], []
    document.noticed.connect(noticed.append)
    document.failed.connect(failed.append)
    QTest.mouseClick(view.cards[-1], LEFT)
    assert not failed
    (text,) = noticed
    assert text.startswith("Now on ")
    assert name in text
    document.undo_stack.undo()
    assert document.problem.cluster.n_devices == cluster_of(1).n_devices


def test_no_side_that_does_not_fit_is_called_better(open_view):
    profile = profile_of({"a": 10, "b": 10}, persistent={"a": 100, "b": 100})
    document = document_of(profile, cluster_of(2, capacity_bytes=150), {"a": 0, "b": 1})
    add_plan(document, "one", {"a": 0, "b": 0})
    first, second = document.plans
    assert not second.schedule.fits
    lines = compare(document.project, document.bounds, first, second)
    assert all(line.better != 1 for line in lines)


def test_many_plans_have_a_line_each_and_only_the_shown_one_has_more(open_view):
    document = three_plans()
    for number in range(CROWD):
        add_plan(document, f"more {number}", {"a": 0, "b": 0})
    view = open_view(document)
    heights = {card.entry.name: card.heightForWidth(220) for card in view.cards}
    assert heights["more 1"] < heights[document.current.name] - 15


def test_the_tip_of_a_plan_marks_the_time_of_a_what_if():
    document = three_plans()
    document.set_scale(1.0, 2.0)
    told = tooltip(document.project, document.bounds, document.current, "")
    assert f"({what_if_text(1.0, 2.0)})" in told


def test_a_name_too_long_for_its_line_continues_below(open_view):
    document = three_plans()
    add_plan(document, "both, with ops split", {"a": 0, "b": 1})
    card = card_of(open_view(document), "both, with ops split")
    assert card.name_lines(180) == ("both", "with ops split")
    assert card.lines(180)[0][0].startswith("with ops split")
    assert card.name_lines(400) == ("both, with ops split", "")


def test_no_title_however_long_hides_a_figure(open_view, qtbot):
    document = three_plans()
    long = "both, with ops split, 384 ops pinned, 10 s"
    document.remark_plan(add_plan(document, long, {"a": 0, "b": 1}, choose=True), "for the paper")
    document.set_scale(1.0, 2.0)
    document.bounds.proofs.of_rivals(document.schedule)
    card, what_if = card_of(open_view(document), long), what_if_text(1.0, 2.0)
    for width in (160, 220, 400):
        shown = " · ".join(text for line in card.lines(width) for text in line).split(" · ")
        assert {what_if, "optimal", "for the paper", card.standing} <= {*shown}


def test_a_click_before_the_list_follows_an_edit_shows_the_plan_as_it_is_now(open_view):
    document = three_plans()
    view = open_view(document)
    clicked = card_of(view, "both")
    document.set_scale(2.0, 1.0)
    QTest.mouseClick(clicked, LEFT)
    assert document.current.name == "both"
    assert document.current in document.plans
    assert document.current.schedule.makespan_us == pytest.approx(5)


def test_a_request_for_a_plan_that_is_gone_changes_nothing(open_view):
    document = three_plans()
    gone = document.plans[-1]
    document.remove_plan(gone)
    before = document.project
    requests = (document.choose_plan, document.remove_plan, document.star_plan)
    assert not any(request(gone) for request in requests)
    assert not document.rename_plan(gone, "late")
    assert not document.remark_plan(gone, "late")
    assert document.project is before


def is_in_view(view, card):
    top = card.mapTo(view.column.viewport(), QPoint(0, 0)).y()
    return top >= 0 and top + card.height() <= view.column.viewport().height()


@pytest.fixture
def long_list(open_view, qtbot):
    """Twelve plans, of which three or so are in view."""
    document = three_plans()
    for number in range(9):
        add_plan(document, f"other {number}", {"a": 0, "b": 1})
    view = open_view(document, height=200)
    view.add_below(QPushButton("below"))
    with qtbot.waitActive(view):
        view.activateWindow()
    qtbot.waitUntil(lambda: view.column.verticalScrollBar().maximum() > 0)
    take_turns()
    view.column.verticalScrollBar().setValue(0)
    return view


def test_a_click_on_a_plan_leaves_the_list_where_it_is(long_list, qtbot):
    view = long_list
    view.cards[0].setFocus()
    name = view.cards[1].entry.name
    QTest.mouseClick(view.cards[1], LEFT, NONE)
    qtbot.waitUntil(lambda: not view._later.isActive())
    qtbot.wait(0)
    assert view._document.current.name == name
    assert view.column.verticalScrollBar().value() == 0
    assert is_in_view(view, card_of(view, name))


def test_an_edited_plan_is_scrolled_into_view(long_list, qtbot):
    view = long_list
    view._document.choose_plan(card_of(view, "other 8").entry)
    view.column.verticalScrollBar().setValue(0)
    view._document.place([1], 0)
    edited = view._document.current.name
    qtbot.waitUntil(lambda: edited in names(view) and is_in_view(view, card_of(view, edited)))
    assert view.column.verticalScrollBar().value() > 0


def test_a_comparison_below_a_long_list_comes_into_sight(long_list, qtbot):
    view = long_list
    entry = next(card.entry for card in view.cards if not card.isChecked())
    view.compare_with(entry)
    assert view.pair == [entry, view._document.current]
    qtbot.waitUntil(lambda: view.column.verticalScrollBar().value() > 0)


@pytest.fixture
def many_names(open_view):
    document = three_plans()
    for what in (
        *("1 order", "1 order, ops split", "2 ops pinned, 1 order", "2 ops pinned, 1 order, run 2"),
        *("75 ops pinned, 1 order, 10 s", "75 ops pinned, 1 order, 30 s"),
    ):
        add_plan(document, f"Enplace, {what}", {"a": 0, "b": 0})
    add_plan(document, "Weights of the decoder kept in the host's memory", {"a": 0, "b": 0})
    return open_view(document)


def test_a_long_name_goes_on_in_a_second_line(many_names):
    card = card_of(many_names, "Enplace, 2 ops pinned, 1 order, run 2")
    assert card.is_brief
    assert card.name_lines(1000) == (card.entry.name, "")
    assert card.name_lines(220) == ("Enplace", "2 ops pinned, 1 order, run 2")
    assert card.heightForWidth(220) > card.heightForWidth(1000)


@pytest.mark.parametrize("width", [150, 180, 220])
def test_a_name_is_never_cut_at_its_beginning_and_no_two_look_alike(many_names, width):
    shown = {card.entry.name: card.name_lines(width) for card in many_names.cards}
    assert len(set(shown.values())) == len(shown)
    for name, (first, rest) in shown.items():
        start = first.partition("…")[0].rstrip()
        assert start
        assert name.startswith(start)
        assert rest[:1] != "…"
        if "…" not in first:
            assert rest.partition("…")[0].rstrip() in name


def test_expert_plans_for_other_clusters_are_folded_under_one_line(open_view, qtbot):
    document = three_plans()
    view = open_view(document)
    assert not view.others.isVisible()
    document.set_cluster(cluster_of(1, capacity_bytes=100))
    qtbot.waitUntil(lambda: view.others.text() == "▸ 1 expert plan for other clusters")
    assert "expert" not in names(view)
    view.others.click()
    assert "expert" in names(view)
    view.others.click()
    assert "expert" not in names(view)


def test_a_plan_stands_below_the_one_it_was_made_from_and_stays_there_when_that_is_renamed():
    document = chain_document()
    add_plan(document, "other", {"a": 0, "b": 0, "c": 0})
    document.duplicate_plan(document.plans[0])
    document.place([0], 1)  # an edit of the copy
    document.rename_plan(document.plans[0], "first")
    tree = [(entry.name, depth) for entry, depth in as_tree(document.plans)]
    assert tree == [
        ("first", 0),
        ("plan 1, copy", 1),
        ("plan 1, copy, edited", 2),
        ("other", 0),
    ]


def test_plans_that_are_said_to_be_made_from_each_other_are_all_listed():
    document = chain_document()
    add_plan(document, "other", {"a": 0, "b": 0, "c": 0})
    one, other = document.plans
    circle = [replace(one, made_from="other"), replace(other, made_from=one.name)]
    assert {entry.name for entry, _ in as_tree(circle)} == {one.name, "other"}
