"""The methods of the registry that Enplace's own method starts from."""

from __future__ import annotations

from enplace.placing.options import PlaceOptions
from enplace.placing.registry import placers
from enplace.values.plan import Plan
from enplace.values.problem import Problem

STARTS = (
    "single",
    "expert",
    "dpos",
    "celeritas",
    "order-place",
    "m-topo",
    "m-etf",
    "heft",
)
"""Quick methods: a second at most. After what a person would do by hand come the quickest first,
so that one is there however little time there is."""

LP_START = "m-sct"
"""A start that solves a linear program; it is tried last."""

SEARCHES = ("local-search", "mcmc")
"""Methods that search, tried on small problems."""


def run_method(name: str, problem: Problem, options: PlaceOptions) -> Plan:
    """Run a method of the registry as it is, without the checks that a person's call gets."""
    return placers()[name].run(problem, options)
