"""Turns of the event loop: what an edit changes is shown in parts, so that no part is a stall.

The order: an edit's own signals come first, at once. Slots of :func:`call_later` follow one by one,
a turn each, in the order in which they were asked for; for one signal, that is the order in which
they were connected to it, which is that of the table of views. A slot that is asked for again while
it waits goes to the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer, SignalInstance

PAUSE_MS = 300
"""How long the user is quiet before threads begin what the next edit would have in vain.

After a model is opened, they do not compete with the first pictures of all panes.
"""


class _Turn:
    """A turn of the event loop, which one slot, or one edit, may have.

    It lasts for two rounds of the loop: in the first the window paints what has changed and takes
    input, and what that causes is done in the second.
    """

    def __init__(self) -> None:
        self._takers = 0
        self.edited_s = time.monotonic()
        """When the last edit had one."""

    @property
    def is_taken(self) -> bool:
        return self._takers > 0

    def take(self) -> None:
        self._takers += 1
        QTimer.singleShot(0, lambda: QTimer.singleShot(0, self._end))

    def _end(self) -> None:
        self._takers -= 1


_turn = _Turn()


def take_turn() -> None:
    """Let those who wait to be called have another turn than this one."""
    _turn.edited_s = time.monotonic()
    _turn.take()


def is_editing() -> bool:
    """Return whether the user has selected or edited something a moment ago."""
    return 1e3 * pause_s() < PAUSE_MS


def pause_s() -> float:
    """Return for how long the user has neither opened, selected nor edited anything."""
    return time.monotonic() - _turn.edited_s


def call_later(owner: QObject, slot: Callable[[], None], *changes: SignalInstance) -> QTimer:
    """Call a slot once after any number of changes, when the event that caused them is over.

    Several signals follow one edit, and a click may replace the button that was clicked. Slots that
    wait for the same edit have a turn of the event loop each: the window takes input and paints
    in between.

    Returns
    -------
    QTimer
        Starting it calls the slot too.
    """
    timer = QTimer(owner, singleShot=True, interval=0)

    def run() -> None:
        if _turn.is_taken:
            timer.start()
        else:
            _turn.take()
            slot()

    timer.timeout.connect(run)
    for change in changes:
        change.connect(timer.start)
    return timer


class InPause(QTimer):
    """Calls a slot as soon as the user has neither selected nor edited anything for a moment."""

    def __init__(self, owner: QObject, slot: Callable[[], None]) -> None:
        super().__init__(owner, singleShot=True)
        self._slot = slot
        self.timeout.connect(self._call)

    def ask(self) -> None:
        """Ask for the call; to ask again before it comes does not put it off."""
        if not self.isActive():
            self.start(0)

    def _call(self) -> None:
        left_ms = PAUSE_MS - 1e3 * pause_s()
        if left_ms > 0:
            self.start(math.ceil(left_ms))
        else:
            self._slot()
