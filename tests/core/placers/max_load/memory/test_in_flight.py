"""Samples in flight and recomputed activations, against all partitions of small chains."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import simulate_pipeline, time_with_room_us
from enplace.machine.pipelines.words import describe_pace
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.max_load.memory.in_flight import find_fullest, find_pace_us
from enplace.placing.candidates import unordered
from enplace.placing.options import load_values
from enplace.readers.plans import complete_plan, read_plan
from enplace.values.load_rule import LoadRule
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.writers import write_plan
from problems import cluster_of, profile_of
from properties import examples

SIZES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3)), min_size=2, max_size=5
)
"""For each layer: time forward, time backward, and bytes of its output."""


def chain_of(layers, capacity, gpus, gradients=None, outputs=None):
    """Return layers in a row, forward and backward, whose outputs are kept for the way back.

    ``gradients`` lists from which layer to which they go, if not from each to the one before, and
    ``outputs`` the same for the way forward.
    """
    n = len(layers)
    forward, backward = [f"f{i}" for i in range(n)], [f"b{i}" for i in range(n)]
    times = {name: layers[i][0] for i, name in enumerate(forward)}
    times |= {name: layers[i][1] for i, name in enumerate(backward)}
    outputs = list(pairwise(range(n))) if outputs is None else outputs
    edges = [(f"f{a}", f"f{b}", layers[a][2]) for a, b in outputs]
    edges += [(f"f{i}", f"b{i}", layers[i][2]) for i in range(n)]
    gradients = [(i + 1, i) for i in range(n - 1)] if gradients is None else gradients
    edges += [(f"b{a}", f"b{b}", 0) for a, b in gradients]
    colocation = {name: name[1:] for name in times}
    profile = profile_of(times, edges, persistent=dict.fromkeys(forward, 4), colocation=colocation)
    profile = replace(profile, measured=Measurement(backward=list(range(n, 2 * n))))
    return Problem(profile, cluster_of(gpus, b0_us=0.0, capacity_bytes=capacity))


def samples_held(loads, period):
    """Return how many samples each stage holds if one follows another after a period.

    A sample stays for the work of all stages from this one on. If a stage would have to work on two
    samples at once, the sample waits for the next period.
    """
    stay, held = 0, []
    for load in reversed(loads):
        if stay % period + load > period * (1 + 1e-9):
            stay = np.ceil(stay / period - 1e-9) * period
        stay += load
        held.append(np.ceil(stay / period - 1e-9))
    return held[::-1]


def samples_held_freely(loads, period):
    """Return how many samples each stage holds at least, if no sample ever waits."""
    stays = np.cumsum(loads[::-1])[::-1]
    return np.ceil(stays / period - 1e-9)


def least_load(layers, capacity, gpus, recompute, held_at=samples_held):
    """Try all cuts of a chain, all choices of stages that recompute, and slower paces."""
    n, best = len(layers), np.inf
    for k in range(1, gpus + 1):
        for cut in combinations(range(1, n), k - 1):
            stages = [range(a, b) for a, b in pairwise([0, *cut, n])]
            for again in product((False, True) if recompute else (False,), repeat=k):
                loads = [stage_load(layers, *each) for each in zip(stages, again, strict=True)]

                def fits(period, stages=stages, again=again, loads=loads):
                    held = held_at(loads, period)
                    each = zip(stages, again, held, strict=True)
                    return max(stage_bytes(layers, *one) for one in each) <= capacity

                best = min(best, least_period(fits, max(loads), sum(loads)))
    return best


def least_period(fits, fast, slow):
    """Return the shortest time between samples at which a pipeline fits; inf if none does."""
    if fits(fast):
        return fast
    if not fits(slow):
        return np.inf
    for _ in range(40):
        middle = (fast + slow) / 2
        fast, slow = (fast, middle) if fits(middle) else (middle, slow)
    return slow


def stage_load(layers, stage, again):
    """Return the load of consecutive layers on one GPU."""
    first, last = stage[0], stage[-1]
    received = layers[first - 1][2] if first else 0
    sent = layers[last][2] if last < len(layers) - 1 else 0
    forward, backward = (sum(layers[i][p] for i in stage) for p in (0, 1))
    return forward * (2 if again else 1) + backward + received + sent


def stage_bytes(layers, stage, again, samples):
    """Return the memory of consecutive layers on one GPU."""
    received = layers[stage[0] - 1][2] if stage[0] else 0
    kept = sum(layers[i][2] for i in stage)
    return 4 * len(stage) + (samples - 1) * (received if again else kept)


@given(
    layers=SIZES,
    capacity=st.integers(20, 60),
    gpus=st.integers(1, 4),
    recompute=st.booleans(),
)
def test_the_best_partition_fits_with_its_samples_in_flight(layers, capacity, gpus, recompute):
    problem = chain_of(layers, capacity, gpus)
    rule = LoadRule(recompute=recompute)
    expected = least_load(layers, capacity, gpus, recompute)
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=load_values(rule))).plan
    found = simulate_pipeline(problem, plan, "1f1b", 16)
    assert found.time_per_sample_us == pytest.approx(plan.value_us)
    if np.isinf(expected):
        assert (found.peak_bytes <= capacity).all() or "one sample" in plan.note
        return
    assert (found.peak_bytes <= capacity).all()
    least = least_load(layers, capacity, gpus, recompute, samples_held_freely)
    assert plan.bound_us <= least * (1 + 1e-9)
    assert least * (1 - 1e-6) <= plan.value_us <= expected * (1 + 1e-6)
    if plan.proven:
        assert plan.value_us == pytest.approx(least)


def test_a_partition_that_does_not_fit_at_its_load_is_slowed_down(tmp_path):
    """The first stage has room for two samples, but holds three if they come at its load."""
    problem = chain_of([(3, 1, 3), (3, 1, 0), (3, 1, 0)], 8, 3)
    result = place(problem, "max-load-dp")
    plan = result.plan
    assert max_load_us(problem, plan.device) == pytest.approx(7)
    assert plan.value_us == pytest.approx(plan.pace_us)
    assert plan.bound_us == pytest.approx((7 + 7 + 4) / 2, rel=1e-5)  # a sample's stay, for two
    assert "more slowly" in plan.note
    write_plan(tmp_path / "plan.json", result)
    again = complete_plan(problem, read_plan(tmp_path / "plan.json", problem))
    found = simulate_pipeline(problem, again, "1f1b", 16)
    assert found.time_per_sample_us == again.value_us == plan.value_us
    assert found.makespan_us >= 15 * plan.value_us
    assert (found.peak_bytes <= 8).all()
    assert describe_pace(problem, again, found).startswith("The plan lets a sample begin every")
    in_haste = simulate_pipeline(problem, replace(plan, pace_us=0.0), "1f1b", 16)
    assert in_haste.peak_bytes[0] > 8


def test_samples_that_wait_for_room_may_be_faster_than_at_an_even_pace():
    """The first stage holds two, which takes 53 for both; at an even pace they would take 64."""
    layers = [(9, 2, 4), (6, 12, 1), (8, 6, 2)]
    problem = chain_of(layers, 9, 3)
    plan = place(problem, "max-load-dp").plan
    assert plan.device.tolist() == [0, 1, 2, 0, 1, 2]
    assert plan.value_us == pytest.approx(26.5)
    assert plan.proven
    found = simulate_pipeline(problem, plan, "1f1b", 40)
    assert found.time_per_sample_us == pytest.approx(26.5)
    assert found.makespan_us == pytest.approx(20 * 53, rel=0.05)
    assert found.in_flight == (2, 2, 1)
    assert (found.peak_bytes <= 9).all()
    ends = [slot.finish_us for slot in found.computing[0] if slot.backward]
    assert [ends[i] - ends[i - 2] for i in range(2, 40)] == pytest.approx([53] * 38)


def test_zero_bubble_may_wait_for_room_too():
    problem = chain_of([(9, 2, 4), (6, 12, 1), (8, 6, 2)], 9, 3)
    values = load_values(LoadRule(pipeline="zb-h1"))
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=values)).plan
    assert plan.value_us == pytest.approx(26.5)
    found = simulate_pipeline(problem, plan, "zb-h1", 40)
    assert found.time_per_sample_us == pytest.approx(26.5)
    assert (found.peak_bytes <= 9).all()


def test_a_schedule_that_cannot_wait_for_room_says_that_1f1b_is_faster():
    problem = chain_of([(9, 2, 4), (6, 12, 1), (8, 6, 2)], 9, 3)
    values = load_values(LoadRule(pipeline="interleaved"))
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=values)).plan
    assert plan.value_us > 26.6
    assert "with --pipeline 1f1b, a sample would take 0.026 ms" in plan.note


def test_samples_that_wait_for_room_may_repeat_what_they_do_after_seven():
    """Seven take 92; those that come before are soon as regular, and do not count."""
    problem = chain_of([(3, 8, 2), (2, 6, 1), (1, 3, 4)], 8, 3)
    (plan,) = unordered(problem, np.array([0, 1, 2] * 2), "")
    assert time_with_room_us(problem, plan, LoadRule(), np.inf) == pytest.approx(92 / 7, rel=1e-9)


def test_the_first_stage_alone_does_not_show_what_samples_repeat():
    """It repeats itself at once, while samples gather behind it that delay it later."""
    layers = [(105, 28, 6), (181, 166, 8), (164, 104, 12), (31, 70, 12), (151, 197, 25)]
    problem = chain_of(layers, 28, 5)
    (plan,) = unordered(problem, np.array([0, 1, 2, 3, 4] * 2), "")
    assert time_with_room_us(problem, plan, LoadRule(), np.inf) == pytest.approx(30778 / 85)


def test_samples_do_not_wait_for_room_beside_a_branch():
    """The second layer reads nothing of the first, so it begins samples before the first does."""
    layers = [(3, 9, 3), (6, 1, 3), (6, 4, 1)]
    problem = chain_of(layers, 6, 3, outputs=[(0, 2), (1, 2)])
    device = np.array([0, 1, 2] * 2)
    pace_us = find_pace_us(problem, device, LoadRule())
    (plan,) = unordered(problem, device, "")
    found = simulate_pipeline(problem, replace(plan, pace_us=pace_us), "1f1b", 16)
    assert found.time_per_sample_us <= pace_us * (1 + 1e-9)
    assert (found.peak_bytes <= 6).all()


def test_what_a_pipeline_needs_counts_even_if_no_backward_op_reads_a_forward_one():
    """The variables take 6 B; beside them, an op makes 2 B and needs 2 B itself."""
    times = {"f0": 6, "f1": 4, "gradients/b1": 3, "gradients/b0": 6}
    edges = [("f0", "f1", 2), ("gradients/b1", "gradients/b0", 0)]
    sizes = {"persistent": {"f0": 2, "f1": 4}, "temporary": {"f0": 2}}
    problem = Problem(profile_of(times, edges, **sizes), cluster_of(1, capacity_bytes=9))
    plan = place(problem, "max-load-dp").plan
    assert simulate_pipeline(problem, plan, "1f1b", 4).peak_bytes == [10]
    assert plan.nothing_fits
    assert not plan.proven


def test_nothing_is_proven_where_samples_do_not_return_through_all_stages():
    """No gradient goes from the third layer to the second, whose stage ends earlier for that."""
    layers = [(4, 9, 3), (4, 9, 0), (7, 6, 3), (1, 5, 1), (4, 1, 2)]
    problem = chain_of(layers, 6, 4, gradients=[(4, 3), (3, 2), (1, 0)])
    variables = np.array([4, 1, 4, 2, 3, 0, 0, 0, 0, 0])
    problem = replace(
        problem, measured_profile=replace(problem.profile, persistent_bytes=variables)
    )
    assert find_pace_us(problem, np.array([0, 0, 1, 1, 2] * 2), LoadRule()) == 0
    assert place(problem, "max-load-dp").plan.bound_us <= 26


@pytest.mark.parametrize("kind", ["1f1b", "zb-h1", "interleaved"])
def test_other_schedules_find_what_fits_with_1f1b(kind):
    problem = chain_of([(3, 7, 3), (1, 2, 3), (2, 6, 3), (1, 9, 1)], 13, 3)
    values = load_values(LoadRule(pipeline=kind))
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=values)).plan
    assert plan.value_us == pytest.approx(21)
    assert (simulate_pipeline(problem, plan, kind, 16).peak_bytes <= 13).all()


def frozen_chain(layers, frozen, capacity):
    """Return a chain of two devices whose first layers have no backward ops."""
    n = len(layers)
    times = {f"f{i}": layers[i][0] for i in range(n)}
    times |= {f"b{i}": layers[i][1] for i in range(frozen, n)}
    edges = [(f"f{i}", f"f{i + 1}", layers[i][2]) for i in range(n - 1)]
    edges += [(f"f{n - 1}", f"b{n - 1}", layers[-1][2])]
    edges += [(f"b{i + 1}", f"b{i}", 1) for i in range(frozen, n - 1)]
    colocation = {name: name[1:] for name in times}
    persistent = {f"f{i}": 4 for i in range(n)}
    profile = profile_of(times, edges, persistent=persistent, colocation=colocation)
    backward = [op for op, name in enumerate(profile.op_names) if name[0] == "b"]
    profile = replace(profile, measured=Measurement(backward=backward))
    return Problem(profile, cluster_of(2, b0_us=0.0, capacity_bytes=capacity))


def least_time_us(problem, rule, choices):
    """Return the least time per sample of some placements, each with devices that recompute.

    A placement whose load is no less needs no simulation.
    """
    loads = [max_load_us(problem, device, rule, (), again) for device, again in choices]
    best = np.inf
    for i in np.argsort(loads):
        if loads[i] >= best:
            break
        device, again = choices[i]
        pace_us = find_pace_us(problem, device, rule, (), again, most_us=best)
        best = min(best, max(loads[i], pace_us))
    return best


def splits_in_two(problem, recompute):
    """Yield a placement for each split of a chain, and devices that recompute."""
    layer = np.array([int(name[1:]) for name in problem.profile.op_names])
    for cut in range(layer.max() + 1):
        for again in [(), (0,), (1,), (0, 1)] if recompute else [()]:
            yield (layer >= cut).astype(np.int64), again


@examples(4)
@given(
    layers=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5)), min_size=2, max_size=5
    ),
    frozen=st.integers(1, 4),
    capacity=st.integers(12, 60),
    kind=st.sampled_from(["gpipe", "1f1b", "zb-h1", "interleaved"]),
    recompute=st.booleans(),
)
@example(
    layers=[(9, 1, 5), (9, 1, 5), (1, 1, 5), (2, 5, 5)],
    frozen=2,
    capacity=50,
    kind="gpipe",
    recompute=True,
)
@example(layers=[(1, 1, 2), (1, 1, 1)], frozen=1, capacity=23, kind="gpipe", recompute=False)
@example(
    layers=[(1, 1, 4), (1, 1, 5), (1, 1, 3)],
    frozen=1,
    capacity=57,
    kind="gpipe",
    recompute=False,
)
@example(
    layers=[(1, 1, 0), (1, 1, 1), (1, 1, 0), (1, 1, 0)],
    frozen=1,
    capacity=16,
    kind="interleaved",
    recompute=False,
)
def test_layers_without_a_backward_pass_hold_one_sample_and_run_once(
    layers, frozen, capacity, kind, recompute
):
    problem = frozen_chain(layers, min(frozen, len(layers) - 1), capacity)
    rule = LoadRule(pipeline=kind, recompute=recompute)
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=load_values(rule))).plan
    assert simulate_pipeline(problem, plan, kind, 16, rule).time_per_sample_us == pytest.approx(
        plan.value_us
    )
    least = least_time_us(
        problem,
        rule,
        [
            (device, again)
            for device, again in splits_in_two(problem, recompute)
            if 4 * np.bincount(device[: len(layers)]).max() <= capacity
        ],
    )
    if np.isfinite(least):
        assert plan.bound_us <= least * (1 + 1e-6)
        assert fullest(problem, plan, rule) <= 1
    if kind == "interleaved":
        assert not plan.proven  # several stages on each device are no split in two
    elif np.isfinite(least):
        assert plan.value_us == pytest.approx(least, rel=1e-5)
    elif fullest(problem, plan, rule) > 1:  # else it is no split in two, but fits
        assert "no partition was found" in plan.note
    if plan.proven:
        assert plan.bound_us == pytest.approx(plan.value_us)


SMALL = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3)), min_size=3, max_size=4
)


def least_that_fits(problem, placements, rule):
    """Return the least time per sample of some placements whose simulated pipeline fits."""
    capacity = problem.cluster.capacity_bytes[0]
    placed = [each for each in placements if 4 * np.bincount(each).max() <= capacity]
    return least_time_us(problem, rule, [(np.array([*each, *each]), ()) for each in placed])


def fullest(problem, plan, rule):
    return find_fullest(problem, plan.device, rule, plan.replicas, plan.recompute, plan.pace_us)


@examples(4)
@given(layers=SMALL, capacity=st.integers(12, 24))
@example(layers=[(1, 4, 0), (1, 6, 0), (1, 1, 2), (1, 2, 0)], capacity=14)
def test_the_integer_program_counts_samples_in_flight(layers, capacity):
    problem, rule = chain_of(layers, capacity, 2), LoadRule()
    expected = least_that_fits(problem, product(range(2), repeat=len(layers)), rule)
    plan = place(problem, "max-load-ip-noncontiguous", options=PlaceOptions(stop=Stop(10))).plan
    if np.isfinite(expected):
        assert fullest(problem, plan, rule) <= 1
        assert plan.bound_us <= expected * (1 + 1e-5)
        assert plan.value_us == pytest.approx(expected)


@pytest.mark.parametrize("method", ["max-load-dp", "max-load-ip", "max-load-ip-noncontiguous"])
def test_only_one_sample_counts_if_asked_to_as_in_the_paper(method):
    problem = chain_of([(3, 1, 3), (3, 1, 0), (3, 1, 0)], 8, 3)
    options = PlaceOptions(stop=Stop(10), values={"in-flight": False})
    plan = place(problem, method, options=options).plan
    assert plan.value_us == pytest.approx(7)
    assert plan.proven


@examples(3)
@given(layers=SIZES, capacity=st.integers(12, 30), network_us=st.sampled_from([1.5, 3.0]))
@example(layers=[(1, 1, 3), (1, 1, 0), (1, 5, 0), (1, 2, 1)], capacity=12, network_us=3.0)
@example(
    layers=[(1, 1, 3), (1, 1, 0), (1, 5, 0), (1, 2, 1), (1, 1, 0)], capacity=12, network_us=1.5
)
def test_two_levels_count_samples_in_flight(layers, capacity, network_us):
    flat = chain_of(layers, capacity, 4)
    links = tuple(
        replace(link, b1_us_per_byte=network_us) if link.source // 2 != link.target // 2 else link
        for link in flat.cluster.links
    )
    problem = Problem(flat.profile, replace(flat.cluster, links=links))
    rule, n = LoadRule(two_level=True), len(layers)
    rows = (
        np.repeat(gpus, np.diff([0, *cut, n])).tolist()
        for k in range(1, 5)
        for cut in combinations(range(1, n), k - 1)
        for gpus in combinations(range(4), k)
    )
    expected = least_that_fits(problem, rows, rule)
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=load_values(rule))).plan
    if np.isfinite(expected):
        assert fullest(problem, plan, rule) <= 1
        assert plan.bound_us <= expected * (1 + 1e-9)
        assert plan.value_us == pytest.approx(expected)


LAYERS = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from([1, 4, 10]),
        st.sampled_from([(1,), (2,), (1, 2)]),
        st.sets(st.integers(0, 2)),
    ),
    min_size=3,
    max_size=4,
)
"""For each layer: time forward, time backward, bytes of its output, how many layers before it its
inputs are, and the same for the tensors that its backward op reads."""


def graph_of(layers, capacity, gpus):
    """Return layers whose backward ops read what any layers shortly before them make."""
    n = len(layers)
    inputs = {(max(i - back, 0), i) for i in range(1, n) for back in layers[i][3]}
    reads = {(i - back, i) for i in range(n) for back in layers[i][4] if i >= back}
    times = {f"f{i}": layers[i][0] for i in range(n)}
    times |= {f"gradients/b{i}": layers[i][1] for i in reversed(range(n))}
    edges = [(f"f{a}", f"f{b}", layers[a][2]) for a, b in inputs]
    edges += [(f"gradients/b{b}", f"gradients/b{a}", 1) for a, b in inputs]
    edges += [(f"f{a}", f"gradients/b{b}", layers[a][2]) for a, b in reads | {(n - 1, n - 1)}]
    persistent = {f"f{i}": 4 for i in range(n)}
    profile = profile_of(
        times, sorted(edges), persistent=persistent, colocation={name: name[-1] for name in times}
    )
    return Problem(
        profile, cluster_of(gpus, b0_us=0.0, b1_us_per_byte=0.1, capacity_bytes=capacity)
    )


def contiguous_placements(problem):
    """Yield the placements of layers in which no two devices wait for each other going forward.

    The devices are alike, so it is enough to name them in the order of the first layer on each.
    """
    profile = problem.profile
    layer = np.array([int(name[-1]) for name in profile.op_names])
    forward = ~backward_ops(problem)
    edge = forward[profile.edge_op]
    for placed in product(range(problem.cluster.n_devices), repeat=layer.max() + 1):
        used = dict.fromkeys(placed)
        if [*used] != [*range(len(used))]:
            continue
        device = np.array(placed)[layer]
        ends = zip(device[profile.edge_source[edge]], device[profile.edge_op[edge]], strict=True)
        if nx.is_directed_acyclic_graph(nx.DiGraph([(a, b) for a, b in ends if a != b])):
            yield device


def least_that_fits_simulated(problem, rule):
    """Return the least time per sample of contiguous placements, with any that recompute."""
    gpus = range(problem.cluster.n_devices)
    choices = [again for k in gpus for again in combinations(gpus, k)] + [tuple(gpus)]
    recomputing = choices if rule.recompute else [()]
    return least_time_us(problem, rule, [*product(contiguous_placements(problem), recomputing)])


@examples(2)
@given(
    layers=LAYERS,
    capacity=st.integers(15, 150),
    gpus=st.integers(2, 3),
    kind=st.sampled_from(["gpipe", "gpipe", "1f1b", "zb-h1"]),
    recompute=st.booleans(),
)
@example(
    layers=[(1, 5, 4, (1,), {1}), (3, 2, 1, (1,), {1}), (1, 1, 1, (1,), {1})],
    capacity=30,
    gpus=2,
    kind="gpipe",
    recompute=False,
)
@example(  # only the last layer apart, and the others run again, fits
    layers=[
        (1, 1, 1, (1,), {0}),
        (1, 1, 10, (1,), set()),
        (1, 1, 1, (1,), set()),
        (1, 1, 4, (1,), set()),
    ],
    capacity=26,
    gpus=2,
    kind="gpipe",
    recompute=True,
)
@example(  # only one GPU with everything fits: it receives nothing
    layers=[
        (7, 6, 10, (1,), {0, 1, 2}),
        (6, 5, 10, (1, 2), {0, 1, 2}),
        (5, 2, 10, (2,), set()),
        (5, 8, 1, (1, 2), {0, 1, 2}),
    ],
    capacity=48,
    gpus=3,
    kind="gpipe",
    recompute=True,
)
def test_a_tensor_counts_where_backward_ops_read_it(layers, capacity, gpus, kind, recompute):
    problem = graph_of(layers, capacity, gpus)
    rule = LoadRule(pipeline=kind, recompute=recompute, microbatches=4)
    least = least_that_fits_simulated(problem, rule)
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=load_values(rule))).plan
    if np.isinf(least):
        assert not plan.proven
        return
    assert fullest(problem, plan, rule) <= 1
    assert plan.bound_us <= least * (1 + 1e-6)
    assert plan.value_us == pytest.approx(least, rel=1e-5)
