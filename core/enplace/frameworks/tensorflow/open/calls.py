"""Take over the calls of traced functions that a script makes.

Every such call goes through a private method of TensorFlow's ``ConcreteFunction``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import tensorflow as tf
from tensorflow.python.eager.context import Context
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.errors import EnplaceError

_PRIVATE = (
    (ConcreteFunction, ("_call_flat", "from_func_graph")),
    (tf.compat.v1.Session, ("_do_run", "_make_callable_from_options")),
    (Context, ("function_call_options", "enable_graph_collection", "export_run_metadata")),
)
"""What we use of TensorFlow that has no public replacement."""

Call = Callable[[ConcreteFunction, Sequence[Any]], Any]
"""Calls a function, the script's or one like it, with these captured tensors."""

Handler = Callable[[ConcreteFunction, Sequence[Any], Sequence[Any], Call], Any]
"""Gets a function, its flat arguments, what it has captured, and how to call it."""


def check_tensorflow() -> None:
    """Refuse a TensorFlow that lacks what we need.

    Raises
    ------
    EnplaceError
        With the versions to install.
    """
    lacking = [
        f"{kind.__name__}.{n}" for kind, names in _PRIVATE for n in names if not hasattr(kind, n)
    ]
    if lacking:
        raise EnplaceError(
            f"Enplace does not know TensorFlow {tf.__version__}, which has no {lacking[0]}; "
            f"install one of 2.16 to 2.21"
        )


@contextmanager
def calls_handled(handle: Handler) -> Iterator[None]:
    """Let a handler make all calls of traced functions."""
    check_tensorflow()
    usual = ConcreteFunction._call_flat

    @wraps(usual)
    def handled(
        function: ConcreteFunction, tensor_inputs: Sequence[Any], captured_inputs: Sequence[Any]
    ) -> Any:
        def call(function: ConcreteFunction, captured: Sequence[Any]) -> Any:
            return usual(function, tensor_inputs, captured)

        return handle(function, tensor_inputs, captured_inputs, call)

    with patch.object(ConcreteFunction, "_call_flat", handled):
        yield
