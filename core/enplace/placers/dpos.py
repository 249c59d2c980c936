"""DPOS: device placement and operation sequencing (FastT, section 5.1, Algorithm 1).

Ops are taken by upward rank, computed from the largest times and transfers. Ops on the critical
path go to a critical-path device, all others to where they end earliest, in idle slots if they fit.
Each device runs its ops by start time. Slots, transfers, memory and free ops work as in
:mod:`enplace.placers.heft`. Where the paper leaves the choice open, this is what we do:

- Critical-path devices are GPUs, and each op of the path takes its whole placement unit with it.
- A device is full for the path when the variables and outputs of all units on it exceed its memory.
- Ops of the path that may not go there, or for which all are full, are placed like the others.
- If all devices are full for an op, it goes where the excess is least. If the simulated step does
  not fit, the ops are placed again for less memory. Ops that still exceed memory then move to
  devices with free memory.

Theorem 1, step <= 2 * ideal + C_max, ignores queues: where transfers wait for a channel, the step
may be longer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from enplace.placers.heft import list_schedule
from enplace.placing.candidates import best_that_fits
from enplace.placing.capacity import claims_of
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import CHANNELS, HETEROGENEOUS, MEMORY, placer
from enplace.placing.settle import position_by_start, upward_rank_us
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray


@placer(
    "dpos",
    title="DPOS, FastT",
    good=(
        "When you want a plan at once and every pair of GPUs has a fast link of its own: it is "
        "then close to heft. It sends freely, so behind one shared switch its step may be "
        "several times longer than the best."
    ),
    source="FastT (Middleware 2020), Algorithm 1",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS),
)
def dpos(problem: Problem, options: PlaceOptions) -> Plan:
    """Keep the critical path on one device; place all other ops where they end earliest."""
    rank_us = max_rank_us(problem)
    path = critical_path_ops(problem, rank_us)

    def candidates(memory_share: float) -> Iterator[Plan]:
        device, start_us = dpos_schedule(problem, rank_us, path, options, memory_share)
        yield Plan(device, position_by_start(problem, start_us), "dpos", links="priority")

    return best_that_fits(problem, candidates, options).plan


def dpos_schedule(
    problem: Problem,
    rank_us: FloatArray,
    path: IntArray,
    options: PlaceOptions,
    memory_share: float = 1.0,
) -> tuple[IntArray, FloatArray]:
    """Schedule the ops (Algorithm 1, lines 5 to 22).

    Parameters
    ----------
    rank_us : float array, shape (n_ops,)
        Upward ranks, see :func:`max_rank_us`.
    path : int array
        Ops of the critical path.
    options : PlaceOptions
        Cancelling them stops the kernel.
    memory_share : float
        How much of each device's memory may be used.

    Returns
    -------
    device, start_us : arrays, shape (n_ops,)

    Raises
    ------
    CancelledError
        If cancelled.
    """
    unit_device = path_devices(problem, path, memory_share)
    fixed = unit_device >= 0
    allowed = problem.unit_allowed.copy()
    allowed[fixed] = unit_device[fixed, None] == np.arange(problem.cluster.n_devices)
    allowed = allowed[problem.unit]
    return list_schedule(problem, rank_us, problem.unit, options, memory_share, allowed)


def max_rank_us(problem: Problem) -> FloatArray:
    """Return upward ranks by each op's largest time and each tensor's largest transfer (5.1).

    The transfers are those between GPUs, which are nearly all of them.
    """
    runs = problem.unit_allowed[problem.unit]
    work_us = np.where(runs, problem.time_us, 0.0).max(axis=1)
    return upward_rank_us(problem, work_us, max_edge_us(problem))


def max_edge_us(problem: Problem) -> FloatArray:
    """Return the largest transfer time of each edge over all pairs of GPUs; shape (n_edges,)."""
    profile, cluster = problem.profile, problem.cluster
    size = profile.tensor_bytes[profile.edge_tensor]
    largest = np.zeros(profile.n_edges)
    links = {  # one pair of devices for each kind of link
        (cluster.b0_us[a, b], cluster.b1_us_per_byte[a, b]): (a, b)
        for a in cluster.gpus
        for b in cluster.gpus
    }
    for a, b in links.values():
        np.maximum(largest, cluster.transfer_us(size, a, b), out=largest)
    return largest


def critical_path_ops(problem: Problem, rank_us: FloatArray) -> IntArray:
    """Follow the largest rank from op to op, beginning with the largest of all (5.1)."""
    profile = problem.profile
    path = [int(np.argmax(rank_us))]
    while True:
        first, end = profile.tensor_ptr[path[-1]], profile.tensor_ptr[path[-1] + 1]
        successors = profile.edge_op[profile.edge_ptr[first] : profile.edge_ptr[end]]
        if not len(successors):
            return np.array(path, dtype=np.int64)
        path.append(int(successors[np.argmax(rank_us[successors])]))


def path_devices(problem: Problem, path: IntArray, memory_share: float) -> IntArray:
    """Choose critical-path devices, the one with the smallest average time first (5.1).

    Each takes as many of the remaining ops of the path as its memory holds; then the next one is
    chosen.

    Returns
    -------
    int array, shape (n_units,)
        Device of each unit on the path, -1 for all others.
    """
    claims = claims_of(problem, np.arange(problem.profile.n_ops))
    kept_bytes = ((1 - memory_share) * problem.cluster.capacity_bytes).astype(np.int64)
    free_bytes = claims.free_bytes - kept_bytes
    unit_device = np.full(problem.n_units, -1, dtype=np.int64)
    left = list(problem.cluster.gpus)
    while left:
        # Pinned units have their device already; units that were taken have left the path.
        open_ops = path[(claims.undecided & (unit_device < 0))[problem.unit[path]]]
        taken = {
            d: _taken(problem, open_ops, d, claims.unit_bytes, int(free_bytes[d])) for d in left
        }
        able = [d for d in left if taken[d].any()]
        if not able:
            break
        best = min(able, key=lambda d: problem.time_us[open_ops[taken[d]], d].mean())
        unit_device[problem.unit[open_ops[taken[best]]]] = best
        left.remove(best)
    return unit_device


def _taken(
    problem: Problem, ops: IntArray, device: int, unit_bytes: IntArray, free_bytes: int
) -> BoolArray:
    """Find the ops that a device takes before it is full; skip those that it may not run."""
    unit = problem.unit[ops]
    allowed = problem.unit_allowed[unit, device]
    _, first = np.unique(unit, return_index=True)
    needed = np.zeros(len(ops), dtype=np.int64)
    needed[first] = unit_bytes[unit[first]]
    fits = np.cumsum(np.where(allowed, needed, 0)) <= free_bytes
    taken: BoolArray = allowed & fits
    return taken
