"""Tuning in a process of its own, for a window that must not wait for it.

It hears a profile, then a plan with ``do`` = ``tune`` and the details of :func:`tune_job`, and
answers as :mod:`enplace.frameworks.worker` tells: with ``progress``, then ``done`` with the run of
the best plan and ``rounds``, or ``failed``. The processes with TensorFlow that it starts end with
it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from enplace.errors import EnplaceError
from enplace.frameworks.measured import MeasuredRun, run_from, run_message
from enplace.frameworks.source import Source, source_from_json
from enplace.frameworks.tuning import Run, Tuning, tune
from enplace.frameworks.worker import Report, WorkerError, do_work, never, run_job
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, place
from enplace.processes import wire
from enplace.processes.wire import Message
from enplace.values.plan import Plan
from enplace.values.problem import Problem

COMMAND = (sys.executable, "-P", "-m", "enplace.frameworks.tuning_process")

SEARCH_S = 10.0
"""Time to look for each new plan."""


def tune_job(
    source: Source,
    devices: str,
    steps: int,
    order: bool,
    rounds: int,
    problem: Problem,
    plan: Plan,
) -> tuple[Message, ...]:
    """What the process is sent."""
    profile, job = run_job(source, devices, steps, order, problem, plan)
    return profile, Message("tune", {**job.details, "rounds": rounds}, job.arrays)


def runs_on(
    source: Source,
    devices: str,
    steps: int,
    order: bool,
    report: Report,
    cancelled: Callable[[], bool] = never,
) -> Run:
    """Runs plans on real devices, each in a process of its own, until cancelled."""

    def measure(problem: Problem, plan: Plan) -> MeasuredRun:
        job = run_job(source, devices, steps, order, problem, plan)
        return run_from(do_work(job, report, cancelled), problem)

    return measure


def main() -> None:
    """Do the job on standard input."""
    hear, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    saying = threading.Lock()

    def say(message: Message) -> None:
        with saying:
            out.write(wire.encode(message))
            out.flush()

    profile, job = wire.read(hear), wire.read(hear)
    assert profile is not None
    assert job is not None
    threading.Thread(target=_end_with, args=(hear,), daemon=True).start()
    try:
        say(_tuned(profile, job, say))
    except WorkerError as error:
        sys.stderr.write(f"{error.last_lines}\n")
        say(Message("failed", {"why": str(error), "kind": "WorkerError"}))
    except EnplaceError as error:
        say(Message("failed", {"why": str(error), "kind": "EnplaceError"}))


def _end_with(hear: Any) -> None:
    """Wait until whoever asked is gone."""
    hear.read()
    os._exit(0)


def _tuned(profile: Message, job: Message, say: Any) -> Message:
    details = job.details
    problem = wire.problem_from(wire.profile_from(profile), details["problem"])

    def report(message: str, fraction: float | None) -> None:
        say(Message("progress", {"message": message, "fraction": fraction}))

    def tell(progress: Progress) -> None:
        report(f"Solving with the measured costs: {progress.message}", progress.fraction)

    def solve(problem: Problem) -> Plan:
        options = PlaceOptions(time_limit_s=SEARCH_S, progress=tell)
        return place(problem, DEFAULT_METHOD, options=options).plan

    source = source_from_json(details["source"])
    measure = runs_on(source, details["devices"], details["steps"], details["order"], report)
    tuning = tune(problem, wire.plan_from(job), measure, solve, details["rounds"])
    answer = run_message(tuning.best.run)
    return Message(answer.do, {**answer.details, "rounds": _rounds(tuning)}, answer.arrays)


def _rounds(tuning: Tuning) -> list[dict[str, Any]]:
    return [
        {
            "step_time_us": trial.run.step_time_us,
            "kept": trial.kept,
            "as_planned": trial.run.as_planned,
        }
        for trial in tuning.trials
    ]


if __name__ == "__main__":
    main()
