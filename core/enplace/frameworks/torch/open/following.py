"""Follow a script's steps, and keep what they computed: losses, gradients, weights, times."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import _disable_current_modes

from enplace.frameworks.comparing import Values
from enplace.frameworks.torch.open.calls import REPORT_S
from enplace.frameworks.torch.open.rounds import Rounds
from enplace.frameworks.torch.record.modules import Modules, unwrapped
from enplace.frameworks.torch.record.recorder import parameters_of
from enplace.processes.worker import Report

SEED = 0
"""Of a run with a plan and of one without, so that weights and batches are the same."""

FIRST = 2
"""The steps before are for what an optimiser makes first, and to record one."""

WARM_UPS = 3
"""Steps that are compared, and not timed."""


def seed_all() -> None:
    """Start all random numbers anew; a script may do so again."""
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 -- scripts use this one
    torch.manual_seed(SEED)


@contextmanager
def without_dropout() -> Iterator[None]:
    """Drop nothing out: a pipeline draws other numbers than a step that runs whole."""
    functional = torch.nn.functional
    attention = functional.scaled_dot_product_attention

    @wraps(attention)
    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
               *args: Any, **kwargs: Any) -> Any:  # fmt: skip
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    def keep(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor

    with ExitStack() as stack:
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"):
            stack.enter_context(patch.object(functional, name, keep))
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", attend))
        none = property(lambda self: 0.0, lambda self, value: None)
        stack.enter_context(patch.object(torch.nn.RNNBase, "dropout", none, create=True))
        yield


class Follower(Rounds):
    """Follows the steps of a script, each a round of all its optimisers.

    Attributes
    ----------
    losses : list of list of array
        What each step from :data:`FIRST` on went backward from.
    gradients, after_first, weights : mapping of str to array
        Gradients of the last warm-up; parameters and buffers after the first step that is compared,
        and after the last.
    """

    def __init__(self, steps: int, what: str, report: Report) -> None:
        super().__init__()
        self.modules = Modules()
        self.is_compiled = False
        self._steps, self._all = steps, FIRST + WARM_UPS + steps
        self._what, self._report = what, report
        self._report_at = 0.0
        self._reset()

    def _reset(self) -> None:
        self._number = 0
        self.losses: list[Values] = []
        self._times_us: list[float] = []
        self._gradients: dict[str, torch.Tensor] = {}
        self.gradients: Mapping[str, NDArray[Any]] = {}
        self.after_first: Mapping[str, NDArray[Any]] = {}
        self.weights: Mapping[str, NDArray[Any]] = {}

    @property
    def models(self) -> list[torch.nn.Module]:
        """The models that the script calls, without what wraps them."""
        return [unwrapped(each) for each in self.modules.models]

    @property
    def n_compared(self) -> int:
        """How many steps were followed."""
        return max(self._number - FIRST, 0)

    @property
    def times_us(self) -> list[float]:
        """The times of the last steps that were asked for; of half of those of a short script."""
        n_seen = len(self._times_us)
        return self._times_us[-min(self._steps, max(n_seen - WARM_UPS, -(-n_seen // 2))) :]

    @property
    def has_step(self) -> bool:
        """Whether a failure of the script no longer matters: it always does."""
        return False

    def note_compiled(self) -> None:
        """Note that the script compiles something."""
        self.is_compiled = True

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Follow the steps within the block."""
        with ExitStack() as stack:
            self.hook_optimizers(stack)
            stack.callback(self.leave, False)
            yield
            self.leave(False)
            self.finish()

    def finish(self) -> None:
        """Keep the weights as they are."""
        self.losses = self.losses[: self.n_compared]
        if self.n_compared:
            self.weights = self._values()
            self.gradients = {name: as_array(each) for name, each in self._gradients.items()}

    # What a kind of run does besides

    def enter(self) -> None:
        """Prepare for the step that comes: its number is ``_number``."""
        if self._number == FIRST - 1:
            self.modules.__enter__()

    def leave(self, is_whole: bool) -> None:
        """The step has ended, or there is no more of it."""
        if self._number == FIRST - 1:
            self.modules.__exit__()

    def go_backward(self, losses: torch.Tensor | Sequence[torch.Tensor]) -> None:
        if self.losses:
            given = [losses] if isinstance(losses, torch.Tensor) else losses
            with _disable_current_modes():
                self.losses[-1] += [as_array(each) for each in given]

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if FIRST <= self._number < FIRST + WARM_UPS:
            self._keep_gradients(optimizer)

    # The script

    def begin_anew(self) -> None:
        self.leave(False)
        self._reset()
        self._next()

    def end_round(self) -> None:
        self._step_ended()
        self._next()

    def _next(self) -> None:
        """Go on to the next step."""
        self._number += 1
        if self._number >= self._all and not self.awaits_another:
            self.stop()
        if self._number == FIRST + 1:
            self.after_first = self._values()
        if self._number >= FIRST:
            self.losses.append([])
        self.enter()
        self._began = time.perf_counter()

    def _step_ended(self) -> None:
        self.synchronize()
        now = time.perf_counter()
        if self._number >= FIRST:
            self._times_us.append((now - self._began) * 1e6)
        self.leave(True)
        if time.monotonic() >= self._report_at:
            self._report_at = time.monotonic() + REPORT_S
            done = self._number + 1
            self._report(f"{self._what}: step {done:,} of {self._all:,}", done / self._all)

    def synchronize(self) -> None:
        """Wait until all that was launched has run."""
        if torch.cuda.is_available():
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)

    def _keep_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        with _disable_current_modes():
            for parameter in parameters_of([optimizer]):
                if parameter.grad is not None:
                    name = self.modules.spell(self.modules.owner(parameter))
                    self._gradients[name] = parameter.grad.detach().clone()

    def _values(self) -> dict[str, NDArray[Any]]:
        """Return all parameters and buffers."""
        with _disable_current_modes():
            spell, found = self.modules.spell, {}
            for owner, tensor, _ in self.modules.tensors():
                found[spell(owner)] = as_array(tensor)
            for parameter in parameters_of(self.optimizers):
                found.setdefault(spell(self.modules.owner(parameter)), as_array(parameter))
            return found


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Copy a tensor to an array; what numpy has no type for is widened, which loses nothing."""
    own = tensor.detach().cpu()
    if own.layout != torch.strided:
        own = own.to_dense()
    if own.dtype == torch.bfloat16 or (own.is_floating_point() and own.element_size() < 2):
        own = own.float()
    return np.array(own.resolve_conj().resolve_neg().numpy())
