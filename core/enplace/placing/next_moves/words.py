"""What a next move does, and why it helps, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from enplace.machine import CriticalPath, critical_path
from enplace.names.groups import Grouping, name_ops
from enplace.names.passes import is_gradient_of_op, last_parts
from enplace.names.titles import leaf
from enplace.placing.next_moves.edits import MOVE, RECOMPUTE, SPLIT, SWAP, TOGETHER, Edit
from enplace.text import count, joined, ms, size
from enplace.values.arrays import FloatArray, IntArray
from enplace.values.problem import LATENCY, THROUGHPUT
from enplace.values.profile import Profile
from enplace.values.schedule import Schedule

TOLD_US, TOLD_BYTES = 0.5, 1 << 20
"""Changes below these are not told."""

TOLD_SHARE = 0.1
"""Idle time that a move fills is told if it is more than this share of what the move gains."""

MOST_SHIFTED = 6.0
"""If the parts of the critical path change by more than this multiple of what the step gains, it is
another path: what it is made of tells nothing."""

ANOTHER_PATH = "other ops are on the critical path then"

_DIMENSIONS = {"batch": "samples", "channel": "channels"}


def title_of(before: Schedule, grouping: Grouping, edit: Edit) -> str:
    """Say in a few words what an edit does: ``layer 2 → GPU 1``."""
    profile = before.problem.profile
    what, where = name(profile, edit.ops, grouping), [_label(before, d) for d in edit.devices]
    if edit.kind == MOVE:
        return f"{what} → {where[0]}"
    if edit.kind == TOGETHER:
        n_groups = len(np.unique(grouping.group[edit.ops]))
        many = f"{count(len(edit.ops), 'op')} of {count(n_groups, 'group')}"
        return f"Move {many if n_groups > 1 else what}"
    if edit.kind == SWAP:
        return f"Swap {what} and {name(profile, edit.others, grouping)}"
    if edit.kind == SPLIT:
        return f"Split {what} in two, by {_DIMENSIONS.get(edit.how, edit.how)}"
    if edit.kind == RECOMPUTE:
        verb = "Run the forward ops again on" if edit.how == "again" else "Keep activations on"
        return f"{verb} {where[0]}"
    if not len(edit.others):
        return "Order all ops by urgency"
    return f"{what} before {name(profile, edit.others, grouping)}"


def title_apart(
    before: Schedule, grouping: Grouping, title: str, ops: IntArray, rest: Sequence[IntArray]
) -> str:
    """Tell a title from those of others that are the same: by the longest op that only it has."""
    profile, time_us = before.problem.profile, before.op_finish_us - before.op_start_us
    own = np.setdiff1d(ops, np.concatenate(rest))
    if len(own) == 0 or len(ops) == 1:
        return title
    longest = own[np.argmax(time_us[own]) :][:1]
    known = f"{name(profile, longest, grouping)} and {len(ops) - 1:,} more"
    return title.replace(name(profile, ops, grouping), known, 1)


def name(profile: Profile, ops: IntArray, grouping: Grouping) -> str:
    """Name some ops by their groups, and by what they all are: ``6 × MatMul_1 of layer 2``."""
    shown, found = name_ops(profile, ops, grouping), np.unique(grouping.group[ops]).tolist()
    groups = [group for group in found if group >= 0]
    names = [grouping.names[group] for group in groups]
    if len(ops) == 1 and names and shown != names[0]:
        what = _unique(profile, ops, grouping)
        return what if what == names[0] else f"{what} of {names[0]}"
    if shown == count(2, "group"):
        return joined(names)
    if len(ops) == 1 or not shown.startswith(count(len(ops), "op")):
        return shown
    kinds = {last_parts(profile.op_names[op]) for op in ops.tolist()}
    what = f"{len(ops):,} × {leaf(kinds.pop())}" if len(kinds) == 1 else count(len(ops), "op")
    if len(names) == 1:
        return f"{what} of {names[0]}"
    if not names:
        return what
    in_a_row = grouping.rows[groups[0]] == grouping.rows[groups[-1]]
    last = grouping.labels[groups[-1]] if in_a_row else names[-1]
    return f"{what} from {names[0]} to {last}"


def _unique(profile: Profile, ops: IntArray, grouping: Grouping) -> str:
    """Return the end of an op's name, as long as it takes to tell it from others of its group."""
    op = int(ops[0])
    parts = profile.op_names[op].split("/")
    others = grouping.ops(int(grouping.group[op]))
    rivals = [profile.op_names[each].split("/") for each in others.tolist() if each != op]
    ends = range(1, len(parts))
    apart = next((n for n in ends if all(r[-n:] != parts[-n:] for r in rivals)), len(parts))
    end = _without_gradients(parts[-apart:])
    if any(_without_gradients(rival)[-len(end) :] == end for rival in rivals):
        end = parts[-apart:]  # only the op that it is a gradient of tells it from another
    return "/".join(end)


def _without_gradients(parts: list[str]) -> list[str]:
    """Leave out of which op an op is a gradient."""
    return [*(part for part in parts[:-1] if not is_gradient_of_op(part)), parts[-1]]


def reason_of(before: Schedule, after: Schedule, edit: Edit) -> str:
    """Say in a sentence why an edit helps, and what memory it takes."""
    plan, parts = after.plan, []
    if edit.kind == SPLIT:
        parts.append(joined([_label(before, device) for device in edit.devices]))
    if edit.kind == TOGETHER:
        to = [(np.count_nonzero(plan.device[edit.ops] == d), d) for d in edit.devices]
        parts.append(", ".join(f"{n:,} → {_label(before, device)}" for n, device in to))
    if plan.objective == THROUGHPUT:
        parts.append(f"the busiest device needs {ms(plan.value_us or 0.0)} per sample")
    elif plan.objective == LATENCY:
        parts.append(f"a query takes {ms(plan.value_us or 0.0)}")
    else:
        filled, path = _filled(before, after, edit), _shorter_path(before, after)
        parts += filter(None, [filled, path or ("" if filled else ANOTHER_PATH)])
    return " · ".join([*parts, *_memory(before, after)])


def _filled(before: Schedule, after: Schedule, edit: Edit) -> str:
    """Say how long ops run while their new device was idle."""
    if edit.kind != MOVE:
        return ""
    device = edit.devices[0]
    there = (before.plan.device == device) & (before.op_finish_us > before.op_start_us)
    busy = _merged(before.op_start_us[there], before.op_finish_us[there])
    start_us, finish_us = after.op_start_us[edit.ops], after.op_finish_us[edit.ops]
    covered_us = _before_us(busy, finish_us) - _before_us(busy, start_us)
    idle_us = float((finish_us - start_us - covered_us).clip(0).sum())
    if idle_us <= max(TOLD_US, TOLD_SHARE * (before.makespan_us - after.makespan_us)):
        return ""
    return f"fills {ms(idle_us)} of {_label(before, device)}’s idle time"


def _merged(start_us: FloatArray, finish_us: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Merge intervals that overlap, on several lanes; the first one is empty, at the beginning."""
    order = np.argsort(start_us, kind="stable")
    start_us = np.append(0.0, start_us[order])
    until_us = np.append(0.0, np.maximum.accumulate(finish_us[order]))
    cuts = np.flatnonzero(start_us[1:] > until_us[:-1]) + 1
    return start_us[np.append(0, cuts)], until_us[np.append(cuts, len(start_us)) - 1]


def _before_us(busy: tuple[FloatArray, FloatArray], time_us: FloatArray) -> FloatArray:
    """Return how long a device is busy before each moment."""
    start_us, finish_us = busy
    done_us = np.cumsum(finish_us - start_us)
    at = np.searchsorted(start_us, time_us, side="right") - 1
    found: FloatArray = done_us[at] - np.maximum(finish_us[at] - time_us, 0.0)
    return found


def _shorter_path(before: Schedule, after: Schedule) -> str:
    """Say what of the critical path gets shorter, and what longer."""
    one, other = (_parts(critical_path(each)) for each in (before, after))
    changes = {what: other[what] - us for what, us in one.items()}
    told = sorted((us, what) for what, us in changes.items() if abs(us) > TOLD_US)
    if sum(abs(us) for us, _ in told) > MOST_SHIFTED * abs(sum(us for us, _ in told)):
        return ""
    shown = ", ".join(f"{what} {ms(us, signed=True)}" for us, what in told)
    return f"on the critical path {shown}" if shown else ""


def _parts(path: CriticalPath) -> dict[str, float]:
    return {
        "compute": path.compute_us,
        "transfers": path.transfer_us,
        "waiting": path.waiting_us,
    }


def _memory(before: Schedule, after: Schedule) -> list[str]:
    """Name the device whose peak grows most."""
    more = after.peak_bytes - before.peak_bytes
    device = int(np.argmax(more))
    if more[device] < TOLD_BYTES:
        return []
    return [f"{size(int(more[device]), signed=True)} on {_label(before, device)}"]


def _label(schedule: Schedule, device: int) -> str:
    return schedule.problem.cluster.devices[device].label
