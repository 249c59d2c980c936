"""Ask a solver. It runs in a worker, so it can be stopped at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from enplace.processes.wire import DONE, FAILED, Message
from enplace.processes.worker import converse, handler_program

_GRACE_S = 2.0
"""How much longer than its time limit a solver may take to answer."""


def ask_solver(
    handler: str, job: Message, limit_s: float, cancelled: Callable[[], bool]
) -> Iterator[Message]:
    """Let a handler of this package solve a problem, and yield its messages.

    The last message has ``status``, which is ``failed`` if the process broke. There is no such
    message if the job is cancelled or the solver exceeds its time limit.
    """
    program = handler_program(f"enplace.solvers.{handler}", "solver")
    for message in converse(program, [job], cancelled, limit_s + _GRACE_S):
        if message.do == FAILED:
            message = Message(DONE, {"status": "failed", "why": message.details["why"]})
        yield message
