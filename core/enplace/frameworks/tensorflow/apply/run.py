"""Run a plan on real devices, check the run, and compare it with TensorFlow without a plan."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.framework.config import disable_op_determinism

from enplace.errors import EnplaceError
from enplace.frameworks.measured import MeasuredRun, may_round, quartiles_us
from enplace.frameworks.microbatches import Microbatches
from enplace.frameworks.tensorflow.apply.check import (
    check_placement,
    count_violations,
    first_start_us,
    not_in_plan,
    op_times_us,
)
from enplace.frameworks.tensorflow.apply.pipelines import describe_pipeline, pipeline_step
from enplace.frameworks.tensorflow.batches import about_other_batches
from enplace.frameworks.tensorflow.capture import GET_NEXT
from enplace.frameworks.tensorflow.device_names import device_names
from enplace.frameworks.tensorflow.devices import Devices
from enplace.frameworks.tensorflow.error_text import (
    first_line,
    is_nondeterministic,
    is_out_of_memory,
)
from enplace.frameworks.tensorflow.hosts.servers import check_devices, serving
from enplace.frameworks.tensorflow.measure.trace import OpTrace, op_traces, peak_bytes
from enplace.frameworks.tensorflow.rewrite import (
    count_inputs,
    device_orders,
    ordered_ops,
    place_graph,
)
from enplace.frameworks.tensorflow.split.split_graph import split_step
from enplace.frameworks.tensorflow.step import OpenStep, Step, StepGraph
from enplace.machine import simulate
from enplace.text import finite
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray, Profile

WARM_UPS, TRACED = 3, 5

COMPARED = 5
"""Steps with deterministic kernels, for which results are compared on GPUs."""

Progress = Callable[[str, float | None], None]
Values = list[NDArray[Any]]


class RunError(EnplaceError):
    """TensorFlow refuses to run the placed graph."""


@dataclass
class _Way:
    """One way to run the step, and the results so far."""

    what: str
    step: Step
    config: ConfigProto
    graph: StepGraph
    is_placed: bool = False
    times_us: list[float] = field(default_factory=list)
    losses: list[Values] = field(default_factory=list)
    variables: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    traces: list[Any] = field(default_factory=list)
    starts_us: list[float] = field(default_factory=list)
    after_first: Mapping[str, NDArray[Any]] | None = None
    fits: bool = True

    def give_up(self) -> None:
        """Drop all results, because this way runs out of memory."""
        self.times_us, self.losses, self.variables, self.fits = [], [], {}, False
        self.after_first = None


def run_plan(
    step: Step,
    problem: Problem,
    plan: Plan,
    devices: Devices,
    steps: int,
    ordered: bool = True,
    progress: Progress = lambda message, fraction: None,
    compare: bool = True,
    repeat: int = 1,
    microbatches: Microbatches | None = None,
) -> MeasuredRun:
    """Run steps placed, the same steps unplaced, and the same steps as TensorFlow would by itself.

    Where micro-batches have their own statistics, the unplaced steps are cut into them as well, so
    that again only placement and order can make results differ.

    Without ``compare``, or if the model fits only with the plan, there is nothing to compare with:
    differences and TensorFlow's own step time are NaN.

    Some kernels of a GPU give other last bits every time. So there, results are those of further
    steps with deterministic kernels. If an op has none, the first steps may differ by rounding.

    The unplaced run has the same threads and, like the placed one, does not rewrite the graph
    (grappler off). So only placement and order can make their results differ. The third run uses
    TensorFlow's defaults: all cores, its own rewriting, one CPU.

    Half of the placed and of the unplaced steps run before the third run, half after it, so a
    change of the machine's speed affects all three alike. Only one session is open at a time:
    three would need three times the memory, and would share their variables on servers. Each graph
    is imported once.

    Parameters
    ----------
    problem : Problem
        Its cluster maps the plan's device numbers to devices.
    ordered : bool
        Whether each device follows the plan's order rather than TensorFlow's own.
    repeat : int
        How often to do all of this, in sessions of their own.
    microbatches : Microbatches, optional
        Run the step as a pipeline. The run's profile and plan are then those of the graph of
        micro-batches.

    Raises
    ------
    PlanError, DeadlockError, SplitError, PipelineError
        If the plan breaks a constraint, its order contradicts the graph, or its splits or the
        micro-batches are impossible in this graph.
    DevicesError
        If the plan uses a device that does not exist here.
    RunError
        If TensorFlow refuses the placed graph.
    """
    profiled = problem.measured_profile.measured.batch_shapes
    whole, pipeline, has_costs = step, None, any(problem.profile.op_types)
    if microbatches is None:
        step = split_step(step, plan.splits)
    else:
        progress(f"Cutting each batch into {microbatches}", None)
        step, pipeline = pipeline_step(step, problem, plan, microbatches, devices.host)
        problem, plan = pipeline.problem, pipeline.plan
    schedule = simulate(problem, plan if ordered else replace(plan, policy="fifo"))
    problem = schedule.problem
    at = device_names(problem.cluster)
    placed_on = dict(zip(problem.profile.op_names, (at[d] for d in plan.device), strict=True))
    rank = plan.position if plan.policy == "strict" else schedule.op_start_us
    order = device_orders(step.graph_def, problem, plan, rank) if ordered else []
    graph = place_graph(step.graph_def, placed_on, order, devices.host)
    with serving(devices) as target:
        check_devices(target, devices, sorted(set(placed_on.values())))

        as_planned = _imported(step, graph)
        alike = step if pipeline is not None and pipeline.cut.own else whole
        free = _imported(alike) if compare else as_planned
        placed = _Way("Running the plan", step, devices.config, as_planned, is_placed=True)
        plain = _Way("Running without the plan", alike, _anywhere(devices.config), free)
        itself = free if alike is whole or not compare else _imported(whole)
        stock = _Way("Running TensorFlow by itself", whole, _stock(devices), itself)
        before, after = steps - steps // 2, steps // 2
        rounds = may_round(plan, problem.cluster) or pipeline is not None
        other_bits = _nudged(alike) if rounds else alike
        nudged = _Way(
            "Running with changed last bits of the variables", other_bits, plain.config, free
        )
        runs = [(placed, before), (plain, before), (stock, steps), (plain, after), (placed, after)]
        runs = repeat * (runs if compare else [(placed, steps)])
        if rounds and compare:
            runs.insert(2, (nudged, 0))
        for number, (way, n_steps) in enumerate(runs, 1):
            report = _share(progress, way.what, (number - 1) / len(runs), 1 / len(runs))
            if way.fits:
                traced = TRACED if number == len(runs) else 0
                _run_part(way, n_steps, report, target, traced, rounds)
        ours, theirs = placed, plain
        comparison: dict[str, Any] = {}
        if compare and plain.fits and not rounds and _uses_gpus(plan, problem.cluster):
            ours, theirs, nudged, comparison = _compared_on_gpus(placed, plain, progress, target)
    progress("Reading what was traced", 1.0)
    traces = op_traces((trace.step_stats for trace in placed.traces), [step.graph_def])
    facts = {
        "devices": devices.text,
        "ordered": bool(order),
        "warm_ups": WARM_UPS,
        "traced_steps": len(placed.traces),
        "unplaced_step_time_us": _median(plain.times_us),
        "unplaced_quartiles_us": quartiles_us(plain.times_us),
        "stock_quartiles_us": quartiles_us(stock.times_us),
        "input_us": _input_us(step, traces),
        # Starting a traced step takes longer, so the least is nearest to the others'.
        "start_us": min(placed.starts_us, default=None),
        "predicted_busy_us": schedule.busy_us.tolist() if has_costs else None,
        "transfers": len(schedule.transfer_tensor),
        "allocator_peak_bytes": _allocator_peaks(placed, problem.cluster),
        "fits_without_plan": plain.fits and stock.fits if compare else None,
        "order_edges": count_inputs(graph) - count_inputs(step.graph_def),
        "compared": list(_compared(step)),
        **comparison,
        "other_batches": about_other_batches(profiled, whole.batch_shapes),
        "compiled": whole.compiled,
        "plain_kernels": os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0",
        "tensorflow": tf.__version__,
    }
    run = _seen(step, problem, plan, order, placed, traces)
    if pipeline is not None:
        predicted = schedule if has_costs else None
        facts["pipeline"] = {
            **describe_pipeline(pipeline, predicted, run, whole.batch_shapes),
            "whole_difference": finite(
                _difference(_flat(placed.losses[:1]), _flat(stock.losses[:1]))
            ),
        }
    return replace(
        run,
        loss_difference=_difference(_flat(ours.losses), _flat(theirs.losses)),
        weights_difference=_difference([*ours.variables.values()], [*theirs.variables.values()]),
        first_step_difference=_first_step_difference(ours, theirs),
        rounding_difference=_first_step_difference(nudged, theirs),
        stock_step_time_us=_median(stock.times_us) or np.nan,
        predicted_step_time_us=schedule.makespan_us if has_costs else np.nan,
        facts={**facts, **run.facts},
    )


def _seen(
    step: Step,
    problem: Problem,
    plan: Plan,
    order: Sequence[Sequence[str]],
    placed: _Way,
    traces: Mapping[str, OpTrace],
) -> MeasuredRun:
    """Collect what partitions and traces of the placed steps show, before any comparison."""
    profile, at = problem.profile, device_names(problem.cluster)
    first = placed.traces[0]
    check = check_placement(first.partition_graphs, step, profile.op_names, plan.device, at)
    times = [op_times_us(trace.step_stats, profile.index) for trace in placed.traces]
    start, finish = times[_median_step(times)]
    can = ordered_ops(step.graph_def)
    in_order = [[profile.index[name] for name in names if name in can] for names in order]
    return MeasuredRun(
        profile=profile,
        plan=plan,
        cluster=problem.cluster,
        step_times_us=np.array(placed.times_us),
        op_time_us=_medians(traces, profile.op_names),
        op_start_us=start,
        op_finish_us=finish,
        op_device=check.op_device,
        op_memory_bytes=_memory_bytes(traces, profile),
        ops_checked=check.checked,
        ops_on_planned_device=check.as_planned,
        order_violations=sum(count_violations(begin, in_order) for begin, _ in times),
        loss_difference=np.nan,
        weights_difference=np.nan,
        stock_step_time_us=np.nan,
        predicted_step_time_us=np.nan,
        facts={"not_in_plan": not_in_plan(step, profile.op_names), **check.facts},
    )


def _run_part(
    way: _Way, steps: int, progress: Progress, target: str, traced: int, keep_first: bool
) -> None:
    """Run warm-ups and steps from the variables that the last call left, then trace more steps.

    Optionally keep the variables after the very first step.
    """
    step = replace(way.step, variables=way.variables or way.step.variables)
    try:
        with OpenStep(step, way.graph, way.config, target) as opened:
            for i in range(WARM_UPS + steps):
                took_us = _one(opened, way)
                if keep_first and len(way.losses) == 1:
                    way.after_first = opened.values(step.variables)
                if i >= WARM_UPS:
                    way.times_us.append(took_us)
                progress("", (i + 1) / (WARM_UPS + steps))
            way.variables = opened.values(step.variables)
            for _ in range(traced):
                began_us = time.time_ns() / 1e3
                way.traces.append(_traced(opened))
                way.starts_us.append(first_start_us(way.traces[-1].step_stats) - began_us)
    except (tf.errors.OpError, ValueError) as error:
        if is_out_of_memory(error):
            if way.is_placed:
                raise
            way.give_up()
            return
        raise _refused(error) from error


def _imported(step: Step, graph_def: GraphDef | None = None) -> StepGraph:
    try:
        return StepGraph(step, graph_def)
    except ValueError as error:
        raise _refused(error) from error


def _refused(error: Exception) -> RunError:
    reason = first_line(error) or "it gives no reason"
    return RunError(f"TensorFlow refuses the graph: {reason}")


def _uses_gpus(plan: Plan, cluster: Cluster) -> bool:
    return any(cluster.devices[d].kind == "gpu" for d in np.unique(plan.device).tolist())


def _compared_on_gpus(
    placed: _Way, plain: _Way, progress: Progress, target: str
) -> tuple[_Way, _Way, _Way, dict[str, Any]]:
    """Repeat the first steps with deterministic kernels, or to see how much they round.

    Returns
    -------
    tuple
        The steps with the plan, those without it, those that start with other last bits, and facts.
    """

    def again(way: _Way) -> _Way:
        return _Way("Comparing results", way.step, way.config, way.graph, way.is_placed)

    def run(*ways: _Way, keep_first: bool) -> None:
        for number, way in enumerate(ways):
            report = _share(progress, way.what, number / len(ways), 1 / len(ways))
            _run_part(way, COMPARED, report, target, 0, keep_first)

    ours, theirs = again(placed), again(plain)
    nudged = replace(again(plain), step=_nudged(plain.step))
    tf.config.experimental.enable_op_determinism()
    try:
        run(ours, theirs, keep_first=False)
    except RunError as error:
        if not is_nondeterministic(error):
            raise
        why = str(error).partition(": ")[2]
    else:
        return ours, theirs, nudged, {"deterministic": True}
    finally:
        disable_op_determinism()
    ours, theirs = again(placed), again(plain)
    run(ours, theirs, nudged, keep_first=True)
    return ours, theirs, nudged, {"deterministic": False, "not_deterministic": why}


def _one(opened: OpenStep, way: _Way) -> float:
    """Run the next step; return its time in µs."""
    begin = time.perf_counter_ns()
    outputs = dict(zip(opened.step.outputs, opened.run(), strict=True))
    took_us = (time.perf_counter_ns() - begin) / 1e3
    wanted = _compared(opened.step)
    outputs |= opened.values(name for name in wanted if name not in outputs)
    way.losses.append([outputs[name] for name in wanted])
    return took_us


def _compared(step: Step) -> Sequence[str]:
    """Return the losses; for inference, all outputs."""
    return step.losses or step.outputs


def _traced(opened: OpenStep) -> Any:
    metadata = tf.compat.v1.RunMetadata()
    full = tf.compat.v1.RunOptions.FULL_TRACE
    opened.run(tf.compat.v1.RunOptions(trace_level=full, output_partition_graphs=True), metadata)
    return metadata


def _input_us(step: Step, traces: Mapping[str, OpTrace]) -> float | None:
    """Return how long a step waits for its batch: the median time of the ops that fetch it."""
    getters = [n.name for n in step.graph_def.node if n.op in GET_NEXT]
    return _median(np.sum([traces[n].host_us for n in getters if n in traces], axis=0).tolist())


def _anywhere(config: ConfigProto) -> ConfigProto:
    """Return a config that lets TensorFlow choose where ops run."""
    free = ConfigProto()
    free.CopyFrom(config)
    free.allow_soft_placement = True
    return free


def _stock(devices: Devices) -> ConfigProto:
    """Return TensorFlow's defaults: its own graph rewriting and threads.

    A process must not divide its GPUs in two ways. On several hosts the servers already have their
    devices and threads.
    """
    free = ConfigProto(allow_soft_placement=True, gpu_options=devices.config.gpu_options)
    if devices.tasks:
        free = _anywhere(devices.config)
        free.ClearField("graph_options")
    return free


def _nudged(step: Step) -> Step:
    """Change the last bit, up or down, of each real number in the step's variables."""
    rng = np.random.default_rng(0)

    def nudged(value: NDArray[Any]) -> NDArray[Any]:
        if value.dtype.kind != "f":
            return value
        towards = rng.choice(np.array([-np.inf, np.inf], dtype=value.dtype), value.shape)
        changed: NDArray[Any] = np.nextafter(value, towards)
        return changed

    return replace(step, variables={n: nudged(v) for n, v in step.variables.items()})


def _share(progress: Progress, message: str, start: float, share: float) -> Progress:
    return lambda _, fraction: progress(message, start + share * (fraction or 0.0))


def _median_step(times: Sequence[tuple[FloatArray, FloatArray]]) -> int:
    """Return the number of the traced step of median length."""
    lengths = [np.nanmax(finish, initial=0.0) for _, finish in times]
    return int(np.argsort(lengths)[len(lengths) // 2])


def _medians(traces: Mapping[str, OpTrace], names: Sequence[str]) -> FloatArray:
    """Return each op's time; NaN for ops that left no row."""
    rows = [traces.get(name) for name in names]
    return np.array([np.nan if row is None else np.median(row.times_us or [0.0]) for row in rows])


def _memory_bytes(traces: Mapping[str, OpTrace], profile: Profile) -> IntArray:
    """Sum the memory of each op while it ran and its tensors that other ops read."""
    rows = [traces.get(name, OpTrace()) for name in profile.op_names]
    held = np.array([row.temporary_bytes for row in rows], dtype=np.int64)
    for op, output in zip(profile.tensor_op.tolist(), profile.tensor_output.tolist(), strict=True):
        held[op] += rows[op].output_bytes.get(output, 0)
    return held


def _allocator_peaks(placed: _Way, cluster: Cluster) -> dict[str, int]:
    """Return the most that each device's allocator held in the traced steps, where it says so."""
    name_of = {at: d.name for at, d in zip(device_names(cluster), cluster.devices, strict=True)}
    peaks = peak_bytes(trace.step_stats for trace in placed.traces)
    return {name_of[at]: peak for at, peak in peaks.items() if at in name_of}


def _median(times_us: Sequence[float]) -> float | None:
    return float(np.median(times_us)) if times_us else None


def _flat(losses: Sequence[Values]) -> Values:
    return [value for values in losses for value in values]


def _first_step_difference(ours: _Way, theirs: _Way) -> float:
    """Compare the first step: the loss, and the new weights or the loss they give.

    Weights may differ without harm: an optimiser that divides a gradient by its size, such as
    Adam, makes a full step of a gradient that should be zero but is a sum of rounding errors.
    """
    if ours.after_first is None or theirs.after_first is None:
        return float("nan")
    pairs = zip(ours.after_first.values(), theirs.after_first.values(), strict=True)
    weights = max((_in_proportion(a, b) for a, b in pairs), default=0.0)
    first, second = (
        max(_in_proportion(a, b) for a, b in zip(mine, other, strict=True))
        for mine, other in zip(ours.losses[:2], theirs.losses[:2], strict=True)
    )
    return max(first, min(weights, second))


def _difference(ours: Values, theirs: Values) -> float:
    """Return the largest absolute difference; infinite where one value is NaN, or texts differ."""
    if not ours or not theirs:
        return float("nan")
    return max(_largest(a, b) for a, b in zip(ours, theirs, strict=True))


def _in_proportion(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest difference, divided by the largest number of ``b`` if that is above 1."""
    size = np.abs(b[np.isfinite(b)]).max(initial=1) if b.dtype.kind in "fiuc" else 1
    return _largest(a, b) / float(size)


def _largest(a: NDArray[Any], b: NDArray[Any]) -> float:
    if a.dtype.kind not in "fiucb":
        return 0.0 if np.array_equal(a, b) else float("inf")
    same = (a == b) | ((a != a) & (b != b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    off = np.abs(a.astype(wide) - b.astype(wide))[~same]
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0))
