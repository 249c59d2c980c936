"""The plan: for every op a device, for every device an order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from enplace.errors import PlanError
from enplace.problem import BoolArray, Problem
from enplace.profile import IntArray
from enplace.splits import Split

POLICIES = ("priority", "strict", "fifo")
"""How a device chooses its next op: best position among the ready ones, exactly in order, or first
ready."""

LINK_POLICIES = ("fifo", "priority", "ordered")
"""How a channel chooses its next transfer: first requested, best position of the consumer among the
waiting ones, or exactly in the order of the consumers' positions."""


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
        What the placer has to say: ``solve_seconds``, ``seed``, its own ``lower_bound_us``...
    splits : tuple of Split
        The ops to split; the arrays are for the graph that this gives
        (:func:`~enplace.problem.split_problem`).

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
    allowed = problem.unit_allowed[problem.unit, plan.device]
    wrong = np.flatnonzero(~allowed | apart(problem, plan))
    if len(wrong):
        raise PlanError(_why_wrong(problem, plan, int(wrong[0])))


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
