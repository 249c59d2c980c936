"""Talk with a solver in a process of its own, which can be killed at any time.

The process reads one message on standard input and writes JSON lines on standard output; the last
line has ``status``.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

_TICK_S = 0.05
_GRACE_S = 2.0
"""How much longer than its time limit a solver may take to say what it has."""


def say(**message: Any) -> None:
    """Write one line, in the process of the solver."""
    print(json.dumps(message), flush=True)


def converse(
    module: str,
    arguments: Sequence[str],
    message: bytes,
    limit_s: float,
    cancelled: Callable[[], bool],
) -> Iterator[dict[str, Any]]:
    """Start a module of this package, send it a message, and pass on what it says.

    Ends after the line that has ``status``, once cancelled, or when the process overstays its time
    limit; the process is killed then. If it ends without such a line, one is made up: ``failed``,
    with the last line of its errors as ``why``.
    """
    until = time.monotonic() + limit_s + _GRACE_S
    # What a killed solver leaves behind goes with the folder. The folder that the process is
    # started in comes not before the libraries: -P.
    with (
        tempfile.TemporaryDirectory(prefix="enplace-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [sys.executable, "-P", "-m", f"enplace.solvers.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,
        ) as process,
    ):
        lines, noise = _talk(process, message)
        try:
            while time.monotonic() < until and not cancelled():
                try:
                    line = lines.get(timeout=_TICK_S)
                except queue.Empty:
                    continue
                if line is None:
                    why = noise[-1] if noise else "it ended without an answer"
                    line = {"status": "failed", "why": why}
                yield line
                if "status" in line:
                    return
        finally:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and with it the solver that PuLP started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _talk(
    process: subprocess.Popen[bytes], message: bytes
) -> tuple[queue.Queue[dict[str, Any] | None], list[str]]:
    """Send the message; what the process says, None at its end, and the lines of its errors."""
    lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
    noise: list[str] = []

    def send(into: IO[bytes]) -> None:
        try:
            into.write(message)
            into.close()
        except OSError:
            pass  # It has ended; its own last line says why.

    def hear(said: IO[bytes]) -> None:
        with suppress(ValueError):  # it was killed, perhaps in the middle of a line
            for line in said:
                lines.put(json.loads(line))
        listen.join()
        lines.put(None)

    def overhear(said: IO[bytes]) -> None:
        with suppress(ValueError):
            noise.extend(line.decode(errors="replace").strip() for line in said)

    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    listen = threading.Thread(target=overhear, args=[process.stderr], daemon=True)
    listen.start()
    threading.Thread(target=send, args=[process.stdin], daemon=True).start()
    threading.Thread(target=hear, args=[process.stdout], daemon=True).start()
    return lines, noise
