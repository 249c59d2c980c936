"""What a transfer costs besides what the simulator counts, where that was never measured.

The work of sender and receiver, of launching a copy, of waiting for it and of waking a thread is
part of a link's latency where the latency was measured. Between logical CPUs it cannot be measured
as that of a copy, because nothing is copied; presets and clusters made by hand name what a copy
takes. For all of these, :data:`PRICE_US` is no part of the simulated step time, because it is no
more than a guess, but it counts in the choice of a plan (:mod:`enplace.placing.ties`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations

import numpy as np

from enplace.text import ms
from enplace.values.arrays import FloatArray
from enplace.values.cluster import Cluster
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

PRICE_US = 10.0
"""What a transfer costs besides what the simulator counts, over a link that was never measured.

On two logical CPUs, steps with 422 to 894 transfers took 7 to 26 µs longer than predicted for each,
in the median 10 µs. On two logical GPUs of an H200, steps with 74 to 354 transfers took 9 to 42 µs
longer for each than the step on one of them, besides what their kernels took longer."""

MOST, FEW = 0.01, 10
"""The largest share by which a step may take longer to save transfers, and how many it must save:
a guess decides for many transfers, not for a few."""

FAR_FEWER = 0.5
"""A plan with at most this share of another's transfers is taken if it is no slower once all
transfers have their price, however much slower it is without."""

PASSED_OVER = "By prediction, the fastest plan found takes"
"""Begins the sentence in a plan's note about a faster plan whose transfers cost too much."""

TOLD = 0.05
"""Share of the step time above which the price of all transfers is told."""


@lru_cache(maxsize=4)  # every plan that a search rates asks for it
def price_us(problem: Problem) -> FloatArray:
    """Return what a transfer costs besides what is simulated; shape (n_devices, n_devices)."""
    cluster, measured = problem.cluster, problem.measured_profile.measured
    known = {(link.source, link.target) for link in measured.links or ()}
    own = _cost_of(measured.cluster or cluster)
    price = np.full((cluster.n_devices, cluster.n_devices), PRICE_US)
    np.fill_diagonal(price, 0.0)
    for ends, cost in _cost_of(cluster).items():
        if ends in known and own.get(ends) == cost:  # no other machine with the same names
            price[cluster.index[ends[0]], cluster.index[ends[1]]] = 0.0
    price.setflags(write=False)
    return price


def total_price_us(schedule: Schedule) -> float:
    """Return what the transfers of a plan may cost besides what is simulated.

    Both ends have work with a transfer, and devices work side by side: what counts is the price of
    all that one device sends and receives, for the device with the most. If only two devices
    exchange tensors, that is the price of all transfers.
    """
    price, source, target = price_us(schedule.problem), schedule.transfer_from, schedule.transfer_to
    each = np.tile(price[source, target], 2)
    return float(np.bincount(np.concatenate([source, target]), each).max(initial=0.0))


def rounds_price_us(problem: Problem, devices: Sequence[int], n_rounds: int) -> float:
    """Return what rounds may cost besides, if in each, some devices all send to the next one."""
    price = price_us(problem)
    return n_rounds * float(max(price[hop] for hop in permutations(devices, 2)))


def find_passed_over(note: str) -> str:
    """Return the sentence of a note about a faster plan that was passed over; empty if none."""
    found = re.search(re.escape(PASSED_OVER) + r".*?counts\.", note)
    return found.group() if found else ""


def is_told(cost_us: float, step_us: float) -> bool:
    """Whether a guessed price of transfers is a large enough share of a step to be told."""
    return cost_us > TOLD * step_us


def find_stock_us(problem: Problem) -> float:
    """Return the step that the framework took by itself, if it was measured on these devices.

    NaN if not. The framework runs small ops in less time than a plan's ops take one by one.
    """
    measured = problem.measured_profile.measured
    if problem.cluster != measured.cluster:
        return math.nan
    return measured.stock_step_time_us or math.nan


def about_price(*priced: tuple[str, float, float]) -> str:
    """Say what sends may cost besides; empty if that matters nowhere.

    Parameters
    ----------
    *priced : (str, float, float)
        Whose sends these are, such as ``the plan``, what all of them may cost, and the step time.
    """
    told = [f"{ms(us)} for {whose}" for whose, us, step in priced if is_told(us, step)]
    if not told:
        return ""
    return (
        f"Over a link that was never measured, a send costs some {PRICE_US:.0f} µs that no "
        f"prediction counts. On the device with most: {'; '.join(told)}."
    )


def _cost_of(cluster: Cluster) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the cost of each link, by the names of its ends."""
    name = [device.name for device in cluster.devices]
    return {
        (name[link.source], name[link.target]): (link.b0_us, link.b1_us_per_byte)
        for link in cluster.links
    }
