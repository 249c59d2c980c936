"""Write down which functions of PyTorch a step calls on one micro-batch, to call them again.

A script says neither what its stages are nor what its loss is. So its model is called with the
first micro-batch of a batch, and its loss is taken of that; what either calls is the tape. Parts of
it, each in its own process, are the stages of a pipeline (:mod:`.stages`). A tensor that the script
takes from outside of the tape is a part of the batch if it has a row for each sample, and else
stays as it is. What it makes after its model's call of nothing of the step, such as the next batch,
is not on the tape until it meets something of the step (:mod:`.aside`).

Where the model reads values, in Python, other micro-batches may need other calls. So such a read is
a call too, which must give the same again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from traceback import walk_stack, walk_tb
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode_temporarily,
)
from torch.utils._pytree import tree_leaves, tree_map

from enplace.errors import EnplaceError
from enplace.frameworks.torch.error_text import first_line, is_out_of_memory
from enplace.frameworks.torch.pipelines.aside import Aside
from enplace.frameworks.torch.pipelines.calls import (
    OF_CLASSES,
    SOURCES,
    Batch,
    Call,
    Kept,
    Made,
    PipelineRefusedError,
    Read,
    answer_of,
    at_line,
    brief_of,
    call_all,
    gradient_hook,
    has_any,
    is_inner,
    is_of_script,
    is_tensor,
    leaves_of,
    line_of,
    map_all,
    modes_now,
)
from enplace.frameworks.torch.pipelines.drawn import Drawn, Generators, unknown_draw
from enplace.frameworks.torch.pipelines.masks import masks_for_padding
from enplace.frameworks.torch.pipelines.one_call import as_one_call
from enplace.frameworks.torch.pipelines.samples import mixes, pools, samples_in
from enplace.frameworks.torch.record.storages import tensors_in
from enplace.text import listed

IN_PLACE = re.compile(
    r"(?:_foreach_)?[a-z]\w*[a-z0-9]_|__i(?!nt__|ndex__|nvert__)\w+__|__setitem__"
)
_GIVES_NO_TENSOR = ("__set__", "backward", "requires_grad_", "retain_grad", "register_hook")
_READS = ("item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__",
          "__complex__", "__contains__", "__format__", "__repr__", "equal", "allclose",
          "is_nonzero")  # fmt: skip
_PROPERTIES = {
    getattr(torch.Tensor, name).__get__: name
    for name in ("shape", "ndim", "nbytes", "data", "__cuda_array_interface__")
}
_SIZES = ("shape", "ndim", "nbytes", "size", "numel", "nelement", "__len__", "dim", "stride",
          "_nnz")  # fmt: skip
_ROWS = ("shape", "size", "__len__")
_MEMORY = ("untyped_storage", "storage", "data_ptr", "__dlpack__", "__cuda_array_interface__")
_PARTS = ("unbind", "split", "chunk", "tensor_split")
_SIZED_BY_VALUES = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive",
                    "bincount", "one_hot", "repeat_interleave", "tensor_split", "nms",
                    "to_sparse", "to_sparse_coo", "to_sparse_csr", "coalesce",
                    "_pack_padded_sequence", "_pad_packed_sequence")  # fmt: skip
"""What they make has a shape that depends on values of their arguments."""
_SIZED_AS_FIRST = ("index_add", "index_copy", "index_put", "scatter", "scatter_add",
                   "scatter_reduce", "masked_scatter")  # fmt: skip
"""What they make has the shape of their first argument."""
_NAMES_SIZES = ("view", "reshape", "expand")
_NEEDS_ROWS = ("batch_norm", "sync_batch_norm")
_BY_VALUE = (
    "the loss goes by the value of a loss, without its gradient, and a micro-batch has another; "
    "run without a pipeline, or leave that out"
)
_DRAWS_BY_VALUES = ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet")
_DRAWN_LIKE = ("rand_like", "randn_like", "randint_like")
_WITHOUT_GRADIENT = ("detach", "data")


class Tape(TorchFunctionMode):
    """What a model and its loss call on one micro-batch.

    Attributes
    ----------
    calls : list of Call
    batch : dict of int to tensor
        The whole tensors of this step's batch, by their numbers.
    shown : dict of int to (int, tensor)
        By ``id``, what the script has of this step: what its model gave and what it made of that,
        with their numbers.
    parts_of_loss : list of int
        The numbers of single real numbers with a gradient, such as losses that are added up.
    made_of_losses : list of Aside
        The calls that the script made of these without gradients, in their order.
    """

    def __init__(self, model: torch.nn.Module, samples: int, parts: int, kind: str = "cpu") -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.batch: dict[int, torch.Tensor] = {}
        self.shown: dict[int, tuple[int, torch.Tensor]] = {}
        self.parts_of_loss: list[int] = []
        self.made_of_losses: list[Aside] = []
        self._aside: dict[int, Aside] = {}
        self._instead: dict[int, torch.Tensor] = {}
        self._fresh: set[int] = set()
        self._copies: dict[int, torch.Tensor] = {}
        self._changed_views: dict[int, tuple[str, str]] = {}
        self._has_read_rows = False
        self._samples, self._rows, self._kind = samples, rows_of(samples, parts), kind
        self._paths: list[str] = []
        self._own = {id(each) for each in (*model.parameters(), *model.buffers())}
        self._number_of: dict[int, int] = {}
        self._batch_of: dict[int, int] = {}
        self._held: list[Any] = []  # or else another tensor might get its number
        self._n_made = self._n_forward = 0
        self._in_model, self._turn = False, -1
        self._out: Any = None
        self._of_out: dict[int, int] = {}
        self._sized_by_values: set[int] = set()
        self._with_samples: dict[int, int] = {}
        self._pooled: set[int] = set()
        self._drawn: list[Drawn] = []
        self._n_drawn = 0
        self._numbers = torch.arange(samples)
        self._no_means: dict[int, str] = {}
        self._stack = ExitStack()
        for path, module in model.named_modules():
            enter, leave = self._enter(path), self._leave
            self._stack.callback(module.register_forward_pre_hook(enter).remove)
            self._stack.callback(module.register_forward_hook(leave, always_call=True).remove)

    def call(self, usual: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the model with the first micro-batch, on the tape; the tape goes on after that."""
        whole = args, kwargs
        args, kwargs = self._cut(whole)
        self._begin()
        self._in_model, drawn = True, _drawn_so_far()
        try:
            with masks_for_padding():
                self._out = usual(*args, **kwargs)
        except Exception as error:
            with _pop_mode_temporarily():
                if not isinstance(error, EnplaceError) and _works(usual, *whole):
                    raise self._refuse_cut(error) from None
            raise
        self._in_model, self._n_forward = False, len(self.calls)
        if drawn != _drawn_so_far():
            raise PipelineRefusedError(
                "the model draws random numbers from Python or NumPy, and each micro-batch would "
                "have those of the first; draw them from PyTorch, or run without a pipeline"
            )
        with _pop_mode_temporarily():
            self._show_all(self._out)
        return self._out

    def loss(self, tensor: torch.Tensor) -> int:
        """End the tape, or a later step beside it, with the loss; return its number.

        Raises
        ------
        PipelineRefusedError
            If the loss is not from the tape, or surely no mean over samples.
        """
        self._stack.close()
        number = self._number_of.get(id(tensor))
        if number is None or tensor.numel() != 1:
            raise PipelineRefusedError(
                "the script goes backward from something other than one loss of one call of its "
                "model"
            )
        if self._turn < 0:
            self._check_mean(number)
            self._out, self._of_out = self._others(self._number_of)
        self._forget()
        return number

    def _refuse_cut(self, error: Exception) -> PipelineRefusedError:
        """Say which tensors were cut where a call fails on a micro-batch."""
        lines = [
            line_of(frame, line)
            for frame, line in walk_tb(error.__traceback__)
            if is_of_script(frame)
        ]
        shapes = {" × ".join(map(str, each.shape)) for each in self.batch.values()}
        return PipelineRefusedError(
            f"{lines[-1] if lines else at_line()}: it fails on {self._rows} of {self._samples} "
            f"rows ({type(error).__name__}: {first_line(error).rstrip('.')}): each tensor with as "
            f"many rows as the batch has samples was cut (here {listed(sorted(shapes))}); make one "
            f"that is no part of the batch a buffer of the model, flatten labels after the call of "
            f"the model, or run without a pipeline if samples need each other"
        )

    def _forget(self) -> None:
        self._held.clear()
        self._aside.clear()
        self._instead.clear()
        self._fresh.clear()
        self._copies.clear()
        self._changed_views.clear()
        self._has_read_rows = False

    def close(self) -> None:
        """End the tape, wherever it is."""
        self._stack.close()

    def call_beside(self, usual: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call another model, of whose parameters none is trained.

        It gets the whole batch, if what it gives of that has a row for each sample; what it gets of
        the step, it gets on the tape.
        """
        given = tensors_in((args, kwargs))
        if any(id(each) in self._number_of or id(each) in self._aside for each in given):
            return usual(*args, **kwargs)
        with _pop_mode_temporarily():
            out = usual(*args, **kwargs)
        has_rows = all(self._is_batch(each) for each in tensors_in(out))
        return out if has_rows else usual(*args, **kwargs)

    def made_again(self, rows: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
        """Return what the model would give for other rows, without gradients.

        None stands for what it did not make.
        """
        known: dict[int, torch.Tensor] = {}
        call_all(self.calls[: self._n_forward], known, rows)
        return [known.get(number) for number in self._given]

    def calls_for(self, numbers: Sequence[int], *, after_model: bool = False) -> list[Call]:
        """Return the calls that some numbers need, in order; only those after the model's."""
        needed, found = {*numbers}, []
        for call in reversed(self.calls[self._n_forward if after_model else 0 :]):
            if not needed.isdisjoint(call.numbers):
                needed.update(each.number for each in call.sources if isinstance(each, Made))
                found.append(call)
        return found[::-1]

    def known_again(
        self,
        numbers: Sequence[int],
        rows: Mapping[int, torch.Tensor],
        out: Sequence[Any] | None,
        times: int = 1,
    ) -> dict[int, torch.Tensor]:
        """Return what a step would make of other rows, without gradients, by its numbers.

        Parameters
        ----------
        numbers : sequence of int
            What to make, at least.
        out : sequence, optional
            What the model gave for these rows; without it, the tape is called.
        times : int
            How many times the rows of a micro-batch these are.
        """
        known = {} if out is None else dict(zip(self._given, out, strict=True))
        calls = self.calls_for(numbers, after_model=out is not None)
        call_all([self._of_more(call, times) for call in calls], known, rows)
        return known

    def _of_more(self, call: Call, times: int) -> Call:
        """Return a call for more samples, whose number it may give, as ``reshape`` does."""
        if call.name not in _NAMES_SIZES or self._with_samples.get(call.numbers[0]) != 0:
            return call
        source, *sizes = call.args
        first, *rest = sizes[0] if sizes and isinstance(sizes[0], tuple | list) else sizes or [-1]
        is_number = isinstance(first, int) and first > 0
        return replace(call, args=(source, [first * times, *rest])) if is_number else call

    def add_known(self, known: dict[int, torch.Tensor]) -> None:
        """Add what the script made of known losses, and of no other tensors that change."""
        for call in self.calls[self._n_forward :]:
            given = [each for each in call.sources if not isinstance(each, Kept)]
            is_known = all(isinstance(each, Made) and each.number in known for each in given)
            is_new = call.read is None and known.keys().isdisjoint(call.numbers)
            if given and is_known and is_new:
                call_all([call], known, {})

    @property
    def _given(self) -> list[int]:
        """The numbers of what the model gave; -1 stands for what it did not make."""
        return [self._of_out.get(id(each), -1) for each in leaves_of(self._out)]

    def _others(self, number_of: Mapping[int, int]) -> tuple[Any, dict[int, int]]:
        """Return what the model gave as other tensors, without what made them; their numbers."""
        found: dict[int, int] = {}

        def other(value: Any) -> Any:
            number = number_of.get(id(value)) if is_tensor(value) else None
            if number is None:
                return value
            made = value.detach().requires_grad_(value.requires_grad)
            found[id(made)] = number
            return made

        return map_all(other, self._out), found

    def _show_all(self, out: Any) -> None:
        def show(each: Any) -> None:
            if is_tensor(each) and (number := self._number_of.get(id(each))) is not None:
                self._show(number, each)

        map_all(show, out)

    def _show(self, number: int, tensor: torch.Tensor) -> None:
        self.shown[id(tensor)] = number, tensor
        is_real = tensor.dim() == 0 and tensor.is_floating_point() and tensor.requires_grad
        if self._turn < 0 and is_real:
            self.parts_of_loss.append(number)

    def call_again(self, args: Any, kwargs: Any) -> Any:
        """Take a later step's batch; follow what becomes of the first one's result."""
        self._turn, self._n_drawn = self._n_forward, 0
        self._batch_of.clear()
        self.batch.clear()
        self.made_of_losses.clear()
        self._forget()
        out, self._number_of = self._others(self._of_out)
        self._show_all(out)
        self._cut((args, kwargs))
        self._begin()
        return out

    def _begin(self) -> None:
        def is_noting() -> bool:  # not while it calls a function, which may call others
            return self in _get_current_function_mode_stack()

        self._stack.enter_context(as_one_call(self._note_one, is_noting, self._is_known))
        usual = torch.from_numpy

        def from_numpy(array: Any) -> torch.Tensor:  # which PyTorch tells no mode
            if self._in_model or not is_noting():
                return usual(array)
            return self._call_aside(usual, "from_numpy", (array,), {}, [])

        self._stack.enter_context(patch.object(torch, "from_numpy", from_numpy))
        self._stack.enter_context(self)

    def _note_one(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        with _pop_mode_temporarily():
            return self._called(func, name, args, kwargs, is_opaque=True)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        known = (self._number_of, self._batch_of, self._own)
        return any(id(tensor) in each for each in known) or self._is_batch(tensor)

    def _cut(self, values: Any) -> Any:
        """Return values with the first rows of each tensor of the batch."""

        def one(value: Any) -> Any:
            call = None if self._in_model else self._aside.get(id(value))
            if call is not None and (call.is_of_loss or not self._is_batch(value)):
                return self._put_on(value, call)
            return self._part(value) if self._is_batch(value) else value

        return tree_map(one, values)

    # What the script makes aside

    def _is_of_step(self, tensor: torch.Tensor) -> bool:
        """Whether what is made of a tensor is of the step, even without a gradient."""
        if id(tensor) in self._aside:
            return False
        if (number := self._number_of.get(id(tensor))) is not None:
            return number not in self.parts_of_loss
        return id(tensor) in self._batch_of or self._is_batch(tensor)

    def _goes_aside(self, name: str, given: Sequence[torch.Tensor]) -> bool:
        """Whether a call of the script gets nothing of the step but losses, without gradients."""
        if any(is_inner(each) or self._is_of_step(each) for each in given):
            return False
        keeps = torch.is_grad_enabled() and name not in _WITHOUT_GRADIENT
        return not (keeps and any(each.requires_grad for each in given))

    def _call_aside(
        self, func: Any, name: str, args: Any, kwargs: Any, given: Sequence[torch.Tensor]
    ) -> Any:
        before = [self._aside[id(each)] for each in given if id(each) in self._aside]
        is_of_loss = any(id(each) in self._number_of for each in given)
        is_of_loss |= any(call.is_of_loss for call in before)
        if is_of_loss and name in _READS:
            raise _reads_early()
        changed = args[0] if _changes_first(name, args) else None
        call = Aside(
            func,
            name,
            args,
            kwargs,
            modes_now(self._kind),
            is_of_loss,
            any(call.has_rows for call in before)
            or any(id(each) in self._aside and self._is_batch(each) for each in given),
            None if changed is None or not is_of_loss else changed.clone(),
        )
        may_share = self._has_read_rows and self._rows != self._samples
        generators = Generators((args, kwargs), self._kind) if may_share else None
        try:
            out = call.begin(changed)
        except _OF_SHAPES as error:
            if not self._has_read_rows or is_out_of_memory(error):
                raise
            raise self._refuse_cut(error) from None
        has_rows = any(each.dim() and each.shape[0] == self._rows for each in tensors_in(out))
        if has_rows and generators is not None and generators.have_moved():
            raise _draws_rows(name)
        if not has_any((args, kwargs), np.ndarray):
            lent = {_memory(each) for each in given}
            self._fresh |= {id(each) for _, each in call.made if _memory(each) not in lent}
        self._aside.update({id(each): call for each in call.results if id(each) not in self._own})
        if is_of_loss:
            self.made_of_losses.append(call)
        return out

    def _is_changed_aside(self, changed: torch.Tensor, given: Sequence[torch.Tensor]) -> bool:
        """Whether a tensor with a row per sample is changed as a whole, by nothing of the step."""
        if any(_overlap(changed, each) for each in self.batch.values()):
            return False
        keeps = torch.is_grad_enabled() and any(each.requires_grad for each in given)
        return not (keeps or any(is_inner(e) or id(e) in self._number_of for e in given))

    def _as_whole(self, value: Any) -> Any:
        """Return what the script made of its batch alone as made of the whole; others as they are.

        Samples of a batch are there before the step has gone through its model.
        """
        number = self._number_of.get(id(value)) if is_tensor(value) else None
        if number is None:
            return value
        calls = self.calls_for([number])
        is_later = len(calls) == len(self.calls_for([number], after_model=True))
        if not is_later or any(call.needs_gradient for call in calls):
            return value
        times = self._samples // self._rows
        try:
            return self.known_again([number], self.batch, None, times)[number]
        except _OF_SHAPES:
            return value

    def _copy(self, name: str, changed: torch.Tensor) -> torch.Tensor:
        """Return the copy on the tape that a call of the script changes in its stead."""
        self._held.append(changed)
        if id(changed) in self._number_of:
            self._changed_views[_memory(changed)] = at_line(), name
            return self._noted(torch.clone, "clone", (changed,), {})
        if id(changed) not in self._fresh:
            raise _changes_rows(at_line(), name)
        return self._noted(torch.clone, "clone", (self._part(changed),), {})

    def _is_view_of_batch(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor on the tape has the memory of one that the script may have kept."""
        is_made = id(tensor) in self._number_of
        return is_made and any(_overlap(tensor, each) for each in self.batch.values())

    def _whole_like(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor like one of the step, but with a row for each sample; None for others.

        What the script draws like that is what it draws without a pipeline.
        """
        if self._is_batch(tensor):
            return tensor
        if not self._has_rows(tensor):
            return None
        return torch.cat([tensor.detach()] * (self._samples // self._rows))

    def _has_rows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor on the tape seems to have a row for each sample of a micro-batch."""
        number = self._number_of.get(id(tensor), -1)
        is_like_it = tensor.dim() > 0 and tensor.shape[0] == self._rows
        return number >= 0 and is_like_it and not self._with_samples.get(number, 0)

    def _put_on(self, tensor: torch.Tensor, call: Aside) -> torch.Tensor:
        """Return what is on the tape for a tensor that was made aside and meets the step."""
        if not (call.is_of_loss or call.has_rows) or tensor is call.changed:
            if call.is_of_loss:
                raise _reads_early()
            return tensor
        if id(tensor) not in self._instead:
            with call.modes.again():
                out = self._noted(call.function, call.name, *self._cut((call.args, call.kwargs)))
            leaves = tree_leaves(out)
            self._instead.update({id(each): leaves[at] for at, each in call.made})
            if call.is_of_loss:
                numbers = [self._number_of.get(id(leaves[at]), -1) for at, _ in call.made]
                self._no_means |= dict.fromkeys(numbers, _BY_VALUE)
        return self._instead[id(tensor)]

    def _is_batch(self, value: Any) -> bool:
        return (
            is_tensor(value)
            and value.dim() > 0
            and value.shape[0] == self._samples
            and id(value) not in self._own
            and id(value) not in self._number_of
            and not self._is_part(value)
        )

    def _is_part(self, tensor: torch.Tensor) -> bool:
        return self._rows == self._samples and id(tensor) in self._batch_of

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the first rows of a tensor of the batch, which has a number from here on."""
        if self._changed_views and (found := self._changed_views.get(_memory(tensor))):
            raise _changes_rows(*found)
        number = self._batch_of.get(id(tensor))
        if number is None:
            if self._in_model:
                raise PipelineRefusedError(
                    "the model takes part of the batch from elsewhere than its arguments; pass it "
                    "as one"
                )
            number = self._batch_of[id(tensor)] = len(self.batch)
            self.batch[number] = tensor
        part = tensor[: self._rows]
        self._held += [tensor, part]
        self._batch_of[id(part)] = number
        return part

    def _enter(self, path: str) -> Callable[..., None]:
        return lambda module, args: self._paths.append(path)

    def _leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if self._paths:
            self._paths.pop()

    # Calls

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = _PROPERTIES.get(func, getattr(func, "__name__", ""))
        return self._called(func, name, args, kwargs or {})

    def _called(
        self, func: Any, name: str, args: Any, kwargs: Any, *, is_opaque: bool = False
    ) -> Any:
        if not self._in_model:
            args, kwargs = tree_map(lambda each: self._copies.get(id(each), each), (args, kwargs))
            given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
            for changed in _changed_by(name, args, kwargs):
                if self._is_batch(changed):
                    of_all = tree_map(self._as_whole, (args, kwargs))
                    known = [e for e in tree_leaves(of_all) if isinstance(e, torch.Tensor)]
                    if self._is_changed_aside(changed, known):
                        return self._call_aside(func, name, of_all[0], of_all[1], known)
                if self._is_batch(changed) or self._is_view_of_batch(changed):
                    self._copies[id(changed)] = self._copy(name, changed)
                    return self._called(func, name, args, kwargs)
            self._has_read_rows |= name in _ROWS and any(map(self._has_rows, given))
            if name in _DRAWN_LIKE and args and (whole := self._whole_like(args[0])) is not None:
                return self._call_aside(func, name, (whole, *args[1:]), kwargs, [])
            if self._goes_aside(name, given):
                return self._call_aside(func, name, args, kwargs, given)
        args, kwargs = self._cut((args, kwargs))
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], self._with_plain_slices(args[1]), *args[2:])
        return self._noted(func, name, args, kwargs, is_opaque=is_opaque)

    def _with_plain_slices(self, index: Any) -> Any:
        """Read the tensors that begin or end slices, which PyTorch would do unseen."""

        def plain(each: Any) -> Any:
            if not isinstance(each, torch.Tensor):
                return each
            return self._noted(torch.Tensor.__index__, "__index__", (each,), {})

        def one(each: Any) -> Any:
            is_slice = isinstance(each, slice)
            return slice(*map(plain, (each.start, each.stop, each.step))) if is_slice else each

        return tree_map(one, index, is_leaf=lambda each: isinstance(each, slice))

    def _noted(
        self, func: Any, name: str, args: Any, kwargs: Any, *, is_opaque: bool = False
    ) -> Any:
        if name in _NEEDS_ROWS and _trains(args, kwargs):
            raise PipelineRefusedError(
                f"'{self._paths[-1] if self._paths else name}' normalises over the whole batch, "
                f"and a micro-batch has other statistics; run this model without a pipeline"
            )
        if name == "register_hook":
            raise gradient_hook(f"{at_line()}: a tensor")
        sources = self._sources((args, kwargs))
        is_shown = not self._in_model and name in _READS
        if is_shown and has_any(sources, Made | Batch):
            if _checks_values():
                return func(*args, **kwargs)
            raise _reads_early()
        if self._in_model and name in _MEMORY and has_any(sources, Made | Batch):
            raise PipelineRefusedError(
                f"{at_line()}: the model takes the memory of a tensor, by '{name.strip('_')}', "
                f"past the calls that a pipeline can repeat; use functions of PyTorch"
            )
        changed = args[0] if _changes_first(name, args) else None
        leaves = tree_leaves((args, kwargs))
        before = {id(each): _version(each) for each in leaves if is_tensor(each)}
        may_draw = not (self._in_model or isinstance(func, Drawn))
        generators = Generators((args, kwargs), self._kind) if may_draw else None
        try:
            out = func(*args, **kwargs)
        except _OF_SHAPES as error:
            if self._in_model or not has_any(sources, Made | Batch) or is_out_of_memory(error):
                raise
            raise self._refuse_cut(error) from None
        made = [
            (at, each)
            for at, each in enumerate(tree_leaves(out))
            if is_tensor(each) and before.get(id(each)) != _version(each)  # else it is an argument
        ]
        inner = any(map(is_inner, leaves))
        reads = self._reads(name, sources) or (
            is_opaque and not all(map(is_tensor, tree_leaves(out)))
        )
        if name in _GIVES_NO_TENSOR or inner or not (made or changed is not None or reads):
            return out
        needs = any(each.requires_grad for _, each in made) or _needs(changed)
        if not (self._in_model or needs or has_any(sources, Made | Batch)):
            return out  # the script does it in each step, such as setting gradients to zero
        if generators is not None and generators.have_moved():
            return self._draw(func, name, args, kwargs, generators, is_opaque=is_opaque)
        if made and _is_mean(name, out) and self._has_sized_by_values(sources[0][:1]):
            self._noted(torch.Tensor.numel, "numel", args[:1], {})  # else it is no mean of samples
        if self._turn >= 0:
            self._follow(name, sources, made, changed)
            return out
        makes = tuple((at, self._new(each)) for at, each in made if each is not changed)
        number = None if changed is None else self._new(changed)
        results = [each for each in (*(each for _, each in made), changed) if each is not None]
        new = {self._number_of[id(each)]: each for each in results}
        if needs and (why := self._why_no_mean(name, args, kwargs, sources, out)):
            self._no_means[self._number_of[id(out)]] = why
        if not is_opaque:
            self._follow_samples(name, args, kwargs, sources, new, needs=needs)
        if is_opaque or self._is_sized_by_values(name, args, kwargs, sources, changed):
            self._sized_by_values.update(n for n, each in new.items() if each.dim())
        self.calls.append(
            Call(
                func,
                name,
                sources[0],
                sources[1],
                makes,
                number,
                self._paths[-1] if self._paths else "",
                needs,
                modes_now(self._kind),
                {n: (each.shape, each.dtype) for n, each in new.items()},
                Read(answer_of(out), at_line()) if reads else None,
            )
        )
        if not self._in_model:
            numbers = dict(makes)
            for at, each in made:
                if (shown := numbers.get(at, number)) is not None:
                    self._show(shown, each)
        return out

    def _draw(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        generators: Generators,
        *,
        is_opaque: bool,
    ) -> Any:
        """Draw for the whole batch, as the script would, and note a call that takes a part."""
        if name in _DRAWS_BY_VALUES:
            raise unknown_draw(name, "how many depends on values, of which a micro-batch has some")
        if self._n_drawn == len(self._drawn):
            leaves = tree_leaves((args, kwargs))
            pairs = zip(leaves, tree_leaves(self._sources((args, kwargs))), strict=True)
            at = [self._samples_of_draw(name, each, source) for each, source in pairs]
            self._drawn.append(Drawn(func, name, self._samples, at))
        drawn = self._drawn[self._n_drawn]
        self._n_drawn += 1
        drawn.begin = generators
        if drawn.has_samples:
            kwargs = {**kwargs, "of_samples": self._part(self._numbers)}
        out = self._noted(drawn, name, args, kwargs, is_opaque=is_opaque)
        drawn.end.go_back()
        return out

    def _samples_of_draw(self, name: str, tensor: Any, source: Any) -> int | None:
        """Return along which dimension what a draw gets has samples; None if it has none."""
        if not isinstance(source, Made):
            return 0 if isinstance(source, Batch) else None
        number = source.number
        needs = [each for call in self.calls_for([number]) for each in call.sources]
        if not (tensor.dim() and has_any(needs, Batch)) or number in self._pooled:
            return None
        at = self._with_samples.get(number, 0)
        is_known = number in self._with_samples or tensor.shape[0] == self._rows
        if not is_known or number in self._sized_by_values or tensor.shape[at] % self._rows:
            raise unknown_draw(name)
        return at

    def _reads(self, name: str, sources: Any) -> bool:
        """Whether a call tells the script what may be another thing for other micro-batches."""
        if name in _READS:
            return self._in_model and has_any(sources, SOURCES)
        return name in (*_SIZES, *_PARTS) and self._has_sized_by_values(sources)

    def _has_sized_by_values(self, sources: Any) -> bool:
        return any(
            isinstance(each, Made) and each.number in self._sized_by_values
            for each in tree_leaves(sources)
        )

    def _is_sized_by_values(
        self, name: str, args: Any, kwargs: Any, sources: Any, changed: torch.Tensor | None
    ) -> bool:
        """Whether the shape of what a call makes may depend on values.

        Where it does not, sizes are compared for nothing.
        """
        if changed is not None or name in _SIZED_AS_FIRST:
            return self._has_sized_by_values(sources[0][:1])
        if name in _SIZED_BY_VALUES or (name == "where" and len(args) == 1):
            return True
        given = [each for each in tree_leaves((args, kwargs)) if is_tensor(each)]
        has_size = any(not each.dim() and not each.is_floating_point() for each in given)
        is_picked = name == "__getitem__" and any(
            is_tensor(each) and each.dtype in (torch.bool, torch.uint8)
            for each in tree_leaves(args[1:])
        )
        return is_picked or has_size or self._has_sized_by_values(sources)

    def _samples_at(self, source: Any) -> int | None:
        """Return along which dimension what stands for a tensor surely has samples."""
        if isinstance(source, Batch):
            return 0
        return self._with_samples.get(source.number) if isinstance(source, Made) else None

    def _follow_samples(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        sources: Any,
        new: Mapping[int, torch.Tensor],
        *,
        needs: bool,
    ) -> None:
        """Follow where samples are in what a call makes; refuse one that surely mixes them."""
        pairs = [*zip(tree_leaves((args, kwargs)), tree_leaves(sources), strict=True)]
        given = [(each, at) for each, of in pairs if (at := self._samples_at(of)) is not None]
        is_pooled = any(isinstance(of, Made) and of.number in self._pooled for _, of in pairs)
        if needs and given and (is_pooled or mixes(name, args, kwargs, given)):
            raise PipelineRefusedError(
                f"{at_line()}: '{name.strip('_')}' lets what is made of a sample depend on the "
                f"other samples of its batch, and a micro-batch has only its own; run without a "
                f"pipeline, or let samples not depend on each other"
            )
        if needs and (is_pooled or pools(name, args, kwargs, given)):
            self._pooled.update(new)
        for number, each in new.items() if given else ():
            at = samples_in(name, args, kwargs, given, each, self._rows)
            if at is not None:
                self._with_samples[number] = at

    def _why_no_mean(self, name: str, args: Any, kwargs: Any, sources: Any, out: Any) -> str:
        """Say why a single number is surely no mean over samples; empty if it may be one."""
        has_rows = bool(args) and self._samples_at(sources[0][0]) is not None
        if not is_tensor(out) or out.dim() or not has_rows:
            return ""
        if name == "sum" or kwargs.get("reduction") == "sum":
            return (
                f"'{name}' adds up samples, and a pipeline takes the mean of its micro-batches; "
                f"let the loss be a mean over samples"
            )
        if name in OF_CLASSES and kwargs.get("weight") is not None:
            return (
                f"'{name}' has weights of classes, so it is no mean over samples, and "
                f"micro-batches would have others; leave them out"
            )
        return ""

    def _check_mean(self, loss: int) -> None:
        """Refuse a loss that has a part which is surely no mean over samples."""
        maker = {number: call for call in self.calls for number in call.numbers}
        waiting = [loss]
        while waiting:
            number = waiting.pop()
            if (why := self._no_means.get(number)) is not None:
                raise PipelineRefusedError(why)
            made = [each.number for each in maker[number].sources if isinstance(each, Made)]
            waiting += [each for each in made if not maker[each].shapes[each][0]]

    def _sources(self, values: Any) -> Any:
        """Return values with what stands for tensors."""

        def one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if (number := self._number_of.get(id(value))) is not None:
                return Made(number)
            if (number := self._batch_of.get(id(value))) is not None:
                return Batch(number)
            if self._in_model and value.grad_fn is not None and not is_inner(value):
                raise PipelineRefusedError(
                    f"{at_line()}: the model uses a tensor with a gradient that it made by other "
                    f"calls than a pipeline can repeat, such as modules of TorchScript; make it by "
                    f"functions of PyTorch"
                )
            is_own = isinstance(value, torch.nn.Parameter) or id(value) in self._own
            if _needs(value) and value.is_leaf and torch.is_grad_enabled() and not is_own:
                raise PipelineRefusedError(
                    f"{at_line()}: a tensor outside of the model gets a gradient in its loss, and "
                    f"in a pipeline only parameters do; make it a torch.nn.Parameter"
                )
            self._held.append(value)
            is_trained = value.requires_grad and torch.is_grad_enabled()
            is_other = isinstance(value, torch.nn.Parameter) and id(value) not in self._own
            return Kept(value.detach() if is_other and not is_trained else value)

        return tree_map(one, values)

    def _new(self, tensor: torch.Tensor) -> int:
        self._held.append(tensor)
        number = self._number_of[id(tensor)] = self._n_made
        self._n_made += 1
        return number

    def _follow(self, name: str, sources: Any, made: Any, changed: torch.Tensor | None) -> None:
        """Follow a later step beside the tape: it takes other tensors from outside, no more."""
        at, self._turn = self._turn, self._turn + 1
        known = self.calls[at] if at < len(self.calls) else None
        if known is None or known.name != name:
            before = f"'{known.name}'" if known else "nothing more"
            raise PipelineRefusedError(
                f"a later step calls '{name}' where the first one called {before}; a pipeline does "
                f"the same in each step"
            )
        for old, new in zip(
            tree_leaves((known.args, known.kwargs)), tree_leaves(sources), strict=True
        ):
            if isinstance(old, Made) and isinstance(new, Kept):
                raise PipelineRefusedError(
                    f"{at_line()}: a later step gives '{name}' a tensor that the model made in an "
                    f"earlier one; let the model return it, as it does its other results"
                )
            if isinstance(old, Kept) and isinstance(new, Kept):
                old.tensor = new.tensor
            elif _differs(old, new):
                raise PipelineRefusedError(
                    f"{at_line()}: a later step gives '{name.strip('_')}' something other than the "
                    f"first one did ({brief_of(new)} for {brief_of(old)}); give a number that "
                    f"changes as a tensor, and take a step's part of the data before the model is "
                    f"called"
                )
        numbers = dict(known.makes)
        found = [(numbers[place], each) for place, each in made if place in numbers]
        if changed is not None and known.changes is not None:
            found.append((known.changes, changed))
        for number, tensor in found:
            self._held.append(tensor)
            self._number_of[id(tensor)] = number
            self._show(number, tensor)


def _changes_first(name: str, args: Sequence[Any]) -> bool:
    """Whether a call changes its first argument, a tensor, in place."""
    return bool(IN_PLACE.fullmatch(name) and args and is_tensor(args[0]))


def _changed_by(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a call changes: its first argument, or what it gets as ``out``."""
    out = [each for each in tree_leaves(kwargs.get("out")) if is_tensor(each)]
    changes_first = _changes_first(name, args) and name not in _GIVES_NO_TENSOR
    return [args[0], *out] if changes_first else out


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors may have some memory in common."""
    if one is other or _memory(one) != _memory(other):
        return one is other
    begins, ends = zip(*map(_span, (one, other)), strict=True)
    return bool(max(begins) < min(ends))


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a tensor begins and ends in its memory, in bytes."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    size = 1 + sum((n - 1) * step for n, step in steps)
    begin = tensor.storage_offset() * tensor.element_size()
    return begin, begin + size * tensor.element_size()


def _checks_values() -> bool:
    """Whether a distribution of PyTorch looks whether its values are possible."""
    for frame, _ in walk_stack(None):
        if is_of_script(frame):
            return False
        if str(frame.f_globals.get("__name__")).startswith("torch.distributions."):
            return True
    return False


def _draws_rows(name: str) -> PipelineRefusedError:
    return PipelineRefusedError(
        f"{at_line()}: '{name.strip('_')}' draws as many rows as a micro-batch has, and each "
        f"micro-batch would have the same; draw by torch.randn_like or torch.rand_like of what the "
        f"model gave"
    )


def _changes_rows(line: str, name: str) -> PipelineRefusedError:
    return PipelineRefusedError(
        f"{line}: '{name.strip('_')}' changes a tensor with a row for each sample after the step "
        f"has taken it, or by what the step made, and a pipeline has only a micro-batch of that; "
        f"make a new tensor in each step, or change it before the model is called"
    )


def _reads_early() -> PipelineRefusedError:
    who, mend = "the script", "move that line below loss.backward()"
    for frame, _ in walk_stack(None):
        if is_of_script(frame):
            break
        if str(frame.f_globals.get("__name__")).startswith("torch.nn."):
            who = f"PyTorch's '{frame.f_code.co_name}'"
            mend = "run without it, or without a pipeline"
    return PipelineRefusedError(
        f"{at_line()}: {who} reads a value of the step before it goes backward, and a pipeline has "
        f"none until then; {mend}"
    )


_OF_SHAPES = (RuntimeError, ValueError, IndexError)
"""What functions of PyTorch raise where shapes do not fit."""


def _works(usual: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a model that fails on a micro-batch can take the whole batch."""
    with torch.no_grad(), suppress(Exception):
        usual(*args, **kwargs)
        return True
    return False


def _drawn_so_far() -> tuple[Any, ...]:
    """Return what changes when Python or NumPy draw a random number."""
    of_numpy: Any = np.random.get_state()  # noqa: NPY002 -- models use this one
    return random.getstate(), of_numpy[1].tobytes(), of_numpy[2:]


def _differs(old: Any, new: Any) -> bool:
    """Whether a step gives a call something other than the first one; other tensors may stay."""
    if isinstance(old, np.ndarray):
        return not np.array_equal(old, new)
    is_same = isinstance(new, Kept) if isinstance(old, Kept) else old == new
    return isinstance(old, _PLAIN) and not is_same


_PLAIN = (Made, Batch, Kept, int, float, complex, str, slice, type(None), np.generic, torch.Size,
          torch.dtype, torch.device)  # fmt: skip
"""What is the same in each step."""


def _trains(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of batch normalisation takes the statistics of its batch."""
    return bool(kwargs.get("training", args[5] if len(args) > 5 else False))


def _is_mean(name: str, out: Any) -> bool:
    is_mean = name == "mean" or name in OF_CLASSES or name.endswith("_loss")
    return is_mean and is_tensor(out) and not out.dim()


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed."""
    return 0 if tensor.is_inference() else tensor._version


def _needs(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def rows_of(samples: int, parts: int) -> int:
    """Return how many samples a micro-batch has.

    Raises
    ------
    PipelineRefusedError
        If they would differ.
    """
    if samples % parts:
        raise PipelineRefusedError(
            f"the {samples} rows of the batch, in its first dimension, do not divide into {parts} "
            f"micro-batches of one size; choose another number of them, drop the last batch, or "
            f"let samples be the first dimension"
        )
    return samples // parts
