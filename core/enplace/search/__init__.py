"""Search: annealing of placement and order together, on flat arrays."""

from enplace.search.blocks import move_blocks
from enplace.search.level import Level, make_level
from enplace.search.windows import sweep

__all__ = ["Level", "make_level", "move_blocks", "sweep"]
