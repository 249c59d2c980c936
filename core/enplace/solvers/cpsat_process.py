"""CP-SAT in a worker: the placement and schedule of a small problem.

The job is one message with the arrays of :mod:`enplace.solvers.cp`. Each message back has
``bound``, or ``objective`` and ``bound`` with the arrays ``device`` (of each unit) and ``start``
(of each op), in whole ticks. The last one has ``status``: ``optimal``, ``infeasible``, ``stopped``
or ``missing`` with ``why``.

The model relaxes the machine, so its bound holds for every schedule: channels may carry tensors in
any order and at any time, and times and bytes are rounded down. Where memory is far from full, only
the tensors that an op holds while it runs are counted. OR-Tools 9.15 has called a hinted placement
optimal although there was a shorter schedule, and a model infeasible in which the optional
intervals of one op, of different lengths, shared an end. So it gets no hint, and no two intervals
share an end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from enplace.errors import EnplaceError
from enplace.extras import import_extra
from enplace.processes.main import Connection
from enplace.processes.wire import DONE, PROGRESS, Message


def solve(connection: Connection) -> Message:
    """Solve the problem in the first message."""
    job = connection.receive()
    try:
        cp_model = import_extra("ortools.sat.python.cp_model", "exact")
    except EnplaceError as error:
        return Message(DONE, {"status": "missing", "why": f"{error}"})

    schedule = _Schedule(cp_model, dict(job.arrays))
    return run_cp_sat(cp_model, connection, job, schedule.model, schedule.found)


def run_cp_sat(
    cp_model: Any,
    connection: Connection,
    job: Message,
    model: Any,
    found: Callable[[Any], dict[str, np.ndarray]],
    unit: int = 1,
) -> Message:
    """Solve a model, and send each better bound and each solution.

    Parameters
    ----------
    found : callable
        Returns the arrays of a solution.
    unit : int
        What is 1 in the messages.
    """

    def send_bound(bound: float) -> None:
        connection.send(Message(PROGRESS, {"bound": bound / unit}))

    class Sender(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            objective, bound = self.objective_value / unit, self.best_objective_bound / unit
            details = {"objective": objective, "bound": bound}
            connection.send(Message(PROGRESS, details, found(self)))

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = float(job.details["limit_s"])
    solver.parameters.num_workers = job.details["threads"]
    solver.best_bound_callback = send_bound
    status = solver.solve(model, Sender())
    if status == cp_model.INFEASIBLE:
        return Message(DONE, {"status": "infeasible"})
    name = "optimal" if status == cp_model.OPTIMAL else "stopped"
    return Message(DONE, {"status": name, "bound": solver.best_objective_bound / unit})


class _Schedule:
    """The model: where each unit is, when each op starts, and which tensors are sent."""

    def __init__(self, cp_model: Any, data: dict[str, Any]) -> None:
        self.cp_model, self.data = cp_model, data
        self.model = cp_model.CpModel()
        self.horizon = int(data["horizon"])
        self.held: dict[int, list[tuple[Any, int]]] = {}
        self._place_units()
        self._run_ops()
        self._send_tensors()
        if data["tight"]:
            self._keep_tensors()
            self._limit_memory()
        self.model.minimize(self.makespan)

    def _place_units(self) -> None:
        allowed = self.data["allowed"]
        self.on = [
            {int(d): self.model.new_bool_var("") for d in np.flatnonzero(row)} for row in allowed
        ]
        self.used: list[Any] = []
        for choices in self.on:
            self.model.add_exactly_one(choices.values())
        for d, capacity in enumerate(self.data["capacity"].tolist()):
            held = [
                (weight, self.on[unit][d])
                for unit, weight in enumerate(self.data["unit_weight"].tolist())
                if weight > 0 and d in self.on[unit]
            ]
            used = self.model.new_int_var(0, max(0, capacity), "")
            self.used.append(used)
            self.model.add(sum(weight * there for weight, there in held) <= used)
            for weight, unit in _heaviest(self.data["op_weight"], self.data["unit"]):
                if weight > 0 and d in self.on[unit]:
                    self.model.add(used + weight <= capacity).only_enforce_if(self.on[unit][d])

    def _run_ops(self) -> None:
        model, data = self.model, self.data
        time, unit, owner = data["time"], data["unit"].tolist(), data["lane_owner"].tolist()
        self.start = [model.new_int_var(int(h), self.horizon, "") for h in data["head"]]
        self.end = [model.new_int_var(0, self.horizon, "") for _ in unit]
        self.makespan = model.new_int_var(int(data["bound"]), self.horizon, "")
        lanes: dict[int, list[Any]] = {}
        for op, u in enumerate(unit):
            for d, there in self.on[u].items():
                took = int(time[op, d])
                model.add(self.end[op] == self.start[op] + took).only_enforce_if(there)
                if took > 0:
                    run = model.new_optional_fixed_size_interval_var(
                        self.start[op], took, there, ""
                    )
                    lanes.setdefault(owner[d], []).append(run)
                    self._hold(d, run, data["temporary"][op])
            model.add(self.makespan >= self.end[op] + int(data["tail"][op]))
        for d, intervals in lanes.items():
            if data["lanes"][d] == 1:
                model.add_no_overlap(intervals)
            else:
                model.add_cumulative(intervals, [1] * len(intervals), int(data["lanes"][d]))
        for a, b in zip(data["edge_source"].tolist(), data["edge_op"].tolist(), strict=True):
            model.add(self.start[b] >= self.end[a])

    def _send_tensors(self) -> None:
        model, data = self.model, self.data
        unit = data["unit"].tolist()
        carried: dict[int, list[Any]] = {}
        self.users: dict[int, list[int]] = {}
        self.sends: dict[int, list[tuple[int, Any, Any, int]]] = {}
        for tensor, op in zip(data["edge_tensor"].tolist(), data["edge_op"].tolist(), strict=True):
            self.users.setdefault(tensor, []).append(op)
        for tensor, ops in self.users.items():
            maker = int(data["tensor_op"][tensor])
            home = self.on[unit[maker]]
            for to in sorted({d for op in ops for d in self.on[unit[op]]}):
                wanted = {unit[op]: op for op in ops if to in self.on[unit[op]]}
                arrival = model.new_int_var(0, self.horizon, "")
                for op in ops:
                    if to in self.on[unit[op]] and unit[op] != unit[maker]:
                        there = self.on[unit[op]][to]
                        away = [there] if to not in home else [there, home[to].negated()]
                        model.add(self.start[op] >= arrival).only_enforce_if(away)
                for origin, at_home in home.items():
                    if origin == to:
                        continue
                    sent = model.new_bool_var("")
                    for u in wanted:
                        if u != unit[maker]:
                            model.add_bool_or(sent, at_home.negated(), self.on[u][to].negated())
                    took = int(data["send"][tensor, origin, to])
                    begin = model.new_int_var(0, self.horizon, "")
                    model.add(begin >= self.end[maker]).only_enforce_if(sent)
                    model.add(arrival >= begin + took).only_enforce_if(sent)
                    self.sends.setdefault(tensor, []).append((to, sent, begin, took))
                    if took > 0:
                        interval = model.new_optional_fixed_size_interval_var(begin, took, sent, "")
                        first, end = data["route_ptr"][origin * len(data["lanes"]) + to :][:2]
                        for channel in data["route"][first:end].tolist():
                            carried.setdefault(channel, []).append(interval)
        for intervals in carried.values():
            model.add_no_overlap(intervals)

    def _keep_tensors(self) -> None:
        """Keep a tensor where it was made until it is used and sent, and where it is sent."""
        model, unit = self.model, self.data["unit"].tolist()
        for tensor, weight in enumerate(self.data["tensor_weight"].tolist()):
            if weight == 0:
                continue
            maker, users = int(self.data["tensor_op"][tensor]), self.users.get(tensor, [])
            gone = self._later()
            model.add(gone >= self.end[maker])
            for to, sent, begin, took in self.sends.get(tensor, []):
                model.add(gone >= begin + took).only_enforce_if(sent)
                there = self._later()
                model.add(there >= begin + took).only_enforce_if(sent)
                self._used_until(there, [sent], to, users)
                life = model.new_optional_interval_var(begin, self._later(), there, sent, "")
                self._hold(to, life, weight)
            for d, at_home in self.on[unit[maker]].items():
                there = self._later()
                model.add(there >= gone).only_enforce_if(at_home)
                self._used_until(there, [at_home], d, users)
                life = model.new_optional_interval_var(
                    self.start[maker], self._later(), there, at_home, ""
                )
                self._hold(d, life, weight)

    def _used_until(self, end: Any, given: list[Any], device: int, users: list[int]) -> None:
        for op in users:
            there = self.on[int(self.data["unit"][op])].get(device)
            if there is not None:
                self.model.add(end >= self.end[op]).only_enforce_if([*given, there])

    def _later(self) -> Any:
        return self.model.new_int_var(0, 2 * self.horizon, "")

    def _hold(self, device: int, interval: Any, weight: int) -> None:
        if weight > 0:
            self.held.setdefault(device, []).append((interval, int(weight)))

    def _limit_memory(self) -> None:
        for d, held in self.held.items():
            free_bytes = int(self.data["capacity"][d]) - self.used[d]
            intervals, weights = zip(*held, strict=True)
            self.model.add_cumulative(intervals, weights, free_bytes)

    def found(self, solver: Any) -> dict[str, np.ndarray]:
        """Return the device of each unit and the start of each op in a solution."""
        device = [
            next(d for d, there in choices.items() if solver.boolean_value(there))
            for choices in self.on
        ]
        start = [solver.value(start) for start in self.start]
        return {"device": np.array(device), "start": np.array(start)}


def _heaviest(weight: Any, unit: Any) -> list[tuple[int, int]]:
    """Find the largest weight among each unit's ops."""
    largest = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    np.maximum.at(largest, unit, weight)
    return [(value, number) for number, value in enumerate(largest.tolist())]
