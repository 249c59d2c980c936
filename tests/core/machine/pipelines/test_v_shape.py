"""Pipelines in a V, against the order of PyTorch's engine and the formula of the paper."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.machine.pipelines.stages import PASS_NAMES
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from problems import cluster_of, plan_of, profile_of


def layers_in_v(k, capacity_bytes=10**9, layers=None, free=False):
    """Return a chain of layers on k devices, two stages on each; a layer for each stage."""
    n = layers or 2 * k
    names = [f"f{i}" for i in range(n)] + [f"b{i}" for i in reversed(range(n))]
    edges = [(a, b, 0 if free else 1) for a, b in pairwise(names)]
    edges += [(f"b{i}", f"w{i}", 0 if free else 1) for i in range(n)]
    times = dict.fromkeys([*names, *(f"w{i}" for i in range(n))], 1.0)
    profile = profile_of(times, edges, colocation={name: name[1:] for name in times})
    profile = replace(profile, measured=Measurement(backward=range(n, 3 * n)))
    cluster = cluster_of(k, b0_us=0.0, b1_us_per_byte=0.0, capacity_bytes=capacity_bytes)
    problem = Problem(profile, cluster)
    stage = {name: int(name[1:]) * 2 * k // n for name in times}
    return problem, plan_of(problem, {name: min(s, 2 * k - 1 - s) for name, s in stage.items()})


# What ScheduleZBVZeroBubble of PyTorch 2.13 gives: F, gradients of inputs, of weights; 0I is empty.
ORDERS = {
    (2, 2): [
        "0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0W0 0W1",
        "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1",
    ],
    (2, 4): [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0W0 3F2 3I2 3W2 0W1 3F3 3I3 3W3 0W2 0W3",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 "
        "2W3 1W3",
    ],
    (3, 4): [
        "0F0 0F1 0F2 0F3 5F0 5I0 5W0 5F1 5I1 5W1 5F2 5I2 5W2 0W0 5F3 5I3 5W3 0W1 0W2 0W3",
        "1F0 1F1 1F2 4F0 1F3 4F1 4I0 4W0 4F2 4I1 4W1 1I0 1W0 4F3 4I2 4W2 1I1 1W1 4I3 4W3 1I2 1I3 "
        "1W2 1W3",
        "2F0 3F0 2F1 3F1 2F2 3F2 3I0 3W0 2F3 2I0 2W0 3F3 3I1 3W1 2I1 2W1 3I2 3W2 2I2 3I3 2I3 2W2 "
        "3W3 2W3",
    ],
    (4, 3): [
        "0F0 0F1 0F2 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 0W0 0W1 0W2",
        "1F0 1F1 1F2 6F0 6F1 6I0 6W0 6F2 6I1 6W1 6I2 6W2 1I0 1W0 1I1 1W1 1I2 1W2",
        "2F0 2F1 2F2 5F0 5F1 5F2 5I0 5W0 5I1 5W1 2I0 2W0 5I2 5W2 2I1 2W1 2I2 2W2",
        "3F0 4F0 3F1 4F1 3F2 4F2 4I0 4W0 3I0 3W0 4I1 4W1 3I1 3W1 4I2 4W2 3I2 3W2",
    ],
}


@pytest.mark.parametrize(("k", "m"), ORDERS)
def test_devices_work_in_the_order_of_pytorch(k, m):
    problem, plan = layers_in_v(k)
    found = simulate_pipeline(problem, plan, "zbv", m)
    letter = {name: "FIW"[of] for of, name in enumerate(PASS_NAMES)}

    def told(slot):
        stage = found.stages[slot.stage]
        name = problem.profile.op_names[stage.ops[0]]
        return f"{name[1:]}{letter[PASS_NAMES[stage.of]]}{slot.microbatch}"

    assert [" ".join(map(told, slots)) for slots in found.computing] == ORDERS[k, m]


@pytest.mark.parametrize(("k", "m"), [(2, 3), (3, 6), (4, 8)])
def test_a_v_fills_sooner_and_holds_no_more_than_1f1b(k, m):
    """With equal parts, a device only waits until its first sample comes, as in the paper.

    The first stage has no gradients of inputs, so that only the other devices are always busy.
    """
    found = simulate_pipeline(*layers_in_v(k), "zbv", m)
    assert found.makespan_us == pytest.approx(6 * m + k - 1)
    in_turn = simulate_pipeline(*layers_in_v(k), "1f1b", m)
    assert found.makespan_us < in_turn.makespan_us
    assert found.time_per_sample_us == pytest.approx(6)


def test_each_half_of_a_device_runs_its_own_layers_again():
    problem, plan = layers_in_v(2)
    found = simulate_pipeline(problem, replace(plan, recompute=(0, 1)), "zbv", 4)
    us = {}
    for stage in found.stages:
        name = problem.profile.op_names[stage.ops[0]]
        us[f"{PASS_NAMES[stage.of]} {name[1:]}"] = stage.compute_us[0]
    assert us == {
        **{f"forward {layer}": 1 for layer in range(4)},
        **{f"backward {layer}": 2 for layer in (3, 2, 1)},
        **{f"weights {layer}": 1 for layer in (3, 2, 1)},
        "weights 0": 3,
    }


def test_the_last_device_is_cut_where_its_halves_take_as_long():
    """Nine layers on two devices: two on each way on the first, and five on the last."""
    problem, plan = layers_in_v(2, layers=9)
    found = simulate_pipeline(problem, plan, "zbv", 4)
    forward = [len(stage.ops) for stage in found.stages if not stage.backward]
    assert sum(forward[1:3]) == np.bincount(plan.device)[1] // 3
    assert abs(forward[1] - forward[2]) <= 1


def test_other_stages_than_a_v_wait_as_in_zero_bubble():
    problem, plan = layers_in_v(2)
    row = replace(plan, device=np.array([int(name[1:]) // 2 for name in problem.profile.op_names]))
    found, usual = (simulate_pipeline(problem, row, kind, 5) for kind in ("zbv", "zb-h1"))
    assert (found.kind, found.makespan_us) == ("zbv", usual.makespan_us)
