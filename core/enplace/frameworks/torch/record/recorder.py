"""The recorder: sees each op that PyTorch dispatches, its storages, and the module it belongs to.

It works alike on real tensors and on fake ones. Storages are known by weak references, so that it
keeps nothing alive and learns when each of them was freed. A backward op belongs to the module of
the forward op that made its node of autograd: both have its sequence number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from traceback import walk_stack
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from enplace.errors import EnplaceError
from enplace.frameworks.torch.error_text import first_line, lacking
from enplace.frameworks.torch.record.op_kinds import ALLOCATES, kind_of
from enplace.frameworks.torch.record.storages import OfMemories, memories_of, n_bytes_of, tensors_in
from enplace.frameworks.torch.record.timing import Clock
from enplace.frameworks.torch.record.work import work_of
from enplace.frameworks.torch.step import (
    GRADIENT,
    INPUT,
    LOSS,
    MODULE,
    PARAMETER,
    STATE,
    RecordedOp,
    Step,
    Storage,
)
from enplace.values.op_kinds import OpPass

ASIDE = ("prim", "profiler")
"""Namespaces of what computes nothing."""

_ELSEWHERE = ContextVar("elsewhere", default=False)


@contextmanager
def elsewhere() -> Iterator[None]:
    """Leave out of the step what runs here: otherwise it would run in another process, or not."""
    token = _ELSEWHERE.set(True)
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)


_ON_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")
"""Begin the names of ops that do one thing to each tensor of some lists."""


HOOKS = (
    "torch._C._current_autograd_node",
    "torch.autograd._get_sequence_nr",
    "torch.nn.modules.module.register_module_forward_pre_hook",
    "torch.nn.modules.module.register_module_forward_hook",
    "torch._ops.OpOverload.decompose",
)
"""What the recorder needs of PyTorch, most of it private."""


class NotRecordedError(EnplaceError):
    """An op of a script that Enplace cannot record, though it runs."""


def check_hooks(*more: str) -> None:
    """Refuse a version of PyTorch that lacks functions which tell what is running.

    Parameters
    ----------
    *more : str
        Dotted names that are needed beside :data:`HOOKS`.

    Raises
    ------
    EnplaceError
        With the name of what is missing.
    """
    for name in (*HOOKS, *more):
        parts = name.split(".")
        inner = max(n for n in range(1, len(parts)) if ".".join(parts[:n]) in sys.modules)
        found: Any = sys.modules[".".join(parts[:inner])]
        for part in parts[inner:]:
            found = getattr(found, part, None)
        if found is None:
            raise EnplaceError(lacking(torch.__version__, name))


def name_of(func: Any) -> str:
    """Return an op's name without namespace and overload."""
    name: str = func._schema.name
    return name.rpartition("::")[2]


def given_tensors(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[torch.Tensor, bool]]:
    """Iterate over the tensors that an op is given, and tell whether it changes them."""
    declared = func._schema.arguments
    by_name = {each.name: each for each in declared}
    pairs = [*zip(declared, args, strict=False)]
    pairs += [(by_name[key], value) for key, value in kwargs.items() if key in by_name]
    for argument, value in pairs:
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in tensors_in(value):
            yield tensor, is_written


def run_parts(mode: TorchDispatchMode, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Run the ops that an op is made of under a mode; ``NotImplemented`` if it is made of none.

    PyTorch hands such ops on whole in inference mode, and later on tensors that were made in it.
    """
    is_inner = torch.is_inference_mode_enabled() or any(
        isinstance(each, torch.Tensor) and each.is_inference() for each in args
    )
    if func.namespace in ASIDE or not is_inner:
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)


class Names(Protocol):
    """Knows which module is running, and what modules and parameters are called."""

    @property
    def n_models(self) -> int:
        """How many models are called."""

    def current(self) -> str | None:
        """Return the path of the innermost module that is running; None outside of all."""

    def owner(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor, str]]:
        """Iterate over parameters and buffers, with their names and roles."""

    def batch_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the tensors that the model is called with."""

    def tied(self) -> Iterator[tuple[str, str]]:
        """Iterate over the further names of parameters that have several, with the first ones."""

    def spell(self, path: str) -> str:
        """Return a path for people."""


@dataclass
class _Block:
    """A storage while it is being recorded."""

    number: int
    n_bytes: int
    device: str
    first: int
    last: int | None = None
    role: str = ""
    owner: str = ""
    bits: int = 0


class Where(NamedTuple):
    """Where in a step an op runs.

    Attributes
    ----------
    module, place, pass_, of_call
        As in :class:`~enplace.frameworks.torch.step.RecordedOp`.
    """

    module: str
    place: str
    pass_: str
    of_call: int = -1


class Whereabouts:
    """Where in a step a script is: in which pass, and in which module.

    Attributes
    ----------
    optimizer : str
        The type of the optimiser whose step runs; empty outside of one.
    step_call : int
        The number of that step, from 1; 0 outside of one.
    """

    def __init__(self, modules: Names) -> None:
        self._modules = modules
        self.optimizer = ""
        self._around: Any = None
        self._step_calls = 0
        self._went_back = self._seen_module = False
        self._module_of_node: dict[int, tuple[str, str, int]] = {}
        self._last_node = torch.autograd._get_sequence_nr() - 1

    @property
    def step_call(self) -> int:
        return self._step_calls if self.optimizer else 0

    def enter_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimiser's step begins, perhaps within a backward pass."""
        self._around = torch._C._current_autograd_node()
        self._step_calls += 1
        self.optimizer = type(optimizer).__name__

    def leave_optimizer(self) -> None:
        """Note that an optimiser's step has ended."""
        self.optimizer, self._around = "", None

    def find(self, call: int = -1) -> Where:
        """Return where the op runs that a call is about to run."""
        module = self._modules.current()
        node = torch._C._current_autograd_node()
        if node is not self._around:
            self._went_back = True
            own, place, of_call = self._of_node(node, module)
            return Where(own, place, OpPass.BACKWARD, of_call)
        number = torch.autograd._get_sequence_nr() - 1
        is_update = not torch.is_grad_enabled() and module is None
        if is_update and (self.optimizer or self._went_back):
            return Where("", MODULE, OpPass.UPDATE)
        if module is not None:
            self._seen_module, found = True, (module, MODULE)
        else:
            found = ("", LOSS if self._seen_module else INPUT)
        if torch.is_grad_enabled() or module is not None:
            # An op in place makes its node before the copy that it needs has its own.
            for each in range(min(self._last_node + 1, number), number + 1):
                self._module_of_node.setdefault(each, (*found, call))
            self._last_node = number
        return Where(*found, OpPass.FORWARD)

    def _of_node(self, node: Any, module: str | None) -> tuple[str, str, int]:
        """Find the module, place and forward call of a node; checkpoints run modules within one."""
        if module is not None:
            number = torch.autograd._get_sequence_nr() - 1
            self._module_of_node.setdefault(number, (module, MODULE, -1))
            return module, MODULE, -1
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            owner = self._modules.owner(variable)
            return owner.rpartition(".")[0], MODULE, -1
        return self._module_of_node.get(node._sequence_nr(), ("", LOSS, -1))


class Recorder(TorchDispatchMode):
    """Records every op from when it is entered until it is left.

    ``line`` names the line of the script that is running.
    """

    def __init__(self, modules: Names, clock: Clock, line: Callable[[], str] = str) -> None:
        super().__init__()
        self._modules, self._clock, self._line = modules, clock, line
        self._ops: list[RecordedOp] = []
        self._blocks: list[_Block] = []
        self._known = OfMemories[_Block]()
        self._old: list[tuple[_Block, torch.Tensor, str]] = []
        self.at = Whereabouts(modules)
        self._calls = 0
        self._is_over = False

    # Dispatch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ASIDE or _ELSEWHERE.get():
            return func(*args, **kwargs)
        if (parts := run_parts(self, func, args, kwargs)) is not NotImplemented:
            return parts
        given = tensors_in((args, kwargs))
        with _explained(func):
            for tensor in given:
                self._parts_of(tensor, -1)
        call = self._calls
        where = self.at.find(call)  # before the op runs: it may make a node of autograd itself
        self._calls += 1
        self._clock.begin(call)
        out = func(*args, **kwargs)
        self._clock.end(call)
        with _explained(func):
            self._note(func, args, kwargs, out, where, call)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any, where: Where, call: int) -> None:
        name = name_of(func)
        reads, writes = self._reads(func, args, kwargs)
        made = tensors_in(out)
        makes, shares = [], False
        for tensor in made:
            known = len(self._blocks)
            for block, _ in self._parts_of(tensor, len(self._ops)):
                if block.number >= known:
                    makes.append(block.number)
                else:
                    shares = True
        read_on = {self._blocks[number].device for number in reads}
        devices = {str(each.device) for each in made} or read_on
        op = RecordedOp(
            name, where.module, where.place, where.pass_, call,
            reads=tuple(reads.items()), writes=tuple(writes), makes=tuple(makes),
            device=max(devices, default="cpu"),
            is_view=shares and not makes and not writes,
            step_call=self.at.step_call, optimizer=self.at.optimizer, of_call=where.of_call,
            crosses=name in ("_to_copy", "copy_") and len(read_on | devices) > 1,
            grouped=name.endswith("convolution") and len(args) > 8 and args[8] != 1,
        )  # fmt: skip
        if not op.is_view:
            op = replace(op, work=work_of(func, kind_of(op), args, kwargs, out))
        if name in ALLOCATES and _is_of_layers():
            op = replace(op, writes=op.makes)
        if name in ALLOCATES or not op.work.known:
            op = replace(op, line=self._line())
        if (n := n_parts(name, args)) > 1:
            self._ops += self._parts(op, [*args, *kwargs.values()], made, n)
        else:
            self._ops.append(op)

    def _parts(
        self, op: RecordedOp, given: Sequence[Any], made: Sequence[Any], n: int
    ) -> Iterator[RecordedOp]:
        """Divide an op on lists: each parameter's part may have its own device."""
        bytes_of, total = dict(op.reads), sum(n_bytes for _, n_bytes in op.reads) or 1
        before = len(self._ops)
        shared = [each for each in given if isinstance(each, torch.Tensor)]
        for part in range(n):
            own = [each[part] for each in given if is_list(each) and len(each) == n]
            mine = self._numbers([*own, *shared])
            reads = {number: bytes_of[number] for number in mine if number in bytes_of}
            makes = self._numbers(made[part : part + 1] if len(made) == n else ())
            makes = [number for number in makes if number in op.makes]
            for number in makes:
                self._blocks[number].first = before + part
            share = sum(reads.values()) / total if op.reads else 1 / n
            work = replace(op.work, flops=op.work.flops * share, n_bytes=op.work.n_bytes * share)
            yield replace(
                op, share=share, reads=tuple(reads.items()), makes=tuple(makes), work=work,
                writes=tuple(number for number in op.writes if number in mine),
            )  # fmt: skip

    def _reads(self, func: Any, args: Any, kwargs: Any) -> tuple[dict[int, int], dict[int, None]]:
        """Return the bytes read by storage, and the storages that are changed."""
        reads: dict[int, int] = {}
        writes: dict[int, None] = {}
        for tensor, is_written in given_tensors(func, args, kwargs):
            for block, part in self._parts_of(tensor, -1):
                reads[block.number] = max(reads.get(block.number, 0), n_bytes_of(part))
                if is_written:
                    writes[block.number] = None
        return reads, writes

    # Storages

    def _numbers(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Return the numbers of the blocks of older tensors, each once."""
        blocks = (block for each in tensors for block, _ in self._parts_of(each, -1))
        return [*dict.fromkeys(block.number for block in blocks)]

    def _parts_of(self, tensor: torch.Tensor, first: int) -> list[tuple[_Block, torch.Tensor]]:
        """Return the blocks of a tensor's parts; op number ``first`` made those that are new."""
        return [
            (self._block(memory, n_bytes, str(part.device), first), part)
            for part, memory, n_bytes in memories_of(tensor)
        ]

    def _block(self, memory: Any, n_bytes: int, device: str, first: int) -> _Block:
        def make() -> _Block:
            self._blocks.append(_Block(len(self._blocks), n_bytes, device, first))
            return self._blocks[-1]

        return self._known.find(memory, make, self._freed)

    def _freed(self, block: _Block) -> None:
        if not self._is_over:
            block.last = len(self._ops) - 1

    # The end

    def finish(self, name: str, optimizers: Sequence[torch.optim.Optimizer]) -> Step:
        """Return what was recorded."""
        self._is_over = True
        self._name_model(optimizers)
        n_ops, spell = len(self._ops), self._modules.spell
        ops = tuple(replace(op, module=spell(op.module)) for op in self._ops)
        storages = tuple(
            Storage(
                each.n_bytes, each.device, each.first, n_ops if each.last is None else each.last,
                each.role, spell(each.owner), each.bits,
            )
            for each in self._blocks
        )  # fmt: skip
        self._known.forget()
        modules = self._modules
        return Step(
            name, ops, storages, modules.batch_shapes(), modules.n_models, tuple(modules.tied())
        )

    def know_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Note, before the step, what the optimisers hold; it is older than the step."""
        for parameter, tensor, role in held_by(optimizers):
            self._old += [(block, parameter, role) for block, _ in self._parts_of(tensor, -1)]

    def _name_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Note the parameters, their gradients and states, and the modules' buffers."""
        found = [(each, owner, role) for owner, each, role in self._modules.tensors()]
        found += [
            (each, self._modules.owner(parameter), role)
            for parameter, each, role in held_by(optimizers)
        ]
        named = [
            (block, owner, role, 8 * tensor.element_size() if role == STATE else 0)
            for tensor, owner, role in found
            for block, _ in self._parts_of(tensor, -1)
        ]
        old = [(block, self._modules.owner(each), role, 0) for block, each, role in self._old]
        for block, owner, role, bits in (*named, *old):
            if not block.role:
                block.role, block.owner, block.bits = role, owner, bits


def _is_of_layers() -> bool:
    """Return whether PyTorch's own layers run an op: their kernels fill what they allocate."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(None))
    below = ("enplace.", "contextlib", "torch._", "torch.utils.")
    return next((name for name in names if not name.startswith(below)), "").startswith("torch.nn.")


@contextmanager
def _explained(func: Any) -> Iterator[None]:
    """Say of which op something is not known; the script is not to blame."""
    try:
        yield
    except EnplaceError:
        raise
    except Exception as error:
        reason = ": ".join(filter(None, (type(error).__name__, first_line(error))))
        raise NotRecordedError(
            f"the script is right, but Enplace cannot record its op {func._schema.name} "
            f"({reason}); profile it without this op, or with dense tensors"
        ) from None


def parameters_of(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    """Iterate over what optimisers update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def held_by(
    optimizers: Sequence[torch.optim.Optimizer],
) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
    """Iterate over parameters with each tensor that belongs to one, and what it is of it."""
    for optimizer in optimizers:
        for parameter in parameters_of([optimizer]):
            yield parameter, parameter, PARAMETER
            state: Mapping[Any, Any] = optimizer.state.get(parameter, {})
            for value in tensors_in(dict(state)):
                yield parameter, value, STATE
            if parameter.grad is not None:
                yield parameter, parameter.grad, GRADIENT


def n_parts(name: str, args: Sequence[Any]) -> int:
    """Return how many parts an op on lists of tensors has; 1 for other ops."""
    lists = [each for each in args if is_list(each)]
    return len(lists[0]) if name.startswith(_ON_LISTS) and lists else 1


def is_list(value: Any) -> bool:
    """Whether an argument is a list of tensors."""
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], torch.Tensor)
