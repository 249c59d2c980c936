"""Tensors that a step does not keep for its backward pass, by hooks on what autograd saves.

What is computed again is dropped, and its op runs again when a backward op asks for it. The inputs
of that op are held until then, or are not kept either. What waits on the host is sent there as soon
as it is made. Results stay the same, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from enplace.errors import PlanError
from enplace.frameworks.torch.record.storages import OfMemories, memories_of, tensors_in

Run = Callable[[Any, Any, Any], Any]
"""Runs an op with its arguments where the plan has its copy."""


@dataclass(frozen=True)
class Layout:
    """How a dense tensor shows a storage."""

    dtype: torch.dtype
    where: tuple[int, torch.Size, tuple[int, ...]]
    is_conj: bool
    is_neg: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        """Return a tensor's layout."""
        where = tensor.storage_offset(), tensor.size(), tensor.stride()
        return Layout(tensor.dtype, where, tensor.is_conj(), tensor.is_neg())

    def shown(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a tensor that shows a storage so."""
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        made.set_(storage, *self.where)
        if self.is_conj:
            made = made.conj()
        return torch._neg_view(made) if self.is_neg else made


class Made:
    """What an op made, by the numbers of its outputs: there, or to be made again by a call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._tensors: Sequence[torch.Tensor] = ()

    def storage(self, number: int) -> torch.UntypedStorage:
        """Return the storage of an output."""
        if self._make is not None:
            self._tensors, self._make = tensors_in(self._make()), None
        return self._tensors[number].untyped_storage()


@dataclass(frozen=True)
class _Shown:
    """A tensor that shows what is not kept."""

    made: Made
    number: int
    layout: Layout

    def tensor(self) -> torch.Tensor:
        return self.layout.shown(self.made.storage(self.number))


@dataclass(frozen=True)
class _Held:
    """A tensor that is kept, as it was in some version."""

    held: torch.Tensor
    version: int

    def tensor(self) -> torch.Tensor:
        if self.held._version != self.version:
            raise RuntimeError(
                f"a tensor that is needed for gradients was changed in place: it is at version "
                f"{self.held._version}, and version {self.version} is needed"
            )
        return self.held


class RandomNumbers:
    """The state of random numbers when this was made: of the CPU, and of some GPUs."""

    def __init__(self, cards: Sequence[torch.device | int]) -> None:
        self._cards = cards
        self._states = torch.get_rng_state(), [torch.cuda.get_rng_state(each) for each in cards]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers within the block; after it, they go on as before."""
        with torch.random.fork_rng(self._cards):
            torch.set_rng_state(self._states[0])
            for card, state in zip(self._cards, self._states[1], strict=True):
                torch.cuda.set_rng_state(state, card)
            yield

    def have_moved(self) -> bool:
        """Whether numbers have been drawn since."""
        now = torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._cards)
        return not all(map(torch.equal, now, (self._states[0], *self._states[1])))


class _Again:
    """A call of an op, to be made again with the same arguments and random numbers."""

    def __init__(self, name: str, func: Any, given: Any, run: Run) -> None:
        self._name, self._func, self._given, self._run = name, func, given, run
        self._random: RandomNumbers | None = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            n_cards = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
            self._random = RandomNumbers(range(n_cards))

    def __call__(self) -> Any:
        try:
            args, kwargs = tree_map_only((_Shown, _Held), lambda each: each.tensor(), self._given)
        except RuntimeError as error:
            raise PlanError(f"op '{self._name}' cannot be computed again: {error}") from None
        with nullcontext() if self._random is None else self._random.again():
            return self._run(self._func, args, kwargs)


@dataclass(eq=False)
class _Slot:
    """Which output of which op a storage holds, if that is not kept."""

    made: Made | None = None
    number: int = 0


class NotKept:
    """What ops made that is not kept; as a context, what autograd saves of it is dropped."""

    def __init__(self) -> None:
        self._slots = OfMemories[_Slot]()
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> NotKept:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def again(self, name: str, func: Any, args: Any, kwargs: Any, run: Run) -> Made:
        """Prepare to make again what an op is about to make."""
        given = tree_map_only(torch.Tensor, self._given, (args, kwargs))
        return Made(_Again(name, func, given, run))

    def drop(self, made: Made, out: Any, given: Iterable[torch.Tensor] = ()) -> None:
        """Note that what an op made is not kept, except for memory that it was ``given``."""
        old = {id(self._slot(each)) for each in given}
        for number, tensor in enumerate(tensors_in(out)):
            slot = self._slot(tensor)
            if slot is not None and id(slot) not in old:
                slot.made, slot.number = made, number

    def changed(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is about to be changed in place."""
        if (slot := self._slot(tensor)) is not None:
            slot.made = None

    def _slot(self, tensor: torch.Tensor) -> _Slot | None:
        if tensor.layout != torch.strided:
            return None
        ((_, memory, _),) = memories_of(tensor)
        if memory is tensor:  # it shows no storage
            return None
        return self._slots.find(memory, _Slot, lambda slot: None)

    def _given(self, tensor: torch.Tensor) -> _Shown | _Held:
        slot = self._slot(tensor)
        if slot is None or slot.made is None:
            return _Held(tensor, tensor._version)
        return _Shown(slot.made, slot.number, Layout.of(tensor))

    def _pack(self, tensor: torch.Tensor) -> _Shown | _Held:
        with _disable_current_modes():
            return self._given(tensor.detach())

    def _unpack(self, packed: _Shown | _Held) -> torch.Tensor:
        if isinstance(packed, _Held):
            return packed.tensor()
        with _disable_current_modes(), torch.no_grad(), _without_autocast():
            return packed.tensor()


def _without_autocast() -> Any:
    """Run ops on what they are given: it was cast before."""
    return torch._C._DisableAutocast()
