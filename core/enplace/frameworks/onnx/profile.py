"""An ONNX graph as a profile: sizes from its shapes, times from a roofline.

- A weight (initialiser) is part of the op that uses it. Ops that share a large one share a device,
  as ops do that read one variable of TensorFlow.
- What depends only on weights, constants and shapes takes no time: a runtime computes it once, or
  on the host beside the GPU's work. Neither do ops that only see a tensor in another way.
- A loop or branch is one op, with all the work in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import NodeProto

from enplace.errors import FileError
from enplace.files.fields import shown
from enplace.frameworks.onnx.devices import find_plan
from enplace.frameworks.onnx.functions import bodies_of, reads
from enplace.frameworks.onnx.graph import Graph
from enplace.frameworks.onnx.op_kinds import is_unknown, kind_of, split_lengths
from enplace.frameworks.onnx.work import is_view, work_of
from enplace.frameworks.roofline import Gpu, Work, cpu_us, gpu_us
from enplace.names.scopes import exported_scopes
from enplace.readers.colocation import colocation_groups
from enplace.readers.views import find_views
from enplace.text import count, percent, printable
from enplace.values.measurement import Measurement
from enplace.values.op_kinds import OpKind, OpPass
from enplace.values.profile import OP_COLUMNS, Profile, edge_columns, make_profile
from enplace.values.splits.rules import RULES

MOST_FLOPS = OP_COLUMNS["flops"].most

SHARED_BYTES = 1 << 20
"""Ops that share a weight of this size or more share a device; of a smaller one each has a copy."""

_RANDOM = ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")

_ON_CPU = (
    "ImageDecoder", "NonMaxSuppression", "RegexFullMatch", "StringConcat", "StringNormalizer",
    "StringSplit", "TfIdfVectorizer", "Unique",
)  # fmt: skip
_ON_CPU_DOMAIN = "ai.onnx.ml"
"""Ops that runtimes run on the CPU."""

_FED = "Input"

Times = tuple[float, float]
_FREE: Times = (0.0, 0.0)
_ON_HOST: Times = (math.nan, 0.0)

Edge = tuple[int, int, int, int]
"""Source, output, consumer, bytes."""


def estimated_profile(name: str, graph: Graph, gpu: Gpu) -> Profile:
    """Make the profile of an inference, with op times estimated for a GPU.

    Raises
    ------
    FileError
        If an op uses a tensor that does not exist.
    ProfileError
        If the graph is none that runs.
    """
    nodes, inputs = list(graph.nodes), list(graph.inputs)
    names = [*inputs, *name_nodes(graph, nodes)]
    taken = [list(dict.fromkeys(reads(node))) for node in nodes]
    edges = _edges(graph, names, taken)
    persistent, ties = _weights(graph, nodes, taken)
    known, is_free = find_known(graph.weights, nodes, taken)
    free = Work(kernels=0)
    works = [free if f else work_of(n, graph) for n, f in zip(nodes, is_free, strict=True)]
    times = [
        _FREE if work is free else _times(node, work, gpu)
        for node, work in zip(nodes, works, strict=True)
    ]
    kinds = [kind_of(node, graph, known) for node in nodes]
    lengths = {
        name: split_lengths(node, kind, graph, known)
        for name, node, kind, free in zip(names[len(inputs) :], nodes, kinds, is_free, strict=True)
        if kind in RULES and not free
    }
    plan = find_plan(graph.configurations, nodes)
    plan_notes = [plan.note] if plan else []
    op_devices = _assigned(names, edges, times, plan.devices) if plan else {}
    recorded = [""] * len(inputs) + [_recorded_scope(node) for node in nodes]
    return make_profile(
        name,
        op_names=names,
        op_types=[_FED] * len(inputs) + [node.op_type or "Unknown" for node in nodes],
        op_kinds=[OpKind.INPUT] * len(inputs) + kinds,
        op_passes=[OpPass.FORWARD] * len(names),
        flops=[0.0] * len(inputs) + [_flops(*each) for each in zip(kinds, works, strict=True)],
        scopes=exported_scopes(names, recorded, len(inputs), edges),
        time_us=np.array([_ON_HOST] * len(inputs) + times),
        persistent_bytes=[0] * len(inputs) + persistent,
        colocation=colocation_groups(names, ties),
        **edge_columns(edges),
        shares=find_views([False] * len(inputs) + [*map(is_view, nodes)], edges),
        measured=replace(
            _measured(graph, gpu),
            split_lengths=lengths,
            notes=(*graph.notes, *_describe(graph, nodes, persistent), *plan_notes),
            op_devices=op_devices,
        ),
    )


def _measured(graph: Graph, gpu: Gpu) -> Measurement:
    shapes = (tensor.lengths for tensor in graph.inputs.values() if tensor.shape)
    config = {**graph.facts, "sizes": dict(graph.sizes), "unsized": _count_unsized(graph)}
    return Measurement(
        estimated=gpu.title,
        estimated_speed=gpu.speed,
        function=graph.name[:_MOST_CHARACTERS],
        framework="onnx",
        framework_version=onnx.__version__,
        batch_shapes=tuple(shapes),
        config=config,
    )


_MOST_CHARACTERS = 200


def _count_unsized(graph: Graph) -> int:
    made = {*graph.inputs, *(name for node in graph.nodes for name in node.output if name)}
    return sum(not graph.tensor(name).is_sized for name in made)


# Notes


def _describe(graph: Graph, nodes: Sequence[NodeProto], n_bytes: Sequence[int]) -> Iterator[str]:
    """Say what of the profile rests on assumptions, and what cannot be split."""
    if n_unsized := _count_unsized(graph):
        yield (
            f"The size of {count(n_unsized, 'tensor')} is only known in a run; it counts as small, "
            f"so times may be too short."
        )
    unknown = [node.op_type or "Unknown" for node in _with_bodies(nodes) if is_unknown(node)]
    if unknown:
        types = list(dict.fromkeys(map(printable, unknown)))
        shown_types = ", ".join(types[:_MOST_TYPES]) + (", ..." if len(types) > _MOST_TYPES else "")
        is_one = len(unknown) == 1
        yield (
            f"{count(len(unknown), 'op')} of {'an unknown type' if is_one else 'unknown types'} "
            f"({shown_types}): only {'its' if is_one else 'their'} bytes count, so real times may "
            f"be longer. What the file does not size counts like the op's first input."
        )
    for node, held in zip(nodes, n_bytes, strict=True):
        if any(True for _ in bodies_of(node)) and held > sum(n_bytes) / 2:
            share = percent(held / sum(n_bytes))
            yield f"{share} of the weights are in one {node.op_type} op, which cannot be split."


_MOST_TYPES = 5


def _with_bodies(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Iterate over nodes and those in their bodies."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from _with_bodies(body.node)


# Names


def name_nodes(graph: Graph, nodes: Sequence[NodeProto]) -> list[str]:
    """Name nodes as the file does, or else after their output or type; add numbers to repeated."""
    own = {node.name for node in nodes}
    used, found = set(graph.inputs), []
    for number, node in enumerate(nodes):
        output = next(filter(None, node.output), "")
        wanted = node.name or ("" if output.isdecimal() else output) or node.op_type
        name = wanted if node.name or wanted not in own else f"{wanted}_{number}"
        again = number
        while name in used:
            name = f"{wanted}_{again}"
            again += 1
        used.add(name)
        found.append(name)
    return found


def _recorded_scope(node: NodeProto) -> str:
    """Return the modules that PyTorch's newer exporter notes beside a node; empty without."""
    props = (p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes")
    return next(props, "")


def _flops(kind: str, work: Work) -> float:
    """Return what an op computes: one that only moves values does no arithmetic."""
    return 0.0 if kind in (OpKind.GATHER, OpKind.SHAPE) else min(work.flops, MOST_FLOPS)


# Edges and weights


def _edges(graph: Graph, names: Sequence[str], reads: Sequence[list[str]]) -> list[Edge]:
    first = len(graph.inputs)
    made = {name: (op, 0) for op, name in enumerate(graph.inputs)}
    for op, node in enumerate(graph.nodes, first):
        made |= {name: (op, slot) for slot, name in enumerate(node.output) if name}
    edges = []
    for op, taken in enumerate(reads, first):
        for name in taken:
            if name in made:
                edges.append((*made[name], op, graph.tensor(name).n_bytes))
            elif name not in graph.weights:
                raise FileError(
                    f"node {shown(names[op])} takes {shown(name)}, which nothing makes; "
                    f"export the model again"
                )
    return edges


def _weights(
    graph: Graph, nodes: Sequence[NodeProto], reads: Sequence[list[str]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the bytes of each node's weights, and the pairs of ops that share a large one."""
    n_bytes, ties, first = [], [], len(graph.inputs)
    owner: dict[str, int] = {}
    for number, (node, taken) in enumerate(zip(nodes, reads, strict=True)):
        held = sum(map(_held_bytes, map(graph.body, bodies_of(node))))
        for name in taken:
            size = graph.weights[name].n_bytes if name in graph.weights else 0
            if size >= SHARED_BYTES and owner.setdefault(name, number) != number:
                ties.append((first + owner[name], first + number))
            else:
                held += size
        n_bytes.append(held)
    return n_bytes, ties


def _held_bytes(body: Graph) -> int:
    """Sum the weights that a body brings, and those of its own bodies."""
    own = sum(tensor.n_bytes for tensor in body.weights.values())
    inner = (body.body(each) for node in body.nodes for each in bodies_of(node))
    return own + sum(map(_held_bytes, inner))


# The plan that the file holds


def _assigned(
    names: Sequence[str], edges: Sequence[Edge], times: Sequence[Times], plan: Sequence[str | None]
) -> dict[str, str]:
    """Return the device of each op: as the file says, or that of a neighbour.

    What feeds the model, and what no GPU can run, is on the CPU.
    """
    first = len(names) - len(plan)
    host = next((name for name in plan if name and "CPU" in name), "CPU:0")
    found = [host] * first + [
        host if math.isnan(on_gpu) else device
        for device, (on_gpu, _) in zip(plan, times, strict=True)
    ]
    for source, _, target, _ in edges:
        if source >= first:
            found[target] = found[target] or found[source]
    for source, _, target, _ in reversed(edges):
        found[source] = found[source] or found[target]
    any_device = next(filter(None, plan))
    return {name: each or any_device for name, each in zip(names, found, strict=True)}


# Times


def find_known(
    weights: Iterable[str], nodes: Sequence[NodeProto], reads: Sequence[list[str]]
) -> tuple[set[str], list[bool]]:
    """Find the tensors that a runtime knows before the inference, or only needs on the host.

    Also returns which nodes make only such tensors.
    """
    known, makes = set(weights), []
    for node, taken in zip(nodes, reads, strict=True):
        is_computed = bool(taken) and node.op_type not in _RANDOM and known.issuperset(taken)
        makes.append(is_computed or node.op_type in ("Constant", "Shape", "Size"))
        if makes[-1]:
            known.update(node.output)
    return known, makes


def _times(node: NodeProto, work: Work, gpu: Gpu) -> Times:
    """Estimate the times of a node on the GPU and on a core of a CPU."""
    needs_cpu = node.domain == _ON_CPU_DOMAIN or node.op_type in _ON_CPU
    return math.nan if needs_cpu else gpu_us(work, gpu), cpu_us(work)
