"""Kernels of a GPU in an estimate on a host that has none: dropout, attention, recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten

_RECURRENT: dict[Any, tuple[int, int]] = {
    torch.rnn_relu: (0, 1),
    torch.rnn_tanh: (1, 1),
    torch.lstm: (2, 4),
    torch.gru: (3, 3),
}
"""cuDNN's number of a recurrent layer, and how many gates it has."""


def _recur_on_gpu(mode: int, gates: int, inputs: Any, second: Any, third: Any, *more: Any) -> Any:
    """Run recurrent layers with the one kernel of a GPU; ``second`` has packed sequences' sizes."""
    is_packed = isinstance(more[0], list | tuple)
    if is_packed:
        (weights, *more), state, sizes = more, third, second.tolist()  # type: ignore[assignment]
    else:
        weights, state, sizes = third, second, []
    has_bias, layers, dropout, train, two_ways = more[:5]
    first, last = state if mode == 2 else (state, None)
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        inputs, first, last, weights = tree_map_only(
            torch.Tensor, lambda each: each.to(low), (inputs, first, last, weights)
        )
    n_hidden = weights[1].size(0) // gates
    projected = first.size(-1) if first.size(-1) != n_hidden else 0
    stride = 2 + 2 * bool(has_bias) + bool(projected)
    output, hidden, cell, *_ = torch._cudnn_rnn(
        inputs, weights, stride, None, first, last, mode, n_hidden, projected, layers,
        not is_packed and more[5], dropout, train, two_ways, sizes, None,
    )  # fmt: skip
    return (output, hidden, cell) if mode == 2 else (output, hidden)


def recur(func: Any, args: Sequence[Any]) -> Any:
    """Run a recurrent layer of a GPU, with the memory that it keeps for the backward pass.

    It copies its weights into one tensor if they are not in one already, and keeps five numbers
    for each gate, and more for each layer, as cuDNN 9 does.
    """
    weights = args[1]
    buffer = weights[0].new_empty(sum(each.numel() for each in weights))
    output, *others = func(*args[:3], buffer, *args[4:])
    layers, is_trained, two_ways = args[9], args[12], args[13]
    kept = output.numel() * layers * (1 + two_ways) * output.element_size()
    others[2] = output.new_empty(int(KEPT * kept) if is_trained else 0, dtype=torch.uint8)
    return (output, *others)


def recur_back(args: Sequence[Any]) -> Any:
    """Return the gradients of a recurrent layer; those of its weights share one tensor."""
    inputs, weights, hidden, cell = args[0], args[1], args[4], args[5]
    flat = torch.empty(sum(each.numel() for each in weights), dtype=inputs.dtype,
                       device=inputs.device)  # fmt: skip
    parts = [part.view(w.shape) for part, w in zip(
        flat.split([each.numel() for each in weights]), weights, strict=True)]  # fmt: skip
    others = [None if each is None else torch.empty_like(each) for each in (hidden, cell)]
    return (torch.empty_like(inputs), *others, parts)


KEPT = 5.5
"""Size of what a recurrent layer keeps for its gradient, in sizes of its output."""


def fork_on_host(usual: Any) -> Any:
    """Keep the random numbers of the host alone: there is no GPU."""

    @wraps(usual)
    def fork(devices: Any = None, enabled: bool = True, *_: Any, **__: Any) -> Any:
        return usual((), enabled)

    return fork


class OnTheHost(TorchFunctionMode):
    """Keeps tensors on the host: without CUDA, not even a fake one can be on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.nn.functional.scaled_dot_product_attention and _is_fused(
            *args, **kwargs or {}
        ):
            return _attend(*args, **kwargs or {})
        if func is torch.nn.functional.dropout:
            return _drop(*args, **kwargs or {})
        if func in _RECURRENT:
            return _recur_on_gpu(*_RECURRENT[func], *args)
        kwargs = {key: _here(each) for key, each in (kwargs or {}).items()}
        args = tuple(map(_here, args))
        if getattr(func, "__name__", "") in _IN_FULL and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(torch.Tensor, _in_full, (args, kwargs))
        return func(*args, **kwargs)


_IN_FULL = frozenset(
    [
        *("pow", "__pow__", "__rpow__", "layer_norm", "group_norm", "softmax", "log_softmax"),
        *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "exp", "log", "sum", "prod"),
        *("cumsum", "norm", "rsqrt", "reciprocal", "cosine_similarity"),
    ]
)
"""What autocast computes in float32 on a GPU, but not always on a CPU."""


def _in_full(tensor: torch.Tensor) -> torch.Tensor:
    is_low = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.to(torch.float32) if is_low else tensor


def _drop(
    input: torch.Tensor,  # noqa: A002 - its name for callers
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Drop with the one kernel of a GPU."""
    if not training or not p:
        return input
    made: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return input.copy_(made) if inplace else made


def run_again_in(usual: Any, mode: OnTheHost) -> Any:
    """Run modules again in the same mode: the backward pass leaves it."""

    @wraps(usual)
    def checkpoint_in_mode(function: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*given: Any, **more: Any) -> Any:
            if mode in _get_current_function_mode_stack():
                return function(*given, **more)
            with mode:
                return function(*given, **more)

        return usual(run, *args, **kwargs)

    return checkpoint_in_mode


def _is_fused(
    query: Any, key: Any, value: Any, attn_mask: torch.Tensor | None = None, *args: Any,
    **kwargs: Any,
) -> bool:  # fmt: skip
    """Return whether a GPU has one kernel for it: not if the mask learns, as positions do in T5."""
    return query.dim() == 4 and (attn_mask is None or not attn_mask.requires_grad)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Attend with the kernels of a GPU; those of a CPU cannot drop anything, for example."""
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(low), key.to(low), value.to(low)
    if enable_gqa and query.size(-3) != key.size(-3):
        times = query.size(-3) // key.size(-3)
        key, value = (each.repeat_interleave(times, -3) for each in (key, value))
    dropped = dropout_p, is_causal
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        flash = _aten._scaled_dot_product_flash_attention
        found = flash(query, key, value, *dropped, scale=scale)
        return cast(torch.Tensor, found[0])
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))
    efficient = _aten._scaled_dot_product_efficient_attention
    found = efficient(query, key, value, attn_mask, True, *dropped, scale=scale)
    return cast(torch.Tensor, found[0])


def _here(value: Any) -> Any:
    is_device = isinstance(value, torch.device) and value.type == "cuda"
    is_name = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
    return torch.device("cpu") if is_device or is_name else value
