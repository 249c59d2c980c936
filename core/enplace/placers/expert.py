"""What an expert would do by hand, read off the name scopes and op types.

There are three families of models, each with its own way:

- *stacked*: whole layers, in contiguous blocks of about equal time, one block to each GPU; the
  embedding goes with the first layer, attention and softmax with the last, backward ops with their
  forward layer (Pesto, section 5.2).
- *branches*: of models whose cells have parallel branches (NASNet, Inception), the branches of each
  cell are dealt out evenly to the GPUs (Pesto, section 5.2).
- *layers*: convolution, normalisation and activation layers are dealt out in turn, each kind for
  itself (Tarnawski et al. 2020, section 6).

A person may name the family, and write rules that say for some ops where they go. An expert places
and leaves the order to TensorFlow.
"""

from __future__ import annotations

import os.path
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from enplace.placers.registry import BRANCHES, EVERY, LAYERS, STACKED, PlaceOptions, placer
from enplace.placers.settle import best_of, inverse, settle, unordered
from enplace.plan import Plan
from enplace.problem import Problem
from enplace.profile import FloatArray, IntArray, Profile

BRANCHY = 0.4
"""Branches are dealt out if their ops hold at least this share of the compute time."""

ROOT_SHARE = 0.8
"""A first part of the scope that this share of the ops has in common is no layer."""

CONVOLVED = 0.5
"""Without layers in the names, they are dealt out if convolutions take so much of the time."""

_KINDS = {
    "convolution": re.compile(r"conv", re.IGNORECASE),
    "normalisation": re.compile(r"batch_?norm|layer_?norm", re.IGNORECASE),
    "activation": re.compile(r"^(relu|elu|selu|gelu|sigmoid|tanh|softplus|swish)", re.IGNORECASE),
}

_BACKWARD = re.compile(r"gradients(_\d+)?|train_op|update|optimizer|\w+_grad")
_TIME_STEP = re.compile(r"(t|time|step|timestep)_?\d+")
_NUMBERED = re.compile(r"\w*[A-Za-z]_?\d+(_\d+)*[a-z]?")
_BRANCH = re.compile(r"(b|branch)_?\d+[a-z]?", re.IGNORECASE)
_HEAD = re.compile(r"attention|attn|\batt\b|softmax|logits|loss|projection", re.IGNORECASE)

_NONE = -1


class _Home(NamedTuple):
    """Where the name scopes say an op belongs; empty texts where they say nothing."""

    layer: str
    branch: str
    is_head: bool


@placer(
    "expert",
    title="Expert, by layer",
    source="Pesto, section 5.2 (Middleware 2021); Tarnawski 2020, section 6",
    objectives=EVERY,
    capabilities=("rules",),
)
def expert(problem: Problem, options: PlaceOptions) -> Plan:
    """Place by the model's family, or the one that a person names, and by a person's rules."""
    profile, gpus = problem.profile, problem.cluster.gpus
    parts = [scope_parts(*texts) for texts in zip(profile.op_names, profile.scopes, strict=True)]
    parts = without_root(parts)
    homes = [find_home(op_parts) for op_parts in parts]
    work_us = problem.time_us[:, gpus].min(axis=1)
    work_us = np.where(np.isfinite(work_us), work_us, 0.0)
    family = options.family or find_family(profile, homes, work_us)
    if family == BRANCHES:
        block = deal_branches(profile, homes, work_us, len(gpus))
    elif family == LAYERS:
        block = deal_layers(profile, parts, len(gpus))
    else:
        block = stack_layers(profile, homes, work_us, len(gpus))
    options.check_cancelled()
    wish = np.array(gpus)[block]
    wish[list(options.rules)] = list(options.rules.values())
    plan = best_of(problem, unordered(problem, settle(problem, wish), "expert"), options).plan
    return replace(plan, facts={"family": family, "ops_by_rule": len(options.rules)})


def find_family(profile: Profile, homes: list[_Home], work_us: FloatArray) -> str:
    """The family of a model, by where in its names and types the work is."""
    total_us = work_us.sum()
    in_branch = np.array([bool(home.branch) for home in homes])
    if work_us[in_branch].sum() >= BRANCHY * total_us > 0:
        return BRANCHES
    kinds = np.array([layer_kind(op_type) for op_type in profile.op_types])
    convolved = work_us[kinds == "convolution"].sum() >= CONVOLVED * total_us > 0
    nameless = not any(home.layer for home in homes)
    return LAYERS if nameless and convolved and "normalisation" in kinds else STACKED


def layer_kind(op_type: str) -> str:
    """Convolution, normalisation or activation; empty for all else.

    >>> layer_kind("FusedBatchNormGradV3")
    'normalisation'
    """
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(op_type)), "")


def scope_parts(name: str, scope: str) -> list[str]:
    """Scope of the forward op that an op belongs to, time steps left out.

    >>> scope_parts("gradients/t3/cell_1/MatMul_grad/MatMul_1", "")
    ['cell_1']
    """
    parts = [part.removeprefix("update_") for part in (scope or os.path.dirname(name)).split("/")]
    return [p for p in parts if p and not (_BACKWARD.fullmatch(p) or _TIME_STEP.fullmatch(p))]


def without_root(scopes: list[list[str]]) -> list[list[str]]:
    """Scopes without a first part that most ops share: the name of the model."""
    firsts = Counter(parts[0] for parts in scopes if len(parts) > 1)
    for first, count in firsts.most_common(1):
        if count >= ROOT_SHARE * len(scopes):
            return [parts[1:] if parts[:1] == [first] else parts for parts in scopes]
    return scopes


def find_home(parts: list[str]) -> _Home:
    """Layer and branch named by a scope: the first numbered part, and the branch right below it.

    >>> find_home(["Mixed_5b", "b1", "conv"])
    _Home(layer='Mixed_5b', branch='b1', is_head=False)
    """
    for depth, part in enumerate(parts):
        if _NUMBERED.fullmatch(part):
            below = parts[depth + 1] if depth + 1 < len(parts) else ""
            branch = below if _BRANCH.fullmatch(below) else ""
            return _Home("/".join(parts[: depth + 1]), branch, False)
    return _Home("", "", bool(_HEAD.search("/".join(parts))))


def stack_layers(
    profile: Profile, homes: list[_Home], work_us: FloatArray, n_blocks: int
) -> IntArray:
    """Block of each op: layers in order of appearance, in contiguous blocks of about equal time."""
    number: dict[str, int] = {}
    label = np.full(profile.n_ops, _NONE)
    for op in profile.topological_order.tolist():
        if homes[op].layer and work_us[op] > 0:
            number.setdefault(homes[op].layer, len(number))
    for op, home in enumerate(homes):
        label[op] = number.get(home.layer, len(number) - 1 if home.is_head else _NONE)
    if not number:  # no layers in the names: the graph's own order, op by op
        label = inverse(profile.topological_order)
    label = _spread(profile, label)
    layer_us = np.bincount(label, weights=work_us)
    middle = np.cumsum(layer_us) - layer_us / 2
    blocks = np.floor(n_blocks * middle / max(layer_us.sum(), 1e-9)).astype(np.int64)
    chosen: IntArray = np.minimum(blocks, n_blocks - 1)[label]
    return chosen


def deal_branches(
    profile: Profile, homes: list[_Home], work_us: FloatArray, n_blocks: int
) -> IntArray:
    """Block of each op: in each cell the longest branch first, to the least busy block."""
    branch_us: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for home, work in zip(homes, work_us.tolist(), strict=True):
        if home.branch:
            branch_us[home.layer][home.branch] += work
    block: dict[tuple[str, str], int] = {}
    for cell, times in branch_us.items():
        load = [0.0] * n_blocks
        for branch in sorted(times, key=lambda b: (-times[b], b)):
            block[cell, branch] = load.index(min(load))
            load[block[cell, branch]] += times[branch]
    return _spread(profile, np.array([block.get((h.layer, h.branch), _NONE) for h in homes]))


def deal_layers(profile: Profile, parts: list[list[str]], n_blocks: int) -> IntArray:
    """Block of each op: of each kind of layer the first to the first block, and so on in turn.

    Ops of one scope and kind are one layer, backward ones with their forward layer.
    """
    seen: dict[str, dict[str, int]] = defaultdict(dict)
    label = np.full(profile.n_ops, _NONE)
    for op in profile.topological_order.tolist():
        if kind := layer_kind(profile.op_types[op]):
            scope = "/".join(parts[op]) or profile.op_names[op]
            label[op] = seen[kind].setdefault(scope, len(seen[kind])) % n_blocks
    return _spread(profile, label)


def _spread(profile: Profile, label: IntArray) -> IntArray:
    """Label the rest: as most of their producers, else as the lowest of their consumers, else 0."""
    label = label.astype(np.int64)
    source = profile.edge_source
    for op in profile.topological_order.tolist():
        if label[op] == _NONE:
            edges = profile.in_edges[profile.in_ptr[op] : profile.in_ptr[op + 1]]
            near = Counter(label[source[edges]].tolist())
            del near[_NONE]
            if near:
                label[op] = max(near, key=lambda value: (near[value], value))
    for op in profile.topological_order[::-1].tolist():
        if label[op] == _NONE:
            first, end = profile.tensor_ptr[op], profile.tensor_ptr[op + 1]
            near_by = label[profile.edge_op[profile.edge_ptr[first] : profile.edge_ptr[end]]]
            label[op] = min((value for value in near_by.tolist() if value != _NONE), default=0)
    return label
