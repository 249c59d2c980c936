"""What is open, as one immutable value, and the edits a person can make to it. No Qt.

An edit is a function from a state to a state; undo keeps the old one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from enplace.errors import EnplaceError, PlanError
from enplace.frameworks.measured import MeasuredRun
from enplace.machine import simulate
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, Problem
from enplace.values.profile import IntArray, Profile
from enplace.values.schedule import Schedule
from enplace.values.splits import Split, split_profile


@dataclass(frozen=True, eq=False)
class PlanEntry:
    """A row of the list of plans.

    Attributes
    ----------
    name, note : str
        What a person calls it, and a few words beside it.
    origin : PlanEntry or None
        The plan this one was edited from; its schedule is drawn as a ghost.
    run : MeasuredRun or None
        What was measured when the plan ran on this machine.
    """

    name: str
    plan: Plan
    schedule: Schedule
    note: str = ""
    origin: PlanEntry | None = None
    run: MeasuredRun | None = None


@dataclass(frozen=True, eq=False)
class State:
    """A problem and its plans.

    Attributes
    ----------
    problem : Problem
        With the cluster as scaled.
    cluster : Cluster
        Before scaling by ``compute_scale`` and ``link_scale``.
    graphs : mapping
        The problems of the graphs that are not shown, by their splits: a plan that splits ops has a
        graph of its own, which is shown with it.
    """

    problem: Problem
    cluster: Cluster
    compute_scale: float = 1.0
    link_scale: float = 1.0
    plans: tuple[PlanEntry, ...] = ()
    current: PlanEntry | None = None
    graphs: Mapping[tuple[Split, ...], Problem] = field(default_factory=dict)

    @property
    def model(self) -> Problem:
        """The problem of the graph without splits."""
        return self.graphs.get((), self.problem)

    @property
    def expert(self) -> PlanEntry | None:
        """The unedited expert plan of a step, which the others are compared with."""
        experts = (e for e in self.plans if e.plan.method == "expert" and not e.origin)
        return next((e for e in experts if e.plan.objective == STEP_TIME), None)


def first_state(profile: Profile, cluster: Cluster) -> State:
    """A profile just opened, without plans.

    Raises
    ------
    ProblemError
        If the profile cannot run on the cluster.
    """
    return State(Problem(profile, cluster), cluster)


def unit_ops(problem: Problem, ops: Collection[int]) -> IntArray:
    """The ops together with all those that must share their device."""
    wanted = np.zeros(problem.n_units, dtype=bool)
    wanted[problem.unit[np.fromiter(ops, dtype=np.int64)]] = True
    return np.flatnonzero(wanted[problem.unit])


def move(plan: Plan, ops: IntArray, device: int) -> Plan:
    """The plan with some ops on another device, in the same order."""
    devices = plan.device.copy()
    devices[ops] = device
    return replace(plan, device=devices)


def repair(problem: Problem, plan: Plan) -> Plan:
    """The plan with every unit on one device it may use; units that are right stay.

    A unit that is not goes where most of its compute time is, and among equals to the least busy.
    """
    unit_device = np.zeros(problem.n_units, dtype=np.int64)
    unit_device[problem.unit] = plan.device
    right = (plan.device == unit_device[problem.unit]) & (
        problem.unit_allowed[problem.unit, plan.device]
    )
    wrong = np.unique(problem.unit[~right])
    if not len(wrong):
        return plan
    time_us = problem.time_us[np.arange(problem.profile.n_ops), plan.device]
    share_us = np.zeros(problem.unit_allowed.shape)
    np.add.at(share_us, (problem.unit, plan.device), np.where(np.isfinite(time_us), time_us, 0))
    load_us = share_us.sum(axis=0)
    for unit in wrong.tolist():
        allowed = np.flatnonzero(problem.unit_allowed[unit])
        best = max(allowed.tolist(), key=lambda d: (share_us[unit, d], -load_us[d]))
        load_us[best] += share_us[unit].sum() - share_us[unit, best]
        unit_device[unit] = best
    return replace(plan, device=unit_device[problem.unit])


def constrain(
    state: State,
    *,
    pins: Mapping[int, int] | None = None,
    together: tuple[tuple[int, ...], ...] | None = None,
    forbidden: frozenset[tuple[int, int]] | None = None,
    plan: Plan | None = None,
) -> State:
    """Change constraints, and the current plan with them where it breaks one.

    Parameters
    ----------
    pins, together, forbidden
        As in :class:`Problem`; those not given stay.
    plan : Plan, optional
        Use this in place of the current plan.

    Raises
    ------
    ProblemError
        If the constraints contradict each other.
    """
    old = state.problem
    changed = not (pins is None and together is None and forbidden is None)
    problem = old
    if changed:
        problem = replace(
            old,
            pins=dict(sorted((old.pins if pins is None else pins).items())),
            together=old.together if together is None else together,
            forbidden=old.forbidden if forbidden is None else forbidden,
        )
    state = replace(state, problem=problem)
    if state.current is None:
        return state
    return _with_plan(state, repair(problem, plan or state.current.plan))


def _with_plan(state: State, plan: Plan) -> State:
    """Show an edited plan: beside the one it comes from, or in the place of an earlier edit."""
    current = state.current
    assert current is not None
    if np.array_equal(plan.device, current.plan.device):
        return state
    schedule = simulate(state.problem, plan)
    if current.origin is not None:
        edited = replace(current, plan=plan, schedule=schedule, run=None)
        return swap_entry(state, current, edited)
    name = unused_name(state, f"{current.name}, edited")
    entry = PlanEntry(name, plan, schedule, "edited by hand", origin=current)
    at = state.plans.index(current) + 1
    return replace(state, plans=(*state.plans[:at], entry, *state.plans[at:]), current=entry)


def swap_entry(state: State, old: PlanEntry, new: PlanEntry) -> State:
    """Put one entry in the place of another, also as the origin of its edits."""
    swapped = {entry: replace(entry, origin=new) for entry in state.plans if entry.origin is old}
    swapped[old] = new
    plans = tuple(swapped.get(entry, entry) for entry in state.plans)
    current = swapped.get(state.current, state.current) if state.current else None
    return replace(state, plans=plans, current=current)


def unused_name(state: State, name: str) -> str:
    """The name, with a number behind it where another plan has it already."""
    taken = {entry.name for entry in state.plans}
    numbers = range(2, len(taken) + 3)
    return next(n for n in (name, *(f"{name} {i}" for i in numbers)) if n not in taken)


def place(state: State, ops: Collection[int], device: int, pin: bool) -> State:
    """Run ops, and those that must share their device, on a device; pin them or only move them.

    Raises
    ------
    ProblemError
        If an op cannot or must not run there.
    """
    if state.current is None:
        raise PlanError("there is no plan to change yet; press Solve first")
    whole = unit_ops(state.problem, ops)
    moving = set(whole.tolist())
    pins = {op: d for op, d in state.problem.pins.items() if op not in moving}
    if pin:
        pins.update(dict.fromkeys(map(int, ops), device))
    moved = move(state.current.plan, whole, device)
    after = constrain(state, pins=None if pins == dict(state.problem.pins) else pins, plan=moved)
    assert after.current is not None
    if (after.current.plan.device[whole] != device).any():
        name = state.problem.profile.op_names[int(whole[0])]
        label = state.problem.cluster.devices[device].name
        raise PlanError(f"op '{name}' may not run on {label}; choose another device")
    return after


def pin_here(state: State, ops: Collection[int]) -> State:
    """Pin ops to the devices the current plan gives them."""
    if state.current is None:
        raise PlanError("there is no plan to pin to yet; press Solve first")
    device = state.current.plan.device
    return constrain(state, pins={**state.problem.pins, **{int(op): int(device[op]) for op in ops}})


def unpin(state: State, ops: Collection[int]) -> State:
    """Let a placer decide about these ops, and those that must share their device, again."""
    free = set(unit_ops(state.problem, ops).tolist())
    pins = {op: device for op, device in state.problem.pins.items() if op not in free}
    return state if len(pins) == len(state.problem.pins) else constrain(state, pins=pins)


def forbid(state: State, ops: Collection[int], device: int) -> State:
    """Keep ops off a device."""
    return constrain(state, forbidden=state.problem.forbidden | {(int(op), device) for op in ops})


def allow(state: State, ops: Collection[int], device: int) -> State:
    """Let ops use a device again that was forbidden."""
    forbidden = state.problem.forbidden - {(int(op), device) for op in ops}
    return state if forbidden == state.problem.forbidden else constrain(state, forbidden=forbidden)


def colocate(state: State, ops: Collection[int]) -> State:
    """Keep ops on one device from now on."""
    if len(ops) < 2:
        raise EnplaceError("colocating takes at least two ops; select more of them")
    return constrain(state, together=(*state.problem.together, tuple(sorted(map(int, ops)))))


def separate(state: State, ops: Collection[int]) -> State:
    """Take ops out of the groups that a person colocated."""
    leaving = set(map(int, ops))
    kept = (tuple(op for op in group if op not in leaving) for group in state.problem.together)
    together = tuple(group for group in kept if len(group) > 1)
    if together == state.problem.together:
        raise EnplaceError(
            "these ops were not colocated by hand; the profile's own groups cannot be separated"
        )
    return constrain(state, together=together)


def set_cluster(state: State, cluster: Cluster, compute: float, links: float) -> State:
    """Go to another cluster or scale; plans and constraints that it has no device for are left out.

    Raises
    ------
    ProblemError
        If the profile cannot run there.
    """
    scaled = cluster.scaled(compute, links)
    problem = _on_cluster(state.problem, scaled)
    return _played_again(replace(state, cluster=cluster), problem, compute, links)


def _on_cluster(problem: Problem, cluster: Cluster) -> Problem:
    """The problem on another cluster, without constraints that it has no device for."""
    n = cluster.n_devices
    return replace(
        problem,
        cluster=cluster,
        pins={op: device for op, device in problem.pins.items() if device < n},
        forbidden=frozenset((op, d) for op, d in problem.forbidden if d < n),
    )


def set_profile(state: State, profile: Profile) -> State:
    """Take other costs of the same graph; plans that they rule out are left out.

    Raises
    ------
    ProblemError
        If the profile cannot run on the cluster.
    PlanError
        If ops are split: what their parts took does not tell what they take whole.
    """
    if state.problem.splits:
        raise PlanError(
            "costs of split ops cannot be taken back to the model; run a plan without splits"
        )
    problem = replace(state.problem, profile=profile)
    return _played_again(state, problem, state.compute_scale, state.link_scale)


def _played_again(state: State, problem: Problem, compute: float, links: float) -> State:
    """The state with another problem; its plans are simulated on that."""
    moved: dict[PlanEntry, PlanEntry | None] = {}
    for entry in state.plans:  # an origin stands before its edit
        moved[entry] = _played(entry, problem, moved)
    current = moved.get(state.current) if state.current else None
    plans = tuple(entry for entry in moved.values() if entry)
    graphs = {
        splits: _on_cluster(other, problem.cluster)
        for splits, other in state.graphs.items()
        if problem.splits or splits  # the model's own costs may be others now
    }
    again = State(problem, state.cluster, compute, links, plans, current, graphs)
    return again if current or not plans else choosing(again, plans[0])


def _played(
    entry: PlanEntry, problem: Problem, moved: Mapping[PlanEntry, PlanEntry | None]
) -> PlanEntry | None:
    """The plan with other costs, under the constraints it was made under; None if it cannot be."""
    old = entry.schedule.problem
    try:
        own = replace(old, profile=_costs_for(old, problem), cluster=problem.cluster)
        same = own.pins == problem.pins and own.together == problem.together
        same &= own.forbidden == problem.forbidden and own.splits == problem.splits
        schedule = simulate(problem if same else own, entry.plan)
    except EnplaceError:
        return None
    origin = entry.origin
    if origin is not None:
        origin = moved[origin] if origin in moved else _played(origin, problem, moved)
    run = entry.run if _same_names(old.cluster, problem.cluster) else None
    return replace(entry, schedule=schedule, origin=origin, run=run)


def _costs_for(old: Problem, problem: Problem) -> Profile:
    """The profile of a plan's graph, where the open problem may be that of another."""
    if old.splits == problem.splits:
        return problem.profile
    return old.profile if problem.splits else split_profile(problem.profile, old.splits)


def _same_names(one: Cluster, other: Cluster) -> bool:
    return [d.name for d in one.devices] == [d.name for d in other.devices]


def with_plan(state: State, entry: PlanEntry, choose: bool) -> State:
    """Add a row, and show it."""
    more = replace(state, plans=(*state.plans, entry))
    return choosing(more, entry) if choose or state.current is None else more


def without_plan(state: State, entry: PlanEntry) -> State:
    """Take a row away; its neighbour is shown in its place."""
    at = state.plans.index(entry)
    plans = state.plans[:at] + state.plans[at + 1 :]
    if state.current is not entry:
        return replace(state, plans=plans)
    left = replace(state, plans=plans, current=None)
    return choosing(left, plans[max(0, at - 1)]) if plans else left


def renamed(entry: PlanEntry, name: str) -> PlanEntry:
    """The entry under another name."""
    return replace(entry, name=name)


def choosing(state: State, entry: PlanEntry) -> State:
    """Show another row, and the graph that its plan is for."""
    shown, splits = state.problem, entry.plan.splits
    if splits == shown.splits:
        return replace(state, current=entry)
    graphs = {**state.graphs, shown.splits: shown}
    problem = graphs.pop(splits, entry.schedule.problem)
    return replace(state, current=entry, problem=problem, graphs=graphs)


def moved_schedule(state: State, ops: Collection[int], device: int) -> Schedule:
    """The schedule if ops ran on a device, whatever is pinned.

    Raises
    ------
    EnplaceError
        If an op cannot run there or is kept off it.
    """
    assert state.current is not None
    free = unpinned(state.problem)
    return simulate(free, move(repair(free, state.current.plan), unit_ops(free, ops), device))


@lru_cache(maxsize=2)
def unpinned(problem: Problem) -> Problem:
    """The problem without its pins."""
    return replace(problem, pins={}) if problem.pins else problem
