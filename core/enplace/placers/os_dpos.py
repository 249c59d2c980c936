"""OS-DPOS: operation splitting on top of DPOS (FastT, section 5.2, Algorithm 2).

The search starts from the data-parallel graph if the model fits on one device, else from the model.
Ops of the critical path, longest first, are split along each legal dimension into each number of
parts. The best split is kept if it shortens the step, otherwise the search ends; ops that cannot be
split are skipped. Where the paper leaves the choice open, this is what we do:

- In the data-parallel graph, every op that works on samples is split by them into as many parts as
  there are GPUs (:mod:`enplace.values.splits`): variables are not copied, gradients of the parts
  are summed, and ops that cannot be split this way stay whole. Some models gain nothing from that,
  so the search also starts from the model itself, and keeps the shorter result.
- The critical path (line 4) is based on the largest times and transfers, as in Algorithm 1, and not
  on those of the placement; its ops are sorted by their times in the placement (line 5).
- The numbers of parts are the divisors of the number of GPUs.
- The finish time of the exit op is the simulated step time.
- Ops that are pinned or forbidden on a device stay whole. So do colocated ops, unless every op of
  their group is split by its samples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.placers.dpos import critical_path_ops, dpos_schedule, max_rank_us
from enplace.placers.naive import single
from enplace.placing.candidates import best_that_fits
from enplace.placing.incumbents import Best, BestSchedule
from enplace.placing.options import PlaceOptions
from enplace.placing.registry import ANYTIME, CHANNELS, HETEROGENEOUS, MEMORY, SPLITS, placer
from enplace.placing.settle import position_by_start
from enplace.values.constraints import OP, Before
from enplace.values.plan import Plan
from enplace.values.problem import Problem, split_problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule
from enplace.values.splits import (
    Split,
    carries_samples,
    legal_dimensions,
    sample_dimension,
    without_broken_groups,
)

TIME_LIMIT_S = 45.0
"""When the search ends if no time limit is given; most models take a few seconds."""


@placer(
    "os-dpos",
    title="OS-DPOS, FastT: with ops split",
    good=(
        "When you want splits at once: where a few long ops hold up the step, it takes seconds. "
        "enplace-split begins with its splits, and finds shorter steps."
    ),
    source="FastT (Middleware 2020), Algorithm 2",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME, SPLITS),
)
def os_dpos(problem: Problem, options: PlaceOptions) -> Plan:
    """Split the ops of the critical path while that shortens the step."""
    options = replace(options, stop=options.stop.limited(TIME_LIMIT_S))
    search = _Search(problem, options)
    search.from_start(())
    shared = data_parallel(problem)
    if shared and not options.stop() and _fits_one_device(problem, options):
        search.from_start(shared)
    return search.best.found.plan


def data_parallel(problem: Problem) -> tuple[Split, ...]:
    """Split every op that works on samples, by its samples, into as many parts as GPUs."""
    profile, parts = problem.profile, len(problem.cluster.gpus)
    if parts < 2:
        return ()
    carries, kept = carries_samples(profile), _kept_whole(problem)
    fed = np.zeros(profile.n_ops, dtype=bool)
    np.logical_or.at(fed, profile.edge_op, carries[profile.edge_source])
    splits = [
        Split(profile.op_names[op], dimension, parts)
        for op in np.flatnonzero(fed).tolist()
        if op not in kept and (dimension := sample_dimension(profile, op, parts))
    ]
    return without_broken_groups(profile, splits)


def _kept_whole(problem: Problem) -> set[int]:
    """Find the ops that have constraints other than orders."""
    kinds = ((kind, rows) for kind, rows in problem.constraints.items() if kind.key != Before.key)
    return {op for kind, rows in kinds for op in kind.numbers(rows, OP).tolist()}


def _fits_one_device(problem: Problem, options: PlaceOptions) -> bool:
    return simulate(problem, single(problem, options.quiet)).fits


class _Search:
    """Algorithm 2 from several starts; keeps the best result of all, and reports each new one."""

    def __init__(self, problem: Problem, options: PlaceOptions) -> None:
        self._problem, self._options = problem, options
        self.best = BestSchedule(options)
        n_gpus = len(problem.cluster.gpus)
        self._parts = [n for n in range(2, n_gpus + 1) if n_gpus % n == 0]

    def from_start(self, splits: tuple[Split, ...]) -> None:
        """Search from one start (Algorithm 2, lines 3 to 14)."""
        best = Best(self._dpos(splits))
        for op in self._by_time(best.found):
            if self._options.stop():
                break
            found = self._best_split(best.found, op)
            if found is None:  # pinned, colocated or without a legal dimension
                continue
            if not best.offer(found):
                break

    def _dpos(self, splits: tuple[Split, ...]) -> Schedule:
        """Run DPOS on the graph with these splits."""
        problem = split_problem(self._problem, splits)
        rank_us = max_rank_us(problem)
        path = critical_path_ops(problem, rank_us)

        def candidates(memory_share: float) -> list[Plan]:
            device, start_us = dpos_schedule(problem, rank_us, path, self._options, memory_share)
            position = position_by_start(problem, start_us)
            return [Plan(device, position, "os-dpos", links="priority", splits=splits)]

        schedule = best_that_fits(problem, candidates, self._options.quiet)
        self.best.offer(schedule)
        return schedule

    def _by_time(self, schedule: Schedule) -> list[str]:
        """Return the names of the ops on the critical path, the longest first (lines 4 and 5)."""
        problem = schedule.problem
        path = critical_path_ops(problem, max_rank_us(problem))
        time_us = (schedule.op_finish_us - schedule.op_start_us)[path]
        ordered: IntArray = path[np.argsort(-time_us, kind="stable")]
        return [problem.profile.op_names[op] for op in ordered.tolist()]

    def _best_split(self, schedule: Schedule, name: str) -> Schedule | None:
        """Find the shortest step with this op split (line 8); None if it may not be split."""
        problem, best = schedule.problem, Best[Schedule]()
        op = problem.profile.index[name]
        if op in _kept_whole(problem) or problem.profile.colocation[op]:
            return None
        for parts in self._parts:
            for dimension in legal_dimensions(problem.profile, op, parts):
                if self._options.stop():
                    return best.kept
                best.offer(self._dpos((*schedule.plan.splits, Split(name, dimension, parts))))
        return best.kept
