"""Write what a plan does not keep into a graph: what is read by those that come late.

Copies of ops are the same nodes with the same inputs; what is fetched from the host comes from an
``IdentityN`` there. Both have the names that :mod:`enplace.values.splits.again` gives them. So
results never change, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from enplace.errors import SplitError
from enplace.frameworks.tensorflow.graph import make_node, node_of, slot_of
from enplace.frameworks.tensorflow.shapes import TensorShape
from enplace.values.op_kinds import OpKind, kind_of_type
from enplace.values.splits import Split
from enplace.values.splits.again import FETCH_TYPE

_COLOCATION = "_class"


def add_copies(
    graph_def: GraphDef, again: Sequence[Split], shapes: Mapping[str, TensorShape]
) -> GraphDef:
    """Return the graph with copies of ops that are computed again, and what fetches from the host.

    Raises
    ------
    SplitError
        If the graph does not have an op, or a reader does not read it.
    """
    new = GraphDef()
    new.CopyFrom(graph_def)
    nodes = {node.name: node for node in new.node}
    for each in again:
        node = _known(nodes, each.op)
        if each.is_again:
            nodes[each.added] = _add_copy(new, node, each)
    for each in again:
        reads = _reads([_known(nodes, reader) for reader in each.readers], each)
        outputs = [slot_of(reader.input[at]) for reader, at in reads]
        if each.is_offload:
            sent = sorted({*outputs})
            nodes[each.added] = _add_fetch(new, each, sent, shapes)
            outputs = [sent.index(output) for output in outputs]
        for (reader, at), output in zip(reads, outputs, strict=True):
            reader.input[at] = f"{each.added}:{output}" if output else each.added
        if each.after:
            nodes[each.added].input.append(f"^{_known(nodes, each.after).name}")
    _let_writers_wait(new, [each.added for each in again if each.is_again])
    return new


def _known(nodes: dict[str, NodeDef], name: str) -> NodeDef:
    if name not in nodes:
        raise SplitError(
            f"op '{name}' belongs to what is computed again or kept on the host, but the model has "
            f"no such op; profile the model again and make a new plan"
        )
    return nodes[name]


def _add_copy(graph_def: GraphDef, node: NodeDef, again: Split) -> NodeDef:
    copy = graph_def.node.add()
    copy.CopyFrom(node)
    copy.name = again.added
    copy.attr.pop(_COLOCATION, None)
    return copy


def _add_fetch(
    graph_def: GraphDef, split: Split, outputs: Sequence[int], shapes: Mapping[str, TensorShape]
) -> NodeDef:
    """Add a node on the host that gives some outputs of an op."""
    tensors = [f"{split.op}:{output}" for output in outputs]
    fetch = graph_def.node.add()
    fetch.CopyFrom(make_node(split.added, FETCH_TYPE, tensors))
    fetch.attr["T"].list.type.extend(shapes[each].dtype.as_datatype_enum for each in tensors)
    return fetch


def _reads(readers: Sequence[NodeDef], split: Split) -> list[tuple[NodeDef, int]]:
    """List the inputs of nodes that are outputs of the op that is not kept."""
    found = []
    for reader in readers:
        at = [
            number
            for number, tensor in enumerate(reader.input)
            if node_of(tensor) == split.op and not tensor.startswith("^")
        ]
        if not at:
            raise SplitError(
                f"op '{reader.name}' should read what '{split.op}' makes, which is {split.how}, "
                f"but does not read it; profile the model again and make a new plan"
            )
        found += [(reader, number) for number in at]
    return found


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
