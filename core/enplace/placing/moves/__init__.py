"""Moves of a search that changes placement and order together, on flat arrays."""

from enplace.placing.moves.blocks import Accepting, Blocks, move_blocks
from enplace.placing.moves.level import Level, make_level
from enplace.placing.moves.windows import Annealing, sweep

__all__ = ["Accepting", "Annealing", "Blocks", "Level", "make_level", "move_blocks", "sweep"]
