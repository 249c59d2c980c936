"""Search: annealing of placement and order together, on flat arrays."""

from enplace.machine.search_layout import lacking_bytes
from enplace.placing.moves.blocks import dispatch, move_blocks
from enplace.placing.moves.level import Level, make_level
from enplace.placing.moves.windows import sweep

__all__ = ["Level", "dispatch", "lacking_bytes", "make_level", "move_blocks", "sweep"]
