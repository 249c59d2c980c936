"""The registered methods that Enplace's own method starts from."""

from __future__ import annotations

from enplace.placers.partition import HAS_METIS
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import placers
from enplace.values.plan import Plan
from enplace.values.problem import Problem

STARTS = (
    "single",
    "m-etf",
    "heft",
    "dpos",
    "m-topo",
    "celeritas",
    "expert",
    "order-place",
    *(("metis",) if HAS_METIS else ()),
)
"""Quick methods, which take seconds only on huge graphs. The first is what a person would do by
hand; then come those that are the quickest for what they gain, so that there is a good plan however
little time there is. The last, if it is installed, sends least, from where moves find the rest if
ops are short beside messages."""

LP_START = "m-sct"
"""A start that solves a linear program; it is tried last."""

SEARCHES = ("local-search", "mcmc")
"""Methods that search, tried on small problems."""


def run_method(name: str, problem: Problem, options: PlaceOptions) -> Plan:
    """Run a registered method without the checks that :func:`~enplace.placing.run.place` makes."""
    return placers()[name].run(problem, options)
