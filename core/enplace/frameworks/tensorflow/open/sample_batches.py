"""Batches for a model that comes without data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from enplace.frameworks.tensorflow.capture import N_BATCHES
from enplace.frameworks.tensorflow.step import Batch, LoadError

BATCH_SIZE = 32
"""Batch size for a model that takes any."""

OTHER_SIZE = 64
"""Size of any other dimension that the model leaves open: a length, a width."""

_MAX_VALUES = 1 << 31
"""Most values of one part; even as numbers of 64 bits, they fit some machine."""

_SEED = 7


def sample_batches(parts: Sequence[Any], batch_size: int = 0) -> list[Batch]:
    """Make batches of such parts: numbers from 0 to 1, or 0 and 1 for whole numbers.

    0 and 1 are valid in whatever table a model looks up with them.

    Parameters
    ----------
    parts : sequence of tensors or of their specs
        With ``name``, ``shape`` and ``dtype``.
    batch_size : int
        Size of the first dimension if it is open; 0 stands for :data:`BATCH_SIZE`.

    Raises
    ------
    LoadError
        If there is no sample for the type or shape of a part.
    """
    rng = np.random.default_rng(_SEED)
    return [tuple(_sample(rng, part, batch_size) for part in parts) for _ in range(N_BATCHES)]


def sample_targets(outputs: Sequence[Any], losses: Sequence[str], batch_size: int) -> list[Batch]:
    """Make the targets that losses compare these outputs to: class numbers, or one-hot rows."""
    rng = np.random.default_rng(_SEED)
    pairs = list(zip(outputs, losses, strict=True))
    return [
        tuple(_target(rng, _sizes(output, batch_size), loss) for output, loss in pairs)
        for _ in range(N_BATCHES)
    ]


def _target(rng: np.random.Generator, sizes: Sequence[int], loss: str) -> NDArray[Any]:
    n_classes = max(sizes[-1:], default=1)
    if "sparse" in loss.lower():
        return rng.integers(0, n_classes, sizes[:-1])
    if n_classes == 1:
        return rng.integers(0, 2, sizes).astype(np.float32)
    return np.eye(n_classes, dtype=np.float32)[rng.integers(0, n_classes, sizes[:-1])]


def _sample(rng: np.random.Generator, part: Any, batch_size: int) -> NDArray[Any]:
    dtype, sizes = tf.as_dtype(part.dtype), _sizes(part, batch_size)
    if dtype.is_floating:
        # A single number is probably a rate.
        values = rng.random(sizes) if sizes else np.array(0.5)
    elif dtype.is_integer:
        values = rng.integers(0, 2, sizes)
    elif dtype.is_bool:
        values = np.ones(sizes)
    else:
        raise LoadError(
            f"input '{_name(part)}' takes {dtype.name} values, for which there is no sample; "
            f"open the script that trains the model"
        )
    return np.asarray(values).astype(dtype.as_numpy_dtype)


def _sizes(part: Any, batch_size: int) -> list[int]:
    """Return the shape of a part, its open dimensions filled in."""
    shape = tf.TensorShape(part.shape)
    if shape.rank is None:
        raise LoadError(
            f"'{_name(part)}' does not state its shape, so no sample batch can be made; "
            f"give it a shape and save the model again"
        )
    open_sizes = [batch_size or BATCH_SIZE, *[OTHER_SIZE] * shape.rank]
    sizes = [
        given if given is not None else size
        for given, size in zip(shape.as_list(), open_sizes, strict=False)
    ]
    if math.prod(sizes) > _MAX_VALUES:
        raise LoadError(
            f"'{_name(part)}' holds too many values for a sample batch; use a smaller batch, or "
            f"give it a smaller shape"
        )
    return sizes


def _name(part: Any) -> str:
    """Return the name that the model's code gave a part."""
    return str(part.name).removesuffix(":0")
