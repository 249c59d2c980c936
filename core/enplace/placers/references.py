"""The plans that others are compared with: an expert's, and everything on one GPU."""

from __future__ import annotations

import math
from collections.abc import Callable

from enplace.bounds import Proof
from enplace.errors import EnplaceError
from enplace.placing.options import PlaceOptions
from enplace.placing.prices import is_told
from enplace.placing.run import place
from enplace.placing.stop import Stop
from enplace.text import change_text, ms, shows_tie
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

EXPERT, ALONE = "expert", "single"


def reference_schedule(
    problem: Problem, method: str, cancelled: Callable[[], bool] = lambda: False
) -> Schedule | None:
    """Return the schedule of a method's plan; None if it has none, or if cancelled."""
    options = PlaceOptions(stop=Stop(cancelled=cancelled))
    options.proofs.add(problem, Proof(0.0))  # nobody asks how good this plan is
    try:
        return place(problem, method, options=options).schedule
    except EnplaceError:
        return None


def alone_schedule(
    problem: Problem, cancelled: Callable[[], bool] = lambda: False
) -> Schedule | None:
    """Return the schedule of everything on one GPU, whatever the constraints."""
    return reference_schedule(free(problem), ALONE, cancelled)


def expert_schedule(
    problem: Problem, cancelled: Callable[[], bool] = lambda: False
) -> Schedule | None:
    """Return the schedule of an expert who keeps no constraints: it shows what they cost."""
    return reference_schedule(free(problem), EXPERT, cancelled)


def free(problem: Problem) -> Problem:
    """Return the problem without constraints and splits, which plans are compared on."""
    is_free = not (problem.constraints or problem.splits)
    return problem if is_free else Problem(problem.measured_profile, problem.cluster)


def verdict(
    step_us: float,
    *one_device_us: float,
    replicas_us: float = math.nan,
    inside: bool = False,
    about: str = "",
    is_guess: bool = False,
    price_us: float = 0.0,
    passed_over: str = "",
) -> str:
    """Say whether a plan is faster than what needs none: one device, and data parallelism.

    Parameters
    ----------
    *one_device_us : float
        One device may have been run in several ways.
    replicas_us : float
        Data parallelism, as far as it is known.
    inside : bool
        Whether a plan places each replica.
    about : str
        What else is to be said of data parallelism, in sentences.
    is_guess : bool
        Whether the time of data parallelism is a guess.
    price_us : float
        What the plan's transfers may cost besides what was predicted, over links that were never
        measured.
    passed_over : str
        A sentence about a plan that is faster by prediction, but whose transfers cost too much.

    Returns
    -------
    str
        Unknown times are NaN; empty if all are and nothing else is to be said.
    """
    shared = "Data parallelism" + " with a plan inside" * inside
    least = min((each for each in one_device_us if math.isfinite(each)), default=math.nan)
    takes = "would take" if is_guess else "takes"
    if _is_faster(replicas_us, step_us) and not _is_tie_or_faster(least, replicas_us):
        faster = "may be faster" if is_guess else "is faster"
        time = f"it {takes} {ms(replicas_us)}, {_plan(step_us, replicas_us)}"
        alone = f"One device takes {ms(least)}." if math.isfinite(least) else ""
        return " ".join(filter(None, (f"{shared} {faster}: {time}.", about, alone)))
    first, ends = _beside_one_device(step_us, least, price_us, passed_over), ""
    if _is_tie(replicas_us, step_us) and not _is_tie_or_faster(least, step_us):
        ends = f"{shared} {'may be' if is_guess else 'is'} as fast as the plan."
    elif math.isfinite(replicas_us):
        ends = f"{shared} {takes} {ms(replicas_us)}."
    return " ".join(filter(None, (first, ends, about)))


def _beside_one_device(step_us: float, least: float, price_us: float, passed_over: str) -> str:
    """Compare a plan with the fastest way to use one device; empty if none is known."""
    if math.isnan(least):
        return ""
    if _is_faster(step_us, least):
        charged_us = step_us + price_us
        guess = "with a guess of what its transfers cost besides"
        if not _is_faster(charged_us, least):
            return (
                f"One device may be as fast or faster: it takes {ms(least)}. The plan takes "
                f"{ms(step_us)} by prediction, {ms(charged_us)} {guess}."
            )
        said = f"One device takes {ms(least)}, {_plan(step_us, least)}"
        if not is_told(price_us, step_us):
            return f"{said}."
        return f"{said} by prediction, {change_text(charged_us / least - 1)} {guess}."
    if _is_tie(step_us, least):
        if passed_over:
            return f"One device takes {ms(least)}. {passed_over}"
        return f"One device is as fast: nothing to split. Both take {ms(least)}."
    first = f"One device is faster: nothing to split. It takes {ms(least)}"
    return f"{first}, {_plan(step_us, least)}."


def _plan(step_us: float, other_us: float) -> str:
    return f"the plan {change_text(step_us / other_us - 1)}"


def _is_tie(time_us: float, other_us: float) -> bool:
    return math.isfinite(time_us) and shows_tie(time_us / other_us - 1)


def _is_faster(time_us: float, other_us: float) -> bool:
    """Return whether a time that may be unknown is less by more than a tie."""
    return time_us < other_us and not _is_tie(time_us, other_us)


def _is_tie_or_faster(time_us: float, other_us: float) -> bool:
    return math.isfinite(time_us) and not _is_faster(other_us, time_us)
