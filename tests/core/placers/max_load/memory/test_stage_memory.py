"""Stages hold tensors op by op: what is found, what is proven, and what would fit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enplace.errors import ProblemError
from enplace.machine import simulate
from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.memory import least_bytes
from enplace.machine.pipelines.pipeline import samples_that_fill, simulate_pipeline
from enplace.placers import PlaceOptions, Stop, place
from enplace.placers.max_load import improve
from enplace.placers.max_load.memory import in_flight
from enplace.placers.max_load.memory.in_flight import samples_matter
from enplace.placers.max_load.memory.mending import describe_mend
from enplace.placing.candidates import unordered
from enplace.placing.options import load_values
from enplace.values.arrays import inverse
from enplace.values.cluster_variants import THROUGH_HOST, with_gpus
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from problems import as_training, cluster_of, planned_problems, profile_of
from properties import examples

KB = 1000


def stack(n, weights=10, kept=4, passing=0):
    """Return layers that keep something each, and two ops of each that pass on what is freed soon.

    Each layer is an op ``in`` whose output ``out`` frees; the backward pass reads that of ``out``.
    """
    times: dict[str, float] = {}
    edges = []
    for i in range(n):
        times |= {f"{i}/in": 1, f"{i}/out": 1}
        edges.append((f"{i}/in", f"{i}/out", passing))
        if i:
            edges.append((f"{i - 1}/out", f"{i}/in", kept))
    for i in reversed(range(n)):
        times[f"gradients/{i}/in"] = 2
        edges.append((f"{i}/out", f"gradients/{i}/in", kept))
        if i < n - 1:
            edges.append((f"gradients/{i + 1}/in", f"gradients/{i}/in", 1))
    colocation = {name: name.removeprefix("gradients/").split("/")[0] for name in times}
    sizes = {f"{i}/in": weights for i in range(n)}
    return profile_of(times, edges, persistent=sizes, colocation=colocation)


def test_a_stage_need_not_hold_at_once_what_it_frees_meanwhile():
    """All outputs of one GPU take 150 B, but only one of those in passing exists at a time.

    A second GPU would have to receive a large tensor for each sample.
    """
    profile = stack(4, weights=5, kept=4, passing=30)
    problem = Problem(profile, cluster_of(2, b0_us=100.0, capacity_bytes=80))
    plan = place(problem, "max-load-dp").plan
    assert len(set(plan.device.tolist())) == 1
    assert plan.value_us == pytest.approx(16)
    found = simulate_pipeline(problem, plan, "1f1b", 6)
    used = found.peak_bytes[plan.device[0]]
    # Weights and kept outputs of four layers, and in the last forward op what it frees.
    assert used == 4 * 5 + 4 * 4 + 30


def test_what_one_pass_needs_counts_once_however_many_samples_are_in_flight():
    profile = stack(4, weights=5, kept=4, passing=30)
    problem = Problem(profile, cluster_of(4, b0_us=0.0, capacity_bytes=KB))
    device = np.array([int(name.removeprefix("gradients/")[0]) for name in profile.op_names])
    (plan,) = unordered(problem, device, "")
    found = simulate_pipeline(problem, plan, "1f1b", 12)
    assert found.in_flight == (4, 3, 2, 1)
    # The first stage has three samples kept when the fourth goes forward.
    assert found.peak_bytes[0] == 5 + 3 * 4 + 30 + 4


@given(planned=planned_problems(), kind=st.sampled_from(["1f1b", "zb-h1", "gpipe"]))
def test_no_pipeline_holds_less_than_its_ops_surely_do(planned, kind):
    problem, plan = planned[0], replace(planned[1], replicas=())
    problem = as_training(problem)
    try:
        found = simulate_pipeline(problem, plan, kind, 4)
    except ProblemError:
        return
    n_stages = [0] * problem.cluster.n_devices
    for stage in found.stages:
        n_stages[stage.devices[0]] += not stage.backward
    least = np.bincount(plan.device, least_bytes(problem), problem.cluster.n_devices)
    for d, n in enumerate(n_stages):
        if n <= 1:  # what several stages keep need not exist at the same time
            assert least[d] <= found.peak_bytes[d]
    capacity = int(problem.cluster.capacity_bytes.min())
    if not samples_matter(problem, LoadRule()) and found.peak_bytes.max() > capacity:
        assert samples_that_fill(problem, LoadRule()) < max(found.in_flight)


def test_where_no_pipeline_fits_the_answer_says_how_many_gpus_would_do():
    """Four layers and what one sample leaves there take 44 B of the 42 B that each GPU has."""
    profile = stack(8, weights=10, kept=1)
    problem = Problem(profile, cluster_of(2, b0_us=0.0, capacity_bytes=42))
    plan = place(problem, "max-load-dp").plan
    assert "no partition was found that fits" in plan.note
    mend = describe_mend(problem, LoadRule())
    assert mend in plan.note
    number = int(mend.split(" such GPUs")[0].split()[-1])
    larger = replace(problem, cluster=with_gpus(problem.cluster, number))
    values = load_values(LoadRule(recompute="--recompute" in mend))
    found = place(larger, "max-load-dp", options=PlaceOptions(values=values)).plan
    assert "no partition" not in found.note


def test_the_number_of_gpus_that_would_do_is_not_sought_after_the_time_limit():
    problem = Problem(stack(16, kept=1), cluster_of(4, b0_us=0.0, capacity_bytes=42))
    assert describe_mend(problem, LoadRule(), stopped=lambda: True) == ""


def test_no_pace_is_sought_where_the_variables_alone_exceed_the_memory(monkeypatch):
    problem = Problem(stack(4, weights=5), cluster_of(2, b0_us=0.0, capacity_bytes=12))
    monkeypatch.setattr(in_flight, "simulate_pipeline", lambda *_, **__: pytest.fail("in vain"))
    device = np.zeros(problem.profile.n_ops, dtype=np.int64)
    assert in_flight.find_pace_us(problem, device, LoadRule()) == np.inf


def test_a_search_offers_no_pipelines_of_very_many_stages(monkeypatch):
    problem = Problem(stack(12, kept=6, passing=20), cluster_of(2, b0_us=0.0, capacity_bytes=140))
    simulated, find_fullest = [], improve.find_fullest

    def watch(problem, device, *rest):
        simulated.append(device)
        return find_fullest(problem, device, *rest)

    monkeypatch.setattr(improve, "find_fullest", watch)
    monkeypatch.setattr(improve, "MOST_STAGES", 3)  # two of each pass
    place(problem, "max-load-dp", options=PlaceOptions(stop=Stop(3.0)))
    assert len(simulated) == 1  # the plan to begin from


@examples(6)
@given(n=st.integers(1, 4), more=st.integers(0, 3))
def test_gpus_that_are_added_are_like_the_first_one(n, more):
    cluster = cluster_of(n, b0_us=3.0, capacity_bytes=KB)
    found = with_gpus(cluster, n + more, THROUGH_HOST)
    assert len(found.gpus) == n + more
    assert {found.devices[gpu].capacity_bytes for gpu in found.gpus} == {KB}
    added = [gpu for gpu in found.gpus if gpu >= cluster.n_devices]
    if n > 1 and added:
        assert (found.b0_us[added][:, cluster.gpus] == 3.0).all()


@given(planned=planned_problems())
def test_a_pipeline_on_one_gpu_holds_what_a_step_does(planned):
    """Samples follow each other as steps do, so a plan that fits as one is not refused.

    Tensors have memory of their own here: what updates read counts apart in a pipeline.
    """
    profile = planned[0].profile
    n, order = profile.n_ops, profile.topological_order
    scopes = np.full(n, "", dtype=object)
    scopes[order[n // 2 :]], scopes[order[-2:]] = "gradients", "update"
    profile = replace(
        profile,
        scopes=tuple(scopes.tolist()),
        op_kinds=("",) * n,
        time_us=np.ones_like(profile.time_us),
        tensor_base=np.full(profile.n_tensors, -1),
    )
    problem = Problem(profile, cluster_of(1, capacity_bytes=KB * KB))
    # A stage has all ops of a pass, so the step runs them in that order, too.
    position = inverse(np.lexsort((inverse(order), backward_ops(problem))))
    plan = Plan(np.zeros(n, dtype=np.int64), position, "drawn", policy="strict")
    try:
        found = simulate_pipeline(problem, plan, "1f1b", 3)
    except ProblemError:
        return
    assert found.peak_bytes[0] == simulate(problem, plan).peak_bytes[0]
