"""What runs once per step, such as updates: its share for each sample, and all of it in a step."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.machine import simulate
from enplace.machine.op_passes import work_per_sample_us
from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import fill_pipeline, simulate_pipeline
from enplace.placers.max_load.all_placements import find_loads_us
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.placers.max_load.search.hypergraph import build_hypergraph, time_per_sample_us
from enplace.placers.max_load.table.dp import partition_exactly
from enplace.placers.max_load.table.pruning import shared_work_us
from enplace.placing.candidates import unordered
from enplace.values.load_rule import LoadRule
from enplace.values.problem import THROUGHPUT, Problem
from problems import cluster_of, profile_of
from properties import examples

LAYERS = st.lists(
    st.tuples(*[st.integers(0, 9)] * 2, st.integers(0, 60), st.integers(1, 9)),
    min_size=2,
    max_size=4,
)
"""For each layer: times of its three passes, and bytes that it sends."""

RULES = st.builds(
    LoadRule,
    st.sampled_from(["sum", "overlap"]),
    st.sampled_from(["1f1b", "gpipe"]),
    st.sampled_from([1, 2, 8]),
)


def trained(layers, n_gpus=2):
    """Return layers in a row whose gradients a common norm clips before each is updated."""
    times, edges, near = {"update/norm": 3.0}, [], {}
    for i, (ahead, back, update, sent) in enumerate(layers):
        f, b, u = f"f{i}", f"gradients/b{i}", f"update/u{i}"
        times |= {f: ahead, b: back, u: update}
        edges += [(f, b, sent), (b, "update/norm", sent), ("update/norm", u, 1)]
        near |= {f: f, b: f, u: f}
        if i:
            edges += [(f"f{i - 1}", f, layers[i - 1][3]), (b, f"gradients/b{i - 1}", sent)]
    profile = profile_of(times, edges, colocation=near)
    return Problem(profile, cluster_of(n_gpus, b0_us=0.0, b1_us_per_byte=0.5))


def all_devices(problem):
    """Return every placement; shape (n_placements, n_ops)."""
    n = problem.cluster.n_devices
    return np.array(list(product(range(n), repeat=problem.n_units)))[:, problem.unit]


def test_a_sample_has_its_share_of_updates_and_clipping():
    problem = trained([(1, 2, 40, 1), (3, 4, 80, 1)])
    us = dict(zip(problem.profile.op_names, work_per_sample_us(problem, 8)[:, 0], strict=True))
    assert (us["update/u0"], us["update/u1"]) == (5, 10)
    assert us["update/norm"] == 3 / 8
    assert (us["f1"], us["gradients/b1"]) == (3, 4)


@pytest.mark.parametrize("n", [1, 4, 16])
def test_a_step_on_one_device_runs_the_updates_once(n):
    problem = trained([(1, 2, 40, 1), (3, 4, 80, 1)], n_gpus=1)
    (plan,) = unordered(problem, np.zeros(problem.profile.n_ops, dtype=np.int64), "")
    found = simulate_pipeline(problem, plan, "1f1b", n, LoadRule(microbatches=n))
    assert found.makespan_us == pytest.approx(10 * n + 123)
    assert found.time_per_sample_us == pytest.approx(10 + 123 / n)


UNEQUAL, EQUAL = [(1, 2, 40), (3, 4, 80)], [(5, 10, 20)] * 4


def in_a_row(layers):
    """Return layers without clipping, each on its own device, and links that take no time."""
    times, edges = {}, []
    for i, (ahead, back, update) in enumerate(layers):
        f, b, u = f"f{i}", f"gradients/b{i}", f"update/u{i}"
        times |= {f: ahead, b: back, u: update}
        edges += [(f, b, 1), (b, u, 1)]
        if i:
            edges += [(f"f{i - 1}", f, 1), (b, f"gradients/b{i - 1}", 1)]
    profile = profile_of(times, edges)
    problem = Problem(profile, cluster_of(len(layers), b0_us=0.0, b1_us_per_byte=0.0))
    (plan,) = unordered(problem, np.array([int(name[-1]) for name in profile.op_names]), "")
    return problem, plan


@pytest.mark.parametrize(
    ("layers", "n", "by_hand_us"),
    [
        *[(UNEQUAL, 1, 88), (UNEQUAL, 2, 95), (UNEQUAL, 4, 109), (UNEQUAL, 8, 137)],
        *[(EQUAL, 1, 80), (EQUAL, 2, 95), (EQUAL, 4, 125), (EQUAL, 8, 185)],
    ],
)
def test_devices_update_side_by_side_after_their_last_samples(layers, n, by_hand_us):
    problem, plan = in_a_row(layers)
    found = simulate_pipeline(problem, plan, "1f1b", n, LoadRule(microbatches=n))
    assert found.makespan_us == by_hand_us
    if n == 1:
        assert simulate(problem, plan).makespan_us == by_hand_us
    for update, (*_, us) in zip(found.updates, layers, strict=True):
        last_us = max(slot.finish_us for slot in found.slots_of(update.device))
        assert (update.start_us, update.finish_us) == (last_us, last_us + us)


@pytest.mark.parametrize("kind", ["zb-h1", "zbv", "gpipe", "interleaved"])
def test_no_update_fills_a_gap_between_samples(kind):
    found = simulate_pipeline(*in_a_row(EQUAL), kind, 4, LoadRule(microbatches=4))
    for update in found.updates:
        slots = found.computing[update.device]
        assert update.start_us == max(slot.finish_us for slot in slots)
        assert sum(slot.finish_us - slot.start_us for slot in slots) == 4 * 15
        assert found.computing_us(update.device) == 4 * 15 + 20


def test_a_device_that_only_updates_waits_for_gradients():
    problem, plan = in_a_row(UNEQUAL)
    away = problem.profile.op_names.index("update/u1")
    problem = replace(problem, cluster=cluster_of(3, b0_us=0.0, b1_us_per_byte=0.0))
    device = plan.device.copy()
    device[away] = 2
    (plan,) = unordered(problem, device, "")
    found = simulate_pipeline(problem, plan, "1f1b", 2, LoadRule(microbatches=2))
    starts_us = {each.device: each.start_us for each in found.updates}
    assert starts_us == {0: 1 + 2 * 7 + 2, 2: 1 + 2 * 7 + 2}


def test_no_more_samples_are_in_flight_than_a_step_has():
    problem, plan = in_a_row(EQUAL)
    for n, most in ((1, 1), (2, 2), (8, 4)):
        rule = LoadRule(microbatches=n)
        full = fill_pipeline(problem, replace(plan, objective=THROUGHPUT, load_rule=rule))
        assert max(full.in_flight) == most


@given(LAYERS, RULES)
@examples(15)
def test_all_that_count_loads_agree(layers, rule):
    problem = trained(layers)
    graph, every = build_hypergraph(problem, rule), all_devices(problem)
    loads_us = find_loads_us(problem, every, rule)
    for device, load_us in zip(every, loads_us.tolist(), strict=True):
        of_unit = np.zeros(problem.n_units, dtype=np.int64)
        of_unit[problem.unit] = device
        assert max_load_us(problem, device, rule) == pytest.approx(load_us)
        assert time_per_sample_us(graph, of_unit) == pytest.approx(load_us)
    assert shared_work_us(problem, rule) <= loads_us.min() + 1e-9


@given(LAYERS, RULES)
@examples(15)
def test_no_contiguous_placement_has_a_lower_load_than_the_table_finds(layers, rule):
    problem = trained(layers)
    found = partition_exactly(problem, rule)
    best_us = min(
        max_load_us(problem, device, rule)
        for device in all_devices(problem)
        if is_contiguous(problem, device)
    )
    assert found.optimal
    assert found.load_us == pytest.approx(best_us)
    assert found.bound_us <= best_us + 1e-9


@given(LAYERS, st.sampled_from(["1f1b", "zb-h1"]), st.sampled_from([2, 8]))
@examples(10)
def test_a_full_pipeline_takes_its_load_per_sample(layers, kind, n):
    problem, rule = trained(layers), LoadRule(pipeline=kind, microbatches=n)
    device = partition_exactly(problem, rule).device
    (plan,) = unordered(problem, device, "")
    found = simulate_pipeline(problem, plan, kind, n, rule)
    assert found.time_per_sample_us == pytest.approx(max_load_us(problem, device, rule))
