"""The main program of every worker: ``python -P -m enplace.processes.main MODULE:FUNCTION``.

The function is a handler: it receives messages and reports progress through its
:class:`Connection`, and returns its answer, the last message. See :mod:`enplace.processes.wire`.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, NoReturn

from enplace.errors import NO_MEMORY, EnplaceError, lacks_memory
from enplace.processes import wire
from enplace.processes.wire import DONE, FAILED, PROGRESS, Message, WireError


class Connection:
    """The worker's end: messages to and from the process that started it."""

    def __init__(self, messages: BinaryIO, out: BinaryIO) -> None:
        self._out, self._sending = out, threading.Lock()
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(messages,), name="inbox", daemon=True).start()

    def receive(self) -> Message:
        """Wait for the next message."""
        return self._inbox.get()

    def send(self, message: Message) -> None:
        """Send a message; any thread may call this."""
        data = wire.encode(message)
        try:
            with self._sending:
                self._out.write(data)
                self._out.flush()
        except BrokenPipeError:
            os._exit(1)

    def report(self, message: str, fraction: float | None = None) -> None:
        """Report to the user what the worker is doing, and how much of it is done."""
        self.send(Message(PROGRESS, {"message": message, "fraction": fraction}))

    def _listen(self, messages: BinaryIO) -> None:
        try:
            while message := wire.read(messages):
                self._inbox.put(message)
        except WireError as error:
            print(error, file=sys.stderr, flush=True)
        os._exit(1)


Handler = Callable[[Connection], Message]


def main() -> NoReturn:
    """Run the handler that the command line names."""
    module, _, function = sys.argv[1].partition(":")
    serve(lambda connection: getattr(importlib.import_module(module), function)(connection))


def serve(handler: Handler) -> NoReturn:
    """Run a handler, send its answer and end this process."""
    connection = Connection(*_claim_streams())
    faulthandler.enable(all_threads=False)
    try:
        answer = handler(connection)
    except BaseException as error:
        answer = failure(error)
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(answer)
    os._exit(0)  # threads of a script may go on for ever


def done(**details: object) -> Message:
    """Make the answer of a job without arrays."""
    return Message(DONE, details)


def failure(error: BaseException) -> Message:
    """Make an error the answer of a job, and print it unless it is an EnplaceError.

    An exception that is none is a fault of the program itself. If an error's ``printed`` is true,
    the output before it explains it.
    """
    if lacks_memory(error):
        return Message(FAILED, {"why": NO_MEMORY, "kind": EnplaceError.__name__})
    if not isinstance(error, EnplaceError):
        traceback.print_exception(error)
        why = f"a fault in Enplace, {type(error).__name__}: {error}; please report it"
        return Message(FAILED, {"why": why, "kind": "WorkerFaultError"})
    if getattr(error, "printed", False):
        print(getattr(error, "last_lines", ""), file=sys.stderr)
        return Message(FAILED, {"why": str(error), "kind": "WorkerError"})
    kinds = (cls.__name__ for cls in type(error).__mro__ if cls.__module__ == "enplace.errors")
    return Message(FAILED, {"why": str(error), "kind": next(kinds)})


def _claim_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep standard input and output for messages.

    Nothing else in this process reads input, and whatever it prints goes to standard error.
    """
    messages, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # a crash loses nothing that was printed
    return messages, out


if __name__ == "__main__":
    main()
