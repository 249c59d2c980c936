"""When ops run, guessed before there is a schedule, as shares of all work."""

from __future__ import annotations

import numpy as np

from enplace.placing.settle import upward_rank_us
from enplace.values.arrays import upward_rank
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray

SMOOTHINGS = 20
"""How often each op moves halfway to the mean of where its neighbours would have it."""


def middle_us(problem: Problem) -> FloatArray:
    """Find the middle of when each op may start if nothing is sent (twice, up to a constant)."""
    profile, work_us = problem.profile, problem.time_us.min(axis=1)
    free = np.zeros(profile.n_edges)
    producers = profile.edge_source[profile.in_edges]
    backward = profile.topological_order[::-1].copy()
    until_end_us = upward_rank_us(problem, work_us, free)
    since_begin_us = upward_rank(backward, profile.in_ptr, producers, work_us, free)
    middle: FloatArray = since_begin_us - work_us - until_end_us
    return middle


def shares_of_work(when: FloatArray, work_us: FloatArray) -> FloatArray:
    """Return the share of all work that is done when half of each op is.

    Parameters
    ----------
    when : float array, shape (n_ops,)
        Sorts the ops by time.
    work_us : float array, shape (n_ops,)
    """
    order = np.argsort(when, kind="stable")
    middle = np.empty(len(order))
    middle[order] = np.cumsum(work_us[order]) - work_us[order] / 2
    shares: FloatArray = middle / max(work_us.sum(), 1e-9)
    return shares


def smooth_shares(problem: Problem) -> FloatArray:
    """Guess when ops run from what they are joined to, as shares of all work.

    Longest paths only know the earliest and the latest start, which in a long graph with much work
    side by side are far from when an op runs. All neighbours of an op know better: each op is put
    where edges of the mean length lead to it, again and again, with the work spread evenly.
    """
    profile, work_us = problem.profile, problem.time_us.min(axis=1)
    source, target, n_ops = profile.edge_source, profile.edge_op, profile.n_ops
    degree = np.bincount(source, minlength=n_ops) + np.bincount(target, minlength=n_ops)
    share = shares_of_work(middle_us(problem), work_us)
    for _ in range(SMOOTHINGS if profile.n_edges else 0):
        length = np.mean(share[target] - share[source])
        wanted = np.bincount(source, share[target] - length, n_ops)
        wanted += np.bincount(target, share[source] + length, n_ops)
        wanted = np.where(degree > 0, wanted / np.maximum(degree, 1), share)
        share = shares_of_work((share + wanted) / 2, work_us)
    return share
