"""A plan in words: what each device does, what runs where by names, and what limits the step."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from enplace.machine import critical_path
from enplace.machine.caching_allocator import reserved_on_devices
from enplace.machine.limits import SHORT_US, find_limits, limited_us, time_if_free
from enplace.machine.op_passes import backward_ops
from enplace.names.groups import Grouping
from enplace.names.titles import number_key
from enplace.text import count, joined, ms, percent, size
from enplace.values.arrays import BoolArray
from enplace.values.problem import THROUGHPUT
from enplace.values.profile import FloatArray
from enplace.values.schedule import Schedule

WHOLE, MOST = 0.98, 0.6
"""Shares of a group's compute on a device from which on the group, or most of it, runs there."""
MOST_NAMES, MOST_LIMITS = 8, 3
"""Most groups, or ranges of them, of a sentence, and most parts that limit a step."""

_NUMBERED = re.compile(r"(.*?)(\d+)(?:–(\d+))?")


def device_rows(schedule: Schedule) -> list[list[str]]:
    """Return a heading, and a row for each device: ops, busy share, peak of capacity.

    For models of PyTorch, also what its allocator would reserve on GPUs.
    """
    reserved = reserved_on_devices(schedule)
    cluster = schedule.problem.cluster
    ops = np.bincount(schedule.plan.device, minlength=cluster.n_devices)
    rows = [
        ["device", "ops", "busy", "", "peak memory", "", *["reserved, predicted"] * bool(reserved)]
    ]
    for number, device in enumerate(cluster.devices):
        busy, peak = float(schedule.busy_us[number]), int(schedule.peak_bytes[number])
        available_us = schedule.makespan_us * device.lanes
        rows.append(
            [
                device.label,
                f"{ops[number]:,}",
                ms(busy),
                percent(busy / available_us if available_us else 0.0),
                f"{size(peak)} of {size(device.capacity_bytes)}",
                percent(peak / device.capacity_bytes),
                *[size(reserved[number]) if number in reserved else ""] * bool(reserved),
            ]
        )
    return rows


def say_where(schedule: Schedule, grouping: Grouping) -> list[str]:
    """Say for each device which groups run there, all or most of them, and which are divided."""
    shares = _shares(schedule, grouping)
    labels = [device.label for device in schedule.problem.cluster.devices]
    runs = [_say_shares(share, grouping, MOST, "most") for share in shares.T]
    sentences = [f"{label} runs {what}." for label, what in zip(labels, runs, strict=True) if what]
    divided: dict[tuple[int, ...], list[int]] = {}
    for group in np.flatnonzero(shares.max(axis=1) < MOST).tolist():
        on = tuple(np.flatnonzero(shares[group] > 1 - WHOLE).tolist())
        divided.setdefault(on, []).append(group)
    for on, groups in divided.items():
        where = joined([labels[device] for device in on])
        sentences.append(f"Divided between {where}: {_some(name_ranges(grouping, groups))}.")
    return sentences


def say_forward(schedule: Schedule, grouping: Grouping) -> list[str]:
    """Name what each device runs forward, by groups, in words; one text for each device."""
    shares = _shares(schedule, grouping, ~backward_ops(schedule.problem))
    return [_say_shares(share, grouping, 1 - WHOLE, "parts") for share in shares.T]


def _say_shares(share: FloatArray, grouping: Grouping, least: float, part: str) -> str:
    """Name the groups of which a device runs all, then those of which it runs the least or more."""
    whole = np.flatnonzero(share >= WHOLE).tolist()
    some = np.flatnonzero((share >= least) & (share < WHOLE)).tolist()
    told = [_some(name_ranges(grouping, whole))] if whole else []
    told += [f"{part} of {_some(name_ranges(grouping, some))}"] if some else []
    return "; ".join(told)


def _shares(schedule: Schedule, grouping: Grouping, counted: BoolArray | bool = True) -> FloatArray:
    """Return the share of each group on each device, by compute; shape (n_groups, n_devices)."""
    n = schedule.problem.cluster.n_devices
    inside = (grouping.group >= 0) & counted
    place = grouping.group * n + schedule.plan.device
    time_us = schedule.op_finish_us - schedule.op_start_us
    weights = np.where(time_us > 0, time_us, 1e-9)[inside]
    sums = np.bincount(place[inside], weights, grouping.n_groups * n).reshape(-1, n)
    shares: FloatArray = sums / np.maximum(sums.sum(axis=1, keepdims=True), 1e-30)
    return shares


def name_ranges(grouping: Grouping, groups: Sequence[int]) -> list[str]:
    """Name groups; those of one row that follow each other are a range.

    Returns
    -------
    list of str
        Such as ``"encoder / layer 0–5"``.
    """
    names: list[str] = []
    runs: list[list[int]] = []
    rows = {row: at for at, row in reversed(list(enumerate(grouping.rows)))}
    order = sorted(
        groups, key=lambda g: (rows[grouping.rows[g]], number_key(grouping.labels[g]), g)
    )
    for group in order:
        if runs and _follows(grouping, runs[-1][-1], group):
            runs[-1].append(group)
        else:
            runs.append([group])
    for run in runs:
        first, last = grouping.labels[run[0]], grouping.labels[run[-1]]
        name, end = grouping.names[run[0]], _NUMBERED.fullmatch(last)
        begin = _NUMBERED.fullmatch(first)
        if len(run) > 1 and begin and end:
            until = end.group(3) or end.group(2)
            name = f"{name.removesuffix(first)}{begin.group(1)}{begin.group(2)}–{until}"
        names.append(f"{name} ops" if re.search(r"\bother$", name) else name)
    return names


def _follows(grouping: Grouping, one: int, other: int) -> bool:
    """Return whether a group continues a row of numbered groups."""
    found = [_NUMBERED.fullmatch(grouping.labels[group]) for group in (one, other)]
    if grouping.rows[one] != grouping.rows[other] or found[0] is None or found[1] is None:
        return False
    until = int(found[0].group(3) or found[0].group(2))
    return found[0].group(1) == found[1].group(1) and until + 1 == int(found[1].group(2))


def limits_title(schedule: Schedule) -> str:
    """Return the heading of what limits a plan."""
    return f"What limits the {_limited(schedule)}"


def _limited(schedule: Schedule) -> str:
    return "time per sample" if schedule.plan.objective == THROUGHPUT else "step"


def say_limits(schedule: Schedule, grouping: Grouping) -> list[str]:
    """Say what the time is made of, and what would shorten it most if it were free."""
    time_us, what = limited_us(schedule), _limited(schedule)
    is_pipeline = schedule.plan.objective == THROUGHPUT
    pace = f"A sample leaves the pipeline every {ms(time_us)}."
    sentences = [pace if is_pipeline else _say_path(schedule)]
    for limit in find_limits(schedule, grouping, MOST_LIMITS):
        gain_us = time_us - time_if_free(schedule, limit)
        sending = "sending over " if limit.link is not None else ""
        gain = f"{ms(gain_us)} shorter" if gain_us else "no shorter"
        part = f"{ms(limit.time_us)} of it is {sending}{limit.name}"
        sentences.append(f"{part}; were that free, the {what} would be {gain}.")
    return [*filter(None, sentences), *_say_busy(schedule)]


def _say_path(schedule: Schedule) -> str:
    """Say what the step time is made of; nothing if it is next to nothing."""
    path = critical_path(schedule)
    parts = {
        "computes": path.compute_us,
        "sends": path.transfer_us,
        "waits": path.waiting_us,
    }
    told = joined([f"{what} for {ms(us)}" for what, us in parts.items() if us > SHORT_US])
    return f"Of the step of {ms(schedule.makespan_us)}, the critical path {told}." if told else ""


def _say_busy(schedule: Schedule) -> list[str]:
    """Say which GPU computes longest, and which ones next to nothing."""
    gpus = list(schedule.problem.cluster.gpus)
    if len(gpus) < 2 or schedule.makespan_us <= 0:
        return []
    devices = schedule.problem.cluster.devices
    share = schedule.busy_us[gpus] / (schedule.makespan_us * schedule.problem.cluster.lanes[gpus])
    most = int(np.argmax(share))
    sentences = [
        f"{devices[gpus[most]].label} is the busiest: it computes for "
        f"{percent(float(share[most]))} of the step."
    ]
    is_idle: BoolArray = share < 1 - WHOLE
    if names := [devices[gpus[at]].label for at in np.flatnonzero(is_idle).tolist()]:
        verb = "does" if len(names) == 1 else "do"
        sentences.append(f"{joined(names)} {verb} next to nothing.")
    return sentences


def _some(names: Sequence[str]) -> str:
    """Join names; of very many, the first."""
    more = len(names) - MOST_NAMES
    return joined([*names[:MOST_NAMES], count(more, "other")] if more > 0 else names)
