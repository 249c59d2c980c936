"""Scripts that only serve: calls of their model are recorded and timed in place of steps.

No script says beforehand that it does not train. So the first calls are recorded anyway, and
forgotten as soon as an optimiser makes a step. A script whose text has no word of training ends
once its calls are recorded; another one runs to its end. Of several models, the largest counts, and
of its calls those that are like the second: a language model reads its prompt in the first one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.parameter import is_lazy

from enplace.errors import EnplaceError
from enplace.files.reading import read_bytes
from enplace.frameworks.programs import current_line
from enplace.frameworks.source import Source
from enplace.frameworks.torch.open.whole import check_whole
from enplace.frameworks.torch.record.modules import unwrapped
from enplace.frameworks.torch.record.recording import EnoughError, Recorded, Recording, Wanted
from enplace.frameworks.torch.record.storages import shape_of, tensors_in
from enplace.frameworks.torch.record.timing import Clock
from enplace.frameworks.torch.step import Step
from enplace.text import listed

REPORT_S = 0.25
"""Progress is reported no more often: it would slow short steps down."""


_TRAINING = re.compile(r"\b(backward|optim\w*|train\w*|fit|Trainer|\w+Trainer)\b")


def may_train(source: Source) -> bool:
    """Return whether the text of a script has a word of training; a module may do anything."""
    if source.kind != "script":
        return True
    try:
        text = read_bytes(Path(source.path)).decode(errors="replace")
    except EnplaceError:
        return True
    return _TRAINING.search(text) is not None


class Calls:
    """Follows the outermost calls of a script's models."""

    def __init__(self, source: Source, clock: Clock, wanted: Wanted, ends: bool) -> None:
        self._source = source
        self._recording = Recording(clock, lambda: current_line(source))
        self._wanted, self._ends = wanted, ends
        self._hooks = ExitStack()
        self._names: dict[int, str] = {}
        self._model: torch.nn.Module | None = None
        self._size = self._calls = self._plain = self._again = 0
        self._step: Step | None = None
        self._of_call = 0
        self._shape: tuple[int, ...] = ()
        self._is_inside = False
        self._report_at = 0.0

    @property
    def has_call(self) -> bool:
        """Whether a call was recorded."""
        return self._step is not None

    def recorded(self, is_compiled: bool) -> Recorded:
        """Return the call that counts."""
        assert self._step is not None
        own = self._step.name
        others = [*dict.fromkeys(
            f"another {name}" if name == own else name
            for number, name in self._names.items() if number != id(self._model)
        )]  # fmt: skip
        about = [f"A forward pass of {self._step.name} was recorded: its call {self._of_call:,}."]
        if others:
            about.append(f"Calls of {listed(others[:5])} are not in it.")
        timing = self._recording.clock.timing(self._wanted.warm_ups)
        return Recorded(self._step, timing, is_compiled, tuple(about))

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Follow calls within the block."""
        with self._hooks:
            call = self._followed(torch.nn.Module.__call__)
            self._hooks.enter_context(patch.object(torch.nn.Module, "__call__", call))
            yield

    def forget(self) -> None:
        """Follow no calls any more: the script trains."""
        self._hooks.close()
        self._recording.stop()
        self._step = None

    def _followed(self, usual: Any) -> Any:
        @wraps(usual)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or not (size := _size_of(module)):
                return usual(module, *args, **kwargs)
            self._is_inside = True
            try:
                with self._watched(module, size, _shape_of((args, kwargs))):
                    return usual(module, *args, **kwargs)
            finally:
                self._is_inside = False

        return call

    @contextmanager
    def _watched(
        self, module: torch.nn.Module, size: int, shape: tuple[int, ...]
    ) -> Iterator[None]:
        """Record or time a call, or let it run."""
        self._names[id(module)] = type(unwrapped(module)).__name__
        if size > self._size:
            self._model, self._size, self._step = module, size, None
            self._calls = self._plain = self._again = 0
            check_whole(self._source, chain(module.modules(), module.parameters()))
        if module is not self._model:
            yield
            return
        self._calls += 1
        self._tell()
        if self._calls <= 2:
            self._shape = shape
            with self._recorded_here():
                yield
        elif shape != self._shape or self._is_finished():
            yield
        elif self._recording.is_due(self._plain, self._again, self._wanted.plain):
            self._again += 1
            with self._recorded_here():
                yield
        else:
            self._recording.clock.begin_plain()
            yield
            self._recording.clock.end_plain()
            self._plain += 1
        if self._ends and self._is_finished():
            raise EnoughError

    @contextmanager
    def _recorded_here(self) -> Iterator[None]:
        if self._calls == 2 and self._step is not None:
            self._recording.clock.forget()  # the first call may be of another length
        self._recording.begin()
        try:
            yield
            self._step, self._of_call = self._recording.end(), self._calls
        finally:
            self._recording.stop()

    def _is_finished(self) -> bool:
        if not self._wanted.steps:
            return self._calls >= 2
        return self._recording.is_finished(self._plain, self._again, self._wanted.plain)

    def _tell(self) -> None:
        if time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT_S
        waiting = "" if self._ends else "Waiting for a step of an optimiser: "
        calls = f"call {self._calls:,} of {type(self._model).__name__}"
        self._wanted.report(f"{waiting}{calls}", None)


def _size_of(module: torch.nn.Module) -> int:
    """Return how many numbers a model learns; 0 if it is none, or does not know yet."""
    return sum(0 if is_lazy(each) else each.numel() for each in module.parameters())


def _shape_of(given: Any) -> tuple[int, ...]:
    """Return the shape by which calls are alike; a mask grows with each word, but few others do."""
    shapes = map(shape_of, tensors_in(given))
    return min(shapes, key=lambda each: torch.Size(each).numel(), default=())
