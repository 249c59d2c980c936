"""The main job from end to end without a display: what `make run` does where there is none."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QEventLoop, QSettings, QTimer

from enplace.errors import EnplaceError
from enplace.files import write_atomically
from enplace.samples import samples
from enplace.text import ms, percent
from enplace_studio.application import make_application
from enplace_studio.document import Document, PlanEntry
from enplace_studio.window import MainWindow

PATIENCE_MS = 300_000
SIZE = (1440, 900)


def run_demo(folder: Path) -> int:
    """Solve the first sample, overrule it, solve around that, and leave the results in a folder.

    Writes ``plan.json``, ``comparison.txt`` and ``window.png``.

    Returns
    -------
    int
        0 if all went well, else 2.
    """
    folder.mkdir(parents=True, exist_ok=True)
    app = make_application()
    with tempfile.TemporaryDirectory() as private:
        settings = QSettings(f"{private}/studio.ini", QSettings.Format.IniFormat)
        window = MainWindow(settings, Path(private) / "recovery")
        window.resize(*SIZE)
        window.show()
        faults: list[str] = []
        window.files.failed.connect(faults.append)
        window.solving.failed.connect(faults.append)
        window.document.failed.connect(faults.append)
        try:
            _do_the_job(window)
            _leave(window, folder)
        except EnplaceError as error:
            faults.append(str(error))
        app.processEvents()
        window.solver.close()
        window.document.open(None)
        window.close()
    for fault in faults:
        print(f"enplace: {fault}", file=sys.stderr)
    return 2 if faults else 0


def _do_the_job(window: MainWindow) -> None:
    document = window.document
    window.files.open_sample(samples()[0])
    _wait_idle(window)
    window.solving.solve()
    _wait_idle(window)
    window.solving.compare()
    _wait_idle(window)
    fastest = min(document.plans, key=lambda entry: entry.schedule.makespan_us)
    document.choose_plan(fastest)
    document.select(_a_group_in_the_middle(document))
    other = _other_gpu(document)
    document.place(document.selection, other)
    window.solving.solve()
    _wait_idle(window)


def _a_group_in_the_middle(document: Document) -> list[int]:
    """The ops of the heaviest group, which is worth a look."""
    assert document.problem is not None
    assert document.grouping is not None
    assert document.schedule is not None
    time_us = document.schedule.op_finish_us - document.schedule.op_start_us
    group = document.grouping.group
    heaviest = max(set(group.tolist()), key=lambda g: float(time_us[group == g].sum()))
    return [op for op, g in enumerate(group.tolist()) if g == heaviest]


def _other_gpu(document: Document) -> int:
    assert document.problem is not None
    assert document.current is not None
    here = int(document.current.plan.device[next(iter(document.selection))])
    return next(gpu for gpu in document.problem.cluster.gpus if gpu != here)


def _wait_idle(window: MainWindow) -> None:
    """Let the window live until the solver has nothing left to do."""
    _wait(lambda: bool(window.solver.methods) and not window.solver.busy)


def _wait(is_done: Callable[[], bool]) -> None:
    loop = QEventLoop()
    look = QTimer(interval=20)
    look.timeout.connect(lambda: is_done() and loop.quit())
    look.start()
    late = QTimer.singleShot(PATIENCE_MS, lambda: loop.exit(1))
    del late
    if loop.exec() != 0:
        raise EnplaceError("the demo took too long; try again on a less busy machine")


def _leave(window: MainWindow, folder: Path) -> None:
    document = window.document
    window.files.export_plan(folder / "plan.json")
    lines = [plan_line(document, entry) for entry in document.plans]
    write_atomically(folder / "comparison.txt", "\n".join(lines) + "\n")
    window.toast.hide()
    _wait_a_moment()
    window.grab().save(str(folder / "window.png"))
    print("\n".join(lines))
    for name in ("plan.json", "comparison.txt", "window.png"):
        print(folder / name)


def _wait_a_moment() -> None:
    loop = QEventLoop()
    QTimer.singleShot(500, loop.quit)
    loop.exec()


def plan_line(document: Document, entry: PlanEntry) -> str:
    """One line on a plan: name, step time, gap, against the expert."""
    against = document.against_expert(entry.schedule)
    parts = [f"{entry.name:32}", f"{ms(entry.schedule.makespan_us):>10}"]
    parts.append(f"gap {percent(entry.schedule.gap):>7}")
    if entry is document.expert:
        parts.append("reference")
    elif against is not None:
        parts.append(f"{percent(against, signed=True)} vs expert")
    if not entry.schedule.fits:
        parts.append("does not fit")
    return "   ".join(parts)
