"""What a person should know about a method before choosing it. No Qt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from enplace.placing.registry import (
    ANYTIME,
    CAPABILITIES,
    EVERY,
    HETEROGENEOUS,
    MEMORY,
    ONE_DEVICE,
    SPLITS,
)
from enplace.text import seconds
from enplace.values.memory import one_device_peak_bytes
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem
from enplace_studio.jobs.solver import Method, estimate_s
from enplace_studio.model.open_project import PlanEntry

OBJECTIVES = {
    STEP_TIME: "Shortest step",
    THROUGHPUT: "Highest pipeline throughput",
    LATENCY: "Shortest query",
}
"""Titles of the objectives."""

SEARCH, QUICK = "Search as long as you let them", "A good plan at once"
SPLITTING, BASELINE = "Change the graph as well", "To compare with"
PURPOSES = (SEARCH, QUICK, SPLITTING, OBJECTIVES[THROUGHPUT], OBJECTIVES[LATENCY], BASELINE)
"""What methods are good for, in the order of the list."""


def purpose_of(method: Method) -> str:
    """Return what a method is good for: one of :data:`PURPOSES`."""
    if SPLITS in method.capabilities:
        return SPLITTING
    if method.objectives[0] != STEP_TIME:
        return OBJECTIVES[method.objectives[0]]
    if ANYTIME in method.capabilities:
        return SEARCH
    compared = MEMORY not in method.capabilities or set(EVERY) <= set(method.objectives)
    return BASELINE if compared else QUICK


def by_purpose(methods: Iterable[Method]) -> dict[str, list[Method]]:
    """Group methods by what they are good for; only purposes with a method."""
    known = list(methods)
    groups = {each: [m for m in known if purpose_of(m) == each] for each in PURPOSES}
    return {purpose: members for purpose, members in groups.items() if members}


def strengths(method: Method) -> list[str]:
    """List what a method promises, a phrase each."""
    return [CAPABILITIES[name] for name in CAPABILITIES if name in method.capabilities]


def time_text(method: Method, time_limit_s: float) -> str:
    """Return how long a method takes: ``up to 10 s``, ``about 1 s``."""
    spent = whole_seconds(estimate_s([method], time_limit_s))
    return f"up to {spent}" if ANYTIME in method.capabilities else f"about {spent}"


def whole_seconds(time_s: float) -> str:
    """Show a waiting time without decimals: ``5 s``, ``5 min 0 s``."""
    return seconds(round(time_s)).replace(".0 s", " s")


def best_plan(method: str, objective: str, plans: Sequence[PlanEntry]) -> PlanEntry | None:
    """Return the best plan of a list that a method made for the cluster in use."""
    made = [
        entry
        for entry in plans
        if (entry.plan.method, entry.plan.objective) == (method, objective)
        and entry.cluster is None
        and entry.origin is None
    ]
    return min(made, key=rank, default=None)


def rank(entry: PlanEntry) -> tuple[bool, float]:
    """Sort key for plans with the same objective: those that fit first, then the better."""
    value_us = entry.plan.value_us
    return not entry.schedule.fits, entry.schedule.makespan_us if value_us is None else value_us


def why_not_for(method: Method, problem: Problem) -> str:
    """Explain why a method cannot run or cannot solve this problem; empty if it can."""
    if method.why_not:
        return method.why_not
    if SPLITS in method.capabilities and problem.splits:
        is_cut = any(split.is_cut for split in problem.splits)
        what = "splits ops" if is_cut else "recomputes or keeps tensors on the host"
        return f"The plan that is shown {what} already; show another one first."
    largest = int(problem.cluster.capacity_bytes.max())
    if ONE_DEVICE in method.capabilities and problem.profile.persistent_bytes.sum() > largest:
        return "It uses one GPU, and this model’s variables do not fit on any single device."
    return ""


def warnings_for(method: Method, problem: Problem) -> list[str]:
    """List what a method ignores that matters for this problem, one sentence each."""
    cluster, gpus, warnings = problem.cluster, problem.cluster.gpus, []
    uses_speed = {HETEROGENEOUS, ONE_DEVICE} & set(method.capabilities)
    if len(set(cluster.speed[gpus].tolist())) > 1 and not uses_speed:
        warnings.append("It treats all GPUs as identical, and yours differ.")
    if (
        MEMORY not in method.capabilities
        and _one_gpu_bytes(problem) > cluster.capacity_bytes[gpus].max()
    ):
        warnings.append("It ignores memory, and this model may not fit on one device.")
    return warnings


def suggested(
    methods: Collection[Method], recent: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Suggest methods to begin with: one for each purpose, without the recent ones.

    Parameters
    ----------
    recent : sequence of (str, str)
        Names and objectives of methods.

    Returns
    -------
    list of (str, str)
        Names and objectives.
    """
    first = [members[0] for members in by_purpose(m for m in methods if not m.why_not).values()]
    found = [(method.name, method.objectives[0]) for method in first]
    return [each for each in found if each not in recent]


@lru_cache(maxsize=1)
def _one_gpu_bytes(problem: Problem) -> int:
    """Find the peak memory on one GPU; cached, because many methods ask for it."""
    return one_device_peak_bytes(problem)
