"""Run a stage again on its way back, so that a micro-batch in flight keeps only what the stage got.

It is what ``torch.utils.checkpoint`` does, but a zero-bubble schedule goes backward through a stage
many times: once for its input, then for each of its layers. That would run the stage again each
time; here it runs again once for each micro-batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from enplace.frameworks.torch.run.kept import RandomNumbers


class MadeAgain:
    """What a stage made again, until all gradients of its micro-batch are there.

    PyTorch holds parts of a graph until the next micro-batch, and would hold this as well.
    """

    def __init__(self) -> None:
        self._new: list[RunAgain] = []
        self._known: dict[int, list[RunAgain]] = defaultdict(list)

    def add(self, made: RunAgain) -> None:
        """Note what the function that runs now has made again."""
        self._new.append(made)

    def begin(self) -> None:
        """Begin a function of a micro-batch; what came before was to see shapes."""
        self._new.clear()

    def end(self, microbatch: int, *, is_over: bool) -> None:
        """End it; ``is_over`` says whether all gradients are there."""
        self._known[microbatch] += self._new
        for each in self._known.pop(microbatch) if is_over else ():
            each.forget()


class RunAgain:
    """A call that keeps nothing for its gradients, and is made again when they are taken.

    Random numbers are drawn again as they were.

    Parameters
    ----------
    call : callable
        What to call; it makes the same tensors each time.
    device : torch.device
        Whose random numbers it draws, besides those of the CPU.
    held : MadeAgain, optional
        Is told what was made again if gradients are taken several times. Otherwise each tensor is
        needed once.
    """

    def __init__(
        self, call: Callable[[], Any], device: torch.device, held: MadeAgain | None = None
    ) -> None:
        self._call, self._held = call, held
        self._random = RandomNumbers([device] if device.type == "cuda" else [])
        self._n = 0
        self._made: dict[int, torch.Tensor] | None = None

    def first(self) -> Any:
        """Make the call for the first time."""
        with saved_tensors_hooks(self._count, self._take):
            return self._call()

    def _count(self, tensor: torch.Tensor) -> int:
        self._n += 1
        return self._n - 1

    def _take(self, number: int) -> torch.Tensor:
        """Return a tensor that was not kept; autograd holds this object as long as it may ask."""
        if self._made is None:
            self._made = self._make_again()
            if self._held is not None:
                self._held.add(self)
        return self._made.pop(number) if self._held is None else self._made[number]

    def forget(self) -> None:
        """Free what was made again."""
        self._made = None

    def _make_again(self) -> dict[int, torch.Tensor]:
        made: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor) -> int:
            made[len(made)] = tensor.detach()
            return len(made) - 1

        with (
            self._random.again(),
            torch.enable_grad(),
            saved_tensors_hooks(keep, made.__getitem__),
        ):
            self._call()
        return made
