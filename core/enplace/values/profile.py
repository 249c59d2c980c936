"""The profile: a computation graph together with its measured costs."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enplace.errors import (
    CostError,
    CycleError,
    DanglingEdgeError,
    DuplicateOpError,
    EmptyProfileError,
    NameTooLongError,
    OrderError,
    ProfileError,
    TensorMismatchError,
)
from enplace.text import count, ms, size
from enplace.values.arrays import (
    BoolArray,
    FloatArray,
    Frozen,
    IntArray,
    csr_offsets,
    freeze_arrays,
    give_away,
    inverse,
    marked,
    raise_along_edges,
    topological_order,
)
from enplace.values.columns import Column, Cut, Merge, check_texts, column, number_array
from enplace.values.limits import KINDS, MAX_BYTES, MAX_NAME, MAX_TIME_US
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import OpKind, OpPass, is_read_type, kinds_of

__all__ = [
    "CONTROL",
    "KINDS",
    "MAX_BYTES",
    "MAX_NAME",
    "MAX_TIME_US",
    "OP_COLUMNS",
    "FloatArray",
    "IntArray",
    "Profile",
    "columns_of",
    "edge_columns",
    "growing",
    "has_column",
    "make_profile",
    "table_columns",
    "with_control_edges",
]

MOST_PAIRS = 200_000
"""Most pairs of ops that a person may order."""

CONTROL = -1
"""Output number of the tensor without bytes that represents an op's control edges."""


def _nothing() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Profile(Frozen):
    """A computation graph with the costs of its ops and tensors.

    Ops are numbered ``0 .. n_ops - 1``. Tensors are sorted by (op, output), edges by (tensor,
    consumer); an op that consumes one tensor twice has one edge. Build one with
    :func:`make_profile`.

    Attributes
    ----------
    name : str
        The model's name.
    op_names : tuple of str, length n_ops
        Unique names.
    tensor_op, tensor_output, tensor_bytes : int array, shape (n_tensors,)
        Producer, output number (:data:`CONTROL` for control edges) and size of each tensor.
    edge_tensor, edge_op : int array, shape (n_edges,)
        The tensor that each edge carries, and the op that consumes it.
    time_us : float array, shape (n_ops, 2)
        Compute time on each of :data:`KINDS`; NaN where the op cannot run on that kind.
    op_types, scopes : tuple of str, length n_ops
        The framework's type, and the name scope that people see.
    op_kinds : tuple of str, length n_ops
        One of :class:`~enplace.values.op_kinds.OpKind`, or empty where nobody said it; see
        :attr:`kinds`.
    op_passes : tuple of str, length n_ops
        One of :class:`~enplace.values.op_kinds.OpPass`, or empty where only names tell it; see
        :mod:`enplace.names.passes`.
    persistent_bytes, temporary_bytes : int array, shape (n_ops,)
        Bytes held from the start (variables, optimiser slots), and bytes held only while the op
        runs.
    state_bytes : int array, shape (n_ops,)
        Of the persistent bytes, the states of an optimiser, in numbers of ``measured.state_bits``,
        where the profile tells them from the weights.
    tensor_base : int array, shape (n_tensors,)
        The tensor in whose memory each lies, as a view or a version changed in place does: its
        base. It is an input of the op that makes the tensor, or another output; -1 for a tensor
        with memory of its own. Where the op runs, the tensor takes no memory, and keeps that of its
        base. Sent elsewhere, it is a copy like any other.
    flops : float array, shape (n_ops,)
        Operations with floating-point numbers; NaN if unknown.
    hold_tensor, hold_op : int array, shape (n_holds,)
        Tensors that stay on their device until an op has ended, which need not read them and may
        run elsewhere. A hold sends nothing and orders nothing. Sorted by (tensor, op).
    colocation : tuple of str, length n_ops
        Ops with the same non-empty text must share a device.
    measured : Measurement
        How the profile was measured.

    Raises
    ------
    ProfileError
        One of its subclasses, for the first fault found.
    """

    name: str
    op_names: tuple[str, ...]
    tensor_op: IntArray
    tensor_output: IntArray
    tensor_bytes: IntArray
    edge_tensor: IntArray
    edge_op: IntArray
    _: KW_ONLY
    op_types: tuple[str, ...] = column("type", str, "Its type, such as MatMul.", always=True)
    scopes: tuple[str, ...] = column(
        "scope", str, "Its scope, if the name does not tell.", always=True
    )
    time_us: FloatArray = column(
        "time_us",
        float,
        "A kind of device that the op cannot run on is absent.",
        merge=Merge.SUM,
        cut=Cut.OWN,
        grows=True,
        most=MAX_TIME_US,
        width=len(KINDS),
        always=True,
    )
    persistent_bytes: IntArray = column(
        "persistent_bytes",
        int,
        "Memory that it holds for the whole step: variables, optimiser slots.",
        merge=Merge.SUM,
        cut=Cut.OWN,
        default=0,
        always=True,
        label="variables",
        unit="bytes",
    )
    state_bytes: IntArray = column(
        "state_bytes",
        int,
        "How much of persistent_bytes is optimiser states, in numbers of measured.state_bits bits.",
        merge=Merge.SUM,
        cut=Cut.OWN,
        default=0,
        label="optimiser states",
        unit="bytes",
    )
    temporary_bytes: IntArray = column(
        "temporary_bytes",
        int,
        "Memory that it needs only while it runs.",
        merge=Merge.OWN,
        cut=Cut.SHARE,
        grows=True,
        default=0,
        always=True,
        label="while it runs",
        unit="bytes",
    )
    colocation: tuple[str, ...] = column(
        "colocation",
        str,
        "Ops that share a group share a device.",
        merge=Merge.OWN,
        cut=Cut.OWN,
        always=True,
    )
    op_kinds: tuple[str, ...] = column(
        "kind",
        str,
        "What it does, whatever its framework calls it; if absent, its type tells.",
        choices=tuple(map(str, OpKind)),
        label="kind",
    )
    op_passes: tuple[str, ...] = column(
        "pass",
        str,
        "The pass of a training step that it belongs to; if absent, its scope tells: gradients/ "
        "and update/ begin those of backward ops and updates.",
        choices=tuple(map(str, OpPass)),
        label="pass",
    )
    flops: FloatArray = column(
        "flops",
        float,
        "Operations with floating-point numbers, a product and a sum as two; absent if unknown.",
        merge=Merge.SUM,
        cut=Cut.SHARE,
        grows=True,
        default=math.nan,
        most=1e30,
        label="arithmetic",
        unit="FLOP",
        table=True,
    )
    hold_tensor: IntArray = field(default_factory=_nothing)
    hold_op: IntArray = field(default_factory=_nothing)
    tensor_base: IntArray = field(default_factory=_nothing)
    measured: Measurement = field(default_factory=Measurement)

    def __post_init__(self) -> None:
        _check_columns(self)
        if not len(self.tensor_base):
            object.__setattr__(self, "tensor_base", np.full(len(self.tensor_op), -1))
        if len(self.name) > MAX_NAME:
            raise NameTooLongError(f"the model's name has over {MAX_NAME} characters; shorten it")
        _check_names(self.op_names, *(getattr(self, label) for label in _TEXTS))
        _check_costs(self)
        _check_edges(self)
        _check_holds(self)
        _check_bases(self)
        _check_backward(self)
        freeze_arrays(self)
        if len(self.topological_order) < self.n_ops:
            cycle = _find_cycle(self)
            raise CycleError(f"the graph has a cycle: {cycle}; remove one of these edges", cycle)

    def __str__(self) -> str:
        held = self.persistent_bytes[~self.of_kind(OpKind.INPUT)]  # not a data set that stays
        parts = [
            count(self.n_ops, "op"),
            count(self.n_edges, "edge"),
            f"{size(float(held.sum()))} of variables",
        ]
        step_us = self.measured.step_time_us
        if step_us is not None:
            parts.append(f"measured step {ms(step_us)}")
        if self.measured.estimated:
            parts.append("estimated times")
        return f"{self.name}: {', '.join(parts)}"

    def __repr__(self) -> str:
        return f"<Profile {self}>"

    @property
    def n_ops(self) -> int:
        return len(self.op_names)

    @property
    def n_tensors(self) -> int:
        return len(self.tensor_op)

    @property
    def n_edges(self) -> int:
        return len(self.edge_op)

    @property
    def edges(self) -> IntArray:
        """The source, output, consumer and bytes of each edge; shape (n_edges, 4)."""
        output, size = (each[self.edge_tensor] for each in (self.tensor_output, self.tensor_bytes))
        return np.stack([self.edge_source, output, self.edge_op, size], axis=1)

    @property
    def holds(self) -> IntArray:
        """The source, output and last op of each hold; shape (n_holds, 3)."""
        tensor = self.hold_tensor
        ends = self.tensor_op[tensor], self.tensor_output[tensor], self.hold_op
        return np.stack(ends, axis=1)

    @property
    def shares(self) -> IntArray:
        """The source and output of each tensor that has a base, then those of the base; (n, 4)."""
        tensor = np.flatnonzero(self.tensor_base >= 0)
        ends = (tensor, self.tensor_base[tensor])
        columns = [each[of] for of in ends for each in (self.tensor_op, self.tensor_output)]
        return np.stack(columns, axis=1)

    @cached_property
    def sharing(self) -> IntArray:
        """The tensors that have a base, each before it."""
        tensor = np.flatnonzero(self.tensor_base >= 0)
        position, op = inverse(self.topological_order), self.tensor_op
        is_sibling = op[self.tensor_base[tensor]] == op[tensor]
        return _frozen(tensor[np.lexsort((~is_sibling, -position[op[tensor]]))])

    @cached_property
    def tensor_root(self) -> IntArray:
        """The base of each tensor's base, and so on: where it lies if all is on one device."""
        return _frozen(find_roots(self.tensor_base))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each op, from its type where the profile does not say it; empty if unknown."""
        return kinds_of(self.op_kinds, self.op_types)

    def of_kind(self, *kinds: str) -> BoolArray:
        """Whether each op is of one of some kinds; shape (n_ops,)."""
        return np.array([kind in kinds for kind in self.kinds], dtype=bool)

    @cached_property
    def index(self) -> dict[str, int]:
        """Op number by name."""
        return {name: op for op, name in enumerate(self.op_names)}

    @cached_property
    def tensor_ptr(self) -> IntArray:
        """Tensors of op ``u`` are ``tensor_ptr[u] : tensor_ptr[u + 1]``; shape (n_ops + 1,)."""
        return csr_offsets(self.tensor_op, self.n_ops)

    @cached_property
    def edge_ptr(self) -> IntArray:
        """Edges of tensor ``t`` are ``edge_ptr[t] : edge_ptr[t + 1]``; shape (n_tensors + 1,)."""
        return csr_offsets(self.edge_tensor, self.n_tensors)

    @cached_property
    def hold_ptr(self) -> IntArray:
        """Holds of tensor ``t`` are ``hold_ptr[t] : hold_ptr[t + 1]``; shape (n_tensors + 1,)."""
        return csr_offsets(self.hold_tensor, self.n_tensors)

    @cached_property
    def out_ptr(self) -> IntArray:
        """Edges that leave op ``u`` are ``out_ptr[u] : out_ptr[u + 1]``; shape (n_ops + 1,)."""
        return self.edge_ptr[self.tensor_ptr]

    @cached_property
    def copy_bytes(self) -> IntArray:
        """Memory that each tensor takes on a device that receives it; shape (n_tensors,).

        Zero in the inputs of 2020, where the size of a node already includes its activations.
        """
        size = self.tensor_bytes
        return size if self.measured.backward is None else _frozen(np.zeros_like(size))

    @cached_property
    def held_bytes(self) -> IntArray:
        """Memory that each tensor takes on the device that makes it; shape (n_tensors,).

        It is that of a copy, but none for a tensor that lies in the memory of another, nor for the
        content of a variable, which holds it already. An op that only reads a variable beside it
        passes on the same memory.
        """
        op, variable = self.tensor_op, self.variable_given[self.tensor_op]
        group = np.unique(self.colocation, return_inverse=True)[1]
        ungrouped = np.array([not each for each in self.colocation])
        beside = (op == variable) | ((group[op] == group[variable]) & ~ungrouped[op])
        there = beside & (variable >= 0) & (self.persistent_bytes[variable] >= self.tensor_bytes)
        return _frozen(np.where(there | (self.tensor_base >= 0), 0, self.copy_bytes))

    @cached_property
    def running_bytes(self) -> IntArray:
        """The least bytes that a device holds while it runs each op; shape (n_ops,).

        They are its temporary memory and the tensors that it reads and makes. Those that may lie in
        one another's memory count once, like the smallest of them and their bases.
        """
        return _frozen(self.bytes_to_run(np.ones(self.n_tensors, dtype=bool)))

    def bytes_to_run(self, is_made: BoolArray) -> IntArray:
        """Return :attr:`running_bytes` if only some tensors are made; shape (n_ops,)."""
        made = np.flatnonzero(is_made)
        op = np.concatenate([self.tensor_op[made], self.edge_op])
        least = np.where(self.tensor_base < 0, self.held_bytes, self.copy_bytes)
        for tensor in self.sharing[::-1]:
            least[tensor] = min(least[tensor], least[self.tensor_base[tensor]])
        tensor = np.concatenate([made, self.edge_tensor])
        buffer = op * self.n_tensors + self.tensor_root[tensor]
        order = np.lexsort((-least[tensor], buffer))
        first = order[np.diff(buffer[order], prepend=-1) > 0]
        running = self.temporary_bytes.copy()
        np.add.at(running, op[first], least[tensor[first]])
        return running

    @property
    def is_largest_output(self) -> BoolArray:
        """The largest tensor of each op, if any is read, of those that are; shape (n_tensors,)."""
        is_read = (np.diff(self.edge_ptr) > 0) & (self.tensor_output != CONTROL)
        order = np.lexsort((self.held_bytes, is_read, self.tensor_op))
        found = np.zeros(self.n_tensors, dtype=bool)
        found[order[np.diff(self.tensor_op[order], append=-1) != 0]] = True
        return found

    @cached_property
    def variable_given(self) -> IntArray:
        """The variable whose content each op gives out, itself or read by it; shape (n_ops,).

        -1 for the other ops.
        """
        given = np.where(self.of_kind(OpKind.VARIABLE), np.arange(self.n_ops), -1)
        is_data = self.tensor_output[self.edge_tensor] != CONTROL
        source, op = self.edge_source[is_data], self.edge_op[is_data]
        reads = np.array([is_read_type(each) for each in self.op_types])
        reads &= np.bincount(op, minlength=self.n_ops) == 1
        from_variable = reads[op] & (given[source] == source)
        given[op[from_variable]] = source[from_variable]
        return given

    @cached_property
    def edge_source(self) -> IntArray:
        """Producing op of each edge; shape (n_edges,)."""
        return self.tensor_op[self.edge_tensor]

    @cached_property
    def in_edges(self) -> IntArray:
        """Edges sorted by consumer; those of ``v`` are ``in_edges[in_ptr[v] : in_ptr[v + 1]]``."""
        return np.argsort(self.edge_op, kind="stable").astype(np.int64)

    @cached_property
    def in_ptr(self) -> IntArray:
        """Offsets into :attr:`in_edges`; shape (n_ops + 1,)."""
        return csr_offsets(np.sort(self.edge_op), self.n_ops)

    @cached_property
    def topological_order(self) -> IntArray:
        """Kahn's order: first in, first out, lowest op first; shorter than n_ops only if cyclic."""
        return topological_order(self.n_ops, self.out_ptr, self.edge_op)

    @cached_property
    def depth(self) -> IntArray:
        """The most edges on a path to each op; shape (n_ops,)."""
        depth = [0] * self.n_ops
        out_ptr, target = self.out_ptr.tolist(), self.edge_op.tolist()
        for op in self.topological_order.tolist():
            for end in target[out_ptr[op] : out_ptr[op + 1]]:
                depth[end] = max(depth[end], depth[op] + 1)
        return _frozen(np.array(depth, dtype=np.int64))

    def edges_into(self, op: int) -> IntArray:
        """Return the edges that lead to an op, in the order of its inputs' tensors."""
        return self.in_edges[self.in_ptr[op] : self.in_ptr[op + 1]]

    def readers_of(self, op: int) -> IntArray:
        """Return the op at the end of each edge that leaves an op."""
        return self.edge_op[self.out_ptr[op] : self.out_ptr[op + 1]]

    def reach(self, ops: BoolArray, backward: bool = False) -> BoolArray:
        """Return some ops and all that depend on them, or on which they depend; (n_ops,)."""
        found = ops.copy()
        if backward:
            order = np.ascontiguousarray(self.topological_order[::-1])
            sources = give_away(self.edge_source[self.in_edges])
            raise_along_edges(order, self.in_ptr, sources, found)
        else:
            raise_along_edges(self.topological_order, self.out_ptr, self.edge_op, found)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the graph's names, types and edges, without its costs."""
        digest = hashlib.sha256()
        for texts in (self.op_names, self.op_types):
            digest.update("\0".join(texts).encode() + b"\1")
        tensor = self.edge_tensor
        for numbers in (self.edge_source, self.tensor_output[tensor], self.edge_op):
            digest.update(np.ascontiguousarray(numbers, dtype="<i8").tobytes())
        return digest.hexdigest()[:32]

    def with_costs(self, time_us: FloatArray) -> Profile:
        """Return the same graph with other compute times, shape (n_ops, 2)."""
        return replace(self, time_us=np.array(time_us, dtype=np.float64))


OP_COLUMNS: dict[str, Column] = {
    each.name: each.metadata["column"] for each in fields(Profile) if "column" in each.metadata
}
"""All that a profile holds of an op besides its name and its edges."""

_TEXTS = [name for name, each in OP_COLUMNS.items() if each.type is str]


def columns_of(profile: Profile) -> dict[str, Any]:
    """Return all columns of a profile's ops by name, as :func:`make_profile` takes them."""
    return {label: getattr(profile, label) for label in OP_COLUMNS}


def has_column(profile: Profile, label: str) -> bool:
    """Whether a column says anything of an op."""
    column, values = OP_COLUMNS[label], getattr(profile, label)
    if column.type is str:
        return set(values) != {column.default}
    return bool(((values == values) & (values != column.default)).any())


def table_columns(profile: Profile) -> list[str]:
    """List the columns that tables have besides their own, and that say something."""
    return [name for name, each in OP_COLUMNS.items() if each.table and has_column(profile, name)]


def growing(profile: Profile) -> Iterator[tuple[str, Column, NDArray[Any]]]:
    """Iterate over the columns that grow with the batch, with their values."""
    return (
        (label, each, getattr(profile, label)) for label, each in OP_COLUMNS.items() if each.grows
    )


def edge_columns(edges: Sequence[Sequence[int]] | IntArray) -> dict[str, IntArray]:
    """Turn edges into arguments of :func:`make_profile`.

    Parameters
    ----------
    edges : sequence of (source, output, consumer, bytes)
    """
    columns = np.array(edges, dtype=np.int64).reshape(-1, 4).T
    return dict(zip(EDGE_COLUMNS, columns, strict=True))


EDGE_COLUMNS = ("edge_source", "edge_output", "edge_op", "edge_bytes")


def make_profile(
    name: str,
    *,
    op_names: Sequence[str],
    time_us: Any,
    edge_source: Sequence[int] | IntArray = (),
    edge_output: Sequence[int] | IntArray = (),
    edge_op: Sequence[int] | IntArray = (),
    edge_bytes: Sequence[int] | IntArray = (),
    holds: Sequence[Sequence[int]] | IntArray = (),
    shares: Sequence[Sequence[int]] | IntArray = (),
    measured: Measurement | None = None,
    **columns: Any,
) -> Profile:
    """Build a profile from a plain list of edges.

    Parameters
    ----------
    time_us : float, shape (n_ops, 2)
        As in :class:`Profile`: a row for each op, a column for each of :data:`KINDS`.
    edge_source, edge_output, edge_op, edge_bytes : int, length n_edges
        Producer, output number (:data:`CONTROL` for a control edge), consumer and bytes of each
        edge; see :func:`edge_columns`.
    holds : sequence of (source, output, op)
        Each a tensor that stays on its device until an op has ended; an op reads it.
    shares : sequence of (source, output, base source, base output)
        Each a tensor that lies in the memory of another, which the source reads or makes. A tensor
        that no op reads takes no memory anyway, and is left out.
    columns
        The other columns of :class:`Profile`, as lists or arrays; those left out have their
        default.

    Raises
    ------
    ProfileError
        If the graph or a cost cannot be used.
    """
    if unknown := columns.keys() - OP_COLUMNS.keys():
        raise TypeError(f"a profile has no column '{min(unknown)}'")
    given = (edge_source, edge_output, edge_op, edge_bytes)
    source, output, target, size = _edge_arrays(dict(zip(EDGE_COLUMNS, given, strict=True)))
    _check_ends(op_names, source, target)
    order = np.lexsort((target, output, source))
    source, output, target, size = source[order], output[order], target[order], size[order]
    new = np.ones(len(source), dtype=bool)
    new[1:] = (np.diff(source) != 0) | (np.diff(output) != 0)
    tensor = np.cumsum(new) - 1
    wrong = np.flatnonzero(size != size[new][tensor]) if len(size) else size
    if len(wrong):
        edge = wrong[0]
        raise TensorMismatchError(
            f"op '{op_names[source[edge]]}', output {output[edge]}: its edges give "
            f"{size[new][tensor][edge]} and {size[edge]} bytes; give every edge of one output "
            f"the same bytes"
        )
    keep = np.ones(len(source), dtype=bool)
    keep[1:] = (np.diff(tensor) != 0) | (np.diff(target) != 0)
    ends = zip(source[new].tolist(), output[new].tolist(), strict=True)
    tensors = {each: number for number, each in enumerate(ends)}
    hold_tensor, hold_op = _find_holds(op_names, tensors, holds)
    return Profile(
        name=name,
        hold_tensor=hold_tensor,
        hold_op=hold_op,
        tensor_base=_find_bases(op_names, tensors, shares),
        op_names=tuple(op_names),
        tensor_op=source[new],
        tensor_output=output[new],
        tensor_bytes=size[new],
        edge_tensor=tensor[keep].astype(np.int64),
        edge_op=target[keep],
        measured=measured or Measurement(),
        **{
            label: OP_COLUMNS[label].taken(label, values)
            for label, values in {"time_us": time_us, **columns}.items()
        },
    )


def find_pairs(
    profile: Profile, first: Sequence[int], then: Sequence[int]
) -> list[tuple[int, int]]:
    """Find the fewest pairs of ops to order so that all of some ops end before others start.

    These are the ops of ``first`` without an edge to another of them, each with the ops of ``then``
    without an edge from another.

    Raises
    ------
    OrderError
        If even these are too many.
    """
    source, target = profile.edge_source, profile.edge_op

    def inner(ops: Sequence[int]) -> BoolArray:
        inside = marked(profile.n_ops, ops)
        return inside[source] & inside[target]

    last = np.setdiff1d(first, source[inner(first)])
    start = np.setdiff1d(then, target[inner(then)])
    check_pairs(len(last) * len(start))
    return [(a, b) for a in last.tolist() for b in start.tolist()]


def check_pairs(n_pairs: int) -> None:
    """Refuse to order more pairs of ops than anybody needs.

    Raises
    ------
    OrderError
        If they are too many.
    """
    if n_pairs > MOST_PAIRS:
        raise OrderError(f"{n_pairs:,} pairs of ops are to be ordered; order fewer ops")


@lru_cache(maxsize=4)
def with_control_edges(profile: Profile, pairs: tuple[tuple[int, int], ...]) -> Profile:
    """Add a control edge for each (op, op that waits for it); cached for undo and redo.

    Raises
    ------
    CycleError
        If ops would wait for each other.
    """
    control = [(a, CONTROL, b, 0) for a, b in pairs]
    return make_profile(
        profile.name,
        op_names=profile.op_names,
        **columns_of(profile),
        **edge_columns(np.concatenate([profile.edges, np.array(control).reshape(-1, 4)])),
        holds=profile.holds,
        shares=profile.shares,
        measured=profile.measured,
    )


def find_roots(base: IntArray) -> IntArray:
    """Follow each tensor's base to the last one, which has none."""
    root = np.where(base < 0, np.arange(len(base)), base)
    while (root[root] != root).any():
        root = root[root]
    return root


def _frozen(values: IntArray) -> IntArray:
    """Make an array read-only, like all of a profile: kernels are compiled for either kind."""
    values.flags.writeable = False
    return values


def _edge_arrays(columns: dict[str, Sequence[int] | IntArray]) -> list[IntArray]:
    found = [number_array(label, values, np.int64) for label, values in columns.items()]
    if len({values.shape for values in found}) > 1 or found[0].ndim != 1:
        raise ProfileError(f"{', '.join(columns)} must have the same length")
    return found


def _find_holds(
    op_names: Sequence[str],
    tensors: Mapping[tuple[int, int], int],
    holds: Sequence[Sequence[int]] | IntArray,
) -> tuple[IntArray, IntArray]:
    """Find the number of each hold's tensor, and its op."""
    pairs = set()
    for maker, number, op in np.array(holds, dtype=np.int64).reshape(-1, 3).tolist():
        if (maker, number) not in tensors or number == CONTROL:
            raise DanglingEdgeError(
                f"{_output_name(op_names, maker, number)}: it is held, but no op reads it; hold "
                f"what is read"
            )
        pairs.add((tensors[maker, number], op))
    tensor, until = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    return tensor, until


def _find_bases(
    op_names: Sequence[str],
    tensors: Mapping[tuple[int, int], int],
    shares: Sequence[Sequence[int]] | IntArray,
) -> IntArray:
    """Find the number of each tensor's base; -1 for those without."""
    base = np.full(len(tensors), -1, dtype=np.int64)
    for maker, output, source, number in np.array(shares, dtype=np.int64).reshape(-1, 4).tolist():
        if (maker, output) not in tensors:
            continue
        if (source, number) not in tensors:
            raise DanglingEdgeError(
                f"{_output_name(op_names, maker, output)}: it lies in the memory of "
                f"{_output_name(op_names, source, number)}, which no op reads; name what is read"
            )
        base[tensors[maker, output]] = tensors[source, number]
    return base


def _output_name(op_names: Sequence[str], op: int, output: int) -> str:
    known = op_names[op] if 0 <= op < len(op_names) else f"number {op}"
    return f"op '{known}', output {output}"


def _check_columns(profile: Profile) -> None:
    n = profile.n_ops
    if n == 0:
        raise EmptyProfileError(f"profile '{profile.name}' has no ops; export the graph again")
    for label, each in OP_COLUMNS.items():
        if getattr(profile, label) is None:
            object.__setattr__(profile, label, each.default_for(n))
        each.check(label, getattr(profile, label), profile.op_names)
    if profile.time_us.shape != (n, len(KINDS)):
        raise ProfileError(
            f"time_us has shape {profile.time_us.shape}, not {(n, len(KINDS))}; give each op a row "
            f"with its time on {' and on '.join(KINDS)}"
        )
    for labels in (("tensor_op", "tensor_output", "tensor_bytes"), ("edge_tensor", "edge_op")):
        if len({getattr(profile, label).shape for label in labels}) > 1:
            raise ProfileError(f"{', '.join(labels)} must have the same length")


@lru_cache(maxsize=4)
def _check_names(op_names: tuple[str, ...], *columns: tuple[str, ...]) -> None:
    """Check the texts; cached, because profiles with other costs or edges share them."""
    for op, texts in enumerate(zip(op_names, *columns, strict=True)):
        check_texts(op, texts)
    if len(set(op_names)) < len(op_names):
        name, count = Counter(op_names).most_common(1)[0]
        raise DuplicateOpError(f"{count} ops are called '{name}'; op names must be unique")


def _check_costs(profile: Profile) -> None:
    missing = np.isnan(profile.time_us)
    if (op := _first(missing.all(axis=1))) is not None:
        raise CostError(
            f"op '{profile.op_names[op]}' has a time on neither gpu nor cpu; give it at least one"
        )
    wrong = ~missing & ~((profile.time_us >= 0) & (profile.time_us <= MAX_TIME_US))
    if (op := _first(wrong.any(axis=1))) is not None:
        value = profile.time_us[op][wrong[op]][0]
        raise CostError(
            f"op '{profile.op_names[op]}': a time of {value:g} us is impossible; "
            f"use 0 to {MAX_TIME_US:g} us"
        )
    size = profile.tensor_bytes
    held = [getattr(profile, label) for label, each in OP_COLUMNS.items() if each.unit == "bytes"]
    if sum(float(np.abs(part.astype(np.float64)).sum()) for part in (*held, size)) > MAX_BYTES:
        raise CostError(
            "all bytes together are over 2^62, more than any machine holds; correct them"
        )
    if (tensor := _first((size < 0) | (size > MAX_BYTES))) is not None:
        raise CostError(
            f"op '{profile.op_names[profile.tensor_op[tensor]]}', output "
            f"{profile.tensor_output[tensor]}: {size[tensor]} bytes is impossible; use 0 to 2^62 "
            f"bytes"
        )
    if (tensor := _first((profile.tensor_output == CONTROL) & (size > 0))) is not None:
        raise CostError(
            f"op '{profile.op_names[profile.tensor_op[tensor]]}': a control edge carries "
            f"{size[tensor]} bytes; control edges carry none"
        )


def _check_edges(profile: Profile) -> None:
    _check_ends(profile.op_names, profile.tensor_op, profile.edge_op)
    bad = (profile.edge_tensor < 0) | (profile.edge_tensor >= profile.n_tensors)
    if _first(bad) is not None:
        raise DanglingEdgeError(f"edge {_first(bad)} carries a tensor that does not exist")
    in_order = (
        np.all(np.diff(profile.tensor_op) >= 0)
        and np.all(np.diff(profile.edge_tensor) >= 0)
        and np.all(profile.tensor_output >= CONTROL)
    )
    if not in_order:
        raise ProfileError(
            "tensors and edges must be sorted, outputs at least -1; use make_profile"
        )
    if (edge := _first(profile.tensor_op[profile.edge_tensor] == profile.edge_op)) is not None:
        name = profile.op_names[profile.edge_op[edge]]
        raise CycleError(f"op '{name}' consumes its own output; remove that edge", name)


def _check_holds(profile: Profile) -> None:
    tensor, op = profile.hold_tensor, profile.hold_op
    if tensor.shape != op.shape or (np.diff(tensor) < 0).any():
        raise ProfileError("holds must be sorted by tensor, each with an op; use make_profile")
    wrong = (tensor < 0) | (tensor >= profile.n_tensors) | (op < 0) | (op >= profile.n_ops)
    if (hold := _first(wrong)) is not None:
        raise DanglingEdgeError(f"hold {hold} names a tensor or an op that does not exist")


def _check_bases(profile: Profile) -> None:
    """Refuse a base that the tensor's op neither reads nor makes, and circles of siblings."""
    base, op = profile.tensor_base, profile.tensor_op
    if base.shape != op.shape or ((base < -1) | (base >= profile.n_tensors)).any():
        raise ProfileError("tensor_base must have a tensor or -1 for each tensor")
    tensor = np.flatnonzero(base >= 0)
    of, maker = base[tensor], op[tensor]
    reads = np.isin(
        of * profile.n_ops + maker, profile.edge_tensor * profile.n_ops + profile.edge_op
    )
    makes = (op[of] == maker) & ((base[of] < 0) | (op[base[of]] != maker))
    is_data = (profile.tensor_output[tensor] != CONTROL) & (profile.tensor_output[of] != CONTROL)
    if (at := _first(~is_data | ~(reads | makes))) is not None:
        ends = [int(tensor[at]), int(of[at])]
        mine, other = (
            _output_name(profile.op_names, int(op[t]), int(profile.tensor_output[t])) for t in ends
        )
        raise ProfileError(
            f"{mine}: it lies in the memory of {other}, which its op neither reads nor makes; name "
            f"an input of the op"
        )


def _check_backward(profile: Profile) -> None:
    for op in profile.measured.backward or ():
        if not 0 <= op < profile.n_ops:
            raise ProfileError(
                f"measured.backward: there is no op number {op}; ops are 0 to {profile.n_ops - 1}"
            )


def _check_ends(op_names: Sequence[str], source: IntArray, target: IntArray) -> None:
    for label, ends in (("comes from", source), ("leads to", target)):
        if (edge := _first((ends < 0) | (ends >= len(op_names)))) is not None:
            raise DanglingEdgeError(
                f"edge {edge} {label} op number {ends[edge]}, which does not exist "
                f"(ops are 0 to {len(op_names) - 1})"
            )


def _first(mask: NDArray[np.bool_] | np.bool_) -> int | None:
    """Return the index of the first true entry, if any."""
    found = np.flatnonzero(mask)
    return int(found[0]) if len(found) else None


def _find_cycle(profile: Profile) -> str:
    """Name the ops of one cycle, starting from an op that Kahn's algorithm did not reach."""
    left = np.ones(profile.n_ops, dtype=bool)
    left[profile.topological_order] = False
    op, seen = int(np.flatnonzero(left)[0]), dict[int, int]()
    while op not in seen:
        seen[op] = len(seen)
        edges = profile.edges_into(op)
        sources = profile.edge_source[edges]
        op = int(sources[left[sources]][0])
    cycle = [name for name, at in seen.items() if at >= seen[op]][::-1]
    names = [profile.op_names[i] for i in cycle]
    shown = " -> ".join(names[:6]) + (f" -> ... ({len(names)} ops)" if len(names) > 6 else "")
    return f"{shown} -> {names[0]}"
