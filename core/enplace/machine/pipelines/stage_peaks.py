"""How much memory a stage needs at its most while its ops run one after another.

What a device holds of a sample is counted by whole stages: a tensor takes its memory as soon as the
stage that makes it begins, and until the last one that reads it has ended. But within a stage not
all of its tensors exist at once. They are made and freed op by op, so at its peak a stage needs
less than that sum, by what is not made yet and by what is no longer needed; but it also needs the
temporary memory of the op that runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from enplace.machine.pipelines.stages import FORWARD, Stage
from enplace.values.plan import Plan, follow_graph, position_by_itself, runs_as_recorded
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import IntArray, Profile

UNKNOWN = -1
"""Instead of the stage that frees a tensor, if several may be the last."""


class Life(NamedTuple):
    """When a device holds a tensor of each sample: from one stage to another, each by its number.

    Attributes
    ----------
    made_in, freed_in : int
        Stages in which ops make it, and read it for the last time; :data:`UNKNOWN` if it is
        received, or stays until the end of a stage.
    """

    made_in: int
    freed_in: int


class Steps(NamedTuple):
    """The ops of all stages in the order in which they run, those of each stage in a row.

    Attributes
    ----------
    ptr : int array, shape (n_stages + 1,)
        Steps of stage ``s``: ``ptr[s] : ptr[s + 1]``.
    op : int array, shape (n_steps,)
    first, again : int arrays, shape (n_ops,)
        The step of each op, and the one in which it runs again; -1 if it does not.
    """

    ptr: IntArray
    op: IntArray
    first: IntArray
    again: IntArray


def run_in_order(
    profile: Profile, plan: Plan, stages: Sequence[Stage], repeated: Mapping[int, IntArray]
) -> Steps:
    """Put the ops of each stage in the plan's order.

    If a plan has none, and the framework keeps the order in which ops were recorded, it is that.

    Parameters
    ----------
    repeated : mapping of int to int array
        For some stages, ops that they run again before their own.
    """
    position = plan.position
    if runs_as_recorded(profile, plan):
        position = position_by_itself(profile)
    elif (position[profile.edge_source] > position[profile.edge_op]).any():
        position = follow_graph(profile, position)
    runs, first, again = [], np.empty(profile.n_ops, dtype=np.int64), np.full(profile.n_ops, -1)
    ptr, n = [0], 0
    for number, stage in enumerate(stages):
        for ops, place in ((repeated.get(number, ()), again), (stage.ops, first)):
            row = np.array(ops, dtype=np.int64)
            row = row[np.argsort(position[row])]
            place[row] = n + np.arange(len(row))
            runs.append(row)
            n += len(row)
        ptr.append(n)
    return Steps(np.array(ptr), np.concatenate(runs), first, again)


def find_repeated(stages: Sequence[Stage], recompute: Sequence[int]) -> dict[int, IntArray]:
    """Find the forward ops that devices run again, by their first backward stage."""
    found = {}
    for device in recompute:
        here = [number for number, each in enumerate(stages) if each.devices[0] == device]
        ahead = [stages[number].ops for number in here if stages[number].of == FORWARD]
        back = [number for number in here if stages[number].of != FORWARD]
        if ahead and back:
            found[back[0]] = np.concatenate(ahead)
    return found


def find_ancestors(stages: Sequence[Stage]) -> list[int]:
    """Return the stages that must end before each one, as the bits of a number."""
    found: list[int] = []
    for stage in stages:
        before = 0
        for number in stage.after:
            before |= found[number] | 1 << number
        found.append(before)
    return found


def last_of(numbers: Sequence[int], ancestors: Sequence[int]) -> int:
    """Return the stage that ends after all others of some; :data:`UNKNOWN` if none surely does."""
    last = max(numbers)
    is_last = all(each == last or ancestors[last] >> each & 1 for each in numbers)
    return last if is_last else UNKNOWN


class _Row(NamedTuple):
    """Tensors on their devices, made and freed in some steps; -1 if in none."""

    n_bytes: IntArray
    made_at: IntArray
    freed_at: IntArray


def find_corrections(
    problem: Problem,
    device: IntArray,
    steps: Steps,
    use: IntArray,
    added: BoolArray,
    holds: IntArray,
    lives: Mapping[tuple[int, int], Sequence[Life]],
) -> IntArray:
    """Find what stages need at their peak beyond what is counted by whole stages.

    Parameters
    ----------
    use : int array, shape (n_tensors,)
        A number for each tensor that takes memory; -1 for others.
    added : bool array, shape (n_tensors,)
        Whether a tensor is added to a sum as it is made, so that it need not stay for its readers.
    holds : int array
        Numbers of the holds that count for each sample.
    lives : mapping
        By the use of a tensor and a device, its life there; that of a tensor that is made again
        has a second one.

    Returns
    -------
    int array, shape (n_stages,)
        Bytes; negative where a stage needs less.
    """
    change = np.zeros(len(steps.op) + 1, dtype=np.int64)
    stage_of_step = np.repeat(np.arange(len(steps.ptr) - 1), np.diff(steps.ptr))
    for number in range(max(map(len, lives.values()), default=0)):
        row = _find_row(problem, device, steps, stage_of_step, use, added, holds, lives, number)
        made, freed = row.made_at >= 0, row.freed_at >= 0
        at, n_bytes = row.made_at[made], row.n_bytes[made]
        np.add.at(change, steps.ptr[stage_of_step[at]], -n_bytes)
        np.add.at(change, at, n_bytes)
        at, n_bytes = row.freed_at[freed], row.n_bytes[freed]
        np.add.at(change, at + 1, -n_bytes)
        np.add.at(change, steps.ptr[stage_of_step[at] + 1], n_bytes)
    need = np.cumsum(change[:-1]) + problem.profile.temporary_bytes[steps.op]
    most: IntArray = np.maximum.reduceat(need, steps.ptr[:-1])
    return most


def _find_row(
    problem: Problem,
    device: IntArray,
    steps: Steps,
    stage_of_step: IntArray,
    use: IntArray,
    added: BoolArray,
    holds: IntArray,
    lives: Mapping[tuple[int, int], Sequence[Life]],
    number: int,
) -> _Row:
    """List the first lives of tensors on devices, or the second ones."""
    profile, n = problem.profile, problem.cluster.n_devices
    made_in = np.full((int(use.max(initial=-1)) + 2, n), UNKNOWN)
    freed_in = made_in.copy()
    for (at, d), each in lives.items():
        if len(each) > number:
            made_in[at, d], freed_in[at, d] = each[number]
    freed_at = np.full(profile.n_tensors * n, -1)

    def keep_until(tensor: IntArray, op: IntArray, where: IntArray) -> None:
        for step in (steps.first[op], steps.again[op])[: number + 1]:
            counts = (use[tensor] >= 0) & (step >= 0)
            counts &= freed_in[use[tensor], where] == stage_of_step[step]
            np.maximum.at(freed_at, tensor[counts] * n + where[counts], step[counts])

    tensor, maker = np.arange(profile.n_tensors), profile.tensor_op
    keep_until(tensor, maker, device[maker])
    edge = np.flatnonzero(~added[profile.edge_tensor])
    reader = profile.edge_op[edge]
    keep_until(profile.edge_tensor[edge], reader, device[reader])
    tensor_held = profile.hold_tensor[holds]
    keep_until(tensor_held, profile.hold_op[holds], device[maker[tensor_held]])
    made_at = np.full(profile.n_tensors * n, -1)
    home = tensor * n + device[maker]
    is_made = (use >= 0) & (made_in[use, device[maker]] != UNKNOWN)
    made_at[home[is_made]] = (steps.again if number else steps.first)[maker[is_made]]
    n_bytes = np.repeat(profile.copy_bytes, n)
    n_bytes[home] = profile.held_bytes
    return _Row(n_bytes, made_at, freed_at)
