"""The backward pass of profiles that people write themselves, whose ops do not say their pass."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from enplace.machine.op_passes import backward_ops, optimiser_ops
from enplace.names.guessed_passes import (
    backward_hint,
    may_have_backward,
    says_backward,
    with_guessed_passes,
)
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, profile_of

LAYERS = 5


def training(forward, backward, update="", layers=LAYERS, recomputes=False):
    """Return a chain of layers with its way back; each layer's gradient reads what it read.

    One that recomputes takes none of the forward pass's tensors but the last.
    """
    there, back = ([form.format(i) for i in range(layers)] for form in (forward, backward))
    edges = [(a, b, 8) for a, b in pairwise([*there, *reversed(back)])]
    edges += [(a, b, 8) for a, b in zip(there, back[1:], strict=False) if not recomputes]
    if update:
        edges += [(name, update.format(i), 8) for i, name in enumerate(back)]
    times = {name: 10.0 for edge in edges for name in edge[:2]}
    return profile_of({**times, **{update.format(i): 1.0 for i in range(layers) if update}}, edges)


def backward_names(profile):
    problem = Problem(with_guessed_passes(profile), cluster_of(1))
    return {problem.profile.op_names[op] for op in np.flatnonzero(backward_ops(problem))}


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("fw/layer{}", "bw/layer{}"),
        ("layers/{}", "backward/layers/{}"),
        ("layers.{}", "layers.{}.grad"),
        ("block{}", "block{}_bwd"),
        ("Block{}", "Block{}Backward"),
        ("layer{}", "layer{}_dx"),
        ("model/layers/{}/attn", "model/layers/{}/attn'"),
        ("jit(f)/jvp(Layer_{})/dot", "jit(f)/transpose(jvp(Layer_{}))/dot"),
    ],
)
def test_words_in_names_tell_the_backward_pass(forward, backward):
    profile = training(forward, backward)
    assert backward_names(profile) == {backward.format(i) for i in range(LAYERS)}
    about = with_guessed_passes(profile).measured.about_passes
    assert "guessed" in about
    assert '"pass"' in about


@pytest.mark.parametrize("layers", [2, 6])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("fw/l{}", "bw/l{}"),
        ("conv{}", "dgrad{}"),
        ("l{}.fwd", "l{}.fwd.bwd"),
        ("fwd/bw_lstm{}", "bwd/bw_lstm{}"),
        ("step/fwd_bwd/l{}", "step/fwd_bwd/l{}_grad"),
    ],
)
def test_names_in_reverse_tell_the_backward_pass_where_few_tensors_do(forward, backward, layers):
    profile = training(forward, backward, layers=layers, recomputes=True)
    assert backward_names(profile) == {backward.format(i) for i in range(layers)}


def test_words_alone_are_only_hinted_at():
    """Nothing leads from one of the two parts to the other."""
    parts = [[f"layer{i}" for i in range(4)], [f"layer{i}_bwd" for i in range(4)]]
    edges = [(a, b, 8) for part in parts for a, b in pairwise(part)]
    profile = profile_of(dict.fromkeys([name for part in parts for name in part], 1.0), edges)
    assert with_guessed_passes(profile) is profile
    assert may_have_backward(profile)
    assert "the 4 ops with names such as 'layer0_bwd'" in backward_hint(profile)
    measured = replace(profile, measured=Measurement(framework="torch"))
    assert not may_have_backward(measured), "PyTorch's own words"


@pytest.mark.parametrize(
    ("encoder", "decoder", "held"),
    [("down{}", "back{}", 0), ("l{}", "back_l{}", 8), ("down/{}", "backward_path/{}", 8)],
)
def test_a_decoder_called_back_is_only_hinted_at(encoder, decoder, held):
    profile = training(encoder, decoder)
    held_bytes = np.array([8 if encoder[0] == name[0] else held for name in profile.op_names])
    unet = replace(profile, persistent_bytes=held_bytes)
    assert with_guessed_passes(unet) is unet
    assert may_have_backward(unet)


def test_words_in_types_tell_it_too():
    profile = training("a{}", "b{}")
    assert not backward_names(profile)
    types = tuple("CellGrad" if name[0] == "b" else "Cell" for name in profile.op_names)
    assert backward_names(replace(profile, op_types=types)) == {f"b{i}" for i in range(LAYERS)}


def test_what_follows_the_backward_pass_is_the_update():
    profile = with_guessed_passes(training("fw/{}", "bw/{}", "adam/{}"))
    updates = {
        name for name, of in zip(profile.op_names, profile.op_passes, strict=True) if of == "update"
    }
    assert updates == {f"adam/{i}" for i in range(LAYERS)}
    problem = Problem(profile, cluster_of(1))
    found = {profile.op_names[op] for op in np.flatnonzero(optimiser_ops(problem))}
    assert found == updates


def test_updates_may_take_longer_than_the_forward_pass():
    profile = training("fw/{}", "bw/{}", "apply_grad/{}")
    slow_us = profile.time_us.copy()
    slow_us[[name.startswith("apply") for name in profile.op_names]] = 99.0
    found = with_guessed_passes(profile.with_costs(slow_us))
    passes = dict(zip(found.op_names, found.op_passes, strict=True))
    assert (passes["bw/1"], passes["apply_grad/1"]) == ("backward", "update")


def test_a_recurrent_layer_that_reads_both_ways_has_no_backward_pass():
    there, back = ([f"{way}/t{i}" for i in range(4)] for way in ("fw", "bw"))
    edges = [("input", name, 8) for name in (*there, *back)]
    edges += [(a, b, 8) for a, b in [*pairwise(there), *pairwise(reversed(back))]]
    alone = profile_of(dict.fromkeys(("input", *there, *back), 1.0), edges)
    assert with_guessed_passes(alone) is alone
    edges += [(name, "loss", 8) for name in (there[-1], back[0])]
    joined = profile_of(dict.fromkeys(("input", *there, *back, "loss"), 1.0), edges)
    assert with_guessed_passes(joined) is joined


def test_a_gradient_of_the_input_is_no_backward_pass():
    """An image's gradient is the first thing that the network sees."""
    names = ["image", "sobel_gradient", *(f"conv{i}" for i in range(4))]
    profile = profile_of(dict.fromkeys(names, 1.0), [(a, b, 8) for a, b in pairwise(names)])
    assert with_guessed_passes(profile) is profile
    stopped = ["image", "conv", "stop_gradient", "loss"]
    profile = profile_of(dict.fromkeys(stopped, 1.0), [(a, b, 8) for a, b in pairwise(stopped)])
    assert with_guessed_passes(profile) is profile


@pytest.mark.parametrize(
    "names",
    [
        [f"front_end/conv{i}" for i in range(4)] + [f"back_end/conv{i}" for i in range(4)],
        [f"trunk{i}" for i in range(6)] + ["bp/head", "bp/profile"],
        ["image", *(f"block{i}/{part}" for i in range(6) for part in ("pw", "dw", "Transpose"))],
        ["features", *(f"{way}_projection{i}" for i in range(4) for way in ("up", "back"))],
    ],
)
def test_a_later_part_of_a_chain_is_no_backward_pass(names):
    profile = profile_of(dict.fromkeys(names, 1.0), [(a, b, 8) for a, b in pairwise(names)])
    assert with_guessed_passes(profile) is profile


def test_a_stack_of_layers_that_read_both_ways_has_no_backward_pass():
    layers = [["embed"], *([f"l{i}/lstm", f"l{i}/lstm_bw"] for i in range(6)), ["dense"]]
    edges = [(a, b, 8) for given, taking in pairwise(layers) for a in given for b in taking]
    profile = profile_of({name: 1.0 for layer in layers for name in layer}, edges)
    assert with_guessed_passes(profile) is profile


def test_weights_and_labels_do_not_hide_the_order_of_the_backward_pass():
    """Variables come first and are read all along both passes; labels are read in the middle."""
    chain, n = training("fw/{}", "bw/{}"), LAYERS
    names = [*chain.op_names, "labels", *(f"w{i}" for i in range(n))]
    edges = [(chain.op_names[s], chain.op_names[t], 8) for s, t in _edges(chain)]
    edges += [("labels", f"fw/{n - 1}", 8), ("labels", f"bw/{n - 1}", 8)]
    edges += [(f"w{i}", f"{way}/{i}", 8) for i in range(n) for way in ("fw", "bw")]
    profile = profile_of(dict.fromkeys(names, 1.0), edges)
    assert backward_names(profile) == {f"bw/{i}" for i in range(n)}


def _edges(profile):
    return zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True)


def test_what_a_profile_says_of_its_passes_is_not_guessed():
    profile = training("fw/{}", "bw/{}")
    said = replace(profile, op_passes=("forward",) * profile.n_ops)
    assert with_guessed_passes(said) is said
    listed = replace(profile, measured=Measurement(backward=(7,)))
    assert with_guessed_passes(listed) is listed
    scoped = training("{}", "gradients/{}")
    assert with_guessed_passes(scoped) is scoped


def test_the_shape_of_a_backward_pass_is_only_hinted_at():
    """The decoder of a U-Net reads what its encoder made, last to first, as gradients do."""
    unet = training("encoder/{}", "decoder/{}")
    assert with_guessed_passes(unet) is unet
    assert may_have_backward(unet)
    assert "the 5 ops that begin with 'decoder/'" in backward_hint(unet)
    assert "the 5 ops that begin with 'm'" in backward_hint(training("l{}", "m{}"))
    assert "the 5 ops with 'up' in their names" in backward_hint(training("net/{}", "net/{}/up"))
    chain = profile_of({"a": 1.0, "b": 1.0}, [("a", "b", 8)])
    assert not may_have_backward(chain)
    assert "gradients/" in backward_hint(chain)


def test_a_second_version_with_a_prime_is_no_backward_pass():
    names = [name for i in range(6) for name in (f"layer{i}", f"layer{i}'")]
    profile = profile_of(dict.fromkeys(names, 1.0), [(a, b, 8) for a, b in pairwise(names)])
    assert with_guessed_passes(profile) is profile


@pytest.mark.parametrize("prime", ["'", "\u2032", "\u2019", "\u02b9", "\u2033"])
def test_a_gradient_may_be_typed_or_typeset_as_a_prime(prime):
    assert says_backward(f"attn{prime}")
    assert not says_backward(f"{prime}attn{prime}s")
