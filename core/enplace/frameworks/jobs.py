"""Jobs for a framework's worker.

A worker does one job and ends: a framework may fix its devices when it starts, and a crash there
loses nothing here. The worker receives the values that the job is about, if any, and then the job,
which is the message with a ``source``. Everything that a model's own code prints goes to the
worker's standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from enplace.frameworks.source import Source
from enplace.option import Value
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
    _check_devices(source, request.devices)
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
