"""The numbers behind the cards and edges of the graph, as arrays; no Qt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from enplace.machine import critical_path
from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.stages import number_of_stage, stages_of
from enplace.machine.subgraphs import find_subgraphs
from enplace.names.group_facts import device_shares
from enplace.names.groups import Grouping
from enplace.pictures.palette import colour_numbers
from enplace.values.arrays import sum_at
from enplace.values.pins import FREE
from enplace.values.problem import Problem
from enplace.values.profile import FloatArray, IntArray, Profile
from enplace.values.schedule import Schedule
from enplace_studio.explain.differences import moved_ops

BoolArray = NDArray[np.bool_]

WORK_KINDS = (
    ("matrix products", "matrix", ("matmul", "conv", "gemm", "einsum")),
    ("weights and updates", "weights", ("variable", "apply", "assign", "adam", "update")),
    (
        "normalise and reduce",
        "reduce",
        ("norm", "softmax", "sum", "mean", "max", "pool", "addn", "rows", "reduce"),
    ),
    (
        "move data",
        "move",
        ("concat", "split", "slice", "gather", "transpose", "reshape", "pad"),
    ),
    ("element by element", "element", ("",)),
)
"""Kinds of work: title, one word, and substrings of their kinds or types of ops; the first match
wins."""


@dataclass(frozen=True)
class StageFact:
    """A stage of the pipeline, numbered as in the timeline.

    Attributes
    ----------
    number : int
        From 1.
    devices : tuple of int
        Its device, or several if it has replicas.
    where, way : str
        Names of the devices, and the pass; empty for a model that is not trained.
    """

    number: int
    devices: tuple[int, ...]
    backward: bool
    where: str
    way: str


@dataclass(frozen=True, eq=False)
class PlanStages:
    """The stages of a plan in order, and the stage of each op from 0; shape (n_ops,)."""

    stages: tuple[StageFact, ...]
    of_op: IntArray


def plan_stages(schedule: Schedule) -> PlanStages:
    """Find the stages of a plan; forward and backward are separate if the model is trained.

    This takes about 0.1 s for 36,000 ops.
    """
    problem = schedule.problem
    backward = backward_ops(problem)
    found = stages_of(problem, schedule.plan, backward.astype(np.int64))
    stages = []
    for at, stage in enumerate(found):
        where = ", ".join(problem.cluster.devices[d].label for d in stage.devices)
        way = ("backward" if stage.backward else "forward") if backward.any() else ""
        stages.append(StageFact(at + 1, stage.devices, stage.backward, where, way))
    return PlanStages(tuple(stages), number_of_stage(found, problem.profile.n_ops))


@dataclass(frozen=True, eq=False)
class Facts:
    """The numbers of each group; all arrays have shape (n_groups,) unless noted.

    Attributes
    ----------
    time_us : float array
        Compute time on the plan's devices, or on the fastest ones without a plan.
    share : float array, shape (n_groups, n_devices)
        Share of the group on each device, by time; all zero without a plan.
    persistent_bytes, output_bytes : int array
    n_ops, n_pinned : int array
    critical_us : float array
        Time that the group spends on the critical path; computed on request.
    n_further : int array
        Ops in further subgraphs of their device: data left the device's first subgraph and came
        back, so the device's ops are not contiguous. Computed on request.
    work : int array
        The one of :data:`WORK_KINDS` that takes most of the group's time.
    stage, n_stages : int array
        The one of ``stages`` that takes most of the group's time, and the number of stages it
        has ops in; −1 and 0 unless requested.
    stages : tuple of StageFact
    moved : float array, shape (n_groups, n_devices)
        Share of each group's ops that another plan has elsewhere, by their device in this one.
    colours : list of int
        Number of each device's colour.
    """

    time_us: FloatArray
    share: FloatArray
    persistent_bytes: IntArray
    output_bytes: IntArray
    n_ops: IntArray
    n_pinned: IntArray
    critical_us: FloatArray
    n_further: IntArray
    work: IntArray
    stage: IntArray
    n_stages: IntArray
    stages: tuple[StageFact, ...]
    moved: FloatArray
    colours: list[int]

    @property
    def device(self) -> IntArray:
        """Device that runs most of each group; −1 without a plan."""
        most = self.share.argmax(axis=1).astype(np.int64)
        return np.where(self.share.any(axis=1), most, np.int64(-1))

    @property
    def split(self) -> BoolArray:
        """Whether a group runs on several devices."""
        return (self.share > 0).sum(axis=1) > 1


def make_facts(
    problem: Problem,
    grouping: Grouping,
    schedule: Schedule | None,
    with_path: bool = False,
    with_subgraphs: bool = False,
    stages: PlanStages | None = None,
    reference: Schedule | None = None,
) -> Facts:
    """Sum up ops by group; path, subgraphs and stages only on request, as they are slow.

    ``reference`` is the schedule of the plan that the ops may have moved from.
    """
    profile, n = problem.profile, grouping.n_groups
    grouped = np.flatnonzero(grouping.group >= 0)
    group = grouping.group[grouped]
    all_us = _op_times(problem, schedule)
    time_us = all_us[grouped]

    def total(values: NDArray[np.generic]) -> FloatArray:
        return np.bincount(group, weights=values, minlength=n).astype(np.float64)

    pinned = problem.pinned_to != FREE
    stage, n_stages = np.full(n, -1), np.zeros(n, dtype=np.int64)
    if stages is not None:
        stage, n_stages = _longest(stages.of_op[grouped], group, time_us, n)
    share = np.zeros((n, problem.cluster.n_devices))
    if schedule is not None:
        share = device_shares(grouping, schedule.plan.device, all_us, problem.cluster.n_devices)
    sent = np.bincount(profile.tensor_op, profile.tensor_bytes, minlength=profile.n_ops)
    return Facts(
        time_us=total(time_us),
        share=share,
        persistent_bytes=total(profile.persistent_bytes[grouped]).astype(np.int64),
        output_bytes=total(sent[grouped]).astype(np.int64),
        n_ops=grouping.sizes,
        n_pinned=total(pinned[grouped]).astype(np.int64),
        critical_us=_critical(grouping, schedule if with_path else None),
        n_further=total(_further(schedule if with_subgraphs else None, profile)[grouped]).astype(
            np.int64
        ),
        work=_work(_kinds_of_work(profile)[grouped], group, time_us, n),
        stage=stage,
        n_stages=n_stages,
        stages=() if stages is None else stages.stages,
        moved=_moved(problem, grouping, schedule, reference),
        colours=colour_numbers(problem.cluster),
    )


def _moved(
    problem: Problem, grouping: Grouping, schedule: Schedule | None, reference: Schedule | None
) -> FloatArray:
    share = np.zeros((grouping.n_groups, problem.cluster.n_devices))
    ops = None if schedule is None or reference is None else moved_ops(schedule, reference)
    if ops is not None and schedule is not None:
        ops = ops[grouping.group[ops] >= 0]
        device = schedule.plan.device[ops]
        share = sum_at(grouping.group[ops], device, np.ones(len(ops)), share.shape)
    return share / np.maximum(grouping.sizes, 1)[:, None]


def _op_times(problem: Problem, schedule: Schedule | None) -> FloatArray:
    if schedule is not None:
        return schedule.op_finish_us - schedule.op_start_us
    return problem.time_us.min(axis=1)


def _critical(grouping: Grouping, schedule: Schedule | None) -> FloatArray:
    spent = np.zeros(grouping.n_groups)
    if schedule is not None:
        path = critical_path(schedule)
        ops = path.number[~path.is_transfer]
        duration_us = (path.finish_us - path.start_us)[~path.is_transfer]
        grouped = grouping.group[ops] >= 0
        np.add.at(spent, grouping.group[ops[grouped]], duration_us[grouped])
    return spent


def _further(schedule: Schedule | None, profile: Profile) -> BoolArray:
    """Find ops in further subgraphs of their device in the same pass; shape (n_ops,)."""
    if schedule is None:
        return np.zeros(profile.n_ops, dtype=bool)
    problem, device = schedule.problem, schedule.plan.device
    place = 2 * device + backward_ops(problem)
    return find_subgraphs(problem.profile, place, 2 * problem.cluster.n_devices) > 0


def _longest(
    stage: IntArray, group: IntArray, time_us: FloatArray, n_groups: int
) -> tuple[IntArray, IntArray]:
    """Find each group's stage with the most time (the first of equals) and its stage count."""
    n = int(stage.max()) + 1
    pair, at = np.unique(group * n + stage, return_inverse=True)
    spent_us = np.bincount(at, time_us + 1e-6)
    whose, which = np.divmod(pair, n)
    order = np.lexsort((-which, spent_us))
    longest = np.zeros(n_groups, dtype=np.int64)
    longest[whose[order]] = which[order]  # the last assignment of each group wins
    return longest, np.bincount(whose, minlength=n_groups)


@lru_cache(maxsize=2)
def _kinds_of_work(profile: Profile) -> IntArray:
    """Find the kind of work of each op; shape (n_ops,)."""
    ops = list(zip(profile.op_types, profile.op_kinds, strict=True))
    known = {each: kind_of_work(*each) for each in set(ops)}
    return np.array([known[each] for each in ops], dtype=np.int64)


def _work(kind: IntArray, group: IntArray, time_us: FloatArray, n_groups: int) -> IntArray:
    return sum_at(group, kind, time_us + 1e-6, (n_groups, len(WORK_KINDS))).argmax(axis=1)


def kind_of_work(op_type: str, op_kind: str = "") -> int:
    """Return the index in :data:`WORK_KINDS` of an op's kind, or else of its type."""
    found = _matching(op_kind)
    return found if found < len(WORK_KINDS) - 1 else _matching(op_type.lower())


def _matching(text: str) -> int:
    return next(
        number
        for number, (_, _, parts) in enumerate(WORK_KINDS)
        if any(part in text for part in parts)
    )
