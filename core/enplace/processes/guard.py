"""What keeps other people's code in a worker from changing files, on this machine."""

from __future__ import annotations

from functools import cache

from enplace.errors import EnplaceError
from enplace.processes import redirect
from enplace.processes.main import Connection, done
from enplace.processes.wire import Message
from enplace.processes.worker import do_job, scratch_program

OVERLAYS, PYTHON = "overlays", "python"
LANDLOCK, OLD_LANDLOCK = "landlock", "old landlock"
"""Overlays hold for all that is written; without them, Landlock may refuse what is not led.

Before Linux 6.2 it does not refuse to shorten a file. Without either, only what is written by
Python's functions and the framework's is led to scratch.
"""

_LIMITED = (
    "this system allows no overlays: programs that the model's code starts, and native libraries, "
    "cannot write your files (except in /dev/shm), but may change their {}; "
    f"{redirect.ALLOW}, or run it on a copy"
)
_UNGUARDED = (
    "this system allows neither overlays nor Landlock: programs that the model's code starts, and "
    "native libraries, may change your files; run it on a copy"
)
WARNINGS = {
    OVERLAYS: "",
    LANDLOCK: _LIMITED.format("modes, owners, times and attributes"),
    OLD_LANDLOCK: _LIMITED.format("modes, owners, times, attributes and lengths"),
    PYTHON: _UNGUARDED,
}
"""For what guards a worker, what a person must know before it runs."""


def tell(connection: Connection) -> Message:
    """Answer what guards this worker."""
    connection.receive()
    if redirect.copies is None:
        return done(guard=OVERLAYS)
    landlock = OLD_LANDLOCK if redirect.may_shorten else LANDLOCK
    return done(guard=landlock if redirect.refuses else PYTHON)


@cache
def guard() -> str:
    """Return what guards workers that run other people's code: one is started to find out."""
    try:
        answer = do_job(scratch_program(f"{__name__}:tell", "file"), [Message("tell")])
    except EnplaceError:
        return PYTHON
    return str(answer.details["guard"])
