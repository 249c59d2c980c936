"""Which share of the rows a mask takes that tells what belongs to one of several experts.

What a router chooses, by ``topk`` or ``argmax``, is taken to be evenly divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from enplace.frameworks.torch.open.values import KnownValues, plainly
from enplace.frameworks.torch.record.recorder import name_of
from enplace.frameworks.torch.record.storages import tensors_in

_CHOOSES = frozenset(("argmax", "argmin", "argsort", "max", "min", "multinomial", "sort", "topk"))
_KEEPS = frozenset(("_to_copy", "clone", "index", "index_select", "repeat"))
_SUMS = frozenset(("any", "sum", "amax"))
_AND = frozenset(("bitwise_and", "logical_and", "mul"))
_NOT = frozenset(("bitwise_not", "logical_not"))


class Shares:
    """Follows what follows from the choices of a router, by the storages of tensors.

    Parameters
    ----------
    known : KnownValues
        The content of the tensors that have some.
    """

    def __init__(self, known: KnownValues) -> None:
        self._known = known
        self._choices: WeakIdKeyDictionary = WeakIdKeyDictionary()  # how many there are
        self._shares: WeakIdKeyDictionary = WeakIdKeyDictionary()
        # Of a part of a mask that also has classes that no choice can be, as transformers makes.
        self._of_parts: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def share(self, mask: Any) -> float | None:
        """Return the share of a mask, or of whole numbers, that is not zero; None if unknown."""
        is_mask = isinstance(mask, torch.Tensor) and mask.layout == torch.strided
        if not is_mask:
            return None
        storage = mask.untyped_storage()
        found: float | None = self._shares.get(storage)
        is_part = mask.nbytes < storage.nbytes()
        return self._of_parts.get(storage, found) if is_part else found

    def n_rows(self, mask: torch.Tensor) -> int:
        """Return how many rows a mask takes: all if nothing is known."""
        share = self.share(mask)
        n = int(mask.numel())
        return n if share is None else max(round(share * n), 1)

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> None:
        """Note what an op chooses, or what its result says of choices."""
        name, shown = name_of(func).rstrip("_"), tensors_in(made)
        if not shown or not args or not isinstance(given := args[0], torch.Tensor):
            return
        if any(each.layout != torch.strided for each in (given, *shown)):
            return
        storage, own = shown[-1].untyped_storage(), given.untyped_storage()
        if name in _CHOOSES and shown[-1].dtype == torch.int64:
            if (dim := _dim(func, args, kwargs)) is not None and given.dim():
                self._choices[storage] = given.shape[dim]
        elif name in _KEEPS:
            for of in (self._choices, self._shares, self._of_parts):
                if own in of:
                    of[storage] = of[own]
            is_part = shown[-1].numel() * given.element_size() < own.nbytes()
            if is_part and own in self._of_parts:
                self._shares[storage] = self._of_parts[own]
        elif (share := self._find(name, args, shown[-1])) is not None:
            self._shares[storage] = share
            if name == "eq":
                self._of_parts[storage] = 1 / max(map(self._n_choices, args[:2]))
        elif func._schema.is_mutable:
            for of in (self._choices, self._shares, self._of_parts):
                of.pop(storage, None)

    def _find(self, name: str, args: Sequence[Any], made: torch.Tensor) -> float | None:
        """Return the share of a new mask."""
        given, share = args[0], self.share(args[0])
        if name == "eq":
            return self._share_of_equal(*args[:2]) or self._share_of_equal(*args[1::-1])
        if name == "scatter" and (n := self._n_choices(args[2])):
            _, dim, index, value = args[:4]
            chosen: float = index.shape[dim] / n
            return chosen if given.shape[dim] == n and _is(value, 1) else None
        if share is None:
            return None
        if name in _SUMS:
            return min(share * int(given.numel()) / max(int(made.numel()), 1), 1.0)
        if name in _NOT:
            return 1 - share
        if name in ("gt", "ne") and _is(args[1], 0):
            return share
        if name in _AND and (other := self.share(args[1])) is not None:
            return share * other
        return None

    def _share_of_equal(self, chosen: Any, given: Any) -> float | None:
        """Return how many of the choices are a number, or those of a tensor."""
        if not (n := self._n_choices(chosen)):
            return None
        if not isinstance(given, torch.Tensor):
            return 1 / n if 0 <= given < n else None
        if (content := self._known.find(given)) is None:
            return None
        with plainly():
            return float(((content >= 0) & (content < n)).double().mean()) / n

    def _n_choices(self, chosen: Any) -> int:
        """Return how many choices a tensor of them had; 0 for others."""
        is_plain = isinstance(chosen, torch.Tensor) and chosen.layout == torch.strided
        found: int = self._choices.get(chosen.untyped_storage(), 0) if is_plain else 0
        return found


def _is(given: Any, number: int) -> bool:
    return isinstance(given, int | float) and given == number


def _dim(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return over which dimension an op chooses; None if over all."""
    if func is torch.ops.aten.multinomial.default:
        return -1
    names = [each.name for each in func._schema.arguments]
    default = func._schema.arguments[names.index("dim")].default_value if "dim" in names else None
    given: int | None = {**dict(zip(names, args, strict=False)), **kwargs}.get("dim", default)
    return given
