"""TensorFlow 1 sessions: what a call of ``Session.run`` asks for, and the step of such calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.ops import cond, control_flow_util, control_flow_v2_toggles

from enplace.frameworks.tensorflow.capture import (
    GET_NEXT,
    are_enough,
    fix_seeds,
    most_alike,
)
from enplace.frameworks.tensorflow.device_names import asked_devices
from enplace.frameworks.tensorflow.graph import node_of, reached
from enplace.frameworks.tensorflow.open.tf1 import (
    LOSS,
    UPDATES,
    become_placeholder,
    find_iterator,
    kept_of,
    make_plain,
    needed_for,
    trained_by,
)
from enplace.frameworks.tensorflow.rewrite import VARIABLES
from enplace.frameworks.tensorflow.step import CALLABLE, Batch, LoadError, Step
from enplace.names.passes import is_in_backward_scope
from enplace.values.op_kinds import is_update_type

SESSION: Any = next(kind for kind in tf.compat.v1.Session.__mro__ if "run" in vars(kind))
"""The class whose ``run`` all kinds of sessions use."""

RUN = "_do_run"
"""Its private method that gets ops, tensors and arrays, whatever way ``run`` was given them."""

_NOT_NUMBERS = (tf.string, tf.resource, tf.variant)


@dataclass(frozen=True)
class Call:
    """What a call of ``Session.run`` asks for.

    Attributes
    ----------
    ops, tensors : tuple of str
        Names of fetched ops, and of fetched tensors.
    fed : tuple of str
        Names of tensors that are fed.
    """

    ops: tuple[str, ...]
    tensors: tuple[str, ...]
    fed: tuple[str, ...]

    @property
    def wanted(self) -> list[str]:
        """The ops that must run."""
        return [*self.ops, *map(node_of, self.tensors)]


def ops_of(whole: GraphDef, call: Call) -> set[str]:
    """Find the ops that a call runs, and what it feeds."""
    nodes = {node.name: node for node in whole.node}
    fed = set(map(node_of, call.fed))
    return reached(call.wanted, lambda name: () if name in fed else map(node_of, nodes[name].input))


def trains(nodes: Sequence[NodeDef]) -> bool:
    """Return whether ops apply gradients to variables."""
    if any(UPDATES.match(node.op) for node in nodes):
        return True
    assigns = any(is_update_type(node.op) for node in nodes)
    return assigns and any(is_in_backward_scope(node.name) for node in nodes)


@contextmanager
def modern_loops() -> Iterator[None]:
    """Build loops and branches as single ops, even if a script asks for TensorFlow 1's behaviour.

    Only these can be placed; their results are the same.
    """
    tf.compat.v1.enable_control_flow_v2()
    usual = cond.cond

    def cond_of(pred: Any, *args: Any, **kwargs: Any) -> Any:
        # A single op reads an old variable even to ask if it has a value yet. Averages of variables
        # ask so as they get their first value, which is no part of a step.
        op = getattr(pred, "op", None)  # none in eager mode
        old = getattr(op, "type", "") == "IsVariableInitialized"
        with patch.object(control_flow_util, "ENABLE_CONTROL_FLOW_V2", not old):
            return usual(pred, *args, **kwargs)

    with (
        patch.object(cond, "cond", cond_of),
        patch.object(control_flow_v2_toggles, "disable_control_flow_v2", lambda: None),
        patch.object(tf.compat.v1, "disable_control_flow_v2", lambda: None),
    ):
        yield


@contextmanager
def callables_by_run() -> Iterator[None]:
    """Let what a session makes callable go through ``run``, as all other calls do.

    Keras 2 trains in this way once a script asks for TensorFlow 1's behaviour.
    """

    def make_callable(
        session: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        def call(*values: Any, options: Any = None, run_metadata: Any = None) -> Any:
            feeds = dict(zip(feed_list or (), values, strict=True))
            return session.run(fetches, feeds, options, run_metadata)

        return call

    def make_from_options(session: Any, wanted: Any) -> Callable[..., Any]:
        source = [connection.from_tensor for connection in wanted.tensor_connection]
        target = [connection.to_tensor for connection in wanted.tensor_connection]
        fetches = [*wanted.fetch], [*wanted.target]

        def call(*values: Any, run_metadata: Any = None) -> Any:
            drawn = session.run(source) if source else []  # a batch of the graph's own dataset
            feeds = dict(zip((*wanted.feed, *target), (*values, *drawn), strict=True))
            return session.run(fetches, feeds, wanted.run_options, run_metadata)[0]

        return call

    with (
        patch.object(SESSION, "make_callable", make_callable),
        patch.object(SESSION, CALLABLE, make_from_options),
    ):
        yield


@dataclass(eq=False)
class _Calls:
    """Calls that train, and fetch and feed the same.

    Attributes
    ----------
    where : str
        The line of the script.
    fetched : list of str
        Tensors that bring the batches of the graph's own dataset.
    batches : list of tuples
        What was fed and fetched for each call, in the order of these.
    numbers : set of str
        Fetched tensors that are single numbers.
    """

    graph: tf.Graph
    call: Call
    whole: GraphDef
    nodes: list[NodeDef]
    where: str
    fetched: list[str]
    variables: dict[str, NDArray[Any]] | None = None
    batches: list[Batch] = field(default_factory=list)
    numbers: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The first of the ops or tensors that they fetch, as the script names it."""
        return next(iter(self.call.wanted), "")


class SessionWatch:
    """Records the calls of ``Session.run`` that train.

    Parameters
    ----------
    name : str
        The user's name for the model.
    place : callable
        Returns the current line of the script.
    """

    def __init__(self, name: str, place: Callable[[], str]) -> None:
        self._name = name
        self._place = place
        self._known: dict[tuple[tf.Graph, Call], _Calls | None] = {}

    @property
    def is_done(self) -> bool:
        """Whether a step was recorded often enough."""
        return any(are_enough(calls.batches) for calls in self._training())

    def run(
        self,
        run: Callable[..., list[Any]],
        session: tf.compat.v1.Session,
        handle: Any,
        ops: Sequence[tf.Operation],
        tensors: Sequence[tf.Tensor],
        feeds: Mapping[Any, Any],
        *options: Any,
    ) -> list[Any]:
        """Run a session as the script asks, and record what it is given.

        Parameters
        ----------
        run : callable
            The usual method of sessions.
        handle, ops, tensors, feeds, options
            Its arguments; feeds are arrays, by reference to a tensor.
        """
        fed = tuple(each.deref().name for each in feeds)
        call = Call(tuple(op.name for op in ops), tuple(t.name for t in tensors), fed)
        calls = self._calls(session.graph, call)
        if calls is None:
            return run(session, handle, ops, tensors, feeds, *options)
        if calls.variables is None:
            with suppress(tf.errors.FailedPreconditionError):  # some have no value yet
                calls.variables = _values(run, session, calls)
        own = [session.graph.get_tensor_by_name(name) for name in calls.fetched]
        found = run(session, handle, ops, [*tensors, *own], feeds, *options)
        values, drawn = found[: len(tensors)], found[len(tensors) :]
        if calls.variables is not None:
            pairs = zip(call.tensors, values, strict=True)
            calls.numbers |= {name for name, value in pairs if np.ndim(value) == 0}
            calls.batches.append((*map(np.array, feeds.values()), *map(np.asarray, drawn)))
        return values

    def step(self) -> Step | None:
        """Return the step of the calls that train; of several kinds, of those made most often.

        Raises
        ------
        LoadError
            If these cannot be taken apart; the message names the line of the script.
        """
        found = [calls for calls in self._training() if calls.batches]
        if not found:
            return None
        best = max(found, key=lambda calls: len(calls.batches))
        others = [calls.name for calls in found if calls.name != best.name]
        return _step_of(self._name, best, tuple(dict.fromkeys(others)))

    def _training(self) -> list[_Calls]:
        return [calls for calls in self._known.values() if calls is not None]

    def _calls(self, graph: tf.Graph, call: Call) -> _Calls | None:
        """Return what is recorded of such calls; None if they do not train."""
        if (graph, call) not in self._known:
            self._known[graph, call] = self._new(graph, call)
        return self._known[graph, call]

    def _new(self, graph: tf.Graph, call: Call) -> _Calls | None:
        whole = graph.as_graph_def()
        ran = ops_of(whole, call)
        nodes = [node for node in whole.node if node.name in ran]
        if not trains(nodes):
            return None
        fed = set(call.fed)
        fetched = [
            tensor.name
            for node in nodes
            if node.op in GET_NEXT
            for tensor in graph.get_operation_by_name(node.name).outputs
            if tensor.name not in fed
        ]
        return _Calls(graph, call, whole, nodes, self._place(), fetched)


def _values(
    run: Callable[..., list[Any]], session: tf.compat.v1.Session, calls: _Calls
) -> dict[str, NDArray[Any]]:
    """Read the variables of a call without adding ops: the script may have finished its graph."""
    reads = {
        node_of(node.input[0]): f"{node.name}:0"
        for node in calls.whole.node
        if node.op == "ReadVariableOp" and len(node.input) == 1
    }
    names = [node.name for node in calls.nodes if node.op in VARIABLES]
    tensors = [session.graph.get_tensor_by_name(reads.get(name, f"{name}:0")) for name in names]
    values = run(session, None, [], tensors, {}, None, None)
    return {name: np.array(value) for name, value in zip(names, values, strict=True)}


def _step_of(name: str, calls: _Calls, left_out: tuple[str, ...]) -> Step:
    graph_def, call = deepcopy(calls.whole), calls.call
    asked = asked_devices((node.name, node.device) for node in graph_def.node)
    parts = (*call.fed, *calls.fetched)
    recorded = [dict(zip(parts, batch, strict=True)) for batch in most_alike(calls.batches)]
    nodes = {node.name: node for node in graph_def.node}
    for tensor in call.fed:
        if not tensor.endswith(":0"):
            raise LoadError(
                f"{calls.where}: it feeds '{tensor}', which is not an op's first output; feed a "
                f"placeholder"
            )
        dtype = tf.as_dtype(recorded[0][tensor].dtype)
        become_placeholder(nodes[node_of(tensor)], dtype)
    graph_def = needed_for(graph_def, call.wanted)
    make_plain(graph_def)
    iterator = find_iterator(calls.where, graph_def)
    if iterator is not None:
        become_placeholder(iterator)
        graph_def = needed_for(graph_def, call.wanted)
    fix_seeds(graph_def)
    needed = {node.name for node in graph_def.node}
    fed = [tensor for tensor in call.fed if node_of(tensor) in needed]
    batches = [tuple(batch[part] for part in (*fed, *calls.fetched)) for batch in recorded]
    types = {t: calls.graph.get_tensor_by_name(t).dtype.base_dtype for t in call.tensors}
    outputs = tuple(tensor for tensor, dtype in types.items() if dtype not in _NOT_NUMBERS)
    numbers = [t for t in outputs if t in calls.numbers and types[t].is_floating]
    return Step(
        name,
        graph_def,
        calls.variables or {},
        batches,
        inputs=tuple(map(node_of, fed)),
        iterator=iterator.name if iterator is not None else "",
        outputs=outputs,
        targets=(*call.ops, *(node_of(t) for t in call.tensors if t not in outputs)),
        losses=tuple([t for t in numbers if LOSS.search(node_of(t))] or numbers),
        trainable=trained_by(graph_def),
        function=calls.name,
        left_out=left_out,
        asked=kept_of(graph_def, asked),
    )
