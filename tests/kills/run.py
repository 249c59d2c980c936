"""One kill of each kind; each returns its faults."""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
import psutil

from enplace.errors import EnplaceError
from enplace.readers import read_project
from enplace.readers.samples import samples
from enplace.values.profile import Profile, make_profile
from enplace.writers import write_profile

ROOT = Path(__file__).parents[2]
LOST_S, GONE_S = 2.0, 10.0
"""Work that may be lost, and how long orphans may take to notice that they are orphans."""

SAMPLE = next(str(each.path) for each in samples() if each.name == "vgg-19")
SCRIPT = """
import tensorflow as tf

weights = tf.Variable(tf.random.normal((64, 64), seed=1))

@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.nn.relu(x @ weights) @ weights))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss

for step in range(10):
    print("loss", float(train_step(tf.ones((32, 64)))))
"""
COMMANDS = {
    "place": ["place", SAMPLE, "--cluster", "pcie-2", "--time-limit", "20", "-o", "out.json"],
    "place 200,000 ops": [
        *("place", "large.enplace", "--cluster", "pcie-2"),
        *("--method", "m-topo", "-o", "out.json"),
    ],
    "compare": ["compare", SAMPLE, "--cluster", "pcie-2", "--time-limit", "20"],
    "max-load-ip": [
        *("place", SAMPLE, "--cluster", "pcie-2", "--time-limit", "20"),
        *("--method", "max-load-ip", "--objective", "throughput", "-o", "out.json"),
    ],
    "profile": ["profile", "train.py", "--trust", "--devices", "cpu:2", "-o", "out.enplace"],
    "run": ["run", "train.py", "plan.json", "--profile", "train.enplace", "--trust"],
    "tune": [
        *("tune", "train.py", "plan.json", "--profile", "train.enplace", "--trust"),
        *("--time-limit", "5", "-o", "tuned.json"),
    ],
    "serve": ["serve", "hosts.json", "/job:worker/task:0"],
    "compile": ["compile"],
}
HOST = "/job:worker/task:0"
HOSTS = {
    "devices": [{"name": f"{HOST}/device:CPU:0", "kind": "cpu", "capacity_bytes": 1 << 30}],
    "default_links": {"cpu-cpu": {"b0_us": 200, "b1_us_per_byte": 0.001}},
    "hosts": {HOST: "127.0.0.1:28765"},
}

_NO_ERROR = re.compile(r"  \| |serving |enplace: .* s$")
"""Lines that belong to an error, or that a command prints while it works."""


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
        if not edits or int(edits[-1][0]) == 0:
            faults.append("nothing was edited")
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


def interrupt(name: str, draw: random.Random) -> list[str]:
    """Press Ctrl-C while a command works."""

    def press(process: psutil.Process) -> None:
        os.killpg(process.pid, signal.SIGINT)

    # A shell starts its background jobs without Ctrl-C, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return _disturb(name, draw, press)


def kill_worker(name: str, draw: random.Random) -> list[str]:
    """Kill the process in which TensorFlow works for a command."""

    def kill(process: psutil.Process) -> None:
        while process.status() != psutil.STATUS_ZOMBIE and not process.children():
            time.sleep(0.01)  # it has neither ended nor started the worker yet
        time.sleep(draw.uniform(0.0, 2.0))
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                child.kill()

    return _disturb(name, draw, kill)


def kill_command_of_silent_host(draw: random.Random) -> list[str]:
    """Kill a command whose TensorFlow waits for a host that accepts calls and never answers."""
    with _workplace() as (folder, environment), socket.create_server(("127.0.0.1", 0)) as silent:
        for file in _trained():
            shutil.copy(file, folder)
        hosts = {**HOSTS, "hosts": {HOST: f"127.0.0.1:{silent.getsockname()[1]}"}}
        (folder / "hosts.json").write_text(json.dumps(hosts))
        process = subprocess.Popen(
            [sys.executable, "-m", "enplace", *COMMANDS["run"], "--devices", "hosts.json"],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        silent.accept()
        time.sleep(draw.uniform(0.0, 2.0))
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        return _lives_on(children)


def _disturb(
    name: str, draw: random.Random, disturb: Callable[[psutil.Process], None]
) -> list[str]:
    """Disturb a command at a random moment; it must end, with one line and nothing left behind."""
    with _workplace() as (folder, environment):
        for file in _trained() if "train.py" in COMMANDS[name] else ():
            shutil.copy(file, folder)
        if "large.enplace" in COMMANDS[name]:
            write_profile(folder / "large.enplace", _large())
        (folder / "hosts.json").write_text(json.dumps(HOSTS))
        if name == "compile":
            environment["NUMBA_CACHE_DIR"] = str(folder / "compiled")
        process = subprocess.Popen(
            [sys.executable, "-m", "enplace", *COMMANDS[name]],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(draw.uniform(0.1, 8.0))
        parent = psutil.Process(process.pid)
        children = parent.children(recursive=True)
        with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has ended by itself
            disturb(parent)
        try:
            _, errors = process.communicate(timeout=GONE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return [f"{name} goes on"]
        faults = _lives_on(children)
        lines = [line for line in errors.splitlines() if line and not _NO_ERROR.match(line)]
        if "Traceback" in errors or len(lines) > 1:
            faults.append(f"not one line: {errors.strip()[-200:]!r}")
        if process.returncode > 0 and not lines:
            faults.append(f"silent, with status {process.returncode}")
        names = sorted(path.name for path in folder.rglob("*") if path.is_file())
        if litter := [name for name in names if name.endswith(".tmp")]:
            faults.append(f"litter: {', '.join(litter)}")
        if left := [path.name for path in (folder / "tmp").iterdir()]:
            faults.append(f"litter in the folder for temporary files: {', '.join(left)}")
        return faults + _newest_work(folder)[1]


@cache
def _large() -> Profile:
    """Make a random graph whose bound and expert's plan take seconds."""
    rng, n = np.random.default_rng(0), 200_000
    source = rng.integers(0, n - 1, n)
    names = [f"op{i}" for i in range(n)]
    return make_profile(
        "large",
        op_names=names,
        op_types=["Op"] * n,
        scopes=[""] * n,
        time_us=np.column_stack([rng.integers(1, 100, n), np.full(n, np.nan)]).astype(float),
        persistent_bytes=np.zeros(n, np.int64),
        temporary_bytes=np.zeros(n, np.int64),
        colocation=[""] * n,
        edge_source=source,
        edge_output=np.zeros(n, np.int64),
        edge_op=rng.integers(source + 1, n),
        edge_bytes=np.full(n, 1000),
    )


@cache
def _trained() -> tuple[Path, ...]:
    """Make a script, its profile and a plan, in a folder that lasts as long as this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    (folder / "train.py").write_text(SCRIPT)
    for command in (
        ["profile", "train.py", "--trust", "--devices", "cpu:2", "-o", "train.enplace"],
        ["place", "train.enplace", "--cluster", "local", "--method", "heft", "-o", "plan.json"],
    ):
        subprocess.run(
            [sys.executable, "-m", "enplace", *command],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    return tuple(folder / name for name in ("train.py", "train.enplace", "plan.json"))


KINDS: dict[str, Callable[[random.Random], list[str]]] = {
    "studio": kill_studio,
    "solver of the studio": kill_solver,
    **{f"Ctrl-C: {name}": partial(interrupt, name) for name in COMMANDS},
    **{f"worker of {name}": partial(kill_worker, name) for name in ("profile", "run")},
    "command of a silent host": kill_command_of_silent_host,
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
