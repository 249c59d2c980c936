"""Kinds of devices, and the largest values that a file may hold."""

from __future__ import annotations

KINDS = ("gpu", "cpu")
"""Device kinds, in the order of the columns of ``Profile.time_us``."""

MAX_NAME, MAX_DEVICE_NAME = 100_000, 200
MOST_DEPTH = 40
"""Parts of a scope that count; what is deeper says nothing of the layers of a model."""

MAX_TIME_US = 1e12
MAX_BYTES = 1 << 62
"""Most bytes of a device, of a tensor, and of a model in all: twice as many do not fit 64 bits."""
