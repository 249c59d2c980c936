"""Pipelines over time: many samples on their way through the devices at once.

After Tarnawski et al. 2020: inference in rounds (section 5.1, Fig. 5), and training as in
PipeDream, forward and backward alternating, or as in GPipe, all forward and then all backward
(section 5.3, Fig. 7).

Every device has its work in a fixed order, and starts each item as soon as its inputs are there.
This gives the rounds of the paper, but no device waits for the end of a round.
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
"""Inference, where samples follow each other through the graph, and two training schedules."""

REDUCE = 3
"""The resource that carries gradients, in addition to those of a rule."""

_Resource = tuple[str, int, int]
"""A device or chip, its number, and one of its resources, which does one thing at a time."""

MOST_SLOTS = 60_000
"""Most slots that are simulated to see how a full pipeline continues."""


@dataclass(frozen=True)
class Slot:
    """When a stage computes for a microbatch, receives its tensors or sends them.

    Attributes
    ----------
    microbatch, stage : int
        Numbers from 0; stages as in :attr:`PipelineSchedule.stages`.
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
        In a topological order, forward stages first.
    computing : tuple of tuples of Slot
        The slots in which each device computes, in order.
    transfers : tuple of Slot
        All transfers by start.
    makespan_us : float
    time_per_sample_us : float
        Time that each further microbatch adds to the makespan once the pipeline is full, even if
        this schedule has too few to fill it.
    in_flight : tuple of int
        For each device, the most microbatches at a time whose forward ops it has begun and whose
        backward ops it has not finished; it holds their activations. For inference, those in a
        stage.
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
        Whether transfers overlap with compute.

    Raises
    ------
    ProblemError
        If the graph has no backward pass and ``kind`` is a training schedule.
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
    """Return the rule that the plan was made for; the usual one if the plan has none."""
    return plan.load_rule or USUAL


def _run(
    stages: tuple[Stage, ...], kind: str, n_microbatches: int, rule: LoadRule, owner: list[int]
) -> tuple[list[Slot], dict[tuple[int, int], float]]:
    """Find when everything happens, and when each microbatch has passed each stage.

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
            # Gradients go directly between GPUs, and no stage waits for these transfers.
            link = "device", device, COMPUTE if rule.n_resources == 1 else REDUCE
            start, end = occupy([link], now, us)
            done_us[microbatch, len(stages) + number] = end
            slots.append(Slot(microbatch, number, stage.backward, OUT, device, start, end))
    return slots, done_us


def _in_order(
    stages: tuple[Stage, ...], kind: str, n: int, rule: LoadRule
) -> list[tuple[int, int, int]]:
    """List microbatch, stage and part of all slots, in the order in which devices process them.

    In rounds, each microbatch is in one stage and the next microbatch is one stage behind. If
    forward and backward alternate, it is two behind; so with k forward stages, the first stage
    never has more than k microbatches whose backward ops are still to come. If transfers overlap
    with compute, a stage takes three rounds: receive tensors, compute, send tensors (appendix C.1).
    With replicas, a round has enough microbatches for every replica to have its share.
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
    """Return the fewest microbatches that the replicas of every stage can share equally."""
    return math.lcm(*(len(stage.devices) for stage in stages))


def _time_per_sample_us(
    stages: tuple[Stage, ...], kind: str, rule: LoadRule, owner: list[int]
) -> float:
    """Return the time that each further microbatch adds, from twice as many microbatches.

    There are enough to keep the pipeline full for a while, within :data:`MOST_SLOTS`. The slowest
    stage counts, which need not be the last to finish until a great many microbatches have passed.
    """
    together = _microbatches_per_round(stages)
    rounds = min(8 * len(stages) + 8, MOST_SLOTS // len(stages) // together)
    enough = together * max(1, rounds)
    once, twice = (_run(stages, kind, n, rule, owner)[1] for n in (enough, 2 * enough))
    added_us = (us - once[m - enough, s] for (m, s), us in twice.items() if m == 2 * enough - 1)
    return max(added_us) / enough


def _in_flight(slots: list[Slot]) -> int:
    """Count the most microbatches at a time between a device's first and last slot for each."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    for slot in slots:
        begun[slot.microbatch] = min(begun.get(slot.microbatch, np.inf), slot.start_us)
        ended[slot.microbatch] = max(ended.get(slot.microbatch, 0.0), slot.finish_us)
    # Ends come before begins at the same time.
    events = sorted([(us, -1) for us in ended.values()] + [(us, 1) for us in begun.values()])
    return int(np.cumsum([step for _, step in events]).max(initial=0))
