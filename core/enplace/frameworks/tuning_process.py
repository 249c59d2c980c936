"""Tuning in a worker, so that no window has to wait for it.

The answer is the run of the best plan, with ``rounds``. Framework workers that it starts end with
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from enplace.errors import ClusterError
from enplace.frameworks.jobs import Replicas, RunRequest, do_work, run_job
from enplace.frameworks.measured import MeasuredRun, run_from, run_message
from enplace.frameworks.source import source_from_json
from enplace.frameworks.tuning import Run, Tuning, tune
from enplace.placers import DEFAULT_METHOD, PlaceOptions, Progress, Stop, place
from enplace.processes import codecs
from enplace.processes.main import Connection
from enplace.processes.wire import Message
from enplace.processes.worker import WRITTEN, Report, Wrote, handler_program, ignore_written, never
from enplace.values.plan import Plan
from enplace.values.problem import Problem

PROGRAM = handler_program("enplace.frameworks.tuning_process:work", "tuning")

SEARCH_S = 10.0
"""Time to search for each new plan."""


def tune_job(request: RunRequest, rounds: int, problem: Problem, plan: Plan) -> tuple[Message, ...]:
    """Make the job of tuning a plan."""
    profile, job = run_job(request, problem, plan)
    return profile, Message("tune", {**job.details, "rounds": rounds}, job.arrays)


def check_tunable(request: RunRequest) -> None:
    """Refuse to tune where a run measures no step time.

    Raises
    ------
    ClusterError
        With the devices.
    """
    framework = request.source.framework
    if framework.uses_labels(request.devices):
        raise ClusterError(
            f"'{request.devices}' is labels of one CPU for {framework.name}, which measure no step "
            f"time; tune on the devices themselves"
        )


def runs_as(
    request: RunRequest,
    report: Report,
    cancelled: Callable[[], bool] = never,
    wrote: Wrote = ignore_written,
) -> Run:
    """Return a function that runs plans on real devices, each in a separate worker.

    Only the first run may also time data parallelism, which is the same whatever the plan.
    """
    wanted: Iterator[Replicas] = iter([request.data_parallel])

    def measure(problem: Problem, plan: Plan) -> MeasuredRun:
        asked = replace(request, data_parallel=next(wanted, ""))
        job = run_job(asked, problem, plan)
        return run_from(do_work(request.source, job, report, cancelled, wrote), problem)

    return measure


def work(connection: Connection) -> Message:
    """Tune the plan of the job received."""
    profile, job = connection.receive(), connection.receive()
    return _tuned(profile, job, connection.report)


def _tuned(profile: Message, job: Message, report: Report) -> Message:
    details = job.details
    problem = codecs.problem_from(codecs.profile_from(profile), details["problem"])

    def on_progress(progress: Progress) -> None:
        report(f"Solving with the measured costs: {progress.message}", progress.fraction)

    def solve(problem: Problem) -> Plan:
        options = PlaceOptions(stop=Stop(SEARCH_S), progress=on_progress)
        return place(problem, DEFAULT_METHOD, options=options).plan

    request = RunRequest(
        source_from_json(details["source"]),
        details["devices"],
        details["steps"],
        details["wishes"],
        data_parallel="always",
    )
    check_tunable(request)
    written: set[str] = set()
    measure = runs_as(request, report, wrote=written.update)
    tuning = tune(problem, codecs.plan_from(job), measure, solve, details["rounds"])
    answer = run_message(tuning.best.run)
    more = {"rounds": _rounds(tuning), WRITTEN: sorted(written)}
    return Message(answer.do, {**answer.details, **more}, answer.arrays)


def _rounds(tuning: Tuning) -> list[dict[str, Any]]:
    return [
        {
            "step_time_us": trial.run.step_time_us,
            "kept": trial.kept,
            "as_planned": trial.run.as_planned,
        }
        for trial in tuning.trials
    ]
