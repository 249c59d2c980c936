import os
import signal

import pytest

from documents import wide_document
from enplace.bounds import Proof
from enplace.machine.pipelines.loads import max_load_us
from enplace.readers import read_profile
from enplace.readers.clusters import cluster_from
from enplace.readers.samples import samples
from enplace.values.problem import THROUGHPUT, Problem
from enplace_studio.jobs.moves import MoveSearch
from enplace_studio.jobs.solver import Report, Solver
from forking import fork_workers
from problems import cluster_of, plan_of, profile_of


@pytest.fixture(scope="module", autouse=True)
def forked_workers(loaded_kernels):
    """Workers need not import or load anew what this process has."""
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        yield


@pytest.fixture(scope="module")
def started(qapp, forked_workers):
    made = Solver()
    made.start()
    yield made
    made.close()


@pytest.fixture
def solver(started, qtbot):
    """A solver that is ready and has nothing to do; all tests share its worker."""
    qtbot.waitUntil(lambda: bool(started.methods) and not started.busy)
    return started


@pytest.fixture
def own_solver(qtbot):
    """A solver for a test that loses the worker."""
    made = Solver()
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def problem():
    return Problem(profile_of({"a": 10, "b": 10}), cluster_of(2))


def test_methods_run_one_after_the_other(solver, problem, qtbot):
    solved = []
    solver.solved.connect(lambda job, plan: solved.append((job.method, len(plan.device))))
    with qtbot.waitSignal(solver.idle):
        solver.solve(problem, ["single", "heft"])
        assert solver.busy
        assert [job.method for job in solver.waiting] == ["heft"]
    assert solved == [("single", 2), ("heft", 2)]
    assert not solver.busy


def test_an_input_error_is_reported_as_a_sentence(solver, problem, qtbot):
    with qtbot.waitSignal(solver.failed) as failed:
        solver.solve(problem, ["no-such-method"])
    assert "no-such-method" in failed.args[1]


def test_the_worker_receives_the_whole_problem(solver, qtbot):
    """It receives which ops are backward, and so finds the optimum of Table 1."""
    profile = read_profile(next(s.path for s in samples() if s.name == "bert-3-training"))
    problem = Problem(profile, cluster_from("from-file", profile))
    with qtbot.waitSignal(solver.solved) as solved:
        solver.solve(problem, ["max-load-dp"], objective=THROUGHPUT)
    plan = solved.args[1]
    assert plan.proven
    assert round(plan.value_us / 1000, 2) == 65.30
    assert plan.value_us == max_load_us(problem, plan.device)


def test_a_second_model_replaces_the_first(solver, problem, qtbot):
    for wanted in (problem, wide_document(n_ops=50).problem, problem):
        with qtbot.waitSignal(solver.solved) as solved:
            solver.solve(wanted, ["expert"])
        assert len(solved.args[1].device) == wanted.profile.n_ops


def test_cancelling_drops_waiting_jobs(solver, problem, qtbot):
    solver.solve(problem, ["single", "heft", "celeritas"])
    with qtbot.waitSignal(solver.idle):
        solver.cancel()
    assert not solver.waiting


def test_dropping_the_running_job_goes_on_to_the_next(solver, qtbot):
    solved = []
    solver.solved.connect(lambda job, plan: solved.append(job.method))
    solver.solve(wide_document(n_ops=400).problem, ["enplace", "single", "heft"], 3600)
    qtbot.waitUntil(lambda: solver.report.incumbent is not None)
    with qtbot.waitSignal(solver.idle):
        solver.drop(solver.waiting[0])
        solver.drop(solver.job)
    assert solved == ["enplace", "heft"]


def test_cancelling_a_search_keeps_its_best_plan(solver, qtbot):
    problem = wide_document(n_ops=400).problem
    solver.solve(problem, ["enplace"], time_limit_s=3600)
    qtbot.waitUntil(lambda: solver.report.incumbent is not None)
    assert solver.seconds > 0
    with qtbot.waitSignal(solver.solved) as solved:
        solver.cancel()
    assert len(solved.args[1].device) == problem.profile.n_ops


def test_a_search_starts_from_a_plan_and_names_the_engine_of_each_find(solver, qtbot):
    from enplace.machine import simulate
    from enplace.placers import place

    problem = wide_document(n_ops=120).problem
    start = place(problem, "heft").plan
    with qtbot.waitSignal(solver.solved) as solved:
        solver.solve(problem, ["enplace"], start=start, values={"rounds": 1})
        qtbot.waitUntil(lambda: solver.report.incumbent is not None)
        assert solver.report.engines[0]
    reached = simulate(problem, start).makespan_us
    assert simulate(problem, solved.args[1]).makespan_us <= reached


def test_an_unresponsive_placer_is_killed_and_its_best_plan_kept(own_solver, problem, qtbot):
    """A job that was never sent to the worker simulates one that never answers."""
    from dataclasses import replace

    from enplace_studio.jobs.solver import Job
    from problems import plan_of

    best = plan_of(problem, {"a": 0, "b": 1})
    own_solver.job = Job(99, problem, "single", None, True)
    own_solver.report = Report("searching", incumbent=replace(best, method="stubborn"))
    with qtbot.waitSignal(own_solver.solved) as solved:
        own_solver.cancel()
    assert solved.args[1].method == "stubborn"
    with qtbot.waitSignal(own_solver.solved):
        own_solver.solve(problem, ["single"])


def test_a_dead_worker_is_reported_and_the_next_solve_works(own_solver, problem, qtbot):
    with qtbot.waitSignal(own_solver.failed) as failed:
        own_solver.solve(wide_document(n_ops=400).problem, ["celeritas"])
        os.kill(own_solver._worker.pid, signal.SIGKILL)
    assert "press Solve again" in failed.args[1]
    with qtbot.waitSignal(own_solver.solved):
        own_solver.solve(problem, ["single"])


def test_a_report_keeps_the_bounds_that_are_higher_than_all_before():
    report = Report("searching")
    for seconds, proof in enumerate([Proof(5.0, "a"), Proof(4.0, "b"), Proof(6.0, "c")]):
        report = report.proven(seconds, proof)
    assert report.bound_us == 6.0
    assert report.bounds == ((0, 5.0), (2, 6.0))
    assert report.provers == ("a", "c")


def test_next_moves_are_found_by_the_worker_also_after_it_has_solved(solver, problem, qtbot):
    search = MoveSearch(solver, solver)
    with qtbot.waitSignal(solver.idle):
        solver.solve(problem, ["heft"])
        search.ask(problem, plan_of(problem, {"a": 0, "b": 0}))
    qtbot.waitUntil(lambda: search.is_over)
    assert search.moves[0].after_us == 10
    search.forget()
    assert not search.moves


def test_a_search_whose_worker_is_lost_goes_on_in_another(own_solver, problem, qtbot):
    search = MoveSearch(own_solver, own_solver)
    qtbot.waitUntil(lambda: bool(own_solver.methods))
    search.ask(problem, plan_of(problem, {"a": 0, "b": 0}))
    os.kill(own_solver.start().pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: search.is_over)
    assert search.moves[0].after_us == 10
