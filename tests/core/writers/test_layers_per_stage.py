"""The stages of a plan as other programs ask for them, read back as they read them."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from enplace.machine import simulate
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.result import Result
from enplace.writers import exporters
from problems import cluster_of, plan_of, profile_of

FORMS = ("vllm", "megatron", "deepspeed", "llama-cpp")
USUAL = ("embed", *(f"h_{layer}" for layer in range(6)), "norm", "head")


def result_of(on, scopes=USUAL, n_gpus=3, persistent=None):
    """Place a chain of one op for each scope, and its gradients, on GPUs; 9 is the CPU."""
    names = [f"{scope}/op" for scope in scopes]
    names += [f"gradients/{scope}/op" for scope in reversed(scopes)]
    times = {name: 1.0 if "h_" in name else 2.0 for name in names}
    edges = [(a, b, 4) for a, b in pairwise(names)]
    profile = profile_of(times, edges, cpu=dict.fromkeys(names, 5.0), persistent=persistent)
    types = tuple("Input" if scope == "input" else "Op" for scope in profile.scopes)
    profile = replace(profile, op_types=types)
    problem = Problem(profile, cluster_of(n_gpus, cpu_lanes=1))
    host = problem.cluster.cpus[0]
    device = [host if at == 9 else at for at in map(int, on)]
    plan = plan_of(problem, dict(zip(names, [*device, *reversed(device)], strict=True)))
    return Result(simulate(problem, plan))


def written(form, result):
    assert exporters()[form].why_not(result) == ""
    return exporters()[form].text(result)


def parse_megatron(text):
    """Return what is in each stage, as Megatron unfolds its layout."""
    layout = re.search(r"-layout '(.*)'", text)[1]
    return re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), layout).split("|")


def llama_devices(text, n_layers):
    """Return the device of each layer and of the output, as llama.cpp assigns them."""
    n_on_gpus = int(re.search(r"-ngl (\d+)", text)[1])
    names = re.search(r"-dev (\S+)", text)[1].split(",")
    shares = np.array(re.search(r"-ts ([\d,]+)", text)[1].split(","), dtype=np.float32)
    ends, first = np.cumsum(shares) / shares.sum(), n_layers + 1 - n_on_gpus
    of = ["CPU"] * first
    for slot in range(n_on_gpus):
        of.append(names[np.searchsorted(ends, np.float32(slot / n_on_gpus), side="right")])
    for pattern, device in re.findall(r"-ot '(.*)=(\w+)'", text):
        of = [
            device if re.search(pattern, f"blk.{n}.ffn.weight") else at for n, at in enumerate(of)
        ]
    return of


class Base:
    """What DeepSpeed's PipelineModule has before it divides its layers."""

    def __init__(self, stage_id, layers):
        self.stage_id, self._layer_specs = stage_id, layers

    def _find_layer_type(self, pattern):
        return [n for n, each in enumerate(self._layer_specs) if re.search(pattern, each)]

    def _set_bounds(self, start, stop):
        self.own = self._layer_specs[start:stop]


def deepspeed_stages(text, layers, n_stages):
    space = {"PipelineModule": Base}
    exec(text.replace("from deepspeed.pipe import PipelineModule", ""), space)
    stages = [space["PlannedPipelineModule"](stage, layers) for stage in range(n_stages)]
    for each in stages:
        each._partition_layers(method="type:h_")
    return [each.own for each in stages]


def test_a_pipeline_says_the_same_to_each_program():
    result = result_of("000011111")
    assert "VLLM_PP_LAYER_PARTITION=3,3\n" in written("vllm", result)
    assert parse_megatron(written("megatron", result)) == ["Ettt", "tttL"]
    assert llama_devices(written("llama-cpp", result), 6) == ["CUDA0"] * 3 + ["CUDA1"] * 4
    own = deepspeed_stages(written("deepspeed", result), list(USUAL), 2)
    assert own == [["embed", "h_0", "h_1", "h_2"], ["h_3", "h_4", "h_5", "norm", "head"]]


def test_gpus_in_another_order_are_named():
    result = result_of("222220000")
    assert "Put CUDA_VISIBLE_DEVICES=2,0 before the command." in written("vllm", result)
    assert llama_devices(written("llama-cpp", result), 6) == ["CUDA2"] * 4 + ["CUDA0"] * 3


def test_unlike_gpus_are_to_be_numbered_by_their_slots():
    """By default, CUDA begins with the fastest."""
    result = result_of("000011111")
    problem = result.schedule.problem
    devices = list(problem.cluster.devices)
    devices[2] = replace(devices[2], speed=2.0)
    unlike = replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))
    result = Result(simulate(unlike, result.plan))
    for form in FORMS:
        assert "Put CUDA_DEVICE_ORDER=PCI_BUS_ID before the command" in written(form, result)
    own = replace(problem.profile, measured=Measurement(cluster=unlike.cluster))
    own = Problem(own, unlike.cluster)
    assert "CUDA_DEVICE_ORDER" not in written("vllm", Result(simulate(own, result.plan)))


def test_an_end_of_the_model_may_have_a_stage_of_its_own():
    result = result_of("011111122")
    assert "=0,6,0\n" in written("vllm", result)
    assert parse_megatron(written("megatron", result)) == ["E", "tttttt", "L"]
    assert llama_devices(written("llama-cpp", result), 6) == ["CUDA1"] * 6 + ["CUDA2"]
    own = deepspeed_stages(written("deepspeed", result), list(USUAL), 3)
    assert own == [["embed"], list(USUAL[1:7]), ["norm", "head"]]


def test_llama_cpp_leaves_the_first_layers_to_the_cpu():
    text = written("llama-cpp", result_of("999001111"))
    assert llama_devices(text, 6) == ["CPU"] * 2 + ["CUDA0"] * 2 + ["CUDA1"] * 3


def test_llama_cpp_moves_layers_that_are_out_of_turn_by_name():
    text = written("llama-cpp", result_of("001010911"))
    assert llama_devices(text, 6) == ["CUDA0", "CUDA1", "CUDA0", "CUDA1", "CUDA0", "CPU", "CUDA1"]
    assert "keys and values" in text


@pytest.mark.parametrize(
    ("on", "why"),
    [
        ("000110011", "GPU 0 has layers 0 to 1, 4 to 5, which are not consecutive"),
        ("000000000", "GPU 0 has the whole model"),
        ("000111100", "'(norm|head)' is on GPU 0, but the last layers are on GPU 1; pin it there"),
        ("100011111", "'embed' is on GPU 1, but the first layers are on GPU 0"),
        ("200011122", "'(norm|head)' is on GPU 2, but the last layers are on GPU 1"),
        ("000999911", "CPU 0 has a part of the model"),
    ],
)
def test_what_is_no_pipeline_is_refused_in_a_line(on, why):
    result = result_of(on)
    assert re.search(why, exporters()["vllm"].why_not(result))


def test_the_end_of_a_model_is_where_its_weights_are():
    scopes = ("tokens", "positions", *USUAL[1:])
    result = result_of("1000011111", scopes, persistent={"tokens/op": 9, "positions/op": 1})
    why = "'tokens' is on GPU 1, but the first layers are on GPU 0; pin it there"
    assert why in exporters()["megatron"].why_not(result)


def test_a_data_set_on_the_host_is_no_part_of_the_model():
    scopes = ("input", *USUAL)
    result = result_of("9000011111", scopes, persistent={"input/op": 9})
    assert "VLLM_PP_LAYER_PARTITION=3,3\n" in written("vllm", result)


def test_a_divided_layer_is_refused_by_name():
    result = result_of("000011111")
    device = result.plan.device.copy()
    device[result.schedule.problem.profile.index["gradients/h_2/op"]] = 1
    plan = replace(result.plan, device=device)
    divided = Result(simulate(result.schedule.problem, plan))
    for form in FORMS:
        said = exporters()[form].why_not(divided)
        assert said == "'h_2' is divided between GPU 0, GPU 1; make a plan with --whole 'h_\\d+'"


def test_layers_of_two_kinds_have_no_such_count():
    scopes = [f"{side}/h_{n}" for side in ("encoder", "decoder") for n in "012"]
    result = result_of("000111", scopes)
    assert "several kinds, 'encoder/h', 'decoder/h'" in exporters()["vllm"].why_not(result)
    own = deepspeed_stages(written("deepspeed", result), scopes, 2)
    assert own == [scopes[:3], scopes[3:]]


def test_a_model_without_numbered_layers_has_none():
    result = result_of("011", ("a", "b", "c"))
    assert "no numbered layers" in exporters()["megatron"].why_not(result)
