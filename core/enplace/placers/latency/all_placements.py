"""The least latency of a small graph, by trying all placements and subgraphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine.latency import latency_us
from enplace.placers.latency.evaluate import evaluate_all, lay_out, new_scratch
from enplace.placers.latency.groups import build_groups, place_of_devices
from enplace.placing.rebalance import TIE
from enplace.placing.small import MOST_TIED, Placements
from enplace.placing.stop import Stop
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, Problem
from enplace.values.profile import FloatArray, IntArray

MOST_SUBGRAPHS = 400_000
"""Ways to cut all placements into subgraphs: some 0.5 seconds."""


def find_best(problem: Problem, q: int, stop: Stop) -> list[Plan] | None:
    """Find the best of all plans that fit, and those that are as good.

    Parameters
    ----------
    q : int
        Subgraphs of each accelerator in each pass. If no plan with so few fits, none is returned
        that has more.

    Returns
    -------
    list of Plan or None
        The best one first; empty if nothing fits; None if there is too much to try, or only plans
        with more subgraphs fit.
    """
    every = Placements(problem)
    if every.device is None or len(every.device) * q**problem.profile.n_ops > MOST_SUBGRAPHS:
        return None
    if not _cpus_are_alike(problem):
        return None
    us, subgraph = _evaluate(problem, every.device, q)
    plans: list[Plan] = []
    least_us = np.inf
    for at in np.argsort(us, kind="stable").tolist():
        device, value_us = every.device[at], float(us[at])
        if plans and (value_us > least_us * (1 + TIE) or len(plans) == MOST_TIED):
            break
        if stop() or not every.is_certain:
            return None
        schedule = every.fit(device)
        if schedule is None:
            continue
        if np.isinf(value_us):
            return None
        least_us = min(least_us, value_us)
        is_split = value_us < latency_us(problem, device) * (1 - 1e-9)
        kept = subgraph[at] if is_split else None
        plan = replace(schedule.plan, objective=LATENCY, value_us=value_us, subgraph=kept)
        plans.append(plan)
    return plans if every.is_certain else None


def _evaluate(problem: Problem, device: IntArray, q: int) -> tuple[FloatArray, IntArray]:
    """Return the least latency of each placement, and the subgraphs of its ops."""
    groups = build_groups(problem)
    # Each op is moved by itself: those of a unit may be in several subgraphs.
    graph = lay_out(groups)._replace(group=np.arange(groups.n_ops))
    us, slots = np.empty(len(device)), np.zeros(device.shape, np.int64)
    places = np.ascontiguousarray(place_of_devices(problem.cluster)[device][:, groups.op])
    evaluate_all(graph, new_scratch(groups, q), places, q, us, slots)
    subgraph = np.empty_like(slots)
    subgraph[:, groups.op] = slots
    return us, subgraph


def _cpus_are_alike(problem: Problem) -> bool:
    """Whether each op takes as long on all CPUs, as the searches for the latency assume."""
    times_us = problem.time_us[:, problem.cluster.cpus]
    return bool((times_us == times_us[:, :1]).all())
