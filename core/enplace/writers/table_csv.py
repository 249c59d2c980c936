"""A plan as a table for spreadsheets and scripts."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from enplace.text import cell_text
from enplace.values.columns import Column
from enplace.values.measurement import ESTIMATED
from enplace.values.profile import OP_COLUMNS, table_columns
from enplace.values.result import Result
from enplace.writers.registry import exporter

_SPLITS = re.compile(r'[,;|"\t\r\n]')
"""Where a spreadsheet may split a line without being asked to, and quotes."""

COLUMNS = (
    *("op", "type", "scope", "device", "order", "start_us", "finish_us", "time_us"),
    *("weights_bytes", "out_bytes"),
)


@exporter("csv", title="table", suffix=".csv", mark="^op,type,scope,device,order,")
def table_csv(result: Result) -> str:
    """Write a row for each op: what it is, where and when it runs, its weights and outputs.

    If its times are estimated, the last column says so.
    """
    schedule = result.schedule
    plan, profile = schedule.plan, schedule.problem.profile
    names = [device.name for device in schedule.problem.cluster.devices]
    out_bytes = np.zeros(profile.n_ops, dtype=np.int64)
    np.add.at(out_bytes, profile.tensor_op, profile.tensor_bytes)
    columns = schedule.op_start_us, schedule.op_finish_us, profile.persistent_bytes, out_bytes
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    is_estimated = bool(schedule.problem.measured_profile.measured.estimated)
    more = table_columns(profile)
    heads = [OP_COLUMNS[name].key for name in more]
    lines = [",".join([*COLUMNS, *heads, *[ESTIMATED] * is_estimated])]
    for device, name in enumerate(names):
        ops = np.flatnonzero(plan.device == device)
        for order, op in enumerate(ops[np.argsort(plan.position[ops])].tolist()):
            start_us, finish_us, *sizes = rows[op]
            texts = (profile.op_names[op], profile.op_types[op], profile.scopes[op], name)
            times = (start_us, finish_us, finish_us - start_us)
            cells = [
                *map(_cell, texts),
                f"{order}",
                *(f"{time_us:.3f}" for time_us in times),
                *map(str, sizes),
                *(_value(OP_COLUMNS[name], getattr(profile, name)[op]) for name in more),
                *["yes"] * is_estimated,
            ]
            lines.append(",".join(cells))
    return "\n".join([*lines, ""])


def _value(column: Column, value: Any) -> str:
    """Write a value of a column; nothing if it says nothing."""
    if column.is_default(value):
        return ""
    return _cell(value) if column.type is str else f"{value:.15g}"


@lru_cache(maxsize=1000)  # types, scopes and devices recur
def _cell(name: str) -> str:
    """Write a name such that it is one cell, and no formula."""
    text = cell_text(name)
    return '"' + text.replace('"', '""') + '"' if _SPLITS.search(text) else text
