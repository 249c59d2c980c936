"""Ops dragged along their lane: where they may go, what it costs, and what is kept."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.machine.schedule_faults import find_faults
from tests.core.placers.problems import problems

from documents import document_of
from enplace.errors import OrderError, PlanError
from enplace.machine import simulate
from enplace.names.groups import Grouping
from enplace.placers import place
from enplace.writers import write_project
from enplace_studio.files import session
from enplace_studio.model.ordering import (
    Slot,
    find_range,
    keeps_order,
    next_slot,
    ordered,
    reordered_schedule,
    slot_at,
)
from enplace_studio.model.plan_facts import why_stale
from enplace_studio.views.inspector.inspector_facts import place_sentence
from enplace_studio.widgets.dragging import describe_order
from problems import cluster_of, profile_of

FOUR = profile_of({"a": 10, "b": 20, "c": 5, "d": 5}, [("a", "d", 8)])


@pytest.fixture
def document():
    """Four ops on one GPU, in the order of their names; only d needs a."""
    return document_of(FOUR, cluster_of(2), dict.fromkeys("abcd", 0))


def order(document):
    return "".join(FOUR.op_names[op] for op in np.argsort(document.schedule.op_start_us).tolist())


def test_ops_may_go_from_the_last_they_need_to_the_first_that_needs_them(document):
    of_d, of_a = (find_range(document.schedule, [op]) for op in (3, 0))
    assert (of_d.earliest_us, of_d.latest_us, of_d.others.tolist()) == (10, 40, [1, 2])
    assert (of_a.earliest_us, of_a.latest_us, of_a.others.tolist()) == (0, 35, [1, 2])


def reopened(document, path):
    write_project(path, session.to_project(document.project, document.view))
    return session.open_file(path).project


def test_a_plan_without_the_order_is_as_it_was_when_the_project_is_opened_again(document, tmp_path):
    document.reorder([3], Slot(1, earlier=True))
    project, again = document.project, reopened(document, tmp_path / "p.enplace")
    for now, then in zip(again.plans, project.plans, strict=True):
        assert now.schedule.op_start_us.tolist() == then.schedule.op_start_us.tolist()
        assert why_stale(again.problem, now) == why_stale(project.problem, then)
    assert {why_stale(again.problem, each) for each in again.plans} == {"", "without your order"}


def test_what_is_saved_of_an_order_is_the_same_in_a_what_if(tmp_path):
    """With faster links, the plan without the order keeps it by chance."""
    profile = profile_of({"a": 10, "b": 1, "c": 12, "d": 6}, [("a", "b", 8), ("c", "d", 1)])
    document = document_of(profile, cluster_of(3), {"a": 0, "b": 1, "c": 2, "d": 1})
    document.reorder([1], Slot(3, earlier=True))
    project = document.project
    assert not keeps_order(document.problem, document.plans[0].schedule)
    document.set_scale(1.0, 8.0)
    assert keeps_order(document.problem, document.plans[0].schedule)
    again = reopened(document, tmp_path / "p.enplace")
    for now, then in zip(again.plans, project.plans, strict=True):
        assert now.schedule.op_start_us.tolist() == then.schedule.op_start_us.tolist()
        assert now.schedule.problem.constraints == then.schedule.problem.constraints


def test_ops_of_several_devices_have_no_place_in_one_order(document):
    document.place([3], 1)
    with pytest.raises(PlanError, match="several devices"):
        find_range(document.schedule, [2, 3])


def test_ops_of_pytorch_keep_the_order_of_the_script(qtbot):
    recorded = replace(FOUR, measured=replace(FOUR.measured, framework="torch"))
    document = document_of(recorded, cluster_of(2), dict.fromkeys("abcd", 0))
    with qtbot.waitSignal(document.failed) as said:
        assert not document.run_next([1], earlier=True)
    assert said.args == ["PyTorch keeps the script's order; to change it, change the script"]


@pytest.mark.parametrize(
    ("time_us", "slot"),
    [(1, Slot(1, True)), (19, Slot(1, True)), (21, Slot(2, True)), (36, None), (99, None)],
)
def test_a_moment_is_a_place_before_or_after_another_op(document, time_us, slot):
    assert slot_at(document.schedule, find_range(document.schedule, [3]), time_us) == slot


def test_an_op_runs_where_it_was_dropped_and_the_order_is_kept(document):
    assert document.reorder([3], Slot(1, earlier=True))
    assert order(document) == "adbc"
    assert document.problem.before == ((3, 1),)
    assert "run “d” before “b”" in document.undo_stack.undoText()
    document.undo_stack.undo()
    assert (order(document), document.problem.before) == ("abcd", ())
    document.undo_stack.redo()
    assert order(document) == "adbc"


def test_a_later_place_takes_along_what_needs_the_op(document):
    assert document.reorder([0], Slot(2, earlier=False))
    assert order(document) == "bcad"


def test_a_new_order_replaces_one_that_contradicts_it(document):
    document.reorder([3], Slot(1, earlier=True))
    document.reorder([3], Slot(2, earlier=False))
    assert document.problem.before == ((2, 3),)
    assert order(document) == "abcd"


def test_an_order_against_the_graph_is_refused_and_changes_nothing(document, qtbot):
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.reorder([3], Slot(0, earlier=True))
    assert "wait for each other" in failed.args[0]
    assert order(document) == "abcd"


def test_the_keys_move_an_op_step_by_step_to_the_end_of_its_range(document, qtbot):
    assert document.run_next([3], earlier=True)
    assert order(document) == "abdc"
    assert document.run_next([3], earlier=True)
    assert order(document) == "adbc"
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.run_next([3], earlier=True)
    assert "cannot run earlier: it needs a" in failed.args[0]
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.run_next([0], earlier=True)
    assert failed.args == ["nothing runs before it on this device"]
    assert document.run_next([3], earlier=False)
    assert order(document) == "abdc"


def test_a_forgotten_order_leaves_the_plan_free(document):
    document.reorder([3], Slot(1, earlier=True))
    assert document.forget_order([1])
    assert document.problem.before == ()
    assert document.problem.profile is FOUR


def test_forgetting_what_nobody_ordered_says_so(document, qtbot):
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.forget_order([0])
    assert "nobody has ordered" in failed.args[0]


def test_plans_made_before_are_marked_and_the_price_is_against_them(document):
    before = document.current
    document.reorder([0], Slot(2, earlier=False))
    assert document.current.origin is before
    assert why_stale(document.problem, before) == "without your order"
    assert why_stale(document.problem, document.current) == ""


def test_the_inspector_says_what_was_ordered(document):
    document.reorder([3], Slot(1, earlier=True))
    problem, schedule = document.problem, document.schedule
    assert "Runs before b, as you wish." in place_sentence(problem, schedule, np.array([3]))
    assert "Runs after d, as you wish." in place_sentence(problem, schedule, np.array([1]))


def test_the_order_is_saved_with_the_project(document, tmp_path):
    from enplace.writers import write_project

    document.reorder([3], Slot(1, earlier=True))
    path = tmp_path / "p.enplace"
    write_project(path, session.to_project(document.project, {}))
    opened = session.open_file(path).project
    assert opened.problem.before == ((3, 1),)
    assert opened.current.schedule.op_start_us.tolist() == document.schedule.op_start_us.tolist()
    assert opened.problem.measured_profile.n_edges == FOUR.n_edges


def test_the_order_survives_other_speeds_clusters_and_costs(document):
    document.reorder([3], Slot(1, earlier=True))
    document.set_scale(2.0, 1.0)
    assert (order(document), document.problem.before) == ("adbc", ((3, 1),))
    document.set_cluster(cluster_of(3))
    assert (order(document), document.problem.before) == ("adbc", ((3, 1),))
    document.take_costs(document.current, FOUR.with_costs(FOUR.time_us * 3))
    assert (order(document), document.problem.before) == ("adbc", ((3, 1),))
    assert document.schedule.makespan_us == 60


def test_solvers_keep_the_order(document):
    document.reorder([3], Slot(1, earlier=True))
    for method in ("heft", "enplace"):
        assert keeps_order(document.problem, place(document.problem, method).schedule)


@given(problems(), st.integers(0, 2**32 - 1), st.booleans())
def test_any_drop_in_the_range_gives_a_legal_schedule(problem, seed, earlier):
    schedule = place(problem, "m-etf").schedule
    rng = np.random.default_rng(seed)
    ops = [int(rng.integers(problem.profile.n_ops))]
    slot = next_slot(schedule, find_range(schedule, ops), earlier)
    if slot is None:
        return
    try:
        wanted, plan = ordered(problem, schedule, ops, slot)
    except OrderError:  # it contradicts an order of other ops
        assert problem.before
        return
    after = reordered_schedule(problem, schedule, ops, slot)
    assert find_faults(after) == []
    assert keeps_order(wanted, after)
    edges = wanted.profile.edge_source, wanted.profile.edge_op
    if (schedule.plan.position[edges[0]] < schedule.plan.position[edges[1]]).all():
        assert (plan.position[edges[0]] < plan.position[edges[1]]).all()
    assert after.makespan_us == simulate(wanted, plan).makespan_us


def test_a_place_that_changes_nothing_is_told(document):
    drop = describe_order(document, [3], Slot(2, earlier=False))
    assert not drop.changes
    assert "Nothing changes" in drop.text
    assert describe_order(document, [3], Slot(1, earlier=True)).changes


def test_constants_do_not_count_for_when_a_group_runs():
    profile = profile_of({"a": 10, "b": 10, "constant": 0})
    document = document_of(profile, cluster_of(1), dict.fromkeys(("a", "b", "constant"), 0))
    where = find_range(document.schedule, [1, 2])
    assert (where.start_us, where.finish_us) == (10, 20)
    assert slot_at(document.schedule, where, 1) == Slot(0, earlier=True)


def test_ops_of_one_name_are_told_apart_by_their_scopes():
    names = [f"net/l_{layer}/{part}/MatMul" for layer in (1, 2) for part in ("attn", "ffn")]
    profile = profile_of(dict.fromkeys(names, 10))
    document = document_of(profile, cluster_of(2), dict.fromkeys(names, 0))
    titles = ("layer 1", "layer 2")
    grouping = Grouping(np.array([0, 0, 1, 1]), titles, titles, titles)
    project = replace(document.project, grouping=grouping)
    assert project.describe([0]) == project.describe([1])
    assert project.describe_two([0], 1) == ("attn/MatMul", "ffn/MatMul")
    assert project.describe_two([0], 2) == (project.describe([0]), project.describe([2]))
