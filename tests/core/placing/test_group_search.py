"""Local search and MCMC: the guarantees about their results."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.problems import gpus, line, problem_on_small_gpus, problems, profiles

from enplace.machine import simulate
from enplace.placers import STEP_TIME, THROUGHPUT, PlaceOptions, Stop, place
from enplace.placers.local_search import descend
from enplace.placers.mcmc import majority
from enplace.placing.group_search import GroupSearch, find_nodes
from enplace.placing.settle import settle
from enplace.placing.stopwatch import Stopwatch
from enplace.values.problem import Problem

each_search = pytest.mark.parametrize("method", ["local-search", "mcmc"])


def ladder_profile(n=6, **extra):
    """Return two chains of long ops with a few cross edges; each op is a group."""
    edges = [(i, i + 2, 400_000_000) for i in range(n - 2)] + [(0, 3, 400_000_000)]
    return line([10.0, 7.0] * (n // 2), sorted(set(edges)), **extra)


def tight_problem(n=6):
    """Return a problem whose memory is too small for any ops to be merged."""
    return Problem(ladder_profile(n), gpus(2, b0=1.0, capacity=1_500_000_000))


def test_a_descent_ends_where_no_reassignment_helps():
    search = GroupSearch(tight_problem(), "local-search", PlaceOptions())
    end = descend(search, search.random(np.random.default_rng(3)))
    assert search.n_groups > 2
    score = search.score(end)
    for group, gpu in itertools.product(range(search.n_groups), search.gpus):
        other = end.copy()
        other[group] = gpu
        assert search.score(other) >= score


@each_search
def test_the_search_finds_the_optimum_of_a_small_problem(method):
    problem = tight_problem()
    search = GroupSearch(problem, method, PlaceOptions())
    every = itertools.product(search.gpus, repeat=search.n_groups)
    optimum = min(search.score(np.array(devices)) for devices in every)
    assert simulate(problem, place(problem, method).plan).makespan_us == optimum


@each_search
def test_plans_that_fit_are_preferred(method):
    costs, edges = [5.0] * 4, [(i, i + 1, 4) for i in range(3)]
    profile = line(costs, edges, persistent=[400] * 4)
    problem = Problem(profile, gpus(2, b0=50.0, capacity=1000))
    assert simulate(problem, place(problem, method).plan).fits


@pytest.mark.parametrize(("method", "seed"), [("local-search", 6), ("rl", 3)])
def test_the_plan_of_a_search_that_finds_nothing_that_fits_is_repaired(method, seed):
    small = (4.35, 0.25), (7.0, 1.0), (3.85, 0.5), (2.85, 0.1)
    problem = problem_on_small_gpus(small, "vgg-19")
    plan = place(problem, method, options=PlaceOptions(seed=seed)).plan
    assert simulate(problem, plan).fits
    assert "to fit" in plan.note


@each_search
def test_the_time_limit_ends_the_search(method):
    tried = []
    options = PlaceOptions(stop=Stop(1e-9), progress=tried.append)
    place(tight_problem(), method, options=options)
    assert len(tried) == 1


@pytest.fixture
def unfinished():
    """A search whose first plan exceeds memory, and the seconds on its clock."""
    problem = Problem(line([5.0] * 4, [], persistent=[400] * 4), gpus(2, capacity=1000))
    now_s = [0.0]
    options = PlaceOptions(stop=Stop(10.0, clock=Stopwatch(lambda: now_s[0])))
    search = GroupSearch(problem, "mcmc", options)
    search.score(np.zeros(search.n_groups, dtype=np.int64))
    assert not search.best.found.fits
    return search, now_s


def test_a_search_that_finds_nothing_that_fits_leaves_time_for_repairs(unfinished):
    search, now_s = unfinished
    now_s[0] = 7.9
    assert not search.is_over()
    now_s[0] = 8.1
    assert search.is_over()
    assert search.plan().device.tolist() != [0] * 4
    search.offer(search.plan())
    assert search.best.found.fits
    assert search.is_settled or not search.is_over()


def test_a_search_repairs_nothing_after_the_time_limit(unfinished):
    search, now_s = unfinished
    now_s[0] = 10.6
    assert search.plan() is search.best.found.plan


@each_search
def test_one_gpu_needs_no_search(monkeypatch, method):
    tried, score = [], GroupSearch.score
    monkeypatch.setattr(
        GroupSearch, "score", lambda self, device: tried.append(device) or score(self, device)
    )
    place(Problem(ladder_profile(), gpus(1)), method)
    assert len(tried) <= 2  # a search tries hundreds


def test_a_group_starts_on_the_device_of_most_of_its_ops():
    group, device = np.array([0, 0, 0, 1, 1]), np.array([1, 1, 0, 2, 0])
    assert majority(group, device, np.array([0, 1])).tolist() == [1, 0]


@given(problems(), st.integers(0, 99))
def test_a_placement_of_groups_is_settled_like_any_other(problem, seed):
    search = GroupSearch(problem, "mcmc", PlaceOptions())
    device = search.random(np.random.default_rng(seed))
    search.score(device)
    assert np.array_equal(search.best.found.plan.device, settle(problem, device[search.group]))


def test_without_groups_the_score_of_a_plan_that_fits_is_its_step_time():
    problem = tight_problem()
    for device in itertools.product(problem.cluster.gpus, repeat=problem.profile.n_ops):
        search = GroupSearch(problem, "mcmc", PlaceOptions())
        score, schedule = search.score(np.array(device)), simulate(problem, search.best.found.plan)
        assert score == pytest.approx(schedule.makespan_us) or not schedule.fits


def test_mcmc_is_never_worse_than_the_expert():
    problem = Problem(line([1.0] * 40, [(i, i + 1, 8) for i in range(39)]), gpus(2, b0=5.0))
    tried = []
    options = PlaceOptions(stop=Stop(1e-9), progress=tried.append)
    plan = place(problem, "mcmc", options=options).plan
    expert = place(problem, "expert").plan
    assert np.array_equal(tried[0].incumbent.device, expert.device)
    assert simulate(problem, plan).makespan_us <= simulate(problem, expert).makespan_us


@pytest.mark.parametrize("objective", [STEP_TIME, THROUGHPUT])
def test_local_search_notes_how_many_descents_it_completed(objective):
    short = PlaceOptions(stop=Stop(1e-9), seed=3, objective=objective)
    note = place(tight_problem(), "local-search", options=short).plan.note
    assert note.endswith("0 of 10 descents completed")
    assert not place(
        tight_problem(), "local-search", options=PlaceOptions(objective=objective)
    ).plan.note


def find_nodes_slowly(profile, group, together):
    """Number the ops by group, by switches on the worst path within it, and by what is together."""
    switches = {}
    for op in profile.topological_order.tolist():
        producers = profile.edge_source[profile.edge_op == op]
        inside = [before for before in producers.tolist() if group[before] == group[op]]
        switches[op] = max(
            (switches[before] + int(together[before] != together[op]) for before in inside),
            default=0,
        )
    rows = [(group[op], switches[op], together[op]) for op in range(profile.n_ops)]
    return [sorted(set(rows)).index(row) for row in rows]


@given(profile=profiles(), seed=st.integers(0, 99))
def test_nodes_equal_those_of_the_reference(profile, seed):
    draw = np.random.default_rng(seed)
    depth = np.argsort(profile.topological_order)
    group, together = depth * 3 // profile.n_ops, draw.integers(0, 2, profile.n_ops)
    found = find_nodes(profile, group, together)
    assert found.tolist() == find_nodes_slowly(profile, group.tolist(), together.tolist())
