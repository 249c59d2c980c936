"""Run a plan on real devices, check the run, and compare it with TensorFlow without a plan."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.framework.config import disable_op_determinism

from enplace.errors import EnplaceError
from enplace.frameworks.batches import about_other_batches
from enplace.frameworks.comparing import (
    Way,
    first_step_difference,
    in_turns,
    loss_difference,
    nudge,
    take_turns,
    weights_difference,
)
from enplace.frameworks.measured import MeasuredRun, may_round, median_us, quartiles_us
from enplace.frameworks.microbatches import Microbatches
from enplace.frameworks.tensorflow.apply.check import (
    check_placement,
    count_violations,
    first_start_us,
    not_in_plan,
    op_times_us,
)
from enplace.frameworks.tensorflow.apply.pipelines import Pipeline, describe_pipeline, pipeline_step
from enplace.frameworks.tensorflow.capture import GET_NEXT
from enplace.frameworks.tensorflow.device_names import device_names
from enplace.frameworks.tensorflow.devices import Devices, anywhere, stock_config
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
from enplace.frameworks.tensorflow.shapes import shapes_in, sizes_in, with_recorded_sizes
from enplace.frameworks.tensorflow.split.split_graph import split_step
from enplace.frameworks.tensorflow.step import OpenStep, Step, StepGraph
from enplace.machine import simulate
from enplace.processes.redirect import why_refused
from enplace.processes.worker import Report, ignore
from enplace.text import finite
from enplace.values.cluster import Cluster
from enplace.values.op_sizes import about_other_sizes, op_sizes
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray, Profile
from enplace.values.schedule import Schedule

WARM_UPS, TRACED = 3, 5

COMPARED = 5
"""Steps with deterministic kernels, for which results are compared on GPUs."""


class RunError(EnplaceError):
    """TensorFlow refuses to run the placed graph."""


@dataclass(kw_only=True)
class _Way(Way):
    """One way to run the step, as TensorFlow runs it, and what was traced of it."""

    step: Step
    config: ConfigProto
    graph: StepGraph
    traces: list[Any] = field(default_factory=list)
    starts_us: list[float] = field(default_factory=list)

    def again(self, what: str, step: Step | None = None) -> _Way:
        """Return the same way without results, perhaps from other values of the variables."""
        return _Way(
            what=what,
            step=step or self.step,
            config=self.config,
            graph=self.graph,
            is_placed=self.is_placed,
        )


@dataclass(frozen=True, eq=False)
class _Goal:
    """A step made ready to run as planned.

    Attributes
    ----------
    whole, step : Step
        As the model has it; and with its ops split or its batch cut into micro-batches.
    problem, plan
        Of ``step``.
    schedule : Schedule
        The prediction.
    pipeline : Pipeline or None
        None if the step runs whole.
    order : list of list of str
        Ops of each device, as the plan orders them; empty to leave that to TensorFlow.
    graph_def : GraphDef
        Of ``step``, placed and ordered.
    devices : Devices
    used : set of str
        TensorFlow's names of the devices that the plan uses.
    """

    whole: Step
    step: Step
    problem: Problem
    plan: Plan
    schedule: Schedule
    pipeline: Pipeline | None
    order: Sequence[Sequence[str]]
    graph_def: GraphDef
    devices: Devices
    used: set[str]

    @property
    def rounds(self) -> bool:
        """Whether a run may round differently from one without the plan."""
        return self.pipeline is not None or may_round(self.plan, self.problem.cluster)


@dataclass(frozen=True, eq=False)
class _Ways:
    """The ways to compare: with the plan, without it, and as TensorFlow runs by itself."""

    placed: _Way
    plain: _Way
    stock: _Way
    nudged: _Way


def run_plan(
    step: Step,
    problem: Problem,
    plan: Plan,
    devices: Devices,
    steps: int,
    ordered: bool = True,
    progress: Report = ignore,
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
    has_costs = any(problem.profile.op_types)
    goal = _prepare(step, problem, plan, devices, ordered, microbatches, progress)
    with serving(devices) as target:
        check_devices(target, devices, sorted(goal.used))
        ways = _make_ways(goal, compare)
        turns = [(ways.placed, steps)] * repeat
        if compare:
            nudged = ways.nudged if goal.rounds else None
            turns = in_turns(ways.placed, ways.plain, ways.stock, steps, repeat, nudged)
        take_turns(turns, partial(_run_part, target, TRACED, goal.rounds), progress)
        on_gpus = _uses_gpus(goal.plan, goal.problem.cluster) and not goal.rounds
        repeats = compare and ways.plain.fits and on_gpus
        compared, comparison = _compared_on_gpus(ways, progress, target) if repeats else (ways, {})
    progress("Reading what was traced", 1.0)
    placed, stock = ways.placed, ways.stock
    traces = op_traces((trace.step_stats for trace in placed.traces), [goal.step.graph_def])
    run = _seen(goal, placed, traces)
    facts = {
        **_facts(goal, ways, traces),
        "predicted_busy_us": goal.schedule.busy_us.tolist() if has_costs else None,
        "fits_without_plan": ways.plain.fits and stock.fits if compare else None,
        "other_batches": _about_batches(step, ways.placed.graph, problem.measured_profile),
        **comparison,
        **run.facts,
    }
    if goal.pipeline is not None:
        predicted = goal.schedule if has_costs else None
        facts["pipeline"] = {
            **describe_pipeline(goal.pipeline, predicted, run, step.batch_shapes),
            "whole_difference": finite(loss_difference(placed, stock, 1)),
        }
    return replace(
        run,
        loss_difference=loss_difference(compared.placed, compared.plain),
        weights_difference=weights_difference(compared.placed, compared.plain),
        first_step_difference=first_step_difference(compared.placed, compared.plain),
        rounding_difference=first_step_difference(compared.nudged, compared.plain),
        stock_step_time_us=median_us(stock.times_us),
        predicted_step_time_us=goal.schedule.makespan_us if has_costs else np.nan,
        facts=facts,
    )


def _about_batches(step: Step, placed: StepGraph, profile: Profile) -> str:
    """Name batches and sizes of ops that are not those of the profile."""
    batches = about_other_batches(profile.measured.batch_shapes, step.batch_shapes)
    found = {name: [value.nbytes] for name, value in step.variables.items()}
    if not batches:
        found |= sizes_in(shapes_in(placed.graph))
    return " ".join(filter(None, (batches, about_other_sizes(op_sizes(profile), found))))


def _prepare(
    whole: Step,
    problem: Problem,
    plan: Plan,
    devices: Devices,
    ordered: bool,
    microbatches: Microbatches | None,
    progress: Report,
) -> _Goal:
    """Split ops or cut the batch as planned, predict the step, and place and order its graph."""
    pipeline = None
    if microbatches is None:
        step = split_step(whole, plan.splits)
    else:
        progress(f"Cutting each batch into {microbatches}", None)
        step, pipeline = pipeline_step(whole, problem, plan, microbatches, devices.host)
        problem, plan = pipeline.problem, pipeline.plan
    schedule = simulate(problem, plan if ordered else replace(plan, policy="fifo"))
    problem = schedule.problem
    at = device_names(problem.cluster)
    placed_on = dict(zip(problem.profile.op_names, (at[d] for d in plan.device), strict=True))
    rank = plan.position if plan.policy == "strict" else schedule.op_start_us
    order = device_orders(step.graph_def, problem, plan, rank) if ordered else []
    graph_def = place_graph(step.graph_def, placed_on, order, devices.host)
    used = set(placed_on.values())
    return _Goal(whole, step, problem, plan, schedule, pipeline, order, graph_def, devices, used)


def _make_ways(goal: _Goal, compare: bool) -> _Ways:
    """Import each graph once; without ``compare``, only the placed one is needed.

    The placed one also knows the sizes of the batches. TensorFlow does not rewrite it, so it runs
    as without them.
    """
    whole, devices, pipeline = goal.whole, goal.devices, goal.pipeline
    alike = goal.step if pipeline is not None and pipeline.cut.own else whole
    graph = _imported(goal.step, with_recorded_sizes(goal.graph_def, goal.step))
    free = _imported(alike) if compare else graph
    itself = free if alike is whole or not compare else _imported(whole)
    plain = _Way(
        what="Running without the plan", step=alike, config=anywhere(devices.config), graph=free
    )
    return _Ways(
        _Way(
            what="Running the plan",
            step=goal.step,
            config=devices.config,
            graph=graph,
            is_placed=True,
        ),
        plain,
        _Way(
            what="Running TensorFlow by itself",
            step=whole,
            config=stock_config(devices),
            graph=itself,
        ),
        plain.again(
            "Running with changed last bits of the variables",
            _nudged(alike) if compare and goal.rounds else None,
        ),
    )


def _facts(goal: _Goal, ways: _Ways, traces: Mapping[str, OpTrace]) -> dict[str, Any]:
    """Collect the further details of a run; see :class:`MeasuredRun`."""
    step, placed, plain = goal.step, ways.placed, ways.plain
    return {
        "devices": goal.devices.text,
        "ordered": bool(goal.order),
        "warm_ups": WARM_UPS,
        "traced_steps": len(placed.traces),
        "unplaced_step_time_us": finite(median_us(plain.times_us)),
        "unplaced_quartiles_us": quartiles_us(plain.times_us),
        "stock_quartiles_us": quartiles_us(ways.stock.times_us),
        "input_us": _input_us(step, traces),
        # Starting a traced step takes longer, so the least is nearest to the others'.
        "start_us": min(placed.starts_us, default=None),
        "transfers": len(goal.schedule.transfer_tensor),
        "allocator_peak_bytes": _allocator_peaks(placed, goal.problem.cluster),
        "order_edges": count_inputs(goal.graph_def) - count_inputs(step.graph_def),
        "compared": list(_compared(step)),
        "compiled": goal.whole.compiled,
        "plain_kernels": os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0",
        "tensorflow": tf.__version__,
    }


def _seen(goal: _Goal, placed: _Way, traces: Mapping[str, OpTrace]) -> MeasuredRun:
    """Collect what partitions and traces of the placed steps show, before any comparison."""
    step, problem, plan = goal.step, goal.problem, goal.plan
    profile, at = problem.profile, device_names(problem.cluster)
    first = placed.traces[0]
    check = check_placement(first.partition_graphs, step, profile.op_names, plan.device, at)
    times = [op_times_us(trace.step_stats, profile.index) for trace in placed.traces]
    start, finish = times[_median_step(times)]
    can = ordered_ops(step.graph_def)
    in_order = [[profile.index[name] for name in names if name in can] for names in goal.order]
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
        facts={"not_in_plan": not_in_plan(step, profile.op_names), **check.facts},
    )


def _run_part(
    target: str,
    traced: int,
    keep_first: bool,
    way: _Way,
    steps: int,
    progress: Report,
    is_last: bool,
) -> None:
    """Run warm-ups and steps from the variables that the last call left.

    Optionally keep the variables after the very first step, and trace more steps at the end.
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
            for _ in range(traced if is_last else 0):
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
    return RunError(why_refused(error) or f"TensorFlow refuses the graph: {reason}")


def _uses_gpus(plan: Plan, cluster: Cluster) -> bool:
    return any(cluster.devices[d].kind == "gpu" for d in np.unique(plan.device).tolist())


def _compared_on_gpus(ways: _Ways, progress: Report, target: str) -> tuple[_Ways, dict[str, Any]]:
    """Repeat the first steps with deterministic kernels, or to see how much they round.

    Returns
    -------
    tuple
        The steps to compare, and facts.
    """
    what = "Comparing results"

    def run(*ways: _Way, keep_first: bool) -> None:
        turns = [(way, COMPARED) for way in ways]
        take_turns(turns, partial(_run_part, target, 0, keep_first), progress)

    placed, plain = ways.placed.again(what), ways.plain.again(what)
    nudged = ways.plain.again(what)
    tf.config.experimental.enable_op_determinism()
    try:
        run(placed, plain, keep_first=False)
    except RunError as error:
        if not is_nondeterministic(error):
            raise
        why = str(error).partition(": ")[2]
    else:
        return _Ways(placed, plain, ways.stock, nudged), {"deterministic": True}
    finally:
        disable_op_determinism()
    placed, plain = placed.again(what), plain.again(what)
    nudged = plain.again(what, _nudged(plain.step))
    run(placed, plain, nudged, keep_first=True)
    facts = {"deterministic": False, "not_deterministic": why}
    return _Ways(placed, plain, ways.stock, nudged), facts


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
    rows = [traces[name].host_us for name in getters if name in traces]
    return finite(median_us(np.sum(rows, axis=0).tolist())) if rows else None


def _nudged(step: Step) -> Step:
    return replace(step, variables=nudge(step.variables))


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
