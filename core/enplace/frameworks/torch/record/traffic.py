"""How many bytes an op moves, in how many kernels, and how far these stay behind the roofline.

The figures were measured on an H200 with PyTorch 2.11; ``python -m benchmarks.gpu.check`` compares
them with any other GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from enplace.frameworks.roofline import F16, F32
from enplace.frameworks.torch.record.storages import n_bytes_of, tensors_in

CONVOLUTIONS = ("convolution", "convolution_backward", "cudnn_convolution", "_convolution")

MISALIGNED = 5.0
"""How much longer a product of half precision takes whose rows are no multiple of 16 bytes, such as
those of a vocabulary of 50,257 words: 95 to 148 instead of 560 to 775 TFLOP/s."""

TURNED_TF32 = 2.0
"""A product that takes its left matrix turned, as the gradient of a weight does, rounds to TF32 at
157 instead of 330 TFLOP/s."""

TF32_CONVOLUTION = 2.0
"""A convolution rounds to TF32 at 100 to 200 TFLOP/s, half of what a product reaches."""

ATTENTION, WITH_DROPOUT = 2.0, 2.0
"""Attention with heads of 64 numbers reaches a third of the peak and, if it drops something in half
precision, a sixth; one that looks only back has half the work."""

_EFFORT = {
    "cat": 2.5,
    "native_layer_norm": 1.7,
    "native_layer_norm_backward": 1.5,
    "slice_backward": 2.0,
    "sum": 1.8,
}
"""Kernels that stay behind the bandwidth; a batch normalisation, too, whose channels lie apart."""
NORM = 1.8

_SPARSE_READS = ("embedding", "index", "index_select", "gather", "nll_loss_forward")
"""Ops that read only the rows that they give."""

_WRITE_ONLY = ("nll_loss_backward",)
"""Ops that write zeros, and little else."""

_AGAIN = {
    "native_batch_norm": 1,
    "cudnn_batch_norm": 1,
    "_native_batch_norm_legit": 1,
    "native_batch_norm_backward": 2,
    "cudnn_batch_norm_backward": 2,
    "native_layer_norm_backward": 2,
    "native_group_norm_backward": 2,
}
"""How many large tensors are read once more, after a sum over them."""

_LONG_ROWS = {"_softmax": 2, "_log_softmax": 2, "_softmax_backward_data": 1,
              "_log_softmax_backward_data": 1}  # fmt: skip
_LONG_ROW_BYTES = 96 << 10
"""Rows so long do not stay in a multiprocessor's own memory between two passes over them."""

_KERNELS = {"embedding_dense_backward": 6, "native_layer_norm_backward": 3}


@dataclass(frozen=True)
class Traffic:
    """What an op moves.

    Attributes
    ----------
    n_bytes : float
        Bytes read and written.
    kernels : int
        Kernels that run one after another.
    effort : float
        How much longer than the roofline they take.
    """

    n_bytes: float
    kernels: int = 1
    effort: float = 1.0


def traffic_of(
    name: str, func: Any, args: Sequence[Any], given: Sequence[torch.Tensor],
    made: Sequence[torch.Tensor], precision: str, *, is_tf32: bool
) -> Traffic:  # fmt: skip
    """Return what a call of the dispatcher moves.

    Parameters
    ----------
    given, made
        The tensors among its arguments and results.
    precision : str
        Of its products.
    is_tf32 : bool
        Whether these are rounded to TF32.
    """
    n_bytes = _moved(name, func, args, given, made)
    largest = max(map(n_bytes_of, (*given, *made)), default=0)
    n_bytes += _AGAIN.get(name, 0) * largest
    if name in _LONG_ROWS and made[0].shape[-1] * made[0].element_size() > _LONG_ROW_BYTES:
        n_bytes += _LONG_ROWS[name] * largest
    if name in CONVOLUTIONS:
        n_bytes += _rearranged(given, made)
    effort = _effort(name, func, args, (*given, *made), precision, is_tf32)
    return Traffic(n_bytes, _KERNELS.get(name, 1), effort)


def _effort(
    name: str, func: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor], precision: str,
    is_tf32: bool,
) -> float:  # fmt: skip
    """Return how much longer than the roofline an op takes."""
    if name in CONVOLUTIONS:
        return TF32_CONVOLUTION if precision == F32 else 1.0
    if "attention" in name:
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
        drops = precision == F16 and given.get("dropout_p", 0.0) > 0
        looks_back = 0.5 if given.get("is_causal") else 1.0
        return ATTENTION * looks_back * (WITH_DROPOUT if drops else 1.0)
    if "batch_norm" in name:
        return NORM
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        if precision == F16:
            return MISALIGNED if any(map(_is_misaligned, tensors)) else 1.0
        left = tensors[name in ("addmm", "baddbmm")]
        if left.layout != torch.strided:
            return 1.0
        return TURNED_TF32 if is_tf32 and left.stride(-2) == 1 < left.stride(-1) else 1.0
    return _EFFORT.get(name, 1.0)


def _moved(
    name: str, func: Any, args: Sequence[Any], given: Sequence[torch.Tensor],
    made: Sequence[torch.Tensor],
) -> float:  # fmt: skip
    """Add up what is read and written if each tensor passes once."""
    results = sum(map(n_bytes_of, made))
    if name in _SPARSE_READS:
        return 2.0 * results
    if name in _WRITE_ONLY:
        return float(results)
    read = sum(map(n_bytes_of, given))
    if name in ("copy_", "fill_", "zero_") and given:
        read -= n_bytes_of(given[0])
    if not made:  # on lists of tensors, in place
        changed = [a for a, s in zip(args, func._schema.arguments, strict=False) if _writes(s)]
        results = sum(map(n_bytes_of, tensors_in(changed)))
    return float(read + results)


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _rearranged(given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> float:
    """Return the bytes moved to bring images into the order that tensor cores take, and back."""
    images = [t for t in (*given, *made) if t.dim() == 4]
    weights = min(images, key=lambda each: each.shape[2] * each.shape[3], default=None)
    if weights is None or weights.shape[2:].numel() == 1:
        return 0.0
    apart = [t for t in images if t.shape[2:] != weights.shape[2:]]
    apart = [t for t in apart if not t.is_contiguous(memory_format=torch.channels_last)]
    return 2.0 * sum(map(n_bytes_of, apart))


def _is_misaligned(tensor: torch.Tensor) -> bool:
    """Return whether the rows of a matrix of half precision begin anywhere."""
    if tensor.layout != torch.strided or tensor.dim() < 2 or tensor.element_size() != 2:
        return False
    return bool(max(tensor.stride()[-2:]) * tensor.element_size() % 16)
