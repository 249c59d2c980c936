"""What memory tensors have: most have a storage, sparse ones are made of parts that have.

Tensors inside of ``torch.func`` wrap others. Tensors of other libraries, such as those of oneDNN,
show no storage, so they stand for their own memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_OF_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    torch.jagged: ("values", "offsets"),
}
"""By the layout of a tensor, the methods that return its parts."""


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
