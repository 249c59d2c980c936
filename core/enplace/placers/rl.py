"""Reinforcement learning after Mirhoseini et al. (ICLR 2018): a grouper and a placer.

The grouper assigns nodes to blocks from their features, and the placer assigns blocks to devices.
Both assignments are drawn from softmax policies, which REINFORCE trains together. The reward is the
simulated step time, with a penalty for exceeding memory, so a sample takes milliseconds where the
paper runs a step. We simplify the paper in two ways:

- Nodes are groups of ops from Celeritas's fusion (:mod:`enplace.placing.group_search`), not ops.
- The grouper is one linear layer on the nodes' features (:func:`features`). The placer is a table
  of logits for each block and device instead of a recurrent network, because it learns only one
  graph.
"""

from __future__ import annotations

import numpy as np

from enplace.coarsen import GroupedGraph, group_graph, mean_link
from enplace.placing.group_search import GroupSearch
from enplace.placing.options import ROUNDS, PlaceOptions
from enplace.placing.registry import ANYTIME, CHANNELS, HETEROGENEOUS, MEMORY, placer
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

BLOCKS = 32
"""Number of blocks of the grouper."""

WAVES = 8
"""Features that encode a node's place in the order, as cosines of increasing frequency."""

BATCH = 10
"""Placements drawn for one gradient step."""

RATE = 1.0
"""Size of a gradient step, for rewards scaled to a deviation of one."""

BASELINE = 0.9
"""Share of its old value that the baseline, a running mean of the rewards, keeps at each batch."""

FIRST_WEIGHT = 3.0
"""Deviation of the grouper's first weights: large enough for neighbours to start in one block."""


@placer(
    "rl",
    title="Policy gradient",
    good=(
        "To compare with reinforcement learning, without hours on real GPUs: the simulator "
        "tells the reward. heft usually finds a shorter step at once."
    ),
    source="after Mirhoseini et al. (ICLR 2018)",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME),
    options=(ROUNDS,),
)
def rl(problem: Problem, options: PlaceOptions) -> Plan:
    """Learn a placement of blocks until the time limit, or for a fixed number of rounds."""
    search, draw = GroupSearch(problem, "rl", options), np.random.default_rng(options.seed)
    known = features(problem, group_graph(problem, search.group))
    weight = draw.normal(0.0, FIRST_WEIGHT, (known.shape[1], BLOCKS))
    logit = np.zeros((BLOCKS, len(search.gpus)))
    unit_us = search.score(search.random(draw))
    baseline = -1.0
    while not search.is_over():
        to_block, to_gpu = softmax(known @ weight), softmax(logit)
        blocks = np.array([sample(to_block, draw) for _ in range(BATCH)])
        gpus = np.array([sample(to_gpu, draw) for _ in range(BATCH)])
        reward = np.zeros(BATCH)
        for i in range(BATCH):
            reward[i] = -np.sqrt(search.score(search.gpus[gpus[i][blocks[i]]]) / unit_us)
            if search.is_over():
                return search.plan()
        gain = (reward - baseline) / (reward.std() + 1e-9) / BATCH
        baseline = BASELINE * baseline + (1 - BASELINE) * reward.mean()
        for i in range(BATCH):
            if search.is_over():
                return search.plan()
            weight += RATE * gain[i] * known.T @ log_gradient(to_block, blocks[i]) / len(known)
            logit += RATE * gain[i] * log_gradient(to_gpu, gpus[i])
    return search.plan()


def features(problem: Problem, graph: GroupedGraph) -> FloatArray:
    """Return each node's features for the grouper, mostly 0 to 1; shape (n_groups, n_features).

    They are its time, memory, and transfers in and out, each as a share of the largest, and its
    place in the order: groups are numbered along the graph.
    """
    sent_us = graph.edge_us(mean_link(problem.cluster))
    columns = [
        np.where(np.isfinite(graph.time_us), graph.time_us, 0.0).max(axis=1),
        graph.memory_bytes.astype(np.float64),
        np.bincount(graph.target, weights=sent_us, minlength=graph.n_groups),
        np.bincount(graph.source, weights=sent_us, minlength=graph.n_groups),
    ]
    shares = [column / max(float(column.max()), 1e-9) for column in columns]
    place = (np.arange(graph.n_groups) + 0.5) / graph.n_groups
    waves = [np.cos(np.pi * period * place) for period in range(WAVES)]
    return np.stack([*shares, *waves], axis=1)


def softmax(score: FloatArray) -> FloatArray:
    """Return the probabilities along each row."""
    power = np.exp(score - score.max(axis=1, keepdims=True))
    found: FloatArray = power / power.sum(axis=1, keepdims=True)
    return found


def sample(probability: FloatArray, draw: np.random.Generator) -> IntArray:
    """Draw a column for each row."""
    passed = np.cumsum(probability, axis=1) < draw.random((len(probability), 1))
    column: IntArray = np.minimum(passed.sum(axis=1), probability.shape[1] - 1)
    return column


def log_gradient(probability: FloatArray, chosen: IntArray) -> FloatArray:
    """Return the gradient of the chosen columns' log-probability by the scores of each row."""
    gradient = -probability
    gradient[np.arange(len(chosen)), chosen] += 1
    return gradient
