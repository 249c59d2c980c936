"""Of plans that are as good, the one with the most free memory is taken."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from enplace.machine import simulate
from enplace.machine.pipelines.loads import max_load_us
from enplace.placers import place
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.placing.options import PlaceOptions
from enplace.placing.prices import FEW, MOST, PRICE_US, price_us, total_price_us
from enplace.placing.rebalance import TIE
from enplace.placing.stop import Stop
from enplace.placing.ties import on_each_alone, settle_ties
from enplace.summary import Others, worth_it
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.load_rule import USUAL
from enplace.values.problem import LATENCY, THROUGHPUT, Problem
from enplace.values.schedule import Schedule
from problems import cluster_of, plan_of, planned_problems, profile_of, with_measured_links
from properties import examples

MIB = 1 << 20


def problem_of(n_bytes: list[int], *capacity: int, us: int = 100) -> Problem:
    """Build a chain of ops with weights of these sizes, and GPUs with this much memory."""
    names = [f"layer_{i}/op" for i in range(len(n_bytes))]
    edges = [(a, b, 1) for a, b in pairwise(names)]
    weights = dict(zip(names, n_bytes, strict=True))
    profile = profile_of(dict.fromkeys(names, us), edges, persistent=weights)
    cluster = cluster_of(len(capacity), b0_us=5, b1_us_per_byte=0)
    pairs = zip(cluster.devices, capacity, strict=True)
    devices = tuple(replace(device, capacity_bytes=size) for device, size in pairs)
    return Problem(profile, replace(cluster, devices=devices))


def placed(problem: Problem, devices: list[int], **more: object) -> Schedule:
    names = problem.profile.op_names
    plan = plan_of(problem, dict(zip(names, devices, strict=True)))
    return simulate(problem, replace(plan, **more))


def share(schedule: Schedule) -> float:
    return float((schedule.peak_bytes / schedule.problem.cluster.capacity_bytes).max())


def test_the_cut_of_a_chain_goes_where_both_devices_have_most_room():
    full = placed(problem_of([MIB] * 20, 16 * MIB, 16 * MIB), [0] * 15 + [1] * 5)
    found = settle_ties(full, [], Stop())
    assert found.makespan_us == full.makespan_us
    assert np.bincount(found.plan.device).tolist() == [10, 10]
    assert "most free memory" in found.plan.note


def test_all_cuts_of_a_chain_move_together():
    problem = problem_of([MIB] * 40, *[13 * MIB] * 4)
    full = placed(problem, [0] * 13 + [1] * 13 + [2] * 12 + [3] * 2)
    found = settle_ties(full, [], Stop())
    assert found.makespan_us == full.makespan_us
    assert np.bincount(found.plan.device).tolist() == [10, 10, 10, 10]


def test_of_unlike_devices_each_is_filled_by_the_same_share():
    problem = problem_of([MIB] * 24, 24 * MIB, 8 * MIB)
    found = settle_ties(placed(problem, [1] * 8 + [0] * 16), [], Stop())
    assert np.bincount(found.plan.device).tolist() == [18, 6]


def test_equal_branches_are_exchanged_for_lighter_ones():
    names = ["in", *"abcd", "out"]
    edges = [("in", each, 1) for each in "abcd"] + [(each, "out", 1) for each in "abcd"]
    weights = {"a": 7 * MIB, "b": 6 * MIB, "c": 2 * MIB, "d": MIB}
    profile = profile_of(dict.fromkeys(names, 100), edges, persistent=weights)
    problem = Problem(profile, cluster_of(2, b0_us=5, b1_us_per_byte=0, capacity_bytes=16 * MIB))
    full = placed(problem, [0, 0, 0, 1, 1, 0])
    found = settle_ties(full, [], Stop())
    assert found.makespan_us <= full.makespan_us * (1 + TIE)
    assert share(found) == pytest.approx(8 / 16, abs=0.01)


def test_pinned_ops_stay():
    problem = problem_of([MIB] * 20, 16 * MIB, 16 * MIB).constrained(pins={0: 0, 14: 0})
    full = placed(problem, [0] * 15 + [1] * 5)
    found = settle_ties(full, [], Stop())
    assert found.plan.device[[0, 14]].tolist() == [0, 0]


def test_a_plan_with_room_enough_stays_where_it_is():
    roomy = placed(problem_of([MIB] * 20, 1 << 30, 1 << 30), [0] * 15 + [1] * 5)
    assert settle_ties(roomy, [], Stop()) is roomy


def test_devices_that_are_alike_are_used_in_order():
    problem = problem_of([MIB] * 4, *[5 * MIB // 2] * 4)
    found = settle_ties(placed(problem, [3, 3, 1, 1]), [], Stop())
    assert found.plan.device.tolist() == [0, 0, 1, 1]


def test_a_plan_that_was_found_before_is_taken_if_it_is_as_good():
    problem = problem_of([MIB] * 8, 8 * MIB, 8 * MIB, us=1000)
    one, other = (placed(problem, each) for each in ([0, 1] * 4, [0] * 4 + [1] * 4))
    slow = replace(one.plan, policy="fifo")
    assert settle_ties(other, [slow], Stop()).plan.device.tolist() == other.plan.device.tolist()


@examples(10)
@given(planned_problems())
def test_the_plan_taken_is_as_good_and_leaves_no_less_memory(case):
    schedule = simulate(*case)
    found = settle_ties(schedule, [], Stop())
    assert found.makespan_us <= schedule.makespan_us * (1 + TIE)
    assert share(found) <= share(schedule) + 0.01
    assert simulate(found.problem, found.plan).makespan_us == found.makespan_us


@examples(10)
@given(st.lists(st.integers(1, 9), min_size=4, max_size=8), st.integers(10, 30))
def test_the_throughput_of_a_chain_has_the_most_free_memory_of_all_stages(sizes, small):
    total = sum(sizes)
    problem = problem_of([size * MIB for size in sizes], total * MIB, max(max(sizes), small) * MIB)
    found = place(problem, "max-load-dp", options=PlaceOptions(THROUGHPUT))
    assume(found.schedule.fits)
    stages = [
        np.array([first] * n + [1 - first] * (len(sizes) - n))
        for first, n in product((0, 1), range(len(sizes) + 1))
    ]
    rivals = [
        placed(problem, device.tolist())
        for device in stages
        if max_load_us(problem, device) <= found.value_us
    ]
    best = min(share(rival) for rival in rivals if rival.fits)
    assert share(found.schedule) <= best + 0.01


def test_the_stage_of_a_host_is_not_torn_apart_to_save_a_transfer():
    """The last op reads the first one's output on the host, but between them is a GPU."""
    edges = [("first", "middle", 1), ("first", "last", 1), ("middle", "last", 1)]
    times = {"first": 1, "middle": 100, "last": 50}
    profile = profile_of(times, edges, cpu={"first": 1, "last": 50})
    problem = Problem(profile, cluster_of(2, cpu_lanes=1))
    pipeline = {"objective": THROUGHPUT, "load_rule": USUAL}
    schedule = placed(problem, [2, 0, 1], **pipeline)
    nearer = placed(problem, [2, 0, 2], **pipeline)
    loads_us = [max_load_us(problem, each.plan.device) for each in (schedule, nearer)]
    assert loads_us[0] == loads_us[1]
    assert len(nearer.transfer_tensor) < len(schedule.transfer_tensor)
    found = settle_ties(schedule, [nearer.plan], Stop())
    assert is_contiguous(problem, found.plan.device)


def test_the_subgraphs_of_a_query_are_not_lost_to_a_slower_plan():
    costs = [3, 5, 7, 9, 11, 3, 5, 7, 9]
    names = [f"op_{i}" for i in range(9)]
    edges = [(names[i], names[i + 3], 2) for i in range(6)]
    problem = Problem(profile_of(dict(zip(names, costs, strict=True)), edges), cluster_of(2))
    found = place(problem, "latency-ip-q", options=PlaceOptions(LATENCY))
    assert found.plan.proven
    assert found.gap == pytest.approx(0, abs=1e-5)


def on_two(
    kind: str, n: int = 40, us: float = 100.0, small_us: float | dict[str, float] = 3.0
) -> tuple[Problem, Schedule]:
    """Return a chain whose ops each feed a small one, and the plan with those on a second device.

    Unless other times are given, it is 3 % faster than one device. Each small op costs a transfer.
    """
    chain, small = ([f"{name}_{i}" for i in range(n)] for name in ("chain", "small"))
    edges = [(a, b, 8) for a, b in pairwise(chain)]
    edges += [(a, b, 8) for a, b in zip(chain, small, strict=True)]
    if isinstance(small_us, float):
        small_us = dict.fromkeys(small, small_us)
    times = dict.fromkeys(chain, us) | small_us
    profile = profile_of(times, edges, cpu=times)
    devices = tuple(Device(f"{kind.upper()}:{i}", kind, 1 << 30) for i in range(2))
    both = tuple(Link(a, 1 - a, 5.0, 0.0, (a,)) for a in (0, 1))
    problem = Problem(profile, Cluster("two", devices, ("there", "back"), both))
    return problem, placed(problem, [0] * n + [1] * n)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_where_nobody_measured_a_link_a_slightly_slower_plan_saves_transfers(kind):
    problem, fast = on_two(kind)
    found = settle_ties(fast, [placed(problem, [0] * 80).plan], Stop())
    assert len(fast.transfer_tensor) - len(found.transfer_tensor) >= FEW
    assert fast.makespan_us * (1 + TIE) < found.makespan_us <= fast.makespan_us * (1 + TIE + MOST)
    assert found.makespan_us == simulate(found.problem, found.plan).makespan_us
    assert f"each at some {PRICE_US:.0f} µs" in found.plan.note


@pytest.mark.parametrize("n_back", [1, 4])
def test_a_search_that_begins_from_a_plan_ends_with_none_that_takes_longer(n_back):
    """Even if a slower one would save transfers."""
    problem, fast = on_two("gpu")
    given = placed(problem, [0] * (40 + n_back) + [1] * (40 - n_back))
    assert given.makespan_us > fast.makespan_us
    freely = place(problem, "enplace", options=PlaceOptions(values={"rounds": 1}))
    assert freely.schedule.makespan_us > given.makespan_us
    options = PlaceOptions(start=given.plan, values={"rounds": 1})
    found = place(problem, "enplace", options=options)
    assert found.schedule.makespan_us <= given.makespan_us


def test_where_transfers_were_measured_they_have_no_further_price():
    problem, fast = on_two("gpu")
    known = with_measured_links(problem)
    assert not price_us(known).any()
    lean = placed(known, [0] * 80).plan
    found = settle_ties(simulate(known, fast.plan), [lean], Stop())
    assert found.makespan_us <= fast.makespan_us * (1 + TIE)


def test_measured_links_are_known_only_of_their_own_machine():
    problem, _ = on_two("gpu")
    known = with_measured_links(problem)
    other = tuple(replace(link, b0_us=9.0) for link in problem.cluster.links)
    elsewhere = Problem(known.profile, replace(known.cluster, links=other))
    assert price_us(elsewhere).tolist() == [[0.0, PRICE_US], [PRICE_US, 0.0]]


def test_a_guess_does_not_decide_for_a_few_transfers():
    problem, fast = on_two("gpu", FEW - 1)
    found = settle_ties(fast, [placed(problem, [0] * 2 * (FEW - 1)).plan], Stop())
    assert found.makespan_us <= fast.makespan_us * (1 + TIE)


def test_a_step_takes_no_longer_than_the_transfers_that_it_saves_are_worth():
    """One device saves 11 transfers, worth 0.11 ms, and takes 0.24 ms longer: no tie of 55 ms."""
    problem, fast = on_two("gpu", 11, us=5000.0, small_us=24.5)
    lean = placed(problem, [0] * 22)
    saved_us = PRICE_US * len(fast.transfer_tensor)
    assert fast.makespan_us * (1 + TIE) + saved_us < lean.makespan_us
    found = settle_ties(fast, [lean.plan], Stop())
    assert found.makespan_us <= fast.makespan_us * (1 + TIE)


def test_a_plan_that_is_faster_and_pays_less_replaces_one_taken_for_few_transfers():
    """30 small ops take 0.5 µs each, 10 take 18 µs; only those are worth a transfer."""
    small_us = {f"small_{i}": 18.0 if i < 10 else 0.5 for i in range(40)}
    problem, fast = on_two("gpu", us=1000.0, small_us=small_us)
    lean = placed(problem, [0] * 80)
    mid = placed(problem, [0] * 40 + [1] * 10 + [0] * 30)
    assert mid.makespan_us <= fast.makespan_us * (1 + TIE) < lean.makespan_us
    found = settle_ties(fast, [lean.plan, mid.plan], Stop())
    assert found.makespan_us <= fast.makespan_us * (1 + TIE)


def test_the_price_of_one_more_transfer_outweighs_no_free_memory():
    """A chain of 40 takes 8 ms; a third device costs 5 µs, and 10 µs that nobody measured."""
    problem = problem_of([MIB] * 40, 20 * MIB + 9, 20 * MIB + 9, 20 * MIB + 9, us=200)
    full = placed(problem, [0] * 20 + [1] * 20)
    even = placed(problem, [0] * 13 + [1] * 14 + [2] * 13)
    assert price_us(problem).any()
    found = settle_ties(full, [even.plan], Stop())
    assert share(found) == share(even) < share(full)


def small_branches(us: float, n: int = 60) -> Problem:
    """Return two chains of small ops that exchange a tensor at every fourth."""
    names = [[f"{side}_{i}" for i in range(n)] for side in "ab"]
    edges = [(a, b, 8) for chain in names for a, b in pairwise(chain)]
    edges += [(names[0][i], names[1][i + 2], 8) for i in range(0, n - 2, 4)]
    profile = profile_of(dict.fromkeys([*names[0], *names[1]], us), edges)
    return Problem(profile, cluster_of(2, b0_us=0.1, b1_us_per_byte=0))


@pytest.mark.parametrize("us", [1.0, 3.0])
def test_one_device_is_taken_if_the_price_of_all_transfers_makes_a_plan_slower(us):
    """Two devices save 60 or 180 µs, and 15 transfers have a price of 150 µs."""
    problem = small_branches(us)
    fast = placed(problem, [0] * 60 + [1] * 60)
    found = settle_ties(fast, [], Stop(), on_each_alone(problem))
    is_slower = us == 1.0
    assert (len(found.transfer_tensor) == 0) == is_slower
    assert ("By prediction, the fastest plan found takes" in found.plan.note) == is_slower
    known = with_measured_links(problem)
    found = settle_ties(simulate(known, fast.plan), [], Stop(), on_each_alone(known))
    assert found.makespan_us <= fast.makespan_us


def test_one_device_that_is_taken_for_the_price_of_transfers_says_so_first():
    problem = small_branches(1.0)
    fast, alone = placed(problem, [0] * 60 + [1] * 60), placed(problem, [0] * 120)
    said = worth_it(settle_ties(fast, [], Stop(), [alone]), Others(alone=alone))
    assert said.startswith("One device takes 0.12 ms. By prediction, the fastest plan found takes")
    assert worth_it(alone, Others(alone=alone)).startswith("One device is as fast")


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_devices_pay_for_their_transfers_side_by_side(pairs):
    """Each pair saves 120 µs, and has 15 transfers; all pairs but one need no further time."""
    one = small_branches(2.0)
    n, profile = one.profile.n_ops, one.profile
    names = [f"{pair}/{name}" for pair in range(pairs) for name in profile.op_names]
    edges = [
        (names[n * pair + a], names[n * pair + b], 8)
        for pair in range(pairs)
        for a, b in zip(profile.edge_source, profile.edge_op, strict=True)
    ]
    cluster = cluster_of(2 * pairs, b0_us=0.1, b1_us_per_byte=0)
    problem = Problem(profile_of(dict.fromkeys(names, 2.0), edges), cluster)
    many = placed(
        problem, [2 * pair + half for pair in range(pairs) for half in [0] * 60 + [1] * 60]
    )
    assert total_price_us(many) == PRICE_US * len(many.transfer_tensor) / pairs
    alone = placed(problem, [0] * len(names))
    found = settle_ties(many, [], Stop(), [alone])
    assert (len(np.unique(found.plan.device)) == 1) == (pairs == 1)


def test_the_plan_with_few_transfers_must_fit():
    problem = small_branches(1.0)
    weights = np.full(problem.profile.n_ops, MIB)
    heavy = Problem(
        replace(problem.profile, persistent_bytes=weights),
        cluster_of(2, b0_us=0.1, b1_us_per_byte=0, capacity_bytes=100 * MIB),
    )
    fast = placed(heavy, [0] * 60 + [1] * 60)
    assert settle_ties(fast, [], Stop(), on_each_alone(heavy)).fits


def test_a_plan_that_its_transfers_make_slower_is_not_called_faster():
    problem = small_branches(1.0)
    fast = placed(problem, [0] * 60 + [1] * 60)
    said = worth_it(fast, Others(alone=placed(problem, [0] * 120)))
    assert said.startswith("One device may be as fast or faster: it takes 0.12 ms.")
    known = with_measured_links(problem)
    said = worth_it(simulate(known, fast.plan), Others(alone=placed(known, [0] * 120)))
    assert said.startswith("One device takes 0.12 ms, the plan −")


def test_a_plan_that_its_transfers_make_less_fast_says_so():
    problem = small_branches(3.0)
    fast = placed(problem, [0] * 60 + [1] * 60)
    said = worth_it(fast, Others(alone=placed(problem, [0] * 120)))
    assert "by prediction, −" in said
