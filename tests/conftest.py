"""Fixtures for all tests: Qt without a display; no thread left running, no window left open.

Unexpected Python warnings and Qt warnings fail a test too; pyproject.toml turns that on.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from properties import load_profile
from warm_tensorflow import WarmPython

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

# A shell starts background jobs with Ctrl-C ignored, and every process they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

GRACE_MS = 60_000
"""Longer than the slowest machine takes to end a thread."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run all tests, with many examples")


def pytest_configure(config: pytest.Config) -> None:
    load_profile(long=config.getoption("long"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that repeat, at length, what others have tested."""
    if config.getoption("long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Keep what is imported out of every later search for garbage, which Keras often asks for."""
    gc.freeze()


@pytest.fixture(autouse=True)
def widgets_die_in_this_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect garbage only between the studio's tests, as the studio does in its own thread.

    A widget that is collected in another thread crashes the process, at once or much later.
    """
    if not {"app", "acceptance"} & set(request.path.parts):
        yield
        return
    gc.disable()
    gc.freeze()
    yield
    gc.collect()
    gc.enable()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test that leaves a thread running, after giving the thread time to end.

    Covers threads of Python and Qt's thread pool; a QThread that is dropped while it runs warns and
    so fails its test anyway.
    """
    before = set(threading.enumerate())
    yield
    qt_core = sys.modules.get("PySide6.QtCore")
    pool_is_done = qt_core is None or qt_core.QThreadPool.globalInstance().waitForDone(GRACE_MS)
    assert pool_is_done, "work left running in Qt's thread pool"
    # A dummy is Python's record of a thread that Qt started. It never reports its end.
    dummy = threading._DummyThread
    started = [t for t in threading.enumerate() if t not in before and not isinstance(t, dummy)]
    # If nothing was compiled ahead, another process compiles until the last test.
    started = [thread for thread in started if thread.name != "outbox of compiling"]
    for thread in started:
        thread.join(GRACE_MS / 1000)
    left = [thread.name for thread in started if thread.is_alive()]
    assert not left, f"threads left running: {', '.join(left)}"


def pytest_sessionfinish() -> None:
    """End the process that compiles."""
    if kernels := sys.modules.get("enplace.placers.enplace.kernels"):
        kernels.stop_compiling()


@pytest.fixture(scope="session")
def run_python() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """A function that runs Python in a process of its own, which has imported TensorFlow."""
    with WarmPython() as warm:
        yield warm.run


@pytest.fixture(autouse=True)
def no_window_left() -> Iterator[None]:
    """Close and report the windows that a test leaves open."""
    yield
    widgets = sys.modules.get("PySide6.QtWidgets")
    if widgets is None or widgets.QApplication.instance() is None:
        return
    windows = [w for w in widgets.QApplication.topLevelWidgets() if w.isVisible()]
    for window in windows:
        window.close()
    assert not windows, f"windows left open: {windows}"
