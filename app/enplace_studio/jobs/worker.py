"""Workers for the event loop: their messages arrive as signals."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, QSocketNotifier, QTimer, Signal

from enplace.processes.wire import Message
from enplace.processes.worker import KILL_AFTER_S, Worker, WorkerError, WorkerProgram, failed


class StudioWorker(QObject):
    """A worker that runs until its last message arrives, or until it is closed.

    Parameters
    ----------
    messages : iterable of Message
        The first messages to send it.
    """

    received = Signal(object)
    """A :class:`Message`; the last one is ``done`` or ``failed``."""

    def __init__(
        self,
        program: WorkerProgram,
        messages: Iterable[Message] = (),
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._worker: Worker | None = None
        self._is_closed = False
        try:
            worker = self._worker = Worker(program, messages)
        except WorkerError as error:
            last = failed(str(error))
            QTimer.singleShot(0, self, lambda: self.received.emit(last))
            return
        self._notifier = QSocketNotifier(worker.fileno(), QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(self._receive)

    @property
    def pid(self) -> int:
        """Process id; 0 once it is closed."""
        return self._worker.pid if self._worker is not None else 0

    def send(self, message: Message) -> None:
        """Send a message without waiting."""
        if self._worker is not None:
            self._worker.send(message)

    def end(self) -> None:
        """Ask the worker to end, and kill it if it does not; its last message is still received."""
        if self._worker is not None:
            self._worker.terminate()
            QTimer.singleShot(round(KILL_AFTER_S * 1000), self, self._kill)

    def close(self) -> None:
        """Kill the worker and its children at once; nothing more is received."""
        self._is_closed = True
        self._stop()

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._notifier.setEnabled(False)
            worker.stop(grace_s=0)

    def _kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    def _receive(self) -> None:
        worker = self._worker
        if worker is None:
            return
        messages = worker.receive()
        if worker.over:
            self._stop()
        for message in messages:
            if not self._is_closed:
                self.received.emit(message)
