"""See whether a loss is a mean over samples: a pipeline takes the mean of its micro-batches.

In a mean, each sample counts by itself. So the losses of all micro-batches add up to the same if
half of the samples of each move on to the next one. The root of a mean, a product of two means or
a loss that compares samples with each other adds up to something else. Samples keep their places in
their micro-batch, and with them their rounding and their random numbers.

A sum passes that. But the loss of a whole batch is the mean of those of its micro-batches, if what
the script calls after its model takes more rows than the tape was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from enplace.frameworks.torch.error_text import first_line, is_out_of_memory
from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError, found_for
from enplace.frameworks.torch.pipelines.tape import Tape
from enplace.frameworks.torch.run.kept import RandomNumbers
from enplace.values.profile import FloatArray

Rows = Mapping[int, torch.Tensor]
"""Some rows of each part of a batch, by its number."""

SUM, SUM_IN_16_BITS = 1e-6, 1e-2
"""So much of a sum of losses may be rounding."""

MOVED, MOVED_IN_16_BITS = 1e-4, 0.1
"""So much of what moving samples changes may be rounding as well: where large terms cancel out, a
loss is small, and its rounding is not."""


class Losses:
    """The loss of a step, and the other losses that its script may read.

    Parameters
    ----------
    loss : int
        The number of the loss on the tape; those of the others are ``tape.parts_of_loss``.
    """

    def __init__(self, tape: Tape, loss: int) -> None:
        self._tape = tape
        self._numbers = [loss, *(each for each in tape.parts_of_loss if each != loss)]
        self._is_mean = np.ones(len(self._numbers), dtype=bool)
        made = {number for call in tape.calls_for([loss]) for number in call.numbers}
        self._leads_to_loss = np.array([number in made for number in self._numbers])
        self._adds_up = self._is_mean.copy()
        calls = tape.calls_for(self._numbers)
        self._targets = [call.targets for call in calls if call.targets is not None]
        types = {dtype for call in calls for shape, dtype in call.shapes.values() if not shape}
        self._in_16_bits = bool(types & {torch.float16, torch.bfloat16})

    def means(self) -> list[int]:
        """Return the numbers of all that are means over samples, as far as was seen.

        Raises
        ------
        PipelineRefusedError
            If the loss is none.
        """
        if not (self._is_mean[0] and self._adds_up[self._leads_to_loss].all()):
            raise PipelineRefusedError(
                "the loss is no mean over samples: that of a batch is not the mean of those of its "
                "micro-batches, as with a root or a product of means, or where samples are "
                "compared with each other; let it be a mean over samples, or run without a pipeline"
            )
        is_known = self._is_mean & self._adds_up
        return [n for n, is_mean in zip(self._numbers, is_known, strict=True) if is_mean]

    def move_samples(self, number: int, again: Callable[[], AbstractContextManager[None]]) -> None:
        """Let samples move on to the next micro-batch.

        Parameters
        ----------
        number : int
            Of micro-batches.
        again : callable
            Makes a context with the random numbers of the first micro-batch.

        Raises
        ------
        PipelineRefusedError
            If the loss cannot be taken of each micro-batch.
        """
        parts = {key: each.unflatten(0, (number, -1)) for key, each in self._tape.batch.items()}
        half = len(next(iter(parts.values()))[0]) // 2
        moved = {key: each.clone() for key, each in parts.items()}
        for each in moved.values():
            each[:, :half] = each[:, :half].roll(1, 0)

        def losses(of: Rows) -> Iterator[FloatArray]:
            for part in range(number):
                with again():
                    yield self._losses({key: each[part].clone() for key, each in of.items()})

        alone: list[FloatArray] = []
        try:
            alone.extend(losses(parts))
        except (RuntimeError, IndexError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise PipelineRefusedError(
                f"the loss of micro-batch {len(alone) + 1} cannot be taken as that of the first "
                f"was: {first_line(error)}; let it be a mean over samples, which does not go by "
                f"their places in the batch, or run without a pipeline"
            ) from None
        try:
            found = np.array([*losses(moved)])
        except PipelineRefusedError:
            return  # they read other values than were seen on the tape
        n, before = len(self._numbers), np.array(alone)
        if np.ptp(before[:, n:], axis=0).any():
            return  # each step refuses micro-batches that leave out unlike many targets
        apart = np.abs(found.sum(axis=0) - before.sum(axis=0))[:n]
        size, change = np.abs(before).sum(axis=0)[:n], np.abs(found - before).sum(axis=0)[:n]
        rounding = SUM * size + MOVED * change
        if self._in_16_bits:
            rounding = SUM_IN_16_BITS * size + MOVED_IN_16_BITS * change
        self._adds_up = ~(apart > rounding)

    def compare(
        self,
        whole: tuple[Sequence[Any], Rows],
        alone: Sequence[tuple[Sequence[Any], Rows]],
        tolerance: float,
        random: RandomNumbers,
    ) -> None:
        """Compare the losses of some micro-batches in one call of the model with those of each.

        Parameters
        ----------
        whole, alone
            What the model gave, and for which rows.
        tolerance : float
            So much of a loss may be rounding.
        random : RandomNumbers
            As they were before the model was called.
        """
        try:
            with random.again():
                together = self._losses(whole[1], whole[0], len(alone))
                mean = np.mean([self._losses(rows, out) for out, rows in alone], axis=0)
                if random.have_moved():
                    return  # each call draws other numbers
        except (RuntimeError, IndexError, ValueError, KeyError, PipelineRefusedError):
            return  # what the script calls is for as many samples as the first micro-batch has
        apart = np.abs(together - mean)[: len(self._numbers)]
        self._is_mean &= ~(apart > tolerance * np.abs(mean)[: len(self._numbers)])

    def _losses(self, rows: Rows, out: Sequence[Any] | None = None, times: int = 1) -> FloatArray:
        """Return the losses, and how many targets each leaves out.

        Parameters
        ----------
        out : sequence, optional
            What the model gave, so that it is not called on the tape.
        times : int
            How many times the rows of a micro-batch these are.
        """
        known = self._tape.known_again(self._numbers, rows, out, times)
        left_out = [(found_for(each, known, rows) == value).sum() for each, value in self._targets]
        return np.array([float(each) for each in (*(known[n] for n in self._numbers), *left_out)])
