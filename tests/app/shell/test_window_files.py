"""The window opens, saves and recovers files, and never overwrites work unasked."""

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QMenu, QMessageBox
from tests.app.shell.windows import BUTTON, answer, click, name_file, open_path, trigger

from documents import let_go
from enplace.errors import FileError
from enplace.names import whole
from enplace.writers import write_project
from enplace_studio.files import session
from enplace_studio.files.recovery import Backups
from enplace_studio.files.session import to_project


@pytest.mark.parametrize(("choice", "closes"), [(BUTTON.Cancel, False), (BUTTON.Discard, True)])
def test_closing_with_unsaved_work_asks(window, monkeypatch, choice, closes):
    window.document.place([2], 0)
    answer(monkeypatch, choice)
    assert window.close() is closes


def test_closing_can_save(window, monkeypatch, tmp_path):
    window.document.place([2], 0)
    answer(monkeypatch, BUTTON.Save)
    name_file(monkeypatch, tmp_path / "mine")
    assert not window.close()
    window.studio.files.wait()
    assert not window.isVisible()
    assert (tmp_path / "mine.enplace").exists()


def test_a_saved_project_opens_again_from_the_recent_files(
    window, make_window, monkeypatch, tmp_path
):
    window.document.place([2], 0)
    name_file(monkeypatch, tmp_path / "mine.enplace")
    trigger(window, "save")
    window.close()
    again = make_window()
    assert again.studio.recent.paths() == [tmp_path / "mine.enplace"]
    menu = next(m for m in again.menuBar().findChildren(QMenu) if m.title() == "Open recent")
    again.menus.fill_recent()
    assert [action.text() for action in menu.actions()] == ["mine.enplace"]
    menu.actions()[0].trigger()
    again.studio.files.wait()
    assert again.document.path == tmp_path / "mine.enplace"
    assert again.document.problem.pins == {2: 0}


def test_an_unreadable_file_is_explained_and_the_window_stays(window, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    open_path(window, bad)
    assert "bad.json" in window.banner.text
    assert window.document.current.name == "first"


def test_the_start_page_says_what_is_being_opened_until_it_fails(window, tmp_path):
    window.document.open(None)
    (tmp_path / "odd.enplace").write_bytes(b"no project")
    window.studio.files.open_path(tmp_path / "odd.enplace")
    assert window.start_page.opening.text() == "Opening odd.enplace …"
    window.studio.files.wait()
    assert window.start_page.opening.text() == ""


def test_a_crashed_session_is_offered_and_opens_as_unsaved(window, make_window, monkeypatch):
    window.document.place([2], 0)
    window.studio.recovery.write()
    window.studio.recovery._pool.waitForDone()
    let_go(window.studio.recovery)
    again = make_window()
    asked = answer(monkeypatch, BUTTON.Open)
    again.studio.files.offer_recovery()
    again.studio.files.wait()
    assert f"“{window.document.problem.profile.name}”, last changed" in asked[0]
    assert again.document.problem.pins == {2: 0}
    assert again.document.modified


@pytest.mark.parametrize("how", ["opened", "saved"])
def test_work_recovered_in_another_folder_is_saved_in_its_own_file(
    window, make_window, monkeypatch, tmp_path, how
):
    monkeypatch.chdir(tmp_path)
    window.studio.saving.save_to(Path("mine.enplace"))
    window.studio.files.wait()
    if how == "opened":
        open_path(window, Path("mine.enplace"))
    window.document.place([2], 0)
    window.studio.recovery.write()
    window.studio.recovery._pool.waitForDone()
    let_go(window.studio.recovery)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = make_window()
    answer(monkeypatch, BUTTON.Open)
    again.studio.files.offer_recovery()
    again.studio.files.wait()
    again.studio.saving.save()
    again.studio.files.wait()
    assert again.document.path == tmp_path / "mine.enplace"
    assert session.open_file(tmp_path / "mine.enplace").project.problem.pins == {2: 0}
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_file_changed_while_it_is_opened_is_not_overwritten_unasked(
    window, monkeypatch, tmp_path
):
    path, texts = tmp_path / "mine.enplace", []
    window.studio.saving.save_to(path)
    window.studio.files.wait()
    read = session.open_file

    def read_and_be_overtaken(path):
        opened = read(path)
        path.write_bytes(path.read_bytes() + b" ")
        return opened

    monkeypatch.setattr(session, "open_file", read_and_be_overtaken)
    window.studio.files.open_path(path)
    window.studio.files.wait()
    window.document.place([2], 0)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    window.studio.saving.save()
    window.studio.files.wait()
    assert texts == ["Another program or window has changed mine.enplace since you opened it."]


def test_a_question_shows_a_name_that_looks_like_markup_as_it_is(window, monkeypatch, tmp_path):
    path, formats = tmp_path / "<h1>mine.enplace", []
    window.studio.saving.save_to(path)
    window.studio.files.wait()
    window.menus.fill_recent()
    tips = [action.toolTip() for action in window.menus.recent_menu.actions()]
    assert any("&lt;h1&gt;mine.enplace" in tip for tip in tips)
    path.unlink()
    window.document.place([2], 0)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: formats.append(box.textFormat()))
    window.studio.saving.save()
    window.studio.files.wait()
    assert formats == [Qt.TextFormat.PlainText]


def test_a_file_changed_by_another_program_is_not_overwritten_unasked(
    window, monkeypatch, tmp_path
):
    path, texts = tmp_path / "mine.enplace", []
    window.studio.saving.save_to(path)
    window.studio.files.wait()
    other = path.read_bytes() + b" "
    path.write_bytes(other)
    window.document.place([2], 0)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    window.studio.saving.save()
    window.studio.files.wait()
    assert texts == ["Another program or window has changed mine.enplace since you opened it."]
    assert path.read_bytes() == other

    monkeypatch.setattr(QMessageBox, "exec", lambda box: click(box, "Overwrite"))
    window.studio.saving.save()
    window.studio.files.wait()
    assert not window.document.modified
    backups = window.studio.recovery.backups.folder
    assert other in [backup.read_bytes() for backup in backups.iterdir()]


def test_a_file_that_another_program_deleted_is_made_again_only_after_asking(
    window, tmp_path, monkeypatch
):
    path, texts = tmp_path / "mine.enplace", []
    window.studio.saving.save_to(path)
    window.studio.files.wait()
    path.unlink()
    window.document.place([2], 0)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    window.studio.saving.save()
    window.studio.files.wait()
    assert texts == [
        "Another program or window has deleted or moved mine.enplace since you opened it."
    ]
    assert not path.exists()
    assert window.document.modified
    monkeypatch.setattr(QMessageBox, "exec", lambda box: click(box, "Save here again"))
    window.studio.saving.save()
    window.studio.files.wait()
    assert path.exists()
    assert not window.document.modified


def take_away(folder):
    """Make a folder one that nobody may look into, not even root."""
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("n" * 300)


def test_work_whose_folder_is_out_of_reach_is_saved_elsewhere_and_stays_until_then(
    window, tmp_path, monkeypatch
):
    files, folder, texts = window.studio.files, tmp_path / "shared", []
    folder.mkdir()
    window.studio.saving.save_to(folder / "mine.enplace")
    files.wait()
    take_away(folder)
    window.document.place([2], 0)

    def save_here(box):
        texts.append(box.text())
        click(box, "Save here again")

    monkeypatch.setattr(QMessageBox, "exec", save_here)
    window.studio.saving.save()
    files.wait()
    assert texts == [
        "Another program or window has deleted or moved mine.enplace since you opened it."
    ]
    assert "shared/mine.enplace: cannot write: " in window.banner.text
    assert window.document.modified
    monkeypatch.setattr(
        QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "new.enplace"), "")
    )
    monkeypatch.setattr(QMessageBox, "exec", lambda box: click(box, "Save as…"))
    window.studio.saving.save()
    files.wait()
    assert window.document.path == tmp_path / "new.enplace"
    assert not window.document.modified


def test_a_file_out_of_reach_is_explained_when_it_is_opened(window, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    window.studio.saving.save_to(folder / "mine.enplace")
    window.studio.files.wait()
    take_away(folder)
    open_path(window, folder / "mine.enplace")
    assert "shared/mine.enplace: cannot read: " in window.banner.text
    assert window.studio.recent.paths() == []


@pytest.mark.parametrize("name", ["pipe.json", "pipe.enplace"])
def test_a_named_pipe_is_refused_and_does_not_stop_the_window(window, tmp_path, name):
    os.mkfifo(tmp_path / name)
    open_path(window, tmp_path / name)
    assert "named pipe" in window.banner.text


def test_nothing_is_written_to_a_named_pipe_that_nobody_reads(window, tmp_path, monkeypatch):
    files, path = window.studio.files, tmp_path / "pipe.json"
    os.mkfifo(path)
    window.document.place([2], 0)
    window.studio.saving.save_to(path)
    files.wait()
    assert "named pipe" in window.banner.text
    assert window.document.modified
    window.banner.hide()
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(path), ""))
    window.studio.exchange.ask_export_plan()
    files.wait()
    assert "named pipe" in window.banner.text
    assert window.banner.isVisible()


def test_an_exported_plan_says_in_its_note_that_it_is_of_a_what_if(window, tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(path), ""))
    window.document.set_scale(1.0, 3.0)
    window.studio.exchange.ask_export_plan()
    window.studio.files.wait()
    assert json.loads(path.read_text())["facts"]["note"].endswith("What if: links 3 ×.")


@pytest.mark.parametrize("is_of_it", [False, True], ids=["of another", "of the what-if"])
def test_an_exported_what_if_has_the_notes_that_are_about_it(
    window, tmp_path, monkeypatch, is_of_it
):
    path, document = tmp_path / "plan.json", window.document
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(path), ""))
    usual = document.problem.costs_digest
    document.set_scale(1.0, 3.0)
    entry, costs = document.current, document.problem.costs_digest if is_of_it else usual
    plan = replace(entry.plan, note="the best of 3: 1.6 ms", noted_us=9.0, noted_for=costs)
    noted = replace(entry, plan=plan, schedule=replace(entry.schedule, plan=plan))
    window.studio.exchange.ask_export_plan(noted)
    window.studio.files.wait()
    facts = json.loads(path.read_text())["facts"]
    own = "The best of 3: 1.6 ms. " if is_of_it else ""
    assert facts["note"] == f"{own}What if: links 3 ×."
    assert facts.get("noted_for") == (costs if is_of_it else None)


def test_a_name_that_is_too_long_is_refused_in_one_line(window, tmp_path):
    files, path = window.studio.files, tmp_path / f"{'n' * 300}.enplace"
    window.document.place([2], 0)
    window.studio.saving.save_to(path)
    files.wait()
    assert window.banner.text.endswith("cannot write: File name too long; choose a shorter name.")
    assert window.document.modified
    window.studio.saving.save_to(tmp_path / "mine.enplace")
    files.wait()
    open_path(window, path)
    assert window.banner.text.endswith("cannot read: File name too long; check the path.")


def test_a_refusal_of_the_system_while_a_file_is_read_is_one_line(window, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(session, "open_file", refuse)
    window.studio.saving.save_to(tmp_path / "mine.enplace")
    window.studio.files.wait()
    open_path(window, tmp_path / "theirs.json")
    assert window.banner.text.endswith(
        "theirs.json: Permission denied; change its permissions, or choose another file or folder."
    )


@pytest.mark.parametrize("later_s", [60, -60], ids=["newer", "of an older date"])
def test_a_file_replaced_after_a_crash_is_not_overwritten_without_asking(
    window, tmp_path, monkeypatch, later_s
):
    path, texts = tmp_path / "mine.enplace", []
    window.studio.saving.save_to(path)
    window.studio.files.wait()
    window.document.place([2], 0)
    copy = tmp_path / "copy.enplace"
    opened = window.document.project
    document = window.document
    write_project(copy, to_project(opened, document.view, path, document.seen))
    path.write_bytes(path.read_bytes() + b" ")  # by a second window
    os.utime(path, (copy.stat().st_atime, copy.stat().st_mtime + later_s))
    kept = path.read_bytes()
    document.mark_saved(path, document.seen, document.work)
    monkeypatch.setattr(QMessageBox, "question", lambda *_: QMessageBox.StandardButton.Open)
    window.studio.files._ask_to_recover([(copy, "its work", copy.stat().st_mtime)])
    window.studio.files.wait()
    assert window.document.modified
    assert window.document.path == path
    monkeypatch.setattr(QMessageBox, "exec", lambda box: texts.append(box.text()))
    window.studio.saving.save()
    window.studio.files.wait()
    assert texts == ["Another program or window has changed mine.enplace since you opened it."]
    assert path.read_bytes() == kept


def test_a_recovered_project_is_saved_in_its_file_without_a_question(window, tmp_path, monkeypatch):
    path, document = tmp_path / "mine.enplace", window.document
    window.studio.saving.save_to(path)
    window.studio.files.wait()
    document.place([2], 0)
    copy = tmp_path / "copy.enplace"
    write_project(copy, to_project(document.project, document.view, path, document.seen))
    document.mark_saved(path, document.seen, document.work)
    monkeypatch.setattr(QMessageBox, "question", lambda *_: QMessageBox.StandardButton.Open)
    window.studio.files._ask_to_recover([(copy, "its work", copy.stat().st_mtime)])
    window.studio.files.wait()
    monkeypatch.setattr(QMessageBox, "exec", lambda box: pytest.fail(box.text()))
    window.studio.saving.save()
    window.studio.files.wait()
    assert not document.modified


def test_work_is_saved_even_if_what_it_replaces_cannot_be_kept(window, tmp_path, monkeypatch):
    path = tmp_path / "mine.enplace"
    window.studio.saving.save_to(path)
    window.studio.files.wait()

    def fail(self, path):
        raise FileError("cannot write: No space left on device; free some space on the disk")

    monkeypatch.setattr(Backups, "add_copy", fail)
    window.document.place([2], 0)
    window.studio.saving.save()
    window.studio.files.wait()
    assert not window.document.modified
    assert "mine.enplace is saved; what it replaced is not kept" in window.banner.text.lower()


def test_work_is_not_overwritten_if_it_cannot_be_kept(window, tmp_path, monkeypatch):
    path = tmp_path / "theirs.enplace"
    path.write_text("somebody's work")

    def fail(self, path):
        raise FileError("cannot write: No space left on device; free some space on the disk")

    monkeypatch.setattr(Backups, "add_copy", fail)
    window.studio.saving.save_to(path)
    window.studio.files.wait()
    assert path.read_text() == "somebody's work"
    assert "theirs.enplace is not overwritten" in window.banner.text.lower()


def test_what_is_done_while_a_save_is_written_stays_unsaved(window, tmp_path):
    files, document, path = window.studio.files, window.document, tmp_path / "mine.enplace"
    window.studio.saving.save_to(path)
    document.save_query("precious", "type:MatMul")
    files.wait()
    assert document.modified
    window.studio.saving.save()
    files.wait()
    assert not document.modified
    assert session.open_file(path).view["queries"] == {"precious": "type:MatMul"}


def test_save_as_belongs_to_the_new_file_even_if_the_work_goes_on(window, tmp_path, monkeypatch):
    files, document = window.studio.files, window.document
    old, new = tmp_path / "old.enplace", tmp_path / "new.enplace"
    window.studio.saving.save_to(old)
    files.wait()
    kept = old.read_bytes()
    window.studio.saving.save_to(new)
    document.place([2], 0)
    files.wait()
    assert (document.path, document.modified) == (new, True)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: pytest.fail(box.text()))
    window.studio.saving.save()
    files.wait()
    assert not document.modified
    assert session.open_file(new).project.problem.pins == {2: 0}
    assert old.read_bytes() == kept


def test_a_save_that_ends_after_another_model_was_opened_is_not_its_file(window, tmp_path):
    files, document = window.studio.files, window.document
    window.studio.saving.save_to(tmp_path / "mine.enplace")
    document.open(document.project)
    files.wait()
    assert (document.path, document.seen) == (None, None)


def test_what_a_killed_writer_left_beside_a_project_is_removed_as_it_is_opened(window, tmp_path):
    path = tmp_path / "mine.enplace"
    window.studio.saving.save_to(path)
    window.studio.files.wait()
    left = tmp_path / ".mine.enplace.999999999.0123456789ab.tmp"
    left.touch()
    window.studio.files.open_path(path)
    window.studio.files.wait()
    assert not left.exists()


def test_layers_that_menus_ask_for_are_found_while_the_file_is_read(window, monkeypatch, tmp_path):
    write_project(tmp_path / "mine.enplace", to_project(window.document.project, {}))
    threads, guess = [], whole.guess_pattern

    def noted(profile):
        threads.append(threading.current_thread())
        return guess(profile)

    monkeypatch.setattr(whole, "guess_pattern", noted)
    open_path(window, tmp_path / "mine.enplace")
    assert window.document.path == tmp_path / "mine.enplace"
    window.menus.refresh()
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
