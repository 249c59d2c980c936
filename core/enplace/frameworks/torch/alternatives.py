"""What people who use PyTorch pick without a planner: rules of thumb, each of which is a split.

All split the model between blocks, in the order of its parameters or of its layers:

- *balanced*: accelerate's ``device_map="balanced"`` (its guide to big models, "Designing a device
  map"): each card but the last takes modules in turn while they are within an equal share of all
  weights and a buffer of 1.25 times the largest block, or the mean module if that is more; the
  first card keeps room for the largest module that is not placed yet. What fits nowhere goes to the
  CPU. Only weights count: neither states of an optimiser nor activations.
- *even layers*: as many layers on each card; earlier ones take what is left over.
- *torchtitan*: the embedding counts as one layer more and the output as another, and then the
  stages are as even (``generate_llm_fqn_per_model_part``, with its weights of 1).

For schedules with two stages on each card, both rules count the layers of twice as many stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from enplace.frameworks.fill_cards import BUFFER, fill_cards
from enplace.frameworks.torch.device_map import PARAMETERS, block_of
from enplace.frameworks.torch.fsdp import block_bytes, predict_fsdp, weight_bytes
from enplace.frameworks.torch.names import scope_of_module
from enplace.names.layers import NONE, spread
from enplace.names.passes import split_pass
from enplace.names.whole import LayerChain, find_chain
from enplace.placers.alternatives import at_once, per_sample, split_as_alternative
from enplace.placing.settle import position_by_start
from enplace.text import count
from enplace.values.arrays import IntArray
from enplace.values.load_rule import LoadRule
from enplace.values.problem import LATENCY, STEP_TIME, Problem
from enplace.values.profile import Profile
from enplace.values.result import Alternative

BALANCED, EVEN, TITAN = 'device_map="balanced"', "even layers", "torchtitan's rule"

TWICE = {"interleaved": 1, "zbv": -1}
"""The schedules with two stages on each card, and the order of the second ones."""


def find_torch_alternatives(
    problem: Problem, objective: str, rule: LoadRule, cancelled: Callable[[], bool]
) -> list[Alternative]:
    """Predict what people pick instead of a plan, whatever the constraints of the problem.

    Parameters
    ----------
    rule : LoadRule
        The schedule of pipelines, for the throughput.
    """
    gpus, has = problem.cluster.gpus, problem.measured_profile.measured.config.get(PARAMETERS)
    if len(gpus) < 2 or objective == LATENCY or not has:
        return []
    free = Problem(problem.measured_profile, problem.cluster)
    if objective == STEP_TIME:
        found = [predict_fsdp(free, cancelled)]
    else:
        fsdp = predict_fsdp(at_once(free, rule.microbatches), cancelled)
        found = [fsdp and per_sample(fsdp, rule.microbatches)]
    if not cancelled():
        found.append(_balanced(free, objective, rule))
    chain = find_chain(free.profile)
    if chain is not None:
        cards = [*gpus, *gpus[:: TWICE[rule.pipeline]]] if rule.pipeline in TWICE else gpus
        for name, counts in (
            (EVEN, count_even(len(chain.ops), len(cards))),
            (TITAN, count_as_torchtitan(len(chain.ops), len(cards))),
        ):
            if counts and not cancelled():
                found.append(_stages(free, chain, name, counts, cards, objective, rule))
    return [each for each in found if each is not None]


def count_even(n_layers: int, n_stages: int) -> list[int]:
    """Count the layers of each stage if all have as many; earlier ones take what is left over.

    >>> count_even(7, 3)
    [3, 2, 2]
    """
    return [n_layers // n_stages + (at < n_layers % n_stages) for at in range(n_stages)]


def count_as_torchtitan(n_layers: int, n_stages: int) -> list[int]:
    """Count the layers of each stage as torchtitan does; empty if there are too few for that.

    >>> count_as_torchtitan(6, 4), count_as_torchtitan(6, 9)
    ([1, 2, 2, 1], [])
    """
    if n_stages > n_layers + 2:
        return []
    counts = count_even(n_layers + 2, n_stages)
    counts[0] -= 1
    counts[-1] -= 1
    return counts


def _stages(
    problem: Problem,
    chain: LayerChain,
    name: str,
    counts: Sequence[int],
    cards: Sequence[int],
    objective: str,
    rule: LoadRule,
) -> Alternative:
    """Predict stages of consecutive layers."""
    profile = problem.profile
    stage = np.full(profile.n_ops, NONE)
    of_layer = np.repeat(np.arange(len(counts)), counts)
    for ops, at in zip(chain.ops, of_layer.tolist(), strict=True):
        stage[ops] = at
    ends = {profile.scopes[op]: 0 for op in chain.before.tolist()}
    ends |= {profile.scopes[op]: len(counts) - 1 for op in chain.after.tolist()}
    stage = fill_by_scope(profile, stage, lambda scope: ends.get(scope, NONE))
    about = f"Layers on each card: {', '.join(map(str, counts))}."
    # A weight that several layers read is with the first of them, wherever it is read earlier.
    position = position_by_start(problem, stage.astype(np.float64))
    preferred = np.array(cards)[stage]
    return split_as_alternative(problem, name, preferred, objective, rule, about, position)


def fill_by_scope(profile: Profile, label: IntArray, of_scope: Callable[[str], int]) -> IntArray:
    """Label ops without a label by the scope of their module, and others as those around them.

    Parameters
    ----------
    label : int array, shape (n_ops,)
        :data:`~enplace.names.layers.NONE` where there is none; it is filled in place.
    of_scope : callable
        Returns the label of a scope, or :data:`~enplace.names.layers.NONE`.

    Returns
    -------
    int array, shape (n_ops,)
    """
    for op in np.flatnonzero(label == NONE).tolist():
        label[op] = of_scope(split_pass(profile.scopes[op])[1])
    return spread(profile, label)


def _balanced(problem: Problem, objective: str, rule: LoadRule) -> Alternative:
    """Predict the map of accelerate."""
    profile, gpus = problem.profile, problem.cluster.gpus
    card = balanced_map(profile, problem.cluster.capacity_bytes[gpus].tolist())
    off = [block for block, at in card.items() if at == len(gpus)]
    label = np.full(profile.n_ops, NONE)
    label = fill_by_scope(
        profile, label, lambda scope: card.get(block_of(scope), NONE) if scope else NONE
    )
    preferred = np.array([*gpus, gpus[-1]])[label]
    found = split_as_alternative(problem, BALANCED, preferred, objective, rule)
    if not off:
        return found
    why = f"it leaves {count(len(off), 'module')} to the CPU"
    return replace(found, why_not=why)


def balanced_map(profile: Profile, capacity_bytes: Sequence[int]) -> dict[str, int]:
    """Return the number of the card of each block as accelerate balances them, by its scope.

    Parameters
    ----------
    capacity_bytes : sequence of int
        Of each card. A card's number that is their count stands for the CPU.
    """
    size = dict(block_bytes(profile))
    leaf: dict[str, int] = {}
    home: dict[str, str] = {}  # of blocks that share a weight, the first
    first: dict[str, str] = {}
    held = weight_bytes(profile)
    for path, op in profile.measured.config[PARAMETERS].items():
        module = scope_of_module(path.rpartition(".")[0])
        block = first.setdefault(op, block_of(module))
        home[block_of(module)] = home.get(block, block)
        if block == block_of(module):
            leaf[module] = leaf.get(module, 0) + int(held[profile.index[op]])
    numbered = [size.get(block, 0) for block in home if block_of(f"{block}/x") == block]
    buffer = int(BUFFER * max(max(numbered, default=0), sum(leaf.values()) // max(len(leaf), 1)))
    share = sum(size.values()) // len(capacity_bytes) + buffer
    blocks = [block for block in home if home[block] == block]
    cards = fill_cards([size.get(block, 0) for block in blocks], share, capacity_bytes)
    card = dict(zip(blocks, cards, strict=True))
    return {block: card[home[block]] for block in home}
