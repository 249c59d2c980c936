"""Files are read within limits."""

import os
import tracemalloc

import pytest

from enplace.errors import FileError
from enplace.files.reading import read_bytes


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
