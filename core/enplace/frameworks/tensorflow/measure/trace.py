"""Read from TensorFlow's full traces each op's time, device, bytes and memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.step_stats_pb2 import StepStats

from enplace.frameworks.tensorflow.devices import short_name
from enplace.frameworks.tensorflow.graph import held_by
from enplace.frameworks.tensorflow.step import LoadError
from enplace.text import count
from enplace.values.limits import MAX_BYTES
from enplace.values.profile import FloatArray

_STREAMS = "/stream:all"
"""Rows of a GPU's kernels in all streams; the rows of single streams repeat them."""

_HOST_MEMORY = re.compile(r"cpu|host", re.IGNORECASE)
"""In the name of an allocator: memory of the host, as ``cpu``, ``gpu_host_bfc``."""

_MAX_RANK = 254
"""Most axes of a tensor in TensorFlow."""

TRIM = 0.1
"""Share of an op's slowest times that is left out of its mean."""


@dataclass
class OpTrace:
    """One op in some traced steps.

    Attributes
    ----------
    device : str
        TensorFlow's short name of the device where it ran.
    host_us, kernel_us : list of float
        Time in the executor, and sum of its kernels' times, in each step.
    n_kernels : int
        Kernels in the last step.
    output_bytes : dict
        By output number, 0 for :attr:`host_outputs`; from the last step.
    temporary_bytes : int
        The most that it held while it ran.
    host_outputs : set of int
        Outputs that an op on a GPU keeps in the memory of the host, such as shapes; from the last
        step.
    """

    device: str = ""
    host_us: list[float] = field(default_factory=list)
    kernel_us: list[float] = field(default_factory=list)
    n_kernels: int = 0
    output_bytes: dict[int, int] = field(default_factory=dict)
    temporary_bytes: int = 0
    host_outputs: set[int] = field(default_factory=set)

    @property
    def times_us(self) -> list[float]:
        """What the op costs its device in each step; empty if nothing.

        On a GPU that is the time of its kernels. Without any, an op only passes on what is there,
        unless it computes in the memory of the host.
        """
        computes_on_host = not is_gpu(self.device) or bool(self.host_outputs)
        return self.kernel_us or (self.host_us if computes_on_host else [])


def is_gpu(device: str) -> bool:
    """Return whether a TensorFlow name is that of a GPU."""
    return ":GPU:" in device.upper()


def is_executor(device: str) -> bool:
    """Return whether rows under this name are those of ops; kernels and copies have their own."""
    return "/stream:" not in device and "/memcpy" not in device


def op_traces(steps: Iterable[StepStats], graphs: Sequence[GraphDef]) -> dict[str, OpTrace]:
    """Collect every op that left a row in some step, by name.

    Parameters
    ----------
    graphs : sequence of GraphDef
        What ran. A loop or branch in it gets the time of the kernels inside.
    """
    holders = held_by(graphs) | {node.name: node.name for graph in graphs for node in graph.node}
    found: dict[str, OpTrace] = {}
    for stats in steps:
        kernels: dict[str, list[float]] = {}
        for device in stats.dev_stats:
            if _STREAMS in device.device:
                for row in device.node_stats:
                    name = row.node_name.partition(":")[0]
                    kernels.setdefault(name, []).append(_duration_us(row))
            elif is_executor(device.device):
                for row in device.node_stats:
                    _read_row(found.setdefault(row.node_name, OpTrace()), row, device.device)
        by_op: dict[str, list[float]] = {}
        for name, times in kernels.items():
            by_op.setdefault(_holder(name, holders), []).extend(times)
        for name, times in by_op.items():
            trace = found.setdefault(name, OpTrace())
            trace.kernel_us.append(sum(times))
            trace.n_kernels = len(times)
    return found


def check_kernels(traces: Mapping[str, OpTrace]) -> None:
    """Refuse traces of ops on a GPU without any kernel: all their costs would be 0.

    Raises
    ------
    LoadError
        With what keeps TensorFlow from tracing kernels.
    """
    on_gpu = [name for name, trace in traces.items() if is_gpu(trace.device)]
    if on_gpu and not any(trace.n_kernels for trace in traces.values()):
        raise LoadError(
            f"the trace has no kernels of the GPU, where {count(len(on_gpu), 'op')} ran: it needs "
            f"NVIDIA's CUPTI library (pip install 'tensorflow[and-cuda]', or the folder of "
            f"libcupti.so in LD_LIBRARY_PATH), and the right to use it (driver option "
            f"NVreg_RestrictProfilingToAdminUsers=0; in a container, --cap-add=SYS_ADMIN)"
        )


def _holder(name: str, holders: Mapping[str, str]) -> str:
    """Return the op of the graph that a kernel belongs to.

    Inside of a loop, TensorFlow puts the name of a call before those of the ops it inlines. Inside
    of a branch, each op also has a row of its own.
    """
    outer = name
    while outer and outer not in holders:
        outer = outer.rpartition("/")[0]
    holder = holders.get(outer, outer)
    return name if holder == outer else holder


def _read_row(trace: OpTrace, row: Any, device: str) -> None:
    trace.device = short_name(device)
    trace.host_us.append(_duration_us(row))
    trace.temporary_bytes = max(trace.temporary_bytes, row.memory_stats.temp_memory_size)
    for output in row.output:
        size = tensor_bytes(output.tensor_description)
        allocator = output.tensor_description.allocation_description.allocator_name
        if size and is_gpu(device) and _HOST_MEMORY.search(allocator):
            trace.host_outputs.add(output.slot)
            size = 0
        trace.output_bytes[output.slot] = size


def _duration_us(row: Any) -> float:
    return max(float(row.op_end_rel_nanos - row.op_start_rel_nanos), 0.0) / 1e3


def tensor_bytes(description: Any) -> int:
    """Compute a tensor's bytes from its shape; its allocation may be shared with another.

    0 if the row has no type, as for tensors that arrive from another host.

    Raises
    ------
    LoadError
        If this TensorFlow does not know the type, or no tensor has such a shape.
    """
    if not description.dtype:
        return 0
    try:
        dtype = tf.as_dtype(description.dtype)
    except TypeError:
        raise LoadError(
            f"a tensor has type {description.dtype}, which TensorFlow {tf.__version__} does not "
            f"know; update TensorFlow"
        ) from None
    if dtype.base_dtype in (tf.resource, tf.variant, tf.string):
        return 0
    lengths = [dim.size for dim in description.shape.dim]
    if description.shape.unknown_rank or -1 in lengths:
        return 0
    possible = len(lengths) <= _MAX_RANK and min(lengths, default=0) >= 0
    size = math.prod(lengths) * dtype.size if possible else 0
    if not possible or size > MAX_BYTES:
        raise LoadError(f"a tensor has shape {lengths[:8]}, which is impossible; record it again")
    return size


def peak_bytes(steps: Iterable[StepStats]) -> dict[str, int]:
    """Find the most that each device's allocator held at the end of any op, by short name."""
    peak: dict[str, int] = {}
    for stats in steps:
        for device in stats.dev_stats:
            held = [
                memory.allocator_bytes_in_use
                for row in device.node_stats
                for memory in row.memory
                if memory.allocator_bytes_in_use > 0
            ]
            name = short_name(device.device)
            if held:
                peak[name] = max(peak.get(name, 0), max(held))
    return peak


def trimmed(times_us: Sequence[float]) -> tuple[float, float]:
    """Compute the mean without the slowest tenth, and the normalised deviation (Pesto, 3.1)."""
    ordered: FloatArray = np.sort(np.asarray(times_us, dtype=np.float64))
    kept = ordered[: max(1, len(ordered) - int(TRIM * len(ordered)))]
    mean = float(kept.mean())
    return mean, float(kept.std() / mean) if mean > 0 else 0.0
