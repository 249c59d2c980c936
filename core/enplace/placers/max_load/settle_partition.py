"""Turn the placements of searches into those of plans: settle free ops, pins and units."""

from __future__ import annotations

import numpy as np

from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.contiguity import is_contiguous, unit_devices
from enplace.placers.max_load.table.contract import find_static_excess
from enplace.placers.max_load.table.stages import Replicas
from enplace.placing.settle import settle
from enplace.values.load_rule import LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import IntArray


def find_allowed(problem: Problem, device: IntArray) -> BoolArray:
    """Whether each unit is on a single device that it is allowed on; shape (n_units,)."""
    there = unit_devices(problem, device)
    allowed = problem.unit_allowed[np.arange(problem.n_units), there]
    np.logical_and.at(allowed, problem.unit, device == there[problem.unit])
    return allowed


def settle_free_ops(
    problem: Problem, device: IntArray, rule: LoadRule, replicas: Replicas = ()
) -> IntArray:
    """Move free ops to their consumers if that makes nothing worse.

    Ops that break a constraint always move.
    """
    found = settle(problem, device)
    if not find_allowed(problem, device).all() or np.array_equal(found, device):
        return found
    load_us, before_us = (max_load_us(problem, there, rule, replicas) for there in (found, device))
    # The cheapest check comes first; the last one walks over all edges.
    as_good = (
        load_us <= before_us * (1 + 1e-9)
        and find_static_excess(problem, found) <= find_static_excess(problem, device)
        and (is_contiguous(problem, found) or not is_contiguous(problem, device))
    )
    return found if as_good else device
