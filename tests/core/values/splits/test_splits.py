"""Legal splits, and the graph and costs after a split."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.errors import SplitError
from enplace.placers import place
from enplace.placers.os_dpos import data_parallel
from enplace.values.constraints import Constraints
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import CONTROL, make_profile
from enplace.values.splits import (
    Split,
    carries_samples,
    legal_dimensions,
    part_names,
    sample_dimension,
    split_profile,
    unsplit_names,
)
from problems import cluster_of, profile_of

KB = 1 << 10


def graph(ops, edges, colocation=None):
    """Build a profile from name -> (type, time) and (source, target, bytes) edges."""
    names = list(ops)
    number = {name: i for i, name in enumerate(names)}
    return make_profile(
        "hand",
        op_names=names,
        op_types=[kind for kind, _ in ops.values()],
        scopes=[""] * len(names),
        time_us=np.array([[time, np.nan] for _, time in ops.values()]),
        persistent_bytes=[KB if kind == "VariableV2" else 0 for kind, _ in ops.values()],
        temporary_bytes=[100 if kind == "Conv2D" else 0 for kind, _ in ops.values()],
        colocation=[(colocation or {}).get(name, "") for name in names],
        edge_source=[number[a] for a, _, _ in edges],
        edge_output=[CONTROL if size is None else 0 for _, _, size in edges],
        edge_op=[number[b] for _, b, _ in edges],
        edge_bytes=[size or 0 for _, _, size in edges],
    )


def training_step():
    """Return one dense layer with its gradients, as TensorFlow builds them."""
    return graph(
        {
            "batch": ("IteratorGetNext", 0.0),
            "w": ("VariableV2", 0.0),
            "product": ("MatMul", 102.0),
            "relu": ("Relu", 42.0),
            "norm": ("FusedBatchNormV3", 30.0),
            "relu_grad": ("ReluGrad", 42.0),
            "w_grad": ("MatMul", 102.0),
            "update": ("ApplyGradientDescent", 5.0),
        },
        [
            ("batch", "product", 4 * KB),
            ("batch", "w_grad", 4 * KB),
            ("w", "product", KB),
            ("w", "update", KB),
            ("product", "relu", 8 * KB),
            ("relu", "norm", 8 * KB),
            ("relu", "relu_grad", 8 * KB),
            ("norm", "relu_grad", 8 * KB),
            ("relu_grad", "w_grad", 8 * KB),
            ("w_grad", "update", KB),
        ],
    )


def edges_of(profile):
    names, size = profile.op_names, profile.tensor_bytes[profile.edge_tensor]
    ends = zip(profile.edge_source, profile.edge_op, size, strict=True)
    return {(names[a], names[b]): int(n) for a, b, n in ends}


def test_kinds_that_a_framework_says_count_not_its_types():
    profile = training_step()
    foreign = replace(
        profile, op_types=tuple(f"aten.{op}" for op in range(profile.n_ops)), op_kinds=profile.kinds
    )
    assert np.array_equal(carries_samples(foreign), carries_samples(profile))
    for op in range(profile.n_ops):
        assert legal_dimensions(foreign, op, 2) == legal_dimensions(profile, op, 2)
    splits = [Split("product", "rows", 2), Split("relu", "batch", 2)]
    ours, theirs = (split_profile(each, splits) for each in (profile, foreign))
    assert np.array_equal(ours.edges, theirs.edges)
    assert np.array_equal(ours.time_us, theirs.time_us, equal_nan=True)


def test_parts_hold_their_share_of_weights_that_a_split_cuts():
    profile = graph({"x": ("", 1.0), "conv": ("", 9.0)}, [("x", "conv", 8 * KB)])
    held = np.array([0, 6 * KB])
    said = replace(profile, op_kinds=("input", "conv"), persistent_bytes=held)
    for dimension, n_bytes in (("batch", 6 * KB), ("channel", 3 * KB)):
        parts = split_profile(said, [Split("conv", dimension, 2)])
        assert sorted(parts.persistent_bytes.tolist())[-2:] == [n_bytes] * 2
    typed = replace(said, op_types=("Placeholder", "Conv2D"), op_kinds=("", ""))
    assert not legal_dimensions(typed, 1, 2)  # what it holds may be anything


def test_legal_dimensions_follow_from_op_types_and_inputs():
    profile = training_step()
    legal = {name: legal_dimensions(profile, op, 2) for op, name in enumerate(profile.op_names)}
    assert legal["product"] == ("rows", "columns")
    assert legal["w_grad"] == ("inner",)
    assert legal["relu"] == ("batch", "channel")
    assert legal["norm"] == legal["w"] == legal["update"] == legal["batch"] == ()


def test_a_gradient_that_sums_over_samples_has_no_sample_dimension():
    profile = training_step()
    carrying = [profile.op_names[op] for op in np.flatnonzero(carries_samples(profile))]
    assert carrying == ["batch", "product", "relu", "norm", "relu_grad"]
    shared = {name: sample_dimension(profile, op, 2) for name, op in profile.index.items()}
    assert (shared["product"], shared["w_grad"], shared["norm"]) == ("rows", "inner", "")


def test_only_equal_parts_are_legal():
    profile = training_step()
    assert legal_dimensions(profile, profile.index["relu"], 3) == ()


def with_lengths(lengths):
    """Return the training step with recorded split lengths; its batch has 14 samples."""
    return replace(training_step(), measured=Measurement(split_lengths=lengths))


def test_recorded_lengths_override_a_guess_from_bytes():
    profile = with_lengths({"product": {"rows": 7, "columns": 4}, "relu": {}})
    legal = {
        (name, parts): legal_dimensions(profile, profile.index[name], parts)
        for name in ("product", "relu", "relu_grad")
        for parts in (2, 7)
    }
    assert legal["product", 2] == ("columns",)
    assert legal["product", 7] == ("rows",)
    assert legal["relu", 2] == legal["relu", 7] == ()
    assert legal["relu_grad", 2] == ("batch", "channel")  # not recorded in the profile
    with pytest.raises(SplitError, match="2 equal parts along 'rows'; use columns"):
        split_profile(profile, [Split("product", "rows", 2)])


def test_parts_are_split_only_if_their_length_allows_it():
    profile = with_lengths({"product": {"rows": 6, "columns": 4}})
    split = split_profile(profile, [Split("product", "rows", 2)])
    part = split.index["product/split/part_1"]
    assert legal_dimensions(split, part, 2) == ("columns",)
    assert legal_dimensions(split, part, 3) == ("rows",)
    twice = split_profile(split, [Split("product/split/part_1", "columns", 2)])
    last = twice.index["product/split/part_1/split/part_0"]
    assert legal_dimensions(twice, last, 2) == ("columns",)
    assert legal_dimensions(twice, last, 4) == ()


def test_what_mixes_a_sample_needs_as_many_samples():
    profile = graph(
        {"batch": ("IteratorGetNext", 0.0), "attend": ("BatchMatMul", 9.0), "relu": ("Relu", 9.0)},
        [("batch", "attend", KB), ("attend", "relu", KB)],
    )
    for n_samples, dimensions in ((1, ()), (6, ("batch",)), (None, ("batch",))):
        shapes = ((n_samples, 64),) if n_samples else ()
        known = replace(profile, measured=Measurement(batch_shapes=shapes))
        assert legal_dimensions(known, 1, 2) == dimensions
        assert "batch" in legal_dimensions(known, 2, 2)  # each number alone


def test_os_dpos_leaves_a_batch_of_seven_whole():
    lengths = {"product": {"rows": 7}, "relu": {"batch": 7}, "relu_grad": {"batch": 7}}
    profile = with_lengths({**lengths, "w_grad": {"inner": 7}})
    assert place(Problem(profile, cluster_of(2)), "os-dpos").plan.splits == ()
    assert len(data_parallel(Problem(profile, cluster_of(7)))) == 4


def test_a_split_op_is_replaced_by_parts_and_a_join():
    """Lines 16 to 30 of Algorithm 2."""
    profile = split_profile(training_step(), [Split("product", "columns", 2)])
    edges = edges_of(profile)
    assert "product" not in profile.index
    assert edges["w", "product/split/of_w_0"] == KB
    for i in range(2):
        assert edges["product/split/of_w_0", f"product/split/part_{i}"] == KB / 2
        assert edges["batch", f"product/split/part_{i}"] == 4 * KB
        assert edges[f"product/split/part_{i}", "product/split/join_0"] == 4 * KB
    assert edges["product/split/join_0", "relu"] == 8 * KB
    types = dict(zip(profile.op_names, profile.op_types, strict=True))
    assert types["product/split/join_0"] == "ConcatV2"
    assert types["product/split/of_w_0"] == "Split"


def test_a_part_takes_a_launch_and_its_share_of_the_time():
    profile = split_profile(training_step(), [Split("product", "rows", 2)])
    part = profile.index["product/split/part_0"]
    assert profile.time_us[part, 0] == pytest.approx(2 + 100 / 2)
    assert np.isnan(profile.time_us[part, 1])


def test_parts_feed_matching_parts_and_gradients_are_summed():
    splits = [
        Split("product", "rows", 4),
        Split("relu", "batch", 4),
        Split("relu_grad", "batch", 4),
        Split("w_grad", "inner", 4),
    ]
    profile = split_profile(training_step(), splits)
    edges = edges_of(profile)
    for i in range(4):
        assert edges[f"product/split/part_{i}", f"relu/split/part_{i}"] == 2 * KB
        assert edges[f"relu_grad/split/part_{i}", f"w_grad/split/part_{i}"] == 2 * KB
        assert edges[f"w_grad/split/part_{i}", "w_grad/split/join_0"] == KB
    assert profile.op_types[profile.index["w_grad/split/join_0"]] == "AddN"
    assert edges["relu/split/join_0", "norm"] == 8 * KB  # batch normalisation sees all samples


def test_a_part_can_be_split_again():
    once, twice = Split("product", "rows", 2), Split("product/split/part_0", "columns", 2)
    profile = split_profile(training_step(), [twice, once])
    assert "product/split/part_0/split/part_1" in profile.index
    names = sorted(unsplit_names(profile.op_names, [once, twice]))
    assert names == sorted(training_step().op_names)


def test_reading_a_shape_needs_no_join():
    ops = {"batch": ("IteratorV2", 0.0), "relu": ("Relu", 9.0), "shape": ("Shape", 0.0)}
    profile = graph(ops, [("batch", "relu", KB), ("relu", "shape", KB)])
    split = split_profile(profile, [Split("relu", "batch", 2)])
    assert "relu/split/join_0" not in split.index
    assert "shape" in split.index


def test_a_colocation_group_is_split_together_or_not_at_all():
    ops = {"batch": ("IteratorV2", 0.0), "a": ("Relu", 9.0), "b": ("Relu", 9.0)}
    profile = graph(ops, [("batch", "a", KB), ("a", "b", KB)], {"a": "group", "b": "group"})
    with pytest.raises(SplitError, match="op 'a' is colocated with others that are not split"):
        split_profile(profile, [Split("a", "batch", 2)])
    both = split_profile(profile, [Split("a", "batch", 2), Split("b", "batch", 2)])
    group = dict(zip(both.op_names, both.colocation, strict=True))
    assert group["a/split/part_0"] == group["b/split/part_0"] != group["a/split/part_1"]


@pytest.mark.parametrize(
    ("split", "complaint"),
    [
        (Split("norm", "batch", 2), "'norm' .*|ops of this type stay whole"),
        (Split("product", "inner", 2), "cannot be split into 2 equal parts .* use rows, columns"),
        (Split("relu", "time", 2), "has no dimension 'time'; use batch, channel"),
        (Split("relu", "batch", 3), "cannot be split into 3 equal parts"),
        (Split("pool", "batch", 2), "op 'pool' is to be split, but the graph has no op"),
    ],
)
def test_an_illegal_split_is_refused_and_the_legal_ones_listed(split, complaint):
    with pytest.raises(SplitError, match=complaint):
        split_profile(training_step(), [split])


def test_an_op_split_twice_is_refused():
    with pytest.raises(SplitError, match="op 'relu' is split twice"):
        split_profile(training_step(), [Split("relu", "batch", 2), Split("relu", "channel", 2)])


def test_constraints_on_an_op_apply_to_all_its_parts():
    profile = training_step()
    op = profile.index["relu"]
    problem = Problem(
        profile, cluster_of(3), Constraints(pins={op: 1}, forbidden=frozenset({(op, 0)}))
    )
    split = split_problem(problem, (Split("relu", "batch", 2),))
    parts = [split.profile.index[f"relu/split/part_{i}"] for i in range(2)]
    assert dict(split.pins) == dict.fromkeys(parts, 1)
    assert split.forbidden == {(part, 0) for part in parts}
    assert split_problem(split, split.splits) is split


@st.composite
def chains_and_splits(draw):
    """Draw graphs of element-wise ops after a batch, and splits of them."""
    n = draw(st.integers(1, 8))
    ops = {"batch": ("IteratorV2", 0.0)} | {f"op{i}": ("AddN", 5.0 + i) for i in range(n)}
    names, edges = list(ops), set()
    for i in range(1, n + 1):
        for before in draw(st.sets(st.integers(0, i - 1), min_size=1, max_size=3)):
            edges.add((names[before], names[i], 48 * KB))
    chosen = draw(st.sets(st.sampled_from(names[1:])))
    splits = [
        Split(name, draw(st.sampled_from(["batch", "channel"])), draw(st.sampled_from([2, 3, 4])))
        for name in sorted(chosen)
    ]
    return graph(ops, sorted(edges)), splits


@given(chains_and_splits(), st.randoms())
def test_splits_in_any_order_keep_work_bytes_and_names(drawn, chance):
    profile, splits = drawn
    split = split_profile(profile, splits)
    assert sorted(unsplit_names(split.op_names, splits)) == sorted(profile.op_names)
    shuffled = list(splits)
    chance.shuffle(shuffled)
    assert split_profile(profile, shuffled).n_ops == split.n_ops
    for entry in splits:
        parts = [split.index[f"{entry.op}/split/part_{i}"] for i in range(entry.parts)]
        beyond = (split.time_us[parts, 0] - 2).sum()
        assert beyond == pytest.approx(profile.time_us[profile.index[entry.op], 0] - 2)
        for part in parts:
            edges = split.in_edges[split.in_ptr[part] : split.in_ptr[part + 1]]
            size = split.tensor_bytes[split.edge_tensor[edges]]
            assert (size == 48 * KB // entry.parts).all()
            assert len(edges)


def test_splits_that_multiply_control_edges_are_refused(monkeypatch):
    monkeypatch.setattr("enplace.values.splits.graph.MOST_EDGES", 100)
    names = [f"relu_{i}" for i in range(4)]
    data = [("in", name, 4096) for name in names] + [(name, "out", 4096) for name in names]
    times = dict.fromkeys(["in", *names, "out"], 10.0)
    profile = profile_of(times, data, control=list(pairwise(names)))
    profile = replace(profile, op_types=("Placeholder", *["Relu"] * 4, "AddN"))
    splits = [Split(name, "batch", 64) for name in names]
    with pytest.raises(SplitError, match="split into fewer parts"):
        split_profile(profile, splits)


def test_splits_of_parts_share_the_limit_of_the_model(monkeypatch):
    """Each round is small against the one before, but not against the model."""
    monkeypatch.setattr("enplace.values.splits.graph.MOST_EDGES", 300)
    profile = profile_of(
        dict.fromkeys(["in", "a", "b"], 10.0),
        [("in", "a", 4096), ("in", "b", 4096)],
        control=[("a", "b")],
    )
    profile = replace(profile, op_types=("Placeholder", "Relu", "Relu"))
    splits = [Split(name, "batch", 8) for name in "ab"]
    assert split_profile(profile, splits).n_edges < 300
    parts = [Split(part, "batch", 8) for name in "ab" for part in part_names(name, 8)]
    with pytest.raises(SplitError, match="over 300 edges"):
        split_profile(profile, [*splits, *parts])


def test_splits_of_ops_with_long_names_are_refused(monkeypatch):
    monkeypatch.setattr("enplace.values.splits.graph.MOST_CHARACTERS", 100)
    profile = profile_of({"x" * 60: 10.0})
    with pytest.raises(SplitError, match="too long together"):
        split_profile(profile, [Split("x" * 60, "batch", 2)])


@pytest.mark.parametrize(("table", "dimensions"), [("VariableV2", ("batch",)), ("Relu", ())])
def test_only_a_lookup_in_a_table_of_weights_is_split(table, dimensions):
    profile = graph(
        {
            "batch": ("IteratorGetNext", 0.0),
            "table": (table, 0.0),
            "lookup": ("GatherV2", 10.0),
            "relu": ("Relu", 5.0),
        },
        [("batch", "lookup", 8 * KB), ("table", "lookup", KB), ("lookup", "relu", 8 * KB)]
        + [("batch", "table", 8 * KB)] * (table == "Relu"),
    )
    assert legal_dimensions(profile, profile.index["lookup"], 2) == dimensions


def test_a_part_lies_in_the_memory_that_it_reads():
    """Each part of v shows a part of x; after the join, w shows what is joined."""
    ops = {"batch": ("IteratorGetNext", 0.0)}
    ops |= {"x": ("Relu", 9.0), "v": ("Relu", 9.0), "w": ("Identity", 9.0), "end": ("MatMul", 9.0)}
    profile = graph(ops, [(a, b, 8 * KB) for a, b in pairwise(ops)])
    profile = replace(profile, tensor_base=np.array([-1, -1, 1, 2]))
    parts = split_profile(profile, [Split("x", "batch", 2), Split("v", "batch", 2)])
    shares = {(parts.op_names[a], parts.op_names[b]) for a, _, b, _ in parts.shares.tolist()}
    assert shares == {
        *zip(part_names("v", 2), part_names("x", 2), strict=True),
        ("w", "v/split/join_0"),
    }
