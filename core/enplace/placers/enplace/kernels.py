"""Compile the kernels of this method before their first use, once after installation.

numba compiles a kernel when it first runs on a machine, and holds a lock over the whole process
meanwhile. So the work is cut into steps. This process takes them in the order in which the search
needs them; another process takes some of the later ones and leaves what it compiles in numba's
cache on disk. Where everything is in that cache, a step takes a moment and no other process is
started.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import numpy as np

from enplace.bounds.step_time import lower_bound_us
from enplace.coarsen import merge_batches, merge_chains
from enplace.compiling import watch_compiler
from enplace.errors import CancelledError, EnplaceError
from enplace.files.folders import temporary_folder
from enplace.machine import critical_path, simulate
from enplace.machine.op_passes import backward_ops
from enplace.placers.enplace.methods import LP_START, SEARCHES, STARTS, run_method
from enplace.placing.candidates import unordered
from enplace.placing.filling import fillings
from enplace.placing.moves import make_level
from enplace.placing.moves.steps import (
    LevelPlan,
    balance_step,
    blocks_step,
    new_stop_flag,
    windows_step,
)
from enplace.placing.options import PlaceOptions, Progress
from enplace.placing.small import find_shortest
from enplace.processes.main import Connection, done
from enplace.processes.wire import Message
from enplace.processes.worker import Worker, WorkerError, handler_program
from enplace.readers.clusters import presets
from enplace.system import count_cores
from enplace.text import count
from enplace.values.problem import Problem
from enplace.values.profile import make_profile

Step = Callable[[Problem], object]
Report = Callable[[str], None]

TICK_S = 0.1
"""Time between two looks at what the other process has done."""

BALANCES = 8
"""How many balances are annealed, so that each kind is drawn."""

SIMULATE, BOUND, MERGES, BLOCKS, WINDOWS = "simulate", "bound", "merges", "blocks", "windows"
FILLINGS, SMALL = "fillings", "small"


def _simulate(problem: Problem) -> None:
    """Also walk back the critical path, which a window shows as soon as there is a schedule.

    The last step of a search asks for the passes.
    """
    backward_ops(problem)
    plan = unordered(problem, np.zeros(problem.profile.n_ops, np.int64), "")[0]
    critical_path(simulate(problem, plan))


def _merge(problem: Problem) -> None:
    merge_chains(problem)
    n_ops = problem.profile.n_ops
    merge_batches(problem, n_ops // 2, critical=True)
    # To the end: once no edge joins two ops of a device, ops without one are packed.
    merge_batches(problem, 1, device=np.arange(n_ops) % 2)


def _move_blocks(problem: Problem) -> None:
    for seed in range(BALANCES):
        balance_step(1)(_first_state(problem), seed, 1.0, new_stop_flag())
    for links in ("priority", "fifo"):
        blocks_step(links)(_first_state(problem), 0, 1.0, new_stop_flag())


def _anneal_windows(problem: Problem) -> None:
    windows_step(_first_state(problem), 0, 1.0, new_stop_flag())


def _try_all(problem: Problem) -> None:
    """Try all plans of two of the ops, as the search does with small problems."""
    one = problem.profile
    two = make_profile(
        "two ops",
        op_names=one.op_names[:2],
        op_types=one.op_types[:2],
        scopes=one.scopes[:2],
        time_us=one.time_us[:2],
        persistent_bytes=[1, 1],
        temporary_bytes=[1, 1],
        colocation=["", ""],
        edge_source=[0],
        edge_output=[0],
        edge_op=[1],
        edge_bytes=[1],
    )
    find_shortest(Problem(two, problem.cluster), "")


def _first_state(problem: Problem) -> LevelPlan:
    """All ops on the first device, in their own order."""
    level = make_level(problem, np.arange(problem.profile.n_ops))
    order = level.problem.profile.topological_order.copy()
    return LevelPlan(level, order, np.zeros(len(order), dtype=np.int64))


def _run(name: str) -> Step:
    return lambda problem: run_method(name, problem, PlaceOptions())


STEPS: dict[str, Step] = {
    SIMULATE: _simulate,
    BOUND: lower_bound_us,
    **{name: _run(name) for name in STARTS},
    FILLINGS: lambda problem: list(fillings(problem, PlaceOptions())),
    LP_START: _run(LP_START),
    **{name: _run(name) for name in SEARCHES},
    BLOCKS: _move_blocks,
    MERGES: _merge,
    WINDOWS: _anneal_windows,
    SMALL: _try_all,
}
"""What each step runs, on a problem so small that only compiling takes time.

Keys are the parts of the search that must not start before their step is done.
"""

OTHER_PROCESS_STEPS = (WINDOWS, MERGES, BLOCKS, *SEARCHES, "celeritas", "dpos")
"""What the other process takes, in this order. No two steps that share kernels of their own, such
as m-ETF and m-SCT, are in both processes at once, or both would compile those kernels."""

WITHOUT_SIMULATION = (WINDOWS, MERGES)
"""Which of these may start while the simulation is being compiled."""


@cache
def small_problem(n: int = 20) -> Problem:
    """Make a problem of some ops; no quick method solves twenty to the end."""
    draw = np.random.default_rng(0)
    target = np.repeat(np.arange(2, n), 2)
    source = np.maximum(target - draw.integers(1, 9, len(target)), 0)
    profile = make_profile(
        "to compile with",
        op_names=[f"op_{i}" for i in range(n)],
        op_types=["MatMul"] * n,
        scopes=[""] * n,
        time_us=np.column_stack([draw.uniform(5, 50, n), draw.uniform(50, 90, n)]),
        persistent_bytes=draw.integers(1, 99, n),
        temporary_bytes=draw.integers(1, 99, n),
        colocation=["a", "a", "b", "b", *[""] * (n - 4)],
        edge_source=source,
        edge_output=[0] * len(target),
        edge_op=target,
        edge_bytes=draw.integers(1, 1 << 20, n)[source],
    )
    return Problem(profile, presets()["pesto"])


def load_kernels(step: str, options: PlaceOptions) -> None:
    """Load the kernels of a step, compiled if necessary; progress is reported to the options.

    The time does not count as solving time.

    Raises
    ------
    CancelledError
        If the person cancelled while the other process compiled.
    """

    def report(message: str) -> None:
        options.stop.check()
        options.progress(Progress(options.seconds, message))

    with options.stop.clock.paused():
        _compilation.load(step, report)


def load_all_kernels(report: Report) -> None:
    """Have all kernels of this method ready; reports nothing if none must be compiled."""
    for step in STEPS:
        _compilation.load(step, report)


def compile_for_another_process(connection: Connection) -> Message:
    """Handle the other process: take its steps until none is left."""
    claims = _Claims(Path(connection.receive().details["folder"]))
    for step in OTHER_PROCESS_STEPS:
        if step not in WITHOUT_SIMULATION:
            claims.wait_for(SIMULATE)  # or both would compile it
        if claims.claim(step):
            _run_step(step)
            claims.finish(step)
    return done()


def _run_step(step: str) -> None:
    with suppress(EnplaceError):  # a method that cannot run here needs no kernels
        STEPS[step](small_problem())


class _Claims:
    """Which steps are taken and which are done, as files that two processes see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def claim(self, step: str) -> bool:
        """Take a step; false if the other process was faster."""
        try:
            (self.folder / step).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def finish(self, step: str) -> None:
        (self.folder / f"{step}.done").touch()

    def is_finished(self, step: str) -> bool:
        return (self.folder / f"{step}.done").exists()

    def wait_for(self, step: str) -> None:
        """Wait until the other process has done a step; if that process ends, so does this one."""
        while not self.is_finished(step):
            threading.Event().wait(TICK_S)


class _Compilation:
    """The steps that this process has loaded, and the other process while it compiles."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.n_functions = 0
        self.lock = threading.Lock()
        self.folder = ExitStack()
        self.claims: _Claims | None = None
        self.helper: Worker | None = None

    def load(self, step: str, report: Report) -> None:
        if step in self.loaded:
            return
        while not self.lock.acquire(timeout=TICK_S):
            report(self._message())  # another thread of this process loads
        try:
            self._load(step, report)
        finally:
            self.lock.release()

    def _load(self, step: str, report: Report) -> None:
        if step in self.loaded:
            return
        if self.claims is not None:
            report(self._message())
            if not self.claims.claim(step):
                self._wait_for_helper(step, report)
        with watch_compiler(lambda module: self._begin(module, report)):
            _run_step(step)
        self.loaded.add(step)
        if self.claims is not None:
            self.claims.finish(step)
        if len(self.loaded) == len(STEPS):
            self.end_helper()

    def _begin(self, module: str, report: Report) -> None:
        """Report a function; start the other process when the first one must be compiled."""
        if not module.startswith("enplace."):
            return
        self.n_functions += 1
        if self.claims is not None:
            with suppress(CancelledError):  # numba would take it for a fault in its code
                report(self._message())
            return
        self.claims = _Claims(self.folder.enter_context(temporary_folder()))
        atexit.register(self.end_helper)
        for step in STEPS:
            self.claims.claim(step)
            if step not in self.loaded:
                break  # the step that this kernel belongs to
            self.claims.finish(step)
        if count_cores() > 1:
            with suppress(WorkerError):  # then this process compiles all
                self.helper = _start_helper(str(self.claims.folder))
        report(self._message())

    def _wait_for_helper(self, step: str, report: Report) -> None:
        """Wait for a step that the other process has taken, unless that process has failed."""
        assert self.claims is not None
        while not self.claims.is_finished(step) and self._helper_runs():
            threading.Event().wait(TICK_S)
            report(self._message())

    def _helper_runs(self) -> bool:
        if self.helper is not None:
            self.helper.receive()
        return self.helper is not None and not self.helper.over

    def _message(self) -> str:
        claims = self.claims
        done = self.loaded if claims is None else filter(claims.is_finished, STEPS)
        parts = f"{len(list(done))} of {len(STEPS)} parts"
        return f"Compiling, once after installation: {parts}, {count(self.n_functions, 'function')}"

    def end_helper(self) -> None:
        """Stop the other process: all steps are loaded, or this process ends."""
        if self.helper is not None:
            self.helper.stop(grace_s=0)
        self.folder.close()
        self.claims, self.helper = None, None


def _start_helper(folder: str) -> Worker:
    program = handler_program(f"{__name__}:{compile_for_another_process.__name__}", "compiling")
    return Worker(program, [Message("compile", {"folder": folder})])


_compilation = _Compilation()


def stop_compiling() -> None:
    """Stop the other process, as happens at exit."""
    _compilation.end_helper()
