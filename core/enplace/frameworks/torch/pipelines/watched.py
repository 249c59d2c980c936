"""See where a script reads or writes weights between the steps of a pipeline.

While they are watched, parameters have a class that tells of both; else they have their own, so
that nothing pays for it in steps, evaluation and optimisers. What shares memory with a parameter,
as ``parameter.data`` does, is watched like it. The gradient of a parameter that another process
trains is a stand-in without values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError, has_any, is_of_script
from enplace.frameworks.torch.pipelines.tape import IN_PLACE

_SHARING = ("data", "detach", "__getitem__")
"""What gives a tensor that may share the memory of another; other views are read at once."""
_VIEWS = ("T", "mT", "H", "mH", "real", "imag", "__cuda_array_interface__", "")
"""Attributes that are values; Python's own properties may have no name."""
_ABOUT = {"size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "__len__",
          "storage_offset", "get_device", "retain_grad", "requires_grad_", "share_memory_",
          "register_hook", "register_post_accumulate_grad_hook", "backward", "_is_view",
          "_has_compatible_shallow_copy_type"}  # fmt: skip
"""What says something of a tensor other than its values, or changes that."""


def _name(func: Any) -> str:
    """Return the name of a function of PyTorch, or of the attribute that it gets or sets."""
    is_access = func.__name__ in ("__get__", "__set__", "__delete__")
    return str(getattr(func.__self__, "__name__", "") if is_access else func.__name__)


def _is_about(func: Any) -> bool:
    """Whether a function of PyTorch neither reads values nor changes them."""
    name = _name(func)
    if func.__name__ in ("__get__", "__set__", "__delete__"):
        return name != "data" and (func.__name__ != "__get__" or name not in _VIEWS)
    return name in _ABOUT or (name.startswith("is_") and name != "is_nonzero")


class Watch:
    """Tells where parameters are read or written while it is on.

    Parameters
    ----------
    read : callable
        Called before values are read.
    wrote : callable
        Called with the parameters that were written.
    is_in_step : callable
        Whether what has a gradient is a part of the loss now, which each stage makes itself.
    is_elsewhere : callable
        Whether another process has the gradient of a parameter, and this one does not.

    Attributes
    ----------
    is_on : bool
    """

    def __init__(
        self,
        read: Callable[[], None],
        wrote: Callable[[Iterable[torch.Tensor]], None],
        is_in_step: Callable[[], bool],
        is_elsewhere: Callable[[torch.Tensor], bool],
    ) -> None:
        self._read, self._wrote = read, wrote
        self._is_in_step, self._is_elsewhere = is_in_step, is_elsewhere
        self._kinds: dict[type, type] = {}
        self._part: type = type("Tensor", (_Watched, _Bare), {"watch": self})
        self._parameters: list[tuple[torch.nn.Parameter, type, type]] = []
        self.is_on = False

    def follow(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Take the parameters to watch."""
        for each in parameters:
            own = type(each)
            if own not in self._kinds:
                about = {"watch": self, "plain": own}
                self._kinds[own] = type(own.__name__, (_Watched, own), about)
            self._parameters.append((each, own, self._kinds[own]))

    def turn(self, on: bool) -> None:
        """Turn it on or off."""
        if on != self.is_on:
            self.is_on = on
            for each, own, watched in self._parameters:
                each.__class__ = watched if on else own

    @contextmanager
    def off(self) -> Iterator[None]:
        """Watch nothing within the block."""
        was = self.is_on
        self.turn(on=False)
        try:
            yield
        finally:
            self.turn(was)

    def called(
        self, usual: Callable[..., Any], func: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        """Call a function of PyTorch with watched tensors."""
        if not self.is_on or _is_about(func):
            return usual(func, types, args, kwargs)
        name = _name(func)
        changes = func.__name__ == "__set__" or IN_PLACE.fullmatch(name)
        if changes:
            args = _own_of_lists(args)
            if args and isinstance(args[0], list | tuple) and not args[0]:
                return None  # nothing of that is here
        if has_any((args, kwargs), Elsewhere):
            if (
                changes
                and args
                and isinstance(args[0], _Watched)
                and self._is_elsewhere(_whole(args[0]))
            ):
                return args[0]  # that is done where it is trained
            return Elsewhere.__torch_function__(func, types, args, kwargs)
        if changes or kwargs.get("out") is not None:
            return self._changed(usual, func, types, args, kwargs)
        if name in _SHARING or (self._is_in_step() and torch.is_grad_enabled()):
            out = usual(func, types, args, kwargs)
            if isinstance(out, torch.Tensor):
                if name not in _SHARING and out.requires_grad:
                    return out
                if name in _SHARING and _memory(out) == _memory(args[0]):
                    out.__class__ = self._part
                    out.whole = _whole(args[0])
                    return out
        self._read()
        return usual(func, types, args, kwargs)

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return what a script gets for a gradient that this process does not have."""
        if not (self.is_on and self._is_elsewhere(parameter)):
            return None
        with torch._C.DisableTorchFunctionSubclass():
            none = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
            return none.expand(parameter.shape).as_subclass(Elsewhere)

    def read(self) -> None:
        """Note that values are read."""
        if self.is_on:
            self._read()

    def _changed(
        self, usual: Callable[..., Any], func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        given = (*args, *kwargs.values())
        out = kwargs.get("out")
        changed = tree_leaves(given[0] if out is None else out)
        others = [each for each in tree_leaves(given) if not any(each is one for one in changed)]
        if func.__name__ == "__set__":  # p.data -= 1 ends with p.data = p.data
            others = [each for each in others if _whole(each) is not _whole(changed[0])]
        if any(isinstance(each, _Watched) for each in others):
            self._read()
        out = usual(func, types, args, kwargs)
        self._wrote(_whole(each) for each in changed if isinstance(each, _Watched))
        return out


def _are_elsewhere(args: Sequence[Any]) -> list[bool]:
    """Of a call that takes many tensors, say which it would make of others' gradients."""
    return [has_any(group, Elsewhere) for group in zip(*_lists_of(args), strict=True)]


def _lists_of(args: Sequence[Any]) -> list[Any]:
    lists = [each for each in args if isinstance(each, list | tuple)]
    return [each for each in lists if len(each) == len(args[0])]


def _own_of_lists(args: Sequence[Any]) -> Sequence[Any]:
    """Leave out of a call that changes many tensors what it would change by others' gradients."""
    if not (args and isinstance(args[0], list | tuple)):
        return args
    lists, away = _lists_of(args), _are_elsewhere(args)
    return tuple(
        [each[n] for n, is_away in enumerate(away) if not is_away]
        if any(each is one for one in lists)
        else each
        for each in args
    )


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the parameter that a watched tensor is or shares memory with."""
    return getattr(tensor, "whole", tensor)


def _memory(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return int(tensor.untyped_storage().data_ptr())


class Elsewhere(torch.Tensor):
    """A gradient that only the process of its stage has, or what is made of such.

    What changes it in place does so there. It has no values here.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = _name(func), kwargs or {}
        usual = torch._C._disabled_torch_function_impl
        if _is_about(func):
            return usual(func, types, args, kwargs)
        if args and isinstance(args[0], cls) and IN_PLACE.fullmatch(name):
            return args[0]
        if args and isinstance(args[0], list | tuple) and IN_PLACE.fullmatch(name):
            own = _own_of_lists(args)
            return usual(func, types, own, kwargs) if own[0] else None
        made: Any = None if IN_PLACE.fullmatch(name) else usual(func, types, args, kwargs)
        if not all(isinstance(each, torch.Tensor) for each in tree_leaves([made])):
            raise _reads_others()
        if name.startswith("_foreach_") and args:
            pairs = zip(made, _are_elsewhere(args), strict=True)
            return type(made)(each.as_subclass(cls) if is_away else each for each, is_away in pairs)
        return tree_map(lambda each: each.as_subclass(cls), made)


def _reads_others() -> PipelineRefusedError:
    return PipelineRefusedError(
        "the script reads a gradient of another stage, and each process has those of its own; take "
        "norms by clip_grad_norm_, which counts all, or change each gradient in place, as in "
        "p.grad.clamp_(-1, 1)"
    )


class _Bare(torch.Tensor):
    """A tensor, of which functions of PyTorch make usual ones."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class _Watched:
    """A tensor whose values are told of when they are read."""

    watch: ClassVar[Watch]
    plain: ClassVar[type] = torch.Tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        usual = super().__torch_function__  # type: ignore[misc]
        return cls.watch.called(usual, func, types, args, kwargs or {})

    @property  # it is asked for so often that to tell of it would take time
    def grad(self) -> torch.Tensor | None:
        with torch._C.DisableTorchFunctionSubclass():
            found: torch.Tensor | None = torch.Tensor.grad.__get__(self)
        if found is None and is_of_script(sys._getframe(1)):  # PyTorch knows parameters without one
            return self.watch.gradient(self)
        return found

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if isinstance(value, Elsewhere):
            if self.watch.gradient(self) is None:
                raise _reads_others()
            return
        with torch._C.DisableTorchFunctionSubclass():
            torch.Tensor.grad.__set__(self, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.watch.read()
        with self._as_usual():
            return self.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        self.watch.read()
        with self._as_usual():
            return self.__deepcopy__(memo)

    @contextmanager
    def _as_usual(self) -> Iterator[None]:
        """Be a usual tensor within the block, for copies of it."""
        watched, whole = type(self), vars(self).pop("whole", None)
        self.__class__ = self.plain
        try:
            yield
        finally:
            self.__class__ = watched
            if whole is not None:
                self.whole = whole
