"""Data parallelism as it is predicted: shares of the work, and a ring that sums the gradients."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.placers.problems import gpus

from enplace.placers.batch_shares import share_of_batch
from enplace.placers.data_parallel import (
    ONE_SAMPLE,
    all_mirrored,
    fastest,
    gradient_bytes,
    mirrored,
    why_not_mirrored,
)
from enplace.placing.prices import PRICE_US
from enplace.readers.clusters import presets
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.profile import make_profile
from properties import examples

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


@pytest.mark.parametrize(
    ("n_gpus", "n_samples", "numbers"),
    [(4, 1, []), (4, 2, [2, 2]), (4, 3, [3, 2]), (4, 4, [4, 2]), (3, 2, [2])],
)
def test_every_replica_has_a_sample(n_gpus, n_samples, numbers):
    measured = Measurement(batch_shapes=((n_samples, 8),))
    problem = Problem(replace(training(), measured=measured), gpus(n_gpus, b0=1.0, b1=1e-3))
    assert [found.number for found in all_mirrored(problem)] == numbers
    assert bool(mirrored(problem)) == bool(numbers)
    assert why_not_mirrored(problem) == ("" if numbers else ONE_SAMPLE)
    if n_gpus == 3:
        assert "none on GPU 2" in mirrored(problem).about_shares


@pytest.mark.parametrize("n", [2, 4])
def test_a_replica_does_its_share_of_the_samples_and_all_of_the_update(n):
    found = mirrored(Problem(training(), gpus(n, b0=1.0, b1=1e-3)))
    assert found.slowest.alone.makespan_us == pytest.approx(WORK_US / n + REST_US)
    assert found.gradient_bytes == 16 * KB
    assert found.sum_us == pytest.approx(2 * (n - 1) * (1.0 + 16 * KB / n * 1e-3))
    assert found.step_time_us == pytest.approx(found.slowest.alone.makespan_us + found.sum_us)
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
    shared = share_of_batch(training(), 1 / 4)
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
    assert found.step_time_us == pytest.approx(2 * found.slowest.alone.makespan_us + found.sum_us)


def unlike(*speeds, capacities=None, b0=1.0):
    """Return GPUs that differ in speed, and perhaps in memory."""
    cluster = gpus(len(speeds), b0=b0)
    rooms = capacities or [device.capacity_bytes for device in cluster.devices]
    devices = zip(cluster.devices, speeds, rooms, strict=True)
    return replace(
        cluster,
        devices=tuple(replace(d, speed=v, capacity_bytes=c) for d, v, c in devices),
    )


def shares_of(found):
    """Return the samples of each GPU's replica."""
    return {gpu: each.samples for each in found.replicas for gpu in each.gpus}


def batch_of(n_samples, profile=None):
    return replace(profile or training(), measured=Measurement(batch_shapes=((n_samples, 8),)))


def test_with_equal_shares_the_slowest_card_sets_the_pace():
    found = mirrored(Problem(training(), unlike(1.0, 0.5)), evenly=True)
    assert found.step_time_us - found.sum_us == pytest.approx(2 * (WORK_US / 2 + REST_US))


def test_cards_of_unlike_speed_end_together():
    """Without samples to count, the shares may be any: the larger goes to the faster card."""
    found = mirrored(Problem(training(), unlike(1.0, 0.5)))
    # WORK x + REST = 2 (WORK (1 - x) + REST)
    share = (2 * WORK_US + REST_US) / (3 * WORK_US)
    assert [each.share for each in found.replicas] == pytest.approx([share, 1 - share], abs=1e-4)
    assert found.step_time_us - found.sum_us == pytest.approx(WORK_US * share + REST_US, rel=1e-4)
    assert found.about_shares.startswith("Best shares of the batch: ")


@given(
    st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=3),
    st.integers(3, 14),
)
@examples(20)
def test_the_shares_are_the_best_whole_samples(speeds, n_samples):
    """Tried out: with any other shares, the slowest replica ends later."""
    found = mirrored(Problem(batch_of(n_samples), unlike(*speeds, b0=0.0)))

    def longest_us(shares):
        times = [
            (WORK_US * s / n_samples + REST_US) / v
            for s, v in zip(shares, speeds, strict=True)
            if s
        ]
        return max(times) if len(times) > 1 else np.inf

    every = itertools.product(range(n_samples + 1), repeat=len(speeds))
    best_us = min(longest_us(shares) for shares in every if sum(shares) == n_samples)
    assert sum(shares_of(found).values()) == n_samples
    assert found.slowest.step_time_us == pytest.approx(best_us)


def ring_us(profile, cluster, gpus):
    """Return the time to sum the gradients around a ring of GPUs that share no link."""
    hops = zip(gpus, (*gpus[1:], gpus[0]), strict=True)
    n_bytes = -(-gradient_bytes(profile) // len(gpus))
    hop_us = (cluster.b0_us[hop] + cluster.b1_us_per_byte[hop] * n_bytes for hop in hops)
    return 2 * (len(gpus) - 1) * max(hop_us)


@given(
    st.lists(st.sampled_from([0.25, 1.0, 4.0]), min_size=3, max_size=4),
    st.integers(2, 6),
    st.sampled_from([1.0, 20.0, 200.0]),
    st.booleans(),
)
@examples(20)
def test_a_card_that_costs_more_than_it_gains_takes_no_part(speeds, n_samples, b0, has_slow_link):
    """One of several equal cards, or one behind a slow link: no other choice and shares win."""
    cluster = unlike(*[8.0, *speeds], b0=b0)
    slow = {1} if has_slow_link else set()
    links = (replace(k, b0_us=500.0) if {k.source, k.target} & slow else k for k in cluster.links)
    cluster, profile = replace(cluster, links=tuple(links)), batch_of(n_samples)
    found = mirrored(Problem(profile, cluster))

    def step_us(shares):
        gpus = [gpu for gpu, s in enumerate(shares) if s]
        works = [
            (WORK_US * shares[g] / n_samples + REST_US) / cluster.devices[g].speed for g in gpus
        ]
        return max(works) + ring_us(profile, cluster, gpus) if len(gpus) > 1 else np.inf

    every = itertools.product(range(n_samples + 1), repeat=len(cluster.gpus))
    best_us = min(step_us(shares) for shares in every if sum(shares) == n_samples)
    assert found.step_time_us == pytest.approx(best_us)


def test_shares_are_called_best_only_if_all_choices_were_compared():
    many = mirrored(Problem(batch_of(32), unlike(*[1.0] * 9, 0.001, 0.001)))
    assert not {9, 10} & shares_of(many).keys()
    assert many.about_shares.startswith("Shares of the batch: ")


def test_no_card_gets_more_than_it_has_room_for():
    profile = batch_of(32)
    whole = mirrored(Problem(profile, unlike(1.0, 1.0)))
    peak = max(int(each.alone.peak_bytes.max()) for each in whole.replicas)
    small = mirrored(Problem(profile, unlike(1.0, 1.0, capacities=[1 << 30, peak - 20 * KB])))
    samples = shares_of(small)
    assert small.fits
    assert samples[0] > 16 > samples[1] > 0
    assert "samples on GPU 0" in small.about
    slow = mirrored(Problem(profile, unlike(1.0, 0.01, 1.0)))
    assert set(shares_of(slow)) == {0, 2}
    assert slow.about_shares.endswith("none on GPU 1.")
    full = mirrored(Problem(profile, unlike(1.0, 1.0, capacities=[peak - 20 * KB] * 2)))
    assert not full.fits


def test_cards_without_room_for_the_variables_take_no_part():
    found = mirrored(
        Problem(batch_of(32), unlike(1.0, 1.0, 1.0, capacities=[1 << 30, KB, 1 << 30]))
    )
    assert shares_of(found) == {0: 16, 2: 16}
    assert found.fits
    problem = Problem(batch_of(32), unlike(1.0, 1.0, capacities=[1 << 30, KB]))
    assert mirrored(problem) is None
    assert "fewer than two GPUs have room" in why_not_mirrored(problem)


def test_fewer_replicas_have_a_plan_inside():
    alone, inside = all_mirrored(Problem(training(), gpus(4, b0=1.0, b1=1e-6)))
    assert (alone.number, alone.gpus_each) == (4, 1)
    assert (inside.number, inside.gpus_each, inside.slowest.alone.plan.method) == (2, 2, "heft")
    assert fastest([alone, inside]).step_time_us <= min(alone.step_time_us, inside.step_time_us)


def test_nothing_is_predicted_if_no_op_is_known_to_work_on_samples():
    profile = training()
    for types in (("",) * profile.n_ops, ("LSTMCell",) * profile.n_ops):
        problem = Problem(replace(profile, op_types=types), gpus(2, b0=1.0))
        assert mirrored(problem) is None
        assert "known to work on samples" in why_not_mirrored(problem)
    assert not why_not_mirrored(Problem(profile, gpus(2)))
    assert not why_not_mirrored(Problem(profile, gpus(1)))


def test_a_table_that_a_lookup_holds_does_not_hide_the_samples():
    names = ["lookup", "product", "loss"]
    profile = make_profile(
        "lookup",
        op_names=names,
        op_types=["Gather", "MatMul", "Softmax"],
        scopes=[""] * 3,
        time_us=np.array([[10.0, np.nan]] * 3),
        persistent_bytes=[KB, KB, 0],
        temporary_bytes=[0] * 3,
        colocation=[""] * 3,
        edge_source=[0, 1],
        edge_output=[0, 0],
        edge_op=[1, 2],
        edge_bytes=[64 * KB] * 2,
    )
    assert not why_not_mirrored(Problem(profile, gpus(2)))


def test_a_prediction_is_a_guess_where_types_say_little():
    profile = training()
    assert "guess" not in mirrored(Problem(profile, gpus(2))).guess
    types = tuple("LSTMCell" if each == "MatMul" else each for each in profile.op_types)
    cells = replace(profile, op_types=types)
    assert mirrored(Problem(cells, gpus(2))) is None
    relu = tuple("Relu" if each.startswith("Fused") else each for each in types)
    guess = mirrored(Problem(replace(profile, op_types=relu), gpus(2))).guess
    assert "This is a guess" in guess
    assert "such as LSTMCell" in guess


def test_what_sending_gradients_may_cost_is_told_where_no_one_measured_it():
    """Two replicas, 2 (n - 1) sends of 10 µs for one gradient; 5 % of 10 ms hide them."""
    profile = training()
    assert "0.020 ms for its gradients" in mirrored(Problem(profile, gpus(2))).doubt
    long = replace(profile, time_us=profile.time_us * 1000)
    assert not mirrored(Problem(long, gpus(2))).doubt


def test_every_gradient_that_no_kind_tells_is_a_send():
    """Nothing updates the variable and the momentum, so each may have a gradient of its own."""
    profile = training(without=("update",))
    profile = replace(profile, op_passes=("",) * 6 + ("backward",))
    assert mirrored(Problem(profile, gpus(2))).price_us == pytest.approx(2 * PRICE_US)


def test_without_times_on_gpus_there_is_no_prediction():
    profile = training()
    on_cpus = np.stack([np.full(profile.n_ops, np.nan), profile.time_us[:, 0]], axis=1)
    cluster = presets()["v100-2-pcie"]
    problem = Problem(replace(profile, time_us=on_cpus), cluster)
    assert mirrored(problem) is None
    assert "without a time on a GPU" in why_not_mirrored(problem)
    on_cpus[profile.index["read"], 0] = 1.0
    one_op = Problem(replace(profile, time_us=on_cpus), cluster)
    assert mirrored(one_op) is None
    assert why_not_mirrored(one_op) == why_not_mirrored(problem)


def test_gradients_that_no_kind_tells_are_as_large_as_the_weights():
    """Backward ops that a person wrote, whose types are their own; nothing writes the variables."""
    profile = training(without=("update", "momentum"))
    types = tuple(
        "CellGrad" if n == "gradient" else t
        for n, t in zip(profile.op_names, profile.op_types, strict=True)
    )
    passes = tuple("backward" if name == "gradient" else "forward" for name in profile.op_names)
    found = mirrored(Problem(replace(profile, op_types=types, op_passes=passes), gpus(2, b0=1.0)))
    assert found.gradient_bytes == 16 * KB
    assert found.sum_us > 0
    assert "as large as the variables" in found.guess


def test_gradients_are_found_without_types_of_tensorflow():
    profile = training()
    kinds = profile.kinds
    foreign = replace(profile, op_types=("",) * profile.n_ops)
    assert gradient_bytes(replace(foreign, op_kinds=kinds)) == gradient_bytes(profile) > 0
    passes = ("forward",) * 6 + ("backward", "update")
    written = replace(foreign, op_kinds=(*kinds[:-1], "other"), op_passes=passes)
    assert gradient_bytes(written) == gradient_bytes(profile)
    assert mirrored(Problem(written, gpus(2, b0=1.0))).sum_us > 0


def test_one_gpu_has_no_replicas():
    assert mirrored(Problem(training(), gpus(1))) is None
    assert not all_mirrored(Problem(training(), gpus(1)))


def test_a_backward_product_that_does_both_gradients_hides_their_bytes():
    """Written by hand: one op for each layer gives the gradients of its weights and its input."""
    there, back = ([f"{way}{i}" for i in range(4)] for way in ("fw", "bw"))
    names = ["batch", *there, *reversed(back), *(f"up{i}" for i in range(4))]
    chain = [*itertools.pairwise(["batch", *there, *reversed(back)])]
    edges = [(a, b, 0, 64 * KB) for a, b in chain]
    edges += [(a, b, 0, 64 * KB) for a, b in zip(["batch", *there[:2]], back[:3], strict=True)]
    edges += [(f"bw{i}", f"up{i}", 1, 16 * KB) for i in range(4)]
    updates = ["ResourceApplyAdam"] * 4
    profile = make_profile(
        "products",
        op_names=names,
        op_types=["Placeholder", *["MatMul"] * 8, *updates],
        scopes=[""] * len(names),
        time_us=np.array([[10.0, np.nan] for _ in names]),
        persistent_bytes=[16 * KB if name in there else 0 for name in names],
        temporary_bytes=[0] * len(names),
        colocation=["" if name == "batch" else f"w{name[-1]}" for name in names],
        edge_source=[names.index(a) for a, *_ in edges],
        edge_output=[output for _, _, output, _ in edges],
        edge_op=[names.index(b) for _, b, _, _ in edges],
        edge_bytes=[size for *_, size in edges],
    )
    found = mirrored(Problem(profile, gpus(2, b0=1.0)))
    assert found.gradient_bytes == 4 * 16 * KB
    assert "as large as the variables" in found.guess
    shared = share_of_batch(profile, 1 / 2)
    in_half = dict(zip(shared.op_names, shared.time_us[:, 0].tolist(), strict=True))
    assert in_half["bw1"] == in_half["bw2"] < in_half["up1"] == 10.0
    gradients = shared.tensor_bytes[shared.tensor_output == 1]
    assert gradients.tolist() == [16 * KB] * 4
