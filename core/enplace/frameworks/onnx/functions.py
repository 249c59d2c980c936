"""Functions that a file defines itself: each call becomes the nodes of the function's body.

The ONNX library's own inliner drops the names of the calls, which are the model's scopes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count
from typing import NamedTuple

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from enplace.errors import FileError
from enplace.frameworks.onnx.limits import MAX_INLINED_BYTES, MAX_NODES
from enplace.text import size as size_text

Key = tuple[str, str, str]
Functions = Mapping[Key, FunctionProto]
Rename = Callable[[str], str]


def inline_functions(model: ModelProto) -> None:
    """Replace the calls in the main graph; a body's nodes get the call's name as their scope.

    Raises
    ------
    FileError
        If a function calls itself, or the calls make too many nodes, or too large ones.
    """
    functions = {_key(each): each for each in model.functions}
    if not functions:
        return
    _check(model.graph, functions)
    graph = model.graph
    named = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    taken = _tensors(graph.node) | {each.name for each in named}
    nodes = [inner for node in graph.node for inner in _inlined(node, functions, taken)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.functions[:]
    known = {each.domain for each in model.opset_import}
    for function in functions.values():
        for each in function.opset_import:
            if each.domain not in known:
                known.add(each.domain)
                model.opset_import.add(domain=each.domain, version=each.version)


def _key(named: FunctionProto | NodeProto) -> Key:
    """Return what a call and its function have in common."""
    kind = named.name if isinstance(named, FunctionProto) else named.op_type
    return named.domain, kind, named.overload


class _Size(NamedTuple):
    """How many nodes there are, how many names they hold, and how many bytes they take."""

    nodes: int
    names: int
    bytes: int


def _check(graph: GraphProto, functions: Functions) -> None:
    """Count what inlining makes, each function once."""
    sizes: dict[Key, _Size] = {}

    def total(nodes: Iterator[NodeProto], path: tuple[Key, ...]) -> _Size:
        found = _Size(0, 0, 0)
        for node in nodes:
            found = _Size(*map(operator.add, found, size(node, path)))
        return found

    def size(node: NodeProto, path: tuple[Key, ...]) -> _Size:
        key = _key(node)
        if key not in functions:
            return _own_size(node)
        if key in path or len(path) > _MOST_DEPTH:
            raise FileError(f"function {key[1][:60]!a} calls itself; export the model again")
        if key not in sizes:
            sizes[key] = total(_all_nodes(functions[key].node), (*path, key))
        found, own = sizes[key], _own_size(node)  # its names are copied, then replaced
        scopes = found.names * len(_scope(node, functions[key]))
        return found._replace(bytes=found.bytes + own.bytes + scopes)

    found = total(_all_nodes(graph.node), ())
    if found.nodes > MAX_NODES:
        raise FileError(f"its functions make over {MAX_NODES:,} nodes; do not trust it")
    if found.bytes > MAX_INLINED_BYTES:
        raise FileError(f"its functions make over {size_text(MAX_INLINED_BYTES)}; do not trust it")


_MOST_DEPTH, _NAME_BYTES = 100, 16
"""Calls in calls, and what a name takes beside its characters."""


def _own_size(node: NodeProto) -> _Size:
    """Return the size of a node without the bodies in it, whose nodes are counted apart."""
    bodies = sum(g.ByteSize() for each in node.attribute for g in (each.g, *each.graphs))
    names = len(node.input) + len(node.output) + 1
    return _Size(1, names, node.ByteSize() - bodies + names * _NAME_BYTES)


def _scope(call: NodeProto, function: FunctionProto) -> str:
    """Return the name under which the nodes of a call's function come to stand."""
    return call.name or (call.output[0] if call.output else "") or function.name


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """Iterate over the bodies of a loop or branch itself."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def reads(node: NodeProto) -> Iterator[str]:
    """Iterate over the tensors that a node takes, those that its bodies take from outside too."""
    yield from filter(None, node.input)
    for body in bodies_of(node):
        yield from _read_outside(body)


def _read_outside(body: GraphProto) -> list[str]:
    made = {named.name for named in (*body.input, *body.initializer)}
    made |= {sparse.values.name for sparse in body.sparse_initializer}
    found = []
    for node in body.node:
        found += [name for name in reads(node) if name not in made]
        made.update(node.output)
    found += [info.name for info in body.output if info.name not in made]
    return found


def _all_nodes(nodes: object) -> Iterator[NodeProto]:
    """Iterate over nodes and those in bodies of loops and branches."""
    for node in nodes:  # type: ignore[attr-defined]
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body.node)


def _tensors(nodes: object) -> set[str]:
    """Return the names of all tensors that nodes and their bodies read or make."""
    return {name for node in _all_nodes(nodes) for name in (*node.input, *node.output)}


def _inlined(node: NodeProto, functions: Functions, taken: set[str]) -> Iterator[NodeProto]:
    """Yield the nodes that a node stands for: itself, unless it calls a function.

    The new tensors get names that are not taken, for calls may have names in common.
    """
    function = functions.get(_key(node))
    if function is None:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _inline_body(body, functions, taken)
        yield node
        return
    scope = _scope(node, function)
    # A call may leave out outputs, which the function's own nodes may read nevertheless.
    outputs = zip(function.output, node.output, strict=False)
    names = {inner: outer for inner, outer in outputs if outer}
    names |= dict(zip(function.input, node.input, strict=False))
    names |= dict.fromkeys(function.input[len(node.input) :], "")

    own = _tensors(function.node) - names.keys() - {""}
    prefixes = chain([scope], (f"{scope}:{number}" for number in count(len(taken))))
    prefix = next(p for p in prefixes if taken.isdisjoint(f"{p}/{name}" for name in own))
    taken.update(f"{prefix}/{name}" for name in own)

    def rename(name: str) -> str:
        return names.get(name, f"{prefix}/{name}") if name else ""

    given = {each.name: each for each in (*function.attribute_proto, *node.attribute)}
    for number, inner in enumerate(function.node):
        copied = copy_of(inner)
        copied.name = f"{scope}/{inner.name or f'{inner.op_type}_{number}'}"
        _rename_node(copied, rename, given)
        yield from _inlined(copied, functions, taken)


def _inline_body(body: GraphProto, functions: Functions, taken: set[str]) -> None:
    if not body.node:
        return
    nodes = [inner for node in body.node for inner in _inlined(node, functions, taken)]
    replace_nodes(body, nodes)


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Let a graph have other nodes, some of which may be its own."""
    copies = [copy_of(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def copy_of(node: NodeProto) -> NodeProto:
    """Return a node that stays when its graph loses this one."""
    copied = NodeProto()
    copied.CopyFrom(node)
    return copied


def _rename_node(node: NodeProto, rename: Rename, given: Mapping[str, AttributeProto]) -> None:
    """Rename the tensors of a node, and fill in the attributes that its function was given."""
    node.input[:] = [rename(name) for name in node.input]
    node.output[:] = [rename(name) for name in node.output]
    attributes = [_filled(each, given) for each in node.attribute]
    kept = [each for each in attributes if each is not None]
    for attribute, filled in zip(node.attribute, attributes, strict=True):
        if filled is not None and not attribute.ref_attr_name:  # else it has the caller's names
            for body in (filled.g, *filled.graphs):
                _rename_body(body, rename, given)
    del node.attribute[:]
    node.attribute.extend(kept)


def _filled(
    attribute: AttributeProto, given: Mapping[str, AttributeProto]
) -> AttributeProto | None:
    """Return the attribute with its value; None if the caller left it out."""
    filled = AttributeProto()
    if not attribute.ref_attr_name:
        filled.CopyFrom(attribute)
        return filled
    if attribute.ref_attr_name not in given:
        return None
    filled.CopyFrom(given[attribute.ref_attr_name])
    filled.name = attribute.name
    return filled


def _rename_body(body: GraphProto, outer: Rename, given: Mapping[str, AttributeProto]) -> None:
    """Rename the tensors of a body; its own may hide those around it."""
    own = own_names(body) | {each.name for each in body.input}

    def rename(name: str) -> str:
        return outer(f"{name}:own" if name and name in own else name)

    rename_brought(body, rename)
    for node in body.node:
        _rename_node(node, rename, given)


def own_names(graph: GraphProto) -> set[str]:
    """Return the names of what a graph makes or brings."""
    own = {name for node in graph.node for name in node.output if name}
    own |= {each.name for each in graph.initializer}
    return own | {sparse.values.name for sparse in graph.sparse_initializer}


def rename_brought(body: GraphProto, rename: Rename) -> None:
    """Rename the tensors that a body is given, brings and gives, where it says what they are."""
    for named in (*body.input, *body.output, *body.value_info, *body.initializer):
        named.name = rename(named.name)
    for sparse in body.sparse_initializer:
        sparse.values.name = rename(sparse.values.name)
