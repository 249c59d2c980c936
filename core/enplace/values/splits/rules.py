"""The dimensions along which ops of each kind may be split (FastT, section 5.2).

A rule gives, for each operand, the axis along which it is cut, or that every part gets it whole. It
also gives the axis along which the outputs of the parts are joined, or that they are summed. The
same table serves profiles and a framework's graphs. A graph has shapes and named inputs. A profile
has neither, so there we assume:

- A tensor that depends on the batch is data, with the samples first, unless an op on the way sums
  over samples. A tensor that depends only on variables and constants is weights.
- A tensor can be cut into equal parts if its bytes can. An op that mixes what belongs to one sample
  needs as many samples, if their number is known. Profiles of some frameworks record all lengths:
  :attr:`~enplace.values.measurement.Measurement.split_lengths`.
- A ``matmul`` of two tensors of data is the gradient of a weight: it sums over the samples. One
  that hands data on, or has several outputs, stands for both gradients of a layer.
- A filter's gradient takes its image from the tensor that a convolution also takes.
- Inputs of an element-wise op with far fewer bytes than its output are broadcast.

Batch normalisation mixes the samples of a batch, so no rule splits it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from enplace.errors import SplitError
from enplace.text import listed
from enplace.values.op_kinds import OpKind
from enplace.values.profile import CONTROL, IntArray, Profile

BATCH, CHANNEL, FILTERS, CHANNELS_IN = "batch", "channel", "filters", "channels in"
"""Axes: the first; the channels; the last and the last but one of a filter."""

COLUMNS = "columns"
"""The axis of a weight matrix that becomes the last axis of the product."""

WHOLE, SUM = "whole", "sum"
"""Every part gets the whole operand; the outputs of the parts are summed."""

DATA, WEIGHTS, GRADIENT, SIZES = "data", "weights", "gradient", "sizes"
"""Kinds of operands. ``sizes`` means a few numbers: a shape, an axis, a permutation."""


RECOMPUTE, OFFLOAD = "recompute", "offload"
"""Stand for the dimension of an op that is not cut, but computed again, or whose output waits for
late readers on the host."""


_ADDED = {RECOMPUTE: "/recomputed", OFFLOAD: "/fetched"}
_HOW = {RECOMPUTE: "computed again", OFFLOAD: "kept on the host"}
_NOUN = {RECOMPUTE: "recomputed op", OFFLOAD: "offloaded op"}


def copy_name(op: str) -> str:
    """Return the name of the copy of an op that is computed again."""
    return f"{op}{_ADDED[RECOMPUTE]}"


def original_name(name: str) -> str:
    """Return the name of the op for which a copy or a fetch was added, or the op's own name."""
    for ending in _ADDED.values():
        name = name.removesuffix(ending)
    return name


@dataclass(frozen=True)
class Split:
    """One op split into equal parts, an entry of FastT's split list, or not kept for late readers.

    What is not kept is computed again, or sent to the host and fetched:
    :mod:`enplace.values.splits.again`.

    Attributes
    ----------
    op, dimension : str
        Name of the op, and name of the dimension in :data:`RULES`, :data:`RECOMPUTE` or
        :data:`OFFLOAD`.
    parts : int
        Number of parts, at least 2; of an op that is not cut, 2.
    readers : tuple of str
        The ops that read what is computed again or fetched.
    after : str
        The op that the copy or the fetch waits for; empty if it is enough to wait for its inputs.
    """

    op: str
    dimension: str
    parts: int
    readers: tuple[str, ...] = ()
    after: str = ""

    @property
    def is_again(self) -> bool:
        """Whether the op is computed again, and not split."""
        return self.dimension == RECOMPUTE

    @property
    def is_offload(self) -> bool:
        """Whether the op's output is sent to the host and fetched, and not split."""
        return self.dimension == OFFLOAD

    @property
    def is_cut(self) -> bool:
        """Whether the op is cut into parts."""
        return not (self.is_again or self.is_offload)

    @property
    def added(self) -> str:
        """The name of the op from which the readers read: a copy, or what fetches."""
        return f"{self.op}{_ADDED[self.dimension]}"

    @property
    def how(self) -> str:
        """What is done with the op, in words."""
        return _HOW.get(self.dimension, f"{self.parts} by {self.dimension}")

    @property
    def noun(self) -> str:
        """What an op with such a split is called."""
        return _NOUN.get(self.dimension, "split op")


@dataclass(frozen=True)
class Rule:
    """How operands are cut and outputs joined when an op is split along one dimension."""

    data: str = WHOLE
    weights: str = WHOLE
    gradient: str = WHOLE
    output: str = BATCH

    def cut(self, operand: str) -> str:
        """Return the axis along which an operand is cut, or :data:`WHOLE`."""
        return WHOLE if operand == SIZES else str(getattr(self, operand))


_SAMPLES = {"batch": Rule(BATCH)}
_EACH = {"batch": Rule(BATCH), "channel": Rule(CHANNEL, output=CHANNEL)}

RULES: dict[str, dict[str, Rule]] = {
    OpKind.CONV: {
        "batch": Rule(BATCH),
        "channel": Rule(weights=FILTERS, output=CHANNEL),
    },
    OpKind.CONV_IMAGE_GRADIENT: {
        "batch": Rule(BATCH),
        "channel": Rule(weights=CHANNELS_IN, output=CHANNEL),
    },
    OpKind.CONV_FILTER_GRADIENT: {
        "batch": Rule(BATCH, gradient=BATCH, output=SUM),
        "channel": Rule(gradient=CHANNEL, output=FILTERS),
    },
    OpKind.GROUPED_CONV: _SAMPLES,
    OpKind.GROUPED_CONV_IMAGE_GRADIENT: _SAMPLES,
    OpKind.GROUPED_CONV_FILTER_GRADIENT: {"batch": Rule(BATCH, gradient=BATCH, output=SUM)},
    OpKind.MATMUL: {
        "rows": Rule(BATCH),
        "columns": Rule(weights=COLUMNS, output=CHANNEL),
        "inner": Rule(BATCH, gradient=BATCH, output=SUM),
    },
    OpKind.BATCH_MATMUL: _SAMPLES,
    OpKind.BIAS: {"batch": Rule(BATCH), "channel": Rule(CHANNEL, FILTERS, output=CHANNEL)},
    OpKind.BIAS_GRADIENT: {
        "batch": Rule(BATCH, output=SUM),
        "channel": Rule(CHANNEL, output=FILTERS),
    },
    OpKind.ELEMENTWISE: _EACH,
    OpKind.POOL: _EACH,
    OpKind.ROWS: _SAMPLES,
    OpKind.RESHAPE: _SAMPLES,
    OpKind.GATHER: _SAMPLES,
}
"""Rules by kind of op and dimension."""

_CUT = (DATA, WEIGHTS, GRADIENT)
_CONVOLUTIONS = (OpKind.CONV, OpKind.GROUPED_CONV)
_FILTER_GRADIENTS = (OpKind.CONV_FILTER_GRADIENT, OpKind.GROUPED_CONV_FILTER_GRADIENT)

_SAMPLE_KINDS = frozenset((*_CONVOLUTIONS, OpKind.MATMUL, OpKind.BATCH_MATMUL)) | {
    OpKind.GATHER,
    OpKind.POOL,
    OpKind.ROWS,
}
"""Kinds of ops that work on samples: one without inputs is fed by what the profile leaves out."""

_MIXES = frozenset((OpKind.BATCH_MATMUL, OpKind.POOL, OpKind.ROWS)) | {
    kind for kind in RULES if "conv" in kind
}
"""Kinds of ops that need the whole of a sample for any part of its output, such as attention."""

_NO_SAMPLES = (
    OpKind.SHAPE,
    *_FILTER_GRADIENTS,
    OpKind.BIAS_GRADIENT,
    OpKind.REDUCE,
    OpKind.UPDATE,
)
"""Kinds of ops whose outputs do not have a row for each sample."""

SMALL_BYTES = 64
"""Inputs up to this size that do not depend on the samples are sizes, not weights."""

BROADCAST = 1 / 8
"""An input with a smaller share of the output's bytes is broadcast. A mask of one-byte values for
an output of eight-byte numbers has exactly this share."""


def find_rule(kind: str, dimension: str, op_type: str) -> Rule:
    """Look up a rule of a kind; the type names the op in an error.

    Raises
    ------
    SplitError
        If the table has none; the message lists those it has.
    """
    rules = RULES.get(kind, {})
    if dimension not in rules:
        known = f"use {listed(list(rules))}" if rules else "ops of this type stay whole"
        raise SplitError(f"an op of type '{op_type}' has no dimension '{dimension}'; {known}")
    return rules[dimension]


@lru_cache(maxsize=8)
def carries_samples(profile: Profile) -> NDArray[np.bool_]:
    """Find the ops whose outputs have a row for each sample of the batch; shape (n_ops,).

    The samples come from ops that are fed, and from ops without inputs that are neither constants
    nor variables; the first layer of a profile written by hand may hold weights. An op that asks
    for their number gets as many rows. So does one that is on record as having them, such as the
    product after a mean over pixels.
    """
    n_samples = profile.measured.batch_size
    for_each = np.array([_has_rows(profile, op, n_samples) for op in range(profile.n_ops)])
    carries, counts = np.zeros((2, profile.n_ops), dtype=bool)
    is_small = np.ones(profile.n_ops, dtype=bool)
    is_small[profile.tensor_op[profile.tensor_bytes > SMALL_BYTES]] = False
    constant = profile.of_kind(OpKind.CONSTANT, OpKind.VARIABLE)
    fed = profile.of_kind(OpKind.INPUT)
    holds = profile.persistent_bytes > 0
    works = profile.of_kind(*_SAMPLE_KINDS)
    source = fed | works | ~(constant | holds)
    held = {profile.colocation[op] for op in np.flatnonzero(holds).tolist()} - {""}
    for op in profile.topological_order.tolist():
        before = profile.edge_source[data_edges(profile, op)]
        kind, n_data = profile.kinds[op], np.count_nonzero(carries[before])
        if not len(before):
            carries[op] = source[op]
        elif for_each[op] or kind == OpKind.RANDOM:
            carries[op] = True
        elif kind == OpKind.MATMUL:
            weights = len(before) > 1 or holds[op] or profile.colocation[op] in held
            carries[op] = (n_data == 1 and weights) or (
                n_data > 1 and _does_both(profile, op, carries)
            )
        elif kind == OpKind.SHAPE or is_small[op]:
            counts[op] = n_data > 0 if kind == OpKind.SHAPE else counts[before].any()
            carries[op] = n_data > 0 and kind not in _NO_SAMPLES
        elif kind == OpKind.REPEAT and not n_data:
            carries[op] = counts[before].any() or _repeats(profile, op, n_samples)
        else:
            carries[op] = n_data > 0 and kind not in _NO_SAMPLES
    carries.flags.writeable = False
    return carries


def _does_both(profile: Profile, op: int, carries: NDArray[np.bool_]) -> bool:
    """Whether a product of data gives the gradients of both a layer's weights and its input.

    A person may write these as one op. It has several outputs, or its output meets data again in
    another product, as that of the layer before.
    """
    tensors = np.arange(profile.tensor_ptr[op], profile.tensor_ptr[op + 1])
    tensors = tensors[profile.tensor_output[tensors] != CONTROL]
    if len(tensors) > 1:
        return True
    for tensor in tensors.tolist():
        there = slice(profile.edge_ptr[tensor], profile.edge_ptr[tensor + 1])
        for consumer in profile.edge_op[there].tolist():
            sources = profile.edge_source[data_edges(profile, consumer)]
            others = sources[sources != op]
            if profile.kinds[consumer] == OpKind.MATMUL and carries[others].any():
                return True
    return False


def _has_rows(profile: Profile, op: int, n_samples: int | None) -> bool:
    """Whether an op that never works on weights alone is on record as having these many rows."""
    kind, lengths = profile.kinds[op], split_lengths(profile, op)
    if kind == OpKind.ELEMENTWISE or not lengths or not n_samples:
        return False
    rule = RULES.get(kind, {}).get("batch")
    return rule is not None and rule.output == BATCH and lengths.get("batch") == n_samples


def _repeats(profile: Profile, op: int, n_samples: int | None) -> bool:
    """Whether an op repeats its largest input for each sample."""
    inputs = profile.tensor_bytes[profile.edge_tensor[data_edges(profile, op)]]
    rows = (n_samples or 0) * int(inputs.max(initial=0))
    return rows > 0 and int(_output_bytes(profile, op).max(initial=0)) % rows == 0


def data_edges(profile: Profile, op: int) -> IntArray:
    """Find the edges that carry tensors to an op."""
    edges = profile.edges_into(op)
    found: IntArray = edges[profile.tensor_output[profile.edge_tensor[edges]] != CONTROL]
    return found


def find_operands(profile: Profile, op: int) -> list[tuple[int, str]]:
    """Find the kind of operand of each data edge of an op, as explained at the module's top."""
    edges = data_edges(profile, op)
    kind, carries = profile.kinds[op], carries_samples(profile)[profile.edge_source[edges]]
    size = profile.tensor_bytes[profile.edge_tensor[edges]]
    if kind == OpKind.ELEMENTWISE:
        is_data = size >= BROADCAST * _output_bytes(profile, op).max(initial=0)
    else:
        is_data = carries
    found: list[tuple[int, str]] = []
    for edge, data, known, n_bytes in zip(edges.tolist(), is_data, carries, size, strict=True):
        operand = DATA if data else WEIGHTS if known or n_bytes > SMALL_BYTES else SIZES
        if data and kind == OpKind.MATMUL and any(of == DATA for _, of in found):
            operand = GRADIENT
        if data and kind in _FILTER_GRADIENTS and not _is_image(profile, edge):
            operand = GRADIENT
        found.append((edge, operand))
    return found


def _is_image(profile: Profile, edge: int) -> bool:
    """Whether a forward convolution reads the tensor of an edge, too."""
    tensor = profile.edge_tensor[edge]
    consumers = profile.edge_op[profile.edge_ptr[tensor] : profile.edge_ptr[tensor + 1]]
    return any(profile.kinds[op] in _CONVOLUTIONS for op in consumers.tolist())


def _output_bytes(profile: Profile, op: int) -> IntArray:
    tensors = slice(profile.tensor_ptr[op], profile.tensor_ptr[op + 1])
    size: IntArray = profile.tensor_bytes[tensors][profile.tensor_output[tensors] != CONTROL]
    return size


def legal_dimensions(profile: Profile, op: int, parts: int) -> tuple[str, ...]:
    """List the dimensions along which an op can be split into a number of equal parts.

    An op may hold its weights itself if its framework says its kind; if only its type tells, what
    it holds may be anything, and it stays whole. Colocated ops must be split together, see
    :func:`without_broken_groups`.
    """
    rules, holds = RULES.get(profile.kinds[op]), profile.persistent_bytes[op] > 0
    if not rules or (holds and not profile.op_kinds[op]):
        return ()
    operands = find_operands(profile, op)
    edges, there = [edge for edge, _ in operands], {of for _, of in operands}
    there |= {WEIGHTS} if holds else set()
    if not carries_samples(profile)[profile.edge_source[edges]].any():
        return ()  # no row for each sample, perhaps a single number
    lengths, mixes = split_lengths(profile, op), profile.kinds[op] in _MIXES

    def has_equal_parts(dimension: str, rule: Rule) -> bool:
        if lengths is None:
            if mixes and dimension == "batch" and (profile.measured.batch_size or 0) % parts:
                return False
            return not (_cut_bytes(profile, op, operands, rule) % parts).any()
        return dimension in lengths and lengths[dimension] % parts == 0

    return tuple(
        dimension
        for dimension, rule in rules.items()
        if _has_operands(profile.kinds[op], dimension, rule, there)
        and has_equal_parts(dimension, rule)
    )


def split_lengths(profile: Profile, op: int) -> dict[str, int] | None:
    """Return the largest number of equal parts by dimension; None if the profile has no record."""
    lengths = profile.measured.split_lengths.get(profile.op_names[op])
    if lengths is None:
        return None
    return {dimension: length for dimension, length in lengths.items() if length > 1}


def _has_operands(kind: str, dimension: str, rule: Rule, there: set[str]) -> bool:
    """Whether an op has all operands that a rule cuts."""
    weighted = kind == OpKind.GATHER or (kind == OpKind.MATMUL and dimension != "inner")
    if kind in (OpKind.GATHER, OpKind.MATMUL) and weighted != (WEIGHTS in there):
        return False
    return all(rule.cut(operand) == WHOLE or operand in there for operand in _CUT)


def _cut_bytes(profile: Profile, op: int, operands: list[tuple[int, str]], rule: Rule) -> IntArray:
    """Return the bytes of each tensor that a split cuts."""
    edges = [edge for edge, operand in operands if rule.cut(operand) != WHOLE]
    inputs = profile.tensor_bytes[profile.edge_tensor[edges]]
    outputs = _output_bytes(profile, op)[: 0 if rule.output == SUM else None]
    return np.concatenate([inputs, outputs]).astype(np.int64)


def sample_dimension(profile: Profile, op: int, parts: int) -> str:
    """Find the dimension of an op that divides the samples of a batch; empty if there is none."""
    for dimension in legal_dimensions(profile, op, parts):
        if RULES[profile.kinds[op]][dimension].data == BATCH:
            return dimension
    return ""


def without_broken_groups(profile: Profile, splits: Iterable[Split]) -> tuple[Split, ...]:
    """Drop the splits of ops whose colocation group would be split only partially.

    If all ops of a group are split, their parts can still share devices.
    """
    members = Counter(group for group in profile.colocation if group)
    found = {split.op: (profile.colocation[profile.index[split.op]], split) for split in splits}
    together = Counter((group, split.parts) for group, split in found.values())
    return tuple(
        split
        for group, split in found.values()
        if not group or together[group, split.parts] == members[group]
    )
