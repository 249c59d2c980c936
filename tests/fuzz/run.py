"""Run mutants in children, and note what became of each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTCOMES = ("accepted", "refused", "fault", "memory", "hang", "crash", "litter")
HANG_S = 10.0


def fuzz(name: str, first: int, last: int) -> dict[int, str]:
    """Read the mutants of a target with these numbers; return what became of each."""
    found: dict[int, str] = {}
    while first < last:
        first = _run_child(name, first, last, found)
    return found


def _run_child(name: str, first: int, last: int, found: dict[int, str]) -> int:
    """Let a child read mutants until it ends or hangs; return the number of the next one."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.fuzz.child", name, str(first), str(last), folder]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            number, hung = first, threading.Event()

            def give_up() -> None:
                hung.set()
                child.kill()

            timer: threading.Timer | None = None
            assert child.stdout is not None
            for line in child.stdout:
                if timer is not None:
                    timer.cancel()
                word, text, *rest = line.rstrip("\n").split(" ", 2)
                number = int(text)
                if word == "begin":
                    found[number] = "crash"
                    timer = threading.Timer(HANG_S, give_up)
                    timer.start()
                else:
                    found[number] = rest[0]
            if timer is not None:
                timer.cancel()
            assert child.stderr is not None
            errors = child.stderr.read()
        if hung.is_set():
            found[number] = "hang"
        elif number not in found:  # it never began
            raise RuntimeError(errors)
        if litter := [path.name for path in Path(folder).iterdir() if path.name != "input"]:
            found[number] = f"litter: {', '.join(litter)}"
    return number + 1
