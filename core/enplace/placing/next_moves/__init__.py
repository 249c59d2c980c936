"""The next moves of a plan: the edits that shorten most what it minimises, with a price."""

from enplace.placing.next_moves.edits import MOVE, ORDER, RECOMPUTE, SPLIT, SWAP, TOGETHER
from enplace.placing.next_moves.search import Idle, NextMove, next_moves

__all__ = [
    "MOVE",
    "ORDER",
    "RECOMPUTE",
    "SPLIT",
    "SWAP",
    "TOGETHER",
    "Idle",
    "NextMove",
    "next_moves",
]
