"""CBC, Gurobi or CPLEX through PuLP in a process of its own; see :mod:`~.highs_process`.

A solver gets the time that writing the program down has left of the limit. CBC looks at its clock
seldom, and may be killed before it says what it has; the bounds in its log are passed on at once.
Why Gurobi or CPLEX has no solution, such as that there is no licence, is in what they print.

Usage: python -m enplace.solvers.pulp_process SECONDS THREADS SOLVER
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from enplace.processes.solver import say
from enplace.solvers.milp import installed
from enplace.solvers.model import Model, decode_model

COMMANDS = {"CBC": "PULP_CBC_CMD", "Gurobi": "GUROBI_CMD", "CPLEX": "CPLEX_CMD"}
"""PuLP's names."""

LEAST_S = 1.0
"""A solver gets so long at least, which its caller's grace covers."""

LOOK_S = 0.2
"""Time between two looks at the log."""

_BOUND = re.compile(
    rb"(?:Continuous objective value is|best possible|best bound) (-?[0-9][0-9.e+-]*[0-9])"
)
_LIMIT = re.compile(rb"(?i)time limit (reached|exceeded)")
_INFEASIBLE = re.compile(rb"(?i)model is infeasible|integer infeasible")
_ROUNDED = 1e-5
"""The log has numbers to six digits, as a fraction."""


def main() -> None:
    """Solve the model on standard input."""
    began = time.monotonic()
    limit_s, threads, name = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    model, start = decode_model(sys.stdin.buffer.read())
    try:
        import pulp
    except ImportError as error:
        say(status="missing", why=f"{error}")
        return
    if not installed(name):
        say(status="missing", why=f"{name} is not installed")
        return
    # What CBC prints is followed in its log; PuLP passes on what the others print.
    msg = name != "CBC"
    solver = pulp.getSolver(COMMANDS[name], msg=msg, threads=threads, warmStart=True)
    if name == "Gurobi" and (refusal := _refusal(solver.path)):
        say(status="failed", why=refusal)
        return
    problem, variables = to_pulp(pulp, model)
    if start is not None:
        for variable, value in zip(variables, start.tolist(), strict=True):
            if not np.isnan(value):
                variable.setInitialValue(value)
    solver.timeLimit = max(limit_s - (time.monotonic() - began), LEAST_S)
    printed = b""
    if name == "CBC":
        _solve_with_log(problem, solver)
    else:
        printed = _solve_and_listen(pulp, problem, variables, solver)
    optimal = problem.sol_status == pulp.LpSolutionOptimal
    if name == "CBC":
        # It says that it is optimal where only its time was up; the kind of solution tells.
        infeasible, late = problem.sol_status == pulp.LpSolutionInfeasible, not optimal
    else:
        # Where there is no solution PuLP may say that there is none, and of Gurobi's that each is
        # the best. What they print tells.
        infeasible, late = bool(_INFEASIBLE.search(printed)), bool(_LIMIT.search(printed))
    if infeasible:
        say(status="infeasible")
        return
    found = optimal or problem.sol_status == pulp.LpSolutionIntegerFeasible
    if not found or all(variable.value() is None for variable in variables):
        say(status="stopped") if late else say(status="failed", why=last_words(printed))
        return
    optimal = optimal and not late
    values = [variable.value() or 0.0 for variable in variables]
    objective = float(model.cost @ np.array(values))
    bound = objective if optimal else bound_in(printed)
    say(
        status="optimal" if optimal else "stopped",
        objective=objective,
        bound=bound if np.isfinite(bound) else None,
        values=values,
    )


def _refusal(path: str) -> str:
    """Why Gurobi does not run, mostly for want of a licence; empty if it does.

    To write a large program down for nothing takes many seconds.
    """
    tried = subprocess.run(
        [path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return last_words(tried.stdout) if tried.returncode else ""


def _solve_and_listen(pulp: Any, problem: Any, variables: list[Any], solver: Any) -> bytes:
    """Have Gurobi or CPLEX solve, and return what it printed, which PuLP lets through."""
    read = solver.readsol

    def read_afresh(path: str) -> Any:
        for variable in variables:
            variable.varValue = None  # or where it began would pass for what it found
        return read(path)

    solver.readsol = read_afresh
    with tempfile.TemporaryFile() as file:
        ours = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            # PuLP fails over a solver that ends with an error, and over one without a solution.
            with suppress(pulp.PulpSolverError, TypeError):
                problem.solve(solver)
        finally:
            os.dup2(ours[0], 1)
            os.dup2(ours[1], 2)
        file.seek(0)
        return file.read()


def last_words(printed: bytes) -> str:
    """The last line that a solver printed, or the first error of CPLEX, which goes on after it."""
    text = printed.decode(errors="replace").replace("CPLEX>", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("CPLEX Error")]
    return (errors or lines[-1:] or ["it ended without an answer"])[0]


def _solve_with_log(problem: Any, solver: Any) -> None:
    """Have CBC solve, and tell of each better bound in its log."""
    log = Path(tempfile.gettempdir(), "cbc.log")
    log.touch()
    solver.optionsDict["logPath"] = str(log)
    over = threading.Event()

    def follow() -> None:
        told = -np.inf
        while not over.wait(LOOK_S):
            bound = bound_in(log.read_bytes())
            if bound > told:
                told = bound
                say(bound=bound)

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        problem.solve(solver)
    finally:
        over.set()
        follower.join()
    bound = bound_in(log.read_bytes())
    if np.isfinite(bound):
        say(bound=bound)


def bound_in(log: bytes) -> float:
    """The best lower bound in what CBC or Gurobi prints, rounded down; -inf where there is none."""
    found = [float(match) for match in _BOUND.findall(log)]
    best = max((value for value in found if abs(value) < 1e30), default=-np.inf)
    return best - _ROUNDED * abs(best) if np.isfinite(best) else best


def to_pulp(pulp: Any, model: Model) -> tuple[Any, list[Any]]:
    """The model in PuLP's objects, and its variables."""
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


if __name__ == "__main__":
    main()
