"""How long the stages of a process compute, and for how many micro-batches they hold tensors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from enplace.frameworks.torch.pipelines.again import MadeAgain
from enplace.frameworks.torch.pipelines.stages import StageModule

_Span = tuple[Any, Any]
"""When something begins and ends, as :meth:`StageTimes._clock` says it."""


class StageTimes:
    """The times of each step, in the process of some stages.

    Attributes
    ----------
    passes_us : list of list of float
        How long this process computed in each step, forward and backward.
    step_us : list of float
        How long the step of the schedule took.
    in_flight : int
        The most micro-batches at a time that had gone forward here and were not done backward.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.passes_us: list[list[float]] = []
        self.step_us: list[float] = []
        self.in_flight = 0
        self._spans: tuple[list[_Span], list[_Span]] = [], []
        self._flying: Counter[int] = Counter()
        self._begun = 0.0

    @property
    def busy_us(self) -> list[float]:
        """How long this process computed in each step."""
        return [sum(each) for each in self.passes_us]

    def begin_step(self) -> None:
        """Note that a step of the schedule begins."""
        self._spans = [], []
        self._flying.clear()
        self._begun = time.perf_counter()

    def end_step(self) -> None:
        """Note that it has ended."""
        self.passes_us.append(self._computed_us())
        self.step_us.append((time.perf_counter() - self._begun) * 1e6)

    def timed(
        self, usual: Callable[..., Any], again: MadeAgain, begins: StageModule | None
    ) -> Callable[..., Any]:
        """Time a function of a stage: the one that goes forward if it ``begins`` a module.

        A micro-batch is held from its forward pass until all its gradients are done, also those of
        weights if they come later; so is what was made again.
        """

        @wraps(usual)
        def timed(microbatch: int, *args: Any, **kwargs: Any) -> Any:
            if begins is not None:
                begins.has_begun = True
            again.begin()
            begun = self._clock()
            out = usual(microbatch, *args, **kwargs)
            self._spans[begins is None].append((begun, self._clock()))
            is_over = begins is None and bool(kwargs.get("full_backward", True))
            self._flying[microbatch] += (begins is not None) - is_over
            self.in_flight = max(self.in_flight, sum(each > 0 for each in self._flying.values()))
            again.end(microbatch, is_over=is_over)
            return out

        return timed

    def _clock(self) -> Any:
        """Return the time; on a card, an event that will have it."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _computed_us(self) -> list[float]:
        """Return how long this process computed in the step, forward and backward."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return [sum(a.elapsed_time(b) for a, b in spans) * 1e3 for spans in self._spans]
        return [sum(b - a for a, b in spans) * 1e6 for spans in self._spans]
