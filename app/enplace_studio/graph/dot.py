"""Graphviz in a process of its own: it may be slow, and it would hold up the window."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PySide6.QtCore import QObject, QProcess, QTimer

from enplace.values.profile import FloatArray
from enplace_studio.graph.facts import GroupEdges
from enplace_studio.graph.layout import CARD_H, GAP, LAYER_GAP, WIDE_CARD_W

TIME_LIMIT_MS = 5000
_HUB = 8  # edges of a node beyond which dot gets slow and its picture crowded

Placed = Callable[[FloatArray, FloatArray], None]


class DotProcess(QObject):
    """One layout at a time; a newer request ends the older one."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(TIME_LIMIT_MS)
        self._timer.timeout.connect(self._give_up)
        # Whoever asked may be gone before the answer is there.
        parent.destroyed.connect(self.stop)

    def start(self, n: int, edges: GroupEdges, placed: Placed, failed: Callable[[], None]) -> None:
        """Lay out ``n`` cards; then call ``placed`` with the middles' x and y, or ``failed``."""
        self.stop()
        process = self._process = QProcess(self)
        self._failed = failed
        process.finished.connect(lambda *_: self._finish(process, n, placed))
        process.errorOccurred.connect(lambda *_: self._finish(process, n, placed))
        process.start(sys.executable, ["-I", str(Path(__file__).with_name("dot_process.py"))])
        task = {
            "n": n,
            "edges": _without_hubs(n, edges),
            "card": (WIDE_CARD_W, CARD_H),
            "gap": (GAP, LAYER_GAP),
        }
        process.write(json.dumps(task).encode())
        process.closeWriteChannel()
        self._timer.start()

    def stop(self) -> None:
        """Forget the layout under way."""
        self._timer.stop()
        process, self._process = self._process, None
        if process is not None:
            process.blockSignals(True)
            process.kill()
            process.waitForFinished(1000)
            process.deleteLater()

    def _give_up(self) -> None:
        self.stop()
        self._failed()

    def _finish(self, process: QProcess, n: int, placed: Placed) -> None:
        if process is not self._process:
            return
        answer = process.readAllStandardOutput().data()
        self.stop()
        try:
            x, y = np.array(json.loads(bytes(answer)), dtype=np.float64).reshape(n, 2).T
        except ValueError:
            self._failed()
        else:
            placed(x, -y)


def _without_hubs(n: int, edges: GroupEdges) -> list[tuple[int, int]]:
    """Pairs to lay out: long edges of hubs only bend the picture, so they stay out."""
    degree = np.bincount(edges.source, minlength=n) + np.bincount(edges.target, minlength=n)
    hub = degree > max(_HUB, n // 3)
    near = np.abs(edges.target - edges.source) <= 2
    kept = (~hub[edges.source] & ~hub[edges.target]) | near
    return list(zip(edges.source[kept].tolist(), edges.target[kept].tolist(), strict=True))
