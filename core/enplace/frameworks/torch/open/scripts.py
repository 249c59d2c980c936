"""Training scripts: run unchanged; steps of their optimisers are recorded and timed.

A step is a round of all the optimisers of a script; a GAN has several. The second step is
recorded, so that a short script is enough; then plain steps are timed, and the step is recorded
some more times for the times of its ops.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import chain, islice
from multiprocessing.process import BaseProcess
from typing import Any, Protocol
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch

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
from enplace.frameworks.torch.open.calls import REPORT_S, Calls, may_train
from enplace.frameworks.torch.open.rounds import PATIENCE, Rounds
from enplace.frameworks.torch.open.usual import Seen, UsualStep
from enplace.frameworks.torch.open.whole import check_whole, refuse_division, why_missing
from enplace.frameworks.torch.record.op_kinds import ALLOCATES, FREE
from enplace.frameworks.torch.record.recorder import NotRecordedError, check_hooks, parameters_of
from enplace.frameworks.torch.record.recording import (
    EnoughError,
    LoadError,
    Recorded,
    Recording,
    Wanted,
)
from enplace.frameworks.torch.record.timing import Clock, CpuClock, GpuClock
from enplace.frameworks.torch.record.variables import names_of
from enplace.frameworks.torch.step import Step
from enplace.processes.worker import Report
from enplace.text import listed
from enplace.values.op_kinds import OpPass


def record_script(source: Source, steps: int, warm_ups: int, report: Report) -> Recorded:
    """Run a script until its step is recorded and ``steps`` plain ones are timed.

    A script that ends earlier gives as many as it has. One that makes none gives a call of its
    model instead.

    Raises
    ------
    LoadError
        If it ends or fails before its second step, and calls no model.
    """
    check_hooks(*OF_STEPS)
    make_clock = _gpu_clock if torch.cuda.is_available() else CpuClock
    watch = Watch(source, make_clock, Wanted(steps, warm_ups, report))
    run_watched(source, watch)
    return watch.recorded()


class Watching(Protocol):
    """What follows the steps of a script, and may end it."""

    hint: str
    """What else helps a script that fails."""

    @property
    def has_step(self) -> bool:
        """Whether a failure of the script no longer matters."""
        ...

    def note_compiled(self) -> None:
        """Note that the script compiles something."""
        ...

    def hooked(self) -> AbstractContextManager[None]:
        """Follow steps within the block."""
        ...


FEW_OPS, MANY = 2000, 10
"""An estimate follows a script for ``FEW_OPS`` ops, as the script may soon replace its optimiser,
and for ``MANY`` times as many where steps may differ in their optimisers or backward passes."""

MOST_BACKWARD = 1000
"""No step adds up the gradients of more batches."""

MOST_NAMED = 8
"""The script's own names are looked up for so many optimisers: some have one for each weight."""

OF_STEPS = (
    "torch.optim.optimizer.register_optimizer_step_pre_hook",
    "torch.optim.optimizer.register_optimizer_step_post_hook",
)
"""What tells that a step is made."""

MEND = ContextVar("mend", default="correct the script")
"""What to do if a script fails."""


def run_watched(source: Source, watch: Watching) -> None:
    """Run a script with an eye on its optimisers.

    Raises
    ------
    LoadError
        If it fails before the watch has seen a step.
    """
    with refuse_division(source), watch.hooked(), without_compiler(watch.note_compiled):
        try:
            run_program(source)
        except EnoughError:
            pass
        except SystemExit as end:
            if end.code and not watch.has_step:
                raise LoadError(why_ended(source, end, watch.hint), printed=True) from None
        except BaseException as error:
            if isinstance(error, NotRecordedError):
                raise LoadError(f"{failed_line(source, error)}: {error}") from None
            if isinstance(error, EnplaceError):
                raise
            if is_out_of_memory(error):
                raise
            if not watch.has_step:
                if why := explain(error) or why_missing(error):
                    raise LoadError(f"{failed_line(source, error)}: {why}") from None
                mend = f"{MEND.get()}{watch.hint}"
                why = why_failed(source, error, first_line(error), mend)
                raise LoadError(why, True) from None


def _gpu_clock() -> GpuClock:
    return GpuClock(0)


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


class Watch(Rounds):
    """Follows the steps of a script's optimisers, and says when to record and when to time."""

    def __init__(self, source: Source, make_clock: Callable[[], Clock], wanted: Wanted) -> None:
        super().__init__()
        self._source, self._wanted = source, wanted
        self._forward = bool(source.options.get("forward"))
        self._ends = self._forward or not may_train(source)
        self._calls = Calls(source, make_clock(), wanted, self._ends)
        self._recording = Recording(make_clock(), lambda: current_line(source))
        self._clock = self._recording.clock
        self._usual = UsualStep(self._clock)
        self._names: WeakKeyDictionary[torch.optim.Optimizer, str] = WeakKeyDictionary()
        self._lacking: list[str] = []
        self._goes_back_at = ""
        self._trains = False
        self._plain, self._again = 0, -1
        self._report_at = 0.0
        self._is_compiled = self._starts_processes = False

    @property
    def has_step(self) -> bool:
        """Whether a step was recorded; nothing after that matters."""
        return self._usual.kept is not None

    def recorded(self) -> Recorded:
        """Return the step, or else a call of the model, and what was measured.

        Raises
        ------
        LoadError
            If the script had neither.
        """
        if (found := self._usual.kept) is not None:
            self._check_computes(found.step)
            shapes = found.step.batch_shapes
            timing = self._clock.timing(self._wanted.warm_ups, shapes, found.kind)
            names = {self.number_of(each): self._name_of(each) for each in self.optimizers}
            about = [*self._usual.about(names)]
            if self._lacking:
                about.append(
                    f"The recorded step is without {listed(self._lacking[:5])}, which made no "
                    f"step, or too few, within {PATIENCE} of the others."
                )
            return Recorded(found.step, timing, self._is_compiled, tuple(about))
        if self._calls.has_call and not self.n_backward:
            return self._calls.recorded(self._is_compiled)
        place = self._goes_back_at or os.path.basename(self._source.path)
        raise LoadError(f"{place}: {self._why_nothing()}")

    def _check_computes(self, step: Step) -> None:
        idle = ALLOCATES | FREE
        if all(e.is_view or e.kind in idle or e.pass_ == OpPass.UPDATE for e in step.ops):
            raise LoadError(
                f"{os.path.basename(self._source.path)}: its optimiser made steps, but PyTorch "
                f"dispatched nothing that they follow from; open a script whose model runs in "
                f"PyTorch{self.hint}"
            )

    def _name_optimizers(self) -> None:
        """Note, while they live, what the script calls its optimisers, and which are left out."""
        for each in islice(self.all_optimizers, MOST_NAMED):
            if each not in self._names:
                own = type(each).__name__
                self._names[each] = next((f"{own} ({name})" for name in names_of(each)), own)
        if (found := self._usual.kept) is not None:
            self._lacking = [*map(self._name_of, self.without(found.kind))]

    def _name_of(self, optimizer: torch.optim.Optimizer) -> str:
        return self._names.get(optimizer, type(optimizer).__name__)

    def _why_nothing(self) -> str:
        if self.n_seen:
            made = "it made only one step of its optimiser; let it make"
            if self.n_seen > 1:
                made = f"its {self.n_seen:,} optimisers made too few steps; let each make"
            return f"{made} at least two{self.hint}"
        if self.n_backward:
            return (
                "it makes gradients, but no optimiser of torch.optim makes a step; let one update "
                "the parameters, or record a forward pass alone with --forward"
            )
        if self._starts_processes:
            return (
                "it starts other processes, and Enplace records only the script's own: it ended "
                "without a step of an optimiser, and called no model; let the script call its "
                "function for training itself, on one device"
            )
        return (
            f"it ended without a step of an optimiser of torch.optim and called no model; open the "
            f"script that trains or serves one{self.hint}"
        )

    def note_compiled(self) -> None:
        """Note that the script compiles something."""
        self._is_compiled = True

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch every optimiser within the block."""
        with ExitStack() as stack:
            what = "no model was called" if self._forward else "no optimiser has made a step"
            self._wanted.report(f"Running the script: {what} yet", None)
            if not self._forward:
                self.hook_optimizers(stack)
            stack.enter_context(self._calls.hooked())
            start = patch.object(BaseProcess, "start", self._noted(BaseProcess.start))
            stack.enter_context(start)
            stack.callback(self._recording.stop)
            yield

    def _noted(self, usual: Any) -> Any:
        @wraps(usual)
        def start(process: BaseProcess) -> None:
            self._starts_processes = True
            usual(process)

        return start

    def go_backward(self, losses: torch.Tensor | Sequence[torch.Tensor]) -> None:
        self._goes_back_at = self._goes_back_at or current_line(self._source)
        if self.n_backward > MOST_BACKWARD and not self._trains and not self._ends:
            raise EnoughError  # no step will ever come

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._trains = True
        self._calls.forget()
        if self._recording.recorder is not None:
            self._recording.recorder.at.enter_optimizer(optimizer)

    def leave_optimizer(self) -> None:
        if self._recording.recorder is not None:
            self._recording.recorder.at.leave_optimizer()

    def begin_anew(self) -> None:
        self._check_whole()
        self._recording.stop()
        self._usual.begin_anew()
        self._plain, self._again = 0, -1
        self._name_optimizers()
        self._record()

    def end_round(self) -> None:
        """Decide what to do with the next step."""
        if was_plain := self._recording.recorder is None:
            shapes = self._recording.modules.batch_shapes()
            self._clock.end_plain(shapes, self.kind)
            self._usual.count(self.kind, shapes)
            self._plain += 1
            self._tell()
        else:
            self._usual.add(Seen(self._recording.end(self.optimizers), self.kind))
            self._check_whole()
            self._again += 1
        is_finished = self._is_finished()
        if is_finished or not was_plain:
            self._name_optimizers()
        if is_finished:
            self.stop()
        is_due = self._recording.is_due(self._plain, self._again, self._wanted.plain)
        if is_due or not self._usual.is_found:
            self._record()
            return
        self._recording.modules.see_batch()
        self._clock.begin_plain()

    def _tell(self) -> None:
        if time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT_S
        if self._plain < (most := self._wanted.plain):
            self._wanted.report(f"Measuring step {self._plain:,} of {most:,}", self._plain / most)
        elif self.awaits_another:
            self._wanted.report("Waiting for a step of another optimiser", None)

    def _is_finished(self) -> bool:
        if self.awaits_another or not self._usual.is_found:
            return False
        if not self._wanted.steps:  # only the graph is wanted
            assert self._usual.now is not None
            if self.n_ended < 2:
                return False  # the first may have what many scripts do once in a hundred steps
            seen = self.n_ended * len(self._usual.now.step.ops)
            may_differ = max(len(self.kind.numbers), self.kind.n_backward) > 1
            return seen >= FEW_OPS * (MANY if may_differ else 1) or self.n_ended >= PATIENCE
        return self._recording.is_finished(self._plain, self._again, self._wanted.plain)

    def _check_whole(self) -> None:
        roots = self._recording.modules.roots
        modules = (root.modules() for root in roots)
        check_whole(self._source, chain(*modules, parameters_of(self.optimizers)))

    def _record(self) -> None:
        self._wanted.report("Recording a step", None)
        self._recording.begin(self.optimizers)
