"""The simulator: small cases by hand, and the compiled kernel against the reference."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.machine.schedule_faults import find_faults
from tests.core.machine.slow_simulator import simulate_slowly

from enplace.bounds.step_time import lower_bound_us
from enplace.errors import ClusterError, DeadlockError, PlanError
from enplace.machine import critical_path, simulate
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.constraints import Constraints
from enplace.values.measurement import Measurement
from enplace.values.memory import one_device_peak_bytes
from enplace.values.plan import Plan, as_run, under_policies
from enplace.values.problem import THROUGHPUT, Problem
from problems import GIB, cluster_of, plan_of, planned_problems, profile_of


@given(planned_problems(), st.sampled_from([0.0, 1e-20]))
def test_the_kernel_equals_the_reference_to_the_last_bit(drawn, least_us):
    """This includes transfers so short that rounding hides them."""
    problem, plan = drawn
    links = [replace(link, b0_us=max(link.b0_us, least_us)) for link in problem.cluster.links]
    problem = Problem(problem.profile, replace(problem.cluster, links=tuple(links)))
    slow = simulate_slowly(problem, plan)
    fast = simulate(problem, plan)
    for op in range(problem.profile.n_ops):
        assert slow.ops[op] == (fast.op_start_us[op], fast.op_finish_us[op])
        assert slow.lanes[op] == fast.op_lane[op]
    sent = zip(fast.transfer_tensor.tolist(), fast.transfer_to.tolist(), strict=True)
    times = zip(fast.transfer_start_us.tolist(), fast.transfer_finish_us.tolist(), strict=True)
    assert slow.transfers == dict(zip(sent, times, strict=True))


@given(planned_problems())
def test_the_verifier_finds_no_fault_in_simulated_schedules(drawn):
    assert find_faults(simulate(*drawn)) == []


@given(planned_problems())
def test_the_critical_path_covers_the_step(drawn):
    """Its entries do not overlap; unless the order is strict, there are no gaps between them."""
    problem, plan = drawn
    schedule = simulate(problem, plan)
    path = critical_path(schedule)
    times = list(zip(path.start_us, path.finish_us, strict=True))
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))
    assert times[-1][1] == schedule.makespan_us
    total = path.compute_us + path.transfer_us + path.waiting_us
    assert total == pytest.approx(schedule.makespan_us, abs=1e-5)
    if plan.policy != "strict" and plan.links == "fifo":
        assert path.waiting_us == 0


def test_a_tensor_is_sent_to_a_device_once_for_all_consumers():
    problem = Problem(
        profile_of({"a": 2, "b": 3, "c": 3}, [("a", "b", 4), ("a", "c", 4)]), cluster_of()
    )
    schedule = simulate(problem, plan_of(problem, {"a": 0, "b": 1, "c": 1}))
    assert schedule.transfer_start_us.tolist() == [2]
    assert schedule.transfer_finish_us.tolist() == [7]
    assert sorted(schedule.op_start_us.tolist()) == [0, 7, 10]
    assert schedule.makespan_us == 13


def test_transfers_in_one_direction_queue_and_do_not_delay_the_other():
    edges = [("a", "x", 4), ("b", "y", 4), ("c", "z", 4)]
    problem = Problem(profile_of(dict.fromkeys("abcxyz", 1), edges), cluster_of())
    plan = plan_of(problem, {"a": 0, "b": 0, "c": 1, "x": 1, "y": 1, "z": 0})
    assert sorted(simulate(problem, plan).transfer_start_us.tolist()) == [1, 1, 6]
    shared = Problem(problem.profile, cluster_of(shared=True))
    assert sorted(simulate(shared, plan).transfer_start_us.tolist()) == [1, 6, 11]


def test_a_routed_transfer_occupies_every_hop():
    """A transfer from GPU 0 to 2 uses both hops, so one from GPU 1 to 2 waits for the second."""
    base = cluster_of(3)
    hops = ("up", "down", "side")
    route = {(0, 2): (0, 1), (1, 2): (1,)}
    links = tuple(
        Link(k.source, k.target, 1, 1, route.get((k.source, k.target), (2,))) for k in base.links
    )
    problem = Problem(
        profile_of({"a": 1, "b": 2, "x": 1, "y": 1}, [("a", "x", 9), ("b", "y", 9)]),
        Cluster("routed", base.devices, hops, links),
    )
    schedule = simulate(problem, plan_of(problem, {"a": 0, "b": 1, "x": 2, "y": 2}))
    assert schedule.transfer_start_us.tolist() == [1, 11]


def test_a_control_edge_costs_latency_only_between_devices():
    problem = Problem(profile_of({"a": 1, "b": 1}, control=[("a", "b")]), cluster_of(b0_us=5))
    assert simulate(problem, plan_of(problem, {"a": 0, "b": 0})).makespan_us == 2
    abroad = simulate(problem, plan_of(problem, {"a": 0, "b": 1}))
    assert abroad.makespan_us == 7
    assert abroad.transfer_bytes.tolist() == [0]


@pytest.mark.parametrize(
    ("policy", "order"), [("priority", "acb"), ("strict", "abc"), ("fifo", "acb")]
)
def test_strict_waits_for_the_next_op_and_others_do_not(policy, order):
    """C is ready from the start; b, earlier in the order, waits for x on the other device."""
    problem = Problem(
        profile_of({"x": 4, "a": 1, "b": 1, "c": 1}, [("x", "b", 0)]), cluster_of(b0_us=0)
    )
    plan = plan_of(problem, {"x": 1, "a": 0, "b": 0, "c": 0}, policy=policy)
    by_name = [problem.profile.index[name] for name in "xabc"]
    position = np.empty(4, dtype=np.int64)
    position[by_name] = range(4)
    schedule = simulate(problem, Plan(plan.device, position, "hand", policy))
    started = sorted("abc", key=lambda name: schedule.op_start_us[problem.profile.index[name]])
    assert "".join(started) == order


def test_fifo_runs_the_first_ready_op_and_priority_the_most_urgent():
    """C is ready before b, but b is more urgent; both wait for the long op a."""
    edges = [("x", "b", 0), ("y", "c", 0)]
    problem = Problem(
        profile_of({"a": 9, "x": 3, "y": 1, "b": 1, "c": 1}, edges), cluster_of(3, b0_us=0)
    )
    placed = {"a": 0, "x": 1, "y": 2, "b": 0, "c": 0}
    start = {}
    for policy in ("fifo", "priority"):
        plan = plan_of(problem, placed, policy=policy)
        schedule = simulate(problem, plan)
        start[policy] = [schedule.op_start_us[problem.profile.index[name]] for name in "bc"]
    assert start == {"fifo": [10, 9], "priority": [9, 10]}


def test_ops_of_pytorch_run_as_recorded_where_a_plan_has_no_order():
    """Each branch ends before the next begins, so that one large tensor lives at a time."""
    edges = [(f"{i}/make", f"{i}/use", 100) for i in range(3)]
    profile = profile_of({f"{i}/{what}": 1 for i in range(3) for what in ("make", "use")}, edges)
    recorded = replace(profile, measured=Measurement(framework="torch"))
    for each, peak_bytes in ((profile, 300), (recorded, 100)):
        problem = Problem(each, cluster_of(1))
        found = simulate(problem, plan_of(problem, dict.fromkeys(each.op_names, 0), policy="fifo"))
        assert found.peak_bytes[0] == peak_bytes
        assert found.makespan_us == 6
    assert one_device_peak_bytes(Problem(recorded, cluster_of(1))) == 100


def test_a_step_of_pytorch_runs_in_the_order_of_the_script_whatever_a_plan_says():
    """The long branch was recorded last; a plan that begins with it cannot have its way."""
    times = {"short": 1, "then": 1, "long": 5, "end": 5}
    profile = profile_of(times, [("short", "then", 1), ("long", "end", 1)])
    recorded = replace(profile, measured=Measurement(framework="torch"))
    device = np.array([0, 0, 0, 1])
    took = {}
    for each in (profile, recorded):
        problem = Problem(each, cluster_of(2, b0_us=0))
        urgent = Plan(device, np.array([2, 3, 0, 1]), "hand", "strict", "priority")
        schedule = simulate(problem, urgent)
        took[each.measured.framework] = schedule.makespan_us
        assert simulate(problem, as_run(each, urgent)).makespan_us == schedule.makespan_us
        staged = replace(urgent, objective=THROUGHPUT, value_us=7.0)
        assert simulate(problem, staged).op_start_us[2] == 0  # stages keep their order
    assert took["torch"] == pytest.approx(took[""] + 2)
    with pytest.raises(PlanError, match="in the script's order"):
        under_policies(recorded, urgent, "priority", None)
    assert under_policies(profile, urgent, "priority", None).policy == "priority"


@pytest.mark.parametrize(("links", "first"), [("fifo", 3), ("priority", 2), ("ordered", 2)])
def test_fifo_links_send_in_request_order_and_priority_links_by_urgency(links, first):
    """While the channel carries the tensor of a, b and then c request it; c is more urgent."""
    times = {"a": 1, "b": 1, "c": 1, "p": 1, "q": 1, "r": 1}
    edges = [("a", "p", 9), ("b", "r", 1), ("c", "q", 1)]
    problem = Problem(profile_of(times, edges), cluster_of())
    plan = plan_of(problem, {n: 0 if n in "abc" else 1 for n in times}, links=links)
    index = [problem.profile.index[n] for n in ("a", "b", "c", "p", "r", "q")]
    position = np.empty(6, dtype=np.int64)
    position[index] = [0, 1, 2, 3, 5, 4]
    schedule = simulate(problem, Plan(plan.device, position, "hand", "strict", links))
    second = np.argsort(schedule.transfer_start_us)[1]
    producer = problem.profile.tensor_op[schedule.transfer_tensor[second]]
    assert problem.profile.op_names[producer] == {3: "b", 2: "c"}[first]


def test_cpu_lanes_run_in_parallel():
    problem = Problem(profile_of({}, cpu={"a": 4, "b": 4, "c": 4}), cluster_of(1, cpu_lanes=2))
    schedule = simulate(problem, plan_of(problem, dict.fromkeys("abc", 1)))
    assert sorted(schedule.op_start_us.tolist()) == [0, 0, 4]
    assert sorted(schedule.op_lane.tolist()) == [0, 0, 1]
    assert schedule.idle_us.tolist() == [8, 4]


def test_logical_devices_of_one_chip_run_one_op_at_a_time():
    devices = tuple(Device(f"GPU:{d}", "gpu", GIB, chip="one") for d in range(2))
    base = cluster_of()
    problem = Problem(
        profile_of({"a": 4, "b": 4}), Cluster("split", devices, base.channels, base.links)
    )
    schedule = simulate(problem, plan_of(problem, {"a": 0, "b": 1}))
    assert sorted(schedule.op_start_us.tolist()) == [0, 4]
    assert lower_bound_us(problem) == 8
    assert find_faults(schedule) == []


def test_devices_of_one_chip_must_have_equal_lanes():
    devices = (Device("A", "cpu", GIB, chip="x"), Device("B", "cpu", GIB, lanes=2, chip="x"))
    base = cluster_of()
    with pytest.raises(ClusterError, match="'A' and 'B' share chip 'x'"):
        Cluster("split", devices, base.channels, base.links)


def test_speed_divides_time():
    problem = Problem(profile_of({"a": 6}), cluster_of(2, speeds=(1, 3)))
    assert simulate(problem, plan_of(problem, {"a": 1})).makespan_us == 2
    assert lower_bound_us(problem) == 2


def test_a_zero_time_op_does_not_wait_behind_a_long_op():
    """Both are ready when a ends. The shape op runs first although it is last in the order."""
    problem = Problem(
        profile_of({"a": 1, "b": 5, "shape": 0}, [("a", "b", 1), ("a", "shape", 1)]), cluster_of()
    )
    schedule = simulate(problem, plan_of(problem, dict.fromkeys(("a", "b", "shape"), 0)))
    assert schedule.op_start_us.tolist() == [0, 1, 1]


def test_an_order_that_contradicts_the_graph_is_reported_as_a_deadlock():
    problem = Problem(profile_of({"a": 1, "b": 1}, [("a", "b", 1)]), cluster_of())
    plan = Plan(np.zeros(2, dtype=np.int64), np.array([1, 0]), "hand", "strict")
    with pytest.raises(DeadlockError, match="op 'b' on GPU:0 waits for op 'a'"):
        simulate(problem, plan)


def test_a_plan_that_breaks_a_constraint_is_refused():
    profile = profile_of({"a": 1, "b": 1}, colocation={"a": "v", "b": "v"})
    problem = Problem(profile, cluster_of(), Constraints(pins={0: 0}))
    with pytest.raises(PlanError, match="colocated"):
        simulate(problem, plan_of(problem, {"a": 0, "b": 1}))
    with pytest.raises(PlanError, match="pinned to GPU:0"):
        simulate(problem, plan_of(problem, {"a": 1, "b": 1}))


def test_the_lower_bound_equals_the_one_by_hand():
    """The path a-b takes 5, the work of 9 takes 4.5 on two devices, the group {b, c} takes 7."""
    profile = profile_of({"a": 2, "b": 3, "c": 4}, [("a", "b", 1)])
    assert lower_bound_us(Problem(profile, cluster_of())) == 5
    grouped = profile_of({"a": 2, "b": 3, "c": 4}, colocation={"b": "g", "c": "g"})
    assert lower_bound_us(Problem(grouped, cluster_of())) == 7
    assert lower_bound_us(Problem(profile, cluster_of(), Constraints(pins={0: 0, 1: 0, 2: 0}))) == 9
    assert lower_bound_us(Problem(profile, cluster_of(2, speeds=(1, 2)))) == 3


def test_the_critical_path_contains_ops_and_transfers():
    problem = Problem(profile_of({"a": 2, "b": 3, "c": 9}, [("a", "b", 4)]), cluster_of())
    schedule = simulate(problem, plan_of(problem, {"a": 0, "b": 1, "c": 1}))
    path = critical_path(schedule)
    assert path.is_transfer.tolist() == [False, False]
    assert path.finish_us.tolist() == [9, 12]
    assert (path.compute_us, path.transfer_us, path.waiting_us) == (12, 0, 0)
