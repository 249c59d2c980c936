import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.names.groups import (
    group_ops,
    name_ops,
    open_groups,
    subgroups,
    turn_groups,
    visible_ops,
)
from enplace.names.paths import index_ops
from enplace.values.limits import MOST_DEPTH
from problems import profile_of, profiles


def recurrent(layers: int = 2, steps: int = 35, per_step: int = 8):
    """Return unrolled recurrent layers and their gradients, named as TensorFlow names them."""
    times, edges = {}, []
    for prefix in ("", "gradients/"):
        for layer in range(layers):
            for step in range(steps):
                scope = f"{prefix}lstm{layer}/t{step}"
                ops = [f"{scope}/op_{i}" for i in range(per_step)]
                times |= dict.fromkeys(ops, 10.0)
                edges += [(a, b, 4) for a, b in pairwise(ops)]
                before = f"{prefix}lstm{layer}/t{step - 1}/op_0"
                if step:
                    edges.append((before, ops[0], 4))
                if prefix:
                    edges.append((ops[0].removeprefix(prefix), ops[0], 4))
    return profile_of(times, edges)


def by_row(grouping):
    rows = {}
    for row, label in zip(grouping.rows, grouping.labels, strict=True):
        rows.setdefault(row, []).append(label)
    return rows


@given(profiles(), st.integers(1, 8))
def test_every_op_is_in_one_group_and_names_are_unique(profile, target):
    grouping = group_ops(profile, target)
    assert np.array_equal(np.unique(grouping.group), np.arange(grouping.n_groups))
    assert len(set(grouping.names)) == len(grouping.rows) == len(grouping.labels)
    members = np.concatenate([grouping.ops(group) for group in range(grouping.n_groups)])
    assert np.array_equal(np.sort(members), np.arange(profile.n_ops))


def test_a_layer_whose_name_is_another_layers_and_a_number_is_in_a_group():
    """As Keras names them: the second layer's stem, dense_1, is the name of the first."""
    layers = ["dense_1", "dense_1_2", "head"]
    profile = profile_of({f"model/{layer}/op_{i}": 10.0 for layer in layers for i in range(40)}, [])
    assert group_ops(profile).sizes.sum() == profile.n_ops


def test_unrolled_layers_become_a_grid_of_equal_ranges():
    rows = by_row(group_ops(recurrent()))
    assert set(rows) == {"lstm 0", "lstm 1", "gradients of lstm 0", "gradients of lstm 1"}
    assert len({frozenset(labels) for labels in rows.values()}) == 1
    labels = rows["lstm 0"]
    assert labels[0] == "t 0–2"
    assert len(labels) == 12
    assert all(re.fullmatch(r"t \d+–\d+", label) for label in labels)


def test_full_names_contain_row_and_label():
    grouping = group_ops(recurrent())
    assert "gradients of lstm 1 / t 3–5" in grouping.names
    assert "lstm 0 / t 0–2" in grouping.names


def test_numbered_layers_without_a_parent_share_a_row():
    names = {
        f"encoder/layer_{i}/{part}/op{k}": 5.0 for i in range(12) for part in "ab" for k in "xyz"
    }
    rows = by_row(group_ops(profile_of(names), 6))
    assert [label.split("–")[0] for label in rows["layer"]][:2] == ["layer 0", "layer 2"]


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        ("conv1_2", "conv 1.2"),
        ("Mixed_5b", "Mixed 5b"),
        ("cell_0_3", "cell 0.3"),
        ("softmax", "softmax"),
        ("enc3", "enc 3"),
        ("fc_out", "fc out"),
    ],
)
def test_group_names_are_made_readable(scope, name):
    ops = {f"{head}/op{i}": 1.0 for head in (scope, "another") for i in range(4)}
    assert set(group_ops(profile_of(ops), 2).names) == {name, "another"}


def test_dotted_names_and_bare_numbers_count_as_scopes():
    ops = {f"bert.layer.{i}.dense.op{k}": 1.0 for i in range(3) for k in range(5)}
    assert set(group_ops(profile_of(ops), 3).names) == {f"bert / layer {i}" for i in range(3)}


def test_ops_without_a_scope_join_their_neighbours():
    ops = {f"a/op{i}": 1.0 for i in range(4)} | {f"b/op{i}": 1.0 for i in range(4)} | {"add_7": 1.0}
    profile = profile_of(ops, [("a/op3", "add_7", 1), ("add_7", "b/op0", 1)])
    grouping = group_ops(profile, 2)
    assert set(grouping.names) == {"a", "b"}
    assert grouping.names[grouping.group[profile.index["add_7"]]] == "a"


def test_the_gradient_scope_of_one_op_is_not_a_group():
    ops = {f"gradients/a/MatMul_{i}_grad/{part}": 1.0 for i in range(4) for part in "xy"}
    ops |= {f"a/op{i}": 1.0 for i in range(8)}
    assert set(group_ops(profile_of(ops), 2).names) == {"a", "gradients of a"}


def test_ops_without_scopes_are_grouped_in_execution_order():
    names = [f"node{i}" for i in range(300)]
    profile = profile_of(dict.fromkeys(names, 1.0), [(a, b, 1) for a, b in pairwise(names)])
    grouping = group_ops(profile)
    assert 24 <= grouping.n_groups <= 48
    assert (np.diff(grouping.group) >= 0).all()
    assert grouping.names[0].startswith("node0 … ")


def test_labels_of_unnamed_groups_differ_at_the_start():
    """Without scopes many ops have similar names, and a card shows only the start of a label."""
    names = [f"op_{i}_grad/MatMul" for i in range(300)]
    profile = profile_of(dict.fromkeys(names, 1.0), [(a, b, 1) for a, b in pairwise(names)])
    kinds = tuple("Tanh" if op % 3 else "MatMul" for op in range(300))
    labels = group_ops(replace(profile, op_types=kinds)).labels
    assert len({label[:3] for label in labels}) == len(labels) > 20
    assert labels[4] == "5: Tanh"


def test_each_of_few_ops_is_a_group():
    grouping = group_ops(profile_of({"a/MatMul": 1.0, "b/Add": 1.0}))
    assert grouping.names == ("a/MatMul", "b/Add")
    assert grouping.labels == ("MatMul", "Add")


def test_few_ops_are_groups_where_they_are_in_numbered_blocks_of_many():
    many = [f"net/blk{block}/op{op}" for block in range(4) for op in range(8)]
    grouping = group_ops(profile_of(dict.fromkeys([*many, "head/MatMul"], 1.0)))
    assert set(grouping.names) == {"head", *(f"net / blk {block}" for block in range(4))}
    few = [name for name in many if not name.endswith("7")]
    assert set(group_ops(profile_of(dict.fromkeys(few, 1.0))).names) == set(few)


def test_a_single_op_is_a_group():
    assert group_ops(profile_of({"only": 1.0})).names == ("only",)


def test_a_group_can_be_opened_down_to_its_ops():
    profile = recurrent()
    grouping = group_ops(profile)
    inside = subgroups(profile, grouping.ops(0), target=4)
    assert set(inside.labels) == {"t 0", "t 1", "t 2"}
    assert ((inside.group >= 0) == (grouping.group == 0)).all()
    ops = subgroups(profile, inside.ops(0), target=8)
    assert sorted(ops.labels) == [f"op_{i}" for i in range(8)]


def turned(profile, grouping, ops):
    return open_groups(profile, turn_groups(profile, grouping, ops))


def test_groups_open_and_close_scope_by_scope():
    parts = [f"net/layer_{i}/{part}" for i in range(99) for part in "ab"]
    names = [f"{part}/{op}" for part in parts for op in "xy"]
    profile = profile_of({**dict.fromkeys(names, 10.0), "net/layer_98/norm": 1.0})
    whole = group_ops(profile)
    last = whole.ops(whole.group[profile.index["net/layer_98/norm"]])
    layers = turned(profile, whole, last)
    (name,) = layers.opened
    assert name == whole.names[whole.group[last[0]]]
    assert {"net / layer 97", "net / layer 98"} <= set(layers.names)
    assert name_ops(profile, last.tolist(), layers) == name
    layer = layers.ops(layers.names.index("net / layer 98"))
    inner = turned(profile, layers, layer)
    assert [*inner.opened] == [name, "net / layer 98"]
    assert {"net / layer 98 / a", "net / layer 98 / rest"} <= set(inner.names)
    assert inner.sizes.sum() == profile.n_ops
    assert turned(profile, inner, last).names == whole.names
    norm = [profile.index["net/layer_98/norm"]]
    assert turned(profile, inner, norm).names == layers.names  # it has no parts: its layer closes
    assert turned(profile, layers, last).names == whole.names


def test_groups_have_similar_sizes():
    profile = recurrent(layers=3, steps=20)
    sizes = np.bincount(group_ops(profile).group)
    assert sizes.max() <= 3 * np.median(sizes)


def test_a_selection_is_named_after_its_groups_or_ops():
    profile = recurrent()
    grouping = group_ops(profile)
    first = grouping.ops(0).tolist()
    assert name_ops(profile, first, grouping) == grouping.names[0]
    assert name_ops(profile, first + grouping.ops(1).tolist(), grouping) == "2 groups"
    assert name_ops(profile, first[:1], grouping) == f"op_0 of {grouping.names[0]}"
    assert name_ops(profile, first[:3], grouping) == f"3 ops of {grouping.names[0]}"
    assert name_ops(profile, first[:1] + grouping.ops(1).tolist()[:1], grouping) == "2 ops"
    assert name_ops(profile, [], grouping) == "nothing"


def test_very_deep_scopes_are_grouped_by_their_first_parts():
    """Each part of a scope would otherwise be a node of its own, and a set of ops in a search."""
    deep = {f"a{i}/" + "/".join(f"{i}x{k}" for k in range(3000)) + "/op": 1.0 for i in range(5)}
    nested = {"/".join(["n"] * depth): 1.0 for depth in range(1, 2000, 200)}
    profile = profile_of(deep | nested)
    grouping = group_ops(profile)
    assert grouping.n_groups >= 5
    assert max(map(len, index_ops(profile).paths)) <= MOST_DEPTH


def test_ops_named_after_each_other_are_no_deep_recursion():
    names = {"/".join(["n"] * depth): 1.0 for depth in range(1, 1500)}
    assert group_ops(profile_of(names)).n_groups >= 1


def test_an_optimiser_is_one_group_however_many_ops_it_has():
    """The ops of Keras' optimisers have no scope but the optimiser's, and meaningless names."""
    layers = {f"net/dense_{n}/{op}": 100.0 for n in range(6) for op in "abcdefgh"}
    adam = {f"{scope}/Mul_{n}": 1.0 for scope in ("update", "adam_w") for n in range(200)}
    torch = {f"update/net/dense_{n}/Adam_{i}": 1.0 for n in range(6) for i in range(20)}
    grouping = group_ops(profile_of(layers | adam | torch))
    assert sorted(grouping.names[-2:]) == ["adam w", "update"]
    assert grouping.names[:-2] == tuple(f"net / dense {n}" for n in range(6))


def test_a_layer_of_few_ops_is_not_cut():
    ops = {f"net/dense_{n}/{op}": 1.0 for n in range(5) for op in ("read", "Cast/a", "MatMul")}
    others = {f"update/{n}": 1.0 for n in range(200)}
    assert not [name for name in group_ops(profile_of(ops | others)).names if "Cast" in name]


def test_constants_and_identities_are_shown_with_the_ops_they_belong_to():
    kinds = {"shape": "Const", "axis": "Const", "same": "Identity", "alone": "Identity"}
    times = {"a": 1.0, "b": 1.0, "far": 1.0} | dict.fromkeys(kinds, 0.0)
    edges = [("shape", "axis", 1), ("axis", "b", 1), ("a", "same", 1), ("same", "b", 1)]
    profile = profile_of(times, edges)
    names = profile.op_names
    profile = replace(
        profile,
        op_types=tuple(kinds.get(name, "MatMul") for name in names),
        op_kinds=tuple("constant" if kinds.get(n) == "Const" else "" for n in names),
    )
    inside = np.array([at for at, name in enumerate(names) if name != "far"])
    found = visible_ops(profile, inside)
    groups = {found.names[g]: {names[op] for op in found.ops(g)} for g in range(found.n_groups)}
    assert groups == {"a": {"a", "same"}, "b": {"b", "shape", "axis"}, "alone": {"alone"}}


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("functional_1/up_1", "functional_1/norm_1_1"), ("functional/up", "functional/norm_1")),
        (("functional_1/up_1", "functional_1/norm"), ()),
        (("stage_1/up_1", "stage_1/norm_1", "stage_2/up_1"), ()),
    ],
)
def test_layers_of_a_model_that_keras_calls_again_are_named_as_in_its_first_call(names, shown):
    profile = profile_of({f"{name}/{op}": 10.0 for name in names for op in "ab"})
    found = dict.fromkeys(map("/".join, index_ops(profile).paths))
    assert tuple(found) == (shown or names)


def typed(names):
    """Make ops of types by name, constants without time; the others take 100 µs."""
    profile = profile_of({name: 0.0 if kind == "Const" else 100.0 for name, kind in names.items()})
    return replace(profile, op_types=tuple(map(names.get, profile.op_names)))


def test_layers_named_after_their_block_are_in_it():
    layers = [f"net/blk{i}_{layer}" for i in range(3) for layer in ("att", "up", "down", "ln_1")]
    pairs = [f"gradients/{layer}" for layer in layers]
    others = ["net/head_1_out", "net/dense_1_2"]
    names = {f"{layer}/op_{i}": 10.0 for layer in layers + pairs + others for i in range(30)}
    found = group_ops(profile_of(names)).names
    assert {"net / blk 0 / att", "net / blk 2 / ln 1", "gradients of net / blk 1 / up"} <= {*found}
    assert {"net / head 1 out", "net / dense 1.2"} <= {*found}


def test_blocks_are_in_the_blocks_around_them():
    layers = [
        f"net/conv{i}_block{k}_{part}" for i in (2, 3) for k in (1, 2) for part in ("1_bn", "out")
    ]
    names = {f"{layer}/op_{i}": 10.0 for layer in layers for i in range(30)}
    assert "net / conv 2 / block 1 / 1 bn" in group_ops(profile_of(names)).names


def test_a_layer_of_which_one_op_takes_most_of_the_time_is_not_cut():
    """As a Keras layer whose loop over time is one op."""
    around = [f"net/gru_{i}/{part}/op_{k}" for i in range(3) for part in "abc" for k in range(9)]
    profile = profile_of(
        dict.fromkeys(around, 1.0) | {f"net/gru_{i}/while": 900.0 for i in range(3)}
    )
    assert group_ops(profile).names == tuple(f"net / gru {i}" for i in range(3))


def test_a_layer_of_which_one_part_works_is_cut_as_that_part_is():
    names = {f"net/drop_{i}/stateless/op_{k}": "Mul" for i in range(3) for k in range(20)}
    names |= {f"net/drop_{i}/seed_{k}": "Const" for i in range(3) for k in range(20)}
    assert group_ops(typed(names)).names == tuple(f"net / drop {i}" for i in range(3))


def test_a_scope_of_constants_alone_is_no_group():
    names = {f"net/layer_{i}/op_{k}": "MatMul" for i in range(3) for k in range(40)}
    names |= {f"net/layer_{i}/Cast/x": "Const" for i in range(3)}
    names |= {f"net/slice_{i}/begin_{k}": "Const" for i in range(3) for k in range(4)}
    shown = {*(f"net / layer {i}" for i in range(3)), "net / other"}
    assert {*group_ops(typed(names)).names} == shown


def test_small_layers_in_one_group_are_not_called_weights():
    small = ("pool", "head", "down", "norm")
    times = {f"net/layer_{i}/op_{k}": 100.0 for i in range(3) for k in range(40)}
    profile = profile_of(times | {f"net/{each}/MatMul": 0.1 for each in small} | {"loss/a": 1.0})
    assert "net / pool, head, down, norm" in group_ops(profile, 6).names
