"""Enplace's own method, computing again what would not fit if it were kept.

1. Placements of the model, with and without regard to memory, are the plans to begin from.
2. In each, sets of ops are computed again: what is cheapest for its bytes, within parts of the
   model whose borders are kept (:mod:`enplace.placing.again`). Each is simulated.
3. What need not be computed again of the best set is kept after all, if that is shorter.
4. The search for placement and order goes on with the graph that has the copies.

Of a tiny model, every set of ops is tried, each with all placements and orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.placers.enplace.search import improve
from enplace.placers.enplace.starts import Start, find_start
from enplace.placers.enplace.with_splits import of_model, split_graph
from enplace.placing.again import Kept, simulate_again
from enplace.placing.fitting import in_other_orders
from enplace.placing.incumbents import BestSchedule, best_among, is_better
from enplace.placing.options import ROUNDS, PlaceOptions
from enplace.placing.registry import ANYTIME, CHANNELS, HETEROGENEOUS, MEMORY, SPLITS, placer
from enplace.placing.small import MOST_OPS, find_shortest, is_small
from enplace.values.cluster_variants import boundless
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

METHOD = "enplace-recompute"

CHOOSING_SHARE, START_SHARE = 0.6, 0.3
"""Shares of the time left for choosing ops, and of all time for the plans to begin from."""

CHOOSING_S = 30.0
"""The time limit by which ops are chosen if there is none, in seconds."""

MOST_SETS = 64
"""Most sets of ops of a tiny model that are all tried."""

Set = tuple[Schedule, frozenset[int]]
"""A plan to begin from, and the ops to compute again in it."""


@placer(
    METHOD,
    title="Enplace, with recomputation",
    good=(
        "Where a training step does not fit: forward ops run again just before the backward ops "
        "that read what they make, instead of keeping that. Where it fits, it finds what enplace "
        "finds, or a shorter step with less room taken."
    ),
    source="Enplace: checkpoints by bytes for their time, then annealing of the graph with copies",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME, SPLITS),
    options=(ROUNDS,),
)
def enplace_recompute(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the best plan that keeps everything, or the best that computes some of it again."""
    kept = Kept(problem)
    if (exact := _try_all(kept, options)) is not None:
        return exact
    limit_s = CHOOSING_S if options.stop.limit_s is None else options.stop.limit_s
    start_s = START_SHARE * limit_s
    named = of_model(options, METHOD, ())
    start = find_start(problem, replace(named, stop=options.stop.until(start_s)))
    best, sets = BestSchedule(options, start.best), _sets(kept, start.best, options, start_s)
    is_over = False
    while not is_over:
        until_s = options.seconds + CHOOSING_SHARE * (limit_s - options.seconds)
        choosing = replace(options.quiet, stop=options.stop.until(until_s))
        is_over = _choose(kept, best, sets, choosing) or options.stop()
        splits = best.found.plan.splits
        if not splits:
            best.offer(simulate(problem, improve(problem, start, named)))
            continue
        graph = split_graph(problem, splits)
        given = replace(best.found.plan, splits=())
        found = Start(simulate(graph, given), (given,), (), ())
        plan = improve(graph, found, of_model(options, METHOD, splits))
        best.offer(simulate(problem, replace(plan, splits=splits)))
    return replace(best.found.plan, method=METHOD)


def _choose(kept: Kept, best: BestSchedule, sets: Iterator[Set], options: PlaceOptions) -> bool:
    """Try sets of ops until the time is up, and return whether there are no more."""
    chosen, is_over = None, True
    for base, ops in sets:
        found = simulate_again(kept, base, ops) if ops else base
        if found is not None and best.offer(found):
            chosen = base, ops
        if options.stop():
            is_over = False
            break
    if chosen is not None:
        best.offer(_without_needless(kept, *chosen, best.found, options))
    return is_over


def _sets(kept: Kept, start: Schedule, options: PlaceOptions, start_s: float) -> Iterator[Set]:
    """Yield sets of ops to compute again, each with a plan in which that is done."""
    for base in _bases(kept.problem, start, options, start_s) if kept.can.any() else ():
        yield base, frozenset()
        for ops in kept.families():
            yield base, ops


def _bases(
    problem: Problem, start: Schedule, options: PlaceOptions, start_s: float
) -> Iterator[Schedule]:
    """Yield plans to begin from: the best for this memory and for any, and frugal orders."""
    yield best_among(in_other_orders(start))
    roomy = replace(problem, cluster=boundless(problem.cluster))
    with suppress(EnplaceError):  # too little time
        stop = options.stop.until(options.seconds + start_s)
        found = simulate(problem, find_start(roomy, replace(options.quiet, stop=stop)).best.plan)
        yield best_among(in_other_orders(found))
        yield found
    yield start


def _without_needless(
    kept: Kept, base: Schedule, ops: frozenset[int], best: Schedule, options: PlaceOptions
) -> Schedule:
    """Keep ever smaller groups of ops after all, if that is better."""
    left = sorted(ops, key=lambda op: -kept.time_us[op])
    size = len(left) // 2
    while size and not options.stop():
        for first in range(0, len(left), size):
            fewer = left[:first] + left[first + size :]
            found = simulate_again(kept, base, fewer) if fewer else None
            if found is not None and is_better(found, best):
                best, left = found, fewer
                break
            if options.stop():
                break
        else:
            size //= 2
    return best


def _try_all(kept: Kept, options: PlaceOptions) -> Plan | None:
    """Try every set of ops of a tiny model with all plans; None if it is too large."""
    problem = kept.problem
    useful = [op for op in np.flatnonzero(kept.can).tolist() if kept.readers[op]]
    if not is_small(problem) or problem.profile.n_ops + len(useful) > MOST_OPS:
        return None
    if 1 << len(useful) > MOST_SETS:
        return None
    sets = chain.from_iterable(combinations(useful, n) for n in range(len(useful) + 1))
    best, nothing_fits = BestSchedule(options), True
    base = simulate(problem, find_start(problem, options.quiet).best.plan)
    for ops in sets:
        if options.stop():
            return None
        splits = kept.copied(base, ops).splits if ops else ()
        if len(splits) < len(ops):
            continue  # a copy that no op reads
        graph = split_graph(problem, splits)
        exact = find_shortest(graph, METHOD)
        nothing_fits &= exact.nothing_fits
        if exact.plan is not None:
            best.offer(simulate(problem, replace(exact.plan, splits=splits)))
    if not best.kept:
        return None
    return replace(best.found.plan, method=METHOD, nothing_fits=nothing_fits)
