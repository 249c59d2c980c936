"""Time a training script under data parallelism: tf.distribute.MirroredStrategy on our devices.

The script runs unchanged, but in the scope of a strategy, so its variables are copied to every
device. What happens to its step depends on how it trains:

- ``fit`` of Keras shares out each batch by itself, and so does a script that has a MirroredStrategy
  of its own: it gets ours. ``train_on_batch`` becomes a ``fit`` of one batch.
- Another traced function runs once per device, each time with a share of its arguments' samples, or
  of the batch that it takes from an iterator. Which arguments have samples shows when it is traced:
  with a share of others, that mostly fails. Assignments that its author did not mean for several
  devices take the mean. Functions that it calls become part of it, because tf.distribute sums
  nothing inside of them.

The batch stays as large as in the script, so a step does the same work as without replicas. Its
result may differ: a loss that is a mean becomes one per device, and some optimisers add them up.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from textwrap import shorten
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
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
from enplace.values.profile import IntArray

WARM_UPS = 5

PATIENCE = 10
"""Steps of other models and functions, for each that is wanted, after which the script may end."""

NO_BATCH = "its function '{}' trains, but takes no batch that could be shared out"

UNCLEAR = "its function '{}' takes arrays of {} rows, and Enplace cannot tell which are its batch"

CONCRETE = (
    "it calls '{}' through get_concrete_function; Enplace can share out only calls of a tf.function"
)

NO_STEP = (
    "it trains neither with fit of Keras nor with a tf.function that takes its batch as tensors or "
    "from an iterator"
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

TRACED = type(tf.function(lambda: None))

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

Progress = Callable[[str, float | None], None]


class Mirrored(NamedTuple):
    """Steps with a replica on each device.

    Attributes
    ----------
    times_us : list of float
        Time of each step, without warm-ups; empty if there is a single device.
    samples : int
        Those of a batch, for all devices together; 0 if TensorFlow or Keras shares it out.
    """

    times_us: list[float]
    samples: int = 0


def time_mirrored(source: Source, devices: Devices, steps: int, progress: Progress) -> Mirrored:
    """Run a training script with one replica per device, until it has done some steps.

    Raises
    ------
    LoadError
        If the script does not allow it.
    """
    if len(devices.cluster.gpus) < 2:
        return Mirrored([])
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
    if clock.batch % (n := len(devices.cluster.gpus)):
        raise LoadError(f"its batch of {clock.batch} cannot be shared out to {n} devices")
    return Mirrored(clock.times_us[min(WARM_UPS, len(clock.times_us) // 2) :], clock.batch)


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


class _Drawn:
    """Stands for an iterator in a step: it gives the batch that was drawn for this replica."""

    def __init__(self, batch: Any) -> None:
        self._batches = [batch]

    def __iter__(self) -> _Drawn:
        return self

    def __next__(self) -> Any:
        if not self._batches:
            raise LoadError("its step takes several batches from its iterator")
        return self._batches.pop()

    get_next = __next__


@dataclass
class _Step:
    """A function that trains, called in one way.

    Attributes
    ----------
    on_all : function
        Runs it on all devices.
    whole : list, or None
        What it returns where every device gets the whole batch; None if that fails.
    traced : tf.function
        The same with shares of a batch; None before its first call.
    batch : tuple of int
        Which of its arrays have samples; empty before its first call.
    samples : int
        How many the first call had.
    """

    on_all: Any
    whole: list[Any] | None
    traced: Any = None
    batch: tuple[int, ...] = ()
    samples: int = 0


class _Clock:
    """Times the steps of a script; those of a loop of its own it first gives to all replicas."""

    def __init__(self, strategy: Any, steps: int, progress: Progress) -> None:
        self.why_not = ""
        self._strategy, self._steps, self._progress = strategy, steps, progress
        strategy.repeats = steps + 1  # the first call does not count
        self._n = int(strategy.num_replicas_in_sync)
        self._within = self._tracing = False
        self._way: Any = None
        self._first_way: Any = None
        self._called: dict[Any, _Step | None] = {}
        self._samples = self._n_others = 0
        self._model: Any = None
        self._traced: set[Any] = set()
        self._times_us: dict[int, list[float]] = {0: []}

    @property
    def has_step(self) -> bool:
        return self._first_way is not None

    @property
    def batch(self) -> int:
        """The number of samples of most steps; 0 if it is not known."""
        return max(self._times_us, key=lambda samples: len(self._times_us[samples]))

    @property
    def times_us(self) -> list[float]:
        """Times of the steps with that many samples: the rest of the data may be less."""
        return self._times_us[self.batch]

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch traced functions; leave the block once done."""
        usual = TRACED.__call__

        @wraps(usual)
        def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
            if self._tracing:
                return _converted(function.python_function)(*args, **kwargs)
            if self._within or self._model is not None or not tf.executing_eagerly():
                return usual(function, *args, **kwargs)
            self._within = True
            try:
                return self._call(function, usual, args, kwargs)
            finally:
                self._within = False

        get_concrete = TRACED.get_concrete_function

        @wraps(get_concrete)
        def watched_get(function: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return get_concrete(function, *args, **kwargs)
            except ValueError as error:
                if self._within or _OUTSIDE not in str(error):
                    raise
                raise LoadError(CONCRETE.format(function.python_function.__name__)) from None

        with ExitStack() as stack:
            stack.enter_context(suppress(EnoughError))
            stack.enter_context(patch.object(TRACED, "__call__", watched))
            stack.enter_context(patch.object(TRACED, "get_concrete_function", watched_get))
            for trainer in keras_trainers("fit"):
                stack.enter_context(patch.object(trainer, "fit", self._fitting(trainer.fit)))
            stack.enter_context(calls_handled(self._timed))
            yield

    def _fitting(self, usual: Any) -> Any:
        """Let ``fit`` train on one batch, and tell which model it trains."""

        @wraps(usual)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            outer, self._model, self._strategy.trains_next = self._model, model, True
            try:
                return usual(model, *args, **kwargs)
            finally:
                self._model, self._strategy.trains_next = outer, False

        return fit

    def _timed(
        self, function: Any, inputs: Sequence[Any], captured: Sequence[Any], call: Call
    ) -> Any:
        if not (tf.executing_eagerly() and all(does(function)) and _is_replicated(function)):
            return call(function, captured)
        way = self._way
        if self._model is not None:  # Keras calls the steps of all models by the same name
            way = id(self._model), frozenset(map(id, self._model.trainable_variables))
        way = way or str(function.graph.name)
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
        took_us = (time.perf_counter_ns() - begin) / 1e3
        self._times_us.setdefault(self._samples, []).append(took_us)
        done = len(self.times_us)
        self._progress("", done / self._steps)
        if done >= self._steps:
            raise EnoughError
        return result

    def _call(
        self, function: Any, usual: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Call a function of the script, on all devices if it trains."""
        args = _cast(function, args)
        key = function, _way(function, args, kwargs)
        if key not in self._called:
            self._called[key] = self._find_step(function, (args, kwargs))
        if (step := self._called[key]) is None:
            return usual(function, *args, **kwargs)
        given = tf.nest.flatten((args, kwargs))
        drawn = [_next(v) if isinstance(v, tf.data.Iterator) else v for v in given]
        varies = function.input_signature is not None or any(
            isinstance(v, tf.data.Iterator) for v in given
        )
        if step.traced is None and not self._find_batch(step, drawn, varies):
            self._called[key] = None
            return usual(function, *args, **kwargs)
        shared, samples, n_rows = self._share_out(drawn, step.batch)
        step.samples = step.samples or samples
        self._way, self._samples = function, samples
        results = step.traced(shared)
        self._way, self._samples = None, 0
        found = tf.nest.flatten(results)
        alone = step.whole or []
        if len(alone) != len(found):
            alone = [None] * len(found)
        joined = [
            tf.concat(self._parts(value), axis=0)[:samples]
            if self._has_samples(value, whole, step.samples, n_rows)
            else self._parts(value)[0]
            for value, whole in zip(found, alone, strict=True)
        ]
        return tf.nest.pack_sequence_as(results, joined)

    def _find_step(self, function: Any, arguments: Any) -> _Step | None:
        """Let a function run once per device, and trace it so; None if it does not train."""
        step = function.python_function
        given = tf.nest.flatten(arguments)
        drawn = [isinstance(v, tf.data.Iterator) for v in given]

        def replica(values: Any) -> Any:
            pairs = zip(values, drawn, strict=True)
            parts = [_Drawn(v) if is_drawn else v for v, is_drawn in pairs]
            args, kwargs = tf.nest.pack_sequence_as(arguments, parts)
            return step(*args, **kwargs)

        def on_all(values: Any) -> Any:
            self._tracing = True
            try:
                return self._strategy.run(replica, args=(values,))
            finally:
                self._tracing = False

        on_all.__name__ = str(getattr(step, "__name__", "step"))
        # Only the first trace of a tf.function may make variables, and this one may fail.
        specs = [
            v.element_spec if is_drawn else v for v, is_drawn in zip(given, drawn, strict=True)
        ]
        try:
            whole = tf.function(on_all).get_concrete_function(specs)
        except Exception:  # its code may insist on a replica's share
            return _Step(on_all, None)
        outputs = tf.nest.flatten(whole.structured_outputs)
        return _Step(on_all, outputs) if all(does(whole)) else None

    def _find_batch(self, step: _Step, values: list[Any], varies: bool) -> bool:
        """Find which arrays of a step have samples: those that it can be traced with a share of.

        Where several lengths allow that, that of most arrays wins. Without one, nothing is timed; a
        further function, which would not be, gets all of them on every device.

        Parameters
        ----------
        varies : bool
            Whether the step is traced for arrays of any length.
        """
        length = {i: int(v.shape[0]) for i, v in enumerate(tf.nest.flatten(values)) if _is_array(v)}
        counts = Counter(length.values()).items()
        name = step.on_all.__name__
        whys = [NO_BATCH.format(name)] if step.whole is not None and not counts else []
        found: list[tuple[int, int]] = []
        for n, count in sorted(counts, key=lambda each: (-each[1], each[0] == 1)):
            if found and (found[0][1] > count or n == 1):
                break  # a single row goes with any batch
            batch = tuple(i for i, rows in length.items() if rows == n)
            try:
                traced = tf.function(step.on_all, reduce_retracing=varies)
                if all(does(traced.get_concrete_function(self._share_out(values, batch)[0]))):
                    found.append((n, count))
                    step.traced, step.batch = step.traced or traced, step.batch or batch
            except LoadError:
                raise
            except Exception as error:
                whys.append(_why(error, "a share of the samples on each device"))
        if len(found) > 1:
            whys = [UNCLEAR.format(name, " or ".join(f"{n:,}" for n, _ in found))]
        if len(found) != 1 and (found or step.whole is not None):
            if self._first_way is None:  # it is the one that would be timed
                raise LoadError((*whys, NO_STEP)[0])
            step.traced, step.batch = tf.function(step.on_all), ()
            return True
        self.why_not = "" if found else "".join(whys[:1])
        return bool(found)

    def _share_out(self, values: list[Any], batch: tuple[int, ...]) -> tuple[Any, int, int]:
        """Give each device its share of the rows of some arrays.

        Returns
        -------
        tuple
            The values, the number of samples, and that of rows: where samples cannot be shared out
            evenly, the first of them are repeated.
        """
        flat = tf.nest.flatten(values)
        if any(isinstance(value, tf.RaggedTensor | tf.SparseTensor) for value in flat):
            raise LoadError(
                "its batch has ragged or sparse tensors, which Enplace cannot share out"
            )
        if not batch:
            return values, 0, 0
        samples = int(flat[batch[0]].shape[0])
        rows = np.arange(-(-samples // self._n) * self._n) % samples
        for i in batch:
            flat[i] = self._split(flat[i], samples, rows)
        return tf.nest.pack_sequence_as(values, flat), samples, len(rows)

    def _split(self, value: Any, samples: int, rows: IntArray) -> Any:
        whole = tf.convert_to_tensor(value)
        parts = tf.split(whole if len(rows) == samples else tf.gather(whole, rows), self._n)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )

    def _has_samples(self, value: Any, whole: Any, samples: int, n_rows: int) -> bool:
        """Whether a result has a row for each sample, such as a state, also for the whole batch."""
        parts = self._parts(value)
        if not all(map(_is_array, parts)) or sum(int(part.shape[0]) for part in parts) != n_rows:
            return False
        shape = None if whole is None else self._parts(whole)[0].shape
        return shape is None or not shape.rank or shape[0] in (None, samples)

    def _parts(self, value: Any) -> Any:
        return self._strategy.experimental_local_results(value)


def _way(function: Any, args: tuple[Any, ...], kwargs: Any) -> str:
    """Tell what decides how a function is traced; that with a signature is traced once."""
    if function.input_signature is not None and not kwargs:
        return ""
    return str(tf.nest.map_structure(_kind, (args, kwargs)))


def _kind(value: Any) -> Any:
    """Tell what decides how a function is traced for an argument, but for the number of samples."""
    if isinstance(value, tf.Tensor | tf.Variable | np.ndarray | np.generic):
        return tf.as_dtype(value.dtype), tuple(value.shape[1:])
    if isinstance(value, tf.data.Iterator):
        return tf.data.Iterator
    return value if isinstance(value, int | float | str | bytes | None) else id(value)


def _converted(function: Any) -> Any:
    """Let a function use Python's ``if`` and ``while`` on tensors, as within tf.function."""
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(function, autograph.control_status_ctx())


def _next(iterator: Any) -> Any:
    """Draw a batch; end the data as an iterator does inside of a step."""
    try:
        return next(iterator)
    except StopIteration:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None


def _cast(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give arguments the types of a function's signature, if it has one, as TensorFlow does."""
    signature = function.input_signature
    if signature is None or len(signature) != len(args):
        return args

    def convert(spec: Any, value: Any) -> Any:
        return tf.convert_to_tensor(value, spec.dtype) if type(spec) is tf.TensorSpec else value

    return tuple(tf.nest.map_structure(convert, signature, args))


def _is_array(value: Any) -> bool:
    return isinstance(value, tf.Tensor | np.ndarray) and len(value.shape) > 0


def _why(error: Exception, what: str = "a replica on each device") -> str:
    """Say in one line why a script cannot be timed."""
    if isinstance(error, LoadError):
        return str(error)
    text = str(error)
    for part, meaning in _MEANINGS.items():
        if part in text:
            return f"tf.distribute {meaning}"
    if _OUTSIDE in text:
        of_session = "tf.distribute does not share out the variables of a TensorFlow 1 session"
        elsewhere = "it uses variables in a function that is not shared out"
        return elsewhere if tf.executing_eagerly() else of_session
    first = (first_line(error) or type(error).__name__).partition(". ")[0].rstrip(".")
    return f"Enplace cannot run it with {what}: {shorten(first, _LONGEST, placeholder=' …')}"


@cache
def _is_replicated(function: Any) -> bool:
    """Return whether a traced function does its work once per device."""
    return has_replicas(node.name for node in all_nodes(function.graph.as_graph_def()))
