"""The result of a placer: a plan, its schedule, and a proven bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from enplace.text import listed, ms, size
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan, find_gap
from enplace.values.problem import STEP_TIME
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

Lines = tuple[str, str]
"""A sentence, and lines of code or commands to copy; there may be none."""


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
    def fullest(self) -> int:
        """The device that it fills most."""
        return int(np.argmax(self.peak_bytes / np.maximum(self.cluster.capacity_bytes, 1)))

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
    references : mapping of str to Alternative
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
    references: Mapping[str, Alternative] = field(default_factory=dict)
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
