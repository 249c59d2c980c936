"""Jobs for a framework's worker.

A worker does one job and ends: a framework may fix its devices when it starts, and a crash there
loses nothing here. The worker receives the values that the job is about, if any, and then the job,
which is the message with a ``source``. Everything that a model's own code prints goes to the
worker's standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Literal

from enplace.frameworks.microbatches import Microbatches
from enplace.frameworks.source import Source
from enplace.processes.codecs import plan_message, problem_to_json, profile_from, profile_message
from enplace.processes.wire import Message
from enplace.processes.worker import Report, do_job, ignore, never
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile

Job = tuple[Message, ...]

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


def run_job(
    source: Source,
    devices: str,
    steps: int,
    order: bool,
    problem: Problem,
    plan: Plan,
    compare: bool = True,
    repeat: int = 1,
    microbatches: Microbatches | None = None,
    data_parallel: Replicas = "",
) -> Job:
    """Make the job of running a plan and measuring it; the answer is a run message.

    Parameters
    ----------
    compare : bool
        Whether to run the same steps without the plan, too.
    repeat : int
        How often to run the steps, each time in a new session.
    microbatches : Microbatches, optional
        Run the step as a pipeline.
    data_parallel : {"", "quick", "always"}
        When to time the model under data parallelism, too.
    """
    _check_devices(source, devices)
    details = {
        "source": source.to_json(),
        "devices": devices,
        "steps": steps,
        "order": order,
        "compare": compare,
        "repeat": repeat,
        "pipeline": None if microbatches is None else asdict(microbatches),
        "data_parallel": data_parallel,
        "problem": problem_to_json(problem),
    }
    profile = profile_message(problem.measured_profile)
    return profile, plan_message("run", plan, details)


def _check_devices(source: Source, devices: str) -> None:
    if not source.is_recorded:
        source.framework.check_devices(devices)


def data_parallel_job(source: Source, devices: str, steps: int) -> Job:
    """Make the job of timing a model with a replica on each device.

    The answer has ``times_us``, of each step, and ``samples``, or says ``why_not``.
    """
    return (
        Message("data-parallel", {"source": source.to_json(), "devices": devices, "steps": steps}),
    )


def do_work(
    source: Source,
    job: Sequence[Message],
    progress: Report = ignore,
    cancelled: Callable[[], bool] = never,
) -> Message:
    """Have a worker of the model's framework do a job; see :func:`do_job`."""
    return do_job(source.framework.worker, job, progress, cancelled)


def measure_profile(
    source: Source,
    devices: str,
    steps: int,
    warm_ups: int,
    batch_sizes: Sequence[int] = (),
    progress: Report = ignore,
    cancelled: Callable[[], bool] = never,
) -> Profile:
    """Have a worker profile a model, and return the profile; see :func:`profile_job`."""
    job = profile_job(source, devices, steps, warm_ups, batch_sizes)
    return profile_from(do_work(source, job, progress, cancelled))
