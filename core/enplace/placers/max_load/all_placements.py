"""The least time per sample of a small graph, by trying all placements.

The loads of all placements are computed at once, as
:func:`~enplace.machine.pipelines.loads.max_load_us` does for one. Then, from the least load on, it
is tried whether they fit: a step in any order of its ops, and a full pipeline at some pace. If it
does not fit at its own, the ops of each stage get the order that needs least memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.machine.host_links import sample_us
from enplace.machine.op_passes import backward_ops, work_per_sample_us
from enplace.machine.pipelines.loads import BACKWARD, COMPUTE, FORWARD, IN, OUT, add_up_parts_us
from enplace.placers.max_load.contiguity import is_contiguous
from enplace.placers.max_load.memory.in_flight import find_fullest, find_pace_us, samples_matter
from enplace.placers.max_load.memory.stage_orders import with_least_needs
from enplace.placers.max_load.partition_plan import make_plan
from enplace.placing.rebalance import TIE
from enplace.placing.small import MOST_TIED, Placements
from enplace.placing.stop import Stop
from enplace.text import ms
from enplace.values.load_rule import LoadRule
from enplace.values.plan import Plan
from enplace.values.problem import BoolArray, Problem
from enplace.values.profile import FloatArray, IntArray

CLEARLY = 0.01
"""A plan that is not contiguous is mentioned if it takes less time by this share."""

APART = "a split that is not contiguous takes {}: max-load-ip-noncontiguous finds it"

MOST_PIPELINES = 300
"""Placements whose pipelines are simulated, after which the search gives up."""


def find_best(
    problem: Problem,
    rule: LoadRule,
    stop: Stop,
    *,
    prefers_contiguous: bool,
    known_us: float | None = None,
) -> list[Plan] | None:
    """Find the best of all plans that fit, and those that are as good.

    Parameters
    ----------
    prefers_contiguous : bool
        Whether any contiguous placement that fits is better than one that is not.
    known_us : float, optional
        The time per sample of a plan that fits, and is contiguous if that is preferred. Only
        placements whose work takes no longer are tried.

    Returns
    -------
    list of Plan or None
        The best one first; empty if none fits; None if there is too much to try. The bound is the
        least load of the placements whose step fits; it is below the value where the pipeline must
        be slowed down. The note of the best one says if one that is not contiguous takes clearly
        less.
    """
    if rule.replicate or rule.recompute or rule.two_level or rule.pipeline == "interleaved":
        return None
    limit_us = np.inf if known_us is None else known_us * (1 + TIE)
    work_us = None if known_us is None else work_per_sample_us(problem, rule.microbatches)
    every = Placements(problem, work_us, limit_us)
    if every.device is None:
        return None
    search = _Search(problem, rule, every)
    loads_us = find_loads_us(problem, every.device, rule)
    apart: list[tuple[float, IntArray]] = []
    for at in np.argsort(loads_us, kind="stable").tolist():
        device, load_us = every.device[at], float(loads_us[at])
        if search.is_over(load_us):
            break
        if stop() or search.gives_up:
            return None
        if prefers_contiguous and not is_contiguous(problem, device):
            apart.append((load_us, device))
        else:
            search.offer(device, load_us)
    is_staged = bool(search.found)
    for load_us, device in () if is_staged else apart:
        if search.is_over(load_us):
            break
        if stop() or search.gives_up:
            return None
        search.offer(device, load_us)
    if search.gives_up or search.least_us > limit_us or (not search.found and search.a_step_fits):
        return None
    plans = search.plans
    if is_staged:
        plans[0] = plans[0].with_notes(search.about_faster(apart, stop))
    return plans


class _Search:
    """The plans that are as good as the best so far."""

    def __init__(self, problem: Problem, rule: LoadRule, every: Placements) -> None:
        self._problem, self._rule, self._every = problem, rule, every
        self._counts_samples = samples_matter(problem, rule)
        self._n_pipelines, self.least_us, self._bound_us = 0, np.inf, np.inf
        self.found: list[tuple[float, Plan]] = []
        self.a_step_fits = False

    @property
    def gives_up(self) -> bool:
        return not self._every.is_certain or self._n_pipelines > MOST_PIPELINES

    @property
    def plans(self) -> list[Plan]:
        """The plans found, the best one first; those that are slowed down are left out after it."""
        found = sorted(self.found, key=lambda each: each[0])
        plans = [replace(plan, bound_us=self._bound_us) for _, plan in found]
        return plans[:1] + [plan for plan in plans[1:] if not (plan.pace_us or plans[0].pace_us)]

    def is_over(self, load_us: float) -> bool:
        """Whether no placement with this load or more needs to be tried."""
        is_full = len(self.found) >= MOST_TIED and not self._counts_samples
        return is_full or load_us > self.least_us * (1 + TIE)

    def offer(self, device: IntArray, load_us: float) -> None:
        """Keep a placement if it fits and is as good as the best one."""
        schedule = self._every.fit(device)
        if schedule is None:
            return
        self.a_step_fits = True
        self._bound_us = min(self._bound_us, load_us)
        plan, pace_us = schedule.plan, 0.0
        if self._counts_samples:
            plan, pace_us = self._find_pace_us(plan)
        if np.isinf(pace_us):
            return
        made = make_plan(self._problem, device, "", 0.0, self._rule)
        plan = replace(made, position=plan.position, policy=plan.policy, links=plan.links)
        value_us = max(load_us, pace_us)
        self.found.append((value_us, replace(plan, value_us=value_us, pace_us=pace_us)))
        self.least_us = min(self.least_us, value_us)

    def about_faster(self, apart: list[tuple[float, IntArray]], stop: Stop) -> str:
        """Say what the first placement that fits takes, if it is clearly less than the best."""
        for load_us, device in apart:
            if not is_clearly_less(load_us, self.least_us) or stop() or self.gives_up:
                break
            schedule = self._every.fit(device)
            if schedule is not None and (
                not self._counts_samples or self._find_pace_us(schedule.plan)[1] == 0
            ):
                return APART.format(ms(load_us))
        return ""

    def _find_pace_us(self, plan: Plan) -> tuple[Plan, float]:
        """Find an order of a plan, and the pace at which a pipeline then fits.

        The pace is 0 if it is that of the load, and inf if it is too slow.
        """
        self._n_pipelines += 1
        if self._fits_at_its_load(plan):
            return plan, 0.0
        problem, rule = self._problem, self._rule
        lean = with_least_needs(problem, plan, rule)
        if simulate(problem, lean).fits:
            if self._fits_at_its_load(lean):
                return lean, 0.0
            plan = lean
        most_us = self.least_us * (1 + TIE)
        return plan, find_pace_us(problem, plan.device, rule, most_us=most_us, order=plan)

    def _fits_at_its_load(self, plan: Plan) -> bool:
        return find_fullest(self._problem, plan.device, self._rule, order=plan) <= 1.0


def is_clearly_less(apart_us: float, value_us: float | None) -> bool:
    """Whether a plan that is not contiguous takes clearly less time than another."""
    return apart_us <= (value_us or 0.0) * (1 - CLEARLY)


def find_loads_us(problem: Problem, device: IntArray, rule: LoadRule) -> FloatArray:
    """Return the largest load of each placement; (n_placements,).

    Parameters
    ----------
    device : int array, shape (n_placements, n_ops)
    """
    profile, owner = problem.profile, problem.cluster.lane_owner
    of, cost_us = backward_ops(problem).astype(np.int64), sample_us(problem)
    at, n_devices = np.arange(len(device)), problem.cluster.n_devices
    parts = np.zeros((len(device), n_devices, 2, 3))
    work_us = work_per_sample_us(problem, rule.microbatches)
    for op in range(profile.n_ops):
        parts[at, device[:, op], of[op], COMPUTE] += work_us[op, device[:, op]]
    for tensor, maker in enumerate(profile.tensor_op.tolist()):
        first = np.full((len(device), n_devices), BACKWARD + 1)  # pass that reads it there
        for op in profile.edge_op[profile.edge_tensor == tensor].tolist():
            first[at, device[:, op]] = np.minimum(first[at, device[:, op]], of[op])
        home = device[:, maker]
        first[at, home] = BACKWARD + 1
        is_sent = (first <= BACKWARD).any(axis=1)
        parts[at, home, of[maker], OUT] += np.where(is_sent, cost_us[tensor, home], 0.0)
        for each in (FORWARD, BACKWARD):
            parts[:, :, each, IN] += np.where(first == each, cost_us[tensor], 0.0)
    on_chip = np.zeros((len(device), n_devices, 2))
    for number, chip in enumerate(owner.tolist()):
        on_chip[:, chip] += parts[:, number, :, COMPUTE]
    busy: BoolArray = np.any(parts, axis=(2, 3))
    parts[..., COMPUTE] = np.where(busy[..., None], on_chip[:, owner], parts[..., COMPUTE])
    load = add_up_parts_us(parts.reshape(-1, 2, 3), rule)
    largest: FloatArray = (
        load.reshape(len(device), n_devices, rule.n_passes).max(axis=1).sum(axis=1)
    )
    return largest
