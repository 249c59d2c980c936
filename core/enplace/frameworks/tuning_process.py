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
from enplace.frameworks.microbatches import (
    Microbatches,
    find_microbatches,
    on_microbatch,
    share_of_profile,
    simulate_batch,
)
from enplace.frameworks.registry import keep_whole, usual_grain
from enplace.frameworks.source import source_from_json
from enplace.frameworks.tuning import Predict, Run, Solve, Tuning, predict_step_us, tune
from enplace.frameworks.wishes import PIPELINE
from enplace.machine.check_claims import check_claims
from enplace.option import Value, read_values
from enplace.placers import DEFAULT_METHODS, PlaceOptions, Progress, Stop, place
from enplace.placing.registry import find_placer
from enplace.processes import codecs
from enplace.processes.main import Connection
from enplace.processes.wire import Message
from enplace.processes.worker import WRITTEN, Report, Wrote, handler_program, ignore_written, never
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem

PROGRAM = handler_program("enplace.frameworks.tuning_process:work", "tuning")

SEARCH_S = 10.0
"""Time to search for each new plan."""


def tune_job(request: RunRequest, rounds: int, problem: Problem, plan: Plan) -> tuple[Message, ...]:
    """Make the job of tuning a plan."""
    profile, job = run_job(request, problem, plan)
    return profile, Message("tune", {**job.details, "rounds": rounds}, job.arrays)


def check_tunable(request: RunRequest) -> None:
    """Refuse to tune where a run measures no step time, and wishes that tuning does not take.

    Raises
    ------
    EnplaceError
        With the devices, or with what cannot be wished.
    """
    framework = request.source.framework
    read_values(framework.tune_options, request.wishes, f"{framework.name}'s tuning")
    if framework.uses_labels(request.devices) and not request.wishes.get(PIPELINE.key):
        raise ClusterError(
            f"'{request.devices}' is labels of one CPU for {framework.name}, which measure no step "
            f"time; tune on GPUs, or a pipeline, whose stages are processes: --pipeline 1f1b"
        )


def solves_as(
    wanted: Microbatches | None, method: str, options: Callable[[], PlaceOptions]
) -> tuple[Solve, Predict]:
    """Return functions that find a plan for what is tuned, and predict its step.

    Parameters
    ----------
    wanted : Microbatches, optional
        The pipeline, if a step is one: its stages are of whole blocks.
    options : callable
        Makes the options of each search, but for its objective.
    """
    if wanted is None:
        return lambda problem: _found(problem, method, options()), predict_step_us

    def solve(problem: Problem) -> Plan:
        known = find_placer(method).options
        asked: dict[str, Value] = {"pipeline": wanted.schedule, "microbatches": wanted.number}
        values = {each.name: asked[each.name] for each in known if each.name in asked}
        whole = keep_whole(problem, usual_grain(problem.measured_profile, THROUGHPUT))
        part = on_microbatch(whole, wanted.number)
        found = _found(part, method, replace(options(), objective=THROUGHPUT, values=values))
        share = share_of_profile(problem.measured_profile, wanted.number)
        found = replace(found, pace_us=found.pace_us / share)
        return check_claims(problem, found)

    def predict_us(problem: Problem, plan: Plan) -> float:
        return simulate_batch(problem, plan, wanted).makespan_us

    return solve, predict_us


def _found(problem: Problem, method: str, options: PlaceOptions) -> Plan:
    found = place(problem, method, options=options).plan
    options.stop.check()
    return found


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
    wanted = find_microbatches(request.wishes)
    solve, predict_us = solves_as(
        wanted,
        DEFAULT_METHODS[STEP_TIME if wanted is None else THROUGHPUT],
        lambda: PlaceOptions(stop=Stop(SEARCH_S), progress=on_progress),
    )
    first, rounds = codecs.plan_from(job), details["rounds"]
    tuning = tune(problem, first, measure, solve, rounds, predict_us)
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
