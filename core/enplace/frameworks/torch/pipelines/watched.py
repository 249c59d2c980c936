"""See where a script reads or writes weights between the steps of a pipeline.

While they are watched, parameters have a class that tells of both; else they have their own, so
that nothing pays for it in steps, evaluation and optimisers. What shares memory with a parameter,
as ``parameter.data`` does, is watched like it. The gradient of a parameter that another process
trains is a stand-in without values, and so is what a script makes of it, such as a momentum.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from enplace.frameworks.torch.pipelines.calls import PipelineRefusedError, has_any, is_of_script
from enplace.frameworks.torch.pipelines.tape import IN_PLACE

_SHARING = ("data", "detach", "__getitem__")
"""What gives a tensor that may share the memory of another; other views are read at once."""
_ALONE = 2
"""So often the memory of one tensor is used: by the tensor, and where that is asked."""
_VIEWS = ("T", "mT", "H", "mH", "real", "imag", "__cuda_array_interface__", "")
"""Attributes that are values; Python's own properties may have no name."""
_ABOUT = {"size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "__len__",
          "storage_offset", "get_device", "retain_grad", "requires_grad_", "share_memory_",
          "register_hook", "register_post_accumulate_grad_hook", "backward", "_is_view",
          "_has_compatible_shallow_copy_type", "empty_like", "zeros_like", "ones_like", "full_like",
          "rand_like", "randn_like"}  # fmt: skip
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
    is_updating : bool
        Whether an optimiser makes its step.
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
        self._elsewhere: type = type("Tensor", (Elsewhere,), {"watch": self})
        self._parameters: list[tuple[torch.nn.Parameter, type, type]] = []
        self.is_on = self.is_updating = False

    def follow(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Take the parameters to watch; the script may have their memory, as of a state dict."""
        followed = [*parameters]
        whole_of = {_memory(each): each for each in followed if each.numel()}
        for one in [each for each in gc.get_objects() if type(each) is torch.Tensor]:
            with suppress(RuntimeError):  # some have no memory
                if (whole := whole_of.get(_memory(one))) is not None:
                    one.__class__, one.whole = self._part, whole
        for each in followed:
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
        if "self" in kwargs:
            args, kwargs = (kwargs["self"], *args), {k: v for k, v in kwargs.items() if k != "self"}
        of_others = has_any((args, kwargs), Elsewhere)
        if _is_about(func) or not (self.is_on or of_others):
            return usual(func, types, args, kwargs)
        name = _name(func)
        is_changed = func.__name__ == "__set__" or IN_PLACE.fullmatch(name)
        if is_changed or kwargs.get("out") is not None:
            return self._changed(usual, func, types, args, kwargs)
        if of_others:
            if has_any((args, kwargs), _Watched):
                self._read()  # as the processes do that have those gradients
            return self._made_of_others(func, types, args, kwargs)
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
        return self.stand_in(parameter)

    def is_asked_by(self, frame: FrameType) -> bool:
        """Whether what has no gradient here may have one for a frame that asks.

        PyTorch knows parameters without one; its own optimisers look at no others, but what a
        script derives of them may.
        """
        name = str(frame.f_globals.get("__name__"))
        return is_of_script(frame) or (self.is_updating and name.startswith("torch.optim."))

    def stand_in(self, tensor: torch.Tensor, shape: torch.Size | None = None) -> torch.Tensor:
        """Return a tensor without values, which takes no memory."""
        with torch._C.DisableTorchFunctionSubclass():
            none = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
            made = none.expand(tensor.shape if shape is None else shape)
            return made.as_subclass(self._elsewhere)

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
        known = {id(_whole(each)) for each in changed}  # p.data -= 1 ends with p.data = p.data
        others = [each for each in tree_leaves(given) if id(_whole(each)) not in known]
        if any(isinstance(each, _Watched) for each in others):
            self._read()
        if out is None and args and isinstance(args[0], list | tuple):
            away = _are_elsewhere(given)
            self._leave(each for each, is_away in zip(args[0], away, strict=True) if is_away)
            own = _own_of_lists(given, away)
            args, kwargs = own[: len(args)], dict(zip(kwargs, own[len(args) :], strict=True))
            made = usual(func, types, args, kwargs) if args[0] else None
        elif has_any(given, Elsewhere):
            self._leave(changed)
            made = changed[0]
        else:
            made = usual(func, types, args, kwargs)
        self._wrote(_whole(each) for each in changed if isinstance(each, _Watched))
        return made

    def _leave(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave tensors that are changed by others' gradients to the processes that have those."""
        for each in tensors:
            if isinstance(each, Elsewhere):
                continue
            if isinstance(each, _Watched):
                if not self._is_elsewhere(_whole(each)):
                    raise _reads_others()
            elif type(each) is not torch.Tensor or self._has_others(each):
                raise _reads_others()
            else:
                each.data = self.stand_in(each).as_subclass(torch.Tensor)
                each.__class__ = self._elsewhere

    def _has_others(self, tensor: torch.Tensor) -> bool:
        """Whether a gradient of this process, or another tensor, has the memory of a tensor."""
        uses = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
        return uses > _ALONE or any(p.grad is tensor for p, _, _ in self._parameters)

    def _made_of_others(self, func: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """Return stand-ins for what a function makes of others' gradients."""
        made: Any = torch._C._disabled_torch_function_impl(func, types, args, kwargs)
        is_in_loss = self._is_in_step() and torch.is_grad_enabled()
        if is_in_loss or not all(isinstance(each, torch.Tensor) for each in tree_leaves([made])):
            raise _reads_others()
        if _name(func).startswith("_foreach_") and args:
            pairs = zip(made, _are_elsewhere((*args, *kwargs.values())), strict=True)
            return type(made)(self.stand_in(each) if is_away else each for each, is_away in pairs)
        return tree_map(self.stand_in, made)


def _are_elsewhere(args: Sequence[Any]) -> list[bool]:
    """Of a call that takes many tensors, say which it would make of others' gradients."""
    lists = _lists_of(args)
    of_all = [each for each in args if not any(each is one for one in lists)]
    return [has_any((group, of_all), Elsewhere) for group in zip(*lists, strict=True)]


def _lists_of(args: Sequence[Any]) -> list[Any]:
    lists = [each for each in args if isinstance(each, list | tuple)]
    return [each for each in lists if len(each) == len(args[0])]


def _own_of_lists(args: Sequence[Any], away: Sequence[bool]) -> Sequence[Any]:
    """Leave out of a call that changes many tensors what it would change by others' gradients."""
    lists = _lists_of(args)
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

    watch: ClassVar[Watch]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        usual = torch._C._disabled_torch_function_impl
        return cls.watch.called(usual, func, types, args, kwargs or {})


def _reads_others() -> PipelineRefusedError:
    return PipelineRefusedError(
        "the script reads a gradient of another stage, or what it made of one, and each process "
        "has those of its own; take norms by clip_grad_norm_, which counts all, and let what is "
        "made of a gradient change its own parameter alone, as in p.data -= 0.1 * p.grad"
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
        if found is None and self.watch.is_asked_by(sys._getframe(1)):
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
