"""Why ops run where and when they do: reasons to follow, and what they point at. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.text import count, ms, size
from enplace.values.arrays import IntArray, marked
from enplace.values.constraints import Lock, Pin
from enplace.values.pins import FREE
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL
from enplace.values.schedule import Schedule
from enplace_studio.explain.start_times import SHORT_US, device_of, first_of, lane_free, last_input

_CANDIDATES = 20
"""Most ops looked at for the one that decides."""
_NEARLY = 0.9
"""Share of the longest delay from which an op counts as late as the latest."""


@dataclass(frozen=True)
class Mark:
    """What the timeline shows while a reason is pointed at.

    Attributes
    ----------
    device : int
        The device on whose lane it is drawn.
    start_us, finish_us : float
        An op's bar there, or a transfer from its start to its arrival.
    text : str
        A few words beside it.
    source : int or None
        The device that a transfer comes from; None for a bar.
    """

    device: int
    start_us: float
    finish_us: float
    text: str
    source: int | None = None


@dataclass(frozen=True)
class Why:
    """A reason: what kind it is, what it is about, and a figure.

    Attributes
    ----------
    about : str
        What it is about; empty for ``ops``, which a view names.
    tip : str
        The whole reason in a sentence.
    ops : tuple of int
        The ops that a click selects; if empty, there is nothing to follow.
    """

    kind: str
    about: str
    figure: str
    tip: str = ""
    ops: tuple[int, ...] = ()
    marks: tuple[Mark, ...] = ()


def why_here(schedule: Schedule, ops: IntArray) -> list[Why]:
    """Say what some ops wait for where they are, and what waits for them."""
    op = _deciding(schedule, ops)
    found = [_of_start(schedule, op)] if len(ops) > 1 else []
    found += _waits(schedule, op)
    return [*found, *_holds_up(schedule, ops)]


def why_there(before: Schedule, after: Schedule, ops: IntArray, device: int) -> list[Why]:
    """Say what some ops would wait for on another device, and what they would displace.

    Parameters
    ----------
    before, after : Schedule
        With the ops where they are, and all of them on the device.
    """
    found: list[Why] = []
    if len(ops):
        late_us = after.op_start_us - before.op_start_us
        op = _latest(after, ops, late_us)
        if len(ops) > 1:
            found.append(_of_start(after, op))
        found += _waits(after, op)
        found += _displaces(before, after, ops, device, late_us)
    capacity, peak = after.problem.cluster.capacity_bytes[device], int(after.peak_bytes[device])
    if peak > capacity:
        where, lacking = device_of(after, device), size(peak - int(capacity))
        tip = f"{where} would hold {size(peak)} at its peak, of {size(int(capacity))}"
        found.append(Why("lacks memory", where, lacking, tip))
    return found


def why_not(problem: Problem, ops: IntArray, device: int) -> Why | None:
    """Say why ops may not run on a device; None if no rule for single ops forbids it."""
    where = problem.cluster.devices[device]
    label = f"a {where.kind.upper()}"
    unable = ops[~np.isfinite(problem.time_us[ops, device])]
    if len(unable):
        known = "estimated" if problem.profile.measured.estimated else "measured"
        text = f"{_some(problem, unable)} cannot run on {label}: no {known} time there"
        why = f"no {known} time on {label}"
        return Why("cannot run", "", why, text, tuple(unable.tolist()))
    allowed = np.ones((problem.profile.n_ops, problem.cluster.n_devices), dtype=bool)
    for kind in problem.constraints:
        if kind.key in (Pin.key, Lock.key):  # a pin moves with its op
            continue
        kind.restrict(problem, allowed)
        kept_off = ops[~allowed[ops, device]]
        if len(kept_off):
            why = kind.fault(problem, int(kept_off[0]), device)
            text = f"{_some(problem, kept_off)} must not run there: {why}"
            return Why("must not run there", "", why, text, tuple(kept_off.tolist()))
    if (locked := find_lock(problem, ops, device)) is not None:
        why = f"{problem.cluster.devices[locked].label} is locked"
        return Why("must not run there", "", why, why, tuple(ops.tolist()))
    return None


def find_lock(problem: Problem, ops: IntArray, device: int) -> int | None:
    """Return the locked device that ops may not leave, or join, for another; None if none is."""
    if not problem.locked:
        return None
    held = np.isin(problem.pinned_to, list(problem.locked))
    home = np.full(problem.n_units, FREE)
    home[problem.unit[held]] = problem.pinned_to[held]
    there = home[problem.unit[ops]]
    left = there[(there != FREE) & (there != device)]
    added = device in problem.locked and bool((there != device).any())
    return int(left.min()) if len(left) else device if added else None


def _some(problem: Problem, ops: IntArray) -> str:
    name = problem.profile.op_names[int(ops[0])]
    return name if len(ops) == 1 else f"{name} and {count(len(ops) - 1, 'other op')}"


def _deciding(schedule: Schedule, ops: IntArray) -> int:
    """Find the op that waits longest for an op outside, with its lane idle; else the first."""
    if len(ops) == 1:
        return int(ops[0])
    idle_us = _idle_before(schedule)[ops]
    inside = marked(schedule.problem.profile.n_ops, ops)
    for at in np.argsort(-idle_us, kind="stable")[:_CANDIDATES].tolist():
        if idle_us[at] <= SHORT_US:
            break
        producer = last_input(schedule, int(ops[at]))[1]
        if producer is not None and not inside[producer]:
            return int(ops[at])
    return first_of(schedule, ops)


def _idle_before(schedule: Schedule) -> np.ndarray:
    """Compute how long each op's lane is idle before it; 0 for ops that take no time."""
    start_us, finish_us = schedule.op_start_us, schedule.op_finish_us
    works = np.flatnonzero(finish_us > start_us)
    device, lane = schedule.plan.device[works], schedule.op_lane[works]
    order = np.lexsort((start_us[works], lane, device))
    works, device, lane = works[order], device[order], lane[order]
    same = (np.diff(device, prepend=-1) == 0) & (np.diff(lane, prepend=-1) == 0)
    free_us = np.where(same, np.roll(finish_us[works], 1), 0.0)
    idle_us = np.zeros(len(start_us))
    idle_us[works] = start_us[works] - free_us
    return idle_us


def _latest(after: Schedule, ops: IntArray, late_us: np.ndarray) -> int:
    """Find the op with which the delay of some ops begins; the first if they are not delayed."""
    works = ops[after.op_finish_us[ops] > after.op_start_us[ops]]
    if not len(works) or late_us[works].max() <= SHORT_US:
        return first_of(after, ops)
    late = works[late_us[works] >= _NEARLY * late_us[works].max()]
    return int(late[np.argmin(after.op_start_us[late])])


def _of_start(schedule: Schedule, op: int) -> Why:
    start_us = float(schedule.op_start_us[op])
    name = schedule.problem.profile.op_names[op]
    return Why(
        "decided by",
        "",
        f"starts {ms(start_us)}",
        f"{name} is the op on which it depends when they run",
        (op,),
        (_bar(schedule, op, "decides"),),
    )


def _waits(schedule: Schedule, op: int) -> list[Why]:
    """Name the input that arrives last, and what the device runs until it is free."""
    ready_us, producer, transfer = last_input(schedule, op)
    free_us, ahead = lane_free(schedule, op)
    start_us, found = float(schedule.op_start_us[op]), []
    if producer is not None and ready_us > SHORT_US:
        found.append(_input(schedule, op, producer, transfer, ready_us))
    if ahead is not None and ahead != producer and free_us > ready_us + SHORT_US:
        where, name = device_of(schedule, int(schedule.plan.device[op])), _name(schedule, ahead)
        tip = f"it was ready {ms(start_us - ready_us)} earlier, but {where} ran {name} until then"
        marks = (_bar(schedule, ahead, "runs first"),)
        found.append(Why("runs after", "", f"until {ms(free_us)}", tip, (ahead,), marks))
    if not found:
        found.append(Why("waits for", "nothing", f"starts {ms(start_us)}"))
    return found


def _input(
    schedule: Schedule, op: int, producer: int, transfer: int | None, ready_us: float
) -> Why:
    """Describe the input that arrives last."""
    name, here = _name(schedule, producer), int(schedule.plan.device[op])
    if transfer is None:
        tip = f"{name} ends at {ms(ready_us)} on the same device; {_name(schedule, op)} needs it"
        bar = _bar(schedule, producer, "last input")
        return Why("waits for", "", f"ends {ms(ready_us)}", tip, (producer,), (bar,))
    profile, source = schedule.problem.profile, int(schedule.transfer_from[transfer])
    tensor = int(schedule.transfer_tensor[transfer])
    is_control = profile.tensor_output[tensor] == CONTROL
    what = "a message" if is_control else size(int(profile.tensor_bytes[tensor]))
    link = f"{device_of(schedule, source)} → {device_of(schedule, here)}"
    sent_us = float(schedule.transfer_start_us[transfer])
    tip = (
        f"{name} ends at {ms(float(schedule.op_finish_us[producer]))}; {what} over {link} from "
        f"{ms(sent_us)} to {ms(ready_us)}; {_name(schedule, op)} needs it"
    )
    arrival = Mark(here, sent_us, ready_us, f"{what} arrives {ms(ready_us)}", source)
    figure = f"{what} over {link}, {ms(ready_us)}"
    marks = (_bar(schedule, producer, ""), arrival)
    return Why("waits for", "", figure, tip, (producer,), marks)


def _displaces(
    before: Schedule, after: Schedule, ops: IntArray, device: int, late_us: np.ndarray
) -> list[Why]:
    """Name the op on the device that would run later by most."""
    others = (after.plan.device == device) & (before.plan.device == device)
    others &= after.op_finish_us > after.op_start_us
    others[ops] = False
    there = np.flatnonzero(others & (late_us > SHORT_US))
    if not len(there):
        return []
    worst = late_us[there].max()
    first = there[late_us[there] >= _NEARLY * worst]
    op = int(first[np.argmin(after.op_start_us[first])])
    name, late = _name(before, op), ms(float(late_us[op]), signed=True)
    tip = f"{name} would start {ms(float(late_us[op]))} later, and what follows it too"
    marks = (_bar(before, op, "now"), _bar(after, op, f"then, {late}"))
    return [Why("displaces", "", late, tip, (op,), marks)]


def _holds_up(schedule: Schedule, ops: IntArray) -> list[Why]:
    """Name the consumer outside that waits for these ops most urgently.

    An op that only runs later because the user ordered it does not need them.
    """
    profile = schedule.problem.measured_profile
    inside = marked(profile.n_ops, ops)
    edges = np.flatnonzero(inside[profile.edge_source] & ~inside[profile.edge_op])
    works = schedule.op_finish_us > schedule.op_start_us
    edges = edges[works[profile.edge_op[edges]]]
    if not len(edges):
        return []
    slack_us = (
        schedule.op_start_us[profile.edge_op[edges]]
        - schedule.op_finish_us[profile.edge_source[edges]]
    )
    op = int(profile.edge_op[edges[np.argmin(slack_us)]])
    slack, name = float(slack_us.min()), _name(schedule, op)
    figure = "at once" if slack <= SHORT_US else f"{ms(slack)} later"
    tip = f"{name} needs them, and starts {figure}"
    return [Why("needed by", "", figure, tip, (op,), (_bar(schedule, op, "needs it"),))]


def _bar(schedule: Schedule, op: int, text: str) -> Mark:
    start_us, finish_us = float(schedule.op_start_us[op]), float(schedule.op_finish_us[op])
    return Mark(int(schedule.plan.device[op]), start_us, finish_us, text)


def _name(schedule: Schedule, op: int) -> str:
    return schedule.problem.profile.op_names[op]
