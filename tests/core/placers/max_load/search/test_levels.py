"""Clusters of units, against a version to read, and what they do to loads and memory."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enplace.placers.max_load.search.clusters import LIGHT, MOST_PINS, Neighbours, cluster
from enplace.placers.max_load.search.descent import draw_placement
from enplace.placers.max_load.search.hypergraph import build_hypergraph, held_bytes, loads_us
from enplace.placers.max_load.search.levels import merge_units
from enplace.values.load_rule import PIPELINES, TRANSFERS, LoadRule
from problems import on_own_chips, planned_problems


@st.composite
def neighbours(draw):
    """Draw up to twelve units, some hyperedges between them, and where they may be."""
    n = draw(st.integers(2, 12))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    pins = [
        np.sort(rng.choice(n, size=rng.integers(2, min(n, 4) + 1), replace=False))
        for _ in range(draw(st.integers(0, 15)))
    ]
    allowed = rng.random((n, 3)) < 0.8
    allowed[:, 0] |= ~allowed.any(axis=1)
    return Neighbours(
        rng.integers(0, 4, n) / 10,
        allowed,
        rng.integers(0, draw(st.integers(1, 2)), n),
        np.cumsum([0, *map(len, pins)]),
        np.concatenate([np.zeros(0, np.int64), *pins]).astype(np.int64),
        rng.integers(0, 5, len(pins)).astype(float),
    )


def cluster_slowly(units, fewest, largest, rng):
    """Join each lone unit with the cluster that has the most traffic for both sizes."""
    n = len(units.size)
    members, allowed = {unit: [unit] for unit in range(n)}, units.allowed.copy()
    size = units.size.copy()
    for unit in rng.permutation(n).tolist():
        if len(members) <= fewest:
            break
        if len(members.get(unit, [])) != 1:
            continue
        heavy = {}
        for edge, weight in enumerate(units.weight.tolist()):
            pins = units.pin[units.ptr[edge] : units.ptr[edge + 1]].tolist()
            if unit not in pins or len(pins) > MOST_PINS or weight == 0:
                continue
            for pin in pins:
                (other,) = (first for first, inside in members.items() if pin in inside)
                if other != unit:
                    heavy[other] = heavy.get(other, 0.0) + weight / (len(pins) - 1)
        light = LIGHT * largest
        score = {
            other: traffic / np.sqrt((size[unit] + light) * (size[other] + light))
            for other, traffic in heavy.items()
            if units.kind[other] == units.kind[unit]
            and size[unit] + size[other] <= largest
            and (allowed[unit] & allowed[other]).any()
        }
        if score:
            best = max(score, key=score.__getitem__)
            members[best] += members.pop(unit)
            size[best] += size[unit]
            allowed[best] &= allowed[unit]
    label = np.zeros(n, dtype=np.int64)
    for number, first in enumerate(sorted(members)):
        label[members[first]] = number
    return label


@given(units=neighbours(), fewest=st.integers(1, 6), seed=st.integers(0, 99))
def test_clusters_agree_with_a_version_to_read(units, fewest, seed):
    found = cluster(units, fewest, 0.6, np.random.default_rng(seed))
    expected = cluster_slowly(units, fewest, 0.6, np.random.default_rng(seed))
    np.testing.assert_array_equal(found, expected)


@given(planned=planned_problems(), seed=st.integers(0, 99))
def test_clusters_have_the_loads_and_the_memory_of_their_units(planned, seed):
    draw = np.random.default_rng(seed)
    rule = LoadRule(draw.choice(TRANSFERS), draw.choice(PIPELINES))
    graph = build_hypergraph(on_own_chips(planned[0]), rule)
    label = np.unique(draw.integers(0, graph.n_units, graph.n_units), return_inverse=True)[1]
    merged = merge_units(graph, label)
    placed = draw_placement(merged, draw)
    np.testing.assert_allclose(loads_us(merged, placed), loads_us(graph, placed[label]))
    np.testing.assert_array_equal(held_bytes(merged, placed), held_bytes(graph, placed[label]))


def test_the_layers_of_a_stack_become_clusters():
    """Four layers of four units: much traffic inside, little between them."""
    ends = [
        (4 * layer + i, 4 * layer + j) for layer in range(4) for i in range(4) for j in range(i)
    ]
    between = [(4 * layer + 3, 4 * layer + 4) for layer in range(3)]
    pins = np.sort(np.array(ends + between), axis=1)
    units = Neighbours(
        np.full(16, 1 / 16),
        np.ones((16, 2), dtype=bool),
        np.zeros(16, dtype=np.int64),
        np.arange(len(pins) + 1) * 2,
        pins.ravel(),
        np.array([9.0] * len(ends) + [1.0] * len(between)),
    )
    label = cluster(units, 4, 0.25, np.random.default_rng(0))
    assert [len(set(label[4 * layer : 4 * layer + 4])) for layer in range(4)] == [1, 1, 1, 1]
