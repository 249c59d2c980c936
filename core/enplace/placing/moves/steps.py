"""Steps of a search: one turn of moving blocks or of annealing windows, on a level.

A step takes a state, an order and a placement, and gives one that is no worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from enplace.machine import simulate
from enplace.placing.moves.blocks import move_blocks
from enplace.placing.moves.level import Level
from enplace.placing.moves.windows import sweep
from enplace.values.plan import LINK_POLICIES, Plan, inverse
from enplace.values.problem import BoolArray
from enplace.values.profile import IntArray

BLOCK_ROUNDS, WINDOWS = 100, 8
"""Moves of blocks, and windows, that a thread tries in one turn."""

LITTLE, PATIENCE, HASTE = 0.001, 8, 2
"""How much shorter a turn has to make a schedule for it to count, and after how many turns without
that a search begins anew; sooner where the schedule does not fit."""

WIDTH, STRIDE, ROUNDS_AN_OP = 50, 25, 200
HOT, COLD, SPREAD = 1.0, 0.025, 0.2
"""Windows: ops in one and from one to the next, moves for each; temperatures in terms of the mean
time of its ops, and the weight of the mean over the devices beside that of the last to end."""

LISTS, BLOCKS, WINDOWS_OF = "list schedules", "blocks", "windows"
"""What the parts of a search are called."""


@dataclass(frozen=True, eq=False)
class State:
    """An order and a placement on a level, and what the search makes of them.

    ``ranked`` tells how blocks are to be moved next: with ops in the order of their ranks, or in
    this one. What has not been played is worse than anything that has.
    """

    level: Level
    order: IntArray
    device: IntArray
    makespan_us: float = np.inf
    lacking_bytes: int = np.iinfo(np.int64).max
    engine: str = LISTS
    ranked: bool = True

    @property
    def key(self) -> tuple[int, float]:
        return self.lacking_bytes, self.makespan_us


Step = Callable[[State, int, float, BoolArray], State]
"""One turn of a search: state, seed and share of the phase that is over in, state out."""


def going() -> BoolArray:
    """A flag that stops nothing."""
    return np.zeros(1, dtype=bool)


def by_key(state: State) -> tuple[int, float]:
    """What the better of two states has less of."""
    return state.key


def state_of(level: Level, plan: Plan) -> State:
    """A plan of all ops as a state, as nearly as the groups of a level allow; not played yet."""
    near = nearest(level, plan)
    return State(level, np.argsort(near.position), near.device)


def nearest(level: Level, plan: Plan) -> Plan:
    """The plan of a level's groups that is nearest to one of all ops.

    Each group is where most of its work is. They stand in the order in which they start if the one
    that the plan comes to first has the turn.
    """
    device = level.device_of(plan.device)
    first = np.full(len(device), len(plan.position))
    np.minimum.at(first, level.group, plan.position)
    order = played(level, device, np.argsort(first, kind="stable"), plan.links)
    return Plan(device, inverse(order), plan.method, links=plan.links)


def played(level: Level, device: IntArray, order: IntArray, links: str = "fifo") -> IntArray:
    """Order in which ops start if devices take the ready op that stands first in an order."""
    plan = Plan(device.copy(), inverse(order), "enplace", links=links)
    schedule = simulate(level.problem, plan)
    natural = inverse(level.problem.profile.topological_order)
    found: IntArray = np.lexsort((natural, schedule.op_start_us)).astype(np.int64)
    return found


def blocks_step(links: str, threshold: float = 0.0, rounds: int = BLOCK_ROUNDS) -> Step:
    """A search that moves blocks, and in an order of their own moves them there as well."""
    policy = LINK_POLICIES.index(links)

    def step(state: State, seed: int, share: float, stop: BoolArray) -> State:
        problem = state.level.problem
        order, device = state.order.copy(), state.device.copy()
        makespan, lacking = move_blocks(
            state.level.graph,
            problem.cluster.lanes,
            problem.cluster.lane_owner,
            np.diff(problem.profile.in_ptr),
            problem.profile.topological_order,
            *state.level.blocks,
            order,
            device,
            policy,
            state.ranked,
            rounds,
            threshold * (1 - min(1.0, share)) ** 2,
            np.random.default_rng(seed),
            stop,
        )
        if state.key <= (lacking, makespan):
            return state
        return State(state.level, order, device, makespan, lacking, BLOCKS, state.ranked)

    return step


def restarting(step: Step, starts: Sequence[State]) -> Step:
    """A step that begins with one start after another, each for as long as it gets anywhere."""
    current, begun, fruitless = starts[0], 1, 0

    def turn(state: State, seed: int, share: float, stop: BoolArray) -> State:
        nonlocal current, begun, fruitless
        found = step(current, seed, share, stop)
        gains = found.key < (current.lacking_bytes, current.makespan_us * (1 - LITTLE))
        current, fruitless = found, 0 if gains else fruitless + 1
        if fruitless == (HASTE if current.lacking_bytes else PATIENCE):
            current, begun, fruitless = starts[begun % len(starts)], begun + 1, 0
        return min(state, found, key=by_key)

    return turn


def scattered(state: State, seed: int) -> State:
    """A state with some units moved by chance, not played yet."""
    draw, problem = np.random.default_rng(seed), state.level.problem
    device = state.device.copy()
    for unit in np.flatnonzero(draw.random(problem.n_units) < draw.random()):
        device[problem.unit == unit] = draw.choice(np.flatnonzero(problem.unit_allowed[unit]))
    return State(state.level, played(state.level, device, state.order), device)


def elsewhere_step(state: State, seed: int, share: float, stop: BoolArray) -> State:
    """A search that anneals windows of a placement of which some units were moved by chance."""
    found = windows_step(scattered(state, seed), seed, share, stop)
    return min(state, found, key=by_key)


def windows_step(
    state: State,
    seed: int,
    share: float,
    stop: BoolArray,
    n_windows: int = WINDOWS,
) -> State:
    """A search that anneals windows, from a random place on."""
    n_ops = state.level.problem.profile.n_ops
    order, device = state.order.copy(), state.device.copy()
    draw = np.random.default_rng(seed)
    first = int(draw.integers(n_ops))
    makespan, lacking = sweep(
        state.level.graph,
        order,
        device,
        first,
        WIDTH,
        STRIDE,
        min(n_windows, -(-n_ops // STRIDE)),
        ROUNDS_AN_OP * min(WIDTH, n_ops),
        HOT,
        COLD,
        SPREAD,
        draw,
        stop,
    )
    return State(state.level, order, device, makespan, lacking, WINDOWS_OF)
