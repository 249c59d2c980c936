from dataclasses import replace
from pathlib import Path

import pytest

from documents import add_plan, chain_document, document_of
from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.text import ms
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from enplace_studio.model.constraints import list_constraints
from enplace_studio.model.open_project import PlanEntry
from enplace_studio.model.previews import find_preview
from enplace_studio.model.prices import headline
from problems import cluster_of, plan_of, profile_of


def places(document):
    return document.current.plan.device.tolist()


def snapshot(document):
    problem = document.problem
    return (
        dict(problem.pins),
        problem.together,
        problem.forbidden,
        problem.before,
        problem.cluster,
        [(entry.name, entry.plan.device.tolist()) for entry in document.plans],
        document.current.name,
        document.schedule.makespan_us,
    )


EDITS = {
    "place": lambda d: d.place([2], 0),
    "move": lambda d: d.place([2], 0, pin=False),
    "pin": lambda d: d.pin_here([0, 1]),
    "forbid": lambda d: d.forbid([2], 1),
    "colocate": lambda d: d.colocate([0, 2]),
    "cluster": lambda d: d.set_cluster(cluster_of(3)),
    "scale": lambda d: d.set_scale(2.0, 0.5),
    "add": lambda d: add_plan(d, "other", {"a": 1, "b": 1, "c": 1}),
    "remove": lambda d: d.remove_plan(d.current),
    "rename": lambda d: d.rename_plan(d.current, "mine"),
    "choose": lambda d: d.choose_plan(d.plans[1]),
}


@pytest.fixture
def document():
    made = chain_document()
    add_plan(made, "all on one", {"a": 0, "b": 0, "c": 0})
    made.undo_stack.clear()
    return made


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_can_be_undone_and_redone(document, name):
    before = snapshot(document)
    EDITS[name](document)
    after = snapshot(document)
    assert after != before
    assert document.undo_stack.undoText()
    document.undo_stack.undo()
    assert snapshot(document) == before
    document.undo_stack.redo()
    assert snapshot(document) == after


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda d: d.pin_here([0]), lambda d: d.unpin([0])),
        (lambda d: d.forbid([0], 1), lambda d: d.allow([0], 1)),
        (lambda d: d.colocate([0, 1]), lambda d: d.separate([0])),
    ],
)
def test_an_edit_and_its_opposite_restore_the_constraints(document, first, second):
    before = snapshot(document)[:3]
    first(document)
    second(document)
    assert snapshot(document)[:3] == before


def test_a_what_if_is_no_unsaved_change(document):
    document.mark_saved(Path("p.enplace"), None, document.work)
    document.set_scale(2.0, 3.1)
    assert not document.modified
    document.place([2], 0)
    document.set_scale(4.0, 3.1)
    assert document.modified
    assert document.undo_stack.last_change.startswith("pin")
    document.undo_stack.setIndex(0)
    assert not document.modified


def test_a_plan_of_another_objective_is_priced_in_it(document):
    plan = replace(document.current.plan, objective="throughput")
    plan = replace(check_claims(document.problem, plan), bound_us=15.0, rivals=None)
    made = PlanEntry("loads", plan, simulate(document.problem, plan))
    document.add_plan(made)
    preview = document.previews.get([2], 0)
    assert preview.price == f"{ms(30)}/sample"
    document.place([2], 0)
    assert headline(document.current.plan, document.schedule) == f"{ms(30)}/sample"
    assert document.current.plan.bound_us is None
    document.choose_plan(made)
    document.set_scale(2.0, 1.0)
    assert document.current.plan.value_us < plan.value_us
    document.set_scale(1.0, 1.0)
    assert document.current.plan.value_us == plan.value_us
    assert document.current.plan.bound_us == plan.bound_us


def test_placing_pins_and_simulates_at_once(document):
    assert document.place([2], 0)
    assert places(document) == [0, 0, 0]
    assert document.problem.pins == {2: 0}
    assert document.schedule.makespan_us == 30


def test_an_edited_plan_says_from_which_it_was_made_not_what_a_search_said_of_that_one(document):
    entry = document.current
    found = {"note": "the best of 60 linear orders", "details": {"ideals": 60}}
    document.add_plan(replace(entry, name="found", plan=replace(entry.plan, **found)))
    document.place([2], 0)
    assert document.current.plan.note == "Edited by hand, from “found”."
    assert not document.current.plan.details
    document.undo_stack.undo()
    assert document.current.plan.note == found["note"]


def test_placing_an_op_moves_the_ops_colocated_with_it():
    profile = profile_of({"a": 10, "b": 10}, colocation={"a": "g", "b": "g"})
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0})
    document.place([0], 1)
    assert places(document) == [1, 1]


def test_the_first_edit_adds_a_row_and_later_edits_replace_it(document):
    document.place([2], 0)
    document.place([1], 1)
    assert [entry.name for entry in document.plans] == ["plan 1", "plan 1, edited", "all on one"]
    assert document.project.baseline is document.plans[0].schedule


def test_no_plan_takes_the_name_of_another(document):
    first = document.current
    document.duplicate_plan(first)
    assert document.rename_plan(document.current, first.name)
    assert document.current.name == f"{first.name} 2"
    assert not document.rename_plan(document.current, document.current.name)


def test_the_ghost_survives_a_rename_and_a_change_of_speed(document):
    document.place([2], 0)
    document.rename_plan(document.plans[0], "renamed")
    document.set_scale(2.0, 1.0)
    assert document.current.origin is document.plans[0]
    assert document.project.baseline.problem.cluster is document.problem.cluster


def test_moving_without_a_pin_removes_an_older_pin(document):
    document.place([2], 0)
    document.place([2], 1, pin=False)
    assert document.problem.pins == {}
    assert places(document) == [0, 0, 1]


def test_forbidding_moves_the_op_away(document):
    document.forbid([2], 1)
    assert places(document) == [0, 0, 0]


def test_colocated_ops_move_to_the_device_with_most_of_their_time(document):
    document.colocate([0, 1, 2])
    assert places(document) == [0, 0, 0]


def test_a_contradiction_is_refused_with_a_reason_and_changes_nothing(document, qtbot):
    document.pin_here([0])
    before = snapshot(document)
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.forbid([0], 0)
    assert "pinned" in failed.args[0]
    assert snapshot(document) == before


def test_an_op_is_not_placed_where_it_cannot_run(qtbot):
    profile = profile_of({"a": 10})
    document = document_of(profile, cluster_of(1, cpu_lanes=1), {"a": 0})
    with qtbot.waitSignal(document.failed):
        assert not document.place([0], 1)


def test_a_drop_where_the_ops_are_pinned_already_is_no_step_of_undo(document):
    assert document.place([2], 0)
    assert not document.place([2], 0)
    assert document.undo_stack.count() == 1


def test_a_preview_shows_the_effect_and_changes_nothing(document):
    before = snapshot(document)
    preview = document.previews.get([2], 0)
    assert (preview.value_us, preview.delta_us) == (30, -21)
    assert snapshot(document) == before
    document.place([2], 0)
    assert document.schedule.makespan_us == preview.value_us
    assert document.schedule.peak_bytes.tolist() == preview.peak_bytes.tolist()


def test_a_drop_is_scheduled_as_if_it_had_not_been_previewed(document):
    document.pin_here([0])
    document.previews.get([2], 0)
    document.place([2], 0)
    fresh = simulate(document.problem, document.current.plan)
    assert document.schedule.problem is document.problem
    assert document.schedule.plan is document.current.plan
    assert document.schedule.op_start_us.tolist() == fresh.op_start_us.tolist()


def test_a_preview_ignores_the_pins_of_the_moved_ops(document):
    document.pin_here([2])
    assert document.previews.get([2], 0).value_us == 30


def test_a_preview_of_an_impossible_move_gives_the_reason():
    document = document_of(profile_of({"a": 10}), cluster_of(1, cpu_lanes=1), {"a": 0})
    preview = document.previews.get([0], 1)
    assert not preview.fits
    assert "cannot run" in preview.why_not


def test_a_preview_of_an_impossible_move_counts_only_the_ops_that_were_asked_about():
    colocated = Constraints(together=[(0, 1)])
    problem = Problem(profile_of({"a": 10, "b": 10}), cluster_of(1, cpu_lanes=1), colocated)
    before = simulate(problem, plan_of(problem, {"a": 0, "b": 0}))
    assert find_preview(problem, before, frozenset({0}), 1, False).whys[0].ops == (0,)


def test_a_smaller_cluster_switches_pins_off_and_keeps_plans_for_the_larger_one(document, qtbot):
    larger, names = document.project.cluster, [entry.name for entry in document.plans]
    document.pin_here([0, 2])
    with qtbot.waitSignal(document.noticed) as noticed:
        document.set_cluster(cluster_of(1))
    assert document.problem.pins == {0: 0}
    assert noticed.args == ["Switched off 1 constraint on devices that this cluster does not have"]
    assert [constraint.rows for constraint in document.project.off] == [(("c", "GPU:1"),)]
    assert [entry.name for entry in document.plans] == names
    kept = [entry for entry in document.plans if entry.cluster is not None]
    assert [entry.cluster for entry in kept] == [larger] * (len(names) - 1)
    assert document.current.name == "all on one"
    assert document.current.cluster is None
    document.set_cluster(larger)
    assert document.switch_constraint(document.project.off[0], on=True)
    assert document.problem.pins == {0: 0, 2: 1}


def test_what_is_on_the_cpu_stays_there_on_a_cluster_with_more_gpus():
    profile = profile_of(dict.fromkeys("abc", 10), [("a", "b", 8)], cpu=dict.fromkeys("ab", 20))
    document = document_of(profile, cluster_of(2, cpu_lanes=1), {"a": 2, "b": 1, "c": 0})
    document.pin_here([0])
    document.forbid([1], 2)
    document.lock(1)
    before = document.project
    document.set_cluster(cluster_of(4, cpu_lanes=1))
    assert document.problem.pins == {0: 4, 1: 1}
    assert document.problem.forbidden == {(1, 4)}
    assert document.current.cluster is None
    assert document.current.plan.device.tolist() == [4, 1, 0]
    held = list_constraints(document.problem, document.project.grouping, document.project.locks)
    assert [each for each in held if each.kind == "lock"] == list(before.locks)
    document.set_cluster(before.cluster)
    assert document.problem.pins == before.problem.pins
    assert document.current.plan.device.tolist() == [2, 1, 0]


def test_showing_a_plan_for_a_smaller_cluster_says_what_is_switched_off(qtbot):
    profile = profile_of(dict.fromkeys("ab", 10), [("a", "b", 8)], cpu={"a": 20})
    document = document_of(profile, cluster_of(1, cpu_lanes=1), {"a": 1, "b": 0})
    document.set_cluster(cluster_of(2))
    add_plan(document, "two GPUs", {"a": 0, "b": 1})
    document.pin_here([1])
    with qtbot.waitSignal(document.noticed) as noticed:
        assert document.choose_plan(document.plans[0])
    assert document.project.cluster.n_devices == 2
    assert noticed.args == ["Switched off 1 constraint on devices that this cluster does not have"]
    assert [each.rows for each in document.project.off] == [(("b", "GPU:1"),)]


def test_showing_a_plan_for_another_cluster_switches_back_to_it(document):
    larger, before = document.project.cluster, document.plans[0]
    document.set_cluster(cluster_of(1))
    kept = document.plans[0]
    assert kept.cluster == larger
    assert document.choose_plan(kept)
    assert document.project.cluster == larger
    assert document.current is document.plans[0]
    assert all(entry.cluster is None for entry in document.plans)
    assert document.schedule.makespan_us == before.schedule.makespan_us
    document.undo_stack.undo()
    assert document.project.cluster == cluster_of(1)


def test_a_plan_for_another_cluster_is_simulated_with_new_speeds_when_it_is_shown(document):
    slow_us = document.plans[0].schedule.makespan_us
    document.set_cluster(cluster_of(1))
    document.set_scale(2.0, 2.0)
    document.choose_plan(document.plans[0])
    assert document.schedule.makespan_us < slow_us


def test_removing_a_plan_does_not_switch_the_cluster(document):
    document.set_cluster(cluster_of(1))
    document.remove_plan(document.current)
    assert document.current is None
    assert document.project.cluster == cluster_of(1)


def test_scaling_simulates_every_plan_again(document):
    document.set_scale(2.0, 1.0)
    assert [entry.schedule.makespan_us for entry in document.plans][1] == 15


def test_one_slider_drag_is_one_undo_step(document):
    for factor in (1.5, 2.0, 4.0):
        document.set_scale(factor, 1.0, drag=1)
    assert document.undo_stack.undoText() == "what if: compute 4 ×"
    document.undo_stack.undo()
    assert document.project.scale == (1.0, 1.0)


def test_two_slider_drags_are_two_undo_steps(document):
    for drag, factor in ((1, 1.5), (1, 2.0), (2, 3.0), (2, 4.0)):
        document.set_scale(factor, 1.0, drag=drag)
    document.undo_stack.undo()
    assert document.project.scale == (2.0, 1.0)
    document.undo_stack.undo()
    assert document.project.scale == (1.0, 1.0)
    document.undo_stack.redo()
    assert document.project.scale == (2.0, 1.0)


def test_choosing_the_cluster_in_use_is_no_edit(document):
    assert not document.set_cluster(replace(document.project.cluster))
    assert document.undo_stack.count() == 0


def test_the_expert_is_the_reference(document):
    add_plan(document, "Expert", {"a": 0, "b": 0, "c": 0}, method="expert")
    assert document.project.expert.name == "Expert"
    assert document.project.against_expert(document.project.expert.schedule) == 0


def bring(document, devices, name="found", choose=True, method="heft"):
    """Let a job end whose plan puts a, b and c on these devices."""
    plan = plan_of(document.problem, dict(zip("abc", devices, strict=True)))
    entry = PlanEntry(name, replace(plan, method=method), simulate(document.problem, plan))
    document.take_plan(entry, document.project.cluster, choose, asked=method != "expert")


def names(document):
    return [entry.name for entry in document.plans]


def test_undo_takes_back_the_edit_and_not_the_plan_that_was_found_since(document):
    document.pin_here([2])
    bring(document, [1, 1, 1])
    assert document.undo_stack.undoText() == "pin “c”"
    document.undo_stack.undo()
    assert document.problem.pins == {}
    assert document.current.name == "found"
    assert names(document) == ["plan 1", "all on one", "found"]
    document.undo_stack.redo()
    assert document.problem.pins == {2: 1}
    assert document.current.name == "found"
    assert names(document) == ["plan 1", "all on one", "found"]


def test_edits_that_are_undone_can_be_redone_after_a_plan_was_found(document):
    document.pin_here([0])
    document.pin_here([2])
    document.undo_stack.undo()
    document.undo_stack.undo()
    bring(document, [1, 1, 1])
    for pins in ({0: 0}, {0: 0, 2: 1}):
        document.undo_stack.redo()
        assert document.problem.pins == pins
        assert "found" in names(document)
    document.undo_stack.undo()
    document.pin_here([1])  # cuts off what was undone
    assert "found" in names(document)


def test_edits_around_a_plan_that_was_found_are_undone_in_their_order(document):
    document.pin_here([0])
    bring(document, [0, 1, 1], choose=False)
    document.rename_plan(document.plans[-1], "mine")
    document.undo_stack.undo()
    assert names(document)[-1] == "found"
    document.undo_stack.undo()
    assert names(document)[-1] == "found"
    assert document.problem.pins == {}
    assert not document.undo_stack.canUndo()


def test_a_plan_that_was_found_and_removed_is_gone_until_that_is_undone(document):
    document.pin_here([0])
    bring(document, [0, 1, 1])
    document.remove_plan(document.current)
    assert "found" not in names(document)
    document.undo_stack.undo()
    assert document.current.name == "found"
    document.undo_stack.undo()
    assert "found" in names(document)
    document.undo_stack.redo()
    document.undo_stack.redo()
    assert "found" not in names(document)
    assert document.problem.pins == {0: 0}


def test_a_plan_that_was_found_is_timed_at_the_speeds_that_undo_leads_to(document):
    document.set_scale(2.0, 1.0)
    bring(document, [1, 1, 1])
    assert document.schedule.makespan_us == 15
    document.undo_stack.undo()
    assert document.current.name == "found"
    assert document.schedule.makespan_us == 30
    assert document.schedule.problem.cluster is document.problem.cluster
    document.undo_stack.redo()
    assert document.schedule.makespan_us == 15


def test_a_plan_that_was_found_stays_for_its_cluster_where_it_cannot_run(document):
    smaller = document.project.cluster
    document.set_cluster(cluster_of(3))
    larger = document.project.cluster
    bring(document, [0, 1, 2])
    document.undo_stack.undo()
    assert document.project.cluster == smaller
    assert document.plans[-1].name == "found"
    assert document.plans[-1].cluster == larger
    assert document.current.name == "plan 1"
    assert document.choose_plan(document.plans[-1])
    assert document.project.cluster == larger


def test_a_state_of_the_history_is_shown_as_it_was_with_what_was_found_since(document):
    before_us = document.schedule.makespan_us
    document.place([2], 0)
    document.place([1], 1)
    bring(document, [0, 1, 0])
    assert document.undo_stack.states()[0].schedule.makespan_us == before_us
    document.undo_stack.go_to(0)
    assert document.current.name == "plan 1"
    assert document.schedule.makespan_us == before_us
    assert names(document) == ["plan 1", "all on one", "found"]
    document.undo_stack.go_to(2)
    assert document.current.name == "plan 1, edited"
    document.undo_stack.go_to(3)
    assert document.current.name == "found"
    assert document.problem.pins == {2: 0, 1: 1}
    titles = [state.title for state in document.undo_stack.states()]
    assert titles[0] == "as opened"
    assert titles[3] == "found “found”"


def test_a_plan_that_was_found_is_unsaved_work(document):
    document.open(document.project)
    bring(document, [1, 1, 1])
    assert document.modified
    assert not document.undo_stack.canUndo()
    document.mark_saved("file", None, document.work)
    document.pin_here([0])
    document.undo_stack.undo()
    assert not document.modified


def test_an_experts_plan_is_the_reference_only_on_its_cluster(document):
    bring(document, [0, 0, 0], "Expert", method="expert")
    old = document.project.cluster
    document.set_cluster(cluster_of(3))
    assert document.project.expert is None
    assert document.plans[-1].cluster == old
    assert document.project.against_expert(document.schedule) is None
    bring(document, [0, 1, 2], "Expert, 3 GPUs", method="expert")
    assert document.project.expert.name == "Expert, 3 GPUs"
    document.set_scale(2.0, 1.0)
    assert document.project.expert.name == "Expert, 3 GPUs"
    document.set_cluster(old)
    assert document.project.expert.name == "Expert"
    assert document.plans[-1].cluster == cluster_of(3)


def test_undoing_a_change_of_cluster_restores_the_reference(document):
    bring(document, [0, 0, 0], "Expert", method="expert")
    before = snapshot(document), document.project.expert
    document.set_cluster(cluster_of(3))
    bring(document, [0, 1, 2], "Expert, 3 GPUs", method="expert")
    document.pin_here([0])
    document.undo_stack.undo()
    document.undo_stack.undo()
    assert (snapshot(document), document.project.expert) == before
    document.undo_stack.redo()
    assert document.project.expert.name == "Expert, 3 GPUs"


def test_an_edited_plan_of_the_expert_does_not_become_the_reference(document):
    bring(document, [0, 0, 0], "Expert", method="expert")
    document.place([2], 1)
    old = document.project.cluster
    document.set_cluster(cluster_of(3))
    assert document.current.name == "Expert, edited"
    assert document.project.expert is None
    assert document.project.baseline is None
    document.set_cluster(old)
    assert document.project.baseline is document.project.expert.schedule


def test_plan_names_are_unique(document):
    add_plan(document, "all on one", {"a": 1, "b": 1, "c": 1})
    assert document.plans[-1].name == "all on one 2"


def test_the_first_plan_of_a_model_is_not_an_unsaved_change(document, qtbot):
    entry = document.plans[1]
    document.remove_plan(entry)
    document.open(document.project)
    document.take_plan(entry, document.project.cluster, asked=False)
    assert document.plans[-1] is entry
    assert not document.modified


def test_a_first_plan_does_not_hide_other_unsaved_work(document):
    document.open(document.project, saved=False)
    document.take_plan(document.plans[1], document.project.cluster, asked=False)
    assert document.modified


def test_extending_the_selection_adds_or_removes_ops(document):
    document.select([0])
    document.select([1, 2], extend=True)
    assert document.selection == {0, 1, 2}
    document.select([1, 2], extend=True)
    assert document.selection == {0}


def test_an_edit_signals_only_what_changed(document, qtbot):
    signals = []
    for name in ("problem_changed", "plans_changed", "current_changed"):
        getattr(document, name).connect(lambda name=name: signals.append(name))
    document.choose_plan(document.plans[1])
    document.rename_plan(document.plans[0], "renamed")
    assert signals == ["current_changed", "plans_changed"]
    document.pin_here([0])
    assert signals[2:] == ["problem_changed", "plans_changed", "current_changed"]


def test_fewer_edits_of_a_larger_model_can_be_undone(monkeypatch):
    monkeypatch.setattr("enplace_studio.model.history.UNDO_BYTES", 3 * 50 * 40)
    document = chain_document()
    assert document.undo_stack.undoLimit() == 40
    for number in range(41):
        document.place([0], number % 2)
        if not number:  # what a new edit replaces is not dropped for want of room
            document.undo_stack.undo()
            document.place([0], 1)
            assert document.undo_stack.states()[0].title == "as opened"
            document.undo_stack.undo()
            document.place([0], 0)
    assert document.undo_stack.states()[0].title == "earlier"
    while document.undo_stack.canUndo():
        document.undo_stack.undo()
    assert len(document.undo_stack.states()) == 41
    document.place([1], 1)
    assert [state.title for state in document.undo_stack.states()][:-1] == ["earlier"]


def test_layers_are_kept_whole_in_one_step_of_undo():
    times = {f"layer_{i}/{part}": 10.0 for i in range(3) for part in ("MatMul", "Relu")}
    document = document_of(profile_of(times), cluster_of(2))
    assert document.keep_whole(r"layer_\d")
    assert document.problem.together == ((0, 1), (2, 3), (4, 5))
    assert not document.keep_whole(r"layer_\d")
    document.undo_stack.undo()
    assert document.problem.together == ()


def test_layers_that_no_op_has_change_nothing(qtbot):
    document = chain_document()
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.keep_whole("block")
    assert "'block' matches none of the 3 ops" in failed.args[0]


def test_steps_of_undo_call_plans_what_the_list_calls_them():
    document = chain_document()
    for _ in range(2):
        document.duplicate_plan(document.plans[0])
        assert document.undo_stack.undoText() == f"add plan “{document.current.name}”"
    assert document.current.name.endswith(", copy 2")
