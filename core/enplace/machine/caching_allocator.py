"""What PyTorch's caching allocator would reserve on a GPU for the tensors of a schedule.

A model of the allocator's rules, which no GPU has confirmed. It asks the card for *segments* and
cuts blocks out of them; blocks that are freed merge with their neighbours, but segments stay
reserved. So the card needs more than its tensors do: sizes are rounded up, and free blocks may be
too small for what comes next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat

import numpy as np

from enplace.text import listed, size
from enplace.values.schedule import Schedule

MIB = 1 << 20

ROUNDED = 512
"""Sizes are rounded up to a multiple of this."""

SMALL = MIB
"""Larger blocks come from segments of their own pool."""

SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB

OWN_SEGMENT = 10 * MIB
"""A block of this size or more gets a segment of its own, rounded up to ``SMALL_SEGMENT``."""

Event = tuple[int, int]
"""The number of a tensor, and its bytes; 0 bytes free it."""


def reserved_bytes(events: Iterable[Event]) -> int:
    """Return what the allocator has reserved after allocations and frees in a given order."""
    small, large = _Pool(is_small=True), _Pool(is_small=False)
    held: dict[int, tuple[_Pool, int]] = {}
    for tensor, n_bytes in events:
        if n_bytes:
            rounded = _round_up(n_bytes, ROUNDED)
            pool = small if rounded <= SMALL else large
            held[tensor] = pool, pool.allocate(rounded)
        else:
            pool, address = held.pop(tensor)
            pool.free(address)
    return small.reserved + large.reserved


@lru_cache(maxsize=4)  # tables and notes of one answer ask for it
def reserved_on_devices(schedule: Schedule) -> dict[int, int]:
    """Return what is reserved on each GPU at the end of a step; empty for other frameworks.

    The state of an op comes first, as one block. At one instant, frees come before allocations.
    """
    problem, profile = schedule.problem, schedule.problem.profile
    if not problem.measured_profile.measured.runs_as_recorded:
        return {}
    lives, device = schedule.lives, schedule.plan.device
    sizes = np.concatenate(
        [profile.persistent_bytes, lives.sizes(profile), profile.temporary_bytes]
    )
    where = np.concatenate([device, lives.device, device])
    begin_us = np.concatenate([np.full(profile.n_ops, -1.0), lives.start_us, schedule.op_start_us])
    end_us = np.concatenate([np.full(profile.n_ops, np.inf), lives.end_us, schedule.op_finish_us])
    found = {}
    gpus = [at for at, each in enumerate(problem.cluster.devices) if each.kind == "gpu"]
    for gpu in gpus:
        mine = np.flatnonzero((where == gpu) & (sizes > 0) & (end_us > begin_us))
        block, n_bytes = mine.tolist(), sizes[mine].tolist()
        taken = zip(begin_us[mine].tolist(), repeat(1), block, n_bytes)
        freed = zip(end_us[mine].tolist(), repeat(0), block, repeat(0))
        events = sorted([*taken, *freed])
        found[gpu] = reserved_bytes([(each, took) for _, _, each, took in events])
    return found


def about_reserved(schedule: Schedule) -> str:
    """Name the GPUs where tensors fit, but not all that is reserved; empty if there are none."""
    devices = schedule.problem.cluster.devices
    over = [
        f"{size(n_bytes)} on {devices[gpu].label}"
        for gpu, n_bytes in reserved_on_devices(schedule).items()
        if schedule.peak_bytes[gpu] <= devices[gpu].capacity_bytes < n_bytes
    ]
    if not over:
        return ""
    return (
        f"PyTorch's allocator may reserve more than there is: {listed(over)}, predicted by a model "
        f"of its rules that no GPU has confirmed. Where it runs out, it returns empty segments and "
        f"tries again; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True leaves fewer gaps."
    )


@dataclass
class _Pool:
    """Segments for small or for large blocks, and which parts of them are free.

    Addresses count up from segment to segment; a gap between two keeps their blocks apart.
    """

    is_small: bool
    reserved: int = 0
    end: int = 0
    free_blocks: list[tuple[int, int]] = field(default_factory=list)  # sizes and addresses, sorted
    free_sizes: dict[int, int] = field(default_factory=dict)  # by address
    free_starts: dict[int, int] = field(default_factory=dict)  # the address of a block, by its end
    held: dict[int, int] = field(default_factory=dict)  # sizes by address

    def allocate(self, n_bytes: int) -> int:
        """Cut a block from the smallest free one that is large enough; return its address."""
        at = bisect_left(self.free_blocks, (n_bytes, 0))
        if at == len(self.free_blocks):
            self._reserve(n_bytes)
            at = bisect_left(self.free_blocks, (n_bytes, 0))
        whole, address = self.free_blocks[at]
        self._take(address)
        rest = whole - n_bytes
        if rest >= ROUNDED if self.is_small else rest > SMALL:
            self._give(address + n_bytes, rest)
            whole = n_bytes
        self.held[address] = whole
        return address

    def free(self, address: int) -> None:
        """Free a block, and join it with free ones beside it."""
        n_bytes = self.held.pop(address)
        if (after := address + n_bytes) in self.free_sizes:
            n_bytes += self._take(after)
        if address in self.free_starts:
            address = self.free_starts[address]
            n_bytes += self._take(address)
        self._give(address, n_bytes)

    def _reserve(self, n_bytes: int) -> None:
        segment = SMALL_SEGMENT
        if not self.is_small:
            own = _round_up(n_bytes, SMALL_SEGMENT)
            segment = LARGE_SEGMENT if n_bytes < OWN_SEGMENT else own
        self._give(self.end, segment)
        self.reserved += segment
        self.end += segment + ROUNDED

    def _give(self, address: int, n_bytes: int) -> None:
        insort(self.free_blocks, (n_bytes, address))
        self.free_sizes[address] = n_bytes
        self.free_starts[address + n_bytes] = address

    def _take(self, address: int) -> int:
        n_bytes = self.free_sizes.pop(address)
        del self.free_starts[address + n_bytes]
        del self.free_blocks[bisect_left(self.free_blocks, (n_bytes, address))]
        return n_bytes


def _round_up(n_bytes: int, unit: int) -> int:
    return -(-n_bytes // unit) * unit
