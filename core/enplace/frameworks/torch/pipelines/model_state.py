"""What a model's forward pass may go by besides its arguments: a tape does not follow it.

Numbers and names that are attributes of modules, which modules, parameters and buffers it has, and
its hooks must stay as they were on the tape. What the model sets in its own calls, such as the
length that a table of positions has, may change there until it settles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from enplace.frameworks.torch.pipelines.calls import Outdated, PipelineRefusedError, gradient_hook

State = dict[str, dict[str, Any]]
"""Of each module, by its path, what its attributes are; of tensors and modules, which they are."""

_HOOKS, _ITSELF = "forward hooks", "the module itself"
_OF_EACH = frozenset(vars(torch.nn.Module())) - {"training"}
_PLAIN = {bool, int, float, str, type(None)}


class _Object(int):
    """The ``id`` of a tensor or module."""


def state_of(model: torch.nn.Module) -> State:
    """Return what a model's forward pass may go by."""
    return {path: _state(module) for path, module in model.named_modules()}


def _state(module: torch.nn.Module) -> dict[str, Any]:
    own = vars(module)
    found: dict[str, Any] = {_ITSELF: _Object(id(module))}
    for name, value in own.items():
        if name in _OF_EACH:
            continue
        if type(value) in _PLAIN:
            found[name] = value
        elif isinstance(value, tuple | list) and all(type(each) in _PLAIN for each in value):
            found[name] = tuple(value)
        elif isinstance(value, torch.Tensor):
            found[name] = _Object(id(value))
    for tensors in (own["_parameters"], own["_buffers"]):
        for name, tensor in tensors.items():
            found[name] = _Object(id(tensor))
    if hooks := len(own["_forward_hooks"]) + len(own["_forward_pre_hooks"]):
        found[_HOOKS] = hooks
    return found


def changes(before: State, after: State) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the path, the name, and the old and new value of what changed."""
    for path, old in before.items():
        new = after.get(path, {})
        if new != old:
            for name, value in ({_HOOKS: 0} | old).items():
                if (now := new.get(name, 0 if name == _HOOKS else ...)) != value:
                    yield path, name, value, now


class KnownState:
    """The state that a model must keep from step to step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._known = model, state_of(model)
        _check_gradient_hooks(model)

    @contextmanager
    def called(self) -> Iterator[None]:
        """Let the model change its state within the block, in a call of its own."""
        before = state_of(self._model)
        yield
        for path, name, old, new in changes(before, state_of(self._model)):
            if name != _HOOKS:
                known = self._known.get(path, {})
                if name == "training" or new is ... or _Object in (type(old), type(new)):
                    known.pop(name, None)  # it sets that itself each time
                else:
                    known[name] = new

    def check(self) -> None:
        """Refuse another state, and hooks on gradients.

        Raises
        ------
        PipelineRefusedError
            With what has changed.
        """
        for path, name, old, new in changes(self._known, state_of(self._model)):
            raise PipelineRefusedError(
                f"{_changed(path, name)} than in the first step{_both(old, new)}, and a pipeline "
                f"repeats what the model did then; leave it as it was, run without a pipeline, or "
                f"hold a number that changes in a buffer, and fill that"
            )
        _check_gradient_hooks(self._model)


def _check_gradient_hooks(model: torch.nn.Module) -> None:
    for path, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise gradient_hook(where(path))
    for name, each in model.named_parameters():
        if each._backward_hooks or each._post_accumulate_grad_hooks:
            raise gradient_hook(f"'{name}'")


def _changed(path: str, name: str) -> str:
    if name == _ITSELF:
        return f"{where(path)} is another module"
    if name == _HOOKS:
        return f"{where(path)} has other forward hooks"
    return f"{where(path)} has another '{name}'"


def where(path: str) -> str:
    """Name a module."""
    return f"'{path}'" if path else "the model"


def _both(old: Any, new: Any) -> str:
    if new is ... or isinstance(old, _Object) or isinstance(new, _Object):
        return ""
    return f" ({old!r:.40} then, {new!r:.40} now)"


def check_settled(before: State, after: State) -> None:
    """Refuse a model that counts in its own calls.

    Raises
    ------
    PipelineRefusedError
        With the attribute.
    """
    for path, name, old, new in changes(before, after):
        if not isinstance(old, _Object) and not isinstance(new, _Object):
            raise PipelineRefusedError(
                f"{where(path)} changes its '{name}' in each forward pass{_both(old, new)}, and a "
                f"pipeline runs that once; count in the script, or run without a pipeline"
            )


def outdate(model: torch.nn.Module, before: State, after: State) -> None:
    """Outdate the tensors that a model makes in each call and keeps: its stages make none."""
    for path, name, _, _ in changes(before, after):
        kept = vars(model.get_submodule(path)).get(name)
        if type(kept) is torch.Tensor:
            kept.__class__ = Outdated
