"""What verifying a machine found, as one self-contained web page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

import numpy as np

from enplace.frameworks.link_fits import about_poor, about_presets, link_fits
from enplace.frameworks.measured import NOT_SEEN, MeasuredRun, quartiles_us
from enplace.frameworks.verifying import (
    DataParallel,
    DeviceFigures,
    PlanCheck,
    Verification,
    machine_facts,
)
from enplace.pictures.graph_svg import graph_svg
from enplace.pictures.measured_svg import measured_svg
from enplace.pictures.palette import colour_numbers
from enplace.pictures.svg import frame
from enplace.pictures.web_page import chip, fact, page, pairs, section
from enplace.text import count, ms, one_line, percent, size
from enplace.values.device_names import device_label
from enplace.values.profile import Profile

_WIDTH, _LEFT, _TOP, _ROW = 1200, 190, 48, 34
_BAR_WIDTH = 860


def verification_html(found: Verification, version: str) -> str:
    """Write the verdict and what to do, then figures and pictures of every plan.

    Parameters
    ----------
    version : str
        Enplace's.
    """
    parts = [
        "<h1>Does Enplace work on this machine?</h1>",
        "<p>Small models that ship with Enplace were profiled here, placed by several methods, and "
        "run. Predictions come from the profiles alone.</p>",
        _verdict(found),
        f'<section class="facts">{"".join(_facts(found))}</section>',
        section("Predicted and measured steps", steps_svg(found)),
        section("Plans", _plans(found)),
        section("Is a plan worth it here?", pairs([*found.best.items()])),
        section("Devices", _devices(found)),
        *([section("Transfers", links)] if (links := _links(found.profiles)) else []),
        *_pictures(found),
        section("Machine", pairs([*machine_facts(found, version).items()])),
    ]
    return page("Enplace on this machine", parts)


def _verdict(found: Verification) -> str:
    colour = "good" if found.as_planned else "bad"
    lines = "".join(f"<p>{escape(one_line(line))}</p>" for line in found.advice)
    return f'<section><h2 class="{colour}">{escape(found.verdict)}</h2>{lines}</section>'


def _facts(found: Verification) -> Iterator[str]:
    equal = f"plans ran as planned, {found.n_bit_equal} with a result equal to the last bit"
    yield fact(f"{found.n_as_planned} of {len(found.checks)}", equal)
    if found.error is not None:
        yield fact(percent(found.error), "median |predicted − measured| of the step")
    yield fact(found.devices, "devices")


def _plans(found: Verification) -> str:
    rows = "".join(_plan_row(check) for check in found.checks)
    rows += "".join(map(_shared_row, found.data_parallel))
    head = (
        "<th>model<th>method<th>predicted<th>measured<th>half of the steps<th>off"
        "<th>without a plan<th>ops where planned<th>out of order<th>result differs by"
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _plan_row(check: PlanCheck) -> str:
    names = f"<td>{escape(check.model)}</td><td>{escape(check.method)}</td>"
    run = check.run
    if run is None or not (run.on_labels or check.error is not None):
        return f'<tr>{names}<td colspan="8" class="bad">{escape(one_line(check.faults))}</td></tr>'
    marks = [
        not run.is_in_place,
        bool(run.order_violations),
        run.changes_result,
    ]
    in_place, checked = run.in_place
    cells = [
        f"{in_place:,} of {checked:,}" + " modules" * (run.ops_checked is None),
        "" if run.order_violations is None else f"{run.order_violations:,}",
        _difference(run),
    ]
    judged = "".join(
        f'<td class="{"bad" if is_bad else "good"}">{text}</td>'
        for is_bad, text in zip(marks, cells, strict=True)
    )
    return f"<tr>{names}{_times(run, check.error)}{judged}</tr>"


def _times(run: MeasuredRun, error: float | None) -> str:
    """Show the times of a run, of which labels have none."""
    if error is None:
        return f"<td>{ms(run.predicted_step_time_us)}</td><td>labels</td>{'<td></td>' * 3}"
    half = " to ".join(map(ms, quartiles_us(run.step_times_us)))
    return (
        f"<td>{ms(run.predicted_step_time_us)}</td><td>{ms(run.step_time_us)}</td>"
        f"<td>{half}</td><td>{percent(error, signed=True)}</td><td>{_alone(run)}</td>"
    )


def _shared_row(shared: DataParallel) -> str:
    names = f"<td>{escape(shared.model)}</td><td>{escape(shared.called)}</td>"
    names += f"<td>{ms(shared.predicted_us)}"
    if shared.error is None:
        return f'<tr>{names}</td><td colspan="7">{escape(one_line(shared.why_not))}</td></tr>'
    off = percent(shared.error, signed=True)
    return f"<tr>{names}</td><td>{ms(shared.measured_us)}</td><td></td><td>{off}</td></tr>"


def _alone(run: MeasuredRun) -> str:
    us = run.stock_step_time_us
    return ms(us) if math.isfinite(us) else "out of memory"


def _difference(run: MeasuredRun) -> str:
    """Show the largest difference from the run without the plan."""
    if not run.differs:
        return run.equality
    known = [d for d in (run.loss_difference, run.weights_difference) if not math.isnan(d)]
    return f"{max(known):.2g}" + f", {run.equality}" * (not run.changes_result)


def _device_rows(check: PlanCheck) -> Iterator[str]:
    if check.run is None:
        return
    cluster, plan = check.run.cluster, f"{check.model}, {check.method}"
    colours = dict(zip(cluster.index, colour_numbers(cluster), strict=True))
    for device in check.devices:
        name = f"{chip(colours[device.name])}{escape(device_label(device.name))}"
        yield f"<tr><td>{name}</td><td>{escape(plan)}</td>{_device_cells(device)}</tr>"


def _devices(found: Verification) -> str:
    rows = "".join(row for check in found.checks for row in _device_rows(check))
    head = (
        "<th>device<th>plan<th>busy, predicted<th>busy, measured<th>peak memory, predicted"
        "<th>peak memory, allocator<th>capacity"
    )
    note = (
        "A busy time is that of all ops on a device in one step, with the calibrated overhead of "
        "each."
    )
    peaks = [device.measured_peak_bytes for check in found.checks for device in check.devices]
    note += " The allocator of the CPU reports nothing." * (None in peaks)
    return f'<table><tr>{head}</tr>{rows}</table><p class="dim">{note}</p>'


def _device_cells(device: DeviceFigures) -> str:
    measured = device.measured_peak_bytes
    cells = [
        ms(device.busy_us),
        ms(device.measured_busy_us),
        size(device.peak_bytes),
        "not reported" if measured is None else size(measured),
        size(device.capacity_bytes),
    ]
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _links(profiles: tuple[Profile, ...]) -> str:
    """Show the links of the first profile: they are those of the machine."""
    fits = link_fits(profiles[0])
    rows = pairs([(fit.title, fit.text) for fit in fits]) if fits else ""
    remarks = filter(None, (about_poor(fits), about_presets(profiles[0])))
    return rows + "".join(f'<p class="dim">{escape(text)}</p>' for text in remarks)


def _pictures(found: Verification) -> Iterator[str]:
    """Draw for each model the graph and the timeline of its last plan that ran."""
    ran = (c for c in found.checks if c.run and (c.run.op_device != NOT_SEEN).any())
    last = {check.model: check for check in ran if check.schedule}
    for check in last.values():
        assert check.run is not None
        assert check.schedule is not None
        run = check.run
        yield f"<section>{graph_svg(check.schedule)}</section>"
        times_us = run.op_start_us, run.op_finish_us
        if np.isfinite(times_us).any():
            yield f"<section>{measured_svg(check.schedule, *times_us, run.op_device)}</section>"


def steps_svg(found: Verification) -> str:
    """Draw for each plan that ran a bar for the predicted and one for the measured step."""
    timed = [c for c in found.checks if c.run and c.error is not None]
    ran = [check.run for check in timed if check.run]
    models = [check.model for check in timed]
    longest_us = max((max(r.step_time_us, r.predicted_step_time_us) for r in ran), default=1.0)
    parts = [
        '<rect class="d0" x="16" y="12" width="10" height="10"/>'
        '<text class="text" x="32" y="21">predicted</text>'
        '<rect class="d1" x="116" y="12" width="10" height="10"/>'
        '<text class="text" x="132" y="21">measured</text>'
    ]
    for number, (model, run) in enumerate(zip(models, ran, strict=True)):
        y = _TOP + _ROW * number
        parts.append(
            f'<text class="text" x="16" y="{y + 17}">{escape(f"{model}, {run.plan.method}")}</text>'
        )
        for line, us in enumerate((run.predicted_step_time_us, run.step_time_us)):
            width = _BAR_WIDTH * us / longest_us
            parts.append(
                f'<rect class="d{line}" x="{_LEFT}" y="{y + 13 * line}" width="{width:.1f}" '
                f'height="12"/><text class="dim" x="{_LEFT + width + 8:.1f}" '
                f'y="{y + 13 * line + 10}" font-size="11">{ms(us)}</text>'
            )
    title = f"Predicted and measured steps of {count(len(ran), 'plan')}"
    return frame(title, _WIDTH, _TOP + _ROW * len(ran) + 8, parts)
