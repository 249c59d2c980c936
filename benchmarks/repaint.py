"""Repainting timeline, graph and four plans side by side of a 36,000-op model, off-screen.

Run with ``python -m benchmarks.repaint``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QEventLoop, QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from benchmarks.report import figure, title
from benchmarks.synthetic import transformer_36k
from enplace.machine import simulate
from enplace.placers import place
from enplace.readers.clusters import presets
from enplace_studio.application import make_application
from enplace_studio.document import Document, PlanEntry
from enplace_studio.project import start_project
from enplace_studio.views.compare.view import CompareView
from enplace_studio.views.graph.view import GraphView
from enplace_studio.views.timeline.view import TimelineView

TARGET = "20 ms or less"
SIDE_BY_SIDE, COMPARE_TARGET = ("heft", "m-etf", "celeritas", "expert"), "25 ms or less"
WAIT_MS = 500
SETTLE_S = 8.0
"""Time for another process to lay the graph out."""
_View = TypeVar("_View", bound=QWidget)


def main() -> None:
    """Print the figures."""
    app = make_application()
    document = _document("celeritas")
    eight = _document("fastt")
    title("Repaint at 1400 x 300, 800 and 900, 36,000 ops: median and slowest")
    timeline = _show(TimelineView(document), 300)
    _measure("timeline, 4 devices", timeline.canvas, document)
    wide = _show(TimelineView(eight), 300)
    _measure("timeline, 8 devices", wide.canvas, eight)
    graph = _show(GraphView(document), 800)
    _settle()
    _measure("graph", graph.canvas, document)
    four = _compare(document)
    for view in (timeline, wide, graph, four):
        view.close()
    app.processEvents()


def _document(cluster: str) -> Document:
    document = Document()
    document.open(start_project(transformer_36k(), presets()[cluster]))
    problem = document.problem
    assert problem is not None
    plan = place(problem, "heft").plan
    document.add_plan(PlanEntry("HEFT", plan, simulate(problem, plan)))
    return document


def _compare(document: Document) -> CompareView:
    """Time four plans side by side: the first picture, then zooming and panning."""
    problem = document.problem
    assert problem is not None
    for method in SIDE_BY_SIDE[1:]:
        plan = place(problem, method).plan
        document.add_plan(PlanEntry(method, plan, simulate(problem, plan)))
    view = CompareView(document)
    view.compare(document.plans)
    start = time.perf_counter()
    view.resize(1400, 900)
    view.show()
    QTest.qWaitForWindowExposed(view)
    view.wait()
    view.repaint()
    figure("four plans, until they are shown", f"{1e3 * (time.perf_counter() - start):.0f} ms")
    assert len(view.shown) == len(SIDE_BY_SIDE)
    _measure("four plans", view.canvas, document, COMPARE_TARGET)
    return view


def _show(view: _View, height: int) -> _View:
    view.resize(1400, height)
    view.show()
    QTest.qWaitForWindowExposed(view)
    QTest.qWait(WAIT_MS)  # the critical path appears a moment later
    return view


def _settle() -> None:
    """Wait for timers and other processes."""
    end = time.perf_counter() + SETTLE_S
    loop = QEventLoop()
    while time.perf_counter() < end:
        loop.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents, 50)


def _measure(name: str, canvas: QWidget, document: Document, target: str = TARGET) -> None:
    """Zoom in, pan, zoom out, then do the same with a group selected."""
    assert document.project is not None
    for what, ops in (("", ()), (", a group selected", document.project.grouping.ops(10))):
        document.select(ops)
        QTest.keyClick(canvas, Qt.Key.Key_0)
        _report(f"{name}, zoom{what}", canvas, [_wheel(120)] * 20 + [_wheel(-120)] * 20, target)
        _report(f"{name}, pan{what}", canvas, [_wheel(120)] * 6 + [_key(Qt.Key.Key_D)] * 20, target)


def _wheel(delta: int) -> Callable[[QWidget], None]:
    def turn(canvas: QWidget) -> None:
        at = QPointF(canvas.rect().center())
        event = QWheelEvent(
            at,
            canvas.mapToGlobal(at),
            QPoint(),
            QPoint(0, delta),
            Qt.MouseButton.NoButton,
            Qt.KeyboardModifier.ControlModifier,
            Qt.ScrollPhase.NoScrollPhase,
            False,
        )
        canvas.wheelEvent(event)

    return turn


def _key(key: Qt.Key) -> Callable[[QWidget], None]:
    return lambda canvas: QTest.keyClick(canvas, key)


def _report(
    what: str, canvas: QWidget, steps: Sequence[Callable[[QWidget], None]], target: str
) -> None:
    """Time the repaint after each step."""
    spent_ms = []
    for step in steps:
        step(canvas)
        start = time.perf_counter()
        canvas.repaint()
        spent_ms.append(1e3 * (time.perf_counter() - start))
    middle, slowest = statistics.median(spent_ms), max(spent_ms)
    figure(what, f"{middle:.1f} / {slowest:.1f} ms", target)


if __name__ == "__main__":
    main()
