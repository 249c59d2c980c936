"""HiGHS in a worker: it receives a model and sends bounds and solutions.

Each message has ``bound``, the best lower bound so far, and if there is a new solution,
``objective`` and the array ``values``. The last one also has ``status``: ``optimal``,
``infeasible``, ``stopped`` or ``missing`` with ``why``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from enplace.processes.main import Connection
from enplace.processes.wire import DONE, PROGRESS, Message
from enplace.solvers.model import FloatArray, Model, model_from

OPTIMAL_GAP = 1e-6
"""Relative difference to the bound at which a solution counts as optimal."""

BOUND_EVERY_S = 0.2
"""Least time between two messages with a better bound."""


def solve(connection: Connection) -> Message:
    """Solve the model in the first message."""
    job = connection.receive()
    try:
        import highspy
    except ImportError as error:
        return Message(DONE, {"status": "missing", "why": f"{error}"})
    solver = _solver(highspy, *model_from(job))
    solver.setOptionValue("time_limit", float(job.details["limit_s"]))
    solver.setOptionValue("threads", job.details["threads"])
    solver.cbMipImprovingSolution.subscribe(lambda event: connection.send(_solution(event)))
    solver.cbMipInterrupt.subscribe(_BoundSender(connection))
    solver.run()
    return _answer(highspy, solver)


def _answer(highspy: Any, solver: Any) -> Message:
    info, status = solver.getInfo(), solver.getModelStatus()
    known = highspy.HighsModelStatus
    found = math.isfinite(info.objective_function_value) and info.primal_solution_status == 2
    if status == known.kInfeasible:
        return Message(DONE, {"status": "infeasible"})
    name = "optimal" if status == known.kOptimal else "stopped"
    details = {"status": name, "bound": _finite(_bound(info, name))}
    if not found:
        return Message(DONE, details)
    values = np.array(solver.getSolution().col_value)
    objective = {"objective": info.objective_function_value}
    return Message(DONE, {**details, **objective}, {"values": values})


def _bound(info: Any, status: str) -> float:
    # Without integral variables there is no branching, and HiGHS leaves that bound at 0.
    if status == "optimal" and info.mip_node_count < 0:
        return float(info.objective_function_value)
    return float(info.mip_dual_bound)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _solver(highspy: Any, model: Model, start: FloatArray | None) -> Any:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = model.n_variables, model.n_rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = model.cost, model.lower, model.upper
    lp.row_lower_, lp.row_upper_ = model.row_lower, model.row_upper
    kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
    lp.integrality_ = [kinds[int(whole)] for whole in model.integral]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = model.row_ptr.astype(np.int32)
    lp.a_matrix_.index_ = model.column.astype(np.int32)
    lp.a_matrix_.value_ = model.value
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", OPTIMAL_GAP)
    solver.passModel(lp)
    if start is not None:
        known = np.flatnonzero(~np.isnan(start))
        solver.setSolution(len(known), known.astype(np.int32), start[known])
    return solver


def _solution(event: Any) -> Message:
    out = event.data_out
    details = {"objective": out.objective_function_value, "bound": _finite(out.mip_dual_bound)}
    return Message(PROGRESS, details, {"values": np.array(out.mip_solution)})


class _BoundSender:
    """Sends the bound whenever it has risen."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bound, self._sent_s = -math.inf, -math.inf

    def __call__(self, event: Any) -> None:
        out = event.data_out
        if out.mip_dual_bound > self._bound and out.running_time > self._sent_s + BOUND_EVERY_S:
            self._bound, self._sent_s = out.mip_dual_bound, out.running_time
            self._connection.send(Message(PROGRESS, {"bound": _finite(self._bound)}))
