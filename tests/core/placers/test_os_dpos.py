"""OS-DPOS: its starts, the ops it splits and the ops it leaves whole."""

import numpy as np
import pytest
from tests.core.placers.problems import gpus

from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place, placers
from enplace.placers.os_dpos import data_parallel
from enplace.values.constraints import Constraints
from enplace.values.problem import Problem
from enplace.values.profile import make_profile

MB = 1 << 20


def one_layer(*, norm=False, weights=MB, second_us=10.0):
    """Return a convolution that takes most of the step, optionally with batch normalisation."""
    names = ["batch", "w", "conv", "norm" if norm else "relu", "loss"]
    types = ["IteratorV2", "VariableV2", "Conv2D"]
    types += ["FusedBatchNormV3" if norm else "Relu", "Mean"]
    ends = [(0, 2, MB), (1, 2, weights), (2, 3, MB), (3, 4, MB)]
    return make_profile(
        "layer",
        op_names=names,
        op_types=types,
        scopes=[""] * 5,
        time_us=np.array([[t, np.nan] for t in (0.0, 0.0, 1000.0, second_us, 5.0)]),
        persistent_bytes=[0, weights, 0, 0, 0],
        temporary_bytes=[0] * 5,
        colocation=[""] * 5,
        edge_source=[a for a, _, _ in ends],
        edge_output=[0] * 4,
        edge_op=[b for _, b, _ in ends],
        edge_bytes=[size for _, _, size in ends],
    )


def test_the_longest_op_is_split_among_the_gpus():
    problem = Problem(one_layer(), gpus(4, b0=1.0, b1=1e-5))
    plan = place(problem, "os-dpos").plan
    assert {"conv"} <= {split.op for split in plan.splits}
    split, whole = simulate(problem, plan), simulate(problem, place(problem, "dpos").plan)
    assert split.makespan_us < 0.5 * whole.makespan_us
    assert split.problem.splits == plan.splits


def test_nothing_is_split_if_transfers_cost_more():
    problem = Problem(one_layer(), gpus(4, b0=1.0, b1=0.1))
    assert place(problem, "os-dpos").plan.splits == ()


def test_batch_normalisation_is_never_split():
    problem = Problem(one_layer(norm=True), gpus(4, b0=1.0, b1=1e-5))
    assert "norm" not in {split.op for split in place(problem, "os-dpos").plan.splits}
    assert {split.op for split in data_parallel(problem)} == {"conv"}


def test_a_pinned_op_stays_whole():
    profile = one_layer()
    problem = Problem(profile, gpus(4, b1=1e-5), Constraints(pins={profile.index["conv"]: 2}))
    plan = place(problem, "os-dpos").plan
    assert "conv" not in {split.op for split in plan.splits}


def test_a_model_too_large_for_data_parallelism_is_still_split():
    """The search cannot start from data parallelism, yet it splits the critical op."""
    problem = Problem(one_layer(), gpus(2, b0=1.0, b1=1e-5, capacity=3 * MB - 1))
    assert not simulate(problem, place(problem, "single").plan).fits
    plan = place(problem, "os-dpos").plan
    assert "conv" in {split.op for split in plan.splits}


def test_the_search_skips_ops_that_cannot_be_split():
    """Batch normalisation is the longest op on the critical path but stays whole."""
    layer = one_layer(norm=True, second_us=2000.0)
    problem = Problem(layer, gpus(4, b0=1.0, b1=1e-5, capacity=3 * MB - 1))
    plan = place(problem, "os-dpos").plan
    assert {split.op for split in plan.splits} == {"conv"}


def test_a_passed_deadline_still_gives_a_plan():
    problem = Problem(one_layer(), gpus(4, b1=1e-5))
    plan = place(problem, "os-dpos", options=PlaceOptions(stop=Stop(1e-9))).plan
    assert plan.splits == ()


def test_any_method_can_place_a_split_graph():
    problem = Problem(one_layer(), gpus(4, b1=1e-5))
    split = simulate(problem, place(problem, "os-dpos").plan).problem
    plan = place(split, "heft").plan
    assert plan.splits == split.splits
    assert simulate(problem, plan).makespan_us == simulate(split, plan).makespan_us


def test_os_dpos_declares_that_it_splits():
    assert "splits" in placers()["os-dpos"].capabilities


@pytest.mark.parametrize("n_gpus", [1, 2])
def test_data_parallelism_splits_among_all_gpus(n_gpus):
    problem = Problem(one_layer(), gpus(n_gpus, b1=1e-5))
    assert all(split.parts == n_gpus for split in data_parallel(problem))
    assert bool(data_parallel(problem)) == (n_gpus > 1)


def test_enplace_continues_from_a_plan_with_splits():
    problem = Problem(one_layer(), gpus(4, b0=1.0, b1=1e-5))
    split = place(problem, "os-dpos").plan
    assert split.splits
    options = PlaceOptions(start=split, values={"rounds": 1})
    better = place(problem, "enplace", options=options).plan
    assert better.splits == split.splits
    assert simulate(problem, better).makespan_us <= simulate(problem, split).makespan_us
