"""The ``enplace`` command. Nothing heavy is imported before a command needs it.

Exit status: 0 for success; 1 when the answer is no (the model does not fit, there is no such plan);
2 for bad input; 70 for a fault of the program itself; 130 when interrupted. With ``--json``, stdout
holds exactly one JSON document; a refusal is ``{"error": ..., "kind": ...}``, and its line goes to
stderr as well.
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

import click

from enplace.cli import (
    about,
    compiling,
    converting,
    differing,
    fitting,
    profiling,
    running,
    serving,
    solving,
    verifying,
)
from enplace.cli.answer import BAD_INPUT, FAULT, INTERRUPTED, INTERRUPTED_LINE, NO, PIPE_CLOSED, cli
from enplace.errors import (
    FOLDER_IS_GONE,
    NO_MEMORY,
    CancelledError,
    DeadlockError,
    DoesNotFitError,
    EnplaceError,
    EnplaceWarning,
    ReaderGoneError,
    UnplaceableOpError,
    file_error,
    lacks_memory,
)
from enplace.system import check_compiler_settings
from enplace.text import elide_middle, one_line, shortened

__all__ = [
    "about",
    "compiling",
    "converting",
    "differing",
    "fitting",
    "main",
    "profiling",
    "run",
    "running",
    "serving",
    "solving",
    "verifying",
]

ANSWER_IS_NO = (DoesNotFitError, UnplaceableOpError, DeadlockError)
AGAIN_S = 0.05
MAX_LINE = 200
"""Longer lines from a worker are cut."""


def main() -> NoReturn:
    """Run the command line of this process."""
    if sys.stdout is not None:
        sys.stdout = _text_output(sys.stdout)
    sys.unraisablehook = _repeat_interrupt
    status = run(sys.argv[1:])
    # All is done: while Python ends, Ctrl-C would kill it without a word, and hide the status.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # else it looks through all objects again, for a third of a short command
    sys.exit(status)


def _repeat_interrupt(fault: sys.UnraisableHookArgs) -> None:
    """Press Ctrl-C again if it came where no error can be raised, such as in a compiler's callback.

    Python would print the error and go on.
    """
    if issubclass(fault.exc_type, KeyboardInterrupt):
        threading.Timer(AGAIN_S, signal.raise_signal, [signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(fault)


class _Output(io.FileIO):
    """Standard output. If its reader is gone, as in ``enplace methods | head -1``, we end quietly.

    SIGPIPE would also do this, but for every pipe: a solver that has ended must not end us.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(PIPE_CLOSED) from None
            raise


def _text_output(stream: TextIO) -> TextIO:
    """Return a text stream that replaces standard output."""
    raw = _Output(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, line_buffering=stream.isatty())


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; every refusal is one line on stderr."""
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _notes_on_stderr():
            check_compiler_settings()
            status = cli.main(list(arguments), "enplace", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return int(status or 0)
    except (KeyboardInterrupt, click.Abort, CancelledError):
        print(INTERRUPTED_LINE, file=sys.stderr)
        return INTERRUPTED
    except ReaderGoneError:  # as in ``-o /dev/stdout | head -1``
        return PIPE_CLOSED
    except ANSWER_IS_NO as error:
        return _refuse(error, str(error), NO, as_json)
    except EnplaceError as error:
        status = FAULT if getattr(error, "is_fault", False) else BAD_INPUT
        return _refuse(error, str(error), status, as_json)
    except click.ClickException as error:
        return _refuse(error, _usage(error), BAD_INPUT, as_json)
    except Exception as error:
        return _refuse_other(error, as_json)


def _refuse_other(error: Exception, as_json: bool) -> int:
    """Refuse what the system does not let us do; anything else is a fault of ours."""
    if lacks_memory(error):
        return _refuse(error, NO_MEMORY, BAD_INPUT, as_json)
    if isinstance(error, OSError):
        is_gone = isinstance(error, FileNotFoundError) and error.filename is None
        message = FOLDER_IS_GONE if is_gone else str(file_error(error, "output"))
        return _refuse(error, message, BAD_INPUT, False)
    if os.environ.get("ENPLACE_DEBUG"):
        raise error
    message = f"a fault in Enplace, {type(error).__name__}: {error}; please report it with the "
    return _refuse(error, f"{message}output under ENPLACE_DEBUG=1", FAULT, as_json)


def _refuse(error: Exception, message: str, status: int, as_json: bool) -> int:
    message = one_line(message)
    if not getattr(error, "is_whole", False):
        message = shortened(message)
    print(f"enplace: {message}", file=sys.stderr)
    for line in getattr(error, "last_lines", "").splitlines():
        print(f"  | {elide_middle(one_line(line), MAX_LINE)}", file=sys.stderr)
    if as_json:
        details: dict[str, Any] = getattr(error, "details", {})
        document = {"error": message, "kind": type(error).__name__, **details}
        print(json.dumps(document))
    return status


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see '{context.command_path} --help'" if context else message


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Show each warning of a reader as one line."""
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, EnplaceWarning):
            print(f"enplace: note: {one_line(str(message))}", file=sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", EnplaceWarning)
        warnings.showwarning = show
        yield
