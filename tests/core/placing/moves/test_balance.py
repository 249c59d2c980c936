"""Annealing of balances, against a plain sum of what a placement costs."""

from dataclasses import replace

import numpy as np
from hypothesis import given, reject
from hypothesis import strategies as st
from tests.core.placers.problems import problems
from tests.problems import profile_of

from benchmarks.planted import planted
from enplace.errors import DoesNotFitError
from enplace.machine import simulate
from enplace.machine.layout import build_machine
from enplace.placers import place
from enplace.placing.moves.balance import GRIDS, Balance, anneal_balance
from enplace.placing.moves.level import make_level
from enplace.placing.moves.steps import (
    INSTANTS,
    ROOM,
    LevelPlan,
    always_fits,
    balance_step,
    blocks_step,
    instants_of,
    new_stop_flag,
    state_of,
)
from enplace.placing.moves.timeline import middle_us, shares_of_work, smooth_shares
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.problem import Problem


def cost_us(problem, balance, device, even_us):
    """Add up the transfers, and the squares of each band's work and transfers, and of excess."""
    profile, cluster = problem.profile, problem.cluster
    home = device[profile.tensor_op]
    sent = {
        (tensor, device[op])
        for tensor, op in zip(profile.edge_tensor.tolist(), profile.edge_op, strict=True)
        if device[op] != home[tensor]
    }
    transfers_us = 0.0
    crowd_us = np.zeros((balance.band.max() + 1, len(cluster.channels)))
    for tensor, to in sent:
        link = home[tensor] * cluster.n_devices + to
        us = cluster.b0_us[home[tensor], to]
        us += cluster.b1_us_per_byte[home[tensor], to] * profile.tensor_bytes[tensor]
        transfers_us += us
        for channel in cluster.route[cluster.route_ptr[link] : cluster.route_ptr[link + 1]]:
            crowd_us[balance.band[0, profile.tensor_op[tensor]], channel] += us
    squares = balance.pace * work_us(problem, balance, device) ** 2 / even_us[:, :, None]
    crowding_us = balance.crowding * (crowd_us**2).sum() / balance.length_us
    instants = balance.begins, balance.ends, balance.stays, balance.n_instants
    excess = np.maximum(held_bytes(problem, *instants, device) - balance.room[:, None], 0.0)
    holding_us = (balance.holding[:, None] * excess**2).sum()
    return balance.sending * transfers_us + (squares.sum() + crowding_us + holding_us) / 2


def held_bytes(problem, begins, ends, stays, n_instants, device):
    """Add up what each device holds at each instant."""
    profile = problem.profile
    held = np.zeros((problem.cluster.n_devices, n_instants))
    for op, d in enumerate(device):
        held[d] += profile.persistent_bytes[op]
        held[d, begins[op] : ends[op]] += profile.temporary_bytes[op]
    for tensor, maker in enumerate(profile.tensor_op):
        until = np.zeros(len(held), np.int64)
        for reader in profile.edge_op[profile.edge_tensor == tensor]:
            until[device[reader]] = max(until[device[reader]], ends[reader])
        for d, end in enumerate(until):
            if d == device[maker]:
                end = max(end, ends[maker], stays[tensor])
                held[d, begins[maker] : end] += profile.held_bytes[tensor]
            elif end > ends[maker]:
                held[d, ends[maker] : end] += profile.copy_bytes[tensor]
    return held


def work_us(problem, balance, device):
    """Add up the work of each band and device, divided by its lanes."""
    n_devices = problem.cluster.n_devices
    found = np.zeros((GRIDS, balance.band.max() + 1, n_devices))
    for grid, bands in enumerate(balance.band):
        for op, (band, d) in enumerate(zip(bands, device, strict=True)):
            found[grid, band, d] += problem.time_us[op, d] / problem.cluster.lanes[d]
    return found


def random_placement(problem, seed):
    """Place each unit on a random device where it may run."""
    lots = np.random.default_rng(seed).random((problem.n_units, problem.cluster.n_devices))
    return np.where(problem.unit_allowed, lots, -1.0).argmax(axis=1)[problem.unit]


@given(
    problems(),
    st.floats(0.01, 2.0),
    st.sampled_from([1e-9, 10.0]),
    st.sampled_from([0.3, 1.0]),
    st.integers(0, 99),
)
def test_annealing_keeps_to_the_constraints_and_knows_what_it_gains(
    problem, weight, hot, zone, seed
):
    start = random_placement(problem, seed)
    bands = np.random.default_rng(seed).integers(0, 4, (GRIDS, problem.profile.n_ops))
    draw, n_devices = np.random.default_rng(seed), problem.cluster.n_devices
    pace, holding = draw.uniform(0.5, 2.0, n_devices), draw.uniform(0.0, 1e-3, n_devices)
    begins, ends = np.sort(draw.integers(0, 9, (2, problem.profile.n_ops)), axis=0)
    balance = Balance(
        bands,
        50.0,
        pace,
        begins,
        ends,
        draw.integers(0, 9, problem.profile.n_tensors),
        8,
        draw.uniform(0.0, 99.0, n_devices),
        holding,
        weight,
        weight / 2,
        hot,
        hot / 10,
        200,
        0.0,
        1.0,
        draw.permutation(problem.n_units),
        max(1, int(zone * problem.n_units)),
    )
    even_us = np.maximum((pace * work_us(problem, balance, start)).mean(axis=2), 1e-3)

    device = start.copy()
    change_us = anneal_balance(
        build_machine(problem), balance, device, np.random.default_rng(seed), new_stop_flag()
    )

    assert problem.unit_allowed[problem.unit, device].all()
    assert all(len(set(device[problem.unit == unit])) == 1 for unit in range(problem.n_units))
    before_us, after_us = (cost_us(problem, balance, each, even_us) for each in (start, device))
    assert np.isclose(change_us, after_us - before_us, rtol=1e-6, atol=1e-6 * max(before_us, 1.0))
    if hot < 1e-6:
        assert change_us <= 0.0


@given(problems(), st.floats(0.2, 1.0), st.integers(0, 99))
def test_memory_counts_unless_no_placement_can_exceed_it_at_any_instant(problem, share, seed):
    profile = problem.profile
    total = profile.persistent_bytes.sum() + profile.temporary_bytes.sum()
    total += np.maximum(profile.held_bytes, profile.copy_bytes).sum()
    devices = [replace(d, capacity_bytes=int(share * total) + 1) for d in problem.cluster.devices]
    try:
        problem = Problem(profile, replace(problem.cluster, devices=tuple(devices)))
    except DoesNotFitError:
        reject()
    level = make_level(problem, np.arange(profile.n_ops))
    instants = instants_of(level, level.smooth_shares)
    held = held_bytes(problem, *instants, INSTANTS, random_placement(problem, seed))
    fits = (held <= ROOM * problem.cluster.capacity_bytes[:, None]).all()
    assert fits or not always_fits(level.machine, *instants)


def test_a_balance_that_is_stopped_moves_nothing():
    problem = planted(40, 2, 2).problem
    start, stop = np.zeros(40, dtype=np.int64), new_stop_flag()
    stop[0] = True
    device = start.copy()
    bands, none = np.zeros((GRIDS, 40), np.int64), np.zeros(40, np.int64)
    balance = Balance(
        bands,
        1.0,
        np.ones(2),
        none,
        none,
        np.zeros(problem.profile.n_tensors, np.int64),
        0,
        np.zeros(2),
        np.zeros(2),
        1.0,
        1.0,
        100.0,
        1.0,
        1000,
        0.0,
        1.0,
        np.arange(40),
        40,
    )
    anneal_balance(build_machine(problem), balance, device, np.random.default_rng(0), stop)
    assert (device == start).all()


def best_of_a_dozen(found):
    """Return HEFT's plan, and the best of a dozen balances."""
    plan = place(found.problem, "heft").plan
    start_us = simulate(found.problem, plan).makespan_us
    level = make_level(found.problem, np.arange(400))
    start = replace(state_of(level, plan), makespan_us=start_us, excess_bytes=0)
    state = start
    for seed in range(12):
        state = balance_step(300)(state, seed, 0.0, new_stop_flag())
    return start, state


def steps_us(found):
    start, state = best_of_a_dozen(found)
    return start.makespan_us, state.makespan_us


def test_balances_find_the_strands_that_list_schedules_tear_apart():
    found = planted(400, 4, 5, crossing=0.3, transfer_us=500, span=400)
    start_us, step_us = steps_us(found)
    assert step_us / found.best_us - 1 < (start_us / found.best_us - 1) / 3


def test_a_moving_zone_finds_placements_that_match_from_beginning_to_end_of_a_long_graph():
    found = planted(6000, 4, 4, crossing=0.7, transfer_us=500, span=40)
    level = make_level(found.problem, np.arange(6000))
    state = LevelPlan(level, found.problem.profile.topological_order, np.zeros(6000, np.int64))
    state = balance_step(100)(state, 1, 0.0, new_stop_flag())
    assert state.makespan_us < 1.03 * found.best_us


def test_ops_are_sorted_by_time_from_what_they_are_joined_to():
    found = planted(2000, 4, 4, crossing=0.3, transfer_us=100, span=20)
    work_us = found.problem.time_us.min(axis=1)
    planned = shares_of_work(simulate(found.problem, found.plan).op_start_us, work_us)
    paths = shares_of_work(middle_us(found.problem), work_us)
    guess = smooth_shares(found.problem)
    assert np.abs(guess - planned).mean() < np.abs(paths - planned).mean() / 2


def test_balances_leave_a_shared_channel_time_to_send():
    found = planted(400, 4, 4, crossing=0.3, transfer_us=100, span=200, shared=True)
    start_us, step_us = steps_us(found)
    assert start_us > 1.5 * found.best_us
    assert step_us < 1.05 * found.best_us


def test_balances_spread_memory_so_that_moves_of_blocks_can_repair_them():
    found = planted(400, 4, 4, crossing=0.3, transfer_us=300, span=100, spare=0.1)
    start, state = best_of_a_dozen(found)
    for seed in range(12):
        state = blocks_step("priority", slack=0.02)(state, seed, seed / 12, new_stop_flag())
    assert state.excess_bytes == 0
    assert state.makespan_us / found.best_us - 1 < (start.makespan_us / found.best_us - 1) / 3


def test_ops_of_one_kind_move_together_unless_they_may_run_on_other_devices():
    problem = planted(40, 2, 2, copies=4).problem
    names = np.array(problem.profile.op_names)
    (pinned,) = np.flatnonzero(names == "layer_0/op_3")
    problem = problem.constrained(pins={int(pinned): 1})
    machine = make_level(problem, np.arange(40)).tied
    assert len(machine.allowed) == 11
    for op in range(10):
        alike = [
            unit
            for name, unit in zip(names, machine.unit, strict=True)
            if name.endswith(f"/op_{op}")
        ]
        assert len(set(alike)) == (2 if op == 3 else 1)
    assert machine.allowed[machine.unit[pinned]].tolist() == [False, True]
    assert machine.allowed.sum() == 21
    members = [
        machine.member[first:end]
        for first, end in zip(machine.unit_ptr[:-1], machine.unit_ptr[1:], strict=True)
    ]
    assert all((machine.unit[ops] == unit).all() for unit, ops in enumerate(members))
    assert sorted(np.concatenate(members)) == list(range(40))


def test_a_fast_and_a_slow_device_take_equally_long_for_their_work():
    """Ops without edges: a device of twice the speed gets twice the work."""
    profile = profile_of({f"op{i}": 10 for i in range(300)}, [])
    devices = (Device("GPU:0", "gpu", 2**40), Device("GPU:1", "gpu", 2**40, speed=2.0))
    links = tuple(Link(a, 1 - a, 1.0, 1.0, (a,)) for a in (0, 1))
    problem = Problem(profile, Cluster("unlike", devices, ("there", "back"), links))
    level, device = make_level(problem, np.arange(300)), np.zeros(300, dtype=np.int64)
    state = LevelPlan(level, np.arange(300), device)
    for seed in range(2):
        state = balance_step(300)(state, seed, 0.0, new_stop_flag())
    assert state.makespan_us <= 1.02 * 300 * 10 / 3
