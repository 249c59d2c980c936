"""The stages of a pipeline: each device's share, cut where its ops are not contiguous.

After Tarnawski et al. 2020, sections 5.2 and 5.3. A device whose ops are not contiguous has several
stages, one for each virtual device (Fig. 5b).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from enplace.machine.host_links import sample_us
from enplace.machine.op_passes import backward_ops, optimiser_ops, recomputing
from enplace.machine.pipelines.all_reduce import all_reduce_us
from enplace.machine.pipelines.loads import COMPUTE, IN, OUT
from enplace.machine.subgraphs import count_returns, find_subgraphs
from enplace.values.op_kinds import OpKind
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray, Profile

FORWARD, BACKWARD, WEIGHTS = 0, 1, 2
"""Passes: the gradients of weights are a pass of their own if other gradients go before them."""

N_PASSES = 3

N_PLACES = 2 * N_PASSES
"""Kinds of stages that a device may have: two of each pass."""

PASS_NAMES = ("forward", "backward", "weights")

UPDATE = 3
"""The part of a stage that runs once per step, after all samples."""


@dataclass(frozen=True, eq=False)
class Stage:
    """Ops that a device runs in one go for each microbatch.

    Attributes
    ----------
    devices : tuple of int
        One device, or several replicas that take microbatches in rotation.
    of : int
        :data:`FORWARD`, :data:`BACKWARD` or :data:`WEIGHTS`.
    ops : int array
    in_us, compute_us, out_us : tuple of float
        Time for each device to receive tensors, to compute, and to send tensors.
    reduce_us : tuple of float
        Time for each device to exchange gradients with the other replicas, after a microbatch.
    after : tuple of int
        Stages that must end before this one starts.
    update_us : tuple of float
        Time for each device to run what runs once per step, which is no part of ``compute_us``.
    """

    devices: tuple[int, ...]
    of: int
    ops: IntArray
    in_us: tuple[float, ...]
    compute_us: tuple[float, ...]
    out_us: tuple[float, ...]
    reduce_us: tuple[float, ...]
    after: tuple[int, ...]
    update_us: tuple[float, ...]

    @property
    def backward(self) -> bool:
        return self.of > FORWARD

    @property
    def work_us(self) -> float:
        """Time for the first device to receive, to compute and to send."""
        return self.in_us[0] + self.compute_us[0] + self.out_us[0]


def passes_of(problem: Problem, device: IntArray, *, weights_apart: bool) -> IntArray:
    """Find the pass of each op: :data:`FORWARD` or :data:`BACKWARD`; shape (n_ops,).

    If the gradients of weights count separately, as in zero-bubble pipelines, backward ops that no
    other device waits for are :data:`WEIGHTS`.
    """
    profile = problem.profile
    of = backward_ops(problem).astype(np.int64)
    if not weights_apart:
        return of
    waited = np.zeros(profile.n_ops, dtype=bool)
    counts = ~optimiser_ops(problem)
    for op in profile.topological_order[::-1].tolist():
        readers = profile.readers_of(op)
        readers = readers[counts[readers]]
        waited[op] = (waited[readers] | (device[readers] != device[op])).any()
    return np.where((of == BACKWARD) & ~waited, WEIGHTS, of)


def stages_of(
    problem: Problem, plan: Plan, passes: IntArray | None = None, halves: IntArray | None = None
) -> tuple[Stage, ...]:
    """Find the stages of a plan, in a topological order, forward stages first.

    The optimiser's ops belong to the last stage of their device. The parts of a device's stages add
    up to its load: it pays once for a tensor that it receives, in the first stage that needs it.
    If backward ops read nothing that forward ops make, as in the layer graphs of 2020, a sample
    still goes forward before it goes backward.

    Parameters
    ----------
    passes : int array, shape (n_ops,), optional
        The pass of each op: ops of different passes share no stage. One pass by default.
    halves : int array, shape (n_ops,), optional
        0 or 1 for each op: those that differ share no stage either.
    """
    none = np.zeros(problem.profile.n_ops, dtype=np.int64)
    passes, halves = (none if each is None else each for each in (passes, halves))
    # Of a device's stages, that of the first half ends last on the way back.
    stage, place, edges = _number_stages(problem, plan.device, 2 * passes + 1 - halves)
    on, of = np.divmod(place // 2, N_PASSES)
    edges = _forward_first(edges, of)
    groups = {group[0]: group for group in plan.replicas}
    part_us = _parts_of_devices_us(problem, plan, stage, on)
    for d in recomputing(problem, plan.device, plan.recompute):
        _run_forward_again(part_us, np.flatnonzero(on == d), place, edges, groups.get(d, (d,)))
    found = []
    for s, d in enumerate(on.tolist()):
        replicas = groups.get(d, (d,))
        us = np.stack([part_us[replica][:, s] for replica in replicas], axis=1).tolist()
        reduce_us = 0.0
        if len(replicas) > 1 and s == np.flatnonzero(on == d)[-1]:
            # Each replica exchanges gradients once after a microbatch of each (appendix C.2).
            reduce_us = len(replicas) * all_reduce_us(problem, plan.device, replicas)
        found.append(
            Stage(
                replicas,
                int(of[s]),
                np.flatnonzero(stage == s),
                tuple(us[IN]),
                tuple(us[COMPUTE]),
                tuple(us[OUT]),
                (reduce_us,) * len(replicas),
                tuple(edges[edges[:, 1] == s, 0].tolist()),
                tuple(us[UPDATE]),
            )
        )
    return tuple(found)


def share_updates(stages: tuple[Stage, ...], n_samples: int) -> tuple[Stage, ...]:
    """Count a share of what runs once per step towards the compute of each sample, as in loads."""
    if not any(any(stage.update_us) for stage in stages):
        return stages
    return tuple(
        replace(
            stage,
            compute_us=tuple(
                each_us + once_us / n_samples
                for each_us, once_us in zip(stage.compute_us, stage.update_us, strict=True)
            ),
            update_us=(0.0,) * len(stage.devices),
        )
        for stage in stages
    )


def visits_again(problem: Problem, plan: Plan) -> bool:
    """Whether a plan's schedule has samples visit devices again: in turns, or in a V."""
    if plan.load_rule is None or plan.load_rule.pipeline not in ("interleaved", "zbv"):
        return False
    backward = backward_ops(problem)
    place, n_places = 2 * plan.device + backward, 2 * problem.cluster.n_devices
    return bool(count_returns(problem.profile, place, n_places)[~backward].any())


def forward_stages(problem: Problem, plan: Plan, halves: IntArray | None = None) -> list[Stage]:
    """Return the stages of accelerators that go forward, in a topological order."""
    stages = stages_of(problem, plan, passes_of(problem, plan.device, weights_apart=False), halves)
    gpus = problem.cluster.gpus
    return [each for each in stages if not each.backward and each.devices[0] in gpus]


def all_read_parameters(profile: Profile, stages: Sequence[Stage]) -> bool:
    """Whether each stage reads a parameter, as stages of PyTorch do; so if nothing has any."""
    reads = profile.edge_op[profile.of_kind(OpKind.VARIABLE)[profile.edge_source]]
    return not len(reads) or all(np.isin(stage.ops, reads).any() for stage in stages)


def number_of_stage(stages: Sequence[Stage], n_ops: int) -> IntArray:
    """Return the number of each op's stage; shape (n_ops,)."""
    number = np.zeros(n_ops, dtype=np.int64)
    for at, stage in enumerate(stages):
        number[stage.ops] = at
    return number


def _run_forward_again(
    part_us: dict[int, FloatArray],
    here: IntArray,
    place: IntArray,
    edges: IntArray,
    devices: tuple[int, ...],
) -> None:
    """Add the time of each forward stage to the first stage there that goes back and reads from it.

    If none does, it is added to the first that goes back in the same half, or else of all.
    """
    of, half = place // 2 % N_PASSES, place % 2
    back = here[of[here] != FORWARD]
    if not len(back):  # in inference, all ops go forward
        return
    for number in here[of[here] == FORWARD].tolist():
        readers = np.intersect1d(edges[edges[:, 0] == number, 1], back)
        alike = back[half[back] == half[number]]
        again = next(each[0] for each in (readers, alike, back) if len(each))
        for device in devices:
            part_us[device][COMPUTE, again] += part_us[device][COMPUTE, number]


def _forward_first(edges: IntArray, of: IntArray) -> IntArray:
    """Let backward stages wait for all forward stages if none of them waits for any."""
    back = np.flatnonzero(of)
    turns = (of[edges[:, 0]] == FORWARD) & (of[edges[:, 1]] != FORWARD)
    if not len(back) or turns.any():
        return edges
    pairs = np.stack(np.meshgrid(np.flatnonzero(of == FORWARD), back), axis=-1).reshape(-1, 2)
    return np.concatenate([edges, pairs])


def _number_stages(
    problem: Problem, device: IntArray, separate: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Number the stages in a topological order.

    Returns
    -------
    stage : int array, shape (n_ops,)
    place : int array, shape (n_stages,)
        :data:`N_PLACES` times the device, plus what is separate.
    edges : int array, shape (n_edges, 2)
        Pairs of stages in which the second reads tensors of the first.
    """
    profile = problem.profile
    on_path = ~optimiser_ops(problem)
    found, stage = np.unique(
        _stage_keys(problem, N_PLACES * device + separate, on_path), return_inverse=True
    )
    place = found // profile.n_ops
    edge = on_path[profile.edge_source] & on_path[profile.edge_op]
    ends = [stage[profile.edge_source[edge]], stage[profile.edge_op[edge]]]
    edges = np.unique(np.stack(ends, axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    order = _order_stages(len(found), edges, place // 2 % N_PASSES)
    number = np.argsort(order)
    return number[stage], place[order], number[edges]


def _stage_keys(problem: Problem, place: IntArray, on_path: BoolArray) -> IntArray:
    """Compute the key of each op's stage: place times n_ops, plus subgraph; shape (n_ops,).

    The optimiser's ops, which are not on the path of a sample, share the last key of their device.
    """
    n_ops, n_places = problem.profile.n_ops, N_PLACES * problem.cluster.n_devices
    subgraph = find_subgraphs(problem.profile, np.where(on_path, place, -1), n_places)
    key, device = place * n_ops + subgraph, place // N_PLACES
    for d in np.unique(device[~on_path]):
        there = key[on_path & (device == d)]
        key[~on_path & (device == d)] = there.max() if len(there) else N_PLACES * d * n_ops
    return key


def _order_stages(n: int, edges: IntArray, of: IntArray) -> IntArray:
    """Order stages topologically: pass after pass, each stage as early as possible."""
    depth = np.zeros(n, dtype=np.int64)
    for _ in range(n):
        before = depth.copy()
        np.maximum.at(depth, edges[:, 1], depth[edges[:, 0]] + 1)
        if np.array_equal(before, depth):
            break
    order: IntArray = np.lexsort((np.arange(n), depth, of))
    return order


def _parts_of_devices_us(
    problem: Problem, plan: Plan, stage: IntArray, on: IntArray
) -> dict[int, FloatArray]:
    """Find the time of the parts of each stage, for each device that may run it; (4, n_stages).

    Replicas may differ in speed and links, so for each of them the ops are evaluated as if placed
    on it.
    """
    part_us = dict.fromkeys(on.tolist(), _parts_us(problem, plan.device, stage, len(on)))
    for first, *others in plan.replicas:
        if first in part_us:
            for replica in others:
                there = np.where(plan.device == first, replica, plan.device)
                part_us[replica] = _parts_us(problem, there, stage, len(on))
    return part_us


def _parts_us(problem: Problem, device: IntArray, stage: IntArray, n: int) -> FloatArray:
    """Find the time of the parts of each stage: compute, in, out and update; (4, n)."""
    parts, once = np.zeros((4, n)), optimiser_ops(problem)
    own_us = problem.time_us[np.arange(problem.profile.n_ops), device]
    parts[COMPUTE] = np.bincount(stage, np.where(once, 0.0, own_us), n)
    parts[UPDATE] = np.bincount(stage, np.where(once, own_us, 0.0), n)
    parts[IN], parts[OUT] = _transfers_us(problem, device, stage, n)
    return parts


def _transfers_us(
    problem: Problem, device: IntArray, stage: IntArray, n_stages: int
) -> tuple[FloatArray, FloatArray]:
    """Find the time of the tensors that each stage receives, and of those that it sends."""
    profile, cost = problem.profile, sample_us(problem)
    tensor, reader = profile.edge_tensor, device[profile.edge_op]
    home = device[profile.tensor_op][tensor]
    out = np.unique(tensor[home != reader])
    maker = profile.tensor_op[out]
    out_us = np.bincount(stage[maker], cost[out, device[maker]], n_stages)
    # The first stage of a device that reads a tensor receives it.
    brought = np.flatnonzero(home != reader)
    brought = brought[np.argsort(stage[profile.edge_op[brought]], kind="stable")]
    pair = tensor[brought] * problem.cluster.n_devices + reader[brought]
    first = brought[np.unique(pair, return_index=True)[1]]
    in_us = np.bincount(stage[profile.edge_op[first]], cost[tensor[first], reader[first]], n_stages)
    return in_us.astype(np.float64), out_us.astype(np.float64)
