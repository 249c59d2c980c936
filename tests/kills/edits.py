"""A person who works fast: pins one op after another, saves now and then, lets the solver run.

``python -m tests.kills.edits FILE SEED`` prints ``ready``; then, after each edit, how many pins
there are and the time. Their number only rises, so a file tells how old it is.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from PySide6.QtCore import QTimer

from enplace.readers.samples import samples
from enplace_studio.shell.application import make_application, user_window

SAVE_EVERY, SOLVE_EVERY = 17, 23


def main() -> int:
    """Open a sample, save it to the file, and edit until killed."""
    path, draw = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    app = make_application()
    window = user_window()
    window.show()
    window.solver.start()
    files, saving = window.studio.files, window.studio.saving
    document = window.document
    files.open_sample(next(each for each in samples() if each.name == "vgg-19"))
    files.wait()
    saving.save_to(path)
    ops = iter(range(1 << 30))
    timer = QTimer(singleShot=True)

    def edit() -> None:
        assert document.problem is not None
        gpus = document.problem.cluster.gpus
        while not document.place([next(ops)], draw.choice(gpus)):
            pass  # it may not run on a GPU
        edits = len(document.problem.pins)
        print(edits, time.monotonic(), flush=True)
        if edits % SAVE_EVERY == 0:
            saving.save_to(path)
        if edits % SOLVE_EVERY == 0 and not window.solver.busy:
            window.studio.solving.solve()
        timer.start(draw.choice((5, 50, 150, 400, 900)))

    def begin() -> None:
        if document.current is not None:
            document.plans_changed.disconnect(begin)
            print("ready", flush=True)
            timer.start(0)

    timer.timeout.connect(edit)
    document.plans_changed.connect(begin)  # the expert's plan is the one to change
    return app.exec()


if __name__ == "__main__":
    sys.exit(main())
