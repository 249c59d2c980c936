"""A training step that a session can repeat without the script it came from.

Ops keep their names. Variables start from recorded values and batches are recorded ones, so two
runs of one step give the same result, whatever device each op is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import CallableOptions, ConfigProto, OptimizerOptions
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.framework.importer import import_graph_def

from enplace.errors import EnplaceError

Batch = tuple[NDArray[Any], ...]

CALL_BYTES = 512 << 20
"""Bytes of variables that one call of a session reads or sets, unless a single one has more."""

CALLABLE = "_make_callable_from_options"
"""A private method of sessions, quicker than ``Session.run``."""

_INITIALISER = "enplace_initial_values"
_BATCHES = "enplace_batches"


class LoadError(EnplaceError):
    """A model's step cannot be extracted; the message gives the reason and the fix.

    Parameters
    ----------
    printed : bool
        Whether the output of the model's own code explains more.
    """

    def __init__(self, why: str, printed: bool = False) -> None:
        super().__init__(why)
        self.printed = printed


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a model in a form that a TF1 session runs.

    Attributes
    ----------
    name : str
        The user's name for the model.
    graph_def : GraphDef
        Flat. Variables are ``VarHandleOp`` or ``VariableV2`` nodes.
    variables : mapping of str to array
        Initial value of each variable node.
    batches : tuple of tuple of array
        The inputs of successive steps; the first follows the last again.
    inputs : tuple of str
        The placeholders that the first parts of a batch feed.
    iterator : str
        The placeholder of the iterator that returns the other parts; empty if there is none.
    outputs : tuple of str
        Tensors whose values a user may want: ``node:output``.
    targets : tuple of str
        Nodes that run for their effect.
    losses : tuple of str
        Outputs, or else variable nodes, that show how training goes.
    trainable : frozenset of str
        The variable nodes that training changes.
    function : str
        The user's name for the function that does this step; empty if there is none.
    left_out : tuple of str
        Other functions of the script that train too, or other signatures.
    compiled : bool
        Whether the user's own step is compiled by XLA; a step of single ops is not.
    asked : mapping of str to str
        The device that the user's own ``tf.device`` asks for, by node.
    """

    name: str
    graph_def: GraphDef
    variables: Mapping[str, NDArray[Any]]
    batches: Sequence[Batch]
    inputs: tuple[str, ...] = ()
    iterator: str = ""
    outputs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    trainable: frozenset[str] = field(default_factory=frozenset)
    function: str = ""
    left_out: tuple[str, ...] = ()
    compiled: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def batch_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each part of the first batch."""
        return tuple(part.shape for part in self.batches[0]) if self.batches else ()

    def with_graph(self, graph_def: GraphDef, renamed: Mapping[str, str]) -> Step:
        """Return the same with another graph, in which some tensors have other names."""
        outputs, losses = (
            tuple(renamed.get(name, name) for name in names)
            for names in (self.outputs, self.losses)
        )
        return replace(self, graph_def=graph_def, outputs=outputs, losses=losses)


class StepGraph:
    """A step as TensorFlow's graph, with ops that set and read its variables.

    Importing many ops takes seconds, so sessions that run the same graph share it.

    Parameters
    ----------
    graph_def : GraphDef, optional
        The step's graph with devices and order written into it.
    """

    def __init__(self, step: Step, graph_def: GraphDef | None = None) -> None:
        self.graph = tf.Graph()
        self.assign: dict[str, tuple[Any, Any]] = {}
        """The op that sets each variable, and what feeds it."""
        self.read: dict[str, Any] = {}
        with self.graph.as_default():
            self.refill = self._import(step, graph_def or step.graph_def)
            self._add_variables(step)

    def _import(self, step: Step, graph_def: GraphDef) -> Any:
        """Import the ops; give an iterator the recorded batches."""
        if not step.iterator:
            import_graph_def(graph_def, name="")
            return None
        n_fed = len(step.inputs)
        with tf.name_scope(_BATCHES), tf.device(_batch_device(graph_def, step.iterator)):
            parts = [
                tf.compat.v1.placeholder(value.dtype, (None, *value.shape))
                for value in step.batches[0][n_fed:]
            ]
            dataset = tf.data.Dataset.from_tensor_slices(tuple(parts)).repeat()
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        import_graph_def(
            graph_def, input_map={f"{step.iterator}:0": iterator._iterator_resource}, name=""
        )
        feeds = {
            part: np.stack([batch[i] for batch in step.batches])
            for i, part in enumerate(parts, n_fed)
        }
        return iterator.initializer, feeds

    def _add_variables(self, step: Step) -> None:
        """Make an assignment with its feed, and a reader, for every variable."""
        with tf.name_scope(_INITIALISER):
            for node, value in step.variables.items():
                handle = self.graph.get_tensor_by_name(f"{node}:0")
                with self.graph.colocate_with(handle.op, ignore_existing=True):
                    fed = tf.compat.v1.placeholder(value.dtype, value.shape)
                    if handle.dtype == tf.resource:
                        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=fed)
                        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=fed.dtype)
                    else:
                        assign = tf.raw_ops.Assign(ref=handle, value=fed).op
                        read = handle
                self.assign[node], self.read[node] = (assign, fed), read


class OpenStep:
    """A step in a session, its variables at their recorded values.

    Parameters
    ----------
    graph : StepGraph, optional
        Made of this step, or of one that differs only in its variables' values.
    config : ConfigProto, optional
        See :func:`plain_config`.
    target : str
        The server of a distributed session; empty for this process.
    """

    def __init__(
        self,
        step: Step,
        graph: StepGraph | None = None,
        config: ConfigProto | None = None,
        target: str = "",
    ) -> None:
        self.step = step
        self._graph = graph or StepGraph(step)
        self._target = target
        self._count = 0
        self._callables: dict[bytes, Any] = {}
        self.session = tf.compat.v1.Session(target, self._graph.graph, config or plain_config())
        self._initialise()

    def __enter__(self) -> OpenStep:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def run(self, options: Any = None, metadata: Any = None) -> list[NDArray[Any]]:
        """Run the next step; return the values of its outputs."""
        step = self.step
        batch = step.batches[self._count % len(step.batches)] if step.batches else ()
        self._count += 1
        given = batch[: len(step.inputs)]  # an iterator returns the rest
        if self._target and options is not None:  # servers trace nothing else
            feeds = {f"{name}:0": value for name, value in zip(step.inputs, given, strict=True)}
            fetches = (list(step.outputs), list(step.targets))
            return list(self.session.run(fetches, feeds, options, metadata)[0])
        return list(self._callable(options)(*given, run_metadata=metadata))

    def values(self, nodes: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Return the present values of variables."""
        found: dict[str, NDArray[Any]] = {}
        for some in _in_calls({node: self.step.variables[node] for node in nodes}):
            read = self.session.run({node: self._graph.read[node] for node in some})
            found |= {node: np.asarray(value) for node, value in read.items()}
        return found

    def _callable(self, options: Any) -> Any:
        """Return a function that runs a step.

        ``Session.run`` would look up all fetches at every step: a fifth of the time of a step with
        600 of them.
        """
        key = options.SerializeToString() if options is not None else b""
        if key not in self._callables:
            step = self.step
            wanted = CallableOptions(fetch=step.outputs, target=step.targets)
            wanted.feed.extend(f"{name}:0" for name in step.inputs)
            if options is not None:
                wanted.run_options.CopyFrom(options)
            self._callables[key] = getattr(self.session, CALLABLE)(wanted)
        return self._callables[key]

    def _initialise(self) -> None:
        start, refill, values = self._graph.assign, self._graph.refill, self.step.variables
        for some in _in_calls(values):
            feeds = {start[node][1]: values[node] for node in some}
            self.session.run([start[node][0] for node in some], feeds)
        if refill:
            self.session.run(refill[0], refill[1])


def _in_calls(values: Mapping[str, NDArray[Any]]) -> Iterator[list[str]]:
    """Divide variables among few calls of a session: each call takes long, whatever it reads."""
    some: list[str] = []
    n_bytes = 0
    for node, value in values.items():
        if some and n_bytes + value.nbytes > CALL_BYTES:
            yield some
            some, n_bytes = [], 0
        some.append(node)
        n_bytes += value.nbytes
    if some:
        yield some


def _batch_device(graph_def: GraphDef, iterator: str) -> str:
    """Return the device on which a placed graph fetches the batches, else the host."""
    for node in graph_def.node:
        if node.device and iterator in node.input:
            return str(node.device)
    return "/CPU:0"


def plain_config(devices: Mapping[str, int] | None = None, soft: bool = False) -> ConfigProto:
    """Make a config that runs the graph unchanged: no rewriting, and only the devices asked for.

    Parameters
    ----------
    devices : mapping of str to int, optional
        Number of devices of each kind, such as ``{"CPU": 2}``; logical if there is only one.
    soft : bool
        Whether an op may run elsewhere if its device has no kernel for it.
    """
    config = ConfigProto(device_count=dict(devices or {}), allow_soft_placement=soft)
    options = config.graph_options
    options.optimizer_options.opt_level = OptimizerOptions.L0
    options.optimizer_options.global_jit_level = OptimizerOptions.OFF
    options.rewrite_options.disable_meta_optimizer = True
    options.rewrite_options.constant_folding = RewriterConfig.OFF
    config.gpu_options.allow_growth = True
    return config
