"""A plan as one self-contained web page: figures, pictures, tables, and how to apply it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np

from enplace.bounds import note_with_claim
from enplace.machine import critical_path
from enplace.machine.caching_allocator import about_reserved
from enplace.machine.pipelines.pipeline import (
    device_loads_us,
    fill_pipeline,
    fits_in,
    fullest_device,
    most_bytes,
)
from enplace.machine.pipelines.words import (
    about_waiting,
    describe_pace,
    lacking_in_flight,
    stage_rows,
    time_rows,
)
from enplace.machine.pipelines.words import device_rows as pipeline_rows
from enplace.machine.plan_words import (
    device_rows,
    limits_title,
    name_ranges,
    say_forward,
    say_limits,
    say_where,
)
from enplace.names.by_scope import count_by_scope
from enplace.names.groups import Grouping, open_groups
from enplace.pictures.cluster_svg import cluster_svg
from enplace.pictures.graph_svg import graph_svg
from enplace.pictures.memory_svg import memory_svg
from enplace.pictures.palette import colour_numbers
from enplace.pictures.timeline_svg import timeline_svg
from enplace.pictures.web_page import chip, fact, page, pairs, section
from enplace.text import (
    change_text,
    count,
    gap_text,
    joined,
    listed,
    ms,
    seconds,
    size,
)
from enplace.values.constraints import DEVICE, OP, Kind, Row
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem
from enplace.values.profile import Profile
from enplace.values.result import Alternative, Result
from enplace.values.schedule import Schedule
from enplace.values.spare_memory import about_memory
from enplace.values.splits import whole_names
from enplace.writers.registry import exporter

MAX_CONSTRAINTS, FEW_SCOPES = 60, 4

VALUES = {THROUGHPUT: "time per sample", LATENCY: "latency of a query"}
"""What a plan minimises if that is not the step time."""


@exporter(
    "html",
    title="report",
    suffix=".html",
    shows_bound=True,
    shows_references=True,
    mark="<title>.*: placement</title>",
)
def report_html(result: Result) -> str:
    """Write HTML that follows the reader's light or dark setting, prints well, loads nothing."""
    schedule = result.schedule
    profile, cluster = schedule.problem.profile, schedule.problem.cluster
    measured = schedule.problem.measured_profile.measured
    grouping = open_groups(profile, result.opened)
    title = result.titled(profile.name)
    sections = {
        "Devices": _devices(schedule) + _paragraphs(_about_memory(schedule)),
        **_pipeline(schedule, grouping),
        "Constraints": _constraints(schedule.problem, grouping),
        **({"Split ops": _splits(schedule.problem)} if schedule.problem.splits else {}),
        **({"How to apply it": _how_to_apply(result)} if result.how_to else {}),
        "Plan": _settings(result),
    }
    about = measured.about_times, measured.about_passes, *measured.notes
    pictures = (graph_svg(schedule, result.opened), timeline_svg(result), memory_svg(schedule))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>Where each of {count(profile.n_ops, 'op')} runs on {escape(cluster.name)}, and when.",
        *map(escape, filter(None, [_sentence(cluster.description), "All times are predicted."])),
        f"{escape(' '.join(filter(None, about)))}</p>",
        f'<section class="facts">{"".join(_facts(result))}</section>',
        _in_words("What it does", say_where(schedule, grouping)),
        _in_words(limits_title(schedule), say_limits(schedule, grouping)),
        _notes(result),
        _compared(result),
        *(f"<section>{picture}</section>" for picture in pictures),
        f'<section><div class="small">{cluster_svg(cluster)}</div></section>',
        *(section(title, body) for title, body in sections.items()),
    ]
    return page(f"{title}: placement", parts)


def _in_words(title: str, sentences: Sequence[str]) -> str:
    lines = "".join(f"<div>{escape(each)}</div>" for each in sentences)
    return section(title, lines) if sentences else ""


def _notes(result: Result) -> str:
    """Show what people have noted on the plan and on parts of the model."""
    return section("Notes", pairs(result.notes)) if result.notes else ""


def _sentence(text: str) -> str:
    """End a text with a stop, unless it is empty."""
    return f"{text.rstrip('.')}." if text else ""


def _facts(result: Result) -> Iterator[str]:
    schedule = result.schedule
    path = critical_path(schedule)
    sent = (schedule.transfer_finish_us - schedule.transfer_start_us).sum()
    role, fits = ("good", "fits") if schedule.fits else ("bad", schedule.fit_verdict)
    pipeline = fill_pipeline(schedule.problem, schedule.plan)
    title_of = schedule.problem.measured_profile.measured.title_of
    proven = ""
    if result.bound_us is not None:
        by = f" by {result.proven_by}" if result.proven_by else ""
        proven = f", proven{by} not below {ms(result.bound_us)}"
    if result.objective in VALUES:
        yield fact(ms(result.value_us), f"{title_of(VALUES[result.objective])}{proven}")
    is_step = result.objective == STEP_TIME
    of_one = " of one sample alone" * (pipeline is not None)
    about_step = f"{title_of('step time')}{of_one}{proven if is_step else ''}"
    yield fact(ms(schedule.makespan_us), about_step)
    if result.step_bound_us is not None:
        yield fact(gap_text(result.gap, schedule.fits), "at most left to gain")
    yield fact(
        count(len(schedule.transfer_tensor), "transfer"),
        f"{size(float(schedule.transfer_bytes.sum()))} in {ms(float(sent))}",
    )
    yield fact(
        ms(path.compute_us),
        f"computing on the critical path, {ms(path.transfer_us)} sending, "
        f"{ms(path.waiting_us)} waiting",
    )
    if pipeline is not None:
        peak_bytes = most_bytes(schedule)
        fullest = fullest_device(schedule.problem, peak_bytes)
        samples = count(pipeline.in_flight[fullest], "sample")
        about_memory = f"most memory in the pipeline, with {samples} in flight"
        yield fact(size(float(peak_bytes[fullest])), about_memory)
        if schedule.fits and not fits_in(schedule.problem, pipeline):
            role, fits = "bad", "does not fit with its samples in flight"
    yield f'<div><b class="{role}">{fits}</b><span>memory</span></div>'


def _compared(result: Result) -> str:
    """Tabulate this plan and those that it is compared with."""
    if not result.references:
        return ""
    others, schedule = result.references, result.schedule
    is_pipeline = result.objective == THROUGHPUT
    ours = Alternative(
        "this plan",
        schedule.problem.cluster,
        schedule.value_us if is_pipeline else schedule.makespan_us,
        most_bytes(schedule),
        int(schedule.transfer_bytes.sum()),
    )
    rows = [_compared_row(ours.name, ours, "")]
    rows += [_compared_row(title, each, _change(ours, each)) for title, each in others.items()]
    title = VALUES[THROUGHPUT] if is_pipeline else "step time"
    title = schedule.problem.measured_profile.measured.title_of(title)
    head = f"<th>{title}<th>this plan against it<th>sent<th>most memory on a device"
    about = [f"{title}: {each.about}" for title, each in others.items() if each.about]
    notes = _paragraphs([*about, *result.about_references])
    table = f"<table><tr><th>{head}</tr>{''.join(rows)}</table>"
    return f"<section><h2>Compared with</h2>{table}{notes}</section>"


def _change(ours: Alternative, other: Alternative) -> str:
    if not other.fits or not ours.fits or not other.value_us > 0:
        return ""
    return change_text(ours.value_us / other.value_us - 1)


def _compared_row(title: str, each: Alternative, change: str) -> str:
    peak, capacity = each.peak_bytes[each.fullest], each.cluster.capacity_bytes[each.fullest]
    memory = f"{size(int(peak))} of {size(int(capacity))}" if peak else ""
    unfit = "" if each.fits else ' class="bad"'
    return (
        f"<tr><td>{escape(title)}</td><td>{each.time}</td>"
        f"<td{unfit}>{change if each.fits else 'does not fit, so it cannot run'}</td>"
        f"<td>{size(float(each.sent_bytes))}</td><td{unfit}>{memory}</td></tr>"
    )


def _devices(schedule: Schedule) -> str:
    head, *rows = device_rows(schedule)
    cluster = schedule.problem.cluster
    exceeds = (schedule.peak_bytes > cluster.capacity_bytes).tolist()
    lines = ["".join(f"<th>{each}" for each in head)]
    for row, colour, is_over in zip(rows, colour_numbers(cluster), exceeds, strict=True):
        label, *cells = row
        marks = [*[""] * 3, *[' class="bad"' * is_over] * (len(cells) - 3)]
        marked = (f"<td{mark}>{cell}</td>" for mark, cell in zip(marks, cells, strict=True))
        lines.append(f"<td>{chip(colour)}{escape(label)}</td>{''.join(marked)}")
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _about_memory(schedule: Schedule) -> list[str]:
    cluster = schedule.problem.cluster
    known = about_memory(cluster, schedule.peak_bytes, schedule.fit_verdict)
    return [*known, about_reserved(schedule)]


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts if text)


def _pipeline(schedule: Schedule, grouping: Grouping) -> dict[str, str]:
    """Show what each device of a pipeline runs and holds, and its stages; empty for a step."""
    problem, plan = schedule.problem, schedule.plan
    found = fill_pipeline(problem, plan)
    if found is None:
        return {}
    runs, loads_us = say_forward(schedule, grouping), device_loads_us(problem, plan)
    (name, *head), *rows = pipeline_rows(problem, found)
    devices = [[name, "runs", "load", *head]]
    for (device, *cells), where, load_us in zip(rows, runs, loads_us, strict=True):
        devices.append([device, where, ms(load_us), *cells])
    about = [
        "The load is what a device does for each sample: the busiest one sets the pace. All else "
        "is of a whole step.",
        describe_pace(problem, plan, found),
        lacking_in_flight(problem, found),
        about_waiting(found.kind),
    ]
    title = f"Pipeline: {found.kind}, {count(found.n_microbatches, 'sample')}"
    times = [(what, f"{time} {more}") for what, time, more in time_rows(problem, found)]
    body = pairs(times), _table(devices), _paragraphs(about), _table(stage_rows(problem, found))
    return {title: "".join(body)}


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Make a table of rows, of which the first is its heading."""
    head, *body = rows
    lines = ["".join(f"<th>{escape(cell)}" for cell in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _constraints(problem: Problem, grouping: Grouping) -> str:
    """Sum up what a person demanded, by scope."""
    rows = [
        (label, text)
        for kind, each in problem.constraints.items()
        for label, text in _say(kind, each, problem, grouping)
    ]
    more = len(rows) - MAX_CONSTRAINTS
    if more > 0:
        rows = [*rows[:MAX_CONSTRAINTS], ("and", count(more, "more constraint"))]
    return pairs(rows) if rows else '<span class="dim">None: every op was free.</span>'


def _say(
    kind: Kind, rows: Sequence[Row], problem: Problem, grouping: Grouping
) -> list[tuple[str, str]]:
    names = problem.profile.op_names
    devices = [device.label for device in problem.cluster.devices]
    if kind.roles == (OP, DEVICE):
        places: dict[str, list[str]] = {}
        for op, device in rows:
            places.setdefault(names[op], []).append(devices[device])
        where = {name: ", ".join(there) for name, there in places.items()}
        return [
            (f"{kind.label} {there}", text)
            for text, there in _by_name(where, problem.profile, grouping)
        ]
    if kind.roles == (OP, OP):
        return [(kind.label, kind.sentence.format(*pair)) for pair in _orders(rows, problem)]

    def some(ops: Sequence[int]) -> str:
        return ", ".join(
            text for text, _ in _by_name({names[op]: "" for op in ops}, problem.profile, grouping)
        )

    return [
        (kind.label, kind.sentence.format(*kind.texts(row, some, devices.__getitem__)))
        for row in rows
    ]


def _orders(rows: Sequence[Row], problem: Problem) -> list[tuple[str, str]]:
    """Name the ops of each order that was asked for: that of a split op holds for all its parts."""
    names = problem.profile.op_names
    whole = whole_names(names, problem.splits)
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for first, then in rows:
        found.setdefault((whole[first], whole[then]), []).append((names[first], names[then]))
    return [pair if len(parts) > 1 else parts[0] for pair, parts in found.items()]


def _splits(problem: Problem) -> str:
    """Sum up which ops are split and how, by scope."""
    ways = {each.op: f"into {each.how}" if each.is_cut else each.how for each in problem.splits}
    return pairs([(way, text) for text, way in _by_scope(ways)])


def _by_name(
    keys: Mapping[str, str], profile: Profile, grouping: Grouping
) -> list[tuple[str, str]]:
    """Name groups as the graph does, and of other ops a few scopes, each with its key."""
    names: dict[str, list[str]] = {}
    for name, key in keys.items():
        names.setdefault(key, []).append(name)
    rows = []
    for key, members in names.items():
        group = grouping.group[[profile.index[name] for name in members]]
        has = np.bincount(group + 1, minlength=grouping.n_groups + 1)[1:]
        whole = np.flatnonzero((has > 1) & (has == grouping.sizes))
        if len(whole):
            n_ops = int(has[whole].sum())
            named = joined(name_ranges(grouping, whole.tolist()))
            rows.append((f"{named} ({count(n_ops, 'op')})", key))
        in_whole = np.isin(group, whole).tolist()
        rest = {name: key for name, is_in in zip(members, in_whole, strict=True) if not is_in}
        rows += _by_scope(rest)
    return rows


def _by_scope(keys: Mapping[str, str]) -> list[tuple[str, str]]:
    """Name a few scopes with their number of ops, each with its key; a single op by its name."""
    return [
        (scope if n_ops == 1 and scope in keys else f"{scope} ({count(n_ops, 'op')})", key)
        for scope, key, n_ops in count_by_scope(keys, FEW_SCOPES)
    ]


def _how_to_apply(result: Result) -> str:
    """Show what to do, and what to copy for it."""
    return "".join(
        f"<div>{escape(text)}</div>" + (f"<pre>{escape(lines)}</pre>" if lines else "")
        for text, lines in result.how_to
    )


def _settings(result: Result) -> str:
    """Show how the plan was made, and by which rules it is simulated."""
    schedule = result.schedule
    problem, plan = schedule.problem, schedule.plan
    labels = [device.label for device in problem.cluster.devices]
    facts = [
        ("method", plan.method),
        ("seed", "" if plan.seed is None else str(plan.seed)),
        ("solved in", "" if plan.solve_seconds is None else seconds(plan.solve_seconds)),
        ("ops are taken by", plan.policy),
        ("transfers are taken by", plan.links),
        ("pipeline", plan.load_rule.words if plan.load_rule else ""),
        ("proven best", "yes" if plan.proven else ""),
        ("computes again", listed([labels[device] for device in plan.recompute])),
        *((key.replace("_", " "), _shown(value)) for key, value in sorted(plan.details.items())),
        ("note", note_with_claim(result, plan.note)),
        ("fingerprint of the graph", problem.measured_profile.fingerprint),
    ]
    return pairs([(key, value) for key, value in facts if value])


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return listed([f"{key}: {_shown(each)}" for key, each in value.items()])
    return f"{value:.4g}" if isinstance(value, float) else str(value)
