"""Start of the studio: from a new process to a window that responds, with a sample open."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.report import Report, publish, spread

STARTS, QUICK_STARTS = 7, 2
TARGET_S = 2.5

_CHILD = """
import sys, time
from pathlib import Path
import tempfile
from PySide6.QtCore import QSettings, QTimer
from enplace.readers.samples import samples
from enplace_studio.shell.application import make_application
from enplace_studio.shell.window import MainWindow

def since():
    return time.time() - float(sys.argv[1])

app = make_application()
with tempfile.TemporaryDirectory() as folder:
    settings = QSettings(f"{folder}/studio.ini", QSettings.Format.IniFormat)
    window = MainWindow(settings, Path(folder) / "recovery")
    window.show()
    window.solver.start()
    times = {"window": since()}

    def opened():
        window.document.opened.connect(lambda: QTimer.singleShot(0, answered))
        window.studio.files.open_sample(samples()[0])

    def answered():
        window.repaint()
        times["open"] = since()
        window.document.current_changed.connect(planned)

    def planned():
        times["planned"] = since()
        QTimer.singleShot(0, app.quit)

    QTimer.singleShot(0, opened)
    QTimer.singleShot(30_000, lambda: app.exit(1))
    if app.exec() != 0:
        sys.exit("no plan after 30 s")
    print(*times.values())
    window.solver.close()
    window.document.open(None)
    window.close()
"""


def main(report: Report) -> None:
    """Report the median of several starts."""
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    command = [sys.executable, "-c", _CHILD]
    runs = []
    for _ in range(report.pick(STARTS, QUICK_STARTS) + 1):
        done = subprocess.run(
            [*command, str(time.time())],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        runs.append([float(value) for value in done.stdout.split()])
    columns = list(zip(*runs[1:], strict=True))  # the first start fills the caches
    names = ("start page", "sample open and answering", "first plan shown")
    for name, seconds in zip(names, columns, strict=True):
        target = f"{TARGET_S} s" if name.startswith("sample") else ""
        report.figure(name, f"{spread(seconds, '.2f')} s", target)
    report.numbers(names, runs[1:])


if __name__ == "__main__":
    publish(
        main,
        "startup",
        "Start of the studio",
        "Measured, from a new process, painted off-screen. Medians of 7 warm starts, "
        "quartiles in brackets.",
    )
