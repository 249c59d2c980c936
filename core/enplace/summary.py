"""A schedule in figures: plain data for programs, a few aligned lines for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from enplace.text import (
    AS_FAST,
    change_text,
    count,
    finite,
    gap_text,
    listed,
    ms,
    seconds,
    size,
    table,
)

if TYPE_CHECKING:
    from enplace.machine.pipelines.pipeline import PipelineSchedule
    from enplace.names.whole import LayerCount
    from enplace.placers.data_parallel import Replicas
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem
    from enplace.values.result import Alternative, Result
    from enplace.values.schedule import Schedule

LONG_COMPILING_S = 5.0
"""Seconds of compiling that are said: loading takes one, or a few on a busy machine."""


class Others(NamedTuple):
    """What a plan is compared with, as far as it is known: all of it needs no search."""

    expert: Schedule | None = None
    alone: Schedule | None = None
    shared: Replicas | None = None
    why_not_shared: str = ""


def worth_it(schedule: Schedule, others: Others) -> str:
    """Say whether a plan is predicted to be faster than one device, and than data parallelism.

    What does not fit in memory does not count: empty for a plan that does not.
    """
    from enplace.frameworks.registry import framework_of

    said = _worth_it(schedule, others)
    return framework_of(schedule.problem.measured_profile).in_own_words(said)


def _worth_it(schedule: Schedule, others: Others) -> str:
    from functools import partial

    from enplace.placers import references
    from enplace.placing.prices import find_stock_us, total_price_us

    if not schedule.fits:
        return ""
    passed_over, price_us = _passed_over(schedule), total_price_us(schedule)
    verdict = partial(references.verdict, price_us=price_us, passed_over=passed_over)
    alone, shared = others.alone, others.shared
    step_us, alone_us = (
        schedule.makespan_us,
        alone.makespan_us if alone and alone.fits else math.nan,
    )
    stock_us = find_stock_us(schedule.problem)
    if shared is None:
        return verdict(step_us, alone_us, stock_us, about=others.why_not_shared)
    if not shared.fits:
        return verdict(step_us, alone_us, stock_us, about="Data parallelism does not fit.")
    return verdict(
        step_us,
        alone_us,
        stock_us,
        replicas_us=shared.step_time_us,
        inside=shared.gpus_each > 1,
        about=shared.about,
        is_guess=bool(shared.doubt),
    )


def _passed_over(schedule: Schedule) -> str:
    """Return the sentence about a faster plan that was passed over at these costs, if any."""
    from enplace.bounds import is_outdated
    from enplace.placing.prices import find_passed_over

    return "" if is_outdated(schedule) else find_passed_over(schedule.plan.note)


def numbers(result: Result, expert: Schedule | None, whole: Sequence[str] = ()) -> dict[str, Any]:
    """Return a result as plain data; times in µs. ``whole`` has the regexes of whole layers."""
    import numpy as np

    from enplace.bounds import note_with_claim
    from enplace.machine.caching_allocator import reserved_on_devices

    schedule, plan = result.schedule, result.plan
    reserved = reserved_on_devices(schedule)
    cluster = schedule.problem.cluster
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
        **_layer_numbers(schedule, whole),
        **_pipeline_numbers(result),
        "step_time_us": schedule.makespan_us,
        "estimated": schedule.problem.measured_profile.measured.estimated or None,
        "guessed_backward": about_passes(schedule.problem) or None,
        "expert_step_time_us": expert.makespan_us if expert else None,
        "expert_feasible": expert.fits if expert else None,
        "lower_bound": result.bound_us,
        "gap": result.gap,
        "solve_seconds": plan.solve_seconds,
        "note": note_with_claim(result, plan.note),
        "feasible": schedule.fits,
        "fit": schedule.fit_verdict or None,
        "nothing_fits": plan.nothing_fits,
        "split_ops": sum(split.is_cut for split in plan.splits),
        "recomputed_ops": sum(split.is_again for split in plan.splits),
        "offloaded_ops": sum(split.is_offload for split in plan.splits),
        "devices": [
            {
                "name": device.name,
                "kind": device.kind,
                "ops": n_ops,
                "busy_us": busy,
                "idle_us": max(idle, 0.0),
                "peak_bytes": peak,
                "reserved_bytes_predicted": reserved.get(number),
                "capacity_bytes": int(device.capacity_bytes),
                "reserve_bytes": int(device.reserve_bytes),
            }
            for number, (device, n_ops, busy, idle, peak) in enumerate(columns)
        ],
        "transfers": {
            "count": len(schedule.transfer_tensor),
            "bytes": int(schedule.transfer_bytes.sum()),
            "time_us": sent_us,
        },
    }


def _objective_numbers(plan: Plan) -> dict[str, Any]:
    """Return what a plan for another objective adds: time per sample, or latency of a query."""
    from dataclasses import asdict

    from enplace.values.plan_facts import VALUE_KEYS
    from enplace.values.problem import THROUGHPUT

    if plan.objective not in VALUE_KEYS:
        return {"objective": plan.objective}
    name = VALUE_KEYS[plan.objective]
    found: dict[str, Any] = {
        "objective": plan.objective,
        name: plan.value_us,
        f"{name.removesuffix('_us')}_bound_us": plan.bound_us,
        "proven": plan.proven,
    }
    if plan.objective == THROUGHPUT:
        load = asdict(plan.load_rule) if plan.load_rule else None
        found |= {"load": load, "ideals": finite(plan.details.get("ideals"))}
    return found


def _pipeline_numbers(result: Result) -> dict[str, Any]:
    """Return the memory of a plan with its samples in flight; empty if it is for no pipeline."""
    from enplace.machine.pipelines.pipeline import device_loads_us, fill_pipeline, fits_in

    problem = result.schedule.problem
    found = fill_pipeline(problem, result.plan)
    if found is None:
        return {}
    return {
        "pipeline": {
            "kind": found.kind,
            "samples": found.n_microbatches,
            "feasible": fits_in(problem, found),
            "in_flight": list(found.in_flight),
            "peak_bytes": found.peak_bytes.tolist(),
            "loads_us": device_loads_us(problem, result.plan),
        }
    }


def _pipeline_lines(schedule: Schedule, found: PipelineSchedule | None) -> list[list[str]]:
    """Show what the fullest device holds with its samples in flight."""
    from enplace.machine.pipelines.pipeline import fullest_device, most_bytes

    if found is None:
        return []
    problem, peak_bytes = schedule.problem, most_bytes(schedule)
    fullest = fullest_device(problem, peak_bytes)
    device, samples = problem.cluster.devices[fullest], found.in_flight[fullest]
    where = f"of {size(device.capacity_bytes)} on {device.label}"
    where += f", with {count(samples, 'sample')} in flight"
    return [["most memory in the pipeline", size(float(peak_bytes[fullest])), where]]


def _replicas(schedule: Schedule) -> dict[str, Any]:
    """Return the names of the devices that are replicas; empty if none are."""
    names = [device.name for device in schedule.problem.cluster.devices]
    groups = [[names[device] for device in group] for group in schedule.plan.replicas]
    return {"replicas": groups} if groups else {}


def _count_layers(schedule: Schedule, whole: Sequence[str]) -> LayerCount | None:
    """Count the layers on each device, as the person tells them apart or, for stages, guessed."""
    from enplace.names.whole import count_layers, find_layers, guess_pattern
    from enplace.values.problem import THROUGHPUT

    plan, profile = schedule.plan, schedule.problem.profile
    if not whole and plan.objective == THROUGHPUT:
        whole = list(filter(None, [guess_pattern(profile)]))
    layers: dict[str, list[int]] = {}
    counted: set[int] = set()
    for each in whole:
        found = find_layers(each, profile, "").items()
        new = {key: [op for op in ops if op not in counted] for key, ops in found}
        layers |= {key: ops for key, ops in new.items() if ops}
        counted.update(*new.values())
    return count_layers(profile, layers, plan.device) if layers else None


def _layer_numbers(schedule: Schedule, whole: Sequence[str]) -> dict[str, Any]:
    """Return how many layers are whole on each device; empty if the model shows none."""
    found = _count_layers(schedule, whole)
    if found is None:
        return {}
    names = [device.name for device in schedule.problem.cluster.devices]
    on = {names[device]: number for device, number in found.on.items()}
    runs = [{"device": names[device], "layers": number} for device, number in found.runs]
    return {"layers": {"count": found.n_layers, "cut": found.n_cut, "on": on, "in_order": runs}}


def _layer_lines(schedule: Schedule, whole: Sequence[str]) -> list[list[str]]:
    """Show the layers of each stage in their order, or how to keep them whole."""
    from enplace.names.whole import guess_pattern

    found = _count_layers(schedule, whole)
    if found is None:
        return []
    if found.n_cut:
        pattern = guess_pattern(schedule.problem.profile)
        many = f"{found.n_cut:,} cut between devices; --whole '{pattern}' keeps them whole"
        return [["layers", f"{found.n_layers:,}", many]]
    devices = schedule.problem.cluster.devices
    replicas = {group[0]: f" ({len(group)} replicas)" for group in schedule.plan.replicas}
    few = len(found.runs) <= 2 * len(found.on)  # two stages on each device, as in a V
    runs = found.runs if few else tuple(found.on.items())
    shares = ", ".join(f"{number:,}" for _, number in runs)
    where = listed([devices[at].label + replicas.get(at, "") for at, _ in runs])
    return [["layers", f"{found.n_layers:,}", f"{shares} on {where}"]]


def _objective_lines(result: Result) -> list[list[str]]:
    """Show the value of an objective other than the step time, and what is proven about it."""
    plan = result.plan
    if plan.value_us is None:
        return []
    name = "latency of a query" if plan.objective == "latency" else "time per sample"
    problem = result.schedule.problem
    measured = problem.measured_profile.measured
    lines = [[measured.title_of(name), ms(plan.value_us), ""]]
    if plan.proven or plan.bound_us:
        such = " under its constraints" if problem.constraints else ""
        proof = f"no {_describe_rivals(plan)}{such} has less"
        if not plan.proven:
            proof += f" than {ms(plan.bound_us or 0.0)}"
        elif ideals := finite(plan.details.get("ideals")):
            proof += f": {ideals:,.0f} ideals searched"
        lines.append(["gap", gap_text(result.gap, result.schedule.fits), proof])
    return lines


def _describe_rivals(plan: Plan) -> str:
    """Describe the placements for which a plan's bound holds."""
    rivals = plan.rivals
    if rivals is None:
        return "split of this kind"
    if rivals.staged and plan.load_rule and plan.load_rule.two_level:
        return "split that gives each machine consecutive stages"
    if rivals.staged:
        return "split into consecutive stages"
    if rivals.subgraphs is None:
        return "split"
    many = f"split into {rivals.subgraphs} subgraphs a device"
    return "contiguous split" if rivals.subgraphs == 1 else many


def against_expert(schedule: Schedule, expert: Schedule | None) -> str:
    """Compare a step time with the expert's: ``"−19.8 %"``.

    Empty if one of them does not fit.
    """
    if expert is None or expert.makespan_us <= 0:
        return ""
    if not (schedule.fits and expert.fits):
        return ""
    return change_text(schedule.makespan_us / expert.makespan_us - 1)


def describe(result: Result, others: Others, whole: Sequence[str] = ()) -> str:
    """Show a headline, whether the plan is worth it, the figures, and a line for each device.

    ``whole`` has the regexes by which layers were kept whole.
    """
    import numpy as np

    from enplace.bounds import note_with_claim
    from enplace.machine.caching_allocator import about_reserved
    from enplace.machine.pipelines.pipeline import fill_pipeline
    from enplace.machine.pipelines.words import about_waiting, lacking_in_flight
    from enplace.machine.plan_words import device_rows
    from enplace.placing.prices import about_price, total_price_us
    from enplace.values.spare_memory import about_memory
    from enplace.values.splits import fetching_ops, recomputed_ops

    schedule, plan = result.schedule, result.plan
    problem = schedule.problem
    head = f"{problem.profile.name} on {problem.cluster.name}, {plan.method}"
    if plan.solve_seconds is not None:
        head += f", solved in {seconds(plan.solve_seconds)}"
    if result.compile_seconds > LONG_COMPILING_S:
        head += f", after {seconds(result.compile_seconds)} of compiling"
    lines = _objective_lines(result)
    lines += [["replicas", "", listed(names)] for names in _replicas(schedule).get("replicas", [])]
    if plan.recompute:
        where = [problem.cluster.devices[device].label for device in plan.recompute]
        lines.append(["computes again", "", listed(where)])
    lines += _layer_lines(schedule, whole)
    pipeline = fill_pipeline(problem, plan)
    lines += _pipeline_lines(schedule, pipeline)
    lines += _step_lines(result, others.expert)
    sent = float((schedule.transfer_finish_us - schedule.transfer_start_us).sum())
    sent_size = size(float(schedule.transfer_bytes.sum()))
    lines.append(["transfers", f"{len(schedule.transfer_tensor):,}", f"{sent_size} in {ms(sent)}"])
    if cut := [split for split in plan.splits if split.is_cut]:
        parts = sum(split.parts for split in cut)
        lines.append(["split ops", f"{len(cut):,}", f"into {count(parts, 'part')}"])
    if again := recomputed_ops(schedule.problem.profile, plan.splits):
        spent = float((schedule.op_finish_us - schedule.op_start_us)[again].sum())
        lines.append(["recomputed ops", f"{len(again):,}", f"{ms(spent)} of work"])
    if fetches := fetching_ops(schedule.problem.profile, plan.splits):
        back = np.isin(schedule.problem.profile.tensor_op[schedule.transfer_tensor], fetches)
        n_bytes = float(schedule.transfer_bytes[back].sum())
        lines.append(["offloaded ops", f"{len(fetches):,}", f"{size(n_bytes)} on the host"])
    measured = problem.measured_profile.measured
    about = [measured.about_times, _about_gpus(problem), measured.about_passes]
    about.append(about_price(("the plan", total_price_us(schedule), schedule.makespan_us)))
    first = worth_it(schedule, others)
    passed_over = _passed_over(schedule)
    said = plan.note.replace(passed_over, "").strip() if passed_over in first else plan.note
    note = [*filter(None, [note_with_claim(result, said), *about])]
    rows = device_rows(schedule)
    tables = [table(lines, "lrl"), *note, table(rows, "l".ljust(len(rows[0]), "r"))]
    memory = about_memory(problem.cluster, schedule.peak_bytes, schedule.fit_verdict)
    memory += filter(None, [about_reserved(schedule)])
    if pipeline is not None:
        memory += filter(None, [lacking_in_flight(problem, pipeline), about_waiting(pipeline.kind)])
    return "\n\n".join([head, *filter(None, [first]), *tables, *memory])


def about_passes(problem: Problem) -> str:
    """Say that the backward pass was guessed; empty if it was not."""
    return problem.measured_profile.measured.about_passes


def _about_gpus(problem: Problem) -> str:
    """Say that no op may run on GPUs, or that they count as faster than the one estimated for."""
    import numpy as np

    measured, cluster = problem.measured_profile.measured, problem.cluster
    if not np.isfinite(problem.time_us[:, cluster.gpus]).any():
        return (
            "No op has a time on a GPU, so none may run there. For a plan on GPUs, profile the "
            "model on one, or estimate its times for one."
        )
    gpu, speed = measured.estimated, measured.estimated_speed
    speeds = {cluster.devices[device].speed for device in cluster.gpus}
    fastest_gpu = max(speeds, default=0.0)
    if not speed or fastest_gpu <= speed:
        return ""
    which = "GPUs" if len(speeds) == 1 else "fastest GPUs"
    return (
        f"This cluster's {which} have speed {fastest_gpu:g} and count as {fastest_gpu / speed:.2g} "
        f"times as fast as the {gpu}, which has {speed:g}. If they are {gpu}s, set their speed."
    )


def _step_lines(result: Result, expert: Schedule | None) -> list[list[str]]:
    """Show the step time against the expert's, and its gap if it is the objective."""
    schedule = result.schedule
    title = schedule.problem.measured_profile.measured.title_of("step time")
    line = [title, ms(schedule.makespan_us), _beside_expert(schedule, expert)]
    if result.plan.value_us is not None or result.bound_us is None:
        return [line]
    what = "" if schedule.fits else "any plan that fits is "
    proof = f"{what}proven not below {ms(result.bound_us)}"
    return [line, ["gap", gap_text(result.gap, schedule.fits), proof]]


def _beside_expert(schedule: Schedule, expert: Schedule | None) -> str:
    """Say how a step compares with that of the expert's plan; empty if it is the expert's."""
    if expert is None or expert.makespan_us <= 0 or expert is schedule:
        return ""
    theirs = ms(expert.makespan_us)
    if not schedule.fits:
        other = f"the expert's plan fits, with {theirs}" if expert.fits else "nor does the expert's"
        return f"this plan does not fit, {other}"
    if not expert.fits:
        return "the expert's plan does not fit"
    change = against_expert(schedule, expert)
    if change == AS_FAST:
        return "as fast as the expert's plan"
    return f"{change} against the expert's {theirs}"


def _objective_change(result: Result, expert: Schedule | None) -> str:
    """Compare the plan's value with the expert's, where that is known."""
    ours, theirs = result.plan.value_us, expert and expert.plan.value_us
    if expert is None or not (ours and theirs and expert.fits and result.schedule.fits):
        return ""
    return change_text(ours / theirs - 1)


def _step_change(result: Result, expert: Schedule | None) -> str:
    return against_expert(result.schedule, expert)


def comparison(
    results: Sequence[Result],
    expert: Schedule | None,
    objective: str,
    rivals: Sequence[Alternative] = (),
) -> str:
    """Show one line for each result: how the methods differ; then what needs no planner."""
    from enplace.machine.pipelines.pipeline import most_bytes
    from enplace.placing.prices import about_price, total_price_us

    name = {"throughput": "time per sample", "latency": "latency"}.get(objective)
    measured = results[0].schedule.problem.measured_profile.measured
    step = measured.title_of("step time")
    times = [measured.title_of(name), "vs expert", step] if name else [step, "vs expert"]
    head = ["method", *times, "gap", "transfers", "sent", "peak memory", "fits", "solved in"]

    compare = _objective_change if name else _step_change

    def times_of(result: Result) -> list[str]:
        step = ms(result.schedule.makespan_us)
        change = compare(result, expert)
        if result.schedule is expert and change:
            change = "reference"
        return [ms(result.plan.value_us or 0.0), change, step] if name else [step, change]

    rows = [
        [
            result.plan.method,
            *times_of(result),
            gap_text(result.gap, schedule.fits),
            f"{len(schedule.transfer_tensor):,}",
            size(float(schedule.transfer_bytes.sum())),
            size(float(peak_bytes.max())),
            "yes" if (peak_bytes <= schedule.problem.cluster.capacity_bytes).all() else "no",
            seconds(result.plan.solve_seconds or 0.0),
        ]
        for result in results
        for schedule, peak_bytes in [(result.schedule, most_bytes(result.schedule))]
    ]
    theirs_us = None
    if expert is not None and expert.fits:
        theirs_us = expert.plan.value_us if name else expert.makespan_us
    rows += [_alternative_row(each, theirs_us, bool(name)) for each in rivals]
    shown = [table([head, *rows], "l" + "r" * (len(head) - 3) + "lr")]
    if rivals:
        notes = (f"{each.name}: {each.notes}" for each in rivals)
        shown.append("\n".join(["Predicted, not measured:", *notes]))
    priced = [
        (each.plan.method, total_price_us(each.schedule) * (not name), each.schedule.makespan_us)
        for each in results
    ]
    priced += [(each.name, each.price_us, each.value_us) for each in rivals]
    shown += [about] if (about := about_price(*priced)) else []
    shown += [measured.about_passes] if measured.about_passes else []
    if expert is not None and not expert.fits:
        shown.append("The expert's plan does not fit, so no plan is compared with it.")
    return "\n\n".join(shown)


def _alternative_row(each: Alternative, expert_us: float | None, has_steps: bool) -> list[str]:
    """Show what needs no planner among methods."""
    return [
        each.name,
        each.time,
        change_text(each.value_us / expert_us - 1) if expert_us and each.is_rival else "",
        *[""] * (2 + has_steps),
        size(float(each.sent_bytes)),
        size(float(each.peak_bytes.max())),
        "yes" if each.fits else "no",
        "",
    ]


def about_alternatives(value_us: float, rivals: Sequence[Alternative]) -> str:
    """Compare a plan with the fastest of what needs no planner; empty if nothing of that fits."""
    fitting = (each for each in rivals if each.is_rival)
    best = min(fitting, key=lambda each: each.value_us, default=None)
    if best is None:
        return ""
    change = change_text(value_us / best.value_us - 1)
    return (
        f"Of what needs no planner, {best.name} is predicted to be fastest: {best.time}, "
        f"the plan {change}."
    )


def describe_alternatives(rivals: Sequence[Alternative], objective: str) -> list[str]:
    """Tabulate a plan, which comes first, and what needs no planner; empty if there is none."""
    from enplace.placing.prices import about_price

    if len(rivals) < 2:
        return []
    pipeline = objective == "throughput"
    title = "time per micro-batch, once full" if pipeline else "step time"
    plan = rivals[0]
    rows = [["predicted, not measured", title, "the plan", "fits", "memory"]]
    for each in rivals:
        has_change = each.is_rival and each is not plan
        change = change_text(plan.value_us / each.value_us - 1) if has_change else ""
        fits = "yes" if each.fits else "does not fit"
        rows.append([each.name, each.time, change, fits, each.memory])
    about = about_price(*((each.name, each.price_us, each.value_us) for each in rivals))
    return [table(rows, "lrrll"), *filter(None, [about])]


def alternative_numbers(each: Alternative, objective: str) -> dict[str, Any]:
    """Return what needs no planner as plain data; times in µs."""
    key = "time_per_sample_us" if objective == "throughput" else "step_time_us"
    return {
        "name": each.name,
        key: finite(each.value_us),
        "feasible": each.fits,
        "why_not": each.why_not,
        "sent_bytes": each.sent_bytes,
        "sends_price_us": each.price_us,
        "devices": [
            {"name": d.name, "peak_bytes": peak, "capacity_bytes": int(d.capacity_bytes)}
            for d, peak in zip(each.cluster.devices, each.peak_bytes.tolist(), strict=True)
        ],
        "about": each.about,
    }


def replicas_numbers(shared: Replicas) -> dict[str, Any]:
    """Return data parallelism as plain data; times in µs."""
    return {
        "name": shared.name,
        "replicas": shared.number,
        "gpus_each": shared.gpus_each,
        "step_time_us": shared.step_time_us,
        "sum_us": shared.sum_us,
        "gradient_bytes": shared.gradient_bytes,
        "sent_bytes": shared.sent_bytes,
        "feasible": shared.fits,
        "shares": [
            {
                "devices": [shared.cluster.devices[gpu].name for gpu in each.gpus],
                "share": each.share,
                "samples": each.samples,
                "step_time_us": each.step_time_us,
                "peak_bytes": int(each.alone.peak_bytes.max()),
            }
            for each in shared.replicas
        ],
        "guess": shared.doubt,
    }
