"""Pesto's integer program: its solutions, and its optima on small cases."""

import re

import numpy as np
import pytest
from hypothesis import given
from tests.core.placers.problems import gpus, line, problems

from enplace.bounds import lower_bound_us
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.pesto.program import most_rows, write_program
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from enplace.values.result import Result


@given(problem=problems(10))
def test_every_schedule_satisfies_the_program(problem):
    """The easy half of Theorem 3.1: a valid plan satisfies all constraints but memory."""
    program = write_program(problem)
    model = program.model
    values = program.values(place(problem, "heft").plan)
    rows = np.repeat(np.arange(model.n_rows), np.diff(model.row_ptr))
    total = np.bincount(rows, model.value * values[model.column], model.n_rows)
    memory = np.arange(model.n_rows) >= model.n_rows - problem.cluster.n_devices
    off = np.maximum(model.row_lower - total, total - model.row_upper)
    assert (off[~memory] <= 1e-6 * (1 + abs(total[~memory]))).all()
    assert (values >= model.lower - 1e-9).all()
    assert (values <= model.upper + 1e-9).all()


def test_two_chains_run_in_parallel():
    edges = [(0, 1, 1), (1, 2, 1), (3, 4, 1), (4, 5, 1)]
    problem = Problem(line([5.0] * 6, edges), gpus(2))
    plan = place(problem, "pesto").plan
    assert simulate(problem, plan).makespan_us == 15
    assert plan.details["solver_status"] == "optimal"
    assert plan.details["ilp_step_time_us"] == pytest.approx(15)


def test_congestion_limits_how_many_tensors_use_a_link():
    """One op feeds three of 10 µs by tensors of 8 µs, which queue if sent to the same GPU.

    On one GPU the step takes 31 µs. With one op moved, its GPU needs 1 + 8 + 10 = 19, the other 21.
    """
    costs = [1.0, 10.0, 10.0, 10.0]
    profile = line(costs, [(0, 1, 8), (0, 2, 8), (0, 3, 8)])
    problem = Problem(profile, gpus(2, b0=0.0, b1=1.0))
    plan = place(problem, "pesto").plan
    assert plan.details["ilp_step_time_us"] == pytest.approx(21)
    assert simulate(problem, plan).makespan_us == 21


def test_two_bits_encode_four_gpus():
    problem = Problem(line([6.0] * 4, []), gpus(4))
    plan = place(problem, "pesto").plan
    assert sorted(plan.device.tolist()) == [0, 1, 2, 3]


def test_the_program_never_uses_a_fourth_of_three_gpus():
    problem = Problem(line([6.0] * 6, []), gpus(3))
    plan = place(problem, "pesto").plan
    assert simulate(problem, plan).makespan_us == 12


def test_the_program_respects_memory():
    profile = line([5.0] * 4, [(0, 1, 1), (2, 3, 1)], persistent=[400] * 4)
    problem = Problem(profile, gpus(2, capacity=900))
    plan = place(problem, "pesto").plan
    assert np.bincount(plan.device).tolist() == [2, 2]


@pytest.fixture
def coarse(monkeypatch):
    """Give a free solver six vertices, for which HiGHS soon proves the optimum."""
    monkeypatch.setattr("enplace.placers.pesto.methods.FREE_TARGET", 6)


def search_briefly(problem, start=None, solver=""):
    """Return Pesto's plan after one round of the search that follows the integer program."""
    options = PlaceOptions(start=start, values={"rounds": 1, "solver": solver})
    return place(problem, "pesto", options=options).plan


def fifty_chains():
    rng = np.random.default_rng(3)
    costs = rng.integers(1, 50, 150).astype(float).tolist()
    return Problem(line(costs, [(i, i + 50, 500) for i in range(100)]), gpus(2, b1=0.1))


@pytest.mark.usefixtures("coarse")
def test_a_large_graph_is_coarsened_with_a_note():
    costs = [3.0 + i % 7 for i in range(120)]
    edges = [(i, i + 4, 20) for i in range(116)]
    problem = Problem(line(costs, edges), gpus(2, b1=0.1))
    plan = search_briefly(problem)
    assert plan.details["vertices"] == 6
    assert plan.details["ilp_bound_us"] <= plan.details["ilp_step_time_us"] * (1 + 1e-9)
    assert "program on 6 vertices" in plan.note


def dense_problem():
    """Return a graph with an edge between any two of thirty ops."""
    edges = [(i, j, 20) for i in range(30) for j in range(i + 1, 30)]
    return Problem(line([3.0 + i % 7 for i in range(30)], edges), gpus(2, b1=0.1))


def test_a_dense_graph_gets_fewer_vertices_because_its_program_would_fill_the_memory(monkeypatch):
    problem = dense_problem()
    most = most_rows(problem)
    assert write_program(problem).model.n_rows <= most
    monkeypatch.setattr("enplace.placers.pesto.methods.MOST_ROWS", most // 50)
    plan = search_briefly(problem)
    assert plan.details["vertices"] <= 15
    assert plan.details["rows"] <= most // 50


def test_without_its_program_which_is_always_too_large_pesto_searches(monkeypatch):
    monkeypatch.setattr("enplace.placers.pesto.methods.MOST_ROWS", 1)
    problem = dense_problem()
    plan = search_briefly(problem)
    assert plan.method == "pesto"
    assert re.match(r"The integer program was left out: even with \d+ vertices", plan.note)
    assert "searched without a proof" in plan.note
    assert plan.details["solver_status"] == "too large"
    shortest_list_us = simulate(problem, place(problem, "heft").plan).makespan_us
    assert simulate(problem, plan).makespan_us <= shortest_list_us


@pytest.mark.usefixtures("coarse")
def test_a_finer_graph_is_searched_if_the_programs_vertices_are_too_coarse():
    problem = fifty_chains()
    plan = search_briefly(problem)
    assert plan.details["ilp_step_time_us"] > 1.2 * simulate(problem, plan).makespan_us
    assert Result(simulate(problem, plan), lower_bound_us(problem)).gap < 0.01
    assert "searched without a proof" in plan.note


def wide_problem():
    """Return four parallel chains with more ops than the vertices given to a free solver."""
    costs = [3.0 + i % 7 for i in range(24)]
    return Problem(line(costs, [(i, i + 4, 20) for i in range(20)]), gpus(2, b1=0.1))


@pytest.mark.usefixtures("coarse")
def test_the_program_starts_from_the_given_plan():
    problem = wide_problem()
    start = place(problem, "heft").plan
    plan = search_briefly(problem, start)
    assert plan.details["ilp_step_time_us"] <= simulate(problem, start).makespan_us + 1e-9


@pytest.mark.parametrize("limit_s", [1e-9, None])
@pytest.mark.usefixtures("coarse")
def test_the_plan_is_never_worse_than_the_given_one(limit_s):
    problem, budget = fifty_chains(), {"rounds": 1}
    start = place(problem, "enplace", options=PlaceOptions(values=budget)).plan
    options = PlaceOptions(stop=Stop(limit_s), start=start, values=budget)
    plan = place(problem, "pesto", options=options).plan
    assert plan.method == "pesto"
    assert simulate(problem, plan).makespan_us <= simulate(problem, start).makespan_us


@pytest.mark.usefixtures("coarse")
def test_a_given_plan_is_adapted_to_a_new_pin():
    problem = wide_problem()
    start = place(problem, "heft").plan
    pinned = Problem(
        problem.profile, problem.cluster, Constraints(pins={0: int(1 - start.device[0])})
    )
    plan = search_briefly(pinned, start)
    assert plan.device[0] == 1 - start.device[0]


UNLICENSED = {"printed": "No Gurobi license found\n", "status": 1}
BROKEN = [{"every": "0"}, {"every": "1"}, {"every": "nan"}, {"every": "0.5"}, {"values": {}}]


@pytest.mark.parametrize(
    ("solver", "behaviour"),
    [*(("", each) for each in [*BROKEN, UNLICENSED]), ("Gurobi", BROKEN[0])],
)
@pytest.mark.usefixtures("coarse")
def test_a_failing_solver_never_costs_the_plan(gurobi, behaviour, solver):
    gurobi(**behaviour)
    problem = wide_problem()
    plan = search_briefly(problem, solver=solver)
    first = place(problem, "heft").plan
    assert simulate(problem, plan).makespan_us <= simulate(problem, first).makespan_us * 1.2
    assert "Gurobi found nothing" in plan.note
    assert "not installed" not in plan.note
    assert "proven optimal by Gurobi" not in plan.note


@pytest.mark.usefixtures("coarse")
def test_without_a_licence_a_free_solver_takes_over(gurobi):
    gurobi(**UNLICENSED)
    problem = fifty_chains()
    plan = search_briefly(problem)
    assert plan.details["solver"] == "HiGHS"
    assert plan.details["vertices"] == 6
    assert Result(simulate(problem, plan), lower_bound_us(problem)).gap < 0.01
    assert "Gurobi found nothing (No Gurobi license found)." in plan.note
    assert "by HiGHS" in plan.note
    assert "searched without a proof" in plan.note


def test_a_requested_solver_is_not_replaced_and_its_error_is_noted(gurobi):
    gurobi(**UNLICENSED)
    plan = search_briefly(wide_problem(), solver="Gurobi")
    assert plan.details["solver"] == "Gurobi"
    assert plan.details["solver_status"] == "failed"
    assert "Gurobi found nothing (No Gurobi license found)." in plan.note
    assert "HiGHS" not in plan.note


@pytest.mark.usefixtures("coarse")
def test_finer_vertices_are_searched_until_each_is_an_op(monkeypatch):
    monkeypatch.setattr("enplace.placers.pesto.methods.TARGET", 12)
    problem = fifty_chains()
    plan = search_briefly(problem)
    searched = [int(n) for n in re.findall(r"(\d+) vertices, searched", plan.note)]
    assert len(searched) == 3
    assert searched[0] <= 12 < searched[1] <= 48 < searched[2] <= 192
