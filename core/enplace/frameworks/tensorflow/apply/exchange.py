"""Exchange a traced function for a placed one with the same captures, and move its variables.

All private parts of TensorFlow that are needed to apply a plan in a user's own process are used
here, in :mod:`enplace.frameworks.tensorflow.apply.apply_plan` and in
:mod:`enplace.frameworks.tensorflow.open.calls`. The manual says with which versions they work.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.importer import import_graph_def
from tensorflow.python.ops.handle_data_util import copy_handle_data
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable

from enplace.frameworks.tensorflow.capture import GET_NEXT, brought_by, is_plain
from enplace.frameworks.tensorflow.devices import eager_task, short_name
from enplace.frameworks.tensorflow.graph import FlatGraph, all_nodes, consumers_of, flatten

_FUSED_UPDATES = ("ResourceApply", "ResourceSparseApply")


def function_of(
    function: ConcreteFunction,
    flat: FlatGraph,
    graph_def: GraphDef,
    captured: Sequence[Any],
    seen: Mapping[str, Any],
) -> ConcreteFunction:
    """Make a function like another one, but with this graph.

    Parameters
    ----------
    flat : FlatGraph
        The other function's flat graph.
    graph_def : GraphDef
        Its nodes, with devices and order.
    captured : sequence of tensors
        Tensors that the other function captures, in the order of ``flat.captures``.
    seen : mapping of str to variable
        Tensors whose shapes the function writes into variables, whenever it runs.
    """
    running = context.context()
    for body in graph_def.library.function:  # inlining adds functions for branches and loops
        if not running.has_function(body.signature.name):
            running.add_function_def(body)
    graph = FuncGraph(f"{function_name(function)}_placed")
    with graph.as_default():
        import_graph_def(graph_def, name="")
    inner = [graph.get_tensor_by_name(f"{name}:0") for name in (*flat.arguments, *flat.captures)]
    for old, new in zip(function.inputs, inner, strict=False):  # batches may be further captures
        copy_handle_data(old, new)
    graph.inputs = inner[: len(flat.arguments)]
    for outer, placeholder in zip(captured, inner[len(flat.arguments) :], strict=True):
        graph.add_capture(outer, placeholder)
    with graph.as_default():
        notes = [
            variable.assign(tf.shape(graph.get_tensor_by_name(tensor), variable.dtype)).op
            for tensor, variable in seen.items()
        ]
    graph.outputs = [graph.get_tensor_by_name(name) for name in flat.outputs]
    effects = [graph.get_operation_by_name(name) for name in flat.control_outputs]
    graph.control_outputs = [*effects, *notes]
    graph.structured_outputs = function.graph.structured_outputs
    return ConcreteFunction.from_func_graph(graph, function.function_type, {})


def function_name(function: ConcreteFunction) -> str:
    """Return the name that the user gave it, without TensorFlow's prefix and number."""
    return str(function.graph.name)


def here(tensor: Any) -> str:
    """Return the short name of the device that a tensor of this process is on."""
    return short_name(tensor.device, eager_task())


class Movers:
    """Moves variables to other devices, once, and maps their old handles to the new ones."""

    def __init__(self) -> None:
        # Keys are identities, as tensors cannot be compared. The weak reference shows whether it
        # is still the same tensor. A new handle keeps the value, so it must go with the old one.
        self._moved: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._new: dict[int, weakref.ref[Any]] = {}
        self._settled: dict[int, weakref.ref[Any]] = {}

    def present(self, tensor: Any) -> Any:
        """Return the present handle of a variable that was moved; any other tensor unchanged."""
        old, new = self._moved.get(id(tensor), (None, None))
        return new if old is not None and old() is tensor else tensor

    def is_new(self, tensor: Any) -> bool:
        """Return whether a tensor is the present handle of a variable that was moved."""
        new = self._new.get(id(tensor))
        return new is not None and new() is tensor

    def settle(self, tensors: Iterable[Any]) -> None:
        """Keep variables where they are from now on, as a placed function uses them there."""
        self._settled |= {id(tensor): weakref.ref(tensor) for tensor in tensors}

    def has_settled(self, tensor: Any) -> bool:
        """Return whether a placed function uses the variable with this handle."""
        settled = self._settled.get(id(tensor))
        return settled is not None and settled() is tensor

    def move(self, holders: Sequence[Any], device: str) -> bool:
        """Move a variable's value; whoever holds the variable finds it in its new place.

        Parameters
        ----------
        holders : sequence of variables
            All that have its handle: the variable, and what assignments to it returned.

        Returns
        -------
        bool
            False if it is already there.
        """
        variable, *_ = holders
        old = variable.handle
        if here(old) == device:
            return False
        with tf.device(device):
            home = ResourceVariable(
                variable.read_value(), trainable=variable.trainable, shape=variable.shape
            )
        for holder in holders:
            holder._handle = home.handle
            holder._enplace_home = home  # the value lives as long as this
        key, moved = id(old), self._moved

        def forget(gone: weakref.ref[Any]) -> None:
            if moved.get(key, (None,))[0] is gone:
                del moved[key]

        moved[key] = (weakref.ref(old, forget), home.handle)
        self._new[id(home.handle)] = weakref.ref(home.handle)
        # Free the old memory: whoever still reads there gets an error, not a stale value.
        tf.raw_ops.AssignVariableOp(
            resource=old, value=tf.zeros([0], variable.dtype), validate_shape=False
        )
        return True


def variable_bytes(tensor: Any) -> int:
    """Return the size of the variable with this handle; 0 if it is none, or of unknown shape."""
    data = getattr(tensor, "_handle_data", None)
    if tensor.dtype != tf.resource or data is None or not data.shape_and_type:
        return 0
    known = data.shape_and_type[0]
    n_values, kind = tf.TensorShape(known.shape).num_elements(), tf.as_dtype(known.dtype)
    return (n_values or 0) * (kind.size if kind.is_numpy_compatible and kind != tf.string else 0)


def update_captures(movers: Movers) -> None:
    """Let functions that were traced before variables moved capture these where they are now.

    Calls find them in any case, but TensorFlow's conversions read what a function captures.
    """
    for each in gc.get_objects():
        if issubclass(type(each), ConcreteFunction):
            captured = each._captured_inputs
            present = [movers.present(tensor) for tensor in captured]
            if any(new is not old for new, old in zip(present, captured, strict=True)):
                each.set_external_captures(present)


def movable_variables(
    function: ConcreteFunction, flat: FlatGraph, movers: Movers
) -> dict[str, list[Any]]:
    """Map the placeholder of each captured variable that can move to all that have its handle.

    One that a dataset or a placed function uses must stay, and so must all that an op uses together
    with such a one.
    """
    captured = dict(zip(flat.captures, function.captured_inputs, strict=False))
    resources = {name: tensor for name, tensor in captured.items() if tensor.dtype == tf.resource}
    free = _free_holders(resources.values(), movers)
    found = {name: free[id(tensor)] for name, tensor in resources.items() if id(tensor) in free}
    consumers = consumers_of(flat.graph_def)
    staying = [name for name in resources if name not in found]
    while staying:
        used_by = set(consumers[staying.pop()])
        together = [name for name in found if used_by & set(consumers[name])]
        for name in together:
            del found[name]
        staying += together
    return found


def move_along(function: ConcreteFunction, movers: Movers) -> None:
    """Move variables to a moved one that an op updates together with them.

    Older optimisers update a weight and its momentum in one op. The weight may have moved for
    another function, when its momentum was there already.
    """
    nodes = all_nodes(function.graph.as_graph_def())
    if not any(node.op.startswith(_FUSED_UPDATES) for node in nodes):
        return
    function.set_external_captures([movers.present(each) for each in function.captured_inputs])
    if not any(map(movers.is_new, function.captured_inputs)):
        return
    flat = flatten(function)
    captured = dict(zip(flat.captures, function.captured_inputs, strict=False))
    free = _free_holders(captured.values(), movers)
    for node in flat.graph_def.node:
        together = [captured[n] for n in node.input if n in captured]
        moved = [tensor for tensor in together if movers.is_new(tensor)]
        if not node.op.startswith(_FUSED_UPDATES) or not moved:
            continue
        for tensor in together:
            if id(tensor) in free and not movers.is_new(tensor):
                movers.move(free[id(tensor)], here(moved[0]))
        movers.settle(map(movers.present, together))
    update_captures(movers)


def _free_holders(tensors: Iterable[Any], movers: Movers) -> dict[int, list[Any]]:
    """Return all that have each of these handles, but for handles that cannot be exchanged."""
    holders, fixed = _holders(), _read_by_datasets()
    return {
        id(tensor): holders[id(tensor)]
        for tensor in tensors
        if id(tensor) in holders and id(tensor) not in fixed and not movers.has_settled(tensor)
    }


def _holders() -> dict[int, list[Any]]:
    """Map handles, by identity, to their variables and to what assignments to these returned.

    A trace does not know variables that an op takes by their handle, as older optimisers do, and
    knows those of a tf.distribute strategy by what contains them.
    """
    found: dict[int, list[Any]] = {}
    for each in gc.get_objects():
        if issubclass(type(each), BaseResourceVariable):
            handle = getattr(each, "_handle", None)  # none in one that could not be made
            if handle is not None:
                found.setdefault(id(handle), []).append(each)
    return found


def batch_tensors(function: ConcreteFunction, flat: FlatGraph) -> dict[str, tf.TensorShape]:
    """Find the tensors of a batch, in the order of a profile, and what the trace knows of each."""
    found = {
        f"{name}:0": inner.shape
        for name, inner in zip(flat.arguments, function.inputs, strict=False)
        if is_plain(inner)
    }
    for node in flat.graph_def.node:
        if node.op in GET_NEXT:
            found |= {f"{node.name}:{i}": shape for i, shape in enumerate(brought_by(node)[1])}
    return found


def _read_by_datasets() -> set[int]:
    """Find handles, by identity, that functions of datasets captured; those cannot be exchanged."""
    return {
        id(outer)
        for graph in gc.get_objects()
        if issubclass(type(graph), FuncGraph) and str(graph.name).startswith("Dataset_")
        for outer in graph.external_captures
    }


def bound_ops(
    function: ConcreteFunction, flat: FlatGraph, variables: Collection[str], host: str
) -> dict[str, str]:
    """Find ops that use a resource which cannot move, such as an iterator, and its device.

    Parameters
    ----------
    variables : collection of str
        The placeholders of those that can move.
    """
    device = {
        name: here(tensor)
        for name, tensor in zip(flat.captures, function.captured_inputs, strict=False)
    }
    resources = {
        name: device.get(name, host)
        for name, inner in zip((*flat.arguments, *flat.captures), function.inputs, strict=False)
        if inner.dtype == tf.resource and name not in variables
    }
    consumers = consumers_of(flat.graph_def)
    return {op: device for name, device in resources.items() for op in (name, *consumers[name])}
