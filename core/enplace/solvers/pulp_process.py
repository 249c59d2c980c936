"""CBC, Gurobi or CPLEX through PuLP in a worker; messages as in :mod:`~.highs_process`.

A solver gets the part of the time limit that remains after the program is written. CBC rarely looks
at its clock, so it may be killed before it reports its answer; bounds in its log are therefore sent
at once. If Gurobi or CPLEX has no solution, its output contains the reason, such as a missing
licence.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from enplace.processes.main import Connection
from enplace.processes.wire import DONE, PROGRESS, Message
from enplace.solvers.milp import installed
from enplace.solvers.model import FloatArray, Model, model_from

COMMANDS = {"CBC": "PULP_CBC_CMD", "Gurobi": "GUROBI_CMD", "CPLEX": "CPLEX_CMD"}
"""PuLP's name of each solver."""

LEAST_S = 1.0
"""Least time that a solver gets; the caller's grace period covers it."""

LOOK_S = 0.2
"""Time between two looks at the log."""

_BOUND = re.compile(
    rb"(?:Continuous objective value is|best possible|best bound) (-?[0-9][0-9.e+-]*[0-9])"
)
_LIMIT = re.compile(rb"(?i)time limit (reached|exceeded)")
_INFEASIBLE = re.compile(rb"(?i)model is infeasible|integer infeasible")
_ROUNDED = 1e-5
"""Possible relative error of the numbers in the log, which have six digits."""


def solve(connection: Connection) -> Message:
    """Solve the model in the first message."""
    began = time.monotonic()
    job = connection.receive()
    name, threads = job.details["solver"], int(job.details["threads"])
    try:
        import pulp
    except ImportError as error:
        return _answer("missing", why=f"{error}")
    if not installed(name):
        return _answer("missing", why=f"{name} is not installed")
    # We follow CBC's output in its log; PuLP lets the output of the others through.
    msg = name != "CBC"
    solver = pulp.getSolver(COMMANDS[name], msg=msg, threads=threads, warmStart=True)
    if name == "Gurobi" and (refusal := _refusal(solver.path)):
        return _answer("failed", why=refusal)
    model, start = model_from(job)
    problem, variables = _with_start(*to_pulp(pulp, model), start)
    solver.timeLimit = max(job.details["limit_s"] - (time.monotonic() - began), LEAST_S)
    if name == "CBC":
        _solve_with_log(problem, solver, connection)
        return _answer_of_cbc(pulp, model, problem, variables)
    printed = _solve_and_listen(pulp, problem, variables, solver)
    return _answer_of_others(pulp, model, problem, variables, printed)


def _with_start(
    problem: Any, variables: list[Any], start: FloatArray | None
) -> tuple[Any, list[Any]]:
    """Set the start value of each variable that has one."""
    if start is not None:
        for variable, value in zip(variables, start.tolist(), strict=True):
            if not np.isnan(value):
                variable.setInitialValue(value)
    return problem, variables


def _answer_of_cbc(pulp: Any, model: Model, problem: Any, variables: list[Any]) -> Message:
    # CBC also reports optimal when its time is up; only the kind of solution is reliable.
    if problem.sol_status == pulp.LpSolutionInfeasible:
        return _answer("infeasible")
    optimal = problem.sol_status == pulp.LpSolutionOptimal
    if not _has_solution(pulp, problem, variables):
        return _answer("failed", why=last_words(b"")) if optimal else _answer("stopped")
    return _solution(model, variables, optimal, -np.inf)


def _answer_of_others(
    pulp: Any, model: Model, problem: Any, variables: list[Any], printed: bytes
) -> Message:
    # If there is no solution, PuLP may report that none exists, and it reports each of Gurobi's as
    # the best. Only the solvers' output is reliable.
    if _INFEASIBLE.search(printed):
        return _answer("infeasible")
    late = bool(_LIMIT.search(printed))
    if not _has_solution(pulp, problem, variables):
        return _answer("stopped") if late else _answer("failed", why=last_words(printed))
    optimal = problem.sol_status == pulp.LpSolutionOptimal and not late
    return _solution(model, variables, optimal, bound_in(printed))


def _has_solution(pulp: Any, problem: Any, variables: list[Any]) -> bool:
    known = (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return problem.sol_status in known and any(each.value() is not None for each in variables)


def _solution(model: Model, variables: list[Any], optimal: bool, bound: float) -> Message:
    values = np.array([variable.value() or 0.0 for variable in variables])
    objective = float(model.cost @ values)
    bound = objective if optimal else bound
    details = {
        "status": "optimal" if optimal else "stopped",
        "objective": objective,
        "bound": bound if np.isfinite(bound) else None,
    }
    return Message(DONE, details, {"values": values})


def _answer(status: str, why: str = "") -> Message:
    return Message(DONE, {"status": status, "why": why})


def _refusal(path: str) -> str:
    """Find out why Gurobi does not run, usually a missing licence; empty if it does.

    Otherwise, many seconds would be wasted on writing a large program.
    """
    tried = subprocess.run(
        [path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return last_words(tried.stdout) if tried.returncode else ""


def _solve_and_listen(pulp: Any, problem: Any, variables: list[Any], solver: Any) -> bytes:
    """Let Gurobi or CPLEX solve, and return its output, which PuLP lets through."""
    read = solver.readsol

    def read_afresh(path: str) -> Any:
        for variable in variables:
            variable.varValue = None  # else the start would pass for the solution
        return read(path)

    solver.readsol = read_afresh
    with tempfile.TemporaryFile() as file:
        ours = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            # PuLP raises errors if a solver fails, and if it has no solution.
            with suppress(pulp.PulpSolverError, TypeError):
                problem.solve(solver)
        finally:
            os.dup2(ours[0], 1)
            os.dup2(ours[1], 2)
        file.seek(0)
        return file.read()


def last_words(printed: bytes) -> str:
    """Return a solver's last line of output, or the first error of CPLEX, which prints on."""
    text = printed.decode(errors="replace").replace("CPLEX>", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("CPLEX Error")]
    return (errors or lines[-1:] or ["it ended without an answer"])[0]


def _solve_with_log(problem: Any, solver: Any, connection: Connection) -> None:
    """Let CBC solve, and send each better bound in its log."""
    log = Path(tempfile.gettempdir(), "cbc.log")
    log.touch()
    solver.optionsDict["logPath"] = str(log)
    over = threading.Event()

    def follow() -> None:
        sent = -np.inf
        while not over.wait(LOOK_S):
            bound = bound_in(log.read_bytes())
            if bound > sent:
                sent = bound
                connection.send(Message(PROGRESS, {"bound": bound}))

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        problem.solve(solver)
    finally:
        over.set()
        follower.join()
    bound = bound_in(log.read_bytes())
    if np.isfinite(bound):
        connection.send(Message(PROGRESS, {"bound": bound}))


def bound_in(log: bytes) -> float:
    """Return the best lower bound in the output of CBC or Gurobi, rounded down; else -inf."""
    found = [float(match) for match in _BOUND.findall(log)]
    best = max((value for value in found if abs(value) < 1e30), default=-np.inf)
    return best - _ROUNDED * abs(best) if np.isfinite(best) else best


def to_pulp(pulp: Any, model: Model) -> tuple[Any, list[Any]]:
    """Convert the model to PuLP's objects; return it with its variables."""
    problem = pulp.LpProblem("enplace", pulp.LpMinimize)
    variables = [
        pulp.LpVariable(f"x{number}", _or_none(low), _or_none(high), category)
        for number, (low, high, category) in enumerate(
            zip(
                model.lower.tolist(),
                model.upper.tolist(),
                np.where(model.integral, pulp.LpInteger, pulp.LpContinuous).tolist(),
                strict=True,
            )
        )
    ]
    problem.setObjective(pulp.lpDot(model.cost.tolist(), variables))
    for row in range(model.n_rows):
        at = slice(model.row_ptr[row], model.row_ptr[row + 1])
        terms = zip(model.column[at].tolist(), model.value[at].tolist(), strict=True)
        total = pulp.LpAffineExpression([(variables[column], value) for column, value in terms])
        low, high = float(model.row_lower[row]), float(model.row_upper[row])
        if low == high:
            problem += total == low
            continue
        if np.isfinite(low):
            problem += total >= low
        if np.isfinite(high):
            problem += total <= high
    return problem, variables


def _or_none(bound: float) -> float | None:
    return bound if np.isfinite(bound) else None
