"""Ways to compile the innermost loops."""

from __future__ import annotations

from typing import Any

from numba import njit

_NO_COUNTS: dict[str, Any] = {"_nrt": False}

loop = njit(cache=True, nogil=True, **_NO_COUNTS)
"""For code that allocates nothing: numba then does not count references, so reading an array from a
tuple costs nothing."""

step = njit(nogil=True, inline="always", **_NO_COUNTS)
"""For a named step of such a loop. It is inlined; a call would pass some two hundred words."""

allocating = njit(cache=True, nogil=True, **{**_NO_COUNTS, "_nrt": True})
"""For functions that allocate but are called from such a loop."""
