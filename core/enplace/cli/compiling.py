"""``compile``."""

from __future__ import annotations

import time

from enplace.cli.answer import Answer, command
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
        load_all_kernels(lambda message: report(message, None))
    took_s = time.perf_counter() - began_s
    return Answer({"steps": len(STEPS), "seconds": took_s}, f"Compiled in {seconds(took_s)}.")
