"""Data parallelism as it is predicted: shares of the work, and a ring that sums the gradients."""

from dataclasses import replace

import numpy as np
import pytest
from tests.core.placers.problems import gpus

from enplace.placers.data_parallel import (
    all_mirrored,
    fastest,
    gradient_bytes,
    mirrored,
    share_of_batch,
)
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.profile import make_profile

KB = 1 << 10
LAUNCH_US = 2.0
OPS = {
    "batch": ("IteratorGetNext", 0.0),
    "w": ("VarHandleOp", 0.0),
    "read": ("ReadVariableOp", 1.0),
    "momentum": ("VarHandleOp", 0.0),
    "product": ("MatMul", 102.0),
    "normed": ("FusedBatchNormV3", 42.0),
    "gradient": ("MatMul", 202.0),
    "update": ("ResourceApplyMomentum", 50.0),
}
EDGES = [
    ("batch", "product", 64 * KB),
    ("w", "read", 8),
    ("read", "product", 16 * KB),
    ("product", "normed", 64 * KB),
    ("batch", "gradient", 64 * KB),
    ("normed", "gradient", 64 * KB),
    ("gradient", "update", 16 * KB),
    ("momentum", "update", 8),
]
WORK_US, REST_US = 100.0 + 40.0 + 200.0, 3 * LAUNCH_US + 50.0 + 1.0


def training(without=()):
    """Return a layer with its gradient and its update; the momentum is as large as the weights."""
    names = [name for name in OPS if name not in without]
    edges = [(a, b, size) for a, b, size in EDGES if a in names and b in names]
    return make_profile(
        "layer",
        op_names=names,
        op_types=[OPS[name][0] for name in names],
        scopes=[""] * len(names),
        time_us=np.array([[OPS[name][1], np.nan] for name in names]),
        persistent_bytes=[16 * KB if name in ("w", "momentum") else 0 for name in names],
        temporary_bytes=[0] * len(names),
        colocation=[""] * len(names),
        edge_source=[names.index(a) for a, _, _ in edges],
        edge_output=[0] * len(edges),
        edge_op=[names.index(b) for _, b, _ in edges],
        edge_bytes=[size for _, _, size in edges],
    )


@pytest.mark.parametrize(("n_samples", "numbers"), [(1, []), (2, [2]), (3, [2]), (4, [4, 2])])
def test_every_replica_has_a_sample(n_samples, numbers):
    measured = Measurement(batch_shapes=((n_samples, 8),))
    problem = Problem(replace(training(), measured=measured), gpus(4, b0=1.0, b1=1e-3))
    assert [found.number for found in all_mirrored(problem)] == numbers
    assert bool(mirrored(problem)) == (4 in numbers)


@pytest.mark.parametrize("n", [2, 4])
def test_a_replica_does_its_share_of_the_samples_and_all_of_the_update(n):
    found = mirrored(Problem(training(), gpus(n, b0=1.0, b1=1e-3)))
    assert found.each.makespan_us == pytest.approx(WORK_US / n + REST_US)
    assert found.gradient_bytes == 16 * KB
    assert found.sum_us == pytest.approx(2 * (n - 1) * (1.0 + 16 * KB / n * 1e-3))
    assert found.step_time_us == pytest.approx(found.each.makespan_us + found.sum_us)
    assert found.fits


def test_a_model_that_is_not_trained_sums_nothing():
    profile = training(without=("gradient", "update", "momentum"))
    assert gradient_bytes(profile) == 0
    assert mirrored(Problem(profile, gpus(2, b0=1.0))).sum_us == 0


def test_gradients_that_are_summed_later_count_once():
    """Each time step of a recurrent layer has a gradient; a strategy sums their sum."""
    profile = training()
    grown = profile.tensor_bytes.copy()
    grown[grown == 16 * KB] *= 10
    assert gradient_bytes(replace(profile, tensor_bytes=grown)) == 16 * KB


def test_a_share_of_the_batch_needs_a_share_of_the_memory():
    shared = share_of_batch(training(), 4)
    at = dict(zip(shared.tensor_op.tolist(), shared.tensor_bytes.tolist(), strict=True))
    assert at[shared.index["product"]] == 16 * KB
    assert at[shared.index["read"]] == 16 * KB


def test_hops_that_share_a_channel_wait_for_each_other():
    cluster = gpus(4, b0=1.0, b1=1e-3)
    bus = replace(
        cluster, channels=("bus",), links=tuple(replace(k, channels=(0,)) for k in cluster.links)
    )
    apart, shared = (mirrored(Problem(training(), each)) for each in (cluster, bus))
    assert shared.sum_us == pytest.approx(4 * apart.sum_us)


def test_replicas_on_one_chip_take_turns():
    cluster = gpus(2, b0=1.0)
    card = replace(cluster, devices=tuple(replace(d, chip="card") for d in cluster.devices))
    found = mirrored(Problem(training(), card))
    assert found.step_time_us == pytest.approx(2 * found.each.makespan_us + found.sum_us)


def test_the_slowest_card_sets_the_pace():
    cluster = gpus(2, b0=1.0)
    first, second = cluster.devices
    mixed = replace(cluster, devices=(first, replace(second, speed=0.5)))
    found = mirrored(Problem(training(), mixed))
    assert found.each.makespan_us == pytest.approx(2 * (WORK_US / 2 + REST_US))


def test_fewer_replicas_have_a_plan_inside():
    alone, inside = all_mirrored(Problem(training(), gpus(4, b0=1.0, b1=1e-6)))
    assert (alone.number, alone.gpus_each) == (4, 1)
    assert (inside.number, inside.gpus_each, inside.each.plan.method) == (2, 2, "heft")
    assert fastest([alone, inside]).step_time_us <= min(alone.step_time_us, inside.step_time_us)


def test_nothing_is_predicted_if_the_profile_hides_the_gradients():
    profile = training()
    untyped = replace(profile, op_types=("",) * profile.n_ops)
    assert mirrored(Problem(untyped, gpus(2, b0=1.0))) is None
    backward = replace(training(without=("update", "momentum")), scopes=("gradients",) * 6)
    assert mirrored(Problem(backward, gpus(2, b0=1.0))) is None


def test_gradients_are_found_without_types_of_tensorflow():
    profile = training()
    kinds = profile.kinds
    foreign = replace(profile, op_types=("",) * profile.n_ops)
    assert gradient_bytes(foreign) == 0
    assert gradient_bytes(replace(foreign, op_kinds=kinds)) == gradient_bytes(profile) > 0
    passes = ("forward",) * 6 + ("backward", "update")
    written = replace(foreign, op_kinds=(*kinds[:-1], "other"), op_passes=passes)
    assert gradient_bytes(written) == gradient_bytes(profile)
    assert mirrored(Problem(written, gpus(2, b0=1.0))).sum_us > 0


def test_one_gpu_has_no_replicas():
    assert mirrored(Problem(training(), gpus(1))) is None
    assert not all_mirrored(Problem(training(), gpus(1)))
