"""What a tape holds: calls of functions of PyTorch, and what takes the place of tensors in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import filterfalse
from traceback import walk_stack
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from enplace.errors import PlanError

OF_CLASSES = ("cross_entropy", "nll_loss")


class PipelineRefusedError(PlanError):
    """A step cannot run as a pipeline; the line says why."""


def gradient_hook(what: str) -> PipelineRefusedError:
    """Refuse a hook on the gradient of something."""
    return PipelineRefusedError(
        f"{what} has a hook on its gradient, which would run once for each micro-batch, and only "
        f"in the process of its stage; change gradients after loss.backward(), where each process "
        f"has those of its stage, or run without a pipeline"
    )


class Outdated(torch.Tensor):
    """What a model made in a step that has gone backward: it is of the first micro-batch alone."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _ABOUT_TENSORS:
            return super().__torch_function__(func, types, args, kwargs or {})
        raise PipelineRefusedError(
            "the script uses after loss.backward() what its model made in the step, and in a "
            "pipeline only losses are known then: take other figures of the model under "
            "model.eval() or torch.no_grad()"
        )


_ABOUT_TENSORS = {
    getattr(torch.Tensor, name).__get__
    for name in ("requires_grad", "grad_fn", "is_leaf", "dtype", "device", "layout", "_grad")
}


@dataclass(frozen=True)
class Made:
    """A tensor that an earlier call made."""

    number: int


@dataclass(frozen=True)
class Batch:
    """A part of the batch: a tensor with a row for each sample."""

    number: int


@dataclass(eq=False)
class Kept:
    """A parameter or buffer, or another tensor that stays."""

    tensor: torch.Tensor


SOURCES = (Made, Batch, Kept)
"""What takes the place of tensors."""

_LEFT_OUT = -100
"""PyTorch's own target that a loss leaves out."""


@dataclass(frozen=True)
class Modes:
    """Under what a call was made: with or without gradients, and in which types.

    Attributes
    ----------
    kind : str
        Of the device.
    has_gradients : bool
    autocast : torch.dtype or None
        The type that autocast chooses; None outside of it.
    """

    kind: str
    has_gradients: bool
    autocast: torch.dtype | None

    @contextmanager
    def again(self) -> Iterator[None]:
        """Set them within the block."""
        with (
            torch.set_grad_enabled(self.has_gradients),
            torch.autocast(self.kind, self.autocast, self.autocast is not None),
        ):
            yield


def modes_now(kind: str) -> Modes:
    """Return what holds here, on a kind of device."""
    is_cast = torch.is_autocast_enabled(kind)
    return Modes(kind, torch.is_grad_enabled(), torch.get_autocast_dtype(kind) if is_cast else None)


@dataclass(frozen=True)
class Read:
    """What a script learned from a call, by which it may go: a value or a size.

    Attributes
    ----------
    answer
        What it learned; of a call that makes several tensors, how many.
    line : str
        The line of the script, or of a library, that asked.
    """

    answer: Any
    line: str

    def check(self, out: Any, call: Call) -> None:
        """Refuse another answer.

        Raises
        ------
        PipelineRefusedError
            With both.
        """
        answer = answer_of(out)
        if answer == self.answer or repr(answer) == repr(self.answer):  # NaN is not equal to itself
            return
        where = f", in '{call.module}'" if call.module else ""
        one = ", or ask for one size, such as size(-1)" if call.name == "shape" else ""
        raise PipelineRefusedError(
            f"{self.line}{where}: '{call.name.strip('_')}' depends on values: it gives "
            f"{brief_of(answer)} for one micro-batch and gave {brief_of(self.answer)} for the "
            f"first, whose calls a pipeline repeats for all; run without a pipeline, or let the "
            f"step do the same whatever the values are{one}"
        )


def answer_of(out: Any) -> Any:
    """Return what a script learns from what a call gave."""
    leaves = tree_leaves(out)
    if any(map(is_tensor, leaves)):
        others = [*filterfalse(is_tensor, leaves)]
        return (len(leaves), *others) if others else len(leaves)
    if isinstance(out, np.ndarray):
        return out.tolist()
    return tuple(out) if isinstance(out, torch.Size) else out


ENGINE = {"torch", "enplace", *sys.stdlib_module_names}
"""Packages that are no part of a script."""


def is_of_script(frame: FrameType) -> bool:
    """Whether a frame runs the script, or a library that it uses beside PyTorch."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] not in ENGINE


def at_line() -> str:
    """Name the line of the script that runs."""
    for frame, line in walk_stack(None):
        if is_of_script(frame):
            return line_of(frame, line)
    return "the script"


def line_of(frame: FrameType, line: int) -> str:
    """Name a line of a frame's file."""
    return f"{os.path.basename(frame.f_code.co_filename)}, line {line}"


@dataclass(frozen=True)
class Call:
    """A call on the tape.

    Attributes
    ----------
    function : callable
    name : str
    args, kwargs
        With :class:`Made`, :class:`Batch` or :class:`Kept` in place of tensors.
    makes : tuple of (int, int)
        The place of each tensor among the leaves of the result, and its number.
    changes : int or None
        The number that the first argument has from here on, if it is changed in place.
    module : str
        The path of the module that called; empty outside of the model, and in its root.
    needs_gradient : bool
        Whether a result does.
    modes : Modes
    shapes : dict of int to (shape, dtype)
        Of what it makes, by their numbers.
    read : Read, optional
        What must be the same again.
    """

    function: Callable[..., Any]
    name: str
    args: Any
    kwargs: Any
    makes: tuple[tuple[int, int], ...]
    changes: int | None
    module: str
    needs_gradient: bool
    modes: Modes
    shapes: Mapping[int, tuple[torch.Size, torch.dtype]]
    read: Read | None = None

    @cached_property
    def _is_flat(self) -> bool:
        """Whether no argument holds sources inside: looking there takes as long as many a call."""
        values = (*self.args, *self.kwargs.values())
        return all(isinstance(v, SOURCES) or not has_any(v, SOURCES) for v in values)

    @property
    def sources(self) -> list[Any]:
        """What takes the place of tensors in the arguments."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [each for each in leaves if isinstance(each, SOURCES)]

    @property
    def targets(self) -> tuple[Any, int] | None:
        """What stands for the targets of a loss, and the target that it leaves out."""
        if self.name not in OF_CLASSES:
            return None
        target = self.kwargs.get("target", self.args[1] if len(self.args) > 1 else None)
        return target, self.kwargs.get("ignore_index", _LEFT_OUT)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all that it makes."""
        made = [number for _, number in self.makes]
        return made if self.changes is None else [*made, self.changes]

    def again(self, known: dict[int, torch.Tensor], batch: Mapping[int, torch.Tensor]) -> None:
        """Call the function with other tensors; adds what it makes to ``known``."""
        if self._is_flat:
            args = [found_for(each, known, batch) for each in self.args]
            kwargs = {name: found_for(each, known, batch) for name, each in self.kwargs.items()}
        else:
            args, kwargs = tree_map(
                lambda each: found_for(each, known, batch), (self.args, self.kwargs)
            )
        out = self.function(*args, **kwargs)
        if self.read is not None:
            self.read.check(out, self)
        leaves = [out] if isinstance(out, torch.Tensor) else tree_leaves(out)
        known.update({number: leaves[at] for at, number in self.makes})
        if self.changes is not None:
            known[self.changes] = args[0]


def call_all(
    calls: Sequence[Call], known: dict[int, torch.Tensor], rows: Mapping[int, torch.Tensor]
) -> None:
    """Make calls again, without gradients; adds what they make to ``known``."""
    for call in calls:
        with replace(call.modes, has_gradients=False).again():
            call.again(known, rows)


def found_for(value: Any, known: Mapping[int, Any], batch: Mapping[int, Any]) -> Any:
    """Return the tensor that a value stands for; others as they are."""
    if isinstance(value, Made):
        return known[value.number]
    if isinstance(value, Batch):
        return batch[value.number]
    return value.tensor if isinstance(value, Kept) else value


def map_all(function: Callable[[Any], Any], values: Any) -> Any:
    """Map what is in containers, as ``tree_map`` does, and in dataclasses."""

    def one(value: Any) -> Any:
        if isinstance(value, type) or not is_dataclass(value):
            return function(value)
        made = copy(value)
        for name in (each.name for each in fields(value)):
            object.__setattr__(made, name, map_all(function, getattr(value, name)))
        return made

    return tree_map(one, values)


def leaves_of(values: Any) -> list[Any]:
    """Return what is in containers and dataclasses, in a fixed order."""
    found: list[Any] = []
    map_all(found.append, values)
    return found


def brief_of(value: Any) -> str:
    """Return a value for a line of text."""
    return "a tensor" if isinstance(value, SOURCES) else f"{value!r:.20}"


def has_any(values: Any, kinds: Any) -> bool:
    """Whether containers hold something of some kinds."""
    return any(isinstance(each, kinds) for each in tree_leaves(values))


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor that has a meaning outside of ``vmap``."""
    return isinstance(value, torch.Tensor) and not is_inner(value)


def is_inner(value: Any) -> bool:
    """Whether a value is a tensor of ``vmap``, which has no meaning outside of it."""
    inner = torch._C._functorch.is_functorch_wrapped_tensor
    return isinstance(value, torch.Tensor) and bool(inner(value))
