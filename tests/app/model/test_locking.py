"""A device locked as it is."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PySide6.QtWidgets import QWidget

from documents import add_plan, chain_document, document_of
from enplace.placing.run import place
from enplace.readers import read_constraints
from enplace.writers import write_constraints, write_project
from enplace_studio.explain.reasons import why_not
from enplace_studio.files import session
from enplace_studio.model.constraints import describe, list_constraints, step_without
from enplace_studio.model.open_project import start_project
from enplace_studio.model.plan_facts import why_stale
from enplace_studio.views.graph.devices import DeviceBar
from enplace_studio.views.timeline.canvas import TimelineCanvas
from enplace_studio.widgets.device_menu import device_menu
from enplace_studio.widgets.dragging import describe_drop
from problems import cluster_of, profile_of


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


def test_what_a_locked_device_runs_cannot_be_changed_by_hand(document, qtbot):
    document.lock(0)
    before = document.project
    for change in (
        lambda: document.place([1], 1),
        lambda: document.place([1], 1, pin=False),
        lambda: document.place([2], 0),
        lambda: document.place([2], 0, pin=False),
        lambda: document.unpin([0]),
    ):
        with qtbot.waitSignal(document.failed) as failed:
            assert not change()
        why = "GPU 0 is locked as it is; unlock it before you change what runs there"
        assert failed.args == [why]
        assert document.project is before
    assert document.previews.get([1], 1).why_not == "GPU 0 is locked"
    assert document.previews.get([2], 0).why_not == "GPU 0 is locked"


def test_a_locked_device_says_so_on_its_chip_and_to_a_drag(document):
    around = QWidget()
    chips = DeviceBar(document, around)
    document.lock(0)
    shown = [item.runs[0].text for _, item in chips.legend() if item.device is not None]
    assert shown == ["GPU 0, locked", "GPU 1"]
    assert describe_drop(document, [2], 0).text == "may not run on GPU 0:\nGPU 0 is locked"
    assert why_not(document.problem, np.array([2]), 0).ops == (2,)


def test_no_method_adds_to_a_locked_device():
    """Ten ops in a row: on two GPUs, most of them belong on the one that is locked."""
    names = [f"op_{i}" for i in range(10)]
    profile = profile_of(dict.fromkeys(names, 10), [(a, b, 1000) for a, b in pairwise(names)])
    document = document_of(profile, cluster_of(2), {n: int(i > 0) for i, n in enumerate(names)})
    document.lock(0)
    for method in ("heft", "m-etf"):
        found = place(document.problem, method).plan
        assert np.flatnonzero(found.device == 0).tolist() == [0]


def test_the_price_of_a_lock_is_what_one_group_would_save(document):
    document.lock(1)
    (lock,) = list_constraints(document.problem, document.project.grouping)
    assert step_without(document.project, lock) < document.schedule.makespan_us
    document.unlock(1)
    document.place([2], 0, pin=False)
    document.lock(1)
    (lock,) = list_constraints(document.problem, document.project.grouping)
    assert step_without(document.project, lock) == document.schedule.makespan_us


def test_a_saved_lock_is_still_one(document, tmp_path):
    document.lock(0)
    write_project(tmp_path / "p.enplace", session.to_project(document.project, {}))
    document.open(session.open_file(tmp_path / "p.enplace").project)
    assert listed(document) == ["GPU 0 as it is"]


def test_a_lock_of_an_older_project_is_its_pins(document, tmp_path):
    document.pin_here([0, 1])
    project = session.to_project(document.project, {})
    rows = [["a", "GPU:0"], ["b", "GPU:0"]]
    shell = {**project.view[session.SHELL], "locks": [["pin", rows]]}
    write_project(tmp_path / "p.enplace", replace(project, view={session.SHELL: shell}))
    document.open(session.open_file(tmp_path / "p.enplace").project)
    assert listed(document) == ["a on GPU 0", "b on GPU 0"]
    assert document.project.locks == ()


def test_an_empty_device_is_locked_too_and_a_lock_needs_a_plan(document, qtbot):
    document.place([2], 0, pin=False)
    assert document.lock(1)
    assert listed(document) == ["GPU 1 as it is"]
    assert not document.place([2], 1)
    assert document.unlock(1)
    assert document.place([2], 1)
    document.open(start_project(document.problem.profile, document.problem.cluster))
    with qtbot.waitSignal(document.failed) as failed:
        assert not document.lock(1)
    assert failed.args == ["there is no plan to keep yet; press Solve first"]


def test_a_lock_comes_with_a_file_of_constraints_and_is_one_there_too(document, tmp_path):
    document.lock(0)
    write_constraints(tmp_path / "c.json", document.problem)
    document.unlock(0)
    document.add_constraints(read_constraints(tmp_path / "c.json", document.problem).problem)
    assert listed(document) == ["GPU 0 as it is"]
    assert document.unlock(0)
    assert (document.problem.pins, listed(document)) == ({}, [])


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
