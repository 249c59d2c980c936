"""Random problems for placers: small graphs with every kind of constraint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from enplace.errors import ProblemError
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.arrays import inverse
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL, Profile, make_profile

GIB = 2**30


def line(costs, edges, *, name="small", **extra) -> Profile:
    """Build a profile from GPU times and edges ``(source, target, bytes)``; ops have one output."""
    n = len(costs)
    sizes = {source: size for source, _, size in edges}
    return make_profile(
        name,
        op_names=extra.get("names", [f"op{i}" for i in range(n)]),
        op_types=extra.get("types", ["Op"] * n),
        scopes=extra.get("scopes", [""] * n),
        time_us=np.array([(c, np.nan) for c in costs], dtype=float),
        persistent_bytes=extra.get("persistent", [0] * n),
        temporary_bytes=[0] * n,
        colocation=extra.get("colocation", [""] * n),
        edge_source=[e[0] for e in edges],
        edge_output=[0] * len(edges),
        edge_op=[e[1] for e in edges],
        edge_bytes=[sizes[e[0]] for e in edges],
    )


def gpus(n, *, b0=1.0, b1=0.0, capacity=GIB, speeds=None) -> Cluster:
    """Return GPUs with a separate channel for each ordered pair."""
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    return Cluster(
        name=f"{n} GPUs",
        devices=tuple(
            Device(f"GPU:{i}", "gpu", capacity, speed=(speeds or [1.0] * n)[i]) for i in range(n)
        ),
        channels=tuple(f"{a}->{b}" for a, b in pairs),
        links=tuple(Link(a, b, b0, b1, (i,)) for i, (a, b) in enumerate(pairs)),
    )


SMALL = ((0.81, 0.25), (1.31, 1.0), (0.72, 0.5), (0.53, 0.1))
TIGHT = ((6.6, 0.3), (2.2, 0.15), (3.3, 0.6), (2.2, 0.3))
ONE_LARGE = ((6.1, 0.3), (2.05, 0.15), (3.05, 0.6), (2.05, 0.3))
"""Memory in GiB and speed of GPUs: a tenth more memory than HEFT's plan of BERT-3 needs; and where
few plans of VGG-19, or of RNNLM, fit."""


def problem_on_small_gpus(unlike: Sequence[tuple[float, float]], model: str) -> Problem:
    """Return a model, and very different GPUs that have little more memory than it needs."""
    cluster = presets()["celeritas"]
    unlike_gpus = tuple(
        replace(device, capacity_bytes=int(size * GIB), speed=speed)
        for device, (size, speed) in zip(cluster.devices[:4], unlike, strict=True)
    )
    profile = read_profile(next(sample.path for sample in samples() if sample.name == model))
    return Problem(profile, replace(cluster, devices=unlike_gpus + cluster.devices[4:]))


@st.composite
def profiles(draw, max_ops=24):
    """Draw graphs with zero-time and CPU-only ops, variables, control edges and colocation."""
    n = draw(st.integers(1, max_ops))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    gpu = rng.choice([0.0, 0.5, 3.0, 10.0, 42.5], n)
    cpu = np.where(gpu == 0, 0.0, 4 * gpu)
    gpu[rng.random(n) < 0.1] = np.nan
    cpu[(rng.random(n) < 0.5) & ~np.isnan(gpu)] = np.nan
    source, output, target, size = [], [], [], []
    widths = 12 * rng.integers(0, 170, (n, 2))
    for op in range(1, n):
        for before in set(rng.integers(max(0, op - 8), op, rng.integers(0, 4)).tolist()):
            which = int(rng.integers(-1, 2))
            source.append(before)
            output.append(which)
            target.append(op)
            size.append(0 if which == CONTROL else int(widths[before, which]))
    groups = rng.integers(0, max(2, n // 2), n)
    types = ["Op", "MatMul", "Relu", "AddN", "FusedBatchNormV3", "Conv2D", "Reshape"]
    return make_profile(
        "random",
        op_names=[f"layer_{i % 3}/op{i}" for i in range(n)],
        op_types=rng.choice(types, n).tolist(),
        scopes=[""] * n,
        time_us=np.column_stack([gpu, cpu]),
        persistent_bytes=rng.choice([0, 0, 500], n),
        temporary_bytes=rng.choice([0, 0, 300], n),
        colocation=[f"group{g}" if g < draw(st.integers(0, 2)) else "" for g in groups],
        edge_source=source,
        edge_output=output,
        edge_op=target,
        edge_bytes=size,
    )


@st.composite
def clusters(draw):
    """Draw up to four GPUs of various speeds and a CPU; channels are separate, shared or routed."""
    n = draw(st.integers(0, 4))
    kind = draw(st.sampled_from(["own", "shared", "routed"]))
    capacity = draw(st.sampled_from([3_000, 20_000, GIB]))
    devices = [
        Device(f"GPU:{i}", "gpu", capacity, speed=draw(st.sampled_from([0.5, 1.0, 1.0])))
        for i in range(n)
    ]
    devices.append(Device("CPU:0", "cpu", GIB, lanes=draw(st.integers(1, 3))))
    pairs = [(a, b) for a in range(n + 1) for b in range(n + 1) if a != b]
    if kind == "own":
        channels, routes = [f"{a}->{b}" for a, b in pairs], [(i,) for i in range(len(pairs))]
    elif kind == "shared":
        channels, routes = ["switch"], [(0,)] * len(pairs)
    else:
        channels = [f"port {i}" for i in range(n + 1)]
        routes = pairs
    b0, b1 = draw(st.sampled_from([(0.0, 0.0), (1.0, 0.001), (5.0, 0.02)]))
    links = tuple(Link(a, b, b0, b1, tuple(r)) for (a, b), r in zip(pairs, routes, strict=True))
    return Cluster(kind, tuple(devices), tuple(channels), links)


@st.composite
def problems(draw, max_ops=24):
    """Draw profiles on clusters, with a few compatible constraints."""
    profile, cluster = draw(profiles(max_ops)), draw(clusters())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def ops(most):
        return rng.integers(0, profile.n_ops, rng.integers(0, most + 1)).tolist()

    pins = {op: int(rng.integers(cluster.n_devices)) for op in ops(2)}
    together = (tuple(ops(3)),)
    forbidden = frozenset((op, int(rng.integers(cluster.n_devices))) for op in ops(3))
    rank = inverse(profile.topological_order)
    pairs = np.sort(rank[rng.integers(0, profile.n_ops, (int(rng.integers(3)), 2))], axis=1)
    before = [(a, b) for a, b in profile.topological_order[pairs].tolist() if a != b]
    for constraints in (
        {"pins": pins, "together": together, "forbidden": forbidden},
        {"pins": pins},
        {},
    ):
        try:
            return Problem(profile, cluster, Constraints(**constraints)).constrained(before=before)
        except ProblemError:
            continue
    # An op needs a GPU, and there is none.
    either = np.where(np.isnan(profile.time_us), 1.0, profile.time_us)
    return Problem(profile.with_costs(either), Cluster("roomy", *_without_limits(cluster)))


def _without_limits(cluster):
    devices = tuple(replace(device, capacity_bytes=GIB) for device in cluster.devices)
    return devices, cluster.channels, cluster.links
