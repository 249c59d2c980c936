"""The main workflow from end to end, off-screen: `make run` without a display."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PySide6.QtCore import QDeadlineTimer, QEventLoop, QSettings, QTimer

from enplace.bounds import with_bound
from enplace.errors import EnplaceError
from enplace.files.writing import write_atomically
from enplace.frameworks.registry import exporters
from enplace.readers.samples import samples
from enplace.text import gap_text, ms
from enplace.writers import write_plan
from enplace_studio.model.bounds import Bounds
from enplace_studio.model.document import Document
from enplace_studio.model.open_project import OpenProject, PlanEntry
from enplace_studio.model.plan_facts import vs_expert
from enplace_studio.shell.application import make_application
from enplace_studio.shell.window import MainWindow
from enplace_studio.widgets.pictures import write_picture

PATIENCE_MS, LOOK_MS, SETTLE_MS = 300_000, 20, 500
SIZE = (1440, 900)


def run_demo(folder: Path) -> int:
    """Solve the first sample, move a group, solve around it, and write the results to a folder.

    Writes ``plan.json``, ``report.html``, ``comparison.txt``, ``window.png`` and ``compare.png``.

    Returns
    -------
    int
        0 if all went well, else 2.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with private_window(SIZE) as (window, faults):
        _do_the_job(window)
        _leave(window, folder)
    for fault in faults:
        print(f"enplace: {fault}", file=sys.stderr)
    return 2 if faults else 0


@contextmanager
def private_window(size: tuple[int, int]) -> Iterator[tuple[MainWindow, list[str]]]:
    """Show a window with private settings and copies, and close it at the end.

    Yields
    ------
    window : MainWindow
    faults : list of str
        What went wrong so far, also in the block of the caller.
    """
    app = make_application()
    with tempfile.TemporaryDirectory() as private:
        settings = QSettings(f"{private}/studio.ini", QSettings.Format.IniFormat)
        window = MainWindow(settings, Path(private) / "recovery")
        window.resize(*size)
        window.show()
        faults: list[str] = []
        window.studio.failed.connect(faults.append)
        try:
            yield window, faults
        except EnplaceError as error:
            faults.append(str(error))
        app.processEvents()
        window.solver.close()
        window.document.open(None)
        window.close()
        settings.sync()  # or Qt writes them later, and makes the folder anew


def _do_the_job(window: MainWindow) -> None:
    document = window.document
    window.studio.files.open_sample(samples()[0])
    window.studio.files.wait()
    wait_idle(window)
    window.studio.solving.solve()
    wait_idle(window)
    window.studio.solving.compare()
    wait_idle(window)
    fastest = min(document.plans, key=lambda entry: entry.schedule.makespan_us)
    document.choose_plan(fastest)
    ops, gpu = gentlest_move(document)
    document.select(ops)
    document.place(ops, gpu)
    window.studio.solving.solve()
    wait_idle(window)


def gentlest_move(document: Document) -> tuple[list[int], int]:
    """Find the group and other GPU whose move costs least or gains most."""
    project, schedule = document.project, document.schedule
    if project is None or schedule is None:
        raise EnplaceError("the demo found no plan")
    gpus, device = project.problem.cluster.gpus, schedule.plan.device
    groups = [project.grouping.ops(group).tolist() for group in range(project.grouping.n_groups)]
    moves = [(ops, gpu) for ops in groups for gpu in gpus if gpu != device[ops[0]]]
    return min(moves, key=lambda move: _delta_us(document, *move))


def _delta_us(document: Document, ops: list[int], device: int) -> float:
    preview = document.previews.get(ops, device)
    return np.inf if preview is None else preview.delta_us


def wait_idle(window: MainWindow) -> None:
    """Run the event loop until the solver is idle."""
    _wait(lambda: bool(window.solver.methods) and not window.solver.busy)
    window.studio.solving.wait()


def _wait(is_done: Callable[[], bool]) -> None:
    deadline = QDeadlineTimer(PATIENCE_MS)
    while not is_done():
        if deadline.hasExpired():
            raise EnplaceError("the demo took too long; try again on a less busy machine")
        let_pass(LOOK_MS)


def _leave(window: MainWindow, folder: Path) -> None:
    document = window.document
    current = document.current
    if current is not None:
        proof = document.bounds.proofs.of_rivals(current.schedule)
        write_plan(folder / "plan.json", with_bound(current.schedule, proof))
        report = window.studio.exchange.exported("html", current)
        exporters()["html"].write_to(folder / "report.html", report())
    project = document.project
    plans = project.plans if project else ()
    lines = [plan_line(project, document.bounds, entry) for entry in plans if project]
    write_atomically(folder / "comparison.txt", "\n".join(lines) + "\n")
    window.toast.hide()
    let_pass(SETTLE_MS)
    window.grab().save(str(folder / "window.png"))
    document.select([])
    window.studio.compare_plans()
    let_pass(SETTLE_MS)
    drawing = window.panes.drawing()
    if drawing is not None:
        write_picture(folder / "compare.png", drawing, drawing.title)
    print("\n".join(lines))
    for name in ("plan.json", "report.html", "comparison.txt", "window.png", "compare.png"):
        print(folder / name)


def let_pass(milliseconds: int) -> None:
    """Run the event loop for a while."""
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def plan_line(project: OpenProject, bounds: Bounds, entry: PlanEntry) -> str:
    """Describe a plan in one line: name, step time, gap, change against the expert."""
    against = project.against_expert(entry.schedule)
    parts = [f"{entry.name:32}", f"{ms(entry.schedule.makespan_us):>10}"]
    gap = with_bound(entry.schedule, bounds.proofs.of_rivals(entry.schedule)).gap
    parts.append(f"gap {gap_text(gap, entry.schedule.fits):>7}")
    if entry is project.expert:
        parts.append("reference")
    elif against is not None:
        parts.append(vs_expert(against))
    if not entry.schedule.fits:
        parts.append("does not fit")
    return "   ".join(parts)
