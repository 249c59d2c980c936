"""HEFT: insertion-based list scheduling (Topcuoglu, Hariri and Wu 2002).

Ops are taken by upward rank; each goes to the device, and into the first gap there, where it ends
earliest. The machine model requires more than the paper:

- A transfer occupies all channels of its link, once for each tensor and destination, in the first
  gap that these channels share.
- Free ops (constants, variables) are placed with the op they follow, and the first op of a
  placement unit decides for all. Units that are allowed on only one device are there from the
  start.
- Ops that take no time need no gap.
- Ranks use the mean transfer over the pairs of GPUs, because nearly all transfers are between GPUs.
- A device counts as full when its variables plus the highest running estimate of live tensors
  exceed its memory. The estimate frees a tensor once its last consumer is placed. An op for which
  all devices are full goes where the excess is least. If the simulated step still does not fit,
  ops are placed again for less memory.
- HEFT takes one op at a time, so it does not see that a weight matrix, or a sum of gradients, will
  draw many later ops to its device. It is therefore also run with heavy edges tied, and with ranks
  that ignore transfers; the plan whose simulated step is shortest wins.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from enplace.coarsen import tie_heavy_edges
from enplace.compiling import kernel, loop
from enplace.machine.layout import Machine
from enplace.placing.candidates import arranged, best_of, best_that_fits, by_start_or_rank
from enplace.placing.incumbents import BestSchedule
from enplace.placing.list_schedule import (
    PartialSchedule,
    Work,
    begin,
    count_memory,
    estimated_excess_bytes,
    lane_start,
    prepare,
    ready_us,
    send,
    settle_units,
    sort_inputs,
)
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import CHANNELS, HETEROGENEOUS, MEMORY, placer
from enplace.placing.settle import mean_rank_us, position_by
from enplace.placing.slots import Slots, empty_slots, occupy
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

VARIANTS = (
    (1.0, None),
    (0.0, None),
    (1.0, (1.0, 1.0)),
    (1.0, (0.0, 1.0)),
    (1.0, (0.0, 0.25)),
    (1.0, (0.0, 2.0)),
)
"""Weight of the mean transfers in the rank (1 in the paper, or 0), and which edges are tied: none,
or edges above a ratio, up to a limit given as a share of a GPU's even load."""

MORE = 1.5
"""How much longer one variant may take than the one before."""


@placer(
    "heft",
    title="HEFT, list scheduling",
    good=(
        "When you want a good plan at once. Of the methods that need no search, it has the "
        "shortest steps on our samples, also where GPUs share a switch. enplace starts from it."
    ),
    source="Topcuoglu, Hariri and Wu (TPDS 2002)",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS),
)
def heft(problem: Problem, options: PlaceOptions) -> Plan:
    """Schedule ops by upward rank where they end earliest; return the best of a few variants."""
    began_s = options.seconds
    best = BestSchedule(options)
    _improve(best, problem, *VARIANTS[0], options)
    for link_weight, tie in VARIANTS[1:]:
        next_s = MORE * (options.seconds - began_s)
        if best.is_enough or options.stop.with_grace(problem.profile.n_ops).left_s() < next_s:
            break
        began_s = options.seconds
        _improve(best, problem, link_weight, tie, options)
    orders = arranged(problem, best.found.plan.device, best.found.plan.position, "heft")
    return best_of(problem, orders, options, best).plan


def _improve(
    best: BestSchedule,
    problem: Problem,
    link_weight: float,
    tie: tuple[float, float] | None,
    options: PlaceOptions,
) -> None:
    n_gpus = len(problem.cluster.gpus)
    unit = problem.unit if tie is None else tie_heavy_edges(problem, tie[0], tie[1] / n_gpus)
    rank_us = mean_rank_us(problem, link_weight)

    def candidates(memory_share: float) -> Iterator[Plan]:
        device, start_us = list_schedule(problem, rank_us, unit, options, memory_share)
        return by_start_or_rank(problem, device, start_us, "heft")

    best_that_fits(problem, candidates, options, best)


def list_schedule(
    problem: Problem,
    rank_us: FloatArray,
    unit: IntArray,
    options: PlaceOptions,
    memory_share: float = 1.0,
    allowed: BoolArray | None = None,
) -> tuple[IntArray, FloatArray]:
    """Place ops in the order of decreasing rank, each where it ends earliest.

    Parameters
    ----------
    rank_us : float array, shape (n_ops,)
        Never rises along an edge.
    unit : int array, shape (n_ops,)
        Ops of one unit share a device: ``problem.unit`` or coarser.
    options : PlaceOptions
        Cancelling them stops the kernel.
    memory_share : float
        How much of each device's memory may be used.
    allowed : bool array, shape (n_ops, n_devices), optional
        Where an op may go, the same for all ops of a unit; by default, where the problem allows it.

    Returns
    -------
    device, start_us : arrays, shape (n_ops,)
        The placement, and when each op starts in the schedule built with it.

    Raises
    ------
    CancelledError
        If cancelled.
    """
    position = position_by(problem, -rank_us)
    machine, work = prepare(problem, position, unit, memory_share, allowed)
    state = begin(machine, work)
    options.stop.interrupt_if_cancelled(lambda flag: _list_schedule(machine, work, state, flag))
    return state.unit_device[unit], state.start_us


@kernel
def _list_schedule(
    m: Machine, w: Work, s: PartialSchedule, stop: BoolArray
) -> None:  # pragma: no cover - compiled
    """Place each leader where it ends earliest, until none is left or ``stop[0]`` is set."""
    lanes, channels = empty_slots(w.lane_ptr[-1]), empty_slots(len(s.channel_ready_us))
    scratch = s.inputs
    for op in w.order:
        if stop[0]:
            break
        inputs = scratch[: sort_inputs(m, s, op)]
        device = _choose(m, w, s, lanes, channels, op, inputs)
        settle_units(m, w, s, op, device)
        channels = send(m, w, s, channels, inputs, device)
        start, finish, lane = _start(m, w, s, lanes, channels, op, inputs, device)
        lanes = occupy(lanes, lane, start, finish)
        count_memory(m, w, s, op, inputs, device)


@loop
def _choose(
    m: Machine,
    w: Work,
    s: PartialSchedule,
    lanes: Slots,
    channels: Slots,
    op: int,
    inputs: IntArray,
) -> int:  # pragma: no cover - compiled
    """Find the device where an op fits and ends earliest, or where the excess is least."""
    unit, best, least_excess, least_us = m.unit[op], -1, 0, np.inf
    there = s.unit_device[unit]
    for device in range(len(m.lanes)):
        if m.allowed[unit, device] and (there < 0 or there == device):
            ready = ready_us(m, s, channels, inputs, device)
            end_us = lane_start(m, w, lanes, op, device, ready)[0] + m.time_us[op, device]
            excess = estimated_excess_bytes(m, w, s, op, inputs, device)
            better = excess < least_excess or (excess == least_excess and end_us < least_us)
            # Where nothing fits, the op must still go somewhere; the plan may be repaired later.
            if best < 0 or better:
                best, least_excess, least_us = device, excess, end_us
    return best


@loop
def _start(
    m: Machine,
    w: Work,
    s: PartialSchedule,
    lanes: Slots,
    channels: Slots,
    op: int,
    inputs: IntArray,
    device: int,
) -> tuple[float, float, int]:  # pragma: no cover - compiled
    """Start an op whose inputs have been sent; return when it starts and ends, and its lane."""
    ready = ready_us(m, s, channels, inputs, device)
    start, lane = lane_start(m, w, lanes, op, device, ready)
    s.start_us[op], s.finish_us[op] = start, start + m.time_us[op, device]
    return start, s.finish_us[op], lane
