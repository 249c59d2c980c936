"""What a plan's note and file say of other plans, and where that may be repeated."""

from __future__ import annotations

import math
from dataclasses import replace

from enplace.bounds.proofs import has_all_of
from enplace.machine.check_claims import SAME
from enplace.text import as_sentence, ms
from enplace.values.plan import Claim, Plan
from enplace.values.problem import Problem
from enplace.values.result import Result
from enplace.values.schedule import Schedule


def with_claim(problem: Problem, plan: Plan, value_us: float = math.inf) -> Plan:
    """Return a plan to write to another file, with what its own claims of this problem.

    Parameters
    ----------
    value_us : float
        What the plan takes: a claim above it is dropped.
    """
    claim = _held(problem, plan, value_us)
    if claim is None:
        return plan
    return replace(plan, bound_us=claim.bound_us, proven=claim.proven)


def claim_text(schedule: Schedule, bound_us: float | None) -> str:
    """Say what the file of a plan claims, if the plan does not disprove it.

    Parameters
    ----------
    bound_us : float or None
        What is known to be proven: less is not worth a word.

    Returns
    -------
    str
        A sentence; empty if there is nothing to say.
    """
    claim = _held(schedule.problem, schedule.plan, schedule.value_us)
    if claim is None:
        return ""
    if claim.proven:
        return "Proven best, says its file."
    claimed, known_us = ms(claim.bound_us), bound_us or 0.0
    if claim.bound_us <= known_us or claimed == ms(known_us) or not schedule.fits:
        return ""
    return f"Not below {claimed}, says its file."


def is_outdated(schedule: Schedule) -> bool:
    """Whether the note of a plan is about other costs, or other memory, than those of now."""
    noted_for = schedule.plan.noted_for
    return bool(noted_for) and noted_for != schedule.problem.costs_digest


def dated_note(schedule: Schedule, note: str) -> str:
    """Return what a plan's note says as sentences, and for what costs if not for these."""
    if not (note and is_outdated(schedule)):
        return as_sentence(note)
    took_us = schedule.plan.noted_us
    took = "" if took_us is None else f", where it took {ms(took_us)}"
    return f"Found for other costs or memory{took}: {as_sentence(note)}"


def note_with_claim(result: Result, note: str) -> str:
    """Return a plan's note as sentences, followed by what its file claims."""
    schedule = result.schedule
    return f"{dated_note(schedule, note)} {claim_text(schedule, result.bound_us)}".strip()


def _held(problem: Problem, plan: Plan, value_us: float) -> Claim | None:
    """Return what a plan's file claims if it holds for this problem and the plan's value.

    It was said of the same problem with no more constraints, since these only remove plans.
    """
    claim = plan.claim
    if claim is None or claim.problem is None or claim.bound_us > value_us * (1 + SAME):
        return None
    return claim if has_all_of(problem, claim.problem) else None
