"""What limits a step (its critical path) or a pipeline (its busiest device), by group and link."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from enplace.machine import CriticalPath, critical_path, simulate
from enplace.machine.check_claims import check_claims
from enplace.machine.pipelines.pipeline import device_loads_us
from enplace.names.groups import Grouping
from enplace.values.arrays import FloatArray, IntArray
from enplace.values.problem import THROUGHPUT
from enplace.values.schedule import Schedule

SHORT_US = 0.5
"""Times and changes of a step that are shorter are not told."""


@dataclass(frozen=True, eq=False)
class Limit:
    """A part of the critical path, or of the busiest device's work for a sample.

    Attributes
    ----------
    what : str
        A group of ops, or a link.
    time_us : float
    ops : tuple of int
        The ops that run then; for a link, those whose outputs are sent.
    link : tuple of int, optional
        The devices that a link leads from and to.
    device : int, optional
        The device of a group.
    where : str
        What follows ``what`` to name that device.
    """

    what: str
    time_us: float
    ops: tuple[int, ...]
    link: tuple[int, int] | None = None
    device: int | None = None
    where: str = ""

    @property
    def name(self) -> str:
        return f"{self.what}{self.where}"


def limited_us(schedule: Schedule) -> float:
    """Return the time that :func:`find_limits` explains: of a sample in a pipeline, or a step."""
    is_pipeline = schedule.plan.objective == THROUGHPUT
    return schedule.value_us if is_pipeline else schedule.makespan_us


def time_if_free(schedule: Schedule, limit: Limit) -> float:
    """Return what :func:`limited_us` would be if a part that limits the plan took no time.

    The ops take no time, or the link takes none. Placement and order stay as they are, so this is
    what the part itself costs, not what a new plan would gain. A time that gets longer, or shorter
    by next to nothing, counts as unchanged.
    """
    problem = schedule.problem
    if limit.link is None:
        profile = problem.measured_profile
        time_us = profile.time_us.copy()
        time_us[list(limit.ops)] *= 0  # where an op cannot run, it still cannot
        free = replace(problem, measured_profile=replace(profile, time_us=time_us))
    else:
        links = tuple(
            replace(each, b0_us=0.0, b1_us_per_byte=0.0)
            if (each.source, each.target) == limit.link
            else each
            for each in problem.cluster.links
        )
        free = replace(problem, cluster=replace(problem.cluster, links=links))
    now_us = limited_us(schedule)
    free_us = limited_us(simulate(free, check_claims(free, schedule.plan)))
    return free_us if now_us - free_us > SHORT_US else now_us


def find_limits(schedule: Schedule, grouping: Grouping, most: int | None = None) -> list[Limit]:
    """Sum the critical path by group and device and by link; return the longest parts.

    The times of all parts, and the time that nothing runs or is sent, add up to the step time. Of
    a plan for throughput, sum what the busiest device computes for a sample.
    """
    if schedule.plan.objective == THROUGHPUT:
        limits = _sum_work(schedule, grouping)
    else:
        path = critical_path(schedule)
        part, ops = number_parts(schedule, grouping, path)
        at = np.unique(part, return_inverse=True)[1]
        limits = sum_parts(schedule, grouping, path, ops, at, path.finish_us - path.start_us)
    return sorted(limits, key=lambda limit: -limit.time_us)[:most]


def _sum_work(schedule: Schedule, grouping: Grouping) -> list[Limit]:
    """Sum the ops of the busiest device by group."""
    problem, plan = schedule.problem, schedule.plan
    has_ops = np.bincount(plan.device, minlength=problem.cluster.n_devices) > 0
    busiest = int(np.argmax(np.where(has_ops, device_loads_us(problem, plan), -1.0)))
    ops = np.flatnonzero(plan.device == busiest)
    names = np.array([name_group(schedule, grouping, op) for op in ops.tolist()])
    where, limits = f" on {_device(schedule, busiest)}", []
    for name in np.unique(names).tolist():
        mine = ops[names == name]
        time_us = float((schedule.op_finish_us - schedule.op_start_us)[mine].sum())
        limits.append(Limit(name, time_us, tuple(mine.tolist()), device=busiest, where=where))
    return limits


def number_parts(
    schedule: Schedule, grouping: Grouping, path: CriticalPath
) -> tuple[IntArray, IntArray]:
    """Number the part of each step of a path: a group or one op and its device, or a link.

    Also return the op of each step; for a transfer, the one whose output is sent.
    """
    profile = schedule.problem.profile
    moves, n = path.is_transfer, schedule.problem.cluster.n_devices
    ops, sent = path.number.copy(), path.number[moves]
    ops[moves] = profile.tensor_op[schedule.transfer_tensor[sent]]
    group = grouping.group[ops]
    what = np.where(group >= 0, group, grouping.n_groups + ops)
    part = what * n + schedule.plan.device[ops]
    part[moves] = (grouping.n_groups + profile.n_ops) * n + schedule.transfer_link[sent]
    return part, ops


def sum_parts(
    schedule: Schedule,
    grouping: Grouping,
    path: CriticalPath,
    ops: IntArray,
    at: IntArray,
    time_us: FloatArray,
) -> list[Limit]:
    """Make a limit of all steps of a path with the same number."""
    first = np.unique(at, return_index=True)[1]
    times_us = np.bincount(at, time_us)
    limits = []
    for i, step in enumerate(first.tolist()):
        within, time = tuple(np.unique(ops[at == i]).tolist()), float(times_us[i])
        number = int(path.number[step])
        if path.is_transfer[step]:
            ends = int(schedule.transfer_from[number]), int(schedule.transfer_to[number])
            what = " → ".join(_device(schedule, end) for end in ends)
            limits.append(Limit(what, time, within, link=ends))
        else:
            what = name_group(schedule, grouping, number)
            device = int(schedule.plan.device[number])
            where = f" on {_device(schedule, device)}"
            limits.append(Limit(what, time, within, device=device, where=where))
    return limits


def name_group(schedule: Schedule, grouping: Grouping, op: int) -> str:
    """Return the name of an op's group, or if it is in none, its own."""
    group = int(grouping.group[op])
    return grouping.names[group] if group >= 0 else schedule.problem.profile.op_names[op]


def _device(schedule: Schedule, device: int) -> str:
    return schedule.problem.cluster.devices[device].label
