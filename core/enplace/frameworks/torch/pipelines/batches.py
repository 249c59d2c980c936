"""What a pipeline must know of the batch that a script gives its model."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError
from enplace.frameworks.torch.pipelines.meeting import MOST_SEEN, TRAINS, meet
from enplace.frameworks.torch.record.storages import tensors_in


def shape_of(batch: Any) -> Any:
    """Return what two calls of a model must have alike to be the same step."""
    return tuple(
        (tuple(each.shape), str(each.dtype)) if isinstance(each, torch.Tensor) else repr(each)[:80]
        for each in tree_leaves(batch)
    )


def count_samples(batch: Any) -> int:
    """Return the number of samples: the rows of the first tensor that the model gets.

    Raises
    ------
    PipelineRefusedError
        If it gets none with rows.
    """
    first = next((each for each in tensors_in(batch) if each.dim()), None)
    if first is None:
        raise PipelineRefusedError("the model is called without a tensor that has rows to divide")
    return int(first.shape[0])


def check_same_batch(shape: Any, batch: Any, device: torch.device) -> None:
    """Refuse a step whose batch is not the same in all processes.

    Parameters
    ----------
    shape
        Of the batch, as :func:`shape_of` returns it.

    Raises
    ------
    PipelineRefusedError
        In all of them.
    """
    briefs = map(_brief_of, tensors_in(batch)[: MOST_SEEN - 1])
    seen = [float(zlib.crc32(repr(shape).encode())), *briefs]
    if not meet(TRAINS, device, seen):
        raise PipelineRefusedError(
            "the processes have different batches, and in a pipeline all have the same; leave "
            "out DistributedSampler, and seed what draws the batches"
        )


def _brief_of(tensor: torch.Tensor) -> float:
    """Return a number that tells a tensor from others."""
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, len(flat) // 1024)]
    some = (torch.view_as_real(some).reshape(-1) if some.is_complex() else some).double()
    weight = torch.linspace(1, 2, len(some), dtype=torch.float64, device=some.device)
    return float(torch.nan_to_num(some) @ weight)
