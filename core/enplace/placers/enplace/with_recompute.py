"""Enplace's own method, where some tensors are not kept, but computed again or sent to the host.

1. Placements of the model, with and without regard to memory, are the plans to begin from.
2. In each, sets of ops are computed again: what is cheapest for its bytes, within parts of the
   model whose borders are kept (:mod:`enplace.placing.again`). Other sets are sent to the host:
   what waits longest for its reader. Where both are allowed, part of a set is also sent, and the
   rest computed again. Each is simulated.
3. Of the best set, what need not be computed again or sent is kept after all, if that is shorter.
   Where both are allowed, parts of the set change from one to the other.
4. The search for placement and order goes on with the graph that has the copies.

For a tiny model, every set of ops is tried, with all placements and orders, with every op after
which what is sent may be fetched and, if there are few, with some of the late readers only. This
proves nothing: copies may also run at other times and for other readers. That no plan fits is
proven by packing (:mod:`enplace.placing.packing`) with what holds for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from math import prod

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.placers.enplace.search import NOTHING_FITS, improve
from enplace.placers.enplace.starts import Start, depth_first_plans, find_start
from enplace.placers.enplace.with_splits import of_model, split_graph
from enplace.placing.again import AGAIN, AHEAD, Kept, simulate_again
from enplace.placing.fitting import in_other_orders, limit_packing
from enplace.placing.incumbents import BestSchedule, best_among, is_better
from enplace.placing.options import OFFLOAD, ROUNDS, PlaceOptions
from enplace.placing.packing import PROVES_ALL, is_plainly_impossible, pack
from enplace.placing.registry import ANYTIME, CHANNELS, HETEROGENEOUS, MEMORY, SPLITS, placer
from enplace.placing.small import MOST_OPS, find_shortest, is_small
from enplace.values.cluster_variants import boundless
from enplace.values.plan import COPYING, Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.schedule import Schedule

METHOD, OFFLOADING = COPYING

NO_HOST = "The cluster has no host for what the GPUs do not keep; add a CPU to it."
ON_HOST = "All devices are CPUs: what they make is in the host's memory already."

CHOOSING_SHARE, START_SHARE = 0.6, 0.3
"""Shares of the time left for choosing ops, and of all time for the plans to begin from."""

BLOCKS_SHARE = 0.3
"""Share of the time for those plans that orders that end what they have begun may take in addition,
on one GPU and for layers in blocks."""

CHOOSING_S = 30.0
"""The time limit by which ops are chosen if there is none, in seconds."""

MOST_SETS = 250
"""Most sets of ops of a tiny model that are all tried."""

AGAIN_FIRST = 7
"""How many sets to compute again are tried in a plan before those to send, and once more after."""

SENT_SHARES = (0.75, 0.5, 0.25)
"""Shares of a set that are sent to the host if the rest is computed again, by number of ops."""


@dataclass(frozen=True, eq=False)
class _Set:
    """A plan to begin from, the ops to compute again in it, those to send, and when to fetch."""

    base: Schedule
    again: frozenset[int] = frozenset()
    sent: frozenset[int] = frozenset()
    ahead: float = AHEAD[0]

    def simulated(self, kept: Kept) -> Schedule | None:
        """Simulate the plan with these ops not kept; None if there is no such plan."""
        if not self.again | self.sent:
            return self.base
        return simulate_again(kept, self.base, self.again, self.sent, self.ahead)


@placer(
    METHOD,
    title="Enplace with recomputation",
    good=(
        "Where a training step does not fit: forward ops run again just before the backward ops "
        "that read what they make, instead of keeping that. Where it fits, it finds what enplace "
        "finds, or a shorter step with less room taken."
    ),
    source="Enplace: checkpoints by bytes for their time, then annealing of the graph with copies",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME, SPLITS),
    options=(ROUNDS, OFFLOAD),
)
def enplace_recompute(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the best plan that keeps everything, or the best that computes some of it again."""
    return _plan(METHOD, problem, options, recompute=True, offload=options.is_on(OFFLOAD))


@placer(
    OFFLOADING,
    title="Enplace with host memory",
    good=(
        "Where a training step does not fit, and the GPUs have a host: what forward ops make is "
        "sent there, and fetched in time for the backward ops that read it. While the link has "
        "time for it, the step is no longer."
    ),
    source="Enplace: what waits longest is sent, then annealing of the graph with the fetches",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME, SPLITS),
    options=(ROUNDS,),
)
def enplace_offload(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the best plan that keeps everything, or the best that keeps some on the host."""
    return _plan(OFFLOADING, problem, options, recompute=False, offload=True)


def _plan(
    method: str, problem: Problem, options: PlaceOptions, *, recompute: bool, offload: bool
) -> Plan:
    kept = Kept(problem, recompute, offload)
    options = options.without_bounds
    plan = _try_all(method, kept, options) or _search(method, kept, options)
    graph = split_problem(problem, plan.splits)
    if not simulate(graph, plan).fits and _is_hopeless(problem, options):
        plan = replace(plan.with_notes(PROVES_ALL, plan.note), nothing_fits=True)
    if offload and not problem.cluster.cpus:
        is_host = not any(device.kind == "gpu" for device in problem.cluster.devices)
        plan = plan.with_notes(plan.note, ON_HOST if is_host else NO_HOST)
    return plan


def _is_hopeless(problem: Problem, options: PlaceOptions) -> bool:
    """Whether it is proven that no plan fits, whatever is computed again or kept on the host."""
    return pack(problem.with_any_copies, limit_packing(options.stop)).is_impossible


def _search(method: str, kept: Kept, options: PlaceOptions) -> Plan:
    problem = kept.problem
    limit_s = CHOOSING_S if options.stop.limit_s is None else options.stop.limit_s
    has_choice = bool(kept.can.any() or kept.can_send.any())
    start_s = (START_SHARE if has_choice else 1.0) * limit_s
    named = of_model(options, method, ())
    try:
        start = find_start(problem, replace(named, stop=options.stop.until(start_s)))
    except EnplaceError:  # a share of the time is too little for a large graph
        start = find_start(problem, named)
    if not start.best.fits and is_plainly_impossible(problem.with_any_copies):
        return replace(start.best.plan, method=method)
    best = BestSchedule(options, start.best)
    sets = _sets(kept, start.best, options, start_s) if has_choice else iter(())
    is_over = False
    while not is_over:
        until_s = options.seconds + CHOOSING_SHARE * (limit_s - options.seconds)
        choosing = replace(options.quiet, stop=options.stop.until(until_s))
        is_over = _choose(kept, best, sets, choosing) or options.stop.limit_s is None
        is_over |= options.stop()
        splits = best.found.plan.splits
        if not splits:
            best.offer(simulate(problem, _unproven(improve(problem, start, named))))
            continue
        graph = split_graph(problem, splits)
        given = replace(best.found.plan, splits=())
        found = Start(simulate(graph, given), (given,), (), 0)
        plan = _unproven(improve(graph, found, of_model(options, method, splits)))
        best.offer(simulate(problem, replace(plan, splits=splits)))
    return replace(best.found.plan, method=method)


def _unproven(plan: Plan) -> Plan:
    """Return a plan without a proof that is about one graph: others may fit."""
    return replace(plan, nothing_fits=False, note=plan.note.replace(NOTHING_FITS, "").strip())


def _choose(kept: Kept, best: BestSchedule, sets: Iterator[_Set], options: PlaceOptions) -> bool:
    """Try sets of ops until the time is up, and return whether there are no more."""
    chosen, is_over = None, True
    for each in sets:
        found = each.simulated(kept)
        if found is not None and best.offer(found):
            chosen = each
        if options.stop():
            is_over = False
            break
    if chosen is not None:
        best.offer(_without_needless(kept, chosen, best.found, options))
    return is_over


def _sets(kept: Kept, start: Schedule, options: PlaceOptions, start_s: float) -> Iterator[_Set]:
    """Yield sets of ops that are not kept, each with a plan in which that is done."""
    later = []
    for base in _bases(kept.problem, start, options, start_s):
        yield _Set(base)
        again = _sets_again(kept, base)
        if kept.offload:  # few sets, and often free
            yield from islice(again, AGAIN_FIRST)
            yield from _sets_sent(kept, base)
            yield from islice(again, AGAIN_FIRST)
            later.append(again)
        else:
            yield from again
    for again in later:
        yield from again


def _sets_again(kept: Kept, base: Schedule) -> Iterator[_Set]:
    """Yield sets to compute again, and the same with the tensors sent that wait longest.

    Those are of the set, or cannot be made again.
    """
    others = kept.by_wait(base, np.flatnonzero(kept.can_send & ~kept.can).tolist())
    for ops in kept.families():
        yield _Set(base, ops)
        for share in SENT_SHARES:
            if sent := frozenset(others[: round(share * len(others))]):
                yield _Set(base, ops | kept.views_of(sent), sent)
        waiting = kept.by_wait(base, [op for op in ops if kept.can_send[op]])
        for share in SENT_SHARES:
            if sent := frozenset(waiting[: round(share * len(waiting))]):
                yield _Set(base, ops - sent, sent)


def _sets_sent(kept: Kept, base: Schedule) -> Iterator[_Set]:
    """Yield sets to send, and views of them to make again."""
    for ahead in AHEAD:
        for sent in kept.sets_to_send(base):
            yield _Set(base, kept.views_of(sent), sent, ahead)


def _bases(
    problem: Problem, start: Schedule, options: PlaceOptions, start_s: float
) -> Iterator[Schedule]:
    """Yield plans to begin from: the best for this memory and for any, and frugal orders.

    On several GPUs, those on one come first, and the layers in blocks that lack the least.
    """
    gpus = problem.cluster.gpus
    if len(gpus) > 1:
        until_s = options.seconds + BLOCKS_SHARE * start_s
        plans = list(depth_first_plans(problem, options.stop.until(until_s)))
        on_one = [each for each in plans if len(np.intersect1d(each.plan.device, gpus)) == 1]
        yield from on_one
        if len(plans) > len(on_one):
            yield best_among(each for each in plans if each not in on_one)
    yield best_among(in_other_orders(start))
    roomy = replace(problem, cluster=boundless(problem.cluster))
    with suppress(EnplaceError):  # too little time
        stop = options.stop.until(options.seconds + start_s)
        found = simulate(problem, find_start(roomy, replace(options.quiet, stop=stop)).best.plan)
        if (found.plan.device != start.plan.device).any():
            yield best_among(in_other_orders(found))
        yield found
    yield start


def _without_needless(kept: Kept, chosen: _Set, best: Schedule, options: PlaceOptions) -> Schedule:
    """Keep ever smaller groups of ops after all, or treat them the other way, if that is better."""
    left = sorted(chosen.again | chosen.sent, key=lambda op: -kept.time_us[op])
    size = len(left) // 2
    while size and not options.stop():
        for first in range(0, len(left), size):
            found = next(
                (
                    (each, schedule)
                    for each in _others(kept, chosen, frozenset(left[first : first + size]))
                    if (schedule := each.simulated(kept)) is not None and is_better(schedule, best)
                ),
                None,
            )
            if found is not None:
                chosen, best = found
                left = [op for op in left if op in chosen.again | chosen.sent]
                break
            if options.stop():
                break
        else:
            size //= 2
    return best


def _others(kept: Kept, chosen: _Set, ops: frozenset[int]) -> Iterator[_Set]:
    """Yield a choice in which some ops are kept, and those in which they change sides."""
    again, sent = chosen.again, chosen.sent
    if fewer := (again | sent) - ops:
        yield replace(chosen, again=again & fewer, sent=sent & fewer)
    if to_send := frozenset(op for op in again & ops if kept.can_send[op]):
        yield replace(chosen, again=again - to_send, sent=sent | to_send)
    if to_repeat := frozenset(op for op in sent & ops if kept.can[op]):
        yield replace(chosen, again=again | to_repeat, sent=sent - to_repeat)


def _try_all(method: str, kept: Kept, options: PlaceOptions) -> Plan | None:
    """Try every set of ops of a tiny model with all plans; None if it is too large."""
    problem = kept.problem
    if not is_small(problem):
        return None
    base = simulate(problem, find_start(problem, options.quiet).best.plan)
    listed = (kept.ways(base, choose) for choose in (_any_of, _one_or_all, _all))
    ways = next((each for each in listed if prod(map(len, each.values())) <= MOST_SETS), None)
    if ways is None:
        return None
    useful = [op for op, each in ways.items() if len(each) > 1]
    if problem.profile.n_ops + len(useful) > MOST_OPS:
        return None
    best = BestSchedule(options)
    for done in map(dict, product(*([(op, way) for way in each] for op, each in ways.items()))):
        if options.stop():
            return None
        again = [op for op, way in done.items() if way.after == AGAIN]
        sent = {op: way.after for op, way in done.items() if way.after >= 0}
        readers = {op: way.readers for op, way in done.items()}
        copied = kept.copied(base, again, sent, readers_of=readers) if again or sent else base.plan
        splits = copied.splits
        if len(splits) < len(again) + len(sent):
            continue  # a copy that no op reads
        try:
            graph = split_graph(problem, splits)
        except EnplaceError:  # what is fetched would wait for its reader
            continue
        exact = find_shortest(graph, method)
        if exact.plan is not None:
            best.offer(simulate(problem, replace(exact.plan, splits=splits)))
    if not best.kept:
        return None
    return replace(best.found.plan, method=method)


def _any_of(late: list[int]) -> list[tuple[int, ...]]:
    """List all sets of late readers."""
    return [some for n in range(len(late)) for some in combinations(late, n + 1)]


def _one_or_all(late: list[int]) -> list[tuple[int, ...]]:
    """List each late reader, and all of them."""
    return list(dict.fromkeys([*((each,) for each in late), tuple(late)]))


def _all(late: list[int]) -> list[tuple[int, ...]]:
    """List all late readers as one set."""
    return [tuple(late)]
