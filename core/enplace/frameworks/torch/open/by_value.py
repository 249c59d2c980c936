"""Ops whose results have as many rows as values say, on tensors without content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten

DIFFERENT = "all different"
"""What values are taken to be."""


def _unique(
    tensor: torch.Tensor,
    is_sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    """Answer as if no value came twice."""
    n = tensor.numel()
    inverse = tensor.new_empty(tensor.shape if return_inverse else (0,), dtype=torch.int64)
    counts = tensor.new_empty(n if return_counts else (0,), dtype=torch.int64)
    return tensor.new_empty(n), inverse, counts


def _unique_consecutive(
    tensor: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    if dim is None:
        return _unique(tensor, True, return_inverse, return_counts)
    return _unique_rows(tensor, dim)


def _unique_rows(tensor: torch.Tensor, dim: int, *_: bool, **__: bool) -> Any:
    rows = tensor.new_empty(tensor.shape[dim], dtype=torch.int64)
    return torch.empty_like(tensor), rows, torch.empty_like(rows)


def _repeat_once(repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    n = repeats.numel() if output_size is None else output_size
    return repeats.new_empty(n, dtype=torch.int64)


def _count_two(tensor: torch.Tensor, weights: Any = None, minlength: int = 0) -> torch.Tensor:
    dtype = torch.int64 if weights is None else torch.float64
    return tensor.new_empty(max(minlength, 2), dtype=dtype)


BY_VALUE: dict[Any, tuple[Callable[..., Any], str]] = {
    _aten._unique2.default: (_unique, DIFFERENT),
    _aten.unique_consecutive.default: (_unique_consecutive, DIFFERENT),
    _aten.unique_dim.default: (_unique_rows, DIFFERENT),
    _aten.repeat_interleave.Tensor: (_repeat_once, "1"),
    _aten.bincount.default: (_count_two, "1"),
}
"""Ops whose results have as many rows as values say, and what these are taken to be."""
