from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from enplace.frameworks.measured import MeasuredRun, run_by_module
from enplace.frameworks.microbatches import Microbatches, simulate_batch
from enplace.frameworks.tuning import tune
from enplace.frameworks.tuning_process import solves_as
from enplace.machine import simulate
from enplace.machine.op_passes import backward_ops, optimiser_ops
from enplace.placers import PlaceOptions, place
from enplace.values.batch import with_batch
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, plan_of, profile_of
from torch_layers import layered


@pytest.fixture
def problem():
    """Two equal independent ops and two devices."""
    return Problem(profile_of({"a": 100, "b": 100}), cluster_of(2))


def machine(true_us, slower_when_apart=1.0):
    """Return a function that runs a plan on a machine with other op times than the profile."""
    steps = []

    def run(problem, plan):
        real = replace(
            problem, measured_profile=problem.profile.with_costs(np.array([true_us] * 2).T)
        )
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
    return place(problem, "heft").plan


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


def test_a_gain_within_noise_does_not_count(problem):
    run = machine([100, 100], slower_when_apart=1.995)
    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 0}), run, solve, rounds=1)
    assert [trial.kept for trial in tuning.trials] == [True, False]


def test_an_optimal_plan_runs_once(problem):
    run = machine([100, 100])
    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 1}), run, solve, rounds=5)
    assert len(run.steps) == 1
    assert tuning.settled


def test_each_round_uses_the_costs_measured_in_the_last_run(problem):
    seen = []

    def watched(problem):
        seen.append(problem.profile.time_us[:, 0].tolist())
        return solve(problem)

    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 0}), machine([70, 30]), watched, rounds=1)
    assert seen == [[70, 30]]
    assert tuning.problem.profile.time_us[:, 0].tolist() == [70, 30]


def test_the_limit_on_runs_is_kept(problem):
    run = machine([100, 100], slower_when_apart=3)
    others = [plan_of(problem, {"a": a, "b": 1 - a}) for a in (0, 1, 0)]
    first = plan_of(problem, {"a": 0, "b": 0})
    tune(problem, first, run, lambda problem: others.pop(), rounds=2)
    assert len(run.steps) == 3


def test_a_plan_that_ran_before_does_not_run_again(problem):
    run = machine([100, 100], slower_when_apart=3)
    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 0}), run, solve, rounds=5)
    assert len(run.steps) == 2
    assert tuning.settled


def misplace_an_op(run, is_wrong):
    """Return the machine, which runs one op of certain plans on the wrong device."""

    def run_wrong(problem, plan):
        return replace(run(problem, plan), ops_on_planned_device=1 if is_wrong(plan) else 2)

    return run_wrong


def uses_two_devices(plan):
    return len(set(plan.device.tolist())) == 2


def test_a_faster_plan_that_does_not_run_as_planned_is_rolled_back(problem):
    first = plan_of(problem, {"a": 0, "b": 0})
    run = misplace_an_op(machine([100, 100]), uses_two_devices)
    tuning = tune(problem, first, run, solve, rounds=3)
    assert [trial.kept for trial in tuning.trials] == [True, False]
    assert tuning.best.plan is first
    assert tuning.is_spoilt


def test_a_plan_that_runs_as_planned_replaces_one_that_does_not(problem):
    """Even a slower plan replaces it, as the fast time was not that of the first plan."""
    together = plan_of(problem, {"a": 0, "b": 0})
    run = misplace_an_op(machine([100, 100], slower_when_apart=1.9), uses_two_devices)
    first = plan_of(problem, {"a": 0, "b": 1})
    tuning = tune(problem, first, run, lambda problem: together, rounds=1)
    assert [trial.run.step_time_us for trial in tuning.trials] == [190, 200]
    assert tuning.best.plan is together
    assert not tuning.is_spoilt


def test_if_no_plan_runs_as_planned_the_first_is_kept(problem):
    first = plan_of(problem, {"a": 0, "b": 0})
    run = misplace_an_op(machine([100, 100]), lambda plan: True)
    tuning = tune(problem, first, run, solve, rounds=1)
    assert [trial.kept for trial in tuning.trials] == [False, False]
    assert tuning.best.plan is first
    assert tuning.is_spoilt


def test_the_overhead_per_op_is_kept(problem):
    cpus = replace(problem.cluster.devices[0], name="CPU:0", kind="cpu")
    cluster = replace(problem.cluster, devices=(cpus, replace(cpus, name="CPU:1")))
    profile = replace(
        profile_of({}, cpu={"a": 105, "b": 105}), measured=Measurement(op_overhead_us=5.0)
    )
    problem = Problem(profile, cluster)
    tuning = tune(problem, plan_of(problem, {"a": 0, "b": 0}), machine([70, 30]), solve, rounds=1)
    assert tuning.problem.profile.time_us[:, 1].tolist() == [75, 35]


def test_slow_transfers_are_measured_and_then_avoided():
    """The links are 40 times slower than in the cluster."""
    names = [f"op{i}" for i in range(16)]
    edges = [(a, b, 1) for a, b in pairwise(names)]
    problem = Problem(profile_of(dict.fromkeys(names, 10.0), edges), cluster_of(2))
    slow = cluster_of(2, b0_us=40.0)

    def run(problem, plan):
        real = simulate(replace(problem, cluster=slow), plan)
        return replace(machine([10.0] * 16)(problem, plan), **seen(real))

    def seen(schedule):
        times = {"op_start_us": schedule.op_start_us.copy()}
        times["op_finish_us"] = schedule.op_finish_us.copy()
        return times | {"step_times_us": np.full(3, schedule.makespan_us)}

    apart = plan_of(problem, {name: i % 2 for i, name in enumerate(names)})
    tuning = tune(problem, apart, run, solve, rounds=2)
    assert tuning.best.run.step_time_us == 160
    assert len(set(tuning.best.plan.device.tolist())) == 1
    assert tuning.settled


def test_a_plan_predicted_to_beat_the_measured_time_is_run(problem):
    """The prediction is right for ops on one device, far too short for ops on two."""
    first = plan_of(problem, {"a": 0, "b": 1})
    together = plan_of(problem, {"a": 0, "b": 0})
    run = machine([100, 100], slower_when_apart=2.5)
    tuning = tune(problem, first, run, lambda problem: together, rounds=3)
    assert run.steps == [250, 200]
    assert tuning.best.plan is together
    assert tuning.settled


def test_a_pipeline_is_tuned_by_the_passes_of_its_stages():
    """The second half of the layers really takes three times as long, so it gets fewer layers."""
    wanted = Microbatches("1f1b", 4)
    problem = Problem(layered(n_layers=8, weight=1, data=8), cluster_of(2))
    late = np.array([any(f"s_{n}" in scope for n in "4567") for scope in problem.profile.scopes])
    real_us = np.where(late, 3.0, 1.0)[:, None] * problem.profile.time_us

    def run(problem, plan):
        real = replace(problem, measured_profile=problem.measured_profile.with_costs(real_us))
        seen, number = simulate_batch(real, plan, wanted), wanted.number
        cost_us = with_batch(real.measured_profile, 1 / number).time_us[:, 0]
        backward, counts = backward_ops(real), ~optimiser_ops(real)
        rows = [
            {
                "device": f"GPU:{d}",
                "passes_us": [
                    number * cost_us[(plan.device == d) & of & counts].sum()
                    for of in (~backward, backward)
                ],
            }
            for d in range(2)
        ]
        facts = {"pipeline": {"microbatches": number, "devices": rows}}
        predicted_us = simulate_batch(problem, plan, wanted).makespan_us
        times_us = np.full(3, seen.makespan_us)
        found = run_by_module(problem, plan, times_us, predicted_us, (1, 1), facts)
        return replace(found, loss_difference=0.0, weights_difference=0.0)

    solve, predict_us = solves_as(wanted, "max-load-dp", PlaceOptions)
    tuning = tune(problem, solve(problem), run, solve, 3, predict_us)
    first, best = tuning.trials[0].run.step_time_us, tuning.best.run.step_time_us
    assert best < 0.86 * first  # updates, which no tuning shortens, are a part of both
