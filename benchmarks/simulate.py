"""Simulate 36,000 ops on 4 devices, compared with the same event loop in plain Python."""

from __future__ import annotations

import numpy as np

from benchmarks.report import figure, median_s, title
from benchmarks.synthetic import transformer_36k
from enplace.machine import critical_path, simulate
from enplace.machine.reference import simulate_slowly
from enplace.placers import PlaceOptions, place
from enplace.readers.clusters import presets
from enplace.values.plan import Plan
from enplace.values.problem import Problem


def main() -> None:
    """Print the figures."""
    problem = Problem(transformer_36k(), presets()["celeritas"])
    profile = problem.profile
    title(f"Simulator: {profile.n_ops:,} ops, {profile.n_edges:,} edges, 4 GPUs")
    plans = {
        "order-place": place(problem, "order-place", options=PlaceOptions()).plan,
        "random placement": place(problem, "random", options=PlaceOptions()).plan,
    }
    for name, plan in plans.items():
        for policy in ("priority", "fifo", "strict"):
            _one(problem, name, Plan(plan.device, plan.position, name, policy))
    schedule = simulate(problem, plans["order-place"])
    figure(
        "critical path of a schedule", f"{1e3 * median_s(lambda: critical_path(schedule)):.1f} ms"
    )
    device = np.array(schedule.plan.device)
    fresh = Plan(device, np.array(schedule.plan.position), "again")
    seconds = median_s(lambda: simulate(problem, fresh).peak_bytes)
    figure("simulate and memory over time", f"{1e3 * seconds:.1f} ms")


def _one(problem: Problem, name: str, plan: Plan) -> None:
    fast = median_s(lambda: simulate(problem, plan))
    slow = median_s(lambda: simulate_slowly(problem, plan), repeats=3)
    what = f"{name}, {plan.policy}"
    figure(what, f"{1e3 * fast:.1f} ms", "16 ms or less")
    figure(f"{what}: plain Python takes", f"{slow / fast:.0f} x", "15 x or more")


if __name__ == "__main__":
    main()
