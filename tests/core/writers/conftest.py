"""Schedules to export: a small one with odd names, and a large one."""

import numpy as np
import pytest

from enplace.machine import simulate
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import make_profile
from enplace.values.schedule import Schedule

ODD = [
    "<script>alert('1')</script>",
    'quo"te',
    "a,b;c",
    "100%s {x} \\n",
    "é漢字",
    "plain/op",
    "last",
]


def cluster(n_gpus: int) -> Cluster:
    devices = [Device(f"GPU:{i}", "gpu", 1 << 30) for i in range(n_gpus)]
    devices.append(Device("CPU:0", "cpu", 1 << 32, lanes=4))
    n = len(devices)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    names = [f"{devices[a].name}->{devices[b].name}" for a, b in pairs]
    links = [Link(a, b, 1.5, 1e-4, (i,)) for i, (a, b) in enumerate(pairs)]
    # The last link, into the CPU, occupies a second channel as well.
    links[-1] = Link(*pairs[-1], 1.5, 1e-4, (len(pairs) - 1, len(pairs)))
    return Cluster("box & <co>", tuple(devices), (*names, "host"), tuple(links), "A box.")


def schedule(n_ops: int, n_gpus: int, names: list[str] | None = None, seed: int = 0) -> Schedule:
    """Return a random schedule."""
    draw = np.random.default_rng(seed)
    target = np.repeat(np.arange(1, n_ops), 2)
    source = (draw.random(len(target)) * np.minimum(target, 50)).astype(int)
    source += np.maximum(target - 50, 0)
    output = draw.integers(-1, 2, len(target))
    profile = make_profile(
        "model <b>",
        op_names=names or [f"scope/op_{i}" for i in range(n_ops)],
        op_types=["MatMul"] * n_ops,
        scopes=["scope"] * n_ops,
        time_us=np.where(draw.random((n_ops, 2)) < 0.2, 0.0, draw.random((n_ops, 2)) * 30),
        persistent_bytes=draw.integers(0, 10_000, n_ops),
        temporary_bytes=draw.integers(0, 10_000, n_ops),
        colocation=[""] * n_ops,
        edge_source=source,
        edge_output=output,
        edge_op=target,
        edge_bytes=np.where(output < 0, 0, 1000 * (source % 50 + 1) + output),
    )
    problem = Problem(profile, cluster(n_gpus))
    device = draw.integers(0, n_gpus + 1, n_ops)
    plan = Plan(device, np.arange(n_ops), "random", seed=seed)
    return simulate(problem, plan)


@pytest.fixture(scope="session")
def small() -> Schedule:
    return schedule(len(ODD), 2, ODD)


@pytest.fixture(scope="session")
def middle() -> Schedule:
    return schedule(500, 3)


@pytest.fixture(scope="session")
def large() -> Schedule:
    return schedule(20_000, 8)
