"""The policy gradient: the gradient is correct, and training improves the plan."""

import numpy as np
import pytest
from tests.core.placers.problems import gpus, line

from enplace.machine import simulate
from enplace.placers import PlaceOptions, place
from enplace.placers.rl import log_gradient, sample, softmax
from enplace.placing.group_search import ROUNDS, GroupSearch
from enplace.values.problem import Problem


def test_the_gradient_matches_numerical_differentiation():
    draw = np.random.default_rng(1)
    score, chosen, step = draw.normal(size=(3, 4)), np.array([2, 0, 3]), 1e-6

    def log_probability(score):
        return np.log(softmax(score)[np.arange(3), chosen]).sum()

    found = log_gradient(softmax(score), chosen)
    for row, column in np.ndindex(score.shape):
        moved = score.copy()
        moved[row, column] += step
        slope = (log_probability(moved) - log_probability(score)) / step
        assert found[row, column] == pytest.approx(slope, abs=1e-4)


def test_samples_follow_their_probabilities():
    draw = np.random.default_rng(1)
    drawn = sample(np.tile([0.2, 0.5, 0.3], (20_000, 1)), draw)
    assert np.bincount(drawn) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.02)


def test_training_beats_random_sampling():
    """The ops are too large to be grouped, and one GPU is eight times as fast as the other."""
    profile = line([10.0] * 24, [], persistent=[100] * 24)
    problem = Problem(profile, gpus(2, speeds=[1.0, 8.0], capacity=3000))
    search, draw = GroupSearch(problem, "rl", PlaceOptions()), np.random.default_rng(3)
    by_chance = min(search.score(search.random(draw)) for _ in range(ROUNDS))
    assert simulate(problem, place(problem, "rl").plan).makespan_us < by_chance
