"""Slow reference list schedulers for the kernels, with lists and dicts; they ignore memory."""

import numpy as np

from enplace.coarsen import find_leaders


class ListScheduler:
    """Insertion-based list scheduling with lists and dicts, without memory limits."""

    def __init__(self, problem, position):
        self.problem, self.profile, self.cluster = problem, problem.profile, problem.cluster
        self.position = position
        self.leader = find_leaders(problem, self.position)
        self.unit_device = {}
        self.start, self.finish, self.arrival = {}, {}, {}
        self.busy = {}

    def run(self):
        for op in self.leaders():
            self.place(op, self.choose(op))
        return self.result()

    def leaders(self):
        ops = [op for op in range(self.profile.n_ops) if self.leader[op] == op]
        return sorted(ops, key=lambda op: self.position[op])

    def result(self):
        starts = [self.start.get(op, 0.0) for op in range(self.profile.n_ops)]
        return [self.unit_device[u] for u in self.problem.unit.tolist()], starts

    def gap(self, resources, ready, duration):
        if not duration:
            return ready
        busy = [interval for r in resources for interval in self.busy.get(r, [])]
        candidates = sorted([ready, *(end for _, end in busy if end > ready)])
        return next(c for c in candidates if not any(c < e and b < c + duration for b, e in busy))

    def inputs(self, op):
        edges = self.profile.in_edges[self.profile.in_ptr[op] : self.profile.in_ptr[op + 1]]
        tensors = self.profile.edge_tensor[edges].tolist()
        return sorted(tensors, key=lambda t: self.finish.get(int(self.profile.tensor_op[t]), 0.0))

    def send(self, op, device, keep):
        """Return when all inputs are on a device; with ``keep``, reserve their transfers."""
        ready, free = 0.0, {}
        for tensor in self.inputs(op):
            producer = int(self.profile.tensor_op[tensor])
            origin = self.unit_device.get(self.problem.unit[producer], device)
            there = self.finish.get(producer, 0.0)
            if origin != device and (tensor, device) in self.arrival:
                there = self.arrival[tensor, device]
            elif origin != device:
                link = next(
                    k for k in self.cluster.links if (k.source, k.target) == (origin, device)
                )
                duration = link.b0_us + link.b1_us_per_byte * int(self.profile.tensor_bytes[tensor])
                channels = [("channel", c) for c in link.channels]
                asked = there if keep else max(there, *(free.get(c, 0.0) for c in channels))
                begin = self.gap(channels, asked, duration)
                there = begin + duration
                for channel in channels:
                    free[channel] = there
                    if keep and duration > 0:
                        self.busy.setdefault(channel, []).append((begin, there))
                if keep:
                    self.arrival[tensor, device] = there
            ready = max(ready, there)
        return ready

    def lane(self, op, device, ready):
        lanes = [("lane", device, i) for i in range(self.cluster.devices[device].lanes)]
        starts = [self.gap([lane], ready, self.problem.time_us[op, device]) for lane in lanes]
        return min(starts), lanes[starts.index(min(starts))]

    def allowed(self, op):
        unit, n = self.problem.unit[op], self.cluster.n_devices
        fixed = self.unit_device.get(unit)
        return [d for d in range(n) if fixed in (None, d) and self.problem.unit_allowed[unit, d]]

    def choose(self, op):
        options = []
        for device in self.allowed(op):
            begin, _ = self.lane(op, device, self.send(op, device, keep=False))
            options.append((begin + self.problem.time_us[op, device], device))
        return min(options)[1]

    def place(self, op, device, earliest=0.0):
        for member in np.flatnonzero(self.leader == op).tolist():
            self.unit_device.setdefault(self.problem.unit[member], device)
        ready = max(earliest, self.send(op, device, keep=True))
        self.start[op], lane = self.lane(op, device, ready)
        self.finish[op] = self.start[op] + self.problem.time_us[op, device]
        if self.finish[op] > self.start[op]:
            self.busy.setdefault(lane, []).append((self.start[op], self.finish[op]))


class EarliestFirst(ListScheduler):
    """m-etf or, with favourite children, m-sct: check every rule for every op at each time."""

    def __init__(self, problem, position, favourite):
        super().__init__(problem, position)
        self.favourite, self.last, self.now = favourite, {}, 0.0
        for op, unit in enumerate(problem.unit.tolist()):
            if len(there := self.allowed(op)) == 1:
                self.unit_device[unit] = there[0]

    def place(self, op, device, earliest=0.0):
        for member in np.flatnonzero(self.leader == op).tolist():
            self.unit_device.setdefault(self.problem.unit[member], device)
        for tensor in self.inputs(op):
            producer = int(self.profile.tensor_op[tensor])
            if device in self.allowed(producer):
                self.unit_device[self.problem.unit[producer]] = device
        super().place(op, device, earliest)

    def run(self):
        left = self.leaders()
        while left:
            ready = [op for op in left if self.is_ready(op)]
            found = [
                (self.position[op], device, op)
                for device in range(self.cluster.n_devices)
                if self.free(device) <= self.now
                for op in [self.next_op(device, ready)]
                if op is not None
            ]
            if found:
                _, device, op = min(found)
                self.place(op, device, self.now)
                self.last[device] = op
                left.remove(op)
            else:
                moments = [self.starts(op, d) for op in ready for d in self.allowed(op)]
                moments += list(self.finish.values())
                self.now = min(moment for moment in moments if moment > self.now)
        return self.result()

    def is_ready(self, op):
        edges = self.profile.in_edges[self.profile.in_ptr[op] : self.profile.in_ptr[op + 1]]
        producers = [p for p in self.profile.edge_source[edges].tolist() if self.leader[p] == p]
        return all(self.finish.get(p, np.inf) <= self.now for p in producers)

    def allowed(self, op):
        devices = super().allowed(op)
        unit = self.problem.unit[op]
        unit_allowed = self.problem.unit_allowed[unit]
        if unit not in self.unit_device and unit_allowed[self.cluster.gpus].any():
            return [device for device in devices if device in self.cluster.gpus]
        return devices

    def free(self, device):
        lanes = [("lane", device, i) for i in range(self.cluster.devices[device].lanes)]
        return min(max([end for _, end in self.busy.get(lane, [])], default=0.0) for lane in lanes)

    def starts(self, op, device):
        return max(self.now, self.free(device), self.send(op, device, keep=False))

    def next_op(self, device, ready):
        here = [op for op in ready if device in self.allowed(op)]
        now = [op for op in here if self.starts(op, device) <= self.now]
        child = self.favourite[self.last[device]] if device in self.last else -1
        if child in here:
            soonest = min(self.starts(child, d) for d in self.allowed(child))
            if self.starts(child, device) == soonest:
                urgent = [
                    op
                    for op in now
                    if all(self.starts(op, d) <= self.now for d in self.allowed(op))
                ]
                return min(
                    [*urgent, *[op for op in now if op == child and not urgent]],
                    key=lambda op: self.position[op],
                    default=None,
                )
        return min(now, key=lambda op: self.position[op], default=None)
