"""Kinds of devices, and the largest values that a file may hold."""

from __future__ import annotations

KINDS = ("gpu", "cpu")
"""Device kinds, in the order of the columns of ``Profile.time_us``."""

MAX_NAME = 4096
MAX_TIME_US = 1e12
MAX_BYTES = 1 << 50
MAX_TOTAL_BYTES = 1 << 60
