"""Search: annealing of placement and order together, on flat arrays."""

from enplace.search.blocks import dispatch, move_blocks
from enplace.search.graph import lacking_bytes
from enplace.search.level import Level, make_level
from enplace.search.windows import sweep

__all__ = ["Level", "dispatch", "lacking_bytes", "make_level", "move_blocks", "sweep"]
