"""Run mutants in children, and note what became of each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
OUTCOMES = ("accepted", "refused", "fault", "memory", "hang", "crash", "litter")
HANG_S = 10.0

Mutant = tuple[str, int]
"""The name of its target, and its number."""


def fuzz(counts: Mapping[str, int]) -> dict[Mutant, str]:
    """Read so many mutants of each target; return what became of each."""
    left = [(name, number) for name, count in counts.items() for number in range(count)]
    found: dict[Mutant, str] = {}
    while left:
        _run_child(left, found)
        left = [each for each in left if each not in found]
    return found


def faults(found: Mapping[Mutant, str]) -> dict[Mutant, str]:
    """Return the mutants that were neither accepted nor refused, as their target demands."""
    return {
        each: outcome
        for each, outcome in found.items()
        if outcome not in ("accepted", "refused", *TARGETS[each[0]].harmless)
    }


def _run_child(wanted: list[Mutant], found: dict[Mutant, str]) -> None:
    """Let a child read mutants until it ends or hangs."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", "tests.fuzz.child", folder]
        pipe, env = subprocess.PIPE, {**os.environ, "PYTHONHASHSEED": "0"}  # the same seeds
        with subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=errors, text=True
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.writelines(f"{name} {number}\n" for name, number in wanted)
            child.stdin.close()
            hung, timer, at = threading.Event(), None, None

            def give_up() -> None:
                hung.set()
                child.kill()

            for line in child.stdout:
                word, _, text = line.rstrip("\n").partition(" ")
                if timer is not None:
                    timer.cancel()
                if word == "begin":
                    name, _, number = text.rpartition(" ")
                    at = name, int(number)
                    found[at] = "crash"
                    timer = threading.Timer(HANG_S, give_up)
                    timer.start()
                elif word == "end" and at is not None:
                    found[at] = text
            if timer is not None:
                timer.cancel()
        if hung.is_set() and at is not None:
            found[at] = "hang"
        elif at is None:  # it never began
            errors.seek(0)
            raise RuntimeError(f"the child ended with {child.returncode}: {errors.read()}")
