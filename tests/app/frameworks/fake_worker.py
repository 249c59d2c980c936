"""A worker without TensorFlow; the name of the model selects its behaviour."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from enplace.frameworks.measured import MeasuredRun, run_message
from enplace.machine import simulate
from enplace.processes import codecs, wire
from enplace.processes.wire import Message
from enplace.readers.measurement import measurement_from_json
from enplace.values.cluster import Cluster, Device, Link
from enplace.values.profile import make_profile
from enplace.writers.clusters import cluster_to_json

SLOWER = 1.25
"""Factor by which every op is slower than its profile says."""

NAMES = ("a", "b", "c")


def main():
    values, job = {}, None
    while job is None:
        message = wire.read(sys.stdin.buffer)
        if "source" in message.details:
            job = message
        else:
            values[message.do] = message
    name = Path(job.details["source"]["path"]).stem
    say(Message("progress", {"message": "Step 1 of 2", "fraction": 0.5}))
    if name in TRICKS:
        TRICKS[name](job)
    elif job.do == "profile":
        say(codecs.profile_message(profile(), "done"))
    else:
        problem = codecs.problem_from(
            codecs.profile_from(values["profile"]), job.details["problem"]
        )
        plan = codecs.plan_from(job)
        measured = run(problem, plan, job.details["steps"])
        if name == "relay":  # slow on several devices, whatever the profile says
            apart = 1 + len(set(plan.device.tolist())) * 10
            steps_us = np.full(job.details["steps"], 1000.0 * apart)
            measured = replace(measured, step_times_us=steps_us)
        if name == "stray":  # slow on several devices; on one, not as planned
            apart = len(set(plan.device.tolist()))
            measured = replace(
                measured,
                step_times_us=np.full(job.details["steps"], 9000.0 * apart),
                ops_on_planned_device=measured.ops_checked if apart > 1 else 1,
            )
        say(run_message(measured))


def say(message):
    sys.stdout.buffer.write(wire.encode(message))
    sys.stdout.buffer.flush()


def write_errors():
    for number in range(60):
        print(f"line {number}", file=sys.stderr)
    sys.stderr.flush()


def crash(job):
    write_errors()
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(job):
    write_errors()
    os._exit(3)


def refuse(job):
    write_errors()
    say(Message("failed", {"why": "mine.py: takes no training step", "kind": "FileError"}))


def babble(job):
    sys.stdout.write("Epoch 1 of 10, loss 0.25\n")
    sys.stdout.flush()
    wait_for_the_end()


def ignore_sigterm(job):
    """Ignore SIGTERM, as does the child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    say(Message("progress", {"message": f"{os.getpid()} {child.pid}", "fraction": None}))
    wait_for_the_end()


def wait_for_the_end():
    """End as every worker does: together with the process that started it."""
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


def crash_once(job):
    """Crash at the first start, and work at the second."""
    mark = Path(job.details["source"]["path"]).with_suffix(".tried")
    if mark.exists():
        say(codecs.profile_message(profile(), "done"))
        return
    mark.touch()
    crash(job)


TRICKS = {
    "crash": crash,
    "leave": leave,
    "refuse": refuse,
    "babble": babble,
    "stubborn": ignore_sigterm,
    "again": crash_once,
}


def cpus():
    devices = tuple(Device(f"CPU:{d}", "cpu", 1 << 30) for d in range(2))
    links = (Link(0, 1, 1.0, 0.0, (0,)), Link(1, 0, 1.0, 0.0, (1,)))
    return Cluster("2 logical CPUs", devices, ("0-1", "1-0"), links)


def profile():
    """Make a chain of three ops of 1 ms each, measured on one of two logical CPUs."""
    return make_profile(
        "mine",
        op_names=NAMES,
        op_types=["MatMul"] * 3,
        scopes=["x", "x", "y"],
        time_us=np.array([[np.nan, 1000.0]] * 3),
        persistent_bytes=[0] * 3,
        temporary_bytes=[0] * 3,
        colocation=[""] * 3,
        edge_source=[0, 1],
        edge_output=[0, 0],
        edge_op=[1, 2],
        edge_bytes=[8, 8],
        measured=measurement_from_json(
            {
                "cluster": cluster_to_json(cpus()),
                "op_devices": dict.fromkeys(NAMES, "CPU:0"),
                "op_deviation": dict(zip(NAMES, (0.01, 0.02, 0.2), strict=True)),
                "step_time_us": 3000.0,
            }
        ),
    )


def run(problem, plan, n_steps):
    """Simulate a run in which every op takes longer than in the profile."""
    schedule = simulate(problem, plan)
    n_ops = problem.profile.n_ops
    return MeasuredRun(
        profile=problem.profile,
        plan=plan,
        cluster=problem.cluster,
        step_times_us=np.full(n_steps, SLOWER * schedule.makespan_us),
        op_time_us=SLOWER * (schedule.op_finish_us - schedule.op_start_us),
        op_start_us=SLOWER * schedule.op_start_us,
        op_finish_us=SLOWER * schedule.op_finish_us,
        op_device=plan.device.copy(),
        op_memory_bytes=np.zeros(n_ops, dtype=np.int64),
        ops_checked=n_ops,
        ops_on_planned_device=n_ops,
        order_violations=0,
        loss_difference=0.0,
        weights_difference=0.0,
        stock_step_time_us=2 * schedule.makespan_us,
        predicted_step_time_us=schedule.makespan_us,
    )


if __name__ == "__main__":
    main()
