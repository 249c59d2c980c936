"""Local search (Tarnawski et al. 2020, section 6, after Michiels, Korst and Aarts).

From a random placement, make the best reassignment of a single node until none helps; restart ten
times and keep the best. For a pipeline, the paper's objective, a node is an op or a set of ops that
must share a device (:mod:`enplace.placers.max_load.search.descent`). For the step time it is a
group of ops (:mod:`enplace.placing.group_search`). The paper has no local search for the latency:
we evaluate the placement found for the step time instead.
"""

from dataclasses import replace

import numpy as np

from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.search.descent import descend as descend_in_load
from enplace.placers.max_load.search.descent import draw_placement, score
from enplace.placers.max_load.search.hypergraph import build_hypergraph
from enplace.placing.candidates import unordered
from enplace.placing.group_search import GroupSearch
from enplace.placing.incumbents import Best, Incumbent
from enplace.placing.options import PROGRAM_S, ROUNDS, PlaceOptions, Progress
from enplace.placing.registry import ANYTIME, CHANNELS, EVERY, HETEROGENEOUS, MEMORY, placer
from enplace.values.plan import Plan
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.profile import IntArray

RESTARTS = 10


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
    restarts = options.rounds or RESTARTS
    for number in range(restarts):
        if best.kept and stop():
            break
        device = descend_in_load(graph, draw_placement(graph, draw), stop)
        excess_bytes, us = score(graph, device)
        found = Incumbent(device[problem.unit], us, bound_us=0.0, excess_bytes=excess_bytes)
        if best.offer(found):
            plan = _plan(problem, found.device, options)
            fraction = (number + 1) / restarts
            message = "a better local optimum"
            options.progress(Progress(options.seconds, message, fraction, plan, plan.value_us))
        completed += not stop()
    return _with_note(_plan(problem, best.found.device, options), completed, restarts)


def _plan(problem: Problem, device: IntArray, options: PlaceOptions) -> Plan:
    load_us = max_load_us(problem, device, options.load_rule)
    (plan,) = unordered(problem, device, "local-search")
    return replace(plan, objective=THROUGHPUT, value_us=load_us, load_rule=options.load_rule)


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
