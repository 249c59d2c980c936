"""Graphviz in a worker: it may be slow, and must not block the window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QObject, QTimer

from enplace.names.group_facts import GroupEdges
from enplace.processes.wire import DONE, Message
from enplace.processes.worker import handler_program
from enplace.values.profile import FloatArray
from enplace.writers.graph_layout import CARD_H, GAP, LAYER_GAP, WIDE_CARD_W
from enplace_studio.worker import StudioWorker

PROGRAM = handler_program("enplace_studio.dot_worker:serve", "Graphviz")

TIME_LIMIT_MS = 5000
_HUB = 8  # with more edges at one node, dot gets slow and the picture crowded

Placed = Callable[[FloatArray, FloatArray], None]


class DotProcess(QObject):
    """Runs one layout at a time; a newer request stops the older one."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._worker: StudioWorker | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(TIME_LIMIT_MS)
        self._timer.timeout.connect(self._give_up)
        # The caller may be gone before the answer arrives.
        parent.destroyed.connect(self.stop)

    def start(self, n: int, edges: GroupEdges, placed: Placed, failed: Callable[[], None]) -> None:
        """Lay out ``n`` cards; call ``placed`` with x and y of their centres, or ``failed``."""
        self.stop()
        self._failed = failed
        details = {"n": n, "card": (WIDE_CARD_W, CARD_H), "gap": (GAP, LAYER_GAP)}
        job = Message("lay-out", details, {"edges": _without_hubs(n, edges)})
        self._worker = StudioWorker(PROGRAM, [job], self)
        self._worker.received.connect(lambda message: self._finish(message, placed))
        self._timer.start()

    def stop(self) -> None:
        """Stop the running layout."""
        self._timer.stop()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
            worker.deleteLater()

    def _give_up(self) -> None:
        self.stop()
        self._failed()

    def _finish(self, message: Message, placed: Placed) -> None:
        self.stop()
        if message.do == DONE:
            x, y = message.arrays["middles"].T
            placed(x, -y)
        else:
            self._failed()


def _without_hubs(n: int, edges: GroupEdges) -> NDArray[np.int64]:
    """Return the pairs to lay out, without long edges of hubs, which distort the picture."""
    degree = np.bincount(edges.source, minlength=n) + np.bincount(edges.target, minlength=n)
    hub = degree > max(_HUB, n // 3)
    near = np.abs(edges.target - edges.source) <= 2
    kept = (~hub[edges.source] & ~hub[edges.target]) | near
    return np.column_stack([edges.source[kept], edges.target[kept]])
