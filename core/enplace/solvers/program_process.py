"""Integer programs in a worker: HiGHS, CP-SAT, or a solver that PuLP calls.

Each handler receives a model and sends messages with ``bound``, the best lower bound so far, and if
there is a new solution, ``objective`` and the array ``values``. The last one also has ``status``:
``optimal``, ``infeasible``, ``stopped``, or ``missing`` or ``failed`` with ``why``.

**CP-SAT** works with whole numbers and takes only programs of choices and a maximum (Fig. 6,
contiguous). Variables up to 1 are treated as 0 or 1, even if the model does not require it: in
these programs they follow from the choices. Variables without an upper bound are times, counted in
units of 1 / :data:`UNIT`; their coefficients are whole. Other coefficients are rounded so that rows
allow more, not less: a bound holds for the model itself, and a solution may violate a row by a few
of these units.

**PuLP** calls CBC, Gurobi and CPLEX, with the part of the time limit that remains after the program
is written. CBC rarely looks at its clock, so it may be killed before it reports its answer; bounds
in its log are therefore sent at once. If Gurobi or CPLEX has no solution, its output contains the
reason, such as a missing licence.
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

from enplace.errors import EnplaceError
from enplace.extras import import_extra
from enplace.linear import FloatArray, Model, give_to_highs
from enplace.processes.main import Connection
from enplace.processes.wire import DONE, PROGRESS, Message
from enplace.solvers.cpsat_process import run_cp_sat
from enplace.solvers.milp import installed
from enplace.solvers.model import model_from

OPTIMAL_GAP = 1e-6
"""Relative difference to the bound at which a solution of HiGHS counts as optimal."""

BOUND_EVERY_S = 0.2
"""Least time between two messages with a better bound of HiGHS, and between two looks at a log."""

UNIT, MOST = 10**9, 10**6
"""CP-SAT's units in a time of 1; and no useful solution has a time above the second."""

NAMES = {"CBC": "PULP_CBC_CMD", "Gurobi": "GUROBI_CMD", "CPLEX": "CPLEX_CMD"}
"""PuLP's name of each solver."""

LEAST_S = 1.0
"""Least time that a solver of PuLP gets; the caller's grace period covers it."""

_BOUND = re.compile(
    rb"(?:Continuous objective value is|best possible|best bound) (-?[0-9][0-9.e+-]*[0-9])"
)
_LIMIT = re.compile(rb"(?i)time limit (reached|exceeded)")
_INFEASIBLE = re.compile(rb"(?i)model is infeasible|integer infeasible")
_ROUNDED = 1e-5
"""Possible relative error of the numbers in the log, which have six digits."""


def solve_by_highs(connection: Connection) -> Message:
    """Solve the model in the first message with HiGHS."""
    import highspy  # takes a while

    job = connection.receive()
    model, start = model_from(job)
    solver = give_to_highs(model)
    if start is not None:
        known = np.flatnonzero(~np.isnan(start))
        solver.setSolution(len(known), known.astype(np.int32), start[known])
    solver.setOptionValue("mip_rel_gap", OPTIMAL_GAP)
    solver.setOptionValue("time_limit", float(job.details["limit_s"]))
    solver.setOptionValue("threads", job.details["threads"])
    sent, sent_s = -np.inf, -np.inf

    def send_solution(event: Any) -> None:
        out = event.data_out
        found = {"values": np.array(out.mip_solution)}
        details = {"objective": out.objective_function_value, "bound": _finite(out.mip_dual_bound)}
        connection.send(Message(PROGRESS, details, found))

    def send_bound(event: Any) -> None:
        nonlocal sent, sent_s
        out = event.data_out
        if out.mip_dual_bound > sent and out.running_time > sent_s + BOUND_EVERY_S:
            sent, sent_s = out.mip_dual_bound, out.running_time
            connection.send(Message(PROGRESS, {"bound": _finite(sent)}))

    solver.cbMipImprovingSolution.subscribe(send_solution)
    solver.cbMipInterrupt.subscribe(send_bound)
    solver.run()
    info, status = solver.getInfo(), solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return _answer("infeasible")
    optimal = status == highspy.HighsModelStatus.kOptimal
    objective, bound = info.objective_function_value, info.mip_dual_bound
    if optimal and info.mip_node_count < 0:
        bound = objective  # without integral variables there is no branching, and no such bound
    found = info.primal_solution_status == 2 and np.isfinite(objective)
    values = np.array(solver.getSolution().col_value) if found else None
    return _answer("optimal" if optimal else "stopped", objective, bound, values)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _answer(
    status: str,
    objective: float = np.inf,
    bound: float = -np.inf,
    values: FloatArray | None = None,
    why: str = "",
) -> Message:
    details: dict[str, Any] = {"status": status, "bound": _finite(bound), "why": why}
    if values is None:
        return Message(DONE, details)
    return Message(DONE, details | {"objective": objective}, {"values": values})


def solve_by_cp_sat(connection: Connection) -> Message:
    """Solve the model in the first message with CP-SAT."""
    job = connection.receive()
    try:
        cp_model = import_extra("ortools.sat.python.cp_model", "exact")
    except EnplaceError as error:
        return _answer("missing", why=f"{error}")
    program = _WholeProgram(cp_model, *model_from(job))

    def found(solver: Any) -> dict[str, np.ndarray]:
        values = np.array([solver.value(each) for each in program.variables])
        return {"values": values / program.parts}

    return run_cp_sat(cp_model, connection, job, program.model, found, UNIT)


class _WholeProgram:
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
        value = value * (unit / self.parts[columns])
        low, high = given.row_lower[row] * unit, given.row_upper[row] * unit
        if np.isfinite(low):
            self.model.add(self._sum(columns, np.ceil(value)) >= int(np.ceil(low)))
        if np.isfinite(high):
            self.model.add(self._sum(columns, np.floor(value)) <= int(np.floor(high)))

    def _sum(self, columns: Any, value: Any) -> Any:
        variables = [self.variables[column] for column in columns.tolist()]
        return self.cp_model.LinearExpr.weighted_sum(variables, value.astype(np.int64).tolist())


def solve_by_pulp(connection: Connection) -> Message:
    """Solve the model in the first message with the solver that it names."""
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
    solver = pulp.getSolver(NAMES[name], msg=name != "CBC", threads=threads, warmStart=True)
    if name == "Gurobi" and (refusal := _refusal(solver.path)):
        return _answer("failed", why=refusal)
    model, start = model_from(job)
    problem, variables = to_pulp(pulp, model, start)
    solver.timeLimit = max(job.details["limit_s"] - (time.monotonic() - began), LEAST_S)
    if name == "CBC":
        _solve_with_log(problem, solver, connection)
        # CBC also reports optimal when its time is up; only the kind of solution is reliable.
        printed, infeasible = b"", problem.sol_status == pulp.LpSolutionInfeasible
        late = problem.sol_status != pulp.LpSolutionOptimal
    else:
        # If there is no solution, PuLP may report that none exists, and it reports each of Gurobi's
        # as the best. Only the solvers' output is reliable.
        printed = _solve_and_listen(pulp, problem, variables, solver)
        infeasible, late = bool(_INFEASIBLE.search(printed)), bool(_LIMIT.search(printed))
    if infeasible:
        return _answer("infeasible")
    known = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    if not known or all(variable.value() is None for variable in variables):
        return _answer("stopped") if late else _answer("failed", why=last_words(printed))
    optimal = problem.sol_status == pulp.LpSolutionOptimal and not late
    values = np.array([variable.value() or 0.0 for variable in variables])
    objective = float(model.cost @ values)
    bound = objective if optimal else bound_in(printed)
    return _answer("optimal" if optimal else "stopped", objective, bound, values)


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
    over, sent = threading.Event(), -np.inf

    def send_bound() -> None:
        nonlocal sent
        bound = bound_in(log.read_bytes())
        if bound > sent:
            sent = bound
            connection.send(Message(PROGRESS, {"bound": bound}))

    def follow() -> None:
        while not over.wait(BOUND_EVERY_S):
            send_bound()

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        problem.solve(solver)
    finally:
        over.set()
        follower.join()
    send_bound()


def bound_in(log: bytes) -> float:
    """Return the best lower bound in the output of CBC or Gurobi, rounded down; else -inf."""
    found = [float(match) for match in _BOUND.findall(log)]
    best = max((value for value in found if abs(value) < 1e30), default=-np.inf)
    return best - _ROUNDED * abs(best) if np.isfinite(best) else best


def to_pulp(pulp: Any, model: Model, start: FloatArray | None) -> tuple[Any, list[Any]]:
    """Convert the model and its start to PuLP's objects; return it with its variables."""
    problem = pulp.LpProblem("enplace", pulp.LpMinimize)
    kinds = np.where(model.integral, pulp.LpInteger, pulp.LpContinuous).tolist()
    ends = zip(model.lower.tolist(), model.upper.tolist(), kinds, strict=True)
    variables = [
        pulp.LpVariable(f"x{number}", _finite(low), _finite(high), kind)
        for number, (low, high, kind) in enumerate(ends)
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
    if start is not None:
        for variable, value in zip(variables, start.tolist(), strict=True):
            if not np.isnan(value):
                variable.setInitialValue(value)
    return problem, variables
