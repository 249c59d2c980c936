"""The results of every method on every bundled profile and the papers' testbeds, as two pictures.

The pages of the methods in the manual quote the step times from the raw numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple
from xml.sax.saxutils import escape

from benchmarks.report import NEUTRAL, Report, publish
from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.machine.pipelines.loads import max_load_us
from enplace.placers import (
    DEFAULT_METHOD,
    STEP_TIME,
    THROUGHPUT,
    PlaceOptions,
    Stop,
    place,
    placers,
)
from enplace.placers.max_load.table.contract import find_static_excess
from enplace.placing.registry import ANYTIME
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.readers.samples import samples
from enplace.values.plan import Plan
from enplace.values.problem import Problem

CLUSTERS = {"pesto": "2 GPUs", "celeritas": "4 GPUs", "fastt": "8 GPUs"}
"""Testbeds of the papers: two, four and eight V100s."""

LIMIT_S, QUICK_S, QUICK_SAMPLE = 2.0, 1.0, "vgg-19"
"""Time limit of methods that search until it ends."""


class Picture(NamedTuple):
    """An objective's picture: its heading, the method in bold, and words for its caption."""

    title: str
    bold: str
    caption: str
    grey: str
    limit: str


PICTURES = {
    STEP_TIME: Picture(
        "Step time",
        DEFAULT_METHOD,
        "Predicted step time",
        "does not fit in memory",
        "Searches were given",
    ),
    THROUGHPUT: Picture(
        "Pipelines",
        "max-load-dp",
        "Time per sample of a pipeline",
        "does not fit by the sum of all weights and outputs",
        "Each method was given at most",
    ),
}

ROW, COLUMN, LEFT, TOP, FOOT = 20, 62, 164, 62, 34
BLUE, GREY, INK = (66, 133, 190), "#d8d8d8", "#1c1c1c"


class Cell(NamedTuple):
    """Step time or time per sample in ms, and whether the plan fits; NaN, and why, without one."""

    ms: float
    fits: bool = True
    why_none: str = ""


Column = tuple[str, str, dict[str, Cell]]
"""Profile, cluster, and a cell for each method."""


def main(report: Report) -> None:
    """Report both objectives."""
    for objective, look in PICTURES.items():
        limit_s = report.pick(LIMIT_S, QUICK_S)
        report.title(look.title)
        columns = []
        for column in run_all(objective, limit_s, QUICK_SAMPLE if report.quick else ""):
            columns.append(column)
            _print(objective, column)
        drawn = picture(columns, objective, limit_s)
        alt = f"{look.caption} of all methods on the bundled profiles and three testbeds"
        report.picture(drawn, alt, f"-{objective}")
        head = ("method", "above the column's best, geometric mean", "plans that fit")
        report.table(head, _means(columns))
        for profile, cluster, cells in columns:
            for method, cell in cells.items():
                if cell.why_none:
                    report.text(
                        f"`{method}` has no plan of {profile} on {cluster}: {cell.why_none}."
                    )
        report.numbers(
            ("profile", "cluster", "method", "ms", "fits"), numbers(columns), f"-{objective}"
        )


def _print(objective: str, column: Column) -> None:
    profile, cluster, cells = column
    print(f"\n{objective} of {profile} on {cluster}")
    for method, cell in sorted(cells.items(), key=lambda pair: _rank(pair[1])):
        note = "" if cell.fits else "  does not fit"
        print(f"  {method:<26}{cell.ms:>10.2f} ms{note}", flush=True)


def _means(columns: list[Column]) -> Iterator[tuple[str, str, str]]:
    """Compare each method with the best of each column, where it has a plan that fits."""
    for method in sorted(columns[0][2], key=partial(_mean_ratio, columns)):
        found = [(cells[method], _best(cells)) for _, _, cells in columns]
        fitting = [(cell.ms, best) for cell, best in found if cell.fits]
        mean = sum(math.log(ms / best) for ms, best in fitting) / max(1, len(fitting))
        shown = f"{100 * math.expm1(mean):.1f} %" if fitting else ""
        yield f"`{method}`", shown, f"{len(fitting)} of {len(columns)}"


def numbers(columns: list[Column]) -> Iterator[tuple[str, str, str, str, int]]:
    """List each method on each profile and cluster; no time if there is no plan."""
    for profile, cluster, cells in columns:
        for method, cell in cells.items():
            ms = "" if math.isnan(cell.ms) else f"{cell.ms:.3f}"
            yield profile, cluster, method, ms, int(cell.fits)


def run_all(objective: str, limit_s: float, only: str = "") -> Iterator[Column]:
    """Run every method for an objective on every profile and cluster."""
    for sample in samples():
        if only not in ("", sample.name):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profile = read_profile(str(sample.path))
        for cluster in CLUSTERS:
            problem = Problem(profile, presets()[cluster])
            cells = {
                name: _cell(problem, name, objective, limit_s)
                for name, method in placers(objective).items()
                if method.installed
            }
            yield sample.name, cluster, cells


def _cell(problem: Problem, method: str, objective: str, limit_s: float) -> Cell:
    able = placers()[method]
    searches = able.can(ANYTIME) or objective == THROUGHPUT
    options = PlaceOptions(objective, stop=Stop(limit_s if searches else None))
    try:
        plan = place(problem, method, options=options).plan
    except EnplaceError as error:
        return Cell(math.nan, False, str(error))
    return _step(problem, plan) if objective == STEP_TIME else _sample(problem, plan)


def _step(problem: Problem, plan: Plan) -> Cell:
    schedule = simulate(problem, plan)
    return Cell(schedule.makespan_us / 1e3, schedule.fits)


def _sample(problem: Problem, plan: Plan) -> Cell:
    load_us = max_load_us(problem, plan.device, replicas=plan.replicas)
    return Cell(load_us / 1e3, find_static_excess(problem, plan.device) == 0)


def _rank(cell: Cell) -> tuple[bool, float]:
    """Rank plans that fit first, then by step time."""
    return not cell.fits, cell.ms if math.isfinite(cell.ms) else math.inf


def picture(columns: list[Column], objective: str, limit_s: float) -> str:
    """Draw the table as SVG: methods by geometric mean; the bluer a cell, the better."""
    methods = sorted(columns[0][2], key=lambda method: _mean_ratio(columns, method))
    missing = [name for name, method in placers(objective).items() if not method.installed]
    rows = len(methods) + len(missing)
    width, height = LEFT + COLUMN * len(columns) + 8, TOP + ROW * rows + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
    ]
    for number, (profile, cluster, cells) in enumerate(columns):
        x = LEFT + COLUMN * number
        if number % len(CLUSTERS) == 0:
            centre = x + COLUMN * len(CLUSTERS) / 2
            parts.append(_text(centre, 22, profile, "middle", NEUTRAL, bold=True))
            parts.append(f'<path d="M{x} 28h{COLUMN * len(CLUSTERS) - 6}" stroke="{NEUTRAL}"/>')
        parts.append(_text(x + COLUMN - 8, 46, CLUSTERS[cluster], "end", NEUTRAL))
        best = _best(cells)
        for row, method in enumerate(methods):
            parts += _drawn(x, TOP + ROW * row, cells[method], best)
    _, bold, caption, grey, limit = PICTURES[objective]
    for row, method in enumerate(methods + missing):
        y = TOP + ROW * row + 14
        parts.append(_text(8, y, method, "start", NEUTRAL, bold=method == bold))
        if method in missing:
            parts.append(_text(LEFT, y, "not installed where this was drawn", "start", NEUTRAL))
    caption = (
        f"{caption} in ms on V100s; the bluer, the closer to the column's best. Grey: {grey}. "
        f"{limit} {limit_s:.0f} s."
    )
    parts.append(_text(8, height - 12, caption, "start", NEUTRAL))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _best(cells: dict[str, Cell]) -> float:
    return min((c.ms for c in cells.values() if c.fits), default=math.nan)


def _mean_ratio(columns: list[Column], method: str) -> float:
    """Return a method's mean ratio to the best of each column; without a plan that fits, 10."""
    logs = []
    for _, _, cells in columns:
        ratio = cells[method].ms / _best(cells) if cells[method].fits else math.nan
        logs.append(math.log(ratio if math.isfinite(ratio) else 10))
    return sum(logs) / len(logs)


def _drawn(x: float, y: float, cell: Cell, best: float) -> list[str]:
    known = math.isfinite(cell.ms)
    share = max(0.0, 1 - (cell.ms / best - 1)) if known and cell.fits else 0.0
    mixed = [round(255 + (part - 255) * 0.75 * share) for part in BLUE]
    fill = f"rgb({mixed[0]},{mixed[1]},{mixed[2]})" if known and cell.fits else GREY
    shown = f"{cell.ms:,.1f}" if known else "none"
    return [
        f'<rect x="{x}" y="{y}" width="{COLUMN - 4}" height="{ROW - 3}" rx="2" fill="{fill}"/>',
        _text(x + COLUMN - 8, y + 13, shown, "end", INK, bold=known and cell.ms == best),
    ]


def _text(x: float, y: float, text: str, anchor: str, fill: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}"{weight}>{escape(text)}</text>'
    )


if __name__ == "__main__":
    publish(
        main,
        "methods",
        "All methods, models and clusters",
        "Simulated, from op times that were measured on one H200. One run: the plans of methods "
        "with a time limit depend on the speed of the machine.",
    )
