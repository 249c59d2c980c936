"""Op splits: which ops can be cut into parts, along which dimensions, and the resulting graph.

After FastT (Middleware 2020), section 5.2: a split is an op, a dimension and a number of parts. It
replaces the op by that many copies, each of which does an equal share of the work. Inputs are cut
for the parts, and the outputs of the parts are joined for ops that need the whole output.
"""

from enplace.values.splits.graph import (
    has_parts,
    part_names,
    share,
    split_profile,
    unsplit_names,
    whole_names,
)
from enplace.values.splits.rules import (
    Rule,
    Split,
    carries_samples,
    data_edges,
    find_rule,
    legal_dimensions,
    sample_dimension,
    without_broken_groups,
)

__all__ = [
    "Rule",
    "Split",
    "carries_samples",
    "data_edges",
    "find_rule",
    "has_parts",
    "legal_dimensions",
    "part_names",
    "sample_dimension",
    "share",
    "split_profile",
    "unsplit_names",
    "whole_names",
    "without_broken_groups",
]
