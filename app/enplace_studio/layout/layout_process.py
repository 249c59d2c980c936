"""The layout in a worker: it takes up to half a second, and must not block the window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QObject, QTimer

from enplace.names.group_facts import GroupEdges
from enplace.pictures.graph_layout import GAP, LAYER_GAP, Boxes
from enplace.processes.wire import DONE, Message
from enplace.processes.worker import handler_program
from enplace.values.arrays import BoolArray
from enplace.values.profile import FloatArray
from enplace_studio.jobs.worker import StudioWorker

PROGRAM = handler_program("enplace_studio.layout.layout_worker:serve", "layout")

TIME_LIMIT_MS = 5000
_FAN = 12  # with more edges in or out of a box, the picture gets crowded

Placed = Callable[[FloatArray, FloatArray, list[FloatArray | None]], None]


class LayoutProcess(QObject):
    """Runs one layout at a time; a newer request stops the older one."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._worker: StudioWorker | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(TIME_LIMIT_MS)
        self._timer.timeout.connect(self.stop)
        # The caller may be gone before the answer arrives.
        parent.destroyed.connect(self.stop)

    @property
    def is_running(self) -> bool:
        return self._worker is not None

    def start(self, boxes: Boxes, edges: GroupEdges, placed: Placed) -> None:
        """Lay out boxes; call ``placed`` with x and y of their centres and the ways of the edges.

        It is not called if the worker fails or takes too long.
        """
        self.stop()
        kept = nearest_edges(edges)
        arrays = {
            "edges": np.column_stack([edges.source[kept], edges.target[kept]]),
            "sizes": np.column_stack([boxes.width, boxes.height]),
            "side": boxes.side,
        }
        job = Message("lay-out", {"gap": (GAP, LAYER_GAP)}, arrays)
        self._worker = StudioWorker(PROGRAM, [job], self)
        self._worker.received.connect(lambda message: self._finish(message, kept, placed))
        self._timer.start()

    def stop(self) -> None:
        """Stop the running layout."""
        self._timer.stop()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
            worker.deleteLater()

    def _finish(self, message: Message, kept: BoolArray, placed: Placed) -> None:
        self.stop()
        if message.do != DONE:
            return
        x, y = message.arrays["middles"].T
        points, ends = message.arrays["points"], message.arrays["ends"]
        found = iter(np.split(points, ends[:-1]))
        placed(x, y, [next(found) if is_kept else None for is_kept in kept.tolist()])


def nearest_edges(edges: GroupEdges) -> BoolArray:
    """Find the edges to lay out: of a box with a large fan, only those to the nearest boxes."""
    kept = np.ones(len(edges.bytes), dtype=bool)
    far = np.abs(edges.target - edges.source)
    for end in (edges.source, edges.target):
        order = np.lexsort((far, end))
        place = np.arange(len(order)) - np.searchsorted(end[order], end[order])
        kept[order[place >= _FAN]] = False
    return kept
