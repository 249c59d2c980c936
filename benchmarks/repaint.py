"""Repainting timeline, graph and four plans side by side of a 36,000-op model, off-screen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from matplotlib.figure import Figure
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from benchmarks.report import Report, publish, spread
from benchmarks.synthetic import HEADS, transformer
from enplace.machine import simulate
from enplace.placers import place
from enplace.readers.clusters import presets
from enplace.values.profile import Profile
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.open_project import start_project
from enplace_studio.shell.application import make_application
from enplace_studio.views.compare.compare_view import CompareView
from enplace_studio.views.graph.graph_view import GraphView
from enplace_studio.views.timeline.timeline_view import TimelineView

TARGET = "20 ms or less"
SIDE_BY_SIDE, COMPARE_TARGET = ("heft", "m-etf", "celeritas", "expert"), "25 ms or less"
WAIT_MS = 500
_View = TypeVar("_View", bound=QWidget)


Frames = dict[str, list[float]]
"""What was repainted, and the times of its frames in ms."""


def main(report: Report) -> None:
    """Report the figures."""
    app = make_application()
    profile = transformer(report.pick(69, 8), HEADS)
    document = _document(profile, "celeritas")
    eight = _document(profile, "fastt")
    report.text(
        f"{profile.n_ops:,} ops in panes of 1400 x 300 (timelines), 800 (graph) and 900 pixels. "
        "Each frame is one turn of the wheel or one key: zoom in, pan, zoom out. Times in ms: "
        "median, quartiles in brackets, and the slowest frame."
    )
    frames: Frames = {}
    timeline = _show(TimelineView(document), 300)
    _measure(report, "timeline, 4 devices", timeline.canvas, document, frames)
    wide = _show(TimelineView(eight), 300)
    _measure(report, "timeline, 8 devices", wide.canvas, eight, frames)
    graph = _show(GraphView(document), 800)
    graph.model.wait()
    _measure(report, "graph", graph.canvas, document, frames)
    four = _compare(report, document, frames)
    report.picture(_picture(frames), "Times of frames by view: quartiles, fastest and slowest")
    rows = ((what, f"{ms:.3f}") for what, times in frames.items() for ms in times)
    report.numbers(("what", "ms"), rows)
    for view in (timeline, wide, graph, four):
        view.close()
    app.processEvents()


def _picture(frames: Frames) -> Figure:
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    names = list(frames)[::-1]
    axes.boxplot(
        [frames[name] for name in names],
        orientation="horizontal",
        tick_labels=names,
        whis=(0, 100),
    )
    axes.axvline(1000 / 60, color="grey", linestyle="--", label="60 frames a second")
    axes.set(xlabel="ms for a frame")
    axes.legend(fontsize="small")
    return figure


def _document(profile: Profile, cluster: str) -> Document:
    document = Document()
    document.open(start_project(profile, presets()[cluster]))
    problem = document.problem
    assert problem is not None
    plan = place(problem, "heft").plan
    document.add_plan(PlanEntry("HEFT", plan, simulate(problem, plan)))
    return document


def _compare(report: Report, document: Document, frames: Frames) -> CompareView:
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
    shown_ms = 1e3 * (time.perf_counter() - start)
    report.figure("four plans, until they are shown", f"{shown_ms:.0f}")
    assert len(view.shown) == len(SIDE_BY_SIDE)
    _measure(report, "four plans", view.canvas, document, frames, COMPARE_TARGET)
    return view


def _show(view: _View, height: int) -> _View:
    view.resize(1400, height)
    view.show()
    QTest.qWaitForWindowExposed(view)
    QTest.qWait(WAIT_MS)  # the critical path appears a moment later
    return view


def _measure(
    report: Report,
    name: str,
    canvas: QWidget,
    document: Document,
    frames: Frames,
    target: str = TARGET,
) -> None:
    """Zoom in, pan, zoom out, then do the same with a group selected."""
    assert document.project is not None
    for what, ops in (("", ()), (", a group selected", document.project.grouping.ops(10))):
        document.select(ops)
        QTest.keyClick(canvas, Qt.Key.Key_0)
        for action, steps in (
            ("zoom", [_wheel(120)] * 20 + [_wheel(-120)] * 20),
            ("pan", [_wheel(120)] * 6 + [_key(Qt.Key.Key_D)] * 20),
        ):
            times = frames[f"{name}, {action}{what}"] = _frames_ms(canvas, steps)
            value = f"{spread(times)}, at most {max(times):.1f}"
            report.figure(f"{name}, {action}{what}", value, target)


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


def _frames_ms(canvas: QWidget, steps: Sequence[Callable[[QWidget], None]]) -> list[float]:
    """Time the repaint after each step."""
    spent_ms = []
    for step in steps:
        step(canvas)
        start = time.perf_counter()
        canvas.repaint()
        spent_ms.append(1e3 * (time.perf_counter() - start))
    return spent_ms


if __name__ == "__main__":
    publish(
        main,
        "repaint",
        "Frame times of the studio",
        "Measured, painted off-screen without a graphics card. One run; the spread is over frames.",
    )
