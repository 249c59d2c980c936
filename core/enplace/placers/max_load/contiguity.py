"""The passes of a graph between placement units, and whether placements are contiguous in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from enplace.machine.op_passes import backward_ops, optimiser_ops
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import IntArray


@dataclass(frozen=True, eq=False)
class Pass:
    """The ops of the forward or the backward pass.

    Attributes
    ----------
    unit : int array, shape (n,)
        Unit of each op, in topological order.
    source, target : int arrays, shape (n_edges,)
        Edges between these ops, by their place in ``unit``, sorted by source.
    """

    unit: IntArray
    source: IntArray
    target: IntArray


def find_passes(problem: Problem) -> list[Pass]:
    """Return the forward ops and the backward ops on the path of a sample, if there are any."""
    profile, backward = problem.profile, backward_ops(problem)
    return [
        _build_pass(problem, ops)
        for ops in (~backward, backward & ~optimiser_ops(problem))
        if ops[profile.edge_source[ops[profile.edge_op]]].any()
    ]


def _build_pass(problem: Problem, ops: BoolArray) -> Pass:
    profile = problem.profile
    order = profile.topological_order[ops[profile.topological_order]]
    place = np.full(profile.n_ops, -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    inside = ops[profile.edge_source] & ops[profile.edge_op]
    edges = np.stack([place[profile.edge_source[inside]], place[profile.edge_op[inside]]], axis=1)
    edges = np.unique(edges, axis=0)
    return Pass(problem.unit[order], edges[:, 0], edges[:, 1])


def is_contiguous(problem: Problem, device: IntArray, passes: Iterable[Pass] | None = None) -> bool:
    """Whether no path of a pass leaves a device and returns to it (definition 3.1).

    Parameters
    ----------
    device : int array, shape (n_ops,)
    passes : iterable of Pass, optional
        Both by default.
    """
    of_unit, n_devices = unit_devices(problem, device), problem.cluster.n_devices
    passes = find_passes(problem) if passes is None else passes
    return all(_is_contiguous_in(each, of_unit, n_devices) for each in passes)


def _is_contiguous_in(each: Pass, device: IntArray, n_devices: int) -> bool:
    here = device[each.unit]
    left = np.zeros((len(here), n_devices), dtype=bool)
    for a, b in zip(each.source.tolist(), each.target.tolist(), strict=True):
        left[b] |= left[a]
        if here[a] != here[b]:
            left[b, here[a]] = True
    return not left[np.arange(len(here)), here].any()


def unit_devices(problem: Problem, device: IntArray) -> IntArray:
    """Return each unit's device in a placement that keeps units together; shape (n_units,)."""
    of_unit = np.zeros(problem.n_units, dtype=np.int64)
    of_unit[problem.unit] = device
    return of_unit
