"""How a person applies a plan: sentences, each with the lines to copy."""

from __future__ import annotations

import shlex
from pathlib import Path

from enplace.errors import PipelineError
from enplace.frameworks.framework import Framework
from enplace.frameworks.microbatches import check_runnable
from enplace.frameworks.registry import framework_of, kind_of, why_no_export
from enplace.frameworks.source import Source
from enplace.frameworks.wishes import PIPELINE
from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.values.load_rule import LoadRule
from enplace.values.op_kinds import OpKind
from enplace.values.problem import THROUGHPUT
from enplace.values.profile import Profile
from enplace.values.result import Lines, Result
from enplace.values.schedule import Schedule

_MODULE = "module"
_DIVIDED = (
    "enplace.apply places whole modules, and this plan divides some; for a training script, make "
    f"one with --grain {_MODULE}."
)
_EXPORT = "enplace export P.enplace plan.json --format"


def how_to_apply(schedule: Schedule) -> list[Lines]:
    """Say how to apply a plan, to check it on a machine, and to predict it again."""
    problem, plan = schedule.problem, schedule.plan
    profile = problem.measured_profile
    framework, kind = framework_of(profile), kind_of(profile)
    is_pipeline = plan.objective == THROUGHPUT and bool(backward_ops(problem).any())
    rule = planned_rule(plan) if is_pipeline else None
    named = f"--pipeline {rule.pipeline} --microbatches {rule.microbatches}" if rule else ""
    files = f"P.enplace is the profile of {profile.name}, plan.json the plan"
    if not framework.runs or (kind is not None and kind.why_no_run):
        first = _exports(framework, schedule)
    else:
        source = _source(profile)
        name = source.path if source.kind == "module" else Path(source.path).name
        files += ", train.py your script" * (name == "train.py")
        if rule and (why := _why_no_pipeline(framework, schedule)):
            first = [(why, "")]
        else:
            given = (f"--arg={word}" for word in source.words)
            words = ["enplace", "run", name, "plan.json", "--profile", "P.enplace", *given]
            check = "To check on your machine that it runs as planned, and how fast:"
            first = _apply(framework, schedule, source.command, rule)
            first.append((check, f"{shlex.join(words)} {named or '--steps 20'}"))
    again = [
        f"enplace simulate P.enplace plan.json {named}".strip(),
        f"{_EXPORT} html -o report.html",
    ]
    text = "To predict it again, and to write this report again"
    return [*first, (f"{text} ({files}):", "\n".join(again))]


def _source(profile: Profile) -> Source:
    """Return the script or module that was profiled, or one of a usual name."""
    known = profile.measured.source
    return Source(
        path=str(known.get("path") or "train.py"),
        kind=str(known.get("kind", "script")),
        arguments=tuple(map(str, known.get("arguments", ()))),
        batch_size=known.get("batch_size", 0),
    )


def _apply(
    framework: Framework, schedule: Schedule, command: str, rule: LoadRule | None
) -> list[Lines]:
    """Say what a training script needs, and how the processes of a pipeline start."""
    beside = "With the plan's file beside it, two lines at the top of the training script:"
    if rule is None:
        if _divides_modules(framework, schedule):
            return [(_DIVIDED, "")]
        return [(beside, 'import enplace\nenplace.apply("plan.json")')]
    wishes = f'pipeline="{rule.pipeline}", microbatches={rule.microbatches}'
    found = [(beside, f'import enplace\nenplace.apply("plan.json", {wishes})')]
    if framework.host_lines:
        lines = framework.host_lines(schedule.problem, schedule.plan, command)
        where = "its own line on each host" if len(lines) > 1 else "a process for each device"
        found.append((f"To start it, {where}:", "\n".join(lines)))
    return found


def _divides_modules(framework: Framework, schedule: Schedule) -> bool:
    """Whether a plan divides the forward pass of a module that the framework places whole."""
    profile, device = schedule.problem.profile, schedule.plan.device
    if _MODULE not in framework.grains:
        return False
    ahead = ~backward_ops(schedule.problem)
    containers = {scope.rpartition("/")[0] for scope in profile.scopes}
    has_parts = profile.of_kind(OpKind.VARIABLE) | [each in containers for each in profile.scopes]
    return any(
        has_parts[list(ops)].any() and len({int(device[op]) for op in ops if ahead[op]}) > 1
        for ops in framework.grain(_MODULE, profile)
    )


def _why_no_pipeline(framework: Framework, schedule: Schedule) -> str:
    """Say in a sentence why a plan cannot run as a pipeline; empty if it can."""
    if PIPELINE not in framework.apply_options:
        return f"{framework.name} does not run pipelines."
    try:
        check_runnable(schedule.plan, schedule.problem.cluster, recomputes=framework.recomputes)
    except PipelineError as error:
        return f"It does not run as a pipeline: {error}."
    return ""


def _exports(framework: Framework, schedule: Schedule) -> list[Lines]:
    """Say what a plan for a model that is not run can be written as."""
    why = "Enplace does not run this model. Assign devices in its own framework, from a table:"
    found = [(why, f"{_EXPORT} csv -o plan.csv")]
    others = [
        f"{_EXPORT} {each.name} -o plan{each.suffix}"
        for each in framework.exporters
        if not why_no_export(each.name, Result(schedule))
    ]
    if others:
        found.append(("Or write the plan for another program:", "\n".join(others)))
    return found
