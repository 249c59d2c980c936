"""What PyTorch's caching allocator reserves, by a model of its rules."""

from dataclasses import replace

import numpy as np
import pytest

from enplace.machine import simulate
from enplace.machine.caching_allocator import (
    MIB,
    about_reserved,
    reserved_bytes,
    reserved_on_devices,
)
from enplace.machine.plan_words import device_rows
from enplace.placing.candidates import unordered
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, profile_of


def take(*sizes):
    return [(number, n_bytes) for number, n_bytes in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([1], 2 * MIB),
        ([MIB, MIB], 2 * MIB),  # the small pool has segments of 2 MiB
        ([MIB, MIB, 1], 4 * MIB),
        ([1] * 4096, 2 * MIB),  # each takes 512 B
        ([1] * 4097, 4 * MIB),
        ([MIB + 1], 20 * MIB),
        ([9 * MIB, 9 * MIB], 20 * MIB),
        ([9 * MIB, 9 * MIB, 2 * MIB], 20 * MIB),
        ([9 * MIB, 9 * MIB, 3 * MIB], 40 * MIB),
        ([10 * MIB + 1], 12 * MIB),  # a segment of its own
        ([11 * MIB, MIB + 1], 32 * MIB),  # the 1 MiB behind it is not split off
        ([MIB, 2 * MIB], 22 * MIB),  # pools share nothing
    ],
)
def test_segments_are_reserved_in_the_sizes_of_each_pool(sizes, reserved):
    assert reserved_bytes(take(*sizes)) == reserved


def test_freed_segments_stay_reserved_and_are_used_again():
    events = [(0, 30 * MIB), (0, 0), (1, 28 * MIB), (1, 0), (2, 40 * MIB)]
    assert reserved_bytes(events) == (30 + 40) * MIB


def test_neighbours_merge_when_they_are_freed_in_any_order():
    begin = take(6 * MIB, 6 * MIB, 6 * MIB)
    for order in ((0, 1), (1, 0)):
        freed = [(number, 0) for number in order]
        assert reserved_bytes([*begin, *freed, (3, 12 * MIB)]) == 20 * MIB
    assert reserved_bytes([*begin, (0, 0), (2, 0), (3, 9 * MIB)]) == 40 * MIB  # not side by side


def test_the_tightest_free_block_is_taken():
    begin = [(0, 40 * MIB), (1, 30 * MIB), (0, 0), (1, 0)]
    assert reserved_bytes([*begin, (2, 29 * MIB), (3, 40 * MIB)]) == 70 * MIB


@pytest.fixture(params=["torch", "tensorflow"])
def schedule(request):
    """A chain of ops on one GPU, of which only the first's weights and two outputs exist at once.

    The second output finds no room in the segment of the first; the third replaces it.
    """
    sizes = [12 * MIB, 14 * MIB, 16 * MIB]
    edges = [(f"op{i}", f"op{i + 1}", n_bytes) for i, n_bytes in enumerate(sizes)]
    names = [f"op{i}" for i in range(4)]
    profile = profile_of(dict.fromkeys(names, 1.0), edges, persistent={"op0": 5})
    profile = replace(profile, measured=Measurement(framework=request.param))
    problem = Problem(profile, cluster_of(1, capacity_bytes=32 * MIB))
    (plan,) = unordered(problem, profile.tensor_op[:1].repeat(profile.n_ops) * 0, "")
    return simulate(problem, plan)


def test_models_of_pytorch_show_what_a_step_reserves_beside_its_peak(schedule):
    head, row = device_rows(schedule)
    if schedule.problem.measured_profile.measured.framework == "tensorflow":
        assert (len(head), len(row), reserved_on_devices(schedule)) == (6, 6, {})
        return
    assert schedule.fits
    assert reserved_on_devices(schedule) == {0: (2 + 12 + 14 + 16) * MIB}
    assert (head[-1], row[-1]) == ("reserved, predicted", "44 MiB")


def test_a_note_warns_where_only_what_is_reserved_exceeds_the_card(schedule):
    is_torch = schedule.problem.measured_profile.measured.framework == "torch"
    assert ("44 MiB on GPU 0" in about_reserved(schedule)) is is_torch
    larger = replace(schedule.problem, cluster=cluster_of(1, capacity_bytes=44 * MIB))
    assert about_reserved(simulate(larger, schedule.plan)) == ""


def test_a_cpu_reserves_nothing(schedule):
    (gpu,) = schedule.problem.cluster.devices
    cluster = replace(schedule.problem.cluster, devices=(replace(gpu, kind="cpu"),))
    profile = schedule.problem.profile
    anywhere = profile.with_costs(np.ones_like(profile.time_us))
    on_cpu = simulate(Problem(anywhere, cluster), schedule.plan)
    assert reserved_on_devices(on_cpu) == {}
