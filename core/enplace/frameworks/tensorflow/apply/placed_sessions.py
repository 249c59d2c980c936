"""Apply a plan to TensorFlow 1 sessions.

Each session of the script gets a twin with a copy of its graph, in which the plan's ops have their
devices. All calls go to the twin, so it has the only values of the variables. A call with exactly
the plan's ops runs a second copy of these, which also has the plan's order: other calls, as for a
test, must not wait for ops that they do not need.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.framework.importer import import_graph_def

from enplace.frameworks.tensorflow.apply.application import (
    ALIKE,
    Application,
    PlacedFunction,
    PlanToApply,
    check_devices,
    count_devices,
    say_dropped,
)
from enplace.frameworks.tensorflow.apply.check import check_placement
from enplace.frameworks.tensorflow.batches import about_other_batches
from enplace.frameworks.tensorflow.capture import GET_NEXT
from enplace.frameworks.tensorflow.error_text import first_line
from enplace.frameworks.tensorflow.graph import (
    all_nodes,
    has_effect,
    held_by,
    node_of,
    reached,
    rename,
)
from enplace.frameworks.tensorflow.open.sessions import (
    SESSION,
    Call,
    call_of,
    callables_by_run,
    feeds_of,
    map_parts,
    modern_loops,
    ops_of,
    trains,
)
from enplace.frameworks.tensorflow.open.tf1 import VARIABLES, become_placeholder, make_plain
from enplace.frameworks.tensorflow.rewrite import count_inputs, device_orders, place_graph
from enplace.frameworks.tensorflow.split.split_graph import split_step
from enplace.frameworks.tensorflow.step import Step, plain_config

_HOST = "/device:CPU:0"
_COPY = "enplace_step/"


class _Sessions:
    """Finds the sessions whose graph has the plan's ops, and runs their twins.

    Parameters
    ----------
    run : callable
        TensorFlow's own ``Session.run``.
    """

    def __init__(
        self,
        application: Application,
        goal: PlanToApply,
        ordered: bool,
        cut: bool,
        run: Callable[..., Any],
    ) -> None:
        self._application = application
        self._goal = goal
        self._ordered, self._cut = ordered, cut
        self._run = run
        self._lock = threading.Lock()  # queues are filled by threads
        self._configs: WeakKeyDictionary[Any, ConfigProto] = WeakKeyDictionary()
        self._twins: WeakKeyDictionary[Any, _Twin] = WeakKeyDictionary()
        self._looked_at: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._late: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def began(self, session: Any, config: ConfigProto | None) -> None:
        """Remember a session that the script begins."""
        self._configs[session] = config or ConfigProto()

    def run(
        self,
        session: Any,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run what the script asks for, in the session's twin if it has one."""
        given = (fetches, feed_dict, options, run_metadata)
        with self._lock:
            twin = self.twin_of(session)
        if twin is None:
            if session in self._configs:
                self._look(session, fetches, feed_dict)
            return self._run(session, *given)
        try:
            return twin.run(*given)
        except _RefusedError as refused:
            result = self._run(session, *given)  # not the plan's fault if it fails either way
            self._forget(session)
            self._application.note(
                f"{self._application.path}: TensorFlow does not run the session's graph as the "
                f"plan says, so it runs without the plan: {refused}"
            )
            return result

    def twin_of(self, session: Any) -> _Twin | None:
        """Return a session's twin; make it once its graph has the plan's ops."""
        if session in self._twins or session not in self._configs:
            return self._twins.get(session)
        graph = session.graph
        if self._looked_at.get(session) == graph.version:
            return None
        self._looked_at[session] = graph.version
        if not all(map(_finder(graph), self._goal.whole)):
            return None
        if self._cut or self._late.get(session) or session.sess_str:
            self._forget(session)
            self._application.note(
                f"{self._application.path}: the session runs without the plan, because it "
                + (
                    "cannot be cut into micro-batches; use 'enplace run --pipeline', or train with "
                    "a tf.function"
                    if self._cut
                    else "belongs to a server; a plan is for sessions of this process"
                    if session.sess_str
                    else "had changed variables before its graph had all ops of the plan; build "
                    "the whole model before the session's first run"
                )
            )
            return None
        config = _config(self._configs[session])
        twin = _Twin(session.graph, config, self._application, self._goal, self._ordered, self._run)
        self._configs.pop(twin.session, None)
        self._twins[session] = twin
        return twin

    def close(self, session: Any) -> None:
        """Close a session's twin."""
        twin = self._twins.pop(session, None)
        if twin is not None:
            twin.session.close()

    def _forget(self, session: Any) -> None:
        self.close(session)
        self._configs.pop(session, None)

    def _look(self, session: Any, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> None:
        """Note whether a call of a session without a twin changes variables, or nearly fits."""
        try:
            feeds = feeds_of(session.graph, feed_dict)
            call = call_of(session.graph, fetches, feeds)
        except (TypeError, ValueError, KeyError):
            return  # TensorFlow explains what is wrong
        whole = session.graph.as_graph_def()
        ran = ops_of(whole, call)
        nodes = [node for node in whole.node if node.name in ran]
        self._late[session] = self._late.get(session, False) or any(
            has_effect(node.op) for node in nodes
        )
        missing = sorted(self._goal.whole - {node.name for node in whole.node})
        if trains(nodes) and 0 < len(missing) <= (1 - ALIKE) * len(self._goal.whole):
            what = f"the session's call for '{next(iter(call.wanted), '')}'"
            self._application.note_mismatch(what, missing, sorted(ran - self._goal.whole))
            self._forget(session)

    def explain(self) -> None:
        """Say why no call of any session was placed, if one nearly fitted."""
        for twin in [*self._twins.values()]:
            twin.explain()


def _finder(graph: tf.Graph) -> Callable[[str], bool]:
    names = {op.name for op in graph.get_operations()}
    return names.__contains__


def place_sessions(
    application: Application, goal: PlanToApply, ordered: bool, cut: bool, for_good: ExitStack
) -> Callable[[], None]:
    """Apply a plan to all sessions that begin from now on; return what to call at the end.

    Parameters
    ----------
    cut : bool
        Whether steps are to be cut into micro-batches; those of sessions cannot be.
    """
    run, begin, close = (getattr(SESSION, name) for name in ("run", "__init__", "close"))
    sessions = _Sessions(application, goal, ordered, cut, run)

    @wraps(begin)
    def watched_begin(
        session: Any, target: str = "", graph: Any = None, config: Any = None
    ) -> None:
        begin(session, target, graph, config)
        sessions.began(session, config)

    @wraps(run)
    def placed_run(*args: Any, **kwargs: Any) -> Any:
        return sessions.run(*args, **kwargs)

    @wraps(close)
    def watched_close(session: Any) -> None:
        sessions.close(session)
        close(session)

    for_good.enter_context(modern_loops())
    for_good.enter_context(callables_by_run())
    for name, method in (
        ("__init__", watched_begin),
        ("run", placed_run),
        ("close", watched_close),
    ):
        for_good.enter_context(patch.object(SESSION, name, method))
    return sessions.explain


class _RefusedError(Exception):
    """TensorFlow does not run a twin; nothing has run in it yet."""


class _Twin:
    """A session with a copy of the graph of the script's, placed.

    Attributes
    ----------
    session : Session
    """

    def __init__(
        self,
        graph: tf.Graph,
        config: ConfigProto,
        application: Application,
        goal: PlanToApply,
        ordered: bool,
        run: Callable[..., Any],
    ) -> None:
        check_devices(goal.devices)  # the script may have hidden or split some
        self._theirs = graph
        self._application = application
        self._goal = goal
        self._ordered = ordered
        self._run = run
        self._version, self._names = 0, set[str]()
        self._graph = tf.Graph()
        self._copy: _Copy | None = None
        self._known: dict[Call, bool] = {}
        self._near: tuple[list[str], list[str], str] | None = None
        self._has_run = self._has_stepped = self._is_plain = False
        self._grow()
        self.session = tf.compat.v1.Session(graph=self._graph, config=config)

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: Any,
        run_metadata: Any,
    ) -> Any:
        """Run what the script asks of its own session."""
        self._grow()
        feeds = feeds_of(self._theirs, feed_dict)
        call = call_of(self._theirs, fetches, feeds)
        given = (fetches, feed_dict, options, run_metadata)
        if not self._is_plain and self._is_step(call):
            return self._step(call, feeds, given)
        try:
            result = self._run(self.session, *self._mapped(given, lambda name: name))
        except tf.errors.OpError as error:
            if self._has_run or isinstance(error, tf.errors.OutOfRangeError):
                raise
            raise _RefusedError(first_line(error)) from error
        self._has_run = True
        return result

    def explain(self) -> None:
        """Say what keeps the call that is most like the plan from being placed."""
        if self._near is not None and not self._has_stepped:
            missing, new, name = self._near
            what = f"the session's call for '{name}'"
            self._application.note_mismatch(what, missing, new)

    def _step(self, call: Call, feeds: Mapping[str, Any], given: Any) -> Any:
        """Run the plan's ops in its order; the first time, check what TensorFlow ran."""
        if self._copy is None:
            self._copy = self._copied(call, feeds)
        copy = self._copy
        fetches, feed_dict, options, metadata = self._mapped(
            given, lambda name: copy.names.get(name, name)
        )
        if self._has_stepped:
            return self._run(self.session, fetches, feed_dict, options, metadata)
        partitions = tf.compat.v1.RunOptions(output_partition_graphs=True)
        partitions.MergeFrom(options or tf.compat.v1.RunOptions())
        seen = metadata or tf.compat.v1.RunMetadata()
        wanted = (fetches, copy.batch)
        try:
            result, values = self._run(self.session, wanted, feed_dict, partitions, seen)
        except tf.errors.OutOfRangeError:
            raise  # the end of the data
        except tf.errors.OpError as error:
            self._is_plain = True
            result = self.run(*given)  # not the plan's fault if it fails either way
            self._application.note(
                f"{self._application.path}: TensorFlow does not run '{call.wanted[0]}' in the "
                f"plan's order, so only devices are as planned (the first step may have begun "
                f"twice): {first_line(error)}"
            )
            return result
        self._has_stepped = True
        self._check(copy, seen.partition_graphs, feeds, values)
        if not (options and options.output_partition_graphs):
            del seen.partition_graphs[:]
        return result

    def _mapped(self, given: Any, name_of: Callable[[str], str]) -> tuple[Any, ...]:
        """Replace the script's tensors and ops by those of this session."""

        def ours(part: Any) -> Any:
            theirs = self._theirs.as_graph_element(part)
            if isinstance(theirs, tf.Operation):
                return self._op(name_of(theirs.name))
            return self._op(name_of(theirs.op.name)).outputs[theirs.value_index]

        fetches, feed_dict, options, metadata = given
        feeds = {map_parts(ours, key): value for key, value in (feed_dict or {}).items()}
        return map_parts(ours, fetches), feeds, options, metadata

    def _op(self, name: str) -> tf.Operation:
        return self._graph.get_operation_by_name(name)

    def _grow(self) -> None:
        """Add the ops that the script has added to its graph since the last call."""
        if self._version == self._theirs.version:
            return
        new, known = self._theirs.as_graph_def(), self._names
        self._version = self._theirs.version
        self._names = {node.name for node in new.node}
        added = [node for node in new.node if node.name not in known]
        del new.node[:]
        new.node.extend(added)
        at_host = {node.name for node in new.node if node.op in GET_NEXT}
        at_host |= {node_of(node.input[0]) for node in new.node if node.op in GET_NEXT}
        for node in new.node:
            node.device = _HOST if node.name in at_host else self._goal.planned.get(node.name, "")
            node.attr.pop("_class", None)  # a group that disagrees would be an error
        self._add(new)

    def _add(self, graph_def: GraphDef) -> None:
        """Import ops; their inputs may be here already, and so may functions that they call."""
        here = {f.signature.name for f in self._graph.as_graph_def().library.function}
        new = [f for f in graph_def.library.function if f.signature.name not in here]
        del graph_def.library.function[:]
        graph_def.library.function.extend(new)
        names = {node.name for node in graph_def.node}
        outside = {t for node in graph_def.node for t in node.input if node_of(t) not in names}
        with self._graph.as_default():
            inputs = {tensor: self._here(tensor) for tensor in outside}
            import_graph_def(graph_def, input_map=inputs, name="")

    def _here(self, tensor: str) -> tf.Tensor:
        """Return what an input of another graph's op stands for."""
        op = self._op(node_of(tensor))
        if tensor[0] != "^":
            return op.outputs[int(tensor.partition(":")[2] or 0)]
        if op.outputs:
            return op.outputs[0]
        with tf.control_dependencies([op]):  # the importer only takes tensors
            return tf.constant(0, name="enplace_wait")

    def _is_step(self, call: Call) -> bool:
        if call not in self._known:
            self._known[call] = self._compare(call)
        return self._known[call]

    def _compare(self, call: Call) -> bool:
        """Return whether a call runs only ops of the plan, and all of these with an effect."""
        whole = self._theirs.as_graph_def()
        iterators = {node_of(node.input[0]) for node in whole.node if node.op in GET_NEXT}
        fed = (*call.fed, *iterators)
        ran = ops_of(whole, Call(call.ops, call.tensors, fed))
        planned = self._goal.whole
        nodes = [node for node in whole.node if node.name in planned | ran]
        effects = {n.name for n in nodes if has_effect(n.op) and n.op not in VARIABLES}
        missing = sorted((effects & planned) - ran - iterators)
        new = sorted(ran - planned)
        if not missing and not new:
            return True
        best = self._near
        is_nearer = best is None or len(missing) + len(new) < len(best[0]) + len(best[1])
        is_alike = len(planned & ran) >= ALIKE * len(planned)
        if is_alike and is_nearer and trains([node for node in nodes if node.name in ran]):
            self._near = missing, new, next(iter(call.wanted), "")
        return False

    def _copied(self, call: Call, feeds: Mapping[str, Any]) -> _Copy:
        """Copy the plan's ops with its devices and its order; variables are the same."""
        goal = self._goal
        whole = self._step_of(call, feeds)
        step = split_step(whole, goal.plan.splits)
        getters = [node.name for node in step.graph_def.node if node.op in GET_NEXT]
        bound = dict.fromkeys([step.iterator, *getters] if getters else [], _HOST)
        problem, plan = goal.problem, goal.plan
        order = device_orders(step.graph_def, problem, plan, plan.position) if self._ordered else []
        random = _random_ops(step.graph_def)
        fixed = {name for name in random if _needs_only_constants(step.graph_def, name)}
        if random != fixed and order and not plan.splits:
            print(
                f"enplace: {self._application.path}: the order is left out, because other calls "
                f"of the session may draw from the same random numbers as the step, such as "
                f"'{min(random - fixed)}'; to keep the order, give all placeholders their shapes "
                f"and all batches of a dataset one size (drop_remainder=True)",
                file=sys.stderr,
            )
            order = []
        order = [[name for name in names if name not in random] for names in order]
        placed = place_graph(step.graph_def, goal.planned | bound, order, _HOST)
        order_edges = count_inputs(placed) - count_inputs(step.graph_def)
        variables = [node.name for node in placed.node if node.op in VARIABLES]
        shared = {*step.inputs, step.iterator, *variables, *fixed}
        if not any(order) and not plan.splits:
            shared.update(n.name for n in placed.node)
        names = {n.name: n.name if n.name in shared else _COPY + n.name for n in placed.node}
        rename(placed, names)
        own = [node for node in placed.node if node.name not in shared]
        del placed.node[:]
        placed.node.extend(own)
        self._add(placed)
        outputs = zip(whole.outputs, step.outputs, strict=True)
        return _Copy(
            names | {node_of(old): names[node_of(new)] for old, new in outputs},
            step,
            order_edges,
            sum(goal.planned.get(name, _HOST) != _HOST for name in variables),
            tuple(op for op, at in bound.items() if at != goal.planned.get(op, at)),
            [tensor for name in getters for tensor in self._op(names[name]).outputs],
        )

    def _step_of(self, call: Call, feeds: Mapping[str, Any]) -> Step:
        """Return the plan's ops as a step, with a batch of the right shapes."""
        graph_def, planned = self._theirs.as_graph_def(), self._goal.whole
        kept = [node for node in graph_def.node if node.name in planned]
        del graph_def.node[:]
        graph_def.node.extend(kept)
        iterators = [node_of(node.input[0]) for node in graph_def.node if node.op in GET_NEXT]
        fed = [node_of(tensor) for tensor in call.fed if node_of(tensor) in planned]
        for node in graph_def.node:
            if node.name in (*fed, *iterators):
                tensor = self._theirs.get_tensor_by_name(f"{node.name}:0")
                become_placeholder(node, tensor.dtype.base_dtype)
        make_plain(graph_def)
        shapes = [np.shape(feeds[f"{name}:0"]) for name in fed]
        shapes += [*self._goal.problem.profile.measured.batch_shapes][len(fed) :]
        return Step(
            call.wanted[0],
            graph_def,
            {},
            [tuple(np.broadcast_to(np.float32(0), shape) for shape in shapes)],
            inputs=tuple(fed),
            iterator=next(iter(iterators), ""),
            outputs=call.tensors,
            targets=call.ops,
        )

    def _check(
        self, copy: _Copy, partitions: Iterable[GraphDef], feeds: Mapping[str, Any], values: Any
    ) -> None:
        """Report what TensorFlow ran, and batches of other shapes than the plan's."""
        goal, path = self._goal, self._application.path
        given = [np.shape(feeds[f"{name}:0"]) for name in copy.step.inputs]
        given += [np.shape(value) for value in values]
        if other := about_other_batches(goal.problem.profile.measured.batch_shapes, given):
            print(f"enplace: {path}: {other}", file=sys.stderr)
        names, planned = goal.problem.profile.op_names, goal.plan.device
        ran = map(_without_prefix, partitions)
        check = check_placement(ran, copy.step, names, planned, goal.devices)
        name = f"the session's '{copy.step.name}'"
        self._application.functions.append(
            PlacedFunction(name, copy.order_edges, copy.variables_moved, copy.bound, check)
        )


@dataclass(frozen=True, eq=False)
class _Copy:
    """The ops that run in the plan's order.

    Attributes
    ----------
    names : dict of str to str
        The name of each op in the twin, by its name in the plan.
    step : Step
        The plan's ops, split as it says.
    order_edges, variables_moved : int
        Control edges that keep the order; variables that are not on the host.
    bound : tuple of str
        Ops that stay with the data, whatever the plan says.
    batch : list of tensors
        What the graph's own dataset brings.
    """

    names: dict[str, str]
    step: Step
    order_edges: int
    variables_moved: int
    bound: tuple[str, ...]
    batch: list[tf.Tensor]


def _random_ops(graph_def: GraphDef) -> set[str]:
    """Find ops that remember how many random numbers they have drawn."""
    inside = held_by([graph_def])
    return {
        inside.get(node.name, node.name)
        for node in all_nodes(graph_def)
        if "seed2" in node.attr and has_effect(node.op)
    } & {node.name for node in graph_def.node}


def _needs_only_constants(graph_def: GraphDef, name: str) -> bool:
    nodes = {node.name: node for node in graph_def.node}
    needed = reached([name], lambda name: map(node_of, nodes[name].input)) - {name}
    return all(nodes[each].op == "Const" for each in needed)


def _without_prefix(partition: GraphDef) -> GraphDef:
    """Return a graph with the plan's names."""
    plain = GraphDef()
    for node in partition.node:
        plain.node.add(name=node.name.removeprefix(_COPY), op=node.op, device=node.device)
    return plain


def _config(given: ConfigProto) -> ConfigProto:
    """Return the script's configuration, with the plan's devices and without rewriting."""
    config = ConfigProto()
    config.CopyFrom(given)
    jit = config.graph_options.optimizer_options
    if jit.global_jit_level > jit.DEFAULT:
        say_dropped("jit_compile")
    config.graph_options.MergeFrom(plain_config().graph_options)
    config.allow_soft_placement = True  # what the plan does not place; the plan's ops are checked
    config.device_count["CPU"] = max(config.device_count["CPU"], count_devices("CPU"))
    gpus = tf.config.get_visible_devices("GPU")
    parts = [tf.config.get_logical_device_configuration(gpu) or [] for gpu in gpus]
    if any(parts):
        options = config.gpu_options.experimental
        del options.virtual_devices[:]
        for part in parts:
            limits = [logical.memory_limit for logical in part]
            options.virtual_devices.add(memory_limit_mb=limits)
    return config
