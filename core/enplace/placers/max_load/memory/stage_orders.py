"""Orders of the ops of stages in which a pipeline of a small graph needs less memory.

At its peak, a stage needs what its ops have made and not yet freed
(:mod:`enplace.machine.pipelines.stage_peaks`), so an op that frees more than it makes had better
run early. What a stage needs depends on its own order only, so orders of all stages are tried side
by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from enplace.machine.pipelines.memory import find_holds, needs_within_bytes
from enplace.machine.pipelines.stages import passes_of, stages_of
from enplace.values.arrays import inverse
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan, follow_graph
from enplace.values.problem import Problem
from enplace.values.profile import Profile

MOST_ORDERS = 100
"""Orders of the ops of a stage that are tried."""


def with_least_needs(problem: Problem, plan: Plan, rule: LoadRule) -> Plan:
    """Return the plan with each stage's ops in the order that needs least memory at its peak."""
    passes = passes_of(problem, plan.device, weights_apart=rule.pipeline == "zb-h1")
    stages = stages_of(problem, plan, passes)
    best = [stage.ops[np.argsort(plan.position[stage.ops])].tolist() for stage in stages]
    waiting = [islice(find_orders(problem.profile, ops), MOST_ORDERS) for ops in best]
    least = [np.inf] * len(stages)
    while True:
        found = [next(orders, None) for orders in waiting]
        if not any(found):
            return _in_order(problem, plan, best)
        tried = [order or known for order, known in zip(found, best, strict=True)]
        holds = find_holds(
            problem, _in_order(problem, plan, tried), stages, overlap=rule.n_resources > 1
        )
        for number, need in enumerate(needs_within_bytes(stages, holds)):
            if need < least[number]:
                least[number], best[number] = need, tried[number]


def find_orders(profile: Profile, ops: Sequence[int]) -> Iterator[list[int]]:
    """Yield the orders of some ops in which each comes after those whose outputs it reads.

    The first one is that given, if it is such an order.
    """
    among = set(ops)
    makers = {op: set(profile.edge_source[profile.edge_op == op].tolist()) & among for op in ops}

    def extend(order: list[int]) -> Iterator[list[int]]:
        if len(order) == len(ops):
            yield list(order)
        for op in ops:
            if op not in order and makers[op].issubset(order):
                yield from extend([*order, op])

    return extend([])


def _in_order(problem: Problem, plan: Plan, orders: Sequence[Sequence[int]]) -> Plan:
    order = np.concatenate([np.array(each, dtype=np.int64) for each in orders])
    return replace(plan, position=follow_graph(problem.profile, inverse(order)))
