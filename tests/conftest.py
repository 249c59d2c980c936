"""Fixtures for every test: Qt without a display, and no thread left running.

Unexpected Python warnings and Qt warnings fail a test too; pyproject.toml turns that on.
"""

import os
import threading
from collections.abc import Iterator

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

THREAD_GRACE_S = 5.0


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail the test that leaves a thread running once it had time to end."""
    before = set(threading.enumerate())
    yield
    started = [thread for thread in threading.enumerate() if thread not in before]
    # A dummy stands for a thread of Qt's own that ran Python once; it never reports its end.
    started = [thread for thread in started if not isinstance(thread, threading._DummyThread)]
    for thread in started:
        thread.join(THREAD_GRACE_S)
    alive = [thread.name for thread in started if thread.is_alive()]
    assert not alive, f"threads left running: {', '.join(alive)}"
