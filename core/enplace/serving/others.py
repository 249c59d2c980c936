"""The splits that other programs make by themselves, by their own rules.

vLLM: ``get_pp_indices`` of ``vllm/distributed/utils.py``, equal numbers of layers. llama.cpp:
``load_tensors`` of ``llama-model.cpp``, in proportion to free memory. accelerate:
``get_balanced_memory`` and ``infer_auto_device_map`` of ``accelerate/utils/modeling.py``, equal
bytes of weights, with room for one and a quarter layers more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from enplace.frameworks.fill_cards import BUFFER, fill_cards
from enplace.serving.costs import Costs
from enplace.serving.splits import Served, Share, Split, evaluate


def other_splits(costs: Costs) -> dict[str, Served]:
    """Return what other programs' splits come to, by who makes them."""
    found = {
        "vLLM, even": even_split(costs),
        "llama.cpp, by memory": split_by_memory(costs),
        "accelerate, balanced": balanced_split(costs),
    }
    return {name: evaluate(costs, split) for name, split in found.items() if split}


def even_split(costs: Costs) -> Split:
    """Give every card as many layers; those left over go to the cards before the last one."""
    cards, n_layers = _cards(costs), costs.decoder.n_layers
    if len(cards) > n_layers:
        return ()
    least, more = divmod(n_layers, len(cards))
    counts = [least] * len(cards)
    for at in range(2, more + 2):
        counts[-at % len(cards)] += 1
    return tuple(map(Share, cards, counts))


def split_by_memory(costs: Costs) -> Split:
    """Give every card a share of the layers, the output among them, like that of its memory."""
    cards, n_layers = _cards(costs), costs.decoder.n_layers
    ends = [*accumulate(costs.machine.cluster.devices[card].capacity_bytes for card in cards)]
    shares = [end / ends[-1] for end in ends]
    on = [bisect_right(shares, at / (n_layers + 1)) for at in range(n_layers + 1)]
    counts = Counter(on[:-1])
    return tuple(Share(cards[at], counts[at]) for at in sorted({*on}))


def balanced_split(costs: Costs) -> Split:
    """Fill the cards in turn up to equal bytes of weights; the host takes what is left over.

    Without a host, the last card has to.
    """
    decoder, machine = costs.decoder, costs.machine
    cards, devices = _cards(costs), machine.cluster.devices
    head = decoder.last_bytes + (0 if decoder.is_tied else decoder.head_bytes)
    modules = [decoder.first_bytes, *map(int, decoder.layer_bytes), head]
    share = decoder.n_bytes // len(cards) + int(BUFFER * max(modules[1:-1]))
    capacity_bytes = [devices[card].capacity_bytes for card in cards]
    if len(cards) == 1:
        capacity_bytes = [int(0.9 * each) for each in capacity_bytes]
    on = fill_cards(modules, share, capacity_bytes)
    used = [*cards, cards[-1] if machine.host is None else machine.host]
    counts = Counter(used[at] for at in on[1:-1])
    return tuple(Share(device, counts[device]) for device in dict.fromkeys(used[at] for at in on))


def _cards(costs: Costs) -> Sequence[int]:
    return sorted(device for kind in costs.machine.kinds for device in kind.devices)
