"""The studio with a 36,000-op model: dropping a pin, stalls while a solve runs, memory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import itertools

import psutil
from PySide6.QtCore import QSettings, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from benchmarks.report import Report, publish, spread
from benchmarks.synthetic import HEADS, transformer
from enplace.machine import simulate
from enplace.placers import place
from enplace.readers.clusters import presets
from enplace.values.profile import Profile
from enplace_studio.model.document import PlanEntry
from enplace_studio.model.open_project import start_project
from enplace_studio.shell.application import make_application
from enplace_studio.shell.window import MainWindow

BEAT_MS = 5
SETTLE_MS = 8000
"""Time for another process to lay the graph out."""
LIMIT_S, SOLVE_S = 5, 8
"""The search ends while we watch, so that drawing its plan counts too."""
DROPS, SOLVES, QUICK_SOLVES = 9, 3, 1


def main(report: Report) -> None:
    """Report the figures."""
    app = make_application()
    profile = transformer(report.pick(69, 8), HEADS)
    report.text(f"{profile.n_ops:,} ops on 4 GPUs, in a window of 1440 x 900.")
    with tempfile.TemporaryDirectory() as folder:
        settings = QSettings(f"{folder}/studio.ini", QSettings.Format.IniFormat)
        window = MainWindow(settings, Path(folder) / "recovery")
        window.resize(1440, 900)
        window.show()
        window.solver.start()
        _open(window, profile)
        QTest.qWait(SETTLE_MS)
        _drops(report, window, app)
        _solve(report, window)
        _save(report, window, Path(folder))
        _memory(report)
        window.solver.close()
        window.document.open(None)
        window.close()
        app.processEvents()


def _open(window: MainWindow, profile: Profile) -> None:
    document = window.document
    document.open(start_project(profile, presets()["celeritas"]))
    assert document.problem is not None
    plan = place(document.problem, "heft").plan
    document.add_plan(PlanEntry("HEFT", plan, simulate(document.problem, plan)))


def _drops(report: Report, window: MainWindow, app: QApplication) -> None:
    """Pin one group after another to another device; time each until every view is repainted."""
    document = window.document
    spent_ms = []
    for drop in range(DROPS):
        assert document.problem is not None
        assert document.project is not None
        assert document.current is not None
        ops = document.project.grouping.ops(2 + 3 * drop)
        here = int(document.current.plan.device[ops[0]])
        document.select(ops)
        QTest.qWait(600)
        start = time.perf_counter()
        document.place(ops, (here + 1) % 4)
        app.processEvents()
        spent_ms.append(1e3 * (time.perf_counter() - start))
    value = f"{spread(spent_ms, '.0f')} ms, at most {max(spent_ms):.0f} ms"
    report.figure("drop a pin, until every view is repainted", value, "150 ms or less")


def _solve(report: Report, window: MainWindow) -> None:
    """Time solves with the default method, from the click to the plan on screen, many times."""
    window.studio.chosen.set_time_limit(LIMIT_S)
    solves = range(report.pick(SOLVES, QUICK_SOLVES))
    stalls_ms = [_longest_stall_ms(window.studio.solving.solve, SOLVE_S) for _ in solves]
    value = f"{spread(stalls_ms, '.0f')} ms, at most {max(stalls_ms):.0f} ms"
    report.figure("longest stall while a solve runs", value, "50 ms")


def _save(report: Report, window: MainWindow, folder: Path) -> None:
    path = folder / "project.enplace"
    stall_ms = _longest_stall_ms(lambda: window.studio.saving.save_to(path), 1)
    report.figure("longest stall while saving", f"{stall_ms:.0f} ms", "50 ms or less")


def _longest_stall_ms(work: Callable[[], object], wait_s: int) -> float:
    """Beat every few milliseconds during some work; the longest pause is the stall."""
    beats = [time.perf_counter()]
    timer = QTimer(interval=BEAT_MS)
    timer.timeout.connect(lambda: beats.append(time.perf_counter()))
    timer.start()
    work()
    QTest.qWait(wait_s * 1000)
    timer.stop()
    return max(1e3 * (b - a) for a, b in itertools.pairwise(beats))


def _memory(report: Report) -> None:
    """Print the resident memory of the studio, and of its child processes."""
    process = psutil.Process()
    own = process.memory_info().rss / 2**20
    report.figure("memory of the studio", f"{own:.0f} MiB", "under 572 MiB")
    for child in process.children(recursive=True):
        report.figure("  and the solver process", f"{child.memory_info().rss / 2**20:.0f} MiB")


if __name__ == "__main__":
    publish(
        main,
        "responsiveness",
        "Responses of the studio",
        "Measured, painted off-screen. Medians of 9 pins and 3 solves, quartiles in brackets.",
    )
