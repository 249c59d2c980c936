"""Simulate 36,000 ops on 4 devices, compared with the same event loop in plain Python."""

from __future__ import annotations

import numpy as np
from tests.core.machine.slow_simulator import simulate_slowly

from benchmarks.report import Report, median_s, publish, seconds_of, spread
from benchmarks.synthetic import HEADS, transformer
from enplace.machine import critical_path, simulate
from enplace.placers import PlaceOptions, place
from enplace.readers.clusters import presets
from enplace.values.plan import Plan
from enplace.values.problem import Problem


def main(report: Report) -> None:
    """Report the figures."""
    problem = Problem(transformer(report.pick(69, 4), HEADS), presets()["celeritas"])
    profile = problem.profile
    report.text(
        f"{profile.n_ops:,} ops, {profile.n_edges:,} edges, 4 GPUs, warm, beside the same event "
        "loop in plain Python."
    )
    plans = {
        "order-place": place(problem, "order-place", options=PlaceOptions()).plan,
        "random placement": place(problem, "random", options=PlaceOptions()).plan,
    }
    for name, plan in plans.items():
        for policy in ("priority", "fifo", "strict"):
            _one(report, problem, name, Plan(plan.device, plan.position, name, policy))
    schedule = simulate(problem, plans["order-place"])
    seconds = seconds_of(lambda: critical_path(schedule))
    report.figure("critical path of a schedule", _ms(seconds))
    device = np.array(schedule.plan.device)
    fresh = Plan(device, np.array(schedule.plan.position), "again")
    seconds = seconds_of(lambda: simulate(problem, fresh).peak_bytes)
    report.figure("simulate and memory over time", _ms(seconds))


def _one(report: Report, problem: Problem, name: str, plan: Plan) -> None:
    fast = seconds_of(lambda: simulate(problem, plan))
    slow = median_s(lambda: simulate_slowly(problem, plan), repeats=3)
    what = f"{name}, {plan.policy}"
    report.figure(what, _ms(fast), "16 ms or less")
    times = slow / np.median(fast)
    report.figure(f"{what}: plain Python takes", f"{times:.0f} x", "15 x or more")


def _ms(seconds: list[float]) -> str:
    return f"{spread([1e3 * value for value in seconds])} ms"


if __name__ == "__main__":
    publish(
        main,
        "simulate",
        "Speed of the simulator",
        "Measured. Medians, and quartiles in brackets, of 15 runs.",
    )
