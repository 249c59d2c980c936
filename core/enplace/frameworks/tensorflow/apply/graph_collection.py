"""Collect the graphs that TensorFlow runs, beside a script that collects them itself.

TensorFlow has one switch and one buffer for them. A script uses both through
``tf.summary.trace_on`` and Keras's TensorBoard callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import RunMetadata
from tensorflow.python.eager.context import Context, context

_SWITCHES = {
    "enable_graph_collection": True,
    "enable_run_metadata": True,
    "disable_graph_collection": False,
    "disable_run_metadata": False,
}
_EXPORT = "export_run_metadata"


class GraphCollection:
    """TensorFlow's collection of graphs, shared with the script."""

    def __init__(self) -> None:
        self._wanted = False  # by the script
        self._for_script = RunMetadata()
        self._usual: dict[str, Callable[[Context], Any]] = {}

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Watch what the script collects, and give it all of that."""
        self._usual = {name: getattr(Context, name) for name in (*_SWITCHES, _EXPORT)}
        new = {name: self._noted(self._usual[name], to) for name, to in _SWITCHES.items()}
        with ExitStack() as stack:
            for name, method in (*new.items(), (_EXPORT, self._whole(self._usual[_EXPORT]))):
                stack.enter_context(patch.object(Context, name, method))
            yield

    @contextmanager
    def collected(self) -> Iterator[list[GraphDef]]:
        """Collect the partitions that run in this block; the list is filled when it ends."""
        running, partitions = context(), list[GraphDef]()
        export = self._usual[_EXPORT]
        if self._wanted:
            self._for_script.MergeFrom(export(running))  # what came before the block
        else:
            self._usual["enable_graph_collection"](running)
        try:
            yield partitions
        finally:
            found = export(running)
            partitions += found.partition_graphs
            if self._wanted:
                self._for_script.MergeFrom(found)
            else:
                self._usual["disable_graph_collection"](running)

    def _noted(self, switch: Callable[[Context], None], wanted: bool) -> Callable[[Context], None]:
        @wraps(switch)
        def noted(running: Context) -> None:
            if wanted != self._wanted:
                self._wanted = wanted
                self._for_script.Clear()
            switch(running)

        return noted

    def _whole(self, export: Callable[[Context], Any]) -> Callable[[Context], Any]:
        @wraps(export)
        def whole(running: Context) -> Any:
            found = export(running)
            if found is None or not self._wanted:
                return found
            merged = RunMetadata()
            merged.CopyFrom(self._for_script)
            merged.MergeFrom(found)
            self._for_script.Clear()
            return merged

        return whole
