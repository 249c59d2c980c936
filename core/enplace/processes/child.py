"""A child process with its streams, for an event loop to wait for, and ways to end it.

Linux tells of the streams and of the process without a thread, and ends the process with its
parent. Elsewhere threads read and wait, and the process ends when its input does.
"""

from __future__ import annotations

import os
import queue
import select
import selectors
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

_CHUNK_BYTES = 1 << 20

_MOMENT_S = 0.02
"""What a thread may need to pass on what has been written."""

_DYING_S = 5.0
"""How long to wait for a process that was killed; it may be stuck in the kernel."""

ON_LINUX = hasattr(os, "pidfd_open")
HAS_GROUPS = hasattr(os, "killpg")
"""Whether a signal reaches a process with all that it has started."""


class Child(Protocol):
    """A process in a session of its own.

    Attributes
    ----------
    out, errors : bytearray
        What it has written.
    silent : bool
        Whether its standard output has ended.
    """

    process: subprocess.Popen[bytes]
    out: bytearray
    errors: bytearray
    silent: bool

    def fileno(self) -> int:
        """Return the descriptor that is readable whenever :meth:`read` has something to do."""
        ...

    def read(self, timeout_s: float) -> bool:
        """Read what has arrived or soon arrives; return whether anything has happened."""
        ...

    def write(self, data: bytes) -> None:
        """Write to its standard input, and wait until all is taken.

        Raises
        ------
        OSError
            If it has ended.
        """
        ...

    def end_input(self) -> None:
        """Let a waiting :meth:`write` fail. The process must have ended."""
        ...

    def close(self) -> None:
        """Close all streams of a process that has ended."""
        ...


def start_child(command: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start a process.

    Raises
    ------
    OSError
        If it does not start.
    """
    return LinuxChild(command, environment) if ON_LINUX else ThreadedChild(command, environment)


def end_group(process: subprocess.Popen[bytes], by_force: bool) -> None:
    """End a process, and what it has started; or ask them to end, where this can be asked."""
    if HAS_GROUPS:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL if by_force else signal.SIGTERM)
    elif process.poll() is None:
        command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(command, capture_output=True, check=False)


def end_strays(variable: str, value: str) -> None:
    """Kill the processes that have a variable from a worker that has ended.

    They started sessions of their own, so no signal to the worker's group reached them. Only Linux
    tells of them. Each gets a while to die: a busy machine does not run it at once.
    """
    if not ON_LINUX:
        return
    wanted = f"{variable}={value}".encode(errors="surrogateescape")
    for number in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is somebody else's
            process = os.pidfd_open(int(number))
            try:
                if wanted in Path("/proc", number, "environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    end = select.poll()
                    end.register(process, select.POLLIN)
                    end.poll(_DYING_S * 1000)
            finally:
                os.close(process)


class LinuxChild:
    """A process whose streams and whose end one selector waits for."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.out, self.errors, self.silent = bytearray(), bytearray(), False
        self._input, theirs = socket.socketpair()
        hangup, self._lifeline = os.pipe()
        with theirs, os.fdopen(hangup):
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                    pass_fds=(hangup,),
                )
            except OSError:
                self._input.close()
                os.close(self._lifeline)
                raise
            _kill_at_hangup(hangup, self.process.pid)
        self._exit = os.pidfd_open(self.process.pid)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._exit, selectors.EVENT_READ)
        self._selector.register(_open(self.process.stdout), selectors.EVENT_READ, self.out)
        self._selector.register(_open(self.process.stderr), selectors.EVENT_READ, self.errors)

    def fileno(self) -> int:
        return self._selector.fileno()

    def read(self, timeout_s: float) -> bool:
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            chunk = b"" if key.data is None else os.read(key.fd, _CHUNK_BYTES)
            if not chunk:
                self._selector.unregister(key.fileobj)
                self.silent = self.silent or key.data is self.out
            elif key.data is not None:
                key.data.extend(chunk)
        return bool(ready)

    def write(self, data: bytes) -> None:
        # A process that is gone must not end this one, whatever it does about SIGPIPE.
        self._input.sendall(data, socket.MSG_NOSIGNAL)

    def end_input(self) -> None:
        with suppress(OSError):
            self._input.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._input.close()
        self._selector.close()
        os.close(self._exit)
        os.close(self._lifeline)
        for stream in (self.process.stdout, self.process.stderr):
            _open(stream).close()


def _kill_at_hangup(hangup: int, group: int) -> None:
    """Let the kernel kill a group of processes when the other end of a pipe is closed.

    The group must hold this end. It cannot do this itself: a library that keeps Python's lock
    keeps every thread of a worker from noticing anything. ``PR_SET_PDEATHSIG`` would kill it
    when the thread that started it ends.
    """
    import fcntl

    fcntl.fcntl(hangup, fcntl.F_SETOWN, -group)
    fcntl.fcntl(hangup, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(hangup, fcntl.F_SETFL, fcntl.fcntl(hangup, fcntl.F_GETFL) | os.O_ASYNC)


class ThreadedChild:
    """A process of any system: threads read its streams, and wake up who waits for a socket."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.out, self.errors, self.silent = bytearray(), bytearray(), False
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._bell, self._button = socket.socketpair()
        self._button.setblocking(False)
        self._arrived: queue.SimpleQueue[tuple[bytearray | None, bytes]] = queue.SimpleQueue()
        streams = ((self.process.stdout, self.out), (self.process.stderr, self.errors))
        self._threads = [threading.Thread(target=self._wait, daemon=True)]
        for stream, buffer in streams:
            arguments = (_open(stream).fileno(), buffer)
            self._threads.append(threading.Thread(target=self._read, args=arguments, daemon=True))
        for thread in self._threads:
            thread.start()

    def fileno(self) -> int:
        return self._bell.fileno()

    def read(self, timeout_s: float) -> bool:
        if not select.select([self._bell], [], [], max(timeout_s, _MOMENT_S))[0]:
            return False
        self._bell.recv(_CHUNK_BYTES)
        with suppress(queue.Empty):
            while True:
                buffer, chunk = self._arrived.get_nowait()
                self.silent = self.silent or (buffer is self.out and not chunk)
                if buffer is not None:
                    buffer.extend(chunk)
        return True

    def write(self, data: bytes) -> None:
        stream = _open(self.process.stdin)
        stream.write(data)
        stream.flush()

    def end_input(self) -> None:
        """Do nothing: without the process, a write fails at once."""

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        with suppress(OSError):  # it has not taken all
            _open(self.process.stdin).close()
        for stream in (self.process.stdout, self.process.stderr):
            _open(stream).close()
        self._bell.close()
        self._button.close()

    def _read(self, descriptor: int, buffer: bytearray) -> None:
        chunk = b"?"
        while chunk:
            chunk = os.read(descriptor, _CHUNK_BYTES)
            self._tell(buffer, chunk)

    def _wait(self) -> None:
        self.process.wait()
        self._tell(None, b"")

    def _tell(self, buffer: bytearray | None, chunk: bytes) -> None:
        self._arrived.put((buffer, chunk))
        with suppress(BlockingIOError):  # it has rung often enough
            self._button.send(b"!")


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "it is a pipe"
    return stream
