"""The largest measured profiles on cards of half the memory that they need: is there a plan?"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.place import cpu_limit, measured_profiles
from benchmarks.report import Report, publish, spread
from enplace.errors import DoesNotFitError
from enplace.inputs import usual_method
from enplace.machine import simulate
from enplace.mends.search import find_fit
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, place
from enplace.placers.enplace.with_recompute import METHOD
from enplace.placing.options import OFFLOAD
from enplace.readers import read_profile
from enplace.readers.clusters import presets
from enplace.text import size
from enplace.values.cluster import Cluster
from enplace.values.cluster_variants import boundless, with_gpus
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, Problem
from enplace.values.profile import Profile
from enplace.values.splits import OFFLOAD as ON_HOST
from enplace.values.splits import RECOMPUTE

CARDS = "pcie-2"
"""The cluster of the cards, with a host."""

LARGEST, QUICK = 16, 2
"""How many profiles."""

LIMIT_S, ROOMY_S, ROW_S, QUICK_S = 30.0, 10.0, 3.0, 2.0
"""Seconds for a plan, for the one without a limit, and for each change where no plan is found."""

AT_ONCE = 2
"""How many profiles are placed side by side: limits are of CPU time, so they may share cores."""

HEAD = (
    *("profile", "ops", "variables", "each card", "fits", "found after (s)"),
    *("step time (ms)", "without a limit (ms)", "price (%)", "how"),
)


class Row(NamedTuple):
    """What was found for a profile on some cards."""

    profile: str
    cards: int
    card_bytes: int
    variable_bytes: int
    fits: int
    proven: int
    first_s: float
    step_ms: float
    roomy_ms: float
    recomputed: int
    on_host: int
    change: str


class Need(NamedTuple):
    """A profile and the memory that one card needs for it."""

    name: str
    profile: Profile
    need_bytes: int


def main(report: Report) -> None:
    """Report a row for each profile on one card, and one on two."""
    found = sorted(map(_need, measured_profiles()), key=lambda each: -each.need_bytes)
    chosen = found[: report.pick(LARGEST, QUICK)]
    limit_s, roomy_s, row_s = report.pick((LIMIT_S, ROOMY_S, ROW_S), (QUICK_S,) * 3)
    report.text(
        f"What a profile needs is the peak of the plan `single`, which runs it on one card in the "
        f"order of its graph, as a framework does; of {len(found)} profiles, these "
        f"{len(chosen)} need most. Each card is one of `{CARDS}`, which have a host, with half "
        f"of that memory. `{METHOD} --offload` was given {limit_s:.0f} s of CPU time. The price "
        f"is against the plan on as many cards with boundless memory, by `{DEFAULT_METHOD}` in "
        f"{roomy_s:.0f} s. Where nothing was found, the last column has the fastest change that "
        f"`enplace fit` offers, with {row_s:.0f} s for each, and its price."
    )
    raw: list[Row] = []
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        for cards, title in enumerate(("One card", "Two cards"), 1):
            report.title(f"{title} of half the need")
            find = partial(_row, cards=cards, limit_s=limit_s, roomy_s=roomy_s, row_s=row_s)
            own: list[Row] = []
            report.table(HEAD, _shown(pool.map(find, chosen), own))
            _sum_up(report, own)
            raw += own
    report.numbers(Row._fields, raw)


def _shown(found: Iterable[tuple[Row, list[str]]], rows: list[Row]) -> Iterator[list[str]]:
    """Add the raw numbers to a list, and yield the cells."""
    for row, cells in found:
        rows.append(row)
        yield cells


def _sum_up(report: Report, rows: list[Row]) -> None:
    fitting = [row for row in rows if row.fits]
    report.figure("a plan that fits", f"{len(fitting)} of {len(rows)}")
    report.figure("proven: there is none", f"{sum(row.proven for row in rows)}")
    if fitting:
        prices = [100 * (row.step_ms / row.roomy_ms - 1) for row in fitting]
        report.figure("price (%), median and quartiles", spread(prices))
        report.figure("found after (s), at the latest", f"{max(r.first_s for r in fitting):.1f}")


def _need(path: Path) -> Need:
    """Find what one card needs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profile = read_profile(path)
    problem = Problem(profile, boundless(with_gpus(presets()[CARDS], 1)))
    schedule = place(problem, "single", options=PlaceOptions()).schedule
    return Need(path.name.split(".")[0], profile, int(schedule.peak_bytes[0]))


def _row(
    each: Need, cards: int, limit_s: float, roomy_s: float, row_s: float
) -> tuple[Row, list[str]]:
    """Return the raw numbers of a profile on some cards, and the cells of the table."""
    cluster = with_gpus(presets()[CARDS], cards)
    roomy = Problem(each.profile, boundless(cluster))
    best = place(roomy, DEFAULT_METHOD, options=PlaceOptions(stop=cpu_limit(roomy_s)))
    roomy_ms, card = best.schedule.makespan_us / 1e3, each.need_bytes // 2
    half = _with_cards(cluster, card)
    variables = int(each.profile.persistent_bytes.sum())
    step_ms, is_proven, first_s, done = _place(each.profile, half, limit_s)
    change = ""
    if done is None:
        change, step_ms = _cheapest(roomy, half, row_s)
    counts = done or Counter[str]()
    row = Row(
        *(each.name, cards, card, variables, int(done is not None), int(is_proven), first_s),
        *(step_ms, roomy_ms, counts[RECOMPUTE], counts[ON_HOST], change),
    )
    words = [f"{counts[RECOMPUTE]:,} ops again"] * bool(counts[RECOMPUTE])
    words += [f"{counts[ON_HOST]:,} on the host"] * bool(counts[ON_HOST])
    fits = "yes" if done is not None else "no, proven" if is_proven else "not found"
    known = math.isfinite(step_ms)
    cells = [
        *(each.name, f"{each.profile.n_ops:,}", size(variables), size(card), fits),
        f"{first_s:.1f}" if done is not None else "",
        f"{step_ms:.1f}" if known else "",
        f"{roomy_ms:.1f}",
        f"{100 * (step_ms / roomy_ms - 1):z.1f}" if known else "",
        change or ", ".join(words) or "placement and order",
    ]
    return row, cells


def _with_cards(cluster: Cluster, n_bytes: int) -> Cluster:
    devices = (
        replace(each, capacity_bytes=n_bytes) if each.kind == "gpu" else each
        for each in cluster.devices
    )
    return replace(cluster, devices=tuple(devices))


def _place(
    profile: Profile, cluster: Cluster, limit_s: float
) -> tuple[float, bool, float, Counter[str] | None]:
    """Return the step time in ms, whether nothing fits, when a plan did, and what is not kept."""
    first_s = [math.nan]
    try:
        problem = Problem(profile, cluster)
    except DoesNotFitError:  # the variables alone are too large
        return math.nan, True, math.nan, None

    def note(progress: Progress) -> None:
        plan: Plan | None = progress.incumbent
        if plan is not None and math.isnan(first_s[0]) and simulate(problem, plan).fits:
            first_s[0] = progress.seconds

    options = PlaceOptions(stop=cpu_limit(limit_s), progress=note, values={OFFLOAD.name: True})
    found = place(problem, METHOD, options=options)
    if not found.schedule.fits:
        return math.nan, found.plan.nothing_fits, math.nan, None
    taken_s = found.plan.solve_seconds or limit_s
    first = taken_s if math.isnan(first_s[0]) else first_s[0]
    kinds = Counter(split.dimension for split in found.plan.splits)
    return found.schedule.makespan_us / 1e3, False, first, kinds


def _cheapest(roomy: Problem, cluster: Cluster, row_s: float) -> tuple[str, float]:
    """Return the fastest change that makes a problem fit, and its step time in ms."""
    options = PlaceOptions(STEP_TIME, cpu_limit(None))
    rows = find_fit(roomy, cluster, usual_method, options, row_s).rows
    fitting = [row for row in rows if row.fits and row.change.objective == STEP_TIME]
    if not fitting:
        return "no change that was tried", math.nan
    return fitting[0].change.title, fitting[0].batch_us / 1e3


if __name__ == "__main__":
    publish(
        main,
        "half_memory",
        "Cards of half the memory",
        "Step times are simulated, from op times that were measured on one H200; seconds are "
        "measured. One run.",
    )
