"""Training scripts: run unchanged; steps of their optimisers are recorded and timed.

A step ends when the optimiser that was seen last has made its own: a script with several of them
(a GAN) makes its round in between. The second step is recorded, so that a short script is enough;
then plain steps are timed, and the step is recorded once more for the times of its ops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.optim import optimizer as hooks

from enplace.errors import EnplaceError
from enplace.frameworks.programs import (
    current_line,
    failed_line,
    run_program,
    why_ended,
    why_failed,
)
from enplace.frameworks.source import Source
from enplace.frameworks.torch.error_text import explain, first_line, is_out_of_memory
from enplace.frameworks.torch.modules import Modules
from enplace.frameworks.torch.recorder import Recorder, check_hooks
from enplace.frameworks.torch.step import Step, Timing
from enplace.frameworks.torch.timing import Clock, CpuClock, GpuClock
from enplace.processes.worker import Report

RECORDINGS = 3
"""How often a step on a CPU is recorded for its times; kernels of a GPU vary less."""

REPORT_S = 0.25
"""Progress is reported no more often: it would slow short steps down."""

_SHARDING = {
    "torch.distributed.fsdp": "FSDP",
    "torch.distributed._composable.fsdp": "FSDP",
    "torch.distributed.tensor": "tensor parallelism",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron",
}
"""Modules whose classes divide a model among processes, each of which sees only its part."""


class EnoughError(BaseException):
    """Ends the script, even through its own ``except Exception``."""


class LoadError(EnplaceError):
    """A script has no step that can be recorded. ``printed``: its output explains why."""

    def __init__(self, why: str, printed: bool = False) -> None:
        super().__init__(why)
        self.printed = printed


@dataclass(frozen=True)
class Recorded:
    """A step of a script, and what was measured of it."""

    step: Step
    timing: Timing
    is_compiled: bool = False


def record_script(source: Source, steps: int, warm_ups: int, report: Report) -> Recorded:
    """Run a script until its step is recorded and ``steps`` plain ones are timed.

    A script that ends earlier gives as many as it has.

    Raises
    ------
    LoadError
        If it ends or fails before its second step.
    """
    check_hooks()
    watch = Watch(source, _clock(), steps, warm_ups, report)
    run_watched(source, watch)
    return watch.recorded()


def run_watched(source: Source, watch: Watch) -> None:
    """Run a script with an eye on its optimisers.

    Raises
    ------
    LoadError
        If it fails before the watch has seen a step.
    """
    with watch.hooked(), without_compiler(watch.note_compiled):
        try:
            run_program(source)
        except EnoughError:
            pass
        except SystemExit as end:
            if not watch.has_step:
                raise LoadError(why_ended(source, end), printed=True) from None
        except BaseException as error:
            if isinstance(error, EnplaceError):
                raise
            if is_out_of_memory(error):
                raise
            if not watch.has_step:
                if why := explain(error):
                    raise LoadError(f"{failed_line(source, error)}: {why}") from None
                raise LoadError(why_failed(source, error, first_line(error)), True) from None


def _clock() -> CpuClock | GpuClock:
    return GpuClock(0) if torch.cuda.is_available() else CpuClock()


@contextmanager
def without_compiler(note: Callable[[], None]) -> Iterator[None]:
    """Run compiled functions op by op, as they are written; call ``note`` if there are any."""
    import torch._dynamo

    usual = torch.compile

    @wraps(usual)
    def compile_nothing(*args: Any, **kwargs: Any) -> Any:
        note()
        return usual(*args, **kwargs)

    off = patch.object(torch._dynamo.config, "disable", True)
    with off, patch.object(torch, "compile", compile_nothing):
        yield


class Watch:
    """Follows the steps of a script's optimisers, and says when to record and when to time."""

    def __init__(
        self, source: Source, clock: Clock, steps: int, warm_ups: int, report: Report
    ) -> None:
        self._source, self._clock, self._report = source, clock, report
        self._steps, self._warm_ups = steps, warm_ups
        self._modules = Modules()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._depth = 0
        self._recorder: Recorder | None = None
        self._recording = ExitStack()
        self._step: Step | None = None
        self._again = 0
        self._plain = -1
        self._report_at = 0.0
        self._is_done = self._is_compiled = False

    @property
    def has_step(self) -> bool:
        """Whether a step was recorded; nothing after that matters."""
        return self._step is not None

    def recorded(self) -> Recorded:
        """Return the step, and what was measured.

        Raises
        ------
        LoadError
            If the script had none.
        """
        if self._step is None:
            name = self._source.name
            why = (
                "it made only one step; let it make at least two"
                if self._optimizers
                else "it ended without a step of an optimiser of torch.optim; open the script "
                "that trains"
            )
            raise LoadError(f"{name}: {why}")
        timing = self._clock.timing(self._warm_ups)
        return Recorded(self._step, timing, self._is_compiled)

    def note_compiled(self) -> None:
        """Note that the script compiles something."""
        self._is_compiled = True

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch every optimiser within the block."""
        with ExitStack() as stack:
            for hook in (
                hooks.register_optimizer_step_pre_hook(self._begin),
                hooks.register_optimizer_step_post_hook(self._end),
            ):
                stack.callback(hook.remove)
            stack.callback(self._stop_recording)
            yield

    def _begin(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _wraps(optimizer):
            return
        self._depth += 1
        if self._recorder is not None and self._depth == 1:
            self._recorder.enter_optimizer(optimizer)

    def _end(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _wraps(optimizer):
            return
        self._depth -= 1
        if self._depth:
            return
        if self._recorder is not None:
            self._recorder.leave_optimizer()
        if self._is_done:
            raise EnoughError  # the script's own ``except:`` caught it
        if not any(each is optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)
            self._begin_anew()
        elif self._optimizers[-1] is optimizer:
            self._next()

    def _begin_anew(self) -> None:
        """Begin with this step: its round has one optimiser more than those before."""
        self._check_whole()
        self._stop_recording()
        self._step, self._plain = None, -1
        self._record()

    def _next(self) -> None:
        """A step has ended: decide what to do with the next one."""
        if self._recorder is None:
            self._time()
            return
        self._step = self._finish()
        self._check_whole()
        self._again += self._plain >= 0
        if self._is_finished():
            self._is_done = True
            raise EnoughError
        if self._plain < 0:
            self._plain = 0
            self._clock.begin_plain()
        else:
            self._record()

    def _time(self) -> None:
        """A plain step has ended."""
        self._plain += 1
        self._clock.end_plain()
        most = self._warm_ups + self._steps
        if time.monotonic() >= self._report_at:
            self._report_at = time.monotonic() + REPORT_S
            self._report(f"Measuring step {self._plain:,} of {most:,}", self._plain / most)
        if self._plain >= most:
            self._record()

    def _is_finished(self) -> bool:
        if not self._steps:
            return True  # only the graph is wanted
        wanted = 1 if isinstance(self._clock, GpuClock) else RECORDINGS
        return self._plain >= 0 and self._again >= wanted

    def _check_whole(self) -> None:
        """Refuse a model of which this process has only a part.

        Raises
        ------
        LoadError
            With what divides it.
        """
        kinds = [type(each) for root in self._modules.roots for each in root.modules()]
        groups = (group for each in self._optimizers for group in each.param_groups)
        kinds += [type(parameter) for group in groups for parameter in group["params"]]
        for kind in dict.fromkeys(kinds):
            name = next((n for m, n in _SHARDING.items() if kind.__module__.startswith(m)), "")
            if name:
                raise LoadError(
                    f"{current_line(self._source)}: the model is divided by {name} "
                    f"({kind.__name__}), and this process has only its part; profile the script "
                    f"without it, on one device"
                )

    def _record(self) -> None:
        self._report("Recording a step", None)
        self._recorder = Recorder(self._modules, self._clock)
        self._recorder.know_model(self._optimizers)
        self._clock.start()
        self._recording.enter_context(self._modules)
        self._recording.enter_context(self._recorder)

    def _finish(self) -> Step:
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        self._recording.close()
        self._clock.stop()
        return recorder.finish(self._modules.name, self._optimizers)

    def _stop_recording(self) -> None:
        if self._recorder is not None:
            self._finish()


def _wraps(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser only calls another, as that of accelerate does."""
    return isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer)
