"""Solve a mixed-integer program in another process, which can be stopped at any time.

HiGHS is asked directly, because it tells of each solution and bound while it runs; CBC, Gurobi and
CPLEX through PuLP; CP-SAT takes programs of choices and a maximum only. A solver that is not
installed is an answer, not an error.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from enplace.solvers.child import converse
from enplace.solvers.model import FloatArray, Model, encode_model

SOLVERS = {"HiGHS": "highs_process", "CBC": "pulp_process", "Gurobi": "pulp_process"}
SOLVERS["CPLEX"] = "pulp_process"
"""The module that runs each solver that a person may choose."""

CP_SAT = "CP-SAT"
"""For programs as :mod:`enplace.solvers.cpsat_program_process` has them."""

COMMANDS = {"Gurobi": "gurobi_cl", "CPLEX": "cplex"}
"""The programs of the solvers that a person installs; CBC's comes with PuLP."""


def program_of(solver: str) -> str | None:
    """Path of the program or library that solves for one of :data:`SOLVERS`; None without it."""
    if solver == "HiGHS":
        found = importlib.util.find_spec("highspy")
        return found.origin if found else None
    if solver in COMMANDS:
        return shutil.which(COMMANDS[solver])
    if importlib.util.find_spec("pulp") is None:
        return None
    import pulp  # takes a while

    path: str = pulp.PULP_CBC_CMD.pulp_cbc_path
    return shutil.which(os.path.normpath(path))


def installed(solver: str) -> bool:
    """Whether a solver can be expected to run here."""
    return program_of(solver) is not None


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
        One of :data:`SOLVERS`, or :data:`CP_SAT`.
    """
    best = Answer("stopped")
    if cancelled() or deadline_s <= 0:
        return best
    arguments = [str(deadline_s), str(threads), *([solver] if solver != "HiGHS" else [])]
    began = time.monotonic()
    message = encode_model(model, start)
    left_s = max(0.0, deadline_s - (time.monotonic() - began))
    module = "cpsat_program_process" if solver == CP_SAT else SOLVERS[solver]
    for line in converse(module, arguments, message, left_s, cancelled):
        best = _better(best, line)
        if "status" not in line:
            report(best)
    return best


def _better(best: Answer, said: dict[str, Any]) -> Answer:
    """The best so far after one more line."""
    bound = said.get("bound")
    if bound is not None and bound > best.bound:
        best = replace(best, bound=bound)
    if said.get("values") is not None and said["objective"] < best.objective:
        best = replace(best, objective=said["objective"], values=np.array(said["values"]))
    return replace(best, status=said.get("status", best.status), why=said.get("why", ""))
