"""The plan: a device for every op, and an order for every device."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from enplace.errors import PlanError
from enplace.text import count
from enplace.values.arrays import (
    FloatArray,
    Frozen,
    freeze_arrays,
    inverse,
    is_permutation,
    longest_rise,
)
from enplace.values.load_rule import LoadRule
from enplace.values.problem import STEP_TIME, BoolArray, Problem
from enplace.values.profile import IntArray, Profile
from enplace.values.rivals import Rivals
from enplace.values.splits import Split
from enplace.values.splits.rules import original_name

POLICIES = ("priority", "strict", "fifo")
"""How a device chooses its next op: the ready op with the best position; strictly by position; or
first ready, first served, or as recorded if the framework runs ops so (such as PyTorch)."""

LINK_POLICIES = ("fifo", "priority", "ordered")
"""How a channel chooses its next transfer: first requested; the waiting transfer whose consumer has
the best position; or strictly by the positions of the consumers."""


COPYING = "enplace-recompute", "enplace-offload"
"""The methods that compute ops again, and those that keep what they make on the host."""


@dataclass(frozen=True, eq=False)
class Claim:
    """What a plan's file says of other plans, which nobody here has proved.

    Attributes
    ----------
    bound_us : float
        None of the plan's rivals has less.
    proven : bool
        Whether none is better than the plan itself.
    problem : Problem or None
        The problem that this was said of; None if it is not known.
    """

    bound_us: float
    proven: bool = False
    problem: Problem | None = None


@dataclass(frozen=True, eq=False)
class Plan(Frozen):
    """The device of every op, the order of ops, and what the placer reported.

    Attributes
    ----------
    device : int array, shape (n_ops,)
        Device number of each op.
    position : int array, shape (n_ops,)
        A permutation; a device runs its ops by position. Smaller is more urgent.
    method : str
        The placer's name, or the name that a person gave the plan.
    policy, links : str
        One of :data:`POLICIES` and of :data:`LINK_POLICIES`: how to run the plan.
    replicas : tuple of tuples of int
        Devices that run the same stage of a pipeline in turn (Tarnawski et al. 2020, appendix
        C.2). The ops of each group are on its first device; the others hold copies of them.
    recompute : tuple of int
        Devices of a pipeline that keep no activations: they run their forward ops again before
        their backward ops.
    pace_us : float
        Time between the samples of a pipeline if it is longer than the busiest device needs: then
        fewer are in flight, and memory suffices. Samples that wait for room need it on average.
        0: the busiest device alone sets the pace.
    splits : tuple of Split
        The ops to split; the arrays are for the resulting graph
        (:func:`~enplace.values.problem.split_problem`).
    objective : str
        One of the three objectives.
    value_us : float or None
        Time per sample or latency, as computed by the placer; None for the step time, which only
        the simulator can compute.
    bound_us : float or None
        The placer's lower bound on ``value_us``.
    proven : bool
        Whether the placer proved that none of its rivals has a smaller ``value_us``.
    rivals : Rivals or None
        The placements that ``bound_us`` and ``proven`` hold for; None if the placer does not say.
    load_rule : LoadRule or None
        How loads were counted for the time per sample.
    subgraph : int array, shape (n_ops,), or None
        Number of each op's subgraph within its pass on its accelerator, which the latency depends
        on (Tarnawski et al. 2020, section 4). None: as few subgraphs as possible. For a pipeline
        in a V, which of its device's two stages each op is in.
    nothing_fits : bool
        Whether the placer proved that no plan fits in memory.
    note : str
        A sentence or two for people.
    noted_us, noted_for : float or None, and str
        What the plan took when its placer wrote the note, and with what costs (the problem's
        ``costs_digest``): the note is about these. None and empty if that is not known.
    solve_seconds : float or None
        How long the placer took.
    seed : int or None
        The seed of the placer.
    details : mapping
        Plain data that only this placer reports: ``ideals``, ``family``, ``solver_status``...
        It informs people; nothing depends on it.
    claim : Claim or None
        What the plan's file claims (:mod:`enplace.bounds.claims`).

    Raises
    ------
    PlanError
        If an array does not hold whole numbers, the arrays disagree, or a policy is unknown.
    """

    device: IntArray
    position: IntArray
    method: str
    policy: str = "priority"
    links: str = "fifo"
    replicas: tuple[tuple[int, ...], ...] = ()
    recompute: tuple[int, ...] = ()
    pace_us: float = 0.0
    splits: tuple[Split, ...] = ()
    objective: str = STEP_TIME
    value_us: float | None = None
    bound_us: float | None = None
    proven: bool = False
    rivals: Rivals | None = None
    load_rule: LoadRule | None = None
    subgraph: IntArray | None = None
    nothing_fits: bool = False
    note: str = ""
    noted_us: float | None = None
    noted_for: str = ""
    solve_seconds: float | None = None
    seed: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    claim: Claim | None = None

    def __post_init__(self) -> None:
        for name in ("device", "position"):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
                raise PlanError(f"{name}: a plan needs an array of whole numbers")
        if self.device.shape != self.position.shape or self.device.ndim != 1:
            raise PlanError("a plan needs one device and one position for each op")
        if self.subgraph is not None and self.subgraph.shape != self.device.shape:
            raise PlanError("a plan with subgraphs needs one for each op")
        if not is_permutation(self.position):
            raise PlanError("the positions of a plan must be a permutation of the ops")
        if self.policy not in POLICIES or self.links not in LINK_POLICIES:
            raise PlanError(
                f"policy '{self.policy}' or links '{self.links}' is unknown; use one of "
                f"{', '.join(POLICIES)} and one of {', '.join(LINK_POLICIES)}"
            )
        freeze_arrays(self)

    def __repr__(self) -> str:
        return f"<Plan of {self.method}: {count(len(self.device), 'op')}>"

    @property
    def gap(self) -> float | None:
        """How far ``value_us`` may be above the best possible, as a share of ``value_us``.

        None for the step time, or without a bound.
        """
        if self.value_us is None or not self.bound_us:
            return None
        return find_gap(self.value_us, self.bound_us)

    @property
    def keeps_all(self) -> bool:
        """Whether it, and all plans among which it was sought, keep what ops make."""
        return self.method not in COPYING and all(split.is_cut for split in self.splits)

    def under_name(self, method: str) -> Plan:
        """Return the same placement and order as a plan of another method, without its reports."""
        return Plan(
            self.device,
            self.position,
            method,
            policy=self.policy,
            links=self.links,
            replicas=self.replicas,
            recompute=self.recompute,
            pace_us=self.pace_us,
            splits=self.splits,
        )

    def with_notes(self, *notes: str, separator: str = " ") -> Plan:
        """Return the plan with these notes instead of its own; empty notes are dropped."""
        *before, last = [*filter(None, notes)] or [""]
        if separator != " ":  # clauses, not sentences
            before = [note.rstrip(".") for note in before]
        return replace(self, note=separator.join([*before, last]))

    def acts_like(self, other: Plan) -> bool:
        """Whether another plan runs every op in the same way, whoever made the two."""
        return (
            np.array_equal(self.device, other.device)
            and np.array_equal(self.position, other.position)
            and (self.policy, self.links) == (other.policy, other.links)
            and (self.replicas, self.splits) == (other.replicas, other.splits)
            and (self.recompute, self.pace_us) == (other.recompute, other.pace_us)
        )


def follow_graph(profile: Profile, key: FloatArray | IntArray) -> IntArray:
    """Find positions in which every op comes after its producers, otherwise smaller keys first.

    Parameters
    ----------
    key : array, shape (n_ops,)
        Ties are broken by the number of the op.

    Returns
    -------
    int array, shape (n_ops,)
        A permutation.
    """
    waiting = np.diff(profile.in_ptr)
    ready = [(key[op], op) for op in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(ready)
    position = np.empty(profile.n_ops, dtype=np.int64)
    for rank in range(profile.n_ops):
        _, op = heapq.heappop(ready)
        position[op] = rank
        for consumer in profile.readers_of(op).tolist():
            waiting[consumer] -= 1
            if not waiting[consumer]:
                heapq.heappush(ready, (key[consumer], consumer))
    return position


def runs_as_recorded(profile: Profile, plan: Plan) -> bool:
    """Whether devices run ops as they were recorded: the plan has no order, and PyTorch does so."""
    return plan.policy == "fifo" and profile.measured.runs_as_recorded


def as_run(profile: Profile, plan: Plan) -> Plan:
    """Return a plan with the order in which its step will run.

    Eager PyTorch issues the ops of all devices from one thread, in the order of the script, so each
    device runs its own in that order, whatever the plan says. Stages of a pipeline keep theirs.
    """
    if plan.objective != STEP_TIME or not profile.measured.runs_as_recorded:
        return plan
    return replace(plan, position=position_by_itself(profile), policy="fifo", links="fifo")


def under_policies(profile: Profile, plan: Plan, policy: str | None, links: str | None) -> Plan:
    """Return a plan under other policies than its own, where some are given.

    Raises
    ------
    PlanError
        If the framework keeps the script's order, which no policy changes.
    """
    if policy is None and links is None:
        return plan
    if as_run(profile, plan) is not plan:
        raise PlanError(
            "PyTorch runs the ops of each device in the script's order, whatever a plan says; "
            "leave out the policy and the links"
        )
    return replace(plan, policy=policy or plan.policy, links=links or plan.links)


@lru_cache(maxsize=4)
def position_by_itself(profile: Profile) -> IntArray:
    """Return the position of each op as the framework runs them without a plan; shape (n_ops,)."""
    if profile.measured.runs_as_recorded:
        return follow_graph(profile, just_before_readers(profile, np.arange(profile.n_ops)))
    return inverse(profile.topological_order)


def just_before_readers(profile: Profile, key: IntArray) -> FloatArray:
    """Return the keys of an order in which what a plan adds comes just before its first reader.

    Parameters
    ----------
    key : int array, shape (n_ops,)
        A key for each op, of which those of copies and fetches do not count.
    """
    found, names = key.astype(float), profile.op_names
    reverse = profile.topological_order[::-1].tolist()
    added = [op for op in reverse if original_name(names[op]) != names[op]]
    for op in added:
        readers = profile.readers_of(op)
        found[op] = found[readers].min(initial=np.inf) - 0.5 / (1 + len(added))
    return found


def find_gap(value_us: float, bound_us: float) -> float:
    """Return how far a value may be above the best, as a share of the value; 0 below the bound."""
    return 0.0 if value_us <= bound_us else 1 - bound_us / value_us


def check_plan(problem: Problem, plan: Plan) -> None:
    """Refuse a plan that breaks a constraint of the problem other than memory.

    Raises
    ------
    PlanError
        The message names the op, the device and the constraint.
    """
    check_devices(problem, plan)
    for kind in problem.constraints:
        if why := kind.check(problem, plan.device):
            raise PlanError(why)


def check_devices(problem: Problem, plan: Plan) -> None:
    """Refuse a plan with a device that an op must not use, whatever the others do.

    Raises
    ------
    PlanError
        As for :func:`check_plan`.
    """
    if plan.splits != problem.splits:
        raise PlanError("the splits of the plan are not those of the graph; use split_problem")
    if len(plan.device) != problem.profile.n_ops:
        raise PlanError(
            f"the plan places {len(plan.device)} ops, the profile has {problem.profile.n_ops}; "
            f"load the plan that was made for this graph"
        )
    if ((plan.device < 0) | (plan.device >= problem.cluster.n_devices)).any():
        raise PlanError("the plan names a device that the cluster does not have")
    _check_replicas(problem, plan)
    if not all(0 <= device < problem.cluster.n_devices for device in plan.recompute):
        raise PlanError("recompute: the cluster does not have one of the devices")
    allowed = problem.unit_allowed[problem.unit, plan.device]
    wrong = np.flatnonzero(~allowed | find_separated(problem, plan))
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
                    f"{problem.cluster.devices[copy].name}, a replica of its device"
                )


def find_reordered(device: IntArray, before: IntArray, after: IntArray) -> IntArray:
    """Find the fewest ops that, moved within their device, turn the order of a plan into another's.

    Parameters
    ----------
    device : int array, shape (n_ops,)
        The device of each op in both plans; −1 if they place it differently.
    before, after : int arrays, shape (n_ops,)
        Its position in each.
    """
    ops = np.flatnonzero(device >= 0)
    first, then = (ops[np.lexsort((order[ops], device[ops]))] for order in (before, after))
    place = np.zeros(len(device), dtype=np.int64)
    place[then] = np.arange(len(then))
    return np.sort(np.delete(first, longest_rise(place[first].tolist())))


def find_separated(problem: Problem, plan: Plan) -> BoolArray:
    """Find ops that are not on the same device as the last op of their placement unit; (n_ops,)."""
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
    if fault := problem.fault(op, device):
        return f"{where}, but {fault}; solve again"
    for other in np.flatnonzero(problem.unit == problem.unit[op]).tolist():
        if plan.device[other] != device:
            return (
                f"{where}, but op '{problem.profile.op_names[other]}', colocated with it, on "
                f"{names[plan.device[other]]}; move both to one device"
            )
    return f"{where}, but an op colocated with it may not run there; move both to another device"
