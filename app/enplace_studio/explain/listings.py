"""Tables of a schedule: ops, transfers, and what fills the memory; with sums. No Qt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from enplace.names.groups import Grouping
from enplace.pictures.palette import colour_numbers
from enplace.text import count, ms, size
from enplace.values.arrays import BoolArray
from enplace.values.profile import FloatArray, IntArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.holdings import contents_at, split_at_peak
from enplace_studio.explain.intervals import Interval, sent_within, within_us
from enplace_studio.explain.queues import requested_us
from enplace_studio.explain.shortened import abbreviated

NO_LAYER = "–"
TYPE, LAYER, DEVICE = "type", "layer", "device"


@dataclass(frozen=True, eq=False)
class Names:
    """A column of texts: in each row the one with a number.

    Attributes
    ----------
    sums : str
        What one sums by with this column: :data:`TYPE`, :data:`LAYER`, :data:`DEVICE` or nothing.
    in_order : bool
        Whether the order of the texts is that of their numbers, not of their letters.
    colours : sequence of int
        If the texts are devices, the number of the colour of each.
    """

    title: str
    number: IntArray
    texts: Sequence[str]
    sums: str = ""
    in_order: bool = False
    colours: Sequence[int] = ()

    def shown(self, row: int) -> str:
        return self.texts[self.number[row]]

    copied = shown

    @property
    def head(self) -> str:
        """The title for a spreadsheet."""
        return self.title

    @cached_property
    def rank(self) -> IntArray:
        """The place of each row's text in the order of this column."""
        if self.in_order:
            return self.number
        used, where = np.unique(self.number, return_inverse=True)
        texts = np.array([self.texts[number] for number in used.tolist()], dtype=str)
        place: IntArray = np.unique(texts, return_inverse=True)[1][where]
        return place

    def take(self, rows: IntArray) -> Names:
        return replace(self, number=self.number[rows])


@dataclass(frozen=True, eq=False)
class Amounts:
    """A column of numbers.

    Attributes
    ----------
    unit : str
        ``"ms"``, ``"bytes"``, ``"%"``, or nothing if it counts something.
    adds : bool
        Whether a sum of it has a meaning.
    """

    title: str
    values: FloatArray
    unit: str
    adds: bool = True

    def shown(self, row: int) -> str:
        value = float(self.values[row])
        if self.unit == "bytes":
            return size(value)
        return {"ms": f"{value / 1000:,.3f}", "%": f"{value:.1f}"}.get(self.unit, f"{value:,.0f}")

    def copied(self, row: int) -> str:
        """Return a number that a spreadsheet can add up."""
        value = float(self.values[row])
        return {"ms": f"{value / 1000:.6f}", "%": f"{value:.3f}"}.get(self.unit, f"{value:.0f}")

    @property
    def head(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def rank(self) -> FloatArray:
        return self.values

    def take(self, rows: IntArray) -> Amounts:
        return replace(self, values=self.values[rows])


Column = Names | Amounts


@dataclass(frozen=True, eq=False)
class Listing:
    """A table.

    Attributes
    ----------
    noun : str
        What a part is: ``"op"``.
    columns : tuple of Column
    op, row : int arrays, shape (n_parts,)
        The op of each part, and the row that it belongs to.
    """

    noun: str
    columns: tuple[Column, ...]
    op: IntArray
    row: IntArray

    @property
    def n_rows(self) -> int:
        return len(self.columns[0].rank)

    @property
    def facts(self) -> list[str]:
        """What the rows add up to."""
        totals = [(c, c.values.sum()) for c in self.columns if isinstance(c, Amounts) and c.adds]
        says = {"ms": ms, "bytes": size}
        told = [f"{says[c.unit](total)} {c.title.lower()}" for c, total in totals if c.unit in says]
        return [count(len(self.op), self.noun), *told]

    def ops_of(self, rows: Collection[int]) -> IntArray:
        """Return the ops of some rows."""
        return np.unique(self.op[np.isin(self.row, list(rows))])

    def keep(self, parts: BoolArray) -> Listing:
        """Return the rows of some parts; of a table that is no sum."""
        rows = np.flatnonzero(parts)
        columns = tuple(column.take(rows) for column in self.columns)
        return Listing(self.noun, columns, self.op[rows], np.arange(len(rows)))

    def sum_by(self, what: str) -> Listing:
        """Sum the rows that have the same type, layer or device; the largest sum first."""
        by = next(c for c in self.columns if isinstance(c, Names) and c.sums == what)
        used, row = np.unique(by.number, return_inverse=True)
        n = len(used)
        sums = [
            replace(c, values=_sums(row, c.values, n))
            for c in self.columns
            if isinstance(c, Amounts) and c.adds
        ]
        parts = Amounts(f"{self.noun.capitalize()}s", _sums(row, np.ones(len(row)), n), "")
        share: FloatArray = 100 * sums[0].values / max(float(sums[0].values.sum()), 1e-9)
        columns: list[Column] = [replace(by, number=used), parts, *sums]
        columns.append(Amounts("Share", share, "%", adds=False))
        order = np.argsort(-sums[0].values, kind="stable")
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        return Listing(self.noun, tuple(c.take(order) for c in columns), self.op, place[row])


def _sums(row: IntArray, values: FloatArray, n: int) -> FloatArray:
    sums: FloatArray = np.bincount(row, values, n).astype(np.float64)
    return sums


class _Naming:
    """The columns of texts that all tables share."""

    def __init__(self, schedule: Schedule, grouping: Grouping) -> None:
        self._schedule, self._grouping = schedule, grouping
        types, self._type = np.unique(schedule.problem.profile.op_types, return_inverse=True)
        self._types = types.tolist()
        self._colours = colour_numbers(schedule.problem.cluster)
        self.devices = [each.label for each in schedule.problem.cluster.devices]

    def of_ops(self, title: str, op: IntArray) -> list[Names]:
        """Name ops, their types and layers."""
        group = self._grouping.group[op]
        layers = [*map(abbreviated, self._grouping.names), NO_LAYER]
        layer = np.where(group >= 0, group, len(layers) - 1)
        return [
            Names(title, op, self._schedule.problem.profile.op_names),
            Names("Type", self._type[op], self._types, TYPE),
            Names("Layer", layer, layers, LAYER, in_order=True),
        ]

    def on(self, device: IntArray) -> Names:
        return Names("Device", device, self.devices, DEVICE, True, self._colours)


def list_ops(schedule: Schedule, grouping: Grouping, span: Interval | None = None) -> Listing:
    """List ops, the longest first; of those that a span cuts, their time in it."""
    naming, profile = _Naming(schedule, grouping), schedule.problem.profile
    time_us = schedule.op_finish_us - schedule.op_start_us
    if span is not None:
        time_us = within_us(schedule.op_start_us, schedule.op_finish_us, span)
    op = np.argsort(-time_us, kind="stable")
    op = op if span is None else op[time_us[op] > 0]
    out_bytes = _sums(profile.tensor_op, profile.tensor_bytes.astype(float), profile.n_ops)
    columns: tuple[Column, ...] = (
        *naming.of_ops("Op", op),
        naming.on(schedule.plan.device[op]),
        Amounts("Start", schedule.op_start_us[op], "ms", adds=False),
        Amounts("Compute", time_us[op], "ms"),
        Amounts("Output", out_bytes[op], "bytes", adds=False),
    )
    return Listing("op", columns, op, np.arange(len(op)))


def list_transfers(schedule: Schedule, grouping: Grouping, span: Interval | None = None) -> Listing:
    """List transfers, the longest first; of those that a span cuts, their share."""
    naming, profile = _Naming(schedule, grouping), schedule.problem.profile
    start_us, asked_us = schedule.transfer_start_us, requested_us(schedule)
    whole = Interval(0.0, schedule.makespan_us + 1.0) if span is None else span
    time_us, sent_bytes = sent_within(schedule, whole)
    if span is None:
        sent_bytes = schedule.transfer_bytes.astype(float)
    waited_us = within_us(asked_us, start_us, whole)
    at = np.argsort(-time_us, kind="stable")
    at = at if span is None else at[time_us[at] + waited_us[at] > 0]
    ways = [f"{source} → {target}" for source in naming.devices for target in naming.devices]
    op = profile.tensor_op[schedule.transfer_tensor[at]]
    columns: tuple[Column, ...] = (
        *naming.of_ops("Sent by", op),
        Names("Link", schedule.transfer_link[at], ways, DEVICE, in_order=True),
        Amounts("Start", start_us[at], "ms", adds=False),
        Amounts("Sending", time_us[at], "ms"),
        Amounts("Waiting", waited_us[at], "ms"),
        Amounts("Sent", sent_bytes[at], "bytes"),
    )
    return Listing("transfer", columns, op, np.arange(len(at)))


def list_memory(
    schedule: Schedule, grouping: Grouping, device: int | None = None, time_us: float = 0.0
) -> Listing:
    """List what fills the memory of a device at a moment, or of each device at its own peak."""
    places = [(device, time_us)] if device is not None else _peaks(schedule)
    held = [(d, each) for d, at_us in places for each in contents_at(schedule, d, at_us)]
    held.sort(key=lambda each: -each[1].bytes)
    naming = _Naming(schedule, grouping)
    op = np.array([each.op for _, each in held], dtype=np.int64)
    kinds, kind = np.unique([each.kind for _, each in held] or [""], return_inverse=True)
    columns: tuple[Column, ...] = (
        *naming.of_ops("Tensor of", op),
        naming.on(np.array([d for d, _ in held], dtype=np.int64)),
        Names("What", kind[: len(held)], kinds.tolist()),
        Amounts("Memory", np.array([each.bytes for _, each in held], dtype=float), "bytes"),
    )
    return Listing("tensor", columns, op, np.arange(len(op)))


def _peaks(schedule: Schedule) -> list[tuple[int, float]]:
    return [
        (device, split_at_peak(curve).peak_us)
        for device, curve in enumerate(schedule.memory)
        if curve.peak_bytes
    ]
