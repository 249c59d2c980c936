"""``profile``, ``run``, ``tune``, ``serve``: the commands that need a framework."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from enplace.cli.answer import NO, YES, Answer, command, table
from enplace.cli.converting import describe_profile, profile_numbers
from enplace.cli.inputs import check_outputs, method_names, read_problem_and_plan
from enplace.cli.options import FILE, POSITIVE, MethodType, all_of, plan_argument
from enplace.cli.progress import stopped_by_ctrl_c, work_bar
from enplace.errors import EnplaceWarning
from enplace.text import count, listed, ms, percent

if TYPE_CHECKING:
    from enplace.frameworks.measured import MeasuredRun
    from enplace.frameworks.source import Source
    from enplace.frameworks.tuning import Trial, Tuning
    from enplace.placers import Progress
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem
    from enplace.values.profile import Profile

Report = Callable[[str, float | None], None]

CHANGED = (
    "The result differs from the run without the plan. A plan changes no arithmetic; a model "
    "that draws random numbers (in Python, or without a seed) differs from run to run."
)

CHANGED_BY_MORE = (
    "The first step gives another loss or other weights than without the plan, and the difference "
    "is larger than rounding. Splits and hosts change no more than rounding; a model that draws "
    "random numbers (in Python, or without a seed) differs from run to run."
)

MOST_LINKS = 12

_OPTIONS = {
    "--loss": "Loss to train a saved model with, such as 'mse'; needs --optimizer too.",
    "--optimizer": "Optimiser to train a saved model with, such as 'adam'; needs --loss too.",
    "--signature": "Signature of a SavedModel.",
}

model_options = all_of(
    click.argument("model", type=FILE),
    click.option(
        "--arg",
        "arguments",
        multiple=True,
        metavar="WORD",
        help="An argument for the script; repeat it: --arg --batch --arg 16.",
    ),
    *(click.option(name, default="", metavar="NAME", help=text) for name, text in _OPTIONS.items()),
    click.option(
        "--batch-size",
        type=click.IntRange(1, 1 << 24),
        default=None,
        metavar="N",
        help="Batch size of samples for a saved model, or the value of {batch} in --arg. "
        "[default: the model's own]",
    ),
    click.option(
        "--devices",
        metavar="DEVICES",
        help="gpu:all, gpu:2, cpu:2 (logical CPUs) or a cluster file with hosts.",
    ),
    click.option(
        "--trust", is_flag=True, help="Let MODEL's code run without asking whether you trust it."
    ),
)

run_options = all_of(
    plan_argument,
    click.option(
        "--steps",
        type=click.IntRange(1, 100_000),
        default=20,
        show_default=True,
        help="How many steps to measure.",
    ),
    click.option(
        "--no-order", is_flag=True, help="Leave the order of the ops on a device to TensorFlow."
    ),
)


class _SizesType(click.ParamType):  # type: ignore[type-arg]
    """Whole numbers separated by commas."""

    name = "sizes"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            sizes = tuple(sorted({int(part) for part in str(value).split(",")}))
        except ValueError:
            self.fail(f"'{value}' is not a list such as 8,16,32", param, ctx)
        if sizes[0] < 1:
            self.fail("a batch has at least one sample", param, ctx)
        return sizes


@command("profile")
@model_options
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="P.enplace", help="Write the profile."
)
@click.option(
    "--steps",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="How many steps to trace.",
)
@click.option(
    "--warm-ups",
    type=click.IntRange(0, 100_000),
    default=10,
    show_default=True,
    help="How many steps to leave out at the start.",
)
@click.option(
    "--batch-sizes",
    type=_SizesType(),
    metavar="A,B,C",
    help="Estimate a --batch-size that fits no device from these smaller ones (Celeritas, 4.2).",
)
def profile(
    output: str,
    steps: int,
    warm_ups: int,
    batch_sizes: tuple[int, ...] | None,
    devices: str | None,
    trust: bool,
    **model: Any,
) -> Answer:
    """Measure what each op of MODEL takes on the devices of this machine.

    MODEL is a training script (.py) or module, a Keras model, a SavedModel's folder, or a
    TensorFlow 1 graph. A script is run unchanged until it trains. A recorded RunMetadata
    (FULL_TRACE) holds the measurement already, so nothing runs.
    """
    from enplace.frameworks.devices import usual_devices
    from enplace.frameworks.jobs import do_work, profile_job
    from enplace.frameworks.measured import COMPILED
    from enplace.processes.codecs import profile_from
    from enplace.writers import write_profile

    source = _source(model, trust)
    check_outputs((output,), source.path)
    where = None if source.is_recorded else devices or usual_devices()
    with work_bar() as report, stopped_by_ctrl_c() as stopped:
        job = profile_job(source, where or "", steps, warm_ups, batch_sizes or ())
        measured = profile_from(do_work(source, job, report, stopped))
    write_profile(output, measured)
    return Answer(
        profile_numbers(measured) | {"devices": where, "profile_file": output},
        "\n".join(
            [
                describe_profile(measured),
                *_describe_left_out(measured),
                *([COMPILED] if measured.measured.compiled else []),
                *_describe_evaluation(measured),
                *_describe_links(measured),
                f"Written to {output}.",
            ]
        ),
    )


def _describe_left_out(profile: Profile) -> list[str]:
    """Name the other functions that could have been meant."""
    others = profile.measured.left_out
    if not others:
        return []
    verb = "is" if len(others) == 1 else "are"
    return [
        f"This is the step of '{profile.measured.function}'. {listed(others)} {verb} not in it: "
        f"a plan is for one function. For a SavedModel, --signature chooses another; in a script, "
        f"put all that trains into one function, or leave the others unplaced."
    ]


def _describe_evaluation(profile: Profile) -> list[str]:
    """Report how good the estimate of a large batch was (Celeritas, Table 5); else nothing."""
    found = profile.measured.evaluation
    if found is None:
        return []
    from enplace.frameworks.evaluation import advice

    sizes = ", ".join(f"{size:,}" for size in found.batch_sizes)
    used = count(found.devices_used, "device")
    rows = [["estimate", "mean deviation", "of the sum", "ops within 20 %"]]
    rows += [
        [what, *(percent(share) for share in (off.mean, off.of_sum, off.near))]
        for what, off in (("memory", found.memory), ("time", found.time))
    ]
    return [
        f"\nBatch {found.batch_size:,}, estimated from {sizes}; measured across {used} "
        f"(Order-Place), {ms(found.step_time_us)} a step",
        f"{table(rows, 'lrrr')}\n",
        *advice(found),
    ]


def _describe_links(profile: Profile) -> list[str]:
    """Report what transfers cost: fitted lines, which of them are poor, and presets."""
    from enplace.frameworks.link_fits import about_poor, about_presets, link_fits

    fits = link_fits(profile)
    lines = [table([[fit.title, fit.text] for fit in fits[:MOST_LINKS]], "ll")] if fits else []
    if len(fits) > MOST_LINKS:
        lines.append(f"and {count(len(fits) - MOST_LINKS, 'more link')}")
    return [*lines, *filter(None, (about_poor(fits), about_presets(profile)))]


@command("run")
@model_options
@run_options
@click.option(
    "--profile",
    "profile_file",
    type=FILE,
    metavar="P.enplace",
    help="The profile that the plan was made for; by default, the plan's file has to do.",
)
def run(
    plan: str,
    steps: int,
    no_order: bool,
    profile_file: str | None,
    devices: str | None,
    trust: bool,
    **model: Any,
) -> Answer:
    """Run MODEL with PLAN applied, and measure it.

    The same steps also run without the plan, to prove that the result is the same, and as
    TensorFlow runs them by itself. Exit status 1 if the model did not run as planned.
    """
    from enplace.frameworks.devices import devices_for
    from enplace.frameworks.tuning_process import runs_on
    from enplace.readers import read_plan_alone

    predicted_us = None
    if profile_file:
        problem, chosen = read_problem_and_plan(profile_file, plan, None)
    else:
        problem, chosen, predicted_us = read_plan_alone(plan)
    source = _source(model, trust, problem)
    where = devices or devices_for(problem.cluster, problem.profile.measured)
    with work_bar() as report, stopped_by_ctrl_c() as stopped:
        measured = runs_on(source, where, steps, not no_order, report, stopped)(problem, chosen)
    if predicted_us is not None:
        measured = replace(measured, predicted_step_time_us=predicted_us)
    return Answer(
        run_numbers(measured) | {"model": source.path, "devices": where, "placement_file": plan},
        describe_run(measured, where),
        YES if measured.as_planned else NO,
    )


@command("tune")
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
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How many new plans to try at most.",
)
@click.option("--method", type=MethodType(), metavar="METHOD", help="'enplace methods' lists them.")
@click.option(
    "--time-limit", type=POSITIVE, metavar="SECONDS", help="Stop each search then, with its best."
)
def tune(
    plan: str,
    steps: int,
    no_order: bool,
    profile_file: str,
    output: str,
    rounds: int,
    method: str | None,
    time_limit: float | None,
    devices: str | None,
    trust: bool,
    **model: Any,
) -> Answer:
    """Improve PLAN for MODEL by measurement.

    Runs the plan, learns the measured costs, solves again and runs the new plan; keeps the one
    that measures faster and runs as planned; stops when the costs promise no more (FastT's
    adaptive cost model). Exit status 1 if no new plan was kept and one did not run as planned.
    """
    from enplace.frameworks import tuning
    from enplace.frameworks.devices import devices_for
    from enplace.frameworks.tuning_process import runs_on
    from enplace.machine import simulate
    from enplace.placers import DEFAULT_METHOD, STEP_TIME, PlaceOptions, place
    from enplace.writers import write_plan

    check_outputs((output,), profile_file)
    problem, first = read_problem_and_plan(profile_file, plan, None)
    (chosen,) = method_names(method or DEFAULT_METHOD, STEP_TIME)
    source = _source(model, trust, problem)
    where = devices or devices_for(problem.cluster, problem.profile.measured)

    with work_bar() as report, stopped_by_ctrl_c() as stopped:

        def on_progress(progress: Progress) -> None:
            report(progress.message, progress.fraction)

        def solve(problem: Problem) -> Plan:
            options = PlaceOptions(time_limit_s=time_limit, progress=on_progress, cancelled=stopped)
            found = place(problem, chosen, options=options).plan
            options.check_cancelled()
            return found

        measure = runs_on(source, where, steps, not no_order, report, stopped)
        tuned = tuning.tune(problem, first, measure, solve, rounds)
    best = tuned.best.plan
    write_plan(output, tuned.problem, best, simulate(tuned.problem, best))
    return Answer(
        _tuning_numbers(tuned) | {"devices": where, "placement_file": output},
        f"{_describe_tuning(tuned)}\n\nThe plan is in {output}.",
        NO if tuned.is_spoilt else YES,
    )


@command("serve")
@click.argument("cluster", type=FILE)
@click.argument("task")
def serve(cluster: str, task: str) -> Answer:
    """Serve TASK of the hosts in CLUSTER until stopped, so that plans can run across hosts.

    TASK is, for example, /job:worker/task:0. Run this on each host, with the same cluster file,
    before you run the plan on one of them.
    """
    from enplace.frameworks.registry import frameworks
    from enplace.processes.wire import Message
    from enplace.processes.worker import do_job

    (framework,) = frameworks().values()
    job = Message("serve", {"cluster": cluster, "task": task})
    do_job(framework.server, [job], lambda message, _: click.echo(message, err=True))
    return Answer({}, "")


def _source(model: dict[str, Any], trust: bool, problem: Problem | None = None) -> Source:
    """Return the model that the user names, with its profile's arguments, if its code may run.

    Raises
    ------
    FileError, TrustError
        If it is not a model, or nobody allowed its code to run.
    """
    from enplace.frameworks.source import source_of

    options = {key: value for key, value in model.items() if key != "model" and value}
    known = problem.profile.measured.source if problem else {}
    found = source_of(model["model"])
    if known.get("kind") == found.kind:
        if any(known.get(key) != _plain(value) for key, value in options.items()):
            warnings.warn(
                "the model gets other arguments than when it was profiled, and the prediction is "
                "for those it was profiled with",
                EnplaceWarning,
                stacklevel=2,
            )
        options = {key: known[key] for key in known.keys() - {"path", "kind"}} | options
    source = source_of(model["model"], **options)
    _check_trust(source, trust)
    return source


def _plain(value: Any) -> Any:
    """Return an option as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def _check_trust(source: Source, trusted: bool) -> None:
    """Ask on a terminal whether a model's code may run; refuse if nobody can be asked."""
    from enplace.frameworks.trust import TrustError, folder_of, is_trusted, needs_trust, trust

    if trusted or not needs_trust(source) or is_trusted(source.path):
        return
    what = f"{source.path}: this runs the model's code"
    if not _can_ask():
        raise TrustError(f"{what}; if you trust it, add --trust")
    if not click.confirm(f"{what}. Do you trust all in {folder_of(source)}?", err=True):
        raise TrustError(f"{source.path}: not trusted, so nothing was run")
    trust(folder_of(source))


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def run_numbers(run: MeasuredRun) -> dict[str, Any]:
    """Return the figures of a run; null for unknown ones."""
    names = {"profile": run.profile.name, "method": run.plan.method}
    return names | run.to_json() | {"as_planned": run.as_planned}


def describe_run(run: MeasuredRun, devices: str) -> str:
    """Return the figures of a run as text."""
    steps = count(len(run.step_times_us), "step")
    head = f"{run.profile.name} on {devices}, {run.plan.method}, {steps}"
    rows = [
        ["step time", ms(run.step_time_us), _prediction(run)],
        ["TensorFlow by itself", *_by_itself(run)],
        ["ops where planned", f"{run.ops_on_planned_device:,}", f"of {run.ops_checked:,}"],
        ["out of order", f"{run.order_violations:,}", ""],
        *_result_rows(run),
    ]
    changed = (CHANGED_BY_MORE if run.rounds else CHANGED) * run.changes_result
    ends = [f"\n\n{text}" for text in (_caveat(run), run.about_stock, run.drift, changed) if text]
    return f"{head}\n\n{table(rows, 'lrl')}{''.join(ends)}"


def _result_rows(run: MeasuredRun) -> list[list[str]]:
    """Compare loss and weights with those of the run without the plan."""
    against = "from the run without the plan"
    loss, weights = _difference(run.loss_difference), _difference(run.weights_difference)
    if not (run.differs and run.rounds):
        return [["loss differs by", loss, against], ["weights differ by", weights, ""]]
    return [
        ["first step differs by", _difference(run.first_step_difference), against],
        ["", _difference(run.rounding_difference), "if only the last bits of variables change"],
        ["loss drifts by", loss, "over all steps"],
        ["weights drift by", weights, ""],
    ]


def _by_itself(run: MeasuredRun) -> tuple[str, str]:
    if not math.isfinite(run.stock_step_time_us):
        return "out of memory", "the model fits only with a plan"
    change = run.step_time_us / run.stock_step_time_us - 1
    return ms(run.stock_step_time_us), f"the plan: {percent(change, signed=True)}"


def _prediction(run: MeasuredRun) -> str:
    predicted_us = run.predicted_step_time_us
    if not math.isfinite(predicted_us):
        return ""
    error = percent(predicted_us / run.step_time_us - 1, signed=True)
    return f"predicted {ms(predicted_us)}, {error}"


def _caveat(run: MeasuredRun) -> str:
    """Return the known reason why a prediction is wrong; empty if there is none."""
    return run.caveat if math.isfinite(run.predicted_step_time_us) else ""


def _difference(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "unknown"


def _tuning_numbers(tuned: Tuning) -> dict[str, Any]:
    return {
        "step_time_us": tuned.best.run.step_time_us,
        "first_step_time_us": tuned.trials[0].run.step_time_us,
        "settled": tuned.settled,
        "rounds": [{"kept": trial.kept, **run_numbers(trial.run)} for trial in tuned.trials],
    }


def _describe_tuning(tuned: Tuning) -> str:
    rows = [["", "plan", "predicted", "measured", ""]]
    for number, trial in enumerate(tuned.trials):
        predicted, measured = trial.run.predicted_step_time_us, trial.run.step_time_us
        label = f"round {number}" if number else "at first"
        rows.append([label, trial.plan.method, ms(predicted), ms(measured), _verdict(trial, tuned)])
    end = "The measured costs promise no faster plan." if tuned.settled else ""
    caveat = next(filter(None, (_caveat(trial.run) for trial in tuned.trials)), "")
    faults = [_faults(number, trial.run) for number, trial in enumerate(tuned.trials)]
    return "\n".join(filter(None, [table(rows, "llrrl"), *faults, caveat, end]))


def _verdict(trial: Trial, tuned: Tuning) -> str:
    if not trial.run.as_planned:
        return "not as planned" if trial is tuned.trials[0] else "not as planned, rolled back"
    return "best" if trial is tuned.best else "kept" if trial.kept else "slower, rolled back"


def _faults(number: int, run: MeasuredRun) -> str:
    """Say how the plan of a round did not run as planned; empty if it did."""
    elsewhere = run.ops_checked - run.ops_on_planned_device
    faults = [
        f"{count(elsewhere, 'op')} not where planned" * bool(elsewhere),
        f"{count(run.order_violations, 'op')} out of order" * bool(run.order_violations),
        "another result than without the plan" * run.changes_result,
    ]
    text = ", ".join(filter(None, faults))
    where = f"Round {number}" if number else "The first plan"
    return f"{where} did not run as planned: {text}." if text else ""
