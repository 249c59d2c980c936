"""``compile``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import click

from enplace.cli.answer import INTERRUPTED, INTERRUPTED_LINE, Answer, command
from enplace.cli.progress import work_bar
from enplace.text import seconds

MOST_S = 20.0
"""Time for each method on a small problem; what it has to compile takes a part of it."""


@command("compile")
@click.option("--all", "every_method", is_flag=True, help="Also the code of every other method.")
def compile_ahead(every_method: bool) -> Answer:
    """Compile the code of the default method, once after installation.

    Otherwise the first 'place' does it. If everything is compiled, this takes a few seconds.
    """
    from enplace.placers.enplace.kernels import STEPS, load_all_kernels

    n_steps = len(STEPS)
    began_s = time.perf_counter()
    with work_bar() as report:
        usual = signal.signal(signal.SIGINT, _end_at_once)
        try:
            load_all_kernels(lambda message: report(message, None))
            if every_method:
                n_steps += _run_every_method(lambda message: report(message, None))
        finally:
            signal.signal(signal.SIGINT, usual)
    took_s = time.perf_counter() - began_s
    return Answer({"steps": n_steps, "seconds": took_s}, f"Compiled in {seconds(took_s)}.")


def _run_every_method(report: Callable[[str], None]) -> int:
    """Solve a small problem with every method for all that it can be asked for; count the runs."""
    from enplace.errors import EnplaceError
    from enplace.placers import PlaceOptions, Stop, place, placers
    from enplace.placers.enplace.kernels import small_problem
    from enplace.placing.options import ROUNDS

    installed = [placer for placer in placers().values() if placer.installed]
    runs = [(placer, objective) for placer in installed for objective in placer.objectives]
    for number, (placer, objective) in enumerate(runs):
        report(f"Compiling, once after installation: {number} of {len(runs)} methods")
        budget = {ROUNDS.name: 1} if ROUNDS in placer.options else {}
        options = PlaceOptions(objective, Stop(MOST_S), values=budget)
        with suppress(EnplaceError):  # a method that cannot run here needs no kernels
            place(small_problem(), placer.name, options=options)
    return len(runs)


def _end_at_once(*_: object) -> NoReturn:
    """End this process on Ctrl-C: numba would take an exception in its code for a fault of its."""
    from enplace.placers.enplace.kernels import stop_compiling

    stop_compiling()
    print(INTERRUPTED_LINE, file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)
