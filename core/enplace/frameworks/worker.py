"""The process that has TensorFlow, seen from outside: it gets one job, and answers once.

It is a fresh one for each job, because TensorFlow fixes its devices when it starts, and so that
whatever happens there, here nothing is lost. It hears and says :mod:`enplace.processes.wire`
messages:

- to it: the values a job is about, if any, then the job, which is the message with a ``source``;
- from it: ``progress`` with ``message`` and ``fraction``, then ``done`` with the result, or
  ``failed`` with ``why`` and ``kind``, the name of an error of :mod:`enplace.errors`.

All that a model's own code prints goes to its standard error.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from enplace import errors
from enplace.errors import CancelledError, ClusterError, EnplaceError
from enplace.frameworks.source import Source
from enplace.processes.wire import (
    Message,
    WireError,
    encode,
    plan_message,
    problem_to_json,
    profile_message,
    take,
)
from enplace.values.cluster import Cluster
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem

# The folder it is started in comes not before the libraries: -P.
COMMAND = (sys.executable, "-P", "-m", "enplace.frameworks.tensorflow.worker")


_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

TAIL_LINES = 40
"""So many of the last lines that a process wrote are shown where it failed."""

_TAIL_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
_TICK_S = 0.1
_KILL_AFTER_S = 0.4
"""How long a process that is told to end may take."""

_OUT_OF_MEMORY = (
    "ResourceExhausted",
    "RESOURCE_EXHAUSTED",
    "OUT_OF_MEMORY",
    "OOM when allocating",
    "std::bad_alloc",
    "MemoryError",
)

GAVE_UP_SAYING = "enplace: "
"""How the last line of a process begins that ended itself with a reason."""

Report = Callable[[str, float | None], None]


class WorkerError(EnplaceError):
    """The process with TensorFlow failed; ``last_lines`` is what it wrote before."""

    def __init__(self, why: str, last_lines: str = "") -> None:
        super().__init__(why)
        self.last_lines = last_lines

    @property
    def details(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"last_lines": self.last_lines.splitlines()}


def usual_devices() -> str:
    """What a model is most likely profiled on here."""
    return "gpu:all" if _NVIDIA_DRIVER.exists() else "cpu:2"


def devices_for(cluster: Cluster, measured: Measurement) -> str:
    """The devices of this machine that a plan for a cluster needs.

    Parameters
    ----------
    measured : Measurement
        That of the profile: where the plan's devices are those it was measured on, those are meant.

    Raises
    ------
    ClusterError
        If they are those of several hosts that nobody named.
    """
    known = measured.cluster
    if measured.devices and known is not None and known.index == cluster.index:
        return measured.devices
    if host := next((name for name in cluster.index if name.startswith("/job:")), ""):
        raise ClusterError(f"'{host}' is on another host; give the cluster's file with --devices")
    kind = "gpu" if any(device.kind == "gpu" for device in cluster.devices) else "cpu"
    return f"{kind}:{sum(device.kind == kind for device in cluster.devices)}"


def profile_job(
    source: Source, devices: str, steps: int, warm_ups: int, batch_sizes: Sequence[int] = ()
) -> tuple[Message, ...]:
    """What a worker is sent to profile a model; it answers with a profile message.

    Without ``steps`` it is the graph alone, with the sizes that are known and no times. With
    ``batch_sizes`` it is estimated from these: :mod:`enplace.frameworks.evaluation`.
    """
    details = {
        "source": source.to_json(),
        "devices": devices,
        "steps": steps,
        "warm_ups": warm_ups,
        "batch_sizes": list(batch_sizes),
    }
    return (Message("profile", details),)


def run_job(
    source: Source,
    devices: str,
    steps: int,
    order: bool,
    problem: Problem,
    plan: Plan,
    compare: bool = True,
) -> tuple[Message, ...]:
    """What a worker is sent to run a plan and measure it; it answers with a run message.

    Unless ``compare``, the same steps are not run without the plan.
    """
    details = {
        "source": source.to_json(),
        "devices": devices,
        "steps": steps,
        "order": order,
        "compare": compare,
        "problem": problem_to_json(problem),
    }
    profile = profile_message(problem.profile)
    return profile, plan_message("run", plan, details)


def _silent(message: str, fraction: float | None) -> None:
    pass


def never() -> bool:
    """What is asked of a job that nobody can cancel."""
    return False


def do_work(
    messages: Sequence[Message],
    progress: Report = _silent,
    cancelled: Callable[[], bool] = never,
) -> Message:
    """Have a process do a job, and wait for it; it ends with this call, however that ends.

    Parameters
    ----------
    progress : callable
        Told what is going on, and how much of it is done where that is known.
    cancelled : callable
        Asked ten times a second; once true, the process is ended within a second.

    Returns
    -------
    Message
        ``done``, with the result.

    Raises
    ------
    CancelledError
        If it was cancelled.
    WorkerError
        If the process ended without an answer, or failed at what is no fault of the input.
    EnplaceError
        What the process has to say about the input.
    """
    with _Process(b"".join(map(encode, messages))) as process:
        while True:
            for message in process.heard():
                if message.do == "done":
                    return message
                if message.do == "failed":
                    process.end()
                    raise _failure(message.details, process.last_lines)
                if message.do == "progress":
                    progress(message.details["message"], message.details.get("fraction"))
            if cancelled():
                raise CancelledError("stopped before there was a result")
            if process.silent:
                code = process.exit_code()
                process.end()
                raise WorkerError(why_it_ended(code, process.last_lines), process.last_lines)


def _failure(said: Mapping[str, Any], last_lines: str) -> EnplaceError:
    kind = getattr(errors, str(said.get("kind")), None)
    if isinstance(kind, type) and issubclass(kind, EnplaceError):
        return kind(said["why"])
    return WorkerError(said["why"], last_lines)


def why_it_ended(code: int, last_lines: str) -> str:
    """Say in one line why a process ended without an answer.

    Parameters
    ----------
    code : int
        Its exit status, or the number of the signal that ended it with a minus before.
    last_lines : str
        The end of what it wrote to its standard error.
    """
    last = last_lines.rpartition("\n")[2]
    if code == 1 and last.startswith(GAVE_UP_SAYING):
        return last.removeprefix(GAVE_UP_SAYING)
    if any(word in last_lines for word in _OUT_OF_MEMORY):
        return "TensorFlow ran out of memory; take a smaller batch, or more or larger devices"
    if code == -signal.SIGKILL:
        return (
            "the TensorFlow process was killed (signal 9); if nobody ended it, this machine most "
            "likely ran out of memory: take a smaller batch or close other programs"
        )
    if code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
        return f"the TensorFlow process was ended by another program ({_signal_name(code)})"
    if code == -signal.SIGILL:
        return "TensorFlow crashed (SIGILL): it was built for another processor; install another"
    if code < 0:
        return f"TensorFlow crashed ({_signal_name(code)}); its last lines may say why"
    hint = "its last lines may say why" if code else "a script must not end its process itself"
    return f"the TensorFlow process ended without a result (exit status {code}); {hint}"


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class _Process:
    """A worker process with its three streams; ended when left, with all that it started."""

    def __init__(self, job: bytes) -> None:
        self._unsent = memoryview(job)
        self._said, self._noise = bytearray(), bytearray()
        # A socket, because writing to it after its end raises no signal that would end us.
        self._input, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._input.setblocking(False)
        self._streams = selectors.DefaultSelector()
        self._streams.register(self._input, selectors.EVENT_WRITE, self._send)
        for stream, into in ((self._popen.stdout, self._said), (self._popen.stderr, self._noise)):
            self._streams.register(stream, selectors.EVENT_READ, self._reader(stream, into))
        self.silent = False
        """Whether all it had to say is heard."""

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._streams.close()
        self._input.close()
        for stream in filter(None, (self._popen.stdout, self._popen.stderr)):
            stream.close()

    def end(self) -> None:
        """End it and all that it started, and take in what they wrote."""
        try:
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(_KILL_AFTER_S)
        finally:
            self._signal(signal.SIGKILL)
            self._popen.wait()
        while self._stir(0):
            pass

    @property
    def last_lines(self) -> str:
        """The end of what it wrote to its standard error."""
        lines = self._noise.decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-TAIL_LINES:])

    def exit_code(self) -> int:
        """As :func:`why_it_ended` knows it; 0 if it has only fallen silent."""
        try:
            return self._popen.wait(_KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            return 0

    def heard(self) -> Iterator[Message]:
        """Wait a moment; the messages that have come.

        Raises
        ------
        WorkerError
            If it says anything but messages.
        """
        if self._popen.poll() is None:
            self._stir(_TICK_S)
        else:
            self.end()  # what it had started may hold its streams open
            self.silent = True
        try:
            while message := take(self._said):
                yield message
        except WireError as error:
            raise WorkerError(f"the TensorFlow process is not understood: {error}") from None

    def _stir(self, timeout_s: float) -> bool:
        """Write and read what is possible now or soon; whether anything was."""
        ready = self._streams.select(timeout_s)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)

    def _send(self) -> None:
        try:
            n_sent = self._input.send(self._unsent[:_CHUNK_BYTES], socket.MSG_NOSIGNAL)
            self._unsent = self._unsent[n_sent:]
        except BlockingIOError:
            return
        except OSError:  # it is gone; why, its end will tell
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self._streams.unregister(self._input)

    def _reader(self, stream: Any, into: bytearray) -> Callable[[], None]:
        def read() -> None:
            chunk = os.read(stream.fileno(), _CHUNK_BYTES)
            into.extend(chunk)
            if into is self._noise:
                del into[:-_TAIL_BYTES]
            if not chunk:
                self._streams.unregister(stream)
                self.silent = self.silent or into is self._said

        return read
