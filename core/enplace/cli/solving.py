"""``place``, ``simulate``, ``compare``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from enplace import summary
from enplace.cli.answer import INTERRUPTED, NO, YES, Answer, command
from enplace.cli.first_plan import FirstPlan, Request
from enplace.cli.options import (
    FILE,
    LINK_POLICIES,
    POLICIES,
    MethodsType,
    NumbersType,
    PlacerCommand,
    cluster_option,
    constraints_option,
    force_option,
    method_option,
    plan_argument,
    profile_argument,
    schedule_option,
    solver_options,
    take_values,
)
from enplace.cli.progress import compiling_bar, progress_bar, stopped_by_ctrl_c
from enplace.errors import CancelledError, EnplaceError, EnplaceWarning
from enplace.files.outputs import PLAN, SCHEDULE, Kind, check_outputs, keep_replaced
from enplace.inputs import (
    choose_method,
    find_profile,
    make_problem,
    method_names,
    read_problem_and_plan,
    read_start,
    values_of_methods,
    without_split_groups,
)
from enplace.text import count
from enplace.values.load_rule import PIPELINES, TRANSFERS

if TYPE_CHECKING:
    from enplace.placers import Progress
    from enplace.summary import Others
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem
    from enplace.values.result import Result
    from enplace.values.schedule import Schedule

OTHERS_OP_S, OTHERS_SHARE = 6e-5, 0.1
"""Seconds per op that the plans to compare with take, and the most of the time limit for them."""

WOULD_FIT = "'enplace fit' shows what would make it fit."

LEAST_S = 0.5
"""Seconds in which they may begin even if the method took all of its time."""


@command("place", PlacerCommand)
@profile_argument
@cluster_option(required=True)
@method_option
@constraints_option
@solver_options
@click.option("--start", type=FILE, metavar="plan.json", help="A plan to improve.")
@click.option("-o", "--output", type=FILE, metavar="plan.json", help="Write the plan.")
@schedule_option
@force_option
def place(
    profile: str,
    method: str | None,
    objective: str,
    start: str | None,
    output: str | None,
    schedule_file: str | None,
    time_limit: float | None,
    seed: int,
    force: bool,
    **given: Any,
) -> Answer:
    """Decide where every op of PROFILE runs, and in what order.

    Exit status 1 if the plan, or its pipeline, does not fit in memory; it is written nevertheless.
    """
    from enplace.frameworks.registry import about_usual_grain
    from enplace.placers import STEP_TIME, PlaceOptions, Stop
    from enplace.placers import place as run_placer
    from enplace.placing.stopwatch import Stopwatch

    outputs = [(PLAN, output), (SCHEDULE, schedule_file)]
    inputs = (profile, given["cluster"], given["constraints"])
    check_outputs(outputs, *inputs, force=force)
    values = take_values(given)
    chosen = choose_method(method, objective, values)
    usual_for = "" if start else objective  # a plan to start from may divide anything
    problem = make_problem(profile, **given, dashes="--", objective=usual_for)
    first = None if start is None else read_start(problem, start, chosen)
    as_json = click.get_current_context().params["as_json"]
    with progress_bar(1) as (begin, report), stopped_by_ctrl_c() as stopped:
        begin(chosen)
        early = FirstPlan(output, as_json, stopped)

        def note(progress: Progress) -> None:
            early.note_better(progress)
            report(progress)

        search = Stop(time_limit and _search_s(problem, time_limit), stopped)
        options = PlaceOptions(objective, search, seed, note, start=first, values=values)
        kept = "" if given["grain"] else about_usual_grain(problem, objective)
        request = Request(
            problem,
            seed,
            given["whole"],
            first,
            is_wanted=objective == STEP_TIME,
            more={"schedule_file": None, "kept_whole": kept or None},
        )
        with early.made_meanwhile(request):
            result = run_placer(problem, chosen, options=options)
        written = _write(result, output, schedule_file, is_kept=early.is_kept)
        left_s = time_limit and max(LEAST_S, time_limit - (result.plan.solve_seconds or 0.0))
        with (clock := Stopwatch()).paused_by_compiler():
            stop = Stop(left_s, stopped, clock)
            others = find_others(problem, objective, result.schedule, stop)
    files = {"placement_file": output, "schedule_file": schedule_file}
    hint = "" if result.schedule.fits else WOULD_FIT
    about = [*filter(None, [hint, kept]), *written]
    answer = make_answer(
        result, others, about, given["whole"], seed=seed, kept_whole=kept or None, **files
    )
    if stopped():
        _note_stop("this is the best plan so far")
        return Answer(answer.document, answer.text, INTERRUPTED)
    return answer


@command("simulate")
@profile_argument
@plan_argument
@cluster_option(required=False, default="the one the plan was made for")
@click.option("--policy", type=POLICIES, help="How a device chooses ops. [default: the plan's]")
@click.option(
    "--links", type=LINK_POLICIES, help="How a channel chooses transfers. [default: the plan's]"
)
@click.option(
    "--complete", is_flag=True, help="Place ops missing in the plan next to their neighbours."
)
@schedule_option
@click.option(
    "--trace", "trace_file", type=FILE, metavar="OUT.json", help="Write a trace for Perfetto."
)
@force_option
@click.option(
    "--pipeline",
    type=click.Choice(["inference", *PIPELINES]),
    help="Simulate many samples instead of one step: through the whole graph, or trained "
    "as in PipeDream or GPipe. A sample is what was profiled: a batch, or a micro-batch of it.",
)
@click.option(
    "--microbatches",
    type=NumbersType(1000),
    metavar="N,...",
    default="8",
    show_default=True,
    help="Number of samples in the pipeline. Of several numbers, such as 1,2,4,8, only time and "
    "memory are compared.",
)
@click.option(
    "--load",
    type=click.Choice(TRANSFERS),
    help="Whether the transfers of a pipeline's device overlap with its computing. "
    "[default: the plan's]",
)
@compiling_bar()
def simulate(
    profile: str,
    plan: str,
    policy: str | None,
    links: str | None,
    pipeline: str | None,
    microbatches: tuple[int, ...],
    load: str | None,
    schedule_file: str | None,
    trace_file: str | None,
    force: bool,
    **choice: Any,
) -> Answer:
    """Predict the step time of PLAN on PROFILE.

    Exit status 1 if it does not fit in memory, or if its order deadlocks.
    """
    from enplace.bounds import with_bound
    from enplace.machine.check_claims import simulate_given
    from enplace.values.plan import under_policies
    from enplace.values.problem import Problem
    from enplace.writers.trace import MARK

    outputs = [(SCHEDULE, schedule_file), (Kind("trace", MARK), trace_file)]
    check_outputs(outputs, profile, plan, choice["cluster"], force=force)
    measured = find_profile(profile)
    problem, chosen = read_problem_and_plan(measured, plan, **choice)
    chosen = under_policies(problem.profile, chosen, policy, links)
    problem = without_split_groups(problem, chosen)
    if pipeline is not None:
        if schedule_file or trace_file:
            raise EnplaceError("--schedule and --trace are for one step; leave out --pipeline")
        return _pipeline_answer(problem, chosen, pipeline, microbatches, load)
    if load is not None:
        raise EnplaceError("--load is for pipelines; add --pipeline")
    result = with_bound(simulate_given(problem, chosen))
    written = _write(result, None, schedule_file, trace_file)
    files = {"placement_file": plan, "schedule_file": schedule_file, "trace_file": trace_file}
    # What a plan is compared with is that of the model, whatever the plan splits.
    model = Problem(measured, problem.cluster) if chosen.splits else problem
    others = find_others(model, chosen.objective, result.schedule)
    return make_answer(result, others, written, (), **files)


def _pipeline_answer(
    problem: Problem, plan: Plan, kind: str, numbers: tuple[int, ...], wanted: str | None
) -> Answer:
    from enplace.machine.pipelines.pipeline import planned_rule, simulate_pipeline
    from enplace.machine.pipelines.words import describe_pipeline, describe_pipelines
    from enplace.values.load_rule import LoadRule
    from enplace.values.plan import check_plan
    from enplace.writers import pipeline_document, pipelines_document

    check_plan(problem, plan)
    rule = planned_rule(plan) if wanted is None else LoadRule(wanted)
    head: dict[str, Any] = {"profile": problem.profile.name, "cluster": problem.cluster.name}
    head |= {"estimated": problem.measured_profile.measured.estimated or None}
    head |= {"guessed_backward": summary.about_passes(problem) or None}
    head |= {"load": rule.transfers, "method": plan.method, "pace_us": plan.pace_us or None}
    found = [
        simulate_pipeline(problem, plan, kind, n, replace(rule, microbatches=n)) for n in numbers
    ]
    if len(found) > 1:
        document = head | pipelines_document(problem, found)
        text = describe_pipelines(problem, plan, found)
        fits = any(point["feasible"] for point in document["points"])
    else:
        document = head | pipeline_document(problem, found[0])
        text = describe_pipeline(problem, plan, found[0])
        fits = document["feasible"]
    return Answer(document, text, YES if fits else NO)


@command("compare", PlacerCommand)
@profile_argument
@cluster_option(required=True)
@click.option(
    "--methods",
    type=MethodsType(),
    metavar="A,B,C",
    help="See 'enplace methods'. [default: all that are installed]",
)
@constraints_option
@solver_options
def compare(
    profile: str,
    methods: str | None,
    objective: str,
    time_limit: float | None,
    seed: int,
    **given: Any,
) -> Answer:
    """Compare the plans of several methods for PROFILE.

    An option applies to the methods that have it. If a method fails, the others still run. Exit
    status 1 if none has a plan that fits.
    """
    from enplace.frameworks.alternatives import find_alternatives
    from enplace.machine.pipelines.pipeline import planned_rule
    from enplace.placers import PlaceOptions, Stop, place_with_each
    from enplace.placers.data_parallel import all_mirrored, fastest
    from enplace.placers.references import EXPERT, alone_schedule, expert_schedule
    from enplace.values.problem import STEP_TIME

    names = method_names(methods, objective)
    values = values_of_methods(names, take_values(given))
    problem = make_problem(profile, **given, dashes="--", objective=objective)
    with progress_bar(len(names)) as (begin, report), stopped_by_ctrl_c() as stopped:
        options = PlaceOptions(objective, Stop(time_limit, cancelled=stopped), seed, report)
        # While something is compiled, Ctrl-C ends all: a method would be waited for.
        with FirstPlan(None, False, stopped).made_meanwhile(Request(problem, is_wanted=False)):
            results, failures = place_with_each(problem, values, options, begin)
        made = results.get(EXPERT)
        is_free = not problem.constraints
        expert = made.schedule if made and is_free else expert_schedule(problem, stopped)
        alone = alone_schedule(problem, stopped) if objective == STEP_TIME else None
        rivals = all_mirrored(problem, stopped) if objective == STEP_TIME else []
        why_not = _why_not_shared(problem) if objective == STEP_TIME else ""
        rule = planned_rule(*(result.plan for result in results.values()))
        instead = find_alternatives(problem, objective, rivals, rule, stopped)
    cut_off = [name for name, why in failures.items() if isinstance(why, CancelledError)]
    if stopped():
        _note_stop(_left_out(len(cut_off)))
    failed = [f"{name} has no plan: {failures[name]}" for name in failures if name not in cut_off]
    table = summary.comparison(list(results.values()), expert, objective, instead)
    best = _fastest(results.values())
    shared = fastest(rivals) or next(iter(rivals), None)
    worth = _worth(best, summary.Others(expert, alone, shared, why_not))
    others = summary.about_alternatives(best.value_us, instead) if best and instead else ""
    first = [f"{text}\n" for text in (worth["verdict"], others) if text]
    # A bound is weaker where time ran out. For other objectives, each method proves one only for
    # its own kind of splits.
    proven = (result.step_bound_us for result in results.values())
    known = [bound for bound in proven if bound is not None]
    return Answer(
        {
            "profile": problem.profile.name,
            "cluster": problem.cluster.name,
            "objective": objective,
            "guessed_backward": summary.about_passes(problem) or None,
            "lower_bound": max(known, default=None),
            "expert_step_time_us": expert.makespan_us if expert else None,
            "expert_feasible": expert.fits if expert else None,
            **worth,
            "data_parallel": [summary.replicas_numbers(each) for each in rivals],
            "alternatives": [summary.alternative_numbers(each, objective) for each in instead],
            "methods": [
                {"error": None, **summary.numbers(results[name], expert)}
                if name in results
                else {"method": name, "error": str(failures[name]), "feasible": False}
                for name in names
            ],
        },
        "\n".join([*first, *([table] if results else []), *failed]),
        INTERRUPTED if stopped() else YES if any(r.schedule.fits for r in results.values()) else NO,
    )


def _search_s(problem: Problem, time_limit: float) -> float:
    """Return the time limit without what is kept for the plans to compare with."""
    return time_limit - min(OTHERS_OP_S * problem.profile.n_ops, OTHERS_SHARE * time_limit)


def find_others(
    problem: Problem,
    objective: str,
    made: Schedule,
    stopped: Callable[[], bool] = lambda: False,
) -> Others:
    """Find what a plan is compared with, until stopped; all but the expert only for a step."""
    from enplace.placers.data_parallel import mirrored
    from enplace.placers.references import alone_schedule, expert_schedule
    from enplace.values.problem import STEP_TIME

    for_step = objective == STEP_TIME
    alone = alone_schedule(problem, stopped) if for_step else None
    shared = mirrored(problem, stopped) if for_step else None
    why_not = _why_not_shared(problem) if for_step else ""
    expert = expert_schedule(problem, stopped)
    if expert is not None and expert.plan.acts_like(made.plan):
        expert = made
    return summary.Others(expert, alone, shared, why_not)


def _why_not_shared(problem: Problem) -> str:
    from enplace.frameworks.registry import framework_of
    from enplace.placers.data_parallel import why_not_mirrored

    framework = framework_of(problem.measured_profile)
    return framework.in_own_words(why_not_mirrored(problem))


def _fastest(results: Iterable[Result]) -> Result | None:
    """Return the plan with the least value of the objective that fits; None if none does."""
    fitting = [result for result in results if result.schedule.fits]
    return min(fitting, key=lambda result: result.value_us, default=None)


def _note_stop(what: str) -> None:
    """Say on stderr that Ctrl-C was pressed, and what the answer is nevertheless."""
    warnings.warn(f"stopped; {what}", EnplaceWarning, stacklevel=3)


def _left_out(n: int) -> str:
    """Say how many methods are not compared, because they were stopped too early."""
    if not n:
        return "every method has a plan, the last one its best so far"
    return f"{count(n, 'method')} had no plan yet and {'is' if n == 1 else 'are'} left out"


def _write(
    result: Result,
    plan_file: str | None,
    schedule_file: str | None,
    trace_file: str | None = None,
    *,
    is_kept: bool = False,
) -> list[str]:
    """Write the requested files; return a sentence for each.

    Parameters
    ----------
    is_kept : bool
        Whether what the plan's file held is kept already, and replaced.
    """
    from enplace.files.writing import write_atomically
    from enplace.writers import chrome_trace, schedule_json, write_plan

    keep_replaced(None if is_kept else plan_file, schedule_file, trace_file)
    if plan_file:
        write_plan(plan_file, result)
    if schedule_file:
        write_atomically(schedule_file, schedule_json(result.schedule))
    if trace_file:
        write_atomically(trace_file, chrome_trace(result))
    files = {"plan": plan_file, "schedule": schedule_file, "trace": trace_file}
    return [f"The {word} is in {path}." for word, path in files.items() if path]


def _worth(result: Result | None, others: Others) -> dict[str, Any]:
    """Return what needs no plan and its predicted time, and whether the plan is worth it."""
    alone, shared = others.alone, others.shared
    return {
        "one_device_step_time_us": alone.makespan_us if alone else None,
        "data_parallel_step_time_us": shared.step_time_us if shared else None,
        "data_parallel_why_not": others.why_not_shared,
        "verdict": summary.worth_it(result.schedule, others) if result else "",
    }


def make_answer(
    result: Result, others: Others, written: list[str], whole: Sequence[str] = (), **more: Any
) -> Answer:
    """Make the answer of a command whose result is one plan."""
    problem = result.schedule.problem
    document = {"profile": problem.profile.name, "cluster": problem.cluster.name}
    text = summary.describe(result, others, whole)
    numbers = summary.numbers(result, others.expert, whole)
    pipeline_fits = numbers.get("pipeline", {"feasible": True})["feasible"]
    return Answer(
        document
        | numbers
        | _worth(result, others)
        | {"data_parallel": [summary.replicas_numbers(others.shared)] if others.shared else []}
        | more,
        "\n".join([text, *([""] if written else []), *written]),
        YES if result.schedule.fits and pipeline_fits else NO,
    )
