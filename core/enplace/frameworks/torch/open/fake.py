"""Steps on tensors without content: a model of any size is recorded in no memory.

``FakeTensorMode`` knows the shape of each result. What a script asks of values gets an answer that
lets it go on (``answers.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils, checkpoint
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import worker as workers
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.weak import WeakIdKeyDictionary

from enplace.frameworks.source import Source
from enplace.frameworks.torch.open.answers import Answers, is_installed
from enplace.frameworks.torch.open.files import (
    keep_on_host,
    load_small,
    make_shapes,
    map_nothing,
    pickle_with_size,
    read_small,
    save_shapes,
    save_with_size,
)
from enplace.frameworks.torch.open.gpu_kernels import OnTheHost, fork_on_host, run_again_in
from enplace.frameworks.torch.open.scripts import OF_STEPS, Watch, run_watched
from enplace.frameworks.torch.open.values import KnownValues
from enplace.frameworks.torch.record.recorder import check_hooks, elsewhere
from enplace.frameworks.torch.record.recording import LoadError, Recorded, Wanted
from enplace.frameworks.torch.record.timing import Clock
from enplace.processes.worker import Report

_HINT = (
    ", or profile it on a device without --estimate: here each number of a tensor is 1, unless it "
    "follows from numbers in the script"
)


def record_on_fake_tensors(source: Source, report: Report) -> Recorded:
    """Run a script on fake tensors until its second step is recorded.

    Raises
    ------
    LoadError
        If it ends or fails before, or asks for more than a fake tensor knows.
    """
    check_hooks(*OF_STEPS, *OF_FAKES)
    watch = Watch(source, Clock, Wanted(0, 0, report))
    watch.hint = _HINT
    with fake_tensors(source) as answers:
        run_watched(source, watch)
    found = watch.recorded()
    return replace(found, about=(*found.about, *answers.about()))


OF_FAKES = (
    "torch._subclasses.FakeTensor",
    "torch.utils._mode_utils.no_dispatch",
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch._C._swap_tensor_impl",
    "torch.nn.Module._apply",
    "torch.nn.RNNBase.flatten_parameters",
    "torch.nn.parallel.DistributedDataParallel.no_sync",
    "torch.amp.GradScaler._maybe_opt_step",
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter",
    "torch.utils.data._utils.worker.WorkerInfo",
    "torch._utils._rebuild_tensor",
    "torch.optim.optimizer._get_foreach_kernels_supported_devices",
    "torch.optim.optimizer._foreach_supported_types",
    "torch.utils._foreach_utils._foreach_supported_types",
)
"""What an estimate replaces in PyTorch."""


@contextmanager
def fake_tensors(source: Source | None = None) -> Iterator[Answers]:
    """Make all tensors fake within the block; notes name lines of the script, if there is one."""
    with ExitStack() as stack:
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        # Libraries that see a fake tensor believe that they are compiled, and choose other kernels.
        stack.enter_context(patch.object(torch._subclasses, "FakeTensor", _Nothing))
        answers = stack.enter_context(Answers(source))
        stack.enter_context(patch.object(torch, "asarray", map_nothing(torch.asarray)))
        # Else transformers loads weights in threads, where no mode is on.
        stack.enter_context(patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1"))
        for kind, name in ((torch.nn.Parameter, "__new__"), (torch.nn.Module, "register_buffer")):
            keep = _keep_fake(getattr(kind, name), mode, answers.known)
            stack.enter_context(patch.object(kind, name, keep))
        for kind in (UninitializedParameter, UninitializedBuffer):
            stack.enter_context(patch.object(kind, "__new__", _without_size(kind.__new__)))
            stack.enter_context(patch.object(kind, "materialize", _materialize))
        stack.enter_context(patch.object(torch.nn.Module, "_apply", _apply))
        stack.enter_context(patch.object(DataLoader, "__iter__", _load_here))
        stack.enter_context(patch.dict(default_collate_fn_map, {torch.Tensor: _stack}))
        step = patch.object(torch.amp.GradScaler, "_maybe_opt_step", _step_anyway)
        stack.enter_context(step)  # it asks whether a gradient is infinite
        ddp = torch.nn.parallel.DistributedDataParallel
        stack.enter_context(patch.object(ddp, "__init__", answers.hold()))
        stack.enter_context(patch.object(ddp, "forward", _call_held))
        stack.enter_context(patch.object(ddp, "no_sync", lambda self: nullcontext()))
        stack.enter_context(patch.object(torch, "ctc_loss", _with_lengths(torch.ctc_loss)))
        flatten = patch.object(torch.nn.RNNBase, "flatten_parameters", lambda self: None)
        stack.enter_context(flatten)  # it compares addresses
        stack.enter_context(patch.object(torch._VF, "_pad_packed_sequence", _pad))
        split = answers.split(torch._VF.split_with_sizes)
        stack.enter_context(patch.object(torch._VF, "split_with_sizes", split))
        copy = patch.object(torch.Tensor, "__deepcopy__", _copy(torch.Tensor.__deepcopy__))
        stack.enter_context(copy)
        for place in (optimizer, _foreach_utils):
            types = [*place._foreach_supported_types, FakeTensor]
            stack.enter_context(patch.object(place, "_foreach_supported_types", types))
        # As on a GPU, optimisers take lists of tensors unless the script says otherwise.
        lists = ("_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"])
        stack.enter_context(patch.object(optimizer, *lists))
        reduce = pickle_with_size(torch.Tensor.__reduce_ex__, answers.known)
        rebuild = read_small(torch._utils._rebuild_tensor, answers.known)
        for owner, name, new in (
            (torch, "save", save_with_size(torch.save)),
            (torch, "load", load_small(torch.load)),
            (torch.Tensor, "__reduce_ex__", reduce),
            (torch.UntypedStorage, "cpu", keep_on_host(torch.UntypedStorage.cpu)),
            (torch._utils, "_rebuild_tensor", rebuild),
        ):
            stack.enter_context(patch.object(owner, name, new))
        if find_spec("safetensors"):
            files = import_module("safetensors.torch")
            stack.enter_context(patch.object(files, "save_file", save_shapes(files._TYPES)))
            stack.enter_context(patch.object(files, "save", make_shapes(files._TYPES)))
        for name in ("numpy", "__array__", "tolist"):
            read = _read(name, answers)
            for kind in (torch.Tensor, FakeTensor):  # each may have its own
                stack.enter_context(patch.object(kind, name, read))
        written = _format(torch.Tensor.__format__)
        stack.enter_context(patch.object(torch.Tensor, "__format__", written))
        for owner in (torch.Tensor, torch.UntypedStorage):
            refused = _refuse_address(owner.data_ptr, answers)
            stack.enter_context(patch.object(owner, "data_ptr", refused))
        stack.enter_context(_OfNumbers())
        if not torch.cuda.is_available():
            fork = patch.object(torch.random, "fork_rng", fork_on_host(torch.random.fork_rng))
            stack.enter_context(fork)
            on_host = stack.enter_context(OnTheHost())
            again = run_again_in(checkpoint.checkpoint, on_host)
            stack.enter_context(patch.object(checkpoint, "checkpoint", again))
        yield answers


def _keep_fake(usual: Any, mode: FakeTensorMode, known: KnownValues) -> Any:
    """Let a module have no real tensor, such as one from a buffer of Python: views would be new."""

    def fake(given: Any) -> Any:
        is_real = isinstance(given, torch.Tensor) and not isinstance(given, FakeTensor)
        if not is_real or is_lazy(given):
            return given
        made = mode.from_tensor(given)
        if (content := known.find(given)) is not None:
            known.set(made, content)
        return made

    @wraps(usual)
    def keep(*args: Any, **kwargs: Any) -> Any:
        return usual(*map(fake, args), **{name: fake(each) for name, each in kwargs.items()})

    return keep


def _without_size(usual: Any) -> Any:
    """Make a parameter or buffer of a lazy module as it is: a fake can become no other class."""

    @wraps(usual)
    def make(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return usual(*args, **kwargs)

    return make


def _materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Make a lazy parameter or buffer a fake one, and the same object: an optimiser may have it."""
    made: Any = torch.empty(shape, dtype=dtype or self.dtype, device=device or self.device)
    if isinstance(self, torch.nn.Parameter):
        made = torch.nn.Parameter(made, self.requires_grad)
    self.__class__, made.__class__ = made.__class__, self.__class__
    self.__dict__, made.__dict__ = made.__dict__, self.__dict__
    torch._C._swap_tensor_impl(self, made)


def _copy(usual: Any) -> Any:
    """Copy a tensor without content: PyTorch would copy its mode, and a real tensor beside it."""

    @wraps(usual)
    def copy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not isinstance(self, FakeTensor):
            return usual(self, memo)
        if id(self) not in memo:
            made: torch.Tensor = self.detach().clone()
            if isinstance(self, torch.nn.Parameter):
                made = torch.nn.Parameter(made, self.requires_grad)
            memo[id(self)] = made.requires_grad_(self.requires_grad)
        return memo[id(self)]

    return copy


MOST_BYTES = 1 << 28
"""Arrays of more bytes are not made up for a script that asks for them."""


def _read(name: str, answers: Answers) -> Any:
    """Let a script read a tensor without content: each number that is not known is 1."""
    usual = getattr(torch.Tensor, name)

    @wraps(usual)
    def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, FakeTensor) and (content := answers.known.find(self)) is not None:
            with _disable_current_modes():  # some ask whether there is a mode, and run ops then
                return usual(content, *args, **kwargs)
        size = self.numel() * self.element_size()
        if not isinstance(self, FakeTensor) or size > MOST_BYTES:
            return usual(self, *args, **kwargs)
        kind = _NUMPY.get(self.dtype, np.float32)
        answer = np.full(tuple(self.shape), answers.say(self), kind)
        return answer.tolist() if name == "tolist" else answer

    return read


def _format(usual: Any) -> Any:
    """Write one number as itself: PyTorch does so for its own class of tensors only."""

    @wraps(usual)
    def write(self: torch.Tensor, how: str) -> str:
        is_number = isinstance(self, FakeTensor) and not self.dim()
        return format(self.item(), how) if is_number else usual(self, how)

    return write


def _refuse_address(usual: Any, answers: Answers) -> Any:
    """Refuse to tell a script where a tensor's content is; libraries compare such addresses."""

    @wraps(usual)
    def data_ptr(self: Any) -> int:
        is_tensor = isinstance(self, torch.Tensor)
        storage = self.untyped_storage() if is_tensor else self
        if storage.device.type != "meta":
            return int(usual(self))
        asker = sys._getframe(1)
        if asker.f_globals.get("__name__", "").startswith("torch."):
            return 0
        if is_installed(asker):
            offset = self.storage_offset() * self.element_size() if is_tensor else 0
            return _NOWHERE + int(storage._cdata) + int(offset)
        raise LoadError(
            f"{answers.line()}: it asks for the address of a tensor's content, and tensors of "
            f"an estimate have none; profile it on a device without --estimate"
        )

    return data_ptr


_NOWHERE = 1 << 62
"""Added to what tells storages apart: no address, so nothing is read or written there."""


_NUMPY: dict[torch.dtype, Any] = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}
"""Types of numbers; float32 for others."""


class _Nothing:
    """No tensor is one of these."""


def _pad(
    data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, value: float, total: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad packed sequences by other ops of PyTorch; its own would read ``sizes``."""
    going: list[int] = sizes.tolist()
    rest = data.shape[1:]
    padded = data.new_full((max(total, len(going)), going[0], *rest), value)
    at = row = 0
    for n, same in groupby(going):
        steps = len([*same])
        padded[at : at + steps, :n] = data[row : row + n * steps].view(steps, n, *rest)
        at, row = at + steps, row + n * steps
    lengths = torch.tensor([sum(n > each for n in going) for each in range(going[0])])
    return padded.transpose(0, 1) if batch_first else padded, lengths


_moved: WeakIdKeyDictionary = WeakIdKeyDictionary()
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
            with _disable_current_modes() if is_lazy(buffer) else nullcontext():
                self._buffers[name] = fn(buffer)
    return self


def _converted(parameter: torch.nn.Parameter, fn: Any) -> torch.nn.Parameter:
    if is_lazy(parameter):
        with _disable_current_modes():
            parameter.data = fn(parameter.data)
        return parameter
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


def _step_anyway(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


def _call_held(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.module(*args, **kwargs)


def _with_lengths(usual: Any) -> Any:
    """Give lengths as tensors: PyTorch would write those of a list into memory of a fake one."""

    def loss(given: Any, targets: Any, inputs: Any, lengths: Any, *more: Any) -> Any:
        return usual(given, targets, torch.as_tensor(inputs), torch.as_tensor(lengths), *more)

    return loss


def _load_here(self: DataLoader[Any]) -> Any:
    """Load batches in this process: others cannot send a tensor without content.

    The loader keeps what it was made with, of which libraries make others. No step has the ops by
    which another process would have loaded its batch.
    """
    single = patch.multiple(self, num_workers=0, timeout=0, pin_memory=False)
    if not self.num_workers:
        with single:
            return dataloader._SingleProcessDataLoaderIter(self)
    told = workers.WorkerInfo(id=0, num_workers=1, seed=torch.initial_seed(), dataset=self.dataset)
    as_worker = patch.object(workers, "_worker_info", told)
    with as_worker:
        if self.worker_init_fn is not None:
            with elsewhere():
                self.worker_init_fn(0)
        with single:
            batches = dataloader._SingleProcessDataLoaderIter(self)
    fetcher: Any = batches._dataset_fetcher
    usual = fetcher.fetch

    def fetch(indices: Any) -> Any:
        with as_worker, elsewhere():
            return usual(indices)

    fetcher.fetch = fetch
    return batches


def _stack(batch: Sequence[torch.Tensor], **_: Any) -> torch.Tensor:
    """Make a batch in plain memory: PyTorch's worker would share it with other processes."""
    return torch.stack([*batch])


class _OfNumbers(TorchFunctionMode):
    """Lets a tensor be made of a list of others: PyTorch would read their memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = args[0] if func is torch.tensor and args else None
        if isinstance(given, list | tuple) and any(isinstance(e, FakeTensor) for e in given):
            args = (tree_map_only(FakeTensor, torch.Tensor.tolist, given), *args[1:])
        return func(*args, **kwargs or {})
