"""Predict data parallelism, which a person would try first: the model on every GPU.

Each replica works on its share of the samples, and all keep a copy of the variables. Before these
change, the replicas sum their gradients. We predict that as frameworks do it:

- An op that works on samples takes its share of the time beyond its launch, and its tensors have
  their share of the bytes. All other ops, such as updates, do the same work in each replica.
- The gradients are what ops sum over samples, at most as many bytes as the weights have. If the
  profile does not tell what these ops do, the gradients count as large as the weights.
- The replicas send them around a ring: 2 (n - 1) rounds, each with an nth of the bytes on every hop
  (Patarasu and Yuan 2009). Hops that share a channel wait for each other. The sum begins once all
  gradients are there, so it is added to the step.

On GPUs that are alike, links included, the shares are equal; of more GPUs than the batch has
samples, as many as those take part. Otherwise they are the whole samples
with which the slowest replica ends first, and no replica gets more than it has memory for. GPUs
without room for a replica take no part; nor do those without which the others are faster, since
they are slow or behind a slow link. Of few GPUs all choices are compared; of many, only those that
leave out the slowest kinds and then one GPU after the other.

A replica may itself be placed on several GPUs: a plan inside data parallelism.

Which ops work on samples follows from their kinds. Where most of the time is in ops of unknown
kinds, the prediction is a guess; where no op is known to work on samples, there is none.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from enplace.names.passes import named_backward
from enplace.placers.batch_shares import (
    Gpus,
    ReplicaSteps,
    apportion,
    best_groups,
    count_turns,
    samples_of,
)
from enplace.placing.prices import about_price, rounds_price_us
from enplace.text import count, listed, percent
from enplace.values.arrays import IntArray
from enplace.values.cluster import Cluster
from enplace.values.op_kinds import OpKind, OpPass
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import CONTROL, Profile
from enplace.values.schedule import Schedule
from enplace.values.splits import carries_samples, data_edges

MANY = 1 << 20
"""Parts of a batch whose number of samples is unknown: its shares need not be whole samples."""

UNTOLD = 0.25
"""A prediction is a guess if kinds of ops say nothing about more than this share of the time."""

TIMED = 0.5
"""Least share of the time that must be in ops with a time on a GPU for a prediction."""

NO_TIMES = "Data parallelism is not predicted: most of the step is in ops without a time on a GPU."

UNKNOWN = (
    "Data parallelism is not predicted: no op is known to work on samples "
    '("kind" says what an op does).'
)
ONE_SAMPLE = "Data parallelism is not predicted: the batch has one sample."
NO_ROOM = "Data parallelism does not fit: fewer than two GPUs have room for the variables."
"""Why there is no prediction."""

_NO_WORK = (OpKind.CONSTANT, OpKind.INPUT, OpKind.UPDATE, OpKind.VARIABLE)
"""Kinds of ops that do no work on samples, whatever they read."""

FULL_SUM = "The gradients are assumed to be as large as the variables."


@dataclass(frozen=True, eq=False)
class Replica:
    """One replica of a model.

    Attributes
    ----------
    gpus : tuple of int
        Its GPUs, as the whole cluster numbers them.
    share : float
        Its share of the batch.
    samples : int or None
        How many samples these are; None if the profile does not say how many a batch has.
    alone : Schedule
        Its step, alone on its devices and without the sum of gradients.
    turns : int
        How many replicas take turns on its chip.
    """

    gpus: tuple[int, ...]
    share: float
    samples: int | None
    alone: Schedule
    turns: int

    @property
    def step_time_us(self) -> float:
        """The time until it has its gradients, after those that come before it on its chip."""
        return self.turns * self.alone.makespan_us


@dataclass(frozen=True, eq=False)
class Replicas:
    """The prediction for one number of replicas.

    Attributes
    ----------
    cluster : Cluster
        All devices, also those of GPUs that take no part.
    replicas : tuple of Replica
    gradient_bytes : int
        What each replica sends around the ring.
    sum_us : float
        The time to sum the gradients of all replicas.
    guess : str
        Why the prediction is a guess, in sentences; empty if it is none.
    is_best : bool
        Whether no other shares are better: all choices of GPUs were compared.
    price_us : float
        What sending its gradients may cost besides (:mod:`enplace.placing.prices`).
    """

    cluster: Cluster
    replicas: tuple[Replica, ...]
    gradient_bytes: int
    sum_us: float
    guess: str = ""
    is_best: bool = False
    price_us: float = 0.0

    @property
    def number(self) -> int:
        """How many replicas there are."""
        return len(self.replicas)

    @property
    def slowest(self) -> Replica:
        """The replica for which the others wait."""
        return max(self.replicas, key=lambda each: each.step_time_us)

    @property
    def step_time_us(self) -> float:
        """The predicted step time."""
        return self.slowest.step_time_us + self.sum_us

    @property
    def fits(self) -> bool:
        """Whether each replica fits on its devices."""
        return all(each.alone.fits for each in self.replicas)

    @property
    def peak_bytes(self) -> int:
        """The peak memory of the fullest GPU."""
        return max(int(each.alone.peak_bytes.max()) for each in self.replicas)

    @property
    def gpus_each(self) -> int:
        """The number of GPUs that one replica has."""
        return len(self.replicas[0].gpus)

    @property
    def sent_bytes(self) -> int:
        """The bytes that all replicas send, and those sent within each."""
        around = 2 * (self.number - 1) * self.gradient_bytes
        return around + sum(int(each.alone.transfer_bytes.sum()) for each in self.replicas)

    @property
    def name(self) -> str:
        """The name on screen: ``data parallel, 4 replicas``."""
        name = f"data parallel, {self.number} replicas"
        return name if self.gpus_each == 1 else f"{name} of {self.replicas[0].alone.plan.method}"

    @property
    def about_shares(self) -> str:
        """The shares of the batch, in a sentence; empty if all GPUs have the same."""
        idle = sorted(set(self.cluster.gpus).difference(*(each.gpus for each in self.replicas)))
        gpus_of: dict[str, list[str]] = defaultdict(list)
        for each in self.replicas:
            whole = each.samples is not None
            share = count(each.samples or 0, "sample") if whole else percent(each.share)
            gpus_of[share].append(" + ".join(self.names(each.gpus)))
        if not idle and len(gpus_of) == 1:
            return ""
        parts = [
            f"{share}{' each' * (len(names) > 1)} on {listed(names)}"
            for share, names in gpus_of.items()
        ]
        parts += [f"none on {listed(self.names(idle))}"] * bool(idle)
        title = "Best shares" if self.is_best else "Shares"
        return f"{title} of the batch: {'; '.join(parts)}."

    @property
    def doubt(self) -> str:
        """Why it may take longer than predicted, in sentences; empty if nothing says so."""
        price = about_price(("its gradients", self.price_us, self.step_time_us))
        return " ".join(filter(None, (self.guess, price)))

    @property
    def about(self) -> str:
        """The shares of the batch, and why it may take longer, in sentences."""
        return " ".join(filter(None, (self.about_shares, self.doubt)))

    def names(self, gpus: Iterable[int]) -> list[str]:
        """Return the names of some devices on screen."""
        return [self.cluster.devices[gpu].label for gpu in gpus]


def mirrored(
    problem: Problem, cancelled: Callable[[], bool] = lambda: False, *, evenly: bool = False
) -> Replicas | None:
    """Predict the model with a replica on every GPU that has room for one.

    None if there is one such GPU, if cancelled, or for what :func:`why_not_mirrored` says.

    Parameters
    ----------
    evenly : bool
        Whether every GPU gets the same share, as frameworks do it by themselves.
    """
    return _predicted(problem, len(problem.cluster.gpus), cancelled, evenly=evenly)


def all_mirrored(problem: Problem, cancelled: Callable[[], bool] = lambda: False) -> list[Replicas]:
    """Predict a replica on every GPU, then fewer, each placed by a plan on several GPUs."""
    gpus = len(problem.cluster.gpus)
    numbers = [n for n in range(gpus, 1, -1) if gpus % n == 0]
    return [found for n in numbers if (found := _predicted(problem, n, cancelled))]


def fastest(rivals: Iterable[Replicas]) -> Replicas | None:
    """Return the one with the least step time of those that fit; None if none does."""
    fitting = [each for each in rivals if each.fits]
    return min(fitting, key=lambda each: each.step_time_us, default=None)


def why_no_shares(problem: Problem) -> str:
    """Say in a sentence why no step with a share of the batch is predicted, memory apart."""
    profile = problem.measured_profile
    if len(problem.cluster.gpus) < 2:
        return ""
    if not _has_times(problem):
        return NO_TIMES
    if not _known_to_work(profile).any():
        return UNKNOWN
    return ONE_SAMPLE if profile.measured.batch_size == 1 else ""


def why_not_mirrored(problem: Problem) -> str:
    """Say in a sentence why there is no prediction: kinds of ops, memory or a single sample."""
    profile, cluster = problem.measured_profile, problem.cluster
    if (why := why_no_shares(problem)) or len(cluster.gpus) < 2:
        return why
    steps = ReplicaSteps(profile, cluster, MANY, lambda: False)
    if sum(steps.have_room((gpu,)) for gpu in cluster.gpus) < 2:
        return NO_ROOM
    return ""


def _predicted(
    problem: Problem, number: int, cancelled: Callable[[], bool], *, evenly: bool = False
) -> Replicas | None:
    cluster, profile = problem.cluster, problem.measured_profile
    samples = profile.measured.batch_size
    if number < 2 or not (_has_times(problem) and _known_to_work(profile).any()):
        return None
    size = len(cluster.gpus) // number
    groups = [tuple(cluster.gpus[i * size : (i + 1) * size]) for i in range(number)]
    steps = ReplicaSteps(profile, cluster, samples or MANY, cancelled)
    alike = evenly or _are_alike(steps, cluster, groups)
    groups = groups if evenly else [group for group in groups if steps.have_room(group)]
    if len(groups) < 2 or steps.n_parts < (len(groups) if evenly else 2):
        return None
    n_bytes, guess = gradient_bytes(profile), _guess(profile)

    def sum_us(taking: Sequence[Gpus]) -> float:
        rings = list(zip(*taking, strict=True))
        return ring_us(cluster, rings, -(-n_bytes // (len(taking) * size))) if n_bytes else 0.0

    if alike:
        chosen, is_best = groups[: steps.n_parts], False
        even = [(0.0, 1.0)] * len(chosen)
        shares = apportion(steps.n_parts, even, [steps.n_parts] * len(chosen))
    else:
        chosen, all_tried = best_groups(steps, groups, sum_us)
        shares, _ = steps.best_shares(chosen)
        is_best = all_tried and size == 1 and all(map(steps.is_line, groups))
    taking = {group: parts for group, parts in zip(chosen, shares, strict=True) if parts}
    turns = count_turns(cluster, list(taking))
    replicas = tuple(
        Replica(group, parts / steps.n_parts, parts if samples else None, step, turns[group])
        for group, parts in taking.items()
        if (step := steps.find(group, parts)) is not None
    )
    if len(replicas) < max(len(taking), 2):
        return None
    found = Replicas(cluster, replicas, n_bytes // size, sum_us(list(taking)), guess, is_best)
    return replace(found, price_us=_price_us(problem, found)) if n_bytes else found


def _has_times(problem: Problem) -> bool:
    """Whether the devices that replicas would have can run the ops that take most of the time."""
    has_time = np.isfinite(problem.time_us[:, problem.cluster.gpus]).any(axis=1)
    time_us = np.nanmin(problem.measured_profile.time_us, axis=1)
    return bool(has_time.any() and time_us[has_time].sum() >= TIMED * time_us.sum())


def _price_us(problem: Problem, found: Replicas) -> float:
    """Return what sending each gradient around the ring may cost besides."""
    gpus = [gpu for each in found.replicas for gpu in each.gpus]
    n_sums = _count_sums(problem.measured_profile, found.gradient_bytes)
    return rounds_price_us(problem, gpus, 2 * (found.number - 1) * n_sums)


FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""PyTorch sums gradients together, in buckets of so many bytes: the first ends early."""


def _count_sums(profile: Profile, n_bytes: int) -> int:
    """Count how often the replicas sum gradients, of so many bytes in all.

    That is what is summed over samples or, where kinds do not tell, the weights; buckets of them in
    PyTorch.
    """
    if profile.measured.framework_name == "torch":
        return 1 + -(-max(n_bytes - FIRST_BUCKET_BYTES, 0) // BUCKET_BYTES)
    if _summed_bytes(profile):
        return int(np.count_nonzero(_sums(profile)))
    return int(np.count_nonzero(_weights(profile)))


def _are_alike(steps: ReplicaSteps, cluster: Cluster, groups: Sequence[Gpus]) -> bool:
    """Whether it does not matter which groups of GPUs take part."""
    turns = count_turns(cluster, groups)
    kinds = {(steps.kind_of(group), turns[group]) for group in groups}
    cost_of = {(k.source, k.target): (k.b0_us, k.b1_us_per_byte) for k in cluster.links}
    rings = zip(*groups, strict=True)
    costs = ({cost_of[hop] for hop in itertools.permutations(ring, 2)} for ring in rings)
    return len(kinds) == 1 and all(len(each) == 1 for each in costs)


def _is_untold(profile: Profile) -> BoolArray:
    """Find the ops whose kind says nothing; shape (n_ops,)."""
    silent = profile.of_kind("", OpKind.OTHER)
    update = np.array([said == OpPass.UPDATE for said in profile.op_passes])
    untold: BoolArray = silent & ~update
    return untold


def _known_to_work(profile: Profile) -> BoolArray:
    """Find the ops that take time and whose kind says that they work on samples."""
    carries, fed = samples_of(profile)
    takes_time = np.nan_to_num(profile.time_us).max(axis=1) > 0
    idle = profile.of_kind(*_NO_WORK)
    found: BoolArray = (carries | fed) & takes_time & ~idle & ~_is_untold(profile)
    return found


def _guess(profile: Profile) -> str:
    """Say why a prediction is a guess, in sentences; empty if it is none."""
    reasons, untold = [], _is_untold(profile)
    time_us = np.nan_to_num(profile.time_us).max(axis=1)
    part = float(time_us[untold].sum() / time_us.sum())
    if part > UNTOLD:
        by_type: dict[str, float] = defaultdict(float)
        for op in np.flatnonzero(untold).tolist():
            by_type[profile.op_types[op]] += time_us[op]
        name = max(by_type, key=lambda each: by_type[each])
        such = f", such as {name}" if name else ""
        reasons.append(
            f"This is a guess: {percent(part)} of the time is in ops whose types say nothing about "
            f"samples{such}."
        )
    if gradient_bytes(profile) and not _summed_bytes(profile):
        reasons.append(FULL_SUM)
    return " ".join(reasons)


def gradient_bytes(profile: Profile) -> int:
    """Estimate the bytes of all gradients of weights; 0 if the step is no training."""
    if not (_has_updates(profile) or named_backward(profile).any()):
        return 0
    weights = int(_weights(profile).sum())
    return min(_summed_bytes(profile) or weights, weights)


def _summed_bytes(profile: Profile) -> int:
    """Sum what ops sum over samples; 0 if kinds do not tell, or without updates."""
    if not _has_updates(profile) or _mix_gradients(profile, carries_samples(profile)):
        return 0
    return int(_sums(profile).sum())


def _sums(profile: Profile) -> IntArray:
    """Return the bytes of each tensor that an op sums over samples."""
    carries, fed = samples_of(profile)
    sums = (fed & ~carries)[profile.tensor_op] & (profile.tensor_output != CONTROL)
    found: IntArray = profile.tensor_bytes[sums]
    return found


def _mix_gradients(profile: Profile, carries: BoolArray) -> bool:
    """Whether an op gives the gradients of both weights and data, so that kinds do not tell."""
    products = np.flatnonzero(carries & profile.of_kind(OpKind.MATMUL)).tolist()
    sources = (profile.edge_source[data_edges(profile, op)] for op in products)
    return any(np.count_nonzero(carries[each]) > 1 for each in sources)


def _has_updates(profile: Profile) -> bool:
    return OpKind.UPDATE in profile.kinds or OpPass.UPDATE in profile.op_passes


def _weights(profile: Profile) -> IntArray:
    """Return the bytes of the variables that ops on samples read, directly or by other ops."""
    carries, fed = samples_of(profile)
    found: IntArray = profile.persistent_bytes[profile.reach(carries | fed, backward=True)]
    return found


def ring_us(cluster: Cluster, rings: list[tuple[int, ...]], n_bytes: int) -> float:
    """Return the time in which rings of devices, all at once, sum tensors; bytes are for a hop."""
    hops = [pair for ring in rings for pair in zip(ring, (*ring[1:], ring[0]), strict=True)]
    loads, n = np.zeros(len(cluster.channels)), cluster.n_devices
    for source, target in hops:
        us = cluster.b0_us[source, target] + cluster.b1_us_per_byte[source, target] * n_bytes
        at = source * n + target
        loads[cluster.route[cluster.route_ptr[at] : cluster.route_ptr[at + 1]]] += us
    return float(2 * (len(rings[0]) - 1) * loads.max())
