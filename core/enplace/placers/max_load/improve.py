"""What the default does with a partition that is not proven, or does not fit when it is simulated.

The dynamic programs count all variables and outputs of a device at once, as the paper does. A step
may need less, because not all outputs are in memory at the same time, or more, because tensors are
received. So plans are compared as they are simulated: first by the memory that they lack, then by
their time per sample. One is proven if no partition has less whose variables alone fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import product

import numpy as np

from enplace.coarsen.grouped import op_memory_bytes
from enplace.errors import ProblemError
from enplace.machine import simulate
from enplace.machine.pipelines.loads import max_load_us
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.placers.max_load.memory.fitting import NOTHING_FITS
from enplace.placers.max_load.memory.in_flight import find_fullest, samples_matter
from enplace.placers.max_load.memory.listing import list_partitions
from enplace.placers.max_load.partition_plan import make_plan, plan_of_partition, plan_of_search
from enplace.placers.max_load.search.throughput_search import search_anywhere, search_contiguous
from enplace.placers.max_load.table.caveats import about_machine, outputs_decide
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
from enplace.placing.incumbents import BETTER, PROVEN_GAP, Incumbent, report_plan
from enplace.placing.options import PlaceOptions
from enplace.placing.packing import pack
from enplace.placing.repair import rearrange
from enplace.placing.stop import Stop
from enplace.solvers.milp import CP_SAT
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
"""With so few choices, a program is solved even if no partition is better."""

FEW_PLACEMENTS = 5_000
"""So many placements of small graphs are all tried."""

LISTED_IDEALS = 2_000
"""With more ideals, there are too many partitions to try each."""

SHARE = 0.5
"""Share of the time left for each of the searches while nothing fits."""


def improve(problem: Problem, plan: Plan, options: PlaceOptions) -> Plan:
    """Return the best plan for throughput that the time allows, from that of the dynamic program.

    Parameters
    ----------
    plan : Plan
        A plan of the dynamic program; its bound and its proof count all variables and outputs.
    """
    return _Improver(problem, plan, options).run()


class _Improver:
    """The best plan so far, the memory that it lacks, and what is proven."""

    def __init__(self, problem: Problem, plan: Plan, options: PlaceOptions) -> None:
        self.problem, self.options, self.rule = problem, options, options.load_rule
        self.about = about_machine(problem, self.rule)
        self.weights = problem.profile.persistent_bytes
        self.outputs_decide = outputs_decide(problem)
        self.counts_samples = samples_matter(problem, self.rule)
        self.plan, self.lacks = plan, self._lacking(plan)
        limit_s = options.stop.limit_s
        unasked_s = options.seconds + UNASKED_S if limit_s is None else limit_s
        self.stop: Stop = options.stop.until(unasked_s)

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
    def is_contiguous(self) -> bool:
        """Whether the best plan fits, and each of its devices has one stage."""
        return self.fits and is_contiguous(self.problem, self.plan.device)

    @property
    def is_settled(self) -> bool:
        """Whether the best plan fits and is proven."""
        return self.fits and self.plan.proven

    def run(self) -> Plan:
        """Search until the best plan is proven, or the time is over."""
        if self.outputs_decide or not self.fits:
            self._search_by_weights()
        if not self.is_settled:
            self._list_partitions()
        if self.lacks[0] > 0:
            self._pack()
        if self.plan.nothing_fits:
            return self.plan
        if not self._list_placements():
            self._search_by_programs()
        if self.lacks[0] > 0:
            found = rearrange(simulate(self.problem, self.plan), self.options)
            self._offer_device(found.plan.device)
        if self.lacks[1] > 0 and NOTHING_FITS not in self.plan.note:
            return self.plan.with_notes(self.plan.note, NOTHING_FITS, separator="; ")
        return self.plan

    def _lacking(self, plan: Plan) -> tuple[float, float]:
        """Return by how much a plan exceeds the memory: a step, and a full pipeline."""
        excess = float(simulate(self.problem, plan).excess_bytes)
        if not self.counts_samples:
            return excess, 0.0
        chosen = plan.device, self.rule, plan.replicas, plan.recompute, plan.pace_us
        return excess, max(0.0, find_fullest(self.problem, *chosen) - 1.0)

    def _offer(self, plan: Plan) -> bool:
        """Keep a plan if it is better; return whether it fits."""
        lacks = self._lacking(plan)
        plan = replace(plan, proven=plan.proven and lacks <= (0.0, 0.0))
        value_us, best_us = plan.value_us or 0.0, self.plan.value_us or 0.0
        if lacks < self.lacks or (lacks == self.lacks and value_us < best_us * (1 - BETTER)):
            self.plan, self.lacks = plan, lacks
            report_plan(self.options, plan, value_us, plan.bound_us)
        return lacks <= (0.0, 0.0)

    def _offer_device(self, device: IntArray) -> bool:
        """Offer a placement of which little is proven."""
        bound_us = shared_work_us(self.problem)
        plan = make_plan(self.problem, device, self.plan.method, bound_us, self.rule)
        return self._offer(replace(plan, rivals=ALL).with_notes(self.about))

    def _as_partition(self) -> Partition:
        """Return the best plan as a partition; its load is inf if it does not fit."""
        plan = self.plan
        load_us = plan.value_us if self.fits and plan.value_us is not None else np.inf
        return Partition(
            plan.device, load_us, 0.0, replicas=plan.replicas, recompute=plan.recompute
        )

    def _search_by_weights(self) -> None:
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
                stopped=self.stop,
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
            if fits or smaller is None or self.stop():
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

    def _list_partitions(self) -> None:
        """Simulate all partitions whose variables fit if they are few."""
        rule = replace(self.rule, in_flight=False, recompute=False)
        if rule.replicate or self.counts_samples or not _has_one_table(self.problem, rule):
            return
        task = build_task(self.problem, rule, self.weights)
        lattice = find_lattice(task.nodes, LISTED_IDEALS, self.stop)
        if lattice is None:
            return
        for stages in list_partitions(lattice, task.costs, self._as_partition().load_us) or ():
            if self.stop():
                return
            device, *_ = assign(task.nodes.node, [(stages, task.devices)])
            plan = make_plan(
                self.problem, device, self.plan.method, self.plan.bound_us or 0.0, self.rule
            )
            if not self.fits or (plan.value_us or 0.0) < (self.plan.value_us or 0.0):
                self._offer(replace(plan, rivals=STAGED, details=self.plan.details))

    def _pack(self) -> None:
        """Pack units into memory, or prove that they do not fit."""
        found = pack(self.problem, self.stop.within(SHARE))
        if found.is_impossible:
            self.plan = replace(self.plan, nothing_fits=True, bound_us=None, proven=False)
        elif found.device is not None:
            self._offer_device(found.device)

    def _search_by_programs(self) -> None:
        """Continue with integer programs, whose stages may depend on each other both ways.

        If nothing contiguous fits, the ops of a device may be anywhere.
        """
        value_us, bound_us = self.plan.value_us or 0.0, self.plan.bound_us or 0.0
        is_near = self.is_contiguous and bound_us >= value_us * (1 - NEAR)
        choices = self.problem.unit_allowed.size
        counted, capacity = op_memory_bytes(self.problem), self.problem.cluster.capacity_bytes
        if not self.outputs_decide or counted.sum() > capacity.sum(dtype=np.float64):
            counted = self.weights
        has_time = self.options.stop.limit_s is not None
        if choices > (FEW_CHOICES if is_near else MOST_CHOICES):
            return
        is_usable = self.lacks[0] <= 0 and is_contiguous(self.problem, self.plan.device)
        if is_usable and not has_time and find_kinds(self.problem, self.rule).are_exact:
            return
        if not (is_near and self.is_in_a_row):
            self._search(search_contiguous, CP_SAT, CONTIGUOUS, counted)
        if not self.is_contiguous:
            self._search(search_anywhere, "HiGHS", ALL, counted)
        if not self.is_contiguous and counted is not self.weights:
            self._search(search_anywhere, "HiGHS", ALL, self.weights)

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
            apart = not is_contiguous(problem, device)
            if not (apart and self.is_contiguous):
                found.append((apart, max_load_us(problem, device, self.rule), device))
        for apart, _, device in sorted(found, key=lambda each: each[:2]):
            if self.stop() or (self.is_contiguous and apart):
                break
            if self._may_be_better(device) and self._offer_device(device):
                break
        return True

    def _may_be_better(self, device: IntArray) -> bool:
        """Whether a placement takes less time than the best contiguous one."""
        value_us = self.plan.value_us or 0.0
        return not self.is_contiguous or (
            max_load_us(self.problem, device, self.rule) < value_us * (1 - BETTER)
        )

    def _search(
        self,
        search: Callable[..., Incumbent],
        solver: str,
        rivals: Rivals,
        op_bytes: IntArray,
    ) -> None:
        if self.stop():
            return
        problem, plan, rule = self.problem, self.plan, self.rule
        stop = self.stop if self.is_contiguous else self.stop.within(SHARE)
        begin = self._as_partition()
        found = search(
            problem,
            stop,
            rule,
            self.options.seed,
            solver,
            partition=begin,
            op_bytes=op_bytes,
        )
        # What is proven for one stage on each device holds neither for several that are interleaved
        # nor for replicas, and what is proven where all outputs count, not for plans whose outputs
        # need less.
        takes_turns = rule.pipeline == "interleaved"
        is_certain = not (self.outputs_decide or rule.replicate or rule.two_level or takes_turns)
        found = replace(found, bound_us=found.bound_us if is_certain else shared_work_us(problem))
        if np.isfinite(found.objective_us):
            made = plan_of_search(problem, found, plan.method, rule, self.about, rivals)
            self._offer(replace(made, proven=made.proven and not takes_turns))
        if self.plan is plan and self.fits and found.bound_us > (plan.bound_us or 0.0):
            value_us = plan.value_us or 0.0
            bound_us = min(found.bound_us, value_us)
            is_near = bound_us >= value_us * (1 - PROVEN_GAP)
            is_proven = is_near and not self.about and not takes_turns
            self.plan = replace(plan, bound_us=bound_us, proven=is_proven, rivals=rivals)


def _has_one_table(problem: Problem, rule: LoadRule) -> bool:
    """Whether one table over the devices, all of one stage, is what a rule asks for."""
    return find_kinds(problem, rule).are_exact and rule.pipeline != "interleaved"
