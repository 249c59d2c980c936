"""The search against all splits of small models, on mixes of cards."""

import itertools
import json

import numpy as np
import pytest

from enplace.errors import ClusterError, DoesNotFitError
from enplace.serving.costs import Costs, Wanted
from enplace.serving.decoder import make_decoder
from enplace.serving.machine import make_machine
from enplace.serving.others import balanced_split, even_split, split_by_memory
from enplace.serving.search import (
    LATENCY_PER_TOKEN,
    SLACK,
    TOKENS_PER_SECOND,
    fastest_split,
    find_split,
    longest_context,
    most_requests,
)
from enplace.serving.splits import Share, evaluate
from enplace.serving.weights import read_weights
from weight_files import CONFIG

GIB = 1 << 30
CARDS = {
    "rtx-3060": (8, 12),
    "rtx-4080": (16,),
    "rtx-a5000": (20, 24),
    "l40s": (48,),
    "h100": (80,),
}


def _decoder(folder, layers=8, tied=False, window=0):
    """A model of few and large layers: 30 GiB, and up to 4 GiB around them."""
    config = {**CONFIG, "hidden_size": 8192, "num_hidden_layers": layers, "head_dim": 128}
    config |= {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128_000}
    if window:
        kinds = ["sliding_attention", "full_attention"]
        config |= {"sliding_window": window, "layer_types": (kinds * layers)[:layers]}
    shape = [30 * GIB // (2 * layers * 8192), 8192]
    tensors = [
        {"name": "embed.weight", "dtype": "BF16", "shape": [128_000, 8192]},
        {"name": "layers.*.attn.a", "dtype": "F8_E4M3", "shape": shape},
        {"name": "layers.*.mlp.b", "dtype": "BF16", "shape": [shape[0] // 2, 8192]},
    ]
    if not tied:
        tensors.append({"name": "lm_head.weight", "dtype": "BF16", "shape": [128_000, 8192]})
    path = folder / "model.json"
    content = {"format": "enplace-weight-list/1", "config": config, "tensors": tensors}
    path.write_text(json.dumps(content))
    return make_decoder(read_weights(path))


def _all_splits(costs, begin=0):
    """All divisions of the layers from one on, on all cards in all orders."""
    cards = [d for kind in costs.machine.kinds for d in kind.devices]
    n = costs.decoder.n_layers - begin
    for used in range(1, min(len(cards), n) + 1):
        for order in itertools.permutations(cards, used):
            for cuts in itertools.combinations(range(1, n), used - 1):
                counts = np.diff([0, *cuts, n]).tolist()
                yield tuple(map(Share, order, counts))


def _best(costs, value, begin=0, first=()):
    found = (evaluate(costs, (*first, *each)) for each in _all_splits(costs, begin))
    return min((value(each) for each in found if each.fits), default=np.inf)


def _mixes(n):
    """Mixes of three cards of 8 to 80 GB, with what is asked of them."""
    rng = np.random.default_rng(7)
    for number in range(n):
        names = rng.choice(list(CARDS), 3)
        cards = [f"{name}:{rng.choice(CARDS[name])}GiB" for name in names]
        yield number, ",".join(cards), int(rng.integers(1, 9)), int(rng.integers(100, 30_000))


@pytest.mark.parametrize(("number", "cards", "requests", "context"), [*_mixes(20)])
def test_no_split_is_faster_on_any_mix_of_cards(tmp_path, number, cards, requests, context):
    decoder = _decoder(tmp_path, tied=number % 3 == 0, window=1000 * (number % 2))
    costs = Costs(decoder, make_machine(cards), Wanted(context, requests))
    for objective, value in (
        (TOKENS_PER_SECOND, lambda served: served.token_us),
        (LATENCY_PER_TOKEN, lambda served: served.alone_us),
    ):
        best_us = _best(costs, value)
        if best_us == np.inf:
            with pytest.raises(DoesNotFitError):
                fastest_split(costs, objective)
            continue
        found, roomy = fastest_split(costs, objective), find_split(costs, objective)
        assert found.fits
        assert value(found) == pytest.approx(best_us, rel=1e-9)
        assert roomy.fits
        assert value(roomy) <= best_us * (1 + SLACK) * (1 + 1e-9)


@pytest.mark.parametrize("cards", ["rtx-3060:8GiB,rtx-4080,cpu:64GiB", "2*rtx-3060,cpu:64GiB"])
def test_the_host_takes_as_few_layers_as_it_can(tmp_path, cards):
    costs = Costs(_decoder(tmp_path), make_machine(cards), Wanted(4096, 3))
    found, host = fastest_split(costs), costs.machine.host
    first, *rest = found.split
    assert first.device == host
    assert found.fits
    assert all(share.device != host for share in rest)
    begins = range(1, first.n_layers + 1)
    best = [_best(costs, lambda s: s.token_us, n, (Share(host, n),)) for n in begins]
    assert best == [*[np.inf] * (first.n_layers - 1), pytest.approx(found.token_us, rel=1e-9)]


def test_limits_are_the_largest_that_some_split_fits(tmp_path):
    decoder, machine = _decoder(tmp_path), make_machine("rtx-3060,rtx-a5000,rtx-4080")
    costs = Costs(decoder, machine, Wanted(1000, 2))
    context, requests = longest_context(costs), most_requests(costs)

    def fits(context, requests):
        return _best(Costs(decoder, machine, Wanted(context, requests)), lambda s: 1.0) == 1.0

    assert context == 4096 or not fits(context + 1, 2)
    assert fits(context, 2)
    assert fits(1000, requests)
    assert not fits(1000, requests + 1)


def test_a_split_leaves_room_where_another_is_as_fast(tmp_path):
    costs = Costs(_decoder(tmp_path, 16), make_machine("4*h100"), Wanted(1000, 1))
    assert len(fastest_split(costs, LATENCY_PER_TOKEN).split) < 4
    assert [share.n_layers for share in find_split(costs).split] == [4, 4, 4, 4]


def test_requests_in_groups_keep_all_cards_busy(tmp_path):
    machine = make_machine("2*h100")
    found = find_split(Costs(_decoder(tmp_path), machine, Wanted(30_000, 16)))
    assert found.n_groups == 2
    assert min(found.busy) > 0.85
    alone = find_split(Costs(_decoder(tmp_path), machine, Wanted(30_000, 1)))
    assert alone.token_us == alone.alone_us


def test_a_cluster_that_does_not_say_its_cards_is_refused():
    with pytest.raises(ClusterError, match=r'GPU:0 does not say which card .* "model": "rtx-4090"'):
        make_machine("pcie-2")
    with pytest.raises(ClusterError, match=r"did you mean 'rtx-4090'\?"):
        make_machine("rtx-409")
    with pytest.raises(ClusterError, match="'cpu': write a size after the colon"):
        make_machine("h100,cpu")
    with pytest.raises(ClusterError, match="has 65 cards"):
        make_machine("65*h100")


def test_cards_at_different_places_are_of_different_kinds():
    assert [kind.devices for kind in make_machine("h100-4-nvlink").kinds] == [(0, 1, 2, 3)]
    machine = make_machine("l4,h100,l4,l4:20GiB,cpu:8GiB")
    assert [kind.devices for kind in machine.kinds] == [(0, 2), (1,), (3,)]
    assert machine.host == 4
    assert [d.capacity_bytes // GIB for d in machine.cluster.devices] == [21, 79, 21, 19, 8]


@pytest.mark.parametrize(
    ("cards", "counts"),
    [
        ("2*rtx-4090,cpu:128GiB", [11, 14, 55]),
        ("h100,l40s:48GiB,rtx-4090,cpu:512GiB", [26, 28, 14, 12]),
        ("3*l40s:48GiB,rtx-4090,cpu:512GiB", [19, 21, 21, 14, 5]),
    ],
)
def test_accelerates_split_is_that_of_accelerate(cards, counts):
    """These are the counts of accelerate 1.15 for this model and this memory."""
    decoder = make_decoder(read_weights("llama-3-70b"))
    costs = Costs(decoder, make_machine(cards), Wanted(1024, 1))
    assert [share.n_layers for share in balanced_split(costs)] == counts


def test_splits_of_vllm_and_llama_cpp(tmp_path):
    costs = Costs(_decoder(tmp_path, 14), make_machine("3*l4,l40s"), Wanted(1024, 1))
    assert [share.n_layers for share in even_split(costs)] == [3, 4, 4, 3]
    assert [share.n_layers for share in split_by_memory(costs)] == [3, 3, 3, 5]
