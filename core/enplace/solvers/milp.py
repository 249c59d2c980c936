"""Solve a mixed-integer program in another process, which can be stopped at any time.

HiGHS is asked directly, because it tells of each solution and bound while it runs; CBC, Gurobi and
CPLEX through PuLP. A solver that is not installed is an answer, not an error.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from enplace.solvers.model import FloatArray, Model, encode_model

SOLVERS = {"HiGHS": "highs_process", "CBC": "pulp_process", "Gurobi": "pulp_process"}
SOLVERS["CPLEX"] = "pulp_process"
"""The module that runs each solver."""

_TICK_S = 0.05
_GRACE_S = 2.0
"""How much longer than its time limit a solver may take to say what it has."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What a solver found.

    Attributes
    ----------
    status : str
        ``optimal``, ``infeasible``, ``stopped`` (by the time limit or a person), ``missing`` (not
        installed) or ``failed``.
    objective, bound : float
        Of the best solution and of any; inf and -inf where there is none.
    values : float array, shape (n_variables,), or None
        The best solution.
    why : str
        What a person should know where the solver is missing or failed.
    """

    status: str
    objective: float = np.inf
    bound: float = -np.inf
    values: FloatArray | None = None
    why: str = ""


def solve_milp(
    model: Model,
    start: FloatArray | None,
    deadline_s: float,
    cancelled: Callable[[], bool],
    report: Callable[[Answer], None],
    *,
    solver: str = "HiGHS",
    threads: int = 1,
) -> Answer:
    """Solve a model, at most for some seconds.

    Parameters
    ----------
    start : float array, shape (n_variables,), optional
        A solution to start from; the solver works out what is NaN.
    deadline_s : float
        The process is stopped after so many seconds.
    cancelled : callable
        Asked often; once true, the process is killed, and the best so far is the answer.
    report : callable
        Told the best so far whenever it or its bound is better.
    solver : str
        One of :data:`SOLVERS`.
    """
    best, until = Answer("stopped"), time.monotonic() + deadline_s + _GRACE_S
    if cancelled() or deadline_s <= 0:
        return best
    # The folder it is started in comes not before the libraries: -P.
    command = [sys.executable, "-P", "-m", f"enplace.solvers.{SOLVERS[solver]}"]
    with subprocess.Popen(
        [*command, str(deadline_s), str(threads), *([solver] if solver != "HiGHS" else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        lines, noise = _talk(process, encode_model(model, start))
        try:
            while time.monotonic() < until and not cancelled():
                try:
                    line = lines.get(timeout=_TICK_S)
                except queue.Empty:
                    continue
                if line is None:
                    why = noise[-1] if noise else f"{solver} ended without an answer"
                    return replace(best, status="failed", why=why)
                best = _better(best, line)
                if "status" in line:
                    return best
                report(best)
        finally:
            _kill(process)
    return best


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and with it the solver that PuLP started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _talk(
    process: subprocess.Popen[bytes], model: bytes
) -> tuple[queue.Queue[dict[str, Any] | None], list[str]]:
    """Send the model; what the process says, None at its end, and the lines of its errors."""
    lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
    noise: list[str] = []

    def send(into: IO[bytes]) -> None:
        try:
            into.write(model)
            into.close()
        except OSError:
            pass  # It has ended; its own last line says why.

    def hear(said: IO[bytes]) -> None:
        for line in said:
            lines.put(json.loads(line))
        listen.join()
        lines.put(None)

    def overhear(said: IO[bytes]) -> None:
        noise.extend(line.decode(errors="replace").strip() for line in said)

    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    listen = threading.Thread(target=overhear, args=[process.stderr], daemon=True)
    listen.start()
    threading.Thread(target=send, args=[process.stdin], daemon=True).start()
    threading.Thread(target=hear, args=[process.stdout], daemon=True).start()
    return lines, noise


def _better(best: Answer, said: dict[str, Any]) -> Answer:
    """The best so far after one more line."""
    bound = said.get("bound")
    if bound is not None and bound > best.bound:
        best = replace(best, bound=bound)
    if said.get("values") is not None and said["objective"] < best.objective:
        best = replace(best, objective=said["objective"], values=np.array(said["values"]))
    return replace(best, status=said.get("status", best.status), why=said.get("why", ""))
