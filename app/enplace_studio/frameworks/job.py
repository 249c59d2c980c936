"""One job in a worker of its own: its progress, its end, and how to cancel it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, QTimer, Signal

from enplace.processes.wire import DONE, FAILED, Message
from enplace.processes.worker import WRITTEN, WorkerError, WorkerProgram, error_of
from enplace_studio.jobs.worker import StudioWorker

TICK_MS = 100


class WorkerJob(QObject):
    """A job for a worker; when the worker ends, exactly one of the last three signals is sent.

    Parameters
    ----------
    messages : sequence of Message
        The job and the values that it works on.

    Attributes
    ----------
    written : tuple of str
        Once done, the files that the model's code would have changed.
    """

    ticked = Signal()
    """The progress or the elapsed time changed."""
    done = Signal(object)
    """The :class:`Message` with the result."""
    failed = Signal(str, str)
    """The reason for a failure, and the last lines that the worker wrote if they help."""
    cancelled = Signal()

    def __init__(
        self, program: WorkerProgram, messages: Sequence[Message], parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.text = f"Starting {program.name}"
        self.fraction: float | None = None
        self.written: tuple[str, ...] = ()
        self._program, self._messages = program, tuple(messages)
        self._worker: StudioWorker | None = None
        self._started_s = time.monotonic()
        self._cancelling = False
        self._tick = QTimer(self, interval=TICK_MS)
        self._tick.timeout.connect(self.ticked)

    @property
    def seconds(self) -> float:
        """Time that the job has taken so far."""
        return time.monotonic() - self._started_s

    @property
    def pid(self) -> int:
        """Process id of the worker; 0 if there is none."""
        return self._worker.pid if self._worker is not None else 0

    def start(self) -> None:
        """Start the worker."""
        self._started_s = time.monotonic()
        self._worker = StudioWorker(self._program, self._messages, self)
        self._worker.received.connect(self._receive)
        self._tick.start()

    def cancel(self) -> None:
        """End the worker within a second, whatever it is doing."""
        if self._worker is not None and not self._cancelling:
            self._cancelling = True
            self.text, self.fraction = "Stopping", None
            self._worker.end()
            self.ticked.emit()

    def close(self) -> None:
        """Kill the worker at once; no signal is sent."""
        self._tick.stop()
        if self._worker is not None:
            self._worker.close()

    def _receive(self, message: Message) -> None:
        if message.do == DONE:
            self.written = tuple(message.details.pop(WRITTEN, ()))
            self._end(lambda: self.done.emit(message))
        elif message.do == FAILED and self._cancelling:
            self._end(self.cancelled.emit)
        elif message.do == FAILED:
            error = error_of(message)
            last_lines = error.last_lines if isinstance(error, WorkerError) else ""
            self._end(lambda: self.failed.emit(str(error), last_lines))
        elif not self._cancelling:
            self.text, self.fraction = message.details["message"], message.details["fraction"]
            self.ticked.emit()

    def _end(self, emit: Callable[[], object]) -> None:
        self._tick.stop()
        self._worker = None
        emit()
