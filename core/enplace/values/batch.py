"""The same model with a larger or smaller batch, estimated from one profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.values.arrays import where_op
from enplace.values.measurement import Measurement
from enplace.values.profile import CONTROL, Profile, growing
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
    return replace(
        profile,
        **{
            label: where_op(works, each.rounded(factor * values), values)
            for label, each, values in growing(profile)
        },
        tensor_bytes=np.where(
            is_data, np.rint(factor * profile.tensor_bytes), profile.tensor_bytes
        ).astype(np.int64),
        measured=measured_otherwise(profile.measured),
    )


def measured_otherwise(measured: Measurement) -> Measurement:
    """Return what still holds for a step with a batch other than the one that was measured."""
    return Measurement(
        op_devices=measured.op_devices,
        cluster=measured.cluster,
        framework=measured.framework_name,
        guessed_backward=measured.guessed_backward,
        estimated=measured.estimated,
        estimated_speed=measured.estimated_speed,
        state_bits=measured.state_bits,
    )
