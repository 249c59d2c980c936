"""Whether the units of a model can be packed into the memory of its devices at all.

However a plan orders its ops, a device always holds the variables of its ops, and while one of them
runs there, also what that op reads, makes and needs meanwhile. A program finds the devices that
need the smallest share of their memory for this. If that is above 1, no plan fits.

If plans may also compute ops again (``Problem.any_copies``), what an op makes may be there only
when its copy runs, on any device that can run the op. So each op also needs a device with room for
one of its runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.linear import ModelBuilder
from enplace.placing.stop import Stop
from enplace.solvers.milp import solve_milp
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

MOST_CHOICES = 50_000
"""Most choices of a device for a unit for which the program is solved."""

PROVES_ALL = (
    "No plan fits, proven by packing: however ops are shared out, some device lacks room for its "
    "variables and what one of its ops needs while it runs."
)
PROVES = PROVES_ALL.replace("No plan", "No plan that keeps what ops make")
"""What a packing proves, with and without copies of ops."""

SURELY = 1e-5
"""Share of the memory by which a plan must exceed it, so that it is no rounding error."""


@dataclass(frozen=True, eq=False)
class Packing:
    """The devices of units that are known to need the smallest share of memory.

    Attributes
    ----------
    device : int array, shape (n_ops,), or None
        None if none was found.
    is_impossible : bool
        Whether it is proven that no plan fits.
    """

    device: IntArray | None = None
    is_impossible: bool = False


def pack(problem: Problem, stop: Stop) -> Packing:
    """Pack the units of a problem, or prove that they do not fit."""
    if is_plainly_impossible(problem):
        return Packing(is_impossible=True)
    allowed, (weights, runs) = problem.unit_allowed, _shares(problem)
    if allowed.size > MOST_CHOICES or stop():
        return Packing()
    builder, n_devices = ModelBuilder(), allowed.shape[1]
    x = builder.variables(*allowed.shape, upper=allowed, integral=True)
    held = builder.variables(n_devices)
    fullest = builder.variables(1, cost=1.0)
    units, devices = np.arange(problem.n_units), np.arange(n_devices)
    builder.sums(problem.n_units, [(units[:, None], 1.0, x)], lower=1.0, upper=1.0)
    builder.sums(n_devices, [(devices, weights, x), (devices, -1.0, held)], upper=0.0)
    builder.rows([(1.0, held), (runs, x), (-1.0, fullest)], upper=0.0)
    enough = False

    def report(found: object) -> None:
        nonlocal enough
        enough = getattr(found, "bound", 0.0) > 1 + SURELY

    answer = solve_milp(builder.model(), None, stop.left_s(), lambda: enough or stop(), report)
    device = None if answer.values is None else np.argmax(answer.values[x], axis=1)
    return Packing(
        None if device is None else device[problem.unit],
        answer.status == "infeasible" or answer.bound > 1 + SURELY,
    )


def is_plainly_impossible(problem: Problem) -> bool:
    """Whether a unit is too large for every device, or those with no choice are for theirs."""
    allowed, (weights, runs) = problem.unit_allowed, _shares(problem)
    if (np.where(allowed, weights + runs, np.inf).min(axis=1) > 1 + SURELY).any():
        return True
    has_no_choice = allowed & (allowed.sum(axis=1) == 1)[:, None]
    held = np.where(has_no_choice, weights, 0.0).sum(axis=0)
    most = np.where(has_no_choice, runs, 0.0).max(axis=0, initial=0.0)
    if (held + most > 1 + SURELY).any():
        return True
    return problem.any_copies and _has_too_large_op(problem)


def _shares(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Return which share of each device's memory each unit's variables and its ops need."""
    capacity = problem.cluster.capacity_bytes.astype(np.float64)
    return problem.unit_persistent_bytes[:, None] / capacity, working_bytes(problem) / capacity


def working_bytes(problem: Problem) -> FloatArray:
    """Find what a device needs, besides variables, for a unit's hungriest op; by device.

    Nothing is held for an op that takes no time. Shape (n_units, n_devices).
    """
    takes_time = np.isfinite(problem.time_us) & (problem.time_us > 0)
    found = np.zeros((problem.n_units, problem.cluster.n_devices))
    np.maximum.at(found, problem.unit, np.where(takes_time, problem.running_bytes[:, None], 0.0))
    return found


def _has_too_large_op(problem: Problem) -> bool:
    """Whether some op has room on no device that can run it, not even without any variables."""
    room = np.where(problem.time_us > 0, problem.cluster.capacity_bytes, np.inf)
    room = np.where(np.isfinite(problem.time_us), room, 0.0)
    all_ops = np.ones(problem.profile.n_ops, dtype=bool)
    need = problem.profile.bytes_to_run(problem.is_made_at_once(all_ops))
    return bool((need > room.max(axis=1) * (1 + SURELY)).any())
