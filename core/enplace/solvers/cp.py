"""CP-SAT on small problems: better plans, and bounds that hold for every plan.

The solver runs in a worker; :mod:`~enplace.solvers.cpsat_process` describes the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from enplace.bounds.step_time import heads_and_tails_us
from enplace.processes.wire import Message
from enplace.solvers.ask_solver import ask_solver
from enplace.values.arrays import inverse
from enplace.values.cluster import LinkCost
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

TICKS = 5_000_000
"""Number of whole ticks in the longest schedule searched for."""

TIGHT = 0.7
"""If a known schedule uses more than this share of a device's memory, the model counts all tensors.
"""

MOST_UNITS = 1 << 40
"""Memory is counted in bytes, or in units so large that the total is at most this, rounded down."""

DENIAL = "its answer contradicts a plan that fits, so it does not count"


@dataclass(frozen=True, eq=False)
class CpAnswer:
    """A better plan or bound from CP-SAT.

    Attributes
    ----------
    bound_us : float
        A lower bound on every schedule of the problem.
    plan : Plan or None
        The placement and order of a new solution, not yet simulated.
    status : str
        Empty until the end; then ``optimal``, ``stopped``, ``missing``, ``failed`` or
        ``infeasible`` (no plan fits).
    why : str
        A note if the solver is missing or failed.
    """

    bound_us: float
    plan: Plan | None = None
    status: str = ""
    why: str = ""


def solve_cp(
    problem: Problem,
    known: Schedule,
    bound_us: float,
    limit_s: float,
    cancelled: Callable[[], bool],
    threads: int = 2,
) -> Iterator[CpAnswer]:
    """Search for a schedule shorter than the known one, and for a bound above the known one.

    An answer that contradicts a known schedule that fits does not count.
    """
    # If the known schedule exceeds memory, all schedules that fit may be longer.
    longest_us = known.makespan_us if known.fits else _serial_us(problem)
    tick_us = max(longest_us, 1e-6) / TICKS
    details = {"limit_s": limit_s, "threads": threads}
    job = Message("solve", details, _arrays(problem, known, bound_us, tick_us))
    best_us = bound_us
    for message in ask_solver("cpsat_process:solve", job, limit_s, cancelled):
        status, bound = message.details.get("status", ""), message.details.get("bound", 0.0)
        denies = status == "infeasible" or bound > TICKS
        if known.fits and denies:
            yield CpAnswer(bound_us, None, "failed", DENIAL)
            return
        # Times are rounded down: no schedule can beat a bound that the model cannot beat.
        best_us = max(best_us, bound * tick_us)
        plan = None
        if "device" in message.arrays:
            device = message.arrays["device"].astype(np.int64)[problem.unit]
            plan = _plan(problem, device, message.arrays["start"].astype(np.float64))
        yield CpAnswer(best_us, plan, status, message.details.get("why", ""))


def _plan(problem: Problem, device: np.ndarray, start: np.ndarray) -> Plan:
    natural = inverse(problem.profile.topological_order)
    position = inverse(np.lexsort((natural, start)))
    return Plan(device, position, "enplace", policy="strict", links="fifo")


def _serial_us(problem: Problem) -> float:
    """Bound every step time: all ops in sequence, and every tensor sent everywhere in between."""
    cluster = problem.cluster
    all_links = LinkCost(cluster.b0_us.sum(), cluster.b1_us_per_byte.sum())
    sends_us = all_links.transfer_us(problem.profile.tensor_bytes)
    ops_us = np.where(np.isfinite(problem.time_us), problem.time_us, 0.0)
    return float(ops_us.max(axis=1).sum() + sends_us.sum())


def _one_of_twins(problem: Problem) -> np.ndarray:
    """Find where units may be, with one device out of interchangeable ones for the heaviest unit.

    For every schedule that has this unit on another of these devices, there is an equal one with
    the two devices exchanged.
    """
    allowed = problem.unit_allowed.copy()
    least_us = np.zeros(problem.n_units)
    np.add.at(least_us, problem.unit, problem.time_us.min(axis=1))
    heaviest = int(np.argmax(least_us))
    first, *others = np.flatnonzero(allowed[heaviest]).tolist()
    for other in others:
        allowed[heaviest, other] = not are_twins(problem, first, other)
    return allowed


def are_twins(problem: Problem, one: int, other: int) -> bool:
    """Whether exchanging two devices changes nothing."""
    cluster = problem.cluster
    n = cluster.n_devices
    swapped = np.arange(n)
    swapped[[one, other]] = other, one
    pair = (swapped[:, None] * n + swapped).ravel()
    uses = np.zeros((n * n, len(cluster.channels)), dtype=bool)
    uses[np.repeat(np.arange(n * n), np.diff(cluster.route_ptr)), cluster.route] = True
    rows = (problem.unit_allowed.T, problem.time_us.T, cluster.capacity_bytes, cluster.lanes)
    pairs = (cluster.b0_us, cluster.b1_us_per_byte, np.equal.outer(*[cluster.lane_owner] * 2))
    return (
        all((row[one] == row[other]).all() for row in rows)
        and all((of.ravel()[pair] == of.ravel()).all() for of in pairs)
        and sorted(map(bytes, uses.T)) == sorted(map(bytes, uses[pair].T))
    )


def _ticks(bound_us: np.ndarray, tick_us: float) -> np.ndarray:
    """Round a bound down to whole ticks, with a margin for rounding errors."""
    return np.floor(bound_us / tick_us * (1 - 1e-9)).astype(np.int64)


def _arrays(
    problem: Problem, known: Schedule, bound_us: float, tick_us: float
) -> dict[str, np.ndarray]:
    """Return the arrays for the solver's process; times in whole ticks, rounded down."""
    profile, cluster = problem.profile, problem.cluster
    source, target = np.ogrid[: cluster.n_devices, : cluster.n_devices]
    sends_us = cluster.transfer_us(profile.tensor_bytes[:, None, None], source, target)
    persistent = problem.unit_persistent_bytes
    # The memory of ops that take no time may be free again before anything else runs.
    running = np.where(problem.time_us.min(axis=1) > 0, profile.running_bytes, 0)
    unit_bytes = 1 + int(persistent.sum() + profile.held_bytes.sum() + running.sum()) // MOST_UNITS
    head_us, tail_us = heads_and_tails_us(problem)
    values = {
        "horizon": TICKS + 1,
        "bound": _ticks(np.array(bound_us), tick_us),
        "head": _ticks(head_us, tick_us),
        "tail": _ticks(tail_us, tick_us),
        "allowed": _one_of_twins(problem),
        "unit": problem.unit,
        "unit_weight": persistent // unit_bytes,
        "op_weight": running // unit_bytes,
        "temporary": profile.temporary_bytes // unit_bytes,
        "tensor_weight": profile.held_bytes // unit_bytes,
        "tight": not known.fits or (known.peak_bytes > TIGHT * cluster.capacity_bytes).any(),
        "capacity": -(-cluster.capacity_bytes // unit_bytes),
        "time": np.floor(np.where(np.isfinite(problem.time_us), problem.time_us, 0.0) / tick_us),
        "lanes": cluster.lanes,
        "lane_owner": cluster.lane_owner,
        "tensor_op": profile.tensor_op,
        "edge_tensor": profile.edge_tensor,
        "edge_source": profile.edge_source,
        "edge_op": profile.edge_op,
        "send": np.floor(sends_us / tick_us),
        "route_ptr": cluster.route_ptr,
        "route": cluster.route,
    }
    return {name: np.asarray(value) for name, value in values.items()}
