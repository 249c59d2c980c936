"""Numbers that stand for some which nobody knows: whatever compares one goes by values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_COMPARE = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__")
_COMPUTE = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__rtruediv__", "__floordiv__", "__mod__", "__neg__", "__abs__", "__round__"),
)


class Guesses:
    """Makes numbers that call ``note`` as they are compared, and so do sums and the like of them.

    They are copied and saved as plain numbers.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note
        self._kinds = {base: self._kind(base) for base in (int, float)}

    def guess(self, number: Any) -> Any:
        """Return a number that is noted as it is compared; of a bool, the bool itself."""
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
