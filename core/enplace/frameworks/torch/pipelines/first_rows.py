"""Let the steps of a script see one micro-batch, so that what is recorded is what a pipeline runs.

A micro-batch does not take its share of the batch's time: small ops take some time whatever their
size, and large ones are less efficient in one size than in another. Besides, it adds its gradients
to those of the micro-batches before it, so the steps here have gradients to add to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from enplace.frameworks.torch.pipelines.batches import samples_in
from enplace.frameworks.torch.pipelines.tape import rows_of


@contextmanager
def first_rows(parts: int) -> Iterator[None]:
    """Give a model in training, and its loss, the first of so many micro-batches of each batch.

    Raises
    ------
    PipelineRefusedError
        From a step whose batch has no such parts.
    """
    following = _Following(parts)
    with (
        patch.object(torch.nn.Module, "__call__", following.called(torch.nn.Module.__call__)),
        patch.object(torch.autograd, "backward", following.ended(torch.autograd.backward)),
        # It would call the one above from within the mode, which could not end there.
        patch.object(torch.Tensor, "backward", following.ended(torch.Tensor.backward)),
    ):
        try:
            yield
        finally:
            following.end()


class _Following:
    """Begins to cut where a model is called, and ends where the script goes backward."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._mode: _FirstRows | None = None
        self._sums = WeakIdKeyDictionary()

    def called(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            trains = module.training and torch.is_grad_enabled()
            if self._mode or not trains or not any(True for _ in module.parameters()):
                return usual(module, *args, **kwargs)
            samples = samples_in((args, kwargs))
            self._mode = _FirstRows(module, samples, rows_of(samples, self._parts))
            args, kwargs = self._mode.cut((args, kwargs))  # before it is on
            self._mode.__enter__()
            try:
                return usual(module, *args, **kwargs)
            except BaseException:
                self.end()
                raise

        return call

    def ended(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._mode is None:
                return usual(*args, **kwargs)
            model = self._mode.model
            self.end()
            self._begin_sums(model)
            try:
                return usual(*args, **kwargs)
            finally:
                self._make_sums(model)

        return backward

    def _make_sums(self, model: torch.nn.Module) -> None:
        """Make gradients for later steps to add to; the first step has none."""
        with _disable_current_modes():
            for each in model.parameters():
                if each.grad is not None and each not in self._sums:
                    self._sums[each] = torch.zeros_like(each.grad)

    def _begin_sums(self, model: torch.nn.Module) -> None:
        """Let a step add to zeros, without recording that they are made."""
        with _disable_current_modes():
            for each in model.parameters():
                if each.grad is None and each in self._sums:
                    each.grad = self._sums[each].zero_()

    def end(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None


class _FirstRows(TorchFunctionMode):
    """Cuts what comes from outside and has a row for each sample; anything made of that is cut."""

    def __init__(self, model: torch.nn.Module, samples: int, rows: int) -> None:
        super().__init__()
        self.model, self._samples, self._rows = model, samples, rows
        self._stays = WeakIdKeyDictionary()
        self._note((*model.parameters(), *model.buffers()))

    def _note(self, values: Any) -> None:
        self._stays.update(
            dict.fromkeys((v for v in tree_leaves(values) if isinstance(v, torch.Tensor)), True)
        )

    def cut(self, values: Any) -> Any:
        """Return values with the first rows of each tensor of the batch."""
        return tree_map(self._part, values)

    def _part(self, value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor) and value.dim() > 0
        if not is_tensor or value.shape[0] != self._samples or value in self._stays:
            return value
        part = value[: self._rows]
        self._note(part)
        return part

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        out = func(*self.cut(args), **self.cut(kwargs or {}))
        self._note(out)
        return out
