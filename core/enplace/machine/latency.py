"""The latency of a placement, computed as section 4 of Tarnawski et al. 2020 tells it.

An accelerator processes its ops in pieces, one after the other. Forward and backward ops never
share a piece, and the forward pieces come first. A piece starts when all that it
consumes from elsewhere is in the host's memory and the piece before it is done. It then takes the
time to bring those tensors in, to compute, and to send out what others consume, and all of its
outputs are there at the end. Nothing stays on an accelerator between pieces. There are as many
CPU cores as ops that could run at once; they read and write the host's memory at no cost.

Nothing here is shared with what searches for placements, so that it can check all of them. The
tests have a slower version of both functions, which they hold these to.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from enplace.machine.loads import backward_ops, send_us
from enplace.machine.subgraphs import pieces_of
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray


def latency_us(problem: Problem, device: IntArray, piece: IntArray | None = None) -> float:
    """Time until every op of one query is done.

    Parameters
    ----------
    device : int array, shape (n_ops,)
    piece : int array, shape (n_ops,), optional
        Pieces of each accelerator in each pass, in the order it processes them; the numbers of ops
        on CPUs do not count. By default those of :func:`split_into_pieces`.

    Returns
    -------
    float
        inf if pieces wait for each other, or an op is where it cannot run.
    """
    if piece is None:
        piece = split_into_pieces(problem, device)
    profile, n_ops = problem.profile, problem.profile.n_ops
    on_gpu = np.isin(device, problem.cluster.gpus)
    # Parts: pieces by device, pass and number, then each op on a CPU by itself.
    number = np.where(on_gpu, piece, np.arange(n_ops))
    key = np.column_stack([~on_gpu, np.where(on_gpu, device, 0), backward_ops(problem), number])
    parts, part = np.unique(key, axis=0, return_inverse=True)
    part = part.reshape(n_ops)
    is_piece = parts[:, 0] == 0
    work_us = problem.time_us[np.arange(n_ops), device]
    sent_us = _sent_us(problem, part, np.where(is_piece, parts[:, 1], -1))
    duration_us = sent_us + np.bincount(part, weights=work_us)
    before, after = part[profile.edge_source], part[profile.edge_op]
    apart = before != after
    turns = np.flatnonzero(is_piece[1:] & (parts[1:, 1] == parts[:-1, 1]))
    source = np.concatenate([before[apart], turns])
    target = np.concatenate([after[apart], turns + 1])
    by_source = np.argsort(source, kind="stable")
    ptr = np.searchsorted(source[by_source], np.arange(len(parts) + 1))
    return float(_finish_us(ptr, target[by_source], duration_us))


def _sent_us(problem: Problem, part: IntArray, gpu: IntArray) -> FloatArray:
    """What each piece brings in and sends out (Fig. 3, equation 7); shape (n_parts,).

    Parameters
    ----------
    gpu : int array, shape (n_parts,)
        Accelerator of each piece; -1 for what is not one.
    """
    profile, n = problem.profile, len(gpu)
    tensor = np.concatenate([np.arange(profile.n_tensors), profile.edge_tensor])
    ends = np.concatenate([part[profile.tensor_op], part[profile.edge_op]])
    tensor, ends = np.divmod(np.unique(tensor * n + ends), n)
    paid = (np.bincount(tensor, minlength=profile.n_tensors)[tensor] > 1) & (gpu[ends] >= 0)
    cost_us = send_us(problem)[tensor[paid], gpu[ends[paid]]]
    return np.bincount(ends[paid], weights=cost_us, minlength=n).astype(np.float64)


@njit(cache=True, nogil=True)
def _finish_us(
    ptr: IntArray, target: IntArray, duration_us: FloatArray
) -> float:  # pragma: no cover - compiled
    n = len(duration_us)
    waiting, start = np.zeros(n, dtype=np.int64), np.zeros(n)
    for part in target:
        waiting[part] += 1
    ready = np.empty(n, dtype=np.int64)
    filled, done, latest = 0, 0, 0.0
    for part in range(n):
        if waiting[part] == 0:
            ready[filled] = part
            filled += 1
    while done < filled:
        part = ready[done]
        done += 1
        finish = start[part] + duration_us[part]
        latest = max(latest, finish)
        for edge in range(ptr[part], ptr[part + 1]):
            following = target[edge]
            start[following] = max(start[following], finish)
            waiting[following] -= 1
            if waiting[following] == 0:
                ready[filled] = following
                filled += 1
    return latest if done == n else np.inf


def split_into_pieces(problem: Problem, device: IntArray) -> IntArray:
    """Pieces in which accelerators can process each pass, as few as paths between them demand.

    Parameters
    ----------
    device : int array, shape (n_ops,)
        Any placement.

    Returns
    -------
    int array, shape (n_ops,)
        Number of each op's piece in its pass of its accelerator, in order; 0 for ops on CPUs.
    """
    on_gpu = np.isin(device, problem.cluster.gpus)
    place = np.where(on_gpu, 2 * device + backward_ops(problem), -1)
    return pieces_of(problem.profile, place, 2 * problem.cluster.n_devices)
