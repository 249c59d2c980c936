"""CBC, Gurobi or CPLEX through PuLP in a process of its own; see :mod:`~.highs_process`.

Usage: python -m enplace.solvers.pulp_process SECONDS THREADS SOLVER
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from enplace.solvers.child import say
from enplace.solvers.model import Model, decode_model

COMMANDS = {"CBC": "PULP_CBC_CMD", "Gurobi": "GUROBI_CMD", "CPLEX": "CPLEX_CMD"}
"""PuLP's names."""


def main() -> None:
    """Solve the model on standard input."""
    limit_s, threads, name = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    model, start = decode_model(sys.stdin.buffer.read())
    try:
        import pulp
    except ImportError as error:
        say(status="missing", why=f"{error}")
        return
    options = {"msg": False, "timeLimit": limit_s, "threads": threads, "warmStart": True}
    solver = pulp.getSolver(COMMANDS[name], **options)
    if not solver.available():
        say(status="missing", why=f"{name} is not installed")
        return
    problem, variables = to_pulp(pulp, model)
    if start is not None:
        for variable, value in zip(variables, start.tolist(), strict=True):
            if not np.isnan(value):
                variable.setInitialValue(value)
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
