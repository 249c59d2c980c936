"""Enplace's own method: the best list schedule, then annealing of placement and order together.

1. The quick methods of the registry are tried, the quickest also on fewer GPUs, and layers in
   contiguous blocks on two GPUs, on three and so on (:mod:`~enplace.placers.enplace.starts`), and
   placements that fill memory op by op (:mod:`enplace.placing.filling`). If the best plan then
   fills more than half of a device's memory, HEFT also places merged ops. Plans that exceed memory
   are repaired, unless the graph is huge. The best plan of all is the first incumbent.
2. Chains of ops that can be merged without loss are merged (:func:`enplace.coarsen.merge_chains`).
   In a large graph, ops that the best plan so far puts on one device are merged too
   (:func:`enplace.coarsen.merge_batches`), afresh in each phase that moves blocks.
3. Two threads anneal balances, ever longer as long as that gains anything: placements that send
   little, crowd no channel, fill no memory and spread the work evenly over time, each simulated
   only when it is complete (:mod:`enplace.placing.moves.balance`). If the best one exceeds memory,
   both move its blocks until it fits.
4. They move whole blocks, such as a layer or its ops of one kind
   (:mod:`enplace.placing.moves.blocks`, :mod:`~enplace.placers.enplace.phases`). In both, channels
   serve the most urgent transfer first; in one of them, channels serve first come, first served if
   that is hardly worse. Devices take ops in the order of their ranks, or in a plan's own order if
   that is much better; then blocks also move within the order. If the best plan does not improve,
   the threads continue from the other plans of step 1 and, while nothing fits, from random
   placements.
5. Both anneal windows of the order (:mod:`enplace.placing.moves.windows`), each with its own seed;
   after each phase, the one that lags continues from the other's state. If channels that serve the
   most urgent transfer first gain more than windows do, the first thread keeps moving blocks; if
   they gain much more, both do.
6. On problems of a few hundred ops, CP-SAT gets the rest of the time
   (:mod:`~enplace.placers.enplace.exact`): it may find an even better plan, or prove how little
   there is to gain. If it ends early with something left to gain, windows of new random placements
   are annealed.

Every result is simulated on the graph of all ops, under every policy worth trying, before it
counts. Memory over time, pins, colocation and devices of different kinds are part of every move.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.placers.dpos import dpos
from enplace.placers.enplace.exact import prove
from enplace.placers.enplace.phases import PhasedSearch
from enplace.placers.enplace.starts import SMALL, Start, find_start
from enplace.placers.os_dpos import data_parallel
from enplace.placing.incumbents import BestSchedule
from enplace.placing.options import ROUNDS, PlaceOptions
from enplace.placing.registry import (
    ANYTIME,
    CHANNELS,
    EXACT,
    HETEROGENEOUS,
    MEMORY,
    TIES,
    WARM_START,
    placer,
)
from enplace.text import count
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.splits import has_parts

EXACT_SHARE = 0.4
"""Share of the time after which CP-SAT starts on a small problem."""

SPLIT_OPS, SPLIT_GAIN = 10_000, 0.05
"""Most ops of a model for which a plan with split ops is tried, and how much shorter its step must
be to be mentioned."""

SPLIT_OP_S, SPLIT_SHARE = 1.3e-4, 0.1
"""Seconds that such a plan takes for each op and GPU, and the most of the time left for it."""

PHASE_S = 3e-10
"""Seconds that the first phase of the search takes, as a multiple of the square of the ops."""

NOTHING_FITS = (
    "No plan that keeps what ops make fits, proven by CP-SAT: the devices' memory is too small for "
    "this model."
)


@placer(
    "enplace",
    title="Enplace",
    good=(
        "The default, and the right choice for most models: of the methods that split no ops, "
        "it finds the shortest steps. Ten seconds are usually enough; give it longer where the "
        "gap is large."
    ),
    source="Enplace: annealing of blocks and windows, from the best list schedule",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME, WARM_START, TIES, EXACT),
    options=(ROUNDS,),
)
def enplace(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the best list schedule until the time limit, or for a fixed number of rounds.

    Small problems are solved by trying all plans instead (:mod:`enplace.placing.small`).
    """
    start = None if options.exact else find_start(problem, options)
    split_us = _split_step_us(problem, options)
    plan = options.exact or improve(problem, start or find_start(problem, options), options)
    if np.isfinite(split_us) and split_us < (1 - SPLIT_GAIN) * simulate(problem, plan).makespan_us:
        # Without a time: that would be wrong once the user changes speeds or the plan.
        note = "With ops split by samples, even a list schedule was shorter: try enplace-split."
        plan = plan.with_notes(plan.note, note)
    return plan


def improve(problem: Problem, start: Start, options: PlaceOptions) -> Plan:
    """Search from the list schedules; return the best plan, with a note on what went wrong."""
    incumbent = BestSchedule(options, start.best)
    left_out, nothing_fits = list(start.left_out), False
    too_slow = ""
    if problem.cluster.n_devices > 1 and not incumbent.is_optimal:
        try:
            # Merging a large graph takes long.
            if options.stop.left_s() >= PHASE_S * problem.profile.n_ops**2:
                nothing_fits, failures = _search(problem, incumbent, start.plans, options)
                left_out += failures
            else:
                methods = f"{count(start.n_too_slow, 'method')} and " if start.n_too_slow else ""
                too_slow = f"There was too little time for {methods}the search."
        except EnplaceError as error:  # the best plan so far is still valid
            left_out.append(f"the search ({error})")
    notes = [NOTHING_FITS] if nothing_fits else []
    notes += [f"Left out: {'; '.join(left_out)}."] if left_out else []
    notes += [too_slow] if too_slow else []
    plan = incumbent.found.plan
    return replace(plan.with_notes(*notes), nothing_fits=nothing_fits) if notes else plan


def _search(
    problem: Problem, incumbent: BestSchedule, plans: tuple[Plan, ...], options: PlaceOptions
) -> tuple[bool, tuple[str, ...]]:
    """Anneal, and let CP-SAT solve a small problem; return if nothing fits, and what failed."""
    is_small = problem.profile.n_ops <= SMALL
    share = EXACT_SHARE if is_small else 1.0
    phases = PhasedSearch(problem, incumbent, plans, options, share=share, is_small=is_small)
    phases.run()
    if not is_small:
        return False, ()
    nothing_fits, left_out = prove(problem, incumbent, options)
    if not nothing_fits:
        phases.restart()
    return nothing_fits, left_out


def _split_step_us(problem: Problem, options: PlaceOptions) -> float:
    """Return the step time of a list schedule of the data-parallel graph; inf if none fits."""
    n_ops, n_gpus = problem.profile.n_ops, len(problem.cluster.gpus)
    takes_long = SPLIT_OP_S * n_ops * n_gpus > SPLIT_SHARE * options.stop.left_s()
    if n_ops > SPLIT_OPS or takes_long or has_parts(problem.profile):
        return np.inf
    splits = data_parallel(problem)
    if not splits:
        return np.inf
    try:
        graph = split_problem(problem, splits)
        plan = dpos(replace(graph, splits=()), options.quiet)
        schedule = simulate(graph, replace(plan, splits=splits))
    except EnplaceError:  # then there is nothing to mention
        return np.inf
    return schedule.makespan_us if schedule.fits else np.inf
