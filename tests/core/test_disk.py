"""What killed processes leave behind goes at the next start."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from enplace.disk import (
    ITEMS_AT_ONCE,
    dump_json,
    find_files,
    hold_lock,
    is_abandoned,
    parse_json,
    read_bytes,
    remove_abandoned_files,
    temporary_folder,
    write_atomically,
)
from enplace.errors import FileError

HOLD = """
import sys
from enplace.disk import temporary_folder
with temporary_folder() as folder:
    (folder / "inside").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for temporary files of this process and its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def hold_a_folder():
    """Start a process with a temporary folder; return it, and the folder."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return child, Path(child.stdout.readline().strip())


def test_a_temporary_folder_goes_at_its_end(folder):
    with temporary_folder() as made:
        assert made.parent == folder
        (made / "file").touch()
    assert not list(folder.iterdir())


def test_a_folder_of_a_stranger_is_left_alone(folder):
    """Its lock is a pipe, which would block, a link, or a file of his own."""
    (folder / "enplace-thesis").mkdir()
    (folder / "enplace-thesis" / ".lock").touch()
    (folder / "enplace-thesis" / "chapter.txt").write_text("mine")
    (folder / "enplace-pipe").mkdir()
    os.mkfifo(folder / "enplace-pipe" / ".lock")
    (folder / "enplace-link").mkdir()
    (folder / "target").touch()
    (folder / "enplace-link" / ".lock").symlink_to(folder / "target")
    with temporary_folder():
        assert (folder / "enplace-link").exists()
        assert (folder / "enplace-thesis" / "chapter.txt").read_text() == "mine"


def test_a_folder_that_was_unpacked_from_an_archive_is_left_alone(folder):
    """It may look exactly like one of ours, but somebody works in it."""
    killed, left = hold_a_folder()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    unpacked = folder / "enplace-unpacked"
    shutil.copytree(left, unpacked)
    with temporary_folder():
        assert not left.exists()
        assert (unpacked / "inside").exists()


def test_a_named_pipe_is_refused_and_one_of_the_shell_is_read(tmp_path):
    """Nobody may ever write to the first."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe: this is a named pipe; use a file instead"):
        read_bytes(tmp_path / "pipe")
    end, start = os.pipe()
    os.write(start, b"text")
    os.close(start)
    assert read_bytes(f"/dev/fd/{end}") == b"text"
    os.close(end)


def test_the_folder_of_a_killed_process_goes_and_that_of_a_running_one_stays(folder):
    with temporary_folder() as own:
        running, kept = hold_a_folder()
        killed, left = hold_a_folder()
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        assert (left / "inside").exists()
        with temporary_folder():
            assert sorted(folder.glob("enplace-*/inside")) == [kept / "inside"]
            assert own.exists()
        running.communicate()
    assert not list(folder.iterdir())


def test_temporary_files_of_killed_writers_go_with_the_next_write(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    left = tmp_path / f".plan.json.{killed.pid}.0123456789ab.tmp"
    another = tmp_path / f".table.csv.{killed.pid}.0123456789ab.tmp"
    running = tmp_path / f".plan.json.{os.getpid()}.0123456789ab.tmp"
    other = tmp_path / f".plan.json.extra.{killed.pid}.tmp"
    elsewhere = tmp_path / f".plan.json.{killed.pid}.ba9876543210.tmp"
    for path in (left, another, running, other, elsewhere):
        path.touch()
    with open(elsewhere) as lock:  # as a writer in another container does
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_atomically(tmp_path / "plan.json", "{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [running.name, other.name, elsewhere.name, "plan.json"]
    )


def test_a_write_protected_file_is_not_replaced(tmp_path):
    path = tmp_path / "p.json"
    path.write_text("kept")
    path.chmod(0o444)
    with pytest.raises(FileError, match="change its permissions"):
        write_atomically(path, "new")
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_read_holds_no_files(tmp_path):
    (tmp_path / ".a.tmp").touch()
    assert find_files(tmp_path, ".*.tmp") == [tmp_path / ".a.tmp"]
    for folder in (tmp_path / ("n" * 300), tmp_path / ".a.tmp"):
        assert find_files(folder, "*") == []
        remove_abandoned_files(folder)


def test_a_lock_is_held_until_it_is_closed(tmp_path):
    path = tmp_path / "a.lock"
    assert is_abandoned(path), "there is none"
    lock = hold_lock(path)
    assert not is_abandoned(path)
    with pytest.raises(FileError, match="cannot make this lock"):
        hold_lock(path)
    os.close(lock)
    assert is_abandoned(path)


def test_reading_a_small_file_takes_little_memory(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(b"text")
    tracemalloc.start()
    try:
        assert read_bytes(path) == b"text"
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_a_number_of_millions_of_digits_is_refused_before_it_is_copied():
    content = b'{"ops": -' + b"9" * (8 << 20) + b"}"
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="number is too long"):
            parse_json(content)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(content) / 2


def test_json_in_pieces_is_that_of_the_whole():
    many = [*range(2 * ITEMS_AT_ONCE + 1)]
    nested = {"a": many, 'quo"te': {"b": tuple(many), "ä": [], "c": {}}, "d": [many, {"e": many}]}
    plain = json.dumps(nested, separators=(",", ":"), ensure_ascii=False)
    assert dump_json(nested) == plain
    assert dump_json(many) == json.dumps(many, separators=(",", ":"))
    assert dump_json({"a": np.arange(3), 2: np.float64(0.5)}) == '{"a":[0,1,2],"2":0.5}'
