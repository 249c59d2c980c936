"""Small latency problems, and the least latency found by trying all placements."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st
from tests.core.placers.latency import reference

from enplace.errors import DoesNotFitError
from enplace.placing.small import Placements
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


@st.composite
def small_problems(draw: st.DrawFn, most: int = 5, least_us: int = 1, largest: int = 9) -> Problem:
    """Draw a few ops, some backward or colocated, on accelerators with little memory and a CPU.

    With a larger ``largest`` tensor, what fits is a matter of which outputs are alive at once.
    """
    n = draw(st.integers(2, most))
    names = [f"{'' if i < n - draw(st.integers(0, 2)) else 'gradients/'}op{i}" for i in range(n)]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=8))
    sizes = [draw(st.integers(0, largest)) for _ in names]
    times = {name: draw(st.integers(least_us, 20)) for name in names}
    profile = profile_of(
        times,
        [(names[i], names[j], sizes[i]) for i, j in chosen],
        cpu={name: draw(st.integers(1, 60)) if us else 0 for name, us in times.items()},
        persistent={name: draw(st.integers(0, 20)) for name in names},
        colocation={name: draw(st.sampled_from(["", "", "x"])) for name in names},
    )
    capacity_bytes = draw(st.sampled_from([60, 10_000]))
    slower = draw(st.sampled_from([[1.0], [1.0, 1.0], [1.0, 3.0], [3.0, 1.0]]))
    machine = cluster_of(
        len(slower), b0_us=0.0, cpu_lanes=8, capacity_bytes=capacity_bytes, slower=slower
    )
    *gpus, host = machine.devices  # the paper's hosts have room for all
    machine = replace(machine, devices=(*gpus, replace(host, capacity_bytes=10_000)))
    try:
        return Problem(profile, machine)
    except DoesNotFitError:
        reject()


def least_us(problem: Problem, q: int) -> float:
    """Return the least latency over all placements and all subgraphs of the accelerators."""
    best = np.inf
    for devices in itertools.product(range(problem.cluster.n_devices), repeat=problem.n_units):
        device = np.array(devices)[problem.unit]
        cut = itertools.product(range(q), repeat=problem.profile.n_ops)
        us = min(reference.latency_us(problem, device, np.array(slots)) for slots in cut)
        if us < best and fits(problem, device):
            best = us
    return best


def fits(problem: Problem, device: np.ndarray) -> bool:
    """Return whether a step of a placement fits in some order."""
    return Placements(problem).fit(device) is not None


def has_room(problem: Problem, device: np.ndarray) -> np.ndarray:
    """Return which devices can hold weights and outputs of all their ops at once."""
    need = problem.profile.persistent_bytes.copy()
    np.add.at(need, problem.profile.tensor_op, problem.profile.tensor_bytes)
    held = np.bincount(device, weights=need, minlength=problem.cluster.n_devices)
    return held <= problem.cluster.capacity_bytes
