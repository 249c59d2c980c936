"""CP-SAT in a worker, for programs of choices and a maximum (Fig. 6, contiguous).

It exchanges the messages of :mod:`enplace.solvers.highs_process`.

CP-SAT works with whole numbers. Variables up to 1 are treated as 0 or 1, even if the model does not
require it: in these programs they follow from the choices. Variables without an upper bound are
times, counted in units of 1 / :data:`UNIT`; their coefficients are whole. Other coefficients are
rounded so that rows allow more, not less: a bound holds for the model itself, and a solution may
violate a row by a few of these units.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from enplace.processes.main import Connection
from enplace.processes.wire import DONE, PROGRESS, Message
from enplace.solvers.model import FloatArray, Model, model_from

UNIT = 10**9

MOST = 10**6
"""No useful solution has a time above this."""


def solve(connection: Connection) -> Message:
    """Solve the model in the first message."""
    job = connection.receive()
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        return Message(DONE, {"status": "missing", "why": f"{error}"})

    def send_bound(bound: float) -> None:
        connection.send(Message(PROGRESS, {"bound": bound / UNIT}))

    program = _Program(cp_model, *model_from(job))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = float(job.details["limit_s"])
    solver.parameters.num_workers = job.details["threads"]
    solver.best_bound_callback = send_bound
    status = solver.solve(program.model, program.solution_sender(connection))
    if status == cp_model.INFEASIBLE:
        return Message(DONE, {"status": "infeasible"})
    name = "optimal" if status == cp_model.OPTIMAL else "stopped"
    return Message(DONE, {"status": name, "bound": solver.best_objective_bound / UNIT})


class _Program:
    """A model in whole numbers."""

    def __init__(self, cp_model: Any, given: Model, start: FloatArray | None) -> None:
        self.cp_model, self.given, self.model = cp_model, given, cp_model.CpModel()
        self.is_time = np.isinf(given.upper)
        self.parts = np.where(self.is_time, UNIT, 1)
        lowest = np.ceil(given.lower * self.parts).astype(np.int64).tolist()
        highest = np.floor(np.minimum(given.upper, MOST) * self.parts).astype(np.int64).tolist()
        self.variables = [
            self.model.new_int_var(low, high, "") for low, high in zip(lowest, highest, strict=True)
        ]
        for row in range(given.n_rows):
            self._add_row(row)
        cost = np.round(given.cost * UNIT / self.parts).astype(np.int64)
        self.model.minimize(self._sum(np.flatnonzero(cost), cost[cost != 0]))
        if start is not None:
            for variable in np.flatnonzero(~np.isnan(start)).tolist():
                value = round(start[variable] * self.parts[variable])
                self.model.add_hint(self.variables[variable], value)

    def _add_row(self, row: int) -> None:
        given = self.given
        at = slice(given.row_ptr[row], given.row_ptr[row + 1])
        columns, value = given.column[at], given.value[at]
        in_parts = self.is_time[columns].any() or (value != np.round(value)).any()
        unit = UNIT if in_parts else 1
        value, low, high = (
            value * (unit / self.parts[columns]),
            given.row_lower[row] * unit,
            given.row_upper[row] * unit,
        )
        if np.isfinite(low):
            self.model.add(self._sum(columns, np.ceil(value)) >= int(np.ceil(low)))
        if np.isfinite(high):
            self.model.add(self._sum(columns, np.floor(value)) <= int(np.floor(high)))

    def _sum(self, columns: Any, value: Any) -> Any:
        variables = [self.variables[column] for column in columns.tolist()]
        return self.cp_model.LinearExpr.weighted_sum(variables, value.astype(np.int64).tolist())

    def solution_sender(self, connection: Connection) -> Any:
        """Return a callback that sends each solution."""
        program = self

        class SolutionSender(self.cp_model.CpSolverSolutionCallback):  # type: ignore[name-defined]
            def on_solution_callback(self) -> None:
                found = np.array([self.value(each) for each in program.variables])
                details = {
                    "objective": self.objective_value / UNIT,
                    "bound": self.best_objective_bound / UNIT,
                }
                connection.send(Message(PROGRESS, details, {"values": found / program.parts}))

        return SolutionSender()
