"""One job in a worker process of its own: what it says, how it ends, and ending it early."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from enplace import errors
from enplace.frameworks import worker
from enplace.processes import wire
from enplace.processes.wire import Message, WireError
from enplace_studio.aside import aside

KILL_AFTER_MS = 400
"""How long a worker may take to end once it is told to."""
TICK_MS = 100
TAIL_BYTES = 1 << 16


class WorkerJob(QObject):
    """A worker process; once it is gone, exactly one of the last three signals comes.

    Parameters
    ----------
    messages : sequence of Message
        What the worker is sent: the job, and the values that it is about.
    """

    ticked = Signal()
    """What it says or how long it has taken changed."""
    done = Signal(object)
    """The :class:`Message` with the result."""
    failed = Signal(str, str)
    """Why there is no result, and the last lines the worker wrote, where those help."""
    cancelled = Signal()

    def __init__(
        self,
        messages: Sequence[Message],
        parent: QObject | None = None,
        command: Sequence[str] = (),
    ) -> None:
        super().__init__(parent)
        self.messages = tuple(messages)
        self._command = tuple(command)
        self.said = "Starting TensorFlow"
        self.fraction: float | None = None
        self._out, self._errors = bytearray(), bytearray()
        self._started_s = time.monotonic()
        self._cancelling = False
        self._tell: Callable[[], object] | None = None
        self._group = 0
        self._process = self._make_process()
        self._tick = QTimer(self, interval=TICK_MS)
        self._tick.timeout.connect(self.ticked)
        self._patience = QTimer(self, interval=KILL_AFTER_MS, singleShot=True)
        self._patience.timeout.connect(self._kill)

    def _make_process(self) -> QProcess:
        process = QProcess(self)
        # A session of its own, so that what the worker starts ends with it.
        parameters = QProcess.UnixProcessParameters()
        parameters.flags = QProcess.UnixProcessFlag.CreateNewSession
        process.setUnixProcessParameters(parameters)
        process.readyReadStandardOutput.connect(self._read)
        process.readyReadStandardError.connect(self._read_errors)
        process.finished.connect(self._on_end)
        process.errorOccurred.connect(self._on_error)
        return process

    @property
    def seconds(self) -> float:
        """How long the job has taken so far."""
        return time.monotonic() - self._started_s

    @property
    def last_lines(self) -> str:
        """The end of what the worker wrote to its standard error."""
        lines = self._errors.decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-worker.TAIL_LINES :])

    def start(self) -> None:
        """Start the process; its input stays open, so that it ends when the studio does."""
        said = aside(lambda: b"".join(map(wire.encode, self.messages)))
        program, *arguments = self._command or worker.COMMAND
        self._started_s = time.monotonic()
        self._process.start(program, arguments)
        self._group = self._process.processId()
        self._process.write(said)
        self._tick.start()

    def cancel(self) -> None:
        """End the process within a second, whatever it is at."""
        if self._tell is None and not self._cancelling:
            self._cancelling = True
            self.said, self.fraction = "Stopping", None
            self._process.terminate()
            self._patience.start()
            self.ticked.emit()

    def close(self) -> None:
        """End the process at once, without a word."""
        self._settle(_nothing)
        self._process.waitForFinished(1000)

    def _settle(self, tell: Callable[[], object]) -> None:
        """Listen to nothing more; tell how it ended once the process is gone."""
        if self._tell is None:
            self._tell = tell
            self._tick.stop()
            self._patience.stop()
        self._kill()

    def _kill(self) -> None:
        """End the worker and what it started."""
        group, self._group = self._group, 0
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def _read(self) -> None:
        self._out += self._process.readAllStandardOutput().data()
        try:
            while self._tell is None and (message := wire.take(self._out)):
                self._hear(message)
        except WireError as error:
            self._fail(f"the TensorFlow process is not understood: {error}")

    def _hear(self, message: Message) -> None:
        if message.do == "progress":
            self.said = message.details["message"]
            self.fraction = message.details.get("fraction")
            self.ticked.emit()
        elif message.do == "done":
            self._settle(lambda: self.done.emit(message))
        elif message.do == "failed":
            is_known = hasattr(errors, str(message.details.get("kind")))
            self._fail(message.details["why"], says_all=is_known)

    def _read_errors(self) -> None:
        self._errors += self._process.readAllStandardError().data()
        del self._errors[:-TAIL_BYTES]

    def _on_error(self, error: QProcess.ProcessError) -> None:
        if error == QProcess.ProcessError.FailedToStart:
            self._fail(f"the TensorFlow process does not start: {self._process.errorString()}")
            self._on_end(0, QProcess.ExitStatus.NormalExit)

    def _on_end(self, code: int, status: QProcess.ExitStatus) -> None:
        self._read_errors()
        self._read()
        if self._cancelling:
            self._settle(self.cancelled.emit)
        crashed = status == QProcess.ExitStatus.CrashExit
        self._fail(worker.why_it_ended(-code if crashed else code, self.last_lines))
        assert self._tell is not None
        self._tell()

    def _fail(self, why: str, says_all: bool = False) -> None:
        self._settle(lambda: self.failed.emit(why, "" if says_all else self.last_lines))


def _nothing() -> None:
    pass
