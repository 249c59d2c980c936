"""Training scripts: run unchanged until they train; then their step is extracted."""

from __future__ import annotations

import importlib
import inspect
import os
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.distribute import input_lib
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.frameworks.programs import current_line, run_program, why_ended, why_failed
from enplace.frameworks.source import Source
from enplace.frameworks.tensorflow.capture import (
    N_BATCHES,
    are_enough,
    batch_of,
    most_alike,
    step_of,
)
from enplace.frameworks.tensorflow.error_text import first_line, is_out_of_memory
from enplace.frameworks.tensorflow.graph import all_nodes
from enplace.frameworks.tensorflow.open.calls import Call, calls_handled
from enplace.frameworks.tensorflow.open.sessions import (
    RUN,
    SESSION,
    SessionWatch,
    callables_by_run,
    modern_loops,
)
from enplace.frameworks.tensorflow.step import Batch, LoadError, Step
from enplace.names.passes import is_in_backward_scope
from enplace.processes.redirect import why_refused
from enplace.values.op_kinds import is_update_type

_MAX_OTHER_STEPS = 1_000
"""After this many steps that cannot be recorded, Enplace stops waiting for one that can."""

_EAGERLY = (
    "gradients are taken eagerly, so training has no graph; put @tf.function before the "
    "function that does a training step, or leave out run_eagerly=True"
)
_APART = (
    "gradients are taken in a tf.function, but applied outside of it; apply them in the same "
    "function, so that a training step is one graph"
)

_XLA = "_XlaMustCompile"

_does: WeakKeyDictionary[ConcreteFunction, tuple[bool, bool]] = WeakKeyDictionary()
"""What :func:`does` has found; it must not keep functions, and so the variables of old models."""


class EnoughError(BaseException):
    """Ends the script, even through its own ``except Exception``."""


def load_script(source: Source) -> Step:
    """Run a script or module until it has trained for a few steps; extract such a step.

    Raises
    ------
    LoadError
        If the script ends or fails before it trains, or trains without a graph.
    """
    recorder = Recorder(source.name, lambda: current_line(source))
    with plain_keras(recorder.dropped), one_replica(), modern_loops(), recorder.hooked():
        try:
            run_script(source)
        except EnoughError:
            raise
        except SystemExit as end:
            recorder.ended(why_ended(source, end), printed=True)
        except BaseException as error:
            if not is_out_of_memory(error):
                recorder.ended(why_failed(source, error, first_line(error)), printed=True)
            elif not recorder.has_step:
                raise  # not the script's fault
    return recorder.step()


class Recorder:
    """Watches for the first call of a training function or session, and records its arguments.

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
        self._sessions = SessionWatch(name, place)
        self._function: ConcreteFunction | None = None
        self._variables = frozenset[int]()
        self._calls: Counter[ConcreteFunction] = Counter()
        self._found: Step | None = None
        self._batches: list[Batch] = []
        self._other_steps: list[str] = []
        self._awaited: dict[int, str] = {}
        self._left_out: list[str] = []
        self._compiled = False
        self._failure: LoadError | None = None

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch traced functions, gradients and sessions; leave the block once done."""
        gradient, run = tf.GradientTape.gradient, getattr(SESSION, RUN)
        execute = pywrap_tfe.TFE_Py_FastPathExecute

        def watched_op(context: Any, op: str, name: Any, *inputs: Any) -> Any:
            if self._awaited and is_update_type(op):
                self._saw_update(inputs[:1])
            return execute(context, op, name, *inputs)

        def watched_call(
            function: ConcreteFunction, inputs: Sequence[Any], captured: Sequence[Any], call: Call
        ) -> Any:
            if tf.executing_eagerly():
                self._saw(function, inputs, captured)
                if function is self._function and (sample := _sample_result(function)):
                    return sample[0]
            return call(function, captured)

        @wraps(gradient)
        def watched_gradient(tape: Any, target: Any, sources: Any, *args: Any, **kw: Any) -> Any:
            if tf.executing_eagerly():
                self._await_update(tf.nest.flatten(sources), _EAGERLY)
            return gradient(tape, target, sources, *args, **kw)

        @wraps(run)
        def watched_run(*args: Any) -> Any:
            if self._is_done():
                raise EnoughError
            result = self._sessions.run(run, *args)
            if self._is_done():
                raise EnoughError
            return result

        with (
            calls_handled(watched_call),
            callables_by_run(),
            patch.object(tf.GradientTape, "gradient", watched_gradient),
            patch.object(pywrap_tfe, "TFE_Py_FastPathExecute", watched_op),
            patch.object(SESSION, RUN, watched_run),
            suppress(EnoughError),
        ):
            yield

    @property
    def has_step(self) -> bool:
        """Whether a training step was recorded; nothing after that matters."""
        return self._found is not None

    def ended(self, why: str, printed: bool = False) -> None:
        """Remember why the script ended, unless it was faulty before."""
        self._failure = self._failure or LoadError(why, printed)

    def step(self) -> Step:
        """Return the step of the training function, with all batches.

        Raises
        ------
        LoadError
            If there is none.
        """
        if self._found is None:
            if in_session := self._sessions.step():
                return in_session
            raise self._failure or LoadError(self._why_never())
        batches, left_out = most_alike(self._batches), tuple(self._left_out)
        return replace(self._found, batches=batches, left_out=left_out, compiled=self._compiled)

    def dropped(self, argument: str) -> None:
        """Remember whether the user's own step is compiled by XLA; see :func:`plain_keras`."""
        self._compiled |= argument == "jit_compile"

    def _saw(
        self, function: ConcreteFunction, inputs: Sequence[Any], captured: Sequence[Any]
    ) -> None:
        if self._is_done():
            # The script's own ``except:`` caught our exception.
            raise EnoughError
        gradients, updates = does(function)
        if self._function is None and gradients and updates:
            self._function, self._variables = function, _trained_by(function)
            self._take(function, inputs)
        elif gradients and not updates:
            self._await_update(function.graph.trainable_variables, _APART)
        elif updates and not gradients:
            self._saw_update(captured)
        elif function is self._function:
            self._batches.append(batch_of(inputs))
        elif gradients:
            self._saw_another(function, inputs)
        if self._is_done():
            raise EnoughError

    def _saw_another(self, function: ConcreteFunction, inputs: Sequence[Any]) -> None:
        """Remember another function that trains, unless it is the step for another shape of batch.

        If batches of that shape come more often, as after one that only builds the model, it is the
        step from then on. Keras calls the steps of all models by the same name.
        """
        assert self._function is not None
        name = str(function.graph.name)
        if name == str(self._function.graph.name):
            if _trained_by(function) == self._variables:
                self._calls[function] += 1
                if self._calls[function] == N_BATCHES:
                    self._function = function
                    self._take(function, inputs)
                return
            name = f"{name} in {self._place()}"
        if name not in self._left_out:
            self._left_out.append(name)

    def _is_done(self) -> bool:
        found = self._found
        enough = found is not None and (found.iterator or are_enough(self._batches))
        return bool(self._failure or enough or self._sessions.is_done)

    def _take(self, function: ConcreteFunction, inputs: Sequence[Any]) -> None:
        """Extract the step now: when the script has ended, its variables are gone."""
        try:
            self._found = step_of(self._name, function, [inputs])
            self._compiled |= is_compiled(function) or bool(tf.config.optimizer.get_jit())
        except LoadError as error:
            self.ended(f"{self._place()}: {error}")
        except Exception as error:
            # Such an error of TensorFlow's is not the script's fault.
            traceback.print_exception(error)
            apart = f"this training step cannot be taken apart: {first_line(error)}"
            self.ended(f"{self._place()}: {why_refused(error) or apart}")
        else:
            self._batches = list(self._found.batches)

    def _await_update(self, sources: Sequence[Any], why: str) -> None:
        """Remember of which variables gradients were taken in a way that cannot be recorded.

        It was a step if one of them is changed next: gradients also tell what an input does.
        """
        if self._function is None:
            place = f"{self._place()}: {why}"
            self._awaited |= {id(h): place for s in sources if (h := _handle_of(s)) is not None}

    def _saw_update(self, handles: Sequence[Any]) -> None:
        """Give up on a script that trains in a way that cannot be recorded."""
        places = [self._awaited[id(each)] for each in handles if id(each) in self._awaited]
        if not places:
            return
        self._awaited.clear()
        self._other_steps.append(places[0])
        if len(self._other_steps) >= _MAX_OTHER_STEPS:
            self.ended(self._other_steps[-1])
            raise EnoughError

    def _why_never(self) -> str:
        if self._other_steps:
            return self._other_steps[-1]
        return (
            f"{self._name}: it ended without training: no model.fit, and no call of a tf.function "
            f"or a session that takes gradients and updates variables; open the script that trains"
        )


def _handle_of(source: Any) -> Any:
    """Return the tensor by which TensorFlow knows a variable, or one of Keras; else nothing."""
    return getattr(getattr(source, "_value", source), "handle", None)


def _trained_by(function: ConcreteFunction) -> frozenset[int]:
    """Identify the variables that a traced function may train; models have none in common."""
    return frozenset(map(id, function.graph.trainable_variables))


def _sample_result(function: ConcreteFunction) -> list[Any]:
    """Return a list with what a training step might return; empty if that is unknown.

    We need the step, not its result, and a batch for several devices cannot run here.
    """
    outputs = function.outputs
    if not all(t.shape.is_fully_defined() and t.dtype.is_numpy_compatible for t in outputs):
        return []
    with tf.device("CPU:0"):
        zeros = [tf.zeros(t.shape, t.dtype) for t in outputs]
    return [function.function_type.pack_output(zeros)]


def does(function: ConcreteFunction) -> tuple[bool, bool]:
    """Return whether a traced function takes gradients, and whether it updates variables."""
    if function not in _does:
        nodes = list(all_nodes(function.graph.as_graph_def()))
        gradients = any(is_in_backward_scope(node.name) for node in nodes)
        _does[function] = gradients, any(is_update_type(node.op) for node in nodes)
    return _does[function]


def is_compiled(function: ConcreteFunction) -> bool:
    """Return whether XLA compiles a traced function, or one that it calls."""
    graph_def = function.graph.as_graph_def()
    found = (function.function_def, *graph_def.library.function, *all_nodes(graph_def))
    # Asking for an attribute that is missing would add it to the function.
    return any(_XLA in each.attr and each.attr[_XLA].b for each in found)


@contextmanager
def plain_keras(dropped: Callable[[str], None]) -> Iterator[None]:
    """Make Keras build a graph of ops for one step: no compilation, no loop over several steps.

    An optimiser that makes its variables while the step is traced takes as long as another trace,
    so they are made just before.

    Parameters
    ----------
    dropped : callable
        Called with ``jit_compile`` or ``steps_per_execution`` whenever Keras would have done so.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with ExitStack() as stack:
        # Keras compares by identity to see if a model overrides ``compile``.
        for trainer in keras_trainers("compile"):
            plain = _plain_compile(trainer.compile, dropped)
            stack.enter_context(patch.object(trainer, "compile", plain))
        for trainer in keras_trainers("make_train_function"):
            ready = _with_optimizer(trainer.make_train_function, trainer.train_step)
            stack.enter_context(patch.object(trainer, "make_train_function", ready))
        yield


def keras_trainers(method: str) -> Iterator[Any]:
    """Find the class that gives models a method, in each Keras that is installed."""
    for module in _each_keras():
        yield from [kind for kind in module.Model.__mro__ if method in vars(kind)][:1]


def _each_keras() -> Iterator[Any]:
    for name in ("keras", "tf_keras"):  # the second one is Keras 2, for older scripts
        with suppress(ImportError):
            yield importlib.import_module(name)


@contextmanager
def _no_backups() -> Iterator[None]:
    """Let training begin anew, and not where a training that was interrupted left a backup.

    Such a step has other variables, and there may be no epoch left that has one.
    """
    with ExitStack() as stack:
        for module in _each_keras():
            kind = module.callbacks.BackupAndRestore
            stack.enter_context(patch.object(kind, "__init__", _with_no_backup(kind.__init__)))
        yield


def _with_no_backup(usual: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(usual)

    @wraps(usual)
    def with_no_backup(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.arguments["backup_dir"] = tempfile.mkdtemp()
        usual(*given.args, **given.kwargs)

    return with_no_backup


def _plain_compile(
    compile_model: Callable[..., Any], dropped: Callable[[str], None]
) -> Callable[..., Any]:
    signature = inspect.signature(compile_model)
    usual = signature.parameters["jit_compile"].default

    @wraps(compile_model)
    def plain_compile(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        wanted = given.arguments.get("jit_compile", usual)
        # Keras 3 compiles by itself on machines with a GPU.
        if wanted is True or (wanted == "auto" and tf.config.list_physical_devices("GPU")):
            dropped("jit_compile")
        if given.arguments.get("steps_per_execution", 1) not in (None, 1):
            dropped("steps_per_execution")
        given.arguments.update(jit_compile=False, steps_per_execution=1)
        return compile_model(*given.args, **given.kwargs)

    return plain_compile


def _with_optimizer(make_function: Callable[..., Any], usual_step: Any) -> Callable[..., Any]:
    """Make the optimiser's variables when Keras would: at the first step, under the same names."""

    @wraps(make_function)
    def with_optimizer(model: Any, *args: Any, **kwargs: Any) -> Any:
        made = make_function(model, *args, **kwargs)
        optimizer = model.optimizer
        if type(model).train_step is not usual_step or getattr(optimizer, "built", True):
            return made
        step = model.train_function

        @wraps(step)
        def first_build(*inputs: Any) -> Any:
            model.train_function = step  # a callback may look at it
            if not optimizer.built and _is_built_throughout(model):
                with importlib.import_module("keras").name_scope(optimizer.name, caller=optimizer):
                    optimizer.build(model.trainable_variables)
            return step(*inputs)

        model.train_function = first_build
        return made

    return with_optimizer


def _is_built_throughout(model: Any) -> bool:
    """Return whether a model is known to have all its variables: its layers may lack some."""
    layers = getattr(model, "_flatten_layers", None)  # private: without it, Keras traces twice
    return layers is not None and all(layer.built for layer in layers())


@contextmanager
def one_replica() -> Iterator[None]:
    """Let a tf.distribute strategy with one replica take its batches as without a strategy.

    Its step would ask its iterator for a batch that may be missing, as on some of many replicas.
    """
    usual = input_lib._enable_get_next_as_optional

    def may_be_missing(strategy: Any, *args: Any) -> bool:
        return bool(strategy.num_replicas_in_sync > 1 and usual(strategy, *args))

    with patch.object(input_lib, "_enable_get_next_as_optional", may_be_missing):
        yield


def run_script(source: Source) -> None:
    """Run a script or module as Python does, but from its beginning."""
    with _no_backups(), _no_profiler_after():
        run_program(source)


@contextmanager
def _no_profiler_after() -> Iterator[None]:
    """Stop a profiler that a program leaves: there can be one in a process, and we need it."""
    try:
        yield
    finally:
        with suppress(tf.errors.UnavailableError):
            tf.profiler.experimental.stop(save=False)
