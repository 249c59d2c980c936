"""The plan: for every op a device, for every device an order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from enplace.errors import PlanError
from enplace.text import finite
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, BoolArray, Problem
from enplace.values.profile import IntArray
from enplace.values.splits import Split

POLICIES = ("priority", "strict", "fifo")
"""How a device chooses its next op: best position among the ready ones, exactly in order, or first
ready."""

LINK_POLICIES = ("fifo", "priority", "ordered")
"""How a channel chooses its next transfer: first requested, best position of the consumer among the
waiting ones, or exactly in the order of the consumers' positions."""

OBJECTIVE_FACTS = {LATENCY: "latency_us", THROUGHPUT: "time_per_sample_us"}
"""Under which name a plan's facts hold what it was made for, where that is not the step."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Where every op runs and in what order.

    Attributes
    ----------
    device : int array, shape (n_ops,)
        Device number of each op.
    position : int array, shape (n_ops,)
        A permutation; the order of a device is that of its ops by position. Smaller is more urgent.
    method : str
        The placer's name, or what a person called the plan.
    policy, links : str
        One of :data:`POLICIES` and of :data:`LINK_POLICIES`: how the plan is meant to be run.
    facts : mapping
        What the placer has to say: ``solve_seconds``, ``seed``, ``note``...
    replicas : tuple of tuples of int
        Devices that take turns with the samples of a pipeline (Tarnawski et al. 2020, appendix
        C.2). The ops of each group are on its first device, the others hold copies of them.
    splits : tuple of Split
        The ops to split; the arrays are for the graph that this gives
        (:func:`~enplace.values.problem.split_problem`).

    Raises
    ------
    PlanError
        If the arrays disagree or a policy is unknown.
    """

    device: IntArray
    position: IntArray
    method: str
    policy: str = "priority"
    links: str = "fifo"
    facts: Mapping[str, Any] = field(default_factory=dict)
    replicas: tuple[tuple[int, ...], ...] = ()
    splits: tuple[Split, ...] = ()

    def __post_init__(self) -> None:
        if self.device.shape != self.position.shape or self.device.ndim != 1:
            raise PlanError("a plan needs one device and one position for each op")
        if not np.array_equal(np.sort(self.position), np.arange(len(self.position))):
            raise PlanError("the positions of a plan must be a permutation of the ops")
        if self.policy not in POLICIES or self.links not in LINK_POLICIES:
            raise PlanError(
                f"policy '{self.policy}' or links '{self.links}' is unknown; use one of "
                f"{', '.join(POLICIES)} and one of {', '.join(LINK_POLICIES)}"
            )
        self.device.flags.writeable = self.position.flags.writeable = False

    @property
    def objective(self) -> str:
        """What the plan was made for: one of the three objectives."""
        found = (aim for aim, key in OBJECTIVE_FACTS.items() if key in self.facts)
        return next(found, STEP_TIME)

    @property
    def objective_us(self) -> float | None:
        """Time per sample or of a query, as its placer worked it out; None for a step."""
        return finite(self.facts.get(OBJECTIVE_FACTS.get(self.objective, "")))

    @property
    def objective_bound_us(self) -> float | None:
        """What the placer proved the time per sample or of a query not to be below."""
        return finite(self.facts.get("bound_us"))

    @property
    def objective_gap(self) -> float | None:
        """How far :attr:`objective_us` may be above the best possible, as a fraction of it."""
        us, bound_us = self.objective_us, self.objective_bound_us
        if us is None or not bound_us:
            return None
        return 0.0 if us <= bound_us else 1 - bound_us / us

    @property
    def note(self) -> str:
        """What the placer says of this plan in a sentence or two; empty if nothing."""
        note = self.facts.get("note")
        return note if isinstance(note, str) else ""

    def acts_like(self, other: Plan) -> bool:
        """Whether it says the same of every op as another plan, whoever made the two."""
        return (
            np.array_equal(self.device, other.device)
            and np.array_equal(self.position, other.position)
            and (self.policy, self.links) == (other.policy, other.links)
            and self.splits == other.splits
        )


def check_plan(problem: Problem, plan: Plan) -> None:
    """Refuse a plan that breaks a constraint of the problem other than memory.

    Raises
    ------
    PlanError
        Names the op, the device and the constraint.
    """
    if plan.splits != problem.splits:
        raise PlanError("the plan splits other ops than the graph has split; use split_problem")
    if len(plan.device) != problem.profile.n_ops:
        raise PlanError(
            f"the plan places {len(plan.device)} ops, the profile has {problem.profile.n_ops}; "
            f"load the plan that was made for this graph"
        )
    if ((plan.device < 0) | (plan.device >= problem.cluster.n_devices)).any():
        raise PlanError("the plan names a device that the cluster does not have")
    _check_replicas(problem, plan)
    allowed = problem.unit_allowed[problem.unit, plan.device]
    wrong = np.flatnonzero(~allowed | apart(problem, plan))
    if len(wrong):
        raise PlanError(_why_wrong(problem, plan, int(wrong[0])))


def _check_replicas(problem: Problem, plan: Plan) -> None:
    flat = [device for group in plan.replicas for device in group]
    if len(set(flat)) < len(flat) or not all(0 <= d < problem.cluster.n_devices for d in flat):
        raise PlanError("replicas: a device is named twice, or the cluster does not have it")
    copies = {device for group in plan.replicas for device in group[1:]}
    for op in np.flatnonzero(np.isin(plan.device, list(copies))).tolist()[:1]:
        raise PlanError(
            f"op '{problem.profile.op_names[op]}' is on a device that only holds copies; place it "
            f"on the first device of the replicas"
        )
    for first, *others in plan.replicas:
        for copy in others:
            there = np.isfinite(problem.time_us[:, copy]) | (plan.device != first)
            for op in np.flatnonzero(~there).tolist()[:1]:
                raise PlanError(
                    f"op '{problem.profile.op_names[op]}' cannot run on "
                    f"{problem.cluster.devices[copy].name}, which takes turns with its device"
                )


def apart(problem: Problem, plan: Plan) -> BoolArray:
    """Which ops are on another device than the last op of their placement unit; shape (n_ops,)."""
    unit_device = np.full(problem.n_units, -1, dtype=np.int64)
    unit_device[problem.unit] = plan.device
    elsewhere: BoolArray = unit_device[problem.unit] != plan.device
    return elsewhere


def _why_wrong(problem: Problem, plan: Plan, op: int) -> str:
    names = [device.name for device in problem.cluster.devices]
    device = int(plan.device[op])
    where = f"op '{problem.profile.op_names[op]}' is placed on {names[device]}"
    if not np.isfinite(problem.time_us[op, device]):
        return f"{where}, where it cannot run; place it on another device"
    if problem.pins.get(op, device) != device:
        return f"{where}, but pinned to {names[problem.pins[op]]}; solve again around the pins"
    if (op, device) in problem.forbidden:
        return f"{where}, which is forbidden for it; solve again"
    for other in np.flatnonzero(problem.unit == problem.unit[op]).tolist():
        if plan.device[other] != device:
            return (
                f"{where}, but op '{problem.profile.op_names[other]}', colocated with it, on "
                f"{names[plan.device[other]]}; move both to one device"
            )
    return f"{where}, but an op colocated with it may not run there; move both to another device"


def inverse(order: IntArray) -> IntArray:
    """Position of each number in a permutation."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return position
