"""Make a pipeline of micro-batches from a step and a plan.

The result is a step, a problem and a plan like any other: they can be simulated, run and checked in
the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from enplace.frameworks.measured import MeasuredRun
from enplace.frameworks.microbatches import (
    WHOLE,
    Microbatches,
    check_runnable,
    find_early,
    in_flight,
    order_parts,
)
from enplace.frameworks.tensorflow.capture import GET_NEXT
from enplace.frameworks.tensorflow.device_names import device_names
from enplace.frameworks.tensorflow.graph import FlatGraph
from enplace.frameworks.tensorflow.measure.profile import assemble, find_edges
from enplace.frameworks.tensorflow.measure.trace import OpTrace
from enplace.frameworks.tensorflow.rewrite import complete_devices
from enplace.frameworks.tensorflow.shapes import shapes_of_function, tensor_shapes
from enplace.frameworks.tensorflow.split.microbatches import (
    CutGraph,
    Shapes,
    check_pipeline,
    cut_graph,
    outputs_of,
)
from enplace.frameworks.tensorflow.step import Step
from enplace.machine.op_passes import backward_ops, optimiser_ops
from enplace.machine.pipelines.pipeline import PipelineSchedule, simulate_pipeline, step_rule
from enplace.names.passes import is_in_backward_scope
from enplace.values.arrays import inverse
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import (
    CONTROL,
    KINDS,
    OP_COLUMNS,
    IntArray,
    Profile,
    columns_of,
)
from enplace.values.schedule import Schedule
from enplace.values.splits.graph import LAUNCH_US, copy_us_per_byte, new_columns, part_columns


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A graph of micro-batches with its plan.

    Attributes
    ----------
    cut : CutGraph
    problem, plan
        The graph of micro-batches; its costs are shares of the step's. The order of the plan is
        that of the schedule, and binding.
    schedule : PipelineSchedule
        The step's stages over time.
    part : int array, shape (n_ops,)
        Number of each op's micro-batch, or :data:`~enplace.frameworks.microbatches.WHOLE`.
    on_path : bool array, shape (n_ops,)
        Whether samples pass through an op; they do not through those of metrics and the optimiser,
        nor through parts that an earlier micro-batch waits for.
    """

    cut: CutGraph
    problem: Problem
    plan: Plan
    schedule: PipelineSchedule
    part: IntArray
    on_path: BoolArray


def pipeline_step(
    step: Step, problem: Problem, plan: Plan, wanted: Microbatches, host: str
) -> tuple[Step, Pipeline]:
    """Cut a step into micro-batches, and plan their order.

    Parameters
    ----------
    problem : Problem
        Of the step; its profile may lack all but the names of the ops.
    host : str
        The device where batches arrive.

    Raises
    ------
    PipelineError
        If the batch cannot be cut, its samples depend on each other, or the plan is not for this.
    """
    batch = dict(zip(_batch_tensors(step), step.batch_shapes, strict=True))

    def shapes_of(graph_def: GraphDef) -> Shapes:
        return tensor_shapes(replace(step, graph_def=graph_def))

    made = _pipeline(step.graph_def, step.outputs, batch, shapes_of, problem, plan, wanted, host)
    return step.with_graph(made.cut.graph_def, made.cut.renamed), made


def pipeline_function(
    function: ConcreteFunction,
    flat: FlatGraph,
    batch: Mapping[str, Sequence[int]],
    problem: Problem,
    plan: Plan,
    wanted: Microbatches,
    host: str,
) -> tuple[FlatGraph, Pipeline]:
    """Cut a traced function into micro-batches; see :func:`pipeline_step`.

    Parameters
    ----------
    flat : FlatGraph
        It gets its batches as inputs: :mod:`enplace.frameworks.tensorflow.open.drawing`.
    batch : mapping of str to sequence of int
        The tensors of a batch, and their shapes.
    """

    def shapes_of(graph_def: GraphDef) -> Shapes:
        return shapes_of_function(function, flat, graph_def, batch)

    made = _pipeline(flat.graph_def, flat.outputs, batch, shapes_of, problem, plan, wanted, host)
    return flat.with_graph(made.cut.graph_def, made.cut.renamed), made


def _pipeline(
    graph_def: GraphDef,
    outputs: Sequence[str],
    batch: Mapping[str, Sequence[int]],
    shapes_of: Callable[[GraphDef], Shapes],
    problem: Problem,
    plan: Plan,
    wanted: Microbatches,
    host: str,
) -> Pipeline:
    """Cut a graph into micro-batches, and plan their order."""
    shapes, own = shapes_of(graph_def), wanted.own_statistics
    cut = cut_graph(graph_def, shapes, batch, wanted.number, outputs, own_statistics=own)
    check_pipeline(cut)
    check_runnable(plan, problem.cluster)
    whole = _whole_profile(graph_def, shapes, problem.measured_profile)
    device, position = _complete(graph_def, whole, problem, plan, host)
    base = Problem(whole, problem.cluster)
    base_plan = replace(plan, device=device, position=position, subgraph=None)
    rule = step_rule(plan, wanted.number)
    schedule = simulate_pipeline(base, base_plan, wanted.schedule, wanted.number, rule)
    names = [node.name for node in cut.graph_def.node]
    origin = np.array([whole.index[cut.origin[name].op] for name in names])
    parts = [cut.origin[name].part for name in names]
    part = np.array([WHOLE if each is None else each for each in parts])
    profile = _cut_profile(cut, shapes_of(cut.graph_def), whole, origin)
    order = order_parts(profile, origin, part, schedule, position)
    new_plan = Plan(device[origin], order, plan.method, policy="strict", links=plan.links)
    on_path = ~optimiser_ops(base)[origin]
    passed = on_path & (part != WHOLE)
    gradients = passed & backward_ops(base)[origin]
    on_path &= ~find_early(profile, part, gradients if gradients.any() else passed)
    return Pipeline(cut, Problem(profile, problem.cluster), new_plan, schedule, part, on_path)


def describe_pipeline(
    pipeline: Pipeline,
    predicted: Schedule | None,
    run: MeasuredRun,
    batch_shapes: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """Compare a run with its prediction, device by device, as plain data.

    Parameters
    ----------
    predicted : Schedule or None
        None if the costs of the ops are not known.
    """
    seen = _seen_schedule(pipeline, run)
    n_devices, device = run.cluster.n_devices, run.plan.device
    sample = np.where(pipeline.on_path, pipeline.part, WHOLE)
    flying = in_flight(sample, device, run.op_start_us, run.op_finish_us, n_devices)
    samples = max((shape[0] for shape in batch_shapes if len(shape)), default=1)
    busy_us, peak_bytes = run.busy_us, seen.peak_bytes
    rows = []
    for d in np.unique(device[pipeline.part != WHOLE]).tolist():
        row: dict[str, Any] = {
            "device": run.cluster.devices[d].name,
            "busy_share": float(busy_us[d] / run.step_time_us),
            "peak_bytes": int(peak_bytes[d]),
            "in_flight": flying[d],
            "planned_in_flight": pipeline.schedule.in_flight[d],
        }
        if predicted is not None:
            row["predicted_busy_share"] = float(predicted.busy_us[d] / predicted.makespan_us)
            row["predicted_peak_bytes"] = int(predicted.peak_bytes[d])
        rows.append(row)
    return {
        "schedule": pipeline.schedule.kind,
        "microbatches": pipeline.cut.parts,
        "samples": samples,
        "ops_cut": pipeline.cut.n_cut,
        "own_statistics": [name for name in pipeline.cut.own if not is_in_backward_scope(name)],
        "devices": rows,
    }


def _seen_schedule(pipeline: Pipeline, run: MeasuredRun) -> Schedule:
    """Return the traced step as a schedule; ops that left no row take no time.

    A tensor counts as sent when it is made.
    """
    profile, problem = pipeline.problem.profile, pipeline.problem
    start_us, finish_us = run.op_start_us.copy(), run.op_finish_us.copy()
    for op in profile.topological_order.tolist():
        if np.isnan(finish_us[op]):
            edges = profile.edges_into(op)
            finish_us[op] = finish_us[profile.edge_source[edges]].max(initial=0.0)
            start_us[op] = finish_us[op]
    pairs = np.stack([profile.edge_tensor, run.plan.device[profile.edge_op]], axis=1)
    tensor, to = np.unique(pairs, axis=0).T
    sent = run.plan.device[profile.tensor_op[tensor]] != to
    tensor, to = tensor[sent], to[sent]
    made_us = finish_us[profile.tensor_op[tensor]]
    lane = np.zeros(profile.n_ops, dtype=np.int64)
    return Schedule(problem, run.plan, start_us, finish_us, lane, tensor, to, made_us, made_us)


def _batch_tensors(step: Step) -> list[str]:
    """List the tensors of a batch, in the order of its shapes."""
    drawn = [
        f"{node.name}:{i}"
        for node in step.graph_def.node
        if step.iterator and node.op in GET_NEXT and node.input[0] == step.iterator
        for i in range(len(node.attr["output_types"].list.type))
    ]
    return [*(f"{name}:0" for name in step.inputs), *drawn][: len(step.batch_shapes)]


def _complete(
    graph_def: GraphDef, profile: Profile, problem: Problem, plan: Plan, host: str
) -> tuple[IntArray, IntArray]:
    """Find the device and the position of every op of the graph, whether or not planned."""
    names, at = problem.profile.op_names, device_names(problem.cluster)
    placed_on = dict(zip(names, (at[d] for d in plan.device.tolist()), strict=True))
    where = complete_devices(graph_def, placed_on, host)
    number = {name: i for i, name in enumerate(at)}
    device = np.array([number.get(where[name], 0) for name in profile.op_names])
    known = dict(zip(names, plan.position.tolist(), strict=True))
    order = np.lexsort([[known.get(name, len(known)) for name in profile.op_names]])
    return device, inverse(order)


def _whole_profile(graph_def: GraphDef, shapes: Shapes, known: Profile) -> Profile:
    """Make the profile of the step's graph, with the costs that are known."""
    ops = [known.index.get(node.name) for node in graph_def.node]
    no_time = np.zeros(len(KINDS))
    columns = {
        label: [each.default if op is None else values[op] for op in ops]
        for label, each, values in ((n, OP_COLUMNS[n], v) for n, v in columns_of(known).items())
        if label not in ("scopes", "op_passes")
    }
    columns["time_us"] = [no_time if op is None else known.time_us[op] for op in ops]
    measured = replace(known.measured, split_lengths={})
    return _assemble(graph_def, shapes, known, columns, measured)


def _cut_profile(cut: CutGraph, shapes: Shapes, whole: Profile, origin: IntArray) -> Profile:
    """Make the profile of a graph of micro-batches: parts take their share of an op's time."""
    measured, kernels = whole.measured, whole.measured.op_kernels
    launch_us = measured.launch_gap_us or measured.op_overhead_us or LAUNCH_US
    copy_us = copy_us_per_byte(whole, launch_us)
    columns: dict[str, list[Any]] = {label: [] for label in OP_COLUMNS}
    for node, op in zip(cut.graph_def.node, origin.tolist(), strict=True):
        own_us = whole.time_us[op]
        same = node.name == whole.op_names[op] and node.op == whole.op_types[op]
        is_copy = cut.origin[node.name].is_copy
        if same:
            values = {label: values[op] for label, values in columns_of(whole).items()}
        elif is_copy:
            least_us = np.minimum(own_us, launch_us)
            values = part_columns(whole, op, cut.parts)
            values["time_us"] = least_us + (own_us - least_us) / cut.parts
        else:
            moved = sum(shapes[tensor].n_bytes or 0 for tensor in outputs_of(node.name, shapes))
            new_us = 0.0 if node.op == "Const" else launch_us + 2 * moved * copy_us
            values = new_columns(whole, op)
            values["time_us"] = np.where(np.isnan(own_us), np.nan, new_us)
        for label, column in columns.items():
            column.append(values[label])
    names = [node.name for node in cut.graph_def.node]
    old = [whole.op_names[op] for op in origin.tolist()]
    return _assemble(
        cut.graph_def,
        shapes,
        whole,
        columns,
        Measurement(
            op_kernels={n: kernels[o] for n, o in zip(names, old, strict=True) if o in kernels},
            launch_gap_us=measured.launch_gap_us,
            op_overhead_us=measured.op_overhead_us,
            cluster=measured.cluster,
            links=measured.links,
            devices=measured.devices,
            source=measured.source,
            batch_shapes=measured.batch_shapes,
            estimated=measured.estimated,
            estimated_speed=measured.estimated_speed,
        ),
    )


def _sizes_in(profile: Profile) -> Mapping[str, OpTrace]:
    """Return the bytes of a profile's tensors, for those that the graph does not tell."""
    found: dict[str, OpTrace] = {}
    for op, output, size in zip(
        profile.tensor_op.tolist(),
        profile.tensor_output.tolist(),
        profile.tensor_bytes.tolist(),
        strict=True,
    ):
        if output != CONTROL:
            found.setdefault(profile.op_names[op], OpTrace()).output_bytes[output] = size
    return found


def _assemble(
    graph_def: GraphDef,
    shapes: Shapes,
    known: Profile,
    columns: Mapping[str, Any],
    measured: Measurement,
) -> Profile:
    edges, ties = find_edges(graph_def.node, shapes, _sizes_in(known))
    nodes = [(node.name, node.op) for node in graph_def.node]
    return assemble(known.name, nodes, edges, ties, **columns, measured=measured)
