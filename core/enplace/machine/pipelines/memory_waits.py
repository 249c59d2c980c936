"""Pipelines in which samples wait for room: a device begins no further one until memory suffices.

Forward and backward alternate as usual: a device takes a sample that comes back before a new one.
Where memory holds samples back, they then do not all wait alike. Two that enter together, say, may
pass through the devices without a wait, while at an even pace each would wait for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from enplace.machine.pipelines.memory import counts_whole_nodes, sample_bytes
from enplace.machine.pipelines.stages import Stage
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray

ROUNDING = 1e-12
"""Times that differ by a smaller share are equal but for rounding."""

Room = Mapping[int, int]
"""For each device, how many samples it may hold."""


def find_room(problem: Problem, plan: Plan, stages: Sequence[Stage]) -> Room | None:
    """Find how many samples each device may hold.

    None if samples do not return the way they came, with one stage on each device, or if the memory
    of a sample is not the same all the time, as where tensors count one by one.
    """
    forward = [stage.devices for stage in stages if not stage.backward]
    back = [stage.devices for stage in stages if stage.backward]
    in_a_row = forward == back[::-1] and len(set(forward)) == len(forward)
    in_a_row = in_a_row and all(s in stage.after for s, stage in enumerate(stages[1:]))
    if not in_a_row or plan.replicas or not counts_whole_nodes(problem.profile):
        return None
    found = {}
    for (d,) in forward:
        here = plan.device == d
        free = int(problem.cluster.capacity_bytes[d] - problem.profile.persistent_bytes[here].sum())
        useful = len(forward) + 1
        further = sample_bytes(problem, plan, d)
        found[d] = min(1 + free // further, useful) if further else useful
    return found if min(found.values()) > 0 else None


def busiest_us(stages: Sequence[Stage]) -> float:
    """Return the largest work of a device for a sample."""
    return max(stages[i].work_us + stages[j].work_us for i, j in _turns(stages).values())


def stay_share_us(stages: Sequence[Stage], room: Room) -> float:
    """Bound the time per sample by the time that one stays on a device, shared by those there.

    It holds if samples pass through all stages in turn.
    """
    until_us = [0.0, *accumulate(each.work_us for each in stages)]
    return max((until_us[j + 1] - until_us[i]) / room[d] for d, (i, j) in _turns(stages).items())


def order_with_room(stages: Sequence[Stage], room: Room, n: int) -> list[tuple[int, int]]:
    """List microbatches and stages in the order in which they start."""
    turns = _turns(stages)
    work_us = [each.work_us for each in stages]
    done_us: dict[tuple[int, int], float] = {}
    free_us = dict.fromkeys(turns, 0.0)
    next_one = [0] * len(stages)  # the sample that each stage begins next
    order: list[tuple[int, int]] = []
    while len(order) < n * len(stages):
        choices = []
        for d, (ahead, back) in turns.items():
            may_begin = next_one[ahead] < n and next_one[ahead] - next_one[back] < room[d]
            for s, may in ((back, next_one[back] < next_one[ahead]), (ahead, may_begin)):
                ready_us = done_us.get((next_one[s], s - 1)) if s else 0.0
                if may and ready_us is not None:
                    choices.append((max(ready_us, free_us[d]), s == ahead, next_one[s], s, d))
        # The earliest start counts, and of equal ones that of a sample on its way back.
        start_us, _, m, s, d = min(choices)
        done_us[m, s] = free_us[d] = start_us + work_us[s]
        next_one[s] += 1
        order.append((m, s))
    return order


def find_cycle(done_us: FloatArray) -> int:
    """Find after how many samples all stages do the same again; 0 if they do not.

    One stage alone may repeat itself for long while samples gather behind it.

    Parameters
    ----------
    done_us : float array, shape (n_samples, n_stages)
        When each sample has passed each stage.
    """
    for n in range(1, len(done_us) // 2 + 1):
        if np.ptp(done_us[n:] - done_us[:-n]) <= ROUNDING * done_us.max():
            return n
    return 0


def _turns(stages: Sequence[Stage]) -> dict[int, tuple[int, int]]:
    """Return the numbers of each device's forward and backward stage."""
    forward = {stage.devices[0]: s for s, stage in enumerate(stages) if not stage.backward}
    back = {stage.devices[0]: s for s, stage in enumerate(stages) if stage.backward}
    return {d: (s, back[d]) for d, s in forward.items()}
