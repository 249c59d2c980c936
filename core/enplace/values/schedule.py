"""The schedule: a simulated plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from enplace.errors import EnplaceError
from enplace.extras import import_extra
from enplace.text import ms, seconds
from enplace.values.arrays import Frozen, freeze_arrays
from enplace.values.memory import (
    MemoryCurve,
    TensorLives,
    keep_bases,
    last_uses_us,
    memory_curves,
)
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import OP_COLUMNS, FloatArray, IntArray, table_columns

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Schedule(Frozen):
    """Start and finish of every op and transfer, and the quantities that follow from them.

    Attributes
    ----------
    op_start_us, op_finish_us, op_lane : arrays, shape (n_ops,)
        When each op runs, and on which lane of its device.
    transfer_tensor, transfer_to : int array, shape (n_transfers,)
        Tensor number and destination device of each transfer; its source is the producer's device.
    transfer_start_us, transfer_finish_us : float array, shape (n_transfers,)
        When its channels carry each transfer.

    Raises
    ------
    EnplaceError
        If a time is not finite or an interval ends before it begins.
    """

    problem: Problem
    plan: Plan
    op_start_us: FloatArray
    op_finish_us: FloatArray
    op_lane: IntArray
    transfer_tensor: IntArray
    transfer_to: IntArray
    transfer_start_us: FloatArray
    transfer_finish_us: FloatArray

    def __post_init__(self) -> None:
        for start, finish in (
            (self.op_start_us, self.op_finish_us),
            (self.transfer_start_us, self.transfer_finish_us),
        ):
            if not (np.isfinite(finish).all() and (start >= 0).all() and (finish >= start).all()):
                raise EnplaceError(
                    "a schedule holds an interval that is not finite or runs backwards"
                )
        freeze_arrays(self)

    def __repr__(self) -> str:
        measured = self.problem.measured_profile.measured
        return (
            f"<Schedule of {self.problem.profile.name} on {self.problem.cluster.name}, "
            f"{self.plan.method}: {measured.title_of(ms(self.makespan_us))}>"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return when and where each op runs, as a table; needs pandas.

        Returns
        -------
        pandas.DataFrame
            A row for each op, in the profile's order. Columns: ``op``, ``type``, ``scope``,
            ``device`` (its name), ``lane``, ``start_us`` and ``finish_us`` (µs from the start of
            the step), and what else the profile says of ops.

        Raises
        ------
        EnplaceError
            If pandas is not installed.
        """
        profile = self.problem.profile
        return self._table(
            op=profile.op_names,
            type=profile.op_types,
            scope=profile.scopes,
            device=self._device_names[self.plan.device],
            lane=self.op_lane,
            start_us=self.op_start_us,
            finish_us=self.op_finish_us,
            **{OP_COLUMNS[name].key: getattr(profile, name) for name in table_columns(profile)},
        )

    def transfers_to_pandas(self) -> pd.DataFrame:
        """Return every transfer between devices, as a table; needs pandas.

        Returns
        -------
        pandas.DataFrame
            A row for each transfer. Columns: ``op`` (which made the tensor), ``output`` (its
            number; -1 for a message without a tensor), ``bytes``, ``source`` and ``target`` (names
            of devices), ``start_us`` and ``finish_us`` (µs from the start of the step).

        Raises
        ------
        EnplaceError
            If pandas is not installed.
        """
        profile, tensor = self.problem.profile, self.transfer_tensor
        return self._table(
            op=np.array(profile.op_names, dtype=object)[profile.tensor_op[tensor]],
            output=profile.tensor_output[tensor],
            bytes=self.transfer_bytes,
            source=self._device_names[self.transfer_from],
            target=self._device_names[self.transfer_to],
            start_us=self.transfer_start_us,
            finish_us=self.transfer_finish_us,
        )

    def _table(self, **columns: Any) -> pd.DataFrame:
        return import_extra("pandas", "notebook").DataFrame(columns)

    @property
    def _device_names(self) -> NDArray[np.object_]:
        return np.array([device.name for device in self.problem.cluster.devices], dtype=object)

    @cached_property
    def makespan_us(self) -> float:
        """The step time: when the last op or transfer ends."""
        last_transfer = self.transfer_finish_us.max(initial=0.0)
        return float(max(self.op_finish_us.max(), last_transfer))

    @property
    def value_us(self) -> float:
        """What the plan minimises: the step time, the time per sample or the latency."""
        return self.makespan_us if self.plan.value_us is None else self.plan.value_us

    @cached_property
    def transfer_from(self) -> IntArray:
        """Source device of each transfer; shape (n_transfers,)."""
        return self.plan.device[self.problem.profile.tensor_op[self.transfer_tensor]]

    @property
    def transfer_link(self) -> IntArray:
        """Link of each transfer, numbered as ``cluster.route_ptr`` does; shape (n_transfers,)."""
        return self.transfer_from * self.problem.cluster.n_devices + self.transfer_to

    @cached_property
    def transfer_bytes(self) -> IntArray:
        """Bytes of each transfer; shape (n_transfers,)."""
        return self.problem.profile.tensor_bytes[self.transfer_tensor]

    @cached_property
    def busy_us(self) -> FloatArray:
        """Compute time of each device, all lanes together; shape (n_devices,)."""
        busy = np.zeros(self.problem.cluster.n_devices)
        np.add.at(busy, self.plan.device, self.op_finish_us - self.op_start_us)
        return busy

    @cached_property
    def idle_us(self) -> FloatArray:
        """Idle time of the lanes of each device during the step; shape (n_devices,)."""
        lanes_us = self.makespan_us * self.problem.cluster.lanes
        return np.maximum(lanes_us - self.busy_us, 0.0)

    @property
    def memory(self) -> tuple[MemoryCurve, ...]:
        """Memory over time, one curve for each device; kept only for the schedules asked last."""
        return _memory_of(self)

    @property
    def lives(self) -> TensorLives:
        """How long each device holds each tensor."""
        maker, sent = self.problem.profile.tensor_op, self.transfer_tensor
        home, to = self.plan.device[maker], self.transfer_to
        profile, every = self.problem.profile, np.arange(len(maker))
        last_use_us = last_uses_us(self.problem, self.plan.device, self.op_finish_us)
        own_end_us = np.maximum(self.op_finish_us[maker], last_use_us[every, home])
        np.maximum.at(own_end_us, sent, self.transfer_finish_us)
        np.maximum.at(own_end_us, profile.hold_tensor, self.op_finish_us[profile.hold_op])
        last_use_us[every, home] = own_end_us
        keep_bases(profile.sharing, profile.tensor_base, home, last_use_us)
        own_end_us = last_use_us[every, home]
        sent_end_us = np.maximum(self.transfer_finish_us, last_use_us[sent, to])
        return TensorLives(
            tensor=np.concatenate([np.arange(len(maker)), sent]),
            device=np.concatenate([home, to]),
            start_us=np.concatenate([self.op_start_us[maker], self.transfer_start_us]),
            end_us=np.concatenate([own_end_us, sent_end_us]),
        )

    def under(self, problem: Problem, plan: Plan) -> Schedule:
        """Return the same times for a plan that acts alike, with other constraints."""
        same = replace(self, problem=problem, plan=plan)
        if "peak_bytes" in vars(self):  # to add them up takes as long as to simulate
            vars(same)["peak_bytes"] = self.peak_bytes
        return same

    @cached_property
    def peak_bytes(self) -> IntArray:
        """Highest memory use of each device; shape (n_devices,)."""
        return np.array([curve.peak_bytes for curve in self.memory], dtype=np.int64)

    @property
    def overfull(self) -> NDArray[np.bool_]:
        """Whether each device exceeds its memory; shape (n_devices,)."""
        return self.peak_bytes > self.problem.cluster.capacity_bytes

    @property
    def excess_bytes(self) -> int:
        """By how much the peaks exceed the memory, summed over all devices."""
        over = self.peak_bytes - self.problem.cluster.capacity_bytes
        return sum(each for each in over.tolist() if each > 0)

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory for the plan."""
        return not self.overfull.any()

    @property
    def fit_verdict(self) -> str:
        """What is known about plans that fit, if this one does not; empty if it does."""
        plan = self.plan
        if self.fits:
            return ""
        if plan.nothing_fits:
            of_these = " that keeps what ops make" if plan.keeps_all else ""
            return f"Does not fit, proven for every plan{of_these}"
        if plan.solve_seconds is not None:
            spent = f" in {seconds(plan.solve_seconds)}" if plan.solve_seconds >= 1 else ""
            return f"Nothing found{spent} that fits; not proven"
        return "This plan does not fit"


@lru_cache(maxsize=8)  # a history of edits keeps many schedules, which are small without these
def _memory_of(schedule: Schedule) -> tuple[MemoryCurve, ...]:
    return memory_curves(
        schedule.problem,
        schedule.plan.device,
        schedule.op_start_us,
        schedule.op_finish_us,
        schedule.lives,
    )
