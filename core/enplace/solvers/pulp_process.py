"""CBC, Gurobi or CPLEX through PuLP in a process of its own; see :mod:`~.highs_process`.

A solver gets the time that writing the program down has left of the limit. CBC looks at its clock
seldom, and may be killed before it says what it has; the bounds in its log are passed on at once.

Usage: python -m enplace.solvers.pulp_process SECONDS THREADS SOLVER
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from enplace.solvers.child import say
from enplace.solvers.model import Model, decode_model

COMMANDS = {"CBC": "PULP_CBC_CMD", "Gurobi": "GUROBI_CMD", "CPLEX": "CPLEX_CMD"}
"""PuLP's names."""

LEAST_S = 1.0
"""A solver gets so long at least, which its caller's grace covers."""

LOOK_S = 0.2
"""Time between two looks at the log."""

_BOUND = re.compile(rb"(?:Continuous objective value is|best possible) (-?[0-9][0-9.e+-]*[0-9])")
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
    solver = pulp.getSolver(COMMANDS[name], msg=False, threads=threads, warmStart=True)
    if not solver.available():
        say(status="missing", why=f"{name} is not installed")
        return
    problem, variables = to_pulp(pulp, model)
    if start is not None:
        for variable, value in zip(variables, start.tolist(), strict=True):
            if not np.isnan(value):
                variable.setInitialValue(value)
    solver.timeLimit = max(limit_s - (time.monotonic() - began), LEAST_S)
    if name == "CBC":
        _solve_with_log(problem, solver)
    else:
        problem.solve(solver)
    if problem.sol_status == pulp.LpSolutionInfeasible:
        say(status="infeasible")
        return
    # CBC says that it is optimal where only its time was up; the kind of solution tells.
    optimal = problem.sol_status == pulp.LpSolutionOptimal
    if not optimal and problem.sol_status != pulp.LpSolutionIntegerFeasible:
        say(status="stopped")
        return
    values = [variable.value() or 0.0 for variable in variables]
    objective = float(model.cost @ np.array(values))
    say(
        status="optimal" if optimal else "stopped",
        objective=objective,
        bound=objective if optimal else None,
        values=values,
    )


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
    """The best lower bound in a log of CBC, rounded down; -inf where there is none."""
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
