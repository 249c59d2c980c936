"""Models solved in another process: the answers, and what becomes of those that are stopped."""

import tempfile

import numpy as np
import pytest

from enplace.solvers.milp import CP_SAT, SOLVERS, installed, solve_milp
from enplace.solvers.model import ModelBuilder, decode_model, encode_model
from enplace.solvers.pulp_process import bound_in


def never():
    return False


def knapsack(n=4, seed=1):
    """Leave the least value behind; no more weight than half fits."""
    rng = np.random.default_rng(seed)
    value, weight = rng.integers(1, 50, n), rng.integers(1, 50, n)
    builder = ModelBuilder()
    take = builder.variables(n, upper=1, integral=True, cost=-value)
    builder.sums(1, [(np.zeros(n, dtype=int), weight, take)], upper=weight.sum() / 2)
    best = min(
        -value @ np.array(chosen)
        for chosen in np.ndindex(*[2] * n)
        if weight @ np.array(chosen) <= weight.sum() / 2
    )
    return builder.model(), best


def solve(model, start=None, **options):
    heard = []
    answer = solve_milp(model, start, 20.0, never, heard.append, **options)
    if answer.status == "missing":
        pytest.skip(answer.why)
    return answer, heard


@pytest.mark.parametrize("solver", [*SOLVERS, CP_SAT])
def test_every_solver_finds_the_optimum(solver):
    model, best = knapsack()
    answer, _ = solve(model, solver=solver)
    assert answer.status == "optimal"
    assert answer.objective == pytest.approx(best)
    assert answer.bound == pytest.approx(best)
    assert model.cost @ answer.values == pytest.approx(best)


def test_what_is_reported_only_gets_better():
    model, _ = knapsack(12)
    _, heard = solve(model, start=np.zeros(12))
    assert heard
    objectives = [answer.objective for answer in heard]
    bounds = [answer.bound for answer in heard]
    assert objectives == sorted(objectives, reverse=True)
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("solver", ["HiGHS", "CBC", CP_SAT])
def test_what_cannot_be_is_infeasible(solver):
    builder = ModelBuilder()
    x = builder.variables(2, upper=1, integral=True)
    builder.rows([(1, x[:1]), (1, x[1:])], lower=3)
    answer, _ = solve(builder.model(), solver=solver)
    assert answer.status == "infeasible"
    assert answer.values is None


def test_stopped_before_it_begins_there_is_no_solution():
    model, _ = knapsack()
    answer = solve_milp(model, None, 20.0, lambda: True, lambda _: None)
    assert (answer.status, answer.values) == ("stopped", None)


def test_stopped_on_the_way_it_answers_with_what_it_told():
    model, _ = knapsack(12)
    heard = []
    answer = solve_milp(model, np.zeros(12), 20.0, lambda: bool(heard), heard.append)
    if answer.status == "missing":
        pytest.skip(answer.why)
    assert answer.status == "stopped"
    assert answer.objective == heard[-1].objective


def test_cbc_tells_of_bounds_on_the_way():
    """Whole numbers are far from what the linear program makes of them, so it takes a while."""
    model, best = knapsack(12)
    answer, heard = solve(model, start=np.zeros(12), solver="CBC")
    assert answer.objective == pytest.approx(best)
    assert heard
    assert all(told.bound <= best for told in heard)


def test_the_best_bound_in_a_log_of_cbc_is_rounded_down():
    log = b"""
Continuous objective value is 0.114621 - 101.42 seconds
Cbc0010I After 0 nodes, 1 on tree, 1e+50 best solution, best possible 0.25 (3.00 seconds)
Cbc0005I Partial search - best objective 1e+50 (best possible 0.25), took 0 iterations
Lower bound:                    0.251
"""
    assert bound_in(log) == pytest.approx(0.25, rel=1e-4)
    assert bound_in(log) < 0.25
    assert bound_in(b"Continuous objective value is -12.5 - 0.00 seconds") < -12.5
    assert bound_in(b"best possible 1e+50") == -np.inf


def test_a_solver_is_installed_where_its_program_is(monkeypatch):
    """CBC's program is the one that PuLP brings, wherever a person's own may be."""
    monkeypatch.setenv("PATH", "")
    assert installed("CBC")
    assert not installed("Gurobi")


def test_a_process_that_breaks_is_an_answer_with_its_last_line():
    model, _ = knapsack()
    answer = solve_milp(model, None, 20.0, never, lambda _: None, solver="CBC", threads="two")
    assert answer.status == "failed"
    assert "two" in answer.why


def test_rows_say_what_their_terms_say():
    builder = ModelBuilder()
    x, y = builder.variables(3), builder.variables(1, upper=5)
    builder.rows([(2, x), (-1, y)], lower=[1, 2, 3])
    builder.sums(2, [(np.array([0, 0, 1]), [1, 1, 4], x)], upper=7)
    model, start = decode_model(encode_model(builder.model(), np.arange(4.0)))
    dense = np.zeros((5, 4))
    for row in range(5):
        at = slice(model.row_ptr[row], model.row_ptr[row + 1])
        dense[row, model.column[at]] = model.value[at]
    assert dense.tolist() == [
        [2, 0, 0, -1],
        [0, 2, 0, -1],
        [0, 0, 2, -1],
        [1, 1, 0, 0],
        [0, 0, 4, 0],
    ]
    assert model.row_lower.tolist() == [1, 2, 3, -np.inf, -np.inf]
    assert model.upper.tolist() == [np.inf] * 3 + [5]
    assert start.tolist() == [0, 1, 2, 3]


def test_a_solver_that_is_stopped_leaves_no_file_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, _ = knapsack(12)
    heard = []
    solve_milp(model, np.zeros(12), 20.0, lambda: bool(heard), heard.append, solver="CBC")
    assert not list(tmp_path.iterdir())
