"""Placement as an expert would do it by hand, guided by name scopes and op types.

Each of the three families of models is placed in its own way:

- *stacked*: layers are placed in contiguous blocks, one for each GPU, such that the longest block
  is as short as possible. The embedding goes with the first layer, attention and softmax with the
  last, and backward ops with their forward layer (Pesto, section 5.2).
- *branches*: in models whose cells have parallel branches (NASNet, Inception), the branches of each
  cell are distributed evenly over the GPUs (Pesto, section 5.2). The paper leaves open where the
  next cell begins and where the joins go. Here the least busy GPUs come first, and the joins count
  as one more branch.
- *layers*: the layers of each kind (convolution, normalisation, activation) are dealt out to the
  GPUs in turn (Tarnawski et al. 2020, section 6).

The family can be chosen, and the placement of some ops set by rules. The expert leaves the order
of ops to the framework.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from enplace.names.layers import NONE, LayerName, find_layer_name, named_layers, parts_of, spread
from enplace.names.rules import read_rules
from enplace.option import FILE, Option
from enplace.placing.candidates import best_of, unordered
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import EVERY, placer
from enplace.placing.settle import deciding_op, natural_position, settle
from enplace.values.op_kinds import OpKind
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray, Profile

BRANCHY = 0.4
"""A model belongs to *branches* if ops in branches take at least this share of the compute time."""

CONVOLVED = 0.5
"""A model without named layers belongs to *layers* if convolutions take at least this share."""

MOST_CUT = 100
"""Most layers of a model whose blocks are counted in several ways, and cut in two everywhere."""

HALVINGS = 60
"""Bisection steps for the length of the longest block; more would not change a double."""

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
    "Device of some ops in the expert's plan: a file with lines of REGEX -> DEVICE.",
)

_CONVOLUTIONS = {kind for kind in OpKind if "conv" in kind}
_KINDS = {
    "convolution": re.compile(r"conv", re.IGNORECASE),
    "normalisation": re.compile(r"batch_?norm|layer_?norm", re.IGNORECASE),
    "activation": re.compile(r"^(relu|elu|selu|gelu|sigmoid|tanh|softplus|swish)", re.IGNORECASE),
}


@placer(
    "expert",
    title="Expert, by layer",
    good=(
        "As the reference that other methods are compared with: it is what a person would do by "
        "hand. Where it is close to the bound, keep it, because everybody understands it."
    ),
    source="Pesto, section 5.2 (Middleware 2021); Tarnawski 2020, section 6",
    objectives=EVERY,
    options=(FAMILY, RULES),
)
def expert(problem: Problem, options: PlaceOptions) -> Plan:
    """Place by the model's family, or the family that was chosen, and by the rules given."""
    profile, gpus = problem.profile, problem.cluster.gpus
    parts = parts_of(profile)
    options.stop.check()
    layer_names = [find_layer_name(op_parts) for op_parts in parts]
    options.stop.check()
    work_us = _work_us(problem)
    family = options.choice(FAMILY) or find_family(profile, layer_names, work_us)
    if family == BRANCHES:
        block = deal_branches(profile, layer_names, work_us, len(gpus))
    elif family == LAYERS:
        block = deal_layers(profile, parts, len(gpus))
    else:
        block = stack_layers(problem, layer_names, work_us, len(gpus))
    options.stop.check()
    preferred = np.array(gpus)[block]
    file = options.choice(RULES)
    rules = read_rules(file, problem, options.stop.check) if file else {}
    preferred[list(rules)] = list(rules.values())
    plan = best_of(problem, unordered(problem, settle(problem, preferred), "expert"), options).plan
    return replace(plan, details={"family": family, "ops_by_rule": len(rules)})


def find_family(profile: Profile, layer_names: list[LayerName], work_us: FloatArray) -> str:
    """Find the family of a model from the names and types of the ops that do the work."""
    total_us = work_us.sum()
    in_branch = np.array([bool(name.branch) for name in layer_names])
    if work_us[in_branch].sum() >= BRANCHY * total_us > 0:
        return BRANCHES
    kinds = np.array(layer_kinds(profile))
    convolved = work_us[kinds == "convolution"].sum() >= CONVOLVED * total_us > 0
    nameless = not any(name.layer for name in layer_names)
    return LAYERS if nameless and convolved and "normalisation" in kinds else STACKED


def layer_kinds(profile: Profile) -> list[str]:
    """Classify each op as convolution, normalisation or activation; others get ""."""
    told = list(zip(profile.kinds, profile.op_types, strict=True))
    known = {each: layer_kind(*each) for each in set(told)}
    return [known[each] for each in told]


def layer_kind(op_kind: str, op_type: str) -> str:
    """Classify an op by its kind or, where that does not tell, by its type.

    >>> layer_kind("", "FusedBatchNormGradV3")
    'normalisation'
    >>> layer_kind("elementwise", "Convert")
    ''
    """
    if op_kind in _CONVOLUTIONS:
        return "convolution"
    tells = op_kind not in ("", OpKind.OTHER)  # that it is no convolution
    found = (kind for kind, pattern in _KINDS.items() if pattern.search(op_type))
    return next((kind for kind in found if not (tells and kind == "convolution")), "")


def stack_layers(
    problem: Problem, layer_names: list[LayerName], work_us: FloatArray, n_blocks: int
) -> IntArray:
    """Find the block of each op: layers in order, in contiguous blocks of about equal time.

    An op belongs to the layer of its placement unit's deciding op.
    """
    layer, layer_us = _layers(problem, layer_names, work_us)
    chosen: IntArray = even_blocks(layer_us, n_blocks)[layer]
    return chosen


def stacks(problem: Problem) -> Iterator[IntArray]:
    """Yield placements of layers in contiguous blocks on two GPUs, on three, and so on to all.

    Blocks take equal time, or are even in what people count instead: in weights, as accelerate's
    balanced map, and in layers. On two GPUs, a few layers are cut wherever they can be.
    """
    gpus = np.array(problem.cluster.gpus)
    layer_names = [find_layer_name(parts) for parts in parts_of(problem.profile)]
    layer, layer_us = _layers(problem, layer_names, _work_us(problem))
    held = np.bincount(layer, problem.profile.persistent_bytes).astype(np.float64)
    n_layers = len(layer_us)
    is_short = n_layers <= MOST_CUT
    block_of = [
        even_blocks(counted, n_blocks)
        for counted in (layer_us, held, np.ones(n_layers))[: 3 if is_short else 1]
        for n_blocks in range(2, len(gpus) + 1)
    ]
    if len(gpus) == 2 and is_short:
        block_of += [(np.arange(n_layers) >= cut).astype(np.int64) for cut in range(1, n_layers)]
    for block in {each.tobytes(): each for each in block_of}.values():
        yield settle(problem, gpus[block[layer]])


def _layers(
    problem: Problem, layer_names: list[LayerName], work_us: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Number the layers in order, and sum their work; shapes (n_ops,) and (n_layers,)."""
    label = named_layers(problem.profile, layer_names, work_us)
    if label is None:  # the graph's own order, op by op
        label = natural_position(problem)
    layer = np.unique(label[deciding_op(problem)][problem.unit], return_inverse=True)[1]
    return layer, np.bincount(layer, weights=work_us).astype(np.float64)


def _work_us(problem: Problem) -> FloatArray:
    work_us = problem.time_us[:, problem.cluster.gpus].min(axis=1)
    return np.where(np.isfinite(work_us), work_us, 0.0)


def even_blocks(layer_us: FloatArray, n_blocks: int) -> IntArray:
    """Cut layers into contiguous non-empty blocks such that the longest is as short as possible.

    Earlier blocks take as many layers as that allows.

    Parameters
    ----------
    layer_us : float array, shape (n_layers,)
        Compute time of the layers in order; if there are at most ``n_blocks``, each is a block.
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
    """Find the block ends if each block takes up to a limit but leaves a layer for each later one.

    If the limit is too short, the last block ends before the last layer.
    """
    n_layers, end = len(until_us) - 1, 0
    ends = []
    for following in range(n_blocks - 1, -1, -1):
        fits = int(np.searchsorted(until_us, until_us[end] + limit_us, side="right")) - 1
        end = min(fits, n_layers - following)
        ends.append(end)
    return ends


def deal_branches(
    profile: Profile, layer_names: list[LayerName], work_us: FloatArray, n_blocks: int
) -> IntArray:
    """Find the block of each op: the branches of a cell, longest first, go to the least busy block.

    The load within the cell counts first, then the load of earlier cells. Ops of a cell outside its
    branches, such as joins, count as one more branch.
    """
    cells = {name.layer for name in layer_names if name.branch}
    branch_us: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, work in zip(layer_names, work_us.tolist(), strict=True):
        if name.layer in cells:
            branch_us[name.layer][name.branch] += work
    block: dict[tuple[str, str], int] = {}
    load_us = [0.0] * n_blocks
    for cell, times in branch_us.items():
        in_cell_us = [0.0] * n_blocks
        for branch in sorted(times, key=lambda b: (-times[b], b)):
            least = min(range(n_blocks), key=lambda b: (in_cell_us[b], load_us[b]))
            block[cell, branch] = least
            in_cell_us[least] += times[branch]
            load_us[least] += times[branch]
    return spread(profile, np.array([block.get((h.layer, h.branch), NONE) for h in layer_names]))


def deal_layers(profile: Profile, parts: list[list[str]], n_blocks: int) -> IntArray:
    """Find the block of each op: the layers of each kind go to the blocks in turn.

    Ops of one scope and kind are one layer; backward ops belong to their forward layer.
    """
    seen: dict[str, dict[str, int]] = defaultdict(dict)
    label = np.full(profile.n_ops, NONE)
    kinds = layer_kinds(profile)
    for op in profile.topological_order.tolist():
        if kind := kinds[op]:
            scope = "/".join(parts[op]) or profile.op_names[op]
            label[op] = seen[kind].setdefault(scope, len(seen[kind])) % n_blocks
    return spread(profile, label)
