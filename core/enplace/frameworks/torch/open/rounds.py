"""Where a step of a script ends: with the optimiser seen last, once all others have made steps.

So each step holds all optimisers, whichever comes first and however many steps each makes.
Optimisers may make their steps within a backward pass, one for each parameter: these count
together, when the outermost backward pass has ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim import optimizer as hooks

from enplace.frameworks.torch.record.recorder import parameters_of
from enplace.frameworks.torch.record.recording import EnoughError

PATIENCE = 20
"""An optimiser is awaited for so many steps of another: the critic of a GAN may make several for
each of its generator, and some scripts make optimisers that they never use, use only at first, or
use in turns of many steps."""


class Kind(NamedTuple):
    """What a round was made of.

    Attributes
    ----------
    numbers : tuple of int
        Those of its optimisers, in the order of their steps.
    n_backward : int
        How often the script went backward.
    """

    numbers: tuple[int, ...] = ()
    n_backward: int = 0


class Rounds:
    """Follows the optimisers of a script; a round of all of them is a step.

    Attributes
    ----------
    hint : str
        What else helps a script that fails: begins with a comma.
    optimizers : list of torch.optim.Optimizer
        Those of a round, in the order of their first steps.
    n_seen : int
        How many ever made a step.
    n_ended : int
        How many rounds of the same optimisers have ended.
    n_backward : int
        How often the script went backward.
    kind : Kind
        What the last round was made of.
    """

    hint = ""

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.kind = Kind()
        self.n_seen = 0
        self._numbers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._idle: WeakKeyDictionary[torch.optim.Optimizer, None] = WeakKeyDictionary()
        self._returned: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._rare: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._waits: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._round: list[int] = []
        self._made: list[torch.optim.Optimizer] = []
        self._depth = self.n_ended = self.n_backward = self._backward = 0
        self._goes_backward = self._is_done = False

    @property
    def awaits_another(self) -> bool:
        """Whether an optimiser was made that may yet make its first step."""
        return self.n_ended < PATIENCE and any(each in self._idle for each in self.all_optimizers)

    @property
    def all_optimizers(self) -> list[torch.optim.Optimizer]:
        """All optimisers, those that never made a step last."""
        return [*self._numbers, *(each for each in self._idle if not _holds_another(each))]

    def without(self, kind: Kind) -> list[torch.optim.Optimizer]:
        """Return the optimisers that a kind of round lacks, without those that its own replaced."""
        own = [each for each, number in self._numbers.items() if number in kind.numbers]
        updated = {*map(id, parameters_of(own))}
        return [
            each
            for each in self.all_optimizers
            if each in self._idle or not _ids_of(each) <= updated
        ]

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
            self._idle[optimizer] = None

        stack.enter_context(patch.object(torch.optim.Optimizer, "__init__", make))
        for name in ("backward", "grad"):
            noting = self._noting(getattr(torch.autograd, name))
            stack.enter_context(patch.object(torch.autograd, name, noting))

    def stop(self) -> NoReturn:
        """End the script: nothing more is to be seen."""
        self._is_done = True
        raise EnoughError

    # What is done besides

    def go_backward(self, losses: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """The script goes backward from some losses; from none if it only asks for gradients."""

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimiser begins its step."""

    def leave_optimizer(self) -> None:
        """An optimiser has ended its step."""

    def begin_anew(self) -> None:
        """The optimisers of a round have changed."""

    def end_round(self) -> None:
        """The last optimiser has made its step, which ends the round."""

    # Hooks

    def _begin(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._idle.pop(optimizer, None)
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
        self._made.append(optimizer)
        if not self._goes_backward:
            self._settle()

    def _noting(self, usual: Any) -> Any:
        @wraps(usual)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._goes_backward:  # a checkpoint, or the same call again below PyTorch's modes
                return usual(*args, **kwargs)
            self.n_backward += 1
            self._backward += not self._depth  # how often a closure runs is not known beforehand
            is_grad = usual.__name__ == "grad"
            self.go_backward(() if is_grad else args[0] if args else kwargs["tensors"])
            self._goes_backward = True
            try:
                found = usual(*args, **kwargs)
            finally:
                self._goes_backward = False
            self._settle()
            return found

        return backward

    def _settle(self) -> None:
        """Note the steps that were made."""
        made, self._made = [*dict.fromkeys(self._made)], []
        if made and self._is_done:
            self.stop()  # the script's own ``except:`` caught it
        if made:
            self._note(made)

    def _note(self, made: Sequence[torch.optim.Optimizer]) -> None:
        """Find what steps of optimisers end."""
        new = [
            each
            for each in made
            if each not in self.optimizers
            and each not in self._rare
            and not self._takes_the_place(each)
        ]
        if new:
            self._take(new)
            return
        steps, own = ([*map(self.number_of, each)] for each in (made, self.optimizers))
        self._round += steps
        if away := self._away([number for number in steps if number in own]):
            self._rare.update(each for each in away if each in self._returned)
            self._begin_anew([each for each in self.optimizers if each not in away])
        elif own[-1] in steps and {*own} <= {*self._round}:
            self.kind = Kind(tuple(self._round), self._backward)
            self.n_ended += 1
            self._round, self._backward = [], 0
            self.end_round()

    def _away(self, numbers: Sequence[int]) -> list[torch.optim.Optimizer]:
        """Return the optimisers that have been awaited for too many steps of another."""
        away = []
        for each in self.optimizers:
            number = self.number_of(each)
            if number in numbers:
                self._waits[number].clear()
                continue
            self._waits[number].update(numbers)
            if max(self._waits[number].values(), default=0) > PATIENCE:
                away.append(each)
        return away

    def _takes_the_place(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a script made a known optimiser anew; if so, this one takes its place."""
        own = _ids_of(optimizer)
        for at, each in enumerate(self.optimizers):
            if type(each) is type(optimizer) and _ids_of(each) == own:
                self.optimizers[at] = optimizer
                self._numbers[optimizer] = self._numbers[each]
                return True
        return False

    def _take(self, new: Iterable[torch.optim.Optimizer]) -> None:
        """Let optimisers be in each round from now on, in place of those that they replace."""
        others = self.optimizers
        for optimizer in new:
            if optimizer not in self._numbers:
                self._numbers[optimizer], self.n_seen = self.n_seen, self.n_seen + 1
                others = [each for each in others if _ids_of(each).isdisjoint(_ids_of(optimizer))]
            else:
                self._returned.add(optimizer)
        self._begin_anew([*others, *new])

    def _begin_anew(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers, self.n_ended = optimizers, 0
        self._round, self._backward = [], 0
        self._waits.clear()
        self.begin_anew()


def _ids_of(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the ids of an optimiser's parameters."""
    return {*map(id, parameters_of([optimizer]))}


def _wraps_another(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser only calls another, as that of accelerate does."""
    return isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer)


def _holds_another(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser has another, which may make its steps alone, as with SAM."""
    return any(isinstance(each, torch.optim.Optimizer) for each in vars(optimizer).values())
