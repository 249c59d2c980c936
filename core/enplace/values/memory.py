"""Memory over time: how long each device holds each tensor, and the totals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enplace.compiling import kernel
from enplace.values.arrays import BoolArray, FloatArray, IntArray, inverse
from enplace.values.plan import position_by_itself
from enplace.values.problem import Problem
from enplace.values.profile import Profile


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes in use on one device.

    Attributes
    ----------
    time_us, bytes : arrays of one length
        ``bytes[i]`` are in use from ``time_us[i]`` until ``time_us[i + 1]``; ``time_us[0]`` is 0.
    sent_bytes : int array
        The part of ``bytes`` that holds tensors received from other devices.
    weights_bytes : int
        The part that is in memory from start to end: variables and optimiser slots.
    """

    time_us: FloatArray
    bytes: IntArray
    sent_bytes: IntArray
    weights_bytes: int

    @property
    def peak_bytes(self) -> int:
        return int(self.bytes.max())

    def index_at(self, time_us: float) -> int:
        """Return which of the values holds at a moment."""
        return max(int(np.searchsorted(self.time_us, time_us, side="right")) - 1, 0)


@dataclass(frozen=True, eq=False)
class TensorLives:
    """One row for each copy of each tensor: on its producer's device and on each destination.

    Attributes
    ----------
    tensor, device : int array, shape (n_copies,)
        The first ``Profile.n_tensors`` rows are the producers' own copies, in tensor order.
    start_us, end_us : float array, shape (n_copies,)
        A producer's copy lives from the producer's start to the latest end of the producer, its
        consumers there, the transfers that send the tensor, and the ops until which it is held,
        wherever they run. A received copy lives from the start of its transfer to the end of its
        last consumer there. Either lives at least as long as what lies in its memory.
    """

    tensor: IntArray
    device: IntArray
    start_us: FloatArray
    end_us: FloatArray

    def sizes(self, profile: Profile) -> IntArray:
        """Return the bytes of each row."""
        copies = profile.copy_bytes[self.tensor[profile.n_tensors :]]
        return np.concatenate([profile.held_bytes, copies])


def last_uses_us(problem: Problem, device: IntArray, op_finish_us: FloatArray) -> FloatArray:
    """Find when the last consumer of each tensor on each device ends; 0 if there is none.

    Returns
    -------
    float array, shape (n_tensors, n_devices)
    """
    profile = problem.profile
    last_us = np.zeros((profile.n_tensors, problem.cluster.n_devices))
    _raise_last_uses(profile.edge_ptr, profile.edge_op, device, op_finish_us, last_us)
    return last_us


@kernel
def _raise_last_uses(
    edge_ptr: IntArray,
    edge_op: IntArray,
    device: IntArray,
    op_finish_us: FloatArray,
    last_us: FloatArray,
) -> None:  # pragma: no cover - compiled
    """Raise the last use of each tensor on each device to the ends of its consumers, in place."""
    # numpy's maximum.at takes several times as long, and searches ask for the memory of many plans.
    for tensor in range(len(last_us)):
        for edge in range(edge_ptr[tensor], edge_ptr[tensor + 1]):
            consumer = edge_op[edge]
            to = device[consumer]
            last_us[tensor, to] = max(last_us[tensor, to], op_finish_us[consumer])


@kernel
def keep_bases(
    sharing: IntArray, base: IntArray, home: IntArray, last_us: FloatArray
) -> None:  # pragma: no cover - compiled
    """Raise the last use of each base to that of the tensors in its memory, in place.

    Parameters
    ----------
    sharing, base : int arrays
        Those of the profile; ``base`` is its ``tensor_base``.
    home : int array, shape (n_tensors,)
        The device that makes each tensor.
    last_us : float array, shape (n_tensors, n_devices)
    """
    for tensor in sharing:
        d = home[tensor]
        last_us[base[tensor], d] = max(last_us[base[tensor], d], last_us[tensor, d])


def memory_curves(
    problem: Problem,
    device: IntArray,
    op_start_us: FloatArray,
    op_finish_us: FloatArray,
    lives: TensorLives,
) -> tuple[MemoryCurve, ...]:
    """Add up lives, temporary and persistent bytes, one curve for each device.

    At one instant, frees come before allocations.
    """
    profile = problem.profile
    n_own, n_copies = profile.n_tensors, len(lives.tensor)
    size = np.concatenate([lives.sizes(profile), profile.temporary_bytes])
    start = np.concatenate([lives.start_us, op_start_us])
    end = np.concatenate([lives.end_us, op_finish_us])
    where = np.concatenate([lives.device, device])
    received = np.zeros(len(size), dtype=bool)
    received[n_own:n_copies] = True
    where[(size == 0) | (end <= start)] = -1  # held nowhere
    weights = np.bincount(
        device, weights=profile.persistent_bytes, minlength=problem.cluster.n_devices
    )
    return tuple(
        _curve(start[mine], end[mine], size[mine], received[mine], int(weights[d]))
        for d in range(problem.cluster.n_devices)
        for mine in [np.flatnonzero(where == d)]
    )


def one_device_peak_bytes(problem: Problem) -> int:
    """Find the peak memory of one device if it ran all ops in the framework's order.

    This equals the simulated peak, but does not wait for the simulator to be compiled.
    """
    profile = problem.profile
    order = inverse(position_by_itself(profile))
    finish_us = np.empty(profile.n_ops)
    finish_us[order] = np.cumsum(np.nanmin(profile.time_us, axis=1)[order])
    start_us = np.empty(profile.n_ops)
    start_us[order] = np.concatenate([[0.0], finish_us[order[:-1]]])
    end_us = finish_us[profile.tensor_op]
    np.maximum.at(end_us, profile.edge_tensor, finish_us[profile.edge_op])
    np.maximum.at(end_us, profile.hold_tensor, finish_us[profile.hold_op])
    np.maximum.at(end_us, profile.tensor_root, end_us.copy())
    device = np.zeros(profile.n_ops, dtype=np.int64)
    own = device[profile.tensor_op]
    lives = TensorLives(np.arange(profile.n_tensors), own, start_us[profile.tensor_op], end_us)
    return memory_curves(problem, device, start_us, finish_us, lives)[0].peak_bytes


def _curve(
    start: FloatArray, end: FloatArray, size: IntArray, received: BoolArray, weights: int
) -> MemoryCurve:
    """Compute running sums after the last change of each instant."""
    time = np.concatenate([end, start], dtype=np.float64)
    # Times are not negative, so their bits are in the same order, and are sorted much faster.
    order = np.argsort(time.view(np.int64), kind="stable")
    time = time[order]
    last = np.ones(len(time), dtype=bool)
    last[:-1] = np.diff(time) > 0
    total, sent = (
        np.cumsum(np.concatenate([-held, held])[order])[last]
        for held in (size, np.where(received, size, 0))
    )
    time = time[last]
    if len(time) == 0 or time[0] > 0:
        time, total, sent = (np.insert(values, 0, 0) for values in (time, total, sent))
    return MemoryCurve(time, total + weights, sent, weights)
