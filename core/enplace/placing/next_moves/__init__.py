"""The next moves of a plan: the single edits that shorten most what it minimises, with a price."""

from enplace.placing.next_moves.edits import MOVE, ORDER, RECOMPUTE, SPLIT, SWAP
from enplace.placing.next_moves.search import Idle, NextMove, next_moves

__all__ = ["MOVE", "ORDER", "RECOMPUTE", "SPLIT", "SWAP", "Idle", "NextMove", "next_moves"]
