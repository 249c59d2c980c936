"""Pipelines in time: many samples on their way through the devices at once.

After Tarnawski et al. 2020: inference in rounds (section 5.1, Fig. 5), and training as in
PipeDream, forward and backward alternating, or as in GPipe, all forward and then all backward
(section 5.3, Fig. 7).

Every device takes its work in a fixed order, each item as soon as its inputs are there. So the
rounds of the paper appear, but no device waits for the end of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from enplace.errors import ProblemError
from enplace.machine.loads import COMPUTE, IN, OUT
from enplace.machine.passes import backward_ops
from enplace.machine.stages import Stage, stages_of
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import Problem

KINDS = ("inference", "1f1b", "gpipe")
"""Samples one after another through the whole graph, and the two schedules of training."""

REDUCE = 3
"""The resource that carries gradients, besides those of a rule."""

_Resource = tuple[str, int, int]
"""A device or chip, its number, and one of its resources: it does one thing at a time."""

MOST_SLOTS = 60_000
"""At most so many slots are simulated to see how a full pipeline goes on."""


@dataclass(frozen=True)
class Slot:
    """When a stage computes for a microbatch, brings in its tensors or sends them out.

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
    """When every stage handles every microbatch.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    n_microbatches : int
    stages : tuple of Stage
        In a topological order, forward ones first.
    computing : tuple of tuples of Slot
        Slots in which each device computes, in order.
    transfers : tuple of Slot
        In the order in which they start.
    makespan_us : float
    time_per_sample_us : float
        Time that each further microbatch adds to the makespan once the pipeline is full, even if
        this schedule has too few to fill it.
    in_flight : tuple of int
        Most microbatches at a time whose forward ops a device has begun and whose backward ops it
        has not finished: it holds the activations of so many. For inference, those inside a stage.
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
    """Simulate a plan as a pipeline.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    rule : LoadRule
        Whether transfers overlap with computing.

    Raises
    ------
    ProblemError
        If the graph has no backward pass and ``kind`` is a schedule of training.
    """
    backward = backward_ops(problem) if kind != "inference" else None
    if backward is not None and not backward.any():
        raise ProblemError(
            f"profile '{problem.profile.name}' has no backward pass; simulate it as 'inference'"
        )
    stages = stages_of(problem, plan, backward)
    owner = problem.cluster.lane_owner.tolist()
    slots, done_us = _run(stages, kind, n_microbatches, rule, owner)
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
    """Return the rule that the plan was made for; the usual one if the plan does not name one."""
    return plan.load_rule or USUAL


def _run(
    stages: tuple[Stage, ...], kind: str, n_microbatches: int, rule: LoadRule, owner: list[int]
) -> tuple[list[Slot], dict[tuple[int, int], float]]:
    """Find when everything happens, and when each microbatch is through each stage.

    Logical devices of one chip, whose first is the ``owner``, compute one after another.
    """
    free_us: dict[_Resource, float] = {}
    done_us: dict[tuple[int, int], float] = {}
    slots: list[Slot] = []

    def occupy(resources: list[_Resource], ready_us: float, us: float) -> tuple[float, float]:
        start = max(ready_us, *(free_us.get(resource, 0.0) for resource in resources))
        free_us.update(dict.fromkeys(resources, start + us))
        return start, start + us

    for microbatch, number, part in _in_order(stages, kind, n_microbatches, rule):
        stage = stages[number]
        replica = microbatch % len(stage.devices)
        device = stage.devices[replica]
        now = done_us.get((microbatch, number), 0.0)
        if part == IN:
            now = max((done_us[microbatch, before] for before in stage.after), default=0.0)
        us = (stage.compute_us, stage.in_us, stage.out_us)[part][replica]
        if part == COMPUTE or us > 0:
            resources: list[_Resource] = [("device", device, rule.resource(part))]
            if part == COMPUTE:
                resources.append(("chip", owner[device], COMPUTE))
            start, now = occupy(resources, now, us)
            slots.append(Slot(microbatch, number, stage.backward, part, device, start, now))
        done_us[microbatch, number] = now
        if part == OUT and (us := stage.reduce_us[replica]) > 0:
            # Gradients go directly between GPUs, and no stage waits for them.
            link = "device", device, COMPUTE if rule.n_resources == 1 else REDUCE
            start, end = occupy([link], now, us)
            done_us[microbatch, len(stages) + number] = end
            slots.append(Slot(microbatch, number, stage.backward, OUT, device, start, end))
    return slots, done_us


def _in_order(
    stages: tuple[Stage, ...], kind: str, n: int, rule: LoadRule
) -> list[tuple[int, int, int]]:
    """List microbatch, stage and part of all slots, in the order in which devices take theirs.

    In rounds, each microbatch is in one stage and the next is one stage behind. With one forward
    and one backward in alternation it is two behind, so that of k forward stages the first never
    has more than k microbatches whose backward ops are to come. Where transfers overlap with
    computing, a stage takes three rounds: bring tensors in, compute, send tensors out (appendix
    C.1). With replicas, a round has enough microbatches that every replica has its share.
    """
    together = _microbatches_per_round(stages)
    forward = sum(not stage.backward for stage in stages)
    parts = {part: at if rule.n_resources > 1 else 0 for at, part in enumerate((IN, COMPUTE, OUT))}
    rounds = max(parts.values()) + 1
    behind = 2 if kind == "1f1b" else 1

    def rank(slot: tuple[int, int, int]) -> tuple[bool, int, int, int]:
        microbatch, stage, part = slot
        late = kind == "gpipe" and stage >= forward
        number = microbatch // together
        return late, behind * number + rounds * stage + parts[part], microbatch, stage

    # Slots of the same rank keep the order of their parts.
    return sorted(
        ((m, s, p) for m in range(n) for s in range(len(stages)) for p in parts), key=rank
    )


def _microbatches_per_round(stages: tuple[Stage, ...]) -> int:
    """Return the fewest microbatches that all replicas of every stage share equally."""
    return math.lcm(*(len(stage.devices) for stage in stages))


def _time_per_sample_us(
    stages: tuple[Stage, ...], kind: str, rule: LoadRule, owner: list[int]
) -> float:
    """Return the time that each further microbatch adds, from twice as many microbatches.

    There are enough that the pipeline is full for a while, within :data:`MOST_SLOTS`.
    """
    together = _microbatches_per_round(stages)
    rounds = min(8 * len(stages) + 8, MOST_SLOTS // len(stages) // together)
    enough = together * max(1, rounds)
    once, twice = (
        max(_run(stages, kind, n, rule, owner)[1].values()) for n in (enough, 2 * enough)
    )
    return (twice - once) / enough


def _in_flight(slots: list[Slot]) -> int:
    """Count the most microbatches at a time between a device's first and last slot for each."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    for slot in slots:
        begun[slot.microbatch] = min(begun.get(slot.microbatch, np.inf), slot.start_us)
        ended[slot.microbatch] = max(ended.get(slot.microbatch, 0.0), slot.finish_us)
    # At the same time, ends come before begins.
    events = sorted([(us, -1) for us in ended.values()] + [(us, 1) for us in begun.values()])
    return int(np.cumsum([step for _, step in events]).max(initial=0))
