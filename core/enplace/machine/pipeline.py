"""Pipelines in time: many samples on their way through the devices at once.

After Tarnawski et al. 2020: inference in rounds (section 5.1, Fig. 5), and training as PipeDream
does it, one forward and one backward in turn, or as GPipe does, all forward and then all backward
(section 5.3, Fig. 7). Where the ops of a device are not contiguous they are several stages, on
virtual devices that take turns (section 5.2, Fig. 5b).

Every device takes its jobs in a fixed order, each as soon as what it waits for is done; so the
rounds of the paper are there, but nobody waits for the end of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from enplace.errors import ProblemError
from enplace.machine.loads import (
    COMPUTE,
    IN,
    OUT,
    all_reduce_us,
    backward_ops,
    optimiser_ops,
    send_us,
)
from enplace.machine.subgraphs import pieces_of
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

KINDS = ("inference", "1f1b", "gpipe")
"""Samples one after the other through the whole graph, and the two schedules of training."""

REDUCE = 3
"""The resource of gradients on their way, beside those of a rule."""

MOST_JOBS = 60_000
"""So many are played to see how a full pipeline goes on."""


@dataclass(frozen=True, eq=False)
class Stage:
    """Ops that a device does in one go for each microbatch.

    Attributes
    ----------
    devices : tuple of int
        One, or several that take turns with the microbatches.
    backward : bool
    ops : int array
    in_us, compute_us, out_us : tuple of float
        What it takes each of them to bring tensors in, to compute, and to send tensors out.
    reduce_us : tuple of float
        What it takes each of them to exchange gradients with the others, after its turn.
    after : tuple of int
        Stages that have to be done before.
    """

    devices: tuple[int, ...]
    backward: bool
    ops: IntArray
    in_us: tuple[float, ...]
    compute_us: tuple[float, ...]
    out_us: tuple[float, ...]
    reduce_us: tuple[float, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """A stage at work on a microbatch, or bringing in or sending out its tensors.

    Attributes
    ----------
    microbatch, stage : int
        From 0; stages in the order of :attr:`PipelineSchedule.stages`.
    backward : bool
    part : int
        :data:`~enplace.machine.loads.COMPUTE`, ``IN`` or ``OUT``.
    device : int
    start_us, finish_us : float
    """

    microbatch: int
    stage: int
    backward: bool
    part: int
    device: int
    start_us: float
    finish_us: float


@dataclass(frozen=True)
class PipelineSchedule:
    """Who does what when.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    n_microbatches : int
    stages : tuple of Stage
        In a topological order, forward ones first.
    computing : tuple of tuples of Slot
        What each device computes, in order.
    transfers : tuple of Slot
        In the order in which they start.
    makespan_us : float
    time_per_sample_us : float
        What each further microbatch adds to the makespan once the pipeline is full, however few
        there are here.
    in_flight : tuple of int
        Most microbatches at a time whose forward ops a device has begun and whose backward ops it
        has not ended: so many samples' activations it holds. For inference, those inside a stage.
    """

    kind: str
    n_microbatches: int
    stages: tuple[Stage, ...]
    computing: tuple[tuple[Slot, ...], ...]
    transfers: tuple[Slot, ...]
    makespan_us: float
    time_per_sample_us: float
    in_flight: tuple[int, ...]


def simulate_pipeline(
    problem: Problem, plan: Plan, kind: str, n_microbatches: int, rule: LoadRule = USUAL
) -> PipelineSchedule:
    """Play a plan as a pipeline.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    rule : LoadRule
        Whether transfers go on beside the computing.

    Raises
    ------
    ProblemError
        If a graph without a backward pass is to be trained.
    """
    backward = backward_ops(problem) if kind != "inference" else None
    if backward is not None and not backward.any():
        raise ProblemError(
            f"profile '{problem.profile.name}' has no backward pass; play it as 'inference'"
        )
    stages = stages_of(problem, plan, backward)
    owner = problem.cluster.lane_owner.tolist()
    slots, done_us = _played(stages, kind, n_microbatches, rule, owner)
    computing = [slot for slot in slots if slot.part == COMPUTE]
    transfers = [slot for slot in slots if slot.part != COMPUTE]
    devices = range(problem.cluster.n_devices)
    return PipelineSchedule(
        kind,
        n_microbatches,
        stages,
        tuple(tuple(slot for slot in computing if slot.device == d) for d in devices),
        tuple(sorted(transfers, key=lambda slot: slot.start_us)),
        max(done_us.values()),
        _time_per_sample_us(stages, kind, rule, owner),
        tuple(_in_flight([slot for slot in slots if slot.device == d]) for d in devices),
    )


def planned_rule(plan: Plan) -> LoadRule:
    """How loads count, as the plan was made; the usual way if it does not say so."""
    return plan.load_rule or USUAL


def _played(
    stages: tuple[Stage, ...], kind: str, n_microbatches: int, rule: LoadRule, owner: list[int]
) -> tuple[list[Slot], dict[tuple[int, int], float]]:
    """What is done when, and when each microbatch is through each stage.

    Logical devices of one chip, whose first is the ``owner``, compute one after another.
    """
    free_us: dict[tuple[str, int, int], float] = {}
    done_us: dict[tuple[int, int], float] = {}
    slots: list[Slot] = []
    for microbatch, number, part in _in_order(stages, kind, n_microbatches, rule):
        stage = stages[number]
        turn = microbatch % len(stage.devices)
        device = stage.devices[turn]
        now = done_us.get((microbatch, number), 0.0)
        if part == IN:
            now = max((done_us[microbatch, before] for before in stage.after), default=0.0)
        us = (stage.compute_us, stage.in_us, stage.out_us)[part][turn]
        if part == COMPUTE or us > 0:
            takes = [("device", device, rule.resource(part))]
            if part == COMPUTE:
                takes.append(("chip", owner[device], COMPUTE))
            start = max(now, *(free_us.get(resource, 0.0) for resource in takes))
            now = start + us
            free_us.update(dict.fromkeys(takes, now))
            slots.append(Slot(microbatch, number, stage.backward, part, device, start, now))
        done_us[microbatch, number] = now
        if part == OUT and (us := stage.reduce_us[turn]) > 0:
            # Between GPUs, not by the way of other tensors; no stage waits for it.
            link = "device", device, COMPUTE if rule.n_resources == 1 else REDUCE
            start = max(now, free_us.get(link, 0.0))
            free_us[link] = done_us[microbatch, len(stages) + number] = start + us
            slots.append(Slot(microbatch, number, stage.backward, OUT, device, start, start + us))
    return slots, done_us


def stages_of(problem: Problem, plan: Plan, backward: BoolArray | None = None) -> tuple[Stage, ...]:
    """The stages of a plan, in a topological order, forward ones first.

    What makes new weights of the gradients is done with the last stage of its device.
    What the stages of a device have to do adds up to its load: it pays once for what it brings in,
    in the first of its stages that needs it.

    Parameters
    ----------
    backward : bool array, shape (n_ops,), optional
        Ops whose stages are apart from the others; none by default.
    """
    profile, device = problem.profile, plan.device
    apart = np.zeros(profile.n_ops, dtype=bool) if backward is None else backward
    place = 2 * device + apart
    on_the_way = ~optimiser_ops(problem)
    pieces = pieces_of(profile, np.where(on_the_way, place, -1), 2 * problem.cluster.n_devices)
    key = place * profile.n_ops + pieces
    for d in np.unique(device[~on_the_way]):
        there = key[on_the_way & (device == d)]
        key[~on_the_way & (device == d)] = there.max() if len(there) else (2 * d) * profile.n_ops
    found, stage = np.unique(key, return_inverse=True)
    n, place_of = len(found), found // profile.n_ops
    edge = on_the_way[profile.edge_source] & on_the_way[profile.edge_op]
    ends = [stage[profile.edge_source[edge]], stage[profile.edge_op[edge]]]
    edges = np.unique(np.stack(ends, axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    order = _topological(n, edges, place_of % 2 == 1)
    number = np.argsort(order)
    stage, edges = number[stage], number[edges]
    on, last = place_of[order] // 2, place_of[order] % 2 == 1
    groups = {group[0]: group for group in plan.replicas}
    # What is the same for all but the copies is worked out once.
    needs_us = dict.fromkeys(on.tolist(), _needs_us(problem, device, stage, n))
    for d in groups.keys() & needs_us.keys():
        for copy in groups[d][1:]:
            there = np.where(device == d, copy, device)
            needs_us[copy] = _needs_us(problem, there, stage, n)
    found = []
    for s, d in enumerate(on.tolist()):
        members = groups.get(d, (d,))
        # Every so many samples, all of the others' gradients (appendix C.2).
        is_last = s == np.flatnonzero(on == d)[-1] and len(members) > 1
        reduce_us = len(members) * all_reduce_us(problem, device, members) if is_last else 0.0
        us = np.stack([needs_us[member][:, s] for member in members], axis=1).tolist()
        found.append(
            Stage(
                members,
                bool(last[s]),
                np.flatnonzero(stage == s),
                tuple(us[IN]),
                tuple(us[COMPUTE]),
                tuple(us[OUT]),
                (reduce_us,) * len(members),
                tuple(edges[edges[:, 1] == s, 0].tolist()),
            )
        )
    return tuple(found)


def _needs_us(problem: Problem, device: IntArray, stage: IntArray, n: int) -> FloatArray:
    """What the parts of each stage take, by :data:`COMPUTE`, ``IN`` and ``OUT``; shape (3, n)."""
    in_us, out_us = _transfers_us(problem, device, stage, n)
    work_us = problem.time_us[np.arange(problem.profile.n_ops), device]
    needs = np.zeros((3, n))
    needs[COMPUTE], needs[IN], needs[OUT] = np.bincount(stage, work_us, n), in_us, out_us
    return needs


def _topological(n: int, edges: IntArray, backward: BoolArray) -> IntArray:
    """An order of the stages; forward ones first, as early as they can."""
    depth = np.zeros(n, dtype=np.int64)
    for _ in range(n):
        before = depth.copy()
        np.maximum.at(depth, edges[:, 1], depth[edges[:, 0]] + 1)
        if np.array_equal(before, depth):
            break
    order: IntArray = np.lexsort((np.arange(n), depth, backward))
    return order


def _transfers_us(
    problem: Problem, device: IntArray, stage: IntArray, n_stages: int
) -> tuple[FloatArray, FloatArray]:
    """What each stage brings in and sends out."""
    profile, cost = problem.profile, send_us(problem)
    tensor, reader = profile.edge_tensor, device[profile.edge_op]
    home = device[profile.tensor_op][tensor]
    out = np.unique(tensor[home != reader])
    maker = profile.tensor_op[out]
    out_us = np.bincount(stage[maker], cost[out, device[maker]], n_stages)
    # The first stage of a device that reads a tensor brings it in.
    brought = np.flatnonzero(home != reader)
    brought = brought[np.argsort(stage[profile.edge_op[brought]], kind="stable")]
    pair = tensor[brought] * problem.cluster.n_devices + reader[brought]
    first = brought[np.unique(pair, return_index=True)[1]]
    in_us = np.bincount(stage[profile.edge_op[first]], cost[tensor[first], reader[first]], n_stages)
    return in_us.astype(np.float64), out_us.astype(np.float64)


def _in_order(
    stages: tuple[Stage, ...], kind: str, n: int, rule: LoadRule
) -> list[tuple[int, int, int]]:
    """Microbatch, stage and part of all that is done, in the order in which devices take theirs.

    In rounds a microbatch is in one stage of each, and the next is one stage behind. With one
    forward and one backward in turn it is two behind, so that of k forward stages the first never
    has more than k microbatches whose backward ops are to come. Where transfers go on beside the
    computing, a stage takes three rounds: one to bring tensors in, and one to send them out
    (appendix C.1). Where devices take turns, a round has so many microbatches that all of them have
    their share.
    """
    together = _in_turns(stages)
    forward = sum(not stage.backward for stage in stages)
    parts = {part: at if rule.n_resources > 1 else 0 for at, part in enumerate((IN, COMPUTE, OUT))}
    rounds = max(parts.values()) + 1
    behind = 2 if kind == "1f1b" else 1

    def turn(task: tuple[int, int, int]) -> tuple[bool, int, int, int]:
        microbatch, stage, part = task
        late = kind == "gpipe" and stage >= forward
        number = microbatch // together
        return late, behind * number + rounds * stage + parts[part], microbatch, stage

    # What has the same turn keeps the order of its parts.
    return sorted(
        ((m, s, p) for m in range(n) for s in range(len(stages)) for p in parts), key=turn
    )


def _in_turns(stages: tuple[Stage, ...]) -> int:
    """So many microbatches that all who take turns with a stage have equally many."""
    return math.lcm(*(len(stage.devices) for stage in stages))


def _time_per_sample_us(
    stages: tuple[Stage, ...], kind: str, rule: LoadRule, owner: list[int]
) -> float:
    """By how much twice as many microbatches take longer, for each of them.

    There are enough that the pipeline is full for a while, as long as that is quickly done.
    """
    turn = _in_turns(stages)
    rounds = min(8 * len(stages) + 8, MOST_JOBS // len(stages) // turn)
    enough = turn * max(1, rounds)
    once, twice = (
        max(_played(stages, kind, n, rule, owner)[1].values()) for n in (enough, 2 * enough)
    )
    return (twice - once) / enough


def _in_flight(slots: list[Slot]) -> int:
    """Most microbatches between the first and the last that a device does for them."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    for slot in slots:
        begun[slot.microbatch] = min(begun.get(slot.microbatch, np.inf), slot.start_us)
        ended[slot.microbatch] = max(ended.get(slot.microbatch, 0.0), slot.finish_us)
    # At one time, what ends comes before what begins.
    events = sorted([(us, -1) for us in ended.values()] + [(us, 1) for us in begun.values()])
    return int(np.cumsum([step for _, step in events]).max(initial=0))
