"""Work in threads, with callbacks in the window's thread, so that the window stays responsive."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Qt, QThreadPool, QTimer

from enplace.errors import EnplaceError, file_error
from enplace.system import yield_to_main_thread

log = logging.getLogger(__name__)

POLL_MS = 8

_Result = TypeVar("_Result")


class _Task:
    """One function to run; its thread touches nothing else."""

    def __init__(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], object],
        failed: Callable[[EnplaceError], object] | None,
    ) -> None:
        self._work, self._done, self._failed = work, done, failed
        self.finished = threading.Event()
        self._result: Any = None
        self._fault: BaseException | None = None

    def run(self) -> None:
        """Do the work, in a thread; on few cores, the window goes first."""
        yield_to_main_thread()
        try:
            self._result = self._work()
        except BaseException as fault:
            self._fault = fault
        self.finished.set()

    def deliver(self) -> None:
        """Call back, in the thread of the window."""
        if isinstance(self._fault, EnplaceError) and self._failed is not None:
            self._failed(self._fault)
        elif isinstance(self._fault, OSError) and self._failed is not None:
            log.warning("a file that cannot be used", exc_info=self._fault)
            self._failed(file_error(self._fault))
        elif self._fault is not None:
            raise self._fault
        else:
            self._done(self._result)


class Background(QObject):
    """Runs functions that touch no widgets, and delivers results in the order of the starts.

    Nothing is delivered once the owner is gone. Threads see plain data only: a Qt object that is
    called or deleted in one of them would crash the process.

    Parameters
    ----------
    owner : QObject
        If it is a widget, it shows the busy cursor while work is running.
    """

    def __init__(self, owner: QObject) -> None:
        super().__init__(owner)
        self._owner = owner
        self._tasks: deque[_Task] = deque()
        self._timer = QTimer(self, interval=POLL_MS)
        self._timer.timeout.connect(self._deliver)

    @property
    def is_busy(self) -> bool:
        """Whether any result is still pending."""
        return bool(self._tasks)

    def start(
        self,
        work: Callable[[], _Result],
        done: Callable[[_Result], object],
        failed: Callable[[EnplaceError], object] | None = None,
    ) -> None:
        """Run ``work`` in a thread, then call ``done`` with its result or ``failed``.

        A file that the system refuses is one line for ``failed`` too; another fault is raised.
        """
        task = _Task(work, done, failed)
        self._tasks.append(task)
        self._timer.start()
        self._show_cursor()
        QThreadPool.globalInstance().start(task.run)

    def forget(self) -> None:
        """Drop all pending results."""
        self._tasks.clear()
        self._settle()

    def wait(self) -> None:
        """Block until every result is delivered."""
        while self._tasks:
            self._tasks[0].finished.wait()
            self._deliver()

    def _deliver(self) -> None:
        try:
            while self._tasks and self._tasks[0].finished.is_set():
                self._tasks.popleft().deliver()
        finally:
            self._settle()

    def _settle(self) -> None:
        if not self._tasks:
            self._timer.stop()
            self._show_cursor()

    def _show_cursor(self) -> None:
        if not self._owner.isWidgetType():
            return
        window: Any = self._owner
        window = window.window()
        if self._tasks:
            window.setCursor(Qt.CursorShape.BusyCursor)
        else:
            window.unsetCursor()
