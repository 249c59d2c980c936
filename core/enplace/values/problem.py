"""The problem: a profile, a cluster, and constraints."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from enplace.errors import (
    CycleError,
    DoesNotFitError,
    OrderError,
    PinConflictError,
    ProblemError,
    SplitError,
    UnplaceableOpError,
)
from enplace.text import count, size
from enplace.values.arrays import BoolArray as BoolArray
from enplace.values.arrays import inverse
from enplace.values.cluster import Cluster
from enplace.values.components import components
from enplace.values.constraints import DEVICE, NONE, OP, Constraints, same
from enplace.values.pins import Pins, as_pins
from enplace.values.profile import (
    KINDS,
    FloatArray,
    IntArray,
    Profile,
    check_pairs,
    with_control_edges,
)
from enplace.values.splits import Split, ends_of, rewriting, split_profile
from enplace.values.splits.again import may_run_again, without_copies

STEP_TIME, THROUGHPUT, LATENCY = "step-time", "throughput", "latency"
"""Objectives: the makespan of one step, the time per sample of a pipeline, and the latency of one
query if accelerators run whole subgraphs (Tarnawski et al. 2020)."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A profile to place on a cluster under constraints.

    Attributes
    ----------
    measured_profile, cluster
        The graph with its costs, and the machine.
    constraints : Constraints
        What a person demands; :attr:`pins`, :attr:`together`, :attr:`forbidden`, :attr:`before`
        and :attr:`locked` are parts of it. An order that an edge of the graph implies is left out.
    splits : tuple of Split
        The splits that this profile's graph already contains; see :func:`split_problem`.
    any_copies : bool
        Whether plans may also compute ops again, or keep what they make on the host, in any way.
        What is proven then holds for the graphs of all of these plans.
    profile : Profile
        The graph that is placed: the measured one with a control edge for each order.

    Raises
    ------
    ProblemError
        One of its subclasses: an op that no device can run, pins that contradict each other or a
        colocation group, ops that would wait for each other, or variables that can never fit.
    """

    measured_profile: Profile
    cluster: Cluster
    constraints: Constraints = NONE
    splits: tuple[Split, ...] = ()
    any_copies: bool = False
    profile: Profile = field(init=False)

    def __post_init__(self) -> None:
        measured = self.measured_profile
        check_pairs(len(self.constraints["before"]))
        self._check_numbers()
        pins = as_pins(self.constraints["pin"], measured.n_ops, self.cluster.n_devices)
        before = _without_implied(measured, self.constraints["before"])
        constraints = self.constraints.replaced(pins=pins, before=before)
        object.__setattr__(self, "constraints", constraints)
        object.__setattr__(self, "profile", _ordered(measured, before))
        self._check_kinds()
        self._check_units()
        self._check_memory()

    def __repr__(self) -> str:
        return f"<Problem of {self.profile.name} on {self.cluster.name}>"

    @property
    def pins(self) -> Pins:
        """Device number by number of the op that must run there."""
        pins: Pins = self.constraints["pin"]
        return pins

    @property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Ops that must share a device, in addition to the profile's own groups."""
        return tuple(self.constraints["colocate"])

    @property
    def forbidden(self) -> frozenset[tuple[int, int]]:
        """(op, device) pairs that must not be used."""
        return frozenset(self.constraints["forbid"])

    @property
    def before(self) -> tuple[tuple[int, int], ...]:
        """Pairs of ops, the first of which must end before the second starts."""
        return tuple(self.constraints["before"])

    @property
    def locked(self) -> frozenset[int]:
        """Devices that only run what is pinned to them."""
        return frozenset(self.constraints["lock"])

    @property
    def pinned_to(self) -> IntArray:
        """The device that each op is pinned to, :data:`~enplace.values.pins.FREE` without a pin."""
        return self.pins.device

    def constrained(self, **rows: Any) -> Problem:
        """Return the problem with other constraints of some kinds, by their fields."""
        constraints = self.constraints.replaced(**rows)
        return self if constraints == self.constraints else replace(self, constraints=constraints)

    @cached_property
    def time_us(self) -> FloatArray:
        """Compute times, shape (n_ops, n_devices); inf where an op cannot run."""
        return _times_us(self.profile, self.cluster)

    @cached_property
    def unit(self) -> IntArray:
        """Number of the placement unit of each op: ops of one unit share a device; shape (n_ops,).

        Units are numbered by their first op.
        """
        return _units(self.profile.colocation, self.together)

    @cached_property
    def n_units(self) -> int:
        return int(self.unit.max()) + 1

    @cached_property
    def unit_allowed(self) -> BoolArray:
        """Whether a unit may be placed on a device; shape (n_units, n_devices)."""
        op_allowed = np.isfinite(self.time_us)
        for kind in self.constraints:
            kind.restrict(self, op_allowed)
        allowed = np.ones((self.n_units, self.cluster.n_devices), dtype=bool)
        for device in range(self.cluster.n_devices):
            allowed[self.unit[~op_allowed[:, device]], device] = False
        return allowed

    @property
    def device_sets(self) -> tuple[BoolArray, IntArray]:
        """The distinct rows of :attr:`unit_allowed`, and the number of each unit's row."""
        code = np.zeros(self.n_units, dtype=np.int64)
        for allowed in self.unit_allowed.T:
            code = 2 * code + allowed
            code = (np.cumsum(np.bincount(code) > 0) - 1)[code]  # no gaps, so they stay small
        some_unit = np.zeros(code.max() + 1, dtype=np.int64)
        some_unit[code] = np.arange(self.n_units)
        return self.unit_allowed[some_unit], code

    @cached_property
    def costs_digest(self) -> str:
        """A hash of all times, sizes and capacities, whatever the devices are called."""
        profile, cluster = self.measured_profile, self.cluster
        own = self.time_us, profile.tensor_bytes, profile.persistent_bytes, profile.temporary_bytes
        links = cluster.b0_us, cluster.b1_us_per_byte, cluster.route_ptr, cluster.route
        digest = hashlib.blake2b(digest_size=8)
        for numbers in (*own, *links, cluster.capacity_bytes, cluster.lanes, cluster.lane_owner):
            digest.update(np.ascontiguousarray(numbers, dtype=np.float64).tobytes())
        return digest.hexdigest()

    @property
    def unit_persistent_bytes(self) -> IntArray:
        """Persistent bytes of each unit; shape (n_units,)."""
        total = np.zeros(self.n_units, dtype=np.int64)
        np.add.at(total, self.unit, self.profile.persistent_bytes)
        return total

    @cached_property
    def with_any_copies(self) -> Problem:
        """The graph without what was added to it, where plans may add copies in any way."""
        again = tuple(split for split in self.splits if not split.is_cut)
        if not again:
            return self if self.any_copies else replace(self, any_copies=True)
        profile = without_copies(self.measured_profile, again)
        own = range(profile.n_ops)  # what was added comes last
        together = [tuple(op for op in group if op in own) for group in self.together]
        constraints = self.constraints.replaced(together=together)
        constraints = constraints.mapped(lambda op: (op,) if op in own else (), same)
        splits = tuple(split for split in self.splits if split.is_cut)
        return Problem(profile, self.cluster, constraints, splits, any_copies=True)

    @cached_property
    def running_bytes(self) -> IntArray:
        """The least bytes that a device holds while it runs each op, in any plan; shape (n_ops,).

        If all readers read a copy, what the op makes is only there with the copy, which may run
        elsewhere; and each output may be that of another copy.
        """
        if not self.any_copies:
            return self.profile.running_bytes
        there = np.isfinite(self.time_us).sum(axis=1) == 1
        return self.profile.bytes_to_run(self.is_made_at_once(there))

    def is_made_at_once(self, some: BoolArray) -> BoolArray:
        """Return which tensors one run of their op makes together, copies of it allowed.

        Shape (n_tensors,). All those of an op that may not be repeated are, and the largest one of
        some others.
        """
        profile = self.profile
        repeats, some = self.may_repeat[profile.tensor_op], some[profile.tensor_op]
        return ~repeats | (some & profile.is_largest_output)

    @cached_property
    def may_repeat(self) -> BoolArray:
        """Whether each op may be computed again; shape (n_ops,)."""
        profile = self.profile
        return np.array([may_run_again(profile, op) for op in range(profile.n_ops)])

    def fault(self, op: int, device: int) -> str:
        """Say which constraint forbids an op a device, as a clause; "" if none does."""
        faults = (kind.fault(self, op, device) for kind in self.constraints)
        return next(filter(None, faults), "")

    def _name(self, op: int) -> str:
        return f"op '{self.profile.op_names[op]}'"

    def _names(self, ops: IntArray) -> str:
        """Return the ops of a unit as the subject of a sentence, with its verb."""
        if len(ops) == 1:
            return f"{self._name(int(ops[0]))} has"
        return (
            f"{self._name(int(ops[0]))} and the {count(len(ops) - 1, 'op')} colocated with it have"
        )

    def _check_numbers(self) -> None:
        n_ops, n_devices = self.measured_profile.n_ops, self.cluster.n_devices
        rest = self.constraints.replaced(pins=())  # thousands of pins are checked as an array
        for kind, rows in rest.items():
            for role, n in ((OP, n_ops), (DEVICE, n_devices)):
                numbers = kind.numbers(rows, role)
                if len(wrong := numbers[(numbers < 0) | (numbers >= n)]):
                    raise ProblemError(
                        f"{kind.key} names {role} number {wrong[0]}, which does not exist"
                    )

    def _check_kinds(self) -> None:
        nowhere = np.flatnonzero(~np.isfinite(self.time_us).any(axis=1))
        if len(nowhere):
            op = int(nowhere[0])
            kind = KINDS[int(np.flatnonzero(~np.isnan(self.profile.time_us[op]))[0])]
            raise UnplaceableOpError(
                f"{self._name(op)} runs only on a {kind}, and cluster '{self.cluster.name}' has "
                f"none; "
                f"choose a cluster with a {kind} device"
            )

    def _check_units(self) -> None:
        sets, set_of = self.device_sets
        nowhere = np.flatnonzero(sets.sum(axis=1)[set_of] == 0)
        if not len(nowhere):
            return
        members = np.flatnonzero(self.unit == nowhere[0])
        names = [device.name for device in self.cluster.devices]
        pinned = [op for op in members.tolist() if op in self.pins]
        for op in pinned:
            device = self.pins[op]
            fault = self.fault(op, device)
            if not np.isfinite(self.time_us[op, device]):
                fault = "it cannot run there"
            if fault:
                raise PinConflictError(
                    f"{self._name(op)} is pinned to {names[device]}, but {fault}; move the pin"
                )
            if device != self.pins[pinned[0]]:
                raise PinConflictError(
                    f"{self._name(pinned[0])} is pinned to {names[self.pins[pinned[0]]]} and "
                    f"{self._name(op)} to {names[device]}, but they are colocated; pin both to "
                    f"one device"
                )
        kinds = [f"{kind.noun}s" for kind in self.constraints if kind.is_mask]
        kinds += ["colocations"] if len(members) > 1 else []
        raise UnplaceableOpError(
            f"{self._names(members)} no device left; remove one of the {' or '.join(kinds)}"
        )

    def _check_memory(self) -> None:
        capacity, need = self.cluster.capacity_bytes, self.unit_persistent_bytes
        sets, set_of = self.device_sets
        largest = np.where(sets, capacity, 0).max(axis=1)[set_of]
        too_big = np.flatnonzero(need > largest)
        if len(too_big):
            members = np.flatnonzero(self.unit == too_big[0])
            raise DoesNotFitError(
                f"{self._names(members)} variables of {size(need[too_big[0]])}, more than the "
                f"{size(largest[too_big[0]])} of any allowed device; "
                f"choose larger devices or split the variable"
            )
        need_of_set = np.zeros(len(sets), dtype=np.int64)
        np.add.at(need_of_set, set_of, need)
        for devices in sets:
            inside = (sets <= devices).all(axis=1)
            total, memory = int(need_of_set[inside].sum()), sum(capacity[devices].tolist())
            if total > memory:
                names = [self.cluster.devices[d].name for d in np.flatnonzero(devices)]
                raise DoesNotFitError(
                    f"variables of {size(total)} cannot fit the {size(memory)} of "
                    f"{', '.join(names)}; choose a larger cluster or remove pins"
                )


@lru_cache(maxsize=4)
def _times_us(profile: Profile, cluster: Cluster) -> FloatArray:
    """Return the times of all ops; problems that differ in their constraints share them."""
    times = profile.time_us[:, cluster.kind] / cluster.speed
    return np.where(np.isnan(times), np.inf, times)


@lru_cache(maxsize=4)
def _units(colocation: tuple[str, ...], together: tuple[tuple[int, ...], ...]) -> IntArray:
    """Number the placement units; results are cached, as pins change more often than groups."""
    first_of: dict[str, int] = {}
    ties = [(first_of.setdefault(group, op), op) for op, group in enumerate(colocation) if group]
    ties += [(ops[0], op) for ops in together for op in ops]
    n = len(colocation)
    ends = np.array(ties, dtype=np.int64).reshape(-1, 2)
    label = components(n, ends[:, 0], ends[:, 1])
    _, first, of_op = np.unique(label, return_index=True, return_inverse=True)
    unit = inverse(np.argsort(first))[of_op]
    unit.flags.writeable = False
    return unit


def split_problem(problem: Problem, splits: tuple[Split, ...]) -> Problem:
    """Return the problem of the split graph, or the problem itself if it has these splits already.

    Constraints of an op hold for all of its parts.

    Raises
    ------
    SplitError
        If the graph does not allow the splits, or already has other splits.
    ProblemError
        If the parts cannot be placed.
    """
    if splits == problem.splits:
        return problem
    if problem.splits:
        raise SplitError(
            f"the plan {rewriting(splits) or 'keeps ops whole'}, the graph "
            f"{rewriting(problem.splits)}; load the plan for the model as it was measured"
        )
    profile = split_profile(problem.measured_profile, splits)
    parts = {split.op: ends_of(split) for split in splits}

    def named(name: str) -> list[str]:
        found = parts.get(name, [name])
        return [end for part in found for end in ([part] if part == name else named(part))]

    def ends(op: int) -> list[int]:
        return [profile.index[name] for name in named(problem.profile.op_names[op])]

    return Problem(profile, problem.cluster, problem.constraints.mapped(ends, same), splits)


def _without_implied(profile: Profile, before: tuple[tuple[int, int], ...]) -> Any:
    """Leave out the pairs of ops that an edge of the graph orders."""
    if not before:
        return before
    pairs, n = np.array(before, dtype=np.int64), profile.n_ops
    code, known = pairs @ [n, 1], profile.edge_source * n + profile.edge_op
    return tuple(map(tuple, pairs[~np.isin(code, known)].tolist()))


def _ordered(profile: Profile, before: tuple[tuple[int, int], ...]) -> Profile:
    """Let the second op of each pair wait for the first, across devices for a message too."""
    if not before:
        return profile
    try:
        return with_control_edges(profile, before)
    except CycleError as error:
        raise OrderError(
            f"ops would wait for each other: {error.cycle}; choose an order that follows the graph"
        ) from None
