"""What a script calls its models: its variables, and what these hold."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from traceback import walk_stack
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import torch

_DEEPEST = 4
"""Parts of the longest path to a model: ``trainer.agent.critics.0``."""

_MOST_PARTS, _MOST_VALUES = 100, 5000
"""How many parts of a value, and how many values, are searched: a script may hold a data set."""

_PLAIN = (GetSetDescriptorType, MemberDescriptorType)
"""What finds the attributes of a value if no code of its own does."""


def names_of(model: object) -> Iterator[str]:
    """Iterate over the names of a model or optimiser, short ones first, while its script runs.

    They are those of the script's own variables, then of the local ones of its functions: an
    ``actor`` that an agent holds is ``actor``, or else ``agent.actor``.
    """
    paths = [path for scope in _scopes() for path, value in _held(scope) if value is model]
    yield from map(_short, paths)
    yield from map(".".join, paths)


def _scopes() -> list[Mapping[str, Any]]:
    """Return the variables of the script, and of its running functions, the outermost first."""
    own = vars(sys.modules["__main__"])
    frames = [frame for frame, _ in walk_stack(None) if frame.f_globals is own]
    return [own, *(frame.f_locals for frame in reversed(frames) if frame.f_locals is not own)]


def _held(scope: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Iterate over variables and what they hold, with their paths, the shortest first."""
    waiting: deque[tuple[tuple[str, ...], Any]] = deque()
    waiting.extend(((name,), value) for name, value in scope.items() if name[:2] != "__")
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_VALUES:
        path, value = waiting.popleft()
        yield path, value
        if len(path) < _DEEPEST and id(value) not in seen:
            parts = islice(_parts(value), _MOST_PARTS)
            waiting.extend(((*path, str(key)), part) for key, part in parts)
        seen.add(id(value))


def _parts(value: Any) -> Iterator[tuple[str | int, Any]]:
    """Iterate over what a value holds by now, without code of its own: a lazy dict would import."""
    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        yield from torch.nn.Module.named_children(value)
    elif issubclass(kind, list | tuple):
        base = list if issubclass(kind, list) else tuple
        yield from enumerate(base.__iter__(value))
    elif not issubclass(kind, ModuleType | FunctionType | type | torch.Tensor):
        parts = value if issubclass(kind, dict) else _variables(value)
        yield from ((key, part) for key, part in dict.items(parts) if isinstance(key, str | int))


def _variables(value: Any) -> dict[str, Any]:
    """Return the attributes of a value; none if it has slots, or code for its ``__dict__``."""
    found = (vars(kind).get("__dict__") for kind in type(value).__mro__)
    plain = (each for each in found if isinstance(each, _PLAIN))
    return next((each.__get__(value) for each in plain), {})


def _short(path: tuple[str, ...]) -> str:
    """Leave out what holds it: ``agent.critics.0`` is ``critics.0``."""
    first = max((at for at, part in enumerate(path) if not part.isdecimal()), default=0)
    return ".".join(path[first:])
