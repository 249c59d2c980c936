"""What killed processes leave behind goes at the next start."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from enplace.files.folders import find_files, temporary_folder
from enplace.files.writing import remove_abandoned_files

HOLD = """
import sys
from enplace.files.folders import temporary_folder
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


def test_a_folder_that_cannot_be_read_holds_no_files(tmp_path):
    (tmp_path / ".a.tmp").touch()
    assert find_files(tmp_path, ".*.tmp") == [tmp_path / ".a.tmp"]
    for folder in (tmp_path / ("n" * 300), tmp_path / ".a.tmp"):
        assert find_files(folder, "*") == []
        remove_abandoned_files(folder)
