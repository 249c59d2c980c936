"""Enplace's own method on a graph whose ops are split.

OS-DPOS (FastT, section 5.2) chooses the splits. If a list schedule of the split graph is shorter
than those of the whole graph, the search continues with the split graph, otherwise with the whole
one.
"""

from __future__ import annotations

from dataclasses import replace

from enplace.placers.enplace.search import improve
from enplace.placers.enplace.starts import find_start
from enplace.placers.os_dpos import TIME_LIMIT_S, os_dpos
from enplace.placing.incumbents import BestSchedule
from enplace.placing.options import ROUNDS, PlaceOptions, Progress
from enplace.placing.registry import ANYTIME, CHANNELS, HETEROGENEOUS, MEMORY, SPLITS, TIES, placer
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.splits import Split

METHOD = "enplace-split"

SPLIT_SHARE = 0.3
"""Share of the time limit for choosing splits."""


@placer(
    METHOD,
    title="Enplace with split ops",
    good=(
        "Where a few long ops, such as large convolutions and matrix products, hold up the "
        "whole step: it may then be several times shorter than with enplace. Where nothing is "
        "worth splitting, it finds what enplace finds."
    ),
    source="Enplace: splits by OS-DPOS (FastT), then annealing of the split graph",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME, SPLITS, TIES),
    options=(ROUNDS,),
)
def enplace_split(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the best list schedule of the graph, or of the graph with ops split."""
    options_of_whole = of_model(options, METHOD, ())
    start = find_start(problem, options_of_whole)
    limit_s = options.stop.limit_s
    limit_s = TIME_LIMIT_S if limit_s is None else SPLIT_SHARE * limit_s
    found = os_dpos(problem, replace(options.quiet, stop=options.stop.until(limit_s)))
    if found.splits and not options.stop():
        graph = split_graph(problem, found.splits)
        of_graph = replace(options.quiet, start=replace(found, splits=()))
        split = find_start(graph, of_graph)
        options_of_split = of_model(options, METHOD, found.splits)
        if BestSchedule(options_of_split, start.best).offer(split.best):
            plan = improve(graph, split, options_of_split)
            return replace(plan, method=METHOD, splits=found.splits)
    return replace(improve(problem, start, options_of_whole), method=METHOD)


def split_graph(problem: Problem, splits: tuple[Split, ...]) -> Problem:
    """Return a problem of the split graph that a search treats like any other."""
    return replace(split_problem(problem, splits), splits=())


def of_model(options: PlaceOptions, method: str, splits: tuple[Split, ...]) -> PlaceOptions:
    """Return options whose progress reports plans of the split graph as plans of the model."""

    def report_of_model(progress: Progress) -> None:
        if progress.incumbent is not None:
            plan = replace(progress.incumbent, method=method, splits=splits)
            progress = replace(progress, incumbent=plan)
        options.progress(progress)

    return replace(options, progress=report_of_model)
