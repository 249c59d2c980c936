"""What people pick where they have no planner, predicted to compare plans with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.machine.pipelines.pipeline import most_bytes
from enplace.placers.data_parallel import Replicas
from enplace.placing.prices import total_price_us
from enplace.placing.settle import by_placed_rank, settle
from enplace.text import listed, ms, size
from enplace.values.arrays import IntArray
from enplace.values.batch import with_batch
from enplace.values.cluster import Cluster
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem


@dataclass(frozen=True, eq=False)
class Alternative:
    """What a person may pick instead of a plan.

    Attributes
    ----------
    value_us : float
        The step time, or the time per sample of a pipeline; NaN if it is not known.
    peak_bytes : int array, shape (n_devices,)
        With the samples in flight, if it is a pipeline.
    sent_bytes : int
        In a step.
    about : str
        What else is to be said of it, in sentences.
    why_not : str
        Why it cannot be had, besides memory: the end of a sentence. Empty if it can.
    price_us : float
        What its sends may cost besides (:mod:`enplace.placing.prices`).
    """

    name: str
    cluster: Cluster
    value_us: float
    peak_bytes: IntArray
    sent_bytes: int = 0
    about: str = ""
    why_not: str = ""
    price_us: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether it can run: within the memory of every device."""
        return not self.why_not and bool((self.peak_bytes <= self.cluster.capacity_bytes).all())

    @property
    def is_rival(self) -> bool:
        """Whether it can run, in a time that is known."""
        return self.fits and math.isfinite(self.value_us)

    @property
    def time(self) -> str:
        """What it takes, in words; empty if that is not known."""
        return ms(self.value_us) if math.isfinite(self.value_us) else ""

    @property
    def memory(self) -> str:
        """The peak memory of every device that it uses, in words."""
        names: dict[str, list[str]] = {}
        for gpu in self.cluster.gpus:
            device, peak = self.cluster.devices[gpu], int(self.peak_bytes[gpu])
            if peak:
                over = f" of {size(device.capacity_bytes)}" * (peak > device.capacity_bytes)
                names.setdefault(f"{size(peak)}{over}", []).append(device.label)
        if [len(on) for on in names.values()] == [len(self.cluster.gpus)]:
            return f"{next(iter(names))} each"
        return ", ".join(f"{peak} on {listed(on)}" for peak, on in names.items())

    @property
    def notes(self) -> str:
        """Whether it fits and the memory of every card, then what else is to be said of it."""
        fit = "" if self.fits else f"does not fit: {self.why_not}".removesuffix(": ") + "; "
        return " ".join(filter(None, (f"{fit}{self.memory}.", self.about)))


def replicas_as_alternative(found: Replicas) -> Alternative:
    """Return data parallelism as what it may be compared with."""
    peak_bytes = np.zeros(found.cluster.n_devices, dtype=np.int64)
    for each in found.replicas:
        gpus = list(each.gpus)
        peak_bytes[gpus] = each.alone.peak_bytes[: len(gpus)]
    return Alternative(
        found.name,
        found.cluster,
        found.step_time_us,
        peak_bytes,
        found.sent_bytes,
        " ".join(filter(None, (found.about_shares, found.guess))),
        price_us=found.price_us,
    )


def with_batch_of(problem: Problem, factor: float) -> Problem:
    """Return a problem with a batch ``factor`` times as large.

    It keeps the measurement, which says to which module each parameter belongs.
    """
    profile, measured = problem.measured_profile, problem.measured_profile.measured
    shapes = tuple((max(1, round(n * factor)), *rest) for n, *rest in measured.batch_shapes)
    measured = replace(measured, batch_shapes=shapes)
    return Problem(replace(with_batch(profile, factor), measured=measured), problem.cluster)


def per_sample(whole: Alternative, n: int) -> Alternative:
    """Return the time and transfers per sample of a step that has all ``n`` samples at once."""
    about = f"A step with all {n} samples at once takes {whole.time}." if whole.time else ""
    return replace(
        whole,
        value_us=whole.value_us / n,
        sent_bytes=whole.sent_bytes // n,
        price_us=0.0,
        about=" ".join(filter(None, (about, whole.about))),
    )


def split_as_alternative(
    problem: Problem,
    name: str,
    preferred: IntArray,
    objective: str,
    rule: LoadRule,
    about: str = "",
) -> Alternative:
    """Return a placement as what a plan may be compared with.

    Parameters
    ----------
    preferred : int array, shape (n_ops,)
        A device for each op that may run there.
    rule : LoadRule
        The schedule of its pipeline, for the throughput.
    """
    device = settle(problem, preferred)
    plan = Plan(device, by_placed_rank(problem, device), name)
    return plan_as_alternative(problem, plan, objective, rule, about)


def plan_as_alternative(
    problem: Problem, plan: Plan, objective: str, rule: LoadRule, about: str = ""
) -> Alternative:
    """Return a plan as what another may be compared with, whatever it was made for."""
    if objective != plan.objective or objective == THROUGHPUT:
        own = replace(plan, objective=objective, load_rule=rule, value_us=None, bound_us=None)
        plan = check_claims(problem, own)
    schedule = simulate(problem, plan)
    return Alternative(
        plan.method,
        problem.cluster,
        schedule.value_us,
        most_bytes(schedule),
        int(schedule.transfer_bytes.sum()),
        about,
        price_us=total_price_us(schedule) * (objective == STEP_TIME),
    )
