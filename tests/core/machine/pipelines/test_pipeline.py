"""Simulated pipelines, against the formulas of the schedules and the load of the busiest device."""

from dataclasses import replace
from itertools import pairwise, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enplace.errors import ProblemError
from enplace.machine.op_passes import optimiser_ops, return_ops
from enplace.machine.pipelines.loads import max_load_us, pass_loads_us
from enplace.machine.pipelines.memory import hold_bases
from enplace.machine.pipelines.pipeline import KINDS, simulate_pipeline
from enplace.machine.pipelines.stages import stages_of
from enplace.placers import PlaceOptions, place
from enplace.placing.options import load_values
from enplace.values.load_rule import TRANSFERS, LoadRule
from enplace.values.measurement import Measurement
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL
from problems import as_training, cluster_of, on_own_chips, plan_of, planned_problems, profile_of

MANY = 60


def chain(k, forward_us, backward_us, sent=0):
    """Return k stages on k devices, each with a forward and a backward op."""
    names = [f"f{i}" for i in range(k)] + [f"b{i}" for i in reversed(range(k))]
    times = {name: forward_us if name[0] == "f" else backward_us for name in names}
    edges = [(a, b, sent) for a, b in pairwise(names)]
    profile = profile_of(times, edges)
    profile = replace(profile, measured=Measurement(backward=list(range(k, 2 * k))))
    problem = Problem(profile, cluster_of(k, b0_us=0.0))
    return problem, plan_of(problem, {name: int(name[1:]) for name in names})


@pytest.mark.parametrize(("k", "m"), [(1, 3), (2, 5), (4, 4), (4, 9)])
def test_gpipe_has_the_bubbles_that_its_formula_predicts(k, m):
    found = simulate_pipeline(*chain(k, 3.0, 5.0), "gpipe", m)
    assert found.makespan_us == (m + k - 1) * (3 + 5)
    assert found.in_flight == (m,) * k


@pytest.mark.parametrize(("k", "m"), [(1, 3), (2, 5), (4, 4), (4, 9)])
def test_1f1b_takes_as_long_as_gpipe_with_at_most_k_microbatches(k, m):
    found = simulate_pipeline(*chain(k, 3.0, 3.0), "1f1b", m)
    assert found.makespan_us == (m + k - 1) * (3 + 3)
    assert found.in_flight == tuple(min(m, k - i) for i in range(k))


@pytest.mark.parametrize("m", [1, 8, 500])
def test_gpipe_beats_its_objective_if_passes_of_devices_overlap(m):
    """Device 0 has 1 + 4, device 1 has 5 + 0: device 0 does not wait for device 1."""
    profile = profile_of({"f0": 1, "f1": 5, "b0": 4}, [("f0", "f1", 0), ("f0", "b0", 0)])
    profile = replace(profile, measured=Measurement(backward=[2]))
    problem = Problem(profile, cluster_of(2, b0_us=0.0))
    plan = plan_of(problem, {"f0": 0, "f1": 1, "b0": 0})
    assert max_load_us(problem, plan.device, LoadRule(pipeline="gpipe")) == 9
    found = simulate_pipeline(problem, plan, "gpipe", m)
    assert found.time_per_sample_us == pytest.approx(5)
    assert found.makespan_us == 5 * m + 1


def test_1f1b_alternates_once_the_pipeline_is_full():
    found = simulate_pipeline(*chain(3, 2.0, 4.0), "1f1b", 6)
    first = "".join("FB"[slot.backward] for slot in found.computing[0])
    last = "".join("FB"[slot.backward] for slot in found.computing[2])
    assert first == "FFFBFBFBFBBB"
    assert last == "FBFBFBFBFBFB"


@pytest.mark.parametrize(("kind", "expected"), [("1f1b", 10.0), ("gpipe", 12.0)])
def test_the_time_per_sample_is_the_objective_of_each_schedule(kind, expected):
    """Device 0 has 6 + 4, device 1 has 2 + 6: the sums are at most 10, the passes 6 and 6."""
    times = {"f0": 6, "f1": 2, "b1": 6, "b0": 4}
    edges = [("f0", "f1", 0), ("f1", "b1", 0), ("b1", "b0", 0)]
    profile = replace(profile_of(times, edges), measured=Measurement(backward=[2, 3]))
    problem = Problem(profile, cluster_of(2, b0_us=0.0))
    plan = plan_of(problem, {"f0": 0, "f1": 1, "b1": 1, "b0": 0})
    found = simulate_pipeline(problem, plan, kind, MANY)
    assert found.time_per_sample_us == pytest.approx(expected)
    rule = LoadRule(pipeline=kind)
    assert found.time_per_sample_us == pytest.approx(max_load_us(problem, plan.device, rule))


def test_the_slowest_stage_counts_long_before_it_is_the_last_to_finish():
    """Six stages of 9.9 µs follow each other; the seventh op, of 10 µs, waits for nothing."""
    chained = [f"f{i}" for i in range(6)]
    edges = [(a, b, 0) for a, b in pairwise(chained)]
    profile = profile_of({**dict.fromkeys(chained, 9.9), "slow": 10}, edges)
    problem = Problem(profile, cluster_of(7, b0_us=0.0))
    plan = plan_of(problem, {name: i for i, name in enumerate(profile.op_names)})
    found = simulate_pipeline(problem, plan, "inference", MANY)
    assert found.makespan_us == pytest.approx((6 + MANY - 1) * 9.9)
    assert found.time_per_sample_us == pytest.approx(10)


@given(planned=planned_problems(), transfers=st.sampled_from(TRANSFERS))
def test_inference_takes_the_largest_load_per_sample(planned, transfers):
    """Any placement will do, as the stages of one device alternate."""
    problem, plan = on_own_chips(planned[0]), planned[1]
    rule = LoadRule(transfers)
    found = simulate_pipeline(problem, plan, "inference", MANY, rule)
    assert found.time_per_sample_us == pytest.approx(max_load_us(problem, plan.device, rule))


@given(planned=planned_problems(), kind=st.sampled_from(KINDS), cut=st.integers(0, 20))
def test_stages_wait_for_their_inputs_and_their_device(planned, kind, cut):
    problem, plan = planned
    late = problem.profile.topological_order[min(cut, problem.profile.n_ops - 1) :]
    profile = replace(problem.profile, measured=Measurement(backward=sorted(late.tolist())))
    problem = replace(problem, measured_profile=profile)
    found = simulate_pipeline(problem, plan, kind, 7)
    ends = {}
    for slots in [*found.computing, found.transfers]:
        for slot in slots:
            key = slot.microbatch, slot.stage
            ends[key] = max(ends.get(key, 0.0), slot.finish_us)
    for slots in found.computing:
        for slot in slots:
            for before in found.stages[slot.stage].after:
                assert slot.start_us >= ends[slot.microbatch, before] - 1e-9
    for d, slots in enumerate(found.computing):
        mine = [*slots, *(slot for slot in found.transfers if slot.device == d)]
        mine.sort(key=lambda slot: (slot.start_us, slot.finish_us))
        for one, two in pairwise(mine):
            assert two.start_us >= one.finish_us - 1e-9
    assert sum(len(slots) for slots in found.computing) == 7 * len(found.stages)


@given(planned=planned_problems())
def test_the_stages_of_a_device_add_up_to_its_load(planned):
    problem, plan = on_own_chips(planned[0]), planned[1]
    total = np.zeros(problem.cluster.n_devices)
    stages = stages_of(problem, plan)
    for stage in stages:
        total[stage.devices[0]] += stage.in_us[0] + stage.compute_us[0] + stage.out_us[0]
    np.testing.assert_allclose(total, pass_loads_us(problem, plan.device).sum(axis=1), atol=1e-9)
    assert sorted(np.concatenate([stage.ops for stage in stages]).tolist()) == list(
        range(problem.profile.n_ops)
    )


def test_a_noncontiguous_plan_has_several_stages_per_device():
    """With a and c on one device and b on the other there are three stages, as in Fig. 5b."""
    profile = profile_of({"a": 2, "b": 3, "c": 2}, [("a", "b", 1), ("b", "c", 1)])
    problem = Problem(profile, cluster_of(2, b0_us=0.0))
    plan = plan_of(problem, {"a": 0, "b": 1, "c": 0})
    found = simulate_pipeline(problem, plan, "inference", MANY)
    assert [stage.devices for stage in found.stages] == [(0,), (1,), (0,)]
    assert found.time_per_sample_us == pytest.approx(2 + 1 + 1 + 2)
    assert found.makespan_us < MANY * 6 + 20


def test_logical_gpus_of_one_chip_compute_one_after_another():
    problem, plan = chain(2, 4.0, 8.0)
    one = tuple(replace(device, chip="one") for device in problem.cluster.devices)
    problem = Problem(problem.profile, replace(problem.cluster, devices=one))
    assert max_load_us(problem, plan.device) == 24
    assert simulate_pipeline(problem, plan, "1f1b", MANY).time_per_sample_us == pytest.approx(24)
    found = place(problem, "max-load-dp").plan
    assert not found.proven
    assert "one chip" in found.note


def test_replicas_on_different_gpus_have_different_times():
    """Every other sample runs on the second GPU, which takes 1,000 µs instead of 100."""
    profile = profile_of({"a": 100}, [])
    problem = Problem(profile, cluster_of(2, speeds=[1.0, 0.1]))
    plan = replace(plan_of(problem, {"a": 0}), replicas=((0, 1),))
    loads_us = pass_loads_us(problem, plan.device, replicas=plan.replicas)
    assert loads_us.tolist() == [[50], [500]]
    found = simulate_pipeline(problem, plan, "inference", MANY)
    assert found.time_per_sample_us == pytest.approx(500)
    assert found.stages[0].compute_us == (100, 1000)
    rule = LoadRule(replicate=True)
    for method in ("max-load-dp", "max-load-dpl"):
        found = place(problem, method, options=PlaceOptions(values=load_values(rule))).plan
        assert (found.value_us, found.replicas) == (100, ())


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
def test_a_pipeline_with_replicas_keeps_all_of_them_busy(kind):
    """Four GPUs run the first stage and one runs the second, which has a quarter of the work."""
    times = {"f0": 16, "f1": 4, "b1": 4, "b0": 16}
    edges = [("f0", "f1", 0), ("f1", "b1", 0), ("b1", "b0", 0)]
    profile = replace(profile_of(times, edges), measured=Measurement(backward=[2, 3]))
    problem = Problem(profile, cluster_of(5, b0_us=0.0))
    plan = plan_of(problem, {"f0": 0, "f1": 4, "b1": 4, "b0": 0})
    found = simulate_pipeline(problem, replace(plan, replicas=((0, 1, 2, 3),)), kind, MANY)
    assert found.time_per_sample_us == pytest.approx(8)


@pytest.mark.parametrize("transfers", TRANSFERS)
def test_gradients_overlap_if_transfers_overlap_with_computing(transfers):
    times = {"f0": 20, "f1": 10, "b1": 10, "b0": 20}
    edges = [("f0", "f1", 10), ("f1", "b1", 0), ("b1", "b0", 10)]
    profile = replace(
        profile_of(times, edges, persistent={"f0": 40}), measured=Measurement(backward=[2, 3])
    )
    problem = Problem(profile, cluster_of(3, b0_us=0.0))
    plan = plan_of(problem, {"f0": 0, "f1": 2, "b1": 2, "b0": 0})
    plan, rule = replace(plan, replicas=((0, 1),)), LoadRule(transfers)
    expected = max_load_us(problem, plan.device, rule, plan.replicas)
    assert expected == (50 if transfers == "sum" else 20)
    found = simulate_pipeline(problem, plan, "1f1b", MANY, rule)
    assert found.time_per_sample_us == pytest.approx(expected)


def test_gpipe_on_logical_gpus_of_one_chip_finishes():
    problem, _ = chain(4, 3.0, 5.0)
    one = tuple(replace(device, chip="one") for device in problem.cluster.devices)
    problem = Problem(problem.profile, replace(problem.cluster, devices=one))
    rule = LoadRule(pipeline="gpipe")
    plan = place(problem, "max-load-dp", options=PlaceOptions(values=load_values(rule))).plan
    assert plan.value_us == 32
    assert "stopped" not in plan.note
    assert not plan.proven


def test_replicas_without_ops_are_left_out():
    problem = Problem(profile_of({"a": 4}, []), cluster_of(3))
    plan = replace(plan_of(problem, {"a": 2}), replicas=((0, 1),))
    found = simulate_pipeline(problem, plan, "inference", MANY)
    assert [stage.devices for stage in found.stages] == [(2,)]
    assert found.time_per_sample_us == pytest.approx(4)


def test_replicas_take_microbatches_in_rotation():
    problem, plan = chain(2, 4.0, 8.0)
    profile = replace(problem.profile, persistent_bytes=np.array([3, 0, 0, 0]))
    problem = Problem(profile, cluster_of(3, b0_us=0.0))
    plan = replace(plan_of(problem, {"f0": 0, "f1": 0, "b1": 0, "b0": 0}), replicas=((0, 1, 2),))
    found = simulate_pipeline(problem, plan, "1f1b", MANY)
    assert [len(slots) for slots in found.computing] == [2 * MANY // 3] * 3
    expected = max_load_us(problem, plan.device, replicas=plan.replicas)
    assert found.time_per_sample_us == pytest.approx(expected, rel=0.1)


def test_a_graph_without_a_backward_pass_is_not_trained():
    problem = Problem(profile_of({"a": 1}), cluster_of(1))
    with pytest.raises(ProblemError, match="no backward pass: simulate it as 'inference'"):
        simulate_pipeline(problem, plan_of(problem, {"a": 0}), "1f1b", 3)


def chunks(k, v):
    """Return a chain of k times v equal stages in which samples visit k devices v times."""
    n = k * v
    names = [f"f{i}" for i in range(n)] + [f"b{i}" for i in reversed(range(n))]
    profile = profile_of(dict.fromkeys(names, 1.0), [(a, b, 0) for a, b in pairwise(names)])
    profile = replace(profile, measured=Measurement(backward=list(range(n, 2 * n))))
    problem = Problem(profile, cluster_of(k, b0_us=0.0))
    return problem, plan_of(problem, {name: int(name[1:]) % k for name in names})


@pytest.mark.parametrize(("k", "v", "m"), [(2, 2, 4), (3, 2, 6), (4, 2, 8), (4, 3, 4)])
def test_interleaved_stages_divide_the_bubble_by_their_number(k, v, m):
    """Megatron: m samples take m + (k - 1) / v times the time of one on a device."""
    found = simulate_pipeline(*chunks(k, v), "interleaved", m)
    assert found.makespan_us == 2 * v * m + 2 * (k - 1)


def with_weights(k, **of_cluster):
    """Return k equal stages that keep a byte of each sample only on the last device."""
    names = [f"f{i}" for i in range(k)] + [f"b{i}" for i in reversed(range(k))]
    edges = [(a, b, int(a[1:] == b[1:])) for a, b in pairwise(names)]
    edges += [(f"b{i}", f"w{i}", 0) for i in range(k)]
    times = dict.fromkeys([*names, *(f"w{i}" for i in range(k))], 1.0)
    profile = replace(profile_of(times, edges), measured=Measurement(backward=range(k, 3 * k)))
    problem = Problem(profile, cluster_of(k, b0_us=0.0, **of_cluster))
    return problem, plan_of(problem, {name: int(name[1:]) for name in times})


def test_gradients_of_weights_wait_only_as_long_as_memory_suffices():
    problem, plan = with_weights(4, capacity_bytes=1)
    found = simulate_pipeline(problem, plan, "zb-h1", 8)
    assert found.in_flight[3] == 2
    assert (found.peak_bytes <= 1).all()
    roomy = simulate_pipeline(*with_weights(4), "zb-h1", 8)
    in_turn = simulate_pipeline(problem, plan, "1f1b", 8)
    assert roomy.makespan_us < found.makespan_us < in_turn.makespan_us


@pytest.mark.parametrize(("k", "m"), [(2, 2), (4, 4), (4, 8), (6, 12)])
def test_zero_bubble_fills_the_end_with_gradients_of_weights(k, m):
    """ZB-H1: with equal parts the bubble is a third of 1F1B's, with at most k samples in flight."""
    problem, plan = with_weights(k)
    found = simulate_pipeline(problem, plan, "zb-h1", m)
    assert found.makespan_us == 3 * m + k - 1
    assert max(found.in_flight) == k
    assert simulate_pipeline(problem, plan, "1f1b", m).makespan_us == 3 * (m + k - 1)


def test_an_odd_number_of_stages_keeps_the_pace_of_the_busiest_device():
    """The second device only runs forward: three stages, and two samples must be in flight."""
    times = {"f0": 2, "f1": 26, "b0": 27}
    profile = profile_of(times, [("f0", "f1", 0), ("f1", "b0", 0)])
    problem = Problem(
        replace(profile, measured=Measurement(backward=[2])), cluster_of(2, b0_us=0.0)
    )
    plan = plan_of(problem, {"f0": 0, "f1": 1, "b0": 0})
    found = simulate_pipeline(problem, plan, "1f1b", MANY)
    assert found.time_per_sample_us == pytest.approx(29)
    assert found.makespan_us == pytest.approx(29 * MANY, rel=0.05)


@given(planned=planned_problems(), cut=st.integers(0, 20), transfers=st.sampled_from(TRANSFERS))
def test_training_keeps_the_pace_of_the_busiest_device(planned, cut, transfers):
    problem, plan = on_own_chips(planned[0]), planned[1]
    late = problem.profile.topological_order[min(cut, problem.profile.n_ops - 1) :]
    profile = replace(problem.profile, measured=Measurement(backward=sorted(late.tolist())))
    problem, rule = replace(problem, measured_profile=profile), LoadRule(transfers)
    load_us = max_load_us(problem, plan.device, rule)
    for kind in ("1f1b", "zb-h1"):
        found = simulate_pipeline(problem, plan, kind, MANY, rule)
        assert found.time_per_sample_us == pytest.approx(load_us)


STAGE = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9))
"""Time forward, time backward, and time of the gradients of weights; there are none if it is 0."""


@given(stages=st.lists(STAGE, min_size=2, max_size=5), m=st.integers(1, 12))
@example(stages=[(4, 4, 0), (1, 3, 0), (2, 1, 4), (2, 2, 0)], m=3)
@example(stages=[(4, 4, 4), (1, 2, 0), (4, 1, 2), (1, 3, 0)], m=8)
def test_zero_bubble_is_never_slower_than_1f1b_and_holds_no_more_samples(stages, m):
    k = len(stages)
    times = {f"f{i}": stages[i][0] for i in range(k)}
    times |= {f"b{i}": stages[i][1] for i in reversed(range(k))}
    edges = [(a, b, 0) for a, b in pairwise(times)]
    weights = [i for i in range(k) if stages[i][2]]
    edges += [(f"b{i}", f"w{i}", 0) for i in weights]
    times |= {f"w{i}": stages[i][2] for i in weights}
    profile = replace(profile_of(times, edges), measured=Measurement(backward=range(k, len(times))))
    problem = Problem(profile, cluster_of(k, b0_us=0.0))
    plan = plan_of(problem, {name: int(name[1:]) for name in times})
    in_turn, found = (simulate_pipeline(problem, plan, kind, m) for kind in ("1f1b", "zb-h1"))
    assert found.makespan_us <= in_turn.makespan_us * (1 + 1e-9)
    assert found.time_per_sample_us <= in_turn.time_per_sample_us * (1 + 1e-9)
    assert max(found.in_flight) <= max(in_turn.in_flight)


def test_a_view_keeps_the_memory_that_it_shows_for_the_backward_pass():
    """v shows the 8 bytes of f until b reads v; where another device reads v, it counts apart."""
    times = {"f": 2, "v": 1, "far": 1, "gradients/far": 1, "gradients/b": 2}
    edges = [("f", "v", 8), ("v", "far", 8), ("far", "gradients/far", 1)]
    edges += [("gradients/far", "gradients/b", 1), ("v", "gradients/b", 8)]
    profile = profile_of(times, edges)
    shared = replace(profile, tensor_base=np.array([-1, 0, -1, -1]))
    peaks = {}
    for far in (0, 1):
        for each in (profile, shared):
            problem = Problem(each, cluster_of())
            plan = plan_of(problem, {name: far * ("far" in name) for name in times})
            found = simulate_pipeline(problem, plan, "1f1b", 3)
            peaks[far, each] = [curve.peak_bytes for curve in found.memory]
        held = hold_bases(Problem(shared, cluster_of()), plan.device).profile
        names = [[held.op_names[op] for op in (a, until)] for a, _, until in held.holds.tolist()]
        assert names == ([] if far else [["f", "far"], ["f", "gradients/b"]])
    assert peaks[1, shared] == peaks[1, profile]
    assert peaks[0, shared][0] < peaks[0, profile][0]


@given(
    planned=planned_problems(),
    kind=st.sampled_from(["1f1b", "zb-h1", "gpipe"]),
    recompute=st.sets(st.integers(0, 3)),
)
def test_memory_is_what_a_count_op_by_op_finds(planned, kind, recompute):
    problem, plan = planned
    again = tuple(d for d in sorted(recompute) if d < problem.cluster.n_devices)
    plan = replace(plan, replicas=(), recompute=again)
    problem = as_training(problem)
    try:
        found = simulate_pipeline(problem, plan, kind, 5)
    except ProblemError:
        return
    slots = [slot for d in range(len(found.memory)) for slot in found.slots_of(d)]
    begin_us = max(each.finish_us for each in [*slots, *found.updates])
    assert all(each.start_us == begin_us for each in found.exchange)
    problem = hold_bases(problem, plan.device)
    is_certain = all(stages_follow_each_other(problem, found))
    for d, curve in enumerate(found.memory):
        for at_us in [float(us) for us in curve.time_us] + [found.makespan_us / 3]:
            here = curve.bytes[np.searchsorted(curve.time_us, at_us, "right") - 1]
            counted = Count(problem, plan, found, d, at_us)
            most = max(counted.bytes_at(step) for step in range(counted.n_steps))
            assert here == most or (here > most and not is_certain)


def stages_follow_each_other(problem, found):
    """Yield for each tensor whether it is known in which stage it is needed for the last time."""
    profile = problem.profile
    stage_of = {op: s for s, stage in enumerate(found.stages) for op in stage.ops.tolist()}
    graph = nx.DiGraph((a, s) for s, stage in enumerate(found.stages) for a in stage.after)
    graph.add_nodes_from(range(len(found.stages)))
    for tensor in range(profile.n_tensors):
        ends = profile.edge_op[profile.edge_tensor == tensor].tolist()
        ends += profile.hold_op[profile.hold_tensor == tensor].tolist()
        numbers = {stage_of[op] for op in ends}
        yield all(numbers <= {s, *nx.ancestors(graph, s)} for s in [max(numbers, default=0)])


def with_updates(found, d):
    """Return what a device computes, its updates as its last work where that takes no time."""
    slots = list(found.computing[d])
    own = [at for at, slot in enumerate(slots) if any(found.stages[slot.stage].update_us)]
    for update in found.updates:
        if update.device == d and slots[own[-1]].finish_us == slots[own[-1]].start_us:
            span = {"start_us": update.start_us, "finish_us": update.finish_us}
            slots[own[-1]] = replace(slots[own[-1]], **span)
    return slots


class Count:
    """The bytes on a device at a time, or while a stage runs, after so many of its ops.

    They are counted tensor by tensor and sample by sample.
    """

    def __init__(self, problem, plan, found, d, at_us):
        self.problem, self.profile, self.plan = problem, problem.profile, plan
        self.found, self.d, self.at_us = found, d, at_us
        computing = [with_updates(found, device) for device in range(len(found.memory))]
        every = [slot for row in computing for slot in row] + list(found.transfers)
        self.slots = {(s.microbatch, s.stage, s.part): s for s in every}
        self.stage_of = {op: s for s, stage in enumerate(found.stages) for op in stage.ops.tolist()}
        self.here = [s for s, stage in enumerate(found.stages) if stage.devices == (d,)]
        back = [s for s in self.here if found.stages[s].backward]
        self.returns = set(plan.device[return_ops(problem)].tolist())
        self.repeats = back[0] if back and d in plan.recompute and d in self.returns else None
        self.running = [slot for slot in computing[d] if slot.start_us <= at_us < slot.finish_us]
        self.steps = []
        if self.running:
            stage = self.running[0].stage
            self.steps = [(op, False) for op in self.in_order(found.stages[stage].ops)]
            if stage == self.repeats:
                ahead = [op for s in self.here if s not in back for op in found.stages[s].ops]
                self.steps = [(op, True) for op in self.in_order(ahead)] + self.steps

    @property
    def n_steps(self):
        return max(1, len(self.steps))

    def in_order(self, ops):
        return sorted((int(op) for op in ops), key=lambda op: self.plan.position[op])

    def runs(self, m, stage):
        return any((slot.microbatch, slot.stage) == (m, stage) for slot in self.running)

    def has_begun(self, m, op, step, again=False):
        stage = self.repeats if again else self.stage_of[op]
        if self.runs(m, stage):
            return self.steps.index((op, again)) <= step
        return self.slots[m, stage, 0].start_us <= self.at_us

    def has_ended(self, m, op, step, again=False):
        stage = self.repeats if again else self.stage_of[op]
        if self.runs(m, stage):
            return self.steps.index((op, again)) < step
        return self.slots[m, stage, 0].finish_us <= self.at_us

    def bytes_at(self, step):
        profile, device, d = self.profile, self.plan.device, self.d
        total = int(profile.persistent_bytes[device == d].sum())
        if self.steps:
            total += int(profile.temporary_bytes[self.steps[step][0]])
        for tensor, op in enumerate(profile.tensor_op.tolist()):
            if profile.tensor_output[tensor] == CONTROL:
                continue
            readers = profile.edge_op[profile.edge_tensor == tensor].tolist()
            there = [reader for reader in readers if device[reader] == d]
            is_home, n_bytes = device[op] == d, int(profile.tensor_bytes[tensor])
            if profile.op_kinds[op] == "variable":
                total += int(profile.held_bytes[tensor]) if is_home else n_bytes * bool(there)
                continue
            updates = np.flatnonzero(optimiser_ops(self.problem)).tolist()
            elsewhere = [reader for reader in readers if device[reader] != device[op]]
            held_until = profile.hold_op[profile.hold_tensor == tensor].tolist()
            is_alone = len(self.returns) < 2 and not elsewhere
            if not is_alone and readers and set(readers) <= set(updates):
                held_until_update, held_until = held_until, []
                if op not in updates or elsewhere or held_until_update:
                    total += self.of_sum(op, tensor, n_bytes, is_home, there, step)
                    continue
            if len(self.returns) > 1:
                held_until = [each for each in held_until if each not in updates]
            for m in range(self.found.n_microbatches):
                if is_home:
                    lives = self.of_maker(m, op, there, elsewhere, held_until, step)
                else:
                    lives = self.of_receiver(m, there, step) if there else False
                is_view = is_home and profile.tensor_base[tensor] >= 0
                total += n_bytes * lives * (not is_view)
        return total

    def of_sum(self, op, tensor, n_bytes, is_home, there, step):
        """The sum stays; each sample's part lives while the op runs that makes it."""
        if is_home:
            is_forward = not self.found.stages[self.stage_of[op]].backward
            runs = [False, True] if is_forward and self.repeats is not None else [False]
            made = [
                self.has_begun(m, op, step, again) and not self.has_ended(m, op, step, again)
                for m, again in product(range(self.found.n_microbatches), runs)
            ]
            return n_bytes * (1 + sum(made))
        exchange = self.found.exchange if self.found.exchange_us > 0 else ()
        in_time = bool(exchange) and exchange[0].start_us <= self.at_us < self.found.makespan_us
        return n_bytes * (in_time and bool(there))

    def of_maker(self, m, op, there, elsewhere, held_until, step):
        """It stays until the last op here that needs it, and until it is sent after its stage."""
        stage = self.stage_of[op]
        last = self.slots.get((m, stage, 2)) or self.slots[m, stage, 0]
        is_sent = bool(elsewhere) and last.finish_us > self.at_us
        readers = {op, *there, *held_until}
        is_forward = not self.found.stages[stage].backward
        if self.repeats is None or not is_forward:
            ended = all(self.has_ended(m, reader, step) for reader in readers)
            return self.has_begun(m, op, step) and (not ended or is_sent)
        readers = {o for o in readers if self.plan.device[o] == self.d}
        back = {o for o in readers if self.found.stages[self.stage_of[o]].backward}
        ended = all(self.has_ended(m, reader, step) for reader in readers - back)
        if self.has_begun(m, op, step) and (not ended or is_sent):
            return True
        ended = all(self.has_ended(m, reader, step) for reader in back)
        ended &= all(self.has_ended(m, reader, step, again=True) for reader in readers - back)
        return self.has_begun(m, op, step, again=True) and not ended

    def of_receiver(self, m, there, step):
        first = min(self.stage_of[reader] for reader in there)
        begin = self.slots.get((m, first, 1)) or self.slots[m, first, 0]
        if begin.start_us > self.at_us:
            return False
        if self.repeats is not None and not self.found.stages[first].backward:
            # Its ops run again, so it stays as long as the sample does.
            return any(self.slots[m, s, 0].finish_us > self.at_us for s in self.here)
        return not all(self.has_ended(m, reader, step) for reader in there)


def tied_weight():
    """Return a weight that both devices read, and whose gradients arise on both."""
    times = {"w": 0, "f0": 2, "f1": 3, "gradients/b1": 4, "gradients/b0": 5, "update/w": 1}
    edges = [
        *[("w", "f0", 60), ("w", "f1", 60), ("f0", "f1", 1), ("f1", "gradients/b1", 1)],
        *[("gradients/b1", "gradients/b0", 1), ("gradients/b0", "update/w", 50)],
    ]
    edges[-1:] = [edges[-1], ("gradients/b1", "update/w", 1), ("w", "update/w", 60)]
    profile = profile_of(times, edges, persistent={"w": 100})
    kinds = ["variable" if name == "w" else "" for name in profile.op_names]
    return replace(profile, op_kinds=tuple(kinds))


def test_a_tied_weight_crosses_once_per_step_and_is_a_copy():
    problem = Problem(tied_weight(), cluster_of(2, b0_us=0.0))
    names = problem.profile.op_names
    plan = plan_of(problem, {name: int("1" in name) for name in names})
    assert max_load_us(problem, plan.device) == 2 + 5 + 1 / 8 + 2  # and two tensors of a byte
    found = simulate_pipeline(problem, plan, "1f1b", 4)
    assert [(each.device, each.n_bytes) for each in found.exchange] == [(0, 60), (1, 60)]
    assert found.exchange_us == 60
    assert found.makespan_us == max(slot.finish_us for slot in found.computing[0]) + 1 + 60
    assert [curve.weights_bytes for curve in found.memory] == [150, 60]  # with the gradients' sum
    assert simulate_pipeline(problem, plan, "inference", 4).exchange == ()


def test_a_table_that_both_devices_read_is_a_copy_that_no_step_refreshes():
    times = {"w": 0, "f0": 2, "f1": 3, "gradients/b1": 4, "gradients/b0": 5}
    edges = [("w", "f0", 60), ("w", "f1", 60), ("f0", "f1", 1), ("f1", "gradients/b1", 1)]
    edges += [("gradients/b1", "gradients/b0", 1)]
    profile = profile_of(times, edges, persistent={"w": 100})
    kinds = ["variable" if name == "w" else "" for name in profile.op_names]
    problem = Problem(replace(profile, op_kinds=tuple(kinds)), cluster_of(2, b0_us=0.0))
    plan = plan_of(problem, {name: int("1" in name) for name in profile.op_names})
    found = simulate_pipeline(problem, plan, "1f1b", 4)
    assert found.exchange == ()
    assert [curve.weights_bytes for curve in found.memory] == [100, 60]
