"""Local search as the 2020 Tarnawski paper has it (section 6, after Michiels, Korst and Aarts).

From a random placement, make the best reassignment of a single node, again and again until none
helps; restart ten times and keep the best. The paper's nodes are ops and its objective the largest
load of a pipeline; ours are groups of ops (:mod:`enplace.placers.search`) and the step time.
"""

import numpy as np

from enplace.placers.registry import PlaceOptions, placer
from enplace.placers.search import Search
from enplace.plan import Plan
from enplace.problem import Problem
from enplace.profile import IntArray

RESTARTS = 10


@placer(
    "local-search",
    title="Local search",
    source="Tarnawski et al. (NeurIPS 2020), section 6",
    capabilities=("memory", "heterogeneous", "channels", "anytime"),
)
def local_search(problem: Problem, options: PlaceOptions) -> Plan:
    """Descend from random placements until the time limit, or for a fixed number of rounds."""
    search, draw = Search(problem, "local-search", options), np.random.default_rng(options.seed)
    for _ in range(RESTARTS):
        if not search.is_over():
            descend(search, search.random(draw))
    return search.plan()


def descend(search: Search, device: IntArray) -> IntArray:
    """Make the best single reassignment until none helps.

    Parameters
    ----------
    device : int array, shape (n_groups,)
        Where to begin.

    Returns
    -------
    int array, shape (n_groups,)
        Where no single reassignment helps, unless the search was over before.
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
