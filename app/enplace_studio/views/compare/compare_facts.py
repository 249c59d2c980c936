"""Which plans stand side by side, and what differs between them, as plain data. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from enplace.machine import CriticalPath
from enplace.names.groups import Grouping
from enplace.text import count, elide_middle, ms, ms_changes, size
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.differences import (
    are_alike,
    count_whole,
    moved_ops,
    op_of,
    ops_for,
    path_parts,
    reordered_ops,
    same_ops,
    sent_bytes,
    sent_outputs,
    split_ops,
)
from enplace_studio.explain.intervals import Interval, within_us
from enplace_studio.explain.start_times import explain_gap
from enplace_studio.model.open_project import OpenProject, PlanEntry
from enplace_studio.timelines.rows import NEXT_TO_NOTHING, Row
from enplace_studio.timelines.waiting import find_gap

LETTERS = "ABCD"
FEWEST, MOST = 2, len(LETTERS)
MOST_MOVED = 3
"""Largest number of groups named as those that moved."""
LEAST_CHANGE_US, MOST_ROWS = 0.5, 3
"""Changes up to this are not shown; most devices with a row of their own."""
_GROUP_LENGTH = 40


# Which plans


def comparable(project: OpenProject) -> list[PlanEntry]:
    """List the plans of the open cluster; others have other devices."""
    return [entry for entry in project.plans if entry.cluster is None]


def choose(project: OpenProject, wanted: Sequence[PlanEntry]) -> list[PlanEntry]:
    """Return the plans to show, the reference first.

    Parameters
    ----------
    wanted : sequence of PlanEntry
        The user's choice, perhaps from before an edit: plans that were renamed or simulated again
        are found, plans that are gone are left out. If fewer than two remain, the expert's plan,
        or else the first, is compared with the current one.
    """
    entries = comparable(project)
    kept = _found_again(entries, wanted)
    if len(kept) >= FEWEST or not entries:
        return kept[:MOST]
    reference = project.expert if project.expert in entries else entries[0]
    fastest = sorted(entries, key=lambda e: (not e.schedule.fits, e.schedule.makespan_us))
    usual = dict.fromkeys([reference, project.current, *fastest])
    return [entry for entry in usual if entry in entries][:FEWEST]


def _found_again(entries: Sequence[PlanEntry], wanted: Sequence[PlanEntry]) -> list[PlanEntry]:
    """Find the entries that plans have now, by name or by plan."""
    by_name = {entry.name: entry for entry in entries}
    by_plan = {id(entry.plan): entry for entry in entries}
    found = (by_name.get(old.name) or by_plan.get(id(old.plan)) for old in wanted)
    return [entry for entry in dict.fromkeys(found) if entry is not None]


# Where the time went


@dataclass(frozen=True)
class Waterfall:
    """The step times of two plans, and what leads from one to the other.

    Attributes
    ----------
    levels_us : tuple of float
        The first plan's step time, and what is reached after each part; the last is the second
        plan's step time.
    parts : tuple of str
        What changes from each level to the next.
    levels, changes : tuple of str
        The same as texts; the numbers in them add up too.
    """

    levels_us: tuple[float, ...]
    parts: tuple[str, ...]
    levels: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """All of it in words."""
        pairs = zip(self.parts, self.changes, strict=True)
        named = ", ".join(f"{part} {change}" for part, change in pairs)
        return f"{self.levels[0]} to {self.levels[-1]}: {named}"


def waterfall(
    first: CriticalPath, second: CriticalPath, steps_us: tuple[float, float]
) -> Waterfall:
    """Lead from one step time to another through the parts of the critical paths."""
    before, after = path_parts(first), path_parts(second)
    levels_us = [steps_us[0]]
    for part, time_us in before.items():
        levels_us.append(levels_us[-1] + after[part] - time_us)
    levels_us[-1] = steps_us[1]  # but for rounding it was that
    levels, changes = ms_changes(levels_us)
    return Waterfall(tuple(levels_us), tuple(before), tuple(levels), tuple(changes))


def path_by_place(schedule: Schedule, path: CriticalPath) -> dict[str, dict[str, float]]:
    """Sum a critical path's compute by device and its transfers by link, in microseconds."""
    n, length_us = schedule.problem.cluster.n_devices, path.finish_us - path.start_us
    names = [device.label for device in schedule.problem.cluster.devices]
    moves, compute, transfers = path.is_transfer, {}, {}
    by_device = np.bincount(
        schedule.plan.device[path.number[~moves]], length_us[~moves], minlength=n
    )
    links = schedule.transfer_link[path.number[moves]]
    by_link = np.bincount(links, length_us[moves], minlength=n * n)
    for device in np.flatnonzero(by_device).tolist():
        compute[names[device]] = float(by_device[device])
    for link in np.flatnonzero(by_link).tolist():
        transfers[f"{names[link // n]} → {names[link % n]}"] = float(by_link[link])
    return {"compute": compute, "transfers": transfers, "waiting": {}}


@dataclass(frozen=True)
class DeviceRow:
    """How the parts of a critical path change on one device, or on all that change little.

    Attributes
    ----------
    colour : int or None
        The number of the device's colour; None for several devices.
    changes : tuple of str
        One for each part of the waterfall; empty where nothing changes.
    """

    name: str
    colour: int | None
    changes: tuple[str, ...]


def path_by_device(schedule: Schedule, path: CriticalPath) -> FloatArray:
    """Sum a critical path by device, in microseconds; shape (3, n_devices).

    The rows are those of :func:`path_parts`. A transfer counts where it arrives, and a wait where
    it ends.
    """
    n, moves = schedule.problem.cluster.n_devices, path.is_transfer
    place = np.zeros(len(moves), dtype=np.int64)
    place[~moves] = schedule.plan.device[path.number[~moves]]
    place[moves] = schedule.transfer_to[path.number[moves]]
    length_us = path.finish_us - path.start_us
    found = np.zeros((3, n))
    found[0] = np.bincount(place[~moves], length_us[~moves], minlength=n)
    found[1] = np.bincount(place[moves], length_us[moves], minlength=n)
    if len(place):
        idle_us = np.maximum(path.start_us - np.append(0.0, path.finish_us[:-1]), 0.0)
        found[2] = np.bincount(place, idle_us, minlength=n)
        found[2, place[-1]] += path.waiting_us - idle_us.sum()
    return found


def device_rows(
    first: FloatArray, second: FloatArray, names: Sequence[str], colours: Sequence[int]
) -> list[DeviceRow]:
    """List the devices on which the parts of a path change, by device; the rest as one row."""
    change = second - first
    size_us = np.abs(change).max(axis=0)
    there = np.flatnonzero(size_us > LEAST_CHANGE_US)
    most = np.sort(there[np.argsort(-size_us[there], kind="stable")][:MOST_ROWS]).tolist()
    rows = [DeviceRow(names[d], colours[d], _texts(change[:, d])) for d in most]
    rest = np.setdiff1d(there, most)
    if len(rest):
        rows.append(DeviceRow(count(len(rest), "other"), None, _texts(change[:, rest].sum(axis=1))))
    return rows


def _texts(changes_us: FloatArray) -> tuple[str, ...]:
    return tuple(
        ms(us, signed=True) if abs(us) > LEAST_CHANGE_US else "" for us in changes_us.tolist()
    )


def part_tip(part: str, before: dict[str, float], after: dict[str, float]) -> str:
    """Say for each device or link how a part of the critical path changes."""
    lines = []
    for place in dict.fromkeys([*before, *after]):
        one_us, other_us = before.get(place, 0.0), after.get(place, 0.0)
        lines.append(f"{place}: {_from_to(ms, one_us, other_us) or ms(other_us)}")
    return "\n".join([f"{part} on the critical path", *lines])


# What differs


@dataclass(frozen=True, eq=False)
class Line:
    """A difference between two plans; ``ops`` are those that a click selects, if any."""

    text: str
    ops: IntArray


def differences(first: Schedule, second: Schedule, project: OpenProject) -> list[Line]:
    """List what differs between two plans of one model, most important first; only what does."""
    one, other, shown = first.problem, second.problem, project.problem
    moved = moved_ops(first, second)
    moved = _NO_OPS if moved is None else moved
    reordered = reordered_ops(first, second)
    senders = op_of(sent_outputs(second))
    senders = np.union1d(op_of(sent_outputs(first)), same_ops(senders, other, one))
    sent = _from_to(size, sent_bytes(first), sent_bytes(second))
    lines = [
        *_split_lines(one, other),
        *_counted(count_whole(moved, one, other), "op", "on another device", moved),
        *_counted(len(reordered), "op", "in another order", reordered),
        *_tensor_lines(first, second),
        *([Line(f"{sent} sent", senders)] if sent else []),
        *_device_lines(first, second),
    ]
    lines = [replace(line, ops=same_ops(line.ops, one, shown)) for line in lines]
    if most := _most_moved(same_ops(moved, one, shown), project.grouping):
        lines.append(Line(f"Most moved: {most}", _NO_OPS))
    return lines


def _counted(number: int, what: str, how: str, ops: IntArray) -> list[Line]:
    """Say of how many there is a difference; nothing of none."""
    return [Line(f"{count(number, what)} {how}", ops)] if number else []


def _split_lines(one: Problem, other: Problem) -> list[Line]:
    """Say which ops the two plans split; ``ops`` are those of the first."""
    ways = ("whole that A splits", "split that A keeps whole", "split otherwise")
    return [
        line
        for way, names in zip(ways, split_ops(one, other), strict=True)
        for line in _counted(len(names), "op", way, ops_for(names, one))
    ]


def _tensor_lines(first: Schedule, second: Schedule) -> list[Line]:
    """Say which tensors only one plan sends; parts make other tensors than whole ops."""
    if not are_alike(first.problem, second.problem):
        return []
    one, other = sent_outputs(first), sent_outputs(second)
    more, fewer = np.setdiff1d(other, one), np.setdiff1d(one, other)
    return [
        *_counted(len(more), "tensor", "sent that A keeps", op_of(more)),
        *_counted(len(fewer), "tensor", "kept that A sends", op_of(fewer)),
    ]


_NO_OPS = np.zeros(0, dtype=np.int64)


def _device_lines(first: Schedule, second: Schedule) -> list[Line]:
    """Compare the devices: those that do next to nothing are one line."""
    both, devices = (first, second), first.problem.cluster.devices
    much = sorted(busy_devices(both))
    others = sorted(used_devices(both) - set(much))
    parts = [(devices[d].label, [d]) for d in [*much, *others[: len(others) == 1]]]
    if len(others) > 1:
        parts.append((f"{len(others)} others", others))
    lines = []
    for name, ds in parts:
        busy = _from_to(ms, *(float(s.busy_us[ds].sum()) for s in both))
        peak = _from_to(size, *(int(s.peak_bytes[ds].max()) for s in both))
        found = [*([f"{busy} busy"] if busy else []), *([f"peak {peak}"] if peak else [])]
        lines += [Line(f"{name}: {', '.join(found)}", _NO_OPS)] if found else []
    return lines


def _from_to(show: Callable[[float], str], before: float, after: float) -> str:
    """Show a change, its unit once if both have the same: ``363.0 → 298.0 ms``; empty if none."""
    one, other = show(before), show(after)
    if one == other:
        return ""
    unit = other.rpartition(" ")[2]
    return f"{one.removesuffix(f' {unit}')} → {other}"


def _most_moved(moved: IntArray, grouping: Grouping) -> str:
    """Name the groups of which most ops are elsewhere."""
    group = grouping.group[moved]
    numbers, sizes = np.unique(group[group >= 0], return_counts=True)
    most = numbers[np.argsort(-sizes, kind="stable")][:MOST_MOVED]
    names = (elide_middle(grouping.names[g], _GROUP_LENGTH) for g in most.tolist())
    return ", ".join(dict.fromkeys(names))


def busy_devices(schedules: Sequence[Schedule]) -> set[int]:
    """Return the devices that are busy for a noticeable part of some plan's step."""
    found: set[int] = set()
    for schedule in schedules:
        share = schedule.busy_us / max(schedule.makespan_us, 1e-9)
        found |= set(np.flatnonzero(share >= NEXT_TO_NOTHING).tolist())
    return found


def used_devices(schedules: Sequence[Schedule]) -> set[int]:
    """Return the devices that compute at all in some plan's step."""
    return {int(d) for s in schedules for d in np.flatnonzero(s.busy_us > 0)}


# An interval


def why_idle(schedule: Schedule, rows: Sequence[Row], interval: Interval) -> str:
    """Say which device is idle longest in an interval, and what for."""
    if interval.start_us >= schedule.makespan_us:
        return "The step has ended."
    longest = max(
        (
            (*_longest_gap(row, interval, schedule.makespan_us), row)
            for row in rows
            if row.is_device
        ),
        key=lambda found: found[0],
        default=None,
    )
    if longest is None or longest[0] <= 0:
        return "No device is idle."
    _, time_us, row = longest
    gap = find_gap(schedule, row, time_us)
    return explain_gap(schedule, gap) if gap else "No device is idle."


def _longest_gap(row: Row, interval: Interval, end_us: float) -> tuple[float, float]:
    """Find how long a row's longest gap in an interval is, and a moment of it."""
    reach_us = np.maximum.accumulate(row.finish_us)
    since = np.concatenate([[0.0], reach_us])
    until = np.concatenate([row.start_us, [end_us]])
    length = within_us(since, until, interval)
    longest = int(np.argmax(length))
    begin = max(float(since[longest]), interval.start_us)
    return float(length[longest]), begin + float(length[longest]) / 2
