"""One recording after another, by the same names of modules and the same clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from enplace.errors import EnplaceError
from enplace.frameworks.torch.record.modules import Modules
from enplace.frameworks.torch.record.recorder import Recorder
from enplace.frameworks.torch.record.timing import Clock, GpuClock
from enplace.frameworks.torch.step import Step, Timing
from enplace.processes.worker import Report

RECORDINGS = 3
"""How often a step on a CPU is recorded for its times, besides the first time; kernels of a GPU
vary less."""


class EnoughError(BaseException):
    """Ends the script, even through its own ``except Exception``."""


class LoadError(EnplaceError):
    """A script has no step that can be recorded. ``printed``: its output explains why."""

    def __init__(self, why: str, printed: bool = False) -> None:
        super().__init__(why)
        self.printed = printed


@dataclass(frozen=True)
class Recorded:
    """A step of a script, or a call of its model, and what was measured of it.

    Attributes
    ----------
    about : tuple of str
        Sentences for people: what was recorded, if it is no training step.
    """

    step: Step
    timing: Timing
    is_compiled: bool = False
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """How many plain steps to time, after how many others; without any, only the graph counts."""

    steps: int
    warm_ups: int
    report: Report

    @property
    def plain(self) -> int:
        """All plain steps."""
        return self.steps + self.warm_ups


class Recording:
    """Turns the recorder on and off; ``line`` names the line of the script that is running."""

    def __init__(self, clock: Clock, line: Callable[[], str] = str) -> None:
        self.modules, self.clock, self._line = Modules(), clock, line
        self.recorder: Recorder | None = None
        self._stack, self._thread = ExitStack(), 0

    def is_due(self, plain: int, again: int, wanted: int) -> bool:
        """Return whether the next step is to be recorded for the times of ops.

        On a CPU every other step is, so that a script that ends early gives several recordings,
        too; a GPU times plain steps without a break first.

        Parameters
        ----------
        plain, again : int
            Plain steps that were timed, and steps that were recorded again.
        wanted : int
            Plain steps to time.
        """
        if isinstance(self.clock, GpuClock):
            return not again and plain >= wanted
        return again < RECORDINGS and plain >= min(again + 1, wanted)

    def is_finished(self, plain: int, again: int, wanted: int) -> bool:
        """Return whether all is measured."""
        repeats = 1 if isinstance(self.clock, GpuClock) else RECORDINGS
        return plain >= wanted and again >= repeats

    def begin(self, optimizers: Sequence[torch.optim.Optimizer] = ()) -> None:
        """Record from here."""
        self.recorder = Recorder(self.modules, self.clock, self._line)
        self._thread = threading.get_ident()
        self.recorder.know_model(optimizers)
        self.clock.start()
        self._stack.enter_context(self.modules)
        self._stack.enter_context(self.recorder)

    def end(self, optimizers: Sequence[torch.optim.Optimizer] = ()) -> Step:
        """Record no longer, and return what was recorded."""
        recorder, self.recorder = self.recorder, None
        assert recorder is not None
        self._stack.close()
        self.clock.stop()
        return recorder.finish(self.modules.name, optimizers)

    def stop(self) -> None:
        """Record no longer, if at all; what was recorded does not matter."""
        self.modules.close()
        if self.recorder is not None and threading.get_ident() != self._thread:
            self.recorder = None  # a mode is its thread's, which has ended
            self._stack.pop_all()
        elif self.recorder is not None:
            self.end()
            self.clock.forget()
