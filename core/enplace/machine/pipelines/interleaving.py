"""Interleaved stages (Narayanan et al. 2021, "Efficient large-scale language model training").

Every device has several stages, its chunks, and samples pass through all devices once for each
chunk. Samples go in groups, as many as there are devices: a device runs a chunk for a whole group,
then the next chunk. So later devices get work sooner, and the pipeline fills faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

from enplace.machine.pipelines.stages import Stage

Work = tuple[int, int]
"""A microbatch and the number of its stage."""


def order_interleaved(stages: Sequence[Stage], n_microbatches: int) -> list[Work] | None:
    """Order the work of all devices so that each item comes after those it waits for.

    A device that waits for none, such as a host that makes inputs, takes no turns. Returns None for
    stages that do not visit the devices in turns, several times forward and as often backward, and
    for numbers of microbatches with which the devices would wait for each other.
    """
    waiting = {stage.devices for stage in stages if stage.after}
    first = [s for s, stage in enumerate(stages) if stage.devices not in waiting]
    forward = [s for s, stage in enumerate(stages) if not stage.backward and s not in first]
    backward = [s for s, stage in enumerate(stages) if stage.backward]
    devices = list(dict.fromkeys(stages[s].devices for s in forward))
    k = len(devices)
    in_turns = [devices[i % k] for i in range(len(forward))]
    if len(forward) <= k or len(forward) % k or len(backward) != len(forward):
        return None
    if [stages[s].devices for s in forward] != in_turns:
        return None
    if [stages[s].devices for s in backward] != in_turns[::-1]:
        return None
    lists = [[(m, s) for m in range(n_microbatches)] for s in first]
    for i in range(k):
        there = _in_groups(forward[i::k], k, n_microbatches)
        back = _in_groups(backward[k - 1 - i :: k], k, n_microbatches)
        alone = 2 * (k - i - 1) + (len(forward) // k - 1) * k
        pairs = chain.from_iterable(zip_longest(there[alone:], back))
        lists.append([*there[:alone], *(work for work in pairs if work is not None)])
    return merge_lists(stages, lists)


def _in_groups(chunks: Sequence[int], k: int, n: int) -> list[Work]:
    """List a device's work in one pass: chunk after chunk for each group of samples."""
    groups = (range(first, min(first + k, n)) for first in range(0, n, k))
    return [(m, chunk) for group in groups for chunk in chunks for m in group]


def merge_lists(stages: Sequence[Stage], lists: Sequence[Sequence[Work]]) -> list[Work] | None:
    """Merge the lists of devices into one, as their work can be done; None if it cannot."""
    done: set[Work] = set()
    order: list[Work] = []
    at = [0] * len(lists)
    while len(order) < sum(map(len, lists)):
        before = len(order)
        for device, work in enumerate(lists):
            while at[device] < len(work):
                m, s = work[at[device]]
                if any((m, needed) not in done for needed in stages[s].after):
                    break
                done.add((m, s))
                order.append((m, s))
                at[device] += 1
        if len(order) == before:
            return None
    return order
