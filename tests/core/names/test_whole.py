"""Layers that stay whole."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from enplace.errors import ProblemError
from enplace.names.whole import LayerCount, count_layers, find_chain, find_layers, guess_pattern
from problems import profile_of


def stack(scopes, *, parts=("attention/MatMul", "mlp/MatMul"), **columns):
    """Return a chain of two ops for each scope, then a head of little work."""
    names = [f"{scope}/{part}" for scope in scopes for part in parts]
    times = dict.fromkeys(names, 100.0) | {"head/MatMul": 10.0}
    return profile_of(times, [(a, b, 4) for a, b in pairwise(times)], **columns)


def names_of(profile, layers):
    return {layer: [profile.op_names[op] for op in ops] for layer, ops in layers.items()}


def test_each_different_match_is_a_layer():
    profile = stack(["model/layers/1", "model/layers/12", "model/layers/2"])
    found = find_layers(r"layers/\d+", profile, "--whole")
    assert list(found) == ["layers/1", "layers/12", "layers/2"]
    assert names_of(profile, found)["layers/12"] == [
        "model/layers/12/attention/MatMul",
        "model/layers/12/mlp/MatMul",
    ]


def test_backward_ops_belong_to_their_layer():
    profile = stack(["layer_0", "layer_1", "gradients/layer_1", "gradients/layer_0"])
    found = find_layers(r"layer_\d+", profile, "--whole")
    assert {layer: len(ops) for layer, ops in found.items()} == {"layer_0": 4, "layer_1": 4}


@pytest.mark.parametrize(
    ("pattern", "backward"),
    [
        (r"block\.\d+", "gradients/{}"),
        (r"coder\.block\.\d+", "bw/{}"),
        (r"\w+\.block\.\d+", "gradients/{}"),
        (r".*block\.\d+", "gradients/{}"),
        (r".*block\.\d+", "{}"),
    ],
)
def test_stacks_with_the_same_numbers_have_layers_of_their_own(pattern, backward):
    scopes = [f"{stack}.block.{i}" for stack in ("encoder", "decoder") for i in range(3)]
    there = stack(scopes)
    back = [backward.format(scope) for scope in reversed(scopes) if backward != "{}"]
    profile = stack([*scopes, *back]) if back else there
    found = find_layers(pattern, profile, "--whole")
    assert [len(ops) for ops in found.values()] == [4 if back else 2] * 6
    if pattern == r"block\.\d+":
        assert list(found) == scopes


def test_parts_that_lead_to_each_other_are_one_stack():
    profile = stack(["attention_0", "mlp_0", "attention_1", "mlp_1"])
    assert len(find_layers(r"_\d+", profile, "--whole")) == 2


def test_time_steps_and_small_parts_are_no_stacks():
    names = [f"t{t}/cell_{i}" for t in range(3) for i in range(2)]
    times = {"cell_0/read": 0.1, "cell_1/read": 0.1} | dict.fromkeys(names, 9.0)
    profile = profile_of(times, [(a, b, 4) for a, b in pairwise(times)])
    assert list(map(len, find_layers(r"cell_\d", profile, "--whole").values())) == [4, 4]


def test_a_small_part_goes_to_the_stack_with_the_most_similar_name():
    towers = [f"{tower}/layer_{i}" for tower in ("text", "image") for i in range(2)]
    times = dict.fromkeys(towers, 9.0) | {"step/text/layer_1": 0.1, "init/image/layer_0": 0.1}
    found = find_layers(r"layer_\d", profile_of(times), "--whole")
    assert [len(ops) for ops in found.values()] == [1, 2, 2, 1]


def test_a_scope_counts_where_the_name_says_nothing():
    profile = profile_of({"a": 1.0, "b": 1.0, "c": 1.0})
    profile = replace(profile, scopes=("cell_0", "cell_0/gate", "cell_1"))
    found = find_layers(r"cell_\d", profile, "--whole")
    assert names_of(profile, found) == {"cell_0": ["a", "b"], "cell_1": ["c"]}


def test_ops_that_only_a_cpu_can_run_are_in_no_layer():
    profile = stack(["layer_0", "layer_1"], cpu={"layer_0/ids": 1.0})
    found = find_layers(r"layer_\d", profile, "--whole")
    assert "layer_0/ids" not in names_of(profile, found)["layer_0"]


def test_a_profile_of_a_cpu_alone_has_layers():
    profile = stack(["layer_0", "layer_1"])
    on_cpu = replace(profile, time_us=profile.time_us[:, ::-1].copy())
    assert len(find_layers(r"layer_\d", on_cpu, "--whole")) == 2
    assert find_chain(on_cpu).names == ("layer_0", "layer_1")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"block/\d", r"matches none of the 5 ops of 'hand'; try 'layer_\\d\+'"),
        ("layer_(", "not a regex"),
        ("x*", "matches none"),
    ],
)
def test_a_pattern_that_finds_no_layer_is_refused_with_one_that_does(pattern, words):
    with pytest.raises(ProblemError, match=words):
        find_layers(pattern, stack(["layer_0", "layer_1"]), "--whole")


@pytest.mark.parametrize(
    ("scopes", "pattern"),
    [
        (["model/layers/0", "model/layers/1"], r"model/layers/\d+"),
        (["bert.encoder.layer.0", "bert.encoder.layer.1"], r"bert\.encoder\.layer\.\d+"),
        (["layers[0].attn", "layers[1].attn"], r"layers\[\d+"),
        (["bert_1/layer_0", "bert_1/layer_1"], r"bert_1/layer_\d+"),
        (["encoder/layer_0", "encoder/layer_1", "decoder/layer_0", "decoder/layer_1"],
         r"(encoder/layer_|decoder/layer_)\d+"),
        (["Mixed_5b", "Mixed_5c", "Mixed_6a"], r"Mixed_\d+[a-z]?"),
        (["layers/0/experts/0", "layers/0/experts/1", "layers/1/experts/0"], r"layers/\d+"),
        (["lstm0/t0", "lstm0/t1", "lstm1/t0"], r"lstm\d+"),
        (["block", "block_1", "block_2"], r"block(_\d+)?\b"),
        (["net/dense", "net/dense_1"], r"net/dense(_\d+)?\b"),
        (["model/layer_0", "model/layer_1", "model_1/layer_0"], r"model/layer_\d+"),
        (["rnn/t0", "rnn/t1", "rnn/t2"], ""),
        (["encoder", "decoder"], ""),
    ],
)  # fmt: skip
def test_the_outermost_numbered_scopes_are_guessed(scopes, pattern):
    profile = stack(scopes)
    assert guess_pattern(profile) == pattern
    if pattern:
        layers = find_layers(pattern, profile, "--whole")
        assert not any(
            "head" in name for names in names_of(profile, layers).values() for name in names
        )


@pytest.mark.parametrize(
    ("forward", "backward", "pattern"),
    [
        ("fw/layers/", "bw/layers/", r"layers/\d+"),
        ("layers.", "grad_layers.", r"layers\.\d+"),
        ("fw/encoder/layer_", "bw/encoder/layer_", r"encoder/layer_\d+"),
        ("layer_", "gradients/layer_", r"layer_\d+"),
    ],
)
def test_a_layer_has_its_backward_ops_whatever_their_prefix(forward, backward, pattern):
    profile = stack([f"{forward}{n}" for n in (0, 1)] + [f"{backward}{n}" for n in (1, 0)])
    passes = ["backward" if backward in name else "" for name in profile.op_names]
    profile = replace(profile, op_passes=tuple(passes))
    assert guess_pattern(profile) == pattern
    layers = find_layers(pattern, profile, "--whole")
    assert [len(ops) for ops in layers.values()] == [4, 4]


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["dec_layer_{}_attn", "dec_layer_{}_mlp"], r"dec_layer_\d+"),
        (["Layer{}Attn", "Layer{}Mlp"], r"Layer\d+"),
        (["conv{}_block1_1_conv/Conv2D", "conv{}_block2_1_conv/Conv2D"], r"conv\d+"),
        (["MatMul_{}", "Relu_{}"], ""),
        (["a_{}", "a_{}_grad"], ""),
    ],
)
def test_numbers_that_ops_without_scopes_share_are_guessed(names, pattern):
    times = {name.format(number): 100.0 for number in range(3) for name in names}
    profile = profile_of(times, [(a, b, 4) for a, b in pairwise(times)])
    assert guess_pattern(profile) == pattern
    assert not pattern or len(find_layers(pattern, profile, "--whole")) == 3


def test_scopes_in_which_little_happens_are_not_guessed():
    profile = stack(["layer_0", "layer_1"], parts=("MatMul",))
    times = dict.fromkeys(profile.op_names, 100.0) | {"head/dense_0/x": 1.0, "head/dense_1/x": 1.0}
    assert guess_pattern(profile_of(times)) == r"layer_\d+"


def test_layers_are_counted_from_the_device_with_the_first_one():
    profile = stack([f"layer_{number}" for number in range(3)])
    layers = find_layers(r"layer_\d", profile, "--whole")
    device = np.array([1, 1, 1, 1, 0, 0, 0])
    assert count_layers(profile, layers, device) == LayerCount(3, 0, ((1, 2), (0, 1)))
    assert list(count_layers(profile, layers, device).on) == [1, 0]
    device[0] = 0
    assert count_layers(profile, layers, device) == LayerCount(3, 1, ((1, 1), (0, 1)))
    back = count_layers(profile, layers, np.array([0, 0, 1, 1, 0, 0, 0]))
    assert (back.runs, back.on) == (((0, 1), (1, 1), (0, 1)), {0: 2, 1: 1})


def test_layers_follow_the_forward_pass_wherever_their_weights_begin():
    times = {"stem_0/weight": 1.0, "stem_0/conv": 90.0, "stem_1/relu": 90.0}
    times |= {"stem_2/weight": 1.0, "stem_2/conv": 90.0}
    edges = [("stem_0/weight", "stem_0/conv"), ("stem_0/conv", "stem_1/relu")]
    edges += [("stem_1/relu", "stem_2/conv"), ("stem_2/weight", "stem_2/conv")]
    profile = profile_of(times, [(*pair, 4) for pair in edges])
    layers = find_layers(r"stem_\d", profile, "--whole")
    found = count_layers(profile, layers, np.array([0, 0, 0, 1, 1]))
    assert found.runs == ((0, 2), (1, 1))
