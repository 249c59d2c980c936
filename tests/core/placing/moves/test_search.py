"""Searches, against the simulator."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.problems import cluster_of, ops_at_peak, plan_of, planned_problems, profile_of, timing_of

from enplace.errors import DoesNotFitError
from enplace.machine import simulate
from enplace.machine.layout import build_machine
from enplace.machine.memory import find_excess
from enplace.machine.placement import PRIORITY
from enplace.placing.moves import Accepting, Annealing, make_level, move_blocks, sweep
from enplace.placing.moves.order import empty_schedule, find_tails, new_tails, simulate_order
from enplace.placing.moves.steps import PATIENCE, LevelPlan, new_stop_flag, restarting
from enplace.values.arrays import inverse
from enplace.values.plan import LINK_POLICIES, Plan
from enplace.values.problem import Problem


def simulated(problem, order, device):
    """Return makespan, finish times and excess memory of ``simulate_order``."""
    machine = build_machine(problem)
    progress = empty_schedule(machine)
    makespan = simulate_order(machine, order, len(order), device, progress)
    return (
        makespan, progress.timing.finish_us, find_excess(machine, device, progress.timing)
    )  # fmt: skip


@given(planned=planned_problems())
def test_simulate_order_equals_the_simulator_on_separate_channels(planned):
    problem, plan = planned
    cluster = cluster_of(3, cpu_lanes=1, speeds=(1.0, 0.5, 2.0))
    problem = Problem(problem.profile, cluster)
    units = np.random.default_rng(plan.position.sum()).integers(0, 3, problem.n_units)
    device = units[problem.unit]
    order = np.arange(problem.profile.n_ops)
    schedule = simulate(problem, Plan(device.copy(), order.copy(), "x", "strict", "fifo"))
    last, finish, _ = simulated(problem, order, device)
    assert last == pytest.approx(schedule.makespan_us)
    assert finish == pytest.approx(schedule.op_finish_us)


@given(planned=planned_problems())
def test_the_excess_equals_that_of_the_memory_curves(planned):
    problem, plan = planned
    tight = replace(
        problem.cluster,
        devices=tuple(replace(d, capacity_bytes=170) for d in problem.cluster.devices),
    )
    try:
        problem = Problem(problem.profile, tight)
    except DoesNotFitError:
        return
    schedule = simulate(problem, plan)
    excess = find_excess(build_machine(problem), np.array(plan.device), timing_of(schedule))
    assert excess == schedule.excess_bytes
    if excess > 0:
        assert set(ops_at_peak(schedule)) == at_highest_peak(schedule)


def at_highest_peak(schedule):
    """Find the ops that hold memory where and when most is lacking, as makers or as readers."""
    problem, device = schedule.problem, schedule.plan.device
    profile, lives = problem.profile, schedule.lives
    full = int(np.argmax(schedule.peak_bytes - problem.cluster.capacity_bytes))
    curve = schedule.memory[full]
    at_us = curve.time_us[np.argmax(curve.bytes)]
    runs = (schedule.op_start_us <= at_us) & (at_us < schedule.op_finish_us)
    holds = (profile.temporary_bytes > 0) & runs | (profile.persistent_bytes > 0)
    found = set(np.flatnonzero(holds & (device == full)).tolist())
    alive = (lives.device == full) & (lives.start_us <= at_us) & (at_us < lives.end_us)
    for tensor in lives.tensor[alive & (lives.sizes(profile) > 0)].tolist():
        maker = int(profile.tensor_op[tensor])
        readers = profile.edge_op[profile.edge_tensor == tensor].tolist()
        found |= {maker} if device[maker] == full else {r for r in readers if device[r] == full}
    return found


@given(planned=planned_problems())
def test_the_longest_tail_spans_the_schedule(planned):
    """Start plus tail of the first op on the critical path is the makespan."""
    problem, _ = planned
    problem = Problem(problem.profile, cluster_of(2))
    units = np.arange(problem.n_units) % 2
    device, order = units[problem.unit], np.arange(problem.profile.n_ops)
    machine = build_machine(problem)
    tails = new_tails(machine)
    find_tails(machine, order, 0, device, tails)
    last, finish, _ = simulated(problem, order, device)
    start = finish - problem.time_us[order, device]
    assert (start + tails.op_us).max() == pytest.approx(last)


@given(planned=planned_problems())
def test_window_moves_never_make_a_schedule_longer(planned):
    problem, plan = planned
    order, device = np.arange(problem.profile.n_ops), plan.device.copy()
    before, _, excess_before = simulated(problem, order, device)
    makespan, excess = sweep(
        build_machine(problem), order, device, 0, 6, Annealing(6, 3, 50, 1.0, 0.05, 0.2),
        np.random.default_rng(1), np.zeros(1, dtype=bool),
    )  # fmt: skip
    assert (excess, makespan) <= (excess_before, before * (1 + 1e-12))
    assert makespan == pytest.approx(simulated(problem, order, device)[0])
    assert problem.unit_allowed[problem.unit, device].all()
    assert all(len(set(device[problem.unit == u].tolist())) == 1 for u in range(problem.n_units))
    profile, position = problem.profile, np.argsort(order)
    assert (position[profile.edge_source] < position[profile.edge_op]).all()


def two_chains():
    """Return two independent chains, both on one device."""
    times = {f"{side}{i}": 10.0 for side in "ab" for i in range(6)}
    edges = [(f"{side}{i}", f"{side}{i + 1}", 1) for side in "ab" for i in range(5)]
    problem = Problem(profile_of(times, edges), cluster_of(2))
    return problem, plan_of(problem, dict.fromkeys(times, 0))


def test_window_moves_use_the_idle_device():
    problem, plan = two_chains()
    order, device = np.argsort(plan.position), plan.device.copy()
    makespan, _ = sweep(
        build_machine(problem), order, device, 0, 5, Annealing(12, 6, 2000, 1.0, 0.05, 0.2),
        np.random.default_rng(0), np.zeros(1, dtype=bool),
    )  # fmt: skip
    assert makespan == 60.0


def run_block_moves(problem, order, device, links, ranked, rounds):
    """Run ``move_blocks``, which changes the order and the placement."""
    level = make_level(problem, np.arange(problem.profile.n_ops))
    return move_blocks(
        level.machine, level.blocks, order, device,
        Accepting(PRIORITY, links, ranked, False, rounds, 0.0, np.inf),
        np.random.default_rng(0), np.zeros(1, dtype=bool),
    )  # fmt: skip


@pytest.mark.parametrize("ranked", [True, False])
@pytest.mark.parametrize("links", [0, 1])
def test_block_moves_use_the_idle_device(links, ranked):
    problem, plan = two_chains()
    order, device = np.argsort(plan.position), plan.device.copy()
    makespan, excess = run_block_moves(problem, order, device, links, ranked, 300)
    assert (makespan, excess) == (60.0, 0)
    strict = simulate(problem, Plan(device.copy(), np.argsort(order), "x", "strict", "fifo"))
    assert strict.makespan_us == 60.0


@given(
    planned=planned_problems(),
    rounds=st.sampled_from([0, 30]),
    links=st.sampled_from(["fifo", "priority"]),
)
def test_block_moves_start_from_the_schedule_and_only_improve_it(planned, rounds, links):
    problem, plan = planned
    plan = replace(plan, policy="priority", links=links, device=plan.device.copy())
    schedule = simulate(problem, plan)
    order, device = np.argsort(plan.position), plan.device.copy()
    makespan, excess = run_block_moves(
        problem, order, device, LINK_POLICIES.index(links), False, rounds
    )
    before = (schedule.excess_bytes, schedule.makespan_us * (1 + 1e-9))
    assert (excess, makespan) <= before
    if rounds == 0:
        assert makespan == pytest.approx(schedule.makespan_us)
    after = simulate(problem, replace(plan, device=device, position=inverse(order)))
    assert np.isfinite(after.makespan_us)


def test_a_stuck_search_restarts_elsewhere_and_keeps_the_best():
    level = make_level(two_chains()[0], np.arange(12))
    states = [LevelPlan(level, np.arange(12), np.zeros(12), float(us), 0) for us in (100, 300, 200)]
    seen = []

    def step(state, seed, share, stop):
        seen.append(state.makespan_us)
        return state

    search = restarting(step, states)
    best = states[1]
    for seed in range(3 * PATIENCE):
        best = search(best, seed, 0.0, new_stop_flag())
    assert seen == [us for us in (100.0, 300.0, 200.0) for _ in range(PATIENCE)]
    assert best is states[0]


def test_ops_of_one_kind_in_a_scope_are_a_block():
    names = [
        f"gradients/lstm/t{t}/MatMul_grad/MatMul{part}" for t in range(3) for part in ("", "_1")
    ]
    problem = Problem(profile_of(dict.fromkeys(names, 1.0)), cluster_of(2))
    blocks = make_level(problem, np.arange(6)).blocks
    found = [blocks.unit[a:b].tolist() for a, b in zip(blocks.ptr, blocks.ptr[1:], strict=False)]
    assert [0, 2, 4] in found
    assert [1, 3, 5] in found


def test_large_blocks_are_tried_as_often_as_small_ones():
    """Among 400 blocks of one op and one of all ops, only the large one helps."""
    n = 400
    times = {f"scope/op{i}": 1.0 for i in range(n)}
    problem = Problem(profile_of(times), cluster_of(2, speeds=(1.0, 0.001)))
    order, device = np.arange(n), np.ones(n, dtype=np.int64)
    makespan, _ = run_block_moves(problem, order, device, 0, True, 10)
    assert makespan == n
