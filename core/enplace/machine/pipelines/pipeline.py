"""Pipelines over time: many samples on their way through the devices at once.

After Tarnawski et al. 2020: inference (section 5.1, Fig. 5), and training as in PipeDream, forward
and backward alternating, or as in GPipe, all forward and then all backward (section 5.3, Fig. 7).
Besides, interleaved stages as in Megatron (Narayanan et al. 2021), pipelines that delay the
gradients of weights (ZB-H1, Qi et al. 2023), and stages in a V (ZB-V).

Every device has its work in a fixed order, and starts each item as soon as its inputs are there.
The order is that of a pattern (:mod:`enplace.machine.pipelines.patterns`) in which samples follow
each other at the pace of the busiest device, or at the plan's own if that is slower. Where samples
do not fit at an even pace, they may wait for room instead
(:mod:`enplace.machine.pipelines.memory_waits`), or each is a step of its own
(:mod:`enplace.machine.pipelines.one_by_one`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from enplace.errors import ProblemError
from enplace.machine.host_links import send_us
from enplace.machine.op_passes import backward_ops, never_changed, once_per_step
from enplace.machine.pipelines.interleaving import Work, order_interleaved
from enplace.machine.pipelines.loads import (
    COMPUTE,
    IN,
    OUT,
    add_up_parts_us,
    pass_loads_us,
    transfer_parts_us,
)
from enplace.machine.pipelines.memory import Holds, find_holds, find_memory
from enplace.machine.pipelines.memory_waits import (
    ROUNDING,
    Room,
    busiest_us,
    find_cycle,
    find_room,
    order_with_room,
    stay_share_us,
)
from enplace.machine.pipelines.one_by_one import find_step, repeat_memory, spans_of_step
from enplace.machine.pipelines.patterns import (
    CLOSE,
    Item,
    Use,
    find_starts,
    least_period_us,
    wait_for_room,
)
from enplace.machine.pipelines.stages import (
    FORWARD,
    WEIGHTS,
    Stage,
    passes_of,
    share_updates,
    stages_of,
)
from enplace.machine.pipelines.v_shape import find_halves, order_in_v
from enplace.names.guessed_passes import backward_hint
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.memory import MemoryCurve
from enplace.values.plan import Plan
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

KINDS = ("inference", "1f1b", "interleaved", "zb-h1", "zbv", "gpipe")
"""Inference, where samples follow each other through the graph, and the training schedules."""

WAITING = ("zb-h1", "zbv")
"""Kinds in which gradients of weights wait."""

REDUCE = 3
"""The part of a stage in which replicas exchange gradients, and its resource if transfers overlap.
"""

EXCHANGED = "of weights and gradients, once per step"
"""What an exchange moves, in words."""

ONCE_PER_STEP = "at most on a device, once per step, after its last sample"
"""When updates run, in words."""

MOST_SLOTS = 60_000
"""Most slots that are simulated to see how a full pipeline continues."""

MOST_DELAYS = 8
"""About how many delays of the gradients of weights are tried besides none."""

LONGER = 1.02
"""Factor by which periods grow if no pattern is found at the pace of the busiest device."""


@dataclass(frozen=True)
class Slot:
    """When a stage computes for a microbatch, receives its tensors or sends them.

    Attributes
    ----------
    microbatch, stage : int
        Numbers from 0; stages as in :attr:`PipelineSchedule.stages`.
    of : int
        The pass of the stage.
    part : int
        :data:`~enplace.machine.pipelines.loads.COMPUTE`, ``IN`` or ``OUT``.
    device : int
    start_us, finish_us : float
    """

    microbatch: int
    stage: int
    of: int
    part: int
    device: int
    start_us: float
    finish_us: float

    @property
    def backward(self) -> bool:
        return self.of > FORWARD


@dataclass(frozen=True)
class Exchange:
    """When a device sends and receives what crosses once per step.

    Sums of gradients go to the updates of their variables, then new weights to their copies.

    Attributes
    ----------
    device : int
    start_us, finish_us : float
    n_bytes : int
        What it sends and receives.
    """

    device: int
    start_us: float
    finish_us: float
    n_bytes: int


@dataclass(frozen=True)
class Update:
    """When a device runs what runs once per step, such as updates of its variables.

    Attributes
    ----------
    device : int
    start_us, finish_us : float
    """

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
        The time of one step: that of all microbatches, and of the updates and the exchange after
        them.
    time_per_sample_us : float
        Time that each further microbatch adds to the makespan once the pipeline is full, even if
        this schedule has too few to fill it.
    in_flight : tuple of int
        For each device, the most microbatches at a time whose forward ops it has begun and whose
        backward ops it has not finished; it holds their activations. For inference, those in a
        stage.
    memory : tuple of MemoryCurve
        What each device holds over time: :mod:`enplace.machine.pipelines.memory`.
    exchange : tuple of Exchange
        What devices send and receive after the last microbatch, once per step; none in inference,
        where weights do not change.
    updates : tuple of Update
        What devices run once per step, each when the last microbatch has left it.
    """

    kind: str
    n_microbatches: int
    stages: tuple[Stage, ...]
    computing: tuple[tuple[Slot, ...], ...]
    transfers: tuple[Slot, ...]
    makespan_us: float
    time_per_sample_us: float
    in_flight: tuple[int, ...]
    memory: tuple[MemoryCurve, ...]
    exchange: tuple[Exchange, ...] = ()
    updates: tuple[Update, ...] = ()

    @property
    def peak_bytes(self) -> IntArray:
        """The most that each device holds at a time; shape (n_devices,)."""
        return np.array([curve.peak_bytes for curve in self.memory], dtype=np.int64)

    @property
    def mean_us(self) -> float:
        """The mean time of a microbatch: that of the step over their number."""
        return self.makespan_us / self.n_microbatches

    @property
    def exchange_us(self) -> float:
        """The time of the exchange after the last microbatch."""
        return max((each.finish_us - each.start_us for each in self.exchange), default=0.0)

    def computing_us(self, device: int) -> float:
        """Return the time that a device computes, its updates included."""
        return _sum_us([*self.computing[device], *self.updates], device)

    def transferring_us(self, device: int) -> float:
        """Return the time that a device receives and sends, its part of the exchange included."""
        return _sum_us([*self.transfers, *self.exchange], device)

    def slots_of(self, device: int) -> list[Slot]:
        """List a device's slots, computing and transfers."""
        return [*self.computing[device], *(s for s in self.transfers if s.device == device)]


def _sum_us(work: Sequence[Slot | Exchange | Update], device: int) -> float:
    return sum(each.finish_us - each.start_us for each in work if each.device == device)


def simulate_pipeline(
    problem: Problem,
    plan: Plan,
    kind: str,
    n_microbatches: int,
    rule: LoadRule = USUAL,
    *,
    with_room: bool = True,
) -> PipelineSchedule:
    """Simulate a plan as a pipeline.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    rule : LoadRule
        Whether transfers overlap with compute, and how many samples share what runs once per step.
    with_room : bool
        Whether samples may wait for room, or follow each other one by one, if they do not fit at
        the plan's pace.

    Raises
    ------
    ProblemError
        If the graph has no backward pass and ``kind`` is a training schedule.
    """
    passes, halves = None, None
    if kind != "inference":
        if not backward_ops(problem).any():
            raise ProblemError(
                f"profile '{problem.profile.name}' has no backward pass: simulate it as "
                f"'inference' or, {backward_hint(problem.measured_profile)}"
            )
        passes = passes_of(problem, plan.device, weights_apart=kind in WAITING)
        halves = find_halves(problem, plan, passes) if kind == "zbv" else None
    if kind == "zbv" and halves is None:  # no V: gradients of weights wait as in ZB-H1
        found = simulate_pipeline(problem, plan, "zb-h1", n_microbatches, rule, with_room=with_room)
        return replace(found, kind=kind)
    stages = stages_of(problem, plan, passes, halves)
    shared = share_updates(stages, rule.microbatches)
    stages = shared if kind == "inference" else stages
    holds = find_holds(problem, plan, stages, overlap=rule.n_resources > 1)
    order = _fixed_order(kind, stages, halves)
    owner = problem.cluster.lane_owner.tolist()
    exchange = () if kind == "inference" else exchanges(problem, plan.device, rule)

    def find(most: int = 0) -> list[PipelineSchedule]:
        found = [find_in_a_way(most, waits=True)]
        if kind != "gpipe" and _goes_same_way(stages):
            found.append(find_in_a_way(most, waits=False))
        return found

    def find_in_a_way(most: int, *, waits: bool) -> PipelineSchedule:
        play, paced = (
            _Play(each, kind, rule, owner, plan.pace_us, most, waits=waits, order=order)
            for each in (stages, shared)
        )
        return find_schedule(play, paced.time_per_sample_us())

    def find_schedule(play: _Play, each_us: float) -> PipelineSchedule:
        return _find_schedule(problem, plan, play, each_us, holds, n_microbatches, exchange)

    if kind == "zb-h1":
        in_turn = simulate_pipeline(
            problem, plan, "1f1b", n_microbatches, rule, with_room=with_room
        )
        most = max(in_turn.in_flight)
        delays = range(most, -1, -(most // MOST_DELAYS + 1))
        return _shortest(problem, in_turn, [each for most in delays for each in find(most)])
    best = min(find(), key=lambda each: (each.time_per_sample_us, fullest_share(problem, each)))
    if with_room and plan.pace_us > 0 and kind == "1f1b" and fullest_share(problem, best) > 1:
        play = _find_play_with_room(problem, plan, stages, rule, plan.pace_us)
        best = best if play is None else find_schedule(play, play.time_per_sample_us())
    if with_room and plan.pace_us > 0 and kind != "gpipe" and fullest_share(problem, best) > 1:
        best = _run_one_by_one(problem, plan, kind, stages, n_microbatches) or best
    return best


def _run_one_by_one(
    problem: Problem, plan: Plan, kind: str, stages: tuple[Stage, ...], n: int
) -> PipelineSchedule | None:
    """Let each sample be a step of its own; None if that does not fit or takes longer."""
    step = find_step(problem, plan)
    if step is None or step.makespan_us > plan.pace_us * (1 + ROUNDING):
        return None
    period_us = max(step.makespan_us, plan.pace_us)
    slots = [
        Slot(m, s, stages[s].of, part, d, start_us + m * period_us, finish_us + m * period_us)
        for d, start_us, s, part, finish_us in spans_of_step(step, stages)
        for m in range(n)
    ]
    slots.sort(key=lambda slot: slot.start_us)
    computing = [slot for slot in slots if slot.part == COMPUTE]
    devices = range(problem.cluster.n_devices)
    return PipelineSchedule(
        kind,
        n,
        stages,
        tuple(tuple(slot for slot in computing if slot.device == d) for d in devices),
        tuple(slot for slot in slots if slot.part != COMPUTE),
        (n - 1) * period_us + step.makespan_us,
        period_us,
        tuple(int((plan.device == d).any()) for d in devices),
        tuple(repeat_memory(curve, n, period_us) for curve in step.memory),
    )


def samples_that_fill(problem: Problem, rule: LoadRule) -> int:
    """Return how many samples fill a pipeline, so that it holds as many as it ever does.

    If a step has too few to fill it, that is all of them.
    """
    n, n_devices = rule.microbatches, problem.cluster.n_devices
    too_few = n < n_devices * (3 if rule.n_resources > 1 else 1)
    return n if rule.pipeline == "gpipe" or too_few else 3 * n_devices


def counts_in_flight(problem: Problem, rule: LoadRule) -> bool:
    """Whether samples in flight count towards memory; those that never go back leave nothing."""
    return rule.in_flight and bool(backward_ops(problem).any())


@lru_cache(maxsize=8)  # the text, the numbers and the mends of one answer ask for it
def fill_pipeline(problem: Problem, plan: Plan) -> PipelineSchedule | None:
    """Simulate a step of a plan for throughput in training.

    As many samples are in flight in it as there ever are. None for other plans, and if only one
    sample counts towards memory.
    """
    rule = plan.load_rule
    if plan.objective != THROUGHPUT or rule is None or not counts_in_flight(problem, rule):
        return None
    return simulate_pipeline(problem, plan, rule.pipeline, rule.microbatches, rule)


def most_bytes(schedule: Schedule) -> IntArray:
    """Return the peak memory of each device, in a step or with a pipeline's samples in flight."""
    full = fill_pipeline(schedule.problem, schedule.plan)
    peak_bytes = schedule.peak_bytes
    return peak_bytes if full is None else np.maximum(peak_bytes, full.peak_bytes)


def _shortest(
    problem: Problem, in_turn: PipelineSchedule, delayed: list[PipelineSchedule]
) -> PipelineSchedule:
    """Choose among 1F1B and schedules that delay the gradients of weights.

    None takes longer than 1F1B, or holds more samples than it does on its fullest device. If 1F1B
    does not fit, others may take longer.
    """
    most = max(in_turn.in_flight)
    tried = [replace(in_turn, kind="zb-h1")]
    tried += [each for each in delayed if max(each.in_flight) <= most]
    fullest = [fullest_share(problem, each) for each in tried]
    limit = max(1.0, min(fullest))

    def rank(number: int) -> tuple[bool, float, float, float]:
        found = tried[number]
        is_longer = found.makespan_us > in_turn.makespan_us * (1 + CLOSE)
        pace = round(found.time_per_sample_us / (in_turn.time_per_sample_us or 1.0), 9)
        return is_longer, pace, found.makespan_us, fullest[number]

    return tried[min((i for i, full in enumerate(fullest) if full <= limit), key=rank)]


def time_with_room_us(problem: Problem, plan: Plan, rule: LoadRule, most_us: float) -> float:
    """Return the time per sample with 1F1B if samples wait for room; inf if above a limit."""
    passes = passes_of(problem, plan.device, weights_apart=False)
    stages = stages_of(problem, plan, passes)
    play = _find_play_with_room(problem, plan, stages, rule, most_us)
    return np.inf if play is None else play.time_per_sample_us()


def _find_play_with_room(
    problem: Problem, plan: Plan, stages: tuple[Stage, ...], rule: LoadRule, most_us: float
) -> _Play | None:
    """Let samples wait for room; None if that cannot be, or takes longer than a limit."""
    room = find_room(problem, plan, stages) if rule.n_resources == 1 else None
    if room is None or stay_share_us(stages, room) > most_us * (1 + ROUNDING):
        return None
    owner = problem.cluster.lane_owner.tolist()
    play = _Play(stages, "1f1b", rule, owner, 0.0, 0, room=room)
    return play if play.time_per_sample_us() <= most_us * (1 + ROUNDING) else None


def _find_schedule(
    problem: Problem,
    plan: Plan,
    play: _Play,
    time_per_sample_us: float,
    holds: Holds,
    n_microbatches: int,
    exchange: tuple[Exchange, ...],
) -> PipelineSchedule:
    """Put together what comes of an order; an exchange begins when all of it has ended."""
    slots, done_us = play.run(n_microbatches)
    updates = _run_updates(play.stages, slots, problem.cluster.lane_owner.tolist())
    updates_us = {each.device: (each.start_us, each.finish_us) for each in updates}
    over_us = max([*done_us.values(), *(each.finish_us for each in updates)])
    exchange = tuple(
        replace(each, start_us=over_us, finish_us=over_us + each.finish_us) for each in exchange
    )
    makespan_us = max((each.finish_us for each in exchange), default=over_us)
    computing = [slot for slot in slots if slot.part == COMPUTE]
    transfers = [slot for slot in slots if slot.part != COMPUTE]
    devices = range(problem.cluster.n_devices)
    return PipelineSchedule(
        play.kind,
        n_microbatches,
        play.stages,
        tuple(tuple(slot for slot in computing if slot.device == d) for d in devices),
        tuple(sorted(transfers, key=lambda slot: slot.start_us)),
        makespan_us,
        time_per_sample_us,
        tuple(_in_flight([slot for slot in slots if slot.device == d]) for d in devices),
        find_memory(
            problem,
            plan,
            play.stages,
            holds,
            _times(slots, play.stages, updates_us),
            n_microbatches,
            (over_us, makespan_us),
            updates_us,
        ),
        exchange,
        updates,
    )


def _run_updates(
    stages: Sequence[Stage], slots: Sequence[Slot], owner: Sequence[int]
) -> tuple[Update, ...]:
    """Run what runs once per step when the last sample has left a device, and others of its chip.

    Where no sample is at work, it waits for gradients of others, which are there when all is over.
    """
    free_us: dict[int, float] = {}
    for slot in slots:
        if slot.finish_us > slot.start_us:
            chip = owner[slot.device]
            free_us[chip] = max(free_us.get(chip, 0.0), slot.finish_us)
    over_us, found = max(free_us.values(), default=0.0), []
    for stage in stages:
        for device, us in zip(stage.devices, stage.update_us, strict=True):
            if us > 0:
                start_us = free_us.get(owner[device], over_us)
                free_us[owner[device]] = start_us + us
                found.append(Update(device, start_us, start_us + us))
    return tuple(sorted(found, key=lambda each: each.device))


def exchanges(problem: Problem, device: IntArray, rule: LoadRule) -> tuple[Exchange, ...]:
    """Find what each device sends and receives once per step, as if it began at 0."""
    profile = problem.profile
    once = once_per_step(profile) & ~never_changed(profile)
    cost_us = np.where(once[:, None], send_us(problem), 0.0)
    parts_us = transfer_parts_us(problem, device, cost_us)
    us = add_up_parts_us(parts_us, rule).sum(axis=1)
    n = problem.cluster.n_devices
    home, reader = device[profile.edge_source], device[profile.edge_op]
    crosses = once[profile.edge_tensor] & (home != reader)
    tensor, to = np.divmod(np.unique(profile.edge_tensor[crosses] * n + reader[crosses]), n)
    n_bytes = np.zeros(n, dtype=np.int64)
    for place in (device[profile.tensor_op[tensor]], to):
        np.add.at(n_bytes, place, profile.tensor_bytes[tensor])
    return tuple(
        Exchange(d, 0.0, float(us[d]), int(n_bytes[d])) for d in np.flatnonzero(n_bytes).tolist()
    )


def fullest_share(problem: Problem, found: PipelineSchedule) -> float:
    """Return the largest share of a device's memory that is needed."""
    return float((found.peak_bytes / problem.cluster.capacity_bytes).max())


def fullest_device(problem: Problem, peak_bytes: IntArray) -> int:
    """Return the device whose memory is needed by the largest share."""
    return int((peak_bytes / problem.cluster.capacity_bytes).argmax())


def fits_in(problem: Problem, found: PipelineSchedule) -> bool:
    """Whether no device holds more than its capacity."""
    return bool((found.peak_bytes <= problem.cluster.capacity_bytes).all())


def _times(
    slots: list[Slot], stages: Sequence[Stage], updates_us: Mapping[int, tuple[float, float]]
) -> dict[tuple[int, int, int], tuple[float, float]]:
    """Return the start and finish of parts by microbatch, stage and part; sends are one part.

    A stage that only has updates takes no time for samples. It then runs when its updates do.
    """
    times: dict[tuple[int, int, int], tuple[float, float]] = {}
    for slot in slots:
        key = slot.microbatch, slot.stage, slot.part
        start_us, _ = times.get(key, (slot.start_us, 0.0))
        times[key] = start_us, slot.finish_us
    last = {slot.device: slot for slot in slots if any(stages[slot.stage].update_us)}
    for device, slot in last.items():
        start_us, finish_us = times[slot.microbatch, slot.stage, COMPUTE]
        if start_us == finish_us and device in updates_us:
            times[slot.microbatch, slot.stage, COMPUTE] = updates_us[device]
    return times


def planned_rule(*plans: Plan) -> LoadRule:
    """Return the rule that the first of some plans was made for; the usual one if none has any."""
    return next(filter(None, (plan.load_rule for plan in plans)), USUAL)


def device_loads_us(problem: Problem, plan: Plan) -> list[float]:
    """Return how long each device works for a sample, by the rule of a plan."""
    chosen = plan.device, planned_rule(plan), plan.replicas, plan.recompute
    loads_us: list[float] = pass_loads_us(problem, *chosen).sum(axis=1).tolist()
    return loads_us


def step_rule(plan: Plan, n_samples: int) -> LoadRule:
    """Return the rule that the plan was made for, with another number of samples in a step."""
    return replace(planned_rule(plan), microbatches=n_samples)


Order = Callable[[int], list[Work] | None]
"""The work of all devices in order, by the number of microbatches; None if they would wait for each
other."""


def _fixed_order(kind: str, stages: tuple[Stage, ...], halves: IntArray | None) -> Order | None:
    """Return the order that a kind prescribes for such stages; None if it prescribes none."""
    order: Order | None = None
    if kind == "interleaved":
        order = partial(order_interleaved, stages)
    elif halves is not None:
        order = partial(order_in_v, stages, halves)
    n_devices = len({stage.devices for stage in stages})
    return order if order is not None and order(n_devices) else None


_Part = tuple[int, int, int]
"""A microbatch, the number of its stage, and a part of this stage."""


class _Play:
    """The stages of a plan, the order in which devices do their parts, and what comes of it.

    Where samples visit devices in the same order on their way back, they may have to wait between
    the passes: either before forward stages or, without ``waits``, before backward stages.
    """

    def __init__(
        self,
        stages: tuple[Stage, ...],
        kind: str,
        rule: LoadRule,
        owner: list[int],
        pace_us: float,
        most: int,
        *,
        waits: bool = True,
        room: Room | None = None,
        order: Order | None = None,
    ) -> None:
        self.stages, self.kind, self._rule, self._owner = stages, kind, rule, owner
        self._room, self._order = room, order
        self._most = most  # samples that gradients of weights may keep on a device
        self._pace_us = 0.0 if kind in ("inference", "gpipe") else pace_us
        # Replicas share the samples of a round equally.
        self._together = math.lcm(*(len(stage.devices) for stage in stages))
        self.may_wait = waits and _goes_same_way(stages) and kind != "gpipe"
        passes: list[list[int]] = [list(range(len(stages)))] if room is None else []
        if kind == "gpipe":
            passes = [
                [s for s in passes[0] if stages[s].backward == late] for late in (False, True)
            ]
        self._patterns = [self._find_pattern(numbers) for numbers in passes if numbers]

    def time_per_sample_us(self) -> float:
        """Return the time that each further microbatch adds to a full pipeline."""
        if len(self._patterns) == 1 and self._order is None and self._patterns[0].is_tight:
            return self._patterns[0].period_us / self._together
        return self._measured_us() if self._room is None else self._repeated_us()

    def _measured_us(self) -> float:
        """Return the same, measured between a number of microbatches and twice as many.

        There are enough to keep the pipeline full for a while, within :data:`MOST_SLOTS`. The
        slowest stage counts, which need not be the last to finish until a great many microbatches
        have passed.
        """
        n_stages, together = len(self.stages), self._together
        if self._order is not None:
            together = math.lcm(together, len({stage.devices for stage in self.stages}))
        rounds = min(8 * n_stages + 8, MOST_SLOTS // n_stages // together)
        enough = together * max(1, rounds)
        once, twice = (self._run(n) for n in (enough, 2 * enough))
        added_us = (us - once[m - enough, s] for (m, s), us in twice.items() if m == 2 * enough - 1)
        return max(added_us) / enough

    def _repeated_us(self) -> float:
        """Return the same where samples wait for room, and do the same again after a few others.

        There are more and more microbatches, within :data:`MOST_SLOTS`, until they do.
        """
        n, stages = 16 * len(self.stages) + 16, range(len(self.stages))
        while True:
            done_us = self._run(n)
            # The last samples, no more than there are stages, have none behind them.
            late = range(n // 2, n - len(stages))
            late_us = np.array([[done_us[m, s] for s in stages] for m in late])
            cycle = find_cycle(late_us)
            if cycle or 2 * n * len(stages) > MOST_SLOTS:
                break
            n *= 2
        cycle = cycle or len(late) - 1
        added_us = float((late_us[-1] - late_us[-1 - cycle]).max())
        return max(busiest_us(self.stages), added_us / cycle)

    def run(self, n: int) -> tuple[list[Slot], dict[tuple[int, int], float]]:
        """Find when everything happens, and when each microbatch has passed each stage."""
        slots: list[Slot] = []
        return slots, self._run(n, slots)

    def _run(self, n: int, slots: list[Slot] | None = None) -> dict[tuple[int, int], float]:
        """Find when each microbatch has passed each stage; list everything, if asked to."""
        free_us: dict[_Resource, float] = {}
        done_us: dict[tuple[int, int], float] = {}
        needs: dict[tuple[int, int, int], tuple[float, list[_Resource]]] = {}
        for microbatch, number, part in self._in_order(n):
            stage = self.stages[number]
            replica = microbatch % len(stage.devices)
            if (number, part, replica) not in needs:
                needs[number, part, replica] = self._needs(number, part, microbatch)
            us, resources = needs[number, part, replica]
            if part == IN:
                admitted_us = microbatch // self._together * self._together * self._pace_us
                now = max([done_us[microbatch, s] for s in stage.after], default=admitted_us)
            else:
                now = done_us[microbatch, number]
            if part == COMPUTE or us > 0:
                start = max([now, *[free_us.get(resource, 0.0) for resource in resources]])
                now = start + us
                for resource in resources:
                    free_us[resource] = now
                if slots is not None:
                    device, shown = stage.devices[replica], min(part, OUT)
                    slots.append(Slot(microbatch, number, stage.of, shown, device, start, now))
            if part != REDUCE:
                done_us[microbatch, number] = now
            elif us > 0:  # no stage waits for an exchange of gradients
                done_us[microbatch, len(self.stages) + number] = now
        return done_us

    def _needs(self, number: int, part: int, sample: int) -> tuple[float, list[_Resource]]:
        """Return how long a part of a stage takes for a sample, and the resources it needs.

        Logical devices of one chip, whose first is the owner, compute one after another.
        """
        stage, rule = self.stages[number], self._rule
        replica = sample % len(stage.devices)
        device = stage.devices[replica]
        us = (stage.compute_us, stage.in_us, stage.out_us, stage.reduce_us)[part][replica]
        if part == REDUCE:
            return us, [("device", device, COMPUTE if rule.n_resources == 1 else REDUCE)]
        resources: list[_Resource] = [("device", device, rule.resource(part))]
        if part == COMPUTE:
            resources.append(("chip", self._owner[device], COMPUTE))
        return us, resources

    def _in_order(self, n: int) -> Iterator[_Part]:
        """Yield the parts of all microbatches in the order in which devices process them."""
        if self._order is not None and (order := self._order(n)):
            yield from ((m, s, part) for m, s in order for part in _PARTS)
            return
        if self._room is not None:
            order = order_with_room(self.stages, self._room, n)
            yield from ((m, s, part) for m, s in order for part in _PARTS)
            return
        for pattern in self._patterns:
            slots = [
                (start_us + m // self._together * pattern.period_us, m, s, at)
                for m in range(n)
                for s, at, start_us in pattern.starts[m % self._together]
            ]
            for _, m, s, at in sorted(slots):
                yield m, s, _PARTS[at]

    def _find_pattern(self, numbers: list[int]) -> _Pattern:
        """Find when the parts of some stages start for the samples of one round."""
        items: list[Item] = []
        keys: list[tuple[int, int, int]] = []
        last: dict[tuple[int, int], int] = {}
        for sample in range(self._together):
            for number in numbers:
                for ats in self._blocks():
                    after = [last[sample, s] for s in self.stages[number].after if s in numbers]
                    if ats[0]:
                        after = [last[sample, number]]
                    item = self._item(number, ats, sample, tuple(after))
                    if ats[0] == REDUCE_AT and item.us == 0:
                        continue
                    keys.append((sample, number, ats[0]))
                    if ats[0] != REDUCE_AT:
                        last[sample, number] = len(items)
                    items.append(item)
        least_us = max(least_period_us(items), self._together * self._pace_us)
        period_us = least_us
        waits = self._find_waits(period_us / self._together)
        for i, (_, number, at) in enumerate(keys):
            if at == 0 and number in waits:
                items[i] = replace(items[i], wait_us=waits[number])
        starts = find_starts(items, period_us)
        while starts is None:
            period_us *= LONGER
            starts = find_starts(items, period_us)
        if self.kind == "zb-h1":
            self._delay_weights(items, keys, starts, period_us)
        by_sample: list[list[tuple[int, int, float]]] = [[] for _ in range(self._together)]
        for (sample, number, first), start_us in zip(keys, starts, strict=True):
            ats = next(each for each in self._blocks() if each[0] == first)
            by_sample[sample] += [(number, at, start_us) for at in ats]
        return _Pattern(period_us, by_sample, period_us == least_us)

    def _blocks(self) -> tuple[tuple[int, ...], ...]:
        """Return the parts that a device does in one go, by their place in :data:`_PARTS`."""
        together = self._rule.n_resources == 1
        return ((0, 1, 2), (REDUCE_AT,)) if together else ((0,), (1,), (2,), (REDUCE_AT,))

    def _item(self, number: int, ats: tuple[int, ...], sample: int, after: tuple[int, ...]) -> Item:
        """Describe parts that follow each other as an item of a pattern."""
        uses, us = list[Use](), 0.0
        for at in ats:
            part_us, resources = self._needs(number, _PARTS[at], sample)
            uses += [Use(resource, us, part_us) for resource in resources if part_us > 0]
            us += part_us
        forward = self.stages[number].of == FORWARD
        return Item(_merge(uses), us, after, forward)

    def _find_waits(self, pace_us: float) -> dict[int, float]:
        """Find how long forward stages wait if backward stages follow in the same order.

        On no device may a sample come back while another one is there. The time until it comes back
        can be lengthened by a wait before a later forward stage, which does so for all devices
        before that. From the last device back, each gets the shortest time that leaves room.
        """
        waits: dict[int, float] = {}
        if not self.may_wait:
            return waits
        returns_us = {stage.devices: stage.work_us for stage in self.stages if stage.backward}
        forward = [s for s, stage in enumerate(self.stages) if stage.of == FORWARD]
        gap_us = sum(returns_us.values())
        later: int | None = None
        for number in reversed(forward):
            devices = self.stages[number].devices
            ahead_us, back_us = self.stages[number].work_us, returns_us.get(devices, 0.0)
            gap_us -= back_us
            period_us = len(devices) * pace_us
            longer_us = wait_for_room(gap_us, period_us, period_us - ahead_us - back_us)
            if later is not None:
                waits[later] = longer_us - gap_us
            gap_us, later = longer_us + ahead_us, number
        return waits

    def _delay_weights(
        self,
        items: list[Item],
        keys: list[tuple[int, int, int]],
        starts: list[float],
        period_us: float,
    ) -> None:
        """Delay the gradients of weights by whole periods, as long as no device holds too much.

        The work that is then left fills the time in which the last samples leave the pipeline.
        """
        begun_us: dict[tuple[int, int], float] = {}
        ended_us: dict[tuple[int, int], float] = {}
        for (sample, number, _), item, start_us in zip(keys, items, starts, strict=True):
            key = sample, self.stages[number].devices[0]
            begun_us[key] = min(begun_us.get(key, start_us), start_us)
            ended_us[key] = max(ended_us.get(key, 0.0), start_us + item.us)
        for i, (sample, number, _) in enumerate(keys):
            stage, key = self.stages[number], (sample, self.stages[number].devices[0])
            if stage.of == WEIGHTS and period_us > 0:
                held = (ended_us[key] - begun_us[key]) / period_us
                starts[i] += max(math.floor(self._most - held + CLOSE), 0) * period_us


_Resource = tuple[str, int, int]
"""A device or chip, its number, and one of its resources, which does one thing at a time."""

_PARTS = (IN, COMPUTE, OUT, REDUCE)
"""The parts of a stage in order."""

REDUCE_AT = _PARTS.index(REDUCE)


@dataclass(frozen=True)
class _Pattern:
    """When parts start for the samples of one round, relative to the round.

    Attributes
    ----------
    period_us : float
        Time between two rounds.
    starts : list of lists of (int, int, float)
        For each sample, stages, places in :data:`_PARTS`, and starts.
    is_tight : bool
        Whether this is the least that the busiest device and the plan allow.
    """

    period_us: float
    starts: list[list[tuple[int, int, float]]]
    is_tight: bool


def _goes_same_way(stages: tuple[Stage, ...]) -> bool:
    """Whether samples visit devices in the same order forward and backward."""
    first = next((stage for stage in stages if stage.backward), None)
    return first is not None and first.devices == stages[0].devices and len(stages) > 2


def _merge(uses: list[Use]) -> tuple[Use, ...]:
    """Join uses of one resource that follow each other."""
    found: dict[object, Use] = {}
    for use in uses:
        before = found.get(use.resource)
        found[use.resource] = use if before is None else replace(before, us=before.us + use.us)
    return tuple(found.values())


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
