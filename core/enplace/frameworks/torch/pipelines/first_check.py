"""Call a model again, to see whether a tape of it gives the same for every micro-batch.

A tape has the calls of the first micro-batch. It misses what a model does by values that it reads
unseen, as in TorchScript, and what it counts or changes. So the model itself is called on each
micro-batch of its first step, too, and on all of them at once, in which samples must not meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from enplace.frameworks.torch.error_text import is_out_of_memory
from enplace.frameworks.torch.open.following import without_dropout
from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError, leaves_of, modes_now
from enplace.frameworks.torch.pipelines.loss_check import Losses, Rows
from enplace.frameworks.torch.pipelines.model_state import check_settled, outdate, state_of
from enplace.frameworks.torch.pipelines.tape import Tape
from enplace.frameworks.torch.run.kept import RandomNumbers
from enplace.text import percent

Buffers = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By their names, the buffers of a model, and copies of what they held."""

TOLERANCE, TOLERANCE_IN_16_BITS = 1e-3, 0.05
"""So much of what a model gives, in the mean, may be rounding."""


class ModelCall:
    """A call of a model in training, to be made again without gradients.

    Parameters
    ----------
    usual : callable
        Calls the model.
    args, kwargs
        With the whole batch.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        usual: Callable[..., Any],
        args: Any,
        kwargs: Any,
        device: torch.device,
    ) -> None:
        self._model, self._usual, self._given = model, usual, (args, kwargs)
        self._modes = replace(modes_now(device.type), has_gradients=False)
        self._random = RandomNumbers([device] if device.type == "cuda" else [])
        self._buffers = _buffers(model)

    def check(self, tape: Tape, loss: int, number: int) -> list[int]:
        """Compare what the model gives with what is on the tape, and losses with their mean.

        Parameters
        ----------
        loss : int
            The number of the loss on the tape.
        number : int
            Of micro-batches.

        Returns
        -------
        list of int
            The numbers of all losses that are means over samples.

        Raises
        ------
        PipelineRefusedError
            If they differ, or the model counts its calls or changes its buffers.
        """
        _check_buffers(self._model, self._buffers, may_replace=True)
        types = {dtype for call in tape.calls for _, dtype in call.shapes.values()}
        in_16_bits = types & {torch.float16, torch.bfloat16}
        tolerance = TOLERANCE_IN_16_BITS if in_16_bits else TOLERANCE
        losses = Losses(tape, loss)
        beside = self._beside(tape, losses, number, number, tolerance)
        state, buffers = state_of(self._model), _buffers(self._model)
        self._again(tape, _rows(tape, number, 0, 1))  # as before: what it keeps has settled
        settled = state_of(self._model)
        check_settled(state, settled)
        _check_buffers(self._model, buffers)
        for part in range(number):
            rows = _rows(tape, number, part, part + 1)
            with self._random.again():
                ours = tape.made_again(rows)
            theirs, _ = self._again(tape, rows)
            difference = _largest_difference(ours, theirs)
            if not difference <= tolerance:
                raise PipelineRefusedError(
                    f"the model gives something else for micro-batch {part + 1} than the calls "
                    f"that it made for the first, which a pipeline repeats for all (it differs by "
                    f"{percent(difference)}): it goes by what these calls do not show; run without "
                    f"a pipeline"
                )
        if not beside <= tolerance:
            raise PipelineRefusedError(
                f"what the model gives for a sample depends on other samples of its batch, as a "
                f"mean over them does (by {percent(beside)}), and a micro-batch has others; run "
                f"without a pipeline"
            )
        outdate(self._model, state, settled)
        losses.move_samples(number, self._random.again)
        torch.clear_autocast_cache()  # or else weights that are cast here have no gradients later
        return losses.means()

    def _beside(
        self, tape: Tape, losses: Losses, number: int, together: int, tolerance: float
    ) -> float:
        """Return how much results of micro-batches differ if some are ``together`` in one call."""
        worst, rows = 0.0, len(next(iter(tape.batch.values()))) // number
        try:
            with without_dropout():
                of_all = _rows(tape, number, 0, together)
                whole, drew = self._again(tape, of_all)
                each_alone = []
                for part in range(0 if drew else together):
                    own = _rows(tape, number, part, part + 1)
                    alone, _ = self._again(tape, own)
                    worst = max(worst, _from_whole(whole, alone, part, rows))
                    each_alone.append((alone, own))
        except RuntimeError as error:
            if not is_out_of_memory(error) or together <= 2:
                raise
            return self._beside(tape, losses, number, 2, tolerance)
        if each_alone:  # none where each call draws other numbers
            losses.compare((whole, of_all), each_alone, tolerance, self._random)
        return worst

    def _again(self, tape: Tape, rows: Rows) -> tuple[Sequence[Any], bool]:
        """Return what the model gives for some rows, and whether it drew random numbers."""
        part_of = {id(whole): rows[number] for number, whole in tape.batch.items()}
        args, kwargs = tree_map(lambda each: part_of.get(id(each), each), self._given)
        with self._random.again(), self._modes.again():
            return leaves_of(self._usual(*args, **kwargs)), self._random.have_moved()


def _rows(tape: Tape, number: int, first: int, last: int) -> Rows:
    """Return copies of the rows of some micro-batches, which a model may change."""
    found = {}
    for key, whole in tape.batch.items():
        rows = len(whole) // number
        found[key] = whole[first * rows : last * rows].clone()
    return found


def _from_whole(whole: Sequence[Any], alone: Sequence[Any], part: int, rows: int) -> float:
    """Return how far what has rows for a micro-batch is from these rows of several."""
    worst = 0.0
    for several, one in zip(whole, alone, strict=False):
        if not all(isinstance(each, torch.Tensor) and each.dim() for each in (several, one)):
            continue
        has_rows = several.shape[1:] == one.shape[1:] and len(several) >= (part + 1) * rows
        if len(one) == rows and has_rows:
            worst = max(worst, _difference(one, several[part * rows : (part + 1) * rows]))
    return worst


def _largest_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Return the largest difference of two tensors; infinite if they are no pairs."""
    if len(ours) != len(theirs):
        return float("inf")
    pairs = [(one, two) for one, two in zip(ours, theirs, strict=True) if one is not None]
    return max((_difference(one, two) for one, two in pairs), default=0.0)


def _difference(one: torch.Tensor, other: Any) -> float:
    """Return the root mean square of the difference, in proportion to that of the first."""
    if not isinstance(other, torch.Tensor) or one.shape != other.shape:
        return float("inf")
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if not (one.is_floating_point() and other.is_floating_point()):
        one, other = one.double(), other.double()
    apart = torch.where(one == other, 0.0, one - other).nan_to_num(0.0)  # both may be infinite
    return _size(apart) / max(_size(one.nan_to_num(0.0, 0.0, 0.0)), 1e-6)


def _size(tensor: torch.Tensor) -> float:
    wide = torch.promote_types(tensor.dtype, torch.float32)  # 16 bits would overflow
    norm = torch.linalg.vector_norm(tensor.detach(), dtype=wide)
    return float(norm) / math.sqrt(max(tensor.numel(), 1))


def _buffers(model: torch.nn.Module) -> Buffers:
    return {name: (each, each.detach().clone()) for name, each in model.named_buffers()}


def _check_buffers(model: torch.nn.Module, before: Buffers, may_replace: bool = False) -> None:
    """Refuse a model that has changed its buffers; at first, it ``may_replace`` them."""
    for name, each in model.named_buffers():
        was, held = before.get(name, (each, each))
        if may_replace and each is not was:
            continue
        is_same = each.shape == held.shape and ((each == held) | (each != each)).all()
        if not is_same:
            raise PipelineRefusedError(
                f"the model changes its buffer '{name}' in its forward pass, and each micro-batch "
                f"would change it; run without a pipeline"
            )
