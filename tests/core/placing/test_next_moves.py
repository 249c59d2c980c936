"""Next moves: the best of all single moves, honest in time and memory, and in words."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from documents import split_layer
from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.names.groups import group_ops
from enplace.placers import PlaceOptions, place
from enplace.placing.next_moves import (
    MOVE,
    ORDER,
    RECOMPUTE,
    SPLIT,
    SWAP,
    TOGETHER,
    Idle,
    next_moves,
)
from enplace.placing.next_moves.edits import earlier
from enplace.placing.next_moves.search import climb
from enplace.placing.next_moves.words import name, title_apart
from enplace.placing.stop import Stop
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan, follow_graph
from enplace.values.problem import THROUGHPUT, Problem, split_problem
from problems import GIB, as_training, cluster_of, plan_of, planned_problems, profile_of
from properties import examples

NO_LIMIT = Stop()
SHORTER = 1 - 1e-4


def key_of(schedule):
    return schedule.excess_bytes, schedule.makespan_us


def single_moves(problem, plan):
    """Simulate every move of one placement unit to another device."""
    for unit in range(problem.n_units):
        for device in np.flatnonzero(problem.unit_allowed[unit]).tolist():
            where = plan.device.copy()
            where[problem.unit == unit] = device
            try:
                yield simulate(problem, Plan(where, plan.position, "", plan.policy, plan.links))
            except EnplaceError:  # the order makes ops wait for each other
                continue


@examples(15)
@given(planned_problems())
def test_the_first_offer_is_as_good_as_the_best_of_all_moves_of_one_unit(planned):
    problem, plan = planned
    before = simulate(problem, plan)
    best = min(map(key_of, single_moves(problem, plan)), default=key_of(before))
    gains = best[0] < before.excess_bytes or best[1] < SHORTER * before.makespan_us
    assume(gains and best < key_of(before))
    first = next_moves(problem, plan, stop=NO_LIMIT)[0]
    assert (first.after_excess_bytes, first.after_us) <= best


@examples(15)
@given(planned_problems())
def test_an_offer_keeps_its_promise_and_never_asks_for_memory_that_is_not_there(planned):
    problem, plan = planned
    before = simulate(problem, plan)
    offers = next_moves(problem, plan, stop=NO_LIMIT)
    keys = [(offer.after_excess_bytes, offer.after_us) for offer in offers]
    assert keys == sorted(keys)
    for offer, key in zip(offers, keys, strict=True):
        assert key_of(simulate(problem, offer.plan)) == pytest.approx(key)
        assert key < key_of(before)
        assert offer.plan.device[problem.pinned_to >= 0].tolist() == [
            device for device in problem.pinned_to.tolist() if device >= 0
        ]


def test_a_plan_that_does_not_fit_is_first_made_to_fit():
    profile = profile_of({"a": 10, "b": 10}, [("a", "b", 1)], persistent={"a": 600, "b": 600})
    problem = Problem(profile, cluster_of(2, capacity_bytes=1000))
    first = next_moves(problem, plan_of(problem, {"a": 0, "b": 0}))[0]
    assert (first.before_excess_bytes, first.after_excess_bytes) == (201, 0)
    assert first.after_us > first.before_us
    assert first.change.startswith("lacks 201 B less, +")


def test_what_waits_for_a_busy_device_is_offered_an_earlier_turn():
    profile = profile_of({"short": 1, "long": 9, "far": 30}, [("short", "far", 1)])
    problem = Problem(profile, cluster_of(2))
    plan = Plan(np.array([0, 0, 1]), np.array([1, 0, 2]), "hand", links="priority")
    pinned = problem.constrained(pins={0: 0, 1: 0, 2: 1})
    first = next_moves(pinned, plan)[0]
    assert first.kind == ORDER
    assert first.before_us - first.after_us == 9
    assert first.plan.device.tolist() == [0, 0, 1]


@examples(30)
@given(planned_problems(), st.data())
def test_an_op_goes_before_another_as_if_all_were_sorted_anew(planned, data):
    profile = planned[0].profile
    keys = data.draw(st.permutations(range(profile.n_ops)))
    order = follow_graph(profile, np.array(keys))
    op, anchor = (data.draw(st.integers(0, profile.n_ops - 1)) for _ in range(2))
    assume(order[anchor] < order[op])
    key = order.astype(float)
    key[op] = key[anchor] - 0.5
    assert earlier(profile, order, op, anchor).tolist() == follow_graph(profile, key).tolist()


def test_two_ops_on_the_wrong_devices_are_swapped():
    """Each waits for a tensor that the other would not, and no device has room for both."""
    profile = profile_of(
        {"m/a": 10, "m/b": 10, "n/c": 10, "n/d": 10},
        [("m/a", "n/d", 90), ("n/c", "m/b", 90), ("m/a", "n/c", 90)],
        persistent=dict.fromkeys(("m/a", "m/b", "n/c", "n/d"), 300),
    )
    cluster = cluster_of(2, capacity_bytes=850)
    problem = Problem(profile, cluster).constrained(pins={0: 0, 2: 1})
    plan = plan_of(problem, {"m/a": 0, "m/b": 0, "n/c": 1, "n/d": 1})
    offers = next_moves(problem, plan)
    assert [offer.kind for offer in offers] == [SWAP]
    assert offers[0].plan.device.tolist() == [0, 1, 1, 0]
    assert offers[0].title == "Swap m/b and n/d"


def test_many_moves_at_once_are_offered_where_no_single_edit_helps():
    """An op of 5 must change places with two of 2: no move or swap evens out 10 and 8."""
    times = {"a": 5, "b": 5, "c": 2, "d": 2, "e": 2, "f": 2}
    problem = Problem(profile_of(times), cluster_of(2))
    plan = plan_of(problem, {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1, "f": 1})
    assert not next_moves(problem, plan, wide=False)
    first = next_moves(problem, plan, stop=NO_LIMIT)[0]
    assert (first.kind, first.before_us, first.after_us) == (TOGETHER, 10, 9)
    assert len(first.ops) == 3
    assert first.title == "Move 3 ops of 3 groups"
    assert first.reason.startswith("2 → GPU 0, 1 → GPU 1")


def test_a_long_op_is_split_over_two_devices():
    problem = Problem(split_layer(), cluster_of(2, b1_us_per_byte=1e-5))
    plan = Plan(np.zeros(4, dtype=np.int64), np.arange(4), "hand")
    first = next_moves(problem, plan)[0]
    assert first.kind == SPLIT
    assert first.title == "Split conv in two, by channels"
    graph = split_problem(problem, first.plan.splits)
    assert simulate(graph, first.plan).makespan_us == first.after_us < 800


def test_a_plan_for_throughput_is_priced_per_sample():
    ops = {"f": 30, "g": 10, "gradients/g": 10, "gradients/f": 30}
    profile = profile_of(
        ops, [("f", "g", 1), ("g", "gradients/g", 1), ("gradients/g", "gradients/f", 1)]
    )
    problem = as_training(Problem(profile, cluster_of(2)))
    plan = place(problem, "max-load-dp").plan
    worse = Plan(
        np.zeros(4, dtype=np.int64),
        np.arange(4),
        "hand",
        objective=THROUGHPUT,
        load_rule=plan.load_rule or LoadRule(),
    )
    offers = next_moves(problem, worse)
    assert {offer.kind for offer in offers} <= {MOVE, SWAP, ORDER, RECOMPUTE}
    assert offers[0].after_us == check_claims(problem, offers[0].plan).value_us
    assert "per sample" in offers[0].reason


def test_a_device_of_a_pipeline_keeps_its_activations_if_there_is_room():
    names = ["f", "g", "h", "back", "update_1", "update_2"]
    edges = [(a, b, 40) for a, b in pairwise(names)]
    problem = as_training(Problem(profile_of(dict.fromkeys(names, 10), edges), cluster_of(2)))
    plan = Plan(
        np.zeros(6, dtype=np.int64),
        np.arange(6),
        "hand",
        recompute=(0,),
        objective=THROUGHPUT,
        load_rule=LoadRule(),
    )
    found = {offer.kind: offer for offer in next_moves(problem, plan)}[RECOMPUTE]
    assert found.plan.recompute == ()
    assert found.title == "Keep activations on GPU 0"
    assert found.before_us - found.after_us == 30


def test_only_what_runs_in_an_idle_time_is_offered_for_it():
    times = {"a": 10, "b": 10, "c": 10, "d": 40}
    problem = Problem(profile_of(times, [("a", "d", 1)]), cluster_of(3, b1_us_per_byte=0.1))
    plan = plan_of(problem, {"a": 0, "b": 0, "c": 0, "d": 0})
    every = next_moves(problem, plan)
    there = next_moves(problem, plan, idle=Idle(1, 0.0, 30.0))
    assert {offer.devices for offer in there} == {(1,)}
    assert {2} <= {device for offer in every for device in offer.devices} | {2}
    assert not next_moves(problem, plan, idle=Idle(1, 69.0, 70.0))
    assert "GPU 1’s idle time" in there[0].reason


def test_a_search_that_is_stopped_has_what_it_found():
    problem = Problem(profile_of({"a": 10, "b": 10}, []), cluster_of(2, capacity_bytes=GIB))
    plan, seen = plan_of(problem, {"a": 0, "b": 0}), []
    found = next_moves(problem, plan, stop=Stop(cancelled=lambda: bool(seen)), report=seen.append)
    assert len(seen) == 1
    assert found == seen[0]


def test_a_climb_stays_close_to_a_plan():
    times = {f"op{at}": 10 for at in range(8)}
    problem = Problem(profile_of(times), cluster_of(2))
    plan = plan_of(problem, dict.fromkeys(times, 0))
    placement = tuple(enumerate(plan.device.tolist()))
    near = problem.constrained(stay_close=[(placement, 2)])
    found = climb(near, plan, NO_LIMIT)
    assert np.count_nonzero(found.device) == 2
    assert simulate(near, found).makespan_us == 60
    assert simulate(problem, climb(problem, plan, NO_LIMIT)).makespan_us == 40


def test_a_search_close_to_a_plan_that_is_stopped_keeps_the_moves_that_it_has_made():
    times = {f"op{at}": 10 for at in range(8)}
    whole = Problem(profile_of(times), cluster_of(2))
    plan, seen = plan_of(whole, dict.fromkeys(times, 0)), []
    near = whole.constrained(stay_close=[(tuple(enumerate(plan.device.tolist())), 2)])
    stop = Stop(cancelled=lambda: len(seen) > 1)
    options = PlaceOptions(stop=stop, start=plan, progress=seen.append)
    found = place(near, "enplace", options=options)
    assert seen[0].message == "the plan given"
    assert found.schedule.makespan_us == seen[-1].objective_us < seen[0].objective_us == 80
    assert found.plan.method == seen[-1].incumbent.method == "enplace"


def test_a_search_close_to_a_plan_that_is_stopped_at_once_returns_that_plan():
    whole = Problem(profile_of({"a": 10, "b": 10}), cluster_of(2))
    plan = plan_of(whole, {"a": 0, "b": 0})
    near = whole.constrained(stay_close=[(tuple(enumerate(plan.device.tolist())), 1)])
    options = PlaceOptions(stop=Stop(cancelled=lambda: True), start=plan)
    found = place(near, "enplace", options=options)
    assert found.plan.device.tolist() == plan.device.tolist()
    assert found.plan.note.startswith("Nothing better than the plan given")


def test_ops_of_several_layers_are_named_by_the_first_and_the_last():
    names = [f"{part}/layer{i}/op{n}" for part in ("one", "two") for i in range(40) for n in "ab"]
    profile = profile_of(dict.fromkeys(names, 10.0), [(a, b, 1) for a, b in pairwise(names)])
    grouping = group_ops(profile)

    def named(*some):
        return name(profile, np.array([profile.index[each] for each in some]), grouping)

    first = "2 × opa from one / layer 0–1"
    assert named("one/layer0/opa", "one/layer39/opa") == f"{first} to layer 38–39"
    assert named("one/layer0/opa", "two/layer39/opa") == f"{first} to two / layer 38–39"


def test_moves_of_as_many_ops_from_and_to_the_same_groups_are_told_apart_by_an_op():
    names = [f"layer{i}/op{n}" for i in range(4) for n in "abc"]
    profile = profile_of(dict.fromkeys(names, 10.0), [(a, b, 1) for a, b in pairwise(names)])
    problem, grouping = Problem(profile, cluster_of(2)), group_ops(profile)
    before = simulate(problem, plan_of(problem, dict.fromkeys(names, 0)))
    some = [np.array([n, *range(6, 11)]) for n in range(3)]
    title = f"{name(profile, some[0], grouping)} → GPU 1"
    assert title == f"{name(profile, some[1], grouping)} → GPU 1"
    told = [
        title_apart(before, grouping, title, ops, [some[n - 1], some[n - 2]])
        for n, ops in enumerate(some)
    ]
    assert told == [f"{grouping.names[n]} and 5 more → GPU 1" for n in range(3)]


def test_ops_that_only_the_op_tells_apart_that_they_are_gradients_of_are_named_by_it():
    ends = ("MatMul_grad/MatMul", "MatMul_1_grad/MatMul", "Add_grad/Sum")
    names = [f"gradients/layer_{n}/{end}" for n in range(2) for end in ends]
    profile = profile_of(dict.fromkeys(names, 10.0), [(a, b, 1) for a, b in pairwise(names)])
    grouping = group_ops(profile)
    told = [name(profile, np.array([op]), grouping) for op in range(3)]
    assert len(set(told)) == len(told)
