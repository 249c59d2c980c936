"""A fake worker: invents the answers of TensorFlow's worker from the job."""

import os
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from enplace.frameworks.measured import MeasuredRun, run_message
from enplace.machine import simulate
from enplace.processes import codecs, wire
from enplace.processes.wire import Message
from enplace.readers.clusters import presets
from enplace.readers.measurement import measurement_from_json
from enplace.values.profile import make_profile
from enplace.writers.clusters import cluster_to_json

OPS = ["encoder/MatMul", "decoder/MatMul", "loss"]
COSTS_US = (100.0, 100.0, 1.0)


def profile_of(details):
    """Return a profile of three ops, whatever the model."""
    n_ops = len(OPS)
    ends = np.array([[a, 0, b, 4] for a, b in pairwise(range(n_ops))]).T
    return make_profile(
        "fake",
        op_names=OPS,
        op_types=["MatMul"] * n_ops,
        scopes=[""] * n_ops,
        time_us=np.array([COSTS_US] * 2).T,
        persistent_bytes=[4] * n_ops,
        temporary_bytes=[0] * n_ops,
        colocation=[""] * n_ops,
        edge_source=ends[0],
        edge_output=ends[1],
        edge_op=ends[2],
        edge_bytes=ends[3],
        measured=measurement_from_json(
            {
                "step_time_us": 201.0,
                "source": details["source"],
                "devices": details["devices"],
                **transfers_of(details["devices"]),
                **({"evaluation": evaluation_of(details)} if details["batch_sizes"] else {}),
            }
        ),
    )


def transfers_of(devices):
    """Return a cluster and its measured links: two of GPUs, none of four logical CPUs."""
    if devices == "cpu:4":
        return {"cluster": cluster_to_json(presets()["cpu-4"]), "links": []}
    costs = {"sizes": [1, 2], "times_us": [1.0, 2.0], "b0_us": 12.0, "b1_us_per_byte": 4e-5}
    pairs = {("GPU:0", "GPU:1"): 0.998, ("GPU:1", "GPU:0"): 0.42}
    links = [{"from": a, "to": b, "r2": r2, **costs} for (a, b), r2 in pairs.items()]
    return {"cluster": cluster_to_json(presets()["pcie-2"]), "links": links}


def evaluation_of(details):
    """Return a useless estimate of times, for a batch that fits one device."""
    exact, poor = {"mean": 0.0, "of_sum": 0.0, "near": 1.0}, {"mean": 0.6, "of_sum": 0.5, "near": 0}
    return {
        "memory": exact,
        "time": poor,
        "batch_size": details["source"]["batch_size"],
        "batch_sizes": details["batch_sizes"],
        "devices_used": 1,
        "step_time_us": 201.0,
    }


def run_of(problem, plan, details, wrong, loss_difference=0.0):
    """Return a run in which everything took twice as long as predicted."""
    schedule = simulate(problem, plan)
    n_ops = problem.profile.n_ops
    return MeasuredRun(
        profile=problem.profile,
        plan=plan,
        cluster=problem.cluster,
        step_times_us=np.full(details["steps"], 2 * schedule.makespan_us),
        op_time_us=2 * (schedule.op_finish_us - schedule.op_start_us),
        op_start_us=2 * schedule.op_start_us,
        op_finish_us=2 * schedule.op_finish_us,
        op_device=plan.device.copy(),
        op_memory_bytes=np.zeros(n_ops, dtype=np.int64),
        ops_checked=n_ops,
        ops_on_planned_device=n_ops - wrong,
        order_violations=wrong,
        loss_difference=float("nan") if wrong else loss_difference,
        weights_difference=0.0,
        stock_step_time_us=400.0,
        predicted_step_time_us=schedule.makespan_us,
        facts={
            "devices": details["devices"],
            "ordered": details["wishes"].get("order", True),
            "allocator_peak_bytes": {"GPU:0": 5 << 20},
            "data_parallel": {"times_us": [500.0]} if details["data_parallel"] else {},
            "data_parallel_wanted": details["data_parallel"],
        },
    )


def main(mode):
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(message):
        out.write(wire.encode(message))
        out.flush()

    values = []
    while "source" not in (job := wire.read(sys.stdin.buffer)).details:
        values.append(job)
    send(Message("progress", {"message": "Starting TensorFlow", "fraction": None}))
    print("the script says hello")
    at = mode.removeprefix("crash at ")
    if mode == "crash" or at in (job.do, Path(job.details["source"]["path"]).stem):
        print("about to go wrong", flush=True)
        os.abort()
    if mode == "hang":
        time.sleep(3600)
    if job.do == "profile":
        profile = profile_of(job.details)
        send(codecs.profile_message(profile, "done"))
    else:
        problem = codecs.problem_from(codecs.profile_from(values[0]), job.details["problem"])
        costs = np.array([COSTS_US] * 2).T
        problem = replace(problem, measured_profile=problem.profile.with_costs(costs))
        differs = 0.5 if mode == "differs" else 0.0
        plan = codecs.plan_from(job)
        is_wrong = mode == "wrong" or (mode == "wrong-alone" and len(set(plan.device)) == 1)
        run = run_of(problem, plan, job.details, int(is_wrong), differs)
        if mode == "modules":
            run = replace(
                run,
                ops_checked=None,
                ops_on_planned_device=None,
                order_violations=None,
                modules_checked=2,
                modules_on_planned_device=min(2, len(set(plan.device))),
                facts={**run.facts, "wishes": job.details["wishes"]},
            )
        send(run_message(run))


if __name__ == "__main__":
    main(*sys.argv[1:])
