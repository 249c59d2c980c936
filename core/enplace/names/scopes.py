"""Name scopes that people know, for the ops of a TensorFlow graph."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from enplace.names.passes import (
    BACKWARD,
    TRAIN_OP,
    UPDATE,
    is_gradient_of_op,
    is_optimizer,
    is_tape,
)
from enplace.values.arrays import adjacency, topological_order
from enplace.values.op_kinds import OpKind, kind_of_type

INPUT = "input"
"""Scope of the ops that fetch the batch."""

_VARIABLE_TYPES = ("VarHandleOp", "VariableV2", "Variable", "Placeholder")

_READS = ("read", "Read", "Assign")
"""Last parts of the names of a variable's own ops."""

_QUOTED = re.compile(r"'([^']*)'")
_NUMBER = re.compile(r"\.(\d+)\Z")

Edge = tuple[int, int, int, int, bool]


def scopes_of(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Edge]) -> list[str]:
    """Find the scope of every op, with ``/`` between its parts.

    Forward ops keep their name scope, or get the model block that tagged them (``lstm1.t4`` becomes
    ``lstm1/t4``) if the name says less. Backward ops are under ``gradients/``; ops that write
    variables are under ``update/`` and the variable's scope. An op without any name gets the scope
    of an op that it feeds, or that feeds it.
    """
    names = {node["name"]: op for op, node in enumerate(nodes)}
    blocks = _blocks(nodes, names)
    scopes = [_own_scope(node, names, blocks) for node in nodes]
    _name_slots(nodes, names, scopes)
    _name_updates(nodes, edges, scopes)
    ends = [(source, target) for source, _, target, _, _ in edges]
    _spread([node["name"] for node in nodes], ends, scopes)
    return [scope or "" for scope in scopes]


def traced_scopes(nodes: Sequence[tuple[str, str]], edges: Sequence[Sequence[int]]) -> list[str]:
    """Find the scope of every op of a traced TensorFlow 2 function.

    Parameters
    ----------
    nodes : sequence of (str, str)
        Name and type of each op.
    edges : sequence of (source, output, consumer, ...)

    Returns
    -------
    list of str
        Forward ops keep their name scope. Ops of a gradient tape are under ``gradients/``, ops that
        write variables under ``update/``. A variable belongs where it is first read.
    """
    names = _not_scopes(nodes)
    ends = [(edge[0], edge[2]) for edge in edges]
    scopes = [_traced_scope(name, kind, names) for name, kind in nodes]
    _name_tape([name for name, _ in nodes], scopes)
    _spread([name for name, _ in nodes], ends, scopes)
    return [scope or "" for scope in scopes]


def exported_scopes(
    names: Sequence[str],
    recorded: Sequence[str],
    n_inputs: int,
    edges: Sequence[Sequence[int]],
) -> list[str]:
    """Find the scope of every op of a graph that another framework exported.

    Parameters
    ----------
    names : sequence of str
        PyTorch writes paths with a slash in front: ``/layer1/layer1.0/conv1/Conv``.
    recorded : sequence of str
        The modules around each op, if its exporter noted them: ``['', 'layer1', 'layer1.0.conv1',
        'conv2d']``, where the last is the op itself.
    n_inputs : int
        So many ops, the first ones, are fed.
    edges : sequence of (source, output, consumer, ...)
    """
    ends = [(edge[0], edge[2]) for edge in edges]
    scopes = [
        _recorded_scope(modules) or _path_scope(name.split("/")[:-1]) or None
        for name, modules in zip(names, recorded, strict=True)
    ]
    _spread(names, ends, scopes)
    return [INPUT] * n_inputs + [scope or "" for scope in scopes[n_inputs:]]


def _recorded_scope(modules: str) -> str:
    """Turn recorded modules into a scope: ``layer1/layer1_0/conv1``."""
    parts, above = [], ""
    for module in _QUOTED.findall(modules)[:-1]:
        part = module.removeprefix(f"{above}.")
        parts.append(f"{above.rpartition('.')[2]}_{part}" if part.isdecimal() else part)
        above = module or above
    return _path_scope(parts)


def _path_scope(parts: Sequence[str]) -> str:
    """Join the parts of a path; PyTorch numbers modules ``layer.0``, which is ``layer_0`` here."""
    return "/".join(_NUMBER.sub(r"_\1", part) for part in parts if part)


def _traced_scope(name: str, kind: str, names: Collection[str]) -> str | None:
    """Find the scope in a traced op's name; None if it has none or names a variable."""
    parts = name.split("/")
    if kind.startswith("Iterator"):
        return INPUT
    if kind in _VARIABLE_TYPES:
        return None
    if is_tape(parts[0]):
        return BACKWARD
    if kind_of_type(kind) == OpKind.UPDATE or is_optimizer(parts[0]):
        return UPDATE
    return "/".join(_name_parts(parts, names)) or None


def _name_tape(names: Sequence[str], scopes: list[str | None]) -> None:
    """Put each op of a gradient tape where the forward op is that it is named after.

    ``gradient_tape/dense/MatMul/MatMul_1`` is of the op ``dense/MatMul``, which is in ``dense``.
    """
    forward = set[str]()
    for scope in filter(None, scopes):
        while scope and scope not in forward:
            forward.add(scope)
            scope = scope.rpartition("/")[0]
    for op, name in enumerate(names):
        if scopes[op] == BACKWARD:
            above = name.partition("/")[2]
            while above and above not in forward:
                above = above.rpartition("/")[0]
            scopes[op] = "/".join(filter(None, (BACKWARD, above)))


def _own_scope(
    node: Mapping[str, Any], names: Mapping[str, int], blocks: Mapping[str, str]
) -> str | None:
    """Find the scope in an op's name and tag; None if they have none."""
    parts = node["name"].split("/")
    if node["op"].startswith("Iterator"):
        return INPUT
    if parts[0] == BACKWARD:
        tagged = _with_tag(_forward_parts(parts[1:]), node["tag"], blocks)
        return f"{BACKWARD}/{tagged}" if tagged else None
    if parts[0] == TRAIN_OP:
        return None
    return _with_tag(_name_parts(parts, names), node["tag"], blocks)


def _name_parts(parts: list[str], names: Collection[str]) -> list[str]:
    """Find an op's name scope; another op's name (``kernel`` in ``kernel/read``) is not a scope."""
    while len(parts) > 1 and "/".join(parts[:-1]) in names:
        parts = parts[:-1]
    return parts[:-1]


def _not_scopes(nodes: Sequence[tuple[str, str]]) -> set[str]:
    """Find the names of ops, without variables that share their name with a layer.

    ``embedding/Gather`` is in the layer ``embedding``, even if that has a variable of this name.
    """
    variables = {name for name, kind in nodes if kind in _VARIABLE_TYPES}
    layers = {
        above for above, _, own in (name.rpartition("/") for name, _ in nodes) if own not in _READS
    }
    return {name for name, _ in nodes} - (variables & layers)


def _blocks(nodes: Sequence[Mapping[str, Any]], names: Mapping[str, int]) -> dict[str, str]:
    """Find the scope of each numbered tag: ``encoder/layer_3`` for ``enc3``, if names agree."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        tag, parts = node["tag"], node["name"].split("/")
        if tag[-1:].isdigit() and "." not in tag and parts[0] != BACKWARD:
            scope = _name_parts(parts, names)
            if _covers(scope, tag):
                found.setdefault(tag, []).append("/".join(scope))
    common = {tag: posixpath.commonpath(scopes) for tag, scopes in found.items()}
    return {tag: scope for tag, scope in common.items() if _covers(scope.split("/"), tag)}


def _forward_parts(parts: list[str]) -> list[str]:
    """Find the scope of a gradient's forward op: everything before ``..._grad``."""
    for i, part in enumerate(parts):
        if is_gradient_of_op(part):
            return parts[:i]
    return parts[:-1]


def _with_tag(parts: list[str], tag: str, blocks: Mapping[str, str]) -> str | None:
    tagged = tag.split(".") if tag else []
    terse = _letters(tagged) == 1 < _letters(parts)
    if terse or all(_covers(parts, part) for part in tagged):
        return "/".join(parts) or None
    return blocks.get(tag, "/".join(tagged))


def _letters(parts: list[str]) -> int:
    """Count a scope's letters: ``block1/unit_2`` explains more than ``b0.1``."""
    return sum(character.isalpha() for part in parts for character in part)


def _covers(parts: list[str], tag: str) -> bool:
    """Return whether a scope covers a tag: ``decoder/layer_3`` covers ``dec3``."""
    if tag in parts:
        return True
    tokens = re.findall(r"[a-z]+|\d+", tag.lower())
    words = [word for part in parts for word in re.findall(r"[a-z]+|\d+", part.lower())]
    return all(
        token in words if token.isdigit() else any(word.startswith(token) for word in words)
        for token in tokens
    )


def _name_slots(
    nodes: Sequence[Mapping[str, Any]], names: Mapping[str, int], scopes: list[str | None]
) -> None:
    """Give an optimiser's slot the scope of the variable it is colocated with."""
    for op, node in enumerate(nodes):
        owner = names.get(node["colocate"][0]) if node["colocate"] else None
        if node["op"] == "VariableV2" and not node["tag"] and owner is not None:
            scopes[op] = scopes[owner]


def _name_updates(
    nodes: Sequence[Mapping[str, Any]], edges: Sequence[Edge], scopes: list[str | None]
) -> None:
    """Put an op without a scope that writes a variable under ``update/``."""
    variable = {target: source for source, _, target, _, by_ref in reversed(edges) if by_ref}
    for op, node in enumerate(nodes):
        if scopes[op] is None and op in variable and kind_of_type(node["op"]) == OpKind.UPDATE:
            scopes[op] = "/".join(filter(None, (UPDATE, scopes[variable[op]])))
        elif scopes[op] is None and node["name"].startswith(TRAIN_OP) and op not in variable:
            scopes[op] = UPDATE


def _spread(
    names: Sequence[str], edges: Sequence[tuple[int, int]], scopes: list[str | None]
) -> None:
    """Give other ops a neighbour's scope: of the updates that they only feed, else a producer's."""
    producers: list[list[int]] = [[] for _ in names]
    consumers: list[list[int]] = [[] for _ in names]
    for source, target in edges:
        producers[target].append(source)
        consumers[source].append(target)
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    out_ptr, consumer = adjacency(ends[:, 0], ends[:, 1], len(names))
    # Without ops on a cycle, which the profile will refuse.
    order = topological_order(len(names), out_ptr, consumer).tolist()
    for op in reversed(order):
        if scopes[op] is None and not names[op].startswith(BACKWARD):
            # Updates may wait for forward ops, which also feed others.
            fed = [scopes[consumer] for consumer in consumers[op]]
            if fed and all(scope and scope.split("/")[0] == UPDATE for scope in fed):
                scopes[op] = fed[0]
    for op in order:
        if scopes[op] is None:
            scopes[op] = _first_scope(producers[op], scopes)
    for op in reversed(order):
        if scopes[op] is None:
            scopes[op] = _first_scope(consumers[op], scopes)


def _first_scope(ops: Sequence[int], scopes: Sequence[str | None]) -> str | None:
    return next((scopes[op] for op in ops if scopes[op]), None)
