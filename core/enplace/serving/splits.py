"""A split of a model's layers, and what it comes to on a machine.

All requests decode in groups of equal size, which follow each other through the cards. A group has
its next token when it has been through all of them, and when the slowest card has served every
group: with m groups, after max(sum of all times, m × the longest time). We take the best m.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from enplace.serving.costs import Costs, StageBytes
from enplace.values.arrays import FloatArray


class Share(NamedTuple):
    """The consecutive layers of a device; none on one that has only an end of the model."""

    device: int
    n_layers: int


Split = tuple[Share, ...]
"""The shares of all devices in the order of the model: the first has the embedding, the last the
head."""


def groupings(costs: Costs, has_host: bool) -> Iterator[tuple[int, int]]:
    """Yield each number of groups that makes sense, with the requests in the largest of them."""
    requests, seen = costs.wanted.requests, 0
    for n_groups in range(1, min(requests, costs.machine.n_cards + has_host) + 1):
        size = -(-requests // n_groups)
        if size != seen:
            seen = size
            yield n_groups, size


@dataclass(frozen=True)
class Served:
    """What a split comes to.

    Attributes
    ----------
    token_us : float
        Time from one token of a request to its next while all requests decode.
    alone_us : float
        The same while one request decodes alone.
    prompt_us : float
        Time until the first token after a prompt.
    stage_us : array of shape (n_stages,)
        Time of a group on each device, for one token of each of its requests.
    n_groups : int
        Groups in which the requests decode.
    """

    costs: Costs
    split: Split
    stage_bytes: tuple[StageBytes, ...]
    token_us: float
    alone_us: float
    prompt_us: float
    stage_us: FloatArray
    n_groups: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all requests in a second."""
        return self.costs.wanted.requests / self.token_us * 1e6

    @cached_property
    def spare_bytes(self) -> list[int]:
        """What each device has left; below zero where it does not suffice.

        The disk takes what the host cannot hold of the weights.
        """
        machine = self.costs.machine
        needed = [
            each.total - (each.weights if share.device == machine.host else 0)
            for share, each in zip(self.split, self.stage_bytes, strict=True)
        ]
        capacity = [machine.cluster.devices[share.device].capacity_bytes for share in self.split]
        return [has - needs for has, needs in zip(capacity, needed, strict=True)]

    @property
    def fits(self) -> bool:
        return min(self.spare_bytes) >= 0

    @property
    def busy(self) -> FloatArray:
        """Share of the time that each device is busy while all requests decode."""
        return np.minimum(1.0, self.n_groups * self.stage_us / self.token_us)


def evaluate(costs: Costs, split: Sequence[Share]) -> Served:
    """Return what a split comes to, whether or not it fits."""
    stages = tuple(_stages(split))
    n_bytes = tuple(
        costs.bytes_of(each.begin, each.end, first=each.first, last=each.last) for each in stages
    )
    alone = _stage_times(costs, stages, n_bytes, 1)
    alone_us = float(alone.sum()) + _sent_us(costs, stages, 1)
    found = []
    has_host = any(each.device == costs.machine.host for each in stages)
    for n_groups, size in groupings(costs, has_host):
        times = _stage_times(costs, stages, n_bytes, size)
        whole_us = float(times.sum()) + _sent_us(costs, stages, size)
        found.append((max(whole_us, n_groups * float(times.max())), n_groups, times))
    token_us, n_groups, stage_us = min(found, key=lambda each: each[:2])
    prompt_us = float(_stage_times(costs, stages, n_bytes, 0).sum())
    prompt_us += _sent_us(costs, stages, costs.prompt)
    return Served(costs, tuple(split), n_bytes, token_us, alone_us, prompt_us, stage_us, n_groups)


class _Stage(NamedTuple):
    device: int
    begin: int
    end: int
    first: bool
    last: bool


def _stages(split: Sequence[Share]) -> Iterator[_Stage]:
    begin = 0
    for at, share in enumerate(split):
        end = begin + share.n_layers
        yield _Stage(share.device, begin, end, at == 0, at == len(split) - 1)
        begin = end


def _stage_times(
    costs: Costs, stages: Sequence[_Stage], n_bytes: Sequence[StageBytes], size: int
) -> FloatArray:
    """Return the time of each stage for a group; without requests, that of a prompt."""
    machine, found = costs.machine, []
    for stage, held in zip(stages, n_bytes, strict=True):
        gpu = None if stage.device == machine.host else machine.kind_of(stage.device).gpu
        layers, first_us, last_us = costs.token_us(gpu, size) if size else costs.prompt_us(gpu)
        time_us = float(layers[stage.begin : stage.end].sum())
        time_us += first_us * stage.first + last_us * stage.last
        found.append(time_us + (costs.disk_us(held) if gpu is None else 0.0))
    return np.array(found)


def _sent_us(costs: Costs, stages: Sequence[_Stage], tokens: int) -> float:
    """Return the times in which the states of some tokens go from device to device."""
    n_bytes, machine = costs.state_bytes(tokens), costs.machine
    return sum(machine.sent_us(a.device, b.device, n_bytes) for a, b in pairwise(stages))
