"""A plan as one self-contained web page: numbers, timeline, devices, memory, settings."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from enplace.bounds import lower_bound_us
from enplace.machine import critical_path
from enplace.names.by_scope import count_by_scope
from enplace.text import count, gap_text, ms, percent, size
from enplace.values.device_names import device_label
from enplace.values.plan import find_gap
from enplace.values.schedule import Schedule
from enplace.writers.memory_svg import memory_svg
from enplace.writers.palette import DARK, LIGHT, device_class, picture_style
from enplace.writers.plan_facts import facts_to_json
from enplace.writers.registry import exporter
from enplace.writers.timeline_svg import busy_fraction, draw_timeline

MAX_PINS = 50

_STYLE = """
body{margin:0;padding:24px;background:var(--bg);color:var(--text);
font:13px/1.5 Inter,system-ui,sans-serif}
main{max-width:1200px;margin:auto}
h1{font-size:20px;font-weight:600;margin:0 0 4px}
h2{font-size:13px;font-weight:600;margin:0 0 8px}
p{margin:0 0 16px;color:var(--dim)}
section{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px;
margin-bottom:10px;overflow-x:auto}
.facts{display:flex;flex-wrap:wrap;gap:10px 40px}
.facts b{display:block;font-size:20px;font-weight:600}
.facts span,.dim{color:var(--dim)}
.bad{color:var(--bad)}.good{color:var(--good)}
table{border-collapse:collapse;width:100%}
th{font-weight:500;color:var(--dim);text-align:right}
td{text-align:right;border-top:1px solid var(--line);padding:4px 0 4px 16px}
th:first-child,td:first-child{text-align:left;padding-left:0}
table.settings td{text-align:left;overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto}
svg.chip{display:inline;width:10px;height:10px;margin-right:6px}
"""


@exporter("html", title="report", suffix=".html")
def report_html(schedule: Schedule) -> str:
    """Write HTML that follows the reader's light or dark setting and loads nothing."""
    profile, cluster = schedule.problem.profile, schedule.problem.cluster
    bound_us = lower_bound_us(schedule.problem)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(profile.name)}: placement</title>",
        f"<style>{_variables()}{_STYLE}{picture_style()}</style></head>\n<body><main>",
        f"<h1>{escape(profile.name)}</h1>",
        f"<p>{count(profile.n_ops, 'op')} on {escape(cluster.name)}.",
        f"{escape(cluster.description)}</p>",
        f'<section class="facts">{"".join(_facts(schedule, bound_us))}</section>',
        f"<section><h2>Timeline</h2>{draw_timeline(schedule, bound_us)}</section>",
        f"<section><h2>Devices</h2>{_devices(schedule)}</section>",
        f"<section><h2>Memory over time</h2>{''.join(_memory(schedule))}</section>",
        f"<section><h2>Plan</h2>{_settings(schedule)}</section>",
    ]
    return "\n".join([*parts, "</main></body></html>"]) + "\n"


def _variables() -> str:
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in tokens.items())
        for tokens in (LIGHT, DARK)
    )
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _facts(schedule: Schedule, bound_us: float) -> Iterator[str]:
    path = critical_path(schedule)
    sent = (schedule.transfer_finish_us - schedule.transfer_start_us).sum()
    fits = '<b class="good">fits</b>' if schedule.fits else '<b class="bad">does not fit</b>'
    yield _fact(ms(schedule.makespan_us), f"step time, proven not below {ms(bound_us)}")
    gap = find_gap(schedule.makespan_us, bound_us)
    yield _fact(gap_text(gap, schedule.fits), "at most left to gain")
    yield _fact(
        count(len(schedule.transfer_tensor), "transfer"),
        f"{size(float(schedule.transfer_bytes.sum()))} in {ms(float(sent))}",
    )
    yield _fact(
        ms(path.compute_us),
        f"computing on the critical path, {ms(path.transfer_us)} sending, "
        f"{ms(path.waiting_us)} waiting",
    )
    yield f"<div>{fits}<span>memory</span></div>"


def _fact(value: str, meaning: str) -> str:
    return f"<div><b>{escape(value)}</b><span>{escape(meaning)}</span></div>"


def _devices(schedule: Schedule) -> str:
    ops = np.bincount(schedule.plan.device, minlength=schedule.problem.cluster.n_devices)
    fractions = busy_fraction(schedule)
    rows = []
    for number, device in enumerate(schedule.problem.cluster.devices):
        peak, capacity = int(schedule.peak_bytes[number]), int(device.capacity_bytes)
        warning = ' class="bad"' if peak > capacity else ""
        chip = (
            f'<svg class="chip" viewBox="0 0 10 10"><rect class="{device_class(number)}" '
            f'width="10" height="10" rx="2"/></svg>'
        )
        rows.append(
            f"<tr><td>{chip}{escape(device_label(device.name))}</td><td>{ops[number]:,}</td>"
            f"<td>{ms(float(schedule.busy_us[number]))}</td><td>{percent(fractions[number])}</td>"
            f"<td{warning}>{size(peak)} of {size(capacity)}</td>"
            f"<td{warning}>{percent(peak / capacity)}</td></tr>"
        )
    head = "<tr><th>device<th>ops<th>busy<th><th>peak memory<th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _memory(schedule: Schedule) -> Iterator[str]:
    for number, device in enumerate(schedule.problem.cluster.devices):
        if schedule.peak_bytes[number] > 0:
            peak = size(float(schedule.peak_bytes[number]))
            name = escape(device_label(device.name))
            yield f'<div>{name} <span class="dim">peak {peak}</span></div>'
            yield memory_svg(schedule, number)


def _settings(schedule: Schedule) -> str:
    problem, plan = schedule.problem, schedule.plan
    devices, facts = problem.cluster.devices, sorted(facts_to_json(plan).items())
    rows = [
        ("method", plan.method),
        ("ops are taken by", plan.policy),
        ("transfers are taken by", plan.links),
        *((key.replace("_", " "), _shown(value)) for key, value in facts),
        ("fingerprint of the graph", problem.measured_profile.fingerprint),
    ]
    names = problem.profile.op_names
    pins = count_by_scope({names[op]: device for op, device in sorted(problem.pins.items())})
    rows += [
        (f"pinned to {device_label(devices[device].name)}", f"{scope} ({count(n_ops, 'op')})")
        for scope, device, n_ops in pins[:MAX_PINS]
    ]
    if len(pins) > MAX_PINS:
        rows.append(("and pins in", count(len(pins) - MAX_PINS, "more scope")))
    cells = "".join(
        f"<tr><td>{escape(key)}</td><td>{escape(value)}</td></tr>" for key, value in rows
    )
    return f'<table class="settings">{cells}</table>'


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
