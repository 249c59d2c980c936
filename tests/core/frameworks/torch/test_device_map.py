import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from enplace.frameworks.registry import exporters, frameworks
from enplace.frameworks.roofline import GPUS
from enplace.frameworks.torch.device_map import (
    PARAMETERS,
    block_of,
    count_elsewhere,
    device_map,
    find_blocks,
    folded,
    why_no_map,
)
from enplace.frameworks.torch.measure.measure import estimated_profile
from enplace.inputs import make_problem
from enplace.machine import simulate
from enplace.readers.clusters import presets
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.result import Result
from problems import profile_of
from torch_steps import read_step


@pytest.fixture
def problem():
    facts = Measurement(framework="torch")
    profile = estimated_profile("tied", read_step("tied"), GPUS["h100"], facts)
    return Problem(profile, presets()["h100-2-nvlink"])


def result_of(problem, is_second):
    """Place ops on the first GPU, or on the second if a function of the scope says so."""
    profile = problem.profile
    device = np.array([int(is_second(scope)) for scope in profile.scopes])
    device[~np.isfinite(profile.time_us[:, 0])] = 2
    plan = Plan(device, np.arange(profile.n_ops), method="test")
    return Result(simulate(problem, plan))


def test_a_plan_becomes_a_device_for_each_module_with_tied_ones_alike(problem):
    result = result_of(problem, lambda scope: "blocks_0" in scope)
    assert why_no_map(result) == ""
    assert device_map(result) == {"embedding": 0, "blocks.0": 1, "head": 0}


def test_a_map_whose_layers_go_to_and_fro_says_so(problem, tmp_path, monkeypatch):
    result = result_of(problem, lambda scope: "blocks_0" in scope)
    exporter, path = exporters()["device-map"], tmp_path / "map.json"
    assert exporter.write_to(path, result) == []
    assert json.loads(path.read_text()) == device_map(result)
    turned = {f"blocks.{number}": number % 2 for number in range(4)}
    monkeypatch.setattr("enplace.frameworks.torch.device_map.device_map", lambda _: turned)
    (note,) = exporter.write_to(path, result)
    assert "the device changes 3 times" in note


def test_a_map_of_unlike_gpus_says_whose_numbers_it_has(problem, tmp_path):
    first, *others = problem.cluster.devices
    cluster = replace(problem.cluster, devices=(replace(first, speed=2.0), *others))
    result = result_of(Problem(problem.profile, cluster), lambda scope: "blocks_0" in scope)
    (note,) = exporters()["device-map"].write_to(tmp_path / "map.json", result)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in note


def test_a_divided_block_is_refused_by_name(problem):
    result = result_of(problem, lambda scope: "blocks_0/up" in scope)
    assert "'blocks_0' would be divided" in why_no_map(result)
    assert "--grain block" in why_no_map(result)


def test_a_weight_that_two_devices_share_is_refused_with_what_mends_it(problem):
    result = result_of(problem, lambda scope: "head" in scope)
    assert "'head' reads a weight of 'embedding'" in why_no_map(result)
    assert "--colocate '^head/|^embedding/'" in why_no_map(result)


def test_accelerate_gives_each_device_the_buffer_that_its_modules_get(problem):
    profile = problem.profile
    types = list(profile.op_types)
    types[profile.index["embedding/weight"]] = "Buffer"
    as_buffer = Problem(replace(profile, op_types=tuple(types)), problem.cluster)
    result = result_of(as_buffer, lambda scope: "head" in scope)
    assert why_no_map(result) == ""


def test_the_parts_of_a_model_without_blocks_are_named_as_far_as_they_differ():
    placed = {"net.first.weight": 0, "net.first.bias": 0, "net.second.weight": 1, "mask": 1}
    assert folded(placed) == {"net.first": 0, "net.second": 1, "mask": 1}


def test_a_module_with_numbers_inside_is_one_block():
    placed = {"layer1.0.downsample.0.weight": 0, "layer1.0.conv.weight": 0, "fc.weight": 0}
    assert folded(placed) == {"layer1.0": 0, "fc": 0}


def test_blocks_are_a_grain(problem):
    groups = frameworks()["torch"].grain("block", problem.profile)
    assert groups == [tuple(group) for group in find_blocks(problem.profile) if len(group) > 1]
    block = next(g for g in groups if problem.profile.index["blocks_0/up/addmm"] in g)
    names = {problem.profile.op_names[op] for op in block}
    assert {"gradients/blocks_0/down/mm", "update/blocks_0/norm/weight/AdamW"} <= names
    assert block_of("encoder/layer_3/attention") == "encoder/layer_3"


def test_a_profile_of_no_pytorch_model_has_no_map(problem):
    bare = Problem(
        estimated_profile("tied", read_step("tied"), GPUS["h100"], Measurement()),
        problem.cluster,
    )
    bare.measured_profile.measured.config.clear()
    assert "not of one PyTorch model" in why_no_map(result_of(bare, lambda scope: False))


def test_blocks_stay_together_for_throughput_unless_something_else_is_asked(problem):
    profile, cluster = problem.profile, problem.cluster

    def n_units(objective="throughput", **given):
        return make_problem(profile, cluster, objective=objective, **given).n_units

    ops, blocks = problem.n_units, n_units(grain="block", objective="")
    assert n_units() == blocks < ops
    assert n_units("step-time") == n_units(grain="op") == ops
    up, down = (
        next(name for name in profile.op_names if name.startswith(f"blocks_0/{own}/"))
        for own in ("up", "down")
    )
    divided = make_problem(
        profile, cluster, objective="throughput", pins=[(up, "GPU:0"), (down, "GPU:1")]
    )
    assert divided.n_units == ops


def test_what_reads_no_parameter_is_in_the_block_whose_tensor_it_gets_last():
    """Each call of a dropout apart, and the loss; what comes before all blocks is in the first."""
    way = ["input/x", "drop/a", "layer_0/mul", "drop/b", "layer_1/mul", "loss/mean"]
    back = ["gradients/loss/mean", "gradients/layer_1/mul", "gradients/drop/b"]
    back += ["gradients/layer_0/mul", "gradients/drop/a"]
    edges = [(a, b, 8) for a, b in pairwise([*way, *back])]
    edges += [(f"w{n}", f"layer_{n}/mul", 8) for n in range(2)] + [("drop/a", "loss/mean", 8)]
    edges += [("drop/a", "drop/b", 8)]  # past the layer
    edges += [(name, f"gradients/{name}", 8) for name in ("drop/a", "drop/b")]
    profile = profile_of(dict.fromkeys(["w0", "w1", *way, *back], 1), edges)
    scopes = ["layer_0", "layer_1", *(name.rpartition("/")[0] for name in [*way, *back])]
    kinds = ("variable", "variable", *[""] * (profile.n_ops - 2))
    measured = Measurement(config={PARAMETERS: {"0.w": "w0", "1.w": "w1"}})
    profile = replace(profile, scopes=tuple(scopes), op_kinds=kinds, measured=measured)
    groups = {tuple(sorted(profile.op_names[op] for op in ops)) for ops in find_blocks(profile)}
    first = {name for name in profile.op_names if "drop" in name or "layer_0" in name}
    assert groups == {
        tuple(sorted({"w0", "input/x", *first})),
        tuple(sorted(set(profile.op_names) - first - {"w0", "input/x"})),
    }
    device = np.array([int(name not in {*first, "w0", "input/x"}) for name in profile.op_names])
    assert count_elsewhere(profile, device) == 0
    device[profile.index["loss/mean"]] = 0
    assert count_elsewhere(profile, device) == 1


def test_what_a_module_does_for_itself_with_what_others_read_too_is_in_it():
    """A time embedding whose gradients are added up from the last module to the first."""
    way = ["time/mul", "layer_0/mul", "late/cat", "late/mlp_0/silu", "late/mlp_1/mm"]
    back = [f"gradients/{name}" for name in (*way[:1:-1], "layer_0/add", "time/mul")]
    edges = [("time/mul", "layer_0/mul", 8), ("time/mul", "late/cat", 8)]
    edges += [("layer_0/mul", way[4], 8), (way[4], back[0], 8)]
    edges += [(a, b, 8) for a, b in (*pairwise(way[2:]), *pairwise(back))]
    held = {"w0": way[0], "w1": way[1], "w2": way[4]}
    edges += [(name, reader, 8) for name, reader in held.items()]
    profile = profile_of(dict.fromkeys([*held, *way, *back], 1), edges)
    scopes = [name.rpartition("/")[0] for name in [*held.values(), *way, *back]]
    kinds = ("variable",) * 3 + ("",) * (profile.n_ops - 3)
    measured = Measurement(config={PARAMETERS: {name: name for name in held}})
    profile = replace(profile, scopes=tuple(scopes), op_kinds=kinds, measured=measured)
    groups = [{profile.op_names[op] for op in ops} for ops in find_blocks(profile)]
    assert groups == [
        {"w0", "time/mul", "gradients/time/mul"},
        {"w1", "layer_0/mul", "gradients/layer_0/add"},
        {"w2", *way[2:], *back[:3]},
    ]
    device = np.array([int("late" in name or name == "w2") for name in profile.op_names])
    assert count_elsewhere(profile, device) == 2  # a pipeline runs both where their inputs are


def test_inputs_and_targets_may_be_parts_of_the_same_data_which_have_a_number_after_them():
    way = ["input/x", "input/data", "input/y", "layer_0/mul", "layer_1/mul", "loss/mean"]
    edges = [("input/data", "input/x", 0), ("input/data", "input/y", 0)]
    edges += [(a, b, 8) for a, b in pairwise(["input/x", *way[3:]])] + [("input/y", "loss/mean", 8)]
    edges += [(f"w{n}", f"layer_{n}/mul", 8) for n in range(2)]
    tied = dict.fromkeys(way[:3], "input/x")
    profile = profile_of(dict.fromkeys(["w0", "w1", *way], 1), edges, colocation=tied)
    scopes = ["layer_0", "layer_1", *(name.rpartition("/")[0] for name in way)]
    kinds = ("variable", "variable", *[""] * len(way))
    measured = Measurement(config={PARAMETERS: {"0.w": "w0", "1.w": "w1"}})
    profile = replace(profile, scopes=tuple(scopes), op_kinds=kinds, measured=measured)
    groups = [{profile.op_names[op] for op in ops} for ops in find_blocks(profile)]
    assert groups == [{"w0", *way[:4]}, {"w1", *way[4:]}]
