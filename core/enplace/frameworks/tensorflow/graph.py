"""A traced function as one flat graph of ops, with names that are the same in every trace."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.convert_to_constants import disable_lower_using_switch_merge
from tensorflow.python.grappler.tf_optimizer import OptimizeGraph

from enplace.frameworks.tensorflow.device_names import asked_devices

_COMPILED = ("api_implements", "_XlaMustCompile", "_noinline")
"""Attributes that keep a function call from being inlined."""

_ASKED = "_enplace_asked"
"""Attribute that carries the device of an op through inlining."""

_CALL = re.compile(r"(Stateful)?PartitionedCall")
_CALL_PART = re.compile(r"(Stateful)?PartitionedCall(_\d+)?$")
_INLINED = re.compile(r"/(input|output)/_\d+$")
"""Identities that inlining leaves in place of a call's arguments and results."""

WRAPPER = "OptionalFromValue"
"""Op type that wraps several tensors in one; Keras returns its logs this way."""

_WAITING = ("NoOp", "Identity", "IdentityN")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")


@dataclass(frozen=True, eq=False)
class FlatGraph:
    """The ops of a traced function, without function calls; whole loops stay single ops.

    Attributes
    ----------
    graph_def : GraphDef
        Arguments and captured tensors are ``Placeholder`` nodes.
    arguments : tuple of str
        The placeholder of each argument, in the function's order.
    captures : tuple of str
        The placeholder of each captured tensor, in the function's order. A variable's
        placeholder has the variable's name.
    outputs : tuple of str
        Tensor names (``node:output``), in the function's order.
    control_outputs : tuple of str
        Nodes that must run for their effect.
    asked : mapping of str to str
        The device that the script's own ``tf.device`` asks for, by node.
    """

    graph_def: GraphDef
    arguments: tuple[str, ...]
    captures: tuple[str, ...]
    outputs: tuple[str, ...]
    control_outputs: tuple[str, ...]
    asked: Mapping[str, str] = field(default_factory=dict)

    def with_graph(self, graph_def: GraphDef, renamed: Mapping[str, str]) -> FlatGraph:
        """Return the same with another graph, in which some tensors have other names."""
        outputs = tuple(renamed.get(name, name) for name in self.outputs)
        return replace(self, graph_def=graph_def, outputs=outputs)


def flatten(function: ConcreteFunction) -> FlatGraph:
    """Inline all calls of a traced function, drop what no output needs, and tidy the names.

    Devices that the function asked for are only noted. Consumers of an ``IdentityN`` get its inputs
    instead: Keras optimisers pass all gradients through one such op, which would gather them on
    one device.
    """
    graph = function.graph
    arguments = [t.op.name for t in function.inputs]
    outputs = [t.name for t in function.outputs]
    effects = [op.name for op in graph.control_outputs]
    graph_def = _inlined(function, [*arguments, *outputs, *effects])
    outputs = _without_passing_ops(graph_def, outputs)
    effects = _effects(graph_def, effects)
    keep_needed(graph_def, [*arguments, *map(node_of, outputs), *effects])
    names = _tidy_names(graph_def, _capture_names(function))
    rename(graph_def, names)
    asked = asked_devices((node.name, _take_asked(node)) for node in graph_def.node)
    n_captures = len(function.captured_inputs)
    inputs = [names[name] for name in arguments]
    split = len(inputs) - n_captures
    return FlatGraph(
        graph_def,
        tuple(inputs[:split]),
        tuple(inputs[split:]),
        tuple(names[node_of(t)] + t[len(node_of(t)) :] for t in outputs),
        tuple(names[name] for name in effects),
        asked,
    )


def node_of(tensor: str) -> str:
    """Return the node of an input: ``a`` for ``a:1`` and ``^a``."""
    return tensor.removeprefix("^").partition(":")[0]


def slot_of(tensor: str) -> int:
    """Return the number of an output: 1 for ``a:1``, 0 for ``a``."""
    return int(tensor.partition(":")[2] or 0)


def numbered(tensor: str) -> str:
    """Return a tensor's name with the number of the output: ``a:0`` for ``a``."""
    return tensor if ":" in tensor else f"{tensor}:0"


def data_of(node: NodeDef) -> list[str]:
    """Return the tensors that an op takes, with the numbers of their outputs."""
    return [numbered(tensor) for tensor in node.input if tensor[0] != "^"]


def make_node(name: str, op: str, inputs: Sequence[str] = (), **attributes: Any) -> NodeDef:
    """Make a node; attributes are types, shapes, tensors, or whole numbers."""
    node = NodeDef(name=name, op=op, input=inputs)
    for key, value in attributes.items():
        if isinstance(value, tf.DType):
            node.attr[key].type = value.as_datatype_enum
        elif isinstance(value, tf.TensorShape):
            node.attr[key].shape.CopyFrom(value.as_proto())
        elif isinstance(value, TensorProto):
            node.attr[key].tensor.CopyFrom(value)
        else:
            node.attr[key].i = value
    return node


def make_constant(name: str, value: object, kind: tf.DType) -> NodeDef:
    """Make a node that holds numbers."""
    return make_node(name, "Const", dtype=kind, value=tf.make_tensor_proto(value, kind))


def with_inputs(node: NodeDef, inputs: Iterable[str], name: str = "") -> NodeDef:
    """Copy a node with other inputs, perhaps under another name."""
    new = deepcopy(node)
    new.name = name or node.name
    new.input[:] = inputs
    return new


def with_nodes(graph_def: GraphDef, nodes: Iterable[NodeDef]) -> GraphDef:
    """Return a graph of other nodes with the same library of functions."""
    new = GraphDef(versions=graph_def.versions, library=graph_def.library)
    new.node.extend(nodes)
    return new


def rename(graph_def: GraphDef, names: dict[str, str]) -> None:
    """Rename nodes wherever they are mentioned."""
    for node in graph_def.node:
        node.name = names[node.name]
        for i, tensor in enumerate(node.input):
            old = node_of(tensor)
            node.input[i] = tensor.replace(old, names[old], 1)


def _inlined(function: ConcreteFunction, keep: Iterable[str]) -> GraphDef:
    graph_def = disable_lower_using_switch_merge(function.graph.as_graph_def())
    _spread_devices(graph_def)
    for node in all_nodes(graph_def):
        if node.device:
            node.attr[_ASKED].s = node.device.encode()
        node.device = ""
        for key in _COMPILED:
            node.attr.pop(key, None)
    for body in graph_def.library.function:
        for key in _COMPILED:
            body.attr.pop(key, None)
    meta = MetaGraphDef(graph_def=graph_def)
    meta.collection_def["train_op"].node_list.value.extend(keep)
    config = ConfigProto()
    rewrite = config.graph_options.rewrite_options
    rewrite.optimizers.append("function")
    rewrite.min_graph_nodes = -1
    rewrite.meta_optimizer_iterations = RewriterConfig.ONE
    inlined = OptimizeGraph(config, meta)
    for body in inlined.library.function:
        for node in body.node_def:
            node.attr.pop(_ASKED, None)  # a branch or a loop is one op
    return inlined


def _spread_devices(graph_def: GraphDef) -> None:
    """Give ops without a device that of the calls of their function, if all calls have the same."""
    bodies = {body.signature.name: body for body in graph_def.library.function}
    changed = True
    while changed:
        changed = False
        callers: dict[str, set[str]] = defaultdict(set)
        for node in all_nodes(graph_def):
            if _CALL.fullmatch(node.op):
                callers[node.attr["f"].func.name].add(node.device)
        for name, devices in callers.items():
            (device, *others), body = devices, bodies.get(name)
            for node in body.node_def if body and device and not others else ():
                if not node.device:
                    node.device, changed = device, True


def _take_asked(node: NodeDef) -> str:
    """Take the note of the device that a node asked for; empty if there is none."""
    if _ASKED not in node.attr:
        return ""
    device = str(node.attr[_ASKED].s, "utf-8")
    del node.attr[_ASKED]
    return device


def all_nodes(graph_def: GraphDef) -> Iterator[Any]:
    """Iterate over the nodes of a graph and of the functions in its library."""
    yield from graph_def.node
    for body in graph_def.library.function:
        yield from body.node_def


def _without_passing_ops(graph_def: GraphDef, outputs: list[str]) -> list[str]:
    """Connect consumers to the origins of what an op only passes on; return the outputs' origins.

    A consumer then waits for everything that the removed op waited for.
    """
    nodes = {node.name: node for node in graph_def.node}
    passing = {name for name, node in nodes.items() if _only_passes(node)}
    idle = _idle_nodes(graph_def)

    def origin(tensor: str) -> tuple[str, list[str]]:
        waits: list[str] = []
        while node_of(tensor) in passing:
            inputs = nodes[node_of(tensor)].input
            waits += [wait for wait in inputs if wait[0] == "^"]
            tensor = inputs[slot_of(tensor)]
        return tensor, waits

    # These ops keep their inputs until all consumers are connected.
    for node in graph_def.node:
        if node.name not in passing:
            _connect(node, origin, idle)
        # Inlining leaves colocation with removed nodes, and names that only this trace has.
        node.attr.pop("_class", None)
        node.ClearField("experimental_debug_info")
    return _without_waits(graph_def, [numbered(origin(tensor)[0]) for tensor in outputs])


def _without_waits(graph_def: GraphDef, outputs: list[str]) -> list[str]:
    """Return the outputs where they are computed.

    A traced function passes them through identities that wait until all its effects are done.
    """
    nodes = {node.name: node for node in graph_def.node}

    def computed(tensor: str) -> str:
        while nodes[node_of(tensor)].op == "Identity":
            tensor = nodes[node_of(tensor)].input[0]
        return numbered(tensor)

    outputs = [computed(tensor) for tensor in outputs]
    for node in (nodes[node_of(tensor)] for tensor in outputs):
        if node.op == WRAPPER:
            node.input[:] = map(computed, data_of(node))
    return outputs


def _only_passes(node: Any) -> bool:
    return node.op == "IdentityN" or (
        node.op == "Identity"
        and node.name.startswith("Func/")
        and _INLINED.search(node.name) is not None
    )


def _connect(node: Any, origin: Callable[[str], tuple[str, list[str]]], idle: set[str]) -> None:
    """Connect a node to the origins of its inputs."""
    found = [origin(tensor) for tensor in node.input if tensor[0] != "^"]
    data = [tensor for tensor, _ in found]
    waits = [tensor for tensor in node.input if tensor[0] == "^"]
    waits += [wait for _, more in found for wait in more]
    # The iterator's op waits for nothing in the step; a data edge makes a control edge redundant.
    done = idle | {node_of(tensor) for tensor in data}
    node.input[:] = [*data, *sorted({wait for wait in waits if node_of(wait) not in done})]


def _effects(graph_def: GraphDef, wanted: Iterable[str]) -> list[str]:
    """Find the ops with an effect that these nodes wait for, in the graph's order.

    An inlined call leaves an op that only waits for all of the call's effects. Across devices such
    a wait is a transfer.
    """
    nodes = {node.name: node for node in graph_def.node}
    seen = reached(
        wanted,
        lambda name: map(node_of, nodes[name].input) if nodes[name].op in _WAITING else (),
    )
    return [node.name for node in graph_def.node if node.name in seen and has_effect(node.op)]


def has_effect(op_type: str) -> bool:
    """Return whether running such an op changes any state."""
    definition = op_def_registry.get(op_type)
    if definition is None:
        return True
    # Ops that change an old variable are not stateful; they take a reference to it.
    takes_reference = any(argument.is_ref for argument in definition.input_arg)
    only_passes = op_type.startswith("Ref") or op_type == "IsVariableInitialized"
    return (definition.is_stateful and op_type not in _READS) or (
        takes_reference and not only_passes
    )


def _idle_nodes(graph_def: GraphDef) -> set[str]:
    """Find nodes that are ready as soon as the batch is: no control edge to them is needed."""
    idle: set[str] = set()
    for node in graph_def.node:
        brings = node.op in ("Placeholder", "IteratorGetNext")
        if brings or (node.op == "NoOp" and all(node_of(t) in idle for t in node.input)):
            idle.add(node.name)
    return idle


def producers_of(graph_def: GraphDef) -> dict[str, list[str]]:
    """Map each node to those that it waits for."""
    return {node.name: [*map(node_of, node.input)] for node in graph_def.node}


def consumers_of(graph_def: GraphDef) -> dict[str, list[str]]:
    """Map each node to those that use its outputs or wait for it."""
    consumers: dict[str, list[str]] = defaultdict(list)
    for node in graph_def.node:
        for tensor in node.input:
            consumers[node_of(tensor)].append(node.name)
    return consumers


def held_by(graphs: Iterable[GraphDef]) -> dict[str, str]:
    """Map each op inside of a loop or a branch to the op of its graph that holds it."""
    found: dict[str, str] = {}
    for graph in graphs:
        bodies = {body.signature.name: body for body in graph.library.function}
        for holder in graph.node:
            for body in _called_from([holder], bodies):
                found |= dict.fromkeys((node.name for node in body.node_def), holder.name)
    return found


def _called_from(nodes: Iterable[NodeDef], bodies: dict[str, FunctionDef]) -> list[FunctionDef]:
    """Find the functions that nodes call, and those that these call."""

    def called(nodes: Iterable[NodeDef]) -> list[str]:
        values = [value for node in nodes for value in node.attr.values()]
        functions = [f for value in values for f in (value.func, *value.list.func)]
        return [function.name for function in functions if function.name in bodies]

    names = reached(called(nodes), lambda name: called(bodies[name].node_def))
    return [bodies[name] for name in names]


def reached(names: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """Find these nodes and all that follow from them, step by step."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += following(name)
    return seen


def keep_needed(graph_def: GraphDef, wanted: Iterable[str]) -> None:
    """Remove the nodes that no wanted node needs."""
    needed = reached(wanted, producers_of(graph_def).__getitem__)
    kept = [node for node in graph_def.node if node.name in needed]
    del graph_def.node[:]
    graph_def.node.extend(kept)


def _capture_names(function: ConcreteFunction) -> dict[str, str]:
    """Name each captured tensor's placeholder: by its variable, or else by number."""
    variables = {id(v.handle): v for v in function.graph.variables}
    names = {}
    n_arguments = len(function.inputs) - len(function.captured_inputs)
    for i, (inner, outer) in enumerate(
        zip(function.inputs[n_arguments:], function.captured_inputs, strict=True)
    ):
        variable = variables.get(id(outer))
        path = getattr(variable, "name", None)
        names[inner.op.name] = path.partition(":")[0] if path else f"capture_{i}"
    return names


def _tidy_names(graph_def: GraphDef, captures: dict[str, str]) -> dict[str, str]:
    """Rename ops without the inlined calls; add a number where two names would be equal.

    A trace names what runs in a branch or a loop by its name there, so no op has such a name.
    """
    inside = {node.name for body in graph_def.library.function for node in body.node_def}
    short = {
        node.name: captures.get(node.name) or _without_calls(node.name) for node in graph_def.node
    }
    wanted = set(short.values())
    used = inside - set(captures.values())
    names = {}
    for old, new in short.items():
        name, number = new, 0
        while name in used or (number and name in wanted):
            number += 1
            name = f"{new}_{number}"
        used.add(name)
        names[old] = name
    return names


def _without_calls(name: str) -> str:
    parts = name.split("/")
    kept = [part for part in parts[:-1] if not _CALL_PART.match(part)]
    return "/".join([*kept, parts[-1]])
