"""Tiny problems of pipelines, of which all placements can be tried."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from enplace.errors import ProblemError
from enplace.values.constraints import Constraints
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


@st.composite
def tiny_problems(
    draw: st.DrawFn,
    max_ops: int = 5,
    most_gpus: int = 3,
    slower: tuple[float, ...] = (1.0,),
    *,
    pinned: bool = False,
) -> Problem:
    """Draw a few ops, some backward or colocated, and one to four devices with little memory."""
    n = draw(st.integers(2, max_ops))
    names = "abcdef"[:n]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=8))
    sizes = [draw(st.integers(0, 9)) for _ in names]
    backward = draw(st.integers(0, n))
    profile = profile_of(
        {name: draw(st.integers(0, 20)) for name in names},
        [(names[i], names[j], sizes[i]) for i, j in chosen],
        cpu={name: draw(st.integers(0, 60)) for name in names},
        persistent={name: draw(st.integers(0, 40)) for name in names},
        colocation={name: draw(st.sampled_from(["", "", "x"])) for name in names},
    )
    profile = replace(profile, measured=Measurement(backward=list(range(n - backward, n))))
    n_gpus = draw(st.integers(1, most_gpus))
    machine = cluster_of(
        n_gpus,
        b0_us=0.0,
        b1_us_per_byte=draw(st.sampled_from([0.1, 1.0])),
        cpu_lanes=draw(st.integers(0, 1)),
        capacity_bytes=draw(st.sampled_from([60, 10_000])),
        slower=[draw(st.sampled_from(slower)) for _ in range(n_gpus)],
    )
    pins = draw(st.sampled_from([{}, {}, {0: 0}])) if pinned else {}
    try:
        return Problem(profile, machine, Constraints(pins=pins))
    except ProblemError:
        return Problem(profile, cluster_of(2, b0_us=0.0))
