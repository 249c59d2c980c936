"""Let the steps of a script see one micro-batch, so that what is recorded is what a pipeline runs.

A micro-batch does not take its share of the batch's time: small ops take some time whatever their
size, and large ones are less efficient in one size than in another. Besides, it adds its gradients
to those of the micro-batches before it, so the steps here have gradients to add to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.optim import optimizer as hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from enplace.frameworks.torch.open.scripts import MEND
from enplace.frameworks.torch.pipelines.batches import count_samples
from enplace.frameworks.torch.pipelines.tape import rows_of
from enplace.frameworks.torch.record.storages import tensors_in


@contextmanager
def first_rows(parts: int) -> Iterator[None]:
    """Give a model in training, and its loss, the first of so many micro-batches of each batch.

    Raises
    ------
    PipelineRefusedError
        From the first step, if its batch has no such parts. Later ones run whole then.
    """
    following = _Following(parts)
    with ExitStack() as stack:
        stack.callback(MEND.reset, MEND.set(MEND.get()))
        stack.callback(following.end)
        for owner, name, new in (
            (torch.nn.Module, "__call__", following.called),
            (torch.autograd, "backward", following.went_back),
            # It would call the one above from within the mode, which could not be left there.
            (torch.Tensor, "backward", following.went_back),
        ):
            stack.enter_context(patch.object(owner, name, new(getattr(owner, name))))
        # The mode takes time, and optimisers read nothing of the batch.
        stack.callback(hooks.register_optimizer_step_pre_hook(following.leave).remove)
        stack.callback(hooks.register_optimizer_step_post_hook(following.enter).remove)
        yield


_MEND = (
    "with --cut-batch {} its model gets and gives a part of each batch; let the line take any "
    "number of samples, or leave --cut-batch out"
)


class _Following:
    """Cuts a batch where its model is called; after the backward pass, what meets cut tensors."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._mode: _FirstRows | None = None
        self._has_cut = self._is_on = self._goes_back = False
        self._sums = WeakIdKeyDictionary()

    def called(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            trains = module.training and torch.is_grad_enabled()
            is_within = self._goes_back or (self._mode and self._mode.is_ahead)
            if is_within or not trains or not any(True for _ in module.parameters()):
                return usual(module, *args, **kwargs)
            self.end()
            samples = count_samples((args, kwargs))
            if self._has_cut and samples % self._parts:  # the rest of the data
                return usual(module, *args, **kwargs)
            self._mode = _FirstRows(module, samples, rows_of(samples, self._parts))
            self._has_cut = True
            MEND.set(_MEND.format(self._parts))
            args, kwargs = self._mode.cut((args, kwargs))  # before it is on
            self.enter()
            try:
                out = usual(module, *args, **kwargs)
            except BaseException:
                self.end()
                raise
            self._mode.is_in_model = False
            return out

        return call

    def went_back(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._goes_back or self._mode is None or not self._mode.is_ahead:
                return usual(*args, **kwargs)
            model = self._mode.model
            self.leave()
            self._begin_sums(model)
            self._goes_back = True
            try:
                return usual(*args, **kwargs)
            finally:
                self._make_sums(model)
                self._goes_back = self._mode.is_ahead = False
                self.enter()

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

    def enter(self, *_: Any) -> None:
        if self._mode is not None and not self._is_on:
            self._mode.__enter__()
            self._is_on = True

    def leave(self, *_: Any) -> None:
        if self._mode is not None and self._is_on:
            self._mode.__exit__(None, None, None)
            self._is_on = False

    def end(self) -> None:
        self.leave()
        self._mode = None


class _FirstRows(TorchFunctionMode):
    """Cuts what comes from outside and has a row for each sample; what is made of it is cut.

    Attributes
    ----------
    model : torch.nn.Module
    is_in_model : bool
        Whether the model is being called. What it makes from nothing stays as it is; what the
        script makes so, such as labels that it draws, is part of the batch.
    is_ahead : bool
        Whether the step has not gone backward yet. After that, only the batch is cut, and what
        meets it in an op, such as labels to count right answers: other data has as many rows by
        chance.
    """

    def __init__(self, model: torch.nn.Module, samples: int, rows: int) -> None:
        super().__init__()
        self.model, self._samples, self._rows = model, samples, rows
        self.is_in_model = self.is_ahead = True
        self._stays, self._of_batch = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        _add(self._stays, (*model.parameters(), *model.buffers()))

    def cut(self, values: Any) -> Any:
        """Return values with the first rows of each tensor of the batch."""
        return tree_map(self._part, values)

    def _part(self, value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor) and value.dim() > 0
        if not is_tensor or value.shape[0] != self._samples or value in self._stays:
            return value
        part = value[: self._rows]
        _add(self._stays, part)
        _add(self._of_batch, (value, part))
        return part

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        is_of_batch = any(map(self._is_of_batch, given))
        if is_of_batch or self.is_ahead:
            args, kwargs = self.cut((args, kwargs))
        out = func(*args, **kwargs)
        if is_of_batch or (self.is_ahead and (given or self.is_in_model)):
            _add(self._stays, out)
        if is_of_batch:
            _add(self._of_batch, out)
        return out

    def _is_of_batch(self, value: torch.Tensor) -> bool:
        """Whether a value has rows of the batch: some that were cut, or made of such."""
        rows = (self._rows, self._samples)
        return value in self._of_batch and value.dim() > 0 and value.shape[0] in rows


def _add(known: WeakIdKeyDictionary, values: Any) -> None:
    known.update(dict.fromkeys(tensors_in(values), True))
