"""What a script learns of values in an estimate, whose tensors have no content.

A small tensor that follows from the script's own numbers alone, such as a counter, has its value.
In any other, each number counts as 1, which makes a condition true or false, however a script asks
for it. No number is infinite or NaN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from enplace.frameworks.torch.record.recorder import given_tensors, name_of
from enplace.frameworks.torch.record.storages import tensors_in

_aten = torch.ops.aten

MOST_KNOWN = 1 << 22
"""The content of tensors of more bytes is not followed: masks and batches of ids have fewer."""

MOST_MADE = 1 << 13
"""Nor is that of floats of more bytes that are made without other tensors, such as weights."""


@contextmanager
def plainly() -> Iterator[None]:
    """Compute without fake tensors, also while ``vmap`` or ``grad`` runs a function."""
    with temporarily_clear_interpreter_stack(), no_dispatch():
        yield


class KnownValues:
    """The content of tensors that follow from the script's own numbers, also from drawn integers.

    Other random numbers, and what depends on them, are not known.
    """

    def __init__(self) -> None:
        # For the storage of a tensor, one that has its content; None where it became unknown.
        self._contents: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def find(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor with the content of another; None if that is unknown."""
        if tensor.layout != torch.strided or not _is_small(tensor):
            return None
        storage = tensor.untyped_storage()
        own = None if isinstance(tensor, FakeTensor) else storage
        content = self._contents.get(storage, own)
        return None if content is None else _view(content, tensor)

    def given(self, func: Any, args: Sequence[Any], kwargs: Any) -> tuple[Any, Any] | None:
        """Return what an op is given, with its content; None if some is unknown."""
        name = name_of(func)
        is_drawn = torch.Tag.nondeterministic_seeded in func.tags and name not in _OF_INTEGERS
        if is_drawn or "empty" in name:
            return None
        found: dict[int, torch.Tensor] = {}
        for tensor, _ in given_tensors(func, args, kwargs):
            content = self.find(tensor)
            if content is None and tensor is args[0] and _overwrites(func, tensor):
                content = _view(_new_storage(tensor), tensor)
            if content is None:
                return None
            found[id(tensor)] = content
        kwargs = {key: each for key, each in kwargs.items() if key not in ("device", "pin_memory")}
        known: tuple[Any, Any] = tree_map_only(
            torch.Tensor, lambda each: found[id(each)], (args, kwargs)
        )
        return known

    def compute(self, func: Any, given: tuple[Any, Any]) -> Any:
        """Return what an op makes of known content; ``NotImplemented`` if it fails there."""
        try:
            with plainly():
                return func(*given[0], **given[1])
        except Exception:  # whatever an op refuses, such as another device
            return NotImplemented

    def note(self, func: Any, args: Any, kwargs: Any, given: Any, made: Any) -> None:
        """Note what an op has made and changed, from ``given`` if all of that is known."""
        shown = tensors_in(made)
        content = NotImplemented
        is_made = not any(True for _ in given_tensors(func, args, kwargs))
        if given is not None and all(_is_small(each, is_made) for each in shown):
            content = self.compute(func, given)
        known = content is not NotImplemented
        changes = given_tensors(func, args, kwargs) if func._schema.is_mutable else ()
        for each in (tensor for tensor, is_written in changes if is_written and _is_small(tensor)):
            if not known:
                self._contents[each.untyped_storage()] = None
            elif _overwrites(func, each) and self.find(each) is None:
                self._contents[each.untyped_storage()] = given[0][0].untyped_storage()
        if known:
            for tensor, value in zip(shown, tensors_in(content), strict=False):
                if self.find(tensor) is None:
                    self.set(tensor, value)

    def set(self, tensor: torch.Tensor, value: Any) -> None:
        """Note the content of a new tensor: that of another, or one number for all of its own."""
        storage = _new_storage(tensor)
        with plainly():
            content = _view(storage, tensor)
            content.copy_(value) if isinstance(value, torch.Tensor) else content.fill_(value)
        self._contents[tensor.untyped_storage()] = storage

    def may_know(self, tensor: torch.Tensor) -> bool:
        """Return whether the content of a tensor that no other leads to would be followed."""
        return _is_small(tensor, is_made=True)

    def set_bytes(self, tensor: torch.Tensor, content: bytearray) -> None:
        """Note the content of all of a new tensor's memory."""
        with plainly():
            whole = torch.frombuffer(content, dtype=torch.uint8)
        self._contents[tensor.untyped_storage()] = whole.untyped_storage()

    def set_all_rows(self, tensor: torch.Tensor, shape: Sequence[int]) -> None:
        """Note that a new tensor names the rows of a mask of a shape that takes all."""
        if _is_small(tensor):
            with plainly():
                rows = torch.ones(shape, dtype=torch.bool).nonzero()
            self.set(tensor, rows)


_OVERWRITES = frozenset(("fill_", "zero_", "copy_", "random_"))

_OF_INTEGERS = frozenset(("randint", "randint_like", "random_", "randperm"))


def _overwrites(func: Any, tensor: torch.Tensor) -> bool:
    """Return whether an op gives all of a tensor's memory new content, whatever it had before."""
    if (name := name_of(func)) not in _OVERWRITES or not _is_small(tensor, name != "copy_"):
        return False
    return bool(tensor.nbytes == tensor.untyped_storage().nbytes())


def _is_small(tensor: torch.Tensor, is_made: bool = False) -> bool:
    is_plain = tensor.layout == torch.strided and not tensor.is_quantized
    most = MOST_MADE if is_made and tensor.is_floating_point() else MOST_KNOWN
    return is_plain and tensor.untyped_storage().nbytes() <= most


def _new_storage(like: torch.Tensor) -> torch.UntypedStorage:
    with plainly():
        return torch.UntypedStorage(like.untyped_storage().nbytes())


def _view(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the layout of another, in a memory that has content."""
    with plainly():
        empty = torch.empty(0, dtype=like.dtype)
        return empty.set_(storage, like.storage_offset(), like.size(), like.stride())


class Answer(NamedTuple):
    """What is said of a mask.

    Attributes
    ----------
    any, all : bool
        Whether some, or all, of it is true.
    is_sure : bool
        Whether this does not depend on values, except that none is infinite or NaN.
    """

    any: bool
    all: bool
    is_sure: bool = False

    def __invert__(self) -> Answer:
        return Answer(not self.all, not self.any, self.is_sure)

    def __and__(self, other: Answer) -> Answer:
        is_sure = self.is_sure and other.is_sure
        is_false = any(each.is_sure and not each.any for each in (self, other))
        return Answer(self.any and other.any, self.all and other.all, is_sure or is_false)

    def __or__(self, other: Answer) -> Answer:
        return ~(~self & ~other)


class Masks:
    """What is said of masks of unknown content: it follows from what made them."""

    def __init__(self, known: KnownValues) -> None:
        self._known = known
        self._said: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of the storage of a mask

    def say(self, mask: Any) -> Answer:
        """Return what is said of a mask, or of numbers as one."""
        if not isinstance(mask, torch.Tensor):
            return _as_one(mask, is_sure=True)
        if (content := self._known.find(mask)) is not None:
            with plainly():
                return Answer(bool(content.any()), bool(content.all()), True)
        found: Answer | None = self._said.get(mask.untyped_storage())
        if found is not None:
            return found
        is_condition = mask.dtype == torch.bool and mask.numel() == 1
        return Answer(not is_condition, not is_condition)  # a mask takes all rows

    def value(self, given: Any) -> Any:
        """Return the number that one counts as, or each of a tensor."""
        if not isinstance(given, torch.Tensor):
            return given
        content = self._known.find(given)
        if content is not None and content.numel() == 1:
            with plainly():
                return content.item()
        return self.say(given).all if given.dtype == torch.bool else 1

    def note(self, func: Any, args: Sequence[Any], made: Any) -> None:
        """Note what is said of the mask that an op has made, or of numbers from one."""
        if not isinstance(made, torch.Tensor) or made.layout != torch.strided or not args:
            return
        name, storage = name_of(func).rstrip("_"), made.untyped_storage()
        if made.dtype != torch.bool:
            is_new = not func._schema.is_mutable and _is_small(made)
            if is_new and any(map(self._is_none, args[: _TAKEN.get(name, 0)])):
                self._known.set(made, 0)
        elif name == "_is_all_true":
            self._known.set(made, True)  # a check
        elif rule := _RULES.get(name):
            self._said[storage] = rule(self, *args)
        elif func._schema.is_mutable:
            self._said.pop(storage, None)

    def _is_none(self, given: Any) -> bool:
        """Return whether this is a mask that takes no row, whatever the values are."""
        is_mask = isinstance(given, torch.Tensor) and given.dtype == torch.bool
        return is_mask and (said := self.say(given)).is_sure and not said.any


_TAKEN = {"sum": 1, "count_nonzero": 1, "bitwise_and": 2, "mul": 2}
"""Of how many of its arguments an op gives zeros if one of them is a mask that takes no row."""


def _compare(operation: Callable[[Any, Any], bool]) -> Callable[..., Answer]:
    def rule(masks: Masks, one: Any, other: Any) -> Answer:
        if one is other:
            return _as_one(operation(1, 1), is_sure=True)  # x == x: none is NaN
        if operation in (operator.eq, operator.ne) and _may_differ(one):
            return _as_one(True)
        against = masks.value(other)
        is_sure = isinstance(against, float) and not math.isfinite(against)
        return _as_one(operation(masks.value(one), against), is_sure)

    return rule


def _is_any(said: Answer) -> Answer:
    return _as_one(said.any, said.is_sure)


def _is_all(said: Answer) -> Answer:
    return _as_one(said.all or not said.is_sure, said.is_sure)  # what is checked is right


def _as_one(answer: bool, is_sure: bool = False) -> Answer:
    return Answer(bool(answer), bool(answer), is_sure)


def _may_differ(numbers: Any) -> bool:
    """Return whether numbers tell things apart, such as labels, and so are not all equal."""
    return numbers.numel() > 1 and not numbers.dtype.is_floating_point


_RULES: dict[str, Callable[..., Answer]] = {
    **{name: _compare(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **dict.fromkeys(("isnan", "isinf", "isposinf", "isneginf"), lambda *_: _as_one(False, True)),
    **dict.fromkeys(("any", "_is_any_true"), lambda masks, a, *_: _is_any(masks.say(a))),
    "all": lambda masks, a, *_: _is_all(masks.say(a)),
    **dict.fromkeys(("bitwise_not", "logical_not"), lambda masks, a: ~masks.say(a)),
    **dict.fromkeys(
        ("bitwise_and", "logical_and", "mul"), lambda masks, a, b: masks.say(a) & masks.say(b)
    ),
    **dict.fromkeys(("bitwise_or", "logical_or"), lambda masks, a, b: masks.say(a) | masks.say(b)),
    **dict.fromkeys(("_to_copy", "clone"), lambda masks, a: masks.say(a)),
}
"""What is said of the mask that an op makes, by its name and what it is given."""
