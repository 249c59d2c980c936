from dataclasses import replace

import numpy as np
import pytest

from enplace.measured import MeasuredRun
from enplace.placers import place
from enplace.problem import Problem
from enplace.simulate import simulate
from enplace.tuning import tune
from problems import cluster_of, plan_of, profile_of


@pytest.fixture
def problem():
    """Two equal ops that need not wait for each other, and two devices."""
    return Problem(profile_of({"a": 100, "b": 100}), cluster_of(2))


def machine(true_us, slower_when_apart=1.0):
    """A machine on which ops take other times than the profile says."""
    steps = []

    def run(problem, plan):
        real = replace(problem, profile=problem.profile.with_costs(np.array([true_us] * 2).T))
        schedule = simulate(real, plan)
        factor = slower_when_apart if len(set(plan.device.tolist())) > 1 else 1.0
        step_us = schedule.makespan_us * factor
        steps.append(step_us)
        duration = schedule.op_finish_us - schedule.op_start_us
        return MeasuredRun(
            profile=problem.profile,
            plan=plan,
            cluster=problem.cluster,
            step_times_us=np.full(3, step_us),
            op_time_us=duration,
            op_start_us=schedule.op_start_us.copy(),
            op_finish_us=schedule.op_finish_us.copy(),
            op_device=plan.device.copy(),
            op_memory_bytes=np.zeros(2, dtype=np.int64),
            ops_checked=2,
            ops_on_planned_device=2,
            order_violations=0,
            loss_difference=0.0,
            weights_difference=0.0,
            stock_step_time_us=step_us,
            predicted_step_time_us=simulate(problem, plan).makespan_us,
        )

    run.steps = steps
    return run


def solve(problem):
    return place(problem, "heft")


def test_a_faster_plan_is_kept(problem):
    run = machine([100, 100])
    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 0}), run, solve, rounds=3)
    assert [trial.kept for trial in tuning.trials] == [True, True]
    assert run.steps == [200, 100]
    assert tuning.best is tuning.trials[1]
    assert tuning.settled


def test_a_plan_that_measures_slower_is_rolled_back(problem):
    first = plan_of(problem, {"a": 0, "b": 0})
    tuning = tune(problem, first, machine([100, 100], slower_when_apart=3), solve, rounds=1)
    assert [trial.kept for trial in tuning.trials] == [True, False]
    assert tuning.best.plan is first
    assert not tuning.settled


def test_a_gain_that_may_be_noise_is_none(problem):
    run = machine([100, 100], slower_when_apart=1.995)
    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 0}), run, solve, rounds=1)
    assert [trial.kept for trial in tuning.trials] == [True, False]


def test_a_plan_that_cannot_be_bettered_runs_once(problem):
    run = machine([100, 100])
    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 1}), run, solve, rounds=5)
    assert len(run.steps) == 1
    assert tuning.settled


def test_each_round_solves_with_the_costs_that_the_last_run_showed(problem):
    seen = []

    def watched(problem):
        seen.append(problem.profile.time_us[:, 0].tolist())
        return solve(problem)

    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 0}), machine([70, 30]), watched, rounds=1)
    assert seen == [[70, 30]]
    assert tuning.problem.profile.time_us[:, 0].tolist() == [70, 30]


def test_no_more_plans_run_than_allowed(problem):
    run = machine([100, 100], slower_when_apart=3)
    tune(problem, plan_of(problem, {"a": 0, "b": 0}), run, solve, rounds=2)
    assert len(run.steps) == 3


def test_what_the_executor_adds_to_every_op_stays(problem):
    cpus = replace(problem.cluster.devices[0], name="CPU:0", kind="cpu")
    cluster = replace(problem.cluster, devices=(cpus, replace(cpus, name="CPU:1")))
    profile = replace(profile_of({}, cpu={"a": 105, "b": 105}), measured={"op_overhead_us": 5.0})
    problem = Problem(profile, cluster)
    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 0}), machine([70, 30]), solve, rounds=1)
    assert tuning.problem.profile.time_us[:, 1].tolist() == [75, 35]
