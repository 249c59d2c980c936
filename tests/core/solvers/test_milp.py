"""Models solved in another process: their answers, also when stopped."""

import tempfile

import numpy as np
import pytest

from enplace.linear import ModelBuilder
from enplace.processes.wire import Message
from enplace.solvers import milp
from enplace.solvers.milp import CP_SAT, SOLVERS, installed, solve_milp
from enplace.solvers.model import model_from, model_message
from enplace.solvers.program_process import bound_in, last_words


def never():
    return False


GUARD_S = 600.0


def knapsack(n=4, seed=1):
    """Return a knapsack that holds half the weight; minimise the value left behind."""
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
    reports = []
    answer = solve_milp(model, start, GUARD_S, never, reports.append, **options)
    if answer.status == "missing":
        pytest.skip(answer.why)
    return answer, reports


@pytest.mark.parametrize("solver", [*SOLVERS, CP_SAT])
def test_every_solver_finds_the_optimum(solver):
    model, best = knapsack()
    answer, _ = solve(model, solver=solver)
    assert answer.status == "optimal"
    assert answer.objective == pytest.approx(best)
    assert answer.bound == pytest.approx(best)
    assert model.cost @ answer.values == pytest.approx(best)


def test_reported_answers_only_improve():
    model, _ = knapsack(12)
    _, reports = solve(model, start=np.zeros(12))
    assert reports
    objectives = [answer.objective for answer in reports]
    bounds = [answer.bound for answer in reports]
    assert objectives == sorted(objectives, reverse=True)
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("solver", ["HiGHS", "CBC", CP_SAT])
def test_an_impossible_model_is_infeasible(solver):
    builder = ModelBuilder()
    x = builder.variables(2, upper=1, integral=True)
    builder.rows([(1, x[:1]), (1, x[1:])], lower=3)
    answer, _ = solve(builder.model(), solver=solver)
    assert answer.status == "infeasible"
    assert answer.values is None


def test_stopping_before_the_start_gives_no_solution():
    model, _ = knapsack()
    answer = solve_milp(model, None, GUARD_S, lambda: True, lambda _: None)
    assert (answer.status, answer.values) == ("stopped", None)


def test_a_stopped_solver_answers_with_its_last_report():
    model, _ = knapsack(12)
    reports = []
    answer = solve_milp(model, np.zeros(12), GUARD_S, lambda: bool(reports), reports.append)
    assert answer.status == "stopped"
    assert answer.objective == reports[-1].objective


def test_cbc_reports_bounds_while_it_runs():
    """The relaxation of this model is poor, so CBC needs some time."""
    model, best = knapsack(12)
    answer, reports = solve(model, start=np.zeros(12), solver="CBC")
    assert answer.objective == pytest.approx(best)
    assert reports
    assert all(report.bound <= best for report in reports)


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


def test_a_solver_counts_as_installed_if_its_program_is_found(monkeypatch):
    """The CBC program is the one bundled with PuLP, not one on the path."""
    monkeypatch.setenv("PATH", "")
    assert installed("CBC")
    assert not installed("Gurobi")


def test_a_failing_solver_process_is_reported_with_its_last_line():
    model, _ = knapsack()
    answer = solve_milp(model, None, GUARD_S, never, lambda _: None, solver="CBC", threads="two")
    assert answer.status == "failed"
    assert "two" in answer.why


def test_rows_contain_their_terms():
    builder = ModelBuilder()
    x, y = builder.variables(3), builder.variables(1, upper=5)
    builder.rows([(2, x), (-1, y)], lower=[1, 2, 3])
    builder.sums(2, [(np.array([0, 0, 1]), [1, 1, 4], x)], upper=7)
    model, start = model_from(model_message(builder.model(), np.arange(4.0), 1.0, 1))
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
    reports = []
    solve_milp(model, np.zeros(12), GUARD_S, lambda: bool(reports), reports.append, solver="CBC")
    assert not list(tmp_path.iterdir())


def half_integer_model():
    """Return: minimise 2 x + y with x + y >= 1.5, x integer; the optimum is 1.5 at x = 0."""
    builder = ModelBuilder()
    x = builder.variables(1, upper=4, integral=True, cost=2.0)
    y = builder.variables(1, upper=9, cost=1.0)
    builder.rows([(1.0, x), (1.0, y)], lower=1.5)
    return builder.model()


def test_an_answer_that_satisfies_the_model_is_accepted(gurobi):
    gurobi(values={"x0": "1", "x1": "0.5"})
    answer, _ = solve(half_integer_model(), solver="Gurobi")
    assert (answer.status, answer.objective, answer.bound) == ("optimal", 2.5, 2.5)


WRONG = [
    {"x0": "0", "x1": "0"},  # violates a row
    {"x0": "0.5", "x1": "1"},  # violates integrality
    {"x0": "-1", "x1": "3"},  # violates bounds
    {"x0": "5", "x1": "0"},
    {"x0": "nan", "x1": "nan"},
    {"x0": "0", "x1": "inf"},
    {"x0": "0"},
]


@pytest.mark.parametrize(
    ("values", "start"), [*((each, None) for each in WRONG), (WRONG[0], np.array([2.0, 0.0]))]
)
def test_an_answer_that_violates_the_model_is_rejected(gurobi, values, start):
    gurobi(values=values)
    answer, _ = solve(half_integer_model(), start=start, solver="Gurobi")
    assert (answer.status, answer.values) == ("failed", None)
    assert (answer.objective, answer.bound) == (np.inf, -np.inf)
    assert answer.why == "its answer breaks the program"


def message(values, **details):
    return Message("progress", details, {"values": np.array(values)})


def test_after_a_rejected_answer_the_incumbent_is_kept(monkeypatch):
    messages = [
        message([1.0, 0.0001], objective=2.0, bound=0.5),
        message([1.0, 0.5], objective=2.5, bound=0.75),
        message([0.0, 0.0], status="optimal", objective=0.0, bound=0.0),
    ]
    monkeypatch.setattr(milp, "ask_solver", lambda *_: iter(messages[1:]))
    answer, reports = solve(half_integer_model())
    assert (answer.status, answer.objective) == ("failed", 2.5)
    assert answer.values.tolist() == [1.0, 0.5]
    assert answer.bound == -np.inf
    assert [report.bound for report in reports] == [0.75]
    monkeypatch.setattr(milp, "ask_solver", lambda *_: iter(messages))
    answer, reports = solve(half_integer_model())
    assert (answer.status, answer.values, reports) == ("failed", None, [])


def test_an_optimal_status_without_values_is_rejected(monkeypatch, gurobi):
    gurobi(values={})
    answer, _ = solve(half_integer_model(), start=np.array([2.0, 0.0]), solver="Gurobi")
    assert (answer.status, answer.values) == ("failed", None)
    without = Message("done", {"status": "optimal", "bound": 1.0})
    monkeypatch.setattr(milp, "ask_solver", lambda *_: iter([without]))
    answer, _ = solve(half_integer_model())
    assert (answer.status, answer.values, answer.bound) == ("failed", None, -np.inf)


@pytest.mark.parametrize("too_late", [True, False])
def test_a_solver_without_a_licence_fails_with_its_own_last_line(gurobi, too_late):
    """The message may come at once or only when the solver is given a model."""
    gurobi(printed="Gurobi Optimizer\nNo Gurobi license found\n", status=1, too_late=too_late)
    answer, _ = solve(half_integer_model(), solver="Gurobi")
    assert (answer.status, answer.values) == ("failed", None)
    assert answer.why == "No Gurobi license found"


def test_gurobi_at_its_time_limit_has_not_proven_its_answer(gurobi):
    log = "Time limit reached\nBest objective 2.5e+00, best bound 1.25e+00, gap 50.0%\n"
    gurobi(values={"x0": "1", "x1": "0.5"}, printed=log)
    answer, _ = solve(half_integer_model(), solver="Gurobi")
    assert (answer.status, answer.objective) == ("stopped", 2.5)
    assert answer.bound == pytest.approx(1.25, rel=1e-4)


def test_gurobi_can_report_that_there_is_no_solution(gurobi):
    gurobi(printed="Model is infeasible\n")
    answer, _ = solve(half_integer_model(), solver="Gurobi")
    assert (answer.status, answer.why) == ("infeasible", "")


def test_the_error_is_found_in_the_output_of_cplex():
    printed = b"CPLEX> CPLEX Error  1016: Too large.\nCPLEX> No file written.\nCPLEX> "
    assert last_words(printed) == "CPLEX Error  1016: Too large."
