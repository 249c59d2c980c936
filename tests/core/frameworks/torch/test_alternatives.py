"""What people who use PyTorch pick without a planner, by their own names."""

from dataclasses import replace

import numpy as np
import pytest

from enplace.frameworks.alternatives import alternatives_of_run, find_alternatives
from enplace.frameworks.microbatches import Microbatches
from enplace.frameworks.torch.alternatives import balanced_map, count_as_torchtitan, count_even
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.placers import place
from enplace.placers.alternatives import at_once, with_batch_of
from enplace.placers.data_parallel import all_mirrored, mirrored
from enplace.placing.prices import PRICE_US
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem
from enplace.values.splits.graph import LAUNCH_US
from problems import cluster_of
from torch_layers import KB, LAYER_US, UPDATE_US, layered

COST = {"b0_us": 1.0, "b1_us_per_byte": 1e-3}
"""Of the links."""


def found_for(problem, objective=STEP_TIME, rule=USUAL):
    rivals = all_mirrored(problem) if objective == STEP_TIME else []
    return {each.name: each for each in find_alternatives(problem, objective, rivals, rule)}


def test_each_is_named_as_its_people_do():
    problem = Problem(layered(), cluster_of(2))
    splits = ['device_map="balanced"', "even layers", "torchtitan's rule"]
    assert list(found_for(problem)) == ["DDP, 2 replicas", "FSDP", *splits]
    assert list(found_for(problem, THROUGHPUT)) == ["DDP, 2 replicas", "FSDP", *splits]
    assert not found_for(problem, "latency")
    assert not found_for(Problem(layered(), cluster_of(1)))


def test_beside_a_pipeline_data_parallelism_takes_all_its_samples_in_one_step():
    problem, rule = Problem(layered(samples=8), cluster_of(2, **COST)), LoadRule(microbatches=4)
    found = found_for(problem, THROUGHPUT, rule)
    whole = found_for(with_batch_of(problem, 4))
    for name in ("DDP, 2 replicas", "FSDP"):
        assert found[name].value_us * 4 == pytest.approx(whole[name].value_us)
        assert found[name].peak_bytes.tolist() == whole[name].peak_bytes.tolist()
        assert f"all 4 micro-batches at once takes {whole[name].time}." in found[name].about
    alone_us = mirrored(problem).slowest.alone.makespan_us
    assert found["DDP, 2 replicas"].value_us < 2 * alone_us


def test_a_whole_batch_adds_its_gradients_to_none():
    """What an op of the backward pass makes in the memory of a variable is a sum of gradients."""
    profile = layered()
    op, weight = profile.index["gradients/layers_0/mm"], profile.index["layers_0/weight"]
    base = np.where(profile.tensor_op == op, np.argmax(profile.tensor_op == weight), -1)
    profile = replace(profile, tensor_base=base)
    cut = replace(profile.measured, source={"cut_batch": 4})
    for measured, time_us in ((profile.measured, 4 * LAYER_US), (cut, 0.0)):
        whole = at_once(Problem(replace(profile, measured=measured), cluster_of(2)), 4)
        assert whole.measured_profile.time_us[op, 0] == pytest.approx(time_us, rel=0.1)


def test_data_parallelism_sends_gradients_in_buckets():
    """The first 1 MiB of 8 gradients is one, then 25 MiB are; each goes around in two rounds."""
    for weight, buckets in ((64 * KB, 1), (4096 * KB, 3)):
        shared = mirrored(Problem(layered(weight=weight, head=weight), cluster_of(2)))
        assert shared.price_us == pytest.approx(2 * buckets * PRICE_US)


@pytest.mark.parametrize("n", [2, 4])
def test_fsdp_gathers_twice_and_scatters_once_for_each_block(n):
    problem = Problem(layered(), cluster_of(n, **COST))
    shared, fsdp = mirrored(problem), found_for(problem)["FSDP"]
    around_us = (n - 1) * (COST["b0_us"] + 64 * KB / n * COST["b1_us_per_byte"])
    less_us = 8 * (UPDATE_US - LAUNCH_US) * (1 - 1 / n)
    step_us = shared.slowest.alone.makespan_us - less_us
    assert fsdp.value_us == pytest.approx(step_us + 3 * 8 * around_us)
    assert shared.sum_us == pytest.approx(2 * (n - 1) * (COST["b0_us"] + 8 * 64 * KB / n * 1e-3))


def test_fsdp_holds_a_share_of_all_and_the_largest_block_as_a_whole():
    """Of a weight, its states and its gradient."""
    weight, largest = 64 * KB, 256 * KB
    held = [found_for(Problem(layered(head=largest, data=0), cluster_of(n)))["FSDP"].peak_bytes[0]
            for n in (2, 4)]  # fmt: skip
    own = [3 * (7 * weight + largest) / n + 2 * largest for n in (2, 4)]
    for peak, least, n in zip(held, own, (2, 4), strict=True):
        assert least < peak <= least + (7 * weight + largest) / n + 100


def test_what_does_not_fit_is_told_as_such():
    problem = Problem(layered(), cluster_of(4, capacity_bytes=700 * KB))
    found = found_for(problem)
    assert not found["DDP"].fits
    assert found["DDP"].notes.startswith("does not fit: fewer than two cards have room")
    assert found["FSDP"].fits
    tight = found_for(Problem(layered(), cluster_of(4, capacity_bytes=500 * KB)))
    assert not tight["even layers"].fits
    assert "of 500 KiB" in tight["even layers"].notes


def test_a_weight_of_several_layers_is_with_the_first_of_them():
    large, rule = 1 << 20, LoadRule(microbatches=4)
    problem = Problem(layered(weight=large, head=0, cast=True), cluster_of(2, **COST))
    found = found_for(problem, THROUGHPUT, rule)
    for name in ("even layers", "torchtitan's rule"):
        first, last = found[name].peak_bytes
        assert first >= last + 2 * large  # its states are there, too


def test_counts_of_layers_are_those_of_torchtitan():
    """The first are of its tests: ends that count as one layer each."""
    assert count_as_torchtitan(8, 2) == [4, 4]
    assert count_as_torchtitan(6, 4) == [1, 2, 2, 1]
    assert count_as_torchtitan(7, 4) == [2, 2, 2, 1]
    assert count_as_torchtitan(3, 6) == []
    assert count_even(6, 4) == [2, 2, 1, 1]
    for n_layers in range(4, 30):
        for n_stages in range(2, n_layers):
            for counted in (count_as_torchtitan, count_even):
                assert sum(counted(n_layers, n_stages)) == n_layers


def test_pipelines_of_the_splits_have_the_schedule_of_the_plan():
    problem = Problem(layered(), cluster_of(2))
    for kind, counts in (("1f1b", "3, 3"), ("interleaved", "2, 2, 1, 1")):
        even = found_for(problem, THROUGHPUT, LoadRule(pipeline=kind))["even layers"]
        assert f"Layers on each card: {counts}." in even.about
    assert even.value_us > found_for(problem, THROUGHPUT)["even layers"].value_us / 2


@pytest.mark.parametrize(
    ("sizes", "rooms", "cards"),
    [
        ({}, [1 << 30] * 4, [0, 0, 1, 1, 1, 2, 2, 2]),
        ({}, [1 << 30] * 2, [0, 0, 0, 0, 1, 1, 1, 1]),
        ({"head": 512 * KB}, [1 << 30] * 3, [1, 1, 1, 1, 1, 1, 1, 2]),
        ({"weight": 32 * KB, "n_layers": 11}, [1 << 30] * 3, [0] * 4 + [1] * 6 + [2] * 3),
        ({}, [128 * KB] * 2, [0, 1, 1, 2, 2, 2, 2, 2]),
    ],
)
def test_the_map_is_that_of_accelerate(sizes, rooms, cards):
    """As accelerate 1.15 made them of modules of these sizes, whole layers; the last is a CPU."""
    assert list(balanced_map(layered(**sizes), rooms).values()) == cards


def test_a_run_has_its_plan_beside_them():
    problem = Problem(layered(), cluster_of(2))
    plan = place(problem, "expert").plan
    objective, found = alternatives_of_run(problem, plan, None, 5.0)
    assert (objective, found[0].name, found[0].value_us) == (STEP_TIME, "this plan", 5.0)
    objective, found = alternatives_of_run(problem, plan, Microbatches("1f1b", 4), np.nan)
    assert objective == THROUGHPUT
    assert [each.name for each in found[1:]] == [*found_for(problem, THROUGHPUT)]
    assert found[0].value_us < simulate_pipeline(problem, plan, "1f1b", 4).time_per_sample_us / 2
