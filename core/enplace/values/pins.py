"""Pins: the ops that must run on one device."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping

import numpy as np

from enplace.errors import ProblemError
from enplace.values.arrays import IntArray, give_away

FREE = -1
"""Stands for no device: the op is not pinned."""


class Pins(Mapping[int, int]):
    """Device number by op number, in the order of the ops.

    It is kept as an array: an edit of a large model changes thousands of pins at once, and the
    history of edits keeps the pins of each.

    Parameters
    ----------
    device : int array, shape (n_ops,)
        The device of each op, :data:`FREE` for ops without a pin.
    """

    def __init__(self, device: IntArray) -> None:
        self.device = give_away(device.astype(np.int32))

    def __getitem__(self, op: int) -> int:
        device = int(self.device[op]) if 0 <= op < len(self.device) else FREE
        if device == FREE:
            raise KeyError(op)
        return device

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Pins):
            return np.array_equal(self.device, other.device)
        return super().__eq__(other)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.device != FREE))

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self.device != FREE).tolist())

    def items(self) -> ItemsView[int, int]:
        """Return the pairs of ops and devices, which takes a moment for thousands of pins."""
        ops = np.flatnonzero(self.device != FREE)
        return dict(zip(ops.tolist(), self.device[ops].tolist(), strict=True)).items()

    def __repr__(self) -> str:
        return f"Pins of {dict(self.items())}"


def as_pins(pins: Mapping[int, int], n_ops: int, n_devices: int) -> Pins:
    """Turn any mapping of op to device numbers into pins.

    Raises
    ------
    ProblemError
        If an op or a device does not exist.
    """
    if isinstance(pins, Pins) and len(pins.device) == n_ops:
        _check_device(int(pins.device.max(initial=0)), n_devices)
        return pins
    device = np.full(n_ops, FREE)
    for op, there in pins.items():
        if not 0 <= op < n_ops:
            raise ProblemError(f"a pin names op number {op}, which does not exist")
        _check_device(there, n_devices)
        device[op] = there
    return Pins(device)


def _check_device(device: int, n_devices: int) -> None:
    if not 0 <= device < n_devices:
        raise ProblemError(f"a pin names device number {device}, which does not exist")
