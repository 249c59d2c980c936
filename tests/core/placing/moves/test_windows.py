"""Annealing one window, against a readable reference that draws the same random numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.problems import cluster_of, planned_problems, profile_of

from enplace.machine.layout import build_machine
from enplace.placing.moves.order import empty_schedule, find_tails, new_tails, simulate_order
from enplace.placing.moves.windows import (
    MOST_IN_BLOCK,
    SHIFTS,
    SINGLES,
    Annealing,
    anneal_window,
    new_window,
)
from enplace.values.problem import Problem


class Reference:
    """The ops at ``begin`` to ``end`` of an order, annealed with lists, sets and dicts."""

    def __init__(self, problem, order, device, begin, end, before, tails):
        self.problem, self.before, self.tails = problem, before, tails
        self.ops, self.device = order[begin:end].tolist(), device.tolist()
        self.earlier, self.later = set(order[:begin].tolist()), set(order[end:].tolist())
        profile = problem.profile
        self.inputs = [
            profile.edge_tensor[profile.edge_op == op].tolist() for op in range(len(device))
        ]
        self.outputs = [[] for _ in device]  # the tensors of each op, each with its consumers
        for tensor, op in enumerate(profile.tensor_op.tolist()):
            users = profile.edge_op[profile.edge_tensor == tensor].tolist()
            self.outputs[op].append((tensor, users))

    def energy(self, spread):
        """Simulate the window; return its latest end plus ``spread`` times the mean end."""
        cluster, maker = self.problem.cluster, self.problem.profile.tensor_op
        lane_free, channel_free, last_start = (
            array.tolist()
            for array in (
                self.before.lane_free_us,
                self.before.channel_free_us,
                self.before.last_start_us,
            )
        )
        finish = self.before.timing.finish_us.tolist()
        sent = {}

        def arrival(tensor, to):
            """Return when a tensor is on another device; send it there if it is not on its way."""
            made_by = int(maker[tensor])
            home = self.device[made_by]
            before_us = self.before.timing.arrival_us[tensor, to]
            if (tensor, to) not in sent:
                if made_by in self.earlier and before_us >= 0:
                    return before_us
                link = home * cluster.n_devices + to
                route = cluster.route[cluster.route_ptr[link] : cluster.route_ptr[link + 1]]
                start = max([finish[made_by], *(channel_free[c] for c in route)])
                size = int(self.problem.profile.tensor_bytes[tensor])
                sent[tensor, to] = start + cluster.transfer_us(size, home, to)
                for channel in route:
                    channel_free[channel] = sent[tensor, to]
            return sent[tensor, to]

        longest = 0.0
        machine = build_machine(self.problem)
        for op in self.ops:
            to = self.device[op]
            ready = last_start[to]
            for tensor in self.inputs[op]:
                made_by = int(maker[tensor])
                here = self.device[made_by] == to
                ready = max(ready, finish[made_by] if here else arrival(tensor, to))
            lanes = range(machine.lane_ptr[to], machine.lane_end[to])
            lane = min(lanes, key=lane_free.__getitem__)
            last_start[to] = max(ready, lane_free[lane])
            lane_free[lane] = finish[op] = last_start[to] + self.problem.time_us[op, to]
            for tensor, users in self.outputs[op]:
                for user in users:
                    here = self.device[user] == to
                    there = finish[op] if here else arrival(tensor, self.device[user])
                    if user in self.later:
                        longest = max(longest, there + self.tails.op_us[user])
        first_lanes = machine.lane_ptr.tolist()
        ends = [lane_free[lane] + self.tails.lane_us[lane] for lane in first_lanes]
        channels = [a + b for a, b in zip(channel_free, self.tails.channel_us, strict=True)]
        longest = max([longest, *ends, *channels])
        return longest + spread * sum(ends) / cluster.n_devices

    def shift(self, draw, i):
        """Move an op to another place between its producers and its consumers, if there is one."""
        profile, op = self.problem.profile, self.ops[i]
        makers = {int(profile.tensor_op[t]) for t in self.inputs[op]}
        users = {user for _, those in self.outputs[op] for user in those}
        low = max((k + 1 for k, other in enumerate(self.ops) if other in makers), default=0)
        high = min(
            (k - 1 for k, other in enumerate(self.ops) if other in users),
            default=len(self.ops) - 1,
        )
        place = low + int(draw.integers(0, high - low + 1)) if high > low else i
        self.ops.insert(place, self.ops.pop(i))
        return place != i

    def cluster_around(self, op, limit):
        """Choose up to ``limit`` ops of the window around one, connected on its device."""
        chosen = [op]
        for node in chosen:
            makers = [int(self.problem.profile.tensor_op[t]) for t in self.inputs[node]]
            for near in makers + [user for _, users in self.outputs[node] for user in users]:
                same = self.device[near] == self.device[op] and near in self.ops
                if len(chosen) < limit and same and near not in chosen:
                    chosen.append(near)
            if len(chosen) == limit:
                break
        return chosen

    def move(self, to, chosen):
        """Move the units of these ops to a device, if all may go there and are in the window."""
        units = {int(self.problem.unit[op]) for op in chosen}
        members = np.flatnonzero(np.isin(self.problem.unit, list(units))).tolist()
        may = all(self.problem.unit_allowed[unit, to] for unit in units)
        if may and set(members) <= set(self.ops):
            for op in members:
                self.device[op] = to
            return True
        return False

    def step(self, draw):
        """Try one move; return whether there was one to try."""
        i = int(draw.integers(0, len(self.ops)))
        kind = draw.random()
        if kind < SHIFTS:
            return self.shift(draw, i)
        to = int(draw.integers(0, self.problem.cluster.n_devices))
        if to == self.device[self.ops[i]]:
            return False
        limit = 1 + (int(draw.integers(0, MOST_IN_BLOCK)) if kind >= SINGLES else 0)
        return self.move(to, self.cluster_around(self.ops[i], limit))

    def anneal(self, annealing, draw):
        """Return the best order of the window, and the devices of its ops then."""
        times = [self.problem.time_us[op, self.device[op]] for op in self.ops]
        temperature = annealing.hot * max(sum(times) / len(times), 1e-9)
        cooling = (annealing.cold / annealing.hot) ** (1 / annealing.rounds)
        current = best = self.energy(annealing.spread)
        kept = best_state = self.ops.copy(), self.device.copy()
        for _ in range(annealing.rounds):
            temperature *= cooling
            if not self.step(draw):
                continue
            energy = self.energy(annealing.spread)
            if energy <= current or draw.random() < math.exp((current - energy) / temperature):
                current, kept = energy, (self.ops.copy(), self.device.copy())
                if energy < best - 1e-9:
                    best, best_state = energy, kept
            else:
                self.ops, self.device = kept[0].copy(), kept[1].copy()
        ops, device = best_state
        return ops, [device[op] for op in ops]


@given(planned=planned_problems(), seed=st.integers(0, 99), part=st.floats(0, 1))
def test_a_window_is_annealed_like_the_reference(planned, seed, part):
    problem, plan = planned
    n_ops = problem.profile.n_ops
    order, device = np.arange(n_ops), np.array(plan.device)
    machine = build_machine(problem)
    width = max(1, n_ops // 2)
    begin = int(part * (n_ops - width))
    end = begin + width
    before, tails = empty_schedule(machine), new_tails(machine)
    simulate_order(machine, order, n_ops, device, before)
    simulate_order(machine, order, begin, device, before)
    find_tails(machine, order, end, device, tails)
    annealing = Annealing(width, width, 40, 1.0, 0.05, 0.2)
    reference = Reference(problem, order, device, begin, end, before, tails)
    expected = reference.anneal(annealing, np.random.default_rng(seed))
    window = new_window(machine, width)
    window.position[order] = np.arange(n_ops)
    window.order[:] = order[begin:end]
    anneal_window(
        machine, before, tails, window, device, begin, end, annealing, np.random.default_rng(seed)
    )
    found = window.best_order.tolist(), window.best_device.tolist()
    assert found == tuple(expected)


def test_the_reference_agrees_with_the_whole_schedule():
    """A window of all ops has nothing before it and nothing after it."""
    profile = profile_of({"a": 3.0, "b": 4.0, "c": 5.0}, [("a", "b", 8), ("a", "c", 8)])
    problem = Problem(profile, cluster_of(2))
    machine = build_machine(problem)
    order, device = np.arange(3), np.array([0, 1, 0])
    before = empty_schedule(machine)
    makespan = simulate_order(machine, order, 3, device, before)
    simulate_order(machine, order, 0, device, before)
    reference = Reference(problem, order, device, 0, 3, before, new_tails(machine))
    assert reference.energy(0.0) == pytest.approx(makespan)
