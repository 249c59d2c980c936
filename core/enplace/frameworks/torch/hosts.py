"""Which processes a pipeline needs on each host, and how a person starts them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from enplace.frameworks.torch.step import LOSS
from enplace.machine.op_passes import backward_ops
from enplace.names.scopes import INPUT
from enplace.values.cluster import Cluster
from enplace.values.device_names import task_of
from enplace.values.plan import Plan
from enplace.values.problem import Problem

_OF_NO_STAGE = (INPUT, LOSS)
"""Scopes that tell no stage: their ops may run where their neighbours do."""

_EARLY = 10
"""Percentage of a device's forward ops before which its first stage is taken to begin."""


def stage_devices(problem: Problem, plan: Plan) -> list[int]:
    """Return the devices that have stages, in the order of their first ones."""
    names = [name.partition("/")[0] for name in problem.profile.op_names]
    forward = np.array([name not in _OF_NO_STAGE for name in names]) & ~backward_ops(problem)
    begins = {
        device: float(np.percentile(plan.position[forward & (plan.device == device)], _EARLY))
        for device in np.unique(plan.device[forward]).tolist()
    }
    return sorted(begins, key=begins.__getitem__)


def host_lines(problem: Problem, plan: Plan, script: str) -> list[str]:
    """Return the command that starts a script as the stages of a plan, for each host."""
    return start_lines(problem.cluster, stage_devices(problem, plan), script)


def start_lines(cluster: Cluster, devices: Sequence[int], script: str) -> list[str]:
    """Return the command that starts a script as a pipeline, for each host."""
    tasks = tasks_of(cluster, devices)
    if len(tasks) == 1:
        return [f"torchrun --nproc-per-node {len(devices)} {script}"]
    at = dict(cluster.hosts).get(tasks[0]) or "HOST:29500"
    address, _, port = at.rpartition(":")
    return [
        f"torchrun --nnodes {len(tasks)} --node-rank {number} --master-addr {address} "
        f"--master-port {port} --nproc-per-node {len(devices_of(cluster, devices, task))} {script}"
        for number, task in enumerate(tasks)
    ]


def tasks_of(cluster: Cluster, devices: Sequence[int]) -> list[str]:
    """Return the hosts of some devices, in their order; one without a name if there is one."""
    return list(dict.fromkeys(task_of(cluster.devices[each].name) for each in sorted(devices)))


def devices_of(cluster: Cluster, devices: Sequence[int], task: str) -> list[int]:
    """Return those of some devices that are on a host, in their order."""
    return [each for each in sorted(devices) if task_of(cluster.devices[each].name) == task]
