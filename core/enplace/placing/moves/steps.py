"""Steps of a search on a level: some moves of blocks, or some windows annealed.

A step takes a state, which is an order and a placement, and returns one that is no worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from enplace.machine import simulate
from enplace.placing.moves.balance import Balance, anneal_balance
from enplace.placing.moves.blocks import Accepting, move_blocks
from enplace.placing.moves.level import Level
from enplace.placing.moves.windows import Annealing, sweep
from enplace.placing.settle import upward_rank_us
from enplace.values.arrays import inverse, upward_rank
from enplace.values.cluster import Cluster
from enplace.values.plan import LINK_POLICIES, Plan
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

MOST_MOVES = 8_000_000
"""The most moves when a balance is annealed."""

WEIGHTS = ((4.0, 0.01, 0.003), (120.0, 0.6, 0.6))
"""The least and the most units of a device in each band of time, weight of sending, and weight of
crowding of a balance."""

SIMILAR, SPREAD = 0.3, 0.5
"""How often these are drawn near those that the best balance so far is from, and how near."""

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
    One that has not been simulated is worse than any that has. ``weights`` are those of the balance
    that it is from: units of a band, sending and crowding.
    """

    level: Level
    order: IntArray
    device: IntArray
    makespan_us: float = np.inf
    excess_bytes: int = UNKNOWN
    engine: str = LISTS
    ranked: bool = True
    weights: FloatArray | None = None

    @property
    def key(self) -> tuple[int, float]:
        return self.excess_bytes, self.makespan_us


Step = Callable[[LevelPlan, int, float, BoolArray], LevelPlan]
"""A function of a state, a seed, the share of the phase that is over, and a flag that stops it."""


def new_stop_flag() -> BoolArray:
    """Make a flag that stops a step once it is set."""
    return np.zeros(1, dtype=bool)


def by_key(state: LevelPlan) -> tuple[int, float]:
    """Return the key that sorts the best state first: by excess, then by makespan."""
    return state.key


def state_of(level: Level, plan: Plan) -> LevelPlan:
    """Convert a plan of all ops to a state of a level, as nearly as its groups allow.

    The state is not simulated yet.
    """
    near = nearest(level, plan)
    return LevelPlan(level, np.argsort(near.position), near.device)


def nearest(level: Level, plan: Plan) -> Plan:
    """Find the plan of a level's groups that is nearest to a plan of all ops.

    Each group goes where most of its work is. Groups are in the order in which they start when
    they have the priority of their first op in the plan.
    """
    device = level.device_of(plan.device)
    first = np.full(len(device), len(plan.position))
    np.minimum.at(first, level.group, plan.position)
    order = order_by_start(level, device, np.argsort(first, kind="stable"), plan.links)
    return Plan(device, inverse(order), plan.method, links=plan.links)


def order_by_start(
    level: Level, device: IntArray, order: IntArray, links: str = "fifo"
) -> IntArray:
    """Find the order in which ops start if devices take the first ready op in ``order``."""
    plan = Plan(device.copy(), inverse(order), "enplace", links=links)
    schedule = simulate(level.problem, plan)
    natural = inverse(level.problem.profile.topological_order)
    found: IntArray = np.lexsort((natural, schedule.op_start_us)).astype(np.int64)
    return found


def blocks_step(links: str, threshold: float = 0.0, rounds: int = BLOCK_ROUNDS) -> Step:
    """Make a step that moves blocks, also within the order if the state has an order of its own."""

    def step(state: LevelPlan, seed: int, share: float, stop: BoolArray) -> LevelPlan:
        order, device = state.order.copy(), state.device.copy()
        makespan, excess = move_blocks(
            state.level.machine,
            state.level.blocks,
            order,
            device,
            Accepting(
                links=LINK_POLICIES.index(links),
                ranked=state.ranked,
                rounds=rounds,
                threshold=threshold * (1 - min(1.0, share)) ** 2,
            ),
            np.random.default_rng(seed),
            stop,
        )
        if state.key <= (excess, makespan):
            return state
        return LevelPlan(state.level, order, device, makespan, excess, BLOCKS, state.ranked)

    return step


def balance_step(sweeps: int) -> Step:
    """Make a step that anneals what a placement sends and how evenly it spreads the work.

    Weights are drawn. Ops then run in the order of their ranks.

    Parameters
    ----------
    sweeps : int
        Moves tried for each unit.
    """

    def step(state: LevelPlan, seed: int, share: float, stop: BoolArray) -> LevelPlan:
        draw, problem = np.random.default_rng(seed), state.level.problem
        n_units, work_us = problem.n_units, problem.time_us.min(axis=1)
        weights = np.exp(draw.uniform(*np.log(WEIGHTS)))
        if state.weights is not None and draw.random() < SIMILAR:
            weights = state.weights * np.exp(draw.normal(0.0, SPREAD, len(weights)))
        units_of_band, sending, crowding = weights.tolist()
        n_bands = max(int(n_units / problem.cluster.n_devices / units_of_band), 2)
        unit_us = work_us.sum() / n_units
        when = _middle_us(problem) if draw.random() < 0.5 else _start_us(state)
        warm = draw.random() < WARM
        device = state.device.copy() if warm else _random_placement(problem, draw)
        balance = Balance(
            band=_bands(when, work_us, n_bands),
            length_us=max(work_us.sum() / problem.cluster.n_devices / n_bands, 1e-3),
            pace=_pace(problem.cluster),
            sending=sending,
            crowding=crowding,
            hot=HOT[warm] * unit_us,
            cold=COLD * unit_us,
            moves=min(sweeps * n_units, MOST_MOVES),
        )
        anneal_balance(state.level.machine, balance, device, draw, stop)
        by_ranks = LevelPlan(state.level, state.order, device)
        found = blocks_step("priority", rounds=0)(by_ranks, seed, share, stop)
        return min(state, replace(found, engine=BALANCE, weights=weights), key=by_key)

    return step


def _pace(cluster: Cluster) -> FloatArray:
    """Divide the speed of each device by the mean speed of its kind."""
    speed, kind = cluster.speed, cluster.kind
    mean: FloatArray = np.bincount(kind, speed) / np.maximum(np.bincount(kind), 1)
    paces: FloatArray = speed / mean[kind]
    return paces


def _random_placement(problem: Problem, draw: np.random.Generator) -> IntArray:
    lots = draw.random((problem.n_units, problem.cluster.n_devices))
    chosen: IntArray = np.where(problem.unit_allowed, lots, -1.0).argmax(axis=1)[problem.unit]
    return chosen


def _start_us(state: LevelPlan) -> FloatArray:
    plan = Plan(state.device.copy(), inverse(state.order), "enplace", links="priority")
    return simulate(state.level.problem, plan).op_start_us


def _middle_us(problem: Problem) -> FloatArray:
    """Find the middle of when each op may start if nothing is sent (twice, up to a constant)."""
    profile, work_us = problem.profile, problem.time_us.min(axis=1)
    free = np.zeros(profile.n_edges)
    producers = profile.edge_source[profile.in_edges]
    backward = profile.topological_order[::-1].copy()
    until_end_us = upward_rank_us(problem, work_us, free)
    since_begin_us = upward_rank(backward, profile.in_ptr, producers, work_us, free)
    middle_us: FloatArray = since_begin_us - work_us - until_end_us
    return middle_us


def _bands(start_us: FloatArray, work_us: FloatArray, n_bands: int) -> IntArray:
    """Cut a schedule into bands of equal work, on two grids; see :class:`Balance`."""
    order = np.argsort(start_us, kind="stable")
    middle_us = np.empty(len(order))
    middle_us[order] = np.cumsum(work_us[order]) - work_us[order] / 2
    share = middle_us / max(work_us.sum(), 1e-9)
    bands: IntArray = np.floor(share * n_bands + [[0.0], [0.5]]).astype(np.int64)
    return bands


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
    """Anneal windows, beginning at a random place."""
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
