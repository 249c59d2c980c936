"""Compare what TensorFlow really ran with the plan, op by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.step_stats_pb2 import StepStats

from enplace.frameworks.measured import NOT_SEEN
from enplace.frameworks.tensorflow.devices import short_name
from enplace.frameworks.tensorflow.graph import node_of, producers_of, reached
from enplace.frameworks.tensorflow.step import Step
from enplace.values.profile import FloatArray, IntArray

_TRANSFERS = ("_Send", "_Recv", "_HostSend", "_HostRecv")
_FED_AND_FETCHED = ("_Arg", "_Retval")
_COPY = "/replicate/"
"""Part of the name of a small constant's copy next to its consumers; the original is gone."""

_SHOWN = 20
"""Most names that are listed; the others are only counted."""


@dataclass(frozen=True, eq=False)
class Check:
    """Comparison of a run's partitions with the plan.

    Attributes
    ----------
    op_device : int array, shape (n_ops,)
        Number of the device that each op is on; :data:`~enplace.frameworks.measured.NOT_SEEN` if on
        none.
    checked, as_planned : int
        Ops of the plan that are in the partitions, and those on their planned device.
    facts : dict
        Missing ops by reason, and nodes that TensorFlow added, by type.
    """

    op_device: IntArray
    checked: int
    as_planned: int
    facts: dict[str, Any]


def check_placement(
    partitions: Iterable[GraphDef],
    step: Step,
    op_names: Sequence[str],
    planned: IntArray,
    devices: Sequence[str],
    own_task: str = "",
) -> Check:
    """Compare the partitions of a run with the plan.

    Parameters
    ----------
    partitions : iterable of GraphDef
        Those that TensorFlow reports, one for each device.
    op_names, planned : length n_ops
        The plan's ops, and the number of each op's device.
    devices : sequence of str
        TensorFlow's short name of each device.
    own_task : str
        The task of this process, as in :func:`short_name`.
    """
    ran = {
        node.name: (node.op, short_name(node.device, own_task))
        for graph in partitions
        for node in graph.node
        if node.op not in _FED_AND_FETCHED
    }
    number = {device: i for i, device in enumerate(devices)}
    # A device outside the plan's cluster gets the number after the last.
    op_device = np.array(
        [number.get(ran[name][1], len(number)) if name in ran else NOT_SEEN for name in op_names],
        dtype=np.int64,
    )
    seen = op_device != NOT_SEEN
    wrong = [op_names[op] for op in np.flatnonzero(seen & (op_device != planned)).tolist()]
    facts = {
        "elsewhere": _listed({name: f"on {ran[name][1]}" for name in wrong}),
        "not_run": _listed(_reasons(step, [n for n in op_names if n not in ran], ran)),
        "added": _added(ran, {node.name for node in step.graph_def.node}),
    }
    op_device[op_device == len(number)] = NOT_SEEN
    return Check(op_device, int(seen.sum()), int(seen.sum()) - len(wrong), facts)


def _reasons(step: Step, names: Iterable[str], ran: Iterable[str]) -> dict[str, str]:
    """Explain for each op of the plan why it did not run."""
    known = producers_of(step.graph_def)
    needed = reached([*map(node_of, step.outputs), *step.targets], known.__getitem__)
    fed = {*step.inputs, step.iterator}
    copied = {name.partition(_COPY)[0] for name in ran if _COPY in name}

    def reason(name: str) -> str:
        if name not in known:
            return "not in the graph"
        if name in fed:
            return "fed"
        if name not in needed:
            return "no result depends on it"
        return (
            "a constant, copied to its consumers"
            if name in copied
            else "left out or renamed by TensorFlow"
        )

    return {name: reason(name) for name in names}


def _added(ran: Mapping[str, tuple[str, str]], known: set[str]) -> dict[str, int]:
    """Count nodes that are not the step's, by type; the ends of transfers together."""
    new = {name: op for name, (op, _) in ran.items() if name not in known}
    types = Counter("copies of constants" if _COPY in name else op for name, op in new.items())
    transfers = sum(types.pop(op, 0) for op in _TRANSFERS)
    return {"ends of transfers": transfers, **dict(sorted(types.items()))}


def _listed(reasons: Mapping[str, str]) -> dict[str, Any]:
    """Count the ops for each reason, and list the first names."""
    counts = dict(sorted(Counter(reasons.values()).items()))
    return {"count": len(reasons), "reasons": counts, "ops": [*reasons][:_SHOWN]}


def not_in_plan(step: Step, op_names: Iterable[str]) -> dict[str, Any]:
    """Count the graph's ops that are not in the plan, by type."""
    known = set(op_names)
    return _listed({n.name: n.op for n in step.graph_def.node if n.name not in known})


def op_times_us(stats: StepStats, names: Mapping[str, int]) -> tuple[FloatArray, FloatArray]:
    """Read start and finish of each op from a full trace, since the step's start; else NaN.

    On a GPU an op starts when it is launched; it ends with its last kernel.

    Parameters
    ----------
    names : mapping of str to int
        Op numbers, ``0 .. n_ops - 1``.
    """
    start = np.full(len(names), np.nan)
    finish = np.full(len(names), np.nan)
    for name, begin, end in _rows(stats):
        op = names.get(name)
        if op is not None:
            start[op] = np.fmin(start[op], begin)
            finish[op] = np.fmax(finish[op], end)
    first = np.nanmin(start) if np.isfinite(start).any() else 0.0
    return start - first, finish - first


_BEFORE_ANY_US = 1e15
"""A time of 2001, in microseconds since 1970."""


def first_start_us(stats: StepStats) -> float:
    """Return when the first op of a full trace started, by the system's clock.

    Rows without a time, such as those of tensors from another task, begin at 0.
    """
    begins = np.array([begin for _, begin, _ in _rows(stats)])
    return float(begins[begins > _BEFORE_ANY_US].min())


def _rows(stats: StepStats) -> Iterable[tuple[str, float, float]]:
    for device in stats.dev_stats:
        for row in device.node_stats:
            begin = row.all_start_nanos / 1e3
            # Rows of GPU streams call a kernel by its op and its own name.
            name = row.node_name.partition(":")[0]
            yield name, begin + row.op_start_rel_nanos / 1e3, begin + row.op_end_rel_nanos / 1e3


def count_violations(start_us: FloatArray, order: Iterable[Sequence[int]]) -> int:
    """Count ops that started before an op ahead of them on their device.

    Parameters
    ----------
    order : iterable of sequences of int
        The ops of each device, first to last; those that left no row do not count.
    """
    violations = 0
    for ops in order:
        starts = start_us[np.asarray(ops, dtype=np.int64)]
        starts = starts[np.isfinite(starts)]
        violations += int((starts[1:] < np.maximum.accumulate(starts)[:-1]).sum())
    return violations
