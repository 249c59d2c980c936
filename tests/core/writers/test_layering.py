from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.pictures.layering import lay_out

WIDTH, HEIGHT = 132.0, 42.0
GAP = (10.0, 40.0)


def laid_out(edges, n, side=None):
    sizes = np.tile([WIDTH, HEIGHT], (n, 1))
    sides = np.zeros(n, dtype=np.int64) if side is None else np.array(side)
    return lay_out(np.array(edges, dtype=np.int64).reshape(-1, 2), sizes, sides, GAP)


def points_on(route, steps=12):
    """Return points of a route, beside those where its curves meet."""
    t = np.linspace(0, 1, steps)[:, None]
    curves = [route[at : at + 4] for at in range(0, len(route) - 1, 3)]
    return np.concatenate([
        (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t**2 * c + t**3 * d
        for a, b, c, d in curves
    ])  # fmt: skip


def crossings(routes):
    found = 0
    for one in range(len(routes)):
        for other in range(one):
            a, b = points_on(routes[one]), points_on(routes[other])
            found += sum(_meet(*p, *q) for p in pairwise(a) for q in pairwise(b))
    return found


def _meet(a, b, c, d):
    def turn(p, q, r):
        return np.sign((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))

    return turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0


graphs = st.integers(1, 14).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] != e[1]),
            max_size=24,
            unique=True,
        ),
    )
)


@given(graphs)
def test_boxes_keep_their_distance_and_edges_keep_off_them(graph):
    n, edges = graph
    middles, routes = laid_out(edges, n)
    for one in range(n):
        for other in range(one):
            apart = np.abs(middles[one] - middles[other]) - (WIDTH + GAP[0], HEIGHT + GAP[1])
            assert apart.max() > -1e-3
    for (source, target), route in zip(edges, routes, strict=True):
        down = 1 if source < target else -1
        assert route[0] == pytest.approx(middles[source] + (0, down * HEIGHT / 2))
        assert route[-1] == pytest.approx(middles[target] - (0, down * HEIGHT / 2))
        for box in set(range(n)) - {source, target}:
            inside = np.abs(points_on(route) - middles[box]) - (WIDTH / 2, HEIGHT / 2)
            assert inside.max(axis=1).min() > -1e-3


def test_a_chain_is_a_straight_line():
    middles, routes = laid_out([(0, 1), (1, 2)], 3)
    assert np.ptp(middles[:, 0]) < 0.1
    assert np.diff(middles[:, 1]) == pytest.approx([HEIGHT + GAP[1]] * 2)
    assert np.ptp(np.concatenate(routes)[:, 0]) < 0.1


def test_a_tree_has_no_crossings():
    edges = [((child - 1) // 2, child) for child in range(1, 31)]
    shuffled = np.random.default_rng(0).permutation(len(edges))
    _, routes = laid_out([edges[at] for at in shuffled], 31)
    assert crossings(routes) == 0


def test_ports_are_above_and_below_everything_else():
    middles, _ = laid_out([(5, 2), (0, 1), (0, 4), (3, 6)], 7, side=[0, 0, 0, 0, 1, -1, 1])
    y = middles[:, 1]
    assert y[5] < y[:4].min()
    assert y[4] == y[6] > y[:4].max()


def test_boxes_without_edges_fill_the_layers_of_the_others():
    chain = [(0, 1), (1, 2), (2, 3)]
    middles, _ = laid_out(chain, 12)
    assert np.unique(np.round(middles[:, 1]), return_counts=True)[1].tolist() == [3, 3, 3, 3]
