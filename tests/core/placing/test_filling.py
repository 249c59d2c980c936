"""Placements that fill memory as they go, against a slow reference."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.problems import problems
from tests.core.placers.reference import ListScheduler

from enplace.machine import simulate
from enplace.placing import filling
from enplace.placing.filling import fill, fillings
from enplace.placing.incumbents import best_among
from enplace.placing.options import PlaceOptions
from enplace.placing.settle import natural_position
from enplace.placing.stop import Stop
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


class Filling(ListScheduler):
    """Add up at every place of the order what a device holds, each time anew."""

    def __init__(self, problem, position, sending):
        super().__init__(problem, position)
        self.sending, self.order, self.free = sending, self.leaders(), Counter()
        self.place_of = {op: place for place, op in enumerate(self.order)}
        self.last_read = {}
        for unit, allowed in enumerate(problem.unit_allowed):
            if allowed.sum() == 1:
                self.unit_device[unit] = int(allowed.argmax())

    def home(self, op):
        return self.unit_device.get(self.problem.unit[op])

    def is_follower(self, op):
        return self.leader[op] != op

    def stays(self, device):
        """Return what a device holds from the start: variables, and what followers make."""
        total = 0
        for op in range(self.profile.n_ops):
            if self.home(op) == device:
                total += self.profile.persistent_bytes[op]
                tensors = range(*self.profile.tensor_ptr[op : op + 2])
                made = sum(self.profile.held_bytes[tensor] for tensor in tensors)
                total += self.is_follower(op) * made
        return total

    def used(self, device, at, now, last_read):
        """Return what a device holds at a place, as is known once the ops until now are placed."""
        profile, total = self.profile, self.stays(device)
        tensors_of = [range(*profile.tensor_ptr[op : op + 2]) for op in range(profile.n_ops)]
        for op in range(profile.n_ops):
            if self.place_of.get(op) == at and self.home(op) == device:
                total += profile.temporary_bytes[op]
            begin = -1 if self.is_follower(op) else self.place_of[op]
            if begin > now or self.home(op) is None:
                continue
            for tensor in tensors_of[op]:
                until = last_read.get((tensor, device), begin)
                if self.home(op) != device:
                    total += profile.copy_bytes[tensor] * (begin < at <= until)
                elif not self.is_follower(op):
                    edges = slice(*profile.edge_ptr[tensor : tensor + 2])
                    readers = [self.place_of.get(r, -1) for r in profile.edge_op[edges].tolist()]
                    is_kept = at <= until or max(readers, default=-1) > now
                    total += profile.held_bytes[tensor] * (begin <= at and is_kept)
        return total

    def lacking(self, op, device):
        now, before = self.place_of[op], dict(self.unit_device)
        stayed = self.stays(device)
        for member in np.flatnonzero(self.leader == op).tolist():
            self.unit_device.setdefault(self.problem.unit[member], device)
        read = self.last_read | {(tensor, device): now for tensor in self.inputs(op)}
        changed = [0] if self.stays(device) > stayed else []
        for tensor in self.inputs(op):
            producer = int(self.profile.tensor_op[tensor])
            if before.get(self.problem.unit[producer], device) != device:
                made = self.place_of.get(producer, -1)
                changed.append(max(made, self.last_read.get((tensor, device), -1)) + 1)
        # While it is decided, what the op reads for the last time is still there.
        places = range(min([now, *changed]), now + 1)
        most = max(self.used(device, at, now, read) for at in places)
        self.unit_device = before
        return max(0, most - int(self.cluster.capacity_bytes[device]))

    def ready(self, op, device):
        ready, sent = 0.0, 0.0
        for tensor in self.inputs(op):
            producer = int(self.profile.tensor_op[tensor])
            origin, there = self.home(producer), self.finish.get(producer, 0.0)
            if origin is not None and origin != device:
                link = next(
                    k for k in self.cluster.links if (k.source, k.target) == (origin, device)
                )
                cost = link.b0_us + link.b1_us_per_byte * int(self.profile.tensor_bytes[tensor])
                there += cost
                sent += cost * ((tensor, device) not in self.last_read)
            ready = max(ready, there)
        return ready, sent

    def choose(self, op):
        def rate(device):
            ready, sent = self.ready(op, device)
            end = max(ready, self.free[device]) + self.problem.time_us[op, device]
            return self.lacking(op, device), end + self.sending * sent

        return min(self.allowed(op), key=rate)

    def place(self, op, device, earliest=0.0):
        for member in np.flatnonzero(self.leader == op).tolist():
            self.unit_device.setdefault(self.problem.unit[member], device)
        begin = max(self.ready(op, device)[0], self.free[device])
        time_us = self.problem.time_us[op, device]
        self.finish[op] = begin + time_us
        self.free[device] = begin + time_us / self.cluster.devices[device].lanes
        for tensor in self.inputs(op):
            self.last_read[tensor, device] = self.place_of[op]


@given(
    problem=problems(), share=st.sampled_from([1.0, 0.1, 0.001]), sending=st.sampled_from([0, 2])
)
def test_the_kernel_equals_the_reference(problem, share, sending):
    position = natural_position(problem)
    device = fill(problem, position, PlaceOptions(), share, float(sending))
    capacity = (share * problem.cluster.capacity_bytes).astype(np.int64)
    devices = [
        replace(one, capacity_bytes=int(n_bytes))
        for one, n_bytes in zip(problem.cluster.devices, capacity, strict=True)
    ]
    tight = Filling(problem, position, sending)
    tight.cluster = replace(problem.cluster, devices=tuple(devices))
    assert device.tolist() == tight.run()[0]


def test_a_plan_that_fits_is_found_where_ops_must_be_spread_and_ordered():
    times, edges = {"begin": 1.0}, []
    for i in range(8):
        times |= {f"make_{i}": 10.0 - i, f"use_{i}": 10.0}
        edges += [("begin", f"make_{i}", 1), (f"make_{i}", f"use_{i}", 100)]
    problem = Problem(profile_of(times, edges), cluster_of(2, capacity_bytes=205))
    found = best_among(fillings(problem, PlaceOptions()))
    assert found.fits
    assert set(found.plan.device.tolist()) == {0, 1}
    assert simulate(problem, found.plan).peak_bytes.max() <= 205


def test_once_time_is_up_no_order_is_sought(monkeypatch):
    monkeypatch.setattr(filling, "frugal_position", None)
    problem = Problem(profile_of({"a": 1.0, "b": 1.0}, [("a", "b", 1)]), cluster_of(2))
    assert [*fillings(problem, PlaceOptions(stop=Stop(0.0)))] == []
