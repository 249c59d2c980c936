"""How large the ops of a profile are, by which a model with other widths is told from its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from enplace.text import size
from enplace.values.profile import Profile


def op_sizes(profile: Profile) -> dict[str, int]:
    """Return the bytes of each op's largest tensor or variable, by name, where they are not zero.

    Empty if they were not measured with batches of known shapes.
    """
    if not profile.measured.batch_shapes or profile.measured.evaluation is not None:
        return {}
    largest = profile.persistent_bytes.copy()
    np.maximum.at(largest, profile.tensor_op, profile.tensor_bytes)
    return {n: b for n, b in zip(profile.op_names, largest.tolist(), strict=True) if b}


def about_other_sizes(planned: Mapping[str, int], found: Mapping[str, Iterable[int]]) -> str:
    """Say which ops have other sizes than when the plan was made; empty if none has.

    Parameters
    ----------
    planned : mapping of str to int
        As :func:`op_sizes` returns them.
    found : mapping of str to iterable of int
        Bytes of the tensors of each op whose sizes are known; the variables come first.
    """
    sizes = {name: set(found[name]) for name in found if name in planned}
    other = [name for name, known in sizes.items() if known and planned[name] not in known]
    if not other:
        return ""
    before, now = size(planned[other[0]]), size(max(sizes[other[0]]))
    have = "op has another size" if len(other) == 1 else "ops have other sizes"
    return (
        f"{len(other):,} {have} than in the profile ('{other[0]}' {before}, now {now}). The "
        f"prediction is for the profiled sizes, and another plan may be faster: profile the model "
        f"again and make a new plan."
    )
