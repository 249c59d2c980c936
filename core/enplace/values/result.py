"""The result of a placer: a plan, its schedule, and a proven bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from enplace.values.plan import Plan, find_gap
from enplace.values.problem import STEP_TIME, THROUGHPUT
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

Lines = tuple[str, str]
"""A sentence, and lines of code or commands to copy; there may be none."""


@dataclass(frozen=True)
class Reference:
    """What a result is compared with.

    Attributes
    ----------
    value_us : float
        The time per sample beside a plan for throughput, else the step time; NaN if unknown.
    peak_bytes, capacity_bytes : int
        Of the device that it fills most.
    about : str
        What else people should know of it, in sentences.
    """

    value_us: float
    fits: bool
    sent_bytes: int
    peak_bytes: int
    capacity_bytes: int
    about: str = ""


@dataclass(frozen=True, eq=False)
class Result:
    """A plan, its simulated schedule, and a lower bound on the plan's objective.

    Attributes
    ----------
    schedule : Schedule
        Contains the plan and the problem, with the plan's ops split.
    bound_us : float or None
        No plan that fits has a smaller value of the objective. If the objective is not the step
        time, this holds only for plans of the method's own kind. None if nothing is proven.
    proven_by : str
        The solver that proved the bound; empty if it follows from the problem directly.
    compile_seconds : float
        How long kernels were compiled or loaded during the run; not part of the solving time.
    references : mapping of str to Reference
        Other plans for the same model to compare this one with, by what they are.
    about_references : tuple of str
        Why some are missing, and what else holds for all, in sentences.
    how_to : sequence of (str, str)
        How a person applies the plan.
    notes : sequence of (str, str)
        What people have noted: on what, and their words.
    opened : tuple of str
        Groups that people have opened, so that their parts are shown and named instead.
    what_if : str
        At which speeds the figures hold, if not at the cluster's: ``what if: links 3.1 ×``.
    """

    schedule: Schedule
    bound_us: float | None = None
    proven_by: str = ""
    compile_seconds: float = 0.0
    references: Mapping[str, Reference] = field(default_factory=dict)
    about_references: tuple[str, ...] = ()
    how_to: Sequence[Lines] = ()
    notes: Sequence[tuple[str, str]] = ()
    opened: tuple[str, ...] = ()
    what_if: str = ""

    def titled(self, name: str) -> str:
        """Return a title, with the speeds if they are not the cluster's."""
        return f"{name}, {self.what_if}" if self.what_if else name

    @property
    def plan(self) -> Plan:
        return self.schedule.plan

    @property
    def objective(self) -> str:
        """The objective that the plan minimises."""
        return self.plan.objective

    @property
    def value_us(self) -> float:
        """The step time, the time per sample or the latency."""
        return self.schedule.value_us

    @property
    def step_bound_us(self) -> float | None:
        """The bound, if it is a bound on the step time."""
        return self.bound_us if self.objective == STEP_TIME else None

    @property
    def gap(self) -> float | None:
        """How far the value may be above the best possible, as a share of the value.

        None without a bound, or if the plan exceeds memory: bounds hold only for plans that fit.
        """
        if self.bound_us is None or not self.schedule.fits:
            return None
        if self.bound_us == 0 < self.value_us:
            return None  # nothing is proven
        return find_gap(self.value_us, self.bound_us)


def reference_of(schedule: Schedule, peak_bytes: IntArray) -> Reference:
    """Return the figures of a schedule that others are compared with.

    Parameters
    ----------
    peak_bytes : int array, shape (n_devices,)
        With the samples in flight, if it is a pipeline.
    """
    capacity = schedule.problem.cluster.capacity_bytes
    fullest = int(np.argmax(peak_bytes / np.maximum(capacity, 1)))
    return Reference(
        schedule.value_us if schedule.plan.objective == THROUGHPUT else schedule.makespan_us,
        bool((peak_bytes <= capacity).all()),
        int(schedule.transfer_bytes.sum()),
        int(peak_bytes[fullest]),
        int(capacity[fullest]),
    )
