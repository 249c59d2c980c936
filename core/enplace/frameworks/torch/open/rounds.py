"""Where a step of a script ends: with the optimiser seen last, once all others have made steps.

Each step so holds all optimisers, whichever of them comes first and whichever makes more steps.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import wraps
from typing import Any, NoReturn
from unittest.mock import patch
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim import optimizer as hooks

from enplace.frameworks.torch.record.recorder import parameters_of
from enplace.frameworks.torch.record.recording import EnoughError

PATIENCE = 20
"""How often another optimiser makes a step while one is awaited: the critic of a GAN may make
several for one of its generator, and some scripts make optimisers that they never use, or use
only at first."""

Kind = tuple[tuple[int, ...], int]
"""The numbers of the optimisers of a round in the order of their steps, and its backward passes."""


class Rounds:
    """Follows the optimisers of a script; a round of all of them is a step.

    Attributes
    ----------
    optimizers : list of torch.optim.Optimizer
        Those of a round, in the order of their first steps.
    n_seen : int
        How many ever made a step.
    n_ended : int
        How many rounds of the same optimisers have ended.
    kind : Kind
        What the last round was made of.
    """

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.kind: Kind = ((), 0)
        self.n_seen = 0
        self._numbers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._made: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._returned: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._round: list[int] = []
        self._depth = self.n_ended = self._backward = 0
        self._is_done = False

    @property
    def awaits_another(self) -> bool:
        """Whether an optimiser was made that may yet make its first step."""
        late = (e for e in self._made if not _wraps_another(e) and e not in self._numbers)
        return self.n_ended < PATIENCE and any(late)

    def number_of(self, optimizer: torch.optim.Optimizer) -> int:
        """Return the number of an optimiser, as in the kind of a round."""
        return self._numbers[optimizer]

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
        backward = self._noting(torch.autograd.backward)
        stack.enter_context(patch.object(torch.autograd, "backward", backward))

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
        """The optimisers of a round are others than before."""

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
        self._note(optimizer)

    def _note(self, optimizer: torch.optim.Optimizer) -> None:
        """Find what the step of an optimiser ends."""
        if optimizer not in self.optimizers and not self._takes_the_place(optimizer):
            self._take(optimizer)
            return
        self._round.append(self._numbers[optimizer])
        missing = [each for each in self.optimizers if self._numbers[each] not in self._round]
        left = [each for each in missing if each not in self._returned]
        if left and max(Counter(self._round).values()) > PATIENCE:
            self._begin_anew([each for each in self.optimizers if each not in left])
        elif not missing and self.optimizers[-1] is optimizer:
            self.kind = tuple(self._round), self._backward
            self.n_ended += 1
            self._round, self._backward = [], 0
            self.end_round()

    def _takes_the_place(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimiser is one that is known, which a script makes anew for each step."""
        own = _ids_of(optimizer)
        for at, each in enumerate(self.optimizers):
            if type(each) is type(optimizer) and _ids_of(each) == own:
                self.optimizers[at] = optimizer
                self._numbers[optimizer] = self._numbers[each]
                return True
        return False

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimiser be in each round from now on, a new one in place of what it replaces."""
        others = self.optimizers
        if optimizer not in self._numbers:
            self._numbers[optimizer], self.n_seen = self.n_seen, self.n_seen + 1
            others = [each for each in others if _ids_of(each).isdisjoint(_ids_of(optimizer))]
        else:
            self._returned.add(optimizer)
        self._begin_anew([*others, optimizer])

    def _begin_anew(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers, self.n_ended = optimizers, 0
        self._round, self._backward = [], 0
        self.begin_anew()

    def _noting(self, usual: Any) -> Any:
        @wraps(usual)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._backward += not self._depth  # how often a closure runs is not known beforehand
            return usual(*args, **kwargs)

        return backward


def _ids_of(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return what tells an optimiser's parameters from others."""
    return {*map(id, parameters_of([optimizer]))}


def _wraps_another(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser only calls another, as that of accelerate does."""
    return isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer)
