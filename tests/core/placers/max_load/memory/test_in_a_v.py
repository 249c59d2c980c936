"""Two stages on each device, in a V, against all cuts of small chains."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.pipeline import simulate_pipeline
from enplace.machine.pipelines.stages import all_read_parameters, forward_stages
from enplace.machine.pipelines.v_shape import find_halves
from enplace.placers import PlaceOptions, place
from enplace.placers.max_load.memory.fitting import find_fitting
from enplace.placers.max_load.memory.in_a_v import NEAR, NO_V, NO_V_YET
from enplace.placing.options import load_values
from enplace.readers import read_plan, read_plan_alone
from enplace.values.load_rule import LoadRule
from enplace.values.problem import Problem
from enplace.writers import write_plan
from problems import cluster_of, plan_of, profile_of
from properties import examples

RULE = LoadRule(pipeline="zbv")


def chain(layers, n_gpus, capacity_bytes, hosts=0, frozen=0, updates=0):
    """Return layers with times of both passes and of weights, and bytes that they send and keep.

    A host, if there is one, makes what the first and the last layer read. Some layers are frozen.
    Updates are of variables that no layer reads, as counters of steps are.
    """
    n = range(len(layers))
    names = [f"f{i}" for i in n] + [f"gradients/b{i}" for i in reversed(n[frozen:])]
    times, sent = {}, {}
    for i, (ahead, back, weights, n_bytes) in enumerate(layers):
        times |= {f"f{i}": ahead}
        if i >= frozen:
            times |= {f"gradients/b{i}": back, f"gradients/w{i}": weights}
        sent |= {f"f{i}": n_bytes, f"gradients/b{i}": n_bytes}
    edges = [(a, b, sent[a]) for a, b in pairwise(names)]
    edges += [(f"gradients/b{i}", f"gradients/w{i}", sent[f"f{i}"]) for i in n[frozen:]]
    edges += [(f"f{i - 1}", f"gradients/w{i}", sent[f"f{i - 1}"]) for i in n[max(frozen, 1) :]]
    colocation = {name: name[-1] for name in times}
    edges += [("input", f"f{i}", 0) for i in (0, len(layers) - 1)] * hosts
    cpu = dict.fromkeys(["input"] * hosts, 0.0)
    times |= {f"update/u{i}": 0.001 for i in range(updates)}
    profile = profile_of(times, edges, colocation=colocation, cpu=cpu)
    link = {"b0_us": 0.0, "b1_us_per_byte": 0.1}
    cluster = cluster_of(n_gpus, **link, capacity_bytes=capacity_bytes, cpu_lanes=hosts)
    return Problem(profile, cluster)


def cuts_in_v(problem, n_layers, k):
    """Yield plans with each cut into 2 k stages of a layer or more; the last device has two."""
    for cuts in combinations(range(1, n_layers), 2 * k - 2):
        if cuts[k - 1] - cuts[k - 2] > 1:
            stage = np.searchsorted(cuts, np.arange(n_layers), side="right")
            on = np.minimum(stage, 2 * k - 2 - stage).tolist()
            yield plan_of(problem, {name: on[int(name[-1])] for name in problem.profile.op_names})


def place_in_v(problem, rule=RULE):
    return place(problem, "max-load-dp", options=PlaceOptions(values=load_values(rule))).plan


@pytest.mark.parametrize("method", ["expert", "local-search", "max-load-dp"])
def test_a_plan_for_a_v_that_is_none_says_so(method):
    problem = chain([(2, 2, 2, 1)] * 4, 2, 10**6)
    plan = place(problem, method, options=PlaceOptions("throughput", values=load_values(RULE))).plan
    is_v = find_halves(problem, plan) is not None
    assert is_v == (method == "max-load-dp")
    assert is_v != ("not two stages on each GPU, in a V" in plan.note)


def test_each_stage_in_a_v_trains_something():
    """One of frozen layers alone gives the next no tensor with a gradient, as PyTorch needs it."""
    problem = chain([(9, 9, 9, 1), (6, 6, 6, 1), *[(2, 2, 2, 1)] * 4], 2, 10**6, frozen=1)
    plan = place_in_v(problem)
    assert find_halves(problem, plan) is not None
    device = dict(zip(problem.profile.op_names, plan.device.tolist(), strict=True))
    assert device["f0"] == device["f1"]


def test_updates_of_what_no_layer_reads_are_no_stages():
    """As AdamW has one for each parameter, cuts between them would outnumber those of layers."""
    found = [
        place_in_v(chain([(2, 2, 2, 1)] * 4, 2, 10**6, updates=updates)) for updates in (0, 50)
    ]
    assert NO_V not in found[1].note
    assert found[1].value_us == pytest.approx(found[0].value_us, rel=0.01)


LAYER = st.tuples(*[st.integers(1, 9)] * 3, st.integers(0, 9))


@examples(2)
@given(layers=st.lists(LAYER, min_size=4, max_size=6), capacity=st.integers(30, 150))
def test_no_cut_in_a_v_that_fits_has_a_smaller_load(layers, capacity):
    problem = chain(layers, 2, capacity)
    every = [
        (max_load_us(problem, each.device), each) for each in cuts_in_v(problem, len(layers), 2)
    ]
    least = np.inf
    for load_us, each in sorted(every, key=lambda pair: pair[0]):
        if (simulate_pipeline(problem, each, "zbv", 6).peak_bytes <= capacity).all():
            least = load_us
            break
    plan = place_in_v(problem)
    if np.isinf(least):
        assert NO_V in plan.note
    else:
        assert least * (1 - 1e-9) <= plan.value_us <= least * (1 + NEAR)
        found = simulate_pipeline(problem, plan, "zbv", 6)
        assert [s.devices[0] for s in found.stages if not s.backward] in (
            [0, 1, 1, 0],
            [1, 0, 0, 1],
        )
        assert (found.peak_bytes <= capacity).all()


def test_where_time_runs_out_before_a_v_is_found_the_note_says_so():
    problem, rule = chain([(2, 2, 2, 1)] * 6, 2, 10**6), LoadRule(pipeline="zbv", microbatches=6)
    assert NO_V_YET in find_fitting(problem, rule, stopped=lambda: True).note
    assert NO_V_YET not in find_fitting(problem, rule).note


def test_three_devices_pair_a_heavy_last_layer_with_a_light_first_one():
    layers = [(1, 1, 1, 1), *[(4, 4, 4, 1)] * 4, (7, 7, 7, 1), (3, 3, 3, 1)]
    problem = chain(layers, 3, 10**6)
    least = min(max_load_us(problem, each.device) for each in cuts_in_v(problem, 7, 3))
    assert place_in_v(problem).value_us == pytest.approx(least, rel=NEAR)


def test_a_host_that_makes_the_inputs_is_beside_the_v():
    layers = [(2, 3, 2, 1), *[(4, 4, 4, 1)] * 4, (3, 3, 3, 1)]
    problem, alone = (chain(layers, 2, 10**6, hosts) for hosts in (1, 0))
    plan, usual = place_in_v(problem), place_in_v(alone)
    assert NO_V not in plan.note
    assert plan.value_us == usual.value_us
    found = simulate_pipeline(problem, plan, "zbv", 4)
    assert [s.devices[0] for s in found.stages if not s.backward] == [2, 0, 1, 1, 0]
    assert found.makespan_us == simulate_pipeline(alone, usual, "zbv", 4).makespan_us


def test_interleaved_stages_keep_their_turns_though_one_stage_each_has_less_load():
    problem = chain([(2, 2, 2, 3)] * 8, 2, 10**6)
    apart = place_in_v(problem, LoadRule(microbatches=4))
    plan = place_in_v(problem, LoadRule(pipeline="interleaved", microbatches=4))
    assert plan.value_us > apart.value_us
    found, other = (simulate_pipeline(problem, each, "interleaved", 4) for each in (plan, apart))
    assert [s.devices[0] for s in found.stages if not s.backward] == [0, 1, 0, 1]
    assert found.makespan_us < other.makespan_us


def test_a_host_that_makes_the_inputs_takes_no_turns():
    layers = [(2, 3, 2, 1), *[(4, 4, 4, 1)] * 6, (3, 3, 3, 1)]
    rule, found = LoadRule(pipeline="interleaved", microbatches=4), []
    for hosts in (0, 1):
        problem = chain(layers, 2, 10**6, hosts)
        found.append(simulate_pipeline(problem, place_in_v(problem, rule), "interleaved", 4))
    assert [s.devices[0] for s in found[1].stages if not s.backward] == [2, 0, 1, 0, 1]
    assert found[1].makespan_us == found[0].makespan_us


def test_a_side_head_does_not_count_as_a_last_stage_for_the_loss_alone():
    """The loss belongs to the head that is called last, which an early layer feeds."""
    ahead = [*(f"f{i}" for i in range(6)), "head", "loss"]
    times = dict.fromkeys((f"{name}/v" for name in ahead[:-1]), 0.0) | dict.fromkeys(ahead, 4.0)
    back = [f"gradients/{name}" for name in ahead[::-1]]
    times |= dict.fromkeys(back, 8.0)
    sent = [*pairwise(ahead[:6]), ("f2", "head"), ("f5", "loss"), ("head", "loss")]
    edges = [(a, b, 1) for a, b in [*sent, ("loss", back[0])]]
    edges += [(f"gradients/{b}", f"gradients/{a}", 1) for a, b in sent]
    edges += [(f"{name}/v", name, 0) for name in ahead[:-1]]
    whole = {name: name.removeprefix("gradients/").removesuffix("/v") for name in times}
    colocation = {name: "head" if on == "loss" else on for name, on in whole.items()}
    profile = profile_of(times, edges, colocation=colocation)
    types = tuple("VariableV2" if name.endswith("/v") else "Op" for name in times)
    problem = Problem(replace(profile, op_types=types), cluster_of(2))
    rule = LoadRule(pipeline="interleaved", microbatches=4)
    plan = place_in_v(problem, rule)
    assert all_read_parameters(problem.profile, forward_stages(problem, plan))
    row = [stage.devices[0] for stage in forward_stages(problem, plan)]
    assert row in ([0, 1], [1, 0], [0, 1, 0, 1], [1, 0, 1, 0])


def test_a_plan_file_says_the_stage_of_each_op(tmp_path):
    problem = chain([(2, 2, 2, 1)] * 6, 2, 10**6)
    result = place(problem, "max-load-dp", options=PlaceOptions(values=load_values(RULE)))
    write_plan(tmp_path / "plan.json", result)
    again, alone = (
        read_plan(tmp_path / "plan.json", problem).plan,
        read_plan_alone(tmp_path / "plan.json"),
    )
    by_name = dict(zip(problem.profile.op_names, again.subgraph.tolist(), strict=True))
    assert sum(half for name, half in by_name.items() if name[0] == "f") in (2, 3)
    names = alone.problem.profile.op_names
    assert dict(zip(names, alone.plan.subgraph.tolist(), strict=True)) == by_name
    before, after = (simulate_pipeline(problem, each, "zbv", 4) for each in (result.plan, again))
    assert before.makespan_us == after.makespan_us
