"""A device locked as it is."""

import pytest

from documents import add_plan, chain_document
from enplace.writers import write_project
from enplace_studio import session
from enplace_studio.constraints import describe, list_constraints
from enplace_studio.device_menu import device_menu
from enplace_studio.views.plans.facts import why_stale
from enplace_studio.views.timeline.canvas import TimelineCanvas


@pytest.fixture
def document():
    """Ops a and b on GPU 0, c on GPU 1."""
    return chain_document()


def listed(document):
    project = document.project
    held = list_constraints(project.problem, project.grouping, project.locks)
    return [describe(project, each) for each in held]


def test_everything_on_a_locked_device_stays_and_is_one_constraint(document):
    assert document.lock(0)
    assert document.problem.pins == {0: 0, 1: 0}
    assert listed(document) == ["GPU 0 as it is"]
    document.undo_stack.undo()
    assert (document.problem.pins, listed(document)) == ({}, [])


def test_unlocking_keeps_what_was_pinned_before(document):
    document.pin_here([0])
    document.lock(0)
    assert listed(document) == ["GPU 0 as it is", "a on GPU 0"]
    assert document.unlock(0)
    assert (document.problem.pins, listed(document)) == ({0: 0}, ["a on GPU 0"])
    assert not document.unlock(0)


def test_a_lock_is_switched_off_and_on_and_removed_like_any_constraint(document):
    document.lock(0)
    (made,) = document.project.locks
    document.switch_constraint(made, False)
    assert (document.problem.pins, describe(document.project, made)) == ({}, "GPU 0 as it is")
    document.switch_constraint(made, True)
    assert listed(document) == ["GPU 0 as it is"]
    document.remove_constraint(made)
    assert document.problem.pins == {}


def test_a_lock_with_an_op_moved_away_falls_apart(document):
    document.lock(0)
    document.place([1], 1)
    assert listed(document) == ["a on GPU 0", "b on GPU 1"]


def test_a_saved_lock_is_still_one(document, tmp_path):
    document.lock(0)
    write_project(tmp_path / "p.enplace", session.to_project(document.project, {}))
    document.open(session.open_file(tmp_path / "p.enplace").project)
    assert listed(document) == ["GPU 0 as it is"]


def test_a_lock_of_nothing_is_refused_in_one_line(document, qtbot):
    document.pin_here([2])
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.lock(1)
    assert failed.args == ["all ops on GPU 1 are pinned"]
    document.place([2], 0)
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.lock(1)
    assert failed.args == ["no op runs on GPU 1"]


def test_the_menu_of_a_device_locks_and_unlocks_it(document, qtbot, opener):
    canvas = opener(TimelineCanvas, document, 600, 200)

    def run(text):
        menu = device_menu(document, 0, canvas)
        next(each for each in menu.actions() if each.text() == text).trigger()

    run("Select the 2 ops on GPU 0")
    assert document.selection == {0, 1}
    run("Lock GPU 0 as it is")
    assert listed(document) == ["GPU 0 as it is"]
    run("Unlock GPU 0")
    assert listed(document) == []


def test_a_plan_says_which_constraints_it_was_made_without(document):
    add_plan(document, "one GPU", {"a": 1, "b": 1, "c": 1})
    one = next(entry for entry in document.plans if entry.name == "one GPU")
    document.choose_plan(document.plans[0])

    def why():
        return why_stale(document.problem, one, document.project.locks)

    document.lock(0)
    assert why() == "without your lock"
    document.pin_here([2])
    assert why() == "without your lock", "c is where it is pinned"
    document.unlock(0)
    document.place([2], 0)
    assert why() == "without your pins"
    document.forbid([0], 1)
    assert why() == "without your constraints"
    document.unpin([2])
    assert why() == "without your exclusions"
