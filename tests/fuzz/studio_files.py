"""What only the studio reads or shows; only a child that fuzzes it imports this."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.fuzz.targets import Target, small_problem, small_schedule

from enplace.files.fields import is_object
from enplace.files.json_text import dump_json, parse_json
from enplace.files.reading import read_bytes
from enplace.frameworks.measured import MeasuredRun
from enplace.frameworks.registry import exporters
from enplace.placers import place
from enplace.values.result import Result
from enplace.writers import write_project
from enplace_studio.files.session import open_copy, open_file, to_project
from enplace_studio.model.open_project import PlanEntry, start_project


def copy_of_work() -> Target:
    """What a copy of unsaved work holds besides its project: rows of plans, and a measured run."""
    problem, schedule = small_problem(), small_schedule()
    plan, n_ops = schedule.plan, problem.profile.n_ops
    run = MeasuredRun(
        profile=problem.profile,
        plan=plan,
        cluster=problem.cluster,
        step_times_us=np.array([30.0, 31.0]),
        op_time_us=np.full(n_ops, 2.0),
        op_start_us=np.arange(n_ops, dtype=np.float64),
        op_finish_us=np.arange(n_ops) + 2.0,
        op_device=plan.device.copy(),
        op_memory_bytes=np.zeros(n_ops, dtype=np.int64),
        ops_checked=n_ops,
        ops_on_planned_device=n_ops,
        order_violations=0,
        loss_difference=0.0,
        weights_difference=0.0,
        stock_step_time_us=28.0,
        predicted_step_time_us=31.0,
        facts={"devices": "cpu:2"},
    )
    first = PlanEntry("heft", plan, schedule, "a note", run=run)
    edit = PlanEntry("heft, edited", plan, schedule, origin=first)
    opened = start_project(problem.profile, problem.cluster)
    opened = replace(opened, plans=(first, edit), current=edit, compute_scale=2.0)
    project = to_project(opened, {"timeline": {"zoom": 1.5}}, Path("/x/work.enplace"))

    def read(path: Path) -> None:
        view = is_object(parse_json(read_bytes(path)), "view")
        write_project(path, replace(project, view=view))
        open_copy(path)

    return Target([dump_json(project.view).encode()], read, name="copy.enplace")


def show(path: Path) -> None:
    """Open a file in the studio, and make all that it shows or exports as text."""
    opened = open_file(path).project
    result = Result(place(opened.problem, "heft").schedule)
    for exporter in exporters().values():
        if exporter.write is not None and not exporter.why_not(result):
            exporter.text(result)
