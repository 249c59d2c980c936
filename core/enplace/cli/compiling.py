"""``compile``."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from enplace.cli.answer import Answer, command
from enplace.cli.progress import end_at_once, work_bar
from enplace.errors import EnplaceError
from enplace.text import seconds

if TYPE_CHECKING:
    from enplace.values.problem import Problem

MOST_S = 0.5
"""Time for each run, besides compiling: some would search a small problem for a minute."""

SEVERAL_HOSTS = "fastt-2x8"
"""With so many devices, even a small problem is annealed, and has transfers between machines."""


@command("compile")
@click.option("--all", "every_method", is_flag=True, help="Also compile every other method.")
def compile_ahead(every_method: bool) -> Answer:
    """Compile the default method, once after installation.

    Otherwise the first 'place' does it. If everything is compiled, this takes a few seconds.
    """
    from enplace.placers.enplace.kernels import STEPS, load_all_kernels

    n_steps = len(STEPS)
    began_s = time.perf_counter()
    with work_bar() as report:
        usual = signal.signal(signal.SIGINT, end_at_once)
        try:
            load_all_kernels(lambda message: report(message, None))
            if every_method:
                n_steps += _run_every_method(lambda message: report(message, None))
        finally:
            signal.signal(signal.SIGINT, usual)
    took_s = time.perf_counter() - began_s
    return Answer({"steps": n_steps, "seconds": took_s}, f"Compiled in {seconds(took_s)}.")


def _run_every_method(report: Callable[[str], None]) -> int:
    """Solve small problems with every method for all that it can be asked for; count the runs."""
    from enplace.placers import (
        DEFAULT_METHODS,
        LATENCY,
        STEP_TIME,
        PlaceOptions,
        Stop,
        place,
        placers,
    )
    from enplace.placers.enplace.kernels import small_problem
    from enplace.placing.options import ROUNDS, TWO_LEVEL
    from enplace.readers.clusters import presets

    small = small_problem()
    wide = replace(small, cluster=presets()[SEVERAL_HOSTS])
    runs = [
        (placer, objective, problem)
        for placer in placers().values()
        for objective in placer.objectives
        for problem in ([small] if objective == STEP_TIME else [small, wide])
        if placer.installed
    ]
    # All placements of few ops are tried, many ops are clustered, and some plans must be mended.
    latency = placers()[DEFAULT_METHODS[LATENCY]]
    runs += [(latency, LATENCY, small_problem(n_ops)) for n_ops in (6, 100)]
    runs.append((placers()["single"], STEP_TIME, _far_from_usual(small)))
    for number, (placer, objective, problem) in enumerate(runs):
        report(f"Compiling, once after installation: {number} of {len(runs)} runs")
        wishes = ((ROUNDS, 1), (TWO_LEVEL, problem is wide))
        values = {option.name: value for option, value in wishes if option in placer.options}
        options = PlaceOptions(objective, Stop(MOST_S), values=values)
        with suppress(EnplaceError):  # a method that cannot run here needs no kernels
            place(problem, placer.name, options=options)
    return len(runs)


def _far_from_usual(problem: Problem) -> Problem:
    """Return a problem whose plans must have every op on the second GPU."""
    wanted = tuple((op, problem.cluster.gpus[1]) for op in range(problem.profile.n_ops))
    return problem.constrained(stay_close=[(wanted, 0)])
