"""Constraints in the studio: listed by group, priced, switched off and on again, and saved."""

from dataclasses import replace

import numpy as np
import pytest

from documents import add_plan, chain_document, document_of
from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.names.groups import Grouping
from enplace.values.measurement import Measurement
from enplace.writers import write_project
from enplace_studio.files import session
from enplace_studio.model.constraints import (
    adopt,
    describe,
    list_constraints,
    ops_of,
    remove,
    step_without,
    switch_on,
    without,
)
from enplace_studio.model.document import Document
from enplace_studio.model.edits import move
from enplace_studio.model.open_project import Constraint, start_project
from enplace_studio.model.ordering import Slot
from problems import cluster_of, profile_of

GROUPED = profile_of({f"layer_{i}/op_{j}": 10 for i in range(3) for j in range(2)})
PIN_A = Constraint("pin", (("a", "GPU:1"),))


@pytest.fixture
def grouped():
    """Three groups of two ops each, on GPU 0."""
    made = document_of(GROUPED, cluster_of(2), dict.fromkeys(GROUPED.op_names, 0))
    names = tuple(f"layer {i}" for i in range(3))
    made.open(replace(made.project, grouping=Grouping(np.arange(6) // 2, names, names, names)))
    return made


@pytest.fixture
def chain():
    """Ops a -> b -> c of 10 µs on GPU 0, 0 and 1; the step takes 51 µs."""
    return chain_document()


def listed(document):
    return list_constraints(document.problem, document.project.grouping)


def step_us(document):
    return document.schedule.makespan_us


# Listing and describing


def test_pins_and_orders_of_a_group_are_one_constraint(grouped):
    grouped.place([0, 1, 2], 1)
    grouped.forbid([4, 5], 1)
    grouped.colocate([2, 3])
    grouped.reorder([4, 5], Slot(0, earlier=True))
    found = [(each.kind, len(each.rows)) for each in listed(grouped)]
    assert found == [("pin", 2), ("pin", 1), ("forbid", 2), ("colocate", 1), ("before", 2)]


def test_pins_of_one_group_to_two_devices_are_two_constraints(grouped):
    grouped.place([0], 1)
    grouped.place([1], 0)
    assert {each.rows for each in listed(grouped)} == {
        (("layer_0/op_0", "GPU:1"),),
        (("layer_0/op_1", "GPU:0"),),
    }


def test_each_kind_is_described_in_a_few_words(grouped):
    grouped.place([0, 1], 1)
    grouped.forbid([4, 5], 1)
    grouped.colocate([2, 3, 4, 5])
    grouped.reorder([2, 3], Slot(4, earlier=True))
    assert [describe(grouped.project, each) for each in listed(grouped)] == [
        "layer 0 on GPU 1",
        "layer 2 off GPU 1",
        "layer 1 and layer 2 together",
        "layer 1 before op_0 of layer 2",
    ]


def test_an_order_within_a_group_names_the_group_once(grouped):
    grouped.reorder([1], Slot(0, earlier=True))
    (order,) = listed(grouped)
    assert describe(grouped.project, order) == "op_1 before op_0 of layer 0"


def test_the_ops_of_an_order_are_on_both_sides(grouped):
    grouped.reorder([2, 3], Slot(4, earlier=True))
    (order,) = listed(grouped)
    first, then = ops_of(grouped.problem, order)
    assert (first.tolist(), then.tolist()) == ([2, 3], [4])


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint("pin", (("gone", "GPU:1"),)), "gone, for another graph"),
        (Constraint("before", (("a", "gone"),)), "a, for another graph"),
        (Constraint("pin", (("a", "GPU:7"),)), "a on GPU:7"),
    ],
)
def test_a_constraint_of_another_graph_or_cluster_is_described_by_its_names(
    chain, constraint, words
):
    assert describe(chain.project, constraint) == words


# Without a constraint


def test_without_each_constraint_the_others_stay(grouped):
    grouped.place([0, 1], 1)
    grouped.forbid([4, 5], 1)
    grouped.colocate([2, 3])
    grouped.reorder([4, 5], Slot(0, earlier=True))
    every = listed(grouped)
    for constraint in every:
        freed = without(grouped.problem, constraint)
        left = list_constraints(freed, grouped.project.grouping)
        assert left == [each for each in every if each != constraint]


def test_a_pin_costs_what_its_best_device_would_save(chain):
    chain.place([2], 1)
    (pin,) = listed(chain)
    free = chain.problem.constrained(pins={})
    by_hand = simulate(free, move(chain.current.plan, [2], 0)).makespan_us
    assert step_without(chain.project, pin) == by_hand == 30
    assert step_us(chain) == 51


def test_a_pin_where_the_ops_belong_costs_nothing(chain):
    chain.place([2], 0)
    assert step_without(chain.project, listed(chain)[0]) == step_us(chain)


def test_a_pin_of_several_ops_costs_what_going_back_to_their_devices_would_save():
    document = document_of(profile_of({"a": 10, "b": 10}), cluster_of(2), {"a": 0, "b": 1})
    document.place([0, 1], 0)
    both = Constraint("pin", (("a", "GPU:0"), ("b", "GPU:0")))
    assert (step_us(document), step_without(document.project, both)) == (20, 10)


def solved_anew(document):
    """Show the current plan as if it were solved with all constraints."""
    document.add_plan(replace(document.current, name="solved", origin=None))


def test_a_pin_of_several_ops_that_a_plan_was_solved_with_costs_what_moving_one_would_save():
    document = document_of(profile_of({"a": 10, "b": 10}), cluster_of(2), {"a": 0, "b": 1})
    document.place([0, 1], 0)
    solved_anew(document)
    both = Constraint("pin", (("a", "GPU:0"), ("b", "GPU:0")))
    assert (step_us(document), step_without(document.project, both)) == (20, 10)


def test_a_forbidden_device_costs_what_moving_there_would_save(chain):
    chain.forbid([2], 0)
    assert step_without(chain.project, listed(chain)[0]) == 30


def test_a_plan_that_does_not_fit_is_no_gain():
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 20)], persistent={"a": 60, "b": 60})
    document = document_of(profile, cluster_of(2, capacity_bytes=100), {"a": 0, "b": 1})
    document.place([1], 1)
    (pin,) = listed(document)
    together = simulate(without(document.problem, pin), move(document.current.plan, [1], 0))
    assert together.makespan_us < step_us(document)
    assert not together.fits
    assert step_without(document.project, pin) == step_us(document)


@pytest.mark.parametrize("policy", ["priority", "strict"])
def test_an_order_costs_what_the_plan_before_it_took(policy):
    profile = profile_of({"a": 10, "b": 20, "c": 10}, [("a", "c", 5)])
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0, "c": 1})
    plan = replace(document.current.plan, policy=policy)
    entry = replace(document.current, name=policy, plan=plan)
    document.add_plan(replace(entry, schedule=simulate(document.problem, plan)))
    before_us = step_us(document)
    document.reorder([1], Slot(0, earlier=True))
    assert step_us(document) > before_us
    assert step_without(document.project, listed(document)[0]) == before_us


def test_without_a_plan_nothing_has_a_cost(chain):
    bare = replace(chain.project, plans=(), current=None)
    assert step_without(adopt(bare, chain.problem.constrained(pins={0: 1})), PIN_A) is None


@pytest.mark.parametrize("policy", ["priority", "strict"])
def test_an_order_that_a_plan_was_solved_with_costs_what_the_other_order_would_save(policy):
    profile = profile_of({"a": 10, "b": 20, "c": 10}, [("a", "c", 5)])
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0, "c": 1})
    before_us = step_us(document)
    document.reorder([1], Slot(0, earlier=True))
    plan = replace(document.current.plan, policy=policy)
    entry = replace(document.current, name="solved", plan=plan, origin=None)
    document.add_plan(replace(entry, schedule=simulate(document.problem, plan)))
    assert step_us(document) > before_us
    assert step_without(document.project, listed(document)[0]) == before_us


def test_colocation_costs_what_moving_one_of_its_ops_would_save():
    document = document_of(profile_of({"a": 10, "b": 10}), cluster_of(2), {"a": 0, "b": 0})
    document.colocate([0, 1])
    assert (step_us(document), step_without(document.project, listed(document)[0])) == (20, 10)


def test_colocation_of_ops_that_belong_together_costs_nothing():
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 20)])
    document = document_of(profile, cluster_of(2), {"a": 0, "b": 0})
    document.colocate([0, 1])
    assert step_without(document.project, listed(document)[0]) == step_us(document)


def test_a_constraint_has_no_cost_for_a_plan_that_breaks_it(chain):
    chain.place([2], 0)
    chain.choose_plan(chain.plans[0])
    assert step_without(chain.project, listed(chain)[0]) is None


# Switched off and on


@pytest.mark.parametrize("kind", ["pin", "forbid", "colocate", "before"])
def test_a_constraint_is_switched_off_and_on_and_both_undo(grouped, kind):
    {
        "pin": lambda: grouped.place([0, 1], 1),
        "forbid": lambda: grouped.forbid([0, 1], 1),
        "colocate": lambda: grouped.colocate([0, 1, 2]),
        "before": lambda: grouped.reorder([4, 5], Slot(0, earlier=True)),
    }[kind]()
    (constraint,) = listed(grouped)
    assert constraint.kind == kind
    assert grouped.switch_constraint(constraint, on=False)
    assert (listed(grouped), grouped.project.off) == ([], (constraint,))
    assert grouped.switch_constraint(constraint, on=True)
    assert (listed(grouped), grouped.project.off) == ([constraint], ())
    grouped.undo_stack.undo()
    assert (listed(grouped), grouped.project.off) == ([], (constraint,))
    grouped.undo_stack.undo()
    assert (listed(grouped), grouped.project.off) == ([constraint], ())
    grouped.undo_stack.redo()
    assert (listed(grouped), grouped.project.off) == ([], (constraint,))


def test_a_pin_switched_on_moves_its_ops_back(chain):
    chain.place([0], 1)
    assert PIN_A in listed(chain)
    chain.switch_constraint(PIN_A, on=False)
    chain.place([0], 0, pin=False)
    chain.switch_constraint(PIN_A, on=True)
    assert chain.current.plan.device[0] == 1


def refusals(document):
    said = []
    document.failed.connect(said.append)
    return said


def test_a_pin_that_contradicts_a_newer_one_stays_off(chain):
    chain.place([0], 1)
    chain.switch_constraint(PIN_A, on=False)
    chain.place([0], 0)
    said = refusals(chain)
    assert not chain.switch_constraint(PIN_A, on=True)
    assert said == ["a is now pinned to GPU 0; unpin it first"]
    assert chain.project.off == (PIN_A,)
    assert chain.problem.pins == {0: 0}


@pytest.mark.parametrize("row", [("gone", "GPU:1"), ("a", "GPU:7")])
def test_a_constraint_of_another_graph_or_cluster_stays_off(chain, row):
    project = replace(chain.project, off=(Constraint("pin", (row,)),))
    with pytest.raises(EnplaceError, match=r"has no (gone|GPU:7); remove the constraint"):
        switch_on(project, project.off[0])


def test_a_constraint_that_is_off_and_asked_for_again_is_one_constraint(chain):
    chain.place([0], 1)
    chain.switch_constraint(PIN_A, on=False)
    chain.place([0], 1)
    chain.switch_constraint(PIN_A, on=False)
    assert chain.project.off == (PIN_A,)
    chain.place([0], 1)
    after = remove(chain.project, PIN_A)
    assert (after.off, after.problem.pins) == ((), {})


def test_a_constraint_is_removed_whether_on_or_off(chain):
    chain.place([0], 1)
    assert chain.remove_constraint(PIN_A)
    assert (listed(chain), chain.project.off) == ([], ())
    chain.undo_stack.undo()
    chain.switch_constraint(PIN_A, on=False)
    assert chain.undo_stack.undoText() == "switch “a on GPU 1” off"
    assert chain.remove_constraint(PIN_A)
    assert chain.undo_stack.undoText() == "remove “a on GPU 1”"
    assert (listed(chain), chain.project.off) == ([], ())
    chain.undo_stack.undo()
    assert chain.project.off == (PIN_A,)


def test_constraints_of_a_file_are_one_step_of_undo_and_none_if_they_hold(chain):
    constrained = chain.problem.constrained(pins={0: 1}, together=((1, 2),))
    assert chain.add_constraints(constrained)
    assert len(listed(chain)) == 2
    assert not chain.add_constraints(constrained)
    chain.undo_stack.undo()
    assert listed(chain) == []


# Saved with the project


def test_a_project_keeps_what_is_off(chain, tmp_path):
    chain.place([0], 1)
    chain.colocate([1, 2])
    for constraint in listed(chain):
        chain.switch_constraint(constraint, on=False)
    path = tmp_path / "p.enplace"
    write_project(path, session.to_project(chain.project, chain.view))
    again = Document()
    again.open(session.open_file(path).project)
    assert again.project.off == chain.project.off
    assert again.switch_constraint(PIN_A, on=True)


@pytest.mark.parametrize(
    "off",
    [
        5,
        {"pin": []},
        ["pin"],
        [5],
        [["pin"]],
        [["pin", []]],
        [["pin", [["a"]]]],
        [["pin", [["a", 1]]]],
        [["pin", "ab"]],
        [["no such kind", [["a", "GPU:1"]]]],
        [[["pin"], [["a", "GPU:1"]]]],
        [["colocate", [[]]]],
    ],
)
def test_damaged_constraints_in_a_project_are_left_out(chain, tmp_path, off):
    project = session.to_project(chain.project, {})
    path = tmp_path / "p.enplace"
    good = ["pin", [["a", "GPU:1"]]]
    shell = project.view[session.SHELL]
    off = [*off, good] if isinstance(off, list) else off
    write_project(path, replace(project, view={session.SHELL: {**shell, "off": off}}))
    opened = session.open_file(path).project
    assert opened.off == ((PIN_A,) if isinstance(off, list) else ())
    assert opened.plans[0].name == "plan 1"


# Constraints on a whole plan

HOME = ((0, 0), (1, 0), (2, 1))
CLOSE = Constraint("stay-close", (((("a", "GPU:0"), ("b", "GPU:0"), ("c", "GPU:1")), 1),))


def test_a_limit_of_changes_is_listed_and_an_edit_beyond_it_is_refused(chain):
    chain.add_constraints(chain.problem.constrained(stay_close=[(HOME, 1)]))
    assert listed(chain) == [CLOSE]
    assert describe(chain.project, CLOSE) == "within 1 op of plan 1"
    assert chain.place([0], 1)
    refused = []
    chain.failed.connect(refused.append)
    assert not chain.place([1], 1)
    assert "2 of 3 ops would run elsewhere than in the plan to stay close to" in refused[0]


def test_a_limit_of_changes_names_the_plan_it_was_asked_for_wherever_a_like_one_is_listed(chain):
    alike = add_plan(chain, "found", {"a": 0, "b": 0, "c": 1}, choose=True)
    chain.stay_close(1)
    (limit,) = listed(chain)
    for plan in (alike, chain.plans[0]):
        chain.choose_plan(plan)
        assert describe(chain.project, limit) == "within 1 op of found"
    chain.undo_stack.setIndex(1)
    chain.choose_plan(chain.plans[0])
    chain.stay_close(1)
    assert describe(chain.project, limit) == "within 1 op of plan 1"
    chain.place([0], 1)
    assert describe(chain.project, limit) == "within 1 op of plan 1"


def test_a_limit_of_changes_is_described_where_a_device_of_its_plan_is_gone(chain):
    chain.add_constraints(chain.problem.constrained(stay_close=[(HOME, 1)]))
    chain.set_cluster(cluster_of(1))
    assert chain.project.off == (CLOSE,)
    assert describe(chain.project, CLOSE) == "within 1 op of a plan"
    refused = []
    chain.failed.connect(refused.append)
    chain.switch_constraint(CLOSE, True)
    assert refused == ["this graph or cluster has no GPU:1; remove the constraint"]


def test_a_plan_is_brought_back_to_the_limit_and_saved_with_it(chain, tmp_path):
    for op in (0, 1):
        chain.place([op], 1, pin=False)
    chain.add_constraints(chain.problem.constrained(stay_close=[(HOME, 1)]))
    assert np.count_nonzero(chain.current.plan.device != [0, 0, 1]) == 1
    off = replace(chain.project, off=(CLOSE,), problem=chain.problem.constrained(stay_close=()))
    write_project(tmp_path / "p.enplace", session.to_project(off, {}))
    opened = session.open_file(tmp_path / "p.enplace").project
    assert opened.off == (CLOSE,)
    assert listed_in(switch_on(opened, CLOSE)) == [CLOSE]


def listed_in(project):
    return list_constraints(project.problem, project.grouping)


def test_scopes_that_a_profile_keeps_are_listed_as_pins():
    measured = Measurement(device_scopes={"a": "GPU:1", "b": "TPU:0"}, keeps_device_scopes=True)
    profile = replace(profile_of({"a": 1, "b": 1}), measured=measured)
    project = start_project(profile, cluster_of(2))
    assert list_constraints(project.problem, project.grouping) == [PIN_A]
