"""Pipelines with the highest throughput (Tarnawski et al. 2020, section 5).

What :mod:`enplace.maxload` finds becomes a plan, which also says in what order the ops of one
sample run, like any other. The dynamic programs disregard pins and forbidden devices; ops that
break them move afterwards, and the split is then no longer proven optimal. Where there is no
contiguous split at all, all ops that can go to the first GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from enplace.maxload import (
    Found,
    Limits,
    Split,
    best_anywhere,
    best_contiguous,
    max_load_us,
    split_exactly,
    split_in_order,
)
from enplace.placers.registry import PlaceOptions, Progress, placer
from enplace.placers.settle import settle, unordered
from enplace.plan import Plan
from enplace.problem import THROUGHPUT, Problem
from enplace.profile import IntArray

_SOURCE = "Tarnawski et al. (NeurIPS 2020)"

PROGRAM_S = 60.0
"""An integer program takes so long if nobody says how long it may."""


@placer(
    "max-load-dp",
    title="Max-load DP, exact",
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=("memory", "proof"),
)
def max_load_dp(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the contiguous split whose busiest device has the least to do."""
    options.check_cancelled()
    return _split_plan(problem, split_exactly(problem, options.seed), "max-load-dp", options)


@placer(
    "max-load-dpl",
    title="Max-load DP, along one order",
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=("memory",),
)
def max_load_dpl(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the best split along one depth-first order (DPL)."""
    options.check_cancelled()
    return _split_plan(problem, split_in_order(problem), "max-load-dpl", options)


@placer(
    "max-load-ip",
    title="Max-load IP, contiguous",
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=("memory", "heterogeneous", "proof", "anytime"),
)
def max_load_ip(problem: Problem, options: PlaceOptions) -> Plan:
    """Go on from the DP's split with the integer program of Fig. 6."""
    watch = _Incumbents(problem, "max-load-ip", options)
    return watch.plan_of(best_contiguous(problem, watch.limits, options.seed))


@placer(
    "max-load-ip-noncontiguous",
    title="Max-load IP, not contiguous",
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=("memory", "heterogeneous", "proof", "anytime"),
)
def max_load_ip_noncontiguous(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the placement whose busiest device has the least to do, by annealing and Fig. 6."""
    watch = _Incumbents(problem, "max-load-ip-noncontiguous", options)
    return watch.plan_of(best_anywhere(problem, watch.limits, options.seed))


def _split_plan(problem: Problem, split: Split, method: str, options: PlaceOptions) -> Plan:
    device = settle(problem, split.device)
    load_us = max_load_us(problem, device)
    bound_us = min(split.bound_us, load_us)
    proven = bool(split.n_ideals) and np.array_equal(device, split.device)
    plan = _plan(problem, device, method, bound_us, ideals=split.n_ideals, proven=proven)
    options.progress(Progress(options.seconds, "a split", None, plan, load_us, bound_us))
    return plan


def _plan(problem: Problem, device: IntArray, method: str, bound_us: float, **facts: Any) -> Plan:
    (plan,) = unordered(problem, device, method)
    facts = {"time_per_sample_us": max_load_us(problem, device), "bound_us": bound_us, **facts}
    return Plan(plan.device, plan.position, method, plan.policy, plan.links, facts)


class _Incumbents:
    """Makes plans of what a search finds, and tells the person of them."""

    def __init__(self, problem: Problem, method: str, options: PlaceOptions) -> None:
        options.check_cancelled()
        self._problem, self._method, self._options = problem, method, options
        self._told_us = np.inf
        limit_s = PROGRAM_S if options.time_limit_s is None else options.time_limit_s
        self.limits = Limits(limit_s - options.seconds, options.cancelled, self._tell)

    def plan_of(self, found: Found) -> Plan:
        """The plan; free ops go with their consumers unless that costs something."""
        settled = settle(self._problem, found.device)
        same = max_load_us(self._problem, settled) <= found.load_us * (1 + 1e-9)
        device = settled if same or np.isinf(found.load_us) else found.device
        contiguous = self._method == "max-load-ip"
        facts: dict[str, Any] = {"proven": found.proven, "contiguous": contiguous}
        if found.why:
            facts["solver"] = found.why
        return _plan(self._problem, device, self._method, found.bound_us, **facts)

    def _tell(self, found: Found) -> None:
        plan = None
        if found.load_us < self._told_us:
            self._told_us, plan = found.load_us, self.plan_of(found)
        message = "a better split" if plan else "a better bound"
        self._options.progress(
            Progress(
                self._options.seconds,
                message,
                incumbent=plan,
                objective_us=found.load_us,
                bound_us=found.bound_us,
            )
        )
