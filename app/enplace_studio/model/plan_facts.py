"""Texts about one plan, and about two compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from enplace.bounds import claim_text, dated_note
from enplace.errors import EnplaceError
from enplace.machine import critical_path
from enplace.machine.plan_words import say_where
from enplace.text import (
    AS_FAST,
    change_text,
    count,
    gap_text,
    ms,
    percent,
    shows_tie,
    size,
)
from enplace.values.constraints import StayClose
from enplace.values.plan import Plan, check_plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule
from enplace.values.spare_memory import about_full
from enplace.values.splits import rewriting
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.explain.differences import (
    are_alike,
    count_whole,
    moved_ops,
    path_parts,
    sent_bytes,
)
from enplace_studio.explain.prediction import compared
from enplace_studio.jobs.solver import Job
from enplace_studio.model.bounds import Bounds
from enplace_studio.model.constraints import broken_kinds
from enplace_studio.model.open_project import Constraint, OpenProject, PlanEntry
from enplace_studio.model.ordering import keeps_order
from enplace_studio.model.previews import unfit_text
from enplace_studio.model.prices import PER, what_if_text
from enplace_studio.model.window_words import in_window_words

MOST_MEMORY_LINES = 4
"""Largest number of devices with a line of their own in a comparison."""


_VS_EXPERT = " vs expert"
AS_FAST_AS_EXPERT = f"{AS_FAST} as expert"
UNFIT_EXPERT = "expert does not fit"
"""Standings of a plan, where there is no change to show."""


def standing(project: OpenProject, entry: PlanEntry) -> tuple[str, str]:
    """Return how good a plan is, and the role of the label for it.

    A plan that does not fit is no good, however short its step. A step time is compared with the
    expert's; a time per sample or query with the lower bound. Times on another cluster are not
    compared.
    """
    if entry.cluster is not None:
        return "another cluster", "dim"
    if not entry.schedule.fits:
        return "does not fit", "bad"
    if entry.plan.value_us is not None:
        gap = entry.plan.gap
        if entry.plan.proven:
            return "proven best", "good"
        return (f"gap {percent(gap)}" if gap is not None else ""), "dim"
    change = project.against_expert(entry.schedule)
    if entry is project.expert:
        return "reference", "dim"
    if change is None:
        return ("" if project.expert is None else UNFIT_EXPERT), "dim"
    role = role_of(change)
    if role == "good" and entry.run is not None and project.expert is not None:
        # The measurement may have refuted the gain; a run on labels has none, but NaN.
        longer = entry.run.step_time_us >= project.expert.schedule.makespan_us
        role = "dim" if longer else "good"
    return vs_expert(change), role


def vs_expert(change: float) -> str:
    """Show the change of a step time from the expert's."""
    return AS_FAST_AS_EXPERT if shows_tie(change) else f"{change_text(change)}{_VS_EXPERT}"


def brief_standing(text: str) -> str:
    """Leave the expert out of a standing, where nothing else is compared with."""
    return AS_FAST if text == AS_FAST_AS_EXPERT else text.removesuffix(_VS_EXPERT)


def role_of(change: float) -> str:
    """Return the role of a label for a change of the step time; a tie is dim."""
    return "dim" if shows_tie(change) else "good" if change < 0 else "bad"


def why_stale(problem: Problem, entry: PlanEntry, locks: Sequence[Constraint] = ()) -> str:
    """Explain briefly why a plan does not fit a problem; empty if it does, or has another graph.

    The pins of ``locks`` are not called pins.
    """
    if entry.cluster is not None:
        return f"for {cluster_title(entry.cluster)}"
    if entry.plan.splits != problem.splits:
        return ""
    try:
        check_plan(problem, entry.plan)
    except EnplaceError:
        broken = broken_kinds(problem, entry.plan, locks)
        what = broken[0] if len(broken) == 1 else "constraints"
        return f"without your {what.replace(f'{StayClose.noun}s', 'limit on changes')}"
    return "" if keeps_order(problem, entry.schedule) else "without your order"


def other_machine(project: OpenProject | None, job: Job) -> str:
    """Say on what a running job's plans are timed, if speeds or the cluster have changed since."""
    if project is None or job.problem.cluster == project.problem.cluster:
        return ""
    if job.cluster is None or job.cluster == project.cluster:
        return "at the earlier speeds"
    return f"for {cluster_title(job.cluster)}"


def peak_text(schedule: Schedule) -> str:
    """List the peak memory of each device that holds a noticeable amount."""
    used = np.flatnonzero(schedule.peak_bytes * 100 >= schedule.problem.cluster.capacity_bytes)
    devices = schedule.problem.cluster.devices
    return ", ".join(
        f"{devices[d].label} {size(int(schedule.peak_bytes[d]))}" for d in used.tolist()
    )


def tooltip(project: OpenProject, bounds: Bounds, entry: PlanEntry, stale: str) -> str:
    """Describe a plan in full, one fact on each line; ``stale`` is what :func:`why_stale` says."""
    schedule = entry.schedule
    transfers = count(len(schedule.transfer_tensor), "transfer")
    measured = schedule.problem.measured_profile.measured
    what_if = "" if entry.cluster is not None else what_if_text(*project.scale)
    lines = [
        entry.name + (f" ({entry.note})" if entry.note else ""),
        *([f"your note: {entry.remark}"] if entry.remark else []),
        *_objective_lines(entry.plan),
        f"{measured.title_of('step time')} {ms(schedule.makespan_us)}{_proof(bounds, schedule)}"
        + (f" ({what_if})" if what_if else ""),
        f"{transfers}, {size(sent_bytes(schedule))} in all",
        f"peak memory: {peak_text(schedule) or 'almost none'}",
    ]
    if entry.cluster is None and entry.plan.splits == project.problem.splits:
        lines += say_where(schedule, project.grouping)
    lines += filter(None, [rewriting(entry.plan.splits)])
    if entry.plan.note:
        lines.append(dated_note(schedule, in_window_words(entry.plan.note)))
    lines += filter(None, [file_claim(bounds, schedule)])
    if entry.run is not None and not entry.run.on_labels:
        lines.append(f"measured: {compared(schedule.makespan_us, entry.run.step_time_us)}")
    full = about_full(schedule.problem.cluster, schedule.peak_bytes)
    lines += filter(None, [unfit_text(schedule), in_window_words(full)])
    if stale:
        lines.append(f"made {stale}")
        if entry.cluster is not None:
            lines.append("click to switch back to that cluster")
        lines.append("“Solve again here” runs its method again")
    return "\n".join(lines)


def file_claim(bounds: Bounds, schedule: Schedule) -> str:
    """Say what the file of a plan claims, once it is more than what is known here."""
    if schedule.plan.claim is None or schedule.plan.value_us is not None:
        return claim_text(schedule, schedule.plan.bound_us)
    known_us = bounds.find_us(schedule)
    return "" if known_us is None else claim_text(schedule, known_us)


def _proof(bounds: Bounds, schedule: Schedule) -> str:
    bound_us = bounds.find_us(schedule)
    return "" if bound_us is None else f", proven not below {ms(bound_us)}"


def _objective_lines(plan: Plan) -> list[str]:
    if plan.value_us is None:
        return []
    line = ms(plan.value_us) + PER[plan.objective]
    bound_us = plan.bound_us
    return [line if bound_us is None else f"{line}, proven not below {ms(bound_us)}"]


@dataclass(frozen=True)
class Difference:
    """One line of a comparison; ``better`` is the index of the better side, or None."""

    label: str
    values: tuple[str, str]
    better: int | None = None


def compare(
    project: OpenProject, bounds: Bounds, first: PlanEntry, second: PlanEntry
) -> list[Difference]:
    """Compare two plans, most important facts first."""
    both = (first.schedule, second.schedule)
    steps = [schedule.makespan_us for schedule in both]
    spent = [float((s.transfer_finish_us - s.transfer_start_us).sum()) for s in both]
    lines = [
        _line("step time", [ms(step) for step in steps], steps),
        *_measured_lines(first, second),
        *_path_lines(both),
        _line("vs expert", [_against(project, entry) for entry in (first, second)]),
        *_gap_lines(bounds, both),
        _line("transfers", [f"{len(schedule.transfer_tensor):,}" for schedule in both]),
        _line("sent", [size(sent_bytes(schedule)) for schedule in both]),
        _line("sending", [ms(time) for time in spent]),
        *_memory_lines(both),
    ]
    moved = moved_ops(*both)
    if moved is not None:
        elsewhere = count_whole(moved, *(schedule.problem for schedule in both))
        lines.append(Difference("ops elsewhere", (f"{elsewhere:,}", "")))
    return [_praising_only(line, both) for line in lines]


def _gap_lines(bounds: Bounds, both: tuple[Schedule, Schedule]) -> list[Difference]:
    """Compare the gaps; where only one plan splits ops, they are to different bounds."""
    if not are_alike(both[0].problem, both[1].problem):
        return []
    return [_line("gap", [gap_text(bounds.gap(s), s.fits) for s in both])]


def _praising_only(line: Difference, both: tuple[Schedule, Schedule]) -> Difference:
    """Call no side better whose plan does not fit."""
    unfit = line.better is not None and not both[line.better].fits
    return replace(line, better=None) if unfit else line


def _path_lines(both: tuple[Schedule, Schedule]) -> list[Difference]:
    """Compare what the step times are made of; each column adds up to its step time."""
    one, other = (path_parts(critical_path(schedule)) for schedule in both)
    times = {name: [us, other[name]] for name, us in one.items()}
    return [_line(f"  {name}", [ms(us) for us in pair], pair) for name, pair in times.items()]


def _measured_lines(first: PlanEntry, second: PlanEntry) -> list[Difference]:
    """Compare measured step times, if there are any."""
    runs = (first.run, second.run)
    times_us = [math.nan if run is None else run.step_time_us for run in runs]
    known = [us for us in times_us if math.isfinite(us)]
    texts = [ms(us) if math.isfinite(us) else "–" for us in times_us]
    return [_line("measured", texts, known if len(known) == 2 else None)] if known else []


def _against(project: OpenProject, entry: PlanEntry) -> str:
    return brief_standing(standing(project, entry)[0]) or "–"


def _memory_lines(both: tuple[Schedule, Schedule]) -> list[Difference]:
    """Compare the peak memory of each device that either plan uses."""
    devices = both[0].problem.cluster.devices
    if devices != both[1].problem.cluster.devices:
        return []
    peaks = [schedule.peak_bytes for schedule in both]
    capacity = both[0].problem.cluster.capacity_bytes
    used = np.flatnonzero(np.maximum(*peaks) * 100 >= capacity)
    if len(used) > MOST_MEMORY_LINES:
        highest = [int(peak[used].max()) for peak in peaks]
        return [_line("highest peak", [size(peak) for peak in highest])]
    return [
        _line(f"peak {devices[d].label}", [size(int(peak[d])) for peak in peaks])
        for d in used.tolist()
    ]


def _line(label: str, texts: list[str], lower_is_better: list[float] | None = None) -> Difference:
    better = None
    if lower_is_better is not None and texts[0] != texts[1]:
        better = int(np.argmin(lower_is_better))
    return Difference(label, (texts[0], texts[1]), better)
