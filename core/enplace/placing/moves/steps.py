"""Steps of a search on a level: some moves of blocks, or some windows annealed.

A step takes a state, which is an order and a placement, and returns one that is no worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from enplace.coarsen.grouped import mean_link
from enplace.machine import simulate
from enplace.machine.layout import Machine
from enplace.placing.moves.balance import Balance, anneal_balance
from enplace.placing.moves.blocks import Accepting, move_blocks
from enplace.placing.moves.level import Level
from enplace.placing.moves.thrifty import ROOMS
from enplace.placing.moves.timeline import middle_us, shares_of_work
from enplace.placing.moves.windows import Annealing, sweep
from enplace.placing.settle import position_by
from enplace.values.arrays import inverse
from enplace.values.cluster import Cluster
from enplace.values.plan import LINK_POLICIES, POLICIES, Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

BLOCK_ROUNDS, WINDOWS = 100, 8
"""Moves of blocks in one step, and windows in one step."""

LITTLE = 0.001
"""Share by which a step must shorten a schedule to count as progress."""

PATIENCE, HASTE = 8, 2
"""Steps without progress after which a search restarts, if its schedule fits or does not."""

ROUNDS_PER_OP = 200
ANNEALING = Annealing(width=50, stride=25, rounds=0, hot=1.0, cold=0.025, spread=0.2)
"""Moves tried for each op of a window, and the other settings for annealing windows."""

INSTANTS, ROOM = 64, 0.97
"""At how many instants of a step memory counts in a balance, and the share of it that is free."""

MOST_MOVES = 20_000_000
"""The most moves when a balance is annealed."""

PART, MOST_PARTS, IN_TIME = 50_000, 40, 0.95
"""Moves of a part of the annealing, after which it looks at the clock; the most parts; and how much
of the time left they shall take, as a share."""

WEIGHTS = ((4.0, 0.01, 0.003, 3.0), (120.0, 0.6, 0.6, 100.0))
"""The least and the most units of a device in each band of time, weight of sending, weight of
crowding, and weight of memory of a balance. With a last weight of 1, a device that exceeds its
memory by as much again, all over the step, would cost half of its work."""

TIGHT_WEIGHTS = (22.0, 0.7, 0.08, 20.0)
"""Weights near which those of a balance are drawn where memory is short: what is sent fills it."""

TIED = 0.3
"""How often a balance moves all ops of one kind together, if the graph repeats itself."""

PRICE = 6.0
"""What a balance's excess of memory, as a share of all memory, adds to its length: about what it
takes to repair it."""

SIMILAR, SPREAD = 0.3, 0.5
"""How often these are drawn near those that the best balance so far is from, and how near."""

ZONE, LONGEST_ZONE = 6.0, 0.1
"""The usual length of a zone, as a multiple of how many units ahead an edge leads in the mean; and
the most of all units that a zone may have."""

ZONE_WEIGHTS = (66.0, 0.077, 0.042, 20.0)
"""Weights near which those of a balance with a moving zone are drawn."""

ZONE_HOT, ZONE_COLD, BUSY = 3.0, 1 / 15, 0.7
"""Temperatures at both ends of a zone, as multiples of what a mean transfer costs where channels
are busy for this share of the time."""

WARM, HOT, COLD = 0.4, (2.0, 0.3), 0.01
"""How often a balance is annealed from the placement at hand instead of a random one; the first
temperature of a random one and of that at hand, and the last, in units of an op's mean time."""

LISTS, BALANCE, BLOCKS, WINDOWS_OF = "list schedules", "balance", "blocks", "windows"
"""Names of the parts of a search."""


UNKNOWN = np.iinfo(np.int64).max
"""The excess of a plan that has not been simulated."""


@dataclass(frozen=True, eq=False)
class LevelPlan:
    """An order and a placement on a level, with their makespan and how far they exceed memory.

    ``ranked`` decides how blocks move next: with ops in the order of their ranks, or in this order.
    If ``room`` is positive, ops that have room in this share of the memory go before those with
    higher ranks. One that has not been simulated is worse than any that has, and ``policy`` and
    ``links`` say how devices and channels served ops then. ``weights`` are those of the balance
    that it is from, in the order of :data:`WEIGHTS`.
    """

    level: Level
    order: IntArray
    device: IntArray
    makespan_us: float = np.inf
    excess_bytes: int = UNKNOWN
    engine: str = LISTS
    ranked: bool = True
    room: float = 0.0
    policy: str = "strict"
    links: str = "fifo"
    weights: FloatArray | None = None

    @property
    def key(self) -> tuple[int, float]:
        return self.excess_bytes, self.makespan_us

    @property
    def priced_us(self) -> float:
        """The makespan, longer if memory is exceeded."""
        capacity = float(self.level.machine.capacity_bytes.sum())
        return self.makespan_us * (1 + PRICE * self.excess_bytes / max(capacity, 1.0))


Step = Callable[[LevelPlan, int, float, BoolArray], LevelPlan]
"""A function of a state, a seed, the share of the phase that is over, and a flag that stops it."""


def new_stop_flag() -> BoolArray:
    """Make a flag that stops a step once it is set."""
    return np.zeros(1, dtype=bool)


def by_key(state: LevelPlan) -> tuple[int, float]:
    """Return the key that sorts the best state first: by excess, then by makespan."""
    return state.key


def by_price(state: LevelPlan) -> float:
    """Return the key that sorts the most promising state first."""
    return state.priced_us


def state_of(level: Level, plan: Plan) -> LevelPlan:
    """Convert a plan of all ops to a state of a level, as nearly as its groups allow.

    The state is not simulated yet.
    """
    near = nearest(level, plan)
    return LevelPlan(level, np.argsort(near.position), near.device)


def nearest(level: Level, plan: Plan) -> Plan:
    """Find the plan of a level's groups that is nearest to a plan of all ops.

    Each group goes where most of its work is. If devices keep to the plan's order, groups are in
    the order of their first ops, unless that goes against an edge. Otherwise they are in the order
    in which they start when they have the priority of their first op in the plan.
    """
    device = level.device_of(plan.device)
    first = np.full(len(device), len(plan.position))
    np.minimum.at(first, level.group, plan.position)
    order, graph = np.argsort(first, kind="stable"), level.problem.profile
    if plan.policy != "strict" or (first[graph.edge_source] >= first[graph.edge_op]).any():
        order = order_by_start(level, device, order, plan.links)
    return Plan(device, inverse(order), plan.method, links=plan.links)


def order_by_start(
    level: Level, device: IntArray, order: IntArray, links: str = "fifo"
) -> IntArray:
    """Find the order in which ops start if devices take the first ready op in ``order``."""
    plan = Plan(device.copy(), inverse(order), "enplace", links=links)
    schedule = simulate(level.problem, plan)
    return inverse(position_by(level.problem, schedule.op_start_us))


def blocks_step(
    links: str, threshold: float = 0.0, rounds: int = BLOCK_ROUNDS, slack: float = np.inf
) -> Step:
    """Make a step that moves blocks, also within the order if the state has an order of its own.

    Parameters
    ----------
    links : str
        The policy of channels.
    threshold : float
        Share by which a move may make the schedule worse, at the beginning of a phase.
    rounds : int
        Moves tried in one step.
    slack : float
        Share by which a move may make a schedule longer that exceeds memory, if it then exceeds
        memory by less, at the beginning of a phase; towards the end, anything goes.
    """

    def step(state: LevelPlan, seed: int, share: float, stop: BoolArray) -> LevelPlan:
        kept, device = state.level.kept_order, state.device.copy()
        order = (state.order if kept is None else kept).copy()
        policy, serve = ("priority", links) if kept is None else ("strict", "fifo")
        makespan, excess = move_blocks(
            state.level.machine,
            state.level.blocks,
            order,
            device,
            Accepting(
                policy=POLICIES.index(policy),
                links=LINK_POLICIES.index(serve),
                ranked=state.ranked and kept is None,
                room=state.room if kept is None else 0.0,
                rounds=rounds,
                threshold=threshold * (1 - min(1.0, share)) ** 2,
                slack=slack / max(1.0 - share, 1e-9),
            ),
            np.random.default_rng(seed),
            stop,
        )
        if state.key <= (excess, makespan):
            return state
        return replace(
            state,
            order=order,
            device=device,
            makespan_us=makespan,
            excess_bytes=excess,
            engine=BLOCKS,
            policy=policy,
            links=serve,
            weights=None,
        )

    return step


def measure(state: LevelPlan, links: str) -> LevelPlan:
    """Simulate a state with its ops in the order in which blocks would move."""
    unknown = replace(state, makespan_us=np.inf, excess_bytes=UNKNOWN)
    return blocks_step(links, rounds=0)(unknown, 0, 1.0, new_stop_flag())


def balance_step(sweeps: int, left_s: Callable[[], float] = lambda: np.inf) -> Step:
    """Make a step that anneals what a placement sends and how evenly it spreads the work.

    Weights are drawn. Every other balance is annealed in a zone that moves from the beginning of
    the step to its end: all at once, parts of a long graph that lie far apart would each find a
    good placement, but on devices that do not match. Ops then run in the order of their ranks.

    Where memory is short (``room``), a placement is annealed by smoothed times, then again by those
    that it has, and ops that have room run first. Placements that send little fit best.

    Parameters
    ----------
    sweeps : int
        Moves tried for each unit, or fewer if there is too little time.
    left_s : callable
        Returns the seconds within which the step must end.
    """

    def step(state: LevelPlan, seed: int, share: float, stop: BoolArray) -> LevelPlan:
        draw, level = np.random.default_rng(seed), state.level
        problem, work_us = level.problem, level.problem.time_us.min(axis=1)
        is_tight = state.room > 0.0
        zone = _zone(level, draw) if seed % 2 else None
        weights = np.exp(draw.uniform(*np.log(WEIGHTS)))
        if state.weights is not None and draw.random() < SIMILAR:
            weights = state.weights * np.exp(draw.normal(0.0, SPREAD, len(weights)))
        elif zone is not None or is_tight:
            usual = TIGHT_WEIGHTS if zone is None else ZONE_WEIGHTS
            weights = usual * np.exp(draw.normal(0.0, SPREAD, len(weights)))
        units_of_band, sending, crowding, holding = weights.tolist()
        tied = zone is None and draw.random() < TIED
        machine = level.tied if tied else level.machine
        n_units, n_devices = machine.allowed.shape
        n_bands = max(int(problem.n_units / n_devices / units_of_band), 2)
        unit_us, device_us = work_us.sum() / n_units, work_us.sum() / n_devices
        warm = zone is None and not tied and draw.random() < WARM
        hot, cold = HOT[warm] * unit_us, COLD * unit_us
        if zone is not None:
            sent_us = (sending + BUSY * crowding) * _message_us(problem)
            hot, cold = ZONE_HOT * sent_us, ZONE_COLD * sent_us
        share_of_work = level.smooth_shares
        if zone is None and (warm or not is_tight):
            by_paths = not is_tight and draw.random() < 0.5
            when = middle_us(problem) if by_paths else _start_us(state)
            share_of_work = shares_of_work(when, work_us)
        room = ROOM * machine.capacity_bytes.astype(np.float64)
        begins, ends, stays = instants_of(level, share_of_work)
        n_instants = 0 if always_fits(level.machine, begins, ends, stays) else INSTANTS
        device = state.device.copy() if warm else _random_placement(machine, draw)
        queue, length = zone or (np.arange(n_units), n_units)
        balance = Balance(
            band=np.floor(share_of_work * n_bands + [[0.0], [0.5]]).astype(np.int64),
            length_us=max(device_us / n_bands, 1e-3),
            pace=_pace(problem.cluster),
            begins=begins,
            ends=ends,
            stays=stays,
            n_instants=n_instants,
            room=room,
            holding=holding * device_us / INSTANTS / np.maximum(machine.capacity_bytes, 1.0) ** 2,
            sending=sending,
            crowding=crowding,
            hot=hot,
            cold=cold,
            moves=min(sweeps * n_units, MOST_MOVES),
            begin=0.0,
            end=1.0,
            queue=queue,
            zone=length,
        )
        _anneal_in_time(machine, balance, device, draw, stop, left_s)
        rooms, links = (ROOMS, "fifo") if is_tight else ((0.0,), "priority")
        placed = LevelPlan(level, state.order, device)
        ordered = (measure(replace(placed, room=room), links) for room in rooms)
        found = replace(min(ordered, key=by_price), engine=BALANCE, weights=weights)
        return min(state, found, key=by_price)

    return step


def _anneal_in_time(
    machine: Machine,
    balance: Balance,
    device: IntArray,
    draw: np.random.Generator,
    stop: BoolArray,
    left_s: Callable[[], float],
) -> None:
    """Anneal part by part, faster where time is short: a balance cut off half way is worthless."""
    n_parts = min(max(balance.moves // PART, 1), MOST_PARTS)
    moves = balance.moves // n_parts
    began_s, tried = left_s(), 0
    for part in range(n_parts):
        ends_s = left_s()
        if tried and np.isfinite(ends_s):
            move_s = max(began_s - ends_s, 1e-9) / tried
            affordable = IN_TIME * max(ends_s, 0.0) / (n_parts - part) / move_s
            moves = min(balance.moves // n_parts, int(affordable))
        share = part / n_parts, (part + 1) / n_parts
        own = balance._replace(moves=moves, begin=share[0], end=share[1])
        anneal_balance(machine, own, device, draw, stop)
        tried += moves


def _pace(cluster: Cluster) -> FloatArray:
    """Divide the speed of each device by the mean speed of its kind."""
    speed, kind = cluster.speed, cluster.kind
    mean: FloatArray = np.bincount(kind, speed) / np.maximum(np.bincount(kind), 1)
    paces: FloatArray = speed / mean[kind]
    return paces


def _random_placement(machine: Machine, draw: np.random.Generator) -> IntArray:
    lots = draw.random(machine.allowed.shape)
    chosen: IntArray = np.where(machine.allowed, lots, -1.0).argmax(axis=1)[machine.unit]
    return chosen


def _start_us(state: LevelPlan) -> FloatArray:
    plan = Plan(state.device.copy(), inverse(state.order), "enplace", links="priority")
    return simulate(state.level.problem, plan).op_start_us


def _zone(level: Level, draw: np.random.Generator) -> tuple[IntArray, int] | None:
    """Sort units by time, and draw the length of a zone; None if it would not be short."""
    profile, unit = level.problem.profile, level.problem.unit
    queue = np.argsort(np.bincount(unit, level.smooth_shares) / np.bincount(unit), kind="stable")
    place = inverse(queue)
    ahead = np.abs(place[unit[profile.edge_op]] - place[unit[profile.edge_source]])
    length = ZONE * ahead.mean() * np.exp(draw.normal(0.0, SPREAD)) if len(ahead) else np.inf
    if len(queue) == 1 or length > LONGEST_ZONE * len(queue):
        return None
    return queue, int(max(length, 1.0))


def _message_us(problem: Problem) -> float:
    """Return what it takes to send a mean tensor."""
    latency_us, per_byte_us = mean_link(problem.cluster)
    return float(latency_us + per_byte_us * problem.profile.tensor_bytes.mean())


def always_fits(machine: Machine, begins: IntArray, ends: IntArray, stays: IntArray) -> bool:
    """Whether each device has room for all that is held at any instant, so that no move counts."""
    until = np.maximum(stays, ends[machine.tensor_op])
    np.maximum.at(until, _tensor_of_edge(machine), ends[machine.edge_op])
    change = np.zeros(INSTANTS + 1)
    n_bytes = np.maximum(machine.held_bytes, machine.copy_bytes)
    np.add.at(change, begins[machine.tensor_op], n_bytes)
    np.add.at(change, until, -n_bytes)
    np.add.at(change, begins, machine.temporary_bytes)
    np.add.at(change, ends, -machine.temporary_bytes)
    most = machine.persistent_bytes.sum() + np.cumsum(change).max()
    return bool(most <= ROOM * machine.capacity_bytes.min())


def _tensor_of_edge(machine: Machine) -> IntArray:
    return np.repeat(np.arange(len(machine.tensor_op)), np.diff(machine.edge_ptr))


def instants_of(level: Level, share: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
    """Count the instants before each op, before its end, and those for which a tensor stays.

    Parameters
    ----------
    share : float array, shape (n_ops,)
        When the middle of each op runs, as a share of the step.
    """
    problem, machine, root = level.problem, level.machine, level.problem.profile.tensor_root
    work_us = problem.time_us.min(axis=1)
    half = work_us * problem.cluster.n_devices / max(work_us.sum(), 1e-9) / 2

    def before(when: FloatArray) -> IntArray:
        counts: IntArray = np.ceil(when * INSTANTS - 0.5).astype(np.int64)
        return np.clip(counts, 0, INSTANTS)

    begins, ends = before(share - half), before(share + half)
    n_tensors = len(machine.tensor_op)
    stays, last = np.zeros(n_tensors, np.int64), np.zeros(n_tensors, np.int64)
    np.maximum.at(
        stays, np.repeat(np.arange(n_tensors), np.diff(machine.hold_ptr)), ends[machine.hold_op]
    )
    np.maximum.at(last, _tensor_of_edge(machine), ends[machine.edge_op])
    views = root != np.arange(n_tensors)
    np.maximum.at(stays, root[views], np.maximum(last, ends[machine.tensor_op])[views])
    return begins, ends, stays


def restarting(step: Step, starts: Sequence[LevelPlan]) -> Step:
    """Make a step that works on one start after another, on each as long as it makes progress."""
    current, begun, fruitless = starts[0], 1, 0

    def restart(state: LevelPlan, seed: int, share: float, stop: BoolArray) -> LevelPlan:
        nonlocal current, begun, fruitless
        found = step(current, seed, share, stop)
        gains = found.key < (current.excess_bytes, current.makespan_us * (1 - LITTLE))
        current, fruitless = found, 0 if gains else fruitless + 1
        if fruitless == (HASTE if current.excess_bytes else PATIENCE):
            current, begun, fruitless = starts[begun % len(starts)], begun + 1, 0
        return min(state, found, key=by_key)

    return restart


def scattered(state: LevelPlan, seed: int) -> LevelPlan:
    """Move some units at random; the state is not simulated yet."""
    draw, problem = np.random.default_rng(seed), state.level.problem
    device = state.device.copy()
    for unit in np.flatnonzero(draw.random(problem.n_units) < draw.random()):
        device[problem.unit == unit] = draw.choice(np.flatnonzero(problem.unit_allowed[unit]))
    return LevelPlan(state.level, order_by_start(state.level, device, state.order), device)


def elsewhere_step(state: LevelPlan, seed: int, share: float, stop: BoolArray) -> LevelPlan:
    """Move some units at random, then anneal windows of the placement."""
    found = windows_step(scattered(state, seed), seed, share, stop)
    return min(state, found, key=by_key)


def windows_step(
    state: LevelPlan, seed: int, share: float, stop: BoolArray, n_windows: int = WINDOWS
) -> LevelPlan:
    """Anneal windows, beginning at a random place; blocks move if the framework keeps an order."""
    if state.level.kept_order is not None:
        return blocks_step("fifo", rounds=n_windows and BLOCK_ROUNDS)(state, seed, share, stop)
    n_ops = state.level.problem.profile.n_ops
    order, device = state.order.copy(), state.device.copy()
    draw = np.random.default_rng(seed)
    makespan, excess = sweep(
        state.level.machine,
        order,
        device,
        int(draw.integers(n_ops)),
        min(n_windows, -(-n_ops // ANNEALING.stride)),
        ANNEALING._replace(rounds=ROUNDS_PER_OP * min(ANNEALING.width, n_ops)),
        draw,
        stop,
    )
    return LevelPlan(state.level, order, device, makespan, excess, WINDOWS_OF)
