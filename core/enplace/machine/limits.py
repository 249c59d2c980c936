"""What limits a step: the parts of its critical path, by group of ops and by link."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from enplace.machine import CriticalPath, critical_path, simulate
from enplace.names.groups import Grouping
from enplace.values.arrays import FloatArray, IntArray
from enplace.values.schedule import Schedule

SHORT_US = 0.5
"""Times and changes of a step that are shorter are not told."""


@dataclass(frozen=True, eq=False)
class Limit:
    """A part of the critical path.

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


def step_if_free(schedule: Schedule, limit: Limit) -> float:
    """Simulate the plan again with a part of its critical path for free; return the step time.

    The ops take no time, or the link does not. The order stays as it is, so this is what the part
    itself costs, not what a new plan would gain. A step that gets longer, or shorter by next to
    nothing, counts as unchanged.
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
    step_us = simulate(free, schedule.plan).makespan_us
    return step_us if schedule.makespan_us - step_us > SHORT_US else schedule.makespan_us


def find_limits(schedule: Schedule, grouping: Grouping, most: int | None = None) -> list[Limit]:
    """Sum the critical path by group and device and by link; return the longest parts.

    The times of all parts, and the time that nothing runs or is sent, add up to the step time.
    """
    path = critical_path(schedule)
    part, ops = number_parts(schedule, grouping, path)
    at = np.unique(part, return_inverse=True)[1]
    limits = sum_parts(schedule, grouping, path, ops, at, path.finish_us - path.start_us)
    return sorted(limits, key=lambda limit: -limit.time_us)[:most]


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
    links = schedule.transfer_from[sent] * n + schedule.transfer_to[sent]
    part[moves] = (grouping.n_groups + profile.n_ops) * n + links
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
