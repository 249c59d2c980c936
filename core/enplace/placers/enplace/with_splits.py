"""Enplace's own method on a graph whose ops are split.

OS-DPOS (FastT, section 5.2) says how. If a list schedule of the graph with these splits is shorter
than those of the graph as it is, the search goes on there; if not, on the graph as it is.
"""

from __future__ import annotations

from dataclasses import replace

from enplace.placers.enplace.search import best_start, compile_loops, improved
from enplace.placers.os_dpos import TIME_LIMIT_S, os_dpos
from enplace.placing.incumbents import is_better, report
from enplace.placing.options import ROUNDS, PlaceOptions, Progress
from enplace.placing.registry import placer
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.splits import Split

METHOD = "enplace-split"

SPLITTING = 0.3
"""Share of the time after which no further splits are sought."""


@placer(
    METHOD,
    title="Enplace, with ops split",
    source="Enplace: splits by OS-DPOS (FastT), then annealing of the split graph",
    capabilities=("memory", "heterogeneous", "channels", "anytime", "splits"),
    options=(ROUNDS,),
)
def enplace_split(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the best list schedule of the graph, or of the graph with ops split."""
    with options.stopwatch.paused():
        compile_loops()
    options_of_whole = _of_model(options, ())
    start = best_start(problem, options_of_whole)
    limit_s = TIME_LIMIT_S if options.time_limit_s is None else SPLITTING * options.time_limit_s
    found = os_dpos(problem, replace(options.quiet, time_limit_s=limit_s))
    if found.splits and not options.stopped:
        # To what searches it, the split graph is a graph like any other.
        graph = replace(split_problem(problem, found.splits), splits=())
        of_graph = replace(options.quiet, start=replace(found, splits=()))
        split = best_start(graph, of_graph)
        if is_better(split.best, start.best):
            told = _of_model(options, found.splits)
            report(split.best, told)
            plan = improved(graph, split, told)
            return replace(plan, method=METHOD, splits=found.splits)
    return replace(improved(problem, start, options_of_whole), method=METHOD)


def _of_model(options: PlaceOptions, splits: tuple[Split, ...]) -> PlaceOptions:
    """The options for a search of the split graph, which tells of its plans as of the model's."""

    def tell(progress: Progress) -> None:
        if progress.incumbent is not None:
            plan = replace(progress.incumbent, method=METHOD, splits=splits)
            progress = replace(progress, incumbent=plan)
        options.progress(progress)

    return replace(options, progress=tell)
