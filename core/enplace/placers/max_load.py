"""Pipelines with the highest throughput (Tarnawski et al. 2020, section 5).

The split comes from :mod:`enplace.maxload`. It disregards pins and forbidden devices; ops that
break them move afterwards, and the split is then no longer proven optimal. The plan also says in
what order the ops of one sample run, like any other. Where there is no contiguous split at all, all
ops that can go to the first GPU.
"""

from __future__ import annotations

import numpy as np

from enplace.maxload import Split, max_load_us, split_exactly, split_in_order
from enplace.placers.registry import THROUGHPUT, PlaceOptions, placer
from enplace.placers.settle import best_of, settle, unordered
from enplace.plan import Plan
from enplace.problem import Problem

_SOURCE = "Tarnawski et al. (NeurIPS 2020)"


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
    return _plan(problem, split_exactly(problem, options.seed), "max-load-dp", options)


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
    return _plan(problem, split_in_order(problem), "max-load-dpl", options)


def _plan(problem: Problem, split: Split, method: str, options: PlaceOptions) -> Plan:
    device = settle(problem, split.device)
    plan = best_of(problem, unordered(problem, device, method), options).plan
    load_us = max_load_us(problem, device)
    facts = {
        "time_per_sample_us": load_us,
        "bound_us": min(split.bound_us, load_us),
        "ideals": split.n_ideals,
        "proven": bool(split.n_ideals) and np.array_equal(device, split.device),
    }
    return Plan(plan.device, plan.position, method, plan.policy, plan.links, facts)
