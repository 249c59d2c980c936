"""If a solver fails or gives a wrong answer, the plan found so far is kept and the reason noted."""

from functools import cache

import pytest
from tests.core.placers.problems import gpus, line

from enplace.placers import LATENCY, THROUGHPUT, PlaceOptions, place
from enplace.values.problem import Problem

METHODS = {
    "max-load-ip": THROUGHPUT,
    "max-load-ip-noncontiguous": THROUGHPUT,
    "latency-ip": LATENCY,
    "latency-ip-q": LATENCY,
}
BROKEN = "Gurobi: its answer breaks the program"
ERRING = [
    ({"every": "0"}, BROKEN),
    ({"every": "1"}, BROKEN),
    ({"every": "nan"}, BROKEN),
    (
        {"printed": "No Gurobi license found\n", "status": 1},
        "Gurobi: No Gurobi license found",
    ),
]


@pytest.fixture(autouse=True)
def no_small_problems(monkeypatch):
    """Small problems need no solver."""
    monkeypatch.setattr("enplace.placing.small.MOST_OPS", 0)


def solve(method, **values):
    costs = [3.0 + 2 * (i % 5) for i in range(9)]
    problem = Problem(line(costs, [(i, i + 3, 2) for i in range(6)]), gpus(2))
    options = PlaceOptions(objective=METHODS[method], values=values)
    return place(problem, method, options=options).plan


solve_freely = cache(solve)
"""The same with a free solver, once for each method."""


@pytest.mark.parametrize(("behaviour", "why"), ERRING)
@pytest.mark.parametrize("method", METHODS)
def test_a_failing_solver_costs_neither_the_plan_nor_a_true_bound(method, behaviour, why, gurobi):
    free = solve_freely(method)
    gurobi(**behaviour)
    plan = solve(method, solver="Gurobi")
    assert why in plan.note
    assert free.proven
    assert plan.value_us >= free.value_us * (1 - 1e-5)
    assert plan.bound_us <= free.value_us * (1 + 1e-5)
