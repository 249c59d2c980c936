"""Run a plan, learn from what was measured, and solve again: FastT's adaptive cost model.

Yi et al., Fast Training of Deep Learning Models over Multiple GPUs: a new strategy is activated if
the updated costs, of ops and of links, promise a faster step, and rolled back if it measures
slower. We also roll back a plan that does not run as planned: its time is not the plan's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from enplace.frameworks.measured import (
    MeasuredRun,
    median_us,
    with_measured_costs,
    with_measured_links,
)
from enplace.machine import simulate
from enplace.placers.references import verdict
from enplace.values.plan import Plan
from enplace.values.problem import Problem

MARGIN = 0.01
"""Least relative gain of a faster step: less is noise."""

Run = Callable[[Problem, Plan], MeasuredRun]
Solve = Callable[[Problem], Plan]
Predict = Callable[[Problem, Plan], float]


@dataclass(frozen=True, eq=False)
class Trial:
    """A plan that was run.

    Attributes
    ----------
    kept : bool
        Whether it ran as planned, and faster than all earlier plans that did.
    """

    plan: Plan
    run: MeasuredRun
    kept: bool


@dataclass(frozen=True, eq=False)
class Tuning:
    """The plans that were run, one after another.

    Attributes
    ----------
    trials : tuple of Trial
        The first is the plan with which tuning began.
    problem : Problem
        With the costs measured in the best plan's run.
    settled : bool
        Whether it ended because the measured costs promise no faster plan.
    """

    trials: tuple[Trial, ...]
    problem: Problem
    settled: bool

    @property
    def best(self) -> Trial:
        """The fastest plan by measurement that ran as planned; if none did, the first."""
        return next((t for t in reversed(self.trials) if t.kept), self.trials[0])

    @property
    def one_device_us(self) -> float:
        """The median step without a plan, of all trials; NaN if unknown."""
        return median_us([trial.run.one_device_us for trial in self.trials])

    @property
    def stock_us(self) -> float:
        """The median step of the framework by itself, of all trials; NaN if unknown."""
        return median_us([trial.run.stock_step_time_us for trial in self.trials])

    @property
    def replicas_us(self) -> float:
        """The median step with a replica on each device; NaN if unknown."""
        return median_us([trial.run.replicas_us for trial in self.trials])

    @property
    def verdict(self) -> str:
        """Whether the best plan is worth it; empty if there is nothing to compare it with."""
        rivals = (self.one_device_us, self.stock_us)
        return verdict(self.best.run.step_time_us, *rivals, replicas_us=self.replicas_us)

    @property
    def is_spoilt(self) -> bool:
        """Whether no new plan was kept, and some plan did not run as planned."""
        found_none = self.best is self.trials[0]
        return found_none and not all(trial.run.as_planned for trial in self.trials)


def predict_step_us(problem: Problem, plan: Plan) -> float:
    """Predict a step that runs whole."""
    return simulate(problem, plan).makespan_us


def tune(
    problem: Problem,
    plan: Plan,
    run: Run,
    solve: Solve,
    rounds: int,
    predict: Predict = predict_step_us,
) -> Tuning:
    """Improve a plan by measurement.

    Parameters
    ----------
    run, solve : callables
        Run a plan on real devices, and find a plan for a problem.
    rounds : int
        Most new plans to run.
    predict : callable
        Predicts how long the step of a plan takes as it is run.
    """
    measured = run(problem, plan)
    tuning = Tuning((Trial(plan, measured, measured.as_planned),), problem, settled=False)
    for _ in range(rounds):
        tuning = _learn(tuning, tuning.trials[-1])
        new = solve(tuning.problem)
        if not _promises_more(tuning, new, predict):
            return replace(_learn(tuning, tuning.best), settled=True)
        measured = run(tuning.problem, new)
        kept = _is_better(measured, tuning.best)
        tuning = replace(tuning, trials=(*tuning.trials, Trial(new, measured, kept)))
    return _learn(tuning, tuning.best)


def _learn(tuning: Tuning, trial: Trial) -> Tuning:
    """Take over the costs that the run of a trial measured."""
    costs, links = with_measured_costs(trial.run), with_measured_links(trial.run)
    profile = tuning.problem.measured_profile.with_costs(costs.time_us)
    return replace(tuning, problem=replace(tuning.problem, cluster=links, measured_profile=profile))


def _is_better(run: MeasuredRun, best: Trial) -> bool:
    is_faster = run.step_time_us < (1 - MARGIN) * best.run.step_time_us
    return run.as_planned and (is_faster or not best.run.as_planned)


def _promises_more(tuning: Tuning, new: Plan, predict: Predict) -> bool:
    """Return whether a plan should be faster than the best one was, or should have been.

    If the best one did not run as planned, its times belong to another plan: any new one will do.
    """
    if any(trial.plan.acts_like(new) for trial in tuning.trials):
        return False
    if not tuning.best.run.as_planned:
        return True
    now, then = (predict(tuning.problem, plan) for plan in (tuning.best.plan, new))
    return then < max(now, (1 - MARGIN) * tuning.best.run.step_time_us)
