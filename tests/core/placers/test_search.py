"""Local search and MCMC: what each promises of where it stops."""

import itertools

import numpy as np
import pytest

from enplace.placers import PlaceOptions, place
from enplace.placers.local_search import descend
from enplace.placers.mcmc import majority
from enplace.placers.search import Search
from enplace.problem import Problem
from enplace.simulate import simulate

from .problems import gpus, line

each_search = pytest.mark.parametrize("method", ["local-search", "mcmc"])


def ladder(n=6, **extra):
    """Two chains of dear ops with a rung now and then; each op is a group of its own."""
    edges = [(i, i + 2, 400_000_000) for i in range(n - 2)] + [(0, 3, 400_000_000)]
    return line([10.0, 7.0] * (n // 2), sorted(set(edges)), **extra)


def tight(n=6):
    """Fusion takes at most a quarter of a GPU's memory, so that nothing is merged."""
    return Problem(ladder(n), gpus(2, b0=1.0, capacity=1_500_000_000))


def test_no_single_reassignment_helps_where_the_descent_ends():
    search = Search(tight(), "local-search", PlaceOptions())
    end = descend(search, search.random(np.random.default_rng(3)))
    assert search.n_groups > 2
    score = search.score(end)
    for group, gpu in itertools.product(range(search.n_groups), search.gpus):
        other = end.copy()
        other[group] = gpu
        assert search.score(other) >= score


@each_search
def test_the_search_finds_the_optimum_of_a_small_problem(method):
    problem = tight()
    search = Search(problem, method, PlaceOptions())
    every = itertools.product(search.gpus, repeat=search.n_groups)
    optimum = min(search.score(np.array(devices)) for devices in every)
    assert simulate(problem, place(problem, method)).makespan_us == optimum


@each_search
def test_plans_that_fit_are_preferred(method):
    costs, edges = [5.0] * 4, [(i, i + 1, 4) for i in range(3)]
    profile = line(costs, edges, persistent=[400] * 4)
    problem = Problem(profile, gpus(2, b0=50.0, capacity=1000))
    assert simulate(problem, place(problem, method)).fits


@each_search
def test_the_time_limit_ends_the_search(method):
    tried = []
    options = PlaceOptions(time_limit_s=1e-9, progress=tried.append)
    place(tight(), method, options=options)
    assert len(tried) == 1


@each_search
def test_one_gpu_needs_no_search(method):
    tried = []
    problem = Problem(ladder(), gpus(1))
    place(problem, method, options=PlaceOptions(progress=tried.append))
    assert len(tried) == 1


def test_a_group_begins_where_most_of_its_ops_are():
    group, device = np.array([0, 0, 0, 1, 1]), np.array([1, 1, 0, 2, 0])
    assert majority(group, device, np.array([0, 1])).tolist() == [1, 0]
