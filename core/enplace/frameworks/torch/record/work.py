"""What an op has to do: FLOPs as PyTorch counts them, formulas of our own where it has none.

``torch.utils.flop_counter`` knows products, convolutions and most attention. A product and a sum
are two. Ops on each number alone count one for each number of their result; others none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from enplace.frameworks.roofline import F8, F16, F32, F64, I8
from enplace.frameworks.torch.record.storages import density, tensors_in
from enplace.frameworks.torch.record.traffic import CONVOLUTIONS, traffic_of
from enplace.frameworks.torch.step import Work
from enplace.values.op_kinds import OpKind

_PRECISION = {
    torch.float64: F64,
    torch.float32: F32,
    torch.float16: F16,
    torch.bfloat16: F16,
    torch.float8_e4m3fn: F8,
    torch.float8_e5m2: F8,
    torch.int8: I8,
    torch.uint8: I8,
}

_ARITHMETIC = (OpKind.ELEMENTWISE, OpKind.ROWS, OpKind.REDUCE, OpKind.POOL, OpKind.UPDATE)


def work_of(func: Any, kind: OpKind | str, args: Any, kwargs: Any, out: Any) -> Work:
    """Return the work of a call of the dispatcher."""
    name = func._schema.name.rpartition("::")[2]
    given, made = tensors_in((args, kwargs)), tensors_in(out)
    matrix, precision = matrix_flops(func, args, kwargs, out), _precision(given)
    is_known = math.isfinite(matrix)
    matrix = matrix if is_known else 0.0
    if matrix:
        matrix *= min(map(density, given))  # a sparse matrix takes part with what it holds
    flops = matrix
    if not matrix and kind in _ARITHMETIC:
        each = (tensors_in(value) for value in (*args, *kwargs.values()))
        numbers = [sum(t.numel() for t in tensors) for tensors in each]  # of a list, of all in it
        flops = float(max((*numbers, *(t.numel() for t in made)), default=0))
    on_cores = matrix if precision != F32 or _rounds(name, given) else 0.0
    moved = traffic_of(
        name, func, args, given, made, precision, is_tf32=precision == F32 and on_cores > 0
    )
    return Work(
        flops, on_cores, moved.n_bytes, precision, moved.kernels, moved.effort, is_known,
        has_formula=func._overloadpacket in flop_registry,
    )  # fmt: skip


def matrix_flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the FLOPs of products, convolutions and attention; 0 for other ops, NaN if unknown."""
    with suppress(Exception):  # a formula may not know the arguments of a newer op
        if func._overloadpacket in flop_registry:
            formula = flop_registry[func._overloadpacket]
            return float(formula(*args, **kwargs, out_val=out))
        if own := _OWN.get(func._schema.name.rpartition("::")[2]):
            return float(own(args, kwargs, out))
        return 0.0 if func.namespace in _KNOWN else math.nan
    return math.nan


_KNOWN = ("aten", "prims", "inductor", "c10d", "_c10d_functional")
"""Namespaces of ops that take FLOPs only if a formula says so."""


def _attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> float:
    heads: int = math.prod(queries.shape[:-2])
    rows, inner = queries.shape[-2:]
    return float(2 * heads * rows * keys.shape[-2] * (inner + values.shape[-1]))


def _attention_forward(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    return _attention(*args[:3])


def _attention_backward(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    """Two products for each gradient, and those of the forward pass once more, in part."""
    return 2.5 * _attention(*args[1:4])


def _grouped_mm(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    """Each row of one matrix meets one of the others; or each group gives a matrix."""
    left, right = args[:2]
    if left.dim() == 2 and right.dim() == 2:
        return float(2 * left.shape[0] * left.shape[1] * right.shape[1])
    return float(2 * left.numel() * right.shape[-1])


def _product(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    """Each number of the result is a sum along the last dimension of the first tensor."""
    return float(2 * out.numel() * args[0].shape[-1])


def _product_and_sum(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    return _product(args[1:], kwargs, out)


def _whole_attention(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    """Layers of attention that run as one op where nothing trains, with all their products."""
    given = args[3:18] if isinstance(args[1], int) else args[5:9]  # masks come later
    matrices = [each for each in given if isinstance(each, torch.Tensor) and each.dim() == 2]
    batch, rows, embedded = args[0].shape
    weights: int = sum(each.numel() for each in matrices)
    return float(2 * batch * rows * (weights + 2 * rows * embedded))


def _recurrent(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    """Each weight of a recurrent layer meets each step of each sample."""
    inputs, weights = args[0], args[1]
    rows = inputs.shape[0] * inputs.shape[1] if inputs.dim() == 3 else inputs.shape[0]
    return float(2 * rows * sum(each.numel() for each in weights if each.dim() == 2))


def _recurrent_backward(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    return 2 * _recurrent(args, kwargs, out)


def _recurrent_layer(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    return _recurrent((args[0], args[1:3]), kwargs, out)


def _recurrent_layer_backward(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    return 2 * _recurrent_layer(args, kwargs, out)


_OWN: dict[str, Callable[[Sequence[Any], Any, Any], float]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention_forward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm_v2": _grouped_mm,
    "_scaled_mm_v2": _product,
    "_int_mm": _product,
    "_weight_int8pack_mm": _product,
    "mv": _product,
    "dot": _product,
    "vdot": _product,
    "addmv": _product_and_sum,
    "_sparse_addmm": _product_and_sum,
    "_addmm_activation": _product_and_sum,
    "_native_multi_head_attention": _whole_attention,
    "_transformer_encoder_layer_fwd": _whole_attention,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
    "mkldnn_rnn_layer": _recurrent_layer,
    "mkldnn_rnn_layer_backward": _recurrent_layer_backward,
}


def _rounds(name: str, given: Sequence[torch.Tensor]) -> bool:
    """Return whether products of float32 are rounded to TF32, as the script allows.

    Recurrent layers and attention never do, nor does a convolution of images with few channels.
    """
    if name in CONVOLUTIONS:
        channels = min((t.shape[1] for t in given if t.dim() == 4), default=_CHANNELS)
        return channels >= _CHANNELS and bool(torch.backends.cudnn.allow_tf32)
    allowed = bool(torch.backends.cuda.matmul.allow_tf32)
    return allowed and not any(each in name for each in ("rnn", "attention"))


_CHANNELS = 8


def _precision(given: Sequence[torch.Tensor]) -> str:
    """Return the precision of the largest floating-point tensor."""
    real = [each for each in given if each.dtype in _PRECISION and each.is_floating_point()]
    return _PRECISION[max(real, key=lambda each: each.numel()).dtype] if real else F32
