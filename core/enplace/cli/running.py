"""``run``, ``tune``, ``serve``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from enplace.cli.answer import NO, YES, Answer, command
from enplace.cli.models import FRAMEWORK, ModelCommand, find_source, model_options
from enplace.cli.options import (
    FILE,
    POSITIVE,
    all_of,
    force_option,
    method_option,
    plan_argument,
    take_given,
    whole_option,
)
from enplace.cli.progress import stopped_by_ctrl_c, work_bar, written_told
from enplace.cli.runs import describe_run, describe_tuning, run_numbers, tuning_numbers
from enplace.errors import EnplaceError
from enplace.files.outputs import PLAN, check_outputs, keep_replaced
from enplace.inputs import choose_method, read_problem_and_plan
from enplace.summary import alternative_numbers, describe_alternatives

if TYPE_CHECKING:
    from enplace.frameworks.jobs import Replicas
    from enplace.option import Option
    from enplace.placers import Progress

run_options = all_of(
    plan_argument,
    whole_option("--steps", 1, 100_000, "How many steps to measure.", default=20),
    whole_option(
        "--repeat", 1, 100, "How often to measure them, each time in a new session.", default=1
    ),
)


class RunCommand(ModelCommand):
    """A command with a flag for all that may be wished of a run, too."""

    def declared(self) -> Iterable[Option]:
        from enplace.frameworks.registry import run_options

        return [*super().declared(), *run_options().values()]


class TuneCommand(ModelCommand):
    """A command with a flag for all that may be wished of tuning, too."""

    def declared(self) -> Iterable[Option]:
        from enplace.frameworks.registry import tune_options

        return [*super().declared(), *tune_options().values()]


@command("run", RunCommand)
@model_options
@run_options
@click.option(
    "--profile",
    "profile_file",
    type=FILE,
    metavar="P.enplace",
    help="The profile that the plan was made for. [default: what the plan's file records]",
)
@click.option(
    "--data-parallel",
    is_flag=True,
    help="Time data parallelism even where it takes long to start, because the model has many ops.",
)
def run(
    plan: str,
    steps: int,
    repeat: int,
    profile_file: str | None,
    data_parallel: bool,
    devices: str | None,
    trust: bool,
    **given: Any,
) -> Answer:
    """Run MODEL with PLAN applied, and measure it.

    The same steps also run without the plan, to prove that the result is the same, and as
    the framework runs them by itself. With --pipeline, each batch is cut into micro-batches, which
    follow each other through the devices; the gradients are added up and the variables change once.
    Exit status 1 if the model did not run as planned.
    """
    from enplace.frameworks.alternatives import alternatives_of_run
    from enplace.frameworks.devices import devices_for
    from enplace.frameworks.jobs import RunRequest
    from enplace.frameworks.microbatches import check_runnable, find_microbatches
    from enplace.frameworks.registry import framework_of, run_options
    from enplace.frameworks.tuning_process import runs_as
    from enplace.readers import read_plan_alone

    wishes = take_given(given, run_options())
    wanted = find_microbatches(wishes, "--")
    predicted_us = None
    if profile_file:
        problem, chosen = read_problem_and_plan(profile_file, plan, None)
    else:
        lone = read_plan_alone(plan)
        problem, chosen, predicted_us = lone.problem, lone.plan, lone.step_time_us
    if wanted is not None or chosen.recompute:
        recomputes = wanted is not None and framework_of(problem.profile).recomputes
        check_runnable(chosen, problem.cluster, recomputes=recomputes)
    source = find_source(given, trust, problem)
    source.framework.check_hosts(problem, chosen, os.path.basename(source.path))
    where = devices or devices_for(problem.cluster, problem.profile.measured)
    timed: Replicas = "always" if data_parallel else "quick"
    request = RunRequest(source, where, steps, wishes, repeat=repeat, data_parallel=timed)
    with (
        written_told(source) as wrote,
        work_bar() as report,
        stopped_by_ctrl_c() as stopped,
    ):
        measured = runs_as(request, report, stopped, wrote)(problem, chosen)
    if predicted_us is not None and wanted is None:
        measured = replace(measured, predicted_step_time_us=predicted_us)
    step_us = measured.predicted_step_time_us
    objective, instead = alternatives_of_run(problem, chosen, wanted, step_us)
    numbers = [alternative_numbers(each, objective) for each in instead]
    files = {"model": source.path, "devices": where, "placement_file": plan}
    return Answer(
        run_numbers(measured) | files | {"alternatives": numbers},
        "\n\n".join([describe_run(measured, where), *describe_alternatives(instead, objective)]),
        YES if measured.as_planned else NO,
    )


@command("tune", TuneCommand)
@model_options
@run_options
@click.option(
    "--profile",
    "profile_file",
    type=FILE,
    required=True,
    metavar="P.enplace",
    help="The profile that the plan was made for.",
)
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="better.json", help="Write the best plan."
)
@force_option
@whole_option("--rounds", 1, 100, "Try at most this many new plans.", default=3)
@method_option
@click.option(
    "--time-limit",
    type=POSITIVE,
    metavar="SECONDS",
    help="Stop each search after this time, with its best plan.",
)
def tune(
    plan: str,
    steps: int,
    repeat: int,
    profile_file: str,
    output: str,
    force: bool,
    rounds: int,
    method: str | None,
    time_limit: float | None,
    devices: str | None,
    trust: bool,
    **given: Any,
) -> Answer:
    """Improve PLAN for MODEL by measurement.

    Runs the plan, learns the measured costs, solves again and runs the new plan; keeps the one
    that measures faster and runs as planned; stops when the costs promise no more (FastT's
    adaptive cost model). With --pipeline, the stages are tuned: how long their passes take is
    measured. Exit status 1 if no new plan was kept and one did not run as planned.
    """
    from enplace.frameworks import tuning
    from enplace.frameworks.devices import devices_for
    from enplace.frameworks.jobs import RunRequest
    from enplace.frameworks.microbatches import find_microbatches
    from enplace.frameworks.registry import tune_options
    from enplace.frameworks.tuning_process import check_tunable, runs_as, solves_as
    from enplace.machine import simulate
    from enplace.placers import STEP_TIME, THROUGHPUT, PlaceOptions, Stop
    from enplace.values.result import Result
    from enplace.writers import write_plan

    check_outputs([(PLAN, output)], profile_file, force=force)
    problem, first = read_problem_and_plan(profile_file, plan, None)
    wishes = take_given(given, tune_options())
    wanted = find_microbatches(wishes, "--")
    chosen = choose_method(method, STEP_TIME if wanted is None else THROUGHPUT, {})
    source = find_source(given, trust, problem)
    where = devices or devices_for(problem.cluster, problem.profile.measured)
    request = RunRequest(source, where, steps, wishes, repeat=repeat, data_parallel="always")
    check_tunable(request)

    with (
        written_told(source) as wrote,
        work_bar() as report,
        stopped_by_ctrl_c() as stopped,
    ):

        def on_progress(progress: Progress) -> None:
            report(progress.message, progress.fraction)

        def options() -> PlaceOptions:
            return PlaceOptions(stop=Stop(time_limit, cancelled=stopped), progress=on_progress)

        measure = runs_as(request, report, stopped, wrote)
        solve, predict_us = solves_as(wanted, chosen, options)
        tuned = tuning.tune(problem, first, measure, solve, rounds, predict_us)
    best = tuned.best.plan
    keep_replaced(output)
    write_plan(output, Result(simulate(tuned.problem, best)))
    return Answer(
        tuning_numbers(tuned) | {"devices": where, "placement_file": output},
        f"{describe_tuning(tuned)}\n\nThe plan is in {output}.",
        NO if tuned.is_spoilt else YES,
    )


@command("serve")
@click.argument("cluster", type=FILE)
@click.argument("task")
@click.option(
    "--framework",
    type=FRAMEWORK,
    metavar="NAME",
    help="The framework that runs the plans. [default: the first that is installed and can]",
)
def serve(cluster: str, task: str, framework: str | None) -> Answer:
    """Serve TASK of CLUSTER, so that plans can run across hosts.

    TASK is, for example, /job:worker/task:0. Run this on each host, with the same cluster file,
    before you run the plan on one of them. To plan how a decoder model is served, use plan-serving.
    """
    from enplace.frameworks.registry import frameworks, server_framework
    from enplace.processes.wire import Message
    from enplace.processes.worker import do_job

    chosen = frameworks()[framework] if framework else server_framework()
    if chosen.server is None:
        lacks = "serves no tasks" if chosen.runs else "runs no models"
        raise EnplaceError(f"{chosen.name} {lacks}; choose another framework")
    job = Message("serve", {"cluster": cluster, "task": task})
    do_job(chosen.server, [job], lambda message, _: click.echo(message, err=True))
    return Answer({}, "")
