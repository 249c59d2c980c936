"""Why a schedule is as it is, in words: why an op starts when it does, why a move helps. No Qt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from enplace.machine import CriticalPath, critical_path, path_to
from enplace.machine.limits import Limit, name_group, number_parts, sum_parts
from enplace.names.groups import Grouping
from enplace.text import count, elide_middle, ms
from enplace.values.arrays import IntArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.differences import path_parts

NAME_LENGTH = 70
STRAGGLERS = 0.02
"""Share of a group's work that may run long before the rest of it."""
SHORT_SHARE, MOST_LONG = 0.03, 8
"""Parts of a gap below this share, or after this many, are summed up."""
SHORT_US = 0.5
"""Waits and changes shorter than this are not mentioned."""


def explain_place(schedule: Schedule, ops: IntArray) -> str:
    """Explain when an op starts where it is, and how much of the critical path some ops are."""
    sentences = []
    if len(ops) == 1:
        op = int(ops[0])
        start = ms(float(schedule.op_start_us[op]))
        sentences = [f"It starts at {start}.", explain_start(schedule, op)]
    path = critical_path(schedule)
    on_path = ~path.is_transfer & np.isin(path.number, ops)
    if on_path.any():
        spent_us = float((path.finish_us - path.start_us)[on_path].sum())
        spent = f" for {ms(spent_us)}" if spent_us > 0 else ", but takes no time there"
        sentences.append(f"On the critical path{spent}.")
    else:
        sentences.append("Not on the critical path.")
    return " ".join(filter(None, sentences))


@dataclass(frozen=True)
class Gap:
    """A time in which a device is idle.

    Attributes
    ----------
    op : int or None
        The op that ends it; None at the end of the step.
    """

    device: int
    since_us: float
    until_us: float
    op: int | None


@dataclass(frozen=True, eq=False)
class Chain:
    """What a device waits for during a gap.

    Attributes
    ----------
    path : CriticalPath
        The ops and transfers that run in the gap, each waiting for the one before.
    steps : list of Limit
        The same by group and device, or link, the last first; times within the gap only.
    """

    path: CriticalPath
    steps: list[Limit]


def find_chain(schedule: Schedule, grouping: Grouping, gap: Gap) -> Chain:
    """Go back from the op that ends a gap to what was at work as the gap began."""
    last = int(np.argmax(schedule.op_finish_us)) if gap.op is None else gap.op
    whole = path_to(schedule, last)
    during = (whole.finish_us > gap.since_us) & (whole.start_us < gap.until_us)
    start_us, finish_us = whole.start_us[during], whole.finish_us[during]
    path = CriticalPath(whole.is_transfer[during], whole.number[during], start_us, finish_us, 0.0)
    if not len(start_us):
        return Chain(path, [])
    part, ops = number_parts(schedule, grouping, path)
    sent = np.where(path.is_transfer, grouping.group[ops], 0)
    changes = [np.diff(each, prepend=each[:1]) != 0 for each in (part, sent)]
    at = np.cumsum(changes[0] | changes[1])
    time_us = finish_us - np.maximum(start_us, gap.since_us)
    steps = sum_parts(schedule, grouping, path, ops, at, time_us)
    for i, first in enumerate(np.unique(at, return_index=True)[1].tolist()):
        if path.is_transfer[first]:
            what = name_group(schedule, grouping, int(ops[first]))
            steps[i] = replace(steps[i], what=f"{what}: {steps[i].what}")
    return Chain(path, steps[::-1])


@dataclass(frozen=True, eq=False)
class Waits:
    """What a device waits for during a gap, by how much of it each takes.

    Attributes
    ----------
    cause : Limit
        What was at work as the gap began.
    long : list of Limit
        The other parts that matter, the longest first.
    short : Limit or None
        All others as one.
    """

    cause: Limit
    long: list[Limit]
    short: Limit | None


def sum_waits(gap: Gap, steps: list[Limit]) -> Waits:
    """Sum the steps of a chain by name, and fold the short ones into one."""
    sums: dict[str, Limit] = {}
    for step in reversed(steps):
        known = sums.get(step.name, replace(step, time_us=0.0, ops=()))
        ops = tuple(dict.fromkeys((*known.ops, *step.ops)))
        sums[step.name] = replace(step, time_us=known.time_us + step.time_us, ops=ops)
    cause, *others = sums.values()
    others.sort(key=lambda limit: -limit.time_us)
    least_us = SHORT_SHARE * (gap.until_us - gap.since_us)
    long = [limit for limit in others if limit.time_us >= least_us][:MOST_LONG]
    rest = others[len(long) :]
    if len(rest) < 2:
        return Waits(cause, others, None)
    ops = tuple(dict.fromkeys(op for limit in rest for op in limit.ops))
    time_us = sum(limit.time_us for limit in rest)
    return Waits(cause, long, Limit(count(len(rest), "short wait"), time_us, ops))


def idle_text(schedule: Schedule, gap: Gap) -> str:
    """Say how long a device is idle, and until which op."""
    idle = f"{device_of(schedule, gap.device)} idle for {ms(gap.until_us - gap.since_us)}"
    if gap.op is None:
        return f"{idle}, to the end of the step"
    name = elide_middle(schedule.problem.profile.op_names[gap.op], NAME_LENGTH)
    return f"{idle}, until {name}"


def explain_gap(schedule: Schedule, gap: Gap) -> str:
    """Explain a device's idle time in one sentence."""
    if gap.op is None:
        return f"{idle_text(schedule, gap)}."
    return explain_start(schedule, gap.op, device_of(schedule, gap.device))


def explain_step(before: Schedule, after: Schedule) -> str:
    """Say what changes on the critical path; the parts add up to the change of the step time."""
    change_us = after.makespan_us - before.makespan_us
    if abs(change_us) <= SHORT_US:
        return "The step stays as long."
    one, other = path_parts(critical_path(before)), path_parts(critical_path(after))
    parts = {name: other[name] - us for name, us in one.items()}
    named = [f"{name} {ms(us, signed=True)}" for name, us in parts.items() if abs(us) > SHORT_US]
    longer = "longer" if change_us > 0 else "shorter"
    return f"The step is {ms(abs(change_us))} {longer}: on the critical path, {', '.join(named)}."


def first_of(schedule: Schedule, ops: IntArray) -> int:
    """Return the op with which the work of some ops begins, but for a few stragglers long before.

    Constants and variables, which take no time, start with the step and do not count.
    """
    start_us, time_us = (
        schedule.op_start_us[ops],
        (schedule.op_finish_us - schedule.op_start_us)[ops],
    )
    order = np.argsort(start_us, kind="stable")
    done = np.cumsum(time_us[order])
    if done[-1] <= 0:
        return int(ops[order[0]])
    return int(ops[order[np.searchsorted(done, STRAGGLERS * done[-1], side="right")]])


def explain_start(schedule: Schedule, op: int, where: str = "Its device") -> str:
    """Explain an op's start: its last input, or the previous op on its lane.

    Parameters
    ----------
    where : str
        What the sentence calls the op's device.
    """
    start = float(schedule.op_start_us[op])
    free_us, before = lane_free(schedule, op)
    ready_us, producer, transfer = last_input(schedule, op)
    names = schedule.problem.profile.op_names
    if start <= SHORT_US:
        return "Starts with the step."
    if ready_us > free_us and producer is not None:
        name = elide_middle(names[producer], NAME_LENGTH)
        waited = f"{where} was idle for {ms(start - free_us)}, waiting"
        if start - free_us <= SHORT_US:
            waited = "Started as soon as it could, after"
        if transfer is None:
            return f"{waited} for {name}." if "idle" in waited else f"{waited} {name}."
        source = device_of(schedule, int(schedule.transfer_from[transfer]))
        return f"{waited} {'for ' if 'idle' in waited else ''}the transfer of {name} from {source}."
    if before is None:
        return ""
    name = elide_middle(names[before], NAME_LENGTH)
    if start - ready_us > SHORT_US:
        return (
            f"It was ready {ms(start - ready_us)} earlier; its device was busy until {name} ended."
        )
    return f"Started as soon as it could, after {name}."


def lane_free(schedule: Schedule, op: int) -> tuple[float, int | None]:
    """Find when the op's lane became free, and the op that ran there before."""
    start = schedule.op_start_us[op]
    same = (schedule.plan.device == schedule.plan.device[op]) & (
        schedule.op_lane == schedule.op_lane[op]
    )
    earlier = same & (schedule.op_finish_us <= start)
    earlier &= schedule.op_finish_us > schedule.op_start_us
    earlier[op] = False
    found = np.flatnonzero(earlier)
    if not len(found):
        return 0.0, None
    last = int(found[np.argmax(schedule.op_finish_us[found])])
    return float(schedule.op_finish_us[last]), last


def last_input(schedule: Schedule, op: int) -> tuple[float, int | None, int | None]:
    """Find when the last input arrived, its producer, and its transfer, if any."""
    profile = schedule.problem.profile
    here = int(schedule.plan.device[op])
    ready, source, brought = 0.0, None, None
    for edge in profile.edges_into(op).tolist():
        producer, transfer = int(profile.edge_source[edge]), None
        time = float(schedule.op_finish_us[producer])
        if schedule.plan.device[producer] != here:
            sent = schedule.transfer_tensor == profile.edge_tensor[edge]
            transfer = int(np.flatnonzero(sent & (schedule.transfer_to == here))[0])
            time = float(schedule.transfer_finish_us[transfer])
        if source is None or time > ready:
            ready, source, brought = time, producer, transfer
    return ready, source, brought


def device_of(schedule: Schedule, device: int) -> str:
    """Return the name of a device on screen."""
    return schedule.problem.cluster.devices[device].label
