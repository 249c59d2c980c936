"""What memory tensors have: most have a storage, sparse ones are made of parts that have.

Tensors inside of ``torch.func`` wrap others. Tensors of other libraries, such as those of oneDNN,
show no storage, so they stand for their own memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils._pytree import tree_leaves

_OF_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    torch.jagged: ("values", "offsets"),
}
"""By the layout of a tensor, the methods that return its parts."""


Known = TypeVar("Known")


class OfMemories(Generic[Known]):
    """What is known of memories, of each for as long as it lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Known]] = {}

    def find(self, memory: Any, make: Callable[[], Known], freed: Callable[[Known], None]) -> Known:
        """Return what is known of a memory.

        Parameters
        ----------
        memory : object
            As :func:`memories_of` yields it.
        make : callable
            Makes what is known of a new one.
        freed : callable
            Gets that when the memory is freed.
        """
        key = id(memory)  # which another memory may have later
        found = self._known.get(key)
        if found is not None and found[0]() is memory:
            return found[1]
        made = make()

        def forgotten(_: object) -> None:
            freed(made)
            if key in self._known and self._known[key][1] is made:
                del self._known[key]

        self._known[key] = weakref.ref(memory, forgotten), made
        return made

    def all(self) -> list[Known]:
        """Return what is known of those that live."""
        return [known for _, known in self._known.values()]

    def forget(self) -> None:
        """Forget all of them; none is noticed as it is freed."""
        self._known.clear()


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results."""
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def memories_of(tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, Any, int]]:
    """Iterate over the parts of a tensor.

    Yields
    ------
    part : torch.Tensor
        For most, the tensor itself.
    memory : object
        Lives as long as the part's memory: a storage, or the part if it shows none.
    n_bytes : int
        Size of the memory.
    """
    tensor = unwrapped(tensor)
    names = _OF_PARTS.get(tensor.layout)
    for part in (tensor,) if names is None else (getattr(tensor, name)() for name in names):
        try:
            storage = part.untyped_storage()
        except NotImplementedError:
            yield part, part, _shown_bytes(part)
        else:
            yield part, storage, int(storage.nbytes())


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that those of ``torch.func`` wrap."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def n_bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor shows; one that repeats numbers shows them once."""
    parts = memories_of(tensor)
    return sum(min(_shown_bytes(part), n_bytes) for part, _, n_bytes in parts)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's shape; of one whose rows differ in length, the shape of all its numbers."""
    tensor = tensor.values() if tensor.is_nested else tensor
    return tuple(map(int, tensor.shape))


def density(tensor: torch.Tensor) -> float:
    """Return the share of a tensor's numbers that a sparse one holds; 1 for others."""
    if not is_sparse(tensor) or not tensor.numel():
        return 1.0
    values = tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()
    return float(values.numel() / tensor.numel())


def is_sparse(tensor: torch.Tensor) -> bool:
    """Return whether a tensor only holds the numbers that are not zero."""
    return tensor.layout in _OF_PARTS and tensor.layout != torch.jagged


def _shown_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
