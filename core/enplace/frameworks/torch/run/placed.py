"""Run a step op by op as a plan places it, on labels: a storage has a device of the plan.

What an op reads from another device is copied first, whole and laid out as it was, once for each
device that reads it. So an op gets nothing that a plan does not send it, and computes the same.
What a plan does not keep for the backward pass is computed again where the plan has the copy, or
lies on the label of the host (:mod:`.kept`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from enplace.frameworks.torch.record.modules import Modules
from enplace.frameworks.torch.record.op_kinds import ALLOCATES
from enplace.frameworks.torch.record.recorder import (
    ASIDE,
    Whereabouts,
    given_tensors,
    held_by,
    is_list,
    name_of,
    run_parts,
)
from enplace.frameworks.torch.record.storages import OfMemories, memories_of, tensors_in
from enplace.frameworks.torch.run.kept import Layout, Made, NotKept
from enplace.frameworks.torch.run.matching import PlacedStep


@dataclass(eq=False)
class _Block:
    """A memory: its label, and its copies on other devices, by the layouts that they were read in.

    A copy of dense tensors is a storage, of others a tensor.
    """

    n_bytes: int
    device: int | None = None
    is_fixed: bool = False
    copies: dict[tuple[int, torch.layout], Any] = field(default_factory=dict)


class Labels:
    """The devices of storages, and how many bytes each device holds."""

    def __init__(self, n_devices: int) -> None:
        self._known = OfMemories[_Block]()
        self._bytes = [0] * n_devices
        self.peak_bytes = [0] * n_devices

    def of(self, tensor: torch.Tensor) -> _Block:
        """Return the block of a tensor's memory; a sparse one goes by the memory of its values."""
        parts = [(memory, n_bytes) for _, memory, n_bytes in memories_of(tensor)]
        n_bytes = sum(n_bytes for _, n_bytes in parts)
        return self._known.find(parts[-1][0], lambda: _Block(n_bytes), self._freed)

    def _freed(self, block: _Block) -> None:
        self.put(block, None)
        self.changed(block)

    def put(self, block: _Block, device: int | None, fixed: bool = False) -> None:
        """Give a block its device; a fixed one stays there, whatever writes to it."""
        if block.device is not None:
            self._bytes[block.device] -= block.n_bytes
        block.device, block.is_fixed = device, fixed
        if device is not None:
            self._hold(device, block.n_bytes)

    def _hold(self, device: int, n_bytes: int) -> None:
        self._bytes[device] += n_bytes
        self.peak_bytes[device] = max(self.peak_bytes[device], self._bytes[device])

    def changed(self, block: _Block) -> None:
        """Forget copies of what a block held."""
        for device, _ in block.copies:
            self._bytes[device] -= block.n_bytes
        block.copies.clear()

    def begin_step(self) -> None:
        """Forget copies, and where all but fixed blocks are: they are inputs of the step."""
        for block in self._known.all():
            self.changed(block)
            if not block.is_fixed:
                self.put(block, None)

    def copy(self, tensor: torch.Tensor, device: int) -> tuple[torch.Tensor, bool]:
        """Return a tensor's copy on another device, and whether it had to be made."""
        block, key = self.of(tensor), (device, tensor.layout)
        is_dense = tensor.layout == torch.strided
        is_new = key not in block.copies
        if is_new:
            block.copies[key] = (tensor.untyped_storage() if is_dense else tensor).clone()
            self._hold(device, block.n_bytes)
        if not is_dense:
            return block.copies[key], is_new
        return Layout.of(tensor).shown(block.copies[key]), is_new


@dataclass
class Seen:
    """What was seen of a node of the plan in a step: its device, and whether that is the plan's."""

    device: int
    as_planned: bool = True


@dataclass
class StepSeen:
    """What was seen of a step.

    Attributes
    ----------
    nodes : dict
        By their numbers.
    unplanned : dict
        How many ops of each kind ran that no plan names.
    transfers, moved_bytes : int
    """

    nodes: dict[int, Seen] = field(default_factory=dict)
    unplanned: Counter[str] = field(default_factory=Counter)
    transfers: int = 0
    moved_bytes: int = 0


class PlacedMode(TorchDispatchMode):
    """Runs each op of a step on the label that the plan gives it.

    Attributes
    ----------
    steps : list of StepSeen
        One for each step that has ended.
    """

    def __init__(self, modules: Modules, placed: PlacedStep, n_devices: int) -> None:
        super().__init__()
        self._modules, self._placed = modules, placed
        self.labels = Labels(n_devices)
        self.at = Whereabouts(modules)
        self.steps: list[StepSeen] = []
        self._is_on = False
        self._kept, self._keeps_all = NotKept(), not placed.again and not placed.sent
        self._entered = ExitStack()

    def begin_step(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Begin a step: what the model and its optimisers hold is where the plan has it."""
        self._is_on = True
        if not self._keeps_all:
            self._entered.enter_context(self._kept)
        self._entered.enter_context(self)
        self.labels.begin_step()
        self.at = Whereabouts(self._modules)
        self.seen = StepSeen()
        self._turns: Counter[Any] = Counter()
        self._n_inputs = 0
        spell = self._modules.spell
        held = [(owner, tensor) for owner, tensor, _ in self._modules.tensors()]
        held += [(self._modules.owner(p), tensor) for p, tensor, _ in held_by(optimizers)]
        for owner, tensor in held:
            node = self._placed.variables.get(spell(owner))
            if node is not None and (device := self._placed.device[node]) is not None:
                self.labels.put(self.labels.of(tensor), device, fixed=True)
                self.seen.nodes.setdefault(node, Seen(device))

    def end_step(self, is_whole: bool) -> None:
        """End a step, if one runs; part of a step does not count."""
        if self._is_on:
            self._is_on = False
            self._entered.close()
            self.steps += [self.seen] * is_whole

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ASIDE:
            return func(*args, **kwargs)
        if (parts := run_parts(self, func, args, kwargs)) is not NotImplemented:
            return parts
        nodes = self._find(func)
        if nodes is not None and all(node is None for node in nodes):
            return self._show(func, args, kwargs)
        if nodes is not None and len(nodes) > 1:
            return self._run_list(func, args, kwargs, nodes)
        return self._run(func, args, kwargs, None if nodes is None else nodes[0])

    def _find(self, func: Any) -> tuple[int | None, ...] | None:
        """Return the nodes of the op that is about to run; None if the recorded step has none."""
        found = self.at.find()
        module = self._modules.spell(found.module)
        key = found.pass_, module, found.place, name_of(func), self.at.step_call
        turn = self._turns[key]
        self._turns[key] += 1
        known = self._placed.nodes.get(key, ())
        return known[turn] if turn < len(known) else None

    def _show(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an op that does no work on a device: what it makes is where its input is."""
        out = func(*args, **kwargs)
        if name_of(func) in ALLOCATES:
            return out  # whatever writes first makes the tensor
        given = (self.labels.of(each).device for each, _ in given_tensors(func, args, kwargs))
        self._label(out, next(given, None))
        return out

    def _label(self, out: Any, device: int | None) -> None:
        for tensor in tensors_in(out):
            if self.labels.of(tensor).device is None:
                self.labels.put(self.labels.of(tensor), device)

    def _run(self, func: Any, args: Any, kwargs: Any, node: int | None) -> Any:
        given = [*given_tensors(func, args, kwargs)]
        planned = None if node is None else self._placed.device[node]
        if planned is None:
            self.seen.unplanned[name_of(func)] += 1
        written = [each for each, is_written in given if is_written]
        device = self._written_on(written, self._anywhere(given) if planned is None else planned)
        kept = {id(each) for each in written}
        made = self._made_again(node, func, args, kwargs, written)
        args, kwargs = tree_map(lambda each: self._moved(each, device, kept), (args, kwargs))
        out = func(*args, **kwargs)
        if node is not None:
            self._note(node, device)
        self._label(out, device)
        if made is not None:
            self._kept.drop(made, out, [each for each, _ in given])
        elif node is not None and node in self._placed.sent:
            self._send(*self._placed.sent[node], out)
        return out

    def _made_again(
        self, node: int | None, func: Any, args: Any, kwargs: Any, written: Sequence[torch.Tensor]
    ) -> Made | None:
        """Prepare the copy of an op, if the plan has one."""
        copy = None if node is None else self._placed.again.get(node)
        if node is None or copy is None or written:
            return None
        name = self._placed.names[node]
        return self._kept.again(name, func, args, kwargs, partial(self._copy, *copy))

    def _copy(self, node: int, device: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the copy of an op."""
        args, kwargs = tree_map(lambda each: self._moved(each, device, set()), (args, kwargs))
        out = func(*args, **kwargs)
        self._note(node, device)
        self._label(out, device)
        return out

    def _send(self, node: int, host: int, out: Any) -> None:
        """Send what an op made to the host, from where late readers fetch it."""
        sent = []
        for tensor in tensors_in(out):
            storage = tensor.untyped_storage().clone()
            sent.append(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
            self.labels.put(self.labels.of(sent[-1]), host)
            self._count(self.labels.of(tensor))
        self._kept.drop(Made(lambda: sent), out)
        self._note(node, host)

    def _run_list(self, func: Any, args: Any, kwargs: Any, nodes: tuple[int | None, ...]) -> Any:
        """Run an op on lists of tensors, each part where its own node is."""
        changed = {id(each) for each, is_written in given_tensors(func, args, kwargs) if is_written}
        lists = [each for each in (*args, *kwargs.values()) if _has_parts(each, nodes)]
        devices = []
        for part, node in enumerate(nodes):
            own = [each[part] for each in lists]
            written = [each for each in own if id(each) in changed]
            planned = None if node is None else self._placed.device[node]
            found = self._anywhere([(each, False) for each in own]) if planned is None else planned
            devices.append(self._written_on(written, found))

        def moved(value: Any) -> Any:
            if not _has_parts(value, nodes):
                return value
            return [self._moved(*each, changed) for each in zip(value, devices, strict=True)]

        args, kwargs = [moved(each) for each in args], {k: moved(v) for k, v in kwargs.items()}
        out = func(*args, **kwargs)
        for node, device in zip(nodes, devices, strict=True):
            if node is not None:
                self._note(node, device)
        if _has_parts(out, nodes):
            for tensor, device in zip(out, devices, strict=True):
                self._label(tensor, device)
        else:
            self._label(out, devices[0])
        return out

    def _anywhere(self, given: Sequence[tuple[torch.Tensor, bool]]) -> int:
        """Return the device of the first tensor that has one."""
        found = (self.labels.of(each).device for each, _ in given)
        return next((device for device in found if device is not None), 0)

    def _written_on(self, written: Sequence[torch.Tensor], device: int) -> int:
        """Return where an op runs that changes tensors: fixed ones stay, others come along."""
        blocks = [self.labels.of(each) for each in written]
        device = next((b.device for b in blocks if b.is_fixed and b.device is not None), device)
        for each, block in zip(written, blocks, strict=True):
            self.labels.changed(block)
            if not self._keeps_all:
                self._kept.changed(each)
            if block.device not in (None, device) and not block.is_fixed:
                self._count(block)
            if block.device != device and not block.is_fixed:
                self.labels.put(block, device)
        return device

    def _moved(self, value: Any, device: int, kept: set[int]) -> Any:
        """Return what an op on a device gets in place of a tensor."""
        if not isinstance(value, torch.Tensor) or id(value) in kept:
            return value
        block = self.labels.of(value)
        if block.device is None:
            self.labels.put(block, self._of_input(device))
        if block.device == device:
            return value
        copy, is_new = self.labels.copy(value, device)
        if is_new:
            self._count(block)
        return copy

    def _count(self, block: _Block) -> None:
        self.seen.transfers += 1
        self.seen.moved_bytes += block.n_bytes

    def _of_input(self, usual: int) -> int:
        """Return the device of the next tensor that is older than the step."""
        number, self._n_inputs = self._n_inputs, self._n_inputs + 1
        if number >= len(self._placed.inputs):
            return usual
        node = self._placed.inputs[number]
        if (device := self._placed.device[node]) is None:
            return usual
        self.seen.nodes.setdefault(node, Seen(device))
        return device

    def _note(self, node: int, device: int) -> None:
        seen = self.seen.nodes.setdefault(node, Seen(device))
        seen.as_planned &= device == self._placed.device[node]
        seen.device = device


def _has_parts(value: Any, nodes: Sequence[Any]) -> bool:
    return is_list(value) and len(value) == len(nodes)
