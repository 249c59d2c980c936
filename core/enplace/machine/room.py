"""Pipelines in which samples wait for room: a device begins no further one until memory suffices.

Forward and backward alternate as usual: a device takes a sample that comes back before a new one.
Where memory holds samples back, they then do not all wait alike. Two that enter together, say, may
pass through the devices without a wait, while at an even pace each would wait for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from enplace.machine.pipeline_memory import counts_whole_nodes, sample_bytes
from enplace.machine.stages import Stage
from enplace.values.plan import Plan
from enplace.values.problem import Problem

Room = Mapping[int, int]
"""For each device, how many samples it may hold."""


def find_room(problem: Problem, plan: Plan, stages: Sequence[Stage]) -> Room | None:
    """Find how many samples each device may hold.

    None if devices do not pass samples on in a row and back, without replicas, or if the memory of
    a sample is not the same all the time, as where tensors count one by one.
    """
    forward = [stage.devices for stage in stages if not stage.backward]
    back = [stage.devices for stage in stages if stage.backward]
    in_a_row = forward == back[::-1] and len(set(forward)) == len(forward)
    if not in_a_row or plan.replicas or not counts_whole_nodes(problem.profile):
        return None
    found = {}
    for before, (d,) in enumerate(forward):
        here = plan.device == d
        free = int(problem.cluster.capacity_bytes[d] - problem.profile.persistent_bytes[here].sum())
        useful = len(forward) - before + 1
        further = sample_bytes(problem, plan, d)
        found[d] = min(1 + free // further, useful) if further else useful
    return found if min(found.values()) > 0 else None


def loads_us(stages: Sequence[Stage]) -> list[float]:
    """Return the work of each device for a sample, from the last device back."""
    half = len(stages) // 2
    pairs = zip(stages[half - 1 :: -1], stages[half:], strict=True)
    return [_work_us(there) + _work_us(back) for there, back in pairs]


def least_time_us(stages: Sequence[Stage], room: Room) -> float:
    """Bound the time per sample from below: a sample stays for the work of all later devices."""
    devices = [stage.devices[0] for stage in stages[len(stages) // 2 :]]
    each_us = loads_us(stages)
    stays_us = accumulate(each_us)
    shares_us = [us / room[device] for device, us in zip(devices, stays_us, strict=True)]
    return max(*each_us, *shares_us)


def order_with_room(stages: Sequence[Stage], room: Room, n: int) -> list[tuple[int, int]]:
    """List microbatches and stages in the order in which they start."""
    half = len(stages) // 2
    devices = [stage.devices[0] for stage in stages[:half]]
    work_us = [_work_us(stage) for stage in stages]
    done_us: dict[tuple[int, int], float] = {}
    begun, ended, free_us = [0] * half, [0] * half, [0.0] * half
    order: list[tuple[int, int]] = []
    while len(order) < n * len(stages):
        # The earliest start counts, and of equal starts a way back.
        choices = []
        for i, device in enumerate(devices):
            ahead, back = (begun[i], i), (ended[i], len(stages) - 1 - i)
            for backward, (m, s) in ((True, back), (False, ahead)):
                may = m < begun[i] if backward else m < n and m - ended[i] < room[device]
                ready_us = done_us.get((m, s - 1)) if s else 0.0
                if may and ready_us is not None:
                    choices.append((max(ready_us, free_us[i]), not backward, m, s, i))
        start_us, is_new, m, s, i = min(choices)
        done_us[m, s] = free_us[i] = start_us + work_us[s]
        begun[i] += is_new
        ended[i] += not is_new
        order.append((m, s))
    return order


def _work_us(stage: Stage) -> float:
    return stage.in_us[0] + stage.compute_us[0] + stage.out_us[0]
