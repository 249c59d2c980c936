"""A plan as a table for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io

import numpy as np

from enplace.values.schedule import Schedule
from enplace.writers.registry import exporter

_FORMULA = ("=", "+", "-", "@")


@exporter("csv", title="table", suffix=".csv")
def table_csv(schedule: Schedule) -> str:
    """Write one row for each op: name, device, position on the device, start and finish in µs."""
    plan, profile = schedule.plan, schedule.problem.profile
    names = [device.name for device in schedule.problem.cluster.devices]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["op", "device", "order", "start_us", "finish_us"])
    for device, name in enumerate(names):
        ops = np.flatnonzero(plan.device == device)
        for order, op in enumerate(ops[np.argsort(plan.position[ops])].tolist()):
            start, finish = float(schedule.op_start_us[op]), float(schedule.op_finish_us[op])
            writer.writerow([_cell(profile.op_names[op]), _cell(name), order, start, finish])
    return out.getvalue()


def _cell(name: str) -> str:
    """Quote a name that a spreadsheet would take for a formula."""
    return f"'{name}" if name.lstrip().startswith(_FORMULA) else name
