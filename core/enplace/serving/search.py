"""The best split of a model's layers: consecutive layers on each card, cards in any order.

Cards of one kind can stand for each other, so a partial solution is the layers from some layer to
the last one, on so many cards of each kind, the first of which is known. Dynamic programming over
these is exact. What no card holds goes to the host: as few of the first layers as possible.

With m groups a token takes max(sum of times, m × longest time). The least sum falls as the longest
time that is allowed grows, so bisection over the longest time finds the least maximum of the two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import TypeVar

import numpy as np

from enplace.errors import DoesNotFitError
from enplace.serving.costs import Costs, Wanted, sums
from enplace.serving.splits import Served, Share, Split, evaluate, groupings
from enplace.text import count, size
from enplace.values.arrays import BoolArray, FloatArray, IntArray

TOKENS_PER_SECOND, LATENCY_PER_TOKEN = "tokens-per-second", "latency-per-token"
OBJECTIVES = (TOKENS_PER_SECOND, LATENCY_PER_TOKEN)

MOST_REQUESTS, MOST_CONTEXT = 1 << 16, 1 << 24

_T = TypeVar("_T")

Used = tuple[int, ...]
"""How many cards of each kind are used."""


SLACK = 0.01
"""Of splits that are slower than the fastest by no more than this share, take the roomiest."""


def find_split(costs: Costs, objective: str = TOKENS_PER_SECOND) -> Served:
    """Return a split that is as good as the fastest, and of these the one with the most room.

    Room is what people miss first: the split fits the longest context.

    Raises
    ------
    DoesNotFitError
        If neither the cards nor the host can hold the model and its cache.
    """
    best = fastest_split(costs, objective)
    if best.split[0].device == costs.machine.host:
        return best  # it takes as few layers as possible, so the cards are full
    is_alone = objective == LATENCY_PER_TOKEN
    n_groups = 1 if is_alone else best.n_groups
    times = _Times(costs, 0, 1 if is_alone else -(-costs.wanted.requests // n_groups))
    most_us = (1 + SLACK) * (best.alone_us if is_alone else best.token_us)

    def roomier(context: int) -> Split | None:
        wanted = Wanted(context, costs.wanted.requests)
        search = _Search(Costs(costs.decoder, costs.machine, wanted))
        sum_us, split = search.best_chain(times, most_us / n_groups)
        return split if sum_us <= most_us else None

    low, high, found = costs.wanted.context, MOST_CONTEXT, best.split
    while low < high:
        middle = (low + high + 1) // 2
        split = roomier(middle)
        low, high, found = (middle, high, split) if split else (low, middle - 1, found)
    return evaluate(costs, found)


def fastest_split(costs: Costs, objective: str = TOKENS_PER_SECOND) -> Served:
    """Return the best split: the most tokens of all requests per second, or of one alone.

    Raises
    ------
    DoesNotFitError
        If neither the cards nor the host can hold the model and its cache.
    """
    search, host = _Search(costs), costs.machine.host
    n_host = search.find_host_layers()
    first = (Share(host, n_host),) if n_host and host is not None else ()
    if n_host == costs.decoder.n_layers:
        return evaluate(costs, first)
    if objective == LATENCY_PER_TOKEN:
        return evaluate(costs, (*first, *_known(search.best_chain(_Times(costs, n_host, 1))[1])))
    best: Served | None = None
    for n_groups, group in groupings(costs, n_host > 0):
        times = _Times(costs, n_host, group)
        below_us = np.inf if best is None else best.token_us
        for chain in search.chains(times, n_groups, below_us):
            found = evaluate(costs, (*first, *chain))
            if best is None or found.token_us < best.token_us:
                best = found
    return _known(best)


def _known(found: _T | None) -> _T:
    assert found is not None, "the layers fit, so there is a split"
    return found


def longest_context(costs: Costs) -> int:
    """Return the longest context with which as many requests fit on the cards alone; 0 if none."""
    most = costs.decoder.most_context or MOST_CONTEXT
    return _most(costs, lambda context: Wanted(context, costs.wanted.requests), most)


def most_requests(costs: Costs) -> int:
    """Return how many requests with the same context fit on the cards alone."""
    return _most(costs, lambda requests: Wanted(costs.wanted.context, requests), MOST_REQUESTS)


def _most(costs: Costs, wanted: Callable[[int], Wanted], most: int) -> int:
    """Return the largest number that fits; what a smaller number needs, fits as well."""

    def lacks_room(number: int) -> bool:
        return _Search(Costs(costs.decoder, costs.machine, wanted(number))).first_layer() > 0

    return bisect_left(range(1, most + 1), True, key=lacks_room)


class _Search:
    """Which stages fit on which kind of card, and the best chain of them."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._counts = tuple(len(kind.devices) for kind in costs.machine.kinds)
        n_bytes, order = costs.all_bytes(), np.arange(costs.decoder.n_layers + 1)
        some = order[:, None] < order[None, :]
        self._fits: list[BoolArray] = [
            some & (n_bytes <= kind.capacity_bytes) for kind in costs.machine.kinds
        ]

    @cached_property
    def _uses(self) -> list[Used]:
        """All choices of some cards, fewer ones first."""
        return sorted(product(*(range(n + 1) for n in self._counts)), key=sum)

    def first_layer(self) -> int:
        """Return the first layer such that all from there on fit on the cards.

        A stage that fits also fits without its first layer, so each card takes as
        many as it can, from the last layer on.
        """
        n_layers = self._costs.decoder.n_layers
        reach = [
            np.where(fits.any(axis=0), fits.argmax(axis=0), np.arange(n_layers + 1))
            for fits in self._fits
        ]
        first = {self._uses[0]: n_layers}
        for used in self._uses[1:]:
            first[used] = min(int(reach[kind][first[less]]) for kind, less in _with_one_less(used))
        return first[self._uses[-1]]

    def find_host_layers(self) -> int:
        """Return how many layers the host must take.

        Raises
        ------
        DoesNotFitError
            If there is no host, or its memory does not suffice either.
        """
        first, costs = self.first_layer(), self._costs
        host = costs.machine.host
        if not first:
            return 0
        if host is None:
            raise DoesNotFitError(why_not(costs, "add a host, such as cpu:64GiB, or more cards"))
        is_all = first == costs.decoder.n_layers
        held = costs.bytes_of(0, first, first=True, last=is_all)
        if held.cache + held.activations > costs.machine.cluster.devices[host].capacity_bytes:
            raise DoesNotFitError(why_not(costs, "add memory or cards"))
        return first

    def chains(self, times: _Times, n_groups: int, below_us: float) -> Iterator[Split]:
        """Yield splits of which one is the best with so many groups, if that is below a time."""
        least_us, chain = self.best_chain(times)
        if chain is None or least_us >= below_us:
            return
        yield chain
        limits = np.unique(np.concatenate([each[np.isfinite(each)] for each in times.of_kinds]))
        # No sum is below the least one, and no time above the others' shall be tried.
        low = int(np.searchsorted(limits, least_us / n_groups)) - 1
        high = int(np.searchsorted(limits, below_us / n_groups, "right"))
        while high - low > 1:
            middle = (low + high) // 2
            sum_us, _ = self.best_chain(times, limits[middle])
            is_above = sum_us > n_groups * max(limits[middle], times.host_us)
            low, high = (middle, high) if is_above else (low, middle)
        for at in (high, low):
            if 0 <= at < len(limits):
                chain = self.best_chain(times, limits[at])[1]
                yield from () if chain is None else (chain,)

    def best_chain(self, times: _Times, limit_us: float = np.inf) -> tuple[float, Split | None]:
        """Return the least sum of times of which none is above a limit, and its split."""
        begin, n_kinds = times.begin, len(self._counts)
        costs = [
            np.where(self._fits[kind] & (each <= limit_us), each, np.inf)[begin:, begin:]
            for kind, each in enumerate(times.of_kinds)
        ]
        n = len(costs[0])
        end = np.full(n, np.inf)
        end[-1] = 0.0
        values: dict[Used, FloatArray] = {}  # by the kind of the first card, and the first layer
        steps: dict[tuple[Used, int], tuple[IntArray, IntArray]] = {}
        best, where = np.inf, None
        for used in self._uses[1:]:
            values[used] = np.full((n_kinds, n), np.inf)
            for kind, less in _with_one_less(used):
                if less == self._uses[0]:
                    then, tail = np.full(n, -1), end
                else:
                    sent = values[less] + times.sent_us[kind][:, None]
                    then, tail = sent.argmin(axis=0), sent.min(axis=0)
                whole = costs[kind] + tail
                to = whole.argmin(axis=1)
                values[used][kind] = whole[np.arange(n), to]
                steps[used, kind] = to, then
                total = values[used][kind][0] + times.host_us + times.from_host_us[kind]
                if total < best:
                    best, where = float(total), (used, kind)
        return best, None if where is None else self._traced(where, steps)

    def _traced(
        self,
        where: tuple[Used, int],
        steps: Mapping[tuple[Used, int], tuple[IntArray, IntArray]],
    ) -> Split:
        """Follow the steps from the first card to the last, and give each a device."""
        (used, kind), at, shares = where, 0, []
        left = [[*each.devices] for each in self._costs.machine.kinds]
        while kind >= 0:
            to, then = steps[used, kind]
            end = int(to[at])
            shares.append(Share(left[kind].pop(0), end - at))
            used = dict(_with_one_less(used))[kind]
            at, kind = end, int(then[end])
        return tuple(shares)


def _with_one_less(used: Used) -> Iterator[tuple[int, Used]]:
    """Yield each kind of which a card is used, and the use of all others."""
    for kind, n in enumerate(used):
        if n:
            yield kind, (*used[:kind], n - 1, *used[kind + 1 :])


class _Times:
    """The times of every stage on every kind of card, for a group of some size.

    Attributes
    ----------
    begin : int
        The first layer on a card.
    of_kinds : list of arrays of shape (n_layers + 1, n_layers + 1)
        By the first layer and the one after the last.
    sent_us : array of shape (n_kinds, n_kinds)
    host_us : float
    from_host_us : array of shape (n_kinds,)
    """

    def __init__(self, costs: Costs, begin: int, group: int) -> None:
        self.begin, machine = begin, costs.machine
        self.of_kinds = [_stage_times(*costs.token_us(kind.gpu, group)) for kind in machine.kinds]
        n_bytes = costs.state_bytes(group)
        self.sent_us = machine.kinds_sent_us(n_bytes)
        self.host_us, self.from_host_us = 0.0, np.zeros(len(machine.kinds))
        if begin and machine.host is not None:
            layers, first_us, _ = costs.token_us(None, group)
            held = costs.bytes_of(0, begin, first=True, last=False)
            self.host_us = float(layers[:begin].sum()) + first_us + costs.disk_us(held)
            self.from_host_us = np.array([
                machine.sent_us(machine.host, kind.devices[0], n_bytes)
                for kind in machine.kinds
            ])  # fmt: skip


def _stage_times(layers: FloatArray, first_us: float, last_us: float) -> FloatArray:
    total = sums(layers)
    times = total[None, :] - total[:, None]
    times[0] += first_us
    times[:, -1] += last_us
    return np.asarray(times)


def why_not(costs: Costs, mend: str) -> str:
    """Say what is lacking, and how much less would do."""
    decoder, machine, wanted = costs.decoder, costs.machine, costs.wanted
    has = sum(len(kind.devices) * kind.capacity_bytes for kind in machine.kinds)
    cache = wanted.requests * int(decoder.cache_bytes(wanted.context).sum())
    context = longest_context(costs)
    less = f"ask for at most {context:,} tokens" if context else ""
    if requests := most_requests(costs) if context else 0:
        less += f" or {count(requests, 'request')}"
    return (
        f"{decoder.name} does not fit: {size(decoder.n_bytes)} of weights, {size(cache)} of cache "
        f"and what is computed, and {count(machine.n_cards, 'card')} of {size(has)} in all; "
        + (f"{less}, or {mend}" if less else mend)
    )
