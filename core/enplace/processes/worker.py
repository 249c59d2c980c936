"""Workers seen from the process that starts them: start, send, receive, cancel, stop.

Every worker starts in a session of its own, so stopping it stops everything it started; where other
people's code runs, also what starts a session itself. It is isolated from the current folder:
``-P``, and no relative entry of ``PYTHONPATH``. The kernel kills a worker, and what it started,
when the process that started it ends. Its temporary files are in a folder of its own, which is
removed with whatever a killed worker leaves in it.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from enplace import errors
from enplace.errors import CancelledError, EnplaceError
from enplace.files.folders import starts_of_temporary, temporary_folder
from enplace.processes import scratch
from enplace.processes.child import Child, end_group, end_strays, start_child
from enplace.processes.wire import DONE, FAILED, PROGRESS, Message, WireError, encode, take

KILL_AFTER_S = 0.4
"""Time for a worker to end after it is asked to."""

TAIL_LINES = 40
"""Most last lines of a worker's standard error that are shown when it fails."""

GAVE_UP = "enplace: "
"""Start of the last line of a worker that ended itself for a reason."""

_TAIL_BYTES = 1 << 16
_SCRATCH, _OTHER_ROOM = "scratch", Path("/var/tmp")
_TICK_S = 0.05
_FOLDERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX")
_HARMLESS = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "PYTHONNOUSERSITE",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
)
"""What a person may tell Python: folders, if they are absolute, and settings that run no code."""

CRASHES = ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGBUS")
"""Signals that end a process whose native code is at fault."""

Report = Callable[[str, float | None], None]
"""Called with a line for the user, and with the fraction done if it is known."""


Wrote = Callable[[Sequence[str]], None]
"""Called with paths of files that somebody would have found changed."""

WRITTEN = "written"
"""Where the last message of a worker that changes nothing has these paths."""


class WorkerError(EnplaceError):
    """A worker failed, and not because of its input.

    Attributes
    ----------
    last_lines : str
        The end of its standard error.
    """

    printed = True

    def __init__(self, why: str, last_lines: str = "") -> None:
        super().__init__(why)
        self.last_lines = last_lines

    @property
    def details(self) -> dict[str, Any]:
        """The fields that ``--json`` adds to the error."""
        return {"last_lines": self.last_lines.splitlines()}


class WorkerFaultError(WorkerError):
    """A worker failed because of a fault of the program itself."""

    is_fault = True


def _explain_nothing(code: int, last_lines: str) -> str:
    return ""


@dataclass(frozen=True)
class WorkerProgram:
    """The program of a worker.

    Attributes
    ----------
    command : tuple of str
    name : str
        Its name on screen: "the ``name`` process".
    explain : callable
        Takes exit status and last lines, as :func:`why_it_ended` does, and explains why the
        process ended; empty if it has no better explanation than that function.
    changes_nothing : bool
        Whether what it writes outside of its temporary folder is undone: see
        :mod:`enplace.processes.main_in_scratch`, which its command runs.
    """

    command: tuple[str, ...]
    name: str
    explain: Callable[[int, str], str] = _explain_nothing
    changes_nothing: bool = False


def python_module(module: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs a module, isolated from the current folder."""
    return (sys.executable, "-P", "-m", module, *words)


def handler_program(
    handler: str, name: str, explain: Callable[[int, str], str] = _explain_nothing
) -> WorkerProgram:
    """Return the program that runs a handler, ``MODULE:FUNCTION``."""
    return WorkerProgram(python_module("enplace.processes.main", handler), name, explain)


def scratch_program(
    handler: str, name: str, explain: Callable[[int, str], str] = _explain_nothing
) -> WorkerProgram:
    """Return the program that runs a handler, and other people's code, without changing files.

    Its last message lists, as :data:`WRITTEN`, which files it would have changed.
    """
    return WorkerProgram(
        python_module("enplace.processes.main_in_scratch", handler), name, explain, True
    )


def sharing_scratch(program: WorkerProgram) -> WorkerProgram:
    """Return the program for a worker that starts it: it writes to this one's scratch, if it can.

    Then the files that both write are listed together.
    """
    if not scratch.is_mounted:
        return program
    return handler_program(program.command[-1], program.name, program.explain)


def safe_environment() -> dict[str, str]:
    """Return the environment without variables that make Python run code that nobody chose."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept |= {name: os.environ[name] for name in _HARMLESS if name in os.environ}
    for name in _FOLDERS:
        folders = os.environ.get(name, "").split(os.pathsep)
        if absolute := [folder for folder in folders if os.path.isabs(folder)]:
            kept[name] = os.pathsep.join(absolute)
    return kept


class Worker:
    """A running worker; as a context, it is stopped at the end.

    ``fileno`` is readable whenever :meth:`receive` has something to do, so that an event loop can
    wait for it.

    Parameters
    ----------
    messages : iterable of Message
        The first messages to send to it.

    Raises
    ------
    WorkerError
        If it cannot be started.
    """

    def __init__(self, program: WorkerProgram, messages: Iterable[Message] = ()) -> None:
        self._program = program
        self._folder = ExitStack()
        try:
            folder = self._folder.enter_context(temporary_folder())
            self._room = str(folder)
            environment = {**safe_environment(), "TMPDIR": self._room}
            self._scratch = list[str]()
            if program.changes_nothing:
                self._scratch = self._make_scratch(folder)
                environment[scratch.FOLDERS] = os.pathsep.join(self._scratch)
            self._child = start_child(program.command, environment)
        except OSError as error:
            self._folder.close()
            why = f"the {program.name} process does not start: {error.strerror}"
            raise WorkerError(why) from None
        self._outbox = _Outbox(self._child, program.name)
        for message in messages:
            self.send(message)
        self._silent = self._killed = self._stopped = False
        self.over = False
        """Whether its last message has been received."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def last_lines(self) -> str:
        """The end of its standard error."""
        lines = self._child.errors.decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-TAIL_LINES:])

    def fileno(self) -> int:
        """Return the descriptor for an event loop to watch."""
        return self._child.fileno()

    def send(self, message: Message) -> None:
        """Send a message without waiting."""
        self._outbox.send(message)

    def receive(self, timeout_s: float = 0.0) -> list[Message]:
        """Wait until something happens, and return the messages that have arrived.

        A worker's last message is ``done`` or ``failed``. If it ended without sending either, this
        adds a ``failed`` that explains why.
        """
        self._read(timeout_s)
        if self._child.process.poll() is not None:
            self.kill()  # what it started may hold its streams open
            self._read_rest()
            self._silent = True
        messages = [] if self.over else list(self._take())
        if self._silent and not self.over:
            self.over = True
            code = self._exit_code()
            self._read_rest()
            why = why_it_ended(self._program, code, self.last_lines)
            messages.append(failed(why, self.last_lines))
        return messages

    def terminate(self) -> None:
        """Ask the worker, and what it started, to end."""
        self._end(by_force=False)

    def kill(self) -> None:
        """Kill the worker, and what it started."""
        self._end(by_force=True)
        self._killed = True

    def stop(self, grace_s: float = KILL_AFTER_S) -> None:
        """End the worker, and what it started, whatever they are doing."""
        if self._stopped:
            return
        self._stopped = True
        try:
            if grace_s:
                self.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._child.process.wait(grace_s)
        finally:
            self.kill()
            self._child.process.wait()
            if self._program.changes_nothing:
                end_strays("TMPDIR", self._room)
            self._outbox.close()
            self._child.close()
            self._folder.close()

    def _make_scratch(self, folder: Path) -> list[str]:
        """Make scratch folders, one of them not where temporary files are."""
        rooms = [folder]
        if os.access(_OTHER_ROOM, os.W_OK):
            rooms.append(self._folder.enter_context(temporary_folder(_OTHER_ROOM)))
        for room in rooms:
            (room / _SCRATCH).mkdir()
        return [str(room.resolve() / _SCRATCH) for room in rooms]

    def _take(self) -> Iterator[Message]:
        """Yield the complete messages that have arrived; after the worker's last one, stop."""
        try:
            while not self.over and (message := take(self._child.out)):
                self.over = message.do in (DONE, FAILED)
                if message.do == FAILED:
                    self._read_rest()
                    details = {**message.details, "last_lines": self.last_lines}
                    message = replace(message, details=details)
                elif self.over and self._scratch:
                    written = scratch.written_files(
                        self._scratch, starts_of_temporary([_OTHER_ROOM])
                    )
                    message = replace(message, details={**message.details, WRITTEN: written})
                yield message
        except WireError as error:
            self.over = True
            self._read_rest()
            why = f"the {self._program.name} process sends messages that cannot be read: {error}"
            yield failed(why, self.last_lines)

    def _exit_code(self) -> int:
        """Return the code for :func:`why_it_ended`; 0 if the worker has only closed its output."""
        try:
            return self._child.process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            return 0

    def _read_rest(self) -> None:
        while self._read(0):
            pass

    def _read(self, timeout_s: float) -> bool:
        """Read what has arrived or soon arrives; return whether there was anything to read."""
        has_happened = self._child.read(timeout_s)
        self._silent = self._silent or self._child.silent
        del self._child.errors[:-_TAIL_BYTES]
        return has_happened

    def _end(self, by_force: bool) -> None:
        if not self._killed:  # later, another process may have its number
            end_group(self._child.process, by_force)


class _Outbox:
    """Encodes and sends messages in a thread, so that the caller never waits."""

    def __init__(self, child: Child, name: str) -> None:
        self._child = child
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"outbox of {name}", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        self._messages.put(message)

    def close(self) -> None:
        self._messages.put(None)
        self._child.end_input()
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):  # the worker is gone; its end says why
            while (message := self._messages.get()) is not None:
                self._child.write(encode(message))


def failed(why: str, last_lines: str = "") -> Message:
    """Stand in for the last message of a worker that sent none."""
    return Message(FAILED, {"why": why, "kind": "WorkerError", "last_lines": last_lines})


def error_of(message: Message) -> EnplaceError:
    """Return the error in a ``failed`` message."""
    name = message.details.get("kind")
    kind = getattr(errors, str(name), None)
    if isinstance(kind, type) and issubclass(kind, EnplaceError):
        return kind(message.details["why"])
    failed_by = WorkerFaultError if name == WorkerFaultError.__name__ else WorkerError
    return failed_by(message.details["why"], message.details.get("last_lines", ""))


def why_it_ended(program: WorkerProgram, code: int, last_lines: str) -> str:
    """Explain in one line why a process ended without an answer.

    Parameters
    ----------
    code : int
        Its exit status, or minus the number of the signal that ended it.
    last_lines : str
        The end of its standard error.
    """
    last = last_lines.rpartition("\n")[2]
    if code == 1 and last.startswith(GAVE_UP):
        return last.removeprefix(GAVE_UP)
    if known := program.explain(code, last_lines):
        return known
    process = f"the {program.name} process"
    ended_by = signal_name(code)
    if ended_by == "SIGKILL":
        return (
            f"{process} was killed (signal 9); unless you ended it, this machine most likely "
            f"ran out of memory: close other programs"
        )
    if ended_by in ("SIGTERM", "SIGINT", "SIGHUP"):
        return f"{process} was ended by another program ({ended_by})"
    if code < 0:
        return f"{process} crashed ({ended_by}); its last lines may say why"
    return f"{process} ended without a result (exit status {code}); its last lines may say why"


def signal_name(code: int) -> str:
    """Return the name of the signal whose number, with a minus, is an exit status.

    Windows has fewer signals than others, so compare names, not numbers.
    """
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def never() -> bool:
    """Return False: the ``cancelled`` of a job that cannot be cancelled."""
    return False


def converse(
    program: WorkerProgram,
    messages: Iterable[Message],
    cancelled: Callable[[], bool] = never,
    limit_s: float = math.inf,
) -> Generator[Message, None, None]:
    """Start a worker, send it a job, and yield its messages up to ``done`` or ``failed``.

    Ends without either once cancelled, or when the time is up. The worker is stopped in any case.
    """
    until = time.monotonic() + limit_s
    try:
        worker = Worker(program, messages)
    except WorkerError as error:
        yield failed(str(error))
        return
    with worker:
        while not worker.over and not cancelled() and time.monotonic() < until:
            for message in worker.receive(_TICK_S):
                yield message
                if cancelled():
                    return


def ignore(message: str, fraction: float | None) -> None:
    """Ignore a progress report."""


def ignore_written(paths: Sequence[str]) -> None:
    """Ignore which files a worker would have changed."""


def do_job(
    program: WorkerProgram,
    messages: Iterable[Message],
    progress: Report = ignore,
    cancelled: Callable[[], bool] = never,
    wrote: Wrote = ignore_written,
) -> Message:
    """Have a worker do a job, and wait for its ``done``; the worker ends with this call.

    Parameters
    ----------
    cancelled : callable
        Asked often; once true, the worker is stopped within a second.
    wrote : callable
        Called with the files that the worker would have changed, had it not been kept from it.

    Raises
    ------
    CancelledError
        If it was cancelled.
    WorkerError
        If the worker ended without an answer, or failed for a reason that is not its input.
    EnplaceError
        If the worker refuses its input.
    """
    with closing(converse(program, messages, cancelled)) as answers:
        for message in answers:
            if message.do == DONE:
                wrote(message.details.pop(WRITTEN, []))
                return message
            if message.do == FAILED:
                raise error_of(message)
            if message.do == PROGRESS:
                progress(message.details["message"], message.details.get("fraction"))
    raise CancelledError("stopped before there was a result")
