"""Ops that a model's own code puts on devices, and the pins that keep them there."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from enplace.text import count
from enplace.values.cluster import Cluster
from enplace.values.profile import Profile

FLAG = "--keep-device-scopes"


def scope_pins(
    profile: Profile, cluster: Cluster, pinned: Collection[int] = ()
) -> list[tuple[int, int]]:
    """Return the op and the device of each pin that the profile keeps from its model's code.

    An op is left out if the cluster does not have its device, or if it cannot run there.

    Parameters
    ----------
    pinned : collection of int
        Ops that the person pins; what must be with one of these goes there, too.
    """
    if not profile.measured.keeps_device_scopes:
        return []
    asked = [
        (profile.index[op], cluster.index[device])
        for op, device in profile.measured.device_scopes.items()
        if op in profile.index and device in cluster.index
    ]
    taken = {profile.colocation[op] for op in pinned} - {""}
    return [
        (op, device)
        for op, device in asked
        if np.isfinite(profile.time_us[op, cluster.kind[device]])
        and op not in pinned
        and profile.colocation[op] not in taken
    ]


def about_scopes(profile: Profile, model: str) -> str:
    """Say what becomes of the device scopes in a model's code; empty if there are none.

    Parameters
    ----------
    model : str
        What people call the model, such as ``train.py``.
    """
    measured = profile.measured
    asked, cluster = measured.device_scopes, measured.cluster
    if not asked:
        return ""
    places = f"{model} places {count(len(asked), 'op')} with tf.device"
    if not measured.keeps_device_scopes:
        return f"{places}; the plan decides instead ({FLAG} keeps them there)."
    lost = len(asked) - len(scope_pins(profile, cluster)) if cluster else 0
    if not lost:
        return f"{places}; they are pinned there."
    return f"{places}; they are pinned there, but for {lost:,} that no device here can run so."
