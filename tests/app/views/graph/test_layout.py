from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from enplace.names.group_facts import GroupEdges, group_edges
from enplace.names.groups import group_ops, subgroups
from enplace.names.titles import shorter_titles
from enplace.pictures import graph_layout as layout
from enplace_studio.views.graph.scene import card_rects
from problems import profile_of


def grid_profile(layers=2, steps=12, per_step=10):
    names = [
        f"{prefix}lstm{layer}/t{step}/op{i}"
        for prefix in ("", "gradients/")
        for layer in range(layers)
        for step in range(steps)
        for i in range(per_step)
    ]
    return profile_of(dict.fromkeys(names, 5.0), [(a, b, 4) for a, b in pairwise(names)])


def overlaps(arrangement):
    rects = card_rects(arrangement)
    return [(i, j) for i, j in combinations(range(len(rects)), 2) if rects[i].intersects(rects[j])]


def random_edges(n, n_edges):
    random = np.random.default_rng(3)
    ends = np.sort(random.integers(0, n, (n_edges, 2)), axis=1)
    ends = np.unique(ends[ends[:, 0] < ends[:, 1]], axis=0)
    return GroupEdges(ends[:, 0], ends[:, 1], np.ones(len(ends), dtype=np.int64))


@pytest.mark.parametrize("width", [300, 700, 1200, 2500])
def test_cards_never_overlap_in_a_grid(width):
    grouping = group_ops(grid_profile())
    assert layout.is_regular(grouping)
    arrangement = layout.grid(grouping, width)
    assert not overlaps(arrangement)
    assert arrangement.bounds[2] <= max(width, 480)


def test_equal_steps_of_two_layers_share_a_column():
    grouping = group_ops(grid_profile())
    arrangement = layout.grid(grouping, 1400)
    columns = {}
    for group, label in enumerate(grouping.labels):
        columns.setdefault(label, set()).add(arrangement.x[group])
    assert all(len(places) == 1 for places in columns.values())
    assert len({places.pop() for places in columns.values()}) == len(set(grouping.labels))
    lines = {}
    for group, row in enumerate(grouping.rows):
        lines.setdefault(row, set()).add(arrangement.y[group])
    assert [len(line) for line in lines.values()] == [1] * 4


def test_unlike_cards_of_a_row_are_in_the_order_in_which_they_run():
    names = [
        f"{side}net/{part}/op{i}"
        for side in ("", "gradients/")
        for part in ("stem", "blk0", "blk1", "pool", "head")
        for i in range(40)
    ]
    times = dict.fromkeys(names, 5.0)
    grouping = group_ops(profile_of(times, [(a, b, 4) for a, b in pairwise(names)]))
    arrangement = layout.grid(grouping, 1400)
    row = [group for group, row in enumerate(grouping.rows) if row == "net"]
    row.sort(key=lambda group: arrangement.x[group])
    assert [grouping.labels[group] for group in row] == ["stem", "blk 0", "blk 1", "pool", "head"]


@pytest.mark.parametrize(
    ("row", "title"),
    [
        ("gradients of functional / blk 2 / att", "∇ blk 2 / att"),
        ("update of functional / blk 2", "update of blk 2"),
        ("functional / blk 2", "blk 2"),
        ("gradients of functional", "gradients of functional"),
        ("net / encoder / blk 3", "encoder / blk 3"),
        ("gradients of decoder / blk 3", "∇ decoder / blk 3"),
    ],
)
def test_a_row_says_whether_it_is_of_gradients_and_in_which_of_two_scopes_of_one_name(row, title):
    names = "functional / blk 2 / att", "net / encoder / blk 3", "net / decoder / blk 3 / att"
    assert layout._short_title(shorter_titles((*names, row))[row]) == title


def test_short_rows_are_next_to_their_gradients():
    names = [
        f"{prefix}block{b}/unit{u}/op{i}"
        for prefix in ("", "gradients/")
        for b in range(6)
        for u in range(3)
        for i in range(20)
    ]
    profile = profile_of(dict.fromkeys(names, 5.0), [(a, b, 4) for a, b in pairwise(names)])
    grouping = group_ops(profile)
    arrangement = layout.grid(grouping, 970)
    derived = np.array([" of " in row for row in grouping.rows])
    assert arrangement.x[derived].min() > arrangement.x[~derived].max()
    assert not overlaps(arrangement)


def test_layers_follow_the_edges():
    edges = random_edges(40, 90)
    grouping = group_ops(profile_of({f"op{i}": 1.0 for i in range(40)}))
    arrangement = layout.layered(layout.make_boxes(grouping), edges)
    assert (arrangement.y[edges.source] < arrangement.y[edges.target]).all()
    assert not overlaps(arrangement)


def test_a_chain_is_arranged_like_text():
    names = [f"op{i}" for i in range(30)]
    profile = profile_of(dict.fromkeys(names, 1.0), [(a, b, 1) for a, b in pairwise(names)])
    grouping = group_ops(profile)
    assert layout.is_chain(grouping, group_edges(profile, grouping))
    arrangement = layout.reading(grouping, 600)
    order = np.lexsort((arrangement.x, arrangement.y))
    assert np.array_equal(order, np.arange(30))


def test_equal_labels_are_distinguished_by_their_scope():
    names = [f"{scope}/{part}/op{i}" for scope in "abcd" for part in ("x", "y") for i in range(9)]
    profile = profile_of(dict.fromkeys(names, 1.0))
    texts = layout.unique_texts(subgroups(profile, range(profile.n_ops), 8))
    assert "a / x" in texts
    assert len(set(texts)) == 8


def boxes(n, side=()):
    grouping = group_ops(profile_of({f"op{i}": 1.0 for i in range(n)}))
    made = layout.make_boxes(grouping)
    return replace(made, side=np.array([*side, *[0] * (n - len(side))]))


def test_edges_go_from_the_bottom_of_a_box_to_the_top_of_another():
    edges = random_edges(20, 40)
    found = layout.layered(boxes(20), edges)
    for edge, route in enumerate(found.routes):
        source, target = edges.source[edge], edges.target[edge]
        assert 0 <= route[0, 0] - found.x[source] <= layout.WIDE_CARD_W
        assert found.y[source] < route[0, 1] < route[-1, 1] <= found.y[target] + 1e-6


def test_of_a_box_with_a_large_fan_only_the_nearest_edges_are_laid_out():
    edges = GroupEdges(np.zeros(40, dtype=np.int64), np.arange(1, 41), np.ones(40, dtype=np.int64))
    kept = layout.nearest_edges(edges)
    assert edges.target[kept].tolist() == list(range(1, 13))


def test_ports_lie_above_and_below_all_cards():
    ports_last = boxes(5)
    ports_last.side[3:] = -1, 1
    edges = GroupEdges(np.array([3, 0, 0]), np.array([2, 1, 4]), np.ones(3, dtype=np.int64))
    y = layout.layered(ports_last, edges).y
    assert y[3] < y[:3].min()
    assert y[4] > y[:3].max()


def test_gradients_follow_the_model_and_updates_come_last_even_if_a_few_of_their_ops_run_early():
    rows = {"update": [0], "gradients of loss": [1], "encoder": [2, 3], "loss": [4]}
    rows |= {"gradients of encoder": [5, 6]}
    order = [row for row, _ in layout._in_order(rows)]
    assert order == ["encoder", "loss", "gradients of loss", "gradients of encoder", "update"]
