"""A recorded step as a profile: views folded away, storages as tensors, updates by parameter.

- A parameter is an op of its own that holds its bytes, those of the optimiser's state and, if
  gradients outlive the backward pass, theirs. All that reads or writes it shares its device,
  except for what another module does with it, such as a head that is tied to an embedding. That
  module reads a copy, and its part of the gradient is summed in the update. Other modules read
  copies of a buffer, too, if nothing in the step changes it.
- A tensor is a storage: what a view shows is read from whoever wrote the storage last. An op that
  changes a tensor in place makes another, which lies in the memory of the one that it read.
- A tensor that was freed later than its last reader ended is held until the op that ran then.
- If a gradient of the step before is still there while more than a batch is made, it is a tensor
  that an op without work, ``grad``, gives the parameter's op.
- What no op reads counts, too: an op without work, ``free``, reads it when it is freed, and what
  stays from step to step is held by an op of the inputs.
- What an optimiser's step does to one parameter is one op. The step begins when the backward pass
  has ended: ``update/step`` waits for it. What ops on lists make for all parameters at once is a
  tensor that each update holds until the last one, and that an op without work, ``free``, reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from enplace.frameworks.torch.device_map import BUFFER_TYPE
from enplace.frameworks.torch.measure.costs import Costs
from enplace.frameworks.torch.measure.loading import told_apart
from enplace.frameworks.torch.names import UniqueNames, scope_of, scope_of_module
from enplace.frameworks.torch.record.op_kinds import ALLOCATES, FREE, kind_of
from enplace.frameworks.torch.step import (
    BUFFER,
    GRADIENT,
    INPUT,
    LOSS,
    MODULE,
    PARAMETER,
    STATE,
    RecordedOp,
    Step,
)
from enplace.names.passes import BACKWARD, UPDATE, split_pass
from enplace.names.scopes import INPUT as INPUT_SCOPE
from enplace.readers.colocation import colocation_groups
from enplace.values.components import strong_components
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import OpKind, OpPass
from enplace.values.profile import CONTROL, Profile, edge_columns, make_profile

Edge = tuple[int, int, int, int]
"""Source, output, consumer, bytes."""

HELD_BYTES = 512
"""Smaller tensors are not held: there are many, and together they are little."""

_ARGUMENT_BYTES = 16
"""Most bytes of the host's that a kernel takes as an argument."""

_NO_MODULES = ("", INPUT_SCOPE, LOSS, "step")

_SAVED = (PARAMETER, STATE, BUFFER)


@dataclass
class Node:
    """An op of the profile in the making."""

    name: str
    type: str
    kind: OpKind
    pass_: str
    scope: str
    time_us: tuple[float, float] = (np.nan, np.nan)
    flops: float = 0.0
    kernels: float = 0.0
    persistent_bytes: int = 0
    state_bytes: int = 0
    temporary_bytes: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class StepGraph:
    """The nodes and edges of a recorded step.

    ``parameters`` has the node that holds each parameter and buffer of the model, by its path.
    ``variables`` has them by their owner as the step names it, ``of_ops`` the node of each op of
    the step, if it has one, and ``inputs`` those of older tensors, in the order of their reading.
    """

    nodes: Sequence[Node]
    edges: Sequence[Edge]
    holds: Sequence[tuple[int, int, int]]
    shares: Sequence[tuple[int, int, int, int]]
    ties: Sequence[tuple[int, int]]
    parameters: Mapping[str, str]
    variables: Mapping[str, int]
    of_ops: Mapping[int, int]
    inputs: Sequence[int]

    def profile(self, name: str, measured: Measurement) -> Profile:
        """Make the profile."""
        nodes = self.nodes
        names = [node.name for node in nodes]
        return make_profile(
            name,
            op_names=names,
            op_types=[node.type for node in nodes],
            op_kinds=[node.kind for node in nodes],
            op_passes=[node.pass_ for node in nodes],
            scopes=[node.scope for node in nodes],
            flops=[node.flops for node in nodes],
            time_us=np.array([node.time_us for node in nodes], dtype=float).reshape(-1, 2),
            persistent_bytes=[node.persistent_bytes for node in nodes],
            state_bytes=[node.state_bytes for node in nodes],
            temporary_bytes=[node.temporary_bytes for node in nodes],
            colocation=colocation_groups(names, self.ties),
            **edge_columns(self.edges),
            holds=self.holds,
            shares=self.shares,
            measured=measured,
        )


def graph_of(step: Step, costs: Costs) -> StepGraph:
    """Make the graph of a step."""
    step = told_apart(step)
    merged = _merged_updates(step)
    made = _Builder(step, costs, merged).build()
    while knotted := _on_cycles(made.nodes, made.edges) | _read_later(made.edges):
        # Parts of an update that wait for each other, such as norms of all, or for other ops in
        # between, are ops of their own.
        of = made.merged_nodes
        keys = {key for key, node in of.items() if node in knotted}
        if not keys:
            break
        merged = {op: key for op, key in merged.items() if key not in keys}
        made = _Builder(step, costs, merged).build()
    return made.graph()


def _is_part(module: str, other: str) -> bool:
    """Whether one of two modules lies in the other.

    >>> _is_part("h.1.mlp", "h.1"), _is_part("h.1", "h.10")
    (True, False)
    """
    one, two = (f"{each}." for each in (module, other))
    return one.startswith(two) or two.startswith(one)


def _on_cycles(nodes: Sequence[Node], edges: Sequence[Edge]) -> set[int]:
    ends = np.array([(e[0], e[2]) for e in edges], dtype=np.int64).reshape(-1, 2)
    label = strong_components(len(nodes), ends[:, 0], ends[:, 1])
    size = np.bincount(label, minlength=1)
    return {int(op) for op in np.flatnonzero(size[label] > 1)}


def _read_later(edges: Sequence[Edge]) -> set[int]:
    """Find the nodes that read tensors of nodes which began after them."""
    return {to for source, _, to, n_bytes in edges if source > to and n_bytes >= HELD_BYTES}


UpdateKey = tuple[int, str]
"""Number of an optimiser's step, and name of the parameter."""


def _merged_updates(step: Step) -> dict[int, UpdateKey]:
    """Find the ops that update one parameter alone, by their numbers."""
    owner_of: dict[int, str] = {}
    found: dict[int, UpdateKey] = {}
    for number, op in enumerate(step.ops):
        if not op.step_call or op.pass_ != OpPass.UPDATE:
            continue
        touched = dict.fromkeys(op.writes, 0) | dict(op.reads)
        owned = [s for s in touched if step.storages[s].role in _OWNED]
        # Parameters of one recurrent layer, and their gradients, may be parts of one storage,
        # which bears the name of the first.
        whole = [s for s in owned if touched[s] == step.storages[s].n_bytes]
        own = {step.storages[s].owner for s in whole or owned}
        own = own or {owner_of[s] for s in touched if s in owner_of}
        if len(own) == 1:
            (owner,) = own
            found[number] = op.step_call, owner
            owner_of |= dict.fromkeys(op.makes, owner)
    return found


def _update_scope(owner: str) -> tuple[str, str]:
    """Return the scope of a parameter's update, and the parameter's own name."""
    path, _, own = owner.rpartition(".")
    return "/".join(filter(None, (UPDATE, scope_of_module(path)))), own


_OWNED = (PARAMETER, STATE, GRADIENT)


def _does_work(op: RecordedOp) -> bool:
    return not (op.is_view or op.kind in FREE or op.kind in ALLOCATES)


@dataclass
class _Builder:
    """Walks through a step's ops in their order."""

    step: Step
    costs: Costs
    merged: Mapping[int, UpdateKey]
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    holds: list[tuple[int, int, int]] = field(default_factory=list)
    ties: list[tuple[int, int]] = field(default_factory=list)
    merged_nodes: dict[UpdateKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = UniqueNames()
        self._node_of: dict[int, int] = {}
        self._variable: dict[str, int] = {}
        self._input: dict[int, int] = {}
        self._writer: dict[int, int] = {}
        self._readers: dict[int, list[int]] = defaultdict(list)
        self._slots: dict[tuple[int, int, int], int] = {}
        self._n_slots: dict[int, int] = defaultdict(int)
        self._version: dict[int, int] = defaultdict(int)
        self._seen: set[tuple[int, int, int]] = set()
        self._step_node: dict[int, int] = {}
        self._pending: list[int] = []
        self._n_ops = len(self.step.ops)
        self._replaced = self._find_replaced()
        self._held = self._find_held()
        self._begin = self._find_begin()
        self._data = self._find_data()
        self._elsewhere = self._find_readers_elsewhere()
        self._copies: dict[tuple[int, str], int] = {}
        self._sums = self._find_sums()
        self._read_at_all, self._first_written = self._find_use()

    def build(self) -> _Builder:
        """Make nodes and edges."""
        self._add_variables()
        self._add_unread_inputs()
        for number, op in enumerate(self.step.ops):
            if not _does_work(op):
                continue
            node = self._place(number, op)
            self._node_of[number] = node
            self._connect(node, op)
            self._keep_unread(number, node)
        self._add_holds()
        self._add_temporaries()
        self._name_loose()
        return self

    def graph(self) -> StepGraph:
        """Return what was made."""
        return StepGraph(
            self.nodes, self.edges, self.holds, self._shares(), self.ties, self._parameters(),
            dict(self._variable), dict(self._node_of), [*self._input.values()],
        )  # fmt: skip

    def _parameters(self) -> dict[str, str]:
        """Return the name of the node that holds each parameter, by its path; none of several."""
        if self.step.n_models != 1:
            return {}
        found = {owner: self.nodes[node].name for owner, node in self._variable.items()}
        return found | {name: found[first] for name, first in self.step.tied if first in found}

    def _shares(self) -> list[tuple[int, int, int, int]]:
        """List each version of a storage that its op made of the version before."""
        made = {(number, version): node for node, number, version in self._slots if version > 0}
        return [
            (made[after], self._slots[(made[after], *after)], node, slot)
            for (node, number, version), slot in self._slots.items()
            for after in [(number, version + 1)]
            if version >= 0 and after in made and (node, slot, made[after]) in self._seen
        ]

    # Nodes

    def _find_replaced(self) -> dict[int, int]:
        """Find, for what parameters own since the step, what it has freed in its place.

        A gradient takes no place if the one before was freed before it was made.
        """
        found: dict[tuple[str, str], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for number, each in enumerate(self.step.storages):
            is_new = each.first >= 0
            if each.role and is_new == (each.last >= self._n_ops):
                found[each.role, each.owner][is_new].append(number)
        storages = self.step.storages
        return {
            new: old
            for (role, _), (olds, news) in found.items()
            for old, new in zip(sorted(olds, key=lambda n: storages[n].last), news, strict=False)
            if role != GRADIENT or storages[old].last >= storages[new].first
        }

    def _find_held(self) -> set[int]:
        """Find the storages that are part of a parameter's op for the whole step."""
        return {*self._replaced.values()} | {
            number
            for number, each in enumerate(self.step.storages)
            if each.last >= self._n_ops
            if each.role in _SAVED
            or (each.role == GRADIENT and (each.first < 0 or number in self._replaced))
        }

    def _find_use(self) -> tuple[set[int], dict[int, list[int]]]:
        """Find the storages that ops read, and those that each op is the first to write."""
        known = {number for number, each in enumerate(self.step.storages) if each.first < 0}
        read: set[int] = set()
        written: dict[int, list[int]] = {}
        for number, op in enumerate(self.step.ops):
            if _does_work(op):
                read.update(storage for storage, _ in op.reads if storage in known)
                touched = dict.fromkeys((*op.makes, *op.writes))
                written[number] = [each for each in touched if each not in known]
                known.update(written[number])
        return read, written

    def _find_begin(self) -> int:
        """Find the first op after those that load a batch, or that with most memory before it."""
        places = (n for n, op in enumerate(self.step.ops) if op.place == MODULE)
        alive = self.step.alive_bytes()
        return min(next(places, self._n_ops), alive.index(max(alive)))

    def _find_late_gradients(self, held: Collection[str]) -> dict[str, list[int]]:
        """Find, for each parameter held, the old gradients that are there after the inputs.

        Those that ops read are inputs.
        """
        ops = self.step.ops
        read = {s for op in ops if not op.is_view for s, _ in op.reads}
        # A parameter of a recurrent layer may lie in the storage of another.
        beside = {owner.rpartition(".")[0]: owner for owner in held}
        found: dict[str, list[int]] = defaultdict(list)
        for number, each in enumerate(self.step.storages):
            is_old = each.role == GRADIENT and each.first < 0 and number not in self._held
            is_late = each.last >= self._begin and each.n_bytes >= HELD_BYTES
            if is_old and is_late and number not in read:
                near = beside.get(each.owner.rpartition(".")[0], "")
                found[each.owner if each.owner in held else near].append(number)
        return found

    def _find_data(self) -> set[int]:
        """Find the tensors that stay, such as all batches, and that only the next batch is of."""
        stays = {
            number
            for number, each in enumerate(self.step.storages)
            if each.first < 0 and each.last >= self._n_ops and not each.role
        }
        read = {
            s for op in self.step.ops if op.place != INPUT and not op.is_view for s, _ in op.reads
        }
        return stays - read

    def _find_readers_elsewhere(self) -> dict[str, set[str]]:
        """Find, for each parameter, the modules besides its own that read it.

        So, too, for each buffer that stays as it is, such as a table of angles for all layers.
        """
        written = {number for op in self.step.ops for number in op.writes}
        readers: dict[str, dict[str, None]] = defaultdict(dict)
        for op in self.step.ops:
            if op.is_view or op.pass_ == OpPass.UPDATE or not op.module:
                continue
            for number, _ in op.reads:
                storage = self.step.storages[number]
                is_table = storage.role == BUFFER and number not in written
                if storage.role == PARAMETER or is_table:
                    readers[storage.owner][op.module] = None
        found = {}
        for owner, modules in readers.items():
            own, first = owner.rpartition(".")[0], next(iter(modules))
            home = own if own in modules else first
            found[owner] = {each for each in modules if not _is_part(each, home)}
        return {owner: modules for owner, modules in found.items() if modules}

    def _find_sums(self) -> dict[int, str]:
        """Find the ops that sum the gradients of several modules for a parameter, by number."""
        owner_of = {
            number: each.owner
            for number, each in enumerate(self.step.storages)
            if each.role == GRADIENT and each.owner in self._elsewhere
        }
        found = {}
        for number in range(len(self.step.ops) - 1, -1, -1):
            op = self.step.ops[number]
            owners = {owner_of[s] for s in (*op.makes, *op.writes) if s in owner_of}
            if op.pass_ == OpPass.BACKWARD and op.kind in ("add", "add_") and len(owners) == 1:
                (found[number],) = owners
                owner_of |= {s: found[number] for s, _ in op.reads}
        return found

    def _add_variables(self) -> None:
        held: dict[str, int] = defaultdict(int)
        states: dict[str, int] = defaultdict(int)
        bits = self.step.state_bits
        device: dict[str, str] = {}
        tables = {each.owner for each in self.step.storages if each.role == BUFFER}
        for number, each in enumerate(self.step.storages):
            if number in self._held and each.last >= self._n_ops:
                held[each.owner] += each.n_bytes
                states[each.owner] += each.n_bytes * (each.bits == bits)
                if each.role == PARAMETER or each.owner not in device:
                    device[each.owner] = each.device
        late = self._find_late_gradients(held)
        for owner, n_bytes in held.items():
            path, _, own = owner.rpartition(".")
            where = OpPass.FORWARD, scope_of_module(path), device[owner]
            if owner in late:
                gradient = self._add_idle(f"{own}/grad", "Gradient", OpKind.CONSTANT, *where)
            type_ = BUFFER_TYPE if owner in tables else "Parameter"
            at = self._add_idle(own, type_, OpKind.VARIABLE, *where)
            self._variable[owner], self.nodes[at].persistent_bytes = at, n_bytes
            self.nodes[at].state_bytes = states[owner]
            for number in late.get(owner, ()):
                self._tie(at, gradient)
                self._send(gradient, number, at, self.step.storages[number].n_bytes)

    def _add_unread_inputs(self) -> None:
        """Add what is older than the step and there in it, though no op reads it."""
        stays: dict[str, int] = defaultdict(int)
        for number, each in enumerate(self.step.storages):
            if each.first >= 0 or each.role or number in self._read_at_all:
                continue
            if each.last >= self._n_ops:
                stays[each.device] += each.n_bytes
            elif each.last >= self._begin and each.n_bytes >= HELD_BYTES:
                self._free(self._add_input("dropped", each.device), number)
        for device, n_bytes in stays.items():
            if n_bytes >= HELD_BYTES:
                self.nodes[self._add_input("kept", device)].persistent_bytes = n_bytes

    def _add_input(self, own: str, device: str) -> int:
        """Add the node of tensors that are older than the step."""
        return self._add_idle(own, "Input", OpKind.INPUT, OpPass.FORWARD, INPUT_SCOPE, device)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _add_idle(
        self, own: str, type_: str, kind: OpKind, pass_: str, scope: str, device: str
    ) -> int:
        """Add a node that takes no time, at least by itself; ``own`` is its name in its scope."""
        name = self._names.take(scope, own)
        free = self.costs.free(device)
        return self._add(Node(name, type_, kind, pass_, scope, free, device=device))

    def _place(self, number: int, op: RecordedOp) -> int:
        """Return the node of an op, a new one unless it updates the same parameter."""
        key = self.merged.get(number)
        if key is not None and key in self.merged_nodes:
            at = self.merged_nodes[key]
            self._grow(self.nodes[at], op)
            return at
        if op.step_call:
            self._begin_step(op)
        summed = self._sums.get(number)
        if key is not None:
            scope, own = _update_scope(key[1])
            where = OpPass.UPDATE, scope, self._device_of(key[1], op.device)
            at = self._add_idle(f"{own}/{op.optimizer}", op.optimizer, OpKind.UPDATE, *where)
            self.merged_nodes[key] = at
        else:
            scope, own = _update_scope(summed) if summed else self._scope(op)
            name = self._names.take(scope, own, op.kind)
            pass_ = OpPass.UPDATE if summed else op.pass_
            at = self._add(Node(name, op.kind, kind_of(op), pass_, scope, device=op.device))
        self._grow(self.nodes[at], op)
        if op.step_call:
            self._connect_nodes(self._step_node[op.step_call], CONTROL, at, 0)
        elif summed:
            self._tie(at, self._variable[summed])
        elif op.pass_ == OpPass.BACKWARD:
            self._pending.append(at)
        return at

    def _grow(self, node: Node, op: RecordedOp) -> None:
        """Add the cost of an op to its node."""
        if op.device != node.device:
            return  # the host's part of an update, such as counting steps
        cost = self.costs.of(op)
        known = [np.nan_to_num(each) for each in node.time_us]
        node.time_us = (known[0] + cost.time_us[0], known[1] + cost.time_us[1])
        node.kernels += cost.kernels
        node.flops += op.work.flops
        node.temporary_bytes = max(node.temporary_bytes, cost.extra_bytes)

    def _device_of(self, owner: str, usual: str) -> str:
        """Return the device of a parameter."""
        variable = self._variable.get(owner)
        return usual if variable is None else self.nodes[variable].device

    def _scope(self, op: RecordedOp) -> tuple[str, str]:
        """Return an op's scope and, if it updates what one parameter owns, the parameter's name."""
        if op.pass_ == OpPass.UPDATE:
            for touched in (op.writes, dict(op.reads)):
                owners = {self.step.storages[s].owner for s in touched} - {""}
                if len(owners) == 1:
                    return _update_scope(*owners)
        return scope_of(op), ""

    def _begin_step(self, op: RecordedOp) -> None:
        """Let an optimiser's step follow the backward pass before it."""
        if op.step_call not in self._step_node:
            device = self.nodes[self._pending[-1]].device if self._pending else op.device
            step = self._add_idle("step", "step", OpKind.CONSTANT, OpPass.UPDATE, UPDATE, device)
            self._step_node[op.step_call] = step
            waiting = {*self._pending}
            feeds = {source for source, _, target, _ in self.edges if target in waiting}
            for each in self._pending:
                if each not in feeds:
                    self._connect_nodes(each, CONTROL, step, 0)
            self._pending.clear()

    # Edges

    def _connect(self, node: int, op: RecordedOp) -> None:
        """Add the edges of what an op reads, and note what it writes."""
        made = {*op.makes}
        for storage, _ in op.reads:
            if storage in made:
                continue
            self._read(node, storage, op.module)
        for storage in op.writes:
            self._write(node, storage)
        for storage in op.makes:
            self._writer[storage] = node

    def _read(self, node: int, number: int, module: str) -> None:
        storage = self.step.storages[number]
        writer = self._writer.get(number)
        is_argument = storage.n_bytes <= _ARGUMENT_BYTES
        if storage.device == "cpu" != self.nodes[node].device and is_argument:
            return  # a number goes along with the launch
        if storage.owner in self._variable and number in self._held:
            variable = self._variable[storage.owner]
            is_elsewhere = module in self._elsewhere.get(storage.owner, ())
            if storage.role in (PARAMETER, BUFFER) and is_elsewhere and writer is None:
                self._read_copy(node, variable, number, module)
                return
            self._tie(node, variable)
            self._send(variable if writer is None else writer, number, node, 0)
        elif writer is not None:
            self._send(writer, number, node, storage.n_bytes)
            self._readers[number].append(node)
        elif storage.first < 0:
            source, is_data = self._input_of(number), number in self._data
            if is_data:
                self._tie(node, source)
            self._send(source, number, node, 0 if is_data else storage.n_bytes)

    def _read_copy(self, node: int, variable: int, number: int, module: str) -> None:
        """Let a module read a parameter of another; all its ops that do so share a device."""
        first = self._copies.setdefault((number, module), node)
        self._tie(node, first)
        self._send(variable, number, node, self.step.storages[number].n_bytes, is_copy=True)

    def _write(self, node: int, number: int) -> None:
        storage = self.step.storages[number]
        if storage.owner in self._variable and number in self._held:
            self._tie(node, self._variable[storage.owner])
        for reader in self._readers.pop(number, ()):
            self._connect_nodes(reader, CONTROL, node, 0)
        self._writer[number] = node
        self._version[number] += 1

    def _tie(self, node: int, variable: int) -> None:
        if self.nodes[variable].device == self.nodes[node].device:
            self.ties.append((variable, node))

    def _input_of(self, number: int) -> int:
        """Return the node of a tensor that is older than the step."""
        if number not in self._input:
            storage = self.step.storages[number]
            at = self._add_input(f"tensor_{len(self._input)}", storage.device)
            self.nodes[at].persistent_bytes = storage.n_bytes if number in self._data else 0
            self._input[number] = at
        return self._input[number]

    def _send(
        self, source: int, storage: int, target: int, n_bytes: int, *, is_copy: bool = False
    ) -> None:
        """Connect a storage's last writer to a reader; each version is a tensor."""
        if source == target:
            return
        key = source, storage, -1 if is_copy else self._version[storage]
        if key not in self._slots:
            self._slots[key] = self._n_slots[source]
            self._n_slots[source] += 1
        self._connect_nodes(source, self._slots[key], target, n_bytes)

    def _connect_nodes(self, source: int, output: int, target: int, n_bytes: int) -> None:
        edge = source, output, target
        if source != target and edge not in self._seen:
            self._seen.add(edge)
            self.edges.append((*edge, n_bytes))

    def _keep_unread(self, number: int, node: int) -> None:
        """Keep what an op makes and no other reads, and what it replaces, until it is freed."""
        made, known = self._first_written[number], (self._read_at_all, self._held)
        unread = [each for each in made if not any(each in those for those in known)]
        unread = [] if number in self.merged else unread
        replaced = [self._replaced[each] for each in made if each in self._replaced]
        for each in (*unread, *replaced):
            storage = self.step.storages[each]
            if storage.n_bytes < HELD_BYTES or storage.device != self.nodes[node].device:
                continue
            if any(map(_does_work, self.step.ops[number + 1 : storage.last + 1])):
                self._free(node, each)
            elif storage.last >= number:
                self.nodes[node].temporary_bytes += storage.n_bytes

    def _free(self, source: int, number: int) -> None:
        """Let an op without work read a storage, so that it can be held until it is freed."""
        of = self.nodes[source]
        reader = self._add_idle("free", "free", OpKind.CONSTANT, of.pass_, of.scope, of.device)
        self._tie(reader, source)
        self._send(source, number, reader, self.step.storages[number].n_bytes)

    def _add_holds(self) -> None:
        """Hold each tensor until its storage was freed, if all readers end before.

        What outlives the step, such as gradients that are zeroed later, stays until its last op.
        """
        devices = {node.device for node in self.nodes}
        last_node = {device: self._last_nodes(device) for device in devices}
        readers: dict[tuple[int, int], int] = {}
        for source, output, target, n_bytes in self.edges:
            if n_bytes and output != CONTROL:
                readers[source, output] = max(readers.get((source, output), -1), target)
        newest: dict[int, int] = {}
        for _, number, version in self._slots:
            newest[number] = max(newest.get(number, version), version)
        ends = {node.device: number for number, node in enumerate(self.nodes)}
        for (source, number, version), output in [*self._slots.items()]:
            storage = self.step.storages[number]
            is_last = version == newest[number] >= 0
            if not is_last or (source, output) not in readers or storage.n_bytes < HELD_BYTES:
                continue
            if storage.device not in last_node:
                continue
            until = last_node[storage.device][min(storage.last, self._n_ops - 1)]
            if storage.last >= self._n_ops:
                until = ends[storage.device]
            if until is not None and until > readers[source, output]:
                self.holds.append((source, output, until))

    def _name_loose(self) -> None:
        """Let what the model does between its modules belong to the last module before it.

        Its gradients belong to the same one.
        """
        sources: dict[int, list[int]] = defaultdict(list)
        for source, _, target, _ in self.edges:
            sources[target].append(source)
        of_call = {self.step.ops[number].call: node for number, node in self._node_of.items()}
        forward = {
            node: of_call[self.step.ops[number].of_call]
            for number, node in self._node_of.items()
            if self.step.ops[number].of_call in of_call
        }
        for number, node in enumerate(self.nodes):
            if node.scope in ("", BACKWARD):
                near = sorted(sources[number], reverse=True)
                if number in forward:
                    near = [forward[number]]
                found = (split_pass(self.nodes[s].scope)[1] for s in near)
                module = next((each for each in found if each not in _NO_MODULES), "")
                node.scope = "/".join(filter(None, (node.scope, module)))

    def _add_temporaries(self) -> None:
        """Let each update hold what it makes for itself, as much as exists at once.

        Ops on lists make it for all parameters at once, so it stays until the last of their
        updates. Parameters on other devices have their own lists, which may end sooner: then the
        hold is longer than it should be.
        """
        shared = {number for _, number, _ in self._slots}
        ops_of: dict[int, list[int]] = defaultdict(list)
        for number in self.merged:
            if number in self._node_of:
                ops_of[self._node_of[number]].append(number)
        for (_, owner), node in self.merged_nodes.items():
            ops = ops_of[node]
            made = {s: number for number in ops for s in self.step.ops[number].makes}
            own = [
                (self.step.storages[s], self.step.ops[number].share < 1)
                for s, number in made.items()
                if s not in shared and s not in self._held
            ]
            most = max(
                (sum(e.n_bytes for e, _ in own if e.first <= n <= e.last) for n in ops), default=0
            )
            until = max((self._last_update(e.last) for e, in_list in own if in_list), default=-1)
            if until >= 0 and most >= HELD_BYTES:
                self._hold_temporary(node, owner, most, until)
            else:
                self.nodes[node].temporary_bytes += most

    def _last_update(self, number: int) -> int:
        """Return the node of the last op up to this one that updates a parameter."""
        last = min(number, len(self.step.ops) - 1)
        return self._node_of[next(n for n in range(last, -1, -1) if n in self.merged)]

    def _hold_temporary(self, node: int, owner: str, n_bytes: int, until: int) -> None:
        """Hold a tensor of an update until another one ends; what is held needs a reader."""
        scope, own = _update_scope(owner)
        where = OpPass.UPDATE, scope, self.nodes[node].device
        reader = self._add_idle(f"{own}/free", "free", OpKind.UPDATE, *where)
        output = self._n_slots[node]
        self._tie(reader, node)
        self._connect_nodes(node, output, reader, n_bytes)
        if until != node:
            self.holds.append((node, output, until))

    def _last_nodes(self, device: str) -> list[int | None]:
        """Return, for each recorded op, a device's last node until then; none of an update."""
        found: list[int | None] = []
        last: int | None = None
        for number in range(len(self.step.ops)):
            node = self._node_of.get(number)
            is_own = node is not None and self.nodes[node].device == device
            if is_own and number not in self.merged:
                last = node
            found.append(last)
        return found
