"""``compile``."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import NoReturn

from enplace.cli.answer import INTERRUPTED, INTERRUPTED_LINE, Answer, command
from enplace.cli.progress import work_bar
from enplace.text import seconds


@command("compile")
def compile_ahead() -> Answer:
    """Compile the code of the default method, once after installation.

    Otherwise the first 'place' does it. If everything is compiled, this takes a few seconds.
    """
    from enplace.placers.enplace.kernels import STEPS, load_all_kernels

    began_s = time.perf_counter()
    with work_bar() as report:
        usual = signal.signal(signal.SIGINT, _end_at_once)
        try:
            load_all_kernels(lambda message: report(message, None))
        finally:
            signal.signal(signal.SIGINT, usual)
    took_s = time.perf_counter() - began_s
    return Answer({"steps": len(STEPS), "seconds": took_s}, f"Compiled in {seconds(took_s)}.")


def _end_at_once(*_: object) -> NoReturn:
    """End this process on Ctrl-C: numba would take an exception in its code for a fault of its."""
    from enplace.placers.enplace.kernels import stop_compiling

    stop_compiling()
    print(INTERRUPTED_LINE, file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)
