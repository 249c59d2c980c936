"""What the searches for throughput do with a partition that is not proven, or does not fit.

The dynamic programs count all variables and outputs of a device at once, as the paper does. A step
may need less, because not all outputs are in memory at the same time, or more, because tensors are
received. So plans are compared as they are simulated: first by the memory that they lack, then,
unless stages may be anywhere, by whether they are contiguous, then by their time per sample. One is
proven if no partition has less whose variables alone fit. If one that is not contiguous was found
to take clearly less than the answer, its note says so.

All methods with a program begin in the same way and share this order, so that none is worse than
another that the same time allows: partitions, what fits at all, a local search, programs, and in
the end moves of single units, each simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.errors import ProblemError
from enplace.machine import simulate
from enplace.machine.pipelines.loads import max_load_us, pass_loads_us
from enplace.machine.pipelines.stages import passes_of, stages_of
from enplace.placers.max_load.all_placements import APART, find_best, is_clearly_less
from enplace.placers.max_load.contiguity import find_passes, is_contiguous, unit_devices
from enplace.placers.max_load.memory.fitting import NOTHING_FITS, SLOWED
from enplace.placers.max_load.memory.in_flight import find_fullest, samples_matter
from enplace.placers.max_load.memory.listing import list_partitions
from enplace.placers.max_load.partition_plan import make_plan, plan_of_partition, plan_of_search
from enplace.placers.max_load.search.anneal import anneal
from enplace.placers.max_load.search.descent import descend, draw_placement, score
from enplace.placers.max_load.search.hypergraph import build_hypergraph, held_bytes
from enplace.placers.max_load.search.levels import anneal_by_levels
from enplace.placers.max_load.search.nearby import moves_from
from enplace.placers.max_load.search.throughput_search import search_anywhere, search_contiguous
from enplace.placers.max_load.table.caveats import NOT_CONTIGUOUS, about_machine, outputs_decide
from enplace.placers.max_load.table.contract import contract
from enplace.placers.max_load.table.dp import (
    Partition,
    build_task,
    find_lattice,
    partition_exactly,
)
from enplace.placers.max_load.table.ideals import bound_ideals
from enplace.placers.max_load.table.kinds import find_kinds
from enplace.placers.max_load.table.pruning import shared_work_us
from enplace.placers.max_load.table.stages import assign
from enplace.placing.fitting import find_fit, in_other_orders
from enplace.placing.incumbents import BETTER, PROVEN_GAP, Incumbent, report_plan
from enplace.placing.options import PlaceOptions
from enplace.placing.small import NO_PLAN_FITS
from enplace.placing.stop import Stop
from enplace.placing.ties import choose
from enplace.solvers.milp import quickest_solver
from enplace.text import ms
from enplace.values.cluster import Device
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray
from enplace.values.rivals import ALL, CONTIGUOUS, STAGED, Rivals

NEAR = 1e-3
"""A plan so near its bound is not improved by an integer program."""

UNASKED_S = 5.0
"""Seconds for integer programs if no time limit is set, and no partition is good enough."""

MOST_CHOICES = 20_000
"""Most choices of a device for a unit for which an integer program is solved."""

MOST_TRIES = 8
"""Most searches with less and less memory, for a plan that fits when it is simulated."""

FEW_CHOICES = 200
"""With so few choices, a program is solved even if no partition is better, and a local search
begins at random too, and anneals single units."""

FEW_PLACEMENTS = 5_000
"""So many placements of small graphs are all tried."""

LISTED_IDEALS = 2_000
"""With more ideals, there are too many partitions to try each."""

SHARE = 0.5
"""Share of the time left for the partitions, and for the first of two programs."""

LISTING_SHARE = 0.2
"""Share of the time left for listing partitions and simulating them."""

LOCAL_SHARE, RESTARTS = 0.15, 10
"""Share of the time left for a local search, and its random starts for each count of the memory."""

MOST_MENDED = 6
"""Placements that do not fit from which single moves lead on."""

MOST_STAGES = 300
"""With more stages, seeing whether a full pipeline fits may take longer than all other searches."""

OUTPUT_SHARES = (1.0, 0.5, 0.0)
"""Shares of the outputs that local searches count, because not all are in memory at once."""

DESCENT_SHARE = 0.1
"""Share of the time for moves that are simulated one by one, when the programs have ended."""


@dataclass(frozen=True)
class Goal:
    """What a method looks for.

    Attributes
    ----------
    rivals : Rivals
        The placements among which it proves its plan the best. If they are all, it prefers none;
        otherwise it prefers contiguous plans.
    usual_s : float
        Seconds for all of it, if no time limit is set.
    contiguous, anywhere : str
        The solvers of the programs.
    """

    rivals: Rivals
    usual_s: float
    contiguous: str = field(default_factory=quickest_solver)
    anywhere: str = "HiGHS"


def improve(problem: Problem, plan: Plan, options: PlaceOptions, goal: Goal) -> Plan:
    """Return the best plan for throughput that the time allows, from that of the dynamic program.

    Parameters
    ----------
    plan : Plan
        A plan of the dynamic program; its bound and its proof count all variables and outputs.
    """
    return _Improver(problem, plan, options, goal).run()


class _Improver:
    """The best plan so far, the memory that it lacks, and what is proven."""

    def __init__(self, problem: Problem, plan: Plan, options: PlaceOptions, goal: Goal) -> None:
        self.problem, self.options, self.rule = problem, options, options.load_rule
        self.goal = goal
        self.about = about_machine(problem, self.rule)
        self.weights = problem.profile.persistent_bytes
        self.outputs_decide = outputs_decide(problem)
        self.counts_samples = samples_matter(problem, self.rule)
        self._shared_us = shared_work_us(problem, self.rule)
        self._is_late = options.stop.with_grace(problem.profile.n_ops)
        self._apart: tuple[IntArray | None, bool] = None, False
        self._cut: IntArray | None = None  # the placement of a partition
        self._too_large: list[tuple[tuple[float, float], Plan]] = []
        self._apart_us = np.inf  # of the best plan found that fits and is not contiguous
        self.plan, self.lacks = self._in_some_order(plan)
        self.stop: Stop = options.stop.limited(options.seconds + goal.usual_s)

    @property
    def fits(self) -> bool:
        """Whether a step fits, and a full pipeline."""
        return self.lacks <= (0.0, 0.0)

    @cached_property
    def is_in_a_row(self) -> bool:
        """Whether all units follow each other, so that what is contiguous is a partition."""
        nodes, n_units = contract(self.problem, self.rule), self.problem.n_units
        ends = nodes.n_nodes, nodes.source, nodes.target
        return nodes.n_nodes == n_units and bound_ideals(*ends) <= 2

    @property
    def prefers_contiguous(self) -> bool:
        return self.goal.rivals != ALL

    @property
    def is_usable(self) -> bool:
        """Whether the best plan fits, and is contiguous if that is preferred."""
        return self.fits and not (self.prefers_contiguous and self._is_apart(self.plan))

    @property
    def is_preferred(self) -> bool:
        """Whether only contiguous plans can be better."""
        return self.is_usable and self.prefers_contiguous

    @property
    def is_settled(self) -> bool:
        """Whether the best plan fits and is proven."""
        return self.fits and self.plan.proven

    def _is_apart(self, plan: Plan) -> bool:
        """Whether a plan is not contiguous; of a partition, only the pass that was cut counts."""
        known, is_apart = self._apart
        if known is not plan.device:
            is_cut = plan.rivals == STAGED or plan.device is self._cut
            passes = find_passes(self.problem)[: 1 if is_cut else None]
            is_apart = not is_contiguous(self.problem, plan.device, passes)
            self._apart = plan.device, is_apart
        return is_apart

    def run(self) -> Plan:
        """Search until the best plan is proven, or the time is over."""
        begin = self.stop.within(SHARE)
        if self._try_all(begin):
            return self.plan
        self._search_all(begin)
        is_slower = self.is_preferred and is_clearly_less(self._apart_us, self.plan.value_us)
        about_apart = APART.format(ms(self._apart_us)) if is_slower else ""
        none_fits = NOTHING_FITS if self.lacks[1] > 0 and NOTHING_FITS not in self.plan.note else ""
        return self.plan.with_notes(self.plan.note, about_apart, none_fits, separator="; ")

    def _search_all(self, begin: Stop) -> None:
        """Search in all ways until the best plan is proven."""
        if self.outputs_decide or not self.fits:
            if self.stop():  # what was proven where all outputs count does not hold
                bound_us = min(self.plan.bound_us or 0.0, self._shared_us)
                self.plan = replace(self.plan, bound_us=bound_us, proven=False)
                return
            self._search_by_weights(begin)
        is_listed = self._list_placements()
        if not is_listed or self.is_preferred:
            self._search_locally()
        if not self.is_usable:
            self._mend(self.stop.within(SHARE))
        if self.lacks[0] > 0 and not self.stop():
            self._find_fit()
        if not is_listed and not self.is_settled:
            self._list_partitions(self.stop.within(LISTING_SHARE))
        if self.plan.nothing_fits:
            return
        if self.goal.rivals != STAGED:  # what is proven of partitions is no proof for others
            self._cut = self.plan.device if self.plan.rivals == STAGED else None
            about_cut = NOT_CONTIGUOUS if NOT_CONTIGUOUS in self.plan.note else ""
            self.plan = replace(
                self.plan, bound_us=self._shared_us, proven=False, rivals=self.goal.rivals
            ).with_notes(self.about, about_cut, separator="; ")
        if not is_listed or self.goal.rivals != STAGED:
            self._search_by_programs()
        if not self.is_settled:
            self._descend(self.stop)

    def _try_all(self, stop: Stop) -> bool:
        """Take the best of all plans of a small problem; return whether all were tried."""
        problem, prefers_contiguous = self.problem, self.prefers_contiguous
        is_known = self.fits and (
            not prefers_contiguous or is_contiguous(problem, self.plan.device)
        )
        plans = find_best(
            problem,
            self.rule,
            stop,
            prefers_contiguous=prefers_contiguous,
            known_us=self.plan.value_us if is_known else None,
        )
        if plans is None:
            return False
        if plans and (plans[0].bound_us or 0.0) < (plans[0].value_us or 0.0):  # it is slowed down
            slowed = SLOWED if plans[0].pace_us else ""
            plan = replace(plans[0], method=self.plan.method, bound_us=0.0, rivals=ALL)
            self._offer(plan.with_notes(self.about, slowed, separator="; "))
            return False
        about = "" if plans else NO_PLAN_FITS
        known = replace(self.plan, rivals=None, bound_us=None, proven=False).with_notes(about)
        self.plan = replace(known, nothing_fits=not plans)
        if plans:
            best = plans[0]
            is_staged = prefers_contiguous and is_contiguous(problem, best.device)
            best = replace(
                best,
                method=known.method,
                bound_us=best.value_us,
                proven=not self.about,
                rivals=CONTIGUOUS if is_staged else ALL,
                details=known.details,
            ).with_notes(self.about, best.note, separator="; ")
            self.plan = choose(simulate(problem, best), plans[1:], stop).plan
            report_plan(self.options, self.plan, self.plan.value_us or 0.0, self.plan.bound_us)
        return True

    def _lacking(self, plan: Plan) -> tuple[float, float]:
        """Return by how much a plan exceeds the memory: a step, and a full pipeline."""
        excess = float(simulate(self.problem, plan).excess_bytes)
        if not self.counts_samples:
            return excess, 0.0
        chosen = plan.device, self.rule, plan.replicas, plan.recompute, plan.pace_us, plan
        return excess, max(0.0, find_fullest(self.problem, *chosen) - 1.0)

    def _count_stages(self, plan: Plan) -> int:
        passes = passes_of(self.problem, plan.device, weights_apart=False)
        return len(stages_of(self.problem, plan, passes))

    def _in_some_order(self, plan: Plan) -> tuple[Plan, tuple[float, float]]:
        """Return a plan in the first order in which a step fits, and what it lacks."""
        lacks = self._lacking(plan)
        if lacks[0] <= 0 or self._excess_of_weights(plan.device) > 0:
            return plan, lacks
        for each in in_other_orders(simulate(self.problem, plan), self._is_late):
            if each.fits:
                return each.plan, (0.0, lacks[1])
        return plan, lacks

    def _excess_of_weights(self, device: IntArray) -> float:
        """Return by how much the variables alone exceed the memory."""
        capacity = self.problem.cluster.capacity_bytes
        held = np.bincount(device, self.weights, len(capacity))
        return float(np.maximum(held - capacity, 0).sum())

    def _offer(self, plan: Plan) -> bool:
        """Keep a plan if it is better; return whether it fits."""
        if self.counts_samples and self._count_stages(plan) > MOST_STAGES:
            return False
        plan, lacks = self._in_some_order(plan)
        plan = replace(plan, proven=plan.proven and lacks <= (0.0, 0.0))
        value_us, best_us = plan.value_us or 0.0, self.plan.value_us or 0.0
        if lacks[0] > 0:
            self._too_large.append((lacks, plan))
        elif lacks[1] <= 0 and value_us < self._apart_us and self._is_apart(plan):
            self._apart_us = value_us
        if lacks > self.lacks:
            return False
        is_better, was_apart = lacks < self.lacks, self._is_apart(self.plan)
        if not is_better and self.prefers_contiguous and self._is_apart(plan) != was_apart:
            is_better = was_apart
        elif not is_better:
            is_better = value_us < best_us * (1 - BETTER)
        if is_better:
            self.plan, self.lacks = plan, lacks
            report_plan(self.options, plan, value_us, plan.bound_us, fits=self.fits)
        return lacks <= (0.0, 0.0)

    def _offer_device(self, device: IntArray) -> bool:
        """Offer a placement of which little is proven."""
        plan = make_plan(self.problem, device, self.plan.method, self._shared_us, self.rule)
        return self._offer(replace(plan, rivals=ALL).with_notes(self.about))

    def _as_partition(self) -> Partition:
        """Return the best plan as a partition; its load is inf if it does not fit."""
        plan = self.plan
        load_us = plan.value_us if self.fits and plan.value_us is not None else np.inf
        return Partition(
            plan.device, load_us, 0.0, replicas=plan.replicas, recompute=plan.recompute
        )

    def _search_by_weights(self, stop: Stop) -> None:
        """Search with the variables alone, and with less memory as long as what is found lacks it.

        What the first search proves holds for all plans that fit.
        """
        rule, problem = replace(self.rule, in_flight=False, recompute=False), self.problem
        if not _has_one_table(problem, rule):
            return
        for number in range(MOST_TRIES):
            found = partition_exactly(
                problem,
                rule,
                seed=self.options.seed,
                stopped=stop,
                op_bytes=self.weights,
                below=self._as_partition() if self.fits else None,
            )
            if number == 0:
                self._bound(found)
            if not found.load_us < self._as_partition().load_us * (1 - BETTER):
                return
            plan = plan_of_partition(
                self.problem, found, self.plan.method, self.rule, self.about, stopped=False
            )
            smaller = self._with_less_memory(problem, plan)
            is_proven = plan.proven and number == 0
            bound_us = plan.bound_us if number == 0 else self.plan.bound_us
            fits = self._offer(replace(plan, proven=is_proven, bound_us=bound_us))
            if fits or smaller is None or stop():
                return
            problem = smaller

    def _bound(self, found: Partition) -> None:
        """Correct what was proven of plans whose outputs all fit at once."""
        plan = self.plan
        if np.isinf(found.bound_us):  # there is no partition
            self.plan = replace(plan, bound_us=0.0, proven=False, rivals=None)
            return
        bound_us = min(found.bound_us, plan.value_us or 0.0)
        is_proven = (
            found.optimal
            and not self.about
            and (plan.proven or plan.rivals == STAGED)
            and is_contiguous(self.problem, plan.device)
            and bound_us >= (plan.value_us or 0.0) * (1 - PROVEN_GAP)
        )
        self.plan = replace(plan, bound_us=bound_us, proven=is_proven and self.fits)

    def _with_less_memory(self, problem: Problem, plan: Plan) -> Problem | None:
        """Take from devices what a plan lacks there when it is simulated; None if impossible."""
        peak = simulate(self.problem, plan).peak_bytes
        cluster = problem.cluster
        least: dict[tuple[str, int], int] = {}
        held = np.bincount(plan.device, weights=self.weights, minlength=cluster.n_devices)
        given = self.problem.cluster.devices
        for d in np.flatnonzero(peak > self.problem.cluster.capacity_bytes).tolist():
            most = int(held[d]) - max(1, int(peak[d]) - given[d].capacity_bytes)
            key = given[d].kind, cluster.devices[d].capacity_bytes
            least[key] = min(most, least.get(key, most))

        def left(each: Device) -> int:
            return max(1, least.get((each.kind, each.capacity_bytes), each.capacity_bytes))

        devices = tuple(replace(each, capacity_bytes=left(each)) for each in cluster.devices)
        try:
            return replace(problem, cluster=replace(cluster, devices=devices))
        except ProblemError:
            return None

    def _list_partitions(self, stop: Stop) -> None:
        """Simulate all partitions whose variables fit if they are few."""
        rule = replace(self.rule, in_flight=False, recompute=False)
        if rule.replicate or self.counts_samples or not _has_one_table(self.problem, rule):
            return
        task = build_task(self.problem, rule, self.weights)
        lattice = find_lattice(task.nodes, LISTED_IDEALS, stop)
        if lattice is None:
            return
        limit_us = self._as_partition().load_us
        for stages in list_partitions(lattice, task.costs, limit_us, stop) or ():
            if stop():
                return
            device, *_ = assign(task.nodes.node, [(stages, task.devices)])
            plan = make_plan(
                self.problem, device, self.plan.method, self.plan.bound_us or 0.0, self.rule
            )
            if not self.fits or (plan.value_us or 0.0) < (self.plan.value_us or 0.0):
                self._offer(replace(plan, rivals=STAGED, details=self.plan.details))

    def _search_locally(self) -> None:
        """Descend from the best plan and random placements, and anneal, with fewer outputs counted.

        It takes little time, and its placements may be anywhere. Where the best plan is contiguous,
        it tells what another split would take.
        """
        problem, known = self.problem, unit_devices(self.problem, self.plan.device)
        choices, restarts = problem.unit_allowed.size, RESTARTS
        if self.is_preferred:
            may_gain = is_clearly_less(self._shared_us, self.plan.value_us)
            if choices > MOST_CHOICES or not may_gain:
                return
            restarts *= choices <= FEW_CHOICES
        stop, draw = self.stop.within(LOCAL_SHARE), np.random.default_rng(self.options.seed)
        run = anneal if choices <= FEW_CHOICES else anneal_by_levels
        outputs = op_memory_bytes(problem) - self.weights
        for share in OUTPUT_SHARES if outputs.any() else OUTPUT_SHARES[:1]:
            counted = self.weights + (share * outputs).astype(np.int64)
            graph = build_hypergraph(problem, self.rule, counted)
            if self.fits:
                room = np.maximum(graph.capacity_bytes, held_bytes(graph, known))
                graph = replace(graph, capacity_bytes=room)
            starts = (known, *(draw_placement(graph, draw) for _ in range(restarts)))
            found = [descend(graph, start, stop) for start in starts]
            best = min(found, key=partial(score, graph))
            if score(graph, best)[0] <= 0:
                found.append(run(graph, best, stop, self.options.seed))
            for device in sorted(found, key=partial(score, graph)):
                apart_us = min(self._apart_us, self.plan.value_us or np.inf)
                if self.is_preferred and not score(graph, device)[1] < apart_us * (1 - BETTER):
                    break
                self._offer_device(device[problem.unit])
                if stop():
                    return

    def _mend(self, stop: Stop) -> None:
        """Move units of the placements that lack least, until one fits."""
        best, found = (self.plan, self.lacks), []
        too_large = sorted(self._too_large, key=lambda each: each[0])
        if self.fits:
            too_large = [each for each in too_large if not self._is_apart(each[1])]
        for self.lacks, self.plan in too_large[:MOST_MENDED]:
            self._descend(stop.within(SHARE), stays_contiguous=best[1] <= (0.0, 0.0))
            found.append(self.plan)
            if stop() or self.lacks[0] <= 0:
                break
        self.plan, self.lacks = best
        for plan in found:
            self._offer(plan)

    def _find_fit(self) -> None:
        """Look for any plan that fits, or prove that there is none."""
        options = replace(self.options.quiet, stop=self.stop.within(SHARE))
        found = find_fit(simulate(self.problem, self.plan), options)
        if found.plan.nothing_fits:
            self.plan = replace(found.plan, rivals=None)
        elif found.fits:
            self._offer_device(found.plan.device)

    def _search_by_programs(self) -> None:
        """Continue with integer programs, whose stages may depend on each other both ways.

        If nothing contiguous fits, the ops of a device may be anywhere.
        """
        plan, is_asked = self.plan, self.goal.rivals != STAGED
        value_us, bound_us = plan.value_us or 0.0, plan.bound_us or 0.0
        is_near = self.is_usable and bound_us >= value_us * (1 - NEAR)
        if not is_asked:
            choices = self.problem.unit_allowed.size
            has_time = self.options.stop.limit_s is not None
            if choices > (FEW_CHOICES if is_near else MOST_CHOICES):
                return
            is_usable = self.lacks[0] <= 0 and not self._is_apart(plan)
            if is_usable and not has_time and find_kinds(self.problem, self.rule).are_exact:
                return
        counts = [self.weights]
        if self.outputs_decide or is_asked:
            counted = op_memory_bytes(self.problem)
            counts = [counted, *([self.weights] * self.outputs_decide)]
        stop = self.stop.within(1 - DESCENT_SHARE)
        contiguous = search_contiguous, self.goal.contiguous, CONTIGUOUS
        if self.is_preferred:
            if not (is_near and self.is_in_a_row and not is_asked):
                self._search_by_counts(*contiguous, counts, stop)
            return
        if self.prefers_contiguous:
            self._search_by_counts(*contiguous, counts, stop.within(SHARE))
        if not self.is_preferred:
            self._search_by_counts(search_anywhere, self.goal.anywhere, ALL, counts, stop)

    def _search_by_counts(
        self,
        search: Callable[..., Incumbent],
        solver: str,
        rivals: Rivals,
        counts: list[IntArray],
        stop: Stop,
    ) -> None:
        """Continue with a program for each count of what ops need of the memory."""
        for number, op_bytes in enumerate(counts):
            until = stop if number == len(counts) - 1 else stop.within(SHARE)
            self._search(search, solver, rivals, op_bytes, until)

    def _descend(self, stop: Stop, *, stays_contiguous: bool = False) -> None:
        """Move single units, or exchange two, as long as that helps when it is simulated."""
        if self.problem.unit_allowed.size <= MOST_CHOICES:
            began_unfit = self.lacks[0] > 0
            while not stop() and self._take_step(stop, stays_contiguous):
                if began_unfit and self.lacks[0] <= 0:
                    break

    def _take_step(self, stop: Stop, stays_contiguous: bool) -> bool:
        """Take the first move that helps from the device that decides; return if there is one."""
        problem, before = self.problem, self.plan
        if self.fits:
            source = int(pass_loads_us(problem, before.device, self.rule).sum(axis=1).argmax())
        else:
            peak = simulate(problem, before).peak_bytes
            source = int((peak - problem.cluster.capacity_bytes).argmax())
        for device in moves_from(problem, before.device, source):
            if stop():
                break
            if self._excess_of_weights(device) > 0 and self._excess_of_weights(before.device) <= 0:
                continue
            if stays_contiguous and not is_contiguous(problem, device):
                continue
            load_us = max_load_us(problem, device, self.rule)
            if not self.fits or load_us < (before.value_us or 0.0) * (1 - BETTER):
                self._offer_device(device)
            if self.plan is not before:
                return True
        return False

    def _list_placements(self) -> bool:
        """Try all placements if they are few; of those that are not contiguous, if nothing else.

        Stages of a plan may then depend on each other both ways. Return whether they are few.
        """
        problem, capacity = self.problem, self.problem.cluster.capacity_bytes
        if self.counts_samples or (
            self.is_settled and (problem.unit_allowed.size > FEW_CHOICES or self.is_in_a_row)
        ):
            return False
        choices = [np.flatnonzero(each).tolist() for each in problem.unit_allowed]
        if np.prod([float(len(each)) for each in choices]) > FEW_PLACEMENTS:
            return False
        found: list[tuple[bool, float, IntArray]] = []
        for placed in product(*choices):
            of_unit = np.array(placed)
            held = np.bincount(of_unit, problem.unit_persistent_bytes, len(capacity))
            device = of_unit[problem.unit]
            if (held > capacity).any() or not self._may_be_better(device):
                continue
            if self.stop():
                break
            apart = self.prefers_contiguous and not is_contiguous(problem, device)
            if not (apart and self.is_usable):
                found.append((apart, max_load_us(problem, device, self.rule), device))
        for apart, _, device in sorted(found, key=lambda each: each[:2]):
            if self.stop() or (self.is_usable and apart):
                break
            if self._may_be_better(device) and self._offer_device(device):
                break
        return True

    def _may_be_better(self, device: IntArray) -> bool:
        """Whether a placement takes less time than the best one of the kind that is preferred."""
        value_us = self.plan.value_us or 0.0
        return not self.is_usable or (
            max_load_us(self.problem, device, self.rule) < value_us * (1 - BETTER)
        )

    def _search(
        self,
        search: Callable[..., Incumbent],
        solver: str,
        rivals: Rivals,
        op_bytes: IntArray,
        stop: Stop,
    ) -> None:
        """Continue with a program; ``op_bytes`` is what each op counts towards memory."""
        if stop():
            return
        problem, plan, rule, seed = self.problem, self.plan, self.rule, self.options.seed
        # What is proven for one stage on each device holds neither for several that are interleaved
        # nor for replicas, and what is proven where all outputs count, not for plans whose outputs
        # need less.
        takes_turns = rule.pipeline == "interleaved"
        is_certain = not (self.outputs_decide or rule.replicate or rule.two_level or takes_turns)

        def take(found: Incumbent) -> None:
            found = replace(found, bound_us=found.bound_us if is_certain else self._shared_us)
            if np.isfinite(found.objective_us):
                made = plan_of_search(problem, found, plan.method, rule, self.about, rivals)
                made = replace(made, proven=made.proven and not takes_turns)
                if not self._offer(made) and not np.array_equal(made.device, found.device):
                    self._offer_device(found.device)  # free ops may not have room elsewhere
            best_us, known_us = self.plan.value_us or 0.0, self.plan.bound_us or 0.0
            if self.fits and found.bound_us > known_us:
                bound_us = min(found.bound_us, best_us)
                is_near = bound_us >= best_us * (1 - PROVEN_GAP)
                is_proven = is_near and not self.about and not takes_turns
                self.plan = replace(self.plan, bound_us=bound_us, proven=is_proven, rivals=rivals)
                report_plan(self.options, None, best_us, bound_us, bound_by=solver)

        found = search(
            problem,
            stop,
            rule,
            seed,
            solver,
            report=take,
            partition=self._as_partition(),
            op_bytes=op_bytes,
            accepts=self._accepts,
        )
        take(found)
        if found.why and found.why not in self.plan.note:  # what failed, though the plan is older
            self.plan = self.plan.with_notes(self.plan.note, found.why, separator="; ")

    def _accepts(self, device: IntArray) -> bool:
        """Whether a step of a placement fits in some order."""
        if self._excess_of_weights(device) > 0:
            return False
        made = simulate(self.problem, make_plan(self.problem, device, "", 0.0, self.rule))
        return made.fits or any(each.fits for each in in_other_orders(made, self._is_late))


def _has_one_table(problem: Problem, rule: LoadRule) -> bool:
    """Whether one table over the devices, all of one stage, is what a rule asks for."""
    return find_kinds(problem, rule).are_exact and rule.pipeline != "interleaved"
