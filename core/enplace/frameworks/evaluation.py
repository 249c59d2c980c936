"""Standard Evaluation: the costs of a batch that no single device can hold (Celeritas, 4.2).

Small batches are profiled on one device; lines through each op's costs give its time and memory for
the large batch (4.2.1). Order-Place puts the estimated model on as few devices as it needs, and a
few steps there measure the true times. The profile records how good the estimate was, as in Table 5
of the paper.

Tensor sizes need no line where the graph itself gives them for the large batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from enplace.errors import ProfileError
from enplace.frameworks.jobs import RunRequest, profile_job, run_job
from enplace.frameworks.measured import NOT_SEEN, MeasuredRun, run_from, with_measured_costs
from enplace.frameworks.source import Source, check_batch_sizes
from enplace.frameworks.wishes import ORDER
from enplace.placers import place
from enplace.processes.codecs import profile_from
from enplace.processes.wire import Message
from enplace.processes.worker import Report
from enplace.readers.clusters import cluster_from
from enplace.text import count, percent
from enplace.text import size as size_text
from enplace.values.measurement import Deviation, Evaluation
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray, Profile, growing

METHOD = "order-place"
FEW_STEPS = 5
NEAR = 0.2
"""Largest error of a good estimate; if times are further off on average, they are poor."""

Do = Callable[[Sequence[Message], Report], Message]
"""Sends a job to a process with the framework, and returns the answer."""


def evaluate(
    source: Source,
    batch_sizes: Sequence[int],
    devices: str,
    steps: int,
    warm_ups: int,
    do: Do,
    progress: Report,
) -> Profile:
    """Profile a model whose batch may not fit one device.

    Parameters
    ----------
    source : Source
        With the large batch as its ``batch_size``.
    batch_sizes : sequence of int
        At least two smaller ones, each of which fits one device.

    Returns
    -------
    Profile
        Profile of the large batch; ``measured.evaluation`` says how good the estimate was.

    Raises
    ------
    EnplaceError
        If the sizes cannot be used, or the graphs of different sizes differ.
    """
    check_batch_sizes(source, batch_sizes)
    parts = len(batch_sizes) + 2

    def work(part: int, what: str, job: Sequence[Message]) -> Message:
        def report(message: str, fraction: float | None) -> None:
            progress(f"{what}: {message}", (part + (fraction or 0.0)) / parts)

        return do(job, report)

    small = []
    for part, size in enumerate(batch_sizes):
        job = profile_job(replace(source, batch_size=size), devices, steps, warm_ups)
        small.append(profile_from(work(part, f"Batch {size:,}", job)))
    large = f"Batch {source.batch_size:,}"
    graph = profile_from(work(parts - 2, large, profile_job(source, devices, 0, 0)))
    estimated = estimate(graph, small, batch_sizes, source.batch_size)
    problem = Problem(estimated, cluster_from("local", small[-1]))
    plan = place(problem, METHOD).plan
    wishes = {ORDER.key: False} if ORDER in source.framework.run_options else {}
    request = RunRequest(source, devices, FEW_STEPS, wishes, compare=False)
    job = run_job(request, problem, plan)
    run = run_from(work(parts - 1, large, job), problem)
    memory, time = deviations(run)
    evaluation = Evaluation(
        memory,
        time,
        source.batch_size,
        tuple(batch_sizes),
        len(np.unique(plan.device)),
        run.step_time_us,
    )
    profile = with_measured_costs(run)
    return replace(profile, measured=replace(profile.measured, evaluation=evaluation))


def estimate(
    graph: Profile, small: Sequence[Profile], batch_sizes: Sequence[int], batch_size: int
) -> Profile:
    """Estimate the costs of a batch from those of smaller ones, op by op, along straight lines.

    Parameters
    ----------
    graph : Profile
        The large batch, without times; 0 bytes mean that a tensor's size is unknown.
    small : sequence of Profile
        Profiles of ``batch_sizes``, in the same order.

    Raises
    ------
    ProfileError
        If their ops are not the same.
    """
    order = [_order(graph, profile, size) for profile, size in zip(small, batch_sizes, strict=True)]

    def line(values: Sequence[FloatArray | IntArray]) -> FloatArray:
        return extrapolated(batch_sizes, np.array(values, dtype=np.float64), batch_size)

    columns: dict[str, Any] = {
        label: each.rounded(
            line([getattr(p, label)[at] for p, at in zip(small, order, strict=True)])
        )
        for label, each, _ in growing(graph)
    }
    # An op only has a time for the kind of device that it ran on last.
    columns["time_us"][np.isnan(small[-1].time_us[order[-1]])] = np.nan
    held = [_bytes_of_tensors(graph, profile) for profile in small]
    by_line = line(held)
    _check_batch(graph, held, by_line, batch_sizes, batch_size)
    return replace(
        graph,
        **columns,
        tensor_bytes=np.where(np.isfinite(by_line), np.rint(by_line), graph.tensor_bytes).astype(
            np.int64
        ),
        # These fields hold for one batch size only.
        measured=replace(
            small[-1].measured,
            step_time_us=None,
            op_deviation={},
            peak_bytes={},
            split_lengths=graph.measured.split_lengths,
            batch_shapes=graph.measured.batch_shapes,
        ),
    )


def _check_batch(
    graph: Profile,
    held: Sequence[FloatArray],
    by_line: FloatArray,
    batch_sizes: Sequence[int],
    batch_size: int,
) -> None:
    """Refuse a model whose tensors do not grow with the batch size."""
    least, most = batch_sizes[int(np.argmin(batch_sizes))], max(batch_sizes)
    sums = [float(np.nansum(values)) for values in held]
    if len(set(sums)) == 1:
        raise ProfileError(
            f"the step needs as much memory with a batch of {least:,} as with one of {most:,}; "
            f"does the model take its batch size from its input?"
        )
    known = (graph.tensor_bytes > 0) & np.isfinite(by_line)
    expected, found = float(by_line[known].sum()), float(graph.tensor_bytes[known].sum())
    if known.any() and not expected / FAR <= found <= expected * FAR:
        raise ProfileError(
            f"with a batch of {batch_size:,}, tensors should hold {size_text(expected)} but hold "
            f"{size_text(found)}; does the data have enough samples, and does the model take its "
            f"batch size from its input?"
        )


FAR = 1.5
"""If tensors hold this many times more or less than expected, the batch size was ignored."""


def extrapolated(sizes: Sequence[int], values: FloatArray, size: int) -> FloatArray:
    """Extrapolate least-squares lines to a size, shape as ``values[0]``; no line falls below 0.

    Parameters
    ----------
    values : float array, shape (n_sizes, ...)
        NaN where there is no value; the result is NaN only where all are.
    """
    known = np.isfinite(values)
    x = np.array(sizes, dtype=np.float64).reshape(-1, *[1] * (values.ndim - 1))
    n = np.maximum(known.sum(axis=0), 1)
    mean_x = np.where(known, x, 0.0).sum(axis=0) / n
    mean_y = np.where(known, values, 0.0).sum(axis=0) / n
    dx, dy = np.where(known, x - mean_x, 0.0), np.where(known, values - mean_y, 0.0)
    spread = (dx**2).sum(axis=0)
    slope = (dx * dy).sum(axis=0) / np.where(spread > 0, spread, 1.0)
    at: FloatArray = mean_y + np.maximum(slope, 0.0) * (size - mean_x)
    at[~known.any(axis=0)] = np.nan
    return np.maximum(at, 0.0)


def deviations(run: MeasuredRun) -> tuple[Deviation, Deviation]:
    """Compare the profile of a run with its memory and its times (Celeritas, Table 5)."""
    profile, seen = run.profile, run.op_device != NOT_SEEN
    held = profile.temporary_bytes.astype(np.float64)
    np.add.at(held, profile.tensor_op, profile.tensor_bytes)
    kind = run.cluster.kind[np.where(seen, run.op_device, 0)]
    time_us = profile.time_us[np.arange(profile.n_ops), kind]
    measured_us = with_measured_costs(run).time_us[np.arange(profile.n_ops), kind]
    timed = seen & np.isfinite(run.op_time_us)
    memory = _deviation(held, run.op_memory_bytes.astype(np.float64), seen)
    return memory, _deviation(time_us, measured_us, timed)


def advice(found: Evaluation) -> list[str]:
    """Lines of advice on an evaluation; none if it was needed and the estimate was good."""
    lines = []
    if found.time.mean > NEAR:
        sure = ", and its memory" if found.memory.mean <= NEAR else ""
        lines.append(
            f"The estimated times are {percent(found.time.mean)} off on average: trust the "
            f"measured times in the profile{sure}."
        )
    if found.devices_used == 1:
        lines.append(
            f"Batch {found.batch_size:,} fits one device, so it can be measured directly: "
            f"leave out --batch-sizes."
        )
    return lines


def _deviation(estimated: FloatArray, measured: FloatArray, seen: BoolArray) -> Deviation:
    some = seen & (measured > 0) & np.isfinite(estimated)
    if not some.any():
        return Deviation(mean=0.0, of_sum=0.0, near=1.0, ops=0)
    off = np.abs(estimated - measured)[some] / measured[some]
    total = measured[some].sum()
    return Deviation(
        mean=float(off.mean()),
        of_sum=float(abs(estimated[some].sum() - total) / total),
        near=float((off < NEAR).mean()),
        ops=int(some.sum()),
    )


def _order(graph: Profile, profile: Profile, size: int) -> IntArray:
    """Find the number of each op of the graph in another profile of the model."""
    strangers = [name for name in graph.op_names if name not in profile.index]
    strangers += [name for name in profile.op_names if name not in graph.index]
    if strangers:
        raise ProfileError(
            f"{count(len(strangers), 'op')} such as '{strangers[0]}' are not in the graphs of all "
            f"batch sizes (compared: {size:,}), so the large batch cannot be estimated; profile it "
            f"directly"
        )
    return np.array([profile.index[name] for name in graph.op_names], dtype=np.int64)


def _bytes_of_tensors(graph: Profile, profile: Profile) -> FloatArray:
    """Find the bytes of each tensor of the graph in another profile; NaN where it has none."""

    def names(of: Profile) -> list[tuple[str, int]]:
        pairs = zip(of.tensor_op.tolist(), of.tensor_output.tolist(), strict=True)
        return [(of.op_names[op], output) for op, output in pairs]

    found = dict(zip(names(profile), profile.tensor_bytes.tolist(), strict=True))
    return np.array([found.get(name, np.nan) for name in names(graph)], dtype=np.float64)
