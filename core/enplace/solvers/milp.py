"""Solve a mixed-integer program in a worker, which can be stopped at any time.

HiGHS is called directly, because it reports each solution and bound while it runs; CBC, Gurobi and
CPLEX are called through PuLP; CP-SAT takes programs of choices and a maximum only. A solver that is
not installed is an answer, not an error. A solution that breaks the program is refused: solvers are
other people's programs, and PuLP reads their answers back from files.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from enplace.processes.wire import Message
from enplace.solvers.ask import ask_solver
from enplace.solvers.model import FloatArray, Model, model_message

SOLVERS = {"HiGHS": "highs_process", "CBC": "pulp_process", "Gurobi": "pulp_process"}
SOLVERS["CPLEX"] = "pulp_process"
"""The module that runs each solver that a person may choose."""

CP_SAT = "CP-SAT"
"""For programs as :mod:`enplace.solvers.cpsat_program_process` has them."""

TOLERANCE = 1e-4
"""Relative difference by which a solution may miss a row, a bound or a whole number."""

ROUNDING = 1e-6
"""By how much a bound may be wrong, of a program whose objective is about 1: solvers let rows be
missed by as much."""

FAR_OFF = 10.0
"""With an objective so many times smaller than 1 that is too much: a program with other units is
needed."""

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
        The best solution; it keeps to the program.
    why : str
        What a person should know where the solver is missing, failed or found nothing.
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
    module = "cpsat_program_process" if solver == CP_SAT else SOLVERS[solver]
    job = model_message(model, start, deadline_s, threads, solver)
    for message in ask_solver(f"{module}:solve", job, deadline_s, cancelled):
        best = _better(model, best, message)
        if "status" not in message.details and best.status != "failed":
            report(best)
        if best.status == "failed":
            break
    return best


def _better(model: Model, best: Answer, message: Message) -> Answer:
    """Return the best so far after one more message."""
    details, values = message.details, message.arrays.get("values")
    if values is not None:
        if not keeps_to(model, values):
            return _disbelieved(best, "its answer breaks the program")
        objective = float(model.cost @ values)
        if objective < best.objective:
            best = replace(best, objective=objective, values=values)
    if details.get("status") == "optimal" and best.values is None:
        return _disbelieved(best, "it says that it has the best answer, and gives none")
    bound = details.get("bound")
    if bound is not None and best.bound < bound < np.inf:
        best = replace(best, bound=bound)
    return replace(best, status=details.get("status", best.status), why=details.get("why", ""))


def _disbelieved(best: Answer, why: str) -> Answer:
    """The best so far of a solver that errs, and so may have erred in its bounds."""
    return replace(best, status="failed", bound=-np.inf, why=why)


def keeps_to(model: Model, values: FloatArray) -> bool:
    """Whether a solution keeps to bounds, whole numbers and rows, within :data:`TOLERANCE`.

    Parameters
    ----------
    values : float array, shape (n_variables,)

    Notes
    -----
    What a row may be missed by is relative to the sum of the sizes of its terms.
    """
    if values.shape != model.cost.shape or not np.isfinite(values).all():
        return False
    row = np.repeat(np.arange(model.n_rows), np.diff(model.row_ptr))
    # Terms of numbers near the largest of all overflow, and are refused.
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
