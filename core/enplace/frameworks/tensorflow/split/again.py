"""Write what a plan computes again into a graph: a copy of each op, read by those that come late.

The copies have the names that :mod:`enplace.values.splits.again` gives them. They are the same
nodes with the same inputs, so that results never change, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from enplace.errors import SplitError
from enplace.frameworks.tensorflow.graph import node_of
from enplace.values.op_kinds import OpKind, kind_of_type
from enplace.values.splits import Split
from enplace.values.splits.again import copy_name

_COLOCATION = "_class"


def add_copies(graph_def: GraphDef, again: Sequence[Split]) -> GraphDef:
    """Return the graph with the copies of ops that are computed again.

    Raises
    ------
    SplitError
        If the graph does not have an op, or a reader does not read it.
    """
    new = GraphDef()
    new.CopyFrom(graph_def)
    nodes = {node.name: node for node in new.node}
    for each in again:
        nodes[copy_name(each.op)] = _add_copy(new, _known(nodes, each.op), each)
    for each in again:
        if each.after:
            nodes[copy_name(each.op)].input.append(f"^{_known(nodes, each.after).name}")
        for reader in each.readers:
            _redirect(_known(nodes, reader), each.op)
    _let_writers_wait(new, [copy_name(each.op) for each in again])
    return new


def _known(nodes: dict[str, NodeDef], name: str) -> NodeDef:
    if name not in nodes:
        raise SplitError(
            f"op '{name}' belongs to what is computed again, but the model has no such op; profile "
            f"the model again and make a new plan"
        )
    return nodes[name]


def _add_copy(graph_def: GraphDef, node: NodeDef, again: Split) -> NodeDef:
    copy = graph_def.node.add()
    copy.CopyFrom(node)
    copy.name = copy_name(again.op)
    copy.attr.pop(_COLOCATION, None)
    return copy


def _redirect(reader: NodeDef, op: str) -> None:
    """Let a node read the copy of an op instead of the op."""
    is_read = False
    for at, tensor in enumerate(reader.input):
        if node_of(tensor) == op and not tensor.startswith("^"):
            reader.input[at] = f"{copy_name(op)}{tensor[len(op) :]}"
            is_read = True
    if not is_read:
        raise SplitError(
            f"op '{reader.name}' should read what '{op}' computes again, but does not read it; "
            f"profile the model again and make a new plan"
        )


def _let_writers_wait(graph_def: GraphDef, copies: Sequence[str]) -> None:
    """Let what writes a variable wait for the copies that read it.

    A read passes on a variable's own memory, so it would be too late after the update.
    """
    nodes = {node.name: node for node in graph_def.node}
    writers: dict[str, list[NodeDef]] = {}
    for node in graph_def.node:
        if kind_of_type(node.op) == OpKind.UPDATE:
            for tensor in node.input:
                writers.setdefault(node_of(tensor), []).append(node)
    for copy in copies:
        for variable in {_variable_of(nodes, tensor) for tensor in nodes[copy].input}:
            for writer in writers.get(variable, ()):
                if f"^{copy}" not in writer.input:
                    writer.input.append(f"^{copy}")


def _variable_of(nodes: dict[str, NodeDef], tensor: str) -> str:
    """Return the variable that a tensor is read from, or its own node."""
    node = nodes[node_of(tensor)]
    while node.op in ("Identity", "ReadVariableOp") and node.input:
        node = nodes[node_of(node.input[0])]
    return str(node.name)
