import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from enplace.cli.runs import describe_run
from enplace.frameworks.measured import (
    NOT_SEEN,
    SHARED_CORES,
    MeasuredRun,
    run_by_module,
    run_from,
    run_message,
    with_measured_costs,
    with_measured_links,
)
from enplace.machine import simulate
from enplace.machine.op_passes import backward_ops, optimiser_ops
from enplace.processes import wire
from enplace.values.batch import with_batch
from enplace.values.measurement import Measurement
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.splits import Split
from problems import cluster_of, plan_of, profile_of
from torch_layers import layered

NAN = float("nan")


def make_run(**changes):
    profile = profile_of({"a": 10, "b": 20}, [("a", "b", 8)], cpu={"a": 50, "host": 5})
    problem = Problem(profile, cluster_of(2, speeds=[2.0, 1.0], cpu_lanes=1))
    run = MeasuredRun(
        profile,
        plan_of(problem, {"a": 0, "b": 1, "host": 2}, policy="strict"),
        problem.cluster,
        step_times_us=np.array([30.0, 100.0, 32.0]),
        op_time_us=np.array([4.0, 21.0, NAN]),
        op_start_us=np.array([0.0, 5.0, NAN]),
        op_finish_us=np.array([4.0, 26.0, NAN]),
        op_device=np.array([0, 1, NOT_SEEN]),
        op_memory_bytes=np.array([8, 0, 0]),
        ops_checked=2,
        ops_on_planned_device=2,
        order_violations=0,
        loss_difference=NAN,
        weights_difference=0.0,
        stock_step_time_us=28.0,
        predicted_step_time_us=31.0,
        facts={"devices": "gpu:2"},
    )
    return problem, replace(run, **changes)


def test_data_parallelism_is_a_row_or_the_reason_why_not():
    timed = make_run(facts={"data_parallel": {"times_us": [20.0, 24.0, 22.0]}})[1]
    assert timed.replicas_us == 22
    assert timed.verdict.startswith("Data parallelism is faster: it takes 0.022 ms")
    assert "data parallel" in describe_run(timed, "gpu:2")
    refused = make_run(facts={"data_parallel": {"why_not": "it has its own strategy"}})[1]
    why = "Data parallelism was not timed: it has its own strategy."
    assert why in describe_run(refused, "gpu:2")
    assert "Data parallelism" not in refused.verdict


def test_data_parallelism_that_was_not_timed_is_predicted():
    facts = {"data_parallel": {"why_not": "it takes long", "predicted_us": 25.0}}
    text = describe_run(make_run(facts=facts)[1], "gpu:2")
    assert re.search(r"data parallel +0\.025 ms +predicted, not timed", text)
    assert "Data parallelism was not timed: it takes long." in text
    never = {"data_parallel": {**facts["data_parallel"], "why_not": "", "about": "It is even."}}
    assert make_run(facts=never)[1].about_replicas == "It is even."


@pytest.mark.parametrize(
    ("wait_us", "start_us", "shown"), [(8.0, 90.0, (8.0, 24.0)), (40.0, 2.0, (32.0, 0.0))]
)
def test_waiting_and_starting_are_part_of_a_step(wait_us, start_us, shown):
    """A traced step may take longer to do so than the median step does in all."""
    _, run = make_run(facts={"input_us": wait_us, "start_us": start_us})
    assert run.outside == shown


def test_a_run_survives_encoding():
    problem, run = make_run()
    arrived = run_from(wire.take(bytearray(wire.encode(run_message(run)))), problem)
    assert arrived.to_json() == run.to_json()
    assert arrived.profile is problem.profile
    assert arrived.cluster == run.cluster
    assert (arrived.plan.policy, arrived.plan.method) == ("strict", run.plan.method)
    for name in ("op_time_us", "op_start_us", "op_finish_us", "op_device", "step_times_us"):
        np.testing.assert_array_equal(getattr(arrived, name), getattr(run, name))
    np.testing.assert_array_equal(arrived.plan.device, run.plan.device)
    assert np.isnan(arrived.loss_difference)


def test_figures_are_json_and_unknown_ones_are_null():
    _, run = make_run()
    figures = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert figures["loss_difference"] is None
    assert figures["steps"] == 3
    assert figures["step_time_us"] == 32.0
    expected = {"predicted_step_time_us", "ops_checked", "ops_on_planned_device"}
    assert expected < figures.keys()


def test_measured_costs_are_scaled_to_a_device_of_speed_one():
    _, run = make_run()
    profile = with_measured_costs(run)
    np.testing.assert_array_equal(profile.time_us, [[8.0, 50.0], [21.0, NAN], [NAN, 5.0]])
    assert profile.fingerprint == run.profile.fingerprint


def alternating_run(n, b0_us):
    """Return a run of a chain that alternates between devices, with at least b0_us per transfer."""
    names = [f"op{i}" for i in range(n)]
    profile = profile_of(dict.fromkeys(names, 10.0), [(a, b, 100) for a, b in pairwise(names)])
    preset = Problem(profile, cluster_of(2, b0_us=1.0, b1_us_per_byte=0.1))
    plan = plan_of(preset, {name: i % 2 for i, name in enumerate(names)})
    real = replace(preset, cluster=cluster_of(2, b0_us=b0_us, b1_us_per_byte=0.1))
    schedule = simulate(real, plan)
    _, run = make_run(op_time_us=schedule.op_finish_us - schedule.op_start_us)
    return replace(
        run,
        profile=profile,
        plan=plan,
        cluster=preset.cluster,
        op_start_us=schedule.op_start_us.copy(),
        op_finish_us=schedule.op_finish_us.copy(),
        op_device=plan.device.copy(),
    )


def test_a_run_gives_the_cost_of_its_links():
    links = with_measured_links(alternating_run(14, b0_us=40.0)).links
    assert [link.b0_us for link in links] == pytest.approx([40.0, 40.0])
    assert [link.b1_us_per_byte for link in links] == [0.1, 0.1]


def test_a_link_with_few_transfers_keeps_its_cost():
    run = alternating_run(6, b0_us=40.0)
    assert with_measured_links(run).links == run.cluster.links


@pytest.mark.parametrize("changes", [{"op_device": np.array([NOT_SEEN] * 3)}])
def test_ops_that_did_not_run_keep_their_costs(changes):
    _, run = make_run(**changes)
    np.testing.assert_array_equal(with_measured_costs(run).time_us, run.profile.time_us)


def test_calibrated_overheads_are_added_to_the_measured_times():
    _, run = make_run(op_device=np.array([2, 1, NOT_SEEN]))
    measured = Measurement(op_overhead_us=3.0, launch_gap_us=1.5, op_kernels={"b": 2})
    profile = with_measured_costs(replace(run, profile=replace(run.profile, measured=measured)))
    np.testing.assert_array_equal(profile.time_us, [[10.0, 7.0], [24.0, NAN], [NAN, 5.0]])


def on_cpus(devices=("CPU:0", "CPU:1"), **changes):
    """Return a run of two ops on two logical CPUs."""
    profile = profile_of({}, cpu={"a": 10, "b": 20})
    cluster = cluster_of(2)
    made = (replace(d, name=n, kind="cpu") for d, n in zip(cluster.devices, devices, strict=True))
    cluster = replace(cluster, devices=tuple(replace(device, **changes) for device in made))
    plan = plan_of(Problem(profile, cluster), {"a": 0, "b": 1})
    return make_run(profile=profile, plan=plan, cluster=cluster)[1]


def test_logical_cpus_that_run_at_once_have_a_caveat():
    assert "share caches, memory" in on_cpus().caveat
    assert make_run()[1].caveat == ""
    run = on_cpus()
    alone = plan_of(Problem(run.profile, run.cluster), {"a": 1, "b": 1})
    assert replace(run, plan=alone).caveat == ""


def test_logical_cpus_that_take_turns_share_them_with_the_work_of_sending():
    run = on_cpus(chip="CPU")
    assert run.caveat == ""
    run = replace(run, facts={**run.facts, "transfers": 1})
    assert run.caveat.endswith("too short. This step has 1 transfer.")


TASKS = ("/job:worker/task:0", "/job:worker/task:1")


def on_hosts(*addresses):
    """Return a run of two ops on two hosts; without addresses, on two local processes."""
    run = on_cpus([f"{task}/device:CPU:0" for task in TASKS])
    served = tuple(zip(TASKS, addresses, strict=True)) if addresses else ()
    return replace(run, cluster=replace(run.cluster, hosts=served))


@pytest.mark.parametrize("addresses", [(), ("127.0.0.1:2222", "127.0.0.1:2223")])
def test_hosts_on_one_machine_have_a_caveat(addresses):
    assert "processes of one machine" in on_hosts(*addresses).caveat
    assert "Logical CPUs" not in on_hosts(*addresses).caveat


def test_hosts_on_separate_machines_have_no_caveat():
    assert on_hosts("a.lab:2222", "b.lab:2222").caveat == ""


def test_logical_cpus_of_one_host_have_their_caveat():
    run = on_cpus([f"{TASKS[0]}/device:CPU:{number}" for number in range(2)])
    assert "Logical CPUs share caches" in run.caveat


def test_with_splits_the_first_step_decides_whether_the_result_changed():
    _, run = make_run(loss_difference=2e-6, weights_difference=1e-4)
    assert run.changes_result
    split = replace(run, plan=replace(run.plan, splits=(Split("a", "batch", 2),)))
    assert not split.changes_result  # there was nothing to compare
    assert not replace(split, first_step_difference=5e-7).changes_result
    assert replace(split, first_step_difference=2e-6).changes_result


def test_a_model_that_amplifies_rounding_may_amplify_it_with_splits_too():
    _, run = make_run()
    splits = (Split("a", "batch", 2),)
    run = replace(run, plan=replace(run.plan, splits=splits), rounding_difference=3e-6)
    assert not replace(run, first_step_difference=2e-5).changes_result
    assert replace(run, first_step_difference=4e-5).changes_result
    assert replace(run, first_step_difference=2e-3, rounding_difference=0.1).changes_result


def test_drift_is_allowed_only_with_splits():
    _, run = make_run(loss_difference=0.12)
    split = replace(run, plan=replace(run.plan, splits=(Split("a", "batch", 2),)))
    assert run.drift == ""
    assert "differences grow with every step" in split.drift
    assert replace(split, loss_difference=0.0).drift == ""


def test_with_splits_a_run_is_as_planned_if_its_first_step_is():
    _, run = make_run(loss_difference=0.12)
    plan = replace(run.plan, splits=(Split("a", "batch", 2),))
    split = replace(run, plan=plan, first_step_difference=6e-8)
    assert split.as_planned
    text = describe_run(split, "gpu:2")
    assert "first step differs by" in text
    assert "if only the last bits of variables change" in text
    assert "differences grow with every step" in text
    assert "changes no arithmetic" not in text
    wrong = replace(split, first_step_difference=0.01)
    assert not wrong.as_planned
    text = describe_run(wrong, "gpu:2")
    assert "by more than rounding" in text
    assert "random" not in text


def test_separate_hosts_may_differ_by_rounding_only():
    exact = replace(
        on_cpus([f"{task}/device:CPU:0" for task in TASKS]),
        loss_difference=0.0,
        first_step_difference=0.0,
    )
    assert exact.as_planned
    assert exact.drift == ""
    assert "loss differs by" in describe_run(exact, "hosts.json")
    rounded = replace(exact, weights_difference=1.5e-8, first_step_difference=1.5e-8)
    assert rounded.as_planned
    assert "another process" in rounded.drift
    assert (exact.equality, rounded.equality) == ("bit-equal", "first step within 1e-06")
    assert replace(exact, loss_difference=math.nan, weights_difference=math.nan).equality == (
        "not compared"
    )
    assert "first step differs by" in describe_run(rounded, "hosts.json")
    wrong = replace(rounded, first_step_difference=1e-3)
    assert "by more than rounding" in describe_run(wrong, "hosts.json")
    of_one = on_cpus([f"{TASKS[0]}/device:CPU:{number}" for number in range(2)])
    assert replace(of_one, weights_difference=1.5e-8).changes_result


def test_a_run_on_labels_proves_where_ops_run_and_times_nothing():
    facts = {
        "labels": True,
        "placed_by_module": 2,
        "transfers": 4,
        "moved_bytes": 1 << 20,
        "placed_peak_bytes": {"GPU:1": 1 << 21},
        "predicted_peak_bytes": {"GPU:1": 1 << 22},
        "gradients_difference": 0.0,
        "stock_quartiles_us": [20.0, 30.0],
    }
    problem, run = make_run(facts=facts, loss_difference=0.0, weights_difference=0.0)
    text = describe_run(run, "cpu:2")
    assert " ms" not in text.replace("0.031 ms", "")  # only the predicted step
    figures = run_from(run_message(run), problem).to_json()
    timed = {key: each for key, each in figures.items() if key.endswith("_us")}
    assert {key for key, each in timed.items() if each} == {"predicted_step_time_us"}
    assert "stock_quartiles_us" not in figures["facts"]
    assert figures["steps"] == 3
    kept = with_measured_costs(run).time_us
    assert np.array_equal(kept, run.profile.time_us, equal_nan=True)
    assert not run.verdict
    assert "step time" not in text.replace("no step time", "")
    assert "labels of one CPU" in text
    for words in ("1.0 MiB in a step", "where their module is", "gradients differ by"):
        assert words in text
    assert "most held by GPU 1" in text
    assert "predicted 4.0 MiB" in text


def test_a_pipeline_of_processes_has_its_own_tolerance_and_caveat():
    rows = [{"device": "CPU:0", "busy_share": 0.5, "peak_bytes": 1 << 20, "in_flight": 2}]
    of_pipeline = {
        "schedule": "1f1b",
        "microbatches": 4,
        "samples": 8,
        "stages": 2,
        "shared_parameters": 1,
        "own_statistics": [],
        "whole_difference": None,
        "without_dropout": True,
        "ops_elsewhere": 3,
        "devices": rows,
    }
    facts = {"pipeline": of_pipeline, "processes": 2, "tolerance": 1e-5}
    run = replace(on_cpus(), facts=facts, loss_difference=1e-6, first_step_difference=2e-6)
    assert not run.changes_result
    assert replace(run, first_step_difference=2e-5).changes_result
    assert run.caveat == SHARED_CORES
    text = describe_run(run, "cpu:2")
    for words in (
        "2 stages, 1 parameter exchanged",
        "mean time per micro-batch",
        "Dropout is off",
        "\n3 ops",
    ):
        assert words in text


def test_stages_that_were_timed_scale_the_ops_of_their_pass():
    """The second device took twice as long forward, and half as long backward, as predicted."""
    profile = layered(n_layers=2, samples=8)
    problem = Problem(profile, cluster_of(2))
    second = np.array(["1" in scope or "head" in scope for scope in profile.scopes])
    plan = Plan(second.astype(np.int64), np.arange(profile.n_ops), "hand")
    small = with_batch(profile, 1 / 4).time_us[:, 0]
    backward, updates = backward_ops(problem), optimiser_ops(problem)
    took_us = [
        [4 * small[(second == device) & of & ~updates].sum() for of in (~backward, backward)]
        for device in (False, True)
    ]
    took_us[1] = [2 * took_us[1][0], took_us[1][1] / 2]
    rows = [{"device": f"GPU:{d}", "passes_us": us} for d, us in enumerate(took_us)]
    facts = {"pipeline": {"microbatches": 4, "devices": rows}}
    run = run_by_module(problem, plan, np.ones(3), 1.0, (1, 1), facts)
    change = with_measured_costs(run).time_us[:, 0] / np.maximum(profile.time_us[:, 0], 1e-9)
    timed = profile.time_us[:, 0] > 0
    assert change[timed & ~second] == pytest.approx(1)
    assert change[timed & updates] == pytest.approx(1)
    assert change[timed & second & ~backward] == pytest.approx(2)
    assert change[timed & second & backward & ~updates] == pytest.approx(0.5)
