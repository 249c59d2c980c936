"""A lock is held for as long as its process lives."""

import os

import pytest

from enplace.errors import FileError
from enplace.files.locks import hold_lock, is_abandoned


def test_a_lock_is_held_until_it_is_closed(tmp_path):
    path = tmp_path / "a.lock"
    assert is_abandoned(path), "there is none"
    lock = hold_lock(path)
    assert not is_abandoned(path)
    with pytest.raises(FileError, match="cannot make this lock"):
        hold_lock(path)
    os.close(lock)
    assert is_abandoned(path)
