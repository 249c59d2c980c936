"""The user's edits, as functions from a project to a project. No Qt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from enplace.bounds.proofs import has_all_of
from enplace.errors import EnplaceError, PlanError
from enplace.machine.check_claims import check_claims
from enplace.names.groups import open_groups
from enplace.names.whole import find_layers
from enplace.placing.next_moves import NextMove
from enplace.placing.obey import obey
from enplace.values.arrays import marked
from enplace.values.cluster import Cluster
from enplace.values.constraints import KINDS, Colocate, same
from enplace.values.pins import FREE, Pins
from enplace.values.plan import Plan, check_plan, follow_graph
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import IntArray, Profile
from enplace.values.schedule import Schedule
from enplace.values.splits import split_profile
from enplace_studio.explain.reasons import find_lock, why_not
from enplace_studio.model.open_project import Arrival, OpenProject, PlanEntry
from enplace_studio.model.prices import simulate_changed, simulate_priced


def unit_ops(problem: Problem, ops: Collection[int]) -> IntArray:
    """Return the ops with all those that must share their device."""
    wanted = marked(problem.n_units, problem.unit[_numbers(ops)])
    return np.flatnonzero(wanted[problem.unit])


def move(plan: Plan, ops: IntArray, device: int | IntArray) -> Plan:
    """Move some ops of a plan to another device, or each to its own, keeping the order."""
    devices = plan.device.copy()
    devices[ops] = device
    return replace(plan, device=devices)


def repair(problem: Problem, plan: Plan) -> Plan:
    """Put every placement unit of a plan on one allowed device; valid units stay.

    Other units go to the device with most of their compute time; ties go to the least busy.
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
    project: OpenProject,
    *,
    plan: Plan | None = None,
    known: Schedule | None = None,
    **rows: Any,
) -> OpenProject:
    """Change constraints, and repair the current plan if it breaks one.

    Parameters
    ----------
    plan : Plan, optional
        Replaces the current plan.
    known : Schedule, optional
        What will probably run, simulated with other pins.
    **rows
        Constraints by their fields, as for :meth:`Problem.constrained`.

    Raises
    ------
    ProblemError
        If the constraints contradict each other.
    PlanError
        If they change what a locked device runs.
    """
    old = project.problem
    problem = old.constrained(**rows)
    check_locks(project, problem.pins, old.locked & problem.locked)
    if problem is not old:
        project = replace(project, problem=problem)
    if project.current is None:
        return project
    edited = _made_by_hand("Edited", project.current, plan or project.current.plan)
    repaired = repair(problem, _in_order(problem, edited))
    if plan is None:  # a person's own change of the plan is refused instead
        repaired = obey(problem, repaired)
    return _with_plan(project, project.current, repaired, known)


def check_locks(project: OpenProject, pins: Mapping[int, int], locked: frozenset[int]) -> None:
    """Refuse other pins to a locked device than now.

    Raises
    ------
    PlanError
        If they change what such a device runs.
    """
    if locked:
        for _, device in project.problem.pins.items() ^ pins.items():
            if device in locked:
                raise _locked_error(project, device)


def _locked_error(project: OpenProject, device: int) -> PlanError:
    where = project.device_label(device)
    return PlanError(f"{where} is locked as it is; unlock it before you change what runs there")


def _in_order(problem: Problem, plan: Plan) -> Plan:
    """Let a plan with a strict order follow the orders that a person gave."""
    first, then = np.array(problem.before, dtype=np.int64).reshape(-1, 2).T
    if plan.policy != "strict" or (plan.position[first] < plan.position[then]).all():
        return plan
    return replace(plan, position=follow_graph(problem.profile, plan.position))


def _made_by_hand(how: str, current: PlanEntry, plan: Plan) -> Plan:
    """Say from which plan another was made by hand, instead of what a search said of that one."""
    note = f"{how} by hand, from “{(current.origin or current).name}”."
    plan = replace(plan, note=note, noted_us=None, noted_for="", details={}, claim=None)
    return replace(plan, solve_seconds=None, nothing_fits=False)


def _with_plan(
    project: OpenProject, current: PlanEntry, plan: Plan, known: Schedule | None
) -> OpenProject:
    """Show an edited plan: after its origin in the list, or replacing an earlier edit."""
    same_order = project.problem.before == current.schedule.problem.before
    if same_order and plan.acts_like(current.plan):
        return _with_constraints(project, current)
    schedule = _with_pins(known, project.problem, plan) if known else None
    schedule = schedule or simulate_changed(project.problem, plan)
    plan = schedule.plan
    if current.origin is not None:
        edited = replace(current, plan=plan, schedule=schedule, run=None, own=None)
        return swap_entry(project, current, edited)
    name = unused_name(project, f"{current.name}, edited")
    entry = PlanEntry(name, plan, schedule, "edited by hand", origin=current)
    at = project.plans.index(current) + 1
    return replace(project, plans=(*project.plans[:at], entry, *project.plans[at:]), current=entry)


def _with_constraints(project: OpenProject, current: PlanEntry) -> OpenProject:
    """Let a plan that runs as before have the constraints of now, as its files will say."""
    old, problem, plan = current.schedule.problem, project.problem, current.plan
    if old.constraints == problem.constraints:
        return project
    own = current.own
    if (plan.bound_us or plan.nothing_fits or own) and not has_all_of(problem, old):
        plan = replace(plan, bound_us=None, proven=False, rivals=None, nothing_fits=False)
        own = None
    schedule = current.schedule.under(problem, plan)
    return swap_entry(project, current, replace(current, plan=plan, schedule=schedule, own=own))


def _with_pins(known: Schedule, problem: Problem, plan: Plan) -> Schedule | None:
    """Return the schedule of a plan if it is known from a problem with other pins."""
    same = known.problem.profile is problem.profile and known.problem.cluster is problem.cluster
    if not (same and known.plan.acts_like(plan)):
        return None
    check_plan(problem, plan)
    plan = replace(plan, subgraph=None)
    return known.under(problem, check_claims(problem, plan))


def swap_entry(project: OpenProject, old: PlanEntry, new: PlanEntry) -> OpenProject:
    """Replace one entry by another, also as the origin of its edits."""
    swapped = {entry: replace(entry, origin=new) for entry in project.plans if entry.origin is old}
    swapped[old] = new
    for entry in project.plans if new.name != old.name else ():
        if entry.made_from == old.name:
            swapped[entry] = replace(swapped.get(entry, entry), made_from=new.name)
    plans = tuple(swapped.get(entry, entry) for entry in project.plans)
    current = swapped.get(project.current, project.current) if project.current else None
    return replace(project, plans=plans, current=current)


def with_proof(project: OpenProject, problem: Problem, plan: Plan) -> OpenProject:
    """Say of a problem's plans that none fits, if they are of the same kind as the one given."""
    for at in range(len(project.plans)):
        entry = project.plans[at]  # its origin may be another by now
        own, made_for = entry.plan, entry.schedule.problem
        if (
            not (entry.schedule.fits or own.splits or own.nothing_fits)
            and own.keeps_all
            and (own.objective, own.load_rule) == (plan.objective, plan.load_rule)
            and made_for.measured_profile is problem.measured_profile
            and made_for.cluster == problem.cluster
        ):
            own = replace(own, nothing_fits=True, bound_us=None, proven=False)
            known = replace(entry.schedule, plan=own)
            project = swap_entry(project, entry, replace(entry, plan=own, schedule=known))
    return project


def with_run(project: OpenProject, ran: PlanEntry) -> OpenProject:
    """Take over the measured run of a plan wherever it runs on devices with the same names."""

    def is_same(entry: PlanEntry) -> bool:
        return entry.plan is ran.plan and _same_names(
            entry.schedule.problem.cluster, ran.schedule.problem.cluster
        )

    for entry in filter(is_same, project.plans):
        project = swap_entry(project, entry, replace(entry, run=ran.run))
    arrived = tuple(
        replace(each, entry=replace(each.entry, run=ran.run)) if is_same(each.entry) else each
        for each in project.arrived
    )
    return project if arrived == project.arrived else replace(project, arrived=arrived)


def unused_name(project: OpenProject, name: str) -> str:
    """Return the name, with a number added if another plan has it."""
    taken = {entry.name for entry in project.plans}
    numbers = range(2, len(taken) + 3)
    return next(n for n in (name, *(f"{name} {i}" for i in numbers)) if n not in taken)


def place(project: OpenProject, ops: Collection[int], device: int, pin: bool) -> OpenProject:
    """Run ops, and those that must share their device, on a device; pin them or only move them.

    Raises
    ------
    ProblemError
        If an op cannot or must not run there.
    """
    current = project.plan_to("change")
    whole = unit_ops(project.problem, ops)
    if (locked := find_lock(project.problem, whole, device)) is not None:
        raise _locked_error(project, locked)
    if why := why_not(project.problem, whole, device):
        raise PlanError(f"choose another device; {why.tip}")
    pinned_to = _pinned(project.problem, whole, FREE)
    if pin:
        pinned_to[_numbers(ops)] = device
    moved = move(current.plan, whole, device)
    # Simulates nothing after a drag, whose last preview has called it with the same arguments.
    known = moved_schedule(project.problem, current.schedule.plan, ops, device)
    after = constrain(project, pins=Pins(pinned_to), plan=moved, known=known)
    if after.current and (after.current.plan.device[whole] != device).any():
        name = project.problem.profile.op_names[int(whole[0])]
        label = project.problem.cluster.devices[device].name
        raise PlanError(f"op '{name}' may not run on {label}; choose another device")
    return after


def pin_here(project: OpenProject, ops: Collection[int]) -> OpenProject:
    """Pin ops to the devices the current plan gives them."""
    current = project.plan_to("pin to")
    pinned = _numbers(ops)
    there = current.plan.device[pinned]
    return constrain(project, pins=Pins(_pinned(project.problem, pinned, there)))


def make_move(project: OpenProject, move: NextMove) -> OpenProject:
    """Change the current plan by a move; one that splits an op makes a plan with another graph.

    Nothing is pinned: a search that begins from there may change it again.
    """
    current, plan = project.plan_to("change"), move.plan
    if plan.splits == project.problem.splits:
        return constrain(project, plan=plan)
    problem = split_problem(project.problem, plan.splits)
    schedule = simulate_changed(problem, _made_by_hand("Split", current, plan))
    entry = PlanEntry(
        unused_name(project, f"{current.name}, split"),
        schedule.plan,
        schedule,
        "split by hand",
        made_from=current.name,
    )
    graphs = {plan.splits: problem, **project.graphs}
    return with_plan(replace(project, graphs=graphs), entry, choose=True)


def _pinned(problem: Problem, ops: IntArray, device: int | IntArray) -> IntArray:
    """Return where all ops are pinned if these are pinned to a device, or free."""
    pinned_to = problem.pinned_to.copy()
    pinned_to[ops] = device
    return pinned_to


def _numbers(ops: Collection[int]) -> IntArray:
    return np.fromiter(ops, dtype=np.int64, count=len(ops))


def unpin(project: OpenProject, ops: Collection[int]) -> OpenProject:
    """Let a placer decide about these ops, and those that must share their device, again."""
    pins = Pins(_pinned(project.problem, unit_ops(project.problem, ops), FREE))
    return project if pins == project.problem.pins else constrain(project, pins=pins)


def forbid(project: OpenProject, ops: Collection[int], device: int) -> OpenProject:
    """Keep ops off a device."""
    return constrain(
        project, forbidden=project.problem.forbidden | {(int(op), device) for op in ops}
    )


def allow(project: OpenProject, ops: Collection[int], device: int) -> OpenProject:
    """Let ops use a forbidden device again."""
    forbidden = project.problem.forbidden - {(int(op), device) for op in ops}
    if forbidden == project.problem.forbidden:
        return project
    return constrain(project, forbidden=forbidden)


def colocate(project: OpenProject, ops: Collection[int]) -> OpenProject:
    """Keep ops on one device from now on."""
    if len(ops) < 2:
        raise EnplaceError("colocating takes at least two ops; select more of them")
    return constrain(project, together=(*project.problem.together, tuple(sorted(map(int, ops)))))


def stay_close(project: OpenProject, most: int) -> OpenProject:
    """Let placers run at most so many ops elsewhere than in the current plan, from now on.

    Raises
    ------
    PlanError
        If there is no plan.
    """
    device = project.plan_to("stay close to").plan.device
    placement = tuple(enumerate(device.tolist()))
    return constrain(project, stay_close=[(placement, most)])


def keep_whole(project: OpenProject, pattern: str) -> OpenProject:
    """Keep the ops of each layer on one device; a regex tells the layers apart."""
    layers = find_layers(pattern, project.problem.profile, "keep whole")
    groups = [tuple(ops) for ops in layers.values() if len(ops) > 1]
    together = KINDS[Colocate.key].add(project.problem.together, groups)
    return constrain(project, together=together)


def separate(project: OpenProject, ops: Collection[int]) -> OpenProject:
    """Remove ops from the groups that the user colocated."""
    leaving = set(map(int, ops))
    kept = (tuple(op for op in group if op not in leaving) for group in project.problem.together)
    together = tuple(group for group in kept if len(group) > 1)
    if together == project.problem.together:
        raise EnplaceError(
            "these ops were not colocated by hand; the profile's own groups cannot be separated"
        )
    return constrain(project, together=together)


def set_cluster(
    project: OpenProject, cluster: Cluster, compute: float, links: float
) -> OpenProject:
    """Switch cluster or scale; drop constraints for devices that it does not have.

    Plans that cannot run there stay as they are, and remember their cluster. So do an expert's:
    the plan of an expert for this cluster is another one.

    Raises
    ------
    ProblemError
        If the profile cannot run there.
    """
    scaled = cluster.scaled(compute, links)
    problem = _on_cluster(project.problem, scaled)
    return _simulate_all(project, problem, cluster, compute, links)


def set_scale(project: OpenProject, compute: float, links: float) -> OpenProject:
    """Scale the speeds of devices and links, and simulate every plan again."""
    scaled = set_cluster(project, project.cluster, compute, links)
    for entry in scaled.plans:
        _ = entry.schedule.fits  # the memory over time, which every view shows
    return scaled


def _on_cluster(problem: Problem, cluster: Cluster) -> Problem:
    """Move the problem to another cluster; drop constraints on devices it does not have."""
    there = counterparts(problem.cluster, cluster)
    constraints = problem.constraints
    if there != list(range(len(there))):
        ends = [[device] if device >= 0 else [] for device in there]
        constraints = constraints.mapped(same, ends.__getitem__)
    return replace(problem, cluster=cluster, constraints=constraints)


def counterparts(one: Cluster, other: Cluster) -> list[int]:
    """Find the GPU, or the CPU, of the same number in another cluster; −1 where it has none."""
    there = np.full(one.n_devices, -1)
    for kind in np.unique(one.kind):
        mine, others = np.flatnonzero(one.kind == kind), np.flatnonzero(other.kind == kind)
        n = min(len(mine), len(others))
        there[mine[:n]] = others[:n]
    return there.tolist()


def set_profile(project: OpenProject, profile: Profile) -> OpenProject:
    """Replace the costs; drop plans that cannot run with them.

    Raises
    ------
    ProblemError
        If the profile cannot run on the cluster.
    PlanError
        If ops are split: the times of parts do not give the time of the whole op.
    """
    if project.problem.splits:
        raise PlanError(
            "costs of split ops cannot be taken back to the model; run a plan without splits"
        )
    problem = replace(project.problem, measured_profile=profile)
    return _simulate_all(project, problem, project.cluster, *project.scale)


def _simulate_all(
    project: OpenProject, problem: Problem, cluster: Cluster, compute: float, links: float
) -> OpenProject:
    """Switch to another problem and simulate every plan on it."""
    moved: dict[PlanEntry, PlanEntry | None] = {}
    for entry in project.plans:  # an origin precedes its edit
        stays = entry.is_expert and (entry.cluster or project.cluster) != cluster
        carried = None if stays else _simulate_entry(entry, problem, moved)
        moved[entry] = carried or _kept_for_its_cluster(
            entry, project, cluster, (compute, links), moved
        )
    current = moved.get(project.current) if project.current else None
    if current is not None and current.cluster is not None:
        current = None
    plans = tuple(entry for entry in moved.values() if entry)
    graphs = {
        splits: _on_cluster(other, problem.cluster)
        for splits, other in project.graphs.items()
        if problem.splits or splits  # the costs of the model may have changed
    }
    again = replace(
        project,
        problem=problem,
        cluster=cluster,
        compute_scale=compute,
        link_scale=links,
        plans=plans,
        current=current,
        graphs=graphs,
    )
    return again if current else _choosing_any(again)


def _choosing_any(project: OpenProject, near: int = 0) -> OpenProject:
    """Show the plan nearest to a place in the list that is for the open cluster, if any is."""
    places = [at for at, entry in enumerate(project.plans) if entry.cluster is None]
    if not places:
        return project
    return choosing(project, project.plans[min(places, key=lambda at: abs(at - near))])


def _kept_for_its_cluster(
    entry: PlanEntry,
    project: OpenProject,
    cluster: Cluster,
    scale: tuple[float, float],
    moved: Mapping[PlanEntry, PlanEntry | None],
) -> PlanEntry | None:
    """Keep a plan that cannot run on another cluster; None if it is the costs that changed."""
    if cluster == project.cluster and entry.cluster is None:
        return None
    origin = moved.get(entry.origin) if entry.origin else None
    return _at_home(replace(entry, origin=origin), entry.cluster or project.cluster, scale)


def _at_home(entry: PlanEntry, own: Cluster, scale: tuple[float, float]) -> PlanEntry:
    """Keep a plan for its own cluster, at the speeds of a what-if."""
    there, made = own.scaled(*scale), entry.own or entry.plan
    if entry.schedule.problem.cluster != there:
        problem = replace(entry.schedule.problem, cluster=there)
        schedule = simulate_priced(problem, made)
        kept = None if schedule.plan is made else made
        entry = replace(entry, plan=schedule.plan, schedule=schedule, own=kept)
    return replace(entry, cluster=own)


def carry_over(entry: PlanEntry, project: OpenProject, own: Cluster) -> PlanEntry:
    """Simulate a plan as :func:`set_cluster` does; keep it for its own cluster if that is needed.

    Parameters
    ----------
    own : Cluster
        The cluster that the plan was made for, before scaling.
    """
    if entry.is_expert and own != project.cluster:
        return _at_home(entry, own, project.scale)
    old, problem = entry.schedule.problem, project.problem
    if old.cluster == problem.cluster and _costs_for(old, problem) is old.measured_profile:
        return entry if entry.cluster is None else replace(entry, cluster=None)
    return _simulate_entry(entry, problem, {}) or _at_home(entry, own, project.scale)


def with_arrivals(project: OpenProject, more: Sequence[Arrival], shown: Plan | None) -> OpenProject:
    """Add what jobs have brought since a state of the history was made.

    Parameters
    ----------
    shown : Plan or None
        A plan that stays on the screen if it is one of those and belongs to the graph shown.
    """
    for arrival in more:
        entry = carry_over(arrival.entry, project, arrival.cluster)
        if entry.cluster is None or arrival.asked:
            stays = arrival.entry.plan is shown and entry.cluster is None
            stays &= entry.plan.splits == project.problem.splits
            entry = renamed(entry, unused_name(project, entry.name))
            project = with_plan(project, entry, choose=stays)
    return replace(project, arrived=(*project.arrived, *more))


def _simulate_entry(
    entry: PlanEntry, problem: Problem, moved: Mapping[PlanEntry, PlanEntry | None]
) -> PlanEntry | None:
    """Simulate a plan with other costs and its old constraints; None if impossible."""
    old = entry.schedule.problem
    there = counterparts(old.cluster, problem.cluster)
    agree = there == list(range(len(there)))
    try:
        made = entry.own or entry.plan
        plan = made if agree else _plan_on(there, made)
        carried = old if agree else _on_cluster(old, problem.cluster)
        own = problem
        if (carried.constraints, carried.splits) != (problem.constraints, problem.splits):
            costs = _costs_for(old, problem)
            own = replace(carried, cluster=problem.cluster, measured_profile=costs)
        schedule = simulate_priced(own, plan)
    except EnplaceError:
        return None
    kept = plan if schedule.plan is not plan else None
    origin = entry.origin
    if origin is not None:
        origin = moved[origin] if origin in moved else _simulate_entry(origin, problem, moved)
    run = entry.run if _same_names(old.cluster, problem.cluster) else None
    return replace(
        entry,
        plan=schedule.plan,
        schedule=schedule,
        origin=origin,
        run=run,
        cluster=None,
        own=kept,
    )


def _plan_on(there: list[int], plan: Plan) -> Plan:
    """Move a plan to another cluster, where its devices have other numbers.

    Raises
    ------
    PlanError
        If it uses a device that the other cluster does not have.
    """
    device = np.array(there)[plan.device]
    replicas = tuple(tuple(there[d] for d in group) for group in plan.replicas)
    recompute = tuple(there[d] for d in plan.recompute)
    if min(device.min(), *(d for group in (*replicas, recompute) for d in group), 0) < 0:
        raise PlanError("the plan uses a device that this cluster does not have")
    return replace(plan, device=device, replicas=replicas, recompute=recompute)


def _costs_for(old: Problem, problem: Problem) -> Profile:
    """Return the measured profile of a plan's graph, which may not be the open one."""
    if old.splits == problem.splits:
        return problem.measured_profile
    if problem.splits:
        return old.measured_profile
    return split_profile(problem.measured_profile, old.splits)


def _same_names(one: Cluster, other: Cluster) -> bool:
    return [d.name for d in one.devices] == [d.name for d in other.devices]


def with_plan(project: OpenProject, entry: PlanEntry, choose: bool) -> OpenProject:
    """Add a row, and show it."""
    more = replace(project, plans=(*project.plans, entry))
    is_first = project.current is None and entry.cluster is None
    return choosing(more, entry) if choose or is_first else more


def without_plan(project: OpenProject, entry: PlanEntry) -> OpenProject:
    """Remove a row and show its neighbour."""
    at = project.plans.index(entry)
    plans = project.plans[:at] + project.plans[at + 1 :]
    if project.current is not entry:
        return replace(project, plans=plans)
    return _choosing_any(replace(project, plans=plans, current=None), near=at - 1)


def renamed(entry: PlanEntry, name: str) -> PlanEntry:
    """Rename an entry."""
    return entry if entry.name == name else replace(entry, name=name)


def choosing(project: OpenProject, entry: PlanEntry) -> OpenProject:
    """Show another row, and the cluster and the graph that its plan is for.

    Raises
    ------
    PlanError
        If it is for another cluster and cannot run there with the costs of now.
    """
    if entry.cluster is not None:
        at = project.plans.index(entry)
        project = set_cluster(project, entry.cluster, *project.scale)
        entry = project.plans[at]
        if entry.cluster is not None:
            raise PlanError(f"“{entry.name}” cannot run with these costs; remove it")
    shown, splits = project.problem, entry.plan.splits
    if splits == shown.splits:
        return replace(project, current=entry)
    graphs = {**project.graphs, shown.splits: shown}
    problem = graphs.pop(splits, entry.schedule.problem)
    # Selection and other state per op refers to the old graph.
    project = replace(project, current=entry, problem=problem, graphs=graphs)
    return with_groups(project, tuple(project.grouping.opened))


def with_groups(project: OpenProject, opened: tuple[str, ...]) -> OpenProject:
    """Show some groups as the scopes in them."""
    return replace(project, grouping=open_groups(project.problem.profile, opened))


def moved_schedule(problem: Problem, plan: Plan, ops: Collection[int], device: int) -> Schedule:
    """Simulate a plan with ops on another device, whatever is pinned.

    The last ones are kept: a drop asks for what the preview of the drag has just shown.

    Raises
    ------
    EnplaceError
        If an op cannot run there or is kept off it.
    """
    return _move(unpinned(problem), plan, frozenset(map(int, ops)), device)


@lru_cache(maxsize=4)  # the window and a thread ask
def _move(problem: Problem, plan: Plan, ops: frozenset[int], device: int) -> Schedule:
    moved = move(repair(problem, plan), unit_ops(problem, ops), device)
    return simulate_changed(problem, moved)


def unpinned(problem: Problem) -> Problem:
    """Return the problem without pins and locks; the same one as long as nothing else changes."""
    if not (problem.pins or problem.locked):
        return problem
    constraints = problem.constraints.replaced(pins={}, locked=())
    return _unpinned(problem.measured_profile, problem.cluster, constraints, problem.splits)


@lru_cache(maxsize=2)
def _unpinned(*parts: Any) -> Problem:
    return Problem(*parts)
