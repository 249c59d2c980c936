"""Apply a plan in the process of an unchanged training script: ``enplace.apply("plan.json")``.

A traced function that has the plan's ops is replaced by one that is placed. TensorFlow 1 sessions
run unchanged: for these, ``enplace run`` runs the step with its plan.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary, WeakSet

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.frameworks.batches import about_other_batches
from enplace.frameworks.microbatches import Microbatches, find_microbatches
from enplace.frameworks.tensorflow.apply.application import (
    ALIKE,
    KINDS,
    Application,
    PlacedFunction,
    check_devices,
    say_dropped,
)
from enplace.frameworks.tensorflow.apply.check import check_placement
from enplace.frameworks.tensorflow.apply.exchange import (
    Movers,
    batch_tensors,
    bound_ops,
    function_name,
    function_of,
    movable_variables,
    move_along,
    update_captures,
    variable_bytes,
)
from enplace.frameworks.tensorflow.apply.graph_collection import GraphCollection
from enplace.frameworks.tensorflow.apply.pipelines import pipeline_function
from enplace.frameworks.tensorflow.device_names import device_names
from enplace.frameworks.tensorflow.devices import DevicesError, eager_task
from enplace.frameworks.tensorflow.error_text import first_line
from enplace.frameworks.tensorflow.graph import FlatGraph, all_nodes, flatten
from enplace.frameworks.tensorflow.open.calls import Call, calls_handled, check_tensorflow
from enplace.frameworks.tensorflow.open.drawing import Drawing, drawing_of
from enplace.frameworks.tensorflow.open.scripts import (
    does,
    is_compiled,
    one_replica,
    plain_keras,
)
from enplace.frameworks.tensorflow.open.sessions import SESSION
from enplace.frameworks.tensorflow.rewrite import count_inputs, device_orders, place_graph
from enplace.frameworks.tensorflow.shapes import shapes_of_function, sizes_in
from enplace.frameworks.tensorflow.split.split_graph import split_flat
from enplace.frameworks.tensorflow.step import Step, plain_config
from enplace.frameworks.wishes import ORDER
from enplace.readers.plans import read_plan_alone
from enplace.values.cluster import Cluster, Device
from enplace.values.device_names import task_of
from enplace.values.op_sizes import about_other_sizes
from enplace.values.splits import unsplit_names

_HOST = "/device:CPU:0"

_MAX_OTHER_CALLS = 10
"""After this many calls of a step that is nearly the plan's, the user is told how they differ."""

_for_good = ExitStack()

_Batch = tuple[tuple[str, tuple[int, ...]], ...] | None
"""Shapes of the tensors of a batch; None if they do not matter."""

_ours: WeakSet[ConcreteFunction] = WeakSet()
"""Functions that are already placed; another plan does not touch them."""

_placers: list[_Placer] = []
"""One for each plan, in the order of :func:`apply`."""

_movers = Movers()
"""One for all plans: a variable that several of them place stays where the first one needs it."""

_graphs = GraphCollection()


def apply(path: str | os.PathLike[str], **wishes: Any) -> Application:
    """Run the training of this process as a plan says, from now on.

    Call it before a model is compiled and, if the plan needs logical devices, before TensorFlow
    runs anything. It does not start TensorFlow: the script can still set threads, memory growth and
    visible devices afterwards. Keras then builds graphs of ops, one step each, as it does for a
    profile. Functions with exactly the plan's ops run placed, and their variables move to the
    planned devices. All others run unchanged.

    Parameters
    ----------
    path : path-like
        A ``plan.json``.
    **wishes
        ``order``: whether each device follows the plan's order. ``pipeline``: run each step as a
        pipeline of micro-batches, in the order of ``"1f1b"``, ``"interleaved"``, ``"zb-h1"``,
        ``"gpipe"`` or ``"inference"``; batches of another shape than the first, such as the rest at
        the end of the data, run whole. ``microbatches``: into how many to cut each batch.
        ``own_statistics``: whether each of them may take its own means and sums where samples
        depend on each other, as in batch normalisation; the result is then not that of the whole
        batch.

    Returns
    -------
    Application
        A report of what was done; it is filled in as functions run for the first time.

    Raises
    ------
    EnplaceError
        If this version of TensorFlow lacks what is needed.
    FileError, ClusterError
        If the file is damaged or not a plan.
    DevicesError
        If this process does not have the plan's devices; when training begins, if the script has
        hidden them since.
    PipelineError
        If there is no such pipeline; when training begins, if the batch cannot be cut, or its
        samples depend on each other.
    """
    check_tensorflow()
    wanted = find_microbatches(wishes)
    order = wishes.get(ORDER.key, True)
    application = Application(os.fspath(path))
    placer = _Placer(application, order, wanted)
    _make_devices(placer.problem.cluster)
    _placers.append(placer)
    # A step that XLA compiles as a whole cannot use variables on several devices.
    _for_good.enter_context(plain_keras(say_dropped))
    _for_good.enter_context(one_replica())
    if len(_placers) == 1:
        _for_good.enter_context(_graphs.shared())

    def placed_call(
        function: ConcreteFunction, inputs: Sequence[Any], captured: Sequence[Any], call: Call
    ) -> Any:
        if not tf.executing_eagerly() or not placer.fits(function):
            runnable = placer.runnable(function, placer.present(captured))
            return call(runnable, placer.present(captured))
        drawn, key = placer.draw(function, [*inputs, *captured])

        def run(placed: ConcreteFunction) -> Any:
            own = len(placed.captured_inputs) - len(drawn)
            captured = [*placed.captured_inputs[:own], *drawn]
            return placer.run(placed, lambda: call(placed, captured))

        try:
            return run(placer.placed(function, key))
        except _CycleError:
            return run(placer.without_order(function, key))
        except _RefusedError as refused:
            result = call(function, placer.present(captured))
            placer.give_up(function, str(refused))  # not if it fails either way
            return result

    _for_good.enter_context(calls_handled(placed_call))
    _note_sessions(application)
    _note_eager_gradients(application)
    atexit.register(application.report)
    atexit.register(placer.explain)  # before that: the last one registered comes first
    return application


def _note_sessions(application: Application) -> None:
    """Note whether a session runs, which explains why no function has the plan's ops."""
    run = SESSION.run

    @wraps(run)
    def noted_run(*args: Any, **kwargs: Any) -> Any:
        application.had_sessions = True
        return run(*args, **kwargs)

    _for_good.enter_context(patch.object(SESSION, "run", noted_run))


def _note_eager_gradients(application: Application) -> None:
    """Note whether gradients are taken eagerly, which explains the same."""
    gradient = tf.GradientTape.gradient

    @wraps(gradient)
    def noted_gradient(*args: Any, **kwargs: Any) -> Any:
        application.had_eager_gradients |= tf.executing_eagerly()
        return gradient(*args, **kwargs)

    _for_good.enter_context(patch.object(tf.GradientTape, "gradient", noted_gradient))


class _CycleError(Exception):
    """TensorFlow fused ops that the plan's order keeps apart; nothing has run yet."""


class _RefusedError(Exception):
    """TensorFlow refuses to run a placed function; with the reason."""


@dataclass(eq=False)
class _Fitting:
    """A function that the plan is for.

    Attributes
    ----------
    flat : FlatGraph
    drawing : Drawing or None
        How it gets its batches; None unless it is to be a pipeline.
    batch : tuple or None
        The shapes of the first batch; the pipeline is for these.
    placed : dict
        The functions to call for such batches, and for all others (None).
    """

    flat: FlatGraph
    drawing: Drawing | None
    batch: _Batch = None
    placed: dict[_Batch, ConcreteFunction] = field(default_factory=dict)


_Near = tuple[str, list[str], list[str]]
"""A function, the plan's ops that it does not have, and its other ops."""


@dataclass(eq=False)
class _OtherStep:
    """A function that trains and is nothing like the plan's, and how often it was called."""

    near: _Near
    calls: int = 0


class _Placer:
    """Replaces functions by placed ones, and remembers which."""

    def __init__(
        self,
        application: Application,
        ordered: bool,
        wanted: Microbatches | None,
    ) -> None:
        self._application = application
        self._ordered, self._wanted = ordered, wanted
        lone = read_plan_alone(application.path)
        self.problem, self._plan = lone.problem, lone.plan
        self._sizes = lone.op_sizes
        names = lone.problem.profile.op_names
        self._whole = set(unsplit_names(names, lone.plan.splits))  # what a graph must have
        self._devices = device_names(lone.problem.cluster)
        self._known: WeakKeyDictionary[ConcreteFunction, _Fitting | None] = WeakKeyDictionary()
        self._plain: WeakKeyDictionary[ConcreteFunction, ConcreteFunction | None] = (
            WeakKeyDictionary()
        )
        self._near: _Near | None = None
        self._other_steps: WeakKeyDictionary[ConcreteFunction, _OtherStep] = WeakKeyDictionary()
        self._new: dict[ConcreteFunction, Callable[[Sequence[GraphDef]], None]] = {}
        self._options = context.FunctionCallOptions(config_proto=plain_config())

    def present(self, captured: Sequence[Any]) -> list[Any]:
        """Return captured tensors, with the present handles of variables that were moved."""
        return [_movers.present(tensor) for tensor in captured]

    def runnable(self, function: ConcreteFunction, present: Sequence[Any]) -> ConcreteFunction:
        """Return a function that the plan is not for, not compiled if its variables were moved.

        XLA refuses variables of another device.
        """
        if not tf.executing_eagerly() or not any(map(_movers.is_new, present)):
            return function
        if any(placer.fits(function) for placer in _placers):
            return function  # another plan's
        if function not in self._plain:
            self._plain[function] = None
            move_along(function, _movers)
            present = self.present(present)
            if is_compiled(function):
                print(
                    f"enplace: XLA does not compile {function_name(function)}, because the plan "
                    f"has moved its variables; it may be slower and round differently",
                    file=sys.stderr,
                )
                flat = flatten(function)
                made = function_of(function, flat, flat.graph_def, present, {})
                _ours.add(made)
                self._plain[function] = made
        return self._plain[function] or function

    def fits(self, function: ConcreteFunction) -> bool:
        """Return whether the plan is for this function."""
        if function in _ours:
            return False
        if function not in self._known:
            self._known[function] = self._find(function)
        if other := self._other_steps.get(function):
            other.calls += 1
            if other.calls >= _MAX_OTHER_CALLS:
                self._application.note_mismatch(*other.near)
                del self._other_steps[function]
        return self._known[function] is not None

    def draw(
        self, function: ConcreteFunction, inputs: Sequence[Any]
    ) -> tuple[list[tf.Tensor], _Batch]:
        """Draw the batch of a pipeline; return it, and what is known of all batches' shapes."""
        drawing = self._fitting(function).drawing
        if drawing is None:
            return [], None
        drawn = drawing.draw(inputs)
        shapes = drawing.batch(inputs, drawn)
        return drawn, tuple((name, tuple(shape)) for name, shape in shapes.items())

    def placed(self, function: ConcreteFunction, batch: _Batch) -> ConcreteFunction:
        """Return the function to call instead of this one for a batch of these shapes."""
        fitting = self._fitting(function)
        if fitting.batch is None:
            fitting.batch = batch
        elif batch != fitting.batch:
            batch = None
        if batch not in fitting.placed:
            if fitting.batch is not None and fitting.placed:
                self._application.note_whole(fitting.batch)
            fitting.placed[batch] = self._exchange(function, fitting, batch)
        return fitting.placed[batch]

    def _fitting(self, function: ConcreteFunction) -> _Fitting:
        fitting = self._known[function]
        assert fitting is not None
        return fitting

    def run(self, placed: ConcreteFunction, call: Callable[[], Any]) -> Any:
        """Call a placed function without rewriting its graph or its devices."""
        running = context.context()
        usual, running.function_call_options = running.function_call_options, self._options
        report = self._new.pop(placed, None)
        try:
            return call() if report is None else self._first(report, call)
        finally:
            running.function_call_options = usual

    def _first(self, report: Callable[[Sequence[GraphDef]], None], call: Callable[[], Any]) -> Any:
        """Call a placed function for the first time, and check what TensorFlow ran."""
        try:
            with _graphs.collected() as partitions:
                result = call()
        except tf.errors.OpError as error:
            if isinstance(error, tf.errors.OutOfRangeError):
                raise  # the end of the data
            if "cycle" in str(error):
                raise _CycleError from error
            raise _RefusedError(first_line(error)) from error
        else:
            report(partitions)
        return result

    def _find(self, function: ConcreteFunction) -> _Fitting | None:
        has_step, trains = bool(self._application.functions), all(does(function))
        n_nodes = sum(1 for _ in all_nodes(function.graph.as_graph_def()))
        if n_nodes < ALIKE * len(self._whole) and not trains:
            return None  # far too small; no need to flatten it
        move_along(function, _movers)
        # It may have been traced before its variables moved; names of variables are by handle.
        function.set_external_captures(self.present(function.captured_inputs))
        flat = flatten(function)
        missing, new = self._compare(flat)
        if not missing and not new:
            return _Fitting(flat, drawing_of(flat) if self._wanted else None)
        alike = len(missing) <= (1 - ALIKE) * len(self._whole)
        if trains or (alike and not has_step):
            near = f"the function {function_name(function)}", missing, new
            if any(placer._compare(flat) == ([], []) for placer in _placers):
                self._near = near  # it is another plan's, and this plan's may come later
            elif alike or has_step:
                self._application.note_mismatch(*near)
            else:
                self._other_steps[function] = _OtherStep(near)  # this plan's may come later
        return None

    def explain(self) -> None:
        """Say at the end what this plan does not fit, if it fits nothing."""
        others = [other.near for other in self._other_steps.values()]
        if not self._application.functions:
            for near in filter(None, (self._near, *others)):
                self._application.note_mismatch(*near)

    def _compare(self, flat: FlatGraph) -> tuple[list[str], list[str]]:
        """Find the plan's ops that a function does not have, and those of its own."""
        theirs = {node.name for node in flat.graph_def.node}
        new = theirs - self._whole - {*flat.arguments, *flat.captures}
        return sorted(self._whole - theirs), sorted(new)

    def without_order(self, function: ConcreteFunction, batch: _Batch) -> ConcreteFunction:
        """Return the function to call where TensorFlow cannot keep the plan's order."""
        print(
            f"enplace: {function_name(function)}: TensorFlow fuses ops across the plan's order, "
            f"so the order is left out; set TF_ENABLE_ONEDNN_OPTS=0 before importing TensorFlow to "
            f"keep it",
            file=sys.stderr,
        )
        self._ordered = False
        self._fitting(function).placed.clear()
        return self.placed(function, batch)

    def give_up(self, function: ConcreteFunction, why: str) -> None:
        """Run a function unplaced from now on, and warn with the reason."""
        self._known[function] = None
        self._application.note(
            f"{self._application.path}: TensorFlow does not run {function_name(function)} as the "
            f"plan says, so it runs without the plan (its first step may have begun twice): {why}"
        )

    def _exchange(
        self, function: ConcreteFunction, fitting: _Fitting, batch: _Batch
    ) -> ConcreteFunction:
        check_devices(self._devices)  # the script may have hidden or split some
        if is_compiled(function) or tf.config.optimizer.get_jit():
            say_dropped("jit_compile")
        flat, drawing, problem, plan = fitting.flat, fitting.drawing, self.problem, self._plan
        drawn: list[tf.Tensor] = []
        if drawing is not None:
            flat, drawn = drawing.flat, drawing.zeros(fitting.batch or ())
        if self._wanted and drawing is not None and batch is not None:
            shapes = dict(batch)
            whole = drawing.for_batch(shapes)
            flat, pipeline = pipeline_function(
                function, whole, shapes, problem, plan, self._wanted, _HOST
            )
            problem, plan = pipeline.problem, pipeline.plan
        else:
            flat = split_flat(function, flat, plan.splits)
        names = problem.profile.op_names
        planned = {
            name: self._devices[at] for name, at in zip(names, plan.device.tolist(), strict=True)
        }
        asked = fitting.flat.asked.items()
        self._application.note_scopes(sum(planned.get(op, at) != at for op, at in asked))
        variables = movable_variables(function, flat, _movers)
        bound = bound_ops(function, flat, variables, _HOST)
        n_moved = sum(
            _movers.move(holders, planned[name])
            for name, holders in variables.items()
            if name in planned
        )
        update_captures(_movers)
        captured = self.present(function.captured_inputs)
        _movers.settle(captured)
        function.set_external_captures(captured)
        graph_def = flat.graph_def
        order = device_orders(graph_def, problem, plan, plan.position) if self._ordered else []
        placed_graph = place_graph(graph_def, planned | bound, order, _HOST)
        traced = dict(batch) if batch is not None else batch_tensors(function, flat)
        given = {name: tf.TensorShape(shape) for name, shape in traced.items()}
        with tf.device(_HOST):
            seen = {
                name: tf.Variable(tf.zeros([0], tf.int64), trainable=False, shape=[None])
                for name, shape in given.items()
                if not shape.is_fully_defined()
            }
        placed = function_of(function, flat, placed_graph, [*captured, *drawn], seen)

        def report(partitions: Sequence[GraphDef]) -> None:
            found = [
                seen[n].numpy() if n in seen else shape.as_list() for n, shape in given.items()
            ]
            if drawing is not None and batch is None:
                return  # a batch of another size than those of the pipeline
            profiled = self.problem.profile.measured.batch_shapes
            self._application.note_batches(profiled, found)
            sizes = _sizes_of(function, fitting.flat, dict(zip(given, found, strict=True)))
            if about_other_batches(profiled, found):
                sizes = {name: sizes[name] for name in fitting.flat.captures if name in sizes}
            self._application.note_sizes(about_other_sizes(self._sizes, sizes))
            self._application.functions.append(
                PlacedFunction(
                    function_name(function),
                    count_inputs(placed_graph) - count_inputs(graph_def),
                    n_moved,
                    tuple(op for op, at in bound.items() if at != planned.get(op, at)),
                    check_placement(
                        partitions, _step_of(flat), names, plan.device, self._devices, eager_task()
                    ),
                    "" if batch is None or self._wanted is None else str(self._wanted),
                )
            )

        _ours.add(placed)
        self._new[placed] = report
        return placed


def _sizes_of(
    function: ConcreteFunction, flat: FlatGraph, given: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """Return the bytes of each variable, then of each op's tensors, of batches of some shapes."""
    captured = zip(flat.captures, function.captured_inputs, strict=False)
    variables = {name: [n] for name, tensor in captured if (n := variable_bytes(tensor))}
    tensors = sizes_in(shapes_of_function(function, flat, flat.graph_def, given))
    return variables | {name: tensors[name] for name in tensors if name not in variables}


def _step_of(flat: FlatGraph) -> Step:
    inputs = (*flat.arguments, *flat.captures)
    return Step(
        "", flat.graph_def, {}, (), inputs, outputs=flat.outputs, targets=flat.control_outputs
    )


def _make_devices(cluster: Cluster) -> None:
    """Make the logical CPUs and GPUs that the plan names, unless they exist.

    TensorFlow is not started, so that the script can still set threads, memory growth and so on.
    """
    wanted = device_names(cluster)
    if task := next(filter(None, map(task_of, wanted)), ""):
        raise DevicesError(
            f"the plan has devices of several hosts ({task}); run it with 'enplace run'"
        )
    with suppress(RuntimeError):  # TensorFlow runs already; the devices may exist
        for kind in KINDS:
            pairs = zip(cluster.devices, wanted, strict=True)
            of_kind = [device for device, name in pairs if f":{kind}:" in name]
            _split(kind, of_kind)
    check_devices(wanted)


def _split(kind: str, devices: Sequence[Device]) -> None:
    """Split real devices into logical ones as evenly as possible, if there are too few."""
    physical = tf.config.list_physical_devices(kind)
    if not 0 < len(physical) < len(devices):
        return
    least = min(device.capacity_bytes for device in devices)
    logical = tf.config.LogicalDeviceConfiguration(least >> 20 if kind == "GPU" else None)
    share, more = divmod(len(devices), len(physical))
    for i, device in enumerate(physical):
        tf.config.set_logical_device_configuration(device, [logical] * (share + (i < more)))
    _allow_memory_growth()


def _allow_memory_growth() -> None:
    """Let a script ask for memory growth as before: TensorFlow raises if a GPU is split.

    The parts of a split GPU have a fixed limit instead.
    """
    set_growth = tf.config.experimental.set_memory_growth

    @wraps(set_growth)
    def set_unless_split(device: Any, enable: bool) -> None:
        if not tf.config.get_logical_device_configuration(device):
            set_growth(device, enable)

    tf.config.experimental.set_memory_growth = set_unless_split
