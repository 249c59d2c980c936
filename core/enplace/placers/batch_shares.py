"""Share out a batch among replicas of a model: the best shares, and what a step with one takes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enplace.errors import ProblemError
from enplace.placers.references import ALONE, reference_schedule
from enplace.values.arrays import where_op
from enplace.values.cluster import Cluster
from enplace.values.cluster_variants import with_devices
from enplace.values.columns import Cut
from enplace.values.op_kinds import OpKind
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import CONTROL, Profile, growing
from enplace.values.schedule import Schedule
from enplace.values.splits import carries_samples
from enplace.values.splits.graph import launch_us

INSIDE = "heft"
"""The method that places a replica on several GPUs."""

FEW = 8
"""Most groups of GPUs of which every choice is tried."""

Gpus = tuple[int, ...]
Cost = tuple[bool, float, int]
Line = tuple[float, float]
"""A time that does not depend on the share of the batch, and the time for each part of it."""


class ReplicaSteps:
    """The steps of replicas, each alone on its GPUs, with some of the parts of a batch."""

    def __init__(
        self, profile: Profile, cluster: Cluster, n_parts: int, cancelled: Callable[[], bool]
    ) -> None:
        self.n_parts = n_parts
        self._profile, self._cluster, self._cancelled = profile, cluster, cancelled
        self._known: dict[Hashable, Schedule | None] = {}
        self._have_room: dict[Hashable, bool] = {}
        self._most: dict[Hashable, int] = {}
        self._kinds: dict[Gpus, Hashable] = {}

    def kind_of(self, gpus: Gpus) -> Hashable:
        """Return what is equal for GPUs on which a replica takes the same time and memory."""
        if gpus not in self._kinds:
            self._kinds[gpus] = self._find_kind(gpus)
        return self._kinds[gpus]

    def _find_kind(self, gpus: Gpus) -> Hashable:
        devices = [self._cluster.devices[gpu] for gpu in gpus]
        ends = [*gpus, *self._cluster.cpus]
        links = tuple(
            (ends.index(link.source), ends.index(link.target), link.b0_us, link.b1_us_per_byte)
            for link in self._cluster.links
            if link.source in ends and link.target in ends and {link.source, link.target} & {*gpus}
        )
        return tuple((d.speed, d.capacity_bytes, d.lanes) for d in devices), links

    def have_room(self, gpus: Gpus) -> bool:
        """Whether some GPUs have room for the variables, which no share makes smaller."""
        kind = self.kind_of(gpus)
        if kind not in self._have_room:
            try:
                Problem(self._profile, self._alone(gpus))
            except ProblemError:
                self._have_room[kind] = False
            else:
                self._have_room[kind] = True
        return self._have_room[kind]

    def find(self, gpus: Gpus, parts: int) -> Schedule | None:
        """Return the step with some parts of the batch; None if there is no room, or cancelled."""
        key = self.kind_of(gpus), parts
        if key not in self._known:
            if not self.have_room(gpus):
                return None
            shared = share_of_batch(self._profile, parts / self.n_parts)
            method = ALONE if len(gpus) == 1 else INSIDE
            problem = Problem(shared, self._alone(gpus))
            self._known[key] = reference_schedule(problem, method, self._cancelled)
        return self._known[key]

    def _alone(self, gpus: Gpus) -> Cluster:
        return with_devices(self._cluster, [*gpus, *self._cluster.cpus])

    def line(self, gpus: Gpus) -> Line:
        """Return the time of a step as a line over the parts of the batch."""
        half, whole = (self.time_us(gpus, parts) for parts in (self.n_parts // 2, self.n_parts))
        slope = max(whole - half, 0.0) / (self.n_parts - self.n_parts // 2)
        return max(whole - slope * self.n_parts, 0.0), slope

    def time_us(self, gpus: Gpus, parts: int) -> float:
        """Return the time of a step; infinite if there is none."""
        step = self.find(gpus, parts)
        return math.inf if step is None else step.makespan_us

    def is_line(self, gpus: Gpus) -> bool:
        """Whether the time of a step is really a line over the parts of the batch.

        The longest of several lines is convex. So a third point on the line tells it of all.
        """
        fixed, each = self.line(gpus)
        third = 1 if self.n_parts > 3 else self.n_parts - 1
        return math.isclose(self.time_us(gpus, third), fixed + each * third, rel_tol=1e-3)

    def best_shares(self, groups: Sequence[Gpus]) -> tuple[list[int], float]:
        """Find the shares with which the slowest replica ends first, within the memory of each.

        Returns the shares, each of one part at least, and the time of the slowest replica; infinite
        if the memory does not suffice for the batch. Then it does not count.
        """
        turns = count_turns(self._cluster, groups)
        lines = [(turns[g] * a, turns[g] * b) for g in groups for a, b in [self.line(g)]]
        whole = [self.n_parts] * len(groups)
        if not np.isfinite(lines).all():  # cancelled
            return whole, math.inf
        most = [self.most_parts(group) for group in groups]
        if sum(most) < self.n_parts:
            return apportion(self.n_parts, lines, whole), math.inf
        shares = apportion(self.n_parts, lines, most)
        return shares, max(a + b * n for (a, b), n in zip(lines, shares, strict=True) if n)

    def most_parts(self, gpus: Gpus) -> int:
        """Find the most parts of the batch for which a replica has room."""
        kind = self.kind_of(gpus)
        if kind not in self._most:
            whole = self._fits(gpus, self.n_parts)
            self._most[kind] = self.n_parts if whole else self._search_most(gpus)
        return self._most[kind]

    def _fits(self, gpus: Gpus, parts: int) -> bool:
        step = self.find(gpus, parts)
        return step is not None and step.fits

    def _search_most(self, gpus: Gpus) -> int:
        fitting, too_many = 0, self.n_parts
        while too_many - fitting > max(1, self.n_parts >> 12):
            middle = (fitting + too_many) // 2
            if self._fits(gpus, middle):
                fitting = middle
            else:
                too_many = middle
        return fitting


def best_groups(
    steps: ReplicaSteps, groups: Sequence[Gpus], sum_us: Callable[[Sequence[Gpus]], float]
) -> tuple[list[Gpus], bool]:
    """Choose which groups of GPUs take part, and whether all choices were tried.

    Parameters
    ----------
    sum_us : callable
        The time in which some groups sum their gradients.
    """

    def cost(chosen: Sequence[Gpus]) -> Cost:
        shares, longest_us = steps.best_shares(chosen)
        taking = [group for group, parts in zip(chosen, shares, strict=True) if parts]
        us = longest_us + sum_us(taking) if len(taking) > 1 else math.inf
        return len(taking) < 2, us, -len(taking)

    most = min(len(groups), steps.n_parts)
    if len(groups) <= FEW:
        sizes = range(most, 1, -1)
        every = [list(c) for n in sizes for c in itertools.combinations(groups, n)]
        return min(every, key=cost), True
    fastest = sorted(groups, key=lambda group: steps.time_us(group, steps.n_parts))[:most]
    starts = [[g for g in groups if g in kept] for kept in _without_the_slowest(steps, fastest)]
    return min((_thinned_out(start, cost) for start in starts), key=cost), False


def _thinned_out(groups: list[Gpus], cost: Callable[[Sequence[Gpus]], Cost]) -> list[Gpus]:
    """Leave out one group after the other, as long as that gains."""
    while len(groups) > 2:
        fewer = min(([g for g in groups if g != left_out] for left_out in groups), key=cost)
        if cost(fewer) >= cost(groups):
            break
        groups = fewer
    return groups


def _without_the_slowest(steps: ReplicaSteps, fastest: Sequence[Gpus]) -> list[list[Gpus]]:
    """List the groups, then what is left without the slowest kind of GPUs, the two slowest..."""
    kinds = list(dict.fromkeys(map(steps.kind_of, fastest)))
    kept = (set(kinds[:n]) for n in range(len(kinds), 0, -1))
    found = [[group for group in fastest if steps.kind_of(group) in kinds] for kinds in kept]
    return [groups for groups in found if len(groups) > 1] or [list(fastest)]


def count_turns(cluster: Cluster, groups: Sequence[Gpus]) -> dict[Gpus, int]:
    """Count for each replica how many take turns on its chip."""
    chips = {group: frozenset(cluster.lane_owner[list(group)].tolist()) for group in groups}
    on_chip = Counter(chips.values())
    return {g: -(-on_chip[chips[g]] // int(cluster.lanes[list(g)].min())) for g in groups}


def apportion(n_parts: int, lines: Sequence[Line], most: Sequence[int]) -> list[int]:
    """Share out the parts of a batch such that the longest time is least.

    Parameters
    ----------
    lines : sequence of Line
        The time of each replica by its number of parts.
    most : sequence of int
        The most parts of each; together at least ``n_parts``. Each gets one at least, unless it has
        room for none.
    """
    fixed, each = (np.array(column) for column in zip(*lines, strict=True))
    each = np.maximum(each, 1e-12)
    limit = np.array(most)
    least = np.minimum(limit, 1)
    low, high = 0.0, float((fixed + each * n_parts).max())
    for _ in range(60):
        middle = (low + high) / 2
        enough = np.clip((middle - fixed) / each, least, limit).sum() >= n_parts
        low, high = (low, middle) if enough else (middle, high)
    parts = np.floor(np.clip((low - fixed) / each, least, limit) + 1e-9).astype(np.int64)
    while (left := n_parts - int(parts.sum())) != 0:
        after_us = np.where(parts < limit, fixed + each * (parts + 1), np.inf)
        at = int(after_us.argmin()) if left > 0 else int(parts.argmax())
        parts[at] += 1 if left > 0 else -1
    shares: list[int] = parts.tolist()
    return shares


def share_of_batch(profile: Profile, part: float) -> Profile:
    """Return the profile of a step with a share of the samples."""
    carries, fed = samples_of(profile)
    works = carries | fed
    updates = profile.of_kind(OpKind.UPDATE)
    is_gradient, is_data = np.zeros((2, profile.n_tensors), dtype=bool)
    is_gradient[profile.edge_tensor[updates[profile.edge_op]]] = True
    is_data[profile.edge_tensor[~updates[profile.edge_op]]] = True
    whole = ~carries[profile.tensor_op] | (is_gradient & ~is_data)
    columns = {}
    for label, column, values in growing(profile):
        if label == "time_us":
            launch = np.minimum(values, launch_us(profile))
            shared = launch + (values - launch) * part
        elif column.cut is Cut.SHARE:
            shared = _portion(values, part) if column.type is int else values * part
        else:
            shared = values
        columns[label] = where_op(works, shared, values)
    size = np.where(whole, profile.tensor_bytes, _portion(profile.tensor_bytes, part))
    return replace(profile, **columns, tensor_bytes=size)


def _portion(values: NDArray[Any], part: float) -> Any:
    """Return a share of whole numbers, rounded up."""
    return np.ceil(values * part - 1e-6).astype(np.int64)


def samples_of(profile: Profile) -> tuple[BoolArray, BoolArray]:
    """Find the ops whose outputs have a row for each sample, and those with such an input."""
    carries = carries_samples(profile)
    fed = np.zeros(profile.n_ops, dtype=bool)
    data = profile.tensor_output[profile.edge_tensor] != CONTROL
    np.logical_or.at(fed, profile.edge_op[data], carries[profile.edge_source[data]])
    fed &= ~profile.of_kind(OpKind.UPDATE)
    return carries, fed
