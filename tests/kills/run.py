"""One kill of each kind; each returns its faults."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from enplace.errors import EnplaceError
from enplace.readers import read_project
from enplace.readers.samples import samples

ROOT = Path(__file__).parents[2]
LOST_S, GONE_S = 2.0, 10.0
"""Work that may be lost, and how long orphans may take to notice that they are orphans."""

SAMPLE = next(str(each.path) for each in samples() if each.name == "vgg-19")
COMMANDS = {
    "place": ["place", SAMPLE, "--cluster", "pcie-2", "--time-limit", "20", "-o", "out.json"],
    "compare": ["compare", SAMPLE, "--cluster", "pcie-2", "--time-limit", "20"],
    "max-load-ip": [
        *("place", SAMPLE, "--cluster", "pcie-2", "--time-limit", "20"),
        *("--method", "max-load-ip", "--objective", "throughput", "-o", "out.json"),
    ],
}


def kill_studio(draw: random.Random) -> list[str]:
    """Kill the studio while somebody edits, and look at what is left."""
    with _workplace() as (folder, environment):
        file = folder / "project.enplace"
        with _editing(file, draw, environment) as studio:
            edits = _edits_for(studio, draw.uniform(0.1, 6.0))
            children = psutil.Process(studio.pid).children(recursive=True)
            studio.kill()
            killed_s = time.monotonic()
            edits += [line.split() for line in studio.communicate()[0].splitlines()]
        faults = _lives_on(children)
        pins, unreadable = _newest_work(folder)
        due = [int(n) for n, when in edits if float(when) < killed_s - LOST_S]
        if due and pins < due[-1]:
            faults.append(f"lost {due[-1] - pins} edits that were older than {LOST_S:g} s")
        return faults + unreadable


def kill_solver(draw: random.Random) -> list[str]:
    """Kill the studio's other processes; somebody goes on editing."""
    with _workplace() as (folder, environment):
        with _editing(folder / "project.enplace", draw, environment) as studio:
            before = _edits_for(studio, draw.uniform(0.1, 4.0))
            for child in psutil.Process(studio.pid).children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
            after = _edits_for(studio, 2.0)
            alive = studio.poll() is None
            studio.kill()
            studio.communicate()
        if not alive or not (before or after):
            return ["the studio ended with its solver"]
        return [] if after else ["the studio stopped when its solver was killed"]


def interrupt(command: list[str], draw: random.Random) -> list[str]:
    """Press Ctrl-C while a command works."""
    # A shell starts its background jobs without Ctrl-C, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with _workplace() as (folder, environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "enplace", *command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(draw.uniform(0.1, 8.0))
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=GONE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return [f"{command[0]} goes on after Ctrl-C"]
        faults = _lives_on(children)
        if "Traceback" in errors or len(errors.strip().splitlines()) > 1:
            faults.append(f"not one line: {errors.strip()[-200:]!r}")
        names = sorted(path.name for path in folder.rglob("*") if path.is_file())
        if litter := [name for name in names if name.endswith(".tmp")]:
            faults.append(f"litter: {', '.join(litter)}")
        return faults


def _command(name: str) -> Callable[[random.Random], list[str]]:
    return lambda draw: interrupt(COMMANDS[name], draw)


KINDS: dict[str, Callable[[random.Random], list[str]]] = {
    "studio": kill_studio,
    "solver of the studio": kill_solver,
    **{f"Ctrl-C: {name}": _command(name) for name in COMMANDS},
}


@contextmanager
def _workplace() -> Iterator[tuple[Path, dict[str, str]]]:
    """Make an account of its own: settings, state and temporary files in one folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        places = {f"XDG_{each}_HOME": str(folder / each) for each in ("CONFIG", "STATE")}
        temporary = {"TMPDIR": str(folder / "tmp"), "QT_QPA_PLATFORM": "offscreen"}
        yield folder, {**os.environ, **places, **temporary}


@contextmanager
def _editing(
    file: Path, draw: random.Random, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start the studio of a person who edits; ready when the first edit begins."""
    command = [sys.executable, "-m", "tests.kills.edits", str(file), str(draw.randrange(1 << 30))]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as studio:
        assert studio.stdout is not None
        if studio.stdout.readline() != "ready\n":
            raise RuntimeError(studio.communicate()[1])
        yield studio


def _edits_for(studio: subprocess.Popen[str], seconds: float) -> list[list[str]]:
    """Read the edits of the next seconds, up to the last one in that time."""
    assert studio.stdout is not None
    until_s, found = time.monotonic() + seconds, []
    while time.monotonic() < until_s and (line := studio.stdout.readline()):
        found.append(line.split())
    return found


def _newest_work(folder: Path) -> tuple[int, list[str]]:
    """Return the most pins in any file, and the faults of files that cannot be read."""
    pins, faults = 0, []
    for path in folder.rglob("*.enplace"):
        try:
            pins = max(pins, len(read_project(path).pins))
        except EnplaceError as error:
            faults.append(f"unreadable: {error}")
    return pins, faults


def _lives_on(children: list[psutil.Process]) -> list[str]:
    """Return a fault for each process that does not end with its parent."""
    _, alive = psutil.wait_procs(children, timeout=GONE_S)
    for process in alive:
        process.kill()
    return [f"lives on: {process.name()}" for process in alive]
