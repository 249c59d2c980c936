"""What an expert would do by hand, read off the name scopes and op types.

There are three families of models, each with its own way:

- *stacked*: whole layers, in contiguous blocks of about equal time (the longest is as short as can
  be), one block to each GPU; the embedding goes with the first layer, attention and softmax behind
  the last, backward ops with their forward layer (Pesto, section 5.2).
- *branches*: of models whose cells have parallel branches (NASNet, Inception), the branches of each
  cell are dealt out evenly to the GPUs (Pesto, section 5.2). The paper leaves open where the next
  cell begins, and its joins: GPUs that had least to do come first, and joins are one branch more.
- *layers*: convolution, normalisation and activation layers are dealt out in turn, each kind for
  itself (Tarnawski et al. 2020, section 6).

A person may name the family, and write rules that say for some ops where they go. An expert places
and leaves the order to TensorFlow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np

from enplace.names.layers import NONE, Home, find_home, named_layers, parts_of, spread
from enplace.names.rules import read_rules
from enplace.placing.candidates import best_of, unordered
from enplace.placing.options import FILE, Option, PlaceOptions
from enplace.placing.registry import EVERY, placer
from enplace.placing.settle import deciding_op, natural_position, settle
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray, Profile

BRANCHY = 0.4
"""Branches are dealt out if their ops hold at least this share of the compute time."""

CONVOLVED = 0.5
"""Without layers in the names, they are dealt out if convolutions take so much of the time."""

HALVINGS = 60
"""Steps to the length of the longest block; more change nothing in double precision."""

STACKED, BRANCHES, LAYERS = "stacked", "branches", "layers"
FAMILY = Option(
    "family",
    (STACKED, BRANCHES, LAYERS),
    "",
    "How the expert places the model: layers in blocks, branches of each cell dealt out, or "
    "convolution, normalisation and activation layers in turn. [default: recognised]",
)
RULES = Option(
    "rules",
    FILE,
    "",
    "Where some ops go in the expert's plan: a file with lines of REGEX -> DEVICE.",
)

_KINDS = {
    "convolution": re.compile(r"conv", re.IGNORECASE),
    "normalisation": re.compile(r"batch_?norm|layer_?norm", re.IGNORECASE),
    "activation": re.compile(r"^(relu|elu|selu|gelu|sigmoid|tanh|softplus|swish)", re.IGNORECASE),
}


@placer(
    "expert",
    title="Expert, by layer",
    source="Pesto, section 5.2 (Middleware 2021); Tarnawski 2020, section 6",
    objectives=EVERY,
    options=(FAMILY, RULES),
)
def expert(problem: Problem, options: PlaceOptions) -> Plan:
    """Place by the model's family, or the one that a person names, and by a person's rules."""
    profile, gpus = problem.profile, problem.cluster.gpus
    parts = parts_of(profile)
    options.check_cancelled()
    homes = [find_home(op_parts) for op_parts in parts]
    options.check_cancelled()
    work_us = problem.time_us[:, gpus].min(axis=1)
    work_us = np.where(np.isfinite(work_us), work_us, 0.0)
    family = options.choice(FAMILY) or find_family(profile, homes, work_us)
    if family == BRANCHES:
        block = deal_branches(profile, homes, work_us, len(gpus))
    elif family == LAYERS:
        block = deal_layers(profile, parts, len(gpus))
    else:
        block = stack_layers(problem, homes, work_us, len(gpus))
    options.check_cancelled()
    wish = np.array(gpus)[block]
    file = options.choice(RULES)
    rules = read_rules(file, problem) if file else {}
    wish[list(rules)] = list(rules.values())
    plan = best_of(problem, unordered(problem, settle(problem, wish), "expert"), options).plan
    return replace(plan, details={"family": family, "ops_by_rule": len(rules)})


def find_family(profile: Profile, homes: list[Home], work_us: FloatArray) -> str:
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


def stack_layers(
    problem: Problem, homes: list[Home], work_us: FloatArray, n_blocks: int
) -> IntArray:
    """Block of each op: layers in order of appearance, in contiguous blocks of about equal time.

    An op counts for the layer that its placement unit goes with.
    """
    label = named_layers(problem.profile, homes, work_us)
    if label is None:  # the graph's own order, op by op
        label = natural_position(problem)
    layer = np.unique(label[deciding_op(problem)][problem.unit], return_inverse=True)[1]
    layer_us = np.bincount(layer, weights=work_us).astype(np.float64)
    chosen: IntArray = even_blocks(layer_us, n_blocks)[layer]
    return chosen


def even_blocks(layer_us: FloatArray, n_blocks: int) -> IntArray:
    """Block of each layer: contiguous blocks, none empty, of which the longest is the shortest.

    Each block takes as much as that allows, the first one first.

    Parameters
    ----------
    layer_us : float array, shape (n_layers,)
        Compute time of the layers in their order; fewer than ``n_blocks`` are a block each.
    """
    n_blocks = min(n_blocks, len(layer_us))
    until_us = np.concatenate([[0.0], np.cumsum(layer_us)])
    too_short_us, limit_us = 0.0, float(until_us[-1])
    for _ in range(HALVINGS):
        middle_us = (too_short_us + limit_us) / 2
        if _block_ends(until_us, n_blocks, middle_us)[-1] == len(layer_us):
            limit_us = middle_us
        else:
            too_short_us = middle_us
    ends = _block_ends(until_us, n_blocks, limit_us)
    return np.searchsorted(ends, np.arange(len(layer_us)), side="right").astype(np.int64)


def _block_ends(until_us: FloatArray, n_blocks: int, limit_us: float) -> list[int]:
    """Where each block ends if it takes up to a limit, and leaves a layer for each that follows.

    The last ends before the last layer if the limit is too short.
    """
    n_layers, end = len(until_us) - 1, 0
    ends = []
    for following in range(n_blocks - 1, -1, -1):
        fits = int(np.searchsorted(until_us, until_us[end] + limit_us, side="right")) - 1
        end = min(fits, n_layers - following)
        ends.append(end)
    return ends


def deal_branches(
    profile: Profile, homes: list[Home], work_us: FloatArray, n_blocks: int
) -> IntArray:
    """Block of each op: in each cell the longest branch first, to the least busy block.

    The least busy is so in the cell, and of equals in the cells before. What a cell has outside
    its branches, such as their joins, is one more branch.
    """
    cells = {home.layer for home in homes if home.branch}
    branch_us: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for home, work in zip(homes, work_us.tolist(), strict=True):
        if home.layer in cells:
            branch_us[home.layer][home.branch] += work
    block: dict[tuple[str, str], int] = {}
    load_us = [0.0] * n_blocks
    for cell, times in branch_us.items():
        in_cell_us = [0.0] * n_blocks
        for branch in sorted(times, key=lambda b: (-times[b], b)):
            least = min(range(n_blocks), key=lambda b: (in_cell_us[b], load_us[b]))
            block[cell, branch] = least
            in_cell_us[least] += times[branch]
            load_us[least] += times[branch]
    return spread(profile, np.array([block.get((h.layer, h.branch), NONE) for h in homes]))


def deal_layers(profile: Profile, parts: list[list[str]], n_blocks: int) -> IntArray:
    """Block of each op: of each kind of layer the first to the first block, and so on in turn.

    Ops of one scope and kind are one layer, backward ones with their forward layer.
    """
    seen: dict[str, dict[str, int]] = defaultdict(dict)
    label = np.full(profile.n_ops, NONE)
    for op in profile.topological_order.tolist():
        if kind := layer_kind(profile.op_types[op]):
            scope = "/".join(parts[op]) or profile.op_names[op]
            label[op] = seen[kind].setdefault(scope, len(seen[kind])) % n_blocks
    return spread(profile, label)
