"""The open text form of a profile, see :mod:`enplace.readers.text_form`."""

from __future__ import annotations

from typing import Any

import numpy as np

from enplace.names.guessed_passes import without_guessed_passes
from enplace.readers.text_form import NAME, VERSION
from enplace.values.profile import CONTROL, KINDS, OP_COLUMNS, Profile, columns_of
from enplace.writers.measurement import measurement_to_json


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """Write a profile as plain data; ``time_us`` leaves out a kind that an op cannot run on."""
    profile = without_guessed_passes(profile)
    columns = columns_of(profile).items()
    rows = {OP_COLUMNS[label].key: np.asarray(values).tolist() for label, values in columns}
    rows["time_us"] = [
        {kind: time for kind, time in zip(KINDS, times, strict=True) if time == time}
        for times in rows["time_us"]
    ]
    rows["colocation"] = [group or None for group in profile.colocation]
    optional = {each.key: each for each in OP_COLUMNS.values() if not each.always}
    ops = [
        {"name": name}
        | {
            key: values[op]
            for key, values in rows.items()
            if key not in optional or not optional[key].is_default(values[op])
        }
        for op, name in enumerate(profile.op_names)
    ]
    edges = [
        {
            "src": profile.op_names[source],
            "output": output,
            "dst": profile.op_names[target],
            "bytes": size,
            "control": output == CONTROL,
        }
        for source, output, target, size in profile.edges.tolist()
    ]
    holds = [
        {"src": profile.op_names[source], "output": output, "until": profile.op_names[op]}
        for source, output, op in profile.holds.tolist()
    ]
    shares = [
        {
            "src": profile.op_names[source],
            "output": output,
            "of": profile.op_names[base],
            "of_output": number,
        }
        for source, output, base, number in profile.shares.tolist()
    ]
    return {
        "format": f"{NAME}/{VERSION}",
        "name": profile.name,
        "ops": ops,
        "edges": edges,
        **({"holds": holds} if holds else {}),
        **({"shares": shares} if shares else {}),
        "measured": measurement_to_json(profile.measured),
    }
