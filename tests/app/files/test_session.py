import errno
import gzip
import json
import os
import stat
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import QCoreApplication

from documents import add_plan, chain_document, document_of, let_go
from enplace.bounds import Proof
from enplace.errors import EnplaceError, FileError
from enplace.files.writing import write_atomically
from enplace.readers import readers
from enplace.readers.archive import Project
from enplace.text import ms
from enplace.values.cluster import Cluster, Device
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.splits import OFFLOAD, Split
from enplace.writers import write_profile, write_project
from enplace_studio.files import recovery as recovery_module
from enplace_studio.files import session
from enplace_studio.files.recovery import BACKUPS, BACKUPS_IN_ALL, Backups, Recovery
from enplace_studio.jobs import call_later
from enplace_studio.model.document import Document
from enplace_studio.model.edits import choosing
from enplace_studio.model.open_project import start_project
from enplace_studio.model.plan_facts import file_claim
from problems import cluster_of, profile_of


def save(document, path):
    write_project(path, session.to_project(document.project, document.view))
    document.mark_saved(path, document.seen, document.work)


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
    document.rename_plan(document.current, "mine")
    document.view["graph"] = {"open": ["lstm 0"]}
    again = opened_again(document, tmp_path / "p.enplace")
    assert again.problem.pins == document.problem.pins
    assert again.problem.together == document.problem.together
    assert again.problem.forbidden == document.problem.forbidden
    assert again.project.cluster == document.project.cluster
    assert [e.name for e in again.plans] == [e.name for e in document.plans]
    assert [e.note for e in again.plans] == [e.note for e in document.plans]
    assert again.current.name == "mine"
    assert again.schedule.makespan_us == document.schedule.makespan_us
    assert again.project.baseline.makespan_us == document.project.baseline.makespan_us
    assert again.view == {"graph": {"open": ["lstm 0"]}}


def test_open_groups_are_saved_and_are_no_step_of_undo(tmp_path, qtbot):
    names = [f"layer{i}/{part}/op{n}" for i in range(40) for part in "ab" for n in range(5)]
    profile = profile_of(dict.fromkeys(names, 10.0))
    document = document_of(profile, cluster_of(2), dict.fromkeys(names, 0))
    layer = document.project.whole_groups([0])
    assert document.project.describe(layer) == "layer 0"
    document.place(layer, 1)
    with qtbot.waitSignal(document.grouping_changed):
        document.turn_groups([0])
    assert {"layer 0 / a", "layer 0 / b"} <= set(document.project.grouping.names)
    assert document.selection == layer
    assert document.project.describe(layer) == "layer 0"
    document.undo_stack.undo()
    assert "layer 0 / a" in document.project.grouping.names
    again = opened_again(document, tmp_path / "p.enplace")
    assert again.project.grouping.names == document.project.grouping.names
    document.turn_groups(layer)
    assert document.project.grouping.names == start_project(profile, cluster_of(2)).grouping.names
    assert not document.modified  # it is how one looks at the model


def test_a_file_may_show_a_plan_of_another_graph_than_it_was_saved_with(tmp_path):
    profile = profile_of(
        {"a": 10, "b": 10, "c": 10}, [("a", "b", 50), ("b", "c", 1), ("a", "c", 50)]
    )
    problem = Problem(profile, cluster_of(1, cpu_lanes=1))
    splits = (Split("a", OFFLOAD, 2, ("c",)),)
    order = np.argsort(split_problem(problem, splits).profile.topological_order)
    plan = Plan(np.array([0, 0, 0, 1]), order, "by hand", splits=splits)
    view = {session.SHELL: {"current": 0, "plans": [{}]}}
    file = tmp_path / "p.enplace"
    write_project(file, Project(profile, problem.cluster, {}, (("kept", plan),), view, ()))
    opened = session.open_file(file).project
    assert opened.problem.splits == splits
    assert len(opened.grouping.group) == 4


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
    let_go(crashed)
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
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["backups"]
    assert not list((tmp_path / "r" / "backups").iterdir())


def test_work_is_copied_soon_after_the_first_change_whatever_follows(tmp_path, monkeypatch):
    document = chain_document()
    recovery, started = Recovery(document, tmp_path), []
    document.place([2], 0)
    assert recovery._timer.isActive()
    monkeypatch.setattr(recovery._timer, "start", lambda: started.append("anew"))
    document.place([1], 0)
    assert not started
    recovery.close()


def test_work_is_copied_in_a_pause_and_at_the_latest_after_ten_seconds(tmp_path, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr(call_later, "PAUSE_MS", 300)
    document = chain_document()
    recovery, written = Recovery(document, tmp_path), []
    monkeypatch.setattr(recovery, "write", lambda: written.append(now_s))
    for op in (2, 1):
        document.place([op], 0)
        recovery._timer.timeout.emit()
        assert not written
        now_s += 0.4
    recovery._timer.timeout.emit()
    assert written == [now_s]
    recovery._timer.stop()
    document.undo_stack.undo()
    now_s += 11
    document.undo_stack.undo()
    recovery._timer.timeout.emit()
    assert written[1:] == [now_s]
    recovery.close()


def test_a_recovered_copy_stays_until_another_one_is_written(tmp_path, monkeypatch):
    document = chain_document()
    document.place([2], 0)
    crashed = Recovery(document, tmp_path)
    write_now(crashed)
    let_go(crashed)
    recovery = Recovery(document, tmp_path)
    (copy,) = recovery.leftovers()
    monkeypatch.setattr("enplace_studio.files.recovery.write_project", fail_to_write)
    recovery.take_over(copy)
    recovery._pool.waitForDone()
    assert copy.exists()
    monkeypatch.undo()
    write_now(recovery)
    assert not copy.exists()
    assert recovery._file.exists()
    recovery.close()


def test_unsaved_work_that_cannot_be_copied_is_reported_once(qtbot, tmp_path, monkeypatch):
    document = chain_document()
    document.place([2], 0)
    recovery = Recovery(document, tmp_path)
    told = []
    recovery.failed.connect(told.append)
    monkeypatch.setattr("enplace_studio.files.recovery.write_project", fail_to_write)
    for _ in range(2):
        write_now(recovery)
        QCoreApplication.processEvents()
    assert len(told) == 1
    assert "A crash would lose your unsaved work" in told[0]
    assert "no space left" in told[0]
    monkeypatch.undo()
    write_now(recovery)
    QCoreApplication.processEvents()
    assert recovery._file.exists()
    recovery.close()


def test_a_backup_is_complete_and_private(tmp_path, monkeypatch):
    file = tmp_path / "mine.enplace"
    save(chain_document(), file)

    def fill_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill_disk)
    backups = Backups(tmp_path / "backups")
    with pytest.raises(FileError, match="free some space"):
        backups.add_copy(file)
    assert list(backups.folder.iterdir()) == []
    monkeypatch.undo()
    backups.add_copy(file)
    (backup,) = backups.folder.iterdir()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600


def fail_to_write(path, project, *, packed):
    raise FileError(f"{path}: cannot write: no space left")


def test_a_recovered_project_remembers_its_file(tmp_path):
    document = chain_document()
    save(document, tmp_path / "mine.enplace")
    document.place([2], 0)
    recovery = Recovery(document, tmp_path / "r")
    write_now(recovery)
    assert session.open_copy(recovery._file).path == tmp_path / "mine.enplace"
    assert session.open_file(recovery._file).path == recovery._file
    recovery.close()


def test_discarded_work_and_overwritten_files_become_dated_backups(tmp_path):
    document = chain_document()
    recovery = Recovery(document, tmp_path / "r")
    file = tmp_path / "mine.enplace"
    save(document, file)
    document.place([2], 0)
    recovery.backups.add_copy(file)
    write_now(recovery)
    recovery.close()  # as after "Discard"
    kept = sorted(path.name.split()[0] for path in recovery.backups.folder.iterdir())
    assert kept == ["discarded", "mine"]


def test_a_recovery_folder_out_of_reach_does_not_keep_the_studio_from_starting(tmp_path):
    (tmp_path / "far").symlink_to("n" * 300)
    recovery = Recovery(chain_document(), tmp_path / "far" / "recovery")
    assert recovery.leftovers() == []
    recovery.close()


def test_old_work_that_is_discarded_is_the_newest_backup(tmp_path):
    backups = Backups(tmp_path / "backups")
    copy = tmp_path / "copy"
    for number in range(BACKUPS + 1):
        copy.write_text(f"{number}")
        if number == BACKUPS:
            os.utime(copy, (1e9, 1e9))  # an old crash
        backups.add(copy)
    kept = {path.read_text() for path in backups.folder.iterdir()}
    assert kept == {f"{number}" for number in range(1, BACKUPS + 1)}


def test_a_file_larger_than_any_project_is_not_read_for_a_backup(tmp_path):
    backups, file = Backups(tmp_path / "backups"), tmp_path / "huge.enplace"
    with file.open("wb") as stream:
        stream.truncate(100 << 30)
    with pytest.raises(FileError, match="larger than 512 MiB"):
        backups.add_copy(file)
    assert list(backups.folder.iterdir()) == []


def test_a_note_of_a_project_can_neither_break_lines_nor_turn_text_around(tmp_path):
    document = chain_document()
    entry = document.current
    document.open(start_project(document.problem.measured_profile, document.project.cluster))
    odd = session.entry_for(document.problem, "odd", entry.plan, "a\n\u202eb\x1b[31m")
    document.add_plan(odd)
    assert [each.note for each in opened_again(document, tmp_path / "p.enplace").plans] == [
        "a b [31m"
    ]


def test_a_backup_holds_the_bytes_of_the_file_whatever_they_are(tmp_path):
    backups, file = Backups(tmp_path / "backups"), tmp_path / "mine.enplace"
    file.write_bytes(gzip.compress(b"whole") + b"damaged")
    backups.add_copy(file)
    (kept,) = backups.folder.iterdir()
    assert kept.read_bytes() == file.read_bytes()


def test_backups_of_files_with_one_name_in_two_folders_are_counted_apart(tmp_path):
    backups = Backups(tmp_path / "backups")
    for folder, versions in (("x", 1), ("y", BACKUPS + 2)):
        (tmp_path / folder).mkdir()
        for version in range(versions):
            (tmp_path / folder / "m.enplace").write_text(f"{version}")
            backups.add_copy(tmp_path / folder / "m.enplace")
    kept = [path.name for path in backups.folder.iterdir()]
    assert sum(name.startswith("m in x") for name in kept) == 1
    assert sum(name.startswith("m in y") for name in kept) == BACKUPS


def test_backups_have_a_limit_of_room_but_the_newest_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(recovery_module, "BACKUP_BYTES", 25)
    backups, file = Backups(tmp_path / "backups"), tmp_path / "p.enplace"
    for content in (b"a" * 10, b"b" * 10, b"c" * 10, b"d" * 30):
        file.write_bytes(content)
        backups.add_copy(file)
        kept = {path.read_bytes()[:1] for path in backups.folder.iterdir()}
        assert content[:1] in kept
    assert kept == {b"d"}


def test_work_is_not_copied_without_the_lock_that_tells_others_it_is_in_use(
    tmp_path, monkeypatch, qtbot
):
    def fail(path):
        raise FileError(f"{path}: cannot make this lock: No space left on device")

    document = chain_document()
    document.place([2], 0)
    saver, told = Recovery(document, tmp_path), []
    saver.failed.connect(told.append)
    monkeypatch.setattr(recovery_module, "hold_lock", fail)
    write_now(saver)
    QCoreApplication.processEvents()
    assert not saver._file.exists()
    assert "No space left" in told[0]
    monkeypatch.undo()
    write_now(saver)
    assert Recovery(Document(), tmp_path).leftovers() == [], "another window sees it is in use"
    let_go(saver)
    assert Recovery(Document(), tmp_path).leftovers() == [saver._file]


def test_a_copy_is_offered_on_a_full_disk_and_if_its_lock_is_gone(tmp_path, monkeypatch):
    document = chain_document()
    document.place([2], 0)
    crashed = Recovery(document, tmp_path)
    write_now(crashed)
    let_go(crashed)

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    again = Recovery(Document(), tmp_path)
    monkeypatch.setattr(os, "fsync", fail)
    assert again.leftovers() == [crashed._file]
    (tmp_path / f"{crashed._file.name}.lock").unlink()
    assert again.leftovers() == [crashed._file]


def test_what_killed_writers_left_is_removed_at_the_start(tmp_path):
    left = [
        folder / ".m.enplace.999999999.0123456789ab.tmp"
        for folder in (tmp_path / "r", tmp_path / "r" / "backups")
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    Recovery(Document(), tmp_path / "r")
    assert not any(path.exists() for path in left)


def test_one_project_does_not_push_out_the_backups_of_others(tmp_path):
    backups = Backups(tmp_path / "backups")
    for name, versions in (("mine", 1), ("[a] 1", 20), *((f"p{i}", 1) for i in range(50))):
        for version in range(versions):
            (tmp_path / f"{name}.enplace").write_text(f"{version}")
            backups.add_copy(tmp_path / f"{name}.enplace")
    kept = [path.name for path in backups.folder.iterdir()]
    assert sum(name.startswith("mine") for name in kept) == 1
    assert sum(name.startswith("[a] 1") for name in kept) == BACKUPS
    for number in range(2 * BACKUPS_IN_ALL):
        (tmp_path / f"q{number}.enplace").write_bytes(b"x")
        backups.add_copy(tmp_path / f"q{number}.enplace")
    assert len(list(backups.folder.iterdir())) == BACKUPS_IN_ALL


def test_copies_are_private_and_old_locks_are_removed(tmp_path):
    document = chain_document()
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "1-a.enplace.lock").touch()
    recovery = Recovery(document, tmp_path / "r")
    document.place([2], 0)
    write_now(recovery)
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700
    assert stat.S_IMODE(recovery._file.stat().st_mode) == 0o600
    assert not (tmp_path / "r" / "1-a.enplace.lock").exists()
    recovery.close()


@pytest.mark.parametrize(
    "view",
    [
        [],
        "x",
        {"studio": []},
        {"studio": {"plans": 1, "scale": "x"}},
        {"studio": {"scale": [10**400, 1]}},
        {"studio": {"plans": [{"constraints": {"pins": [[9, 0]]}}]}},
        {"studio": {"plans": [{"constraints": {"pins": [[0, 200]]}}]}},
        {"studio": {"plans": [{"constraints": {"before": [[0, 2], [2, 0]]}}]}},
    ],
)
def test_a_damaged_view_does_not_keep_a_project_from_opening(tmp_path, view):
    document = chain_document()
    path = tmp_path / "p.enplace"
    save(document, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    project = json.loads(members["project.json"]) | {"view": view}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"project.json": json.dumps(project)}).items():
            archive.writestr(name, content)
    if isinstance(view, dict):
        assert session.open_file(path).project.problem.profile.n_ops == 3
    else:
        with pytest.raises(EnplaceError, match="view"):
            session.open_file(path)


def test_the_dialog_offers_every_format_with_a_reader():
    offered = session.file_filter().split(";;")
    assert offered[0].startswith("Profiles and projects (")
    for suffix in (".json", ".json.gz", ".enplace"):
        assert f"*{suffix}" in offered[0]
    assert [text.partition(" (")[0] for text in offered[1:-1]] == [
        reader.title for reader in readers().values()
    ]
    assert offered[-1] == "All files (*)"


def test_each_plan_keeps_the_constraints_that_it_was_made_under(tmp_path):
    """Its bound is that of these, and so is what its exported file says."""
    document = chain_document()
    document.pin_here([0, 1, 2])
    document.place([2], 0)
    assert document.plans[0].schedule.problem.pins != document.problem.pins
    save(document, tmp_path / "mine.enplace")
    again = session.open_file(tmp_path / "mine.enplace").project
    for now, then in zip(again.plans, document.plans, strict=True):
        assert now.schedule.problem.constraints == then.schedule.problem.constraints


def test_a_plan_for_another_cluster_survives_saving(tmp_path):
    document = chain_document()
    add_plan(document, "all on one", {"a": 0, "b": 0, "c": 0})
    larger = document.project.cluster
    document.set_cluster(cluster_of(1))
    file = tmp_path / "mine.enplace"
    save(document, file)
    opened = session.open_file(file).project
    assert [entry.cluster for entry in opened.plans] == [larger, None]
    assert opened.current is opened.plans[1]
    again = choosing(opened, opened.plans[0])
    assert again.cluster == larger
    assert again.current.plan.device.tolist() == document.plans[0].plan.device.tolist()


def test_work_discarded_for_another_model_becomes_a_backup(tmp_path):
    document = chain_document()
    document.place([2], 0)
    recovery = Recovery(document, tmp_path)
    recovery.keep_discarded()
    recovery.keep_discarded()  # once is enough
    recovery._pool.waitForDone()
    assert recovery._file.exists()
    document.open(start_project(profile_of({"a": 1.0}), cluster_of(2)))
    write_now(recovery)
    (backup,) = recovery.backups.folder.iterdir()
    kept = session.open_file(backup).project
    assert dict(kept.problem.pins) == {2: 0}
    recovery.close()
    assert len(list(recovery.backups.folder.iterdir())) == 1


def test_backups_of_the_same_second_are_all_kept(tmp_path):
    backups = Backups(tmp_path / "backups")
    for content in ("one", "two"):
        (tmp_path / "copy").write_text(content)
        backups.add(tmp_path / "copy")
    assert sorted(path.read_text() for path in backups.folder.iterdir()) == ["one", "two"]


def test_a_recovered_copy_remembers_which_version_of_its_file_was_seen(tmp_path):
    """Another program may have replaced the file since, even by one with an older date."""
    document = chain_document()
    seen = (1, 2, 3)
    project = session.to_project(document.project, {}, tmp_path / "mine", seen)
    write_project(tmp_path / "copy.enplace", project)
    found = session.open_copy(tmp_path / "copy.enplace")
    assert (found.path, found.seen, found.is_copy) == (tmp_path / "mine", seen, True)


def test_what_only_a_solver_could_prove_is_named_when_the_project_is_opened_again(tmp_path):
    document = chain_document()
    document.bounds.add(document.problem, Proof(40.0, "CP-SAT"))
    project = session.to_project(document.project, {}, proofs=document.bounds.proofs)
    write_project(tmp_path / "p.enplace", project)
    again, claimed = Document(), f"Not below {ms(40.0)}, says its file."
    again.open(session.open_file(tmp_path / "p.enplace").project)

    def said(document):
        document.bounds.proofs.find(document.problem)
        return file_claim(document.bounds, document.schedule)

    assert (said(again), again.current.plan.bound_us, again.current.plan.note) == (
        claimed,
        None,
        "",
    )
    again.set_scale(1.0, 6.2)
    assert said(again) == "", "it was said of other speeds"
    kept = opened_again(again, tmp_path / "q.enplace")
    assert (kept.project.scale, said(kept)) == ((1.0, 1.0), claimed)
    again.set_scale(1.0, 1.0)
    assert said(again) == claimed
    again.set_cluster(cluster_of(3))
    assert said(again) == "", "it was said of another cluster"
    assert said(opened_again(again, tmp_path / "r.enplace")) == ""
    again.set_cluster(kept.project.cluster)
    assert said(again) == claimed
    again.place([2], 0)
    assert said(again) == "", "the file did not say it of the edited plan"


def test_the_oldest_backup_goes_only_when_the_new_one_is_on_disk(tmp_path, monkeypatch):
    backups, file = Backups(tmp_path / "backups"), tmp_path / "p.enplace"
    file.write_bytes(b"x" * 1000)
    for _ in range(10):
        backups.add_copy(file)
    kept = sorted(backups.folder.iterdir())

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError, match="free some space"):
        backups.add_copy(file)
    assert sorted(backups.folder.iterdir()) == kept


def test_a_long_name_in_any_script_has_backups(tmp_path):
    backups, file = Backups(tmp_path / "backups"), tmp_path / ("模" * 80 + ".enplace")
    write_atomically(file, b"one")
    write_atomically(file, b"two")
    backups.add_copy(file)
    (kept,) = backups.folder.iterdir()
    assert kept.read_bytes() == b"two"


@pytest.mark.parametrize(("gib", "name"), [(1, "h100-2-nvlink"), (385, "h100-8-nvlink")])
def test_an_estimate_opens_on_as_many_gpus_as_its_variables_need(gib, name):
    parts = dict.fromkeys("abcdef", (gib << 30) // 6)
    profile = profile_of(dict.fromkeys(parts, 1.0), persistent=parts)
    profile = replace(profile, measured=replace(profile.measured, estimated="H100"))
    assert session.open_profile(profile).project.problem.cluster.name == name


def test_a_profile_of_one_cpu_opens_on_it_and_not_on_gpus_where_nothing_runs():
    own = Cluster("local", (Device("CPU:0", "cpu", 1 << 30),), (), ())
    profile = profile_of({}, cpu={"a": 1.0})
    profile = replace(profile, measured=Measurement(cluster=own))
    assert session.open_profile(profile).project.cluster.name == "local"
