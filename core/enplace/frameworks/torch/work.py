"""What an op has to do: FLOPs as PyTorch counts them, formulas of our own where it has none, bytes.

``torch.utils.flop_counter`` knows products, convolutions and most attention. A product and a sum
are two. Ops on each number alone count one for each number of their result; others none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from enplace.frameworks.roofline import F8, F16, F32, F64, I8
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

_SPARSE_READS = ("embedding", "index", "index_select", "gather")
"""Ops that read only the rows that they give."""

_CONVOLUTIONS = ("convolution", "convolution_backward", "cudnn_convolution", "_convolution")


def work_of(func: Any, kind: OpKind | str, args: Any, kwargs: Any, out: Any) -> Work:
    """Return the work of a call of the dispatcher."""
    name = func._schema.name.rpartition("::")[2]
    given, made = _tensors((args, kwargs)), _tensors(out)
    matrix = matrix_flops(func, args, kwargs, out)
    flops = matrix
    if not matrix and kind in _ARITHMETIC:
        flops = float(max((t.numel() for t in (*given, *made)), default=0))
    return Work(
        flops,
        _on_tensor_cores(name, given, matrix),
        _moved(name, given, made, func, args),
        _precision(given),
    )


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def matrix_flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the FLOPs of products, convolutions and attention; 0 for other ops."""
    packet = func._overloadpacket
    with suppress(Exception):  # a formula may not know the arguments of a newer op
        if packet in flop_registry:
            return float(flop_registry[packet](*args, **kwargs, out_val=out))
        if own := _OWN.get(func._schema.name.rpartition("::")[2]):
            return float(own(args, kwargs, out))
    return 0.0


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


def _recurrent(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    """Each weight of a recurrent layer meets each step of each sample."""
    inputs, weights = args[0], args[1]
    rows = inputs.shape[0] * inputs.shape[1] if inputs.dim() == 3 else inputs.shape[0]
    return float(2 * rows * sum(each.numel() for each in weights if each.dim() == 2))


def _recurrent_backward(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    return 2 * _recurrent(args, kwargs, out)


def _recurrent_layer(args: Sequence[Any], kwargs: Any, out: Any) -> float:
    return _recurrent((args[0], args[1:3]), kwargs, out)


_OWN: dict[str, Callable[[Sequence[Any], Any, Any], float]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention_forward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_grouped_mm": _grouped_mm,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
    "mkldnn_rnn_layer": _recurrent_layer,
}


def _on_tensor_cores(name: str, given: Sequence[torch.Tensor], matrix: float) -> float:
    """Return what tensor cores can do: float32 only where the script lets them round to TF32."""
    if _precision(given) != F32:
        return matrix
    is_convolution = name in _CONVOLUTIONS or "rnn" in name
    allowed = (
        torch.backends.cudnn.allow_tf32 if is_convolution else torch.backends.cuda.matmul.allow_tf32
    )
    return matrix if allowed else 0.0


def _precision(given: Sequence[torch.Tensor]) -> str:
    """Return the precision of the largest floating-point tensor."""
    real = [each for each in given if each.dtype in _PRECISION and each.is_floating_point()]
    return _PRECISION[max(real, key=lambda each: each.numel()).dtype] if real else F32


def n_bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor shows; one that repeats numbers shows them once."""
    shown: int = tensor.numel() * tensor.element_size()
    return min(shown, int(tensor.untyped_storage().nbytes()))


def _moved(
    name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor], func: Any, args: Any
) -> float:
    """Add up the bytes that are read and written."""
    results = sum(map(n_bytes_of, made))
    if name in _SPARSE_READS:
        return 2.0 * results
    read = sum(map(n_bytes_of, given))
    if name in ("copy_", "fill_", "zero_") and given:
        read -= n_bytes_of(given[0])
    written = results
    if not made:  # on lists of tensors, in place
        changed = [a for a, s in zip(args, func._schema.arguments, strict=False) if _writes(s)]
        written = sum(map(n_bytes_of, _tensors(changed)))
    return float(read + written)


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
