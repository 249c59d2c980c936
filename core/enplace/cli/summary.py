"""A schedule in numbers: plain data for programs, a few aligned lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enplace.cli.answer import table
from enplace.text import count, device_label, finite, gap_text, listed, ms, percent, seconds, size

if TYPE_CHECKING:
    from enplace.machine.pipeline import PipelineSchedule
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem
    from enplace.values.schedule import Schedule

SHOWN_STAGES = 40
"""Of a pipeline with more, only so many are printed for a person."""


def expert_schedule(problem: Problem) -> Schedule | None:
    """What the expert's placement comes to; None where the expert has none."""
    from enplace.errors import EnplaceError
    from enplace.machine import simulate
    from enplace.placers import place

    try:
        return simulate(problem, place(problem, "expert"))
    except EnplaceError:
        return None


def numbers(schedule: Schedule, expert: Schedule | None) -> dict[str, Any]:
    """Plain data of a schedule; times in µs."""
    import numpy as np

    plan, cluster = schedule.plan, schedule.problem.cluster
    bound_us, gap = _bound_and_gap(schedule)
    ops = np.bincount(plan.device, minlength=cluster.n_devices)
    columns = zip(
        cluster.devices,
        ops.tolist(),
        schedule.busy_us.tolist(),
        schedule.idle_us.tolist(),
        schedule.peak_bytes.tolist(),
        strict=True,
    )
    sent_us = float((schedule.transfer_finish_us - schedule.transfer_start_us).sum())
    return {
        "method": plan.method,
        "policy": plan.policy,
        "links": plan.links,
        **_objective_numbers(plan),
        **_replicas(schedule),
        "step_time_us": schedule.makespan_us,
        "expert_step_time_us": expert.makespan_us if expert else None,
        "lower_bound": bound_us,
        "gap": gap,
        "solve_seconds": finite(plan.facts.get("solve_seconds")),
        "note": plan.note,
        "feasible": schedule.fits,
        "split_ops": len(plan.splits),
        "devices": [
            {
                "name": device.name,
                "kind": device.kind,
                "ops": n_ops,
                "busy_us": busy,
                "idle_us": max(idle, 0.0),
                "peak_bytes": peak,
                "capacity_bytes": int(device.capacity_bytes),
            }
            for device, n_ops, busy, idle, peak in columns
        ],
        "transfers": {
            "count": len(schedule.transfer_tensor),
            "bytes": int(schedule.transfer_bytes.sum()),
            "time_us": sent_us,
        },
    }


def _objective_numbers(plan: Plan) -> dict[str, Any]:
    """What a plan for another objective adds: a pipeline's, or the latency of a query."""
    from enplace.values.plan import OBJECTIVE_FACTS
    from enplace.values.problem import STEP_TIME, THROUGHPUT

    if plan.objective == STEP_TIME:
        return {"objective": plan.objective}
    name = OBJECTIVE_FACTS[plan.objective]
    found = {
        "objective": plan.objective,
        name: plan.objective_us,
        f"{name.removesuffix('_us')}_bound_us": plan.objective_bound_us,
        "proven": plan.facts.get("proven") is True,
    }
    if plan.objective == THROUGHPUT:
        found |= {"load": plan.facts.get("load"), "ideals": finite(plan.facts.get("ideals"))}
    return found


def _replicas(schedule: Schedule) -> dict[str, Any]:
    """Names of the devices that take turns; nothing if none do."""
    names = [device.name for device in schedule.problem.cluster.devices]
    groups = [[names[device] for device in group] for group in schedule.plan.replicas]
    return {"replicas": groups} if groups else {}


def _bound_and_gap(schedule: Schedule) -> tuple[float | None, float | None]:
    """What is proven of the objective that the plan is for, and how far it may be from the best.

    None for what is not known; a plan that does not fit has no gap.
    """
    from enplace.values.problem import STEP_TIME

    plan, for_step = schedule.plan, schedule.plan.objective == STEP_TIME
    bound_us = schedule.lower_bound_us if for_step else plan.objective_bound_us
    gap = schedule.gap if for_step else plan.objective_gap
    return bound_us, gap if schedule.fits else None


def _objective_facts(schedule: Schedule) -> list[list[str]]:
    """What a plan comes to that is not for the step time, and what is proven of that."""
    from enplace.machine.pipeline import planned_rule

    plan = schedule.plan
    found, us, bound_us = _objective_numbers(plan), plan.objective_us, plan.objective_bound_us
    if us is None:
        return []
    if found["objective"] == "latency":
        name, pieces = "latency of a query", plan.facts.get("pieces")
        split = "contiguous split" if pieces == 1 else f"split into {pieces} pieces a device"
    else:
        name = "time per sample"
        split = "split into consecutive stages" if "ideals" in plan.facts else "contiguous split"
        if "ideals" in plan.facts and planned_rule(plan).two_level:
            split = "split that gives each machine consecutive stages"
        split = "split" if plan.facts.get("contiguous") is False else split
    facts = [[name, ms(us), ""]]
    if found["proven"] or bound_us:
        proof = f"no {split} has less"
        if not found["proven"]:
            proof += f" than {ms(bound_us or 0.0)}"
        elif found.get("ideals"):
            proof += f": {found['ideals']:,.0f} ideals searched"
        facts.append(["gap", gap_text(plan.objective_gap, schedule.fits), proof])
    return facts


def against_expert(schedule: Schedule, expert: Schedule | None) -> str:
    """How much shorter or longer than the expert's: ``"−19.8 %"``."""
    if expert is None or expert.makespan_us <= 0:
        return ""
    return percent(schedule.makespan_us / expert.makespan_us - 1, signed=True)


def describe(schedule: Schedule, expert: Schedule | None) -> str:
    """Headline, the numbers that matter, one line for each device."""
    problem, plan = schedule.problem, schedule.plan
    solved = finite(plan.facts.get("solve_seconds"))
    head = f"{problem.profile.name} on {problem.cluster.name}, {plan.method}"
    if solved is not None:
        head += f", solved in {seconds(solved)}"
    sent = float((schedule.transfer_finish_us - schedule.transfer_start_us).sum())
    facts = _objective_facts(schedule)
    for_step = not facts
    facts += [
        ["take turns", "", listed(names)] for names in _replicas(schedule).get("replicas", [])
    ]
    facts.append(["step time", ms(schedule.makespan_us), ""])
    change = against_expert(schedule, expert)
    if expert is not None and change and plan.method != "expert":
        facts[-1][2] = f"{change} against the expert's {ms(expert.makespan_us)}"
    if for_step:
        what = "" if schedule.fits else "what fits is "
        proof = f"{what}proven not below {ms(schedule.lower_bound_us)}"
        facts.append(["gap", gap_text(schedule.gap, schedule.fits), proof])
    sent_size = size(float(schedule.transfer_bytes.sum()))
    facts.append(["transfers", f"{len(schedule.transfer_tensor):,}", f"{sent_size} in {ms(sent)}"])
    if plan.splits:
        parts = sum(split.parts for split in plan.splits)
        facts.append(["split ops", f"{len(plan.splits):,}", f"into {count(parts, 'part')}"])
    told = [head, table(facts, "lrl"), device_table(schedule), *overfull(schedule)]
    if plan.note:
        told.insert(2, plan.note)
    return "\n\n".join(told)


def device_table(schedule: Schedule) -> str:
    """One line for each device: ops, how busy, peak of capacity."""
    import numpy as np

    cluster = schedule.problem.cluster
    ops = np.bincount(schedule.plan.device, minlength=cluster.n_devices)
    rows = [["device", "ops", "busy", "", "peak memory", ""]]
    for number, device in enumerate(cluster.devices):
        busy, peak = float(schedule.busy_us[number]), int(schedule.peak_bytes[number])
        room = schedule.makespan_us * device.lanes
        rows.append(
            [
                device_label(device.name),
                f"{ops[number]:,}",
                ms(busy),
                percent(busy / room if room else 0.0),
                f"{size(peak)} of {size(device.capacity_bytes)}",
                percent(peak / device.capacity_bytes),
            ]
        )
    return table(rows, "lrrrrr")


def _span(times_us: tuple[float, ...]) -> str:
    """A time, or the least and the most of unlike devices."""
    least, most = ms(min(times_us)), ms(max(times_us))
    return least if least == most else f"{least} to {most}"


def describe_pipeline(problem: Problem, plan: Plan, found: PipelineSchedule) -> str:
    """Headline, the numbers that matter, one line for each stage, one for each device."""
    names = [device_label(device.name) for device in problem.cluster.devices]
    head = (
        f"{problem.profile.name} on {problem.cluster.name}, {plan.method}, {found.kind} pipeline "
        f"of {count(found.n_microbatches, 'sample')}"
    )
    facts = [
        ["time per sample", ms(found.time_per_sample_us), "once the pipeline is full"],
        ["all of them", ms(found.makespan_us), ""],
    ]
    stages = [["stage", "on", "pass", "ops", "in", "compute", "out", "gradients"]]
    for number, stage in enumerate(found.stages[:SHOWN_STAGES]):
        stages.append(
            [
                str(number),
                listed([names[device] for device in stage.devices]),
                "backward" if stage.backward else "forward",
                f"{len(stage.ops):,}",
                *(_span(us) for us in (stage.in_us, stage.compute_us, stage.out_us)),
                _span(stage.reduce_us) if any(stage.reduce_us) else "",
            ]
        )
    if len(found.stages) > SHOWN_STAGES:
        stages.append(["...", "", "", f"{len(found.stages):,} stages", "", "", "", ""])
    devices = [["device", "computes", "", "transfers", "in flight"]]
    for device, name in enumerate(names):
        busy = sum(slot.finish_us - slot.start_us for slot in found.computing[device])
        sent = sum(s.finish_us - s.start_us for s in found.transfers if s.device == device)
        share = percent(busy / found.makespan_us if found.makespan_us else 0.0)
        devices.append([name, ms(busy), share, ms(sent), str(found.in_flight[device])])
    return "\n\n".join(
        [head, table(facts, "lrl"), table(stages, "rllrrrrr"), table(devices, "lrrrr")]
    )


def overfull(schedule: Schedule) -> list[str]:
    """Say which devices run out of memory; empty if the plan fits."""
    devices = schedule.problem.cluster.devices
    return [
        f"Does not fit: {device_label(device.name)} needs {size(float(peak))} "
        f"({int(peak):,} bytes) and has {size(device.capacity_bytes)} "
        f"({device.capacity_bytes:,} bytes)."
        for device, peak, over in zip(devices, schedule.peak_bytes, schedule.overfull, strict=True)
        if over
    ]


def _objective_change(schedule: Schedule, expert: Schedule | None) -> str:
    """Change of what the plan is for against the expert's, where that is known."""
    ours, theirs = (s and s.plan.objective_us for s in (schedule, expert))
    return percent(ours / theirs - 1, signed=True) if ours and theirs else ""


def comparison(schedules: list[Schedule], expert: Schedule | None, objective: str) -> str:
    """One line for each schedule: what tells methods apart."""
    name = {"throughput": "time per sample", "latency": "latency"}.get(objective)
    times = [name, "vs expert", "step time"] if name else ["step time", "vs expert"]
    head = ["method", *times, "gap", "transfers", "sent", "peak memory", "fits", "solved in"]

    def times_of(schedule: Schedule) -> list[str]:
        step = ms(schedule.makespan_us)
        if name is None:
            return [step, against_expert(schedule, expert)]
        return [ms(schedule.plan.objective_us or 0.0), _objective_change(schedule, expert), step]

    rows = [
        [
            schedule.plan.method,
            *times_of(schedule),
            gap_text(_bound_and_gap(schedule)[1], schedule.fits),
            f"{len(schedule.transfer_tensor):,}",
            size(float(schedule.transfer_bytes.sum())),
            size(float(schedule.peak_bytes.max())),
            "yes" if schedule.fits else "no",
            seconds(float(schedule.plan.facts.get("solve_seconds", 0.0))),
        ]
        for schedule in schedules
    ]
    return table([head, *rows], "l" + "r" * (len(head) - 3) + "lr")
