"""Start Python programs by forking this process: what it has imported need not be imported again.

A worker that starts anew spends a second or more on imports, and most tests of what workers say do
not care. Tests of starting, isolation and imports start workers as users have them.
"""

from __future__ import annotations

import atexit
import faulthandler
import io
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import pytest

from enplace.processes import worker
from enplace.processes.child import ON_LINUX, Child, start_child

IGNORED_OPTIONS = ("-P",)


def fork_workers(monkeypatch: pytest.MonkeyPatch, nested: bool = False) -> None:
    """Have workers forked from this process until the test ends; they inherit its patches too.

    If ``nested``, the workers that these start are forked as well.
    """
    start = partial(start_forked, nested=nested)
    monkeypatch.setattr("enplace.processes.worker.start_child", start)


def start_forked(command: Sequence[str], environment: Mapping[str, str], nested: bool) -> Child:
    """Stand in for :func:`enplace.processes.child.start_child`."""
    if not ON_LINUX or command[0] != sys.executable:
        return start_child(command, environment)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", partial(popen_fork, subprocess.Popen, nested=nested))
        return start_child(command, environment)


def popen_fork(
    start: Callable[..., subprocess.Popen[bytes]],
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    nested: bool = False,
    pass_fds: tuple[int, ...] = (),
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Stand in for ``start``, which is ``subprocess.Popen``, where the command runs Python."""

    def become() -> NoReturn:
        subprocess.Popen = start  # type: ignore[assignment,misc]
        if not nested:
            worker.start_child = start_child  # what is forked starts processes as usual
        _close_all_but(pass_fds)
        _forget_signal_handlers()
        sys.excepthook = sys.__excepthook__  # not the one of the tests of windows
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        _run(command[1:])

    return start(command, pass_fds=pass_fds, preexec_fn=become, **options)


def run_fork(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Stand in for :func:`subprocess.run`, where the command runs Python."""
    with pytest.MonkeyPatch.context() as patch:
        fork = partial(popen_fork, subprocess.Popen, env=os.environ.copy())
        patch.setattr(subprocess, "Popen", fork)
        return subprocess.run(command, **options)


def _close_all_but(kept: tuple[int, ...]) -> None:
    """Close what the child would not have inherited; the end of one pipe says that it runs."""
    first = 3
    for kept_one in sorted(kept):
        os.closerange(first, kept_one)
        first = kept_one + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _forget_signal_handlers() -> None:
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(words: Sequence[str]) -> NoReturn:
    """Do what Python does with these words, and end the process."""
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, mode, closefd=False), line_buffering=number == 2)
        for number, mode in enumerate(("rb", "wb", "wb"))
    )

    def run() -> None:
        kind, *rest = (word for word in words if word not in IGNORED_OPTIONS)
        if kind == "-m":
            sys.argv = rest
            sys.modules.pop(rest[0], None)  # else Python warns that it runs what is imported
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(rest[0], {"__name__": "__main__"})
        else:
            sys.argv = [kind, *rest]
            runpy.run_path(kind, run_name="__main__")

    atexit._clear()  # what the process that runs the tests has left for its own exit
    end_after(run, atexit._run_exitfuncs)


def end_after(run: Callable[[], object], at_exit: Callable[[], object] = lambda: None) -> NoReturn:
    """Run a program and what it left for its exit; end the process with the program's status."""
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # its script may have one of its own
    finally:
        at_exit()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
