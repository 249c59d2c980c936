"""Plans for throughput, made of the results of searches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine.host_links import machine_of
from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.placers.max_load.settle_partition import find_allowed, settle_free_ops
from enplace.placers.max_load.table.caveats import (
    NONE_IN_TIME,
    NOT_CONTIGUOUS,
    PINNED_REPLICAS,
    explain_failure,
    find_unlike,
)
from enplace.placers.max_load.table.contract import find_static_excess
from enplace.placers.max_load.table.dp import Partition
from enplace.placers.max_load.table.stages import Replicas
from enplace.placing.candidates import make_replicas, unordered
from enplace.placing.incumbents import BETTER, PROVEN_GAP, Incumbent
from enplace.text import count, finite
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.profile import IntArray
from enplace.values.rivals import STAGED, Rivals


def plan_of_partition(
    problem: Problem, found: Partition, method: str, rule: LoadRule, about: str, *, stopped: bool
) -> Plan:
    """Make a plan of the result of the dynamic programs; ``about`` says how the problem changed."""
    partition = _rename_gpus(problem, found, rule)
    device = settle_free_ops(problem, partition.device, rule, partition.replicas)
    replicas = make_replicas(problem, partition.replicas, device)
    recompute = partition.recompute
    load_us = max_load_us(problem, device, rule, replicas, recompute)
    load_us = max(load_us, partition.pace_us)
    fits = bool(np.isfinite(partition.load_us))
    bound_us = min(partition.bound_us, load_us) if fits else 0.0
    moved = int(np.count_nonzero(~find_allowed(problem, partition.device)[problem.unit]))
    proven = partition.optimal and fits and not moved and not about
    proven = proven and load_us <= partition.load_us * (1 + PROVEN_GAP)
    notes = [about]
    for note in (partition.note, find_unlike(problem, rule)):
        if not any(note in before for before in notes):
            notes.append(note)
    if proven and not is_contiguous(problem, device):
        proven = False
        notes.append(NOT_CONTIGUOUS)
    if not fits:
        notes.append(NONE_IN_TIME if stopped else explain_failure(problem, device))
    elif moved:
        notes.append(_describe_moved(moved, find_static_excess(problem, device), rule))
    if fits and replicas != partition.replicas:
        notes.append(PINNED_REPLICAS)
    plan = make_plan(
        problem, device, method, bound_us, rule, replicas, recompute, partition.pace_us
    )
    details = {"ideals": partition.n_ideals}
    plan = replace(plan, proven=proven, rivals=STAGED if fits else None, details=details)
    return plan.with_notes(*notes, separator="; ")


def plan_of_search(
    problem: Problem, found: Incumbent, method: str, rule: LoadRule, about: str, rivals: Rivals
) -> Plan:
    """Make a plan of the result of an integer program."""
    device = settle_free_ops(problem, found.device, rule)
    load_us = max_load_us(problem, found.device, rule)
    is_slowed = load_us * (1 + BETTER) < found.objective_us < np.inf
    pace_us = found.objective_us * is_slowed
    missing = "" if np.isfinite(found.objective_us) else explain_failure(problem, device)
    plan = make_plan(problem, device, method, found.bound_us, rule, pace_us=pace_us)
    plan = replace(plan, proven=found.proven and not about, rivals=rivals)
    return plan.with_notes(found.why, about, missing, separator="; ")


def make_plan(
    problem: Problem,
    device: IntArray,
    method: str,
    bound_us: float,
    rule: LoadRule,
    replicas: Replicas = (),
    recompute: tuple[int, ...] = (),
    pace_us: float = 0.0,
) -> Plan:
    """Make a plan of a placement."""
    (plan,) = unordered(problem, device, method)
    return replace(
        plan,
        objective=THROUGHPUT,
        value_us=max(max_load_us(problem, device, rule, replicas, recompute), pace_us),
        bound_us=finite(bound_us),
        load_rule=rule,
        replicas=replicas,
        recompute=recompute,
        pace_us=pace_us,
    )


def _describe_moved(moved: int, excess: int, rule: LoadRule) -> str:
    exceeds = ", and now the plan exceeds memory" if excess else ""
    knows_all = not (rule.replicate or rule.two_level)
    instead = "; max-load-ip respects them from the start" if knows_all else ""
    return (
        f"the partition ignores pins and forbidden devices: {count(moved, 'op')} moved after "
        f"it{exceeds}{instead}"
    )


def _rename_gpus(problem: Problem, partition: Partition, rule: LoadRule) -> Partition:
    """Exchange GPUs that are alike if the pins require it."""
    cluster = problem.cluster
    wanted = {(int(partition.device[op]), device) for op, device in problem.pins.items()}
    gpus = set(cluster.gpus)
    wanted = {(found, device) for found, device in wanted if {found, device} <= gpus}
    found, devices = [f for f, _ in wanted], [d for _, d in wanted]
    twice = len(set(found)) < len(wanted) or len(set(devices)) < len(wanted)
    if twice or find_unlike(problem, rule):
        return partition
    name = np.arange(cluster.n_devices)
    name[found] = devices
    rest = [gpu for gpu in cluster.gpus if gpu not in found]
    name[rest] = [gpu for gpu in cluster.gpus if gpu not in devices]
    machine = machine_of(cluster) * rule.two_level
    if not np.array_equal(machine[name], machine):
        return partition
    replicas = tuple(tuple(name[list(group)].tolist()) for group in partition.replicas)
    recompute = tuple(name[list(partition.recompute)].tolist())
    device = name[partition.device]
    return replace(partition, device=device, replicas=replicas, recompute=recompute)
