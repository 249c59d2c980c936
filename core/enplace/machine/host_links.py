"""Times of tensors to the host's memory and between machines (Tarnawski et al. 2020).

In the paper all tensors between devices go through the host's memory (section 3); tensors between
machines also occupy each machine's network (appendix C.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from enplace.machine.op_passes import once_per_step
from enplace.values.cluster import Cluster
from enplace.values.components import components
from enplace.values.device_names import task_of
from enplace.values.problem import Problem
from enplace.values.profile import CONTROL, FloatArray, IntArray

SAME_MACHINE = 2.0
"""Links within a machine move a megabyte at least this many times faster than between machines.
"""


def send_us(problem: Problem) -> FloatArray:
    """Return the time of each tensor between a device and the host; (n_tensors, n_devices).

    An accelerator uses its fastest link to a CPU; on a machine without one, its fastest link to
    another accelerator. 0 for CPUs: their tensors are in the host's memory already.
    """
    cluster = problem.cluster
    us = np.zeros((problem.profile.n_tensors, cluster.n_devices))
    for gpu in cluster.gpus:
        ends = [device for device in cluster.cpus or cluster.gpus if device != gpu]
        us[:, gpu] = _fastest_us(problem, [(gpu, end) for end in ends])
    return us


def sample_us(problem: Problem) -> FloatArray:
    """Return the times of :func:`send_us` for each sample of a pipeline; (n_tensors, n_devices).

    0 for what crosses once per step (:func:`~enplace.machine.op_passes.once_per_step`).
    """
    return _per_sample(problem, send_us(problem))


def sample_network_us(problem: Problem) -> FloatArray:
    """Return the times of :func:`network_us` for each sample; (n_tensors, n_machines)."""
    return _per_sample(problem, network_us(problem))


def _per_sample(problem: Problem, cost_us: FloatArray) -> FloatArray:
    cost_us[once_per_step(problem.profile)] = 0.0
    return cost_us


def network_us(problem: Problem) -> FloatArray:
    """Return the time of each tensor between a machine and any other; (n_tensors, n_machines).

    It is the time on the fastest link between their accelerators; 0 if there is one machine.
    """
    machine = machine_of(problem.cluster)
    gpus = np.array(problem.cluster.gpus, dtype=np.int64)
    us = np.zeros((problem.profile.n_tensors, int(machine.max()) + 1))
    for m in range(us.shape[1]):
        here = machine[gpus] == m
        us[:, m] = _fastest_us(problem, list(product(gpus[here].tolist(), gpus[~here].tolist())))
    return us


def _fastest_us(problem: Problem, links: Sequence[tuple[int, int]]) -> FloatArray:
    """Return the time of each tensor on the best of some links; (n_tensors,), 0 without links."""
    tensors = np.zeros(problem.profile.n_tensors)
    return np.min([_tensor_us(problem, *link) for link in links], axis=0) if links else tensors


def _tensor_us(problem: Problem, a: int, b: int) -> FloatArray:
    """Return the time of each tensor between two devices, in the slower direction; (n_tensors,)."""
    cluster, profile = problem.cluster, problem.profile
    there, back = (cluster.transfer_us(profile.tensor_bytes, *link) for link in ((a, b), (b, a)))
    return np.where(profile.tensor_output == CONTROL, 0.0, np.maximum(there, back))


def machine_of(cluster: Cluster) -> IntArray:
    """Find the number of each device's machine; shape (n_devices,).

    Devices of several hosts are named after them (``/job:worker/task:0/...``). If a cluster has no
    such names, the links decide: if some links between accelerators are :data:`SAME_MACHINE` times
    faster than the slowest, the slow links are a network, and accelerators joined by fast links are
    one machine. CPUs are dealt out in order.
    """
    gpus, machine = cluster.gpus, np.zeros(cluster.n_devices, dtype=np.int64)
    tasks = [task_of(device.name) for device in cluster.devices]
    if all(tasks):
        of_device: IntArray = np.unique(tasks, return_inverse=True)[1]
        return of_device
    between = _megabyte_us(cluster)[np.ix_(gpus, gpus)]
    near = (between * SAME_MACHINE <= between.max()) & ~np.eye(len(gpus), dtype=bool)
    if near.any():
        machine[gpus] = components(len(gpus), *near.nonzero())
        n = int(machine.max()) + 1
        machine[cluster.cpus] = np.arange(len(cluster.cpus)) * n // max(len(cluster.cpus), 1)
    return machine


def _megabyte_us(cluster: Cluster) -> FloatArray:
    """Return the time of a megabyte between devices, in the slower direction; square matrix."""
    source, target = np.ogrid[: cluster.n_devices, : cluster.n_devices]
    cost_us = cluster.transfer_us(np.array(10**6), source, target)
    slower: FloatArray = np.maximum(cost_us, cost_us.T)
    return slower


def has_one_link(cluster: Cluster, two_level: bool = False) -> bool:
    """Whether the cost of a tensor for an accelerator depends on nothing but the accelerator.

    This holds in the paper, where all tensors go through the host's memory. It also holds on hosts
    of several CPUs whose links to an accelerator are alike, and on machines without a CPU whose
    accelerators have equal links. With two levels, links between machines count separately, and
    each machine's fastest links to all others must be equal.
    """
    if any(_has_several_links(cluster, gpu, two_level) for gpu in cluster.gpus):
        return False
    machines = set(machine_of(cluster)[cluster.gpus].tolist()) if two_level else set()
    return not any(_has_several_networks(cluster, machine) for machine in machines)


def _slower_links(cluster: Cluster) -> FloatArray:
    """Return both costs of each link in the slower direction; shape (n_devices, n_devices, 2)."""
    links = np.stack([cluster.b0_us, cluster.b1_us_per_byte], axis=-1)
    slower: FloatArray = np.maximum(links, links.swapaxes(0, 1))
    return slower


def _has_several_links(cluster: Cluster, gpu: int, two_level: bool) -> bool:
    """Whether an accelerator's links to the host, or to other accelerators, differ."""
    links, machine = _slower_links(cluster), machine_of(cluster)
    ends = [
        end
        for end in cluster.cpus or cluster.gpus
        if end != gpu and (machine[end] == machine[gpu] or not two_level)
    ]
    return len({tuple(links[gpu, end].tolist()) for end in ends}) > 1


def _has_several_networks(cluster: Cluster, one: int) -> bool:
    """Whether a machine's fastest links to the other machines differ."""
    links, machine = _slower_links(cluster), machine_of(cluster)
    here = [gpu for gpu in cluster.gpus if machine[gpu] == one]
    fastest = [
        min(tuple(links[a, b].tolist()) for a in here for b in cluster.gpus if machine[b] == m)
        for m in set(machine[cluster.gpus].tolist()) - {one}
    ]
    return len(set(fastest)) > 1
