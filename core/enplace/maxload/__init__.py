"""Pipelines: the split of a graph whose most loaded device has the least to do (time per sample).

After Tarnawski et al. 2020, sections 3 and 5 and appendix B.
"""

from enplace.maxload.dp import Split, split_exactly, split_in_order
from enplace.maxload.load import device_loads_us, max_load_us
from enplace.maxload.search import Found, Limits, best_anywhere, best_contiguous

__all__ = [
    "Found",
    "Limits",
    "Split",
    "best_anywhere",
    "best_contiguous",
    "device_loads_us",
    "max_load_us",
    "split_exactly",
    "split_in_order",
]
