"""Op splits: which ops can be cut into parts, along which dimensions, and the resulting graph.

After FastT (Middleware 2020), section 5.2: a split is an op, a dimension and a number of parts. It
replaces the op by that many copies, each of which does an equal share of the work. Inputs are cut
for the parts, and the outputs of the parts are joined for ops that need the whole output.

An op that is computed again, or whose output waits on the host, is one of them
(:mod:`enplace.values.splits.again`), so that all that carries splits, from files to the graph that
a framework runs, carries it too.
"""

from enplace.values.splits.graph import (
    ends_of,
    fetching_ops,
    has_parts,
    part_names,
    recomputed_ops,
    rewriting,
    share,
    split_profile,
    unsplit_names,
    whole_names,
)
from enplace.values.splits.rules import (
    OFFLOAD,
    RECOMPUTE,
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
    "OFFLOAD",
    "RECOMPUTE",
    "Rule",
    "Split",
    "carries_samples",
    "data_edges",
    "ends_of",
    "fetching_ops",
    "find_rule",
    "has_parts",
    "legal_dimensions",
    "part_names",
    "recomputed_ops",
    "rewriting",
    "sample_dimension",
    "share",
    "split_profile",
    "unsplit_names",
    "whole_names",
    "without_broken_groups",
]
