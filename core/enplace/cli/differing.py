"""``diff``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from enplace.cli.answer import Answer, command
from enplace.cli.options import FILE
from enplace.errors import PlanError
from enplace.inputs import read_problem_and_plan
from enplace.text import change_text, count, listed, ms, size, table
from enplace.values.device_names import device_label

if TYPE_CHECKING:
    from enplace.values.constraints import Kind, Row
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem


SAME_MODEL = 0.5
"""Least share of ops with the same names in two plans of one model, or of its versions."""
FEW_SCOPES = 8
"""Most rows that constraints of one kind and device have, if they can be so few."""
MOST_LINES = 40
"""Most lines of one kind of difference that are printed for people."""


@dataclass(frozen=True)
class _Side:
    """One of the two plans: devices by op name in the plan's order, and what is predicted.

    The constraints are those of the file of constraints, by kind.
    """

    method: str
    cluster: str
    devices: dict[str, str]
    constraints: dict[str, frozenset[Row]]
    step_time_us: float
    estimated: str
    peak_bytes: Mapping[str, int]
    capacity_bytes: dict[str, int]

    @property
    def fits(self) -> bool | None:
        """Whether each device has enough memory; None if nothing is predicted."""
        if not self.peak_bytes:
            return None
        return all(
            peak <= self.capacity_bytes.get(device, 0) for device, peak in self.peak_bytes.items()
        )


@command("diff")
@click.argument("before", type=FILE, metavar="A.json")
@click.argument("after", type=FILE, metavar="B.json")
@click.option(
    "--profile",
    type=FILE,
    metavar="P.enplace",
    help="Simulate both plans on this profile. [default: the predictions in the files]",
)
@click.option("--markdown", is_flag=True, help="Print Markdown, as for a pull request.")
def diff(before: str, after: str, profile: str | None, markdown: bool) -> Answer:
    """Show what changes from plan A.json to plan B.json.

    The ops that move, by scope; those in another order; constraints; step time and memory.
    """
    one, other = _read(before, profile), _read(after, profile)
    _check_same_model(one, other, (before, after))
    document = _differences(one, other)
    document["simulated_on"] = profile
    return Answer(document, _markdown(document) if markdown else _text(document))


def _check_same_model(one: _Side, other: _Side, files: tuple[str, str]) -> None:
    """Refuse plans of different models: their step times have nothing to do with each other."""
    shared, most = (
        len(one.devices.keys() & other.devices.keys()),
        max(len(one.devices), len(other.devices)),
    )
    if shared < SAME_MODEL * most:
        raise PlanError(
            f"{files[1]}: a plan of another model than {files[0]}: only {shared:,} of "
            f"{count(most, 'op')} have the same name; compare plans of one model"
        )


def _read(path: str, profile: str | None) -> _Side:
    """Read a plan; simulate it if there is a profile."""
    from enplace.machine import simulate
    from enplace.readers import read_plan_alone
    from enplace.writers import constraints_by_name

    if profile is None:
        lone = read_plan_alone(path)
        times = lone.step_time_us, lone.estimated
        return _side(lone.problem, lone.plan, lone.constraints, *times, lone.peak_bytes)
    problem, plan = read_problem_and_plan(profile, path, None)
    schedule = simulate(problem, plan)
    names = [device.name for device in problem.cluster.devices]
    peaks = dict(zip(names, schedule.peak_bytes.tolist(), strict=True))
    times = schedule.makespan_us, problem.measured_profile.measured.estimated
    return _side(problem, plan, constraints_by_name(problem), *times, peaks)


def _side(
    problem: Problem,
    plan: Plan,
    constraints: Mapping[str, Sequence[Row]],
    step_time_us: float,
    estimated: str,
    peak_bytes: Mapping[str, int],
) -> _Side:
    from enplace.values.constraints import KINDS

    names, devices = problem.profile.op_names, problem.cluster.devices
    return _Side(
        method=plan.method,
        cluster=problem.cluster.name,
        devices={
            names[op]: devices[plan.device[op]].name for op in plan.position.argsort().tolist()
        },
        constraints={key: _rows(kind, constraints.get(key, [])) for key, kind in KINDS.items()},
        step_time_us=step_time_us,
        estimated=estimated,
        peak_bytes=peak_bytes,
        capacity_bytes={device.name: int(device.capacity_bytes) for device in devices},
    )


def _rows(kind: Kind, rows: Sequence[Row]) -> frozenset[Row]:
    """Return the constraints of a kind; of ops that stay together, the order says nothing."""
    return frozenset(tuple(sorted(row)) if kind.many else row for row in rows)


def _differences(one: _Side, other: _Side) -> dict[str, Any]:
    """Compare two plans; the result is plain data."""
    from enplace.names.by_scope import count_by_scope
    from enplace.values.constraints import KINDS

    both = [op for op in one.devices if op in other.devices]
    moves = {
        op: (one.devices[op], other.devices[op])
        for op in both
        if one.devices[op] != other.devices[op]
    }
    devices = [
        *one.capacity_bytes,
        *(d for d in other.capacity_bytes if d not in one.capacity_bytes),
    ]
    return {
        "before": _head(one),
        "after": _head(other),
        "ops": len(both),
        "moved": len(moves),
        "moves": [
            {"scope": scope, "before": start, "after": end, "ops": n}
            for scope, (start, end), n in _largest_first(count_by_scope(moves))
        ],
        "reordered": _count_reordered(one.devices, other.devices),
        **{
            f"{kind.noun}s": _changes(kind, one.constraints[key], other.constraints[key])
            for key, kind in KINDS.items()
        },
        "only_before": [op for op in one.devices if op not in other.devices],
        "only_after": [op for op in other.devices if op not in one.devices],
        "memory": [
            {
                "device": device,
                "before_bytes": one.peak_bytes.get(device),
                "after_bytes": other.peak_bytes.get(device),
                "capacity_bytes": other.capacity_bytes.get(device, one.capacity_bytes.get(device)),
            }
            for device in devices
        ],
    }


def _changes(kind: Kind, old: frozenset[Row], new: frozenset[Row]) -> dict[str, list[Any]]:
    """List the constraints of a kind that were added and removed; those of ops by scope."""
    from enplace.values.constraints import DEVICE, OP

    ways = {"added": sorted(new - old), "removed": sorted(old - new)}
    return ways if kind.roles != (OP, DEVICE) else {way: _by_scope(ways[way]) for way in ways}


def _largest_first(rows: list[tuple[str, Any, int]]) -> list[tuple[str, Any, int]]:
    return sorted(rows, key=lambda row: -row[2])


def _head(side: _Side) -> dict[str, Any]:
    known = not math.isnan(side.step_time_us)
    return {
        "method": side.method,
        "cluster": side.cluster,
        "step_time_us": side.step_time_us if known else None,
        "estimated": side.estimated or None,
        "fits": side.fits,
    }


def _by_scope(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Count ops and the device that a constraint names, by scope."""
    from enplace.names.by_scope import count_by_scope

    by_device: dict[str, dict[str, str]] = {}
    for op, device in rows:
        by_device.setdefault(device, {})[op] = device
    found = [row for ops in by_device.values() for row in count_by_scope(ops, FEW_SCOPES)]
    return [
        {"scope": scope, "device": device, "ops": n} for scope, device, n in _largest_first(found)
    ]


def _count_reordered(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    """Count the ops that must be taken out so that the rest of each device is in the same order."""
    import numpy as np

    from enplace.values.plan import find_reordered

    place = {op: number for number, op in enumerate(other)}
    number = {device: at for at, device in enumerate(dict.fromkeys(one.values()))}
    both = [op for op in one if op in other]
    device = [number[one[op]] if one[op] == other[op] else -1 for op in both]
    after = np.array([place[op] for op in both], dtype=np.int64)
    return len(find_reordered(np.array(device, dtype=np.int64), np.arange(len(both)), after))


# Output


def _facts(data: Mapping[str, Any]) -> list[list[str]]:
    """Return rows of a name, a value before and after, and the change."""
    from enplace.values.measurement import ESTIMATED

    one, other = data["before"], data["after"]
    rows = [["method", one["method"], other["method"], ""]]
    if one["cluster"] != other["cluster"]:
        rows.append(["cluster", one["cluster"], other["cluster"], ""])
    start_us, end_us = one["step_time_us"], other["step_time_us"]
    if start_us is not None and end_us is not None:
        change = change_text(end_us / start_us - 1) if start_us else ""
        title = f"{ESTIMATED} " * bool(one["estimated"] or other["estimated"])
        rows.append([f"{title}step time", ms(start_us), ms(end_us), change])
    for row in data["memory"]:
        start, end, capacity = (row[f"{key}_bytes"] for key in ("before", "after", "capacity"))
        if start or end:
            over = " too much" if (end or 0) > capacity else ""
            values = ["–" if value is None else size(value) for value in (start, end)]
            rows.append(
                [f"memory, {device_label(row['device'])}", *values, f"of {size(capacity)}{over}"]
            )
    return rows


def _sections(data: Mapping[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Return each kind of difference: a sentence, and its rows."""
    from enplace.values.constraints import KINDS

    found = []
    if data["moved"]:
        rows = [
            [move["scope"], _arrow(move["before"], move["after"]), count(move["ops"], "op")]
            for move in data["moves"]
        ]
        found.append((f"{data['moved']:,} of {count(data['ops'], 'op')} on another device", rows))
    if data["reordered"]:
        found.append((f"{count(data['reordered'], 'op')} in another order on the same device", []))
    for kind in KINDS.values():
        for way, rows in data[f"{kind.noun}s"].items():
            if rows:
                found.append(_changed(kind, way, rows))
    for side, words in (("only_before", "removed"), ("only_after", "new")):
        if data[side]:
            found.append((f"{count(len(data[side]), 'op')} {words}: {listed(data[side])}", []))
    return found


def _changed(kind: Kind, way: str, rows: list[Any]) -> tuple[str, list[list[str]]]:
    """Say which constraints of a kind were added or removed, as for :func:`_sections`."""
    from enplace.values.constraints import DEVICE, OP

    if kind.roles == (OP, DEVICE):
        shown = [[r["scope"], device_label(r["device"]), count(r["ops"], "op")] for r in rows]
        return f"{count(sum(row['ops'] for row in rows), kind.noun)} {way}", shown
    what = f"{count(len(rows), kind.noun)} {way}"
    if kind.roles == (DEVICE,):
        return f"{what}: {listed([device_label(device) for device in rows])}", []
    if kind.many:
        return what, [[listed(row), kind.word, count(len(row), "op")] for row in rows]
    if kind.roles == (OP, OP):
        return what, [[first, kind.word, then] for first, then in rows]
    said = [kind.phrase.format(*kind.texts(row, _few, device_label)) for row in rows]
    return what, [[text, "", ""] for text in said]


def _few(ops: Sequence[str]) -> str:
    return count(len(ops), "op")


def _arrow(before: str, after: str) -> str:
    return f"{device_label(before)} → {device_label(after)}"


def _shown_sections(data: Mapping[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Return the sections that people read: at least a sentence, and not too many rows."""
    sections = _sections(data) or [("The plans place and order all ops alike", [])]
    shown = []
    for sentence, rows in sections:
        more = len(rows) - MOST_LINES
        sentence += f" (without {count(more, 'row')}; see --json)" if more > 0 else ""
        shown.append((sentence, rows[:MOST_LINES]))
    return shown


def _text(data: Mapping[str, Any]) -> str:
    facts = table([["", "before", "after", ""], *_facts(data)], "lrrl")
    parts = [facts]
    for sentence, rows in _shown_sections(data):
        parts.append(f"\n{sentence}{':' if rows else '.'}")
        if rows:
            parts += [f"  {line}" for line in table(rows, "llr").splitlines()]
    return "\n".join(parts)


def _markdown(data: Mapping[str, Any]) -> str:
    lines = [_row(["", "before", "after", ""]), _row(["---", "---:", "---:", "---"])]
    lines += map(_row, _facts(data))
    for sentence, rows in _shown_sections(data):
        lines += ["", f"**{_escaped(sentence)}**"]
        if rows:
            lines += ["", _row(["scope", "device", "ops"]), _row(["---", "---", "---:"])]
            lines += map(_row, rows)
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    """Keep Markdown from reading the characters of a name as its own."""
    return "".join(f"\\{letter}" if letter in "\\|*_`<>[]" else letter for letter in text)
