"""Numbers that stand for unknown ones: a script that compares one goes by values.

So does one that makes or cuts a tensor by such a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

_COMPARE = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__")
_COMPUTE = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__rtruediv__", "__floordiv__", "__mod__", "__neg__", "__abs__", "__round__"),
)


class Guesses:
    """Makes numbers that call ``note`` when they are compared, as do numbers computed from them.

    Copies of them, and what is saved, are plain numbers.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note
        self._kinds = {base: self._kind(base) for base in (int, float)}

    def guess(self, number: Any) -> Any:
        """Return a number that notes when it is compared; a bool is returned as it is."""
        kind = self._kinds.get(type(number))
        return number if kind is None else kind(number)

    def guess_each(self, numbers: Any) -> Any:
        """Return guesses for a number, or for each of a list, and of lists in it."""
        if isinstance(numbers, list):
            return [*map(self.guess_each, numbers)]
        return self.guess(numbers)

    def note_sizes(self, values: Any) -> None:
        """Call ``note`` if one of some values is such a number, or consists of some."""
        if self._is_within(values):
            self._note()

    def _is_within(self, value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(map(self._is_within, value))
        if isinstance(value, slice):
            return self._is_within((value.start, value.stop))
        return type(value) in self._kinds.values()

    def _kind(self, base: Any) -> Any:
        methods = {name: self._compared(getattr(base, name)) for name in _COMPARE}
        methods |= {name: self._computed(getattr(base, name)) for name in _COMPUTE}
        methods["__hash__"] = base.__hash__
        methods["__reduce_ex__"] = lambda self, _: (base, (base(self),))
        return type(base.__name__, (base,), methods)

    def _compared(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        def compare(*given: Any) -> Any:
            self._note()
            return usual(*given)

        return compare

    def _computed(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: self.guess(usual(*given))


class Sizes(TorchFunctionMode):
    """Notes where a guess says how large a tensor is, or which part of it is taken."""

    def __init__(self, guesses: Guesses) -> None:
        super().__init__()
        self._guesses = guesses

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__getitem__":
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            self._guesses.note_sizes([each for each in parts if isinstance(each, slice)])
        elif name in _SIZED:
            self._guesses.note_sizes([*args, *kwargs.values()])
        return func(*args, **kwargs)


_SIZED = frozenset(
    [
        *("arange", "empty", "eye", "full", "ones", "rand", "randint", "randn", "randperm"),
        *("zeros", "new_empty", "new_full", "new_ones", "new_zeros", "linspace", "one_hot"),
        *("expand", "narrow", "pad", "repeat", "repeat_interleave", "reshape", "resize_"),
        *("split", "split_with_sizes", "tile", "topk", "unflatten", "unfold", "view"),
    ]
)
"""Functions to which a number may tell a size."""
