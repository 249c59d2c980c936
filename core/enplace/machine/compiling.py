"""Ways to compile the innermost loops."""

from __future__ import annotations

from typing import Any

from numba import njit

_NO_COUNTS: dict[str, Any] = {"_nrt": False}

loop = njit(cache=True, nogil=True, **_NO_COUNTS)
"""For code that allocates nothing: numba then counts no references, so that reading an array of a
tuple costs nothing."""

step = njit(nogil=True, inline="always", **_NO_COUNTS)
"""For a named step of such a loop; a call would pass some two hundred words."""

allocating = njit(cache=True, nogil=True, **{**_NO_COUNTS, "_nrt": True})
"""For what such a loop calls that allocates after all."""
