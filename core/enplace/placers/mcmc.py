"""FlexFlow's Markov chain Monte Carlo search (Jia, Zaharia and Aiken, MLSys 2019), for placement.

A proposal moves one group of ops (:mod:`enplace.placing.group_search`) to another device, both
drawn uniformly. It is accepted with the Metropolis probability min(1, exp(beta * (current -
proposed))), where scores are simulated step times. The expert's plan is tried first, so the result
is never worse. The chain begins with the expert's placement, as nearly as the groups allow, or with
everything on one GPU, whichever is shorter. If it has not improved for half of the time that it has
run, it restarts from a random placement.
"""

import numpy as np

from enplace.placers.expert import expert
from enplace.placing.group_search import GroupSearch
from enplace.placing.options import ROUNDS, PlaceOptions
from enplace.placing.registry import ANYTIME, CHANNELS, HETEROGENEOUS, MEMORY, placer
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray

BETA = 100.0
"""Inverse temperature: a proposal that is one per cent longer is accepted with probability 1/e."""

LEAST_SHARE = 0.1
"""Least share of the search that a chain runs before it restarts."""


@placer(
    "mcmc",
    title="MCMC, FlexFlow",
    good=(
        "To compare with FlexFlow, and to improve the expert's plan: it begins there and is "
        "never worse."
    ),
    source="FlexFlow (MLSys 2019)",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME),
    options=(ROUNDS,),
)
def mcmc(problem: Problem, options: PlaceOptions) -> Plan:
    """Walk at random, mostly downhill, until the time limit or for a fixed number of rounds."""
    search, draw = GroupSearch(problem, "mcmc", options), np.random.default_rng(options.seed)
    first = expert(problem, options.quiet)
    search.offer(first)
    starts = [majority(search.group, first.device, search.gpus)]
    starts += [np.full(search.n_groups, gpu) for gpu in search.gpus]
    device = min(starts, key=search.score)
    while not search.is_over():
        walk(search, device, draw)
        device = search.random(draw)
    return search.plan()


def walk(search: GroupSearch, device: IntArray, draw: np.random.Generator) -> None:
    """Run one chain until it stops improving or the search is over."""
    score = lowest = search.score(device)
    began = improved = search.share_spent
    while not search.is_over():
        proposal = device.copy()
        group = draw.integers(search.n_groups)
        proposal[group] = draw.choice(search.gpus[search.gpus != device[group]])
        found = search.score(proposal)
        if draw.random() < np.exp(min(0.0, BETA * (score - found) / lowest)):
            device, score = proposal, found
        if score < lowest:
            lowest, improved = score, search.share_spent
        run, idle = search.share_spent - began, search.share_spent - improved
        if run > LEAST_SHARE and idle > run / 2:
            return


def majority(group: IntArray, device: IntArray, gpus: IntArray) -> IntArray:
    """Find the GPU with most ops of each group; ties go to the first. Shape (n_groups,)."""
    held = np.zeros((int(group.max()) + 1, len(gpus)), dtype=np.int64)
    for column, gpu in enumerate(gpus.tolist()):
        held[:, column] = np.bincount(group[device == gpu], minlength=len(held))
    found: IntArray = gpus[np.argmax(held, axis=1)]
    return found
