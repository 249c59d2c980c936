"""Enplace's own method: the best list schedule, then a local search on the simulator.

The search moves blocks of ops between devices: name scopes of every depth (forward part, backward
part or both), runs of neighbouring ops in the order, and the blocks at either end of a transfer on
the critical path. Every candidate is ordered by the upward ranks under its own placement and played
on the true machine model, so what is reported is what the simulator says. A little worse is
accepted at first, less and less as time runs out (threshold accepting, Dueck and Scheuer 1990).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from enplace.placers.celeritas import celeritas, order_place
from enplace.placers.expert import expert
from enplace.placers.heft import heft
from enplace.placers.m_topo import m_topo
from enplace.placers.naive import single
from enplace.placers.registry import PlaceOptions, Progress, placer
from enplace.placers.settle import best_of, by_placed_rank, is_better, report
from enplace.plan import Plan
from enplace.problem import Problem
from enplace.profile import IntArray
from enplace.schedule import Schedule
from enplace.simulate import critical_path, simulate

STARTS = (heft, expert, celeritas, order_place, m_topo, single)

ROUNDS = 300
"""Candidates tried when no time limit is given."""

THRESHOLD = 0.01
"""How much worse than the current plan a candidate may be at first, as a share of it."""

TELL_S = 0.2
"""Time between two words on how far the search is."""

PASSES = ("", "gradients", "update")
"""First parts of scopes that say which pass an op belongs to, not which layer."""

RUN_LENGTHS = (4, 16, 64, 256, 1024)


@placer(
    "enplace",
    title="Enplace",
    source="Enplace: local search from the best list schedule",
    capabilities=("memory", "heterogeneous", "channels", "anytime"),
)
def enplace(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the best list schedule until the time limit, or for a fixed number of rounds."""
    best = best_of(problem, _starts(problem, options), options)
    if problem.cluster.n_devices == 1:
        return best.plan
    return _search(problem, best, options).plan


def _starts(problem: Problem, options: PlaceOptions) -> Iterator[Plan]:
    """Plans of the quick methods, one after another."""
    quiet = replace(options, progress=lambda progress: None)
    for method in STARTS:
        yield replace(method(problem, quiet), method="enplace")


def _search(problem: Problem, start: Schedule, options: PlaceOptions) -> Schedule:
    draw = np.random.default_rng(options.seed)
    blocks = _Blocks(problem)
    best = current = start
    began, tried = options.seconds, 0
    told = began
    while (spent := _share_spent(options, began, tried)) < 1 and not options.cancelled():
        if best.fits and best.gap <= 0:
            break
        tried += 1
        if options.seconds - told > TELL_S:
            told = options.seconds
            options.progress(Progress(told, f"{tried:,} plans tried", fraction=spent))
        device = blocks.moved(current, draw)
        if device is None:
            continue
        plan = replace(current.plan, device=device, position=by_placed_rank(problem, device))
        candidate = simulate(problem, plan)
        limit = current.makespan_us * (1 + THRESHOLD * (1 - spent) ** 2)
        if candidate.makespan_us > limit and best.fits:
            continue
        if best.fits and not candidate.fits:
            continue
        if best.fits or is_better(candidate, current):
            current = candidate
        if is_better(candidate, best):
            best = candidate
            report(best, options)
    return best


def _share_spent(options: PlaceOptions, began: float, tried: int) -> float:
    """How much of the time or of the rounds is used up, 0 to 1."""
    if options.time_limit_s is None:
        return tried / ROUNDS
    return (options.seconds - began) / max(options.time_limit_s - began, 1e-9)


class _Blocks:
    """Sets of placement units that may be worth moving together."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.by_scope = _scope_blocks(problem)
        self.scopes_of_unit: dict[int, list[int]] = defaultdict(list)
        for number, units in enumerate(self.by_scope):
            for unit in units.tolist():
                self.scopes_of_unit[unit].append(number)

    def moved(self, current: Schedule, draw: np.random.Generator) -> IntArray | None:
        """Devices of all ops after one move; None if the move changes nothing or is not allowed."""
        kind = draw.random()
        if kind < 0.4:
            units, to = self._along_critical_path(current, draw)
        elif kind < 0.7:
            units, to = self.by_scope[draw.integers(len(self.by_scope))], -1
        else:
            units, to = self._run(current, draw), -1
        if to < 0:
            to = int(draw.integers(self.problem.cluster.n_devices))
        units = units[self.problem.unit_allowed[units, to]]
        moves = np.zeros(self.problem.n_units, dtype=bool)
        moves[units] = True
        device = current.plan.device.copy()
        moving = moves[self.problem.unit] & (device != to)
        if not moving.any():
            return None
        device[moving] = to
        return device

    def _run(self, current: Schedule, draw: np.random.Generator) -> IntArray:
        """Neighbours in the order that run on one device."""
        order = np.argsort(current.plan.position)
        device = draw.integers(self.problem.cluster.n_devices)
        mine = order[current.plan.device[order] == device]
        if not len(mine):
            return np.zeros(0, dtype=np.int64)
        length = int(draw.choice(RUN_LENGTHS))
        first = int(draw.integers(len(mine)))
        return np.unique(self.problem.unit[mine[first : first + length]])

    def _along_critical_path(
        self, current: Schedule, draw: np.random.Generator
    ) -> tuple[IntArray, int]:
        """A block at one end of a transfer that the step waits for, and the other end's device."""
        sent = _sent_on_path(current)
        if not len(sent):
            return self.by_scope[draw.integers(len(self.by_scope))], -1
        transfer = sent[draw.integers(len(sent))]
        profile = self.problem.profile
        tensor = current.transfer_tensor[transfer]
        to, origin = int(current.transfer_to[transfer]), int(current.transfer_from[transfer])
        if draw.random() < 0.5:
            return self._around(int(profile.tensor_op[tensor]), draw), to
        users = profile.edge_op[profile.edge_ptr[tensor] : profile.edge_ptr[tensor + 1]]
        users = users[current.plan.device[users] == to]
        return self._around(int(users[draw.integers(len(users))]), draw), origin

    def _around(self, op: int, draw: np.random.Generator) -> IntArray:
        """A random one of the blocks that hold an op, or its own unit."""
        unit = int(self.problem.unit[op])
        numbers = self.scopes_of_unit.get(unit, [])
        choice = int(draw.integers(-1, len(numbers)))
        return np.array([unit]) if choice < 0 else self.by_scope[numbers[choice]]


@lru_cache(maxsize=2)
def _sent_on_path(schedule: Schedule) -> IntArray:
    """Transfers on the critical path."""
    path = critical_path(schedule)
    return path.number[path.is_transfer]


def _scope_blocks(problem: Problem) -> list[IntArray]:
    """Units of every scope, of every depth, for each pass alone and all passes together."""
    members: dict[tuple[str, str], set[int]] = defaultdict(set)
    for unit, scope in zip(problem.unit.tolist(), problem.profile.scopes, strict=True):
        head, _, rest = scope.partition("/")
        name, side = (rest, head) if head in PASSES else (scope, "")
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            prefix = "/".join(parts[:depth])
            members[prefix, side].add(unit)
            members[prefix, "all"].add(unit)
    found = {tuple(sorted(units)) for units in members.values()}
    return [np.array(units, dtype=np.int64) for units in sorted(found)]
