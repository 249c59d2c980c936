"""The placements that a plan is proven against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rivals:
    """The kind of placements that a plan's bound and its proof hold for.

    Attributes
    ----------
    subgraphs : int or None
        The most subgraphs of a device; None if any number is allowed.
    staged : bool
        Whether each device's subgraph is a stage that follows another device's.
    """

    subgraphs: int | None = None
    staged: bool = False


ALL = Rivals()
"""All placements."""

CONTIGUOUS = Rivals(subgraphs=1)
"""Placements whose devices have one subgraph each."""

STAGED = Rivals(subgraphs=1, staged=True)
"""Placements whose devices have consecutive stages."""
