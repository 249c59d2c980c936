"""The load of each device of a pipeline (Tarnawski et al. 2020, sections 3 and 5.3, appendix C).

An accelerator computes, brings in every tensor that it consumes but does not make, once, and sends
out every tensor that it makes and others consume, once. A CPU computes only: tensors lie in its
memory. How these parts and the two passes of training count together, a :class:`LoadRule` says.

Nothing here is shared with what searches for placements, so that it can check all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numba import njit
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from enplace.names import passes
from enplace.text import host_of
from enplace.values.cluster import Cluster
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import CONTROL, FloatArray, IntArray, Profile

COMPUTE, IN, OUT = 0, 1, 2
"""Parts of a load."""

FORWARD, BACKWARD = 0, 1
"""The passes."""


def backward_ops(problem: Problem) -> BoolArray:
    """Ops of the backward pass; shape (n_ops,).

    Those that the input names, or else those whose scopes say so, and all that depends on them: no
    forward op waits for a backward one.
    """
    return _with_followers(problem.profile, passes.named_backward(problem.profile))


def optimiser_ops(problem: Problem) -> BoolArray:
    """Ops that make new weights of the gradients, from clipping to the update; shape (n_ops,).

    They are not on the way of a sample through the pipeline: no other op waits for them within a
    step. The inputs of 2020, which say what is backward, have none.
    """
    profile = problem.profile
    if profile.measured.backward is not None:
        return np.zeros(profile.n_ops, dtype=bool)
    return backward_ops(problem) & ~passes.in_pass(profile, passes.BACKWARD)


def _with_followers(profile: Profile, ops: BoolArray) -> BoolArray:
    """Some ops and all that depend on them; shape (n_ops,)."""
    found = ops.copy()
    at = np.argsort(profile.topological_order)[profile.edge_source]
    edges = np.argsort(at, kind="stable")
    push_on(profile.edge_source[edges], profile.edge_op[edges], found)
    return found


@njit(cache=True, nogil=True)
def push_on(
    source: IntArray, target: IntArray, value: IntArray | BoolArray
) -> None:  # pragma: no cover - compiled
    """Raise values until none falls along an edge; edges by the topological order of an end."""
    for edge in range(len(source)):
        value[target[edge]] = max(value[target[edge]], value[source[edge]])


def send_us(problem: Problem) -> FloatArray:
    """Time to move each tensor between a device and the host's memory; (n_tensors, n_devices).

    An accelerator sends it to the CPU that gets it soonest; on a machine without one, to the
    accelerator that gets it soonest. Tensors of CPUs lie there already: 0.
    """
    cluster = problem.cluster
    us = np.zeros((problem.profile.n_tensors, cluster.n_devices))
    for gpu in cluster.gpus:
        ends = [device for device in cluster.cpus or cluster.gpus if device != gpu]
        us[:, gpu] = _soonest_us(problem, [(gpu, end) for end in ends])
    return us


def network_us(problem: Problem) -> FloatArray:
    """Time to move each tensor between a machine and any other; shape (n_tensors, n_machines).

    As soon as between any two of their accelerators. 0 if there is one machine.
    """
    machine = machine_of(problem.cluster)
    gpus = np.array(problem.cluster.gpus, dtype=np.int64)
    us = np.zeros((problem.profile.n_tensors, int(machine.max()) + 1))
    for m in range(us.shape[1]):
        here = machine[gpus] == m
        us[:, m] = _soonest_us(problem, list(product(gpus[here].tolist(), gpus[~here].tolist())))
    return us


def _soonest_us(problem: Problem, links: Sequence[tuple[int, int]]) -> FloatArray:
    """Time to move each tensor by the best of some links; shape (n_tensors,), 0 without any."""
    tensors = np.zeros(problem.profile.n_tensors)
    return np.min([_tensor_us(problem, *link) for link in links], axis=0) if links else tensors


def _megabyte_us(cluster: Cluster) -> FloatArray:
    """Time to move a megabyte between devices, in the slower direction; (n_devices, n_devices)."""
    cost_us = cluster.b0_us + 1e6 * cluster.b1_us_per_byte
    slower: FloatArray = np.maximum(cost_us, cost_us.T)
    return slower


def _tensor_us(problem: Problem, a: int, b: int) -> FloatArray:
    """Time to move each tensor between two devices, in the slower direction; (n_tensors,)."""
    cluster, profile = problem.cluster, problem.profile
    there, back = (
        cluster.b0_us[link] + cluster.b1_us_per_byte[link] * profile.tensor_bytes
        for link in ((a, b), (b, a))
    )
    return np.where(profile.tensor_output == CONTROL, 0.0, np.maximum(there, back))


SAME_MACHINE = 2.0
"""Links of one machine move a megabyte so many times faster than those between machines."""


def machine_of(cluster: Cluster) -> IntArray:
    """Number of the machine of each device; shape (n_devices,).

    Devices of several hosts are named after these (``/job:worker/task:0/...``). Otherwise links
    tell which devices share a machine, for a cluster file does not say it. The slowest link between
    accelerators is one of a network if others are :data:`SAME_MACHINE` times faster;
    accelerators with no such slow link between them are one machine. CPUs are dealt out in order.
    """
    gpus, machine = cluster.gpus, np.zeros(cluster.n_devices, dtype=np.int64)
    hosts = [host_of(device.name) for device in cluster.devices]
    if all(hosts):
        of_device: IntArray = np.unique(hosts, return_inverse=True)[1]
        return of_device
    between = _megabyte_us(cluster)[np.ix_(gpus, gpus)]
    near = (between * SAME_MACHINE <= between.max()) & ~np.eye(len(gpus), dtype=bool)
    if near.any():
        n, machine[gpus] = connected_components(coo_array(near), directed=False)
        machine[cluster.cpus] = np.arange(len(cluster.cpus)) * n // max(len(cluster.cpus), 1)
    return machine


def has_one_link(cluster: Cluster, rule: LoadRule = USUAL) -> bool:
    """Whether what a tensor costs an accelerator does not depend on where it comes from or goes.

    So it is in the paper, where all of them are sent through the host's memory; and on machines
    without a CPU, if the links between accelerators do not differ. With two levels, those between
    machines count apart, and each machine's quickest to all others must not differ. A host of
    several CPUs has one memory if an accelerator's links to them are alike.
    """
    links = np.stack([cluster.b0_us, cluster.b1_us_per_byte], axis=-1)
    links = np.maximum(links, links.swapaxes(0, 1))
    machine = machine_of(cluster)

    def many(gpu: int) -> bool:
        ends = [
            end
            for end in cluster.cpus or cluster.gpus
            if end != gpu and (machine[end] == machine[gpu] or not rule.two_level)
        ]
        return len({tuple(links[gpu, end].tolist()) for end in ends}) > 1

    def many_networks(one: int) -> bool:
        here = [gpu for gpu in cluster.gpus if machine[gpu] == one]
        best = [
            min(tuple(links[a, b].tolist()) for a in here for b in cluster.gpus if machine[b] == m)
            for m in set(machine[cluster.gpus].tolist()) - {one}
        ]
        return len(set(best)) > 1

    networks = set(machine[cluster.gpus].tolist()) if rule.two_level else set()
    return not any(map(many, cluster.gpus)) and not any(map(many_networks, networks))


def teams(cluster: Cluster, rule: LoadRule) -> list[list[int]]:
    """Accelerators that may take turns with each other: all, or with two levels, of one machine."""
    machine = machine_of(cluster) * rule.two_level
    return [
        [gpu for gpu in cluster.gpus if machine[gpu] == number]
        for number in np.unique(machine).tolist()
    ]


def sync_us(problem: Problem, group: Sequence[int]) -> FloatArray:
    """Time to move the weights of each op between accelerators that take turns; shape (n_ops,).

    An all-reduce goes on in step, so the slowest link between any two of the group decides. 0 for
    CPUs: weights lie in the host's memory, once for all of them. 0 without a backward pass: then
    weights stay as they are.
    """
    gpus = [device for device in group if device in problem.cluster.gpus]
    if len(gpus) < 2 or not backward_ops(problem).any():
        return np.zeros(problem.profile.n_ops)
    us: FloatArray = (
        _reduce_us_per_byte(problem.cluster, gpus).max() * problem.profile.persistent_bytes
    )
    return us


def _reduce_us_per_byte(cluster: Cluster, gpus: Sequence[int]) -> FloatArray:
    """Time per byte of each link between two of some accelerators."""
    between: FloatArray = cluster.b1_us_per_byte[np.ix_(gpus, gpus)]
    return between[~np.eye(len(gpus), dtype=bool)]


def slowest_sync_us(problem: Problem, rule: LoadRule) -> FloatArray:
    """The same between any that may take turns, the slowest of them; shape (n_ops,)."""
    us: FloatArray = np.max([sync_us(problem, team) for team in teams(problem.cluster, rule)], 0)
    return us


def syncs_alike(cluster: Cluster, rule: LoadRule) -> bool:
    """Whether it makes no difference which accelerators take turns with each other."""
    links = [_reduce_us_per_byte(cluster, team) for team in teams(cluster, rule)]
    return len(np.unique(np.concatenate(links))) < 2


def load_parts_us(problem: Problem, device: IntArray) -> FloatArray:
    """What each device does for a sample; shape (n_devices, 2 passes, 3 parts).

    A tensor that ops of both passes consume is brought in for the forward ones.

    Parameters
    ----------
    device : int array, shape (n_ops,)
        Where each op is; it need not be contiguous.
    """
    parts = _transfer_parts_us(problem, device, send_us(problem))
    of = backward_ops(problem).astype(np.int64)
    work = problem.time_us[np.arange(problem.profile.n_ops), device]
    np.add.at(parts[:, :, COMPUTE], (device, of), work)
    return parts


def network_parts_us(problem: Problem, device: IntArray) -> FloatArray:
    """What the network of each machine does for a sample; shape (n_machines, 2 passes, 3 parts)."""
    machine = machine_of(problem.cluster)
    return _transfer_parts_us(problem, machine[device], network_us(problem))


def _transfer_parts_us(problem: Problem, where: IntArray, cost_us: FloatArray) -> FloatArray:
    """What sending costs each place, as :func:`load_parts_us` has it.

    Parameters
    ----------
    where : int array, shape (n_ops,)
        Place of each op.
    cost_us : float array, shape (n_tensors, n)
        What a tensor that crosses the border of a place costs it.
    """
    profile, n = problem.profile, cost_us.shape[1]
    parts = np.zeros((n, 2, 3))
    of = backward_ops(problem).astype(np.int64)
    home, maker_pass = where[profile.tensor_op], of[profile.tensor_op]
    tensor, reader = profile.edge_tensor, where[profile.edge_op]
    crossing = home[tensor] != reader
    out = np.unique(tensor[crossing])
    np.add.at(parts[:, :, OUT], (home[out], maker_pass[out]), cost_us[out, home[out]])
    pair = tensor[crossing] * n + reader[crossing]
    first_pass = np.full(profile.n_tensors * n, BACKWARD)
    np.minimum.at(first_pass, pair, of[profile.edge_op[crossing]])
    pair = np.unique(pair)
    tensor, place = np.divmod(pair, n)
    np.add.at(parts[:, :, IN], (place, first_pass[pair]), cost_us[tensor, place])
    return parts


def combined_us(parts: FloatArray, rule: LoadRule) -> FloatArray:
    """Loads for a rule, from their parts; shape (n, rule.n_passes)."""
    load = np.zeros((len(parts), rule.n_passes, rule.n_resources))
    for of in (FORWARD, BACKWARD):
        for part in (COMPUTE, IN, OUT):
            load[:, rule.pass_number(of), rule.resource(part)] += parts[:, of, part]
    largest: FloatArray = load.max(axis=2)
    return largest


def shared_parts_us(
    problem: Problem, device: IntArray, replicas: Sequence[Sequence[int]] = ()
) -> FloatArray:
    """The same where devices take turns with samples; shape (n_devices, 2 passes, 3 parts).

    Each does its share of the samples, as fast as it is and over its own link; the all-reduce is
    not in it.

    Parameters
    ----------
    replicas : sequence of sequences of int
        Devices that take turns; the ops of each are placed on the first of them.
    """
    parts = load_parts_us(problem, device)
    for group in replicas:
        for copy in group[1:]:
            there = np.where(device == group[0], copy, device)
            parts[copy] = load_parts_us(problem, there)[copy]
        parts[list(group)] /= len(group)
    return parts


def all_reduce_us(problem: Problem, device: IntArray, group: Sequence[int]) -> float:
    """What exchanging gradients takes, for each sample, devices that take turns (appendix C.2)."""
    n = len(group)
    return float((n - 1) / n * sync_us(problem, group)[device == group[0]].sum())


def pass_loads_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule = USUAL,
    replicas: Sequence[Sequence[int]] = (),
) -> FloatArray:
    """Load of each device in each pass that counts apart; shape (n_devices, rule.n_passes).

    The last pass ends with the all-reduce of devices that take turns. Logical devices of one chip
    compute one after another, so each of them has what all of them compute.
    """
    parts = shared_parts_us(problem, device, replicas)
    busy = parts.any(axis=(1, 2))
    owner = problem.cluster.lane_owner
    on_chip = np.zeros((len(parts), 2))
    np.add.at(on_chip, owner, parts[:, :, COMPUTE])
    parts[busy, :, COMPUTE] = on_chip[owner[busy]]
    load = combined_us(parts, rule)
    for group in map(list, replicas):
        reduce_us = all_reduce_us(problem, device, group)
        alone = load[group, -1]
        in_all = alone + reduce_us if rule.transfers == "sum" else np.maximum(alone, reduce_us)
        load[group, -1] = in_all
    return load


def device_loads_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule = USUAL,
    replicas: Sequence[Sequence[int]] = (),
) -> FloatArray:
    """Load of each device over all passes; shape (n_devices,)."""
    total: FloatArray = pass_loads_us(problem, device, rule, replicas).sum(axis=1)
    return total


def busiest_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule = USUAL,
    replicas: Sequence[Sequence[int]] = (),
) -> FloatArray:
    """The largest load in each pass that counts apart, networks included; (rule.n_passes,)."""
    load: FloatArray = pass_loads_us(problem, device, rule, replicas).max(axis=0)
    if rule.two_level:
        network = combined_us(network_parts_us(problem, device), rule)
        load = np.maximum(load, network.max(axis=0))
    return load


def max_load_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule = USUAL,
    replicas: Sequence[Sequence[int]] = (),
) -> float:
    """Time per sample of a pipeline: the load of the busiest device, in each pass that counts."""
    return float(busiest_us(problem, device, rule, replicas).sum())
