"""What keeps other people's code in a worker from changing files, on this machine."""

from __future__ import annotations

from functools import cache

from enplace.errors import EnplaceError
from enplace.processes import redirect
from enplace.processes.main import Connection, done
from enplace.processes.wire import Message
from enplace.processes.worker import do_job, scratch_program

OVERLAYS, LANDLOCK, PYTHON = "overlays", "landlock", "python"
"""Overlays hold for all that is written; without them, Landlock may refuse what is not led.

Without either, only what is written by Python's functions and the framework's is led to scratch.
"""

UNGUARDED = (
    "this system allows neither overlays nor Landlock: programs that the model's code starts, and "
    "native libraries (as for TFRecords or a data set's cache), may change your files; run it on a "
    "copy"
)


def tell(connection: Connection) -> Message:
    """Answer what guards this worker."""
    connection.receive()
    led = redirect.copies is not None
    return done(guard=(LANDLOCK if redirect.refuses else PYTHON) if led else OVERLAYS)


@cache
def guard() -> str:
    """Return what guards workers that run other people's code: one is started to find out."""
    try:
        answer = do_job(scratch_program(f"{__name__}:tell", "file"), [Message("tell")])
    except EnplaceError:
        return PYTHON
    return str(answer.details["guard"])
