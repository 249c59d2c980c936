"""Steps on tensors without content: a model of any size is recorded in no memory.

``FakeTensorMode`` knows the shape of each result. What a script asks of values gets an answer that
lets it go on (``values.py``): a number is 1 unless it is known, and a mask takes all rows.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby, takewhile
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _foreach_utils, checkpoint
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from enplace.frameworks.programs import current_line, name_lines
from enplace.frameworks.source import Source
from enplace.frameworks.torch.open.scripts import OF_STEPS, Watch, run_watched
from enplace.frameworks.torch.open.uses import CONDITION, END, Uses, place_of
from enplace.frameworks.torch.open.values import KnownValues, Masks, plainly
from enplace.frameworks.torch.record.recorder import check_hooks, run_parts
from enplace.frameworks.torch.record.recording import LoadError, Recorded, Wanted
from enplace.frameworks.torch.record.storages import is_sparse
from enplace.frameworks.torch.record.timing import Clock
from enplace.processes.worker import Report
from enplace.text import listed

_aten = torch.ops.aten


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


_SPARSE = (
    "How many numbers a sparse tensor holds is not known in an estimate, so ops on them count as "
    "if they were empty; for their times, profile on a device without --estimate."
)
_COPIES = (
    "What DistributedDataParallel adds is left out: its buckets, which take as much memory as the "
    "gradients, and the sums of gradients over processes."
)


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
    "torch.optim.optimizer._get_foreach_kernels_supported_devices",
    "torch.optim.optimizer._foreach_supported_types",
    "torch.utils._foreach_utils._foreach_supported_types",
)
"""What an estimate replaces in PyTorch."""


@contextmanager
def fake_tensors(source: Source | None = None) -> Iterator[_Answers]:
    """Make all tensors fake within the block; notes name lines of the script, if there is one."""
    with ExitStack() as stack:
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        # Libraries that see a fake tensor believe that they are compiled, and choose other kernels.
        stack.enter_context(patch.object(torch._subclasses, "FakeTensor", _Nothing))
        answers = stack.enter_context(_Answers(source))
        stack.enter_context(patch.object(torch, "asarray", _map_nothing(torch.asarray)))
        # Else transformers loads weights in threads, where no mode is on.
        stack.enter_context(patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1"))
        for kind, name in ((torch.nn.Parameter, "__new__"), (torch.nn.Module, "register_buffer")):
            keep = _keep_fake(getattr(kind, name), mode, answers.known)
            stack.enter_context(patch.object(kind, name, keep))
        for kind in (UninitializedParameter, UninitializedBuffer):
            stack.enter_context(patch.object(kind, "__new__", _without_size(kind.__new__)))
            stack.enter_context(patch.object(kind, "materialize", _materialize))
        stack.enter_context(patch.object(torch.nn.Module, "_apply", _apply))
        stack.enter_context(patch.object(DataLoader, "__init__", _load_here(DataLoader.__init__)))
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
        saved: dict[str, Any] = {}
        stack.enter_context(patch.object(torch, "save", _save_to(saved)))
        stack.enter_context(patch.object(torch, "load", _load_from(saved, torch.load)))
        if find_spec("safetensors"):
            files = import_module("safetensors.torch")
            stack.enter_context(patch.object(files, "save_file", _save_to(saved)))
            load = _load_from(saved, files.load_file)
            stack.enter_context(patch.object(files, "load_file", load))
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
            fork = patch.object(torch.random, "fork_rng", _fork(torch.random.fork_rng))
            stack.enter_context(fork)
            on_host = stack.enter_context(_OnTheHost())
            again = _checkpoint(checkpoint.checkpoint, on_host)
            stack.enter_context(patch.object(checkpoint, "checkpoint", again))
        yield answers


def _map_nothing(usual: Any) -> Any:
    """Make a tensor of a file without its content: safetensors maps files so."""

    @wraps(usual)
    def as_array(given: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(given, torch.UntypedStorage):
            return torch.empty(given.nbytes(), dtype=torch.uint8)
        return usual(given, *args, **kwargs)

    return as_array


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


def _save_to(saved: dict[str, Any]) -> Any:
    """Save no tensors, for they have no content; but keep what would have been saved."""

    def save(thing: Any, file: Any, *_: Any, **__: Any) -> None:
        if (name := _name_of(file)) is not None:
            saved[name] = thing

    return save


def _load_from(saved: dict[str, Any], usual: Any) -> Any:
    @wraps(usual)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        name = _name_of(file)
        return saved[name] if name in saved else usual(file, *args, **kwargs)

    return load


def _name_of(file: Any) -> str | None:
    name = getattr(file, "name", file)
    return os.path.realpath(name) if isinstance(name, str | os.PathLike) else None


MOST_BYTES = 1 << 28
"""Arrays of more bytes are not made up for a script that asks for them."""


def _read(name: str, answers: _Answers) -> Any:
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


def _refuse_address(usual: Any, answers: _Answers) -> Any:
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
        if _is_installed(asker):
            offset = self.storage_offset() * self.element_size() if is_tensor else 0
            return _NOWHERE + int(storage._cdata) + int(offset)
        raise LoadError(
            f"{answers._line()}: it asks for the address of a tensor's content, and tensors of "
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


class _Answers(TorchDispatchMode):
    """Answers what a script asks of values.

    Attributes
    ----------
    known : KnownValues
        The content of the tensors that have some.
    masks : Masks
        What is said of all others.
    saw_sparse : bool
        Whether an op was given a sparse tensor.
    """

    def __init__(self, source: Source | None) -> None:
        super().__init__()
        self.known = KnownValues()
        self.saw_sparse = self.saw_copies = False
        self._source = source
        self._uses = Uses({})
        self._found: dict[tuple[CodeType, int], set[str]] = {}
        self._asked: Counter[str] = Counter()
        self.masks = Masks(self.known)
        self._taken: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def about(self) -> Iterator[str]:
        """Name the lines of the script that go by unknown values."""
        if self._taken:
            lines_of: defaultdict[str, list[str]] = defaultdict(list)
            for line, answers in self._taken.items():
                lines_of[" or ".join(answers)].append(line)
            taken = [
                f"{answer} ({name_lines(lines)})" if any(lines) else answer
                for answer, lines in lines_of.items()
            ]
            yield (
                f"What the script does depends on values that an estimate does not have; they were "
                f"taken to be {listed(taken)}. If that changes what a step computes, profile on a "
                f"device without --estimate."
            )
        if self.saw_sparse:
            yield _SPARSE
        if self.saw_copies:
            yield _COPIES

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if (parts := run_parts(self, func, args, kwargs)) is not NotImplemented:
            return parts
        self.saw_sparse |= any(isinstance(e, torch.Tensor) and is_sparse(e) for e in args)
        given = self.known.given(func, args, kwargs)
        if func in _ASKS:
            answer = NotImplemented if given is None else self.known.compute(func, given)
            return self._guess(func, *args[:2]) if answer is NotImplemented else answer
        made = self._run(func, args, kwargs, given)
        self.known.note(func, args, kwargs, given, made)
        self.masks.note(func, args, made)
        return made

    def _guess(self, func: Any, asked: torch.Tensor, other: Any = None) -> bool | float | int:
        """Answer as if each number were 1; note what this decides."""
        line = self._line()
        self._asked[line] += 1
        if self._asked[line] > MOST_ASKED:
            raise LoadError(
                f"{line}: it has asked for a value {MOST_ASKED:,} times, as if it were waiting "
                f"for another; in an estimate each number of a tensor is 1, so profile it on a "
                f"device without --estimate"
            )
        if other is None:
            return self.say(asked)
        # A file with both names of a tied weight has it twice; transformers ties what is equal.
        are_parameters = all(isinstance(each, torch.nn.Parameter) for each in (asked, other))
        is_close = func is _aten.allclose.default
        answer = is_close or (are_parameters and asked.shape == other.shape)
        if self._find_uses():
            self._take(str(answer).lower(), line)
        return answer

    def say(self, asked: torch.Tensor) -> bool | float | int:
        """Say what each number of a tensor is taken to be; note if anything goes by it."""
        uses, line = self._find_uses(), self._line()
        if asked.dtype == torch.bool:
            said = self.masks.say(asked)
            if uses:
                self._take(_FINITE if said.is_sure else str(said.all).lower(), line)
            return said.all
        if asked.dtype.is_floating_point or asked.dtype.is_complex:
            answer: float | int = 1.0
        else:
            answer = _WHOLE if END in uses and asked.element_size() >= 4 else 1
        if uses:
            self._take(_LENGTH if answer == _WHOLE else "1", line)
        return answer

    def _find_uses(self) -> set[str]:
        """Return what is decided by the value that the script reads; nothing if a library does.

        LBFGS asks whether to end its iterations.
        """
        frame = _asker()
        if frame is None or self._source is None:
            return set()
        inner = takewhile(lambda each: each[0] is not frame, walk_stack(None))
        if any(each.f_globals.get("__name__") == "torch.optim.lbfgs" for each, _ in inner):
            return {CONDITION}
        at = frame.f_code, frame.f_lasti
        if at not in self._found:
            file = frame.f_code.co_filename
            if not self._uses.knows(file):
                self._uses = Uses(_texts_of_script(file))
            self._found[at] = self._uses.find(file, place_of(frame))
        return self._found[at]

    def hold(self) -> Callable[..., None]:
        """Return how a wrapper is made of a model that no other process has a copy of."""

        def init(wrapper: Any, module: torch.nn.Module, *_: Any, **__: Any) -> None:
            torch.nn.Module.__init__(wrapper)
            wrapper.module = module
            self.saw_copies = True

        return init

    def split(self, usual: Any) -> Any:
        """Return how to split a tensor, evenly if the sizes are not known: each counts as 1."""

        @wraps(usual)
        def split(tensor: torch.Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
            n, parts = tensor.shape[dim], len(sizes)
            if {*sizes} == {1} and parts != n:
                sizes = [n // parts + (each < n % parts) for each in range(parts)]
                self._take(_EVEN, self._line())
            return usual(tensor, sizes, dim)

        return split

    def _take(self, answer: str, line: str) -> None:
        """Note what a line of the script takes unknown values to be."""
        self._taken[line][answer] = None

    def _line(self) -> str:
        if self._source is None:
            return ""
        if (frame := _asker()) is None:
            return current_line(self._source)
        return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"

    def _run(self, func: Any, args: Sequence[Any], kwargs: Any, given: Any) -> Any:
        """Run an op on tensors without content."""
        if func in _BY_VALUE:
            made = NotImplemented if given is None else self.known.compute(func, given)
            if made is NotImplemented:
                make, answer = _BY_VALUE[func]
                if kwargs.get("output_size") is None:
                    self._take(answer, self._line())
                return make(*args, **kwargs)
            like = args[0]  # shapes are known
            return tree_map_only(
                torch.Tensor, lambda each: like.new_empty(each.shape, dtype=each.dtype), made
            )
        if func is _aten._cudnn_rnn.default and args[3] is None:
            return _recur(func, args)
        if func is _aten._cudnn_rnn_backward.default:
            return _recur_back(args)
        is_grouped = func._schema.name == "aten::_grouped_mm"  # PyTorch 2.6 has none
        if is_grouped and args[0].dtype != torch.bfloat16:
            low = [each.to(torch.bfloat16) for each in args[:2]]  # its rule knows no other
            return func(*low, *args[2:], **kwargs).to(args[0].dtype)
        if func is _aten._cudnn_init_dropout_state.default:
            return torch.empty(0, dtype=torch.uint8, device=kwargs.get("device"))
        if func is _aten._pack_padded_sequence.default:
            return self._pack(*args)
        if func in (_aten._ctc_loss.default, _aten._ctc_loss.Tensor):
            return self._align(*args)
        if func is _aten.index.Tensor:
            args = (args[0], self._all_rows(args[1]), *args[2:])
        return func(*args, **kwargs)

    def _pack(self, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        """Pack sequences of known lengths, or else of full ones; PyTorch would read the lengths."""
        n, longest = padded.shape[:2] if batch_first else padded.shape[1::-1]
        if (content := self.known.find(lengths)) is None:
            self._take("of full length", self._line())
        with plainly():
            known = torch.full((n,), longest) if content is None else content
            going = (known > torch.arange(int(known.max()))[:, None]).sum(1)
            total = int(known.sum())
        return padded.new_empty((total, *padded.shape[2:])), going

    def _align(
        self, given: torch.Tensor, targets: torch.Tensor, _: Any, lengths: Any, *__: Any
    ) -> Any:
        """Return a CTC loss for each sequence, and what its gradient needs: two for each label."""
        content = self.known.find(lengths) if isinstance(lengths, torch.Tensor) else lengths
        if content is None:
            self._take("of full length", self._line())
        with plainly():
            longest = targets.shape[-1] if content is None else max(map(int, content))
        steps, n = given.shape[:2]
        return given.new_empty(n), given.new_empty((n, steps, 2 * longest + 1))

    def _all_rows(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Replace each mask by numbers of rows: those that it takes if it is known, else all."""
        found: list[torch.Tensor | None] = []
        for each in indices:
            if each is None or each.dtype not in (torch.bool, torch.uint8):
                found.append(each)
                continue
            content = self.known.find(each)
            with plainly():
                n = each.numel() if content is None else int(content.count_nonzero())
            if content is None and torch._C._current_autograd_node() is None:
                self._take(_ALL_ROWS, self._line())  # its gradient goes by the same mask
            found += [each.new_empty((n,), dtype=torch.int64)] * each.dim()
        return found


_ALL_ROWS, _DIFFERENT, _FINITE = "true for all rows", "all different", "finite"
_LENGTH, _EVEN = "the whole length", "sizes of even parts"
"""What values were taken to be."""

_ASKS = (_aten._local_scalar_dense.default, _aten.equal.default, _aten.allclose.default)


MOST_ASKED = 50_000
"""More questions than a line of a script asks, even in loops over its data."""


_WHOLE = (1 << 31) - 1
"""What is said of the end of a slice, so that it takes all there is."""

_STANDARD = os.path.dirname(os.__file__) + os.sep


def _asker() -> FrameType | None:
    """Return what of the script, or of its own modules, asks; None if a library asks for itself."""
    for frame, _ in walk_stack(None):
        file = frame.f_code.co_filename
        if _is_installed(frame):
            if not frame.f_globals.get("__name__", "").startswith(("torch.", "numpy.")):
                return None
        elif _is_own(file, frame.f_globals.get("__name__", "")):
            return frame
    return None


def _is_own(file: str, module: str) -> bool:
    """Return whether a file belongs to the script, not to Python, NumPy, PyTorch or Enplace."""
    is_library = module.partition(".")[0] in ("enplace", "numpy", "torch")
    return not (is_library or file.startswith(("<", _STANDARD)))


def _texts_of_script(file: str) -> dict[str, str]:
    """Read a file of the script, and those of its modules that are imported."""
    files = {file}
    for name, module in [*sys.modules.items()]:
        path = getattr(module, "__file__", None) or ""
        if path.endswith(".py") and "-packages" not in path and _is_own(path, name):
            files.add(path)
    return {each: "".join(linecache.getlines(each)) for each in files}


def _is_installed(frame: FrameType) -> bool:
    """Return whether a frame runs an installed library; the program itself may be installed too."""
    is_program = frame.f_globals.get("__name__") == "__main__"
    return not is_program and "-packages" in frame.f_code.co_filename


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _select(tensor: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(),))


def _unique(
    tensor: torch.Tensor,
    is_sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    """Answer as if no value came twice."""
    n = tensor.numel()
    inverse = tensor.new_empty(tensor.shape if return_inverse else (0,), dtype=torch.int64)
    counts = tensor.new_empty(n if return_counts else (0,), dtype=torch.int64)
    return tensor.new_empty(n), inverse, counts


def _unique_consecutive(
    tensor: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    if dim is None:
        return _unique(tensor, True, return_inverse, return_counts)
    return _unique_rows(tensor, dim)


def _unique_rows(tensor: torch.Tensor, dim: int, *_: bool, **__: bool) -> Any:
    rows = tensor.new_empty(tensor.shape[dim], dtype=torch.int64)
    return torch.empty_like(tensor), rows, torch.empty_like(rows)


def _repeat_once(repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    n = repeats.numel() if output_size is None else output_size
    return repeats.new_empty(n, dtype=torch.int64)


def _count_two(tensor: torch.Tensor, weights: Any = None, minlength: int = 0) -> torch.Tensor:
    dtype = torch.int64 if weights is None else torch.float64
    return tensor.new_empty(max(minlength, 2), dtype=dtype)


_BY_VALUE: dict[Any, tuple[Callable[..., Any], str]] = {
    _aten.nonzero.default: (_nonzero, _ALL_ROWS),
    _aten.masked_select.default: (_select, _ALL_ROWS),
    _aten._unique2.default: (_unique, _DIFFERENT),
    _aten.unique_consecutive.default: (_unique_consecutive, _DIFFERENT),
    _aten.unique_dim.default: (_unique_rows, _DIFFERENT),
    _aten.repeat_interleave.Tensor: (_repeat_once, "1"),
    _aten.bincount.default: (_count_two, "1"),
}
"""Ops whose results have as many rows as values say, and what these are taken to be."""


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


_RECURRENT: dict[Any, tuple[int, int]] = {
    torch.rnn_relu: (0, 1),
    torch.rnn_tanh: (1, 1),
    torch.lstm: (2, 4),
    torch.gru: (3, 3),
}
"""cuDNN's number of a recurrent layer, and how many gates it has."""


def _recur_on_gpu(mode: int, gates: int, inputs: Any, second: Any, third: Any, *more: Any) -> Any:
    """Run recurrent layers with the one kernel of a GPU; ``second`` has packed sequences' sizes."""
    is_packed = isinstance(more[0], list | tuple)
    if is_packed:
        (weights, *more), state, sizes = more, third, second.tolist()  # type: ignore[assignment]
    else:
        weights, state, sizes = third, second, []
    has_bias, layers, dropout, train, two_ways = more[:5]
    first, last = state if mode == 2 else (state, None)
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        inputs, first, last, weights = tree_map_only(
            torch.Tensor, lambda each: each.to(low), (inputs, first, last, weights)
        )
    n_hidden = weights[1].size(0) // gates
    projected = first.size(-1) if first.size(-1) != n_hidden else 0
    stride = 2 + 2 * bool(has_bias) + bool(projected)
    output, hidden, cell, *_ = torch._cudnn_rnn(
        inputs, weights, stride, None, first, last, mode, n_hidden, projected, layers,
        not is_packed and more[5], dropout, train, two_ways, sizes, None,
    )  # fmt: skip
    return (output, hidden, cell) if mode == 2 else (output, hidden)


def _recur(func: Any, args: Sequence[Any]) -> Any:
    """Run a recurrent layer of a GPU, with the memory that it keeps for the backward pass.

    It copies its weights into one tensor if they are not in one already, and keeps five numbers
    for each gate, and more for each layer, as cuDNN 9 does.
    """
    weights = args[1]
    buffer = weights[0].new_empty(sum(each.numel() for each in weights))
    output, *others = func(*args[:3], buffer, *args[4:])
    layers, is_trained, two_ways = args[9], args[12], args[13]
    kept = output.numel() * layers * (1 + two_ways) * output.element_size()
    others[2] = output.new_empty(int(KEPT * kept) if is_trained else 0, dtype=torch.uint8)
    return (output, *others)


def _recur_back(args: Sequence[Any]) -> Any:
    """Return the gradients of a recurrent layer; those of its weights share one tensor."""
    inputs, weights, hidden, cell = args[0], args[1], args[4], args[5]
    flat = torch.empty(sum(each.numel() for each in weights), dtype=inputs.dtype,
                       device=inputs.device)  # fmt: skip
    parts = [part.view(w.shape) for part, w in zip(
        flat.split([each.numel() for each in weights]), weights, strict=True)]  # fmt: skip
    others = [None if each is None else torch.empty_like(each) for each in (hidden, cell)]
    return (torch.empty_like(inputs), *others, parts)


KEPT = 5.5
"""Size of what a recurrent layer keeps for its gradient, in sizes of its output."""


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


def _load_here(init: Any) -> Any:
    """Let data loaders work in this process: others cannot send a tensor without content."""

    def init_here(self: Any, *args: Any, **kwargs: Any) -> None:
        names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
        kwargs = dict(zip(names, args, strict=False)) | kwargs
        dropped = ("prefetch_factor", "persistent_workers", "pin_memory", "timeout")
        for name in ("num_workers", "multiprocessing_context", *dropped):
            kwargs.pop(name, None)
        init(self, **kwargs)

    return init_here


def _fork(usual: Any) -> Any:
    """Keep the random numbers of the host alone: there is no GPU."""

    @wraps(usual)
    def fork(devices: Any = None, enabled: bool = True, *_: Any, **__: Any) -> Any:
        return usual((), enabled)

    return fork


class _OfNumbers(TorchFunctionMode):
    """Lets a tensor be made of a list of others: PyTorch would read their memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = args[0] if func is torch.tensor and args else None
        if isinstance(given, list | tuple) and any(isinstance(e, FakeTensor) for e in given):
            args = (tree_map_only(FakeTensor, torch.Tensor.tolist, given), *args[1:])
        return func(*args, **kwargs or {})


class _OnTheHost(TorchFunctionMode):
    """Keeps tensors on the host: without CUDA, not even a fake one can be on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.nn.functional.scaled_dot_product_attention and _is_fused(
            *args, **kwargs or {}
        ):
            return _attend(*args, **kwargs or {})
        if func is torch.nn.functional.dropout:
            return _drop(*args, **kwargs or {})
        if func in _RECURRENT:
            return _recur_on_gpu(*_RECURRENT[func], *args)
        kwargs = {key: _here(each) for key, each in (kwargs or {}).items()}
        args = tuple(map(_here, args))
        if getattr(func, "__name__", "") in _IN_FULL and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(torch.Tensor, _in_full, (args, kwargs))
        return func(*args, **kwargs)


_IN_FULL = frozenset(
    [
        *("pow", "__pow__", "__rpow__", "layer_norm", "group_norm", "softmax", "log_softmax"),
        *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "exp", "log", "sum", "prod"),
        *("cumsum", "norm", "rsqrt", "reciprocal", "cosine_similarity"),
    ]
)
"""What autocast computes in float32 on a GPU, but not always on a CPU."""


def _in_full(tensor: torch.Tensor) -> torch.Tensor:
    is_low = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.to(torch.float32) if is_low else tensor


def _drop(
    input: torch.Tensor,  # noqa: A002 - its name for callers
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Drop with the one kernel of a GPU."""
    if not training or not p:
        return input
    made: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return input.copy_(made) if inplace else made


def _checkpoint(usual: Any, mode: _OnTheHost) -> Any:
    """Run modules again in the same mode: the backward pass leaves it."""

    @wraps(usual)
    def checkpoint_in_mode(function: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*given: Any, **more: Any) -> Any:
            if mode in _get_current_function_mode_stack():
                return function(*given, **more)
            with mode:
                return function(*given, **more)

        return usual(run, *args, **kwargs)

    return checkpoint_in_mode


def _is_fused(
    query: Any, key: Any, value: Any, attn_mask: torch.Tensor | None = None, *args: Any,
    **kwargs: Any,
) -> bool:  # fmt: skip
    """Return whether a GPU has one kernel for it: not if the mask learns, as positions do in T5."""
    return query.dim() == 4 and (attn_mask is None or not attn_mask.requires_grad)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Attend with the kernels of a GPU; those of a CPU cannot drop anything, for example."""
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(low), key.to(low), value.to(low)
    if enable_gqa and query.size(-3) != key.size(-3):
        times = query.size(-3) // key.size(-3)
        key, value = (each.repeat_interleave(times, -3) for each in (key, value))
    dropped = dropout_p, is_causal
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        flash = _aten._scaled_dot_product_flash_attention
        found = flash(query, key, value, *dropped, scale=scale)
        return cast(torch.Tensor, found[0])
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))
    efficient = _aten._scaled_dot_product_efficient_attention
    found = efficient(query, key, value, attn_mask, True, *dropped, scale=scale)
    return cast(torch.Tensor, found[0])


def _here(value: Any) -> Any:
    is_device = isinstance(value, torch.device) and value.type == "cuda"
    is_name = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
    return torch.device("cpu") if is_device or is_name else value
