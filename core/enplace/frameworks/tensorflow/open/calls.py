"""Take over the calls of traced functions that a script makes.

Every such call goes through a private method of TensorFlow's ``ConcreteFunction``. Where a version
does not have it, the public ``__call__`` of traced functions is taken over instead. That looks up
the function once more for each call.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.frameworks.tensorflow.step import LoadError

HOOK = "_call_flat"

Call = Callable[[ConcreteFunction, Sequence[Any]], Any]
"""Calls a function, the script's or one like it, with these captured tensors."""

Handler = Callable[[ConcreteFunction, Sequence[Any], Sequence[Any], Call], Any]
"""Gets a function, its flat arguments, what it has captured, and how to call it."""


@contextmanager
def calls_handled(handle: Handler) -> Iterator[None]:
    """Let a handler make all calls of traced functions.

    Without the private method, none that are made while another function is traced.
    """
    if _has_hook():
        with _private(handle):
            yield
        return
    with _public(handle):
        yield


def _has_hook() -> bool:
    """Return whether this TensorFlow has the private method as we know it."""
    method = getattr(ConcreteFunction, HOOK, None)
    return method is not None and [*inspect.signature(method).parameters] == [
        "self",
        "tensor_inputs",
        "captured_inputs",
    ]


@contextmanager
def _private(handle: Handler) -> Iterator[None]:
    usual = getattr(ConcreteFunction, HOOK)

    @wraps(usual)
    def handled(
        function: ConcreteFunction, tensor_inputs: Sequence[Any], captured_inputs: Sequence[Any]
    ) -> Any:
        def call(function: ConcreteFunction, captured: Sequence[Any]) -> Any:
            return usual(function, tensor_inputs, captured)

        return handle(function, tensor_inputs, captured_inputs, call)

    with patch.object(ConcreteFunction, HOOK, handled):
        yield


@contextmanager
def _public(handle: Handler) -> Iterator[None]:
    traced = type(tf.function(lambda: None))
    within = threading.local()

    def handling(usual: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(usual)
        def handled(function: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(within, "a_call", False) or not tf.executing_eagerly():
                return usual(function, *args, **kwargs)
            within.a_call = True
            try:
                is_concrete = isinstance(function, ConcreteFunction)
                concrete = (
                    function if is_concrete else function.get_concrete_function(*args, **kwargs)
                )

                def call(function: ConcreteFunction, captured: Sequence[Any]) -> Any:
                    function.set_external_captures(captured)
                    return function(*args, **kwargs)

                inputs = _flat(concrete, args, kwargs)
                return handle(concrete, inputs, concrete.captured_inputs, call)
            finally:
                within.a_call = False

        return handled

    with ExitStack() as stack:
        for kind in (traced, ConcreteFunction):
            stack.enter_context(patch.object(kind, "__call__", handling(kind.__call__)))
        yield


def _flat(function: ConcreteFunction, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors among a call's arguments, in the order of the function's inputs."""
    parts = tf.nest.flatten((args, kwargs), expand_composites=True)
    found = [tf.convert_to_tensor(p) for p in parts if isinstance(p, tf.Tensor | np.ndarray)]
    wanted = len(function.inputs) - len(function.captured_inputs)
    if len(found) != wanted:
        raise LoadError(
            f"TensorFlow {tf.__version__} does not tell which arguments the function "
            f"'{function.name}' gets ({len(found)} of {wanted} found); give it tensors as arguments"
        )
    return found
