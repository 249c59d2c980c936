"""Placements near a given one: other cuts, exchanged parts, fewer transfers, devices in order.

Nothing here promises that a placement is as good as the given one: :mod:`enplace.placing.ties`
looks at each. A *part* is a set of placement units of one device that move together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations

import numpy as np

from enplace.coarsen import mean_link
from enplace.machine.op_passes import backward_ops, work_per_sample_us
from enplace.names.layers import parts_of
from enplace.values.arrays import BoolArray, FloatArray, IntArray
from enplace.values.cluster import Device
from enplace.values.plan import Plan
from enplace.values.problem import THROUGHPUT, Problem
from enplace.values.schedule import Schedule

MOST_CUTS = 160
"""Most places where a graph is cut anew: those that send least, spread evenly."""

SEARCHED = 12
"""Halvings of the largest share of memory, while a cut of the graph is sought that needs less."""

LOOSER = (0.0, 0.05, 0.2, 0.5)
"""How far the largest share may be above the least found, as a part of what there is to gain."""

MOST_PARTS, MOST_MOVES = 100, 60
"""Most parts of a device that are exchanged, and most exchanges of a plan that are tried."""

MOST_TURNED = 4
"""Most devices in a row that are tried in other orders."""

PAIRED = 14
"""Most units of a device of which two are exchanged at once."""

APART = 0.02
"""How far the times of two exchanged parts may be apart, as a share of the objective, for the
exchange to be among the first that are tried."""

DEPTH = 4
"""Most parts of a scope by which ops are grouped."""


TIE = 0.001
"""Share by which the objective of a plan may be larger than the best one found."""


@dataclass(frozen=True, eq=False)
class Around:
    """A plan, and the placements around it.

    Attributes
    ----------
    schedule : Schedule
        The plan, simulated.
    peak_bytes : int array, shape (n_devices,)
    limit_us : float
        The largest load of a device, or the largest sum of all times, that still counts as equal.
    """

    schedule: Schedule
    peak_bytes: IntArray
    limit_us: float

    def placements(self) -> Iterator[IntArray]:
        """Yield placements that may need less memory where the plan needs most; (n_ops,) each."""
        yield from self._other_cuts()
        yield from self._exchanges()

    @property
    def plan(self) -> Plan:
        return self.schedule.plan

    @cached_property
    def device(self) -> IntArray:
        """The device of each unit; shape (n_units,)."""
        found = np.zeros(self.problem.n_units, dtype=np.int64)
        found[self.problem.unit] = self.plan.device
        return found

    @property
    def problem(self) -> Problem:
        return self.schedule.problem

    @cached_property
    def gpus(self) -> list[int]:
        return self.problem.cluster.gpus

    @cached_property
    def fullest(self) -> int:
        """The GPU with the largest share of its memory in use."""
        share = self.peak_bytes / self.problem.cluster.capacity_bytes
        return max(self.gpus, key=lambda gpu: float(share[gpu]))

    @cached_property
    def unit_bytes(self) -> FloatArray:
        """What each unit adds to the peak of its device, about; shape (n_units,).

        Outputs count as much as all of them together add to the peaks.
        """
        problem, profile = self.problem, self.problem.profile
        outputs = np.bincount(
            problem.unit[profile.tensor_op], profile.held_bytes, minlength=problem.n_units
        )
        kept = problem.unit_persistent_bytes
        passing = float(self.peak_bytes.sum() - kept.sum())
        total: FloatArray = kept + outputs * max(0.0, passing / max(outputs.sum(), 1.0))
        return total

    @cached_property
    def unit_us(self) -> FloatArray:
        """The time of each unit on each device, in a step or for a sample; (n_units, n_devices)."""
        rule = self.plan.load_rule
        times = np.zeros(self.problem.unit_allowed.shape)
        work_us = work_per_sample_us(self.problem, rule.microbatches if rule else 1)
        np.add.at(times, self.problem.unit, work_us)
        return times

    @cached_property
    def movable(self) -> BoolArray:
        """Whether a unit is on a GPU and may run on another one; shape (n_units,)."""
        choices = self.problem.unit_allowed[:, self.gpus].sum(axis=1)
        movable: BoolArray = (choices > 1) & np.isin(self.device, self.gpus)
        return movable

    @cached_property
    def key(self) -> FloatArray:
        """How far along the graph each unit is; a backward op is where its forward op is."""
        problem, profile = self.problem, self.problem.profile
        backward = backward_ops(problem).tolist()
        inputs, sources = np.diff(profile.in_ptr).tolist(), profile.edge_source
        key = np.empty(profile.n_ops)
        key[profile.topological_order] = np.arange(profile.n_ops)
        first_use = np.full(profile.n_ops, np.inf)
        np.minimum.at(first_use, sources, key[profile.edge_op])
        is_source = (np.diff(profile.in_ptr) == 0) & np.isfinite(first_use)
        key[is_source] = first_use[is_source] - 0.5
        along = key.tolist()
        if any(backward):
            for op in profile.topological_order.tolist():
                if not backward[op] or not inputs[op]:
                    continue
                before = sources[profile.edges_into(op)]
                forward = [along[each] for each in before.tolist() if not backward[each]]
                along[op] = max(forward) if forward else min(along[each] for each in before)
        late = profile.n_ops * np.array(backward)
        found = np.full(problem.n_units, np.inf)
        np.minimum.at(found, problem.unit, np.array(along) + late)
        return np.where(found >= profile.n_ops, found - profile.n_ops, found)

    def _ops(self, device: IntArray) -> IntArray:
        """Return the device of each op for those of the units."""
        return device[self.problem.unit]

    # Other cuts: the units of some devices, in their order along the graph, are cut anew.

    def _other_cuts(self) -> Iterator[IntArray]:
        mean = {
            gpu: float(self.key[self.movable & (self.device == gpu)].mean())
            for gpu in self.gpus
            if (self.movable & (self.device == gpu)).any()
        }
        row = sorted(mean, key=mean.__getitem__) + [gpu for gpu in self.gpus if gpu not in mean]
        spans = [(a, b) for a, b in combinations(range(len(row)), 2)]
        at = row.index(self.fullest)
        spans.sort(key=lambda span: (not span[0] <= at <= span[1], span[0] - span[1]))
        for a, b in spans[:MOST_MOVES]:
            yield from self._cut_anew(row[a : b + 1])

    def _cut_anew(self, row: list[int]) -> Iterator[IntArray]:
        place = {gpu: i for i, gpu in enumerate(row)}
        units = np.flatnonzero(self.movable & np.isin(self.device, row))
        if not len(units):
            return
        rank = np.array([place[d] for d in self.device[units].tolist()])
        order = np.lexsort((self.key[units], rank))
        units, rank = units[order], rank[order]
        cost_us = self._cut_us(units)
        current = np.searchsorted(rank, np.arange(1, len(row)))
        cuts = _places(cost_us, current)
        stages = self._stages(units, row, cuts, cost_us[cuts])
        old = np.searchsorted(cuts, [0, *current, len(units)])
        devices = [self.problem.cluster.devices[gpu] for gpu in row]
        for turn, ends in stages.find(old, _turns(devices)):
            device = self.device.copy()
            for number, at in enumerate(turn):
                device[units[cuts[ends[number]] : cuts[ends[number + 1]]]] = row[at]
            yield self._ops(device)

    def _cut_us(self, units: IntArray) -> FloatArray:
        """Return what is sent across each cut of some units in a row; shape (n + 1,)."""
        profile, n = self.problem.profile, len(units)
        at = np.full(self.problem.n_units, -1)
        at[units] = np.arange(n)
        maker = at[self.problem.unit[profile.tensor_op]]
        user, tensor = at[self.problem.unit[profile.edge_op]], profile.edge_tensor
        inside = (maker[tensor] >= 0) & (user >= 0)
        low, high = maker.copy(), maker.copy()
        np.minimum.at(low, tensor[inside], user[inside])
        np.maximum.at(high, tensor[inside], user[inside])
        sent = np.flatnonzero((maker >= 0) & (high > low))
        link = mean_link(self.problem.cluster)
        us = link.transfer_us(profile.tensor_bytes[sent])
        change = np.zeros(n + 2)
        np.add.at(change, low[sent] + 1, us)
        np.subtract.at(change, high[sent] + 1, us)
        across: FloatArray = np.maximum(np.cumsum(change)[: n + 1], 0.0)
        return across

    def _stages(
        self, units: IntArray, row: list[int], cuts: IntArray, cost_us: FloatArray
    ) -> _Stages:
        """Tabulate what each device would hold and do between any two cuts."""
        capacity = self.problem.cluster.capacity_bytes[row]
        here = np.isin(np.arange(len(self.device)), units, invert=True)
        sums = np.concatenate([[0.0], np.cumsum(self.unit_bytes[units])])[cuts]
        share, work_us, allowed = [], [], []
        for number, gpu in enumerate(row):
            base = self.unit_bytes[here & (self.device == gpu)].sum()
            share.append((base + sums[None, :] - sums[:, None]) / capacity[number])
            barred = ~self.problem.unit_allowed[units, gpu]
            us = np.where(barred, 0.0, self.unit_us[units, gpu])
            done = np.concatenate([[0.0], np.cumsum(us)])[cuts]
            work_us.append(done[None, :] - done[:, None])
            none = np.concatenate([[0], np.cumsum(barred)])[cuts]
            allowed.append(none[None, :] == none[:, None])
        return _Stages(
            np.array(share),
            np.array(work_us),
            np.array(allowed),
            cost_us,
            self.limit_us,
            self.plan.objective == THROUGHPUT,
        )

    # Exchanges: a part of the fullest device goes elsewhere, perhaps for another one.

    def _exchanges(self) -> Iterator[IntArray]:
        full, capacity = self.fullest, self.problem.cluster.capacity_bytes
        share, gives = self.peak_bytes / capacity, self._parts(full)
        own_us = self.unit_us[np.arange(len(self.device)), self.device]
        loads_us = np.bincount(self.device, own_us, len(capacity))
        found: list[tuple[bool, float, int, IntArray, IntArray]] = []
        for gpu in self.gpus:
            if gpu == full:
                continue
            takes = [np.array([], dtype=np.int64), *self._parts(gpu)]
            given_bytes, given_us = self._sizes(gives, full, gpu)
            taken_bytes, taken_us = self._sizes(takes, gpu, full)
            more = given_bytes[:, None] - taken_bytes[None, :]
            after = np.maximum(
                share[full] - more / capacity[full], share[gpu] + more / capacity[gpu]
            )
            apart_us = np.abs(given_us[:, None] - taken_us[None, :])
            apart_us[:, 0] = np.where(np.isfinite(given_us), 0.0, np.inf)
            useful = (after < share[full]) & np.isfinite(apart_us)
            if self.plan.objective == THROUGHPUT:
                moved_us = given_us[:, None] - taken_us[None, :]
                useful &= loads_us[gpu] + moved_us <= self.limit_us
                useful &= loads_us[full] - moved_us <= self.limit_us
                apart_us[:] = 0.0
            unlike = apart_us > APART * self.limit_us
            pairs = zip(*(at.tolist() for at in np.nonzero(useful)), strict=True)
            found += [
                (bool(unlike[a, b]), float(after[a, b]), gpu, gives[a], takes[b]) for a, b in pairs
            ]
        found.sort(key=lambda each: (*each[:3], len(each[3]) + len(each[4])))
        for _, _, gpu, given, taken in found[:MOST_MOVES]:
            device = self.device.copy()
            device[given], device[taken] = gpu, full
            yield self._ops(device)

    def _sizes(self, parts: list[IntArray], here: int, there: int) -> tuple[FloatArray, FloatArray]:
        """Return the bytes of parts, and their times; NaN for those that may not run there."""
        allowed = [self.problem.unit_allowed[part, there].all() for part in parts]
        us = np.array([self.unit_us[part, here].sum() for part in parts])
        n_bytes = np.array([self.unit_bytes[part].sum() for part in parts])
        return n_bytes, np.where(allowed, us, np.nan)

    def _parts(self, gpu: int) -> list[IntArray]:
        """List parts of a GPU, the largest first: units, and units with a scope in common."""
        here = self.movable & (self.device == gpu)
        units = np.flatnonzero(here).tolist()
        found: set[tuple[int, ...]] = {(unit,) for unit in units}
        if len(units) <= PAIRED:
            found |= set(combinations(units, 2))
        for depth in range(1, DEPTH + 1):
            groups: dict[tuple[str, ...], set[int]] = {}
            for scope, unit in zip(self._scopes, self.problem.unit.tolist(), strict=True):
                if here[unit] and len(scope) >= depth:
                    groups.setdefault(tuple(scope[:depth]), set()).add(unit)
            found |= {tuple(sorted(group)) for group in groups.values()}
        parts = [np.array(part) for part in sorted(found)]
        parts.sort(key=lambda part: -float(self.unit_bytes[part].sum()))
        return parts[:MOST_PARTS]

    @cached_property
    def _scopes(self) -> list[list[str]]:
        return parts_of(self.problem.profile)


def _places(cost_us: FloatArray, current: IntArray) -> IntArray:
    """Choose where a row may be cut: the ends, where it is cut now, and what sends least."""
    n = len(cost_us) - 1
    bins = np.array_split(np.arange(1, n), min(MOST_CUTS, max(n - 1, 1)))
    cheap = [int(each[np.argmin(cost_us[each])]) for each in bins if len(each)]
    return np.unique([0, n, *cheap, *current.tolist()])


@dataclass(frozen=True, eq=False)
class _Stages:
    """Consecutive stages between cuts of a row of units, one for each device in turn.

    Attributes
    ----------
    share, work_us, allowed : arrays, shape (n_devices, n_cuts, n_cuts)
        What the units between two cuts would fill of a device's memory, how long they would take
        there, and whether all of them may run there.
    cost_us : float array, shape (n_cuts,)
        What is sent across each cut.
    limit_us : float
        Most that a stage may take, if ``by_stage``.
    """

    share: FloatArray
    work_us: FloatArray
    allowed: BoolArray
    cost_us: FloatArray
    limit_us: float
    by_stage: bool

    def find(
        self, current: IntArray, turns: list[tuple[int, ...]]
    ) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """Yield orders of the devices, each with cuts by which none fills as much as one now."""
        steps = [(d, current[d], current[d + 1]) for d in range(len(self.share))]
        now = max(float(self.share[step]) for step in steps)
        budget_us = sum(float(self._stage_us[step]) for step in steps) + TIE * self.limit_us
        least, most = 0.0, now
        for _ in range(SEARCHED):
            middle = (least + most) / 2
            turns = [turn for turn in turns if self._cut(turn, most, budget_us) is not None]
            if any(self._cut(turn, middle, budget_us) is not None for turn in turns):
                most = middle
            else:
                least = middle
        seen = set[tuple[int, ...]]()
        for looser in LOOSER:
            for turn in turns:
                ends = self._cut(turn, most + looser * (now - most) + 1e-12, budget_us)
                if ends is not None and (*turn, *ends) not in seen:
                    seen.add((*turn, *ends))
                    yield turn, ends

    @cached_property
    def _stage_us(self) -> FloatArray:
        """The time of a stage, with what is sent across the cut at its end."""
        return self.work_us + self.cost_us[None, None, :]

    def _cut(self, turn: tuple[int, ...], most: float, budget_us: float) -> list[int] | None:
        """Find the stages of least time whose shares of memory are at most ``most``."""
        n_cuts = len(self.cost_us)
        ahead = np.arange(n_cuts)[:, None] <= np.arange(n_cuts)[None, :]
        best_us, back = np.full(n_cuts, np.inf), []
        best_us[0] = 0.0
        for number in turn:
            usable = ahead & self.allowed[number] & (self.share[number] <= most)
            if self.by_stage:
                sent_us = self.cost_us[:, None] + self.cost_us[None, :]
                usable &= (self.work_us[number] + sent_us <= self.limit_us) | (
                    self.work_us[number] == 0
                )
            total = np.where(usable, best_us[:, None] + self._stage_us[number], np.inf)
            back.append(np.argmin(total, axis=0))
            best_us = total.min(axis=0)
        if not best_us[-1] <= (np.inf if self.by_stage else budget_us) or np.isinf(best_us[-1]):
            return None
        ends = [n_cuts - 1]
        for chosen in reversed(back):
            ends.append(int(chosen[ends[-1]]))
        return ends[::-1]


def exchanged(schedule: Schedule) -> Iterator[IntArray]:
    """Yield the placement with unlike GPUs in other roles, if they are few."""
    gpus, devices = schedule.problem.cluster.gpus, schedule.problem.cluster.devices
    for turn in _turns([devices[gpu] for gpu in gpus])[1:]:
        name = np.arange(len(devices))
        name[gpus] = [gpus[at] for at in turn]
        yield name[schedule.plan.device]


def in_order(schedule: Schedule) -> Iterator[IntArray]:
    """Yield the placement with devices that are alike in the order of their first ops."""
    devices, plan = schedule.problem.cluster.devices, schedule.plan
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, device in enumerate(devices):
        alike.setdefault(_kind(device), []).append(number)
    first = np.full(len(devices), len(plan.position))
    np.minimum.at(first, plan.device, plan.position)
    name = np.arange(len(devices))
    for group in alike.values():
        name[sorted(group, key=lambda d: (first[d], d))] = group
    yield name[plan.device]


def _kind(device: Device) -> tuple[object, ...]:
    """Return what devices that are alike have in common."""
    return device.kind, device.capacity_bytes, device.speed, device.lanes, bool(device.chip)


def _turns(devices: Sequence[Device]) -> list[tuple[int, ...]]:
    """List the orders of some devices that differ, their own first; of many devices, only that."""
    kinds, same = [_kind(device) for device in devices], tuple(range(len(devices)))
    if len(devices) > MOST_TURNED or len(set(kinds)) == 1:
        return [same]
    found: dict[tuple[object, ...], tuple[int, ...]] = {}
    for turn in permutations(same):
        found.setdefault(tuple(kinds[at] for at in turn), turn)
    return list(found.values())


def with_fewer_transfers(schedule: Schedule) -> Iterator[IntArray]:
    """Yield placements with some units moved to where their tensors come from or go to.

    The first has all such moves; as long as a half is not taken, its halves follow.
    """
    moves = _saving_moves(schedule)
    waiting = [moves] if moves else []
    unit = schedule.problem.unit
    while waiting:
        some = waiting.pop(0)
        device = schedule.plan.device.copy()
        there = np.zeros(schedule.problem.n_units, dtype=np.int64)
        there[unit] = device
        for each, to in some:
            there[each] = to
        yield there[unit]
        if len(some) > 1:
            half = len(some) // 2
            waiting += [some[:half], some[half:]]


def _saving_moves(schedule: Schedule) -> list[tuple[int, int]]:
    """List units, each with the device where it would save transfers; no two share a tensor."""
    problem, profile, device = schedule.problem, schedule.problem.profile, schedule.plan.device
    home = np.zeros(problem.n_units, dtype=np.int64)
    home[problem.unit] = device
    at, maker = home.tolist(), problem.unit[profile.tensor_op]
    user, tensor = problem.unit[profile.edge_op], profile.edge_tensor
    crossing = home[maker[tensor]] != home[user]
    near = np.unique(np.concatenate([maker[tensor[crossing]], user[crossing]]))
    is_near = np.zeros(problem.n_units, dtype=bool)
    is_near[near] = True
    ends = np.concatenate(
        [
            np.stack([maker, np.arange(profile.n_tensors)], axis=1)[is_near[maker]],
            np.stack([user, tensor], axis=1)[is_near[user]],
        ]
    )
    touches: dict[int, set[int]] = {}
    for unit, each in np.unique(ends, axis=0).tolist():
        touches.setdefault(unit, set()).add(each)
    users = {
        each: set(user[profile.edge_ptr[each] : profile.edge_ptr[each + 1]].tolist())
        for each in np.unique(ends[:, 1]).tolist()
    }
    makers = maker.tolist()
    on = {each: Counter(at[unit] for unit in users[each]) for each in users}

    def sends(each: int, moved: int, to: int) -> int:
        """Count the transfers of a tensor if a unit were elsewhere."""
        users_on, here, reads = on[each], at[moved], moved in users[each]
        source = to if makers[each] == moved else at[makers[each]]
        left = reads and to != here and users_on[here] == 1
        stays = source in users_on and not (left and source == here)
        n_devices = len(users_on) - left + (reads and to not in users_on)
        return n_devices - (stays or (reads and source == to))

    found = []
    for unit, tensors in touches.items():
        now = sum(sends(each, unit, at[unit]) for each in tensors)
        around = {device for each in tensors for device in (*on[each], at[makers[each]])}
        for to in sorted(around - {at[unit]}):
            saved = now - sum(sends(each, unit, to) for each in tensors)
            if saved > 0 and problem.unit_allowed[unit, to]:
                found.append((saved, unit, to))
    found.sort(key=lambda each: (-each[0], *each[1:]))
    taken, chosen = set[int](), list[tuple[int, int]]()
    for _, unit, to in found:
        if taken.isdisjoint(touches[unit]):
            taken |= touches[unit]
            chosen.append((unit, to))
    return chosen
