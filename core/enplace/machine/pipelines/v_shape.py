"""Stages in a V (Qi et al. 2024, "Pipeline parallelism with controllable memory").

Of k devices, each has two stages: samples pass through all devices, turn on the last one, and pass
through them again to the first one, which computes the loss. Gradients take the same way back. A
device does gradients of inputs (B) before those of weights (W), in the order of ZB-V, which is that
of ``torch.distributed.pipelining.ScheduleZBVZeroBubble``.

The last device has two stages in a row. Where they meet, its forward ops are divided into halves
that take about as long. A host that only makes inputs is beside the V.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from enplace.machine.op_passes import backward_ops, optimiser_ops
from enplace.machine.pipelines.interleaving import Work, merge_lists
from enplace.machine.pipelines.stages import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Stage,
    all_read_parameters,
    forward_stages,
    passes_of,
    stages_of,
)
from enplace.names.passes import scopes_by_pass, split_pass
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, Problem
from enplace.values.profile import IntArray

IN_A_V = "two stages on each GPU, in a V"

Part = tuple[int, int]
"""A pass, and which of a device's two stages."""


def find_halves(problem: Problem, plan: Plan, passes: IntArray | None = None) -> IntArray | None:
    """Find which of its device's two stages each op belongs to; (n_ops,), None if there is no V.

    Parameters
    ----------
    passes : int array, shape (n_ops,), optional
        From :func:`~enplace.machine.pipelines.stages.passes_of`, if they are known.
    """
    if plan.replicas:
        return None
    if passes is None:
        passes = passes_of(problem, plan.device, weights_apart=True)
    if plan.subgraph is not None and plan.objective != LATENCY:
        given = np.minimum(plan.subgraph, 1)
        if _is_v(problem, plan, passes, given):
            return given
    row = _row_of(stages_of(problem, plan, passes))
    k = (len(row) + 1) // 2
    if k < 2 or len(set(row)) < k or row != [*row[:k], *row[: k - 1][::-1]]:
        return None
    ops = np.flatnonzero((plan.device == row[k - 1]) & (passes == FORWARD))
    turn = _divide(problem, ops, row[k - 1])
    stage = _find_stages(problem, plan.device, passes, row[:k], turn) if turn else None
    if stage is None:
        return None
    halves = (np.array(stage) >= k).astype(np.int64)
    return halves if _is_v(problem, plan, passes, halves) else None


def is_in_v(problem: Problem, plan: Plan) -> bool:
    """Whether a plan has stages in a V, all with parameters, and trained ones if any is."""
    halves = find_halves(problem, plan)
    if halves is None:
        return False
    ahead, part = forward_stages(problem, plan, halves), 2 * plan.device + halves
    trained = part[backward_ops(problem) & ~optimiser_ops(problem)]
    is_trained = not len(trained) or all(part[stage.ops[0]] in trained for stage in ahead)
    return is_trained and all_read_parameters(problem.profile, ahead)


def _row_of(stages: Sequence[Stage]) -> list[int]:
    """List the devices of forward stages, without devices that wait for no other stage."""
    waiting = {stage.devices[0] for stage in stages if stage.after}
    return [s.devices[0] for s in stages if s.of == FORWARD and s.devices[0] in waiting]


def _is_v(problem: Problem, plan: Plan, passes: IntArray, halves: IntArray) -> bool:
    return order_in_v(stages_of(problem, plan, passes, halves), halves, 1) is not None


def _divide(problem: Problem, ops: IntArray, device: int) -> dict[int, int]:
    """Divide forward ops into halves that take about as long; empty if they cannot be divided.

    An op is late if no long path of these ops follows it. What must share a device stays together.
    """
    profile, depth = problem.profile, dict.fromkeys(ops.tolist(), 0)
    reads = np.diff(profile.in_ptr) > 0
    for op in profile.topological_order[::-1].tolist():
        if op in depth:
            readers = profile.readers_of(op).tolist()
            after = int(reads[op])  # a variable is beside its first reader
            depth[op] = max((depth[each] + after for each in readers if each in depth), default=0)
    level, unit = np.array(list(depth.values())), problem.unit[list(depth)]
    least, most = np.full(problem.n_units, level.max()), np.zeros(problem.n_units, dtype=np.int64)
    np.minimum.at(least, unit, level)
    np.maximum.at(most, unit, level)
    torn = np.zeros(level.max() + 1, dtype=np.int64)  # the units that a cut above a level divides
    np.add.at(torn, least[np.unique(unit)], 1)
    np.add.at(torn, most[np.unique(unit)], -1)
    cuts = np.flatnonzero(np.cumsum(torn)[:-1] == 0)
    if not len(cuts):
        return {}
    late_us = np.cumsum(np.bincount(level, problem.time_us[list(depth), device]))
    cut = cuts[np.argmin(np.abs(2 * late_us[cuts] - late_us[-1]))]
    return {op: int(its <= cut) for op, its in depth.items()}


def _find_stages(
    problem: Problem, device: IntArray, passes: IntArray, row: list[int], turn: Mapping[int, int]
) -> list[int] | None:
    """Find the place of each op's stage on the way forward; None if samples return another way.

    An op runs as late as those that read it allow on the way forward. Backward ops follow the
    forward ops that they belong to; where nothing tells, they run as early as they can.

    Parameters
    ----------
    row : list of int
        Devices in the order of their first stages.
    turn : mapping of int to int
        Which half each forward op of the last device is in.
    """
    profile, k = problem.profile, len(row)
    place = {d: at for at, d in enumerate(row)}
    own = [place.get(d, -1) for d in device.tolist()]
    counts = ~optimiser_ops(problem) & (np.array(own) >= 0)
    order = [op for op in profile.topological_order.tolist() if counts[op]]
    ahead = (passes == FORWARD).tolist()
    linked = counts[profile.edge_source] & counts[profile.edge_op]
    before: list[list[int]] = [[] for _ in ahead]
    after: list[list[int]] = [[] for _ in ahead]
    pairs = profile.edge_source[linked].tolist(), profile.edge_op[linked].tolist()
    for source, op in zip(*pairs, strict=True):
        before[op].append(source)
        if ahead[op]:
            after[source].append(op)
    stage = [0] * profile.n_ops
    for op in order:
        if ahead[op]:
            least = max((stage[each] for each in before[op]), default=0)
            stage[op] = own[op] if own[op] >= least else 2 * k - 1 - own[op]
            stage[op] = k - 1 + turn.get(op, stage[op] - k + 1)
    for op in reversed(order):
        if after[op] and op not in turn:
            last = 2 * k - 1 - own[op]
            stage[op] = last if last <= min(stage[each] for each in after[op]) else own[op]
    half_of = _halves_by_name(problem, {op: int(stage[op] >= k) for op in order if ahead[op]})
    for op in order:
        if not ahead[op]:
            most = min((stage[each] for each in before[op] if not ahead[each]), default=2 * k - 1)
            made = [stage[each] for each in before[op] if ahead[each] and each in turn]
            last = 2 * k - 1 - own[op]
            otherwise = last <= most if own[op] < k - 1 else max(made, default=most) >= k
            stage[op] = last if last <= most and half_of(op, otherwise) else own[op]
            if stage[op] > most:
                return None
    return stage


def _halves_by_name(problem: Problem, half: Mapping[int, int]) -> Callable[[int, bool], int]:
    """Return a function from backward ops to the half of their forward ops.

    They share a placement unit or a scope; where neither tells, it answers what it is given.
    """
    unit, scopes = problem.unit.tolist(), scopes_by_pass(problem.profile)
    by_unit: dict[int, set[int]] = {}
    by_scope: dict[str, set[int]] = {}
    for op, its in half.items():
        by_unit.setdefault(unit[op], set()).add(its)
        by_scope.setdefault(split_pass(scopes[op])[1], set()).add(its)

    def half_of(op: int, otherwise: bool) -> int:
        scope = split_pass(scopes[op])[1]
        for halves in (by_unit.get(unit[op]), by_scope.get(scope) if scope else None):
            if halves is not None and len(halves) == 1:
                return min(halves)
        return int(otherwise)

    return half_of


def order_in_v(stages: Sequence[Stage], halves: IntArray, n: int) -> list[Work] | None:
    """Order the work of all devices so that each item comes after those it waits for.

    Returns None if the stages are no V, with one forward stage and at most one of each other pass
    in both halves of each device.
    """
    row = _row_of(stages)
    k = len(row) // 2
    if k < 2 or len(set(row)) < k or row != [*row[:k], *row[:k][::-1]]:
        return None
    number = {(s.devices[0], s.of, int(halves[s.ops].max())): at for at, s in enumerate(stages)}
    if len(number) < len(stages):
        return None
    first = [at for at, stage in enumerate(stages) if stage.devices[0] not in row]
    if any(stages[at].after for at in first):
        return None
    lists = [[(m, at) for m in range(n)] for at in first]
    for at, device in enumerate(row[:k]):
        parts = ((device, *part) for part in _list_parts(at, k, n))
        done: Counter[tuple[int, int, int]] = Counter()
        work = []
        for part in parts:
            if done[part] < n and part in number:
                work.append((done[part], number[part]))
            done[part] += 1
        lists.append(work)
    return merge_lists(stages, lists)


def _list_parts(at: int, k: int, n: int) -> Iterator[Part]:
    """List passes and halves in the order in which one of k devices does them; n or more of each.

    Each is for the microbatch after that of the one before of its kind. A pipeline of less than
    2 k - 1 microbatches leaves out the others of a pipeline of so many.
    """
    (f0, b0, w0), (f1, b1, w1) = (
        [(of, half) for of in (FORWARD, BACKWARD, WEIGHTS)] for half in (0, 1)
    )
    most = max(n, 2 * k - 1)
    yield from [f0] * (2 * (k - at) - 1)
    yield from [f1, f0] * at
    yield from [f1, b1, w1] * (k - at)
    yield from [f0, b0, w0, f1, b1, w1] * (most - 2 * k + at + 1)
    yield from [b0, w0, f1, b1, w1] * (k - at - 1)
    yield from [b0, b1] * at
    yield from [b0, w0] * (k - at)
    yield from [w1] * at
    yield from [w0] * at
