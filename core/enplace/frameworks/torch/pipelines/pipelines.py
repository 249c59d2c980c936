"""Run a plan as a pipeline: ``torchrun`` starts a process for each stage, and all are collected."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

from enplace.errors import ClusterError, EnplaceError, PlanError
from enplace.files.folders import temporary_folder
from enplace.frameworks.comparing import first_step_difference, largest_difference
from enplace.frameworks.devices import LOCAL
from enplace.frameworks.measured import MeasuredRun, median_us, quartiles_us, run_by_module
from enplace.frameworks.microbatches import Microbatches, simulate_batch
from enplace.frameworks.torch.device_map import count_elsewhere
from enplace.frameworks.torch.error_text import lacking
from enplace.frameworks.torch.hosts import stage_devices
from enplace.frameworks.torch.pipelines.pipeline_files import (
    ANSWER,
    JOB,
    LOST,
    ON_ONE_DEVICE,
    OUTPUT,
    OWN,
    PROGRESS,
    SCHEDULES,
    TOLD,
    WHY,
)
from enplace.frameworks.torch.record.modules import joined
from enplace.frameworks.torch.run.comparison import (
    AFTER_FIRST,
    GRADIENTS,
    LOSS,
    WEIGHTS,
    about_batches,
    about_run,
    group_of,
    steps_of,
    way_of,
)
from enplace.frameworks.torch.run.matching import check_plan
from enplace.processes import redirect
from enplace.processes.wire import Message, encode, read
from enplace.processes.worker import Report, WorkerError
from enplace.text import count, finite, listed
from enplace.values.plan import Plan
from enplace.values.problem import Problem

FIVE_DIGITS = 1e-5
"""The first step may differ by so much, in proportion: its sums are over micro-batches."""

POLL_S = 0.1
END_S = 5.0
"""Time for the other processes to end once one has failed."""


def run_pipeline(
    problem: Problem,
    plan: Plan,
    wanted: Microbatches,
    job: Message,
    profile: Message,
    plain: Message | None,
    report: Report,
) -> MeasuredRun:
    """Run a script as a pipeline, with a process for each device that the plan uses.

    Parameters
    ----------
    job, profile : Message
        As the worker got them; each process reads them.
    plain : Message, optional
        The answer of the run without the plan, to compare with.

    Raises
    ------
    EnplaceError
        With the line of the process that failed first.
    """
    with temporary_folder() as folder:
        (folder / JOB).write_bytes(encode(profile) + encode(job))
        answers = _start(folder, len(stage_devices(problem, plan)), report)
    run = _seen(problem, plan, wanted, answers, job.details["devices"])
    return run if plain is None else _compared(run, answers, plain)


def check_pipeline(problem: Problem, plan: Plan, wanted: Microbatches, devices: str) -> None:
    """Refuse a pipeline that cannot run here, before anything runs.

    Raises
    ------
    EnplaceError
        With the reason, and what to do instead.
    """
    check_plan(problem, plan, in_stages=True)
    used = [problem.cluster.devices[d].name for d in stage_devices(problem, plan)]
    if len(used) < 2:
        raise PlanError(ON_ONE_DEVICE)
    if not torch.distributed.is_available() or find_spec("torch.distributed.run") is None:
        raise EnplaceError(
            f"PyTorch {torch.__version__} has no torchrun (torch.distributed.run), which starts "
            f"the processes of a pipeline; install a build with torch.distributed"
        )
    if redirect.copies is not None:
        raise EnplaceError(
            "this system has no overlays of files, which keep the processes of a pipeline from "
            "changing yours; run the script itself under torchrun"
        )
    check_schedule(wanted)
    match = LOCAL.fullmatch(devices.strip())
    assert match is not None
    there = torch.cuda.device_count() if match[1].lower() == "gpu" else int(match[2])
    if there < len(used):
        raise ClusterError(
            f"'{devices}': the plan uses {count(len(used), 'device')} ({listed([*used])}), and a "
            f"pipeline has a process for each; there are {there}"
        )


def check_schedule(wanted: Microbatches) -> None:
    """Refuse a schedule that PyTorch does not have.

    Raises
    ------
    EnplaceError
        With those that it has.
    """
    if wanted.schedule not in SCHEDULES:
        raise PlanError(
            f"Enplace runs pipelines of PyTorch in training, as {listed(SCHEDULES)}, not as "
            f"{wanted.schedule}"
        )
    made = SCHEDULES[wanted.schedule]
    try:
        found = getattr(importlib.import_module("torch.distributed.pipelining"), made)
    except (ImportError, AttributeError):
        missing = f"torch.distributed.pipelining.{made}"
        raise EnplaceError(lacking(torch.__version__, missing)) from None
    if "scale_grads" not in signature(found).parameters:
        raise EnplaceError(
            f"the pipelines of PyTorch {torch.__version__} do not wait for all tensors that stages "
            f"send each other, so they hang or compute something else; use a later version: 2.13 "
            f"was tried"
        )


def _start(folder: Path, n: int, report: Report) -> list[Message]:
    """Start the processes, wait for them and return what each answers."""
    command = [
        sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--max-restarts=0",
        f"--nproc-per-node={n}", "-m", "enplace.frameworks.torch.pipelines.measured", str(folder),
    ]  # fmt: skip
    report(f"Starting {n} processes", None)
    with open(folder / TOLD, "wb") as told:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": "1"} | os.environ,  # as torchrun has it, but it tells everybody
        )
    failed_at = None
    while process.poll() is None:
        time.sleep(POLL_S)
        _pass_on(folder, report)
        if _failures(folder):
            failed_at = failed_at or time.monotonic()
            if time.monotonic() - failed_at > END_S:
                process.kill()
    answers = [_answer(folder, rank) for rank in range(n)]
    silent = [
        rank
        for rank, answer in enumerate(answers)
        if answer is None and not (folder / WHY.format(rank)).exists()
    ]
    failures = _failures(folder)
    first = [each for each in failures if each.kind != LOST] or ([] if silent else failures)
    if first:
        failure = first[0]
        if failure.kind == OWN:
            raise PlanError(failure.line)
        _print_output(folder, failure.rank)
        raise WorkerError(failure.line)
    if silent:
        rows = _ENDED.findall((folder / TOLD).read_text(errors="replace"))
        signals = {int(rank): signal for rank, signal in rows if signal}
        # By SIGTERM, torchrun ends the others, perhaps before they say anything.
        killed = [rank for rank in silent if signals.get(rank, "SIGTERM") != "SIGTERM"]
        rank = (killed or silent)[0]
        by = f"was ended by {signals[rank]}" if rank in signals else "ended without a result"
        _print_output(folder, rank)
        raise WorkerError(
            f"process {rank} of the pipeline {by}, and so the others were ended; its output says "
            f"why, or this machine ran out of memory"
        )
    return [answer for answer in answers if answer is not None]


_ENDED = re.compile(r"rank +: (\d+).*?traceback : (?:Signal \d+ \((\w+)\))?", re.DOTALL)
"""What ``torchrun`` says of each process that failed: its rank, and the signal that ended it."""


def _print_output(folder: Path, rank: int) -> None:
    """Print what a process printed; what ``torchrun`` said if it never began."""
    path = folder / OUTPUT.format(rank)
    path = path if path.exists() else folder / TOLD
    print(path.read_text(errors="replace"), file=sys.stderr)


def _pass_on(folder: Path, report: Report) -> None:
    try:
        fraction, _, message = (folder / PROGRESS).read_text().partition(" ")
        report(message, float(fraction))
    except (OSError, ValueError):
        return  # nothing yet, or half of it


@dataclass(frozen=True)
class _Failure:
    """What a process says of why it failed."""

    rank: int
    kind: str
    line: str


def _failures(folder: Path) -> list[_Failure]:
    """Return what processes say that failed, those first that failed first."""
    found = sorted(folder.glob(WHY.format("*")), key=lambda path: path.stat().st_mtime)
    failures = []
    for path in found:
        kind, _, line = path.read_text().partition(" ")
        failures.append(_Failure(int(path.name.rpartition("-")[2]), kind, line))
    return failures


def _answer(folder: Path, rank: int) -> Message | None:
    path = folder / ANSWER.format(rank)
    if not path.exists():
        return None
    with open(path, "rb") as file:
        return read(file)


def _seen(
    problem: Problem,
    plan: Plan,
    wanted: Microbatches,
    answers: Sequence[Message],
    devices: str,
) -> MeasuredRun:
    is_known = any(problem.measured_profile.op_types)
    predicted = simulate_batch(problem, plan, wanted) if is_known else None
    first = answers[0].details
    times_us = np.max([each.details["times_us"] for each in answers], axis=0)
    step_us = float(np.median(times_us))
    names = [each.name for each in problem.cluster.devices]
    rows = []
    for rank, at in enumerate(first["devices"]):
        own = answers[rank].details
        row: dict[str, Any] = {
            "device": names[at],
            "busy_share": float(np.median(own["busy_us"])) / step_us,
            "passes_us": np.median(own["passes_us"], axis=0).tolist(),
            "in_flight": own["in_flight"],
            "peak_bytes": own["peak_bytes"],
        }
        if predicted is not None:
            row["planned_in_flight"] = predicted.in_flight[at]
            row["predicted_busy_share"] = predicted.computing_us(at) / predicted.makespan_us
            row["predicted_peak_bytes"] = int(predicted.peak_bytes[at])
        rows.append(row)
    checked, in_place = (
        sum(each.details[key] for each in answers) for key in ("modules", "modules_in_place")
    )
    return run_by_module(
        problem,
        plan,
        times_us,
        np.nan if predicted is None else predicted.makespan_us,
        (checked, in_place),
        {
            **about_run(devices, first["compared_steps"], first["is_compiled"]),
            "processes": len(answers),
            "pipeline": {
                "schedule": wanted.schedule,
                "microbatches": wanted.number,
                "samples": first["samples"],
                "stages": first["stages"],
                "shared_parameters": first["shared"],
                "own_statistics": [],
                "whole_difference": None,
                "without_dropout": True,
                "ops_elsewhere": count_elsewhere(problem.profile, plan.device),
                "devices": rows,
            },
        },
    )


def _compared(run: MeasuredRun, answers: Sequence[Message], plain: Message) -> MeasuredRun:
    """Compare losses, and weights and gradients, of which each stage has its own, with plain ones.

    Sums over micro-batches round differently from one over the batch.
    """
    arrays = {k: v for each in answers for k, v in each.arrays.items()}
    before = _trained_as(group_of(arrays, WEIGHTS), plain.arrays)

    def pair(group: str) -> tuple[dict[str, Any], dict[str, Any]]:
        ours, theirs = (group_of(each, group) for each in (arrays, plain.arrays))
        own = {name: theirs[full] for name in ours if (full := joined(before, name)) in theirs}
        return ours, own

    losses = [steps_of(each) for each in (arrays, plain.arrays)]
    ways = map(way_of, losses, pair(AFTER_FIRST))
    times_us = plain.details["times_us"]
    return replace(
        run,
        loss_difference=largest_difference(*(group_of(e, LOSS) for e in (arrays, plain.arrays))),
        weights_difference=largest_difference(*pair(WEIGHTS)),
        first_step_difference=first_step_difference(*ways),
        stock_step_time_us=median_us(times_us),
        facts={
            **run.facts,
            "other_batches": about_batches(run, plain),
            "stock_quartiles_us": quartiles_us(times_us),
            "tolerance": FIVE_DIGITS,
            "gradients_difference": finite(largest_difference(*pair(GRADIENTS))),
            "weights_compared": len(group_of(arrays, WEIGHTS)),
        },
    )


def _trained_as(weights: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    """Return what the run without a plan has before the names of a model's weights.

    It names them by the script's variable if the script calls several models. Where several have
    such weights, as a moving average does, it is the one that has gradients.

    Raises
    ------
    EnplaceError
        If no model has them.
    """
    known, gradients = group_of(plain, WEIGHTS), group_of(plain, GRADIENTS)
    first = joined("", next(iter(weights)))
    heads = [
        name.removesuffix(first).removesuffix(".")
        for name in known
        if f".{name}".endswith(f".{first}")
    ]
    found = [
        head
        for head in heads
        if all(
            (full := joined(head, name)) in known and known[full].shape == each.shape
            for name, each in weights.items()
        )
    ]
    if not found:
        raise EnplaceError(
            f"the run without the plan has no model with all {count(len(weights), 'weight')} of "
            f"the pipeline, such as '{first}', so nothing can be compared"
        )
    return max(found, key=lambda head: sum(joined(head, name) in gradients for name in weights))
