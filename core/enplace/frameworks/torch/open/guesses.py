"""Numbers that stand for unknown ones: a script that compares one goes by values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
