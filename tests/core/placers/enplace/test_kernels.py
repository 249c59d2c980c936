"""Compiling ahead of time: two processes share the steps and report progress."""

from types import SimpleNamespace

import pytest
from numba.core import event

from enplace.machine import simulate
from enplace.placers.enplace import kernels


def compile_one(problem):
    """Notify numba's listeners that a kernel is being compiled."""
    with event.trigger_event(
        "numba:compile", data={"dispatcher": SimpleNamespace(py_func=simulate)}
    ):
        pass


def load_nothing(problem):
    """Compile nothing, as if all kernels were in the cache."""


class Helper:
    """A process that has ended."""

    over = True

    def receive(self):
        return []

    def stop(self, grace_s):
        pass


@pytest.fixture
def compilation():
    return kernels._Compilation()


@pytest.fixture
def helpers(monkeypatch):
    """Folders of the started helpers, each of which has finished the last step."""
    started = []

    def start(folder):
        claims = kernels._Claims(kernels.Path(folder))
        last = list(kernels.STEPS)[-1]
        assert claims.claim(last)
        claims.finish(last)
        started.append(folder)
        return Helper()

    monkeypatch.setattr(kernels, "_start_helper", start)
    monkeypatch.setattr(kernels, "count_cores", lambda: 2)
    return started


def test_a_step_can_be_claimed_once(tmp_path):
    one, other = kernels._Claims(tmp_path), kernels._Claims(tmp_path)
    assert one.claim("simulate")
    assert not other.claim("simulate")
    assert not other.is_finished("simulate")
    one.finish("simulate")
    assert other.is_finished("simulate")


def test_with_all_kernels_cached_nothing_is_started_or_reported(monkeypatch, compilation, helpers):
    monkeypatch.setattr(kernels, "STEPS", {"first": load_nothing, "second": load_nothing})
    reports = []
    for step in kernels.STEPS:
        compilation.load(step, reports.append)
    assert (reports, helpers) == ([], [])


def test_the_first_kernel_to_compile_starts_one_helper(monkeypatch, compilation, helpers):
    steps = {
        "first": load_nothing,
        "second": compile_one,
        "third": compile_one,
        "last": compile_one,
    }
    monkeypatch.setattr(kernels, "STEPS", steps)
    reports = []
    for step in steps:
        compilation.load(step, reports.append)
    assert len(helpers) == 1
    shown = ["2 of 4 parts, 1 function", "3 of 4 parts, 1 function", "3 of 4 parts, 2 functions"]
    head = "Compiling, once after installation: "
    assert list(dict.fromkeys(reports))[:3] == [head + each for each in shown]


def test_a_step_claimed_by_a_dead_helper_is_compiled_here(monkeypatch, compilation, helpers):
    ran = []
    steps = {"first": compile_one, "second": lambda problem: ran.append(problem)}
    monkeypatch.setattr(kernels, "STEPS", steps)
    monkeypatch.setattr(kernels._Claims, "finish", lambda self, step: None)
    for step in steps:
        compilation.load(step, lambda message: None)
    assert len(ran) == 1
