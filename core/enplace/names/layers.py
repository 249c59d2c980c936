"""Layers of a model and branches of its cells, according to its ops' name scopes.

A backward op belongs where its forward op does (Pesto, section 5.2).
"""

from __future__ import annotations

import os.path
import re
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from enplace.names.passes import is_no_layer
from enplace.values.limits import MOST_DEPTH
from enplace.values.op_kinds import OpPass
from enplace.values.problem import BoolArray
from enplace.values.profile import FloatArray, IntArray, Profile

ROOT_SHARE = 0.8
"""A first part of scopes that this share of the ops has is the model's name, not a layer."""

_TIME_STEP = re.compile(r"(t|time|step|timestep)_?\d+")
_NUMBERED = re.compile(r"\w*[A-Za-z]_?\d+(_\d+)*[a-z]?")
_BRANCH = re.compile(r"(b|branch)_?\d+[a-z]?", re.IGNORECASE)
_HEAD = re.compile(r"attention|attn|\batt\b|softmax|logits|loss|projection", re.IGNORECASE)

NONE = -1
"""Label of ops whose names have no layer."""


class LayerName(NamedTuple):
    """Layer and branch of an op according to its name scopes; empty texts if unknown."""

    layer: str
    branch: str
    is_head: bool


def parts_of(profile: Profile) -> list[list[str]]:
    """Find the scope of each op's forward op, without the name of the model."""
    named = zip(profile.op_names, profile.scopes, strict=True)
    return without_root([scope_parts(name, scope) for name, scope in named])


def scope_parts(name: str, scope: str) -> list[str]:
    """Find the scope of an op's forward op, without time steps.

    >>> scope_parts("gradients/t3/cell_1/MatMul_grad/MatMul_1", "")
    ['cell_1']
    """
    parts = [part.removeprefix("update_") for part in _split(name, scope)]
    return [p for p in parts if p and not (is_no_layer(p) or _TIME_STEP.fullmatch(p))]


def _split(name: str, scope: str) -> list[str]:
    return (scope or os.path.dirname(name)).split("/", MOST_DEPTH)[:MOST_DEPTH]


def without_root(scopes: list[list[str]]) -> list[list[str]]:
    """Drop from scopes a first part that most ops share: the name of the model."""
    firsts = Counter(parts[0] for parts in scopes if len(parts) > 1)
    for first, count in firsts.most_common(1):
        if count >= ROOT_SHARE * len(scopes):
            return [parts[1:] if parts[:1] == [first] else parts for parts in scopes]
    return scopes


def find_layer_name(parts: list[str]) -> LayerName:
    """Find the layer and branch in a scope: its first numbered part, and a branch right below.

    >>> find_layer_name(["Mixed_5b", "b1", "conv"])
    LayerName(layer='Mixed_5b', branch='b1', is_head=False)
    """
    for depth, part in enumerate(parts):
        if _NUMBERED.fullmatch(part):
            below = parts[depth + 1] if depth + 1 < len(parts) else ""
            branch = below if _BRANCH.fullmatch(below) else ""
            return LayerName("/".join(parts[: depth + 1]), branch, False)
    return LayerName("", "", bool(_HEAD.search("/".join(parts))))


def named_layers(
    profile: Profile, layer_names: list[LayerName], work_us: FloatArray
) -> IntArray | None:
    """Number the layers by their depth in the graph, and label each op; shape (n_ops,).

    Ops before all layers belong to the first. Attention, softmax and loss form the head, a layer
    of their own after the others. None if the names show no layers.
    """
    depth, forward = profile.depth, ~_backward(profile)
    work: dict[str, float] = defaultdict(float)
    deep: dict[str, float] = defaultdict(float)
    for op in np.flatnonzero(forward & (work_us > 0)).tolist():
        if layer := layer_names[op].layer:
            work[layer] += work_us[op]
            deep[layer] += work_us[op] * depth[op]
    if not work:
        return None
    ordered = sorted(work, key=lambda layer: (deep[layer] / work[layer], layer))
    number = {layer: at for at, layer in enumerate(ordered)}
    label = np.full(profile.n_ops, NONE)
    for op, name in enumerate(layer_names):
        label[op] = number.get(name.layer, len(number) if name.is_head else NONE)
    return spread(profile, label)


def _backward(profile: Profile) -> BoolArray:
    """Find backward and update ops: those of such a pass, or of such scopes; shape (n_ops,)."""
    named = zip(profile.op_passes, profile.op_names, profile.scopes, strict=True)
    return np.array(
        [
            said != OpPass.FORWARD if said else any(map(is_no_layer, _split(*texts)))
            for said, *texts in named
        ],
        dtype=bool,
    )


def spread(profile: Profile, label: IntArray) -> IntArray:
    """Label other ops like most of their producers, else like their lowest consumer, else 0."""
    label = label.astype(np.int64)
    source = profile.edge_source
    for op in profile.topological_order.tolist():
        if label[op] == NONE:
            edges = profile.edges_into(op)
            near = Counter(label[source[edges]].tolist())
            del near[NONE]
            if near:
                label[op] = max(near, key=lambda value: (near[value], value))
    for op in profile.topological_order[::-1].tolist():
        if label[op] == NONE:
            near_by = label[profile.readers_of(op)]
            label[op] = min((value for value in near_by.tolist() if value != NONE), default=0)
    return label
