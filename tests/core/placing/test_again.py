"""What is computed again or kept on the host: the graph, the plans that a search finds, files."""

from dataclasses import replace
from itertools import chain, combinations, product

import numpy as np
import pytest

import enplace as ep
from enplace.errors import EnplaceError, SplitError
from enplace.machine import simulate
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.enplace import starts, with_recompute
from enplace.placing.again import AHEAD, Kept, simulate_again
from enplace.placing.stopwatch import Stopwatch
from enplace.processes import codecs
from enplace.readers import read_plan
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import CONTROL
from enplace.values.splits import OFFLOAD, RECOMPUTE, Split, fetching_ops, unsplit_names
from enplace.values.splits.again import with_copies
from enplace.writers import write_plan
from problems import cluster_of, profile_of

METHOD, OFFLOADING = "enplace-recompute", "enplace-offload"


def training_step(layers, kept=None):
    """Return layers of 10 us that make ``kept`` bytes each, and gradients that read these."""
    kept = kept or [100] * layers
    types = {"x": "Const"} | {f"h{i}": "Relu" for i in range(layers)}
    ends = ["x", *(f"h{i}" for i in range(layers))]
    made = [100, *kept]
    edges = [(a, b, size) for a, b, size in zip(ends, ends[1:], made, strict=False)]
    behind, size = ends[-1], made[-1]
    for i in reversed(range(layers)):
        grad = f"gradients/h{i}"
        types[grad] = "ReluGrad"
        edges += [(behind, grad, size), (f"h{i}", grad, kept[i])]
        behind, size = grad, 20
    profile = profile_of(dict.fromkeys(types, 10.0) | {"x": 1.0}, list(dict.fromkeys(edges)))
    return replace(profile, op_types=tuple(types[name] for name in profile.op_names))


def with_host(capacity, b1_us_per_byte=0.1, n_gpus=1):
    """Return GPUs of some bytes each, and a host with room for everything."""
    cluster = cluster_of(n_gpus, b0_us=1, b1_us_per_byte=b1_us_per_byte, cpu_lanes=4)
    gpus = [replace(each, capacity_bytes=capacity) for each in cluster.devices[:-1]]
    return replace(cluster, devices=(*gpus, cluster.devices[-1]))


def again(op, *readers, after=""):
    return Split(op, RECOMPUTE, 2, readers, after)


def test_late_readers_read_the_copy_and_the_copy_waits():
    profile = training_step(3)
    made = with_copies(profile, (again("h0", "gradients/h0", after="gradients/h1"),))
    names = made.op_names
    read = {(names[a], names[b]) for a, o, b, _ in made.edges.tolist() if o != CONTROL}
    assert ("h0", "h1") in read
    assert ("h0", "gradients/h0") not in read
    assert {("x", "h0/recomputed"), ("h0/recomputed", "gradients/h0")} <= read
    waits = {(names[a], names[b]) for a, o, b, _ in made.edges.tolist() if o == CONTROL}
    assert waits == {("gradients/h1", "h0/recomputed")}
    assert unsplit_names(names, [again("h0")]) == list(profile.op_names)


def test_late_readers_read_what_the_host_fetches_for_them():
    profile = training_step(3)
    sent = Split("h0", OFFLOAD, 2, ("gradients/h0", "gradients/h1"), "gradients/h2")
    made = with_copies(profile, (sent, again("h1", "gradients/h1")))
    names = made.op_names
    read = {(names[a], names[b]): size for a, o, b, size in made.edges.tolist() if o != CONTROL}
    assert read["h0", "h0/fetched"] == read["h0/fetched", "gradients/h0"] == 100
    assert {("h0", "h1"), ("h0", "h1/recomputed")} <= set(read)
    assert ("h0", "gradients/h0") not in read
    fetch = made.index["h0/fetched"]
    assert np.isnan(made.time_us[fetch, 0])
    assert made.time_us[fetch, 1] == 0
    assert unsplit_names(names, [sent, again("h1")]) == list(profile.op_names)
    with pytest.raises(SplitError, match="h0' is kept on the host twice"):
        with_copies(profile, (sent, sent))


def test_a_variable_is_not_kept_on_the_host():
    profile = profile_of({"w": 1.0, "h": 1.0}, [("w", "h", 8)], persistent={"w": 8})
    profile = replace(profile, op_types=("VariableV2", "Relu"))
    with pytest.raises(SplitError, match="'w' cannot be kept on the host"):
        with_copies(profile, (Split("w", OFFLOAD, 2, ("h",)),))


def test_what_may_differ_is_not_computed_again():
    profile = training_step(2)
    with pytest.raises(SplitError, match="'x' cannot be computed again"):
        with_copies(profile, (again("x", "h0"),))
    with pytest.raises(SplitError, match="no op 'h9'"):
        with_copies(profile, (again("h0", "h9"),))
    with pytest.raises(SplitError, match="no op ''"):
        with_copies(profile, (again("h0", ""),))
    with pytest.raises(SplitError, match="no op 'h0/recomputed'"):  # only a copy is called so
        with_copies(profile, (again("h0", "gradients/h0"), again("h0/recomputed", "h1")))
    with pytest.raises(SplitError, match="twice"):
        with_copies(profile, (again("h0", "gradients/h0"), again("h0", "h1")))


def test_what_writes_a_variable_waits_for_the_copies_that_read_it():
    edges = [("w", "h", 8), ("x", "h", 8), ("h", "gradients/h", 8), ("w", "update/w", 8)]
    profile = profile_of(
        dict.fromkeys(("w", "x", "h", "gradients/h", "update/w"), 1.0), edges, persistent={"w": 8}
    )
    types = ("VariableV2", "Const", "Mul", "MulGrad", "ApplyGradientDescent")
    profile = replace(profile, op_types=types)
    made = with_copies(profile, (again("h", "gradients/h"),))
    pairs = {(made.op_names[a], made.op_names[b]) for a, _, b, _ in made.edges.tolist()}
    assert ("h/recomputed", "update/w") in pairs


def test_an_update_that_comes_before_a_copy_of_what_reads_the_variable_moves_behind_it():
    edges = [("w", "h", 8), ("x", "h", 8), ("h", "g", 8), ("w", "update", 8), ("x", "update", 8)]
    times = dict.fromkeys(("w", "x", "h", "update", "last", "g"), 1.0)
    profile = profile_of(times, [*edges, ("h", "last", 8), ("last", "g", 8)], persistent={"w": 8})
    profile = replace(
        profile,
        op_types=("VariableV2", "Const", "Mul", "ApplyGradientDescent", "Relu", "MulGrad"),
        op_passes=("", "", "", "backward", "", "backward"),
    )
    problem = Problem(profile, cluster_of(1))
    base = simulate(problem, Plan(np.zeros(6, int), np.arange(6), "hand", policy="strict"))
    found = simulate_again(Kept(problem), base, [profile.index["h"]])
    assert found is not None
    start_us = dict(zip(found.problem.profile.op_names, found.op_start_us, strict=True))
    assert start_us["update"] > start_us["h/recomputed"]


def linear_orders(problem):
    """Return every order of the ops that the graph allows, as positions."""
    profile = problem.profile
    pairs = list(zip(profile.edge_source.tolist(), profile.edge_op.tolist(), strict=True))
    before = [{a for a, b in pairs if b == op} for op in range(profile.n_ops)]

    def longer(order):
        if len(order) == profile.n_ops:
            yield np.argsort(order)
        for op in set(range(profile.n_ops)).difference(order):
            if before[op].issubset(order):
                yield from longer([*order, op])

    yield from longer([])


def shortest(problem, graph, splits, homes):
    """Return the shortest step that fits: every placement at homes, every order; inf for none."""
    best = np.inf
    for position, device in product(linear_orders(graph), product(*homes)):
        plan = Plan(np.array(device), position, "all", policy="strict", splits=splits)
        found = simulate(problem, plan)
        if found.fits:
            best = min(best, found.makespan_us)
    return best


def brute_force(problem):
    """Return the shortest step that fits: every set of ops, placement and order; inf for none."""
    kept = Kept(problem)
    base = simulate(problem, place(problem, "single").plan)
    ops = np.flatnonzero(kept.can).tolist()
    best = np.inf
    for chosen in chain.from_iterable(combinations(ops, n) for n in range(len(ops) + 1)):
        splits = kept.copied(base, chosen).splits if chosen else ()
        graph = split_problem(problem, splits)
        homes = [range(problem.cluster.n_devices)] * graph.profile.n_ops
        best = min(best, shortest(problem, graph, splits, homes))
    return best


@pytest.mark.parametrize(
    ("n_gpus", "layers", "kept", "capacity"),
    [
        (1, 3, None, 420),
        (1, 3, None, 320),
        (1, 3, [300, 50, 50], 420),
        (1, 3, None, 200),
        (2, 2, [200, 50], 260),
    ],
)
def test_of_a_tiny_model_the_best_set_placement_and_order_are_found(n_gpus, layers, kept, capacity):
    cluster = cluster_of(n_gpus, b0_us=1, b1_us_per_byte=0.1, capacity_bytes=capacity)
    problem = Problem(training_step(layers, kept), cluster)
    best_us = brute_force(problem)
    found = place(problem, METHOD).schedule
    assert found.fits == np.isfinite(best_us)
    if found.fits:
        assert found.makespan_us == pytest.approx(best_us)
    else:  # plans that were not tried may fit, unless h0 alone lacks room
        assert found.plan.nothing_fits == (capacity < 100 + (kept or [100])[0])


def shortest_with_host(problem, recompute):
    """Return the shortest step that fits on a GPU and its host: each way for each tensor."""
    kept = Kept(problem, recompute, offload=True)
    base = simulate(problem, place(problem, "single").plan)
    ways = {
        op: [None]
        + ["again"] * bool(kept.can[op])
        + [each for each in range(problem.profile.n_ops) if kept.can_send[op]]
        for op in range(problem.profile.n_ops)
    }
    best = np.inf
    for chosen in product(*ways.values()):
        done = {op: way for op, way in enumerate(chosen) if way is not None}
        repeated = [op for op, way in done.items() if way == "again"]
        sent = {op: way for op, way in done.items() if way != "again"}
        splits = kept.copied(base, repeated, sent).splits if done else ()
        if len(splits) < len(done):
            continue
        try:
            graph = split_problem(problem, splits)
        except EnplaceError:
            continue
        homes = [[int(name.endswith("/fetched"))] for name in graph.profile.op_names]
        best = min(best, shortest(problem, graph, splits, homes))
    return best


@pytest.mark.parametrize(
    ("layers", "kept", "capacity", "b1_us_per_byte", "recompute"),
    [
        (2, [200, 50], 260, 0.05, False),
        (2, [200, 50], 320, 0.5, True),
        pytest.param(3, None, 320, 0.05, True, marks=pytest.mark.long),
        pytest.param(3, None, 280, 0.1, True, marks=pytest.mark.long),
        pytest.param(3, [300, 50, 50], 390, 0.1, False, marks=pytest.mark.long),
    ],
)
def test_of_a_tiny_model_the_best_way_for_each_tensor_is_found(
    layers, kept, capacity, b1_us_per_byte, recompute
):
    problem = Problem(training_step(layers, kept), with_host(capacity, b1_us_per_byte))
    best_us = shortest_with_host(problem, recompute)
    asked = PlaceOptions(values={"offload": True} if recompute else {})
    found = place(problem, METHOD if recompute else OFFLOADING, options=asked).schedule
    assert found.fits == np.isfinite(best_us)
    if found.fits:
        assert found.makespan_us == pytest.approx(best_us)


@pytest.fixture(scope="module")
def deep():
    """Return a step of 24 layers on a card with half the memory that it needs."""
    problem = Problem(training_step(24), cluster_of(1))
    need = int(place(problem, "single").schedule.peak_bytes.max())
    half = Problem(problem.profile, cluster_of(1, capacity_bytes=need // 2))
    return place(half, METHOD, options=PlaceOptions(stop=Stop(3)))


def test_a_deep_model_fits_half_its_memory_for_at_most_one_more_forward_pass(deep):
    schedule = deep.schedule
    assert schedule.fits
    keeping = 1 + 2 * 24 * 10
    assert keeping < schedule.makespan_us <= keeping + 24 * 10
    copies = [name for name in schedule.problem.profile.op_names if name.endswith("/recomputed")]
    assert len(copies) == len(deep.plan.splits) > 0


def test_a_plan_with_recomputation_survives_files_and_messages(deep, tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, deep)
    found = read_plan(path, Problem(training_step(24), cluster_of(1)))
    assert found.plan.splits == deep.plan.splits
    assert simulate(found.problem, found.plan).makespan_us == deep.schedule.makespan_us
    sent = codecs.plan_from(codecs.plan_message("plan", deep.plan, {}))
    assert sent.splits == deep.plan.splits


@pytest.fixture(scope="module")
def sent():
    """Return a step of 24 layers whose card has a third of the memory that it needs, and a host."""
    problem = Problem(training_step(24), with_host(800))
    return place(problem, OFFLOADING, options=PlaceOptions(stop=Stop(2)))


def test_while_the_link_has_time_keeping_on_the_host_costs_next_to_nothing(sent):
    schedule = sent.schedule
    assert schedule.fits
    assert 1 + 2 * 24 * 10 <= schedule.makespan_us < 1.02 * (1 + 2 * 24 * 10)
    assert all(each.is_offload for each in sent.plan.splits)
    fetches = fetching_ops(schedule.problem.profile, sent.plan.splits)
    assert (sent.plan.device[fetches] == 1).all()


def test_a_plan_that_keeps_on_the_host_survives_files(sent, tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, sent)
    found = read_plan(path, Problem(training_step(24), with_host(800)))
    assert found.plan.splits == sent.plan.splits
    assert simulate(found.problem, found.plan).makespan_us == sent.schedule.makespan_us


def test_without_a_host_the_plan_says_so():
    found = place(Problem(training_step(24), cluster_of(1)), OFFLOADING)
    assert "no host" in found.plan.note
    cpus = cluster_of(0, cpu_lanes=1)
    step = replace(training_step(2), time_us=training_step(2).time_us[:, [0, 0]])
    found = place(Problem(step, cpus), OFFLOADING)
    assert "All devices are CPUs" in found.plan.note
    assert not found.plan.splits


def test_where_everything_fits_nothing_is_computed_again():
    problem = Problem(training_step(24), cluster_of(1))
    assert not place(problem, METHOD, options=PlaceOptions(stop=Stop(1))).plan.splits


def test_every_set_of_a_family_gives_a_plan_without_deadlock():
    problem = Problem(training_step(12), cluster_of(2))
    kept, base = Kept(problem), simulate(problem, place(problem, "heft").plan)
    sets = [*kept.families()]
    assert len(sets) > 10
    for ops in sets:
        assert simulate_again(kept, base, ops) is not None


@pytest.mark.parametrize("n_gpus", [1, 2])
def test_everything_that_is_sent_is_fetched_without_deadlock(n_gpus):
    problem = Problem(training_step(12), with_host(10_000, n_gpus=n_gpus))
    kept, base = Kept(problem, offload=True), simulate(problem, place(problem, "heft").plan)
    sets = [*kept.sets_to_send(base)]
    assert len(sets) > 4
    for ops, ahead in product(sets, AHEAD):
        assert simulate_again(kept, base, kept.views_of(ops), ops, ahead) is not None


def test_recompute_chooses_the_method_for_a_step():
    step, found = training_step(24), {}
    for asked in ({}, {"recompute": True}):
        half = cluster_of(1, capacity_bytes=1300)
        found[bool(asked)] = ep.place(step, half, time_limit_s=2, options=asked)
    assert not found[False].fits
    assert found[True].fits
    assert found[True].plan.method == METHOD
    assert "recomputed ops" in str(found[True])


@pytest.mark.parametrize("recompute", [False, True])
def test_offload_chooses_the_method_for_a_step(recompute):
    asked = {"offload": True} | ({"recompute": True} if recompute else {})
    found = ep.place(training_step(24), with_host(800), time_limit_s=2, options=asked)
    assert found.fits
    assert found.plan.method == (METHOD if recompute else OFFLOADING)
    assert "offloaded ops" in str(found)


def test_a_limit_that_is_long_enough_for_one_plan_of_a_large_graph_gives_one(monkeypatch):
    monkeypatch.setattr(starts, "LARGE", 10)
    problem = Problem(training_step(24), cluster_of(2))
    monkeypatch.setattr(starts, "OP_S", 6.0 / problem.profile.n_ops)
    stop = Stop(10.0, clock=Stopwatch(lambda: 0.0))
    assert place(problem, METHOD, options=PlaceOptions(stop=stop)).schedule.fits


@pytest.mark.parametrize(("layers", "share"), [(4, 0.3), (0, 1.0)])
def test_where_nothing_is_made_again_the_plans_to_begin_from_have_all_the_time(
    monkeypatch, layers, share
):
    limits_s = []

    def find(problem, options):
        limits_s.append(options.stop.limit_s)
        return starts.find_start(problem, options)

    monkeypatch.setattr(with_recompute, "find_start", find)
    monkeypatch.setattr(with_recompute, "_try_all", lambda *_: None)
    problem = Problem(training_step(layers), cluster_of(2))
    stop = Stop(10.0, clock=Stopwatch(lambda: 0.0))
    place(problem, METHOD, options=PlaceOptions(stop=stop, values={"rounds": 1}))
    assert limits_s[0] == share * 10.0
