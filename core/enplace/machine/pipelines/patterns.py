"""Periodic patterns: when each item of work starts, if samples follow each other at a fixed pace.

In a pattern, every sample passes through the same items, each one period after the sample before
it. A resource that does the items of one sample within a period has time for those of all samples,
so the shortest period is the work of the busiest resource. Whether samples wait for each other at
that pace depends on how many are under way; a pattern finds a start for every item, and so how many
those are. Compilers call this modulo scheduling (Rau 1994).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

Resource = Hashable

CLOSE = 1e-9
"""Times closer than this share of the period count as equal."""


@dataclass(frozen=True)
class Use:
    """A resource that an item needs, from when after the item's start, and for how long."""

    resource: Resource
    from_us: float
    us: float


@dataclass(frozen=True)
class Item:
    """Work of one sample.

    Attributes
    ----------
    uses : tuple of Use
    us : float
        How long it takes.
    after : tuple of int
        Items that must end before this one starts.
    holds : bool
        Whether it takes memory that a later item frees.
    wait_us : float
        How long to wait before it starts, which may spare later items a longer wait.
    """

    uses: tuple[Use, ...]
    us: float
    after: tuple[int, ...]
    holds: bool = False
    wait_us: float = 0.0


def least_period_us(items: Sequence[Item]) -> float:
    """Return the work of the busiest resource."""
    work_us: dict[Resource, float] = {}
    for item in items:
        for use in item.uses:
            work_us[use.resource] = work_us.get(use.resource, 0.0) + use.us
    return max(work_us.values(), default=0.0)


def wait_for_room(gap_us: float, period_us: float, room_us: float) -> float:
    """Lengthen the time between two items of a resource until other samples leave room for them.

    ``room_us`` is the part of a period in which the resource has no work.
    """
    periods = math.floor(gap_us / period_us + CLOSE) if period_us > 0 else 0
    rest_us = gap_us - periods * period_us
    if rest_us > room_us + CLOSE * period_us:
        return (periods + 1) * period_us
    return periods * period_us + max(rest_us, 0.0)


def find_starts(items: Sequence[Item], period_us: float) -> list[float] | None:
    """Find a start for each item of the first sample; None if this search finds no pattern.

    Items start as early as they can, in the order in which they could start. An item leaves gaps
    between those of its resources only if their other items fit into these gaps. Afterwards, items
    that take memory move as late as others let them, so that they hold it for less time.
    """
    circles = {use.resource: _Circle(period_us) for item in items for use in item.uses}
    for item in items:
        for use in item.uses:
            insort(circles[use.resource].left, use.us)
    followers: list[list[int]] = [[] for _ in items]
    for number, item in enumerate(items):
        for before in item.after:
            followers[before].append(number)
    waiting = [len(item.after) for item in items]
    ready = [(0.0, number) for number, n in enumerate(waiting) if n == 0]
    starts, ready_us, placed = [0.0] * len(items), [0.0] * len(items), []
    while ready:
        _, number = heapq.heappop(ready)
        start_us = _earliest_us(circles, items[number], ready_us[number] + items[number].wait_us)
        if start_us is None:
            return None
        starts[number] = start_us
        placed.append(number)
        for follower in followers[number]:
            ready_us[follower] = max(ready_us[follower], start_us + items[number].us)
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (ready_us[follower], follower))
    for number in reversed(placed):
        if items[number].holds and followers[number]:
            end_us = min(starts[follower] for follower in followers[number])
            _postpone(circles, items[number], starts, number, end_us - items[number].us)
    return starts


class _Circle:
    """The time of a resource within a period: what is taken, and the work without a place yet."""

    def __init__(self, period_us: float) -> None:
        self.period_us, self.close = period_us, CLOSE * period_us
        self.taken: list[tuple[float, float]] = []  # sorted, and none overlaps another
        self.left: list[float] = []  # sorted

    def is_free(self, start_us: float, us: float) -> bool:
        """Whether nothing is taken for some time after a start.

        Only the time that is taken next, and the one before that, can be in the way.
        """
        if not self.taken:
            return True
        start_us %= self.period_us
        at = bisect_left(self.taken, (start_us, 0.0))
        for taken_us, taken in (self.taken[at % len(self.taken)], self.taken[at - 1]):
            ahead_us = (taken_us - start_us) % self.period_us
            if ahead_us < us - self.close or self.period_us - ahead_us < taken - self.close:
                return False
        return True

    def take(self, start_us: float, us: float) -> None:
        insort(self.taken, (start_us % self.period_us, us))
        self.left.remove(us)

    def give_back(self, start_us: float, us: float) -> None:
        self.taken.remove((start_us % self.period_us, us))
        insort(self.left, us)

    def has_room(self) -> bool:
        """Whether the rest fits into the gaps, the longest first, each in the tightest gap."""
        free = sorted(self._gaps_us())
        for us in reversed(self.left):
            at = bisect_left(free, us - self.close)
            if at == len(free):
                return us <= self.close
            insort(free, free.pop(at) - us)
        return True

    def _gaps_us(self) -> list[float]:
        order = [each for each in self.taken if each[1] > self.close]
        if not order:
            return [self.period_us]
        following = [*order[1:], (order[0][0] + self.period_us, 0.0)]
        return [
            after - (start + us) for (start, us), (after, _) in zip(order, following, strict=True)
        ]


_Circles = dict[Resource, _Circle]


def _candidates_us(circles: _Circles, item: Item, from_us: float) -> list[float]:
    """List when the item could start within a period: at once, or beside what is taken."""
    found = {from_us}
    for use in item.uses:
        circle = circles[use.resource]
        for start_us, us in circle.taken:
            for begin_us in (start_us + us, start_us - use.us):
                wait_us = (begin_us - use.from_us - from_us) % circle.period_us
                # Of a whole period, only a rounding error is left.
                found.add(from_us + (wait_us if wait_us < circle.period_us - circle.close else 0.0))
    return sorted(found)


def _earliest_us(circles: _Circles, item: Item, from_us: float) -> float | None:
    """Take the earliest time for an item that leaves room for the rest; None if there is none."""
    for start_us in _candidates_us(circles, item, from_us):
        if _try(circles, item, start_us):
            return start_us
    return None


def _postpone(
    circles: _Circles, item: Item, starts: list[float], number: int, latest_us: float
) -> None:
    """Move an item to the latest time until which nothing waits for it."""
    for use in item.uses:
        circles[use.resource].give_back(starts[number] + use.from_us, use.us)
    period_us = next((circles[use.resource].period_us for use in item.uses), 0.0)
    begin_us = max(starts[number], latest_us - period_us)
    times = [latest_us, *_candidates_us(circles, item, begin_us)]
    for start_us in sorted((us for us in times if begin_us <= us <= latest_us), reverse=True):
        if _try(circles, item, start_us):
            starts[number] = start_us
            return
    for use in item.uses:
        circles[use.resource].take(starts[number] + use.from_us, use.us)


def _try(circles: _Circles, item: Item, start_us: float) -> bool:
    """Take time for an item if it is free, and if the rest of the work still fits."""
    if not all(circles[u.resource].is_free(start_us + u.from_us, u.us) for u in item.uses):
        return False
    for use in item.uses:
        circles[use.resource].take(start_us + use.from_us, use.us)
    if all(circles[use.resource].has_room() for use in item.uses):
        return True
    for use in item.uses:
        circles[use.resource].give_back(start_us + use.from_us, use.us)
    return False
