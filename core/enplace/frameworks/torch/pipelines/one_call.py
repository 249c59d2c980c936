"""Note functions within which a tape sees no calls as one call each.

These are functions of autograd that people write, functions of TorchScript, and those of ``vmap``,
which also read tensors that are no arguments of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch import apis
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointFunction

Note = Callable[[Callable[..., Any], str, Any, Any], Any]
"""Calls a function, by its name, with arguments."""


@contextmanager
def as_one_call(
    note: Note, is_noting: Callable[[], bool], is_known: Callable[[torch.Tensor], bool]
) -> Iterator[None]:
    """Give such calls to ``note`` within the block, while it notes.

    Parameters
    ----------
    note : callable
    is_noting : callable
    is_known : callable
        Whether a tensor may be another one when the call is made again.
    """
    apply = torch.autograd.Function.__dict__["apply"].__func__
    script, mapped = torch.jit.ScriptFunction.__call__, apis.vmap_impl

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is CheckpointFunction and is_noting():
            function, _, *given = args  # reads parameters that are no arguments
            return function(*given)
        one = partial(apply, cls)
        return note(one, cls.__name__, args, kwargs) if is_noting() else one(*args, **kwargs)

    def scripted(function: Any, *args: Any, **kwargs: Any) -> Any:
        one = partial(script, function)
        return note(one, "torch.jit.script", args, kwargs) if is_noting() else one(*args, **kwargs)

    def vmapped(*args: Any, **kwargs: Any) -> Any:
        if not is_noting():
            return mapped(*args, **kwargs)
        met: dict[int, torch.Tensor] = {}
        with _pop_mode_temporarily(), _Swapped(lambda each: met.setdefault(id(each), each)):
            mapped(*args, **kwargs)
        around = [each for each in met.values() if is_known(each)]

        def again(given: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            instead = dict(zip(map(id, around), given, strict=True))
            with _Swapped(lambda each: instead.get(id(each), each)):
                return mapped(*args, **kwargs)

        return note(again, "torch.vmap", (around, *args), kwargs)

    with (
        patch.object(torch.autograd.Function, "apply", classmethod(applied)),
        patch.object(torch.jit.ScriptFunction, "__call__", scripted),
        patch.object(apis, "vmap_impl", vmapped),
    ):
        yield


class _Swapped(TorchFunctionMode):
    """Gives functions of PyTorch other tensors within the block."""

    def __init__(self, other: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._other = other

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map(
            lambda each: self._other(each) if isinstance(each, torch.Tensor) else each,
            (args, kwargs or {}),
        )
        return func(*args, **kwargs)
