"""Texts about the selected ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from enplace.frameworks.measured import MeasuredRun
from enplace.names.groups import Grouping, name_ops
from enplace.text import count, elide_middle, listed, ms, size
from enplace.values.measurement import ESTIMATED
from enplace.values.pins import FREE
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL, KINDS, OP_COLUMNS, IntArray, Profile
from enplace.values.schedule import Schedule
from enplace.values.splits import part_names
from enplace.values.splits.rules import WEIGHTS, find_operands
from enplace_studio.explain.prediction import compared, total_times

LARGEST = 4
_MOST_NAMES = 2
_PART = "/split/part_"


@dataclass(frozen=True)
class SplitFact:
    """An op that a plan splits, with the total time of its parts and the weights it reads.

    Of an op whose output is kept on the host, the time is that of the transfers back.
    """

    op: str
    op_type: str
    time_us: float
    weights_bytes: int
    how: str
    noun: str = "split op"


@dataclass(frozen=True)
class Outgoing:
    """A tensor that ops outside the selection consume."""

    name: str
    bytes: int
    goes_to: str
    op_name: str


def totals(problem: Problem, schedule: Schedule | None, ops: IntArray) -> str:
    """Sum ops, compute time and bytes leaving the selection: ``96 ops · 4.4 ms · 61 MiB out``."""
    fastest_us = problem.time_us[ops].min(axis=1)
    if schedule is not None:
        fastest_us = schedule.op_finish_us[ops] - schedule.op_start_us[ops]
    leaving = np.unique(_leaving_edges(problem, ops)[0])
    sent = int(problem.profile.tensor_bytes[leaving].sum())
    return f"{count(len(ops), 'op')} · {ms(float(fastest_us.sum()))} · {size(sent)} out"


def largest_outgoing(problem: Problem, grouping: Grouping | None, ops: IntArray) -> list[Outgoing]:
    """List the largest tensors that leave the selection, and their consumers."""
    profile = problem.profile
    tensors, consumers = _leaving_edges(problem, ops)
    leaving = np.unique(tensors)
    is_data = (profile.tensor_output[leaving] != CONTROL) & (profile.tensor_bytes[leaving] > 0)
    leaving = leaving[is_data]
    order = np.argsort(-profile.tensor_bytes[leaving], kind="stable")[:LARGEST]
    largest = leaving[order].tolist()
    names = _tensor_names(profile, largest)
    return [
        Outgoing(
            name=name,
            bytes=int(profile.tensor_bytes[tensor]),
            goes_to=_consumer_names(problem, grouping, consumers[tensors == tensor]),
            op_name=profile.op_names[profile.tensor_op[tensor]],
        )
        for name, tensor in zip(names, largest, strict=True)
    ]


def _tensor_names(profile: Profile, tensors: list[int]) -> list[str]:
    """Name tensors after their producers: short names, or full names if those are ambiguous."""
    whole = [
        profile.op_names[profile.tensor_op[tensor]]
        + (f":{output}" if (output := int(profile.tensor_output[tensor])) else "")
        for tensor in tensors
    ]
    leaves = [name.rpartition("/")[2] for name in whole]
    return leaves if len(set(leaves)) == len(leaves) else whole


def _leaving_edges(problem: Problem, ops: IntArray) -> tuple[IntArray, IntArray]:
    """Find the tensor and consumer of every edge from the selection to other ops."""
    profile = problem.profile
    inside = np.zeros(profile.n_ops, dtype=bool)
    inside[ops] = True
    edges = inside[profile.edge_source] & ~inside[profile.edge_op]
    return profile.edge_tensor[edges], profile.edge_op[edges]


def _consumer_names(problem: Problem, grouping: Grouping | None, consumers: IntArray) -> str:
    """Name up to two groups of consumers; a single consumer without a group by its own name."""
    if grouping is None:
        return count(len(consumers), "op")
    groups = np.unique(grouping.group[consumers])
    if groups[0] < 0:
        return name_ops(problem.profile, consumers.tolist(), grouping)
    names = [grouping.names[group] for group in groups[:_MOST_NAMES]]
    more = len(groups) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def split_facts(model: Profile, schedule: Schedule) -> list[SplitFact]:
    """List the ops of a model that a plan splits or does not keep, longest first."""
    profile, splits = schedule.problem.profile, schedule.plan.splits
    length_us = schedule.op_finish_us - schedule.op_start_us
    sent_us = np.zeros(profile.n_ops)
    sender = profile.tensor_op[schedule.transfer_tensor]
    np.add.at(sent_us, sender, schedule.transfer_finish_us - schedule.transfer_start_us)
    n_parts = {split.op: split.parts for split in splits if split.is_cut}
    found = []
    for split in splits:
        names = _leaves(split.op, n_parts) if split.is_cut else [split.added]
        parts = [profile.index[name] for name in names if name in profile.index]
        time_us = float((sent_us if split.is_offload else length_us)[parts].sum())
        whole = model.index.get(split.op.partition(_PART)[0], -1)
        kind = profile.op_types[parts[0]] if parts else ""
        if split.is_offload:
            kind = profile.op_types[profile.index[split.op]]
        # Nodes that a split adds, such as sums, can be split too; they have no weights.
        copied = whole >= 0 and model.op_types[whole] == kind
        weights_bytes = _weights_bytes(model, whole) if copied else 0
        found.append(SplitFact(split.op, kind, time_us, weights_bytes, split.how, split.noun))
    return sorted(found, key=lambda fact: (-fact.time_us, fact.op))


def count_splits(facts: Sequence[SplitFact]) -> str:
    """Say how many ops are split, computed again, and kept on the host."""
    numbers = Counter(fact.noun for fact in facts)
    return ", ".join(count(numbers[noun], noun) for noun in sorted(numbers, reverse=True))


def _leaves(op: str, n_parts: Mapping[str, int]) -> list[str]:
    """Find the final parts of an op whose parts are split again."""
    if op not in n_parts:
        return [op]
    return [leaf for name in part_names(op, n_parts[op]) for leaf in _leaves(name, n_parts)]


def _weights_bytes(model: Profile, op: int) -> int:
    """Sum the bytes of the weights that an op reads."""
    edges = [edge for edge, operand in find_operands(model, op) if operand == WEIGHTS]
    return int(model.tensor_bytes[model.edge_tensor[edges]].sum())


def place_sentence(problem: Problem, schedule: Schedule | None, ops: IntArray) -> str:
    """Say where the selection runs, if divided, and its pins, colocation and forbidden devices."""
    sentences = [_pin_sentence(problem, schedule, ops)]
    names = [device.label for device in problem.cluster.devices]
    counts = where(schedule, ops) if schedule is not None else np.zeros(1, dtype=np.int64)
    if np.count_nonzero(counts) > 1:
        parts = [f"{counts[d]:,} on {names[d]}" for d in np.flatnonzero(counts).tolist()]
        sentences.insert(0, f"{', '.join(parts)}.")
    unit = np.unique(problem.unit[ops])
    others = int(np.isin(problem.unit, unit).sum()) - len(ops)
    if others:
        sentences.append(
            f"Shares its device with {count(others, 'other op')}, which would move with it."
        )
    chosen = set(ops.tolist())
    off_all = []
    for device in sorted({device for op, device in problem.forbidden if op in chosen}):
        off = [op for op, other in problem.forbidden if other == device]
        n_off = np.count_nonzero(np.isin(problem.unit[ops], problem.unit[off]))
        if n_off == len(ops):
            off_all.append(names[device])
        else:
            sentences.append(f"{n_off:,} of {len(ops):,} ops kept off {names[device]}.")
    if off_all:
        sentences.append(f"Kept off {', '.join(off_all)}.")
    sentences += _order_sentences(problem, chosen)
    return " ".join(sentences)


def _order_sentences(problem: Problem, chosen: set[int]) -> list[str]:
    """Say which ops outside the selection it runs before and after, if a person wants it so."""
    later = {b for a, b in problem.before if a in chosen and b not in chosen}
    earlier = {a for a, b in problem.before if b in chosen and a not in chosen}
    inner = any(a in chosen and b in chosen for a, b in problem.before)
    names = problem.profile.op_names

    def few(ops: set[int]) -> str:
        shown = [elide_middle(names[op], 32) for op in sorted(ops)[:2]]
        return listed(shown) if len(ops) < 3 else f"{', '.join(shown)} and {len(ops) - 2:,} more"

    return [
        *([f"Runs before {few(later)}, as you wish."] if later else []),
        *([f"Runs after {few(earlier)}, as you wish."] if earlier else []),
        *(["You ordered ops in the selection."] if inner else []),
    ]


def _pin_sentence(problem: Problem, schedule: Schedule | None, ops: IntArray) -> str:
    devices = problem.cluster.devices
    pinned_to = problem.pinned_to[ops]
    is_held = pinned_to != FREE
    held, n = pinned_to[is_held], int(is_held.sum())
    names = " and ".join(devices[d].label for d in np.unique(held).tolist())
    if not n:
        return "Not pinned."
    some = "Pinned" if n == len(ops) else f"{n:,} of {count(len(ops), 'op')} pinned"
    elsewhere = schedule is not None and (schedule.plan.device[ops[is_held]] != held).any()
    return f"{some} to {names}{'; this plan was made without that' if elsewhere else ''}."


def op_facts(problem: Problem, schedule: Schedule | None, op: int) -> list[tuple[str, str]]:
    """List labels and values for one op."""
    profile = problem.profile
    facts = [("type", profile.op_types[op])]
    suffix = f", {ESTIMATED}" if problem.measured_profile.measured.estimated else ""
    for number, kind in enumerate(KINDS):
        times_us = problem.time_us[op, problem.cluster.kind == number]
        if len(times_us):
            fastest_us = float(times_us.min())
            shown = ms(fastest_us) if np.isfinite(fastest_us) else "cannot run"
            facts.append((f"on a {kind.upper()}{suffix}", shown))
    for name, column in OP_COLUMNS.items():
        if column.label and not column.is_default(value := getattr(profile, name)[op]):
            facts.append((column.label, column.shown(value)))
    tensors = slice(*profile.tensor_ptr[op : op + 2])
    bases = profile.tensor_op[[t for t in profile.tensor_base[tensors].tolist() if t >= 0]]
    if others := [profile.op_names[base] for base in np.unique(bases[bases != op]).tolist()]:
        facts.append(("in memory of", ", ".join(others)))
    if schedule is not None:
        start, finish = float(schedule.op_start_us[op]), float(schedule.op_finish_us[op])
        facts.append(("runs from", f"{ms(start)} to {ms(finish)}"))
    return facts


def measured_facts(schedule: Schedule, run: MeasuredRun, ops: IntArray) -> list[tuple[str, str]]:
    """List labels and values of the measurements of the ops."""
    timed = run.op_device >= 0 if run.on_labels else np.isfinite(run.op_time_us)
    seen = ops[timed[ops]]
    if not len(seen):
        return [("compute time", "not seen in the run")]
    facts = []
    if not run.on_labels:
        facts = [("compute time", compared(*total_times(schedule, run, seen)))]
    if len(seen) < len(ops) or run.on_labels:
        facts.append(("seen in the run", f"{len(seen):,} of {count(len(ops), 'op')}"))
    start_us, finish_us = run.op_start_us[seen], run.op_finish_us[seen]
    if np.isfinite(start_us).any():
        facts.append(("ran from", f"{ms(np.nanmin(start_us))} to {ms(np.nanmax(finish_us))}"))
    known = run.op_device[ops] >= 0
    elsewhere = int((known & (run.op_device[ops] != schedule.plan.device[ops])).sum())
    if elsewhere:
        facts.append(("not where planned", count(elsewhere, "op")))
    return facts


def where(schedule: Schedule, ops: IntArray) -> IntArray:
    """Count the ops on each device; shape (n_devices,)."""
    return np.bincount(schedule.plan.device[ops], minlength=schedule.problem.cluster.n_devices)
