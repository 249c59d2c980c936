"""The naive baselines, m-topo and the expert, by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.problems import gpus, line

from enplace.machine import simulate
from enplace.names.layers import find_layer_name, named_layers, parts_of, scope_parts
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.expert import even_blocks, stacks
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


def test_single_uses_a_slower_gpu_if_only_that_has_room():
    profile = profile_of({"a": 10.0, "b": 10.0}, persistent={"a": 60, "b": 60})
    cluster = cluster_of(2, speeds=(2.0, 1.0))
    small, large = cluster.devices
    cluster = replace(cluster, devices=(replace(small, capacity_bytes=100), large))
    schedule = place(Problem(profile, cluster), "single").schedule
    assert schedule.plan.device.tolist() == [1, 1]
    assert schedule.fits


def test_single_uses_the_fastest_gpu_and_notes_exceeded_memory():
    profile = line([4.0] * 4, [(i, i + 1, 8) for i in range(3)], persistent=[400] * 4)
    problem = Problem(profile, gpus(2, speeds=[1.0, 2.0], capacity=1000))
    plan = place(problem, "single").plan
    assert plan.device.tolist() == [1] * 4
    schedule = simulate(problem, plan)
    assert schedule.makespan_us == 8
    assert not schedule.fits


def test_round_robin_deals_in_topological_order():
    problem = Problem(line([1.0] * 5, [(i, i + 1, 8) for i in range(4)]), gpus(2))
    assert place(problem, "round-robin").plan.device.tolist() == [0, 1, 0, 1, 0]


def test_random_depends_on_the_seed():
    problem = Problem(line([1.0] * 64, []), gpus(2))
    plans = [place(problem, "random", options=PlaceOptions(seed=s)).plan.device for s in (0, 1)]
    assert not np.array_equal(*plans)


def test_m_topo_matches_baechis_diamond():
    """Baechi's example: four ops of one byte, a share of 2 + 1, so a, b, c on 0 and d on 1."""
    edges = [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)]
    profile = line([2.0, 5.0, 5.0, 2.0], edges, persistent=[0, 0, 0, 1])
    problem = Problem(profile, gpus(2, b0=1.0))
    plan = place(problem, "m-topo").plan
    assert plan.device.tolist() == [0, 0, 0, 1]
    assert simulate(problem, plan).makespan_us == 15


def test_m_topo_never_returns_to_a_device():
    profile = line([1.0] * 6, [], persistent=[30, 30, 30, 5, 5, 5])
    device = place(Problem(profile, gpus(3)), "m-topo").plan.device
    assert (np.diff(device) >= 0).all()


@pytest.mark.parametrize(
    ("name", "scope", "layer", "branch"),
    [
        ("t3/cell_1/MatMul", "", "cell_1", ""),
        ("gradients/t3/cell_1/MatMul_grad/MatMul_1", "", "cell_1", ""),
        ("MatMul_7", "gradients/encoder/layer_3/self", "encoder/layer_3", ""),
        ("train_op/update_cell_0/kernel/ApplyAdam", "", "cell_0", ""),
        ("x", "update/lstm0", "lstm0", ""),
        ("x", "Mixed_5b/b1/a", "Mixed_5b", "b1"),
        ("x", "cell_0_2/b1l/sep_1", "cell_0_2", "b1l"),
        ("x", "gradients/Mixed_5b/Branch_2/Conv", "Mixed_5b", "Branch_2"),
        ("embedding_lookup", "", "", ""),
    ],
)
def test_layer_and_branch_are_read_from_the_scope(name, scope, layer, branch):
    assert find_layer_name(scope_parts(name, scope))[:2] == (layer, branch)


def test_the_name_of_the_model_is_not_a_layer():
    scopes = ["vgg19/conv1", "vgg19/conv1", "vgg19/conv2", "vgg19/conv2"]
    problem = Problem(line([9.0] * 4, [(i, i + 1, 8) for i in range(3)], scopes=scopes), gpus(2))
    assert place(problem, "expert").plan.device.tolist() == [0, 0, 1, 1]


def stacked_profile(layers, costs):
    """Return a chain of embedding, layers and softmax, then their backward ops in reverse."""
    scopes = ["emb", *[f"lstm{i}/t0" for i in range(layers)], "softmax"]
    scopes += [f"gradients/{scope}" for scope in reversed(scopes)]
    n = len(scopes)
    return line(costs, [(i, i + 1, 8) for i in range(n - 1)], scopes=scopes)


def test_the_expert_keeps_layers_and_their_gradients_together():
    problem = Problem(stacked_profile(4, [1.0, 10, 10, 10, 10, 1] * 2), gpus(2))
    device = place(problem, "expert").plan.device.tolist()
    assert device == [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]


def test_the_expert_balances_the_blocks():
    problem = Problem(stacked_profile(4, [0.0, 30, 10, 10, 10, 0, 0, 10, 10, 10, 30, 0]), gpus(2))
    device = place(problem, "expert").plan.device.tolist()
    assert device[:6] == [0, 0, 1, 1, 1, 1]


def test_the_expert_distributes_the_branches_of_a_cell():
    scopes = ["Mixed_1", "Mixed_1/b0", "Mixed_1/b1", "Mixed_1/b2", "Mixed_1"]
    edges = [(0, 1, 8), (0, 2, 8), (0, 3, 8), (1, 4, 8), (2, 4, 8), (3, 4, 8)]
    problem = Problem(line([1.0, 10, 6, 6, 1], edges, scopes=scopes), gpus(2))
    device = place(problem, "expert").plan.device.tolist()
    assert device[1:4] == [0, 1, 1]


def branched_profile(cells, times_us):
    """Return cells of parallel branches, each joined before the next."""
    scopes, costs, edges, last = [], [], [], None
    for cell in range(cells):
        join = len(scopes) + len(times_us)
        for branch, time_us in enumerate(times_us):
            edges += [(len(scopes), join, 8)] + ([(last, len(scopes), 8)] if last else [])
            scopes.append(f"cell_{cell}/b{branch}")
            costs.append(time_us)
        scopes.append(f"cell_{cell}")
        costs.append(2.0)
        last = join
    return line(costs, edges, scopes=scopes)


def test_the_expert_uses_all_gpus_even_if_a_cell_has_fewer_branches():
    problem = Problem(branched_profile(4, [9.0, 8, 7]), gpus(8))
    busy_us = simulate(problem, place(problem, "expert").plan).busy_us
    assert busy_us.min() > 0


def test_the_expert_distributes_joins_like_branches():
    problem = Problem(branched_profile(4, [9.0, 8, 7]), gpus(4))
    device = place(problem, "expert").plan.device
    assert len(set(device[3::4].tolist())) > 1


def test_the_expert_gives_every_gpu_a_layer_if_there_are_enough():
    """The first two layers take most of the time, each more than a quarter."""
    problem = Problem(stacked_profile(4, [0.0, 60, 60, 20, 10, 0] + [0.0] * 6), gpus(4))
    device = place(problem, "expert").plan.device.tolist()
    assert device[:6] == [0, 0, 1, 2, 2, 3]


def test_the_longest_block_is_as_short_as_possible():
    layer_us = np.array([4.0, 1, 1, 4, 2, 2])
    assert even_blocks(layer_us, 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert even_blocks(layer_us, 9).tolist() == [0, 1, 2, 3, 4, 5]
    assert even_blocks(np.zeros(3), 2).tolist() == [0, 0, 1]


def test_on_two_gpus_layers_are_cut_wherever_they_can_be():
    names = [f"layer_{i}/op" for i in range(6)]
    profile = profile_of(dict.fromkeys(names, 9), [(a, b, 1) for a, b in itertools.pairwise(names)])
    found = [device.tolist() for device in stacks(Problem(profile, cluster_of(2)))]
    assert sorted(found) == [[0] * cut + [1] * (6 - cut) for cut in range(5, 0, -1)]


@given(
    st.lists(st.sampled_from([0.0, 0.1, 1.0, 7.0, 30.0]), min_size=1, max_size=9), st.integers(1, 9)
)
def test_no_other_cut_has_a_shorter_longest_block(layer_us, n_blocks):
    times = np.array(layer_us)
    block = even_blocks(times, n_blocks)
    n = min(n_blocks, len(times))
    assert np.unique(block).tolist() == list(range(n))
    assert (np.diff(block) >= 0).all()
    best = min(
        max(part.sum() for part in np.split(times, cut))
        for cut in itertools.combinations(range(1, len(times)), n - 1)
    )
    assert np.bincount(block, weights=times).max() == pytest.approx(best)


def test_ops_belong_to_the_layer_that_they_are_colocated_with():
    """Backward ops are colocated with their forward ops; both halves take equally long."""
    together = [f"layer {i}" for i in (0, 1, 2, 3, 3, 2, 1, 0)]
    edges = [(i, i + 1, 8) for i in range(7)]
    problem = Problem(line([10.0] * 8, edges, colocation=together), gpus(2))
    assert place(problem, "expert").plan.device.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


def test_without_scopes_the_expert_cuts_the_graph_in_order():
    problem = Problem(line([1.0] * 8, [(i, i + 1, 8) for i in range(7)]), gpus(2))
    assert place(problem, "expert").plan.device.tolist() == [0] * 4 + [1] * 4


def test_flatten_is_not_mistaken_for_attention():
    scopes = ["conv_1", "conv_2", "flatten", "dense_1", "dense_2"]
    edges = [(i, i + 1, 8) for i in range(4)]
    problem = Problem(line([10.0, 10, 1, 10, 10], edges, scopes=scopes), gpus(4))
    assert place(problem, "expert").plan.device.tolist() == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("scope", ["attention", "decoder/self_attention", "att", "attn"])
def test_attention_scopes_belong_to_the_head(scope):
    assert find_layer_name(scope.split("/")).is_head


def test_layers_are_ordered_by_their_work_not_by_weight_reads():
    # L2Loss reads the weights of the last layer early. That does not make it the first layer.
    names = ["fc_2/weights", "fc_2/L2Loss", "fc_1/MatMul", "fc_2/MatMul", "softmax/Softmax"]
    times = dict(zip(names, [0, 1, 10, 10, 5], strict=True))
    edges = [(names[0], names[1], 8), (names[0], names[3], 8)]
    edges += [(names[2], names[3], 8), (names[3], names[4], 8)]
    profile = profile_of(times, edges)
    layer_names = [find_layer_name(parts) for parts in parts_of(profile)]
    layer = named_layers(profile, layer_names, profile.time_us[:, 0])
    assert layer.tolist() == [1, 1, 0, 1, 2]


def test_what_a_profile_says_of_passes_goes_before_names():
    # By its name, the first layer's op is a gradient, and the gradient of the second is none.
    names = ["optimizer/layer_1/a", "layer_2/b", "layer_1/c"]
    profile = profile_of(
        dict.fromkeys(names, 10.0), [(a, b, 8) for a, b in itertools.pairwise(names)]
    )
    layer_names = [find_layer_name(parts) for parts in parts_of(profile)]
    assert named_layers(profile, layer_names, profile.time_us[:, 0]).tolist() == [1, 0, 1]
    told = replace(profile, op_passes=("forward", "forward", "backward"))
    assert named_layers(told, layer_names, profile.time_us[:, 0]).tolist() == [0, 1, 0]


def convolution_problem():
    """Return four blocks of convolution, normalisation and activation without telling names."""
    types = ["Conv2D", "FusedBatchNormV3", "Relu"] * 4
    edges = [(i, i + 1, 8) for i in range(11)]
    return Problem(line([10.0, 2, 1] * 4, edges, types=types), gpus(2))


def test_the_expert_distributes_layers_of_each_kind():
    plan = place(convolution_problem(), "expert").plan
    assert plan.details["family"] == "layers"
    assert plan.device.tolist() == [0, 0, 0, 1, 1, 1] * 2


def test_what_a_profile_says_of_kinds_goes_before_types():
    own = {"Conv2D": "aten::cross", "FusedBatchNormV3": "aten::batch_norm", "Relu": "relu_"}
    problem = convolution_problem()
    types = tuple(own[each] for each in problem.profile.op_types)
    kinds = tuple("conv" if each == "aten::cross" else "" for each in types)
    profile = replace(problem.profile, op_types=types)
    assert place(Problem(profile, gpus(2)), "expert").plan.details["family"] == "stacked"
    plan = place(Problem(replace(profile, op_kinds=kinds), gpus(2)), "expert").plan
    assert plan.details["family"] == "layers"
    assert plan.device.tolist() == [0, 0, 0, 1, 1, 1] * 2


def test_the_family_can_be_chosen():
    plan = place(
        convolution_problem(), "expert", options=PlaceOptions(values={"family": "stacked"})
    ).plan
    assert plan.details["family"] == "stacked"
    assert plan.device.tolist() == [0] * 6 + [1] * 6


def test_a_rule_overrides_the_family(tmp_path):
    problem, file = convolution_problem(), tmp_path / "rules.txt"
    names = problem.profile.op_names
    file.write_text(f"^{names[0]}$ -> GPU:1\n^{names[11]}$ -> GPU:0\n")
    options = PlaceOptions(values={"rules": str(file)})
    plan = place(problem, "expert", options=options).plan
    assert plan.device.tolist()[0::11] == [1, 0]
    assert plan.details["ops_by_rule"] == 2


@pytest.mark.parametrize("method", ["round-robin", "heft", "dpos", "m-etf", "mcmc", "metis"])
def test_a_tensor_of_the_largest_size_exceeds_every_device(method):
    """Sixteen copies are more bytes than 64 bits can count."""
    names = [f"op{i}" for i in range(32)]
    edges = [(names[0], name, 1 << 62) for name in names[1:]]
    problem = Problem(profile_of(dict.fromkeys(names, 10.0), edges), cluster_of(16))
    schedule = place(problem, method, options=PlaceOptions(stop=Stop(1.0))).schedule
    assert not schedule.fits
    assert schedule.excess_bytes >= (1 << 62) - problem.cluster.capacity_bytes.max()
    assert schedule.peak_bytes.min() >= 0
