"""A SavedModel with the devices of a plan in the bodies of its functions, as a server loads it."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef, FunctionDefLibrary
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.saved_model.loader_impl import parse_saved_model

from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.apply.exchange import function_of
from enplace.frameworks.tensorflow.device_names import device_names
from enplace.frameworks.tensorflow.graph import FlatGraph, flatten, node_of
from enplace.frameworks.tensorflow.open.saved_models import open_signature
from enplace.frameworks.tensorflow.rewrite import place_graph
from enplace.frameworks.tensorflow.split.split_graph import split_flat
from enplace.frameworks.tensorflow.step import LoadError
from enplace.frameworks.work import check_same_graph, is_whole
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.splits import unsplit_names

_OF_VARIABLES = ("AssignVariableOp", "ReadVariableOp")


def placed_saved_model(source: Source, problem: Problem, plan: Plan) -> bytes:
    """Return what ``saved_model.pb`` holds if the signature that was profiled has a plan's devices.

    The signature's function gets a flat body. An op that uses a variable is where the variable is,
    and that says its own device.

    Raises
    ------
    LoadError
        If the model cannot be read, or its signature calls no function.
    PlanError
        If the plan is for another graph.
    """
    name, signature, _keep = open_signature(source)
    flat = flatten(signature)
    names, at = problem.profile.op_names, device_names(problem.cluster)
    check_same_graph(
        {node.name for node in flat.graph_def.node},
        unsplit_names(names, plan.splits),
        is_whole(problem.measured_profile),
    )
    flat = split_flat(signature, flat, plan.splits)
    planned = {op: at[d] for op, d in zip(names, plan.device.tolist(), strict=True)}
    graph_def = place_graph(flat.graph_def, planned)
    _follow_variables(graph_def, flat, signature)
    placed = function_of(signature, flat, graph_def, signature.captured_inputs, {})
    model = parse_saved_model(source.path)
    for meta in model.meta_graphs:
        if name in meta.signature_def:
            call = _call_of(meta, name, source)
            _exchange(meta.graph_def.library, call, placed.function_def, graph_def)
            _place_variables(meta, call, [planned.get(each, "") for each in flat.captures])
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _follow_variables(graph_def: GraphDef, flat: FlatGraph, signature: ConcreteFunction) -> None:
    """Let inputs, and ops that take a variable's handle, be where TensorFlow has these."""
    inputs = dict(zip((*flat.arguments, *flat.captures), signature.inputs, strict=True))
    handles = {name for name, inner in inputs.items() if inner.dtype == tf.resource}
    for node in graph_def.node:
        if node.name in inputs or not handles.isdisjoint(map(node_of, node.input)):
            node.device = ""


def _call_of(meta: MetaGraphDef, signature: str, source: Source) -> NodeDef:
    """Find the call of a function that all outputs of a signature come from."""
    nodes = {node.name: node for node in meta.graph_def.node}
    ends = {node_of(each.name) for each in meta.signature_def[signature].outputs.values()}
    calls = [nodes[end] for end in ends if "f" in nodes[end].attr]
    if len(calls) != 1 or len(ends) != 1:
        raise LoadError(
            f"{source.path}: signature '{signature}' is not one call of a function, as "
            f"TensorFlow 2 writes it; load the model in TensorFlow 2, and save it again"
        )
    return calls[0]


def _exchange(
    library: FunctionDefLibrary, call: NodeDef, body: FunctionDef, graph_def: GraphDef
) -> None:
    """Replace the body of the function that a node calls."""
    known = {each.signature.name: each for each in library.function}
    old = known[call.attr["f"].func.name]
    name, attributes = old.signature.name, dict(old.attr)
    old.CopyFrom(body)
    old.signature.name = name
    for key, value in attributes.items():
        old.attr[key].CopyFrom(value)
    library.function.extend(
        each for each in graph_def.library.function if each.signature.name not in known
    )


def _place_variables(meta: MetaGraphDef, call: NodeDef, devices: Sequence[str]) -> None:
    """Place the variables that a call gets as its last inputs.

    What has the same shared name is the same variable only on the same device.
    """
    handles = [node_of(tensor) for tensor in call.input if tensor[0] != "^"][-len(devices) :]
    at = dict(zip(handles, devices, strict=True)) if devices else {}
    variables = [node for node in meta.graph_def.node if node.op == "VarHandleOp"]
    home = {node.attr["shared_name"].s: at[node.name] for node in variables if node.name in at}
    for node in variables:
        node.device = home.get(node.attr["shared_name"].s, node.device)
    for body in meta.graph_def.library.function:
        for node in body.node_def:
            if node.op in _OF_VARIABLES:
                node.device = ""  # where the variable is
    objects = meta.object_graph_def
    bound = objects.concrete_functions[call.attr["f"].func.name].bound_inputs
    for number, device in zip(bound, devices, strict=False):
        if objects.nodes[number].WhichOneof("kind") == "variable":
            objects.nodes[number].variable.device = device
