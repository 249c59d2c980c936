"""Colocation groups from pairs of ops that must share a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from enplace.values.components import components


def colocation_groups(names: Sequence[str], ties: Sequence[tuple[int, int]]) -> list[str]:
    """Name each op's group after the group's first op; empty for an op in no pair.

    Parameters
    ----------
    ties : sequence of (int, int)
        Numbers of ops that must share a device.
    """
    n = len(names)
    ends = np.array(ties, dtype=np.int64).reshape(-1, 2)
    label = components(n, ends[:, 0], ends[:, 1])
    size = np.bincount(label, minlength=n)
    first: dict[int, str] = {}
    for name, group in zip(names, label.tolist(), strict=True):
        first.setdefault(group, name)
    return [first[group] if size[group] > 1 else "" for group in label.tolist()]
