"""The least latency of one query (Tarnawski et al. 2020, sections 4 and 7).

What :mod:`enplace.latency` finds becomes a plan, which like any other also says in what order the
ops run. The latency is that of the paper's accelerators, which take their ops in whole pieces; a
step that is played through the machine model takes less.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from enplace.latency import Found, Limits, best_latency, greedy_split, latency_us
from enplace.placers.registry import SOLVER, PlaceOptions, Progress, placer
from enplace.placers.settle import settle, unordered
from enplace.plan import Plan
from enplace.problem import LATENCY, Problem
from enplace.profile import IntArray

_SOURCE = "Tarnawski et al. (NeurIPS 2020)"

PROGRAM_S = 60.0
"""An integer program takes so long if nobody says how long it may."""

PIECES = 2
"""Pieces of each accelerator, for the placements that need not be contiguous."""


@placer(
    "greedy-latency",
    title="Greedy latency",
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=("memory",),
)
def greedy_latency(problem: Problem, options: PlaceOptions) -> Plan:
    """Fill one accelerator after the other along a topological order."""
    options.check_cancelled()
    device = settle(problem, greedy_split(problem))
    us = latency_us(problem, device)
    plan = _plan(problem, device, "greedy-latency", us, proven=False)
    options.progress(Progress(options.seconds, "a split", None, plan, us))
    return plan


@placer(
    "latency-ip",
    title="Latency IP, contiguous",
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=("memory", "heterogeneous", "proof", "anytime", SOLVER),
)
def latency_ip(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the contiguous split with the least latency, by annealing and Fig. 3."""
    return _searched(problem, "latency-ip", 1, options)


@placer(
    "latency-ip-q",
    title="Latency IP, two pieces for each accelerator",
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=("memory", "heterogeneous", "proof", "anytime", SOLVER),
)
def latency_ip_q(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the least latency where accelerators have two pieces, by annealing and Fig. 4."""
    return _searched(problem, "latency-ip-q", PIECES, options)


def _searched(problem: Problem, method: str, q: int, options: PlaceOptions) -> Plan:
    options.check_cancelled()
    told_us = np.inf

    def tell(found: Found) -> None:
        nonlocal told_us
        better = found.latency_us < told_us
        told_us = found.latency_us
        plan = _plan_of(problem, method, found) if better else None
        message = "a better split" if better else "a better bound"
        seconds, us = options.seconds, found.latency_us
        options.progress(Progress(seconds, message, None, plan, us, found.bound_us))

    limit_s = PROGRAM_S if options.time_limit_s is None else options.time_limit_s
    limits = Limits(limit_s - options.seconds, options.cancelled, tell)
    found = best_latency(problem, limits, q, options.seed, options.solver_or("HiGHS"))
    return _plan_of(problem, method, found)


def _plan_of(problem: Problem, method: str, found: Found) -> Plan:
    """The plan; free ops go with their consumers unless that costs something."""
    device, us = found.device, found.latency_us
    settled = settle(problem, device)
    if np.isinf(us) or latency_us(problem, settled) <= us * (1 + 1e-9):
        device, us = settled, latency_us(problem, settled)
    facts: dict[str, Any] = {"proven": found.proven, "bound_us": found.bound_us}
    if found.why:
        facts["note"] = found.why
    return _plan(problem, device, method, us, **facts)


def _plan(problem: Problem, device: IntArray, method: str, us: float, **facts: Any) -> Plan:
    (plan,) = unordered(problem, device, method)
    facts = {"latency_us": us, **facts}
    return Plan(plan.device, plan.position, method, plan.policy, plan.links, facts)
