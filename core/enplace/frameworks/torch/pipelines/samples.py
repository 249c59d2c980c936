"""Follow along which dimension tensors have samples, and see where a call mixes samples.

Only what is sure is followed: a call that is not known here loses samples, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Given = Sequence[tuple[torch.Tensor, int]]
"""The tensors with samples that a call gets, each with the dimension of its samples."""

_REDUCE = ("sum", "mean", "prod", "max", "min", "amax", "amin", "norm", "var", "std", "logsumexp")
_ALONG = ("softmax", "log_softmax", "normalize")
_DIM_IS_THIRD = ("norm", "normalize")
_TURN = ("t", "transpose", "permute", "movedim", "swapaxes", "__get__")
_SHAPE = ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as")
_MULTIPLY = ("matmul", "__matmul__", "mm", "linear", "addmm", "tensordot", "einsum")
_TAKE = ("unbind", "split", "chunk", "tensor_split", "select", "narrow", "index_select", "gather",
         "stack", "diagonal", "diag")  # fmt: skip


def samples_in(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    given: Given,
    out: torch.Tensor,
    rows: int,
) -> int | None:
    """Return along which dimension a result surely has samples.

    Parameters
    ----------
    given : sequence of (tensor, int)
        At least one.
    rows : int
        How many samples a micro-batch has.
    """
    first, at = given[0]
    is_first = bool(args) and args[0] is first
    if not out.dim() or (is_first and at in _over(name, args, kwargs)):
        return None
    keeps_first = at == 0 and out.shape[0] == first.shape[0]
    if name in _TURN:
        same = (first.stride(at), first.shape[at])
        found = [d for d in range(out.dim()) if (out.stride(d), out.shape[d]) == same]
        return found[0] if is_first and len(found) == 1 else None
    if name == "__getitem__":
        index = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        is_mask = isinstance(index, torch.Tensor) and index.dtype == torch.bool
        is_whole = index is Ellipsis or (isinstance(index, slice) and index == slice(None))
        return 0 if is_first and at == 0 and (is_mask or (is_whole and keeps_first)) else None
    if name in _SHAPE:
        return 0 if is_first and at == 0 and out.shape[0] % rows == 0 else None
    if name in ("cat", "concat"):
        return 0 if all(each == 0 for _, each in given) and len(given) == len(args[0]) else None
    if name in _TAKE or (name in _MULTIPLY and not is_first):
        return None
    if out.dim() == first.dim() and out.shape[at] == first.shape[at]:
        return at
    return 0 if keeps_first else None


def _over(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
    """Return the dimensions of its first argument that a call reduces, or goes along."""
    place = 2 if name in _DIM_IS_THIRD else 1
    dims = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else None))
    if name not in (*_REDUCE, *_ALONG) or isinstance(dims, torch.Tensor):
        return set()
    n = args[0].dim()
    if dims is None or isinstance(dims, bool):
        return set(range(n)) if name in _REDUCE else {1} if name == "normalize" else set()
    return {each % n for each in (dims if isinstance(dims, tuple | list) else [dims])}


def pools(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], given: Given) -> bool:
    """Whether a call makes one value of all samples."""
    is_first = bool(args) and bool(given) and args[0] is given[0][0]
    return name in _REDUCE and is_first and given[0][1] in _over(name, args, kwargs)


def mixes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], given: Given) -> bool:
    """Whether what a call makes for each sample surely depends on the others."""
    first, at = given[0]
    if name in _ALONG and args and args[0] is first:
        return at in _over(name, args, kwargs)
    if len(args) < 2 or len(given) < 2 or args[0] is not first or args[1] is not given[1][0]:
        return False
    (_, at), (other, of_other) = given[:2]
    across = {"matmul": 1, "__matmul__": 1, "mm": 1, "linear": 0, "cdist": 0}.get(name)
    return other.dim() == 2 and at == 0 and of_other == across
