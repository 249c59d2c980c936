"""What a person reads while a command works."""

import io
import os
import re
import signal
import sys
import threading

import numpy as np
import pytest
from numba import njit

from enplace.cli import progress


class Bar:
    """Records the texts of a bar."""

    def __init__(self):
        self.texts = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def set_description_str(self, text):
        self.texts.append(text)


def test_a_command_says_that_it_compiles(monkeypatch):
    bar = Bar()
    monkeypatch.setattr(progress, "_bar", lambda total, delay_s: bar)

    @progress.compiling_bar()
    def work():
        return njit(lambda x: x + 1)(np.int64(1))

    assert work() == 2
    assert bar.texts == ["Compiling, once after installation"]
    with progress.compiling_bar():
        pass
    assert len(bar.texts) == 1


class Log(io.StringIO):
    """A stderr that is not a terminal; ``written`` is set with its second line."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def write(self, text):
        super().write(text)
        if self.getvalue().count("\n") > 1:
            self.written.set()
        return len(text)


def test_a_log_gets_lines_of_progress_even_if_the_work_reports_nothing_new(monkeypatch):
    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    with progress.work_bar() as report:
        for words, share in (("Measuring steps", 0.4), ("Reading the trace", None)):
            report(words, share)
            for _ in range(2):  # the first line may have been made before
                log.written.clear()
                assert log.written.wait(60)
    text = log.getvalue()
    assert re.search(r"^enplace: Measuring steps, 40 %, 0\.\d s$", text, re.MULTILINE)
    assert re.search(r"^enplace: Reading the trace, 0\.\d s$", text, re.MULTILINE)


def test_a_short_command_writes_no_progress_to_a_log(monkeypatch):
    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    with progress.progress_bar(1) as (begin, _):
        begin("heft")
    assert not log.getvalue()


def test_ctrl_c_is_noticed_without_its_handler():
    usual = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with progress.ctrl_c_in_native_code() as pressed:
            assert not pressed()
            os.kill(os.getpid(), signal.SIGINT)
            assert pressed()
    finally:
        signal.signal(signal.SIGINT, usual)


def test_once_a_job_is_stopped_nothing_more_is_compiled(monkeypatch):
    class EndedError(Exception):
        """Instead of the end of the process."""

    def end():
        raise EndedError

    monkeypatch.setattr(progress, "end_at_once", end)
    stopped = threading.Event()
    with progress.ended_in_compiler(stopped.is_set):
        assert njit(lambda x: x + 2)(np.int64(1)) == 3
        stopped.set()
        with pytest.raises(EndedError):
            njit(lambda x: x + 3)(np.int64(1))
