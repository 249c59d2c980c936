"""HiGHS in a process of its own: a model on standard input, JSON lines on standard output.

Each line is an object with ``bound``, the best lower bound so far, and where there is a new
solution, ``objective`` and ``values``. The last one also has ``status``: ``optimal``,
``infeasible``, ``stopped`` or ``missing`` with ``why``.

Usage: python -m enplace.solvers.highs_process SECONDS THREADS
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from enplace.processes.solver import say
from enplace.solvers.model import FloatArray, Model, decode_model

OPTIMAL_GAP = 1e-6
"""Relative difference to the bound at which a solution counts as optimal."""

SMALLEST_GAIN_S = 0.2
"""Bounds are told this often at most."""


def main() -> None:
    """Solve the model on standard input."""
    limit_s, threads = float(sys.argv[1]), int(sys.argv[2])
    model, start = decode_model(sys.stdin.buffer.read())
    try:
        import highspy
    except ImportError as error:
        say(status="missing", why=f"{error}")
        return
    solver = _solver(highspy, model, start)
    solver.setOptionValue("time_limit", limit_s)
    solver.setOptionValue("threads", threads)
    solver.cbMipImprovingSolution.subscribe(_tell_solution)
    solver.cbMipInterrupt.subscribe(_BoundTeller())
    solver.run()
    info, status = solver.getInfo(), solver.getModelStatus()
    known = highspy.HighsModelStatus
    found = math.isfinite(info.objective_function_value) and info.primal_solution_status == 2
    if status == known.kInfeasible:
        say(status="infeasible")
        return
    last = {"objective": info.objective_function_value} if found else {}
    if found:
        last["values"] = list(solver.getSolution().col_value)
    done = "optimal" if status == known.kOptimal else "stopped"
    say(status=done, bound=_finite(_bound(info, done)), **last)


def _bound(info: Any, status: str) -> float:
    # Without whole numbers there is no branching, and HiGHS leaves the bound of that at 0.
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


def _tell_solution(event: Any) -> None:
    out = event.data_out
    values = list(out.mip_solution)
    say(objective=out.objective_function_value, bound=_finite(out.mip_dual_bound), values=values)


class _BoundTeller:
    """Tells the bound when it has risen."""

    def __init__(self) -> None:
        self._bound, self._told_s = -math.inf, -math.inf

    def __call__(self, event: Any) -> None:
        out = event.data_out
        if out.mip_dual_bound > self._bound and out.running_time > self._told_s + SMALLEST_GAIN_S:
            self._bound, self._told_s = out.mip_dual_bound, out.running_time
            say(bound=_finite(self._bound))


if __name__ == "__main__":
    main()
