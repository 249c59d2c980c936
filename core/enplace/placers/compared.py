"""What a file that people read compares a plan with: other plans, and data parallelism."""

from __future__ import annotations

from dataclasses import replace

from enplace.bounds import with_bound
from enplace.placers.data_parallel import Replicas, mirrored, why_not_mirrored
from enplace.placers.references import EXPERT, alone_schedule, reference_schedule
from enplace.values.problem import STEP_TIME, Problem
from enplace.values.result import Reference, Result, reference_of
from enplace.values.schedule import Schedule
from enplace.writers import Exporter

FREE = "an expert's plan"
OBEYING = "an expert's plan with the same constraints"


def result_for(
    exporter: Exporter,
    schedule: Schedule,
    model: Problem | None,
    alone: str,
    known_us: float | None = None,
) -> Result:
    """Return a schedule with what a file format shows of it, and nothing else that takes time.

    Parameters
    ----------
    model : Problem or None
        What other plans are made for; None to compare with none.
    alone : str
        Title of the plan with everything on one GPU, as the model's framework would run it.
    known_us : float, optional
        A bound on the step time that is known already.
    """
    result = with_bound(schedule, known_us) if exporter.shows_bound else Result(schedule)
    if exporter.shows_references and model is not None:
        result = replace(result, references=find_references(model, alone))
        if result.objective == STEP_TIME:
            result = _with_replicas(result, model)
    return result


def find_references(problem: Problem, alone: str) -> dict[str, Reference]:
    """Return the plans of an expert and of one device that there are, by what they are.

    An expert who has to obey the constraints is another one: the difference is their price.
    """
    free = Problem(problem.measured_profile, problem.cluster)
    found = {FREE: reference_schedule(free, EXPERT)}
    if problem.constraints:
        found[OBEYING] = reference_schedule(problem, EXPERT)
    found[alone] = alone_schedule(problem)
    return {title: reference_of(schedule) for title, schedule in found.items() if schedule}


def _with_replicas(result: Result, model: Problem) -> Result:
    """Add data parallelism, or why there is none."""
    if (found := mirrored(model)) is None:
        return replace(result, about_references=why_not_mirrored(model))
    return replace(result, references={**result.references, found.name: _reference_to(found)})


def _reference_to(found: Replicas) -> Reference:
    each = [reference_of(replica.alone) for replica in found.replicas]
    fullest = max(each, key=lambda one: one.peak_bytes / max(one.capacity_bytes, 1))
    return replace(
        fullest,
        step_time_us=found.step_time_us,
        fits=found.fits,
        sent_bytes=found.sent_bytes,
        about=found.about,
    )
