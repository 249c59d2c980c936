"""The best partition whose pipeline fits in memory with all its samples in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from enplace.errors import DoesNotFitError
from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.memory import counts_whole_nodes
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.machine.pipelines.stages import all_read_parameters, forward_stages
from enplace.placers.max_load.memory.dealing import deal_out
from enplace.placers.max_load.memory.in_a_v import NO_V, NO_V_YET, cut_in_v
from enplace.placers.max_load.memory.in_flight import (
    find_fullest,
    held_by_stages,
    samples_matter,
)
from enplace.placers.max_load.memory.mending import list_cuts, list_every_cut
from enplace.placers.max_load.memory.partition_at_pace import (
    keeps_pace,
    partition_at_pace,
    slow_down,
)
from enplace.placers.max_load.memory.passing import allow_for_passing
from enplace.placers.max_load.table.caveats import find_unlike
from enplace.placers.max_load.table.dp import (
    Partition,
    Stopped,
    partition_along_order,
    partition_exactly,
)
from enplace.placers.max_load.table.two_level import has_machines, partition_over_machines
from enplace.placing.candidates import unordered
from enplace.placing.stop import never
from enplace.text import ms
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import IntArray

NOTHING_FITS = (
    "no partition was found that fits with its samples in flight, so only the memory of one sample "
    "counts"
)

SLOWED = "samples follow each other more slowly than they could, so that fewer are in flight"

ONE_STAGE_EACH = "one stage on each GPU is faster here than several that are interleaved"

NO_TURNS = "no cut was found in which the GPUs take turns with several stages: each has one"

PLAINLY = 1e-3
"""Share by which a pipeline must be faster in another way for that to be mentioned."""

MOST_TRIES = 6
"""Most searches with less and less memory, for a pipeline that fits."""


def find_fitting(
    problem: Problem,
    rule: LoadRule,
    *,
    seed: int = 0,
    along_order: bool = False,
    stopped: Stopped = never,
) -> Partition:
    """Find a partition whose pipeline fits, with all its samples in flight, if there is one.

    The partition for one sample is the best if its pipeline fits when it is simulated. Otherwise
    the dynamic programs count the samples that each stage holds at most. If a pipeline still holds
    more, they get less memory and run again. With 1F1B, a search at one pace after another then
    finds what is better, as most stages hold fewer. If nothing fits, the partition for one sample
    remains.

    A partition that only fits when samples follow each other more slowly gets a pace of its own.
    In the end, the stages are dealt out to devices of a kind that differ.
    """
    if rule.pipeline == "zbv":
        found = cut_in_v(problem, rule, seed=seed, stopped=stopped)
        if found is None:
            waiting = replace(rule, pipeline="zb-h1")
            found = find_fitting(
                problem, waiting, seed=seed, along_order=along_order, stopped=stopped
            )
            found = replace(found, note=_join(found.note, NO_V_YET if stopped() else NO_V))
        return found
    op_bytes = held_by_stages(problem, rule)
    find = partial(_find_partition, seed=seed, along_order=along_order, stopped=stopped)
    alone = replace(rule, in_flight=False, recompute=False)
    free = find(problem, alone, op_bytes)
    if np.isinf(free.load_us):
        return free
    if not samples_matter(problem, rule) or _find_excess(problem, free, rule) <= 1.0:
        return deal_out(problem, free, rule)  # the best of all that fit for one sample
    roomy = allow_for_passing(problem)
    found, plain_us = replace(free, load_us=np.inf), np.inf
    if not stopped():
        found = _find_cautiously(problem, roomy, rule, find, stopped)
    if not counts_whole_nodes(problem.profile):
        found = replace(found, bound_us=free.bound_us, optimal=False)
    if rule.pipeline != "gpipe":  # there, each stage holds all samples
        found = slow_down(problem, free, rule, below=found)
        plain = replace(rule, pipeline="1f1b", recompute=False)
        if plain != rule and not stopped():  # what fits with it may fit with this schedule
            first = find_fitting(
                problem, plain, seed=seed, along_order=along_order, stopped=stopped
            )
            plain_us = np.inf if NOTHING_FITS in first.note else first.load_us
            found = slow_down(problem, replace(first, note=free.note), rule, below=found)
        found = replace(found, bound_us=free.bound_us, optimal=False)
    if keeps_pace(rule) and not stopped():
        found = partition_at_pace(
            problem,
            roomy,
            rule,
            free,
            found,
            along_order=along_order,
            seed=seed,
            stopped=stopped,
        )
    if found.load_us > free.load_us * (1 + PLAINLY):
        for cut in list_cuts(problem, rule):
            if stopped() and np.isfinite(found.load_us):
                break
            cut = replace(cut, bound_us=free.bound_us, note=free.note)
            if np.isinf(found.load_us) or _find_excess(problem, cut, rule) <= 1.0:
                found = slow_down(problem, cut, rule, below=found)
    if found.load_us > free.load_us * (1 + PLAINLY) and not stopped():
        for cut in list_every_cut(problem, rule):
            if stopped():
                break
            cut = replace(cut, bound_us=free.bound_us, note=free.note)
            found = slow_down(problem, cut, rule, below=found)
    if np.isinf(found.load_us):
        return replace(free, optimal=False, bound_us=0.0, note=_join(free.note, NOTHING_FITS))
    found = deal_out(problem, found, rule)
    slowed = SLOWED if found.pace_us else ""
    if plain_us < found.load_us * (1 - PLAINLY):
        slowed = _join(slowed, f"with --pipeline 1f1b, a sample would take {ms(plain_us)}")
    free_us = max_load_us(problem, free.device, rule, free.replicas)
    if free_us < found.load_us * (1 - PLAINLY):
        slowed = _join(slowed, _cost_of_samples(free_us, rule))
    return replace(found, note=_join(found.note, slowed))


def _find_cautiously(
    problem: Problem,
    given: Problem,
    rule: LoadRule,
    find: Callable[[Problem, LoadRule, IntArray | None], Partition],
    stopped: Stopped,
) -> Partition:
    """Find a partition that fits with the most samples that stages may hold.

    The search is given a problem that leaves room, and even less memory if that does not suffice.
    """
    found = find(given, rule, held_by_stages(given, rule))
    for _ in range(MOST_TRIES):
        excess = 0.0 if np.isinf(found.load_us) else _find_excess(problem, found, rule)
        if excess <= 1.0:
            return found
        if stopped():
            break
        try:
            given = _with_less_memory(given, excess)
        except DoesNotFitError:
            break  # not even the variables of one op fit in so little
        found = find(given, rule, held_by_stages(given, rule))
        found = replace(found, optimal=False, bound_us=0.0)
    return replace(found, load_us=np.inf)


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _cost_of_samples(free_us: float, rule: LoadRule) -> str:
    """Say what the memory of samples in flight costs."""
    hint = "" if rule.recompute else " (--recompute trades time for memory)"
    return f"if only one sample took memory, the time per sample would be {ms(free_us)}{hint}"


def _find_excess(problem: Problem, found: Partition, rule: LoadRule) -> float:
    return find_fullest(problem, found.device, rule, found.replicas, found.recompute)


def _find_makespan_us(problem: Problem, found: Partition, rule: LoadRule) -> float:
    """Return the time of the rule's microbatches; inf if nothing was found."""
    if np.isinf(found.load_us):
        return np.inf
    (plan,) = unordered(problem, found.device, "")
    plan = replace(plan, replicas=found.replicas, recompute=found.recompute)
    return simulate_pipeline(problem, plan, rule.pipeline, rule.microbatches, rule).makespan_us


def _takes_turns(problem: Problem, found: Partition) -> bool:
    """Whether the GPUs take turns with their stages, all of which have parameters."""
    (plan,) = unordered(problem, found.device, "")
    ahead = forward_stages(problem, plan)
    row = [stage.devices[0] for stage in ahead]
    k = len(set(row))
    in_turns = len(row) % k == 0 and all(a == b for a, b in zip(row, row[k:], strict=False))
    return in_turns and all_read_parameters(problem.profile, ahead)


def _with_less_memory(problem: Problem, factor: float) -> Problem:
    """Divide the memory of all devices by a factor."""
    cluster = problem.cluster
    devices = tuple(
        replace(device, capacity_bytes=max(1, int(device.capacity_bytes / factor)))
        for device in cluster.devices
    )
    return replace(problem, cluster=replace(cluster, devices=devices))


def _find_partition(
    problem: Problem,
    rule: LoadRule,
    op_bytes: IntArray | None,
    *,
    seed: int,
    along_order: bool,
    stopped: Stopped,
) -> Partition:
    """Find a partition for a rule with the dynamic programs.

    They treat each device of a kind like the slowest. So if devices differ and may be replicas, a
    partition without replicas, or with replicas in one machine only, may be better.
    """
    machines = has_machines(problem)

    def find(rule: LoadRule) -> Partition:
        if rule.two_level and machines:
            return partition_over_machines(
                problem,
                rule,
                seed=seed,
                along_order=along_order,
                stopped=stopped,
                op_bytes=op_bytes,
            )
        if along_order:
            return partition_along_order(problem, rule, stopped=stopped, op_bytes=op_bytes)
        return partition_exactly(problem, rule, seed=seed, stopped=stopped, op_bytes=op_bytes)

    def load_us(found: Partition) -> float:
        if np.isinf(found.load_us):
            return np.inf
        return max_load_us(problem, found.device, rule, found.replicas, found.recompute)

    best = find(rule)
    if rule.pipeline == "interleaved":
        best = replace(best, load_us=load_us(best), optimal=False, bound_us=0.0)
        apart = replace(find(replace(rule, pipeline="1f1b")), optimal=False, bound_us=0.0)
        if _takes_turns(problem, best):
            apart = replace(apart, note=_join(apart.note, ONE_STAGE_EACH))
            best = min((best, apart), key=lambda found: _find_makespan_us(problem, found, rule))
        else:
            best = replace(apart, note=_join(apart.note, NO_TURNS))
    if rule.replicate and find_unlike(problem, rule):
        others = [replace(rule, replicate=False), replace(rule, two_level=True)]
        found = min((best, *(find(other) for other in others if other != rule)), key=load_us)
        device, replicas, recompute = found.device, found.replicas, found.recompute
        us = load_us(found)
        best = replace(best, device=device, replicas=replicas, recompute=recompute, load_us=us)
    return best
