import pytest

from documents import add_plan, chain_document
from enplace.errors import EnplaceError
from enplace.readers import readers
from enplace.writers import write_profile, write_project
from enplace_studio import session
from enplace_studio.document import Document
from enplace_studio.session import Recovery
from problems import profile_of


def save(document, path):
    write_project(path, session.to_project(document.project, document.view))
    document.mark_saved(path)


def opened_again(document, path):
    save(document, path)
    opened = session.open_file(path)
    again = Document()
    again.open(opened.project, opened.path, opened.view)
    return again


def test_a_project_opens_as_it_was_saved(tmp_path):
    document = chain_document()
    document.place([2], 0)
    document.colocate([0, 1])
    document.forbid([1], 1)
    document.set_scale(2.0, 0.5)
    document.rename_plan(document.current, "mine")
    document.view["graph"] = {"open": ["lstm 0"]}
    again = opened_again(document, tmp_path / "p.enplace")
    assert again.problem.pins == document.problem.pins
    assert again.problem.together == document.problem.together
    assert again.problem.forbidden == document.problem.forbidden
    assert (again.project.cluster, again.project.scale) == (
        document.project.cluster,
        document.project.scale,
    )
    assert [e.name for e in again.plans] == [e.name for e in document.plans]
    assert [e.note for e in again.plans] == [e.note for e in document.plans]
    assert again.current.name == "mine"
    assert again.schedule.makespan_us == document.schedule.makespan_us
    assert again.project.baseline.makespan_us == document.project.baseline.makespan_us
    assert again.view == {"graph": {"open": ["lstm 0"]}}


def test_a_saved_document_is_unmodified_until_an_undo(tmp_path):
    document = chain_document()
    document.place([2], 0)
    assert document.modified
    save(document, tmp_path / "p.enplace")
    assert not document.modified
    document.undo_stack.undo()
    assert document.modified


def test_a_plan_older_than_the_pins_still_opens(tmp_path):
    document = chain_document()
    add_plan(document, "older", {"a": 1, "b": 1, "c": 1})
    document.pin_here([0])
    again = opened_again(document, tmp_path / "p.enplace")
    assert again.plans[-1].schedule.makespan_us == document.plans[-1].schedule.makespan_us


def test_a_plain_profile_opens_without_plans_and_is_never_overwritten(tmp_path):
    path = tmp_path / "model.enplace"
    write_profile(path, profile_of({"a": 1}))
    opened = session.open_file(path)
    assert opened.path is None
    assert not opened.project.plans


def test_an_unreadable_file_is_reported_in_one_sentence(tmp_path):
    path = tmp_path / "bad.enplace"
    path.write_bytes(b"no zip")
    with pytest.raises(EnplaceError, match=r"bad\.enplace"):
        session.open_file(path)


def write_now(recovery):
    recovery.write()
    recovery._pool.waitForDone()


def test_the_next_start_finds_the_copy_that_a_crash_left(tmp_path):
    document = chain_document()
    document.place([2], 0)
    crashed = Recovery(document, tmp_path)
    write_now(crashed)
    crashed._lock.unlock()  # as the system does when a process ends
    found = Recovery(Document(), tmp_path).leftovers()
    assert len(found) == 1
    assert session.open_file(found[0]).project.problem.pins == {2: 0}


def test_the_copy_of_a_running_studio_is_not_offered(tmp_path):
    document = chain_document()
    document.place([2], 0)
    running = Recovery(document, tmp_path)
    write_now(running)
    assert Recovery(Document(), tmp_path).leftovers() == []
    running.close()


def test_nothing_is_left_behind_after_saving_or_closing(tmp_path):
    document = chain_document()
    document.place([2], 0)
    recovery = Recovery(document, tmp_path / "r")
    write_now(recovery)
    save(document, tmp_path / "p.enplace")
    write_now(recovery)
    assert not list((tmp_path / "r").glob("*.enplace"))
    recovery.close()
    assert not list((tmp_path / "r").iterdir())


def test_the_dialog_offers_every_format_with_a_reader():
    offered = session.file_filter().split(";;")
    assert offered[0] == "Profiles and projects (*.json *.json.gz *.enplace)"
    assert [text.partition(" (")[0] for text in offered[1:-1]] == [
        reader.title for reader in readers().values()
    ]
    assert offered[-1] == "All files (*)"
