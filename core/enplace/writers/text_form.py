"""The open text form of a profile, see :mod:`enplace.readers.text_form`."""

from __future__ import annotations

from typing import Any

import numpy as np

from enplace.readers.text_form import NAME, VERSION
from enplace.values.profile import CONTROL, KINDS, Profile
from enplace.writers.measurement import measurement_to_json


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """Write a profile as plain data; ``time_us`` leaves out a kind that an op cannot run on."""
    times = profile.time_us.tolist()
    memory = zip(profile.persistent_bytes.tolist(), profile.temporary_bytes.tolist(), strict=True)
    ops = [
        {
            "name": name,
            "type": profile.op_types[op],
            "scope": profile.scopes[op],
            "time_us": {k: t for k, t in zip(KINDS, times[op], strict=True) if t == t},
            "persistent_bytes": persistent,
            "temporary_bytes": temporary,
            "colocation": profile.colocation[op] or None,
        }
        for op, (name, (persistent, temporary)) in enumerate(
            zip(profile.op_names, memory, strict=True)
        )
    ]
    tensor = profile.edge_tensor
    columns = (
        profile.edge_source,
        profile.tensor_output[tensor],
        profile.edge_op,
        profile.tensor_bytes[tensor],
    )
    edges = [
        {
            "src": profile.op_names[source],
            "output": output,
            "dst": profile.op_names[target],
            "bytes": size,
            "control": output == CONTROL,
        }
        for source, output, target, size in np.stack(columns, axis=1).tolist()
    ]
    return {
        "format": f"{NAME}/{VERSION}",
        "name": profile.name,
        "ops": ops,
        "edges": edges,
        "measured": measurement_to_json(profile.measured),
    }
