"""Transfers that wait for their channels: how many, how long, and behind which others. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.names.groups import NO_GROUP, Grouping
from enplace.text import count, ms, size
from enplace.values.arrays import BoolArray
from enplace.values.profile import CONTROL, FloatArray, IntArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.intervals import Interval, within_us
from enplace_studio.explain.shortened import abbreviated

MOST_LISTED = 8
"""Most transfers of a list."""
SHORT_US = 0.5
"""Waits shorter than this are not mentioned."""


def requested_us(schedule: Schedule) -> FloatArray:
    """Return when each transfer could begin but for its channels: as its op has ended."""
    producer = schedule.problem.profile.tensor_op[schedule.transfer_tensor]
    return schedule.op_finish_us[producer]


@dataclass(frozen=True, eq=False)
class Queue:
    """How many transfers wait: ``depth[i]`` from ``time_us[i]`` on."""

    time_us: FloatArray
    depth: IntArray

    @property
    def most(self) -> int:
        return int(self.depth.max(initial=0))


def find_queue(schedule: Schedule, transfers: IntArray) -> tuple[Queue, float]:
    """Count the transfers that wait at each moment, of some; also return all their waiting."""
    asked_us, start_us = requested_us(schedule)[transfers], schedule.transfer_start_us[transfers]
    waits = start_us - asked_us > SHORT_US
    moments = np.concatenate([[0.0], start_us[waits], asked_us[waits]])
    steps = np.zeros(len(moments), dtype=np.int64)
    steps[1:] = np.repeat([-1, 1], int(waits.sum()))
    order = np.lexsort((steps, moments))
    depth: IntArray = np.cumsum(steps[order])
    return Queue(moments[order], depth), float((start_us - asked_us)[waits].sum())


@dataclass(frozen=True, eq=False)
class Wait:
    """The wait of a transfer for its channels.

    Attributes
    ----------
    behind, behind_us : arrays, shape (n_before,)
        The transfers that its channels carried meanwhile, and for how long, the longest first.
    held_up : int array
        The transfers that waited while it was sent.
    """

    transfer: int
    requested_us: float
    start_us: float
    behind: IntArray
    behind_us: FloatArray
    held_up: IntArray

    @property
    def length_us(self) -> float:
        return self.start_us - self.requested_us


def find_wait(schedule: Schedule, transfer: int) -> Wait:
    """Find which transfers one had to wait for, and which ones waited for it."""
    asked_us, start_us = requested_us(schedule), schedule.transfer_start_us
    finish_us = schedule.transfer_finish_us
    own = Interval(float(asked_us[transfer]), float(start_us[transfer]))
    sent = Interval(own.stop_us, float(finish_us[transfer]))
    shares = _shares_channel(schedule, transfer)
    during_us = np.where(shares, within_us(start_us, finish_us, own), 0.0)
    behind = np.flatnonzero(during_us > 0)
    behind = behind[np.argsort(-during_us[behind], kind="stable")]
    waited_us = np.where(shares, within_us(asked_us, start_us, sent), 0.0)
    held_up = np.flatnonzero(waited_us > SHORT_US)
    return Wait(transfer, own.start_us, own.stop_us, behind, during_us[behind], held_up)


def _shares_channel(schedule: Schedule, transfer: int) -> BoolArray:
    """Return which other transfers use a channel of one."""
    cluster, link = schedule.problem.cluster, schedule.transfer_link

    def channels_of(link: int) -> set[int]:
        return set(cluster.route[cluster.route_ptr[link] : cluster.route_ptr[link + 1]].tolist())

    mine = channels_of(int(link[transfer]))
    near = [each for each in np.unique(link).tolist() if mine & channels_of(each)]
    shares: BoolArray = np.isin(link, near)
    shares[transfer] = False
    return shares


def describe_queue(
    schedule: Schedule, grouping: Grouping, transfers: IntArray, at_us: float
) -> str:
    """List which of some transfers wait at a moment, those that have waited longest first."""
    asked_us, start_us = requested_us(schedule)[transfers], schedule.transfer_start_us[transfers]
    waits = (asked_us <= at_us) & (at_us < start_us) & (start_us - asked_us > SHORT_US)
    longest_first = np.argsort(asked_us[waits], kind="stable")
    waiting = transfers[waits][longest_first]
    lines = [_what(schedule, grouping, each) for each in waiting[:MOST_LISTED].tolist()]
    if (more := len(waiting) - len(lines)) > 0:
        lines.append(f"{more:,} more")
    verb = "waits" if len(waiting) == 1 else "wait"
    return "\n".join([f"{count(len(waiting), 'transfer')} {verb} at {ms(at_us)}", *lines])


def name_transfer(schedule: Schedule, grouping: Grouping | None, transfer: int) -> str:
    """Name what is sent: the layer that made it, or else its op."""
    op = int(schedule.problem.profile.tensor_op[schedule.transfer_tensor[transfer]])
    if grouping is None or grouping.group[op] == NO_GROUP:
        return schedule.problem.profile.op_names[op]
    return abbreviated(grouping.names[grouping.group[op]])


def _what(schedule: Schedule, grouping: Grouping, transfer: int) -> str:
    tensor = int(schedule.transfer_tensor[transfer])
    is_control = schedule.problem.profile.tensor_output[tensor] == CONTROL
    sent = "a message" if is_control else size(int(schedule.transfer_bytes[transfer]))
    return f"{sent} of {name_transfer(schedule, grouping, transfer)}"


def describe_wait(schedule: Schedule, grouping: Grouping, wait: Wait) -> list[str]:
    """Say how long a transfer waits, how many it makes wait, and behind which others it waits."""
    what = f"{_what(schedule, grouping, wait.transfer)} at {ms(wait.start_us)}"
    if wait.length_us > SHORT_US:
        facts = [f"{what} waits {ms(wait.length_us)}"]
    else:
        facts = [f"{what} does not wait"]
    if n := len(wait.held_up):
        facts.append(f"{n:,} {'waits' if n == 1 else 'wait'} for it")
    if len(wait.behind) and wait.length_us > SHORT_US:
        longest = _what(schedule, grouping, int(wait.behind[0]))
        n, length = len(wait.behind), ms(float(wait.behind_us[0]))
        facts.append(f"behind {f'{n:,}, such as ' if n > 1 else ''}{longest} ({length})")
    return facts
