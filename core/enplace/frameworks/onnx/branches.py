"""An ``If`` that holds much of a model, opened: the nodes of one branch take its place.

Exporters merge two graphs into one file in this way: a decoder with the keys and values of earlier
calls (the past), and one for the first call. A runtime keeps an ``If`` on one device, so a plan can
only split a branch.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.frameworks.onnx.functions import (
    bodies_of,
    copy_of,
    own_names,
    reads,
    rename_brought,
    replace_nodes,
)
from enplace.frameworks.onnx.tensors import tensor_of
from enplace.text import instead

LEAST_SHARE = 0.1
"""An ``If`` with this share of the weights is opened unasked; smaller ones are details."""

THEN, ELSE = "then", "else"

_PAST = re.compile(r"past|cache", re.IGNORECASE)
_PAST_AXES = 3
"""Names of the keys and values of earlier calls, and their least axes; a flag or mask has fewer."""

_HANDING_ON = ("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Ops whose output has the values of their first input."""

_NO_READING = ("Identity", "Shape", "Size")
"""Ops that hand a tensor on without reading its values."""


class Opened(NamedTuple):
    """A branch that was opened, in a sentence, and in another how to get the other one."""

    what: str
    other: str


def open_branches(graph: GraphProto, wanted: str = "") -> list[Opened]:
    """Replace each large ``If`` of a graph by a branch; say of each which.

    Parameters
    ----------
    wanted : str
        ``then``, ``else`` or the name of a branch's graph, which is opened however small it is;
        several with commas. By default, the branch that reads the past: by the names of the
        inputs, or else by those to which it adds something, or by their number. If both branches
        read the same, the one with more weights, ``then`` if they have the same.

    Raises
    ------
    FileError
        If no branch is called so.
    """
    words = [word.strip() for word in wanted.split(",") if word.strip()]
    opening = _Opening(graph, words)
    notes = opening.run()
    if unused := [word for word in words if word not in opening.used]:
        raise FileError(_unused_branch(unused[0], words, opening.seen))
    return notes


def _unused_branch(word: str, words: Sequence[str], seen: Sequence[str]) -> str:
    if len(words) > 1 and word in (THEN, ELSE, *seen):
        return f"branch {shown(word)}: another branch of its If is named, too; name one for each If"
    if word in seen:
        return f"both branches of an If are called {shown(word)}; write {THEN} or {ELSE}"
    if word in (THEN, ELSE) and seen:
        return (
            f"no If op holds a tenth of the weights; name the branch to open: "
            f"{', '.join(map(shown, seen[:_MOST_NAMES]))}"
        )
    known = (THEN, ELSE, *seen)
    fix = instead(word, known) if seen else "it has no If op; leave the branch out"
    return f"no If op has a branch called {shown(word)}; {fix}"


_MOST_NAMES = 5


class _Choice(NamedTuple):
    """A branch to open, and why."""

    key: str
    why: str


class _Opening:
    """The opening of a graph's branches.

    Attributes
    ----------
    used : set of str
        The words of the user that named a branch.
    seen : list of str
        The names of all branches that lie open.
    """

    def __init__(self, graph: GraphProto, words: Sequence[str]) -> None:
        self._graph, self._words = graph, words
        self.used, self.seen = set[str](), list[str]()
        self._weights = {each.name: tensor_of(each).n_bytes for each in graph.initializer}
        self._constants = {each.name: each for each in graph.initializer}
        self._constants |= dict(_constants(graph.node))
        self._past = _find_past(graph)
        self._given = _find_given(graph)
        self._total = _weigh(graph)
        self._taken = set[str]()

    def run(self) -> list[Opened]:
        graph, notes = self._graph, list[Opened]()
        if not any(node.op_type == "If" for node in graph.node):
            return notes
        self._taken = _names(graph)
        for node in graph.node:
            if self._chosen(node) is None:
                self._taken.update(_inner_names(node))
        before = {name for node in graph.node for name in reads(node)}
        waiting, nodes = deque(graph.node), list[NodeProto]()
        while waiting:
            node = waiting.popleft()
            choice = self._chosen(node)
            if choice is None:
                nodes.append(node)
                continue
            notes.append(_describe(node, choice))
            waiting.extendleft(reversed(self._open(node, _branches(node)[choice.key])))
        if notes:
            replace_nodes(graph, nodes)
            _prune(graph, before)
        return notes

    # Which branch

    def _chosen(self, node: NodeProto) -> _Choice | None:
        """Return the branch of a node to open; None to leave the node whole."""
        branches = _branches(node)
        if not branches:
            return None
        names = {key: body.name for key, body in branches.items()}
        self.seen += [name for name in names.values() if name and name not in self.seen]
        is_unique = names[THEN] != names[ELSE]
        for key, name in names.items() if is_unique else ():
            if name in self._words:
                self.used.add(name)
                return _Choice(key, "")
        if self._held(node) < LEAST_SHARE * self._total:
            return None
        if key := next((word for word in self._words if word in (THEN, ELSE)), ""):
            self.used.add(key)
            return _Choice(key, "")
        return self._usual(node, branches)

    def _usual(self, node: NodeProto, branches: Mapping[str, GraphProto]) -> _Choice:
        condition = self._constants.get(node.input[0] if node.input else "")
        if condition is not None and (is_true := _truth(condition)) is not None:
            return _Choice(THEN if is_true else ELSE, "its condition is constant")
        signs: Sequence[tuple[Callable[[GraphProto], int], str]] = (
            (lambda body: _count_read(body, self._past), "it reads the past"),
            (lambda body: _count_grown(body, self._given), "it adds to what it is given"),
            (lambda body: _count_read(body, self._given), "it reads more inputs"),
            (self._weights_of, "it has more weights"),
        )
        for count_of, why in signs:
            counts = {key: count_of(body) for key, body in branches.items()}
            if counts[THEN] != counts[ELSE]:
                return _Choice(max(counts, key=lambda key: counts[key]), why)
        return _Choice(THEN, "both have the same weights")

    def _held(self, node: NodeProto) -> int:
        """Sum the weights in a node's bodies and those that they read, and their nodes."""
        outer = sum(self._weights.get(name, 0) for name in set(reads(node)))
        return outer + sum(map(_weigh, bodies_of(node)))

    def _weights_of(self, body: GraphProto) -> int:
        read = {name for node in body.node for name in reads(node)}
        own = sum(tensor_of(each).n_bytes for each in body.initializer)
        return own + sum(self._weights.get(name, 0) for name in read)

    # Opening it

    def _open(self, node: NodeProto, body: GraphProto) -> list[NodeProto]:
        """Return the nodes of a branch; its weights become the graph's."""
        graph, taken = self._graph, self._taken
        made = {name for inner in body.node for name in inner.output if name}
        renamed, handed = dict[str, str](), list[tuple[str, str]]()
        for info, outer in zip(body.output, node.output, strict=False):
            if outer and info.name in made and info.name not in renamed:
                renamed[info.name] = outer
            elif outer:
                handed.append((info.name, outer))
        for name in sorted(own_names(body) - renamed.keys()):
            if name in taken:
                renamed[name] = _fresh(name, taken)
            taken.add(name)
        nodes = [copy_of(inner) for inner in body.node]
        _rename(nodes, renamed, taken)
        for weight in body.initializer:
            self._weights[renamed.get(weight.name, weight.name)] = tensor_of(weight).n_bytes
        _move(body, graph, renamed)
        label = node.name or node.output[0]
        return nodes + [
            NodeProto(
                op_type="Identity",
                name=f"{label}/Identity_{number}",
                input=[renamed.get(inner, inner)],
                output=[outer],
            )
            for number, (inner, outer) in enumerate(handed)
        ]


def _branches(node: NodeProto) -> dict[str, GraphProto]:
    """Return the branches of an ``If``; nothing for any other node."""
    found = {
        each.name.removesuffix("_branch"): each.g
        for each in node.attribute
        if node.op_type == "If" and each.name in ("then_branch", "else_branch")
    }
    is_whole = len(found) == 2 and all(len(g.output) == len(node.output) for g in found.values())
    return {key: found[key] for key in (THEN, ELSE)} if is_whole and node.output else {}


def _describe(node: NodeProto, choice: _Choice) -> Opened:
    branches = _branches(node)
    other = ELSE if choice.key == THEN else THEN
    names = {key: f" ({body.name})" if body.name else "" for key, body in branches.items()}
    why = f", because {choice.why}" if choice.why else ""
    op = shown(node.name or node.output[0])
    return Opened(
        f"Of the two branches of If op {op}, this is '{choice.key}'{names[choice.key]}{why}.",
        f"For the other{names[other]}, import it again with branch '{other}' (--branch {other}).",
    )


def _weigh(graph: GraphProto) -> int:
    """Sum the bytes of all weights and constants in a graph, and one for each node."""
    tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    tensors += [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    inner = sum(_weigh(body) for node in graph.node for body in bodies_of(node))
    return sum(tensor_of(each).n_bytes for each in tensors) + inner + len(graph.node)


def _constants(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, TensorProto]]:
    for node in nodes:
        if node.op_type == "Constant" and node.output:
            yield from ((node.output[0], a.t) for a in node.attribute if a.HasField("t"))


def _truth(tensor: TensorProto) -> bool | None:
    """Return the value of a tensor that holds one Boolean."""
    if tensor.data_type != TensorProto.BOOL or tensor_of(tensor).n_values != 1:
        return None
    if tensor.raw_data:
        return tensor.raw_data[:1] != b"\0"
    return bool(tensor.int32_data[0]) if tensor.int32_data else None


# The past


def _find_past(graph: GraphProto) -> set[str]:
    """Find the inputs that hold keys and values of earlier calls, and what is made of them."""
    found = {name for name in _large_inputs(graph) if _PAST.search(name)}
    for node in graph.node if found else ():
        is_read = node.op_type not in ("If", "Shape", "Size")
        if is_read and not found.isdisjoint(node.input):
            found.update(node.output)
    return found


def _find_given(graph: GraphProto) -> set[str]:
    """Find the inputs that may be of earlier calls whatever they are called, and their copies."""
    found = set(_large_inputs(graph))
    for node in graph.node if found else ():
        if node.op_type in _HANDING_ON and not found.isdisjoint(node.input[:1]):
            found.update(node.output)
    return found


def _large_inputs(graph: GraphProto) -> Iterator[str]:
    weights = {each.name for each in graph.initializer}
    inputs = (info for info in graph.input if info.name not in weights)
    yield from (info.name for info in inputs if _may_be_past(info))


def _may_be_past(info: ValueInfoProto) -> bool:
    """Whether an input has the axes of keys and values, or does not say."""
    kind = info.type.tensor_type
    is_flag = kind.elem_type == TensorProto.BOOL
    return not is_flag and not (kind.HasField("shape") and len(kind.shape.dim) < _PAST_AXES)


def _count_read(body: GraphProto, tensors: set[str]) -> int:
    """Count the tensors whose values a branch reads."""
    nodes = (node for node in body.node if node.op_type not in _NO_READING)
    return len({name for node in nodes for name in reads(node)} & tensors)


def _count_grown(body: GraphProto, tensors: set[str]) -> int:
    """Count the tensors to which a branch adds something of its own, as it does to the past."""
    own = {name for node in body.node for name in node.output}
    copies = {
        node.output[0]: node.input[0]
        for node in body.node
        if node.op_type in _HANDING_ON and node.input and node.output
    }
    grown = set[str]()
    for node in body.node:
        if node.op_type == "Concat" and not own.isdisjoint(node.input):
            grown.update(copies.get(name, name) for name in node.input)
    return len(grown & tensors)


# Names


def _names(graph: GraphProto) -> set[str]:
    """Return all names in a graph, except in the bodies of its nodes."""
    found = own_names(graph) | {each.name for each in (*graph.input, *graph.output)}
    return found.union(*(node.input for node in graph.node))


def _inner_names(node: NodeProto) -> Iterator[str]:
    """Iterate over the names that the bodies of a node define, at any depth."""
    for body in bodies_of(node):
        yield from own_names(body)
        yield from (info.name for info in body.input)
        for inner in body.node:
            yield from _inner_names(inner)


def _fresh(name: str, taken: set[str]) -> str:
    new = next(n for n in (f"{name}_{i}" for i in count(1)) if n not in taken)
    taken.add(new)
    return new


def _rename(nodes: Iterable[NodeProto], names: Mapping[str, str], taken: set[str]) -> None:
    """Rename tensors in nodes and their bodies."""
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in bodies_of(node):
            _rename_body(body, names, taken)


def _rename_body(body: GraphProto, names: Mapping[str, str], taken: set[str]) -> None:
    """Rename the tensors of a body, which may hide some by its own."""
    own = own_names(body) | {info.name for info in body.input}
    new = {name: _fresh(name, taken) for name in sorted(own & taken)}
    taken |= own
    inner = {name: to for name, to in names.items() if name not in own} | new
    rename_brought(body, lambda name: inner.get(name, name))
    _rename(body.node, inner, taken)


# The graph around it


def _move(body: GraphProto, graph: GraphProto, names: Mapping[str, str]) -> None:
    """Move what a branch brings into the graph around it."""
    known = {info.name for info in (*graph.output, *graph.value_info)}
    for weight in body.initializer:
        graph.initializer.add().CopyFrom(weight)
        graph.initializer[-1].name = names.get(weight.name, weight.name)
    for sparse in body.sparse_initializer:
        graph.sparse_initializer.add().CopyFrom(sparse)
        moved = graph.sparse_initializer[-1].values
        moved.name = names.get(moved.name, moved.name)
    for info in (*body.value_info, *body.output):
        name = names.get(info.name, info.name)
        if name not in known and info.HasField("type"):
            known.add(name)
            graph.value_info.add().CopyFrom(info)
            graph.value_info[-1].name = name


def _prune(graph: GraphProto, before: set[str]) -> None:
    """Drop what only a closed branch or the choice needed: nodes, weights and inputs."""
    needed = {info.name for info in graph.output}
    kept = []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output) or before.isdisjoint(node.output):
            kept.append(node)
            needed.update(reads(node))
    if len(kept) < len(graph.node):
        replace_nodes(graph, kept[::-1])
    gone = before - needed
    for field in (graph.initializer, graph.input):
        named = [each for each in field if each.name not in gone]
        if len(named) < len(field):
            copies = [type(each).FromString(each.SerializeToString()) for each in named]
            del field[:]
            field.extend(copies)
