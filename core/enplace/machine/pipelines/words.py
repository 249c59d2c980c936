"""A pipeline in rows of tables and in sentences, for terminals and for pages."""

from __future__ import annotations

from collections.abc import Sequence

from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import (
    EXCHANGED,
    ONCE_PER_STEP,
    WAITING,
    PipelineSchedule,
    fullest_device,
    planned_rule,
)
from enplace.machine.pipelines.stages import PASS_NAMES
from enplace.text import count, listed, ms, percent, size, table
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.spare_memory import about_memory

SHOWN_STAGES = 40
"""Most stages of a pipeline that are shown to people."""


def title_of(problem: Problem, plan: Plan, found: PipelineSchedule) -> str:
    """Name a pipeline."""
    return (
        f"{problem.profile.name} on {problem.cluster.name}, {plan.method}, {found.kind} pipeline "
        f"of {count(found.n_microbatches, 'sample')}"
    )


def time_rows(problem: Problem, found: PipelineSchedule) -> list[list[str]]:
    """Return what each time of a pipeline is, the time, and more about it."""
    title = problem.measured_profile.measured.title_of("time per sample")
    rows = [
        [title, ms(found.time_per_sample_us), "once the pipeline is full"],
        ["all of them", ms(found.makespan_us), ""],
    ]
    if found.updates:
        longest_us = max(each.finish_us - each.start_us for each in found.updates)
        rows.append(["of that, updates", ms(longest_us), ONCE_PER_STEP])
    if found.exchange:
        sent = size(sum(each.n_bytes for each in found.exchange) // 2)
        rows.append(["of that, at the end", ms(found.exchange_us), f"{sent} {EXCHANGED}"])
    return rows


def stage_rows(problem: Problem, found: PipelineSchedule) -> list[list[str]]:
    """Return a heading, and a row for each stage."""
    names = [device.label for device in problem.cluster.devices]
    rows = [["stage", "on", "pass", "ops", "in", "compute", "out", "gradients"]]
    rows += [
        [
            str(number),
            listed([names[device] for device in stage.devices]),
            PASS_NAMES[stage.of],
            f"{len(stage.ops):,}",
            *(_span(us) for us in (stage.in_us, stage.compute_us, stage.out_us)),
            _span(stage.reduce_us) if any(stage.reduce_us) else "",
        ]
        for number, stage in enumerate(found.stages[:SHOWN_STAGES], start=1)
    ]
    if len(found.stages) > SHOWN_STAGES:
        rows.append(["...", "", "", f"{len(found.stages):,} stages", "", "", "", ""])
    return rows


def device_rows(problem: Problem, found: PipelineSchedule) -> list[list[str]]:
    """Return a heading, and a row for each device."""
    rows = [["device", "computes", "", "transfers", "in flight", "peak memory", ""]]
    for number, device in enumerate(problem.cluster.devices):
        peak, busy_us = found.memory[number].peak_bytes, found.computing_us(number)
        rows.append(
            [
                device.label,
                ms(busy_us),
                percent(busy_us / found.makespan_us if found.makespan_us else 0.0),
                ms(found.transferring_us(number)),
                str(found.in_flight[number]),
                f"{size(peak)} of {size(device.capacity_bytes)}",
                percent(peak / device.capacity_bytes),
            ]
        )
    return rows


def _span(times_us: tuple[float, ...]) -> str:
    """Show a time, or the range of times if the devices differ."""
    least, most = ms(min(times_us)), ms(max(times_us))
    return least if least == most else f"{least} to {most}"


def describe_pipeline(problem: Problem, plan: Plan, found: PipelineSchedule) -> str:
    """Show a headline, the main times, and a line for each stage and each device."""
    tables = [
        table(time_rows(problem, found), "lrl"),
        table(stage_rows(problem, found), "rllrrrrr"),
        table(device_rows(problem, found), "lrrrrrr"),
    ]
    measured = problem.measured_profile.measured
    about = [describe_pace(problem, plan, found), measured.about_times, measured.about_passes]
    about += [about_waiting(found.kind), *about_memory(problem.cluster, found.peak_bytes)]
    return "\n\n".join(filter(None, [title_of(problem, plan, found), *tables, *about]))


def describe_pace(problem: Problem, plan: Plan, found: PipelineSchedule) -> str:
    """Say that samples follow each other more slowly than they could; empty if they do not."""
    load_us = max_load_us(problem, plan.device, planned_rule(plan), plan.replicas, plan.recompute)
    if found.kind in ("inference", "gpipe") or plan.pace_us <= load_us:
        return ""
    return (
        f"The plan lets a sample begin every {ms(plan.pace_us)} on average, though the busiest "
        f"device works {ms(load_us)}: with fewer samples in flight, they fit in memory."
    )


def about_waiting(kind: str) -> str:
    """Say what is counted until the gradients of weights, if they wait in a kind of pipeline."""
    if kind not in WAITING:
        return ""
    return (
        "Between a sample's gradients of inputs and those of weights, memory counts what the "
        "latter read; PyTorch keeps all that the stage made until then, which is more."
    )


def lacking_in_flight(problem: Problem, found: PipelineSchedule) -> str:
    """Name the devices that exceed their memory with the samples in flight; empty if none does."""
    lacking = [
        f"{device.label} needs {size(float(peak))} of {size(device.capacity_bytes)}"
        for device, peak in zip(problem.cluster.devices, found.peak_bytes, strict=True)
        if peak > device.capacity_bytes
    ]
    return f"With its samples in flight it does not fit: {listed(lacking)}." if lacking else ""


def describe_pipelines(problem: Problem, plan: Plan, found: Sequence[PipelineSchedule]) -> str:
    """Show the time per sample and the memory for each number of samples."""
    on = f"{problem.profile.name} on {problem.cluster.name}"
    head = f"{on}, {plan.method}, {found[0].kind} pipeline"
    capacity = problem.cluster.capacity_bytes
    columns = ["samples", "all of them", "mean per sample", "once full"]
    rows = [[*columns, "fullest device", "peak memory", ""]]
    for each in found:
        fullest = fullest_device(problem, each.peak_bytes)
        peak = int(each.peak_bytes[fullest])
        rows.append(
            [
                f"{each.n_microbatches:,}",
                ms(each.makespan_us),
                ms(each.mean_us),
                ms(each.time_per_sample_us),
                problem.cluster.devices[fullest].label,
                f"{size(peak)} of {size(int(capacity[fullest]))}",
                "does not fit" if peak > capacity[fullest] else "",
            ]
        )
    about = "The mean includes filling and draining; the time once the pipeline is full does not."
    shown = [head, table(rows, "rrrrlrl"), about]
    measured = problem.measured_profile.measured
    more = [about_waiting(found[0].kind), measured.about_times, measured.about_passes]
    return "\n\n".join(filter(None, [*shown, *more]))
