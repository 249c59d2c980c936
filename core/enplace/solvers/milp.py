"""Solve a mixed-integer program in a worker, which can be stopped at any time.

HiGHS is called directly, because it reports each solution and bound while it runs. CBC, Gurobi and
CPLEX are called through PuLP. CP-SAT takes only programs of choices and a maximum. A missing solver
is reported in the answer, not raised as an error. A solution that violates the program is refused:
solvers are third-party programs, and PuLP reads their answers from files.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from enplace.linear import FloatArray, Model
from enplace.processes.wire import Message
from enplace.solvers.ask_solver import ask_solver
from enplace.solvers.model import model_message

SOLVERS = ("HiGHS", "CBC", "Gurobi", "CPLEX")
"""The solvers that people can choose."""

CP_SAT = "CP-SAT"
"""Solves only the programs that :mod:`enplace.solvers.program_process` describes."""

HANDLERS = {"HiGHS": "solve_by_highs", CP_SAT: "solve_by_cp_sat"}
"""What runs a solver; PuLP runs all others."""

MODULES = {"HiGHS": "highspy", CP_SAT: "ortools"}

TOLERANCE = 1e-4
"""Relative difference by which a solution may violate a row, a bound or integrality."""

ROUNDING = 1e-6
"""Possible error of a bound if the objective is about 1: solvers tolerate rows that are violated by
this much."""

FAR_OFF = 10.0
"""If the objective is this many times smaller than 1, that error is too large, and the program must
be written in other units."""

COMMANDS = {"Gurobi": "gurobi_cl", "CPLEX": "cplex"}
"""Executables of solvers that users install themselves. PuLP brings its own copy of CBC."""


def program_of(solver: str) -> str | None:
    """Find the path of the executable or library of a solver; None if missing."""
    if solver in MODULES:
        found = importlib.util.find_spec(MODULES[solver])
        return found.origin if found else None
    if solver in COMMANDS:
        return shutil.which(COMMANDS[solver])
    if importlib.util.find_spec("pulp") is None:
        return None
    import pulp  # takes a while

    path: str = pulp.PULP_CBC_CMD.pulp_cbc_path
    return shutil.which(os.path.normpath(path))


def installed(solver: str) -> bool:
    """Whether a solver can probably run here."""
    return program_of(solver) is not None


def quickest_solver() -> str:
    """Return the solver for programs of choices and a maximum: CP-SAT if it is installed."""
    return CP_SAT if installed(CP_SAT) else "HiGHS"


@dataclass(frozen=True, eq=False)
class MilpAnswer:
    """The answer of a solver.

    Attributes
    ----------
    status : str
        ``optimal``, ``infeasible``, ``stopped`` (by the time limit or on request), ``missing`` (not
        installed) or ``failed``.
    objective, bound : float
        Objective of the best solution, inf if there is none; lower bound on the objective of every
        solution, -inf if there is none.
    values : float array, shape (n_variables,), or None
        The best solution, checked against the program.
    why : str
        A note for people if the solver is missing, failed or found nothing.
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
    report: Callable[[MilpAnswer], None],
    *,
    solver: str = "HiGHS",
    threads: int = 1,
) -> MilpAnswer:
    """Solve a model within a time limit.

    Parameters
    ----------
    start : float array, shape (n_variables,), optional
        A solution to start from; the solver completes values that are NaN.
    deadline_s : float
        The process is stopped after this many seconds.
    cancelled : callable
        Called often; once it returns true, the process is killed and the best answer so far stands.
    report : callable
        Called with the best answer so far whenever the solution or its bound is better.
    solver : str
        One of :data:`SOLVERS`, or :data:`CP_SAT`.
    """
    best = MilpAnswer("stopped")
    if cancelled() or deadline_s <= 0:
        return best
    handler = f"program_process:{HANDLERS.get(solver, 'solve_by_pulp')}"
    job = model_message(model, start, deadline_s, threads, solver)
    for message in ask_solver(handler, job, deadline_s, cancelled):
        best = _better(model, best, message)
        if "status" not in message.details and best.status != "failed":
            report(best)
        if best.status == "failed":
            break
    return best


def _better(model: Model, best: MilpAnswer, message: Message) -> MilpAnswer:
    """Update the best answer with one more message."""
    details, values = message.details, message.arrays.get("values")
    if values is not None:
        if not keeps_to(model, values):
            return _disbelieved(best, "its answer breaks the program")
        objective = float(model.cost @ values)
        if objective < best.objective:
            best = replace(best, objective=objective, values=values)
    if details.get("status") == "optimal" and best.values is None:
        return _disbelieved(best, "it claims to have the best answer, but gives none")
    bound = details.get("bound")
    if bound is not None and best.bound < bound < np.inf:
        best = replace(best, bound=bound)
    return replace(best, status=details.get("status", best.status), why=details.get("why", ""))


def _disbelieved(best: MilpAnswer, why: str) -> MilpAnswer:
    """Keep the best solution of a solver that erred, without its bounds, which may be wrong too."""
    return replace(best, status="failed", bound=-np.inf, why=why)


def keeps_to(model: Model, values: FloatArray) -> bool:
    """Whether a solution respects bounds, integrality and rows, within :data:`TOLERANCE`.

    Parameters
    ----------
    values : float array, shape (n_variables,)

    Notes
    -----
    The tolerance of a row is relative to the sum of the sizes of its terms.
    """
    if values.shape != model.cost.shape or not np.isfinite(values).all():
        return False
    row = np.repeat(np.arange(model.n_rows), np.diff(model.row_ptr))
    # Terms that overflow are refused.
    with np.errstate(over="ignore", invalid="ignore"):
        terms = model.value * values[model.column]
        total = np.bincount(row, terms, model.n_rows).astype(float)
        row_size = np.bincount(row, np.abs(terms), model.n_rows).astype(float)
        objective = model.cost @ values
    whole = values[model.integral]
    return bool(
        np.isfinite(objective)
        and np.isfinite(row_size).all()
        and (np.abs(whole - np.round(whole)) <= TOLERANCE).all()
        and _within(values, model.lower, model.upper, np.abs(values))
        and _within(total, model.row_lower, model.row_upper, row_size)
    )


def _within(values: FloatArray, lower: FloatArray, upper: FloatArray, sizes: FloatArray) -> bool:
    slack = TOLERANCE * (1.0 + sizes)
    return bool(((values >= lower - slack) & (values <= upper + slack)).all())
