"""Running the user's program as Python does, and saying in one line where and why it ended.

Programs run only in workers, but their frameworks differ: nothing here imports one.
"""

from __future__ import annotations

import errno
import os
import runpy
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from enplace.frameworks.framework import Framework
from enplace.frameworks.source import Source
from enplace.frameworks.trust import place_of
from enplace.processes import redirect
from enplace.text import MAX_LISTED, joined, listed

_NOT_WRITABLE = (
    "Enplace only lets it read there, because this system has no scratch for such a write; let the "
    "script write elsewhere, or after it has trained"
)

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def run_program(source: Source) -> None:
    """Run a script as ``python SCRIPT`` does, a module as ``python -m MODULE`` does."""
    with (
        patch.object(sys, "argv", [source.path, *source.words]),
        patch.object(sys, "path", [str(place_of(source)), *sys.path]),
        # A plan that the script applies is not part of the model.
        patch.object(Framework, "apply", lambda *_, **__: None),
        patch.object(os, "_exit", _exit_as_usual(os._exit)),
    ):
        if source.kind == "script":
            runpy.run_path(source.path, run_name="__main__")
        else:
            runpy.run_module(source.path, run_name="__main__", alter_sys=True)


def _exit_as_usual(at_once: Callable[[int], Any]) -> Callable[[int], Any]:
    """Let a program end itself by ``os._exit`` as by ``sys.exit``, so that the worker answers."""
    own = os.getpid()

    @wraps(at_once)
    def leave(status: int) -> Any:
        if os.getpid() != own or threading.current_thread() is not threading.main_thread():
            return at_once(status)
        raise SystemExit(status)

    return leave


def current_line(source: Source) -> str:
    """Name the script and the line that is running: ``train.py, line 7``."""
    return _innermost(source, [*traceback.walk_stack(None)][::-1])


def _innermost(source: Source, frames: Iterable[tuple[FrameType, int]]) -> str:
    lines = [line for frame, line in frames if _is_of(source, frame)]
    name = Path(source.path).name
    return f"{name}, line {lines[-1]}" if lines else name


def _is_of(source: Source, frame: FrameType) -> bool:
    if source.kind == "module":
        return frame.f_globals.get("__name__") == "__main__" and "__spec__" in frame.f_globals
    return os.path.abspath(frame.f_code.co_filename) == source.path


def at_lines(lines: Mapping[str, None]) -> str:
    """Begin a sentence with the lines of the script that it is about, if they are known."""
    return f"{name_lines(lines)}: " if any(lines) else ""


def name_lines(lines: Iterable[str]) -> str:
    """Name lines of a file together: ``train.py, lines 7 and 9``."""
    numbers: dict[str, list[str]] = {}
    for each in filter(None, lines):
        file, _, number = each.partition(", line ")
        numbers.setdefault(file, []).append(number)
    named = (
        f"{file}, line{'s' * (len(found) > 1)} {_in_order(found)}" if found[0] else file
        for file, found in numbers.items()
    )
    return "; ".join(named)


def _in_order(numbers: list[str]) -> str:
    """Join the numbers of lines; of very many, only the first."""
    found = sorted(numbers, key=int)
    return listed(found) if len(found) > MAX_LISTED else joined(found)


def why_ended(source: Source, end: SystemExit, hint: str = "") -> str:
    """Say why a program ended itself before it trained; a hint tells what else may help."""
    place = _innermost(source, traceback.walk_tb(end.__traceback__))
    if end.code == 2:
        given = " ".join(source.words) or "none"
        return (
            f"{place}: the script refused its arguments (given: {given}); see its output for the "
            f"reason, and give it the arguments that it needs"
        )
    reason = f" ({end.code})" if end.code else ""
    return f"{place}: the script ended before it trained{reason}; let it run until then{hint}"


def failed_line(source: Source, error: BaseException) -> str:
    """Name the script and the line of it that an error comes from."""
    return _innermost(source, traceback.walk_tb(error.__traceback__))


def why_failed(
    source: Source, error: BaseException, line: str, usual_mend: str = "correct the script"
) -> str:
    """Print the script's own traceback without Enplace's frames; return the reason in one line.

    Parameters
    ----------
    line : str
        The line of the error's text that says why.
    usual_mend : str
        What to do about an error of the script's own.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [i for i, (frame, _) in enumerate(frames) if _is_of(source, frame)]
    shown = traceback.TracebackException.from_exception(error)
    of_script = [*shown.stack][own[0] :] if own else []
    kept = [each for each in of_script if not each.filename.startswith(_PACKAGE)]
    shown.stack = traceback.StackSummary.from_list(kept)
    print("".join(shown.format()), end="", file=sys.stderr)
    place = _innermost(source, frames)
    if isinstance(error, ModuleNotFoundError) and " " not in str(error.name):  # or a sentence
        return f"{place}: it needs the module '{error.name}', which is not installed; install it"
    if refused := redirect.why_refused(error):
        return f"{place}: {refused}"
    reason = ": ".join(filter(None, (type(error).__name__, line.rstrip("."))))
    mend = "correct the script" if isinstance(error, SyntaxError) else usual_mend
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        mend = _NOT_WRITABLE
    elif isinstance(error, subprocess.CalledProcessError) and redirect.refuses:
        mend = f"{mend}, or, if that program writes files, which Enplace refuses, {redirect.ALLOW}"
    return f"{place}: it failed before it trained: {reason}; {mend}"
