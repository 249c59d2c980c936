"""Work that takes a moment, done beside the window: it goes on drawing, but takes no input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from PySide6.QtCore import QEventLoop, QObject, Qt, Signal
from PySide6.QtGui import QGuiApplication

_Result = TypeVar("_Result")


class _Bell(QObject):
    rung = Signal()


def aside(work: Callable[[], _Result]) -> _Result:
    """Run ``work``, which touches no widgets, in a thread, and wait for it without freezing.

    Raises
    ------
    Exception
        Whatever ``work`` raises.
    """
    results: list[_Result] = []
    faults: list[BaseException] = []
    bell, loop = _Bell(), QEventLoop()
    bell.rung.connect(loop.quit, Qt.ConnectionType.QueuedConnection)

    def run() -> None:
        try:
            results.append(work())
        except BaseException as fault:
            faults.append(fault)
        bell.rung.emit()

    thread = threading.Thread(target=run, name="aside")
    QGuiApplication.setOverrideCursor(Qt.CursorShape.BusyCursor)
    try:
        thread.start()
        loop.exec(QEventLoop.ProcessEventsFlag.ExcludeUserInputEvents)
        thread.join()
    finally:
        QGuiApplication.restoreOverrideCursor()
    if faults:
        raise faults[0]
    return results[0]
