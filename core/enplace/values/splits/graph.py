"""The profile of a graph with split ops (FastT, Algorithm 2, lines 16 to 30).

A part that reads its share of a tensor from the part that made it needs neither a split node nor a
concat node in between. So splitting every op by its samples gives the data-parallel graph, in which
the sums of the parts' gradients do the aggregation.

Ops that only read the shape of a split tensor lose their edge: shapes are known before a step runs.

A profile does not contain the times of parts. We assume that an op's time beyond its launch is
proportional to its share. Split, concat and sum nodes read and write their bytes as fast as this
profile's element-wise ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from enplace.errors import SplitError
from enplace.text import count, listed
from enplace.values.columns import Cut
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import OpKind
from enplace.values.profile import (
    CONTROL,
    KINDS,
    OP_COLUMNS,
    FloatArray,
    IntArray,
    Profile,
    columns_of,
    edge_columns,
    make_profile,
)
from enplace.values.splits.again import with_copies
from enplace.values.splits.rules import (
    SUM,
    WHOLE,
    Rule,
    Split,
    find_operands,
    find_rule,
    legal_dimensions,
    original_name,
    split_lengths,
    without_broken_groups,
)

_MADE = "/split/"
"""Follows the op's name in the names of all nodes that a split creates."""

LAUNCH_US = 2.0
"""Launch time of a kernel if the profile does not record it; we measured 1.3 to 2.3 µs."""

COPY_US_PER_BYTE = 1e-6
"""A terabyte per second, for profiles without large element-wise ops."""

_LARGE_BYTES = 1 << 20

MOST_EDGES, MOST_GROWTH = 200_000, 20
"""Most edges of a graph with split ops: so many or, if more, so many times those of the model."""

MOST_CHARACTERS = 100_000_000
"""Most characters of the names of all parts."""


def launch_us(profile: Profile) -> float:
    """Return the launch time of a kernel, measured or usual."""
    return profile.measured.launch_gap_us or LAUNCH_US


def share(profile: Profile, label: str, values: Any, parts: int) -> Any:
    """Return what ops have in a column if each does one part of its work."""
    column = OP_COLUMNS[label]
    if label == "time_us":
        launch = np.minimum(values, launch_us(profile))  # each part is launched as the op is
        return launch + (values - launch) * (1 / parts)
    if column.cut is Cut.SHARE:
        return column.share(values, parts)
    return values if column.cut is Cut.SAME else column.default


def part_columns(profile: Profile, op: int, parts: int) -> dict[str, Any]:
    """Return what each part of an op has in each column; no weights, no colocation group."""
    values = columns_of(profile).items()
    return {label: share(profile, label, column[op], parts) for label, column in values}


def new_columns(profile: Profile, op: int) -> dict[str, Any]:
    """Return what a node that is added for an op has in each column besides its type and time."""
    values = columns_of(profile)
    return {
        label: values[label][op] if each.cut is Cut.SAME else each.default
        for label, each in OP_COLUMNS.items()
    }


def part_names(op: str, parts: int) -> list[str]:
    """Return the names of the parts of a split op."""
    return [f"{op}{_MADE}part_{i}" for i in range(parts)]


def ends_of(split: Split) -> list[str]:
    """Return the names of the ops that an op becomes: its parts, or itself and its copy.

    What fetches its output does none of its work.
    """
    if split.is_again:
        return [split.op, split.added]
    return [split.op] if split.is_offload else part_names(split.op, split.parts)


def rewriting(splits: Sequence[Split]) -> str:
    """Say what a plan does with ops: ``splits 2 ops and recomputes 1 op``."""
    done = [
        ("splits {}", sum(split.is_cut for split in splits)),
        ("recomputes {}", sum(split.is_again for split in splits)),
        ("keeps outputs of {} on the host", sum(split.is_offload for split in splits)),
    ]
    return listed([text.format(count(n, "op")) for text, n in done if n])


def recomputed_ops(profile: Profile, splits: Sequence[Split]) -> list[int]:
    """Return the copies of ops that are computed again, in the graph that has them."""
    return [profile.index[split.added] for split in splits if split.is_again]


def fetching_ops(profile: Profile, splits: Sequence[Split]) -> list[int]:
    """Return the ops that fetch what is kept on the host, in the graph that has them."""
    return [profile.index[split.added] for split in splits if split.is_offload]


def has_parts(profile: Profile) -> bool:
    """Whether ops of the graph are split already."""
    return any(_MADE in name for name in profile.op_names)


def join_name(op: str, output: int) -> str:
    """Return the name of the node that joins an output of the parts."""
    return f"{op}{_MADE}join_{output}"


def cut_name(op: str, producer: str, output: int) -> str:
    """Return the name of the node that cuts an input of an op for its parts."""
    return f"{op}{_MADE}of_{producer}_{output}"


def whole_names(names: Iterable[str], splits: Sequence[Split]) -> list[str]:
    """Return for each op the name of the op before all splits that it is, or was made for."""
    split = {each.op for each in splits}
    return [_whole_name(name, split) for name in names]


def _whole_name(name: str, split: Collection[str]) -> str:
    end = name.find(_MADE)
    while end >= 0 and name[:end] not in split:
        end = name.find(_MADE, end + 1)
    if end < 0:
        original = original_name(name)
        return original if original in split else name
    return name[:end]


def unsplit_names(names: Iterable[str], splits: Sequence[Split]) -> list[str]:
    """Return the names that the ops had before they were split."""
    return list(dict.fromkeys(whole_names(names, splits)))


def split_profile(profile: Profile, splits: Sequence[Split]) -> Profile:
    """Split ops of a profile; the result includes the costs of the new nodes.

    Splits of ops in the graph come first, all at once whatever their order; then splits of ops that
    the first ones created. What is not kept for late readers comes last.

    Raises
    ------
    SplitError
        If an op is not in the graph, is split twice or cannot be split in this way.
    """
    again = tuple(split for split in splits if not split.is_cut)
    left = tuple(split for split in splits if split.is_cut)
    most = max(MOST_EDGES, MOST_GROWTH * profile.n_ops)
    most_edges = max(MOST_EDGES, MOST_GROWTH * profile.n_edges)  # however often parts are split
    if sum(split.parts for split in left) > most:
        raise SplitError(f"the splits make over {most:,} parts; split into fewer parts")
    if sum(split.parts * len(split.op) for split in left) > MOST_CHARACTERS:
        raise SplitError("the names of the parts are too long together; split into fewer parts")
    while left:
        now = tuple(split for split in left if split.op in profile.index)
        if not now or len({split.op for split in now}) < len(now):
            _raise_why(left, now)
        profile = _split_once(profile, now, most_edges)
        _check_edges(profile.n_edges, most_edges)
        done = set(now)
        left = tuple(split for split in left if split not in done)
    return with_copies(profile, again) if again else profile


def _check_edges(n_edges: int, most: int) -> None:
    if n_edges > most:
        raise SplitError(f"the parts have over {most:,} edges; split into fewer parts")


def _raise_why(left: Sequence[Split], now: Sequence[Split]) -> None:
    if not now:
        raise SplitError(f"op '{left[0].op}' is to be split, but the graph has no op of that name")
    (twice, _), *_ = Counter(split.op for split in now).most_common(1)
    raise SplitError(f"op '{twice}' is split twice; keep one of the two")


@dataclass
class _Ops:
    """The ops and edges of the new graph, in the form that :func:`make_profile` takes."""

    names: list[str]
    columns: dict[str, list[Any]]
    edges: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, name: str, values: Mapping[str, Any]) -> int:
        """Add an op with its value in each column."""
        self.names.append(name)
        for label, column in self.columns.items():
            column.append(values[label])
        return len(self.names) - 1


@lru_cache(maxsize=8)
def _split_once(profile: Profile, splits: tuple[Split, ...], most_edges: int) -> Profile:
    """Make one round of splits; cached, because searches often add to the same first round."""
    return _Splitting(profile, splits, most_edges).run()


class _Splitting:
    def __init__(self, profile: Profile, splits: Sequence[Split], most_edges: int) -> None:
        self._profile, self._most_edges = profile, most_edges
        self._split = {profile.index[split.op]: split for split in splits}
        self._rule = {op: _checked_rule(profile, op, s) for op, s in self._split.items()}
        _check_groups(profile, splits)
        self._launch_us = launch_us(profile)
        self._copy_us = copy_us_per_byte(profile, self._launch_us)
        kept = np.ones(profile.n_ops, dtype=bool)
        kept[list(self._split)] = False
        self._number = np.cumsum(kept) - 1
        ops = np.flatnonzero(kept).tolist()
        self._new = _Ops(
            names=[profile.op_names[op] for op in ops],
            columns={
                label: [values[op] for op in ops] for label, values in columns_of(profile).items()
            },
        )
        self._parts = {op: self._add_parts(op) for op in self._split}
        self._joins: dict[tuple[int, int], int] = {}
        self._reads: dict[tuple[int, int, int], tuple[int, int]] = {}

    def run(self) -> Profile:
        profile, split, new = self._profile, self._split, self._new
        edges = profile.edges
        near = np.isin(edges[:, (0, 2)], list(split)).any(axis=1)
        self._connect_split_ops(edges, np.flatnonzero(near).tolist())
        kept = edges[~near]
        kept[:, (0, 2)] = self._number[kept[:, (0, 2)]]
        more = np.array(new.edges, dtype=np.int64).reshape(-1, 4)
        return make_profile(
            profile.name,
            op_names=new.names,
            **new.columns,
            **edge_columns(np.concatenate([kept, more])),
            holds=self._holds(np.concatenate([kept, more])),
            shares=self._shares(np.concatenate([kept, more])),
            measured=_measured_of_parts(profile, list(split.values())),
        )

    def _holds(self, edges: IntArray) -> list[tuple[int, int, int]]:
        """Hold each part of a tensor until each part of an op, if it still has readers."""
        read = set(zip(edges[:, 0].tolist(), edges[:, 1].tolist(), strict=True))
        return [
            (made, output, end)
            for source, output, op in self._profile.holds.tolist()
            for made in self._ends(source)
            for end in self._ends(op)
            if (made, output) in read
        ]

    def _shares(self, edges: IntArray) -> list[tuple[int, int, int, int]]:
        """Let what a part of an op makes lie in what this part reads of the op's own base."""
        read = set(zip(edges[:, 0].tolist(), edges[:, 1].tolist(), strict=True))
        found = []
        for source, output, base, number in self._profile.shares.tolist():
            for made in self._ends(source):
                usual = (made if base == source else int(self._number[base]), number)
                near = base in self._parts or source in self._parts
                of = self._reads.get((made, base, number), None if near else usual)
                if of is not None and of in read:
                    found.append((made, output, *of))
        return found

    def _connect_split_ops(self, every: IntArray, edges: Sequence[int]) -> None:
        """Replace the edges that begin or end at split ops."""
        axes = self._cut_edges()
        for edge in edges:
            source, output, target, size = every[edge].tolist()
            self._check_edges(0)
            if self._profile.kinds[target] == OpKind.SHAPE:
                continue
            if output == CONTROL:
                self._connect_control(source, target)
            else:
                self._connect(source, output, target, size, axes.get(edge, WHOLE))

    def _check_edges(self, n_more: int) -> None:
        _check_edges(len(self._new.edges) + n_more, self._most_edges)

    def _add_parts(self, op: int) -> list[int]:
        profile, split = self._profile, self._split[op]
        values = part_columns(profile, op, split.parts)
        weights = int(profile.persistent_bytes[op])
        whole = self._rule[op].weights == WHOLE
        values["persistent_bytes"] = weights if whole else -(-weights // split.parts)
        group = profile.colocation[op]
        groups = part_names(group, split.parts) if group else [""] * split.parts
        return [
            self._new.add(name, values | {"colocation": its_group})
            for name, its_group in zip(part_names(split.op, split.parts), groups, strict=True)
        ]

    def _add_node(self, name: str, op: int, op_type: str, n_bytes: int) -> int:
        """Add a node that copies bytes for an op."""
        values = new_columns(self._profile, op)
        kind = OpKind.ELEMENTWISE if op_type == "AddN" else OpKind.OTHER
        values |= {"op_types": op_type, "op_kinds": kind, "time_us": self._copying_us(op, n_bytes)}
        return self._new.add(name, values)

    def _cut_edges(self) -> dict[int, str]:
        """Find the axis along which tensors of edges are cut for the parts of their consumers."""
        return {
            edge: axis
            for op, rule in self._rule.items()
            for edge, operand in find_operands(self._profile, op)
            if (axis := rule.cut(operand)) != WHOLE
        }

    def _ends(self, op: int) -> list[int]:
        """Return the ops of the new graph that replace an op, or the op itself."""
        return self._parts[op] if op in self._parts else [int(self._number[op])]

    def _connect_control(self, source: int, target: int) -> None:
        self._check_edges(len(self._ends(source)) * len(self._ends(target)))
        self._new.edges += [
            (a, CONTROL, b, 0) for a in self._ends(source) for b in self._ends(target)
        ]

    def _connect(self, source: int, output: int, target: int, size: int, axis: str) -> None:
        """Connect a tensor to an op, or the shares of a tensor to the parts of an op."""
        if axis != WHOLE:
            parts, n = self._parts[target], self._split[target].parts
            made = self._parts.get(source, [])
            if len(made) == n and self._rule[source].output == axis:
                pairs = zip(made, parts, strict=True)
                for a, b in pairs:
                    self._feed((source, output), (a, output), b, size // n)
                return
            cut = self._add_cut(source, output, target, size)
            for i, part in enumerate(parts):
                self._feed((source, output), (cut, i), part, size // n)
            return
        whole = self._whole(source, output, size)
        for end in self._ends(target):
            self._feed((source, output), whole, end, size)

    def _feed(self, tensor: tuple[int, int], made: tuple[int, int], op: int, size: int) -> None:
        """Let an op of the new graph read what there is of a tensor."""
        self._new.edges.append((*made, op, size))
        self._reads[op, *tensor] = made

    def _add_cut(self, source: int, output: int, target: int, size: int) -> int:
        profile = self._profile
        name = cut_name(profile.op_names[target], profile.op_names[source], output)
        cut = self._add_node(name, target, "Split", 2 * size)
        self._new.edges.append((*self._whole(source, output, size), cut, size))
        return cut

    def _whole(self, source: int, output: int, size: int) -> tuple[int, int]:
        """Return the op of the new graph that makes the whole tensor, and its output."""
        if source not in self._parts:
            return int(self._number[source]), output
        if (source, output) not in self._joins:
            self._joins[source, output] = self._add_join(source, output, size)
        return self._joins[source, output], 0

    def _add_join(self, source: int, output: int, size: int) -> int:
        profile, parts = self._profile, self._parts[source]
        summed = self._rule[source].output == SUM
        part_bytes = size if summed else size // len(parts)
        name, kind = join_name(profile.op_names[source], output), "AddN" if summed else "ConcatV2"
        join = self._add_node(name, source, kind, size + part_bytes * len(parts))
        self._new.edges += [(part, output, join, part_bytes) for part in parts]
        return join

    def _copying_us(self, op: int, n_bytes: int) -> FloatArray:
        """Return the time to copy bytes on each kind of device where an op can run."""
        runs = ~np.isnan(self._profile.time_us[op])
        return np.where(runs, self._launch_us + n_bytes * self._copy_us, np.nan)


def _checked_rule(profile: Profile, op: int, split: Split) -> Rule:
    rule = find_rule(profile.kinds[op], split.dimension, profile.op_types[op])
    legal = legal_dimensions(profile, op, split.parts)
    if split.dimension not in legal:
        known = f"use {listed(list(legal))}" if legal else "leave it whole"
        raise SplitError(
            f"op '{split.op}' of type '{profile.op_types[op]}' cannot be split into "
            f"{split.parts} equal parts along '{split.dimension}'; {known}"
        )
    return rule


def _measured_of_parts(profile: Profile, splits: Sequence[Split]) -> Measurement:
    """Return the measurement with the lengths that remain for the parts of split ops."""
    lengths = {split: split_lengths(profile, profile.index[split.op]) for split in splits}
    of_parts = {
        name: known | {split.dimension: known[split.dimension] // split.parts}
        for split, known in lengths.items()
        if known is not None
        for name in part_names(split.op, split.parts)
    }
    if not of_parts:
        return profile.measured
    measured = profile.measured
    return replace(measured, split_lengths={**measured.split_lengths, **of_parts})


def _check_groups(profile: Profile, splits: Sequence[Split]) -> None:
    whole = set(splits) - set(without_broken_groups(profile, splits))
    if whole:
        op = min(split.op for split in whole)
        raise SplitError(
            f"op '{op}' is colocated with others that are not split into as many parts; leave it "
            f"whole"
        )


def copy_us_per_byte(profile: Profile, launch_us: float) -> FloatArray:
    """Find the median time per byte of large element-wise ops for each kind of device."""
    moved = np.zeros(profile.n_ops)
    np.add.at(moved, profile.edge_op, profile.tensor_bytes[profile.edge_tensor])
    np.add.at(moved, profile.tensor_op, profile.tensor_bytes)
    elementwise = profile.of_kind(OpKind.ELEMENTWISE)
    large = elementwise & (moved >= _LARGE_BYTES)
    rates = np.full(len(KINDS), COPY_US_PER_BYTE)
    for kind in range(len(KINDS)):
        beyond_us = profile.time_us[:, kind] - launch_us
        known = large & (beyond_us > 0)  # false where the op cannot run
        if known.any():
            rates[kind] = np.median(beyond_us[known] / moved[known])
    return rates
