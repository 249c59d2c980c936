"""Progress on stderr, as a bar on a terminal and as lines elsewhere; and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from enplace.cli.answer import INTERRUPTED, INTERRUPTED_LINE
from enplace.text import ms, seconds

if TYPE_CHECKING:
    from tqdm import tqdm

    from enplace.frameworks.source import Source
    from enplace.placers import Progress


_FORM = "{desc}  |{bar:24}| {elapsed}"

EVERY_S = 5.0
"""Time between two lines of progress where stderr is not a terminal."""


@contextmanager
def progress_bar(
    methods: int,
) -> Iterator[tuple[Callable[[str], None], Callable[[Progress], None]]]:
    """Show a bar for some methods; after the last of them, it begins anew.

    Returns
    -------
    begin, report : callables
        ``begin(name)`` starts a method; placers call ``report`` with their progress.
    """
    done = -1

    def begin(name: str) -> None:
        nonlocal done
        done = (done + 1) % methods
        bar.n = done
        bar.set_description_str(name)

    def report(progress: Progress) -> None:
        best = f", {ms(progress.objective_us)}" if progress.objective_us else ""
        best += "" if progress.fits else ", does not fit yet"
        if progress.fraction is not None:  # a better plan does not show how far the search is
            bar.n = max(done, 0) + progress.fraction
        bar.set_description_str(f"{progress.message}{best}")

    with _bar(methods) as bar:
        yield begin, report


@contextmanager
def work_bar() -> Iterator[Callable[[str, float | None], None]]:
    """Show a bar for one job in a worker; yield the function that receives its progress."""
    with _bar(1) as bar:

        def report(message: str, fraction: float | None) -> None:
            bar.n = fraction or 0.0  # how far the part before had come says nothing of this one
            bar.set_description_str(message)

        yield report


@contextmanager
def compiling_bar() -> Iterator[None]:
    """Say so if kernels are compiled for more than a moment; also a decorator."""
    from enplace.placing.stopwatch import Stopwatch

    def report() -> None:
        bar.set_description_str("Compiling, once after installation")

    with _bar(1, delay_s=1) as bar, Stopwatch().paused_by_compiler(report):
        yield


@contextmanager
def written_told(source: Source) -> Iterator[Callable[[Sequence[str]], None]]:
    """Say at the end which files a model's code would have changed; warn if it might change them.

    Yields the function that receives them, from each start of that code.
    """
    from enplace.frameworks.jobs import about_written, warning_before

    if warning := warning_before(source):
        click.echo(f"enplace: {warning}", err=True)
    written: set[str] = set()
    yield written.update
    if written:
        click.echo(f"enplace: {about_written(source.name, written)}", err=True)


def _bar(total: float, delay_s: float = 0) -> tqdm[Any] | _Lines:
    """Make a bar that disappears when it ends; where stderr is not a terminal, lines."""
    if sys.stderr is None or not sys.stderr.isatty():
        return _Lines(total)
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # its thread would outlive a short command
    return tqdm(total=total, leave=False, bar_format=_FORM, delay=delay_s)


class _Lines:
    """Stands in for a bar: every few seconds a line says what is being done.

    A thread writes them, so that work which reports nothing for a minute is not silent.
    """

    def __init__(self, total: float) -> None:
        self.n = 0.0
        self._total = total
        self._text = ""
        self._began_s = time.monotonic()
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> _Lines:
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._writer.join()

    def set_description_str(self, text: str) -> None:
        self._text = text

    def _write(self) -> None:
        with suppress(OSError):  # nobody reads stderr any more
            while not self._ended.wait(EVERY_S):
                share = f", {100 * self.n / self._total:.0f} %" if self.n else ""
                took = seconds(time.monotonic() - self._began_s)
                click.echo(f"enplace: {self._text or 'working'}{share}, {took}", err=True)


@contextmanager
def stopped_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C end a job in its own way, such as with its best plan; a second one ends all.

    Yields a function that returns whether it was pressed.
    """
    pressed = threading.Event()

    def on_interrupt(*_: object) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    usual = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, usual)


@contextmanager
def ctrl_c_in_native_code() -> Iterator[Callable[[], bool]]:
    """Notice Ctrl-C in other threads while the main one is in native code, such as a compiler.

    No handler runs before that returns. Yields a function that returns whether it was pressed.
    """
    import socket

    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def is_pressed() -> bool:
        with suppress(BlockingIOError):
            if signal.SIGINT in reader.recv(64):
                pressed.set()
        return pressed.is_set()

    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        usual = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield is_pressed
        finally:
            signal.set_wakeup_fd(usual)


def end_at_once(*_: object) -> NoReturn:
    """End this process on Ctrl-C: numba would take an exception in its code for a fault of its."""
    from enplace.placers.enplace.kernels import stop_compiling

    stop_compiling()
    print(INTERRUPTED_LINE, file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


@contextmanager
def ended_in_compiler(stopped: Callable[[], bool]) -> Iterator[None]:
    """End this process before the next function is compiled, once a job is stopped."""
    from enplace.compiling import watch_compiler

    def begin(_: str) -> None:
        if stopped():
            end_at_once()

    with watch_compiler(begin):
        yield
