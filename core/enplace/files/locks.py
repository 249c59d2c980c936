"""Locks that a process holds for as long as it lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from enplace.errors import FileError
from enplace.system import LOCK_FLAGS, lock


def hold_lock(path: Path) -> int:
    """Make a lock, and hold it until the descriptor is closed or this process is killed.

    Returns
    -------
    int
        The descriptor.

    Raises
    ------
    FileError
        If it cannot be made, or another process holds it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        lock(descriptor, wait=False)
    except OSError as error:
        raise FileError(f"{path}: cannot make this lock: {error.strerror}") from None
    return descriptor


def is_abandoned(path: Path) -> bool:
    """Return whether no living process holds a lock; so it is if the lock is gone.

    A process number would not tell: that of another container says nothing here.
    """
    try:
        with taken(path):
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


@contextmanager
def taken(path: Path) -> Iterator[BinaryIO]:
    """Hold the lock of a file that exists."""
    with open(path, "rb", opener=_open_lock) as file:
        lock(file, wait=False)
        yield file


def _open_lock(path: str, flags: int) -> int:
    return os.open(path, flags | LOCK_FLAGS)
