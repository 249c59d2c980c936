"""A plan at once, while the kernels of a search are still being compiled.

Another process, which compiles nothing, makes a list schedule: Python interprets the kernels. It
takes two seconds for a graph of some thousand ops, and a large one is given up after a while.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from enplace.cli.answer import INTERRUPTED
from enplace.cli.outputs import keep_replaced, may_be_replaced
from enplace.text import ms

if TYPE_CHECKING:
    from enplace.placers import Progress
    from enplace.processes.main import Connection
    from enplace.processes.wire import Message
    from enplace.values.problem import Problem

METHOD, LIMIT_S = "heft", 3.0
"""What makes the first plan, and the time limit that it is given."""

GIVE_UP_S = 60.0
TICK_S = 0.1


class FirstPlan:
    """The first plan: on its way, made, or no longer needed.

    Parameters
    ----------
    output : str, optional
        The file that it is written to, if that is one.
    stopped : callable
        Whether Ctrl-C was pressed.
    """

    def __init__(self, output: str | None, as_json: bool, stopped: Callable[[], bool]) -> None:
        self.is_kept = False
        """Whether what the output held is kept, so that the first plan may replace it."""
        self._output = output if output and may_be_replaced(output) else None
        self._as_json, self._stopped = as_json, stopped
        self._over = threading.Event()

    def note_better(self, progress: Progress) -> None:
        """Note that the search has a plan, so that this one is needed no more."""
        if progress.incumbent is not None:
            self._over.set()

    @contextmanager
    def made_meanwhile(
        self, problem: Problem, method: str, seed: int, whole: Sequence[str]
    ) -> Iterator[None]:
        """Make the plan in a context, unless what the method needs is compiled already."""
        if not is_cold(method):
            yield
            return
        keep_replaced(self._output)
        self.is_kept = self._output is not None
        maker = threading.Thread(target=self._make, args=(problem, seed, whole), name="first plan")
        maker.start()
        try:
            yield
        finally:
            self._over.set()
            maker.join()

    def _make(self, problem: Problem, seed: int, whole: Sequence[str]) -> None:
        from enplace.processes.codecs import problem_to_json, profile_message
        from enplace.processes.wire import DONE, Message
        from enplace.processes.worker import converse, handler_program

        program = handler_program(f"{__name__}:{serve.__name__}", "first plan")
        asked = {"seed": seed, "whole": list(whole), "output": self._output}
        job = Message("place", {"problem": problem_to_json(problem), **asked})
        messages = profile_message(problem.measured_profile), job
        for message in converse(program, messages, self._over.is_set, GIVE_UP_S):
            if message.do == DONE:
                self._tell(message.details)

    def _tell(self, made: dict[str, Any]) -> None:
        where = f", in {self._output}" if self._output else ""
        _say(f"a first plan takes {ms(made['step_us'])}{where}; better ones follow")
        while not self._over.wait(TICK_S):
            if self._stopped():
                self._end_with(made)
                return

    def _end_with(self, made: dict[str, Any]) -> None:
        """End this process with the first plan: the compiler would not notice Ctrl-C for long."""
        from enplace.placers.enplace.kernels import stop_compiling

        stop_compiling()
        _say("note: stopped; this is the first plan")
        print(json.dumps(made["document"], indent=2) if self._as_json else made["text"], flush=True)
        os._exit(INTERRUPTED)


def _say(text: str) -> None:
    """Write a line to stderr, above the bar if there is one."""
    from tqdm import tqdm

    if sys.stderr is not None:
        with suppress(OSError):
            tqdm.write(f"enplace: {text}", file=sys.stderr)


def is_cold(method: str) -> bool:
    """Whether a kernel that every method needs is not compiled, or one of the default method."""
    from enplace.machine.kernel import run
    from enplace.placers import DEFAULT_METHOD
    from enplace.placing.moves.windows import anneal_window

    needed = (run, anneal_window) if method == DEFAULT_METHOD else (run,)
    return not all(map(_is_compiled, needed))


def _is_compiled(kernel: Any) -> bool:
    cache = getattr(kernel, "_cache", None)  # Python interprets it if it has none
    return cache is None or bool(cache._found_ahead or cache._cache_file._load_index())


def serve(connection: Connection) -> Message:
    """Make the first plan of the problem received, and write it if there is an output."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # before numba is imported
    from enplace.cli.solving import find_others, make_answer
    from enplace.placers import PlaceOptions, Stop, place
    from enplace.processes.codecs import problem_from, profile_from
    from enplace.processes.main import done
    from enplace.writers import write_plan

    profile, job = connection.receive(), connection.receive().details
    problem = problem_from(profile_from(profile), job["problem"])
    result = place(problem, METHOD, options=PlaceOptions(stop=Stop(LIMIT_S), seed=job["seed"]))
    others = find_others(problem, result.plan.objective, result.schedule, Stop(LIMIT_S))
    output, sentences = job["output"], []
    if output:
        write_plan(output, result)
        sentences = [f"The plan is in {output}."]
    answer = make_answer(result, others, sentences, job["whole"], seed=job["seed"])
    return done(
        document=answer.document,
        text=answer.text,
        step_us=result.schedule.makespan_us,
    )
