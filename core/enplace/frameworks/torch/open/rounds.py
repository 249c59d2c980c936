"""Where a step of a script ends: with that of the optimiser which was seen last."""

from __future__ import annotations

from contextlib import ExitStack
from functools import wraps
from typing import Any, NoReturn
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch.optim import optimizer as hooks

from enplace.frameworks.torch.record.recording import EnoughError

PATIENCE = 10
"""Rounds within which an optimiser that was made is awaited: the critic of a GAN may make several
steps for one of its generator, and some scripts make optimisers that they never use."""


class Rounds:
    """Follows the optimisers of a script; a round of all of them is a step.

    Attributes
    ----------
    optimizers : list of torch.optim.Optimizer
        Those that were seen, in the order of their first steps.
    """

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self._made: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._depth = self._ended = 0
        self._is_done = False

    @property
    def awaits_another(self) -> bool:
        """Whether an optimiser was made that may yet make its first step."""
        late = (each for each in self._made if not _wraps_another(each) and not self._knows(each))
        return self._ended < PATIENCE and any(late)

    def _knows(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(each is optimizer for each in self.optimizers)

    def hook_optimizers(self, stack: ExitStack) -> None:
        """Follow the optimisers until a stack is closed."""
        for hook in (
            hooks.register_optimizer_step_pre_hook(self._begin),
            hooks.register_optimizer_step_post_hook(self._end),
        ):
            stack.callback(hook.remove)
        usual = torch.optim.Optimizer.__init__

        @wraps(usual)
        def make(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            usual(optimizer, *args, **kwargs)
            self._made.add(optimizer)

        stack.enter_context(patch.object(torch.optim.Optimizer, "__init__", make))

    def stop(self) -> NoReturn:
        """End the script: nothing more is to be seen."""
        self._is_done = True
        raise EnoughError

    # What is done besides

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimiser begins its step."""

    def leave_optimizer(self) -> None:
        """An optimiser has ended its step."""

    def begin_anew(self) -> None:
        """A new optimiser has made a step: its round has one more than those before."""

    def end_round(self) -> None:
        """The last optimiser has made its step, which ends the round."""

    # Hooks

    def _begin(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _wraps_another(optimizer):
            return
        self._depth += 1
        if self._depth == 1:
            self.enter_optimizer(optimizer)

    def _end(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _wraps_another(optimizer):
            return
        self._depth -= 1
        if self._depth:
            return
        self.leave_optimizer()
        if self._is_done:
            self.stop()  # the script's own ``except:`` caught it
        if not self._knows(optimizer):
            self.optimizers.append(optimizer)
            self._ended = 0
            self.begin_anew()
        elif self.optimizers[-1] is optimizer:
            self._ended += 1
            self.end_round()


def _wraps_another(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser only calls another, as that of accelerate does."""
    return isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer)
