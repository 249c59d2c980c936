"""Pipelines with the highest throughput (Tarnawski et al. 2020, section 5).

What :mod:`enplace.placers.max_load` finds becomes a plan, which also says in what order the ops of
one sample run, like any other. The dynamic programs disregard pins and forbidden devices; ops that
break them move afterwards, and the split is then no longer proven optimal. Where there is no
contiguous split at all, all ops that can go to the first GPU. The latency of the exact one's split
is a baseline of section 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from enplace.machine.loads import has_one_link, machine_of
from enplace.placers.max_load import (
    Found,
    Limits,
    Replicas,
    Split,
    best_anywhere,
    best_contiguous,
    has_machines,
    max_load_us,
    split_exactly,
    split_in_order,
    split_over_machines,
)
from enplace.placers.max_load.contract import whole_lacking_bytes, with_room
from enplace.placers.max_load.dp import ONE_CHIP, unlike
from enplace.placers.max_load.search import PROVEN_GAP, contiguous_units, passes_of, unit_device
from enplace.placing.candidates import make_replicas, unordered
from enplace.placing.options import REPLICA_OPTIONS, SOLVER, PlaceOptions, Progress
from enplace.placing.registry import placer
from enplace.placing.settle import settle
from enplace.solvers.milp import CP_SAT
from enplace.text import count, finite
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, THROUGHPUT, BoolArray, Problem
from enplace.values.profile import IntArray

_SOURCE = "Tarnawski et al. (NeurIPS 2020)"

PROGRAM_S = 60.0
"""A program, dynamic or integer, takes so long if nobody says how long it may."""

NOT_CONTIGUOUS = (
    "stages are cut in the forward graph, as in the paper, and the backward ops of a device are "
    "not contiguous; max-load-ip looks at both"
)
"""What a person should know of a plan."""


@placer(
    "max-load-dp",
    title="Max-load DP, exact",
    source=_SOURCE,
    objectives=(THROUGHPUT, LATENCY),
    capabilities=("memory", "proof"),
    options=REPLICA_OPTIONS,
)
def max_load_dp(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the contiguous split whose busiest device has the least to do."""
    options.check_cancelled()
    problem, about = simplified(problem, options.load_rule)
    return _split_plan(problem, "max-load-dp", options, about)


@placer(
    "max-load-dpl",
    title="Max-load DPL, along an order",
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=("memory",),
    options=REPLICA_OPTIONS,
)
def max_load_dpl(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the best split along one depth-first order (DPL)."""
    options.check_cancelled()
    problem, about = simplified(problem, options.load_rule)
    return _split_plan(problem, "max-load-dpl", options, about, along_order=True)


@placer(
    "max-load-ip",
    title="Max-load IP, contiguous",
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=("memory", "heterogeneous", "proof", "anytime"),
    options=(SOLVER,),
)
def max_load_ip(problem: Problem, options: PlaceOptions) -> Plan:
    """Go on from the DP's split with the integer program of Fig. 6, with CP-SAT unless told."""
    solver = options.solver_or(CP_SAT)
    watch = _Incumbents(problem, "max-load-ip", options, solver)
    arguments = (watch.limits, options.load_rule, options.seed, solver)
    return watch.plan_of(best_contiguous(watch.problem, *arguments))


@placer(
    "max-load-ip-noncontiguous",
    title="Max-load IP in pieces, not contiguous",
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=("memory", "heterogeneous", "proof", "anytime"),
    options=(SOLVER,),
)
def max_load_ip_noncontiguous(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the placement whose busiest device has the least to do, by annealing and Fig. 6."""
    solver = options.solver_or("HiGHS")
    watch = _Incumbents(problem, "max-load-ip-noncontiguous", options, solver)
    arguments = (watch.limits, options.load_rule, options.seed, solver)
    return watch.plan_of(best_anywhere(watch.problem, *arguments))


SEVERAL_LINKS = (
    "a GPU's links differ, to several CPUs, without a CPU to other GPUs, or between machines: each "
    "is taken to send and receive all at its fastest, so a sample or query may take longer"
)
"""What a person should know where tensors do not all go through one host's memory."""


PINNED_TURNS = "a GPU takes no turns with what is pinned to another, or may not be on it"
"""What a person should know where a split's replicas had to be left out."""

NONE_IN_TIME = "no split that fits was found in the time there was"
"""What to say of a placement that is only there because the search was stopped."""


def simplified(problem: Problem, rule: LoadRule = USUAL) -> tuple[Problem, str]:
    """The problem as the paper's machines have it.

    Returns
    -------
    tuple[Problem, str]
        The problem, with room for a split, and what a person should know; "" if it is the same.
        What is optimal for the one need not be so for the other, unless it is the same.
    """
    problem, about_room = with_room(problem)
    about_links = "" if has_one_link(problem.cluster, rule) else SEVERAL_LINKS
    about_chip = ONE_CHIP if problem.cluster.shares_chips else ""
    return problem, "; ".join(filter(None, (about_room, about_links, about_chip)))


def _split(problem: Problem, options: PlaceOptions, along_order: bool) -> Split:
    """What the dynamic programs find for a rule.

    Of unlike devices that may take turns they take each for the slowest of all, so there splits
    without replicas, or with replicas in one machine only, may be better.
    """
    rule, stopped, seed = options.load_rule, _stopped(options), options.seed
    machines = has_machines(problem)

    def find(rule: LoadRule) -> Split:
        if rule.two_level and machines:
            return split_over_machines(
                problem, rule, seed=seed, along_order=along_order, stopped=stopped
            )
        if along_order:
            return split_in_order(problem, rule, stopped=stopped)
        return split_exactly(problem, rule, seed=seed, stopped=stopped)

    def load_us(split: Split) -> float:
        if np.isinf(split.load_us):
            return np.inf
        return max_load_us(problem, split.device, rule, split.replicas)

    best = find(rule)
    if rule.replicate and unlike(problem, rule):
        others = [replace(rule, replicate=False), replace(rule, two_level=True)]
        found = min((best, *(find(other) for other in others if other != rule)), key=load_us)
        device, replicas = found.device, found.replicas
        best = replace(best, device=device, replicas=replicas, load_us=load_us(found))
    return best


def nothing_found(problem: Problem, device: IntArray) -> str:
    """What to say of a placement that is only there because no split was found."""
    if whole_lacking_bytes(problem, device):
        return "nothing that fits the memory was found, and this does not either"
    return "no split that keeps to the pins, to who is colocated and to the memory was found"


def _stopped(options: PlaceOptions) -> Callable[[], bool]:
    """Whether a dynamic program should end with what it has."""
    limit_s = PROGRAM_S if options.time_limit_s is None else options.time_limit_s
    return lambda: options.cancelled() or options.seconds > limit_s


def _split_plan(
    problem: Problem, method: str, options: PlaceOptions, about: str, *, along_order: bool = False
) -> Plan:
    split = _split(problem, options, along_order)
    stopped = _stopped(options)()
    split = _renamed(problem, split, options.load_rule)
    device = settled(problem, split.device, options.load_rule, split.replicas)
    replicas = make_replicas(problem, split.replicas, device)
    load_us = max_load_us(problem, device, options.load_rule, replicas)
    fits = bool(np.isfinite(split.load_us))
    bound_us = min(split.bound_us, load_us) if fits else 0.0
    moved = int(np.count_nonzero(~allowed(problem, split.device)[problem.unit]))
    proven = split.optimal and fits and not moved and not about
    proven = proven and load_us <= split.load_us * (1 + PROVEN_GAP)
    said = "" if split.note in about else split.note
    notes = [note for note in (about, said) if note]
    if proven and not _is_contiguous(problem, device):
        proven = False
        notes.append(NOT_CONTIGUOUS)
    if not fits:
        notes.append(NONE_IN_TIME if stopped else nothing_found(problem, device))
    elif moved:
        lacks = ", and now memory is lacking" * (whole_lacking_bytes(problem, device) > 0)
        knows_all = not (options.load_rule.replicate or options.load_rule.two_level)
        around = "; max-load-ip splits around them" * knows_all
        notes.append(
            f"the split knows nothing of pins and forbidden devices: {count(moved, 'op')} moved "
            f"after it{lacks}{around}"
        )
    if fits and replicas != split.replicas:
        notes.append(PINNED_TURNS)
    plan = replace(
        _plan(problem, device, method, bound_us, options.load_rule, replicas),
        proven=proven,
        note="; ".join(notes),
        details={"ideals": split.n_ideals},
    )
    options.progress(Progress(options.seconds, "a split", None, plan, load_us, bound_us))
    return plan


def _renamed(problem: Problem, split: Split, rule: LoadRule) -> Split:
    """The split with GPUs that are alike in each other's place, where that is what pins ask for."""
    cluster = problem.cluster
    name = np.arange(cluster.n_devices)
    wanted = {(int(split.device[op]), device) for op, device in problem.pins.items()}
    gpus = set(cluster.gpus)
    wanted = {(found, device) for found, device in wanted if {found, device} <= gpus}
    found, devices = [f for f, _ in wanted], [d for _, d in wanted]
    twice = len(set(found)) < len(wanted) or len(set(devices)) < len(wanted)
    if twice or unlike(problem, rule):
        return split
    name[found] = devices
    rest = [gpu for gpu in cluster.gpus if gpu not in found]
    name[rest] = [gpu for gpu in cluster.gpus if gpu not in devices]
    machine = machine_of(cluster) * rule.two_level
    if not np.array_equal(machine[name], machine):
        return split
    replicas = tuple(tuple(name[list(group)].tolist()) for group in split.replicas)
    return replace(split, device=name[split.device], replicas=replicas)


def allowed(problem: Problem, device: IntArray) -> BoolArray:
    """Whether each unit is in one place, and may be there; shape (n_units,)."""
    there = unit_device(problem, device)
    fine = problem.unit_allowed[np.arange(problem.n_units), there]
    np.logical_and.at(fine, problem.unit, device == there[problem.unit])
    return fine


def settled(
    problem: Problem, device: IntArray, rule: LoadRule, replicas: Replicas = ()
) -> IntArray:
    """A placement with free ops beside their consumers, where that makes nothing worse.

    What breaks a constraint is mended at any cost.
    """
    found = settle(problem, device)
    if not allowed(problem, device).all() or np.array_equal(found, device):
        return found
    load_us, before_us = (max_load_us(problem, there, rule, replicas) for there in (found, device))
    # Cheapest first: the last one walks over all edges.
    as_good = (
        load_us <= before_us * (1 + 1e-9)
        and whole_lacking_bytes(problem, found) <= whole_lacking_bytes(problem, device)
        and (_is_contiguous(problem, found) or not _is_contiguous(problem, device))
    )
    return found if as_good else device


def _is_contiguous(problem: Problem, device: IntArray) -> bool:
    of_unit, n_devices = unit_device(problem, device), problem.cluster.n_devices
    return all(contiguous_units(each, of_unit, n_devices) for each in passes_of(problem))


def _plan(
    problem: Problem,
    device: IntArray,
    method: str,
    bound_us: float,
    rule: LoadRule,
    replicas: Replicas = (),
) -> Plan:
    (plan,) = unordered(problem, device, method)
    return replace(
        plan,
        objective=THROUGHPUT,
        value_us=max_load_us(problem, device, rule, replicas),
        bound_us=finite(bound_us),
        load_rule=rule,
        replicas=replicas,
    )


class _Incumbents:
    """Makes plans of what a search finds, and tells the person of them."""

    def __init__(self, problem: Problem, method: str, options: PlaceOptions, solver: str) -> None:
        options.check_cancelled()
        self.problem, self._about = simplified(problem, options.load_rule)
        self._method, self._options, self._solver = method, options, solver
        self._told_us = np.inf
        limit_s = PROGRAM_S if options.time_limit_s is None else options.time_limit_s
        self.limits = Limits(limit_s - options.seconds, options.cancelled, self._tell)

    def plan_of(self, found: Found) -> Plan:
        """The plan; free ops go with their consumers unless that costs something."""
        device = settled(self.problem, found.device, self._options.load_rule)
        contiguous, proven = self._method == "max-load-ip", found.proven and not self._about
        missing = "" if np.isfinite(found.load_us) else nothing_found(self.problem, device)
        rule = self._options.load_rule
        plan = _plan(self.problem, device, self._method, found.bound_us, rule)
        plan = replace(plan, proven=proven, details={"contiguous": contiguous})
        return plan.with_notes(found.why, self._about, missing, separator="; ")

    def _tell(self, found: Found) -> None:
        plan = None
        if found.load_us < self._told_us:
            self._told_us, plan = found.load_us, self.plan_of(found)
        message = "a better split" if plan else "a better bound"
        self._options.progress(
            Progress(
                self._options.seconds,
                message,
                incumbent=plan,
                objective_us=found.load_us,
                bound_us=found.bound_us,
                bound_by="" if plan else self._solver,
            )
        )
