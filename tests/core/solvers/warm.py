"""Solver processes that stay: starting one takes longer than to solve a tiny problem.

For properties of programs and plans over many drawn problems. Limits, cancelling and crashes have
tests of their own, with processes as users have them. Solvers cannot run in the test's own process:
OR-Tools and highspy each contain HiGHS, and whichever is loaded second gives wrong answers.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NoReturn

import pytest

from enplace.processes import main
from enplace.processes.wire import DONE, Message, encode, read
from enplace.processes.worker import WorkerProgram


def serve() -> NoReturn:
    """Do one job after another, until the process that started this one ends."""
    module, _, function = sys.argv[1].partition(":")
    handler = getattr(importlib.import_module(module), function)
    connection = main.Connection(*main._claim_streams())
    while True:
        connection.send(handler(connection))


@cache
def _start(handler: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, handler]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _converse(program: WorkerProgram, messages: Iterable[Message], *_: object) -> Iterator[Message]:
    """Stand in for :func:`enplace.processes.worker.converse`."""
    worker = _start(program.command[-1])
    assert worker.stdin is not None
    assert worker.stdout is not None
    for message in messages:
        worker.stdin.write(encode(message))
    worker.stdin.flush()
    answers = []
    while not answers or answers[-1].do != DONE:
        answer = read(worker.stdout)
        assert answer is not None, "the solver crashed"
        answers.append(answer)
    yield from answers


@contextmanager
def warm_solvers() -> Iterator[None]:
    """Have solvers run in processes that stay until the tests end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enplace.solvers.ask_solver.converse", _converse)
        yield


if __name__ == "__main__":
    serve()
