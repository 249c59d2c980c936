"""The annealing part of the search: two threads that work in phases.

After each phase, the thread that lags behind continues from the other's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from itertools import takewhile

import numpy as np

from enplace.coarsen import merge_batches, merge_chains
from enplace.machine import simulate
from enplace.placers.enplace.kernels import BLOCKS, MERGES, WINDOWS, load_kernels
from enplace.placing.fitting import thrifty_position
from enplace.placing.incumbents import BestSchedule
from enplace.placing.moves import Level, make_level
from enplace.placing.moves.steps import (
    UNKNOWN,
    LevelPlan,
    Step,
    balance_step,
    blocks_step,
    by_key,
    by_price,
    elsewhere_step,
    measure,
    new_stop_flag,
    order_by_start,
    restarting,
    scattered,
    state_of,
    windows_step,
)
from enplace.placing.moves.thrifty import ROOMS
from enplace.placing.options import PlaceOptions, Progress
from enplace.placing.settle import by_placed_rank
from enplace.values.arrays import IntArray, inverse
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem

POLICIES = (("strict", "fifo"), ("priority", "fifo"), ("priority", "priority"))
"""Policies of devices and channels; each plan is simulated under all of these."""

OWN_ORDER = 0.02
"""Share by which a plan's own order must beat the order of ranks for blocks to move in it."""

FINE = 16_000
"""Most ops of the graph while blocks are moved; windows always use the finest."""

THREADS = 2

PHASES, BLOCK_PHASES = (0.35, 0.45, 0.55, 0.7, 0.85, 1.0), 3
"""Share of the time at which each phase ends, and the number of phases that only move blocks. In
the first phase, the threads also start from plans other than the best."""

BALANCE_PHASES: tuple[tuple[float, int], ...] = ((0.08, 150), (0.2, 300), (0.35, 600), (0.5, 1200))
"""Share of the time at which each phase of balances ends, if there is one, and its sweeps: the
moves for each unit."""

TIGHT_PHASES, TIGHT_PROMISING = ((0.15, 150), (0.5, 400)), 1.5
"""Those where memory is short, and how long those of the first may be there for the second, if any
plan fits, as a multiple of the best plan before."""

MOVE_S, FULL_SWEEPS = 1e-6, 600
"""Seconds that a move of a balance may take, and the sweeps for which a phase must have time on a
graph of more ops than :data:`FINE`: one long balance beats several hurried ones."""

FEW_SWEEPS, HURRIED, LEAST_SWEEPS = 200, (0.8, 600), 10
"""If no phase has time for that, the last one is the only one. If it does not even have time for
the first of these, it is replaced by the second, a longer phase, because moves of blocks gain
little then. With the last of these, a balance still beats any list schedule; with fewer, or time
for less than half of a phase's own sweeps, there is none."""

PROBE_SWEEPS, PROBES = 20, 5
"""Sweeps of a first, short phase on such a graph, which tells whether longer ones gain anything,
and how many of these phases there must be time for."""

REPAIR_SHARE, TIGHT_REPAIR_SHARE, SLACK = 0.3, 0.1, 0.02
"""Share of the time for repairing the best balance, if it exceeds memory; the same where memory is
short, again and again; and the share by which one move may make it longer."""

PROMISING, WINNING = 1.05, 0.9
"""How long those of the first phase may be for a second, as a multiple of the best plan before; and
how short the best of them must be for a further phase though the last one gained nothing."""

FEWEST_STEPS, MOST_STEPS, STEPPED_OPS = 5, 40, 4000
"""Steps that a thread takes in a phase without a time limit: enough to cover this many ops, within
these limits."""

SCATTERED = 16
"""Random placements that a phase also starts from while nothing fits."""

THRESHOLD = 0.003
"""Share by which a move of a block may make the plan worse, at first in each phase."""

LINKS = ("priority", "fifo")
"""The policy of channels for each thread while blocks are moved."""

NEAR = 0.02
"""How much longer than the first thread's schedule one of another kind may be (for channels that
serve first come, first served, or annealed in windows) for the second thread to improve it."""

REPORT_S = 0.2
"""Time between two looks at the threads' results."""


class PhasedSearch:
    """Moves blocks, then anneals windows, from the best list schedule.

    Parameters
    ----------
    problem : Problem
    incumbent : BestSchedule
        The start of the search, which the search improves.
    plans : tuple of Plan
        Other plans to start from.
    options : PlaceOptions
    share : float
        The phases' share of the remaining time.
    is_small : bool
        Whether the problem is small enough for random restarts.
    """

    def __init__(
        self,
        problem: Problem,
        incumbent: BestSchedule,
        plans: tuple[Plan, ...],
        options: PlaceOptions,
        *,
        share: float,
        is_small: bool,
    ) -> None:
        self.incumbent, self.plans, self.options = incumbent, plans, options
        self.problem, self.is_small = problem, is_small
        self.n_phases, self.is_tight = 0, False
        self._start_clock(share)

    def run(self) -> None:
        """Run the phases until they are complete or the time is up."""
        for _ in self._phases():
            if self.options.stop():
                break

    def restart(self) -> None:
        """Anneal windows of new random placements, op by op, for the rest of a limited time."""
        if self.options.stop.limit_s is None or self.options.stop():
            return
        self._start_clock(1.0)
        level = make_level(self.problem, np.arange(self.problem.profile.n_ops))
        start = self._replay(state_of(level, self.incumbent.found.plan))
        self._run_phase([start, start], [elsewhere_step, elsewhere_step], 1.0)

    def _start_clock(self, share: float) -> None:
        limit_s = self.options.stop.limit_s
        self.began_s = self.options.seconds
        self.search_s = None if limit_s is None else share * max(limit_s - self.began_s, 1e-9)

    def _phases(self) -> Iterator[None]:
        """Run the phases; yield wherever a large graph takes a while to prepare."""
        yield
        load_kernels(MERGES, self.options)
        finest = self._finest_level()
        load_kernels(BLOCKS, self.options)
        yield
        states = self._balance(finest)
        for end in PHASES[:BLOCK_PHASES]:
            yield
            level = self._level_for_blocks(finest)
            yield
            states = self._move_blocks(level, end, states, self.plans if end == PHASES[0] else ())
        yield
        load_kernels(WINDOWS, self.options)
        states = self._states_on(finest, states)
        by_blocks = self._best_for_blocks(states, LINKS[0])
        by_windows = min((self._replay(state) for state in states), key=by_key)
        blocks = blocks_step(LINKS[0], THRESHOLD)
        for end in PHASES[BLOCK_PHASES:]:
            yield
            if by_blocks.key >= by_windows.key:
                second = elsewhere_step if self.is_small else windows_step
                found = self._run_phase([by_windows] * THREADS, [windows_step, second], end)
                by_windows = min(found, key=by_key)
            elif _is_near(by_windows, by_blocks):
                steps = [blocks, windows_step]
                by_blocks, by_windows = self._run_phase([by_blocks, by_windows], steps, end)
            else:
                found = self._run_phase([by_blocks] * THREADS, [blocks] * THREADS, end)
                by_blocks = min(found, key=by_key)

    def _balance(self, level: Level) -> list[LevelPlan]:
        """Anneal balances for as long as that finds better plans; return the best of them."""
        if self.is_small:
            return []
        best = self._best_for_blocks(self._states_on(level, []), LINKS[0])
        if self.is_tight:
            plans = takewhile(lambda _: not self.options.stop(), self.plans)
            thrifty = (replace(state_of(level, plan), room=1.0) for plan in plans)
            best = min([best, *(measure(each, LINKS[0]) for each in thrifty)], key=by_price)
        unknown = replace(best, makespan_us=np.inf, excess_bytes=UNKNOWN, room=float(self.is_tight))
        promising = TIGHT_PROMISING if self.is_tight else PROMISING
        found, goal = [unknown] * THREADS, best.priced_us * promising
        is_large, sweep_s = level.problem.profile.n_ops > FINE, MOVE_S * level.problem.n_units
        phases, least = TIGHT_PHASES if self.is_tight else BALANCE_PHASES, FULL_SWEEPS
        last_s = self._left_s(phases[-1][0])
        if is_large and last_s < FULL_SWEEPS * sweep_s:
            last = phases[-1] if last_s >= FEW_SWEEPS * sweep_s else HURRIED
            phases, least = (last,), LEAST_SWEEPS
        probe_s = PROBE_SWEEPS * sweep_s
        if is_large and self.search_s is not None and last_s > PROBES * probe_s:
            phases = ((self._spent + probe_s / self.search_s, PROBE_SWEEPS), *phases)
        for end, sweeps in phases:
            left_s = partial(self._left_s, end)
            if is_large and left_s() < min(least, sweeps / 2) * sweep_s:
                continue
            found = self._run_phase(found, [balance_step(sweeps, left_s)] * THREADS, end)
            best_found = min(found, key=by_price)
            found, after = [best_found] * THREADS, best_found.priced_us
            if after >= goal and (not self.is_tight or self.incumbent.found.fits):
                break
            goal = max(min(best.priced_us, after), best.priced_us * WINNING)
        if self.is_tight:
            found = [min(found[0], best, key=by_price)] * THREADS
        excess = found[0].excess_bytes
        if 0 < excess < UNKNOWN and (self.is_tight or found[0].priced_us < best.priced_us):
            found = self._repair(found[0], end)
        return found

    def _repair(self, state: LevelPlan, end: float) -> list[LevelPlan]:
        """Move blocks of a balance that exceeds memory.

        Where memory is short, this goes on until it fits; if another plan fits, only while each
        round removes half of the excess.
        """
        found, step = [state] * THREADS, blocks_step(state.links, slack=SLACK)
        share = TIGHT_REPAIR_SHARE if self.is_tight else REPAIR_SHARE
        while True:
            end += share
            found = self._run_phase(found, [step] * THREADS, end)
            nearest = min(found, key=by_key)
            gains = nearest.excess_bytes <= state.excess_bytes / 2 or not self.incumbent.found.fits
            if not self.is_tight or nearest.excess_bytes == 0 or end >= 1.0 or not gains:
                return found
            state, found = nearest, [nearest] * THREADS

    def _states_on(self, level: Level, states: list[LevelPlan]) -> list[LevelPlan]:
        """List the best schedule so far, and those of the states that are on a given level."""
        best = state_of(level, self.incumbent.found.plan)
        return [best, *(state for state in states if state.level is level)]

    def _move_blocks(
        self, level: Level, end: float, states: list[LevelPlan], others: tuple[Plan, ...]
    ) -> list[LevelPlan]:
        """Move blocks of the best schedule so far, or of other plans if that gains nothing."""
        links, starts = list(LINKS), self._states_on(level, states)
        states = [self._best_for_blocks(starts, serve) for serve in LINKS]
        if not _is_near(states[1], states[0]):
            states[1], links[1] = states[0], links[0]
        if self.is_tight:  # what is shorter may yet be made to fit
            states[1], links[1] = min([*states, *starts], key=by_price), links[0]
        elif others and not self.is_small:
            states[1], links[1] = self._best_elsewhere(level, states[0], others), links[0]
        first, scatters = self.options.seed + self.n_phases * SCATTERED, self._scatters()
        seeds = range(first, first + SCATTERED * scatters)
        steps = [
            restarting(
                blocks_step(serve, THRESHOLD),
                [
                    state,
                    *(scattered(state, seed) for seed in seeds[thread::THREADS]),
                    *(
                        replace(state_of(level, plan), room=float(self.is_tight))
                        for plan in others[thread::THREADS]
                    ),
                ],
            )
            for thread, (serve, state) in enumerate(zip(links, states, strict=True))
        ]
        return self._run_phase(states, steps, end)

    def _best_elsewhere(self, level: Level, state: LevelPlan, plans: tuple[Plan, ...]) -> LevelPlan:
        """Return the best of some plans that place some ops elsewhere than a state does."""
        near = (state_of(level, plan) for plan in plans)
        apart = [each for each in near if (each.device != state.device).any()]
        return min((measure(each, LINKS[0]) for each in apart), key=by_key, default=state)

    def _scatters(self) -> bool:
        """Whether to start from random placements too: nothing fits, and there are few ops."""
        return self.is_small and not self.incumbent.found.fits

    def _finest_level(self) -> Level:
        """Merge chains, unless memory is short or the best schedule so far splits some."""
        chain = merge_chains(self.problem)
        best = self.incumbent.found
        level, device = make_level(self.problem, chain), best.plan.device
        is_whole = best.fits and bool((level.device_of(device)[level.group] == device).all())
        if is_whole and self._replay(state_of(level, best.plan)).excess_bytes == 0:
            return level
        return make_level(self.problem, np.arange(len(chain)))

    def _level_for_blocks(self, finest: Level) -> Level:
        """Return the finest level, or for a large graph, one merged along the best schedule."""
        if finest.problem.profile.n_ops <= FINE:
            return finest
        device = self.incumbent.found.plan.device
        groups = merge_batches(self.problem, FINE, critical=True, device=device)
        return make_level(self.problem, groups)

    def _best_for_blocks(self, states: list[LevelPlan], links: str) -> LevelPlan:
        """Return the best state for moves of blocks to start from.

        Moves have more effect in the order of ranks, unless a state's own order is much better.
        """

        def best(*, ranked: bool, room: float = 0.0) -> LevelPlan:
            plain = (LevelPlan(s.level, s.order, s.device) for s in states)
            ordered = (replace(s, ranked=ranked, room=room) for s in plain)
            return min((measure(each, links) for each in ordered), key=by_key)

        ranked, in_order = best(ranked=True), best(ranked=False)
        self.is_tight |= ranked.excess_bytes > 0
        if self.is_tight:
            rooms = ROOMS[:1] if self.incumbent.found.fits else ROOMS
            ranked = min([ranked, *(best(ranked=True, room=room) for room in rooms)], key=by_key)
        limit = ranked.excess_bytes, ranked.makespan_us * (1 - OWN_ORDER)
        return in_order if in_order.key < limit else ranked

    def _replay(self, state: LevelPlan) -> LevelPlan:
        """Return a state in the better order for windows: its own, or the order of its starts."""
        again = replace(state, order=order_by_start(state.level, state.device, state.order))
        return min(
            (windows_step(one, 0, 1.0, new_stop_flag(), n_windows=0) for one in (state, again)),
            key=by_key,
        )

    def _run_phase(self, states: list[LevelPlan], steps: list[Step], end: float) -> list[LevelPlan]:
        """Let each thread take steps from its state until a share of the time is over."""
        if self.options.stop() or self.incumbent.is_optimal:
            return states
        stop, found = new_stop_flag(), list(states)
        with ThreadPoolExecutor(THREADS) as pool:
            running = [
                pool.submit(self._take_steps, thread, steps[thread], found, stop, end)
                for thread in range(THREADS)
            ]
            try:
                self._watch(running, found, stop, end)
            finally:
                stop[0] = True
        for future in running:
            future.result()
        self.n_phases += 1
        for state in found:
            if not self.options.stop.cancelled():
                self._try_state(state)
        return found

    def _take_steps(
        self, thread: int, step: Step, found: list[LevelPlan], stop: BoolArray, end: float
    ) -> None:
        """Improve one thread's state step by step."""
        started = self._spent
        has_limit, most = self.options.stop.limit_s is not None, self.options.rounds
        if most is None and not has_limit:
            n_ops = found[thread].level.problem.profile.n_ops
            most = min(max(FEWEST_STEPS, STEPPED_OPS // n_ops), MOST_STEPS)
        taken = 0
        while not stop[0] and (most is None or taken < most):
            taken += 1
            number = (self.n_phases * THREADS + thread << 16) + taken
            # A balance with an odd seed has a zone, so the user's seed must not change that.
            seed = (2 * self.options.seed + number) % 2**32
            share = (self._spent - started) / max(end - started, 1e-9) if has_limit else 1.0
            found[thread] = step(found[thread], seed, share, stop)

    def _watch(
        self, running: list[Future[None]], found: list[LevelPlan], stop: BoolArray, end: float
    ) -> None:
        """Try the threads' results as plans until the phase is over."""
        best_keys = [state.key for state in found]
        reported_s = self.options.seconds
        while not all(future.done() for future in running):
            wait_s = min(REPORT_S, max(self._left_s(end), 0.0))
            wait([future for future in running if not future.done()], wait_s)
            if self.options.stop.cancelled() or self._is_over(end) or self.incumbent.is_optimal:
                stop[0] = True
                return
            if self.options.stop.limit_s is None:
                continue
            for thread, state in enumerate(found):
                if state.key < best_keys[thread]:
                    best_keys[thread] = state.key
                    self._try_state(state)
            if self.options.seconds - reported_s >= REPORT_S:
                reported_s = self.options.seconds
                fraction = min(1.0, self._spent)
                self.options.progress(
                    Progress(reported_s, "looking for a better plan", fraction=fraction)
                )

    def _try_state(self, state: LevelPlan) -> None:
        """Offer a state of the search as a plan of all ops, in every way for which there is time.

        The way in which its moves were simulated comes first.
        """
        if not np.isfinite(state.makespan_us):
            return
        over = self.options.stop.with_grace(self.problem.profile.n_ops)
        policies = sorted(POLICIES, key=lambda each: each != (state.policy, state.links))
        for order in self._orders(state):
            for policy, links in policies:
                plan = state.level.plan(order, state.device, policy, links)
                self.incumbent.offer(simulate(self.problem, plan), state.engine)
                if over():
                    return

    def _orders(self, state: LevelPlan) -> Iterator[IntArray]:
        """Yield the orders of a state that may make the best plan."""
        if state.policy == "priority" and state.ranked:
            problem, device = state.level.problem, state.device
            yield inverse(by_placed_rank(problem, device))
            if self.is_tight and not self.incumbent.found.fits:
                for room in ROOMS:
                    yield inverse(thrifty_position(problem, device, room))
        yield state.order

    @property
    def _spent(self) -> float:
        """The share of the annealing time that is used up; 0 without a limit."""
        if self.search_s is None:
            return 0.0
        return (self.options.seconds - self.began_s) / self.search_s

    def _left_s(self, end: float) -> float:
        """Return the seconds until a share of the annealing time is over; inf without a limit."""
        return np.inf if self.search_s is None else (end - self._spent) * self.search_s

    def _is_over(self, end: float) -> bool:
        return self._left_s(end) <= 0.0


def _is_near(state: LevelPlan, other: LevelPlan) -> bool:
    """Whether a state is only slightly worse than another, if at all."""
    return state.key <= (other.excess_bytes, other.makespan_us * (1 + NEAR))
