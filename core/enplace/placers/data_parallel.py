"""Predict data parallelism, which a person would try first: the model on every GPU.

Each replica works on its share of the samples, and all keep a copy of the variables. Before these
change, the replicas sum their gradients. We predict that as frameworks do it:

- An op that works on samples takes its share of the time beyond its launch, and its tensors have
  their share of the bytes. All other ops, such as updates, do the same work in each replica.
- The gradients are what ops sum over samples, at most as many bytes as the weights have.
- The replicas send them around a ring: 2 (n - 1) rounds, each with an nth of the bytes on every hop
  (Patarasu and Yuan 2009). Hops that share a channel wait for each other. The sum begins once all
  gradients are there, so it is added to the step.

A replica may itself be placed on several GPUs: a plan inside data parallelism.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from enplace.errors import ProblemError
from enplace.names.passes import named_backward
from enplace.placers.references import ALONE, reference_schedule
from enplace.values.arrays import where_op
from enplace.values.cluster import Cluster
from enplace.values.cluster_variants import with_devices
from enplace.values.op_kinds import OpKind, OpPass
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import CONTROL, Profile, growing
from enplace.values.schedule import Schedule
from enplace.values.splits import carries_samples, share

INSIDE = "heft"
"""The method that places a replica on several GPUs."""


@dataclass(frozen=True, eq=False)
class Replicas:
    """The prediction for one number of replicas.

    Attributes
    ----------
    number : int
        How many replicas there are.
    each : Schedule
        The step of the slowest replica, alone on its devices and without the sum of gradients.
    turns : int
        How many replicas take turns on one chip.
    gradient_bytes : int
        What each replica sends around the ring.
    sum_us : float
        The time to sum the gradients of all replicas.
    """

    number: int
    each: Schedule
    turns: int
    gradient_bytes: int
    sum_us: float

    @property
    def step_time_us(self) -> float:
        """The predicted step time."""
        return self.turns * self.each.makespan_us + self.sum_us

    @property
    def fits(self) -> bool:
        """Whether a replica fits on its devices."""
        return self.each.fits

    @property
    def gpus_each(self) -> int:
        """The number of GPUs that one replica has."""
        return len(self.each.problem.cluster.gpus)

    @property
    def sent_bytes(self) -> int:
        """The bytes that all replicas send, and those sent within each."""
        around = 2 * (self.number - 1) * self.gradient_bytes
        return around + self.number * int(self.each.transfer_bytes.sum())

    @property
    def name(self) -> str:
        """The name on screen: ``data parallel, 4 replicas``."""
        name = f"data parallel, {self.number} replicas"
        return name if self.gpus_each == 1 else f"{name} of {self.each.plan.method}"


def mirrored(problem: Problem, cancelled: Callable[[], bool] = lambda: False) -> Replicas | None:
    """Predict the model with a replica on every GPU.

    None if there is one GPU, if it has no room for the variables, if there are fewer samples than
    replicas, if the profile does not say what the gradients are, or if cancelled.
    """
    return _predicted(problem, len(problem.cluster.gpus), cancelled)


def all_mirrored(problem: Problem, cancelled: Callable[[], bool] = lambda: False) -> list[Replicas]:
    """Predict a replica on every GPU, then fewer, each placed by a plan on several GPUs."""
    gpus = len(problem.cluster.gpus)
    numbers = [n for n in range(gpus, 1, -1) if gpus % n == 0]
    return [found for n in numbers if (found := _predicted(problem, n, cancelled))]


def fastest(rivals: Iterable[Replicas]) -> Replicas | None:
    """Return the one with the least step time of those that fit; None if none does."""
    fitting = [each for each in rivals if each.fits]
    return min(fitting, key=lambda each: each.step_time_us, default=None)


def _predicted(problem: Problem, number: int, cancelled: Callable[[], bool]) -> Replicas | None:
    whole, profile = problem.cluster, problem.measured_profile
    samples = profile.measured.batch_size or math.inf
    if not 2 <= number <= samples or _hides_gradients(profile):
        return None
    size = len(whole.gpus) // number
    groups = [whole.gpus[i * size : (i + 1) * size] for i in range(number)]
    slowest = min(groups, key=lambda gpus: sum(whole.speed[gpus]))
    try:
        free = Problem(
            share_of_batch(profile, number), with_devices(whole, [*slowest, *whole.cpus])
        )
    except ProblemError:  # the variables do not fit
        return None
    each = reference_schedule(free, ALONE if size == 1 else INSIDE, cancelled)
    if each is None:
        return None
    n_bytes = gradient_bytes(profile)
    rings = list(zip(*groups, strict=True))
    sum_us = _ring_us(whole, rings, -(-n_bytes // (number * size))) if n_bytes else 0.0
    chips = Counter(frozenset(whole.lane_owner[gpus].tolist()) for gpus in groups)
    lanes = int(whole.lanes[slowest].min())
    return Replicas(number, each, -(-max(chips.values()) // lanes), n_bytes // size, sum_us)


def share_of_batch(profile: Profile, number: int) -> Profile:
    """Return the profile of a step with an nth of the samples."""
    carries, fed = _samples(profile)
    works = carries | fed
    whole = ~carries[profile.tensor_op]
    return replace(
        profile,
        **{
            label: where_op(works, share(profile, label, values, number), values)
            for label, _, values in growing(profile)
        },
        tensor_bytes=np.where(whole, profile.tensor_bytes, -(-profile.tensor_bytes // number)),
    )


def _hides_gradients(profile: Profile) -> bool:
    """Return whether ops have no types, or some are backward ones but none writes a variable."""
    if not (any(profile.op_types) or any(profile.op_kinds)):
        return True
    return bool(named_backward(profile).any()) and not _has_updates(profile)


def _has_updates(profile: Profile) -> bool:
    return OpKind.UPDATE in profile.kinds or OpPass.UPDATE in profile.op_passes


def gradient_bytes(profile: Profile) -> int:
    """Estimate the bytes of all gradients of weights; 0 if no op writes a variable."""
    if not _has_updates(profile):
        return 0
    carries, fed = _samples(profile)
    sums = (fed & ~carries)[profile.tensor_op] & (profile.tensor_output != CONTROL)
    return min(int(profile.tensor_bytes[sums].sum()), _weight_bytes(profile, carries | fed))


def _weight_bytes(profile: Profile, works: BoolArray) -> int:
    """Sum the variables that ops on samples read, directly or changed by other ops."""
    reads = works.copy()
    for op in profile.topological_order[::-1].tolist():
        consumers = profile.edge_op[profile.out_ptr[op] : profile.out_ptr[op + 1]]
        reads[op] |= reads[consumers].any()
    return int(profile.persistent_bytes[reads].sum())


def _samples(profile: Profile) -> tuple[BoolArray, BoolArray]:
    """Find the ops whose outputs have a row for each sample, and those with such an input."""
    carries = carries_samples(profile)
    fed = np.zeros(profile.n_ops, dtype=bool)
    data = profile.tensor_output[profile.edge_tensor] != CONTROL
    np.logical_or.at(fed, profile.edge_op[data], carries[profile.edge_source[data]])
    return carries, fed


def _ring_us(cluster: Cluster, rings: list[tuple[int, ...]], n_bytes: int) -> float:
    """Return the time in which rings of devices, all at once, sum tensors; bytes are for a hop."""
    hops = [pair for ring in rings for pair in zip(ring, (*ring[1:], ring[0]), strict=True)]
    loads = np.zeros(len(cluster.channels))
    link_of = {(link.source, link.target): link for link in cluster.links}
    for hop in hops:
        link = link_of[hop]
        loads[list(link.channels)] += link.b0_us + link.b1_us_per_byte * n_bytes
    return float(2 * (len(rings[0]) - 1) * loads.max())
