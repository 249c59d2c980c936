"""The changes that may make a model fit, from those that need nothing to those that need cards.

Changes of one kind are a ladder: each asks for more than the one before, so the first that fits is
the one to take, or a smaller part of the batch if that is faster. A change makes its problem only
when it is tried, for there may be none: the variables may be too large for a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from enplace.errors import DoesNotFitError
from enplace.frameworks.registry import framework_of
from enplace.frameworks.roofline import GPUS
from enplace.machine.op_passes import backward_ops, state_bytes
from enplace.machine.pipelines.memory import added_by_stages
from enplace.option import Value
from enplace.placers.batch_shares import samples_of, share_of_batch
from enplace.placers.enplace.with_recompute import METHOD as RECOMPUTING
from enplace.placers.enplace.with_recompute import OFFLOADING
from enplace.placers.max_load.memory.mending import find_mends
from enplace.placing.again import Kept
from enplace.placing.options import OFFLOAD, RECOMPUTE, PlaceOptions
from enplace.text import count, size
from enplace.values.batch import measured_otherwise
from enplace.values.cluster import MAX_DEVICES, Cluster, Device
from enplace.values.cluster_variants import HOST_BYTES, THROUGH_HOST, with_gpus, with_host
from enplace.values.op_kinds import OpKind
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem
from enplace.values.profile import Profile

MOST_PARTS = 64
"""Most parts of a batch whose size is not known."""

MOST_TIMES = (1.5, 2, 4)
"""How many times as many GPUs are tried after one more."""

NUMBERS_S = 5.0
"""Seconds for finding the least number of GPUs on which a pipeline fits."""

_UPDATES = "The updates count with the time that they take now, though they move fewer bytes."

_LINKED = "Links that the cluster does not describe are assumed to be PCIe 4, as in 'pcie-2'."


@dataclass(frozen=True, eq=False)
class Change:
    """A change of a problem, and what a step is then.

    Attributes
    ----------
    key : str
        A name for files and programs, such as ``half-batch``.
    title : str
        What a person reads.
    make : callable
        Returns the problem; raises a DoesNotFitError if its variables alone are too large.
    objective : str
    share : float
        Share of the batch that a step has.
    steps : int
        How many such steps are one: those before the last only sum gradients.
    values : mapping
        Options of the method.
    about : str
        What is assumed, in a sentence.
    method : str
        The method; empty for the usual one of the objective.
    parts : tuple of str
        Keys of changes whose plans are also plans with this one.
    """

    key: str
    title: str
    make: Callable[[], Problem]
    objective: str
    share: float = 1.0
    steps: int = 1
    values: Mapping[str, Value] = field(default_factory=dict)
    about: str = ""
    method: str = ""
    parts: tuple[str, ...] = ()


Ladder = Iterable[Change]


def as_it_is(problem: Problem, cluster: Cluster, options: PlaceOptions) -> Change:
    """Return the change that changes nothing.

    Parameters
    ----------
    problem : Problem
        On any cluster with the devices of ``cluster``, such as one with boundless memory.
    """
    make = partial(replace, problem, cluster=cluster)
    return Change("as-it-is", "as it is", make, options.objective, values=options.values)


def list_ladders(problem: Problem, cluster: Cluster, options: PlaceOptions) -> Iterator[Ladder]:
    """Yield the ladders of changes; the arguments are those of :func:`as_it_is`."""
    plain = as_it_is(problem, cluster, options)
    # None of these asks for more than another, and any may be the fastest.
    yield from ([change] for change in _recomputing(problem, plain, cluster))
    if any(device.kind == "gpu" for device in cluster.devices):
        yield from ([change] for change in _offloading(problem, plain, cluster))
    yield _narrower_states(problem, plain, cluster)
    if options.objective == STEP_TIME:
        yield _accumulating(problem, plain, cluster)
    yield _smaller_batches(problem, plain, cluster)
    if any(device.kind == "gpu" for device in cluster.devices):
        yield _with_host(problem, plain, cluster)
        yield _more_cards(problem, plain, cluster, options)
        yield from _larger_cards(problem, plain, cluster)


def _recomputing(problem: Problem, plain: Change, cluster: Cluster) -> Iterator[Change]:
    """Yield a step that runs single ops again, and a pipeline whose stages run all of theirs."""
    if plain.values.get(RECOMPUTE.name) or not backward_ops(problem).any():
        return
    key, title = "recompute", "recompute activations"
    values = {**plain.values, RECOMPUTE.name: True}
    if plain.objective != THROUGHPUT:
        if Kept(problem).can.any():
            yield replace(plain, key=key, title=title, method=RECOMPUTING)
        key, values = "pipeline-recompute", {RECOMPUTE.name: True}
        title = "a pipeline of batches that recomputes activations"
    if len(cluster.gpus) > 1:
        yield replace(plain, key=key, title=title, objective=THROUGHPUT, values=values)


def _offloading(problem: Problem, plain: Change, cluster: Cluster) -> Iterator[Change]:
    """Yield a step that keeps on the host what backward ops read, and one that may recompute."""
    if plain.objective != STEP_TIME or not backward_ops(problem).any():
        return
    if cluster.n_devices == MAX_DEVICES and not cluster.cpus:
        return
    about = "" if cluster.cpus else _LINKED
    hosted = cluster if cluster.cpus else with_host(cluster)
    # The variables may be too large for the cluster itself.
    roomy = problem if cluster.cpus else replace(problem, cluster=with_host(problem.cluster))
    kept = Kept(roomy, offload=True)
    if not kept.can_send.any():
        return
    host = "the host" if cluster.cpus else f"a host with {size(HOST_BYTES)}"
    title = f"keep activations on {host}"
    make = partial(replace, problem, cluster=hosted)
    sent = replace(plain, key="offload", title=title, make=make, about=about, method=OFFLOADING)
    yield sent
    if kept.can.any():
        yield replace(
            sent,
            key="offload-recompute",
            title=f"{title}, or recompute them",
            method=RECOMPUTING,
            values={**plain.values, OFFLOAD.name: True},
            parts=("recompute", "offload"),
        )


def _narrower_states(problem: Problem, plain: Change, cluster: Cluster) -> Ladder:
    """Return the model whose optimiser keeps its states in fewer bits, if that can be done."""
    profile = problem.measured_profile
    way, states = framework_of(profile).narrow_states, state_bytes(profile)
    used = dict.fromkeys(
        kind
        for op, kind in enumerate(profile.op_types)
        if profile.kinds[op] == OpKind.UPDATE and kind[:1].isupper()
    )
    if way is None or (way.optimisers and not {*used} <= {*way.optimisers}):
        return ()
    bits = profile.measured.state_bits
    kept = min(way.bits / bits * (1 + way.overhead), 1.0)
    saved = np.where(states < way.least_numbers * bits / 8, 0, (1 - kept) * states).astype(np.int64)
    if not saved.any():
        return ()
    note = f"States of the optimiser count with {way.bits} bits instead of {bits}."
    measured = replace(
        profile.measured, peak_bytes={}, state_bits=way.bits, notes=(*profile.measured.notes, note)
    )
    narrow = replace(
        profile,
        persistent_bytes=profile.persistent_bytes - saved,
        state_bytes=np.zeros_like(saved),
        measured=measured,
    )
    about = [way.about.format(each) for each in used] if way.optimisers else [way.about]
    return (
        replace(
            plain,
            key=f"states-{way.bits}-bits",
            title=f"optimiser states in {way.bits} bits, {size(float(saved.sum()))} less",
            make=partial(replace, problem, measured_profile=narrow, cluster=cluster),
            about=" ".join([*about, _UPDATES]),
        ),
    )


def _parts(profile: Profile) -> tuple[int, Iterator[int]]:
    """Return the batch size, or 0, and the numbers of parts that a batch may be cut into."""
    batch = profile.measured.batch_size or 0
    carries, fed = samples_of(profile)
    if profile.measured.backward is not None or not (carries | fed).any():
        return batch, iter(())
    most = batch or MOST_PARTS
    powers = [1 << n for n in range(1, most.bit_length())]
    return batch, (n for n in dict.fromkeys([*powers, batch]) if n > 1 and most % n == 0)


def _smaller_batches(problem: Problem, plain: Change, cluster: Cluster) -> Ladder:
    batch, numbers = _parts(problem.measured_profile)
    return [
        replace(
            plain,
            key=f"batch-{batch // n}" if batch else f"batch-1-of-{n}",
            title=f"a batch of {batch // n} instead of {batch}" if batch else f"1/{n} of the batch",
            make=partial(_with_share, problem, cluster, n),
            share=1 / n,
        )
        for n in numbers
    ]


def _accumulating(problem: Problem, plain: Change, cluster: Cluster) -> Ladder:
    batch, numbers = _parts(problem.measured_profile)
    key, before, after = "parts", "the batch in", "parts"
    if backward_ops(problem).any():
        key, before, after = "accumulate", "accumulate gradients over", "batches"
    return [
        replace(
            plain,
            key=f"{key}-{n}",
            title=f"{before} {n} {after}" + (f" of {batch // n}" if batch else ""),
            make=partial(_with_share, problem, cluster, n, sums=True),
            share=1 / n,
            steps=n,
        )
        for n in numbers
    ]


def _with_share(problem: Problem, cluster: Cluster, parts: int, *, sums: bool = False) -> Problem:
    """Return the problem of a part of the batch; with ``sums``, gradients of all parts are kept."""
    profile = problem.measured_profile
    shared = share_of_batch(profile, 1 / parts)
    shared = replace(shared, measured=measured_otherwise(profile.measured))
    if sums and backward_ops(problem).any():
        kept = shared.persistent_bytes.copy()
        summed = np.flatnonzero(added_by_stages(problem))
        np.add.at(kept, shared.tensor_op[summed], shared.tensor_bytes[summed])
        shared = replace(shared, persistent_bytes=kept)
    return replace(problem, measured_profile=shared, cluster=cluster)


def _with_host(problem: Problem, plain: Change, cluster: Cluster) -> Ladder:
    """Return the cluster with a host, if any variable may be there."""
    profile = problem.measured_profile
    may_be_there = np.isfinite(profile.time_us[:, 1]) & (profile.persistent_bytes > 0)
    if cluster.cpus or cluster.n_devices == MAX_DEVICES or not may_be_there.any():
        return ()
    title = f"a host with {size(HOST_BYTES)} for the variables that may be there"
    make = partial(replace, problem, cluster=with_host(cluster))
    return (replace(plain, key="host", title=title, make=make, about=_LINKED),)


def _more_cards(
    problem: Problem, plain: Change, cluster: Cluster, options: PlaceOptions
) -> Iterator[Change]:
    """Yield more cards like the first one; for pipelines, as many as they are known to fit on."""
    n = len(cluster.gpus)
    about = _LINKED if n == 1 else ""
    wanted = [(k, False) for k in sorted({n + 1, *(math.ceil(times * n) for times in MOST_TIMES)})]
    if plain.objective == THROUGHPUT:
        stop = options.stop.until(options.seconds + NUMBERS_S)
        found = find_mends(_with_room(problem, cluster), options.load_rule, stop)
        wanted = [(fit.n_gpus, fit.recompute) for fit in found if fit.n_gpus > n] or wanted
    for k, recompute in wanted:
        if k + len(cluster.cpus) > MAX_DEVICES:
            return
        more = with_gpus(cluster, k, THROUGH_HOST)
        values = {**plain.values, RECOMPUTE.name: True} if recompute else plain.values
        yield replace(
            plain,
            key=f"{k}-gpus{'-recompute' if recompute else ''}",
            title=f"{count(k - n, 'more GPU')}{' and recomputation' if recompute else ''} "
            f"({k} in all)",
            make=partial(replace, problem, cluster=more),
            values=values,
            about=about,
        )


def _with_room(problem: Problem, cluster: Cluster) -> Problem:
    """Return the problem on the fewest GPUs like those of a cluster that hold its variables."""
    for n in range(len(cluster.gpus), MAX_DEVICES - len(cluster.cpus)):
        with suppress(DoesNotFitError):
            return replace(problem, cluster=with_gpus(cluster, n, THROUGH_HOST))
    return problem


def _larger_cards(problem: Problem, plain: Change, cluster: Cluster) -> Iterator[Ladder]:
    """Yield larger cards in the place of all GPUs, and the fastest of them by itself."""
    smallest = min(cluster.gpus, key=lambda gpu: cluster.devices[gpu].memory_bytes)
    cards = list(larger_than(cluster.devices[smallest]))
    fastest = [card for card in cards if 0 < card.speed == max(each.speed for each in cards)][:1]
    for some in ([card for card in cards if card not in fastest], fastest):
        yield [_with_cards(problem, plain, cluster, card) for card in some]


def _with_cards(problem: Problem, plain: Change, cluster: Cluster, card: Card) -> Change:
    devices = list(cluster.devices)
    for gpu in cluster.gpus:
        device = devices[gpu]
        if device.memory_bytes < card.memory_bytes:
            devices[gpu] = replace(
                device,
                capacity_bytes=card.memory_bytes - device.reserve_bytes,
                speed=card.speed or device.speed,
            )
    larger = replace(cluster, devices=tuple(devices))
    return replace(
        plain,
        key=f"gpus-of-{card.memory_bytes >> 30}GiB",
        title=card.title,
        make=partial(replace, problem, cluster=larger),
    )


class Card(NamedTuple):
    """A larger card: what to call it, its memory, and its speed; 0 if that is not known."""

    title: str
    memory_bytes: int
    speed: float


def larger_than(device: Device) -> Iterator[Card]:
    """Yield larger cards; of those of one size, the one with the nearest speed is taken."""
    own = GPUS.get(device.model)
    if own is None:
        alike = (gpu for gpu in GPUS.values() if gpu.speed == device.speed)
        own = next((gpu for gpu in alike if gpu.memory_bytes == device.memory_bytes), None)
    for n_bytes in sorted({gpu.memory_bytes for gpu in GPUS.values()}):
        if n_bytes <= device.memory_bytes:
            continue
        if own is None:
            yield Card(f"GPUs of {size(n_bytes)}, as fast as now", n_bytes, 0.0)
            continue
        sized = [gpu for gpu in GPUS.values() if gpu.memory_bytes == n_bytes]
        card = min(sized, key=lambda gpu: abs(np.log(gpu.speed / own.speed)))
        speed = device.speed * card.speed / own.speed
        yield Card(
            f"{card.title} of {size(n_bytes)}, speed {speed:.2g} instead of {device.speed:.2g}",
            n_bytes,
            speed,
        )
