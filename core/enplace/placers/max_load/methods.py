"""Pipelines with the highest throughput (Tarnawski et al. 2020, section 5).

The load of a device is what it does for one sample: its ops, and the transfers to and from it. In
a full pipeline, the busiest device decides the time per sample. A plan also orders the ops of one
sample. If there is no contiguous partition at all, all ops that can go to the first GPU do so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from enplace.machine.host_links import machine_of
from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.placers.max_load.memory.fitting import find_fitting
from enplace.placers.max_load.search.throughput_search import search_anywhere, search_contiguous
from enplace.placers.max_load.settle_partition import find_allowed, settle_free_ops
from enplace.placers.max_load.table.caveats import (
    NONE_IN_TIME,
    NOT_CONTIGUOUS,
    PINNED_REPLICAS,
    explain_failure,
    find_unlike,
    simplify,
)
from enplace.placers.max_load.table.contract import find_static_excess
from enplace.placers.max_load.table.dp import Partition
from enplace.placers.max_load.table.stages import Replicas
from enplace.placing.candidates import make_replicas, unordered
from enplace.placing.incumbents import BETTER, PROVEN_GAP, Incumbent, Report, report_plan
from enplace.placing.options import (
    IN_FLIGHT,
    PROGRAM_S,
    SOLVER,
    STAGE_OPTIONS,
    PlaceOptions,
    Progress,
)
from enplace.placing.registry import ANYTIME, HETEROGENEOUS, MEMORY, PROOF, placer
from enplace.placing.stop import Stop
from enplace.solvers.milp import CP_SAT
from enplace.text import count, finite
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, THROUGHPUT, Problem
from enplace.values.profile import IntArray
from enplace.values.rivals import ALL, CONTIGUOUS, STAGED, Rivals

_SOURCE = "Tarnawski et al. (NeurIPS 2020)"


@placer(
    "max-load-dp",
    title="Max-load DP, contiguous",
    good=(
        "The first choice for a pipeline. If the graph can be cut in few ways, as a chain of "
        "layers, it proves within seconds that no split into consecutive stages is better."
    ),
    source=_SOURCE,
    objectives=(THROUGHPUT, LATENCY),
    capabilities=(MEMORY, PROOF),
    options=STAGE_OPTIONS,
)
def max_load_dp(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the contiguous partition whose busiest device has the least load.

    An ideal is a set of ops that holds all predecessors of each; the ops between two ideals can be
    one stage. The dynamic program fills a table of the best partition of every ideal for every
    number of devices (section 5.1.1). A partition along a few dozen orders bounds it, so most of
    the table is never looked at. If a graph has too many ideals to hold, the best of these orders
    is the answer.

    Pins and forbidden devices are ignored at first. Ops that break them move afterwards, and the
    partition is then no longer proven optimal. Its latency is a baseline of section 7.
    """
    return _partition_plan(problem, "max-load-dp", options)


@placer(
    "max-load-dpl",
    title="Max-load DPL, along an order",
    good=(
        "For pipelines of graphs with so many branches that max-load-dp would take long. It is "
        "fast on graphs of any size, and on our samples its loads are at most a few per cent "
        "above those of max-load-dp."
    ),
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=(MEMORY,),
    options=STAGE_OPTIONS,
)
def max_load_dpl(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the best partition along one depth-first order (DPL).

    Stages are consecutive ops of that order, so the dynamic program has one ideal for each op
    (section 5.1.2). Pins and forbidden devices are treated as by ``max-load-dp``.
    """
    return _partition_plan(problem, "max-load-dpl", options, along_order=True)


@placer(
    "max-load-ip",
    title="Max-load IP, contiguous",
    good=(
        "For a pipeline of GPUs that differ, or whose links do: the dynamic programs only "
        "approximate these. On equal GPUs it begins with the split of max-load-dp, and seldom "
        "improves it."
    ),
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=(MEMORY, HETEROGENEOUS, PROOF, ANYTIME),
    options=(SOLVER, IN_FLIGHT),
)
def max_load_ip(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the DP's partition with the integer program of Fig. 6; by default with CP-SAT.

    The program begins with the partition of ``max-load-dp``. Its stages are contiguous in the
    weaker sense of definition 3.1: two devices may depend on each other both ways. It respects pins
    and forbidden devices.
    """
    solver = options.solver_or(CP_SAT)
    return _search_plan(problem, "max-load-ip", options, solver, search_contiguous, CONTIGUOUS)


@placer(
    "max-load-ip-noncontiguous",
    title="Max-load IP, not contiguous",
    good=(
        "When throughput is all that counts, and a device may work on a sample more than once: "
        "no other method has smaller loads. The stages are more, so each sample takes longer, "
        "as enplace simulate --pipeline shows."
    ),
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=(MEMORY, HETEROGENEOUS, PROOF, ANYTIME),
    options=(SOLVER, IN_FLIGHT),
)
def max_load_ip_noncontiguous(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the placement whose busiest device has the least load, by annealing and Fig. 6.

    It begins with the partition of ``max-load-dp``, and asks the program of ``max-load-ip`` for a
    while. Then HiGHS solves the integer program without its rows for contiguity. Meanwhile,
    annealing moves single ops and, by levels, whole layers; HiGHS takes over what it finds. It
    respects pins and forbidden devices.
    """
    solver = options.solver_or("HiGHS")
    return _search_plan(problem, "max-load-ip-noncontiguous", options, solver, search_anywhere, ALL)


def _partition_plan(
    problem: Problem, method: str, options: PlaceOptions, *, along_order: bool = False
) -> Plan:
    """Make a plan of the result of the dynamic programs."""
    options.stop.check()
    problem, about = simplify(problem, options.load_rule)
    stop = options.stop.limited(PROGRAM_S)
    partition = find_fitting(
        problem,
        options.load_rule,
        seed=options.seed,
        along_order=along_order,
        stopped=stop,
    )
    stopped = stop()
    partition = _rename_gpus(problem, partition, options.load_rule)
    device = settle_free_ops(problem, partition.device, options.load_rule, partition.replicas)
    replicas = make_replicas(problem, partition.replicas, device)
    recompute = partition.recompute
    load_us = max_load_us(problem, device, options.load_rule, replicas, recompute)
    load_us = max(load_us, partition.pace_us)
    fits = bool(np.isfinite(partition.load_us))
    bound_us = min(partition.bound_us, load_us) if fits else 0.0
    moved = int(np.count_nonzero(~find_allowed(problem, partition.device)[problem.unit]))
    proven = partition.optimal and fits and not moved and not about
    proven = proven and load_us <= partition.load_us * (1 + PROVEN_GAP)
    notes = [about]
    for note in (partition.note, find_unlike(problem, options.load_rule)):
        if not any(note in before for before in notes):
            notes.append(note)
    if proven and not is_contiguous(problem, device):
        proven = False
        notes.append(NOT_CONTIGUOUS)
    if not fits:
        notes.append(NONE_IN_TIME if stopped else explain_failure(problem, device))
    elif moved:
        notes.append(_describe_moved(moved, find_static_excess(problem, device), options.load_rule))
    if fits and replicas != partition.replicas:
        notes.append(PINNED_REPLICAS)
    plan = replace(
        _plan(
            problem,
            device,
            method,
            bound_us,
            options.load_rule,
            replicas,
            recompute,
            partition.pace_us,
        ),
        proven=proven,
        rivals=STAGED,
        details={"ideals": partition.n_ideals},
    ).with_notes(*notes, separator="; ")
    options.progress(Progress(options.seconds, "a partition", None, plan, load_us, bound_us))
    return plan


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


def _search_plan(
    problem: Problem,
    method: str,
    options: PlaceOptions,
    solver: str,
    search: Callable[[Problem, Stop, LoadRule, int, str, Report], Incumbent],
    rivals: Rivals,
) -> Plan:
    """Make a plan from annealing and an integer program, and report each better one on the way."""
    options.stop.check()
    problem, about = simplify(problem, options.load_rule)
    reported_us = np.inf

    def make_plan(found: Incumbent) -> Plan:
        device = settle_free_ops(problem, found.device, options.load_rule)
        load_us = max_load_us(problem, found.device, options.load_rule)
        is_slowed = load_us * (1 + BETTER) < found.objective_us < np.inf
        missing = "" if np.isfinite(found.objective_us) else explain_failure(problem, device)
        plan = replace(
            _plan(
                problem,
                device,
                method,
                found.bound_us,
                options.load_rule,
                pace_us=found.objective_us * is_slowed,
            ),
            proven=found.proven and not about,
            rivals=rivals,
        )
        return plan.with_notes(found.why, about, missing, separator="; ")

    def report(found: Incumbent) -> None:
        nonlocal reported_us
        plan = make_plan(found) if found.objective_us < reported_us else None
        reported_us = min(reported_us, found.objective_us)
        report_plan(options, plan, found.objective_us, found.bound_us, bound_by=solver)

    stop = options.stop.limited(PROGRAM_S)
    return make_plan(search(problem, stop, options.load_rule, options.seed, solver, report))


def _plan(
    problem: Problem,
    device: IntArray,
    method: str,
    bound_us: float,
    rule: LoadRule,
    replicas: Replicas = (),
    recompute: tuple[int, ...] = (),
    pace_us: float = 0.0,
) -> Plan:
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
