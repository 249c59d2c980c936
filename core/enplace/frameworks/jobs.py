"""Jobs for a framework's worker.

A worker does one job and ends: a framework may fix its devices when it starts, and a crash there
loses nothing here. The worker receives the values that the job is about, if any, and then the job,
which is the message with a ``source``. Everything that a model's own code prints goes to the
worker's standard error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from enplace.frameworks.source import Source, source_from_json
from enplace.option import Value
from enplace.processes.codecs import plan_message, problem_to_json, profile_from, profile_message
from enplace.processes.guard import LANDLOCK, OLD_LANDLOCK, OVERLAYS, PYTHON, WARNINGS, guard
from enplace.processes.scratch import is_in
from enplace.processes.wire import Message
from enplace.processes.worker import (
    Report,
    WorkerProgram,
    Wrote,
    do_job,
    handler_program,
    ignore,
    ignore_written,
    never,
)
from enplace.text import count
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile

Job = tuple[Message, ...]

_SHOWN = 3

_REFUSES = "this system refuses other writes, but programs and native libraries may have changed"
_ABOUT_THE_REST = {
    OVERLAYS: "your files are as before",
    LANDLOCK: f"{_REFUSES} modes, owners, times and attributes of files",
    OLD_LANDLOCK: f"{_REFUSES} modes, owners, times, attributes and lengths of files",
    PYTHON: "what programs and native libraries wrote is not among them",
}

_SEVERAL = handler_program("enplace.frameworks.work:do_several", "framework")

RUN_PLAIN = "run-plain"
"""The job of running a model without a plan, in a worker of its own: see ``plain_apart``."""

Replicas = Literal["", "quick", "always"]
"""When to time data parallelism: never, if its copies of the step start quickly, or always."""


def profile_job(
    source: Source, devices: str, steps: int, warm_ups: int, batch_sizes: Sequence[int] = ()
) -> Job:
    """Make the job of profiling a model; the answer is a profile message.

    Without ``steps``, the profile holds the graph with the sizes that are known, and no times. With
    ``batch_sizes``, it is estimated from these: :mod:`enplace.frameworks.evaluation`.
    """
    _check_devices(source, devices)
    details = {
        "source": source.to_json(),
        "devices": devices,
        "steps": steps,
        "warm_ups": warm_ups,
        "batch_sizes": list(batch_sizes),
    }
    return (Message("profile", details),)


@dataclass(frozen=True)
class RunRequest:
    """How to run a plan.

    Attributes
    ----------
    source, devices, steps
        The model, where it runs, and how many steps are measured.
    wishes : mapping
        By the keys of the framework's ``run_options``.
    compare : bool
        Whether to run the same steps without the plan, too.
    repeat : int
        How often to run the steps, each time in a new session.
    data_parallel : {"", "quick", "always"}
        When to time the model under data parallelism, too.
    """

    source: Source
    devices: str
    steps: int
    wishes: Mapping[str, Value] = field(default_factory=dict)
    compare: bool = True
    repeat: int = 1
    data_parallel: Replicas = ""


def run_job(request: RunRequest, problem: Problem, plan: Plan) -> Job:
    """Make the job of running a plan and measuring it; the answer is a run message.

    Raises
    ------
    EnplaceError
        If the model's framework cannot have the devices, or cannot do what is wished.
    """
    source = request.source
    source.framework.check_hosts(problem, plan, os.path.basename(source.path))
    _check_devices(source, request.devices, for_run=True)
    details = {
        "source": source.to_json(),
        "devices": request.devices,
        "steps": request.steps,
        "wishes": source.framework.run_wishes(request.wishes),
        "compare": request.compare,
        "repeat": request.repeat,
        "data_parallel": request.data_parallel,
        "problem": problem_to_json(problem),
    }
    profile = profile_message(problem.measured_profile)
    return profile, plan_message("run", plan, details)


def export_job(source: Source, problem: Problem, plan: Plan) -> Job:
    """Make the job of writing a plan's devices into the model; the answer holds what to save."""
    details = {
        "source": source.to_json(),
        "devices": "cpu:1",
        "problem": problem_to_json(problem),
    }
    profile = profile_message(problem.measured_profile)
    return profile, plan_message("export", plan, details)


def _check_devices(source: Source, devices: str, for_run: bool = False) -> None:
    if not source.is_recorded:
        source.framework.check_devices(devices, for_run=for_run)


def data_parallel_job(source: Source, devices: str, steps: int) -> Job:
    """Make the job of timing a model with a replica on each device.

    The answer has ``times_us``, of each step, and ``samples``, or says ``why_not``.
    """
    return (
        Message("data-parallel", {"source": source.to_json(), "devices": devices, "steps": steps}),
    )


def program_for(source: Source, job: Sequence[Message]) -> WorkerProgram:
    """Return the program that does a job: the framework's, or ours that starts several of these.

    Each start of a script sees files as they are on disk, and not what another start has written.
    """
    details = job[-1].details
    several = details.get("batch_sizes") or details.get("data_parallel") or runs_apart(job[-1])
    own = source.framework.worker
    return replace(_SEVERAL, name=own.name) if several and own.changes_nothing else own


def runs_apart(job: Message) -> bool:
    """Return whether a job is a run that is compared with one in a worker of its own."""
    if job.do != "run" or not job.details["compare"]:
        return False
    return source_from_json(job.details["source"]).framework.plain_apart


def do_work(
    source: Source,
    job: Sequence[Message],
    progress: Report = ignore,
    cancelled: Callable[[], bool] = never,
    wrote: Wrote = ignore_written,
) -> Message:
    """Have a worker of the model's framework do a job; see :func:`do_job`."""
    return do_job(program_for(source, job), job, progress, cancelled, wrote)


def warning_before(source: Source) -> str:
    """Say what of files a model's code may change; empty if this system keeps it from that."""
    guarded = source.is_recorded or not source.framework.worker.changes_nothing
    return "" if guarded else WARNINGS[guard()]


def about_written(model: str, paths: Collection[str]) -> str:
    """Say which files a model's code would have changed, those in this folder first."""
    here = os.getcwd()
    inside = sorted(os.path.relpath(path, here) for path in paths if is_in(path, [here]))
    names = [*inside, *sorted(path for path in paths if not is_in(path, [here]))]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return (
        f"{model} wrote or removed {count(len(names), 'file')} ({shown}) in a scratch folder only, "
        f"which is removed; {_ABOUT_THE_REST[guard()]}"
    )


def measure_profile(
    source: Source,
    devices: str,
    steps: int,
    warm_ups: int,
    batch_sizes: Sequence[int] = (),
    progress: Report = ignore,
    cancelled: Callable[[], bool] = never,
    wrote: Wrote = ignore_written,
) -> Profile:
    """Have a worker profile a model, and return the profile; see :func:`profile_job`."""
    job = profile_job(source, devices, steps, warm_ups, batch_sizes)
    return profile_from(do_work(source, job, progress, cancelled, wrote))
