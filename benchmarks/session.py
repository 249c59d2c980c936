"""Ten minutes in the studio, off-screen: stalls by activity, and how much memory grows.

It opens a model of 36,000 ops, solves, drags 200 groups with the mouse, undoes all, compares, lays
four plans side by side, asks what if, and exports everything. What is left of the time is spent the
same way.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import psutil
from PySide6.QtCore import QObject, QPoint, QSettings, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QSlider

from benchmarks.report import Report, publish
from benchmarks.synthetic import HEADS, transformer
from enplace.frameworks.registry import exporters, why_no_export
from enplace.values.result import Result
from enplace.writers import Exporter, write_profile
from enplace_studio.jobs.background import Background
from enplace_studio.shell.application import make_application
from enplace_studio.shell.window import MainWindow
from enplace_studio.views.whatif.speed_curves import COMPUTE
from enplace_studio.widgets.pictures import write_picture

BEAT_MS, STALL_MS = 5, 50
DRAGS, METHODS, LIMIT_S = 200, ("heft", "m-etf", "celeritas"), 5
SETTLE_MS = 3000
GRAPH_MS = 8000
"""Time for another process to lay the graph out."""
LEFT, NO_KEY = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier


class Pulse:
    """Beats every few milliseconds; a pause between two beats is a stall of the window.

    On a busy machine pauses are longer than the window's own work, the CPU time of its thread.
    """

    def __init__(self) -> None:
        self.activity = ""
        self.pauses_ms: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._last_s = self._now_s()
        self._timer = QTimer(interval=BEAT_MS)
        self._timer.timeout.connect(self._beat)
        self._timer.start()

    @staticmethod
    def _now_s() -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()

    def _beat(self) -> None:
        now_s = self._now_s()
        wall_ms, cpu_ms = (1e3 * (b - a) for a, b in zip(self._last_s, now_s, strict=True))
        self.pauses_ms[self.activity].append((wall_ms, cpu_ms))
        self._last_s = now_s

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Book the pauses on an activity, and let what it started end."""
        QTest.qWait(BEAT_MS)
        self.activity = activity
        yield
        QTest.qWait(SETTLE_MS)


def main(report: Report) -> None:
    """Report the figures."""
    minutes, profile = report.pick(10, 1), transformer(report.pick(69, 8), HEADS)
    app = make_application()
    with tempfile.TemporaryDirectory() as folder:
        settings = QSettings(f"{folder}/studio.ini", QSettings.Format.IniFormat)
        window = MainWindow(settings, Path(folder) / "recovery")
        window.resize(1440, 900)
        window.show()
        window.solver.start()  # as the program does
        QTest.qWait(SETTLE_MS)
        path = Path(folder) / "model.enplace"
        write_profile(path, profile)
        report.text(f"{minutes} minutes with {profile.n_ops:,} ops, in rounds of the same work.")
        end_s, pulse = time.monotonic() + 60 * minutes, Pulse()
        sizes: list[float] = []
        while not sizes or time.monotonic() < end_s:
            _spend_time(window, pulse, path)
            sizes.append(psutil.Process().memory_info().rss / 2**20)
        _report(report, pulse, sizes)
        window.solver.close()
        window.document.open(None)
        window.close()
        app.processEvents()


def _spend_time(window: MainWindow, pulse: Pulse, path: Path) -> None:
    studio, document = window.studio, window.document
    with pulse.during("open"):
        n_opened = document.n_opened
        studio.files.open_path(path)
        _wait(lambda: document.n_opened > n_opened and document.current is not None)
        QTest.qWait(GRAPH_MS)
    with pulse.during("solve"):
        studio.chosen.set_time_limit(LIMIT_S)
        studio.solving.solve()
        _wait(lambda: not window.solver.busy)
    assert document.problem is not None
    n_gpus = len(document.problem.cluster.gpus)
    with pulse.during(f"{DRAGS} drags"):
        for number in range(DRAGS):
            _drag(window, number, n_gpus)
    with pulse.during("undo all"):
        while document.undo_stack.canUndo():
            document.undo_stack.undo()
            QTest.qWait(BEAT_MS)
    with pulse.during("compare"):
        studio.solving.compare(METHODS)
        _wait(lambda: not window.solver.busy)
    with pulse.during("side by side"):
        studio.compare_plans()
        QTest.qWait(SETTLE_MS)
        _pan(window.panes.views["compare"])
        window.panes.toggle_in_middle("compare")
    with pulse.during("what if"):
        view: Any = window.panes.views["whatif"]
        for at in itertools.chain(range(-20, 21, 4), [0]):
            view.findChildren(QSlider)[0].setValue(at)
            QTest.qWait(50)
        view.toggle_curve(COMPUTE)
    with pulse.during("export"):
        _export(window, path.parent)
    # A round that left unsaved work would have the next one wait for an answer.
    with pulse.during("save"):
        studio.saving.save_to(path.with_stem("saved"))
        _wait(lambda: not document.modified)


def _drag(window: MainWindow, number: int, n_gpus: int) -> None:
    """Drag one group over two devices and drop it on the second, as a hand would."""
    view: Any = window.panes.views["graph"]
    scene, bar = view.model.scene, view.devices
    group = 1 + number * 7 % (len(scene.rects) - 1)
    view.canvas.reveal(group)
    start = view.canvas.camera.transform().map(scene.rects[group].center()).toPoint()
    chips = [view.canvas.mapFromGlobal(bar.mapToGlobal(r.center())) for r, _ in bar.legend()]
    QTest.mousePress(view.canvas, LEFT, NO_KEY, start)
    QTest.qWait(30)
    for point in (start + QPoint(30, 5), chips[number % n_gpus], chips[(number + 1) % n_gpus]):
        QTest.mouseMove(view.canvas, point)
        QTest.qWait(30)
    QTest.mouseRelease(view.canvas, LEFT, NO_KEY, point)
    QTest.qWait(150)


def _pan(view: Any) -> None:
    for key in (Qt.Key.Key_W, Qt.Key.Key_W, *[Qt.Key.Key_D] * 10, *[Qt.Key.Key_A] * 10):
        QTest.keyClick(view.canvas, key)
        QTest.qWait(30)


def _export(window: MainWindow, folder: Path) -> None:
    exchange, entry = window.studio.exchange, window.document.current
    assert entry is not None
    writing = Background(QObject())
    for form, exporter in exporters().items():
        if not why_no_export(form, Result(entry.schedule)):
            shown = exchange.exported(form, entry)
            writing.start(partial(_write, exporter, folder / form, shown), lambda _: None)
            _wait(lambda: not writing.is_busy)  # a dialog asks for each
    drawing = window.panes.drawing()
    assert drawing is not None
    for suffix in (".svg", ".png", ".pdf"):
        path = folder / f"view{suffix}"
        writing.start(partial(write_picture, path, drawing, drawing.name), lambda _: None)
        _wait(lambda: not writing.is_busy)


def _write(exporter: Exporter, path: Path, shown: Callable[[], Result]) -> None:
    exporter.write_to(path, shown())


def _wait(is_done: Callable[[], bool]) -> None:
    while not is_done():
        QTest.qWait(BEAT_MS)


def _report(report: Report, pulse: Pulse, sizes: list[float]) -> None:
    for activity, pauses in pulse.pauses_ms.items():
        if activity:
            wall_ms, cpu_ms = map(max, zip(*pauses, strict=True))
            stalls = sum(wall > STALL_MS for wall, _ in pauses)
            value = f"{wall_ms:.0f} ms ({cpu_ms:.0f}), {stalls}"
            report.figure(f"{activity}: longest stall (CPU), stalls", value, f"{STALL_MS} ms, 0")
    report.figure("memory after the first round", f"{sizes[0]:.0f} MiB")
    growth = f"{sizes[-1] - sizes[0]:+.0f} MiB"
    report.figure(f"memory after {len(sizes) - 1} more", growth, "under 50 MB")


if __name__ == "__main__":
    publish(
        main,
        "session",
        "Ten minutes in the studio",
        "Measured, painted off-screen. One run; stalls are the longest of each activity.",
    )
