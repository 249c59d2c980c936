"""What is proven of plans that compute ops again or keep on the host what ops make."""

import json
import random
from dataclasses import replace
from itertools import chain, combinations, product

import numpy as np
import pytest

from enplace.bounds import lower_bound_us, with_bound
from enplace.errors import EnplaceError
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place
from enplace.placing.packing import pack
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import make_profile
from enplace.values.splits import OFFLOAD, RECOMPUTE, Split
from enplace.values.splits.again import with_copies, without_copies
from enplace.writers import write_plan
from problems import cluster_of, profile_of

METHOD, OFFLOADING = "enplace-recompute", "enplace-offload"


def step_of(times, edges, n_backward, **more):
    """Return a step of ops that may be computed again, the last of which are backward ops."""
    profile = profile_of(times, edges, **more)
    n = profile.n_ops
    passes = [""] * (n - n_backward) + ["backward"] * n_backward
    return replace(profile, op_types=("Relu",) * n, op_passes=tuple(passes))


def read_twice():
    """Return a step that only fits if one of two late readers reads a copy, or fetches."""
    times = dict.fromkeys(("x", "a", "f", "b1", "m", "b2"), 10.0) | {"x": 1.0}
    edges = [("x", "a", 1), ("a", "f", 100), ("f", "b1", 1), ("a", "b1", 100)]
    edges += [("b1", "m", 1), ("m", "b2", 1), ("a", "b2", 100)]
    return step_of(times, edges, 3, temporary={"m": 100})


def a_cheap_and_a_dear_op():
    """Return a step that fits if either of two ops is computed again."""
    times = dict.fromkeys(("x", "a", "e", "f", "b1", "b2", "b3"), 10.0) | {"x": 1.0, "e": 500.0}
    edges = [("x", "a", 1), ("a", "e", 100), ("e", "f", 100), ("f", "b1", 1), ("b1", "b2", 1)]
    return step_of(times, [*edges, ("e", "b2", 100), ("b2", "b3", 1), ("a", "b3", 100)], 3)


def hand_made(problem, splits, order, **more):
    """Return the schedule of a plan on one device that runs ops in an order."""
    graph = split_problem(problem, splits)
    position = np.argsort([graph.profile.index[name] for name in order])
    plan = Plan(np.zeros(len(order), int), position, "hand", policy="strict", splits=splits)
    return simulate(graph, replace(plan, **more))


def test_the_graph_without_copies_is_the_model():
    profile = read_twice()
    copies = (
        Split("f", RECOMPUTE, 2, ("b1",), "a"),
        Split("a", OFFLOAD, 2, ("b2",), "m"),
    )
    again = without_copies(with_copies(profile, copies), copies)
    assert again.op_names == profile.op_names
    assert sorted(again.edges.tolist()) == sorted(profile.edges.tolist())
    assert (again.running_bytes == profile.running_bytes).all()


@pytest.mark.parametrize(("method", "cpu_lanes"), [(METHOD, 0), (OFFLOADING, 1)])
def test_a_single_late_reader_may_read_the_copy(method, cpu_lanes):
    cluster = cluster_of(1, b0_us=5, b1_us_per_byte=1e-6, capacity_bytes=160, cpu_lanes=cpu_lanes)
    found = place(Problem(read_twice(), cluster), method)
    assert found.schedule.fits
    assert found.schedule.makespan_us == pytest.approx(61, rel=1e-5)
    (split,) = found.plan.splits
    assert (split.op, split.readers) == ("a", ("b2",))


def test_one_bound_is_shown_of_all_plans_that_recompute(tmp_path):
    problem = Problem(a_cheap_and_a_dear_op(), cluster_of(1, capacity_bytes=250))
    order = ["x", "a", "e", "f", "b1", "e/recomputed", "b2", "b3"]
    dear = hand_made(problem, (Split("e", RECOMPUTE, 2, ("b2",), "b1"),), order)
    order = ["x", "a", "e", "f", "b1", "b2", "a/recomputed", "b3"]
    cheap = hand_made(problem, (Split("a", RECOMPUTE, 2, ("b3",), "b2"),), order)
    assert cheap.makespan_us + 490 == dear.makespan_us
    shown = [with_bound(each) for each in (cheap, dear)]
    assert [each.bound_us for each in shown] == [551.0, 551.0]
    assert all(each.gap > 0 for each in shown)
    for number, each in enumerate([*shown, place(problem, METHOD)]):
        path = tmp_path / f"{number}.plan.json"
        write_plan(path, each)
        assert json.loads(path.read_text())["predicted"]["lower_bound_us"] == 551.0


def test_a_copy_may_save_a_transfer_that_no_other_plan_avoids():
    """Both long ops read the large output of a short one; each device makes it for itself."""
    step = step_of({"a": 1.0, "b": 100.0, "c": 100.0}, [("a", "b", 1000), ("a", "c", 1000)], 1)
    problem = Problem(step, cluster_of(2))
    copied = split_problem(problem, (Split("a", RECOMPUTE, 2, ("c",)),))
    plan = Plan(np.array([0, 0, 1, 1]), np.array([0, 2, 3, 1]), "hand", splits=copied.splits)
    schedule = simulate(copied, plan)
    assert lower_bound_us(problem) > schedule.makespan_us == 101
    assert with_bound(schedule).bound_us <= 101


def test_that_nothing_fits_is_proven_where_no_copy_helps():
    times = {"x": 1.0, "h": 10.0, "gradients/h": 10.0}
    step = step_of(times, [("x", "h", 100), ("h", "gradients/h", 100)], 1)
    found = place(Problem(step, cluster_of(1, capacity_bytes=190)), METHOD)
    assert found.plan.nothing_fits
    assert found.schedule.fit_verdict == "Does not fit, proven for every plan"
    assert "proven by packing" in found.plan.note


def with_second_outputs(profile):
    """Return a profile in which each reader after an op's first reads a tensor of its own."""
    source, number = profile.edge_source, np.zeros(profile.n_edges, dtype=np.int64)
    for op in range(profile.n_ops):
        number[source == op] = np.arange((source == op).sum())
    sizes = profile.tensor_bytes[profile.edge_tensor] // (1 + number)
    return make_profile(
        "hand",
        op_names=profile.op_names,
        op_types=profile.op_types,
        op_passes=profile.op_passes,
        time_us=profile.time_us,
        temporary_bytes=profile.temporary_bytes,
        edge_source=source,
        edge_output=number,
        edge_op=profile.edge_op,
        edge_bytes=sizes,
    )


def with_two_outputs(capacity_bytes):
    """Return a step on one device with an op that makes a tensor for each of two backward ops."""
    edges = [("x", "h", 10), ("h", "b1", 200), ("h", "b2", 200), ("b1", "b2", 1)]
    step = with_second_outputs(step_of(dict.fromkeys(("x", "h", "b1", "b2"), 10.0), edges, 2))
    return Problem(step, cluster_of(1, capacity_bytes=capacity_bytes))


def test_an_op_with_two_outputs_has_room_for_the_larger_at_least():
    """Each backward op may read its own copy of the op; none makes less than what is read of it."""
    free = [with_two_outputs(size).with_any_copies for size in (209, 210)]
    assert [pack(each, Stop(5)).is_impossible for each in free] == [True, False]


def tiny_step(drawn):
    """Return a problem of four ops, whose size and cluster are drawn."""
    names = [f"o{i}" for i in range(4)]
    times = {name: drawn.choice([1.0, 10.0, 20.0]) for name in names}
    made = {name: drawn.choice([10, 60, 100]) for name in names}
    pairs = [pair for pair in combinations(names, 2) if drawn.random() < 0.6]
    edges = [(a, b, made[a]) for a, b in pairs] or [("o0", "o1", made["o0"])]
    temporary = {name: drawn.choice([0, 0, 50]) for name in names}
    step = step_of(times, edges, 2, temporary=temporary)
    if drawn.random() < 0.5:
        step = with_second_outputs(step)
    capacity = int(sum(made.values()) * drawn.uniform(0.2, 0.9))
    b1 = drawn.choice([0.02, 0.5])
    n_gpus = drawn.choice([1, 2])
    cluster = cluster_of(n_gpus, b1_us_per_byte=b1, capacity_bytes=capacity, cpu_lanes=1)
    return Problem(step, cluster)


def all_splits(problem, drawn, most):
    """Yield copies and fetches that splits allow: for any readers, after any op."""
    profile = problem.profile
    ways = []
    for op, name in enumerate(profile.op_names):
        readers = [profile.op_names[each] for each in set(profile.readers_of(op).tolist())]
        sets = chain.from_iterable(
            combinations(readers, n + 1) for n in range(len(readers)) if readers
        )
        ends = ["", *(other for other in profile.op_names if other != name)]
        every = product((RECOMPUTE, OFFLOAD), sets, ends)
        ways.append([None, *(Split(name, how, 2, some, after) for how, some, after in every)])
    yield ()
    for _ in range(most):
        chosen = [drawn.choice(each) if drawn.random() < 0.5 else None for each in ways]
        yield tuple(filter(None, chosen))


def drawn_orders(profile, drawn, most):
    """Yield orders that the graph allows, as positions."""
    before = [set(profile.edge_source[profile.edges_into(op)]) for op in range(profile.n_ops)]
    for _ in range(most):
        order = []
        while len(order) < profile.n_ops:
            ready = [
                op for op in range(profile.n_ops) if op not in order and before[op].issubset(order)
            ]
            order.append(drawn.choice(ready))
        yield np.argsort(order)


def shortest(problem, drawn, most):
    """Return the shortest step of many plans that fit, whatever they recompute or offload."""
    best_us = np.inf
    for splits in all_splits(problem, drawn, most):
        try:
            graph = split_problem(problem, splits)
        except EnplaceError:  # ops would wait for each other
            continue
        homes = [np.flatnonzero(graph.unit_allowed[unit]).tolist() for unit in graph.unit]
        for _ in range(4):
            device = np.array([drawn.choice(each) for each in homes])
            for position in drawn_orders(graph.profile, drawn, 2):
                plan = Plan(device, position, "drawn", policy="strict", splits=splits)
                try:
                    found = simulate(graph, plan)
                except EnplaceError:  # a deadlock across devices
                    continue
                if found.fits:
                    best_us = min(best_us, found.makespan_us)
    return best_us


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 40))]
)
def test_no_bound_is_above_a_plan_that_recomputes_or_offloads_in_any_way(seed):
    drawn = random.Random(seed)
    problem = tiny_step(drawn)
    best_us = shortest(problem, drawn, 150)
    free = problem.with_any_copies
    if np.isfinite(best_us):
        assert lower_bound_us(free) <= best_us * (1 + 1e-9)
        assert not pack(free, Stop(5)).is_impossible
    options = PlaceOptions(values={"offload": True}, stop=Stop(1))
    found = place(problem, METHOD, options=options)
    assert found.bound_us == pytest.approx(lower_bound_us(free))
    assert found.bound_us == with_bound(found.schedule).bound_us
    if np.isfinite(best_us):
        assert not found.plan.nothing_fits


def test_that_no_plan_with_these_copies_fits_proves_nothing_of_others():
    problem = Problem(read_twice(), cluster_of(1, capacity_bytes=160))
    order = ["x", "a", "f/recomputed", "f", "b1", "m", "b2"]
    given = hand_made(problem, (Split("f", RECOMPUTE, 2, ("b1",), "a"),), order)
    assert not given.fits
    found = place(problem, "enplace", options=PlaceOptions(start=given.plan))
    assert found.plan.splits == given.plan.splits
    assert not found.schedule.fits
    assert not found.plan.nothing_fits
