"""An independent check of a schedule against the machine model, in plain and slow Python.

Nothing here is shared with the simulator: the rules are written a second time, from the machine
model alone, so that the two can be compared.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import defaultdict
from collections.abc import Generator, Iterator

import numpy as np

from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

TOLERANCE = 1e-9
"""Two times count as equal if they differ by less than this share of the makespan."""


def find_faults(schedule: Schedule) -> list[str]:
    """Describe each violation of the machine model in a sentence; an empty list if none."""
    check = _Check(schedule)
    faults = list(check.placement()) or list(check.transfers_sent())
    if faults:
        return faults
    for rule in (
        check.durations,
        check.lanes,
        check.transfer_times,
        check.channels,
        check.precedence,
        check.wanted_order,
        check.dispatch,
        check.link_order,
        check.memory,
        check.totals,
    ):
        faults += rule()
    return faults


class _Check:
    """The rules, checked on one schedule as plain lists and dicts."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.problem = schedule.problem
        self.profile = schedule.problem.profile
        self.cluster = schedule.problem.cluster
        self.device: list[int] = schedule.plan.device.tolist()
        self.position: list[int] = schedule.plan.position.tolist()
        self.start: list[float] = schedule.op_start_us.tolist()
        self.finish: list[float] = schedule.op_finish_us.tolist()
        chips = [device.chip or f"{device.name} alone" for device in self.cluster.devices]
        self.chip = [chips[d] if 0 <= d < len(chips) else "nowhere" for d in self.device]
        self.close = TOLERANCE * max(schedule.makespan_us, 1.0)
        self.producer: list[int] = self.profile.tensor_op.tolist()
        self.consumers: list[list[int]] = [[] for _ in self.producer]
        for tensor, op in zip(
            self.profile.edge_tensor.tolist(), self.profile.edge_op.tolist(), strict=True
        ):
            self.consumers[tensor].append(op)
        self.inputs: list[list[int]] = [[] for _ in self.device]
        for tensor, ops in enumerate(self.consumers):
            for op in ops:
                self.inputs[op].append(tensor)
        self.links = {(link.source, link.target): link for link in self.cluster.links}
        self.sent = {
            (tensor, to): (start, finish)
            for tensor, to, start, finish in zip(
                schedule.transfer_tensor.tolist(),
                schedule.transfer_to.tolist(),
                schedule.transfer_start_us.tolist(),
                schedule.transfer_finish_us.tolist(),
                strict=True,
            )
        }

    def name(self, op: int) -> str:
        return f"op '{self.profile.op_names[op]}'"

    def named(self, key: tuple[int, int]) -> str:
        tensor, to = key
        output = self.profile.tensor_output[tensor]
        return f"output {output} of {self.name(self.producer[tensor])} to device {to}"

    def channels_of(self, key: tuple[int, int]) -> tuple[int, ...]:
        return self.links[self.device[self.producer[key[0]]], key[1]].channels

    def ready(self, op: int) -> float:
        """Return when the last input of an op is on its device."""
        return max(
            (self.arrival(tensor, self.device[op]) for tensor in self.inputs[op]), default=0.0
        )

    def arrival(self, tensor: int, device: int) -> float:
        if self.device[self.producer[tensor]] == device:
            return self.finish[self.producer[tensor]]
        return self.sent[tensor, device][1] if (tensor, device) in self.sent else float("inf")

    def placement(self) -> Iterator[str]:
        """Check what ops can run on, colocation, and a person's constraints."""
        home: dict[object, int] = {}
        groups = {op: ("person", i) for i, ops in enumerate(self.problem.together) for op in ops}
        for op, device in enumerate(self.device):
            if not 0 <= device < self.cluster.n_devices:
                yield f"{self.name(op)} is on device {device}, which does not exist"
                continue
            if not np.isfinite(_time_us(self.problem, op, device)):
                yield f"{self.name(op)} is on device {device}, where it cannot run"
            if fault := self.problem.fault(op, device):
                yield f"{self.name(op)} is on device {device}, but {fault}"
            for group in (self.profile.colocation[op], groups.get(op)):
                if group and home.setdefault(group, device) != device:
                    yield f"{self.name(op)} is apart from an op it is colocated with"
        for kind in self.problem.constraints:
            if why := kind.check(self.problem, self.schedule.plan.device):
                yield why

    def durations(self) -> Iterator[str]:
        for op, device in enumerate(self.device):
            expected = _time_us(self.problem, op, device)
            if abs(self.finish[op] - self.start[op] - expected) > self.close:
                yield f"{self.name(op)} takes {self.finish[op] - self.start[op]}, not {expected}"

    def lanes(self) -> Iterator[str]:
        """Check that each lane runs one op at a time; instant ops need a free lane as well."""
        lane_ops = defaultdict(list)
        for op, lane in enumerate(self.schedule.op_lane.tolist()):
            if not 0 <= lane < self.cluster.devices[self.device[op]].lanes:
                yield f"{self.name(op)} is on lane {lane}, which does not exist"
            lane_ops[self.chip[op], lane].append((self.start[op], self.finish[op], op))
        for ops in lane_ops.values():
            for one, other in self.overlaps(ops):
                yield f"{self.name(one)} and {self.name(other)} overlap on one lane"

    def overlaps(self, intervals: list[tuple[float, float, int]]) -> Iterator[tuple[int, int]]:
        """Yield neighbours in time that overlap by more than an instant."""
        intervals = sorted(intervals)
        latest, holder = -1.0, -1
        for start, finish, key in intervals:
            if holder >= 0 and start < latest - self.close:
                yield holder, key
            if finish > latest:
                latest, holder = finish, key

    def transfers_sent(self) -> Iterator[str]:
        """Check that each tensor is sent once to each other device that consumes it."""
        needed = {
            (tensor, self.device[op])
            for tensor, ops in enumerate(self.consumers)
            for op in ops
            if self.device[op] != self.device[self.producer[tensor]]
        }
        if len(self.sent) < len(self.schedule.transfer_tensor):
            yield "a tensor is sent twice to one device"
        for key in sorted(needed - self.sent.keys()):
            yield f"{self.named(key)} is needed, but never sent"
        for key in sorted(self.sent.keys() - needed):
            yield f"{self.named(key)} is sent, but not needed"

    def transfer_times(self) -> Iterator[str]:
        for key, (start, finish) in self.sent.items():
            producer = self.producer[key[0]]
            link = self.links[self.device[producer], key[1]]
            expected = link.b0_us + link.b1_us_per_byte * int(self.profile.tensor_bytes[key[0]])
            if abs(finish - start - expected) > self.close:
                yield f"{self.named(key)} takes {finish - start}, not {expected}"
            if start < self.finish[producer] - self.close:
                yield f"{self.named(key)} is sent before it is made"

    def channels(self) -> Iterator[str]:
        """Check that channels carry one transfer at a time, which holds all those of its link."""
        keys = list(self.sent)
        carried = defaultdict(list)
        for number, key in enumerate(keys):
            for channel in self.channels_of(key):
                carried[channel].append((*self.sent[key], number))
        for channel, intervals in carried.items():
            for one, other in self.overlaps(intervals):
                yield (
                    f"{self.named(keys[one])} and {self.named(keys[other])} overlap on channel "
                    f"'{self.cluster.channels[channel]}'"
                )

    def precedence(self) -> Iterator[str]:
        for op in range(len(self.device)):
            start, ready = self.start[op], self.ready(op)
            if start < ready - self.close:
                yield f"{self.name(op)} starts at {start}, but its inputs arrive at {ready}"

    def wanted_order(self) -> Iterator[str]:
        """Check the pairs of ops that a person has ordered."""
        for first, then in self.problem.before:
            if self.start[then] < self.finish[first] - self.close:
                yield f"{self.name(then)} starts before {self.name(first)} has ended"

    def dispatch(self) -> Iterator[str]:
        """Check that no lane is idle while an op waits, and that the right op goes first."""
        by_chip, by_device = defaultdict(list), defaultdict(list)
        for op in sorted(range(len(self.device)), key=lambda op: self.position[op]):
            by_chip[self.chip[op]].append(op)
            by_device[self.device[op]].append(op)
        strict = self.schedule.plan.policy == "strict"
        for ops in by_device.values() if strict else by_chip.values():
            if strict:
                earliest = yield from self._in_order(ops)
            else:
                earliest = [self.ready(op) for op in ops]
                yield from self._most_urgent_first(ops)
            sharing = by_chip[self.chip[ops[0]]]
            busy = _BusyTime([(self.start[op], self.finish[op]) for op in sharing])
            slack = self.close * (len(sharing) + 1)
            lanes = self.cluster.devices[self.device[ops[0]]].lanes
            for op, ready in zip(ops, earliest, strict=True):
                lane_time = (self.start[op] - ready) * lanes
                if busy.between(ready, self.start[op]) < lane_time - slack:
                    yield (
                        f"{self.name(op)} waits from {ready} to {self.start[op]} "
                        f"while a lane is free"
                    )

    def _in_order(self, ops: list[int]) -> Generator[str, None, list[float]]:
        """Check that ops start in the order of the list; return when each could have started."""
        earliest, before = [], 0.0
        for op in ops:
            if self.start[op] < before - self.close:
                yield f"{self.name(op)} starts before its predecessor in the order"
            earliest.append(max(before, self.ready(op)))
            before = max(before, self.start[op])
        return earliest

    def _most_urgent_first(self, ops: list[int]) -> Iterator[str]:
        """Check at each start that nothing more urgent has been waiting for a while."""
        waiting: list[tuple[tuple[bool, float], int]] = []
        arrivals = sorted(ops, key=self.ready, reverse=True)
        for op in sorted(ops, key=lambda op: self.start[op]):
            while arrivals and self.ready(arrivals[-1]) < self.start[op] - self.close:
                heapq.heappush(waiting, (self._urgency(arrivals[-1]), arrivals.pop()))
            while waiting and self.start[waiting[0][1]] <= self.start[op] + self.close:
                heapq.heappop(waiting)
            if waiting and waiting[0][0] < self._urgency(op):
                yield f"{self.name(op)} starts while {self.name(waiting[0][1])} should go first"

    def _urgency(self, op: int) -> tuple[bool, float]:
        """Return a sort key: ops without duration first, then by position or time of arrival."""
        takes_time = self.finish[op] > self.start[op]
        if self.schedule.plan.policy == "priority":
            return takes_time, self.position[op]
        # If two ops became ready within a rounding error, either may go first.
        return takes_time, round(self.ready(op) / (2 * self.close))

    def link_order(self) -> Iterator[str]:
        """Check that no channel is idle while a transfer waits, and that the first goes first.

        On links of several channels, only overtaking a transfer that could have started is wrong.
        """
        keys = sorted(self.sent, key=lambda key: self.sent[key][0])
        by_channel = defaultdict(list)
        for key in keys:
            for channel in self.channels_of(key):
                by_channel[channel].append(key)
        simple = all(len(link.channels) == 1 for link in self.cluster.links)
        for queue in by_channel.values():
            if simple and self.schedule.plan.links != "ordered":
                yield from self._idle_channel(queue)
            if self.schedule.plan.links == "fifo":
                yield from self._overtaking(queue, by_channel)

    def requested(self, key: tuple[int, int]) -> float:
        return self.finish[self.producer[key[0]]]

    def _idle_channel(self, queue: list[tuple[int, int]]) -> Iterator[str]:
        busy = _BusyTime([self.sent[key] for key in queue])
        for key in queue:
            asked, start = self.requested(key), self.sent[key][0]
            if busy.between(asked, start) < start - asked - self.close * (len(queue) + 1):
                yield f"{self.named(key)} waits from {asked} to {start} while a channel is free"

    def _overtaking(
        self,
        queue: list[tuple[int, int]],
        by_channel: dict[int, list[tuple[int, int]]],
    ) -> Iterator[str]:
        starts = [self.sent[key][0] for key in queue]
        for at, key in enumerate(queue):
            asked = self.requested(key)
            for other in queue[bisect.bisect_left(starts, asked) : at]:
                gone = self.sent[other][0]
                overtakes = (
                    self.requested(other) > asked + self.close and gone < starts[at] - self.close
                )
                if overtakes and not self._blocked(key, gone, other, by_channel):
                    yield f"{self.named(other)} overtakes {self.named(key)}, requested earlier"

    def _blocked(
        self,
        key: tuple[int, int],
        at: float,
        but: tuple[int, int],
        by_channel: dict[int, list[tuple[int, int]]],
    ) -> bool:
        """Whether a transfer other than ``but`` ever holds a channel that ``key`` needs."""
        return any(
            self.sent[other][0] <= at + self.close and self.sent[other][1] > at + self.close
            for channel in self.channels_of(key)
            for other in by_channel[channel]
            if other != but
        )

    def memory(self) -> Iterator[str]:
        """Add up what each device holds, and compare with the schedule's curves at every change."""
        changes: list[dict[float, int]] = [defaultdict(int) for _ in self.cluster.devices]
        weights = [0] * self.cluster.n_devices

        def hold(device: int, start: float, end: float, size: int) -> None:
            changes[device][start] += size
            changes[device][end] -= size

        for op, device in enumerate(self.device):
            weights[device] += int(self.profile.persistent_bytes[op])
            hold(device, self.start[op], self.finish[op], int(self.profile.temporary_bytes[op]))
        for tensor, op in enumerate(self.producer):
            last = max(self.uses(tensor, self.device[op]))
            hold(self.device[op], self.start[op], last, int(self.profile.held_bytes[tensor]))
        for (tensor, to), (start, _) in self.sent.items():
            last = max(self.uses(tensor, to), default=start)
            hold(to, start, last, int(self.profile.copy_bytes[tensor]))
        for device in range(self.cluster.n_devices):
            yield from self._compare_curve(device, weights[device], changes[device])

    def uses(self, tensor: int, device: int) -> list[float]:
        """List when uses of a tensor on a device end, and of what lies in its memory there."""
        op = self.producer[tensor]
        ends = [self.finish[c] for c in self.consumers[tensor] if self.device[c] == device]
        if self.device[op] == device:
            ends.append(self.finish[op])
            ends += [end for (sent, _), (_, end) in self.sent.items() if sent == tensor]
            until = self.profile.hold_op[self.profile.hold_tensor == tensor].tolist()
            ends += [self.finish[other] for other in until]
        for other in np.flatnonzero(self.profile.tensor_base == tensor).tolist():
            if self.device[self.producer[other]] == device:
                ends += self.uses(other, device)
        return ends

    def _compare_curve(self, device: int, weights: int, changes: dict[float, int]) -> Iterator[str]:
        curve = self.schedule.memory[device]
        if curve.weights_bytes != weights:
            yield f"device {device} holds {weights} bytes of variables, not {curve.weights_bytes}"
        used = peak = weights
        for time in sorted(changes):
            used += changes[time]
            peak = max(peak, used)
            at = int(np.searchsorted(curve.time_us, time, side="right")) - 1
            if curve.bytes[at] != used:
                yield f"device {device} uses {used} bytes at {time}, not {curve.bytes[at]}"
                return
        if self.schedule.peak_bytes[device] != peak:
            yield f"device {device} peaks at {peak} bytes, not {self.schedule.peak_bytes[device]}"

    def totals(self) -> Iterator[str]:
        latest = max([*self.finish, *(finish for _, finish in self.sent.values())])
        if abs(self.schedule.makespan_us - latest) > self.close:
            yield f"the makespan is {latest}, not {self.schedule.makespan_us}"


class _BusyTime:
    """How much of any time span a set of intervals covers; overlaps count several times."""

    def __init__(self, intervals: list[tuple[float, float]]) -> None:
        self.starts, self.ends = sorted(i[0] for i in intervals), sorted(i[1] for i in intervals)
        self.start_sums = [0.0, *itertools.accumulate(self.starts)]
        self.end_sums = [0.0, *itertools.accumulate(self.ends)]

    def until(self, time: float) -> float:
        begun, over = bisect.bisect(self.starts, time), bisect.bisect(self.ends, time)
        return (begun - over) * time - self.start_sums[begun] + self.end_sums[over]

    def between(self, start: float, end: float) -> float:
        return self.until(end) - self.until(start) if end > start else 0.0


def _time_us(problem: Problem, op: int, device: int) -> float:
    """Return the compute time of an op on a device; NaN if it cannot run there."""
    chosen = problem.cluster.devices[device]
    column = ("gpu", "cpu").index(chosen.kind)
    return float(problem.profile.time_us[op, column]) / chosen.speed
