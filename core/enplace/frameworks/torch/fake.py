"""Steps on tensors without content: a model of any size is recorded in no memory.

``FakeTensorMode`` knows the shape of each result. What a script asks of values gets an answer that
lets it go on: a number is 1, a yes or no is no, and a mask takes all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from enplace.frameworks.source import Source
from enplace.frameworks.torch.recorder import check_hooks
from enplace.frameworks.torch.scripts import Watch, run_watched
from enplace.frameworks.torch.step import Step
from enplace.frameworks.torch.timing import Clock
from enplace.processes.worker import Report

_aten = torch.ops.aten


def record_on_fake_tensors(source: Source, report: Report) -> Step:
    """Run a script on fake tensors until its second step is recorded.

    Raises
    ------
    LoadError
        If it ends or fails before, or asks for more than a fake tensor knows.
    """
    check_hooks()
    watch = Watch(source, Clock(), 0, 0, report)
    with fake_tensors():
        run_watched(source, watch)
    return watch.recorded().step


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Make all tensors fake within the block."""
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(_Answers())
        stack.enter_context(patch.object(torch.nn.Module, "_apply", _apply))
        stack.enter_context(patch.object(DataLoader, "__init__", _load_here(DataLoader.__init__)))
        flatten = patch.object(torch.nn.RNNBase, "flatten_parameters", lambda self: None)
        stack.enter_context(flatten)  # it compares addresses
        if not torch.cuda.is_available():
            stack.enter_context(_OnTheHost())
        yield


class _Answers(TorchDispatchMode):
    """Answers what a script asks of values."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default:
            return _answer(args[0].dtype)
        if func is _aten.equal.default:
            return False
        if func is _aten.nonzero.default:
            size = (args[0].numel(), args[0].dim())
            return torch.empty(size, dtype=torch.int64, device=args[0].device)
        if func is _aten.masked_select.default:
            return args[0].new_empty((args[0].numel(),))
        if func is _aten._cudnn_init_dropout_state.default:
            return torch.empty(0, dtype=torch.uint8, device=kwargs.get("device"))
        if func is _aten.index.Tensor:
            args = (args[0], _all_rows(args[1]), *args[2:])
        return func(*args, **kwargs)


def _answer(dtype: torch.dtype) -> bool | float | int:
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1


def _all_rows(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Replace each mask by numbers of as many rows."""
    found: list[torch.Tensor | None] = []
    for each in indices:
        if each is not None and each.dtype in (torch.bool, torch.uint8):
            rows = torch.empty((each.numel(),), dtype=torch.int64, device=each.device)
            found += [rows] * each.dim()
        else:
            found.append(each)
    return found


_moved: WeakKeyDictionary[torch.Tensor, tuple[Any, torch.nn.Parameter]] = WeakKeyDictionary()
"""Parameters that were moved or converted, by what, and what they are now: ties stay."""


def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
    """Convert a module's tensors: PyTorch would change them in place, which fakes do not allow."""
    if recurse:
        for child in self.children():
            child._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            self._parameters[name] = _converted(parameter, fn)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _converted(parameter: torch.nn.Parameter, fn: Any) -> torch.nn.Parameter:
    known = _moved.get(parameter)
    if known is not None and known[0] is fn:
        return known[1]
    with torch.no_grad():
        data = fn(parameter)
    if data is parameter or (data.dtype == parameter.dtype and data.device == parameter.device):
        return parameter
    made = torch.nn.Parameter(data, parameter.requires_grad)
    _moved[parameter] = fn, made
    return made


def _load_here(init: Any) -> Any:
    """Let data loaders work in this process: others cannot send a tensor without content."""

    def init_here(self: Any, *args: Any, **kwargs: Any) -> None:
        names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
        kwargs = dict(zip(names, args, strict=False)) | kwargs
        dropped = ("prefetch_factor", "persistent_workers", "pin_memory", "timeout")
        for name in ("num_workers", *dropped):
            kwargs.pop(name, None)
        init(self, **kwargs)

    return init_here


class _OnTheHost(TorchFunctionMode):
    """Keeps tensors where they can be made: without CUDA, not even a fake one can be on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        args = tuple(map(_here, args))
        return func(*args, **{key: _here(each) for key, each in (kwargs or {}).items()})


def _here(value: Any) -> Any:
    is_device = isinstance(value, torch.device) and value.type == "cuda"
    is_name = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
    return torch.device("cpu") if is_device or is_name else value
