"""Which module is running, what modules and parameters are called, and who is the root."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules import module as hooks

from enplace.frameworks.torch.record.storages import shape_of, tensors_in
from enplace.frameworks.torch.record.variables import names_of
from enplace.frameworks.torch.step import BUFFER, PARAMETER

_OF_MODEL = re.compile("\0(\\d+)\0\\.?")
"""Begins the path of a module until it is known how many models there are."""

_WRAPPERS = ("_orig_mod", "module")
"""What wraps a model holds it under one of these names: compiled or data-parallel models."""


class Modules:
    """Follows the calls of modules; as a context, while a step is recorded."""

    def __init__(self) -> None:
        self.roots: list[torch.nn.Module] = []
        self.models: list[torch.nn.Module] = []
        self._called: list[torch.nn.Module] = []
        self._inside: dict[int, str] = {}
        self._path: dict[int, str] = {}
        self._shared: dict[int, list[str]] = {}
        self._names: dict[int, str] = {}
        self._kept: list[torch.nn.Module] = []  # or else another might get its number
        self._loose: list[torch.nn.Module] = []
        self._owner: dict[int, str] = {}
        self._unknown: dict[int, tuple[torch.Tensor, str]] = {}
        self._stack: list[str] = []
        self._prefixes: dict[str, int] = {}
        self._loose_prefixes: dict[str, int] = {}
        self._shapes: tuple[tuple[int, ...], ...] | None = None
        self._idle_shapes: tuple[tuple[int, ...], ...] | None = None
        self._hooks = ExitStack()

    def __enter__(self) -> Modules:
        self._forget_loose()
        self._stack.clear()
        self._shapes = self._idle_shapes = None
        for hook in (
            hooks.register_module_forward_pre_hook(self._begin),
            hooks.register_module_forward_hook(self._end, always_call=True),
        ):
            self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Follow no calls any more, nor wait for a batch."""
        self._hooks.close()

    def see_batch(self) -> None:
        """Note the shapes of the next batch, without a recording; the hook ends with it."""
        self.close()
        self._shapes = self._idle_shapes = None
        hook = hooks.register_module_forward_pre_hook(self._note_batch)
        self._hooks.callback(hook.remove)

    def _note_batch(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self._note_shapes(module, args)
        if self._shapes:
            self.close()

    def current(self) -> str | None:
        """Return the path of the innermost module that is running; None outside of all."""
        return self._stack[-1] if self._stack else None

    def owner(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter; one that no module has is numbered."""
        if (name := self._owner.get(id(parameter))) is not None:
            return name
        _, name = self._unknown.setdefault(
            id(parameter), (parameter, f"parameter_{len(self._unknown)}")
        )
        return name

    def tensors(self) -> Iterator[tuple[str, torch.Tensor, str]]:
        """Iterate over the parameters and buffers of all roots, with their names and roles."""
        for root in self.roots:
            prefix = self._path[id(root)]
            for path, parameter in root.named_parameters():
                yield (
                    self._owner.setdefault(id(parameter), joined(prefix, path)),
                    parameter,
                    PARAMETER,
                )
            for path, buffer in root.named_buffers():
                yield joined(prefix, path), buffer, BUFFER

    def batch_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the tensors that a root with parameters was first called with.

        What trains it counts, if anything does: an evaluation may come first.
        """
        return self._shapes or self._idle_shapes or ()

    @property
    def name(self) -> str:
        """The class of the largest root."""
        sized = [(sum(p.numel() for p in root.parameters()), root) for root in self.roots]
        return type(unwrapped(max(sized, key=lambda each: each[0])[1])).__name__ if sized else ""

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if id(module) not in self._path:
            self._add(module)
        self._note_shapes(module, args)
        usual = self._path[id(module)]
        self._stack.append(path_of_call(module, usual, self.current(), self._shared))

    def _note_shapes(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        trains = module.training and torch.is_grad_enabled()
        if self._shapes or (self._idle_shapes and not trains):
            return
        if any(True for _ in module.parameters()):
            # A model that is called with keywords passes its batch on to a module inside.
            shapes = tuple(map(shape_of, tensors_in(args))) or None
            if trains:
                self._shapes = shapes
            else:
                self._idle_shapes = shapes

    def _end(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _add(self, module: torch.nn.Module) -> None:
        """Name a root's modules and parameters; names of a second root begin with its own."""
        has_own = any(True for _ in module.parameters())
        new = [each for each in module.modules() if id(each) not in self._path]
        if has_own and not self._stack:
            prefix = f"\0{len(self._called)}\0"
            path_of = {id(each): path for path, each in module.named_modules()}
            for number, part in enumerate(self._called):  # which the script called before
                if (path := path_of.get(id(part))) is not None:
                    self._inside[number] = joined(prefix, path)
            self._called.append(module)
            self.models = [*(each for each in self.models if id(each) not in path_of), module]
        else:
            numbers = self._prefixes if has_own else self._loose_prefixes
            prefix = ".".join([*self._stack[-1:], _next_prefix(module, numbers)])
        if has_own:
            self._kept.append(module)
            self.roots.append(module)
        else:
            self._loose += new
        for path, each in module.named_modules():
            self._path.setdefault(id(each), joined(prefix, path))
        for number, paths in shared_paths(module).items():
            self._shared.setdefault(number, [joined(prefix, path) for path in paths])
        named = (*module.named_parameters(), *module.named_buffers())
        for path, tensor in named:
            self._owner.setdefault(id(tensor), joined(prefix, path))

    @property
    def n_models(self) -> int:
        """How many models the script calls."""
        return len(self.models)

    def tied(self) -> Iterator[tuple[str, str]]:
        """Iterate over the further names of parameters that have several, with the first ones."""
        for model in self.models:
            prefix = f"\0{self._called.index(model)}\0"
            for path, parameter in model.named_parameters(remove_duplicate=False):
                name, first = self.spell(joined(prefix, path)), self.spell(self.owner(parameter))
                if name != first:
                    yield name, first

    def spell(self, path: str) -> str:
        """Return a path for people: of several models, it begins with what the script calls it."""
        found = _OF_MODEL.match(path)
        if found is None:
            return path
        if (around := self._inside.get(int(found[1]))) is not None:
            return self.spell(joined(around, path[found.end() :]))
        model = self._called[int(found[1])]
        own = "" if len(self.models) == 1 else self.variable(model)
        return ".".join(filter(None, [own, path[found.end() :]]))

    def variable(self, model: torch.nn.Module) -> str:
        """Return the script's own name for a model, else its class and a number.

        No other model gets the same name, and it stays.
        """
        if id(model) not in self._names:
            taken = self._names.values()
            usual = f"{type(model).__name__}_{self.models.index(model)}"
            name = next((name for name in names_of(model) if name not in taken), usual)
            self._names[id(model)] = name
        return self._names[id(model)]

    def _forget_loose(self) -> None:
        """Forget modules without parameters that no model has: a loss may be made in each step."""
        for module in self._loose:
            del self._path[id(module)]
            self._shared.pop(id(module), None)
            for buffer in module.buffers(recurse=False):
                self._owner.pop(id(buffer), None)
        self._loose.clear()
        self._loose_prefixes.clear()


def shared_paths(model: torch.nn.Module) -> dict[int, list[str]]:
    """Return all paths of each module without parameters that several modules have, by its id."""
    found: dict[int, list[str]] = defaultdict(list)
    for path, module in model.named_modules(remove_duplicate=False):
        if not any(True for _ in module.parameters()):
            found[id(module)].append(path)
    return {number: paths for number, paths in found.items() if len(paths) > 1}


def path_of_call(
    module: torch.nn.Module, usual: str, caller: str | None, shared: Mapping[int, Sequence[str]]
) -> str:
    """Return the path of a called module: of a shared one that below its caller, if it has one.

    Each layer then has its calls of an activation or of a table of positions that all layers share.
    """
    begin = f"{caller}." if caller else ""
    paths = shared.get(id(module), ())
    return next((path for path in paths if path.startswith(begin)), usual)


def _next_prefix(module: torch.nn.Module, numbers: dict[str, int]) -> str:
    name = type(module).__name__
    number = numbers[name] = numbers.get(name, -1) + 1
    return f"{name}_{number}" if number else name


def joined(prefix: str, path: str) -> str:
    """Join parts of a path without the names under which wrappers hold a model."""
    parts = path.split(".")
    while parts and parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(filter(None, [prefix, *parts]))


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the model that a wrapper holds, or the model itself."""
    for name in _WRAPPERS:
        inner = getattr(module, name, None)
        if isinstance(inner, torch.nn.Module) and len([*module.children()]) == 1:
            return unwrapped(inner)
    return module
