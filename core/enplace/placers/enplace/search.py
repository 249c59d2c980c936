"""Enplace's own method: the best list schedule, then annealing of placement and order together.

1. The quick methods of the registry are tried; the best of their plans is the first incumbent.
2. Chains of ops that lose nothing by it are merged (:func:`enplace.coarsen.merge_chains`). Of a
   large graph, so are ops that the best plan so far has on one device
   (:func:`enplace.coarsen.merge_batches`), anew in each phase.
3. Two threads move whole blocks (:mod:`enplace.placing.moves.blocks`), with channels that serve the
   most urgent first; one of them with channels that serve first come, first served, where that is
   hardly worse. Ops stand in the order of their ranks, or in a plan's own if that is much better,
   in which blocks move as well. Where the best plan leads nowhere, they go on from the other quick
   methods' plans, and while nothing fits, from placements by chance.
4. Both anneal windows of the order (:mod:`enplace.placing.moves.windows`), each with its own seed;
   now and then the one that lags goes on from the other's. Where channels that serve the most
   urgent first win more than windows do, the first thread keeps moving blocks; where they win much
   more, both.
5. On problems of a few hundred ops, CP-SAT has the rest of the time (:mod:`enplace.solvers.cp`): it
   may find a better plan still, or prove how little there is to gain. If it ends before that with
   something left to gain, windows are annealed from ever new placements.

Whatever they find is played on the graph of all ops, under every policy worth trying, before it
counts. Memory over time, pins, colocation and devices of different kinds are part of every move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from enplace.bounds import Proof
from enplace.coarsen import merge_batches, merge_chains
from enplace.errors import CancelledError, EnplaceError
from enplace.machine import simulate
from enplace.placers.baechi.m_etf import m_etf
from enplace.placers.baechi.m_sct import m_sct
from enplace.placers.baechi.m_topo import m_topo
from enplace.placers.celeritas import celeritas, order_place
from enplace.placers.dpos import dpos
from enplace.placers.expert import expert
from enplace.placers.heft import heft
from enplace.placers.local_search import local_search
from enplace.placers.mcmc import mcmc
from enplace.placers.naive import single
from enplace.placers.os_dpos import data_parallel
from enplace.placing.candidates import best_of, given_start
from enplace.placing.incumbents import gap_of, is_better, report
from enplace.placing.moves import Level, make_level
from enplace.placing.moves.steps import (
    BLOCKS,
    LISTS,
    State,
    Step,
    blocks_step,
    by_key,
    elsewhere_step,
    going,
    played,
    restarting,
    scattered,
    state_of,
    windows_step,
)
from enplace.placing.options import ROUNDS, PlaceOptions, Progress
from enplace.placing.registry import WARM_START, Run, placer
from enplace.placing.settle import by_placed_rank
from enplace.readers.clusters import presets
from enplace.solvers.cp import solve_cp
from enplace.text import ms
from enplace.values.plan import Plan, inverse
from enplace.values.problem import BoolArray, Problem, split_problem
from enplace.values.profile import make_profile
from enplace.values.schedule import Schedule
from enplace.values.splits import has_parts

STARTS = (single, expert, dpos, celeritas, order_place, m_topo, m_etf, heft)
"""Methods that take a second at most. After what a person would do by hand come the quickest first,
so that little time has the most."""

SEARCHES, SEARCH_SHARE = (local_search, mcmc), 0.05
"""Methods that search, tried on problems small enough for CP-SAT, and the share of the time that
each has, if there is a limit."""

SLOW_START_S, PATIENCE = 2.5e-4, 0.25
"""Time that ``m-sct``, with its linear program, takes for an op, and the share of all time that it
may take; it is tried last."""

OWN_ORDER = 0.02
"""Blocks are moved in a plan's own order if that is so much shorter than the order of ranks."""

FINE = 16_000
"""Most ops of the graph while blocks are moved; windows always use the finest."""

THREADS = 2

PHASES, BLOCK_PHASES = (0.35, 0.45, 0.55, 0.7, 0.85, 1.0), 3
"""Share of the time at which each phase ends, and how many of them move blocks only; after each,
what lags is dropped. In the first, other plans than the best have a turn as well."""

TURNS, MORE_TURNS, TURN_OPS = 5, 40, 4000
"""Turns that a thread takes in a phase when no time limit is given; more for small graphs, as many
as make so many ops."""

SCATTERED = 16
"""Placements by chance that a phase begins with as well where nothing fits so far."""

THRESHOLD = 0.003
"""How much worse than the current plan a move of a block may be at first in each phase."""

LINKS = ("priority", "fifo")
"""How channels serve while blocks are moved, for each thread."""

HARDLY = 0.02
"""How much longer the second thread's schedule may be for it to go its own way, with channels that
serve first come, first served, or with windows."""

SPLIT_OPS, SPLIT_GAIN = 10_000, 0.05
"""Most ops of a model of which is told what a step takes with its ops split, and how much shorter
that has to be."""

EXACT, EXACT_SHARE = 300, 0.4
"""Most ops of a problem that CP-SAT is tried on, and the share of the time after which it starts.
"""

POLICIES = (("strict", "fifo"), ("priority", "fifo"), ("priority", "priority"))
"""How devices and channels serve: each plan found is played under all of these."""

CP_SAT = "CP-SAT"
"""What that part of the search is called."""

NOTHING_FITS = "No plan fits, proven by CP-SAT: the devices' memory is too small for this model."

TELL_S = 0.2
"""Time between two looks at what the threads have found."""


@placer(
    "enplace",
    title="Enplace",
    source="Enplace: annealing of blocks and windows, from the best list schedule",
    capabilities=("memory", "heterogeneous", "channels", "anytime", WARM_START),
    options=(ROUNDS,),
)
def enplace(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the best list schedule until the time limit, or for a fixed number of rounds."""
    with options.stopwatch.paused():
        compile_loops()
    start = best_start(problem, options)
    split_us = _split_step_us(problem, options)
    plan = improved(problem, start, options)
    if split_us < (1 - SPLIT_GAIN) * simulate(problem, plan).makespan_us:
        note = (
            f"With ops split by samples, a list schedule takes {ms(split_us)}: try enplace-split."
        )
        plan = plan.with_notes(plan.note, note)
    return plan


def _split_step_us(problem: Problem, options: PlaceOptions) -> float:
    """A list schedule of the data-parallel graph, to tell of; inf where that is not to be had."""
    if problem.profile.n_ops > SPLIT_OPS or has_parts(problem.profile) or options.stopped:
        return np.inf
    splits = data_parallel(problem)
    if not splits:
        return np.inf
    try:
        graph = split_problem(problem, splits)
        plan = dpos(replace(graph, splits=()), options.quiet)
        schedule = simulate(graph, replace(plan, splits=splits))
    except EnplaceError:  # then there is nothing to tell
        return np.inf
    return schedule.makespan_us if schedule.fits else np.inf


@cache
def compile_loops() -> None:
    """Compile all loops of this method, or load them where they have been compiled before.

    Once on a machine, this takes a minute, and once in a process a second. A small problem makes it
    happen that no quick method solves to the end, and that has all that calls for a loop of its
    own.
    """
    n, draw = 20, np.random.default_rng(0)
    target = np.repeat(np.arange(2, n), 2)
    source = np.maximum(target - draw.integers(1, 9, len(target)), 0)
    small = make_profile(
        "to compile with",
        op_names=[f"op_{i}" for i in range(n)],
        op_types=["MatMul"] * n,
        scopes=[""] * n,
        time_us=np.column_stack([draw.uniform(5, 50, n), draw.uniform(50, 90, n)]),
        persistent_bytes=draw.integers(1, 99, n),
        temporary_bytes=draw.integers(1, 99, n),
        colocation=["a", "a", "b", "b", *[""] * (n - 4)],
        edge_source=source,
        edge_output=[0] * len(target),
        edge_op=target,
        edge_bytes=draw.integers(1, 1 << 20, n)[source],
    )
    problem = Problem(small, presets()["pesto"])
    merge_batches(problem, n // 2, critical=True)
    options = PlaceOptions()
    improved(problem, best_start(problem, options), options)


@dataclass(frozen=True, eq=False)
class Start:
    """What the search begins with.

    Attributes
    ----------
    best : Schedule
        The best list schedule, or the plan to begin from.
    plans : tuple of Plan
        All list schedules, to begin from again.
    missed : tuple of str
        Why some methods have none.
    """

    best: Schedule
    plans: tuple[Plan, ...]
    missed: tuple[str, ...]


def best_start(problem: Problem, options: PlaceOptions) -> Start:
    """Try the quick methods."""
    plans: list[Plan] = []
    missed: list[str] = []

    def tried() -> Iterator[Plan]:
        for plan in _starts(problem, options, missed):
            plans.append(plan)
            yield plan

    given = given_start(problem, options, "enplace")
    best = best_of(problem, tried(), options, given, engine=LISTS)
    return Start(best, tuple(plans), tuple(missed))


def improved(problem: Problem, start: Start, options: PlaceOptions) -> Plan:
    """The best plan after the search."""
    notes: list[str] = []
    best, missed = start.best, list(start.missed)
    if problem.cluster.n_devices > 1:
        search = _Search(problem, start, options)
        try:
            best = search.run()
        except EnplaceError as error:  # whatever it stumbles over, what is found is not lost
            best = search.best
            search.missed.append(f"the search ({error})")
        missed += search.missed
        notes += [NOTHING_FITS] if search.nothing_fits else []
    notes += [f"Left out: {'; '.join(missed)}."] if missed else []
    if not notes:
        return best.plan
    return best.plan.with_notes(*notes)


def _starts(problem: Problem, options: PlaceOptions, missed: list[str]) -> Iterator[Plan]:
    """Plans of the quick methods, one after another; none but the first takes longer than there is.

    A slow one in the way of the time limit is given up, and those after it have no time.
    """
    slow_s, limit_s = SLOW_START_S * problem.profile.n_ops, options.time_limit_s
    patient = limit_s is None or options.seconds + slow_s <= PATIENCE * limit_s
    methods: list[tuple[Run, PlaceOptions]] = [(method, options.quiet) for method in STARTS]
    if patient:
        methods.append((m_sct, options.quiet))
    if problem.profile.n_ops <= EXACT:
        for number, search in enumerate(SEARCHES, 1):
            until_s = None
            if limit_s is not None:
                until_s = options.seconds + number * SEARCH_SHARE * limit_s
            methods.append((search, replace(options.quiet, time_limit_s=until_s)))
    for number, (method, asked) in enumerate(methods):
        if number:
            asked = replace(asked, cancelled=lambda: options.stopped)
        try:
            found = method(problem, asked)
        except CancelledError:
            options.check_cancelled()
            missed.append(f"{method.__name__.replace('_', '-')} (it takes longer)")
            return
        except EnplaceError as error:  # one method less; the others may do
            missed.append(f"{method.__name__.replace('_', '-')} ({error})")
            continue
        yield found.under_name("enplace")


def _is_near(state: State, other: State) -> bool:
    """Whether a state is hardly worse than another."""
    return state.key <= (other.lacking_bytes, other.makespan_us * (1 + HARDLY))


class _Search:
    """The best schedule so far, and two threads that look for a better one."""

    def __init__(self, problem: Problem, start: Start, options: PlaceOptions) -> None:
        self.problem, self.options = problem, options
        self.best, self.plans = start.best, start.plans
        self.began = options.seconds
        self.turns = 0
        self.missed: list[str] = []
        self.nothing_fits = False
        self.exact = problem.profile.n_ops <= EXACT
        limit_s = options.time_limit_s
        share = EXACT_SHARE if self.exact else 1.0
        self.search_s = None if limit_s is None else share * max(limit_s - self.began, 1e-9)

    def run(self) -> Schedule:
        """Go through the phases; the best schedule when they are over, or when time is."""
        for _ in self._phases():
            if self.options.stopped:
                break
        return self.best

    def _phases(self) -> Iterator[None]:
        """The phases, with a stop wherever a large graph takes a while to get ready."""
        yield
        finest = self._finest()
        states: list[State] = []
        for end in PHASES[:BLOCK_PHASES]:
            yield
            level = self._level(finest)
            yield
            states = self._moved(level, end, states, self.plans if end == PHASES[0] else ())
        yield
        states = self._reached(finest, states)
        urgent = self._looked_at(states, LINKS[0])
        leader = min((self._replayed(state) for state in states), key=by_key)
        blocks = blocks_step(LINKS[0], THRESHOLD)
        for end in PHASES[BLOCK_PHASES:]:
            yield
            if urgent.key >= leader.key:
                second = elsewhere_step if self.exact else windows_step
                found = self._phase([leader, leader], [windows_step, second], end)
                leader = min(found, key=by_key)
            elif _is_near(leader, urgent):
                urgent, leader = self._phase([urgent, leader], [blocks, windows_step], end)
            else:
                urgent = min(self._phase([urgent, urgent], [blocks, blocks], end), key=by_key)
        if self.exact:
            self._prove()
            self._begin_again()

    def _reached(self, level: Level, states: list[State]) -> list[State]:
        """The best schedule so far, and those of the states that are of a level."""
        return [state_of(level, self.best.plan), *(s for s in states if s.level is level)]

    def _moved(
        self, level: Level, end: float, states: list[State], others: tuple[Plan, ...]
    ) -> list[State]:
        """Move blocks of the best schedule so far, and where that leads nowhere, of other plans."""
        links, reached = list(LINKS), self._reached(level, states)
        states = [self._looked_at(reached, serve) for serve in LINKS]
        if not _is_near(states[1], states[0]):
            states[1], links[1] = states[0], links[0]
        first, nothing = self.options.seed + self.turns * SCATTERED, not self.best.fits
        seeds = range(first, first + SCATTERED * (self.exact and nothing))
        steps = [
            restarting(
                blocks_step(serve, THRESHOLD),
                [
                    state,
                    *(scattered(state, seed) for seed in seeds[thread::THREADS]),
                    *(state_of(level, plan) for plan in others[thread::THREADS]),
                ],
            )
            for thread, (serve, state) in enumerate(zip(links, states, strict=True))
        ]
        return self._phase(states, steps, end)

    def _finest(self) -> Level:
        """Chains merged, unless memory is short or the best schedule so far tears some apart."""
        chain = merge_chains(self.problem)
        level, device = make_level(self.problem, chain), self.best.plan.device
        if self.best.fits and (level.device_of(device)[level.group] == device).all():
            return level
        return make_level(self.problem, np.arange(len(chain)))

    def _level(self, finest: Level) -> Level:
        """The finest, or ops merged that the best schedule so far has on one device."""
        if finest.problem.profile.n_ops <= FINE:
            return finest
        device = self.best.plan.device
        groups = merge_batches(self.problem, FINE, critical=True, device=device)
        return make_level(self.problem, groups)

    def _looked_at(self, states: list[State], links: str) -> State:
        """The best state for moves of blocks to start from.

        Moves go further in the order of ranks, unless a state's own is much better.
        """
        look = blocks_step(links, rounds=0)
        ranked, in_order = (
            min(
                (
                    look(State(s.level, s.order, s.device, ranked=by_ranks), 0, 1.0, going())
                    for s in states
                ),
                key=by_key,
            )
            for by_ranks in (True, False)
        )
        limit = ranked.lacking_bytes, ranked.makespan_us * (1 - OWN_ORDER)
        return in_order if in_order.key < limit else ranked

    def _replayed(self, state: State) -> State:
        """A state in the order that windows should start from: its own, or that of a new play."""
        again = replace(state, order=played(state.level, state.device, state.order))
        return min(
            (windows_step(one, 0, 1.0, going(), n_windows=0) for one in (state, again)), key=by_key
        )

    def _phase(self, states: list[State], steps: list[Step], end: float) -> list[State]:
        """Let each thread take turns on its state until a share of the time is over."""
        if self.options.stopped or self._is_enough():
            return states
        started, until = self._spent, end
        stop = going()
        found: list[State] = list(states)
        n_ops = states[0].level.problem.profile.n_ops
        most = self.options.rounds
        if most is None and self.options.time_limit_s is None:
            most = min(max(TURNS, TURN_OPS // n_ops), MORE_TURNS)

        def work(thread: int) -> None:
            turn = 0
            while not stop[0]:
                turn += 1
                seed = (self.options.seed + (self.turns * THREADS + thread << 16) + turn) % 2**32
                share = 1.0
                if self.options.time_limit_s is not None:
                    share = (self._spent - started) / max(until - started, 1e-9)
                found[thread] = steps[thread](found[thread], seed, share, stop)
                if turn == most:
                    return

        with ThreadPoolExecutor(THREADS) as pool:
            running = [pool.submit(work, thread) for thread in range(THREADS)]
            try:
                self._watch(running, found, stop, until)
            finally:
                stop[0] = True
        for future in running:
            future.result()
        self.turns += 1
        for state in found:
            if not self.options.cancelled():
                self._try(state)
        return found

    def _watch(
        self, running: list[Future[None]], found: list[State], stop: BoolArray, until: float
    ) -> None:
        """Look at what the threads find, until the phase is over."""
        seen: list[tuple[int, float]] = [state.key for state in found]
        told = self.options.seconds
        while not all(future.done() for future in running):
            left_s = TELL_S if self.search_s is None else (until - self._spent) * self.search_s
            wait_s = min(TELL_S, max(left_s, 0.0))
            wait([future for future in running if not future.done()], wait_s)
            if self.options.cancelled() or self._is_over(until) or self._is_enough():
                stop[0] = True
                return
            if self.options.time_limit_s is None:
                continue
            for thread, state in enumerate(found):
                if state.key < seen[thread]:
                    seen[thread] = state.key
                    self._try(state)
            if self.options.seconds - told >= TELL_S:
                told = self.options.seconds
                self.options.progress(
                    Progress(told, "looking for a better plan", fraction=min(1.0, self._spent))
                )

    def _try(self, state: State) -> None:
        """Play what a thread has found on the graph of all ops, under every policy."""
        if not np.isfinite(state.makespan_us):
            return
        orders = [state.order]
        if state.engine == BLOCKS and state.ranked:
            orders.append(inverse(by_placed_rank(state.level.problem, state.device)))
        plans = (
            state.level.plan(order, state.device, policy, links)
            for order in orders
            for policy, links in POLICIES
        )
        self._keep(plans, state.engine)

    def _keep(self, plans: Iterable[Plan], engine: str) -> None:
        """Play plans of all ops, and keep one that is better than what there is."""
        for plan in plans:
            schedule = simulate(self.problem, plan)
            if is_better(schedule, self.best):
                self.best = schedule
                report(schedule, self.options, engine)

    def _prove(self) -> None:
        """Let CP-SAT look for a better plan and a better bound until the time is over."""
        limit_s = self.options.time_limit_s
        if limit_s is None or self.options.stopped or self._is_enough():
            return

        def stopped() -> bool:
            return self.options.stopped or self._is_enough()

        proofs, left_s = self.options.proofs, limit_s - self.options.seconds
        bound_us = proofs.find(self.problem).bound_us
        for found in solve_cp(self.problem, self.best, bound_us, left_s, stopped, THREADS):
            proofs.add(self.problem, Proof(found.bound_us, CP_SAT))
            self.nothing_fits |= found.status == "infeasible" and not self.best.fits
            if found.why:
                self.missed.append(f"{CP_SAT} ({found.why})")
            self.options.progress(
                Progress(
                    self.options.seconds,
                    found.why or "looking for a proof",
                    fraction=min(1.0, self.options.seconds / limit_s),
                    bound_us=found.bound_us,
                    engine=CP_SAT,
                    bound_by=CP_SAT,
                )
            )
            if found.plan is not None:
                plans = (
                    replace(found.plan, policy=policy, links=links) for policy, links in POLICIES
                )
                self._keep(plans, CP_SAT)

    def _begin_again(self) -> None:
        """Anneal from other placements, op by op, what is left of the time."""
        limit_s = self.options.time_limit_s
        if limit_s is None or self.nothing_fits:
            return
        self.began = self.options.seconds
        self.search_s = max(limit_s - self.began, 1e-9)
        level = make_level(self.problem, np.arange(self.problem.profile.n_ops))
        start = self._replayed(state_of(level, self.best.plan))
        self._phase([start, start], [elsewhere_step, elsewhere_step], 1.0)

    def _is_enough(self) -> bool:
        return self.best.fits and gap_of(self.best, self.options) <= 0

    @property
    def _spent(self) -> float:
        """Share of the time for annealing that is over; 0 without a limit."""
        if self.search_s is None:
            return 0.0
        return (self.options.seconds - self.began) / self.search_s

    def _is_over(self, until: float) -> bool:
        return self.search_s is not None and self._spent >= until
