"""The simulator in plain Python: slow and short; tests compare the compiled one with it."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from enplace.values.plan import Plan
from enplace.values.problem import Problem


@dataclass
class ReferenceTimes:
    """Start and finish of ops, and of transfers by (tensor, destination device)."""

    ops: dict[int, tuple[float, float]] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    transfers: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)


def simulate_slowly(problem: Problem, plan: Plan) -> ReferenceTimes:
    """Simulate a plan event by event; stop early if the order deadlocks."""
    return _Loop(problem, plan).run()


class _Loop:
    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan, self.times = problem, plan, ReferenceTimes()
        profile = problem.profile
        self.device = plan.device.tolist()
        self.duration: list[float] = problem.time_us[range(profile.n_ops), plan.device].tolist()
        self.position: list[int] = plan.position.tolist()
        self.consumers: dict[int, list[int]] = defaultdict(list)
        for tensor, op in zip(profile.edge_tensor.tolist(), profile.edge_op.tolist(), strict=True):
            self.consumers[tensor].append(op)
        self.tensors: dict[int, list[int]] = defaultdict(list)
        for tensor, op in enumerate(profile.tensor_op.tolist()):
            self.tensors[op].append(tensor)
        self.waiting = [0] * profile.n_ops
        for op in profile.edge_op.tolist():
            self.waiting[op] += 1
        self.transfers = [
            (tensor, to)
            for tensor, op in enumerate(profile.tensor_op.tolist())
            for to in dict.fromkeys(self.device[c] for c in self.consumers[tensor])
            if to != self.device[op]
        ]
        self.sends: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for transfer in self.transfers:
            self.sends[transfer[0]].append(transfer)
        self.number = {transfer: i for i, transfer in enumerate(self.transfers)}
        self.rank = {t: (self.first_position(t), i) for t, i in self.number.items()}
        self.unsent = sorted(self.transfers, key=self.rank.__getitem__)
        self.requested: list[tuple[int, int]] = []
        self.channel_free: dict[int, float] = defaultdict(float)
        # Devices of one chip share a list of lanes and a pair of heaps.
        devices, owner = problem.cluster.devices, problem.cluster.lane_owner.tolist()
        lanes = [list(range(device.lanes)) for device in devices]
        self.free_lanes = [lanes[o] for o in owner]
        # Two heaps of (key, op) for each device: ops that take no time, and all others.
        heaps: list[dict[bool, list[tuple[int, int]]]] = [{True: [], False: []} for _ in devices]
        self.ready = [heaps[o] for o in owner]
        self.lists = [
            deque(sorted(np.flatnonzero(plan.device == d).tolist(), key=self.rank_of_op))
            for d in range(problem.cluster.n_devices)
        ]
        self.ready_count = 0
        self.events: list[tuple[float, int]] = []

    def rank_of_op(self, op: int) -> int:
        return self.position[op]

    def first_position(self, transfer: tuple[int, int]) -> int:
        tensor, to = transfer
        return min(self.position[c] for c in self.consumers[tensor] if self.device[c] == to)

    def channels(self, transfer: tuple[int, int]) -> list[int]:
        cluster = self.problem.cluster
        source = self.device[self.problem.profile.tensor_op[transfer[0]]]
        pair = source * cluster.n_devices + transfer[1]
        return [
            int(c) for c in cluster.route[cluster.route_ptr[pair] : cluster.route_ptr[pair + 1]]
        ]

    def transfer_us(self, transfer: tuple[int, int]) -> float:
        tensor, to = transfer
        cluster = self.problem.cluster
        pair = self.device[self.problem.profile.tensor_op[tensor]], to
        size = self.problem.profile.tensor_bytes[tensor]
        return float(cluster.b0_us[pair] + cluster.b1_us_per_byte[pair] * size)

    def run(self) -> ReferenceTimes:
        now = 0.0
        for op, count in enumerate(self.waiting):
            if count == 0:
                self.make_ready(op)
        while True:
            if not self.start_ops(now):
                self.start_waiting_transfers(now)
            if not self.events:
                return self.times
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                self.finish(heapq.heappop(self.events)[1], now)

    def make_ready(self, op: int) -> None:
        first = self.position[op] if self.plan.policy == "priority" else self.ready_count
        self.ready_count += 1
        heapq.heappush(self.ready[self.device[op]][self.duration[op] == 0], (first, op))

    def start_ops(self, now: float) -> bool:
        """Start the ops that devices choose; return whether one of them takes no time."""
        devices = range(len(self.lists))
        if self.plan.policy == "strict":
            return sum(self.run_down_list(d, now) for d in devices) > 0
        if sum(self.take(d, now, instant=True) for d in devices):
            return True
        for device in devices:
            self.take(device, now, instant=False)
        return False

    def run_down_list(self, device: int, now: float) -> bool:
        instant = False
        ops = self.lists[device]
        while ops and self.free_lanes[device] and self.waiting[ops[0]] == 0:
            instant |= self.duration[ops[0]] == 0
            self.start(ops.popleft(), now)
        return instant

    def take(self, device: int, now: float, instant: bool) -> bool:
        """Start ready ops of one kind, best first, while a lane is free."""
        ready, started = self.ready[device][instant], False
        while ready and self.free_lanes[device]:
            self.start(heapq.heappop(ready)[1], now)
            started = True
        return started

    def start(self, op: int, now: float) -> None:
        lane = min(self.free_lanes[self.device[op]])
        self.times.ops[op] = (now, now + self.duration[op])
        self.times.lanes[op] = lane
        if self.duration[op] > 0:
            self.free_lanes[self.device[op]].remove(lane)
        heapq.heappush(self.events, (now + self.duration[op], op))

    def finish(self, code: int, now: float) -> None:
        if code < len(self.device):
            if self.duration[code] > 0:
                self.free_lanes[self.device[code]].append(self.times.lanes[code])
            self.complete(code, now)
        else:
            self.deliver(*self.transfers[code - len(self.device)])

    def complete(self, op: int, now: float) -> None:
        for tensor in self.tensors[op]:
            self.deliver(tensor, self.device[op])
            for transfer in self.sends[tensor]:
                if self.plan.links == "fifo":
                    free = max(self.channel_free[c] for c in self.channels(transfer))
                    self.send(transfer, max(now, free))
                else:
                    self.requested.append(transfer)

    def deliver(self, tensor: int, device: int) -> None:
        for op in self.consumers[tensor]:
            if self.device[op] == device:
                self.waiting[op] -= 1
                if self.waiting[op] == 0:
                    self.make_ready(op)

    def send(self, transfer: tuple[int, int], start: float) -> None:
        finish = start + self.transfer_us(transfer)
        self.times.transfers[transfer] = (start, finish)
        for channel in self.channels(transfer):
            self.channel_free[channel] = finish
        heapq.heappush(self.events, (finish, len(self.device) + self.number[transfer]))

    def start_waiting_transfers(self, now: float) -> None:
        progress = self.plan.links != "fifo"
        while progress:
            progress = False
            for channel in range(len(self.problem.cluster.channels)):
                transfer = self.next_of(channel)
                if transfer is None or not self.may_start(transfer, now):
                    continue
                self.requested.remove(transfer)
                self.unsent.remove(transfer)
                self.send(transfer, now)
                progress = True

    def next_of(self, channel: int) -> tuple[int, int] | None:
        """Return the best waiting one whose route begins here, or if ordered, the next in rank."""
        if self.plan.links == "priority":
            mine = [t for t in self.requested if self.channels(t)[0] == channel]
            return min(mine, key=self.rank.__getitem__, default=None)
        queue = [t for t in self.unsent if channel in self.channels(t)]
        return queue[0] if queue and queue[0] in self.requested else None

    def may_start(self, transfer: tuple[int, int], now: float) -> bool:
        free = all(self.channel_free[c] <= now for c in self.channels(transfer))
        is_next = self.plan.links == "priority" or all(
            self.next_of(c) == transfer for c in self.channels(transfer)
        )
        return free and is_next
