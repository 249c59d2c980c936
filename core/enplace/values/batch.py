"""The same model with a larger or smaller batch, estimated from one profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from enplace.values.arrays import IntArray
from enplace.values.measurement import Measurement
from enplace.values.profile import CONTROL, Profile
from enplace.values.splits.rules import carries_samples


def with_batch(profile: Profile, factor: float) -> Profile:
    """Return the profile of a batch ``factor`` times as large.

    Tensors with a row for each sample grow with the batch, and so do the time and the temporary
    bytes of ops that read or write one. Weights, their gradients and optimisers stay. One profile
    cannot tell which part of an op's time does not depend on the batch, so large batches look
    slower than they are, and small ones faster. What was measured of the whole step is dropped.
    """
    carries = carries_samples(profile)
    is_data = carries[profile.tensor_op] & (profile.tensor_output != CONTROL)
    works = carries.copy()
    works[profile.edge_op[is_data[profile.edge_tensor]]] = True
    measured = profile.measured
    return replace(
        profile,
        time_us=np.where(works[:, None], factor * profile.time_us, profile.time_us),
        temporary_bytes=_grow(profile.temporary_bytes, works, factor),
        tensor_bytes=_grow(profile.tensor_bytes, is_data, factor),
        measured=Measurement(
            op_devices=measured.op_devices,
            cluster=measured.cluster,
            estimated=measured.estimated,
            estimated_speed=measured.estimated_speed,
        ),
    )


def _grow(n_bytes: IntArray, which: NDArray[np.bool_], factor: float) -> IntArray:
    return np.where(which, np.rint(factor * n_bytes), n_bytes).astype(np.int64)
