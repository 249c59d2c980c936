"""Moves of blocks, against a readable reference that draws the same random numbers."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.problems import ops_at_peak, planned_problems

from enplace.errors import DoesNotFitError
from enplace.machine import simulate
from enplace.machine.layout import build_machine
from enplace.placing.moves import Accepting, move_blocks
from enplace.placing.moves.blocks import (
    BLOCK_MOVES,
    DRAWS,
    MOST_AT_PEAK,
    MOST_NEAR,
    PEAK_MOVES,
    RUN_MOVES,
    Blocks,
)
from enplace.values.arrays import inverse, offsets
from enplace.values.plan import LINK_POLICIES, POLICIES, Plan
from enplace.values.problem import Problem


class Reference:
    """Threshold accepting with lists and dicts; every placement is simulated as a plan."""

    def __init__(self, problem, blocks, accepting, draw):
        self.problem, self.accepting, self.draw = problem, accepting, draw
        self.blocks = [
            blocks.unit[first:end].tolist()
            for first, end in zip(blocks.ptr[:-1], blocks.ptr[1:], strict=True)
        ]
        profile = problem.profile
        self.edges = list(zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True))
        self.natural = inverse(profile.topological_order).tolist()

    def below(self, n):
        return int(self.draw.integers(0, n))

    def run(self, order, device):
        """Return the best makespan, its excess, the order of its starts, and its placement."""
        self.order = order.tolist()
        now = device.tolist(), dict(zip(self.order, map(float, range(len(order))), strict=True))
        best = current = None
        self.at_peak = []
        for attempt in range(self.accepting.rounds + 1):
            device, key = now[0].copy(), now[1].copy()
            if attempt > 0 and not self.move(device, key):
                continue
            if self.accepting.ranked:
                key = self.ranks(device)
            schedule = self.simulate(device, key)
            found = schedule.excess_bytes, schedule.makespan_us
            if current is not None:
                limit_us = current[1] * (1 + self.accepting.threshold)
                most_us = current[1] * (1 + self.accepting.slack)
                if found[0] > current[0] or (found[0] == current[0] and found[1] > limit_us):
                    continue
                if found[1] > max(limit_us, most_us):
                    continue
            current, now = found, (device, key)
            self.at_peak = ops_at_peak(schedule) if schedule.excess_bytes > 0 else []
            if best is None or found < best:
                best, best_device = found, device.copy()
                self.order = self.sort(self.starts(schedule))
        return best[1], best[0], self.order, best_device

    def sort(self, key):
        return sorted(range(len(key)), key=lambda op: (key[op], self.natural[op]))

    def simulate(self, device, key):
        links = LINK_POLICIES[self.accepting.links]
        policy = POLICIES[self.accepting.policy]
        plan = Plan(np.array(device), inverse(self.sort(key)), "x", policy, links)
        return simulate(self.problem, plan)

    def ranks(self, device):
        """Return the upward ranks of a placement, negative: the longest path comes first."""
        profile, rank = self.problem.profile, {}
        for op in reversed(profile.topological_order.tolist()):
            after = [0.0]
            for edge in np.flatnonzero(profile.edge_source == op).tolist():
                to, size = (
                    int(profile.edge_op[edge]),
                    profile.tensor_bytes[profile.edge_tensor[edge]],
                )
                sent = device[to] != device[op]
                cost = self.problem.cluster.transfer_us(size, device[op], device[to])
                after.append((float(cost) if sent else 0.0) + rank[to])
            rank[op] = max(after) + self.problem.time_us[op, device[op]]
        return {op: -value for op, value in rank.items()}

    def starts(self, schedule):
        """Return when ops start; those that take no time only when they are first needed."""
        profile, device = self.problem.profile, schedule.plan.device
        sent = zip(schedule.transfer_tensor.tolist(), schedule.transfer_to.tolist(), strict=True)
        sent_us = dict(zip(sent, schedule.transfer_start_us.tolist(), strict=True))
        key = dict(enumerate(schedule.op_start_us.tolist()))
        for op in reversed(profile.topological_order.tolist()):
            edges = np.flatnonzero(profile.edge_source == op).tolist()
            if edges and self.problem.time_us[op, device[op]] == 0:
                needed = [
                    key[to] if device[to] == device[op] else sent_us[tensor, device[to]]
                    for edge in edges
                    for tensor, to in [(profile.edge_tensor[edge], int(profile.edge_op[edge]))]
                ]
                key[op] = max(key[op], min(needed))
        return key

    def move(self, device, key):
        """Change the placement or the order in place; return whether any op moves."""
        units, to = self.choose(device)
        ops = [op for unit in units for op in np.flatnonzero(self.problem.unit == unit).tolist()]
        keeps_order = POLICIES[self.accepting.policy] == "strict"
        if not self.accepting.ranked and not keeps_order and self.draw.random() < 0.5:
            by = (2 * self.draw.random() - 1) * 2 ** (self.draw.random() * math.log2(len(device)))
            for op in ops:
                key[op] += by
            return True
        may = [op for op in ops if self.problem.unit_allowed[self.problem.unit[op], to]]
        moved = any(device[op] != to for op in may)
        for op in may:
            device[op] = to
        return moved

    def choose(self, device):
        """Choose units, and a device for them; those at a peak that exceeds memory first."""
        if self.at_peak and self.draw.random() < PEAK_MOVES:
            to, op = self.below(self.problem.cluster.n_devices), self.below(len(self.at_peak))
            return self.choose_neighbourhood(device, self.at_peak[op], MOST_AT_PEAK), to
        kind, to = self.draw.random(), self.below(self.problem.cluster.n_devices)
        if kind < BLOCK_MOVES and self.blocks:
            return self.choose_block(), to
        if kind < RUN_MOVES or not self.edges:
            return self.choose_run(device), to
        one, other = self.cut_edge(device)
        if self.draw.random() < 0.5:
            one, other = other, one
        return self.choose_neighbourhood(device, one, MOST_NEAR), device[other]

    def choose_block(self):
        sizes = [len(block) for block in self.blocks]
        size = sizes[-1] ** self.draw.random()
        low = sum(length < size / 1.5 for length in sizes)
        high = sum(length < size * 1.5 for length in sizes)
        first = min(low, len(sizes) - 1)
        return self.blocks[first + self.below(max(high, low + 1) - first)]

    def choose_run(self, device):
        at = self.below(len(device))
        most = min(2 << self.below(9), self.problem.n_units + 1)
        here = [op for op in self.order[at:] if device[op] == device[self.order[at]]]
        return [int(self.problem.unit[op]) for op in here[:most]]

    def cut_edge(self, device):
        for _ in range(DRAWS):
            source, target = self.edges[self.below(len(self.edges))]
            if device[source] != device[target]:
                break
        return source, target

    def choose_neighbourhood(self, device, op, bits):
        """Grow a list of units along the graph; a unit may be in it several times."""
        most = min(1 << self.below(bits), self.problem.n_units + 1)
        machine = build_machine(self.problem)
        chosen = [int(self.problem.unit[op])]
        for unit in chosen:
            if len(chosen) >= most:
                break
            for member in np.flatnonzero(self.problem.unit == unit).tolist():
                inputs = machine.in_tensor[machine.in_ptr[member] : machine.in_ptr[member + 1]]
                near = [*machine.tensor_op[inputs], *(b for a, b in self.edges if a == member)]
                here = [other for other in near if device[other] == device[op]]
                chosen += [int(self.problem.unit[other]) for other in here][: most - len(chosen)]
        return chosen


@given(
    planned=planned_problems(),
    capacity_bytes=st.sampled_from([170, 2**30]),
    policy=st.sampled_from(["priority", "strict"]),
    links=st.sampled_from(["fifo", "priority"]),
    ranked=st.booleans(),
    threshold=st.sampled_from([0.0, 0.2]),
    slack=st.sampled_from([0.1, np.inf]),
    seed=st.integers(0, 99),
)
def test_blocks_move_like_those_of_the_reference(
    planned, capacity_bytes, policy, links, ranked, threshold, slack, seed
):
    problem, plan = planned
    devices = [replace(d, capacity_bytes=capacity_bytes) for d in problem.cluster.devices]
    try:
        problem = Problem(problem.profile, replace(problem.cluster, devices=tuple(devices)))
    except DoesNotFitError:
        assume(False)
    draw, blocks = np.random.default_rng(seed), random_blocks(problem.n_units, seed)
    order, device = np.array(problem.profile.topological_order), np.array(plan.device)
    serve = POLICIES.index(policy), LINK_POLICIES.index(links)
    ranked = ranked and policy == "priority"
    accepting = Accepting(*serve, ranked, 0.0, 12, threshold, slack)
    reference = Reference(problem, blocks, accepting, np.random.default_rng(seed))
    expected = reference.run(order, device)
    stop = np.zeros(1, dtype=bool)
    found = move_blocks(build_machine(problem), blocks, order, device, accepting, draw, stop)
    assert (*found, order.tolist(), device.tolist()) == expected


def random_blocks(n_units, seed):
    """Draw a few sets of units, the smallest first."""
    draw = np.random.default_rng(seed)
    sizes = np.sort(draw.integers(1, n_units + 1, draw.integers(0, 5)))
    units = [draw.choice(n_units, size, replace=False) for size in sizes]
    return Blocks(offsets(sizes), np.concatenate([np.zeros(0, np.int64), *units]))
