"""Ops that only show their first input in another way, and so lie in its memory."""

from __future__ import annotations

from collections.abc import Sequence

from enplace.values.profile import CONTROL

Edge = tuple[int, int, int, int]
"""Source, output, consumer, bytes."""


def find_views(is_view: Sequence[bool], edges: Sequence[Edge]) -> list[tuple[int, int, int, int]]:
    """Find what lies in the memory of a first input, as :func:`make_profile` takes it.

    Parameters
    ----------
    is_view : sequence of bool
        Whether each op never copies its first input.
    edges : sequence of (source, output, consumer, bytes)
        Those of each consumer in the order of its inputs.
    """
    size = {(source, output): n_bytes for source, output, _, n_bytes in edges}
    first: dict[int, tuple[int, int]] = {}
    for source, output, op, _ in edges:
        if is_view[op] and output != CONTROL:
            first.setdefault(op, (source, output))
    # What has another size is kept somewhere else, such as a shape on the host.
    return [(op, 0, *base) for op, base in first.items() if 0 < size[base] == size.get((op, 0))]
