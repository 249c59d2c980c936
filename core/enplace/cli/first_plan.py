"""A plan at once, while the kernels of a search are still being compiled.

Another process, which compiles nothing, makes a list schedule: Python interprets the kernels. It
takes two seconds for a graph of some thousand ops, and a large one is given up after a while.
A thread that compiles does not notice Ctrl-C, so such a process also makes the answer to it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from enplace.cli.answer import INTERRUPTED
from enplace.cli.progress import ctrl_c_in_native_code, end_at_once
from enplace.errors import CancelledError
from enplace.files.outputs import keep_replaced, may_be_replaced
from enplace.text import ms

if TYPE_CHECKING:
    from enplace.placers import Progress
    from enplace.processes.main import Connection
    from enplace.processes.wire import Message
    from enplace.values.plan import Plan
    from enplace.values.problem import Problem

METHOD, LIMIT_S = "heft", 3.0
"""What makes the first plan, and the time limit that it is given."""

LASTS_S = 1.0
"""How long a kernel is compiled before a first plan is made: most are loaded in a moment."""

GIVE_UP_S, ANSWER_S = 60.0, 8.0
"""How long to wait for the first plan, and for the answer about a plan after Ctrl-C: the first plan
is there already, and a bound of a large graph would take a minute."""

TICK_S = 0.1

IS_FIRST = "note: stopped; this is the first plan"


@dataclass(frozen=True)
class Request:
    """What a command was asked for.

    Attributes
    ----------
    problem : Problem
    seed : int
    whole : tuple of str
        What the answer has for layers that are kept whole.
    start : Plan, optional
        A plan to improve, which is the first plan then.
    is_wanted : bool
        Whether a first plan is wanted. If not, Ctrl-C ends this process with the best plan of the
        search, or without.
    more : mapping
        What the document of the answer has besides.
    """

    problem: Problem
    seed: int = 0
    whole: tuple[str, ...] = ()
    start: Plan | None = None
    is_wanted: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)


class FirstPlan:
    """The first plan: on its way, made, or no longer needed.

    Parameters
    ----------
    output : str, optional
        The file that it is written to, if that is one.
    stopped : callable
        Whether Ctrl-C was pressed.
    clock : callable
        Seconds since some fixed moment.
    """

    def __init__(
        self,
        output: str | None,
        as_json: bool,
        stopped: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_kept = False
        """Whether what the output held is kept, so that the first plan may replace it."""
        self._output = output if output and may_be_replaced(output) else None
        self._as_json, self._stopped, self._clock = as_json, stopped, clock
        self._began_s: list[float] = []  # of each function that is being compiled, outermost first
        self._best: Plan | None = None
        self._best_us: float | None = None
        self._bound_us: float | None = None
        self._made: dict[str, Any] | None = None
        self._over = threading.Event()

    def note_better(self, progress: Progress) -> None:
        """Note the best plan of the search, and the best bound."""
        if progress.incumbent is not None:
            self._best, self._best_us = progress.incumbent, progress.objective_us
        self._bound_us = progress.bound_us or self._bound_us

    @contextmanager
    def made_meanwhile(self, request: Request) -> Iterator[None]:
        """Make the plan in a context, once something is compiled for more than a moment."""
        from enplace.compiling import watch_compiler

        def begin(module: str) -> None:
            self._began_s.append(self._clock())

        def end() -> None:
            self._began_s.pop()

        with watch_compiler(begin, end), ctrl_c_in_native_code() as pressed:
            args = request, pressed
            maker = threading.Thread(target=self._watch, args=args, name="first plan")
            maker.start()
            try:
                yield
            except CancelledError:  # between two kernels, before the search had a plan
                if self._made is not None:
                    _say(IS_FIRST)
                    self._end_with(self._made)
                raise
            finally:
                self._over.set()
                maker.join()

    def _watch(self, request: Request, pressed: Callable[[], bool]) -> None:
        """Make the first plan when it is needed, and end this process if it is stopped."""
        shown, is_tried = None, not request.is_wanted

        def is_stopped() -> bool:
            return self._stopped() or pressed()

        while not self._over.wait(TICK_S):
            if not self._compiles_long():
                continue
            best = self._best
            if not is_tried:
                # A bound takes long in a process that compiles nothing; a list schedule does not.
                shown, is_tried = (best if self._bound_us else None) or request.start, True
                if made := self._make(request, shown, GIVE_UP_S, is_stopped):
                    self._made = made
                    where = f", in {self._output}" if self._output else ""
                    _say(f"a first plan takes {ms(made['step_us'])}{where}; better ones follow")
                elif not (self._over.is_set() or is_stopped()):
                    _say("note: there is no first plan, and the search goes on")
            elif is_stopped():
                is_better = best is not shown and not self._is_first_as_good()
                if is_better and (made := self._make(request, best, ANSWER_S)):
                    _say("note: stopped; this is the best plan so far")
                    self._end_with(made)
                if self._made is not None:
                    _say(IS_FIRST)
                    self._end_with(self._made)
                end_at_once()

    def _is_first_as_good(self) -> bool:
        made, best_us = self._made, self._best_us
        return bool(made and made["fits"] and best_us and made["step_us"] <= best_us)

    def _compiles_long(self) -> bool:
        outermost = self._began_s[:1]
        return bool(outermost) and self._clock() - outermost[0] >= LASTS_S

    def _make(
        self,
        request: Request,
        plan: Plan | None,
        give_up_s: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any] | None:
        """Have another process make a plan, or take the given one, and the answer about it."""
        from enplace.processes.codecs import plan_message, problem_to_json, profile_message
        from enplace.processes.wire import DONE, Message
        from enplace.processes.worker import converse, handler_program

        problem = request.problem
        asked = {
            "problem": problem_to_json(problem),
            "seed": request.seed,
            "whole": list(request.whole),
            "bound_us": self._bound_us,
            "output": self._output,
            "is_kept": self.is_kept,
            "more": {**request.more, "placement_file": self._output},
        }
        job = Message("place", asked) if plan is None else plan_message("place", plan, asked)

        program = handler_program(f"{__name__}:{serve.__name__}", "first plan")
        messages = profile_message(problem.measured_profile), job

        def is_over() -> bool:
            return self._over.is_set() or stopped()

        for message in converse(program, messages, is_over, give_up_s):
            if message.do == DONE:
                self.is_kept |= self._output is not None
                return message.details
        return None

    def _end_with(self, made: dict[str, Any]) -> None:
        """End this process with a plan: the compiler would not notice Ctrl-C for long."""
        from enplace.placers.enplace.kernels import stop_compiling

        stop_compiling()
        print(json.dumps(made["document"], indent=2) if self._as_json else made["text"], flush=True)
        os._exit(INTERRUPTED)


def _say(text: str) -> None:
    """Write a line to stderr, above the bar if there is one."""
    from tqdm import tqdm

    if sys.stderr is not None:
        with suppress(OSError):
            tqdm.write(f"enplace: {text}", file=sys.stderr)


def serve(connection: Connection) -> Message:
    """Make the first plan of the problem received, or take the plan received; write it if asked."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # before numba is imported
    from enplace.cli.solving import find_others, make_answer
    from enplace.machine import simulate
    from enplace.placers import PlaceOptions, Stop, place
    from enplace.processes.codecs import plan_from, problem_from, profile_from
    from enplace.processes.main import done
    from enplace.values.problem import STEP_TIME, split_problem
    from enplace.values.result import Result
    from enplace.writers import write_plan

    profile, message = connection.receive(), connection.receive()
    job = message.details
    problem = problem_from(profile_from(profile), job["problem"])
    if "plan" in job:
        plan = plan_from(message)
        bound_us = job["bound_us"] if plan.objective == STEP_TIME else plan.bound_us
        result = Result(simulate(split_problem(problem, plan.splits), plan), bound_us)
    else:
        result = place(problem, METHOD, options=PlaceOptions(stop=Stop(LIMIT_S), seed=job["seed"]))
    others = find_others(problem, result.plan.objective, result.schedule, Stop(LIMIT_S))
    output = job["output"]
    sentences = [f"The plan is in {output}."] if output else []
    answer = make_answer(result, others, sentences, job["whole"], seed=job["seed"], **job["more"])
    if output:  # at last, so that nothing is kept of a file that stays
        keep_replaced(None if job["is_kept"] else output)
        write_plan(output, result)
    return done(
        document=answer.document,
        text=answer.text,
        step_us=result.schedule.makespan_us,
        fits=result.schedule.fits,
    )
