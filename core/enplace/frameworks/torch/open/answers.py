"""What a script is answered that asks for values of tensors without content.

A number is 1 unless it is known, and a mask takes all rows; notes say which lines go by that.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import takewhile
from math import prod
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from enplace.frameworks.programs import current_line, name_lines
from enplace.frameworks.source import Source
from enplace.frameworks.torch.open.by_value import BY_VALUE
from enplace.frameworks.torch.open.gpu_kernels import recur, recur_back
from enplace.frameworks.torch.open.shares import Shares
from enplace.frameworks.torch.open.uses import END, Uses, place_of
from enplace.frameworks.torch.open.values import KnownValues, Masks, plainly
from enplace.frameworks.torch.record.recorder import run_parts
from enplace.frameworks.torch.record.recording import LoadError
from enplace.frameworks.torch.record.storages import is_sparse
from enplace.text import listed, percent

_aten = torch.ops.aten

_SPARSE = (
    "How many numbers a sparse tensor holds is not known in an estimate, so ops on them count as "
    "if they were empty; for their times, profile on a device without --estimate."
)
_ITERATES = (
    "LBFGS iterates until values are small, which an estimate does not have, so each of its steps "
    "counts one evaluation of its closure, and no update"
)
_COPIES = (
    "What DistributedDataParallel adds is left out: its buckets, which take as much memory as the "
    "gradients, and the sums of gradients over processes."
)


class Answers(TorchDispatchMode):
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
        self._shares = Shares(self.known)
        self._iterates: dict[str, None] = {}  # lines that call LBFGS
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
        if self._iterates:
            yield (
                f"{_ITERATES} ({name_lines(self._iterates)}); for all iterations, profile on a "
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
        self._shares.note(func, args, kwargs, made)
        return made

    def _guess(self, func: Any, asked: torch.Tensor, other: Any = None) -> bool | float | int:
        """Answer as if each number were 1; note what this decides."""
        line = self.line()
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
        uses, line = self._find_uses(), self.line()
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
        """Return what is decided by the value that the script reads; nothing if a library does."""
        frame = _asker()
        if frame is None or self._source is None:
            return set()
        inner = takewhile(lambda each: each[0] is not frame, walk_stack(None))
        if any(each.f_globals.get("__name__") == "torch.optim.lbfgs" for each, _ in inner):
            self._iterates[self.line()] = None
            return set()
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
                self._take(_EVEN, self.line())
            return usual(tensor, sizes, dim)

        return split

    def _take(self, answer: str, line: str) -> None:
        """Note what a line of the script takes unknown values to be."""
        self._taken[line][answer] = None

    def line(self) -> str:
        """Name the line of the script that runs; empty without a script."""
        if self._source is None:
            return ""
        if (frame := _asker()) is None:
            return current_line(self._source)
        return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"

    def _run(self, func: Any, args: Sequence[Any], kwargs: Any, given: Any) -> Any:
        """Run an op on tensors without content."""
        if func in (_aten.nonzero.out, _aten.masked_select.out):
            made = self._run(func.overloadpacket.default, args, {}, given)
            return kwargs["out"].resize_(made.shape)
        if func in (_aten.nonzero.default, _aten.masked_select.default):
            mask = args[-1]
            n = self._n_rows(mask)
            if func is _aten.masked_select.default:
                shape = torch.broadcast_shapes(args[0].shape, mask.shape)
                return args[0].new_empty(n * (prod(shape) // max(mask.numel(), 1)))
            rows = mask.new_empty((n, mask.dim()), dtype=torch.int64)
            if n == mask.numel():
                self.known.set_all_rows(rows, mask.shape)
            return rows
        if func in BY_VALUE:
            made = NotImplemented if given is None else self.known.compute(func, given)
            if made is NotImplemented:
                make, answer = BY_VALUE[func]
                if kwargs.get("output_size") is None:
                    self._take(answer, self.line())
                return make(*args, **kwargs)
            like = args[0]  # shapes are known
            return tree_map_only(
                torch.Tensor, lambda each: like.new_empty(each.shape, dtype=each.dtype), made
            )
        if func is _aten._cudnn_rnn.default and args[3] is None:
            return recur(func, args)
        if func is _aten._cudnn_rnn_backward.default:
            return recur_back(args)
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
            self._take("of full length", self.line())
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
            self._take("of full length", self.line())
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
            n = self._n_rows(each)
            found += [each.new_empty((n,), dtype=torch.int64)] * each.dim()
        return found

    def _n_rows(self, mask: torch.Tensor) -> int:
        """Return how many rows a mask takes, as far as that is known."""
        if (content := self.known.find(mask)) is not None:
            with plainly():
                return int(content.count_nonzero())
        if torch._C._current_autograd_node() is None:  # a gradient goes by the same mask
            share = self._shares.share(mask)
            rows = "all" if share in (None, 1) else f"{percent(share)} of"
            self._take(f"true for {rows} rows", self.line())
        return self._shares.n_rows(mask)


_FINITE, _LENGTH, _EVEN = "finite", "the whole length", "sizes of even parts"
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
        if is_installed(frame):
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


def is_installed(frame: FrameType) -> bool:
    """Return whether a frame runs an installed library; the program itself may be installed too."""
    is_program = frame.f_globals.get("__name__") == "__main__"
    return not is_program and "-packages" in frame.f_code.co_filename
