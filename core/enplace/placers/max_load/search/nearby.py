"""Placements that differ from a given one in a unit or two, of which one leaves a device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from enplace.placers.max_load.contiguity import unit_devices
from enplace.values.problem import Problem
from enplace.values.profile import IntArray


def moves_from(problem: Problem, device: IntArray, source: int) -> Iterator[IntArray]:
    """Yield placements in which a unit leaves a device; at last, for one from elsewhere.

    Parameters
    ----------
    device : int array, shape (n_ops,)
    source : int
        The device.

    Yields
    ------
    int array, shape (n_ops,)
    """
    of_unit, allowed = unit_devices(problem, device), problem.unit_allowed
    here = np.flatnonzero(of_unit == source).tolist()
    for unit in here:
        for target in np.flatnonzero(allowed[unit]).tolist():
            if target != source:
                yield _moved(problem, of_unit, {unit: target})
    for unit in here:
        for other in np.flatnonzero(allowed[unit, of_unit] & allowed[:, source]).tolist():
            if of_unit[other] != source:
                yield _moved(problem, of_unit, {unit: int(of_unit[other]), other: source})


def _moved(problem: Problem, of_unit: IntArray, moves: dict[int, int]) -> IntArray:
    there = of_unit.copy()
    for unit, target in moves.items():
        there[unit] = target
    device: IntArray = there[problem.unit]
    return device
