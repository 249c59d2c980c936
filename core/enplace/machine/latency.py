"""The latency of a placement (Tarnawski et al. 2020, section 4).

An accelerator processes its ops in subgraphs, one after another. Forward and backward ops never
share a subgraph, and the forward subgraphs come first. A subgraph starts once all its inputs from
elsewhere are in the host's memory and the previous subgraph has ended. It then takes the time to
receive these tensors, to compute, and to send the tensors that others consume; all of its outputs
become available at the end. Nothing stays on an accelerator between subgraphs. There are as many
CPU cores as ops that could run at once; they read and write the host's memory at no cost.

Searches for placements use none of these functions, so that these can check all of them. Tests
compare them with slower, more readable versions.
"""

from __future__ import annotations

import numpy as np

from enplace.machine.host_links import send_us
from enplace.machine.op_passes import backward_ops
from enplace.machine.subgraphs import find_subgraphs
from enplace.values.arrays import adjacency, topological_order, upward_rank
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


def latency_us(problem: Problem, device: IntArray, subgraph: IntArray | None = None) -> float:
    """Return the time until every op of one query has ended.

    Parameters
    ----------
    device : int array, shape (n_ops,)
    subgraph : int array, shape (n_ops,), optional
        Number of each op's subgraph within its pass on its accelerator, in order; numbers of ops on
        CPUs are ignored. By default, the result of :func:`find_pass_subgraphs`.

    Returns
    -------
    float
        inf if subgraphs wait for each other, or an op is on a device that cannot run it.
    """
    if subgraph is None:
        subgraph = find_pass_subgraphs(problem, device)
    profile, n_ops = problem.profile, problem.profile.n_ops
    on_gpu = np.isin(device, problem.cluster.gpus)
    # Parts: subgraphs by device, pass and number, then each op on a CPU by itself.
    number = np.where(on_gpu, subgraph, np.arange(n_ops))
    key = np.column_stack([~on_gpu, np.where(on_gpu, device, 0), backward_ops(problem), number])
    parts, part = np.unique(key, axis=0, return_inverse=True)
    part = part.reshape(n_ops)
    is_subgraph = parts[:, 0] == 0
    work_us = problem.time_us[np.arange(n_ops), device]
    sent_us = _sent_us(problem, part, np.where(is_subgraph, parts[:, 1], -1))
    duration_us = sent_us + np.bincount(part, weights=work_us)
    before, after = part[profile.edge_source], part[profile.edge_op]
    crossing = before != after
    # The subgraphs of an accelerator run one after another.
    previous = np.flatnonzero(is_subgraph[1:] & (parts[1:, 1] == parts[:-1, 1]))
    source = np.concatenate([before[crossing], previous])
    target = np.concatenate([after[crossing], previous + 1])
    return _finish_us(source, target, duration_us)


def _sent_us(problem: Problem, part: IntArray, gpu: IntArray) -> FloatArray:
    """Return the time that each part sends and receives (Fig. 3, equation 7); shape (n_parts,).

    Parameters
    ----------
    gpu : int array, shape (n_parts,)
        Accelerator of each subgraph; -1 for an op on a CPU.
    """
    profile, n = problem.profile, len(gpu)
    tensor = np.concatenate([np.arange(profile.n_tensors), profile.edge_tensor])
    ends = np.concatenate([part[profile.tensor_op], part[profile.edge_op]])
    tensor, ends = np.divmod(np.unique(tensor * n + ends), n)
    paid = (np.bincount(tensor, minlength=profile.n_tensors)[tensor] > 1) & (gpu[ends] >= 0)
    cost_us = send_us(problem)[tensor[paid], gpu[ends[paid]]]
    return np.bincount(ends[paid], weights=cost_us, minlength=n).astype(np.float64)


def _finish_us(source: IntArray, target: IntArray, duration_us: FloatArray) -> float:
    """Run each part as soon as those before it have ended; return when the last one ends."""
    order = topological_order(len(duration_us), *adjacency(source, target, len(duration_us)))
    if len(order) < len(duration_us):
        return np.inf  # parts on a cycle wait for each other: such a cut of the ops cannot run
    before = adjacency(target, source, len(duration_us))
    finish_us = upward_rank(order[::-1].copy(), *before, duration_us, np.zeros(len(source)))
    return float(finish_us.max())


def find_pass_subgraphs(problem: Problem, device: IntArray) -> IntArray:
    """Find the subgraphs of each pass on each accelerator, as few as the paths between them allow.

    Parameters
    ----------
    device : int array, shape (n_ops,)
        Any placement.

    Returns
    -------
    int array, shape (n_ops,)
        Number of each op's subgraph within its pass on its accelerator, in order; 0 on CPUs.
    """
    on_gpu = np.isin(device, problem.cluster.gpus)
    place = np.where(on_gpu, 2 * device + backward_ops(problem), -1)
    return find_subgraphs(problem.profile, place, 2 * problem.cluster.n_devices)
