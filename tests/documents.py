"""Documents for tests of the studio."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.values.cluster import Cluster
from enplace.values.profile import Profile, make_profile
from enplace_studio.files.recovery import Recovery
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.open_project import start_project
from problems import cluster_of, plan_of, profile_of


def chain_document(**cluster: object) -> Document:
    """Return a document of ops a -> b -> c, 10 µs each; b sends 20 bytes at 1 µs per byte.

    The plan puts a and b on GPU 0 and c on GPU 1: c starts at 10 + 10 + 1 + 20 = 41 µs.
    """
    profile = profile_of({"a": 10, "b": 10, "c": 10}, [("a", "b", 8), ("b", "c", 20)])
    return document_of(profile, cluster_of(2, **cluster), {"a": 0, "b": 0, "c": 1})


def document_of(profile: Profile, cluster: Cluster, *places: dict[str, int]) -> Document:
    """Return a document with one plan per mapping from op to device; the first plan is shown."""
    document = Document()
    document.open(start_project(profile, cluster))
    for number, devices in enumerate(places):
        add_plan(document, f"plan {number + 1}", devices, choose=number == 0)
    document.undo_stack.start(document.project)
    return document


def add_plan(
    document: Document,
    name: str,
    devices: dict[str, int],
    method: str = "hand",
    choose: bool = False,
) -> PlanEntry:
    """Add a hand-made plan."""
    assert document.problem is not None
    plan = replace(plan_of(document.problem, devices), method=method)
    document.add_plan(PlanEntry(name, plan, simulate(document.problem, plan)), choose=choose)
    return next(entry for entry in document.plans if entry.name == name)


def wide_document(n_ops: int = 400, n_gpus: int = 3) -> Document:
    """Return many ops of random duration spread over the GPUs, with many transfers."""
    random = np.random.default_rng(7)
    names = [f"layer_{op % 4}/op_{op}" for op in range(n_ops)]
    times = dict(zip(names, random.uniform(0.5, 20, n_ops).tolist(), strict=True))
    sources = [(int(random.integers(0, op)), op) for op in range(1, n_ops)]
    sizes = random.integers(1, 30, n_ops).tolist()
    edges = [(names[a], names[b], sizes[a]) for a, b in sources]
    places = dict(zip(names, random.integers(0, n_gpus, n_ops).tolist(), strict=True))
    return document_of(profile_of(times, edges), cluster_of(n_gpus, b1_us_per_byte=0.1), places)


def let_go(recovery: Recovery) -> None:
    """Free the lock of a copy of unsaved work, as the system does when a process ends."""
    os.close(recovery._lock)
    recovery._lock = None


def split_layer() -> Profile:
    """Return a layer whose convolution is worth splitting by samples."""
    names = ["batch", "w", "conv", "relu"]
    ends = [(0, 2, 1 << 20), (1, 2, 4096), (2, 3, 1 << 20)]
    return make_profile(
        "layer",
        op_names=names,
        op_types=["IteratorV2", "VariableV2", "Conv2D", "Relu"],
        scopes=[""] * 4,
        time_us=np.array([[t, np.nan] for t in (0.0, 0.0, 900.0, 10.0)]),
        persistent_bytes=[0, 4096, 0, 0],
        temporary_bytes=[0] * 4,
        colocation=[""] * 4,
        edge_source=[a for a, _, _ in ends],
        edge_output=[0] * 3,
        edge_op=[b for _, b, _ in ends],
        edge_bytes=[size for _, _, size in ends],
    )
