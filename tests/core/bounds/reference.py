"""The heads of :mod:`enplace.bounds.heads` in plain Python, without limits on what is examined."""

from itertools import accumulate

import numpy as np


def find_heads_slowly(costs):
    """Return the head of each op, as the proof in ``step_time.py`` defines it."""
    head = {}
    for v in costs.order.tolist():
        head[v] = _Head(costs, head, v).start_us()
    return [head[op] for op in range(len(costs.order))]


class _Head:
    """The search for one head: ``work``, ``leave`` and ``bus`` are the ways from ancestors to v."""

    def __init__(self, costs, head, v):
        self.costs, self.head, self.v = costs, head, v
        self.time = costs.time_us.tolist()
        self.place = {op: place for place, op in enumerate(costs.order.tolist())}
        self.work, self.leave, self.bus, self.uses = {v: 0.0}, {v: np.inf}, {v: np.inf}, {v: 0}
        self.examined = []

    def edges_into(self, op):
        c = self.costs
        return [
            (int(c.producer[e]), c.send_us[e], c.sure_us[e], c.bus_us[e])
            for e in range(c.in_ptr[op], c.in_ptr[op + 1])
        ]

    def end_us(self, op):
        return self.head[op] + self.time[op]

    def start_us(self):
        inputs = self.edges_into(self.v)
        bound = max((self.end_us(x) + sure for x, _, sure, _ in inputs), default=0.0)
        joins = len({x for x, *_ in inputs}) > 1
        self.reach_producers(self.v, 0.0)
        while left := set(self.work) - {self.v, *self.examined}:
            x = max(left, key=lambda op: (self.head[op], self.place[op]))
            self.examined.append(x)
            if joins:
                fork = self.end_us(x) + self.between_us(x) if self.uses[x] > 1 else 0.0
                bound = max(bound, fork, self.head[x] + self.joined_us())
            if joins or self.end_us(x) + self.leave[x] > bound:
                self.reach_producers(x, self.time[x])
        return self.smallest_start_us(bound)

    def reach_producers(self, x, x_us):
        for y, send, sure, bus in self.edges_into(x):
            leave = min(send + x_us + self.work[x], sure + x_us + self.leave[x])
            self.work[y] = max(self.work.get(y, 0.0), sure + x_us + self.work[x])
            self.leave[y] = max(self.leave.get(y, 0.0), leave)
            self.bus[y] = max(self.bus.get(y, 0.0), min(bus, self.bus[x]))
            self.uses[y] = self.uses.get(y, 0) + 1

    def joined_us(self):
        """Return the least time for the work examined, on any set of devices."""
        longest = 0.0
        for weighted, most in zip(self.costs.weighted_us, self.costs.most, strict=True):
            ops = [x for x in self.examined if weighted[x] > 0]
            away = min((self.leave[x] for x in ops), default=0.0)
            longest = max(longest, _shared_us(sum(weighted[ops]), most, away))
        return longest

    def between_us(self, u):
        """Return the least time from the end of u to the start of v, for the ops between them."""
        until, enter, bus = {u: 0.0}, {u: np.inf}, {u: np.inf}
        for y in sorted(self.examined, key=self.place.__getitem__):
            inputs = [edge for edge in self.edges_into(y) if edge[0] in until]
            if y != u and inputs:
                until[y] = self.time[y] + max(until[x] + sure for x, _, sure, _ in inputs)
                bus[y] = max(min(b, bus[x]) for x, _, _, b in inputs)
                enter[y] = max(
                    min(until[x] + send, enter[x] + self.time[x] + sure)
                    for x, send, sure, _ in inputs
                )
        longest = 0.0
        for s, (weighted, most) in enumerate(
            zip(self.costs.weighted_us, self.costs.most, strict=True)
        ):
            ops = sorted((x for x in until if x != u and weighted[x] > 0), key=lambda x: -enter[x])
            for n in range(1, len(ops) + 1):
                some = ops[:n]
                work, way_in = sum(weighted[some]), enter[some[-1]]
                way_out = min(self.leave[x] for x in some)
                least = _shared_us(work, most, way_in + way_out)
                if s == self.costs.bus_set:
                    bus_in, bus_out = min(bus[x] for x in some), min(self.bus[x] for x in some)
                    others = range(1, round(1 / most))
                    ways = [max(way_in, k * bus_in) + max(way_out, k * bus_out) for k in others]
                    totals = accumulate(ways, initial=work / most)
                    least = min(total / (k + 1) for k, total in enumerate(totals))
                longest = max(longest, least)
        return longest

    def smallest_start_us(self, start):
        """Return the smallest start for which the ops that must then share v's device have time."""
        while True:
            together, until = self.together(start)
            least = self.on_one_device_us([x for x in self.examined if x in together])
            if least <= start:
                return start
            start = min(least, until)

    def together(self, start):
        """Return what is on v's device if v starts then, and until when that is so."""
        unit, found, until = self.costs.unit, set(), np.inf
        while True:
            away, leaving = self.away(found), self.leaving(found)
            key = {x: away[x] + leaving[x] for x in self.examined}
            late = {x for x in self.examined if key[x] > start}
            until = min([until, *(key[x] for x in late)])
            units = {unit[x] for x in {*late, *found, self.v}}
            more = {x for x in self.examined if unit[x] in units}
            if more == found:
                return found, until
            found = more

    def away(self, together):
        """Return when each op ends at the earliest if it is not on v's device."""
        away = {}
        for x in reversed(self.examined):
            starts = [self.head[x]]
            for y, send, sure, _ in self.edges_into(x):
                if y in away:
                    sent = self.end_us(y) + send
                    starts.append(sent if y in together else min(sent, away[y] + sure))
            away[x] = max(starts) + self.time[x]
        return away

    def leaving(self, together):
        """Return the least time from each op's end to v if it is not on v's device."""
        leaving = dict.fromkeys(self.examined, 0.0)
        for x in [self.v, *self.examined]:
            time = 0.0 if x == self.v else self.time[x]
            here = x == self.v or x in together
            for y, send, sure, _ in self.edges_into(x):
                if y in leaving:
                    least = send + time + self.work[x]
                    if not here:
                        least = min(least, sure + time + leaving[x])
                    leaving[y] = max(leaving[y], least)
        return leaving

    def on_one_device_us(self, ops):
        """Return when v starts if its device runs these ops, which have the latest heads first."""
        starts = [
            self.head[x]
            + sum(self.time[y] for y in ops[: n + 1]) / self.costs.lanes[self.v]
            + min(self.work[y] for y in ops[: n + 1])
            for n, x in enumerate(ops)
        ]
        return max(starts, default=0.0)


def _shared_us(work, most, away):
    """Return the least time for work on all chips, or on one with the others losing ``away``."""
    return work / most if most == 1 else min(work / most, work + (1 - most) * away)
