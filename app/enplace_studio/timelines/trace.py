"""The critical path as a line that steps between the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from enplace.machine import CriticalPath
from enplace.text import ms
from enplace.values.profile import FloatArray, IntArray
from enplace_studio.timelines.rows import Row


@dataclass(frozen=True, eq=False)
class PathTrace:
    """Stretches of the critical path, each within one row; all arrays have shape (n_stretches,)."""

    row: IntArray
    start_us: FloatArray
    finish_us: FloatArray


def trace_path(path: CriticalPath, rows: Sequence[Row]) -> PathTrace:
    """Merge the path's steps by row; steps that no row shows are left out."""
    number = path.number
    where = np.full(len(number), -1)
    for index, row in enumerate(rows):
        if row.measured:
            continue
        known = np.zeros(number.max() + 1, dtype=bool)
        known[row.number[row.number < len(known)]] = True
        where[known[number] & (path.is_transfer != row.is_device)] = index
    shown = where >= 0
    where, start_us, finish_us = where[shown], path.start_us[shown], path.finish_us[shown]
    first = np.flatnonzero(np.diff(where, prepend=-1) != 0)
    last = np.append(first[1:], len(where))[: len(first)] - 1
    return PathTrace(where[first], start_us[first], finish_us[last])


def summary(path: CriticalPath) -> str:
    """Summarise the parts of the step time in one line."""
    return (
        f"critical path   compute {ms(path.compute_us)} · transfers {ms(path.transfer_us)} · "
        f"waiting {ms(path.waiting_us)}"
    )
