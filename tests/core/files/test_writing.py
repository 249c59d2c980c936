"""A file is written whole; what killed writers left goes with the next write."""

import fcntl
import os
import subprocess
import sys

import pytest

from enplace.errors import FileError
from enplace.files.writing import write_atomically


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
