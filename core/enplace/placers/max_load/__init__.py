"""Pipelines: the split of a graph whose most loaded device has the least to do (time per sample).

After Tarnawski et al. 2020, sections 3 and 5 and appendix B.
"""

from enplace.machine.loads import device_loads_us, max_load_us
from enplace.placers.max_load.dp import Replicas, Split, split_exactly, split_in_order
from enplace.placers.max_load.search import Found, best_anywhere, best_contiguous
from enplace.placers.max_load.two_level import has_machines, split_over_machines
from enplace.solvers.background import Limits

__all__ = [
    "Found",
    "Limits",
    "Replicas",
    "Split",
    "best_anywhere",
    "best_contiguous",
    "device_loads_us",
    "has_machines",
    "max_load_us",
    "split_exactly",
    "split_in_order",
    "split_over_machines",
]
