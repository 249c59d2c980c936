"""Local search (Tarnawski et al. 2020, section 6, after Michiels, Korst and Aarts).

From a random placement, make the best reassignment of a single node until none helps; restart ten
times and keep the best. For a pipeline, the paper's objective, a node is an op or a set of ops that
must share a device (:mod:`enplace.placers.max_load.search.descent`). For the step time it is a
group of ops (:mod:`enplace.placing.group_search`). The paper has no local search for the latency:
we evaluate the placement found for the step time instead.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.memory.fitting import NOTHING_FITS, SLOWED
from enplace.placers.max_load.memory.in_flight import find_fullest, find_pace_us, samples_matter
from enplace.placers.max_load.search.descent import descend as descend_in_load
from enplace.placers.max_load.search.descent import draw_placement, score
from enplace.placers.max_load.search.hypergraph import Hypergraph, build_hypergraph
from enplace.placing.candidates import unordered
from enplace.placing.group_search import GroupSearch
from enplace.placing.incumbents import Best, Incumbent
from enplace.placing.options import PROGRAM_S, ROUNDS, PlaceOptions, Progress
from enplace.placing.registry import ANYTIME, CHANNELS, EVERY, HETEROGENEOUS, MEMORY, placer
from enplace.values.plan import Plan
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.profile import IntArray

RESTARTS = 10

MOST_TIGHTER = 3
"""How often to descend again, with less memory, if samples in flight do not fit."""


@placer(
    "local-search",
    title="Local search",
    good=(
        "To compare with the paper, and on graphs of a few hundred ops. It begins at random, so "
        "on large graphs it takes long to reach what heft finds at once."
    ),
    source="Tarnawski et al. (NeurIPS 2020), section 6",
    objectives=EVERY,
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME),
    options=(ROUNDS,),
)
def local_search(problem: Problem, options: PlaceOptions) -> Plan:
    """Descend from random placements until the time limit, or for a fixed number of rounds."""
    if options.objective == THROUGHPUT:
        return _pipeline(problem, options)
    search, draw = (
        GroupSearch(problem, "local-search", options),
        np.random.default_rng(options.seed),
    )
    completed = 0
    for _ in range(RESTARTS):
        if not search.is_over():
            descend(search, search.random(draw))
            completed += not search.is_over()
    if search.is_settled:
        return search.plan()
    return _with_note(search.plan(), completed, RESTARTS)


def _with_note(plan: Plan, completed: int, wanted: int) -> Plan:
    """Add a note to a plan if not all descents were completed."""
    if completed == wanted:
        return plan
    note = f"{completed} of {wanted} descents completed"
    return plan.with_notes(plan.note, note, separator="; ")


def _pipeline(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the best of ten local optima of the time per sample, or of as many as time allows."""
    options.stop.check()
    stop = options.stop.limited(PROGRAM_S)
    graph, draw = build_hypergraph(problem, options.load_rule), np.random.default_rng(options.seed)
    best, completed = Best[Incumbent](), 0
    restarts, plan = options.rounds or RESTARTS, None
    counts_samples = samples_matter(problem, options.load_rule)
    for number in range(restarts):
        if best.kept and stop():
            break
        device = descend_in_load(graph, draw_placement(graph, draw), stop)
        pace_us, lacking = 0.0, 0.0
        if counts_samples:
            device, pace_us, lacking = _fit_samples(problem, graph, device, stop)
        excess_bytes, us = score(graph, device)
        placed, value_us = device[problem.unit], max(us, pace_us)
        found = Incumbent(placed, value_us, bound_us=0.0, excess_bytes=excess_bytes + lacking)
        if best.offer(found):
            note = NOTHING_FITS if lacking else SLOWED if pace_us else ""
            plan = _plan(problem, placed, pace_us, note, options)
            fraction = (number + 1) / restarts
            message, best_us = "a better local optimum", plan.value_us
            now = Progress(options.seconds, message, fraction, plan, best_us, fits=found.fits)
            options.progress(now)
        completed += not stop()
    assert plan is not None  # the first is better than none
    return _with_note(plan, completed, restarts)


def _fit_samples(
    problem: Problem, graph: Hypergraph, device: IntArray, stop: Callable[[], bool]
) -> tuple[IntArray, float, float]:
    """Go on descending until the samples in flight fit: a graph counts the memory of only one.

    Each descent has less memory, by the factor by which they exceeded it before.

    Returns
    -------
    device : int array, shape (n_units,)
    pace_us : float
        The pace of the samples; 0 if they need not wait.
    lacking : float
        The share of a device's memory that is lacking; 0 if they fit.
    """
    rule, tight = graph.rule, graph
    for left in range(MOST_TIGHTER, -1, -1):
        placed = device[problem.unit]
        fullest = find_fullest(problem, placed, rule)
        pace_us = find_pace_us(problem, placed, rule) if fullest > 1 else 0.0
        if np.isfinite(pace_us):
            return device, pace_us, 0.0
        if left == 0 or stop():
            break
        tight = replace(tight, capacity_bytes=tight.capacity_bytes / fullest)
        device = descend_in_load(tight, device, stop)
    return device, 0.0, fullest - 1.0


def _plan(
    problem: Problem, device: IntArray, pace_us: float, note: str, options: PlaceOptions
) -> Plan:
    rule = options.load_rule
    us = max(pace_us, max_load_us(problem, device, rule))
    (plan,) = unordered(problem, device, "local-search")
    plan = replace(plan, objective=THROUGHPUT, value_us=us, load_rule=rule, pace_us=pace_us)
    return plan.with_notes(note)


def descend(search: GroupSearch, device: IntArray) -> IntArray:
    """Make the best single reassignment until none helps.

    Parameters
    ----------
    device : int array, shape (n_groups,)
        The placement to begin with.

    Returns
    -------
    int array, shape (n_groups,)
        A placement that no single reassignment improves, unless the search was over before.
    """
    score, moved = search.score(device), True
    while moved:
        moved, start = False, device
        for group in range(search.n_groups):
            for gpu in search.gpus[search.gpus != start[group]]:
                if search.is_over():
                    return device
                candidate = start.copy()
                candidate[group] = gpu
                if (found := search.score(candidate)) < score:
                    score, device, moved = found, candidate, True
    return device
