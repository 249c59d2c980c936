"""The load of each device of a pipeline (Tarnawski et al. 2020, sections 3 and 5.3, appendix C).

An accelerator computes; it receives every tensor that it consumes but does not make, once; and it
sends every tensor that it makes and others consume, once. A CPU only computes: its tensors are in
the host's memory already. A :class:`~enplace.values.load_rule.LoadRule` defines how these parts and
the two passes of training add up. What runs once per step counts with its share for each sample.

Searches for placements use none of these functions, so that these can check all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from enplace.machine.host_links import machine_of, sample_network_us, sample_us
from enplace.machine.op_passes import backward_ops, recomputing, work_per_sample_us
from enplace.machine.pipelines.all_reduce import all_reduce_us
from enplace.values.load_rule import USUAL, LoadRule
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray

COMPUTE, IN, OUT = 0, 1, 2
"""The parts of a load."""

FORWARD, BACKWARD = 0, 1
"""The passes."""


def load_parts_us(problem: Problem, device: IntArray, n_samples: int) -> FloatArray:
    """Return the time of each part of each device's load; shape (n_devices, 2 passes, 3 parts).

    A tensor that ops of both passes consume is received for the forward ops.

    Parameters
    ----------
    device : int array, shape (n_ops,)
        Device of each op; the ops of a device need not be contiguous.
    n_samples : int
        Samples of a step, which share what runs once per step.
    """
    parts = transfer_parts_us(problem, device, sample_us(problem))
    of = backward_ops(problem).astype(np.int64)
    work = work_per_sample_us(problem, n_samples)[np.arange(problem.profile.n_ops), device]
    np.add.at(parts[:, :, COMPUTE], (device, of), work)
    return parts


def network_parts_us(problem: Problem, device: IntArray) -> FloatArray:
    """Return the time of each part of a machine's network load; (n_machines, 2 passes, 3 parts)."""
    machine = machine_of(problem.cluster)
    return transfer_parts_us(problem, machine[device], sample_network_us(problem))


def transfer_parts_us(problem: Problem, where: IntArray, cost_us: FloatArray) -> FloatArray:
    """Return the time that transfers take at each place, in the parts of :func:`load_parts_us`.

    Parameters
    ----------
    where : int array, shape (n_ops,)
        Place of each op.
    cost_us : float array, shape (n_tensors, n)
        Cost of a tensor for a place that sends or receives it.
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


def add_up_parts_us(parts: FloatArray, rule: LoadRule) -> FloatArray:
    """Add up the parts of loads by a rule; shape (n, rule.n_passes)."""
    load = np.zeros((len(parts), rule.n_passes, rule.n_resources))
    for of in (FORWARD, BACKWARD):
        for part in (COMPUTE, IN, OUT):
            load[:, rule.pass_number(of), rule.resource(part)] += parts[:, of, part]
    largest: FloatArray = load.max(axis=2)
    return largest


def shared_parts_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule = USUAL,
    replicas: Sequence[Sequence[int]] = (),
    recompute: Sequence[int] = (),
) -> FloatArray:
    """Return the time of each part of each device's load, replicated; (n_devices, 2, 3).

    Each replica does its share of the samples, at its own speed and over its own link. The
    all-reduce is not included.

    Parameters
    ----------
    replicas : sequence of sequences of int
        Groups of devices; the ops of each group are placed on its first device.
    recompute : sequence of int
        Devices that run their forward ops once more before their backward ops, if they have any.
    """
    parts = load_parts_us(problem, device, rule.microbatches)
    again = recomputing(problem, device, recompute)
    parts[again, BACKWARD, COMPUTE] += parts[again, FORWARD, COMPUTE]
    for group in replicas:
        for copy in group[1:]:
            there = np.where(device == group[0], copy, device)
            parts[copy] = load_parts_us(problem, there, rule.microbatches)[copy]
            if group[0] in again:
                parts[copy, BACKWARD, COMPUTE] += parts[copy, FORWARD, COMPUTE]
        parts[list(group)] /= len(group)
    return parts


def pass_loads_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule = USUAL,
    replicas: Sequence[Sequence[int]] = (),
    recompute: Sequence[int] = (),
) -> FloatArray:
    """Return the load of each device in each separate pass; shape (n_devices, rule.n_passes).

    The last pass ends with the all-reduce of replicas. Logical devices of one chip compute one
    after another, so each has the compute time of all of them.
    """
    parts = shared_parts_us(problem, device, rule, replicas, recompute)
    busy = parts.any(axis=(1, 2))
    owner = problem.cluster.lane_owner
    on_chip = np.zeros((len(parts), 2))
    np.add.at(on_chip, owner, parts[:, :, COMPUTE])
    parts[busy, :, COMPUTE] = on_chip[owner[busy]]
    load = add_up_parts_us(parts, rule)
    for group in map(list, replicas):
        reduce_us = all_reduce_us(problem, device, group)
        alone = load[group, -1]
        in_all = alone + reduce_us if rule.transfers == "sum" else np.maximum(alone, reduce_us)
        load[group, -1] = in_all
    return load


def busiest_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule = USUAL,
    replicas: Sequence[Sequence[int]] = (),
    recompute: Sequence[int] = (),
) -> FloatArray:
    """Return the largest load in each separate pass, networks included; (rule.n_passes,)."""
    load: FloatArray = pass_loads_us(problem, device, rule, replicas, recompute).max(axis=0)
    if rule.two_level:
        network = add_up_parts_us(network_parts_us(problem, device), rule)
        load = np.maximum(load, network.max(axis=0))
    return load


def max_load_us(
    problem: Problem,
    device: IntArray,
    rule: LoadRule = USUAL,
    replicas: Sequence[Sequence[int]] = (),
    recompute: Sequence[int] = (),
) -> float:
    """Return a pipeline's time per sample: the busiest device's load, summed over passes."""
    return float(busiest_us(problem, device, rule, replicas, recompute).sum())
