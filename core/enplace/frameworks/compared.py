"""What a file that people read compares a plan with: other plans, and what needs none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.bounds import with_bound
from enplace.frameworks.alternatives import find_alternatives
from enplace.frameworks.registry import framework_of
from enplace.placers.alternatives import Alternative
from enplace.placers.data_parallel import mirrored, why_not_mirrored
from enplace.placers.references import EXPERT, alone_schedule, reference_schedule
from enplace.placing.prices import about_price
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
            result = _with_alternatives(result, model)
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


def _with_alternatives(result: Result, model: Problem) -> Result:
    """Add data parallelism, or why there is none, and what else people pick."""
    replicas = mirrored(model)
    why_not = "" if replicas else why_not_mirrored(model)
    found = find_alternatives(model, STEP_TIME, [replicas] if replicas else [])
    return replace(
        result,
        references={**result.references, **{each.name: _reference_to(each) for each in found}},
        about_references=framework_of(model.measured_profile).in_own_words(why_not),
    )


def _reference_to(found: Alternative) -> Reference:
    capacity_bytes = found.cluster.capacity_bytes
    fullest = int(np.argmax(found.peak_bytes / np.maximum(capacity_bytes, 1)))
    price = about_price(("its sends", found.price_us, found.value_us))
    return Reference(
        found.value_us,
        found.fits,
        found.sent_bytes,
        int(found.peak_bytes[fullest]),
        int(capacity_bytes[fullest]),
        " ".join(filter(None, (found.notes, price))),
    )
