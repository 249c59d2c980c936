"""Time a training script under data parallelism: tf.distribute.MirroredStrategy on our devices.

The script runs unchanged, but in the scope of a strategy, so its variables are copied to every
device. ``fit`` of Keras shares out each batch by itself, and so does a script that has a
MirroredStrategy of its own: it gets ours. ``train_on_batch`` becomes a ``fit`` of one batch. A
training loop that shares out nothing is not timed; its data parallelism is only predicted.

The batch stays as large as in the script, so a step does the same work as without replicas. Its
result may differ: a loss that is a mean becomes one per device, and some optimisers add them up.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, wraps
from textwrap import shorten
from types import FrameType
from typing import Any
from unittest.mock import patch

import tensorflow as tf

from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.capture import has_replicas
from enplace.frameworks.tensorflow.device_names import device_names
from enplace.frameworks.tensorflow.devices import Devices
from enplace.frameworks.tensorflow.error_text import first_line, is_out_of_memory
from enplace.frameworks.tensorflow.graph import all_nodes
from enplace.frameworks.tensorflow.open.calls import Call, calls_handled
from enplace.frameworks.tensorflow.open.scripts import (
    EnoughError,
    does,
    keras_trainers,
    plain_keras,
    run_script,
)
from enplace.frameworks.tensorflow.step import LoadError
from enplace.processes.worker import Report

WARM_UPS = 5

PATIENCE = 10
"""Steps of other models and functions, for each that is wanted, after which the script may end."""

NO_STEP = (
    "it trains neither with fit of Keras nor with a tf.distribute.MirroredStrategy; its step with "
    "data parallelism is only predicted"
)

_MEANINGS = {
    "merge_call` called": "changes no variables inside of a branch or a loop on tensors, as this "
    "step does",
    "no attribute 'merge_call'": "updates no variables outside of the function that takes the "
    "batch, as this script does",
    "Unable to lift": "cannot copy a variable that is made in the step from the step's own tensors",
}
"""Its errors about its own parts, by a word in them."""

_OUTSIDE = "DistributedVariable.handle"
"""What its errors say where variables are used outside of replicas."""

TOO_SHORT = (
    "what it trains first takes a step or two only, or is called with other Python values or "
    "shapes each time, and TensorFlow prepares a graph in each first call"
)

_LONGEST = 160
"""Most characters of another error of its."""

_TENSORFLOW, _KERAS = ("tensorflow", "enplace"), ("keras", "tf_keras")

_DEVICE_SETTERS = (
    (tf.config, "set_logical_device_configuration"),
    (tf.config, "set_visible_devices"),
    (tf.config.experimental, "set_memory_growth"),
    (tf.config.experimental, "set_virtual_device_configuration"),
    (tf.config.experimental, "set_visible_devices"),
    (tf.config.threading, "set_inter_op_parallelism_threads"),
    (tf.config.threading, "set_intra_op_parallelism_threads"),
)
"""What a script may set before TensorFlow starts; here it has started, with our devices."""


def time_mirrored(source: Source, devices: Devices, steps: int, progress: Report) -> list[float]:
    """Run a training script with one replica per device, until it has done some steps.

    Returns
    -------
    list of float
        Time of each step in microseconds, without warm-ups; empty if there is a single device.

    Raises
    ------
    LoadError
        If the script does not allow it.
    """
    if len(devices.cluster.gpus) < 2:
        return []
    strategy = _start(devices)
    clock = _Clock(strategy, WARM_UPS + steps, progress)
    try:
        with plain_keras(lambda _: None), _in_scope(strategy), clock.hooked():
            run_script(source)
    except SystemExit:
        pass  # it may have trained before
    except Exception as error:
        if is_out_of_memory(error):
            raise LoadError("a replica does not fit on a device") from None
        clock.why_not = clock.why_not or _why(error)
        if len(clock.times_us) < WARM_UPS:
            raise LoadError(clock.why_not) from None  # the first steps say little of the others
    if not clock.times_us:
        raise LoadError(clock.why_not or (TOO_SHORT if clock.has_step else NO_STEP))
    return clock.times_us[min(WARM_UPS, len(clock.times_us) // 2) :]


def _start(devices: Devices) -> Any:
    """Start TensorFlow with these devices; return a strategy with a replica on each.

    NCCL, which sums gradients on GPUs, does not know logical devices of one card.
    """
    cluster = devices.cluster
    names = [device_names(cluster)[d].rpartition("/device:")[2] for d in cluster.gpus]
    kind = names[0].partition(":")[0]
    physical = tf.config.list_physical_devices(kind)
    limits = [
        list(each.memory_limit_mb)
        for each in devices.config.gpu_options.experimental.virtual_devices
    ]
    parts = limits if kind == "GPU" else [[None] * len(names)]
    if kind == "GPU":
        tf.config.set_visible_devices(physical[: len(parts)], kind)
    for card, sizes in zip(physical, parts, strict=False):
        configuration = [tf.config.LogicalDeviceConfiguration(memory_limit=size) for size in sizes]
        tf.config.set_logical_device_configuration(card, configuration)
    shared = cluster.shares_chips and kind == "GPU"
    sums = tf.distribute.HierarchicalCopyAllReduce() if shared else None
    return _Strategy(names, sums)


class _Strategy(tf.distribute.MirroredStrategy):
    """Our devices as a script and Keras see them.

    Attributes
    ----------
    trains_next : bool
        Whether Keras is about to ask for the data that a model trains on.
    repeats : int
        How often it then gets the first batch: a model that is not timed must come to an end.
    """

    trains_next, repeats = False, 1

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas; one for a script: many make their batches larger otherwise."""
        is_library = _package(sys._getframe(1)) in (*_TENSORFLOW, *_KERAS)
        return super().num_replicas_in_sync if is_library else 1

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Share out the batches of a dataset; for ``fit``, its first one again and again.

        The rest of the data is smaller, and the time to get a batch ready is not that of a step.
        """
        if self.trains_next:
            first = next(iter(dataset))
            dataset = tf.data.Dataset.from_tensors(first).repeat(self.repeats)
            self.trains_next = False
        return super().experimental_distribute_dataset(dataset, options)


class _Replaced(type):
    """A kind of strategies of which there is one only, our own."""

    strategy: Any

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return cls.strategy

    def __instancecheck__(cls, value: Any) -> bool:
        return value is cls.strategy


@contextmanager
def _in_scope(strategy: Any) -> Iterator[None]:
    """Make every variable a mirrored one, and the strategy the script's own, if it has one."""

    def shared(create: Callable[..., Any], **options: Any) -> Any:
        unmeant = options.get("aggregation") in (None, tf.VariableAggregation.NONE)
        if unmeant and _caller() not in _KERAS:  # whose optimisers add up gradients by themselves
            dtype = tf.as_dtype(options.get("dtype") or _dtype_of(options.get("initial_value")))
            mean, first = tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA
            options["aggregation"] = mean if dtype.is_floating else first
        # While a step is traced, its variables cannot be copied to other devices.
        with tf.init_scope():
            return create(**options | {"initial_value": _constant(options.get("initial_value"))})

    with ExitStack() as stack:
        for module, name in _DEVICE_SETTERS:
            stack.enter_context(patch.object(module, name, lambda *_, **__: None))
        for name in ("MirroredStrategy", "OneDeviceStrategy"):
            ours = _Replaced(name, (), {"strategy": strategy})
            stack.enter_context(patch.object(tf.distribute, name, ours))
        for trainer in keras_trainers("train_on_batch"):
            stack.enter_context(patch.object(trainer, "train_on_batch", _fit_batch))
        for trainer in keras_trainers("_symbolic_build"):
            build = _if_possible(trainer._symbolic_build)
            stack.enter_context(patch.object(trainer, "_symbolic_build", build))
        stack.enter_context(strategy.scope())
        stack.enter_context(tf.variable_creator_scope(shared))
        yield


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _caller() -> str:
    """Return the package that called TensorFlow."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) in _TENSORFLOW:
        frame = frame.f_back
    return "" if frame is None else _package(frame)


def _if_possible(build: Callable[..., Any]) -> Callable[..., Any]:
    """Let models that cannot be built without their data make their variables in their step."""

    @wraps(build)
    def build_if_possible(*args: Any, **kwargs: Any) -> None:
        with suppress(Exception):
            build(*args, **kwargs)

    return build_if_possible


def _fit_batch(model: Any, x: Any, y: Any = None, *weights: Any, **options: Any) -> Any:
    """Train on one batch; the usual method would give all of it to every replica."""
    as_dict = options.pop("return_dict", False)
    options.pop("reset_metrics", None)  # of Keras 2
    known = dict(zip(("sample_weight", "class_weight"), weights, strict=False)) | options
    samples = len(tf.nest.flatten(x)[0])
    history = model.fit(x, y, batch_size=samples, shuffle=False, verbose=0, **known).history
    logs = {name: values[-1] for name, values in history.items()}
    if as_dict:
        return logs
    in_order = getattr(model, "_flatten_metrics_in_order", None)  # of Keras 3, which sorts logs
    if in_order is not None:
        return in_order(logs)
    found = [*logs.values()]
    return found if len(found) > 1 else found[0]


def _constant(value: Any) -> Any:
    """Return the value of a tensor in a graph, if it has one that does not change."""
    known = tf.get_static_value(value) if tf.is_symbolic_tensor(value) else None
    return value if known is None else known


def _dtype_of(value: Any) -> Any:
    made = value() if callable(value) else value
    return getattr(made, "dtype", None) or tf.convert_to_tensor(made).dtype


class _Clock:
    """Times the steps of a script."""

    def __init__(self, strategy: Any, steps: int, progress: Report) -> None:
        self.why_not = ""
        self.times_us: list[float] = []
        self._strategy, self._steps, self._progress = strategy, steps, progress
        strategy.repeats = steps + 1  # the first call does not count
        self._first_way: Any = None
        self._n_others = 0
        self._model: Any = None
        self._traced: set[Any] = set()

    @property
    def has_step(self) -> bool:
        return self._first_way is not None

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch traced functions; leave the block once done."""
        with ExitStack() as stack:
            stack.enter_context(suppress(EnoughError))
            for trainer in keras_trainers("fit"):
                stack.enter_context(patch.object(trainer, "fit", self._fitting(trainer.fit)))
            stack.enter_context(calls_handled(self._timed))
            yield

    def _fitting(self, usual: Any) -> Any:
        """Let ``fit`` train on one batch, and tell which model it trains.

        The script's callbacks are not called: an epoch ends, and nobody trained for one.
        """
        signature = inspect.signature(usual)

        @wraps(usual)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            given = signature.bind(model, *args, **kwargs)
            given.arguments.pop("callbacks", None)
            outer, self._model, self._strategy.trains_next = self._model, model, True
            try:
                return usual(*given.args, **given.kwargs)
            finally:
                self._model, self._strategy.trains_next = outer, False

        return fit

    def _timed(
        self, function: Any, inputs: Sequence[Any], captured: Sequence[Any], call: Call
    ) -> Any:
        if not (tf.executing_eagerly() and all(does(function))):
            return call(function, captured)
        if not _is_replicated(function):
            raise LoadError(NO_STEP)
        way: Any = str(function.graph.name)
        if self._model is not None:  # Keras calls the steps of all models by the same name
            way = id(self._model), frozenset(map(id, self._model.trainable_variables))
        self._first_way = self._first_way or way
        if way != self._first_way:  # another function that trains: its steps differ
            self._n_others += 1
            if self._n_others > PATIENCE * self._steps:
                raise EnoughError
            return call(function, captured)
        if function not in self._traced:
            self._traced.add(function)  # in its first call, TensorFlow prepares its graph
            if len(self._traced) > self._steps:
                raise LoadError(TOO_SHORT)
            return call(function, captured)
        begin = time.perf_counter_ns()
        result = call(function, captured)
        tf.test.experimental.sync_devices()
        self.times_us.append((time.perf_counter_ns() - begin) / 1e3)
        done = len(self.times_us)
        self._progress("", done / self._steps)
        if done >= self._steps:
            raise EnoughError
        return result


def _why(error: Exception) -> str:
    """Say in one line why a script cannot be timed."""
    if isinstance(error, LoadError):
        return str(error)
    text = str(error)
    for part, meaning in _MEANINGS.items():
        if part in text:
            return f"tf.distribute {meaning}"
    if _OUTSIDE in text:
        of_session = "tf.distribute does not share out the variables of a TensorFlow 1 session"
        return NO_STEP if tf.executing_eagerly() else of_session
    first = (first_line(error) or type(error).__name__).partition(". ")[0].rstrip(".")
    return f"Enplace cannot run it with replicas: {shorten(first, _LONGEST, placeholder=' …')}"


@cache
def _is_replicated(function: Any) -> bool:
    """Return whether a traced function does its work once per device."""
    return has_replicas(node.name for node in all_nodes(function.graph.as_graph_def()))
