"""``place``, ``simulate``, ``compare``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from enplace.cli import summary
from enplace.cli.answer import INTERRUPTED, NO, YES, Answer, command
from enplace.cli.inputs import (
    check_outputs,
    method_names,
    read_problem,
    read_problem_and_plan,
    read_start,
    without_split_groups,
)
from enplace.cli.options import (
    FILE,
    LINK_POLICIES,
    POLICIES,
    MethodsType,
    MethodType,
    cluster_option,
    constraint_options,
    expert_options,
    memory_rule_option,
    place_options,
    plan_argument,
    profile_argument,
    schedule_option,
    solver_options,
    split_options,
)
from enplace.cli.progress import progress_bar, stopped_by_ctrl_c
from enplace.errors import EnplaceError

if TYPE_CHECKING:
    from enplace.placers import PlaceOptions
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem
    from enplace.values.schedule import Schedule


@command("place")
@profile_argument
@cluster_option(required=True)
@click.option("--method", type=MethodType(), metavar="METHOD", help="'enplace methods' lists them.")
@constraint_options
@solver_options
@click.option("--start", type=FILE, metavar="plan.json", help="A plan to make better.")
@expert_options
@memory_rule_option
@click.option("-o", "--output", type=FILE, metavar="plan.json", help="Write the plan.")
@schedule_option
def place(
    profile: str,
    method: str | None,
    objective: str,
    start: str | None,
    family: str | None,
    rules_file: str | None,
    memory_rule: str | None,
    output: str | None,
    schedule_file: str | None,
    **given: Any,
) -> Answer:
    """Decide where every op of PROFILE runs, and in what order.

    Exit status 1 if the plan does not fit in memory; it is written all the same.
    """
    from enplace.names.rules import read_rules

    check_outputs((output, schedule_file), profile, given["cluster"])
    solving, wishes = split_options(given)
    for_expert = family is not None or rules_file is not None
    usual = "expert" if for_expert else _default_method(objective)
    (chosen,) = method_names(usual if method is None else method, objective)
    if for_expert and chosen != "expert":
        raise EnplaceError(
            f"--family and --rules are for method 'expert', not '{chosen}'; leave out --method, or "
            f"pin ops with --pin"
        )
    problem = read_problem(profile, **wishes)
    options = place_options(
        **solving,
        objective=objective,
        start=None if start is None else read_start(problem, start, chosen),
        family=family or "",
        memory_rule=memory_rule or "",
        rules=read_rules(rules_file, problem) if rules_file is not None else {},
    )
    with progress_bar(1) as (begin, report), stopped_by_ctrl_c() as stopped:
        begin(chosen)
        schedule = _solve(problem, chosen, replace(options, progress=report, cancelled=stopped))
    written = _write(schedule, output, schedule_file)
    files = {"placement_file": output, "schedule_file": schedule_file}
    answer = _answer(
        schedule, _expert_of(problem, schedule), written, seed=solving["seed"], **files
    )
    if stopped():
        text = f"Stopped; this is the best plan so far.\n\n{answer.text}"
        return Answer(answer.document, text, INTERRUPTED)
    return answer


@command("simulate")
@profile_argument
@plan_argument
@cluster_option(required=False, default="the one the plan was made for")
@click.option("--policy", type=POLICIES, help="How a device takes its ops. [default: the plan's]")
@click.option(
    "--links", type=LINK_POLICIES, help="How a channel takes its transfers. [default: the plan's]"
)
@click.option(
    "--complete", is_flag=True, help="Place ops that the plan lacks beside their neighbours."
)
@schedule_option
@click.option(
    "--trace", "trace_file", type=FILE, metavar="OUT.json", help="Write a trace for Perfetto."
)
@click.option(
    "--pipeline",
    type=click.Choice(["inference", "1f1b", "gpipe"]),
    help="Many samples at once instead of one step: through the whole graph, or trained "
    "PipeDream's way or GPipe's.",
)
@click.option(
    "--microbatches",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Samples in the pipeline.",
)
@click.option(
    "--load",
    type=click.Choice(["sum", "overlap", "duplex"]),
    help="Whether the transfers of a pipeline's device go on beside its computing. "
    "[default: the plan's]",
)
def simulate(
    profile: str,
    plan: str,
    policy: str | None,
    links: str | None,
    pipeline: str | None,
    microbatches: int,
    load: str | None,
    schedule_file: str | None,
    trace_file: str | None,
    **choice: Any,
) -> Answer:
    """Predict what PLAN comes to on PROFILE.

    Exit status 1 if it does not fit in memory, or if its order makes ops wait for each other.
    """
    from enplace.machine import simulate as play

    check_outputs((schedule_file, trace_file), profile, plan, choice["cluster"])
    problem, chosen = read_problem_and_plan(profile, plan, **choice)
    chosen = replace(chosen, policy=policy or chosen.policy, links=links or chosen.links)
    problem = without_split_groups(problem, chosen)
    if pipeline is not None:
        if schedule_file or trace_file:
            raise EnplaceError("--schedule and --trace show one step; leave out --pipeline")
        return _pipeline_answer(problem, chosen, pipeline, microbatches, load)
    if load is not None:
        raise EnplaceError("--load says how the loads of a pipeline count; add --pipeline")
    schedule = play(problem, chosen)
    written = _write(schedule, None, schedule_file, trace_file)
    files = {"placement_file": plan, "schedule_file": schedule_file, "trace_file": trace_file}
    # The expert's plan is for the model, which the graph of a plan with splits is not.
    expert = None if chosen.splits else _expert_of(problem, schedule)
    return _answer(schedule, expert, written, **files)


def _pipeline_answer(problem: Problem, plan: Plan, kind: str, n: int, wanted: str | None) -> Answer:
    from enplace.machine.loads import LoadRule
    from enplace.machine.pipeline import planned_rule, simulate_pipeline
    from enplace.values.plan import check_plan
    from enplace.writers import pipeline_document

    check_plan(problem, plan)
    rule = planned_rule(plan) if wanted is None else LoadRule(wanted)
    found = simulate_pipeline(problem, plan, kind, n, rule)
    head = {"profile": problem.profile.name, "cluster": problem.cluster.name}
    head["load"] = rule.transfers
    document = head | {"method": plan.method} | pipeline_document(problem, found)
    return Answer(document, summary.describe_pipeline(problem, plan, found))


@command("compare")
@profile_argument
@cluster_option(required=True)
@click.option(
    "--methods",
    type=MethodsType(),
    metavar="A,B,C",
    help="See 'enplace methods'. [default: all that are installed]",
)
@constraint_options
@solver_options
@expert_options
@memory_rule_option
def compare(
    profile: str,
    methods: str | None,
    objective: str,
    family: str | None,
    rules_file: str | None,
    memory_rule: str | None,
    **given: Any,
) -> Answer:
    """Set the plans of several methods for PROFILE side by side.

    Goes on when one of them fails. Exit status 1 if none has a plan that fits.
    """
    from enplace.names.rules import read_rules
    from enplace.placing.registry import MEMORY_RULE, names_with

    names = method_names(methods, objective)
    solving, wishes = split_options(given)
    able = names_with(MEMORY_RULE)
    for asked, whose in ((memory_rule, able), (family or rules_file, ["expert"])):
        if asked and not set(whose) & set(names):
            option = "--memory-rule" if asked is memory_rule else "--family and --rules"
            raise EnplaceError(f"{option}: for none of these methods; add {' or '.join(whose)}")
    problem = read_problem(profile, **wishes)
    schedules, failures = {}, {}
    options = place_options(
        **solving,
        objective=objective,
        family=family or "",
        rules=read_rules(rules_file, problem) if rules_file is not None else {},
    )
    with progress_bar(len(names)) as (begin, report), stopped_by_ctrl_c() as stopped:
        for name in names:
            begin(name)
            try:
                rule = memory_rule or "" if name in able else ""
                told = replace(options, progress=report, cancelled=stopped, memory_rule=rule)
                schedules[name] = _solve(problem, name, told)
            except EnplaceError as error:
                failures[name] = str(error)
    expert = schedules.get("expert") or summary.expert_schedule(problem)
    failed = [f"{name} has no plan: {reason}" for name, reason in failures.items()]
    table = summary.comparison(list(schedules.values()), expert, objective)
    # For other objectives each method proves something of splits of its own kind.
    of_step = schedules.values() if objective == "step-time" else ()
    bound = next((schedule.lower_bound_us for schedule in of_step), None)
    return Answer(
        {
            "profile": problem.profile.name,
            "cluster": problem.cluster.name,
            "objective": objective,
            "lower_bound": bound,
            "expert_step_time_us": expert.makespan_us if expert else None,
            "methods": [
                {"error": None, **summary.numbers(schedules[name], expert)}
                if name in schedules
                else {"method": name, "error": failures[name], "feasible": False}
                for name in names
            ],
        },
        "\n".join([*([table] if schedules else []), *failed]),
        INTERRUPTED if stopped() else YES if any(s.fits for s in schedules.values()) else NO,
    )


def _default_method(objective: str) -> str:
    from enplace.placers import DEFAULT_METHODS

    return DEFAULT_METHODS[objective]


def _solve(problem: Problem, method: str, options: PlaceOptions) -> Schedule:
    from enplace.machine import simulate
    from enplace.placers import place

    return simulate(problem, place(problem, method, options=options))


def _write(
    schedule: Schedule,
    plan_file: str | None,
    schedule_file: str | None,
    trace_file: str | None = None,
) -> list[str]:
    """Write what was asked for; returns a sentence for each file."""
    from enplace.disk import write_atomically
    from enplace.writers import chrome_trace, schedule_json, write_plan

    if plan_file:
        write_plan(plan_file, schedule.problem, schedule.plan, schedule)
    if schedule_file:
        write_atomically(schedule_file, schedule_json(schedule))
    if trace_file:
        write_atomically(trace_file, chrome_trace(schedule))
    files = {"plan": plan_file, "schedule": schedule_file, "trace": trace_file}
    return [f"The {word} is in {path}." for word, path in files.items() if path]


def _expert_of(problem: Problem, schedule: Schedule) -> Schedule | None:
    """What the expert's plan comes to, which may be this one."""
    return schedule if schedule.plan.method == "expert" else summary.expert_schedule(problem)


def _answer(schedule: Schedule, expert: Schedule | None, written: list[str], **more: Any) -> Answer:
    problem = schedule.problem
    document = {"profile": problem.profile.name, "cluster": problem.cluster.name}
    text = summary.describe(schedule, expert)
    return Answer(
        document | summary.numbers(schedule, expert) | more,
        "\n".join([text, *([""] if written else []), *written]),
        YES if schedule.fits else NO,
    )
