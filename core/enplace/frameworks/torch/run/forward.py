"""Keep only what a plan keeps of a model's forward pass, wherever the model's modules are.

An op is known by the module that runs it, its kind, and its turn in a step, as a profile names it.
A call of the model that records no gradients takes as many turns as the one before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from enplace.frameworks.torch.record.op_kinds import ALLOCATES, FREE
from enplace.frameworks.torch.record.recorder import ASIDE, given_tensors, name_of
from enplace.frameworks.torch.record.storages import tensors_in
from enplace.frameworks.torch.run.kept import Made, NotKept
from enplace.names.passes import UPDATE
from enplace.text import count
from enplace.values.splits import Split

_STEP = f"{UPDATE}/step"
_TURN = re.compile(r"_\d+$")


class ForwardPass(TorchDispatchMode):
    """Drops what ops make that are computed again, and sends what waits on the host.

    Parameters
    ----------
    splits : sequence of Split
        What the plan does not keep.
    planned : collection of str
        The names of the plan's ops.
    scope : callable
        Returns the scope of the module that is running.
    """

    def __init__(
        self, splits: Sequence[Split], planned: Collection[str], scope: Callable[[], str]
    ) -> None:
        super().__init__()
        self._ways = {each.op: each for each in splits}
        self._scope, self._kept = scope, NotKept()
        bases = {_TURN.sub("", name) for name in self._ways}
        self._n_turns = Counter(
            base for name in planned for base in [_TURN.sub("", name)] if base in bases
        )
        self._turns: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._of_call: Counter[str] = Counter()
        self.has_one_update = f"{_STEP}_1" not in planned
        self._found: set[str] = set()
        self._entered = ExitStack()

    def begin(self) -> None:
        """Begin a call of the model."""
        is_training = torch.is_grad_enabled()
        if not is_training:
            self._turns += self._of_call
        self._before = self._turns.copy()
        if is_training:
            self._entered.enter_context(self._kept)
            self._entered.enter_context(self)

    def end(self) -> None:
        """End it."""
        self._entered.close()
        self._of_call = self._turns - self._before or self._of_call

    def end_step(self) -> None:
        """End a step."""
        self._turns.clear()

    def __str__(self) -> str:
        again = {name for name, each in self._ways.items() if each.is_again}
        ran = len(self._found & again)
        parts = [
            f"{ran:,} of {count(len(again), 'op')} computed again" * bool(again),
            f"{len(self._found - again):,} of {count(len(self._ways) - len(again), 'op')} sent to "
            f"the host" * (len(self._ways) > len(again)),
        ]
        return ", ".join(filter(None, parts))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, kind = kwargs or {}, name_of(func)
        given = [*given_tensors(func, args, kwargs)]
        changed = [each for each, is_written in given if is_written]
        for each in changed:
            self._kept.changed(each)
        base = "/".join(filter(None, (self._scope(), kind)))
        is_counted = base in self._n_turns and torch._C._current_autograd_node() is None
        if not is_counted or func.namespace in ASIDE or kind in FREE or kind in ALLOCATES:
            return func(*args, **kwargs)
        turn = self._turns[base] % self._n_turns[base]
        name = f"{base}_{turn}" if turn else base
        way, made = self._ways.get(name), None
        if way is not None and way.is_again and not changed:
            made = self._kept.again(name, func, args, kwargs, _run)
        out = func(*args, **kwargs)
        tensors = [each for each, _ in given]
        if not changed and _is_view(out, tensors):
            return out
        self._turns[base] += 1
        if made is not None:
            self._kept.drop(made, out, tensors)
        elif way is not None and not way.is_again:
            self._kept.drop(_sent(out), out)
        else:
            return out
        self._found.add(name)
        return out


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _is_view(out: Any, given: Sequence[torch.Tensor]) -> bool:
    """Whether all that an op returns shows the memory of what it was given."""
    made = tensors_in(out)
    if not made or any(each.layout != torch.strided for each in (*made, *given)):
        return False
    return {e.untyped_storage()._cdata for e in made} <= {e.untyped_storage()._cdata for e in given}


def _sent(out: Any) -> Made:
    """Send what an op made to the host, from where it is fetched when it is asked for."""
    sent = [(_on_host(each.untyped_storage()), each.device) for each in tensors_in(out)]
    return Made(lambda: [each.to(device, non_blocking=True) for each, device in sent])


def _on_host(storage: torch.UntypedStorage) -> torch.Tensor:
    shown = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    pinned = storage.device.type == "cuda"
    host = torch.empty(len(shown), dtype=torch.uint8, pin_memory=pinned)
    return host.copy_(shown, non_blocking=pinned)
