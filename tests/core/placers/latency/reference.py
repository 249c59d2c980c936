"""A slow latency evaluator that follows section 4 step by step.

:mod:`enplace.machine.latency` must give the same results.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from enplace.machine.host_links import send_us
from enplace.machine.op_passes import backward_ops
from enplace.values.problem import Problem
from enplace.values.profile import IntArray

Subgraph = tuple[int, bool, int]
"""Device, pass and number of a subgraph. Each op on a CPU is one, with a negative number."""

Place = tuple[int, bool]
"""Device and pass; each such pair has its own sequence of subgraphs."""


def latency_us(problem: Problem, device: IntArray, subgraph: IntArray | None = None) -> float:
    """Return the time until every op of one query is done.

    Parameters
    ----------
    device : int array, shape (n_ops,)
    subgraph : int array, shape (n_ops,), optional
        Number of each op's subgraph in its pass of its accelerator, in order; numbers of ops on
        CPUs are ignored. The default is the result of :func:`find_pass_subgraphs`.

    Returns
    -------
    float
        inf if subgraphs wait for each other, or an op is where it cannot run.
    """
    if subgraph is None:
        subgraph = find_pass_subgraphs(problem, device)
    where = _subgraph_of_op(problem, device, subgraph)
    duration = _durations_us(problem, device, where)
    before: dict[Subgraph, set[Subgraph]] = {each: set() for each in duration}
    profile = problem.profile
    for a, b in zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True):
        if where[a] != where[b]:
            before[where[b]].add(where[a])
    of_device: dict[int, list[Subgraph]] = defaultdict(list)
    for each in sorted(each for each in duration if each[-1] >= 0):
        of_device[each[0]].append(each)
    for subgraphs in of_device.values():
        for first, second in pairwise(subgraphs):
            before[second].add(first)
    return _finish_us(before, duration)


def _subgraph_of_op(problem: Problem, device: IntArray, subgraph: IntArray) -> list[Subgraph]:
    gpus, places = set(problem.cluster.gpus), _places(problem, device)
    return [
        (d, backward, number if d in gpus else -1 - op)
        for op, ((d, backward), number) in enumerate(zip(places, subgraph.tolist(), strict=True))
    ]


def _places(problem: Problem, device: IntArray) -> list[Place]:
    return list(zip(device.tolist(), backward_ops(problem).tolist(), strict=True))


def _durations_us(
    problem: Problem, device: IntArray, where: list[Subgraph]
) -> dict[Subgraph, float]:
    """Return the duration of each subgraph (Fig. 3, equation 7)."""
    profile, cost_us = problem.profile, send_us(problem)
    duration: dict[Subgraph, float] = defaultdict(float)
    for op, place in enumerate(where):
        duration[place] += float(problem.time_us[op, device[op]])
    for tensor in range(profile.n_tensors):
        readers = profile.edge_op[profile.edge_ptr[tensor] : profile.edge_ptr[tensor + 1]]
        ends = {where[reader] for reader in readers.tolist()}
        ends.add(where[profile.tensor_op[tensor]])
        if len(ends) > 1:
            for place in ends:
                if place[-1] >= 0:
                    duration[place] += float(cost_us[tensor, place[0]])
    return duration


def _finish_us(before: dict[Subgraph, set[Subgraph]], duration: dict[Subgraph, float]) -> float:
    after: dict[Subgraph, list[Subgraph]] = defaultdict(list)
    for place, needs in before.items():
        for need in needs:
            after[need].append(place)
    waiting = {place: len(needs) for place, needs in before.items()}
    start = dict.fromkeys(before, 0.0)
    ready = [place for place, count in waiting.items() if count == 0]
    latest, done = 0.0, 0
    while ready:
        place = ready.pop()
        finish = start[place] + duration[place]
        latest, done = max(latest, finish), done + 1
        for following in after[place]:
            start[following] = max(start[following], finish)
            waiting[following] -= 1
            if waiting[following] == 0:
                ready.append(following)
    return latest if done == len(before) else float("inf")


def find_pass_subgraphs(problem: Problem, device: IntArray) -> IntArray:
    """Find the subgraphs of each pass of each accelerator, as few as paths between them allow.

    A contiguous set of ops is one subgraph. A path that leaves a pass of an accelerator and
    returns starts a new one. If subgraphs would wait for each other, one is split further.

    Parameters
    ----------
    device : int array, shape (n_ops,)
        Any placement.

    Returns
    -------
    int array, shape (n_ops,)
        Number of each op's subgraph in its pass of its accelerator, in order; 0 for ops on CPUs.
    """
    before = _predecessors(problem)
    order = problem.profile.topological_order.tolist()
    on = _places(problem, device)
    gpus = [(gpu, backward) for gpu in problem.cluster.gpus for backward in (False, True)]
    level = _returns(order, before, on, gpus)
    left = list(order)
    done: set[int] = set()
    subgraph = np.zeros(len(order), dtype=np.int64)
    subgraphs_of: dict[Place, int] = defaultdict(int)
    while left:
        taken = _next_block(left, before, done, on, level, gpus)
        if on[taken[0]] in gpus:
            subgraph[taken] = subgraphs_of[on[taken[0]]]
            subgraphs_of[on[taken[0]]] += 1
        done.update(taken)
        left = [op for op in left if op not in done]
    return subgraph


def _predecessors(problem: Problem) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in range(problem.profile.n_ops)]
    ends = (problem.profile.edge_source, problem.profile.edge_op)
    for a, b in zip(*(end.tolist() for end in ends), strict=True):
        before[b].append(a)
    return before


def _returns(
    order: list[int], before: list[list[int]], on: list[Place], gpus: list[Place]
) -> list[int]:
    """Count how often a path to each op has left its pass of its accelerator and returned."""
    column = {gpu: number for number, gpu in enumerate(gpus)}
    least = np.zeros((len(order), len(gpus)), dtype=np.int64)
    level = [0] * len(order)
    for op in order:
        for earlier in before[op]:
            np.maximum(least[op], least[earlier], out=least[op])
            if on[earlier] != on[op] and on[earlier] in column:
                at = column[on[earlier]]
                least[op, at] = max(least[op, at], level[earlier] + 1)
        if on[op] in column:
            level[op] = int(least[op, column[on[op]]])
    return level


def _next_block(
    left: list[int],
    before: list[list[int]],
    done: set[int],
    on: list[Place],
    level: list[int],
    gpus: list[Place],
) -> list[int]:
    """Return the next CPU op or whole block that can run, else the ready ops of the first block."""
    first_ready: list[int] = []
    seen: set[tuple[Place, int]] = set()
    first_level = {gpu: min((level[op] for op in left if on[op] == gpu), default=0) for gpu in gpus}
    for op in left:
        if on[op] not in gpus:
            if done.issuperset(before[op]):
                return [op]
            continue
        if (on[op], level[op]) in seen:
            continue
        seen.add((on[op], level[op]))
        block = [other for other in left if (on[other], level[other]) == (on[op], level[op])]
        inside = set(done)
        for other in block:
            if inside.issuperset(before[other]):
                inside.add(other)
        ready = [other for other in block if other in inside]
        if len(ready) == len(block) and level[op] == first_level[on[op]]:
            return block
        first_ready = first_ready or ready
    return first_ready
