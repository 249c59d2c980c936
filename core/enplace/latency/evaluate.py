"""The latency of a placement, computed as section 4 of Tarnawski et al. 2020 tells it.

An accelerator processes its ops in pieces, one after the other. A piece starts when all that it
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

from enplace.problem import BoolArray, Problem
from enplace.profile import FloatArray, IntArray
from enplace.simulate.loads import send_us


def latency_us(problem: Problem, device: IntArray, piece: IntArray | None = None) -> float:
    """Time until every op of one query is done.

    Parameters
    ----------
    device : int array, shape (n_ops,)
    piece : int array, shape (n_ops,), optional
        Pieces of each accelerator in the order it processes them; the numbers of ops on CPUs do
        not count. By default those of :func:`split_into_pieces`.

    Returns
    -------
    float
        inf if pieces wait for each other, or an op is where it cannot run.
    """
    if piece is None:
        piece = split_into_pieces(problem, device)
    profile, n_ops = problem.profile, problem.profile.n_ops
    on_gpu = np.isin(device, problem.cluster.gpus)
    # Parts: pieces by device and number, then each op on a CPU by itself.
    number = np.where(on_gpu, piece, np.arange(n_ops))
    key = np.column_stack([~on_gpu, np.where(on_gpu, device, 0), number])
    parts, part = np.unique(key, axis=0, return_inverse=True)
    part = part.reshape(n_ops)
    is_piece = parts[:, 0] == 0
    duration_us: FloatArray = _sent_us(problem, part, is_piece)
    np.add.at(duration_us, part, problem.time_us[np.arange(n_ops), device])
    before, after = part[profile.edge_source], part[profile.edge_op]
    apart = before != after
    turns = np.flatnonzero(is_piece[1:] & (parts[1:, 1] == parts[:-1, 1]))
    source = np.concatenate([before[apart], turns])
    target = np.concatenate([after[apart], turns + 1])
    by_source = np.argsort(source, kind="stable")
    ptr = np.searchsorted(source[by_source], np.arange(len(parts) + 1))
    return float(_finish_us(ptr, target[by_source], duration_us))


def _sent_us(problem: Problem, part: IntArray, is_piece: BoolArray) -> FloatArray:
    """What each piece brings in and sends out (Fig. 3, equation 7); shape (n_parts,)."""
    profile, n = problem.profile, len(is_piece)
    tensor = np.concatenate([np.arange(profile.n_tensors), profile.edge_tensor])
    ends = np.concatenate([part[profile.tensor_op], part[profile.edge_op]])
    tensor, ends = np.divmod(np.unique(tensor * n + ends), n)
    paid = (np.bincount(tensor, minlength=profile.n_tensors)[tensor] > 1) & is_piece[ends]
    cost_us = send_us(problem)[tensor[paid]]
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
    """Pieces in which accelerators can process their ops, as few as paths between them demand.

    A contiguous set of ops is one piece. Where a path leaves an accelerator and returns, a new
    piece begins; where pieces would wait for each other, one of them is split further.

    Parameters
    ----------
    device : int array, shape (n_ops,)
        Any placement.

    Returns
    -------
    int array, shape (n_ops,)
        Number of each op's piece on its accelerator, in order; 0 for ops on CPUs.
    """
    profile, gpus = problem.profile, problem.cluster.gpus
    order = profile.topological_order
    gpu = np.full(problem.cluster.n_devices, -1)
    gpu[gpus] = np.arange(len(gpus))
    on = gpu[device]
    source = profile.edge_source
    by_source = np.argsort(source, kind="stable")
    out_ptr = np.searchsorted(source[by_source], np.arange(profile.n_ops + 1))
    target = profile.edge_op[by_source]
    level = _returns(order, out_ptr, target, on, len(gpus))
    # Wholes: the ops of one accelerator and level. Those of one accelerator are consecutive.
    on_gpu = np.flatnonzero(on >= 0)
    pairs = np.column_stack([on[on_gpu], level[on_gpu]])
    wholes, index = np.unique(pairs, axis=0, return_inverse=True)
    whole = np.full(profile.n_ops, -1)
    whole[on_gpu] = index.reshape(len(on_gpu))
    inside = order[on[order] >= 0]
    inside = inside[np.argsort(whole[inside], kind="stable")]
    ptr = np.searchsorted(whole[inside], np.arange(len(wholes) + 1))
    rank = np.empty(profile.n_ops, dtype=np.int64)
    rank[order] = np.arange(profile.n_ops)
    return _pieces(rank, out_ptr, target, whole, wholes[:, 0], ptr, inside, len(gpus))


@njit(cache=True, nogil=True)
def _returns(
    order: IntArray, out_ptr: IntArray, target: IntArray, on: IntArray, n_gpus: int
) -> IntArray:  # pragma: no cover - compiled
    """How often paths to each op have left its accelerator and come back; shape (n_ops,)."""
    least = np.zeros((len(order), n_gpus), dtype=np.int64)
    level = np.zeros(len(order), dtype=np.int64)
    for op in order:
        here = on[op]
        if here >= 0:
            level[op] = least[op, here]
        for edge in range(out_ptr[op], out_ptr[op + 1]):
            other = target[edge]
            for g in range(n_gpus):
                least[other, g] = max(least[other, g], least[op, g])
            if here >= 0 and on[other] != here:
                least[other, here] = max(least[other, here], level[op] + 1)
    return level


@njit(cache=True, nogil=True)
def _pieces(
    rank: IntArray,
    out_ptr: IntArray,
    target: IntArray,
    whole: IntArray,
    gpu_of: IntArray,
    ptr: IntArray,
    inside: IntArray,
    n_gpus: int,
) -> IntArray:  # pragma: no cover - compiled
    """Take ops on CPUs and wholes as they can go; if none can, what is ready of the first whole.

    Parameters
    ----------
    whole : int array, shape (n_ops,)
        Which whole an op belongs to; -1 on CPUs.
    gpu_of : int array, shape (n_wholes,)
    ptr, inside : int arrays
        Ops of each whole in topological order.
    """
    n, n_wholes = len(rank), len(gpu_of)
    # What is not done before each op, and what is not done outside each whole that it waits for.
    waiting, outside = np.zeros(n, dtype=np.int64), np.zeros(n_wholes, dtype=np.int64)
    for op in range(n):
        for edge in range(out_ptr[op], out_ptr[op + 1]):
            waiting[target[edge]] += 1
            if whole[target[edge]] >= 0 and whole[target[edge]] != whole[op]:
                outside[whole[target[edge]]] += 1
    left = ptr[1:] - ptr[:-1]
    current = np.searchsorted(gpu_of, np.arange(n_gpus))  # the first whole that is left
    piece, pieces = np.zeros(n, dtype=np.int64), np.zeros(n_gpus, dtype=np.int64)
    done = np.zeros(n, dtype=np.bool_)
    taken, ready = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    n_ready, n_done = 0, 0
    for op in range(n):
        if whole[op] < 0 and waiting[op] == 0:
            ready[n_ready] = op
            n_ready += 1
    while n_done < n:
        n_taken, from_whole = 0, -1
        if n_ready > 0:
            n_ready -= 1
            taken[0] = ready[n_ready]
            n_taken = 1
        else:
            for g in range(n_gpus):
                w = current[g]
                if w < n_wholes and gpu_of[w] == g and outside[w] == 0:
                    from_whole = w
            if from_whole < 0:
                # The first whole, by its first op that is left, with an op that is ready.
                first = n
                for w in range(n_wholes):
                    first_left, any_ready = n, False
                    for at in range(ptr[w], ptr[w + 1]):
                        op = inside[at]
                        if not done[op]:
                            first_left = min(first_left, rank[op])
                            any_ready |= waiting[op] == 0
                            if first_left >= first or any_ready:
                                break
                    if any_ready and first_left < first:
                        first, from_whole = first_left, w
            # In topological order, so that ops inside follow those they wait for.
            for at in range(ptr[from_whole], ptr[from_whole + 1]):
                op = inside[at]
                if not done[op] and waiting[op] == 0:
                    taken[n_taken] = op
                    n_taken += 1
                    done[op] = True
                    for edge in range(out_ptr[op], out_ptr[op + 1]):
                        if whole[target[edge]] == from_whole:
                            waiting[target[edge]] -= 1
            g = gpu_of[from_whole]
            piece[taken[:n_taken]] = pieces[g]
            pieces[g] += 1
            left[from_whole] -= n_taken
            while current[g] < n_wholes and gpu_of[current[g]] == g and left[current[g]] == 0:
                current[g] += 1
        n_done += n_taken
        for op in taken[:n_taken]:
            done[op] = True
            for edge in range(out_ptr[op], out_ptr[op + 1]):
                other = target[edge]
                if whole[other] >= 0 and whole[other] == whole[op]:
                    continue
                waiting[other] -= 1
                if whole[other] >= 0:
                    outside[whole[other]] -= 1
                elif waiting[other] == 0:
                    ready[n_ready] = other
                    n_ready += 1
    return piece
