"""The least latency of one query (Tarnawski et al. 2020, sections 4 and 7).

The latency is that of the paper's accelerators: one receives all inputs of a subgraph, runs it, and
only then sends its outputs. A step on the simulator's machine takes less time. A plan also orders
the ops.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.machine.latency import find_pass_subgraphs, latency_us
from enplace.machine.op_passes import backward_ops
from enplace.placers.latency.all_placements import find_best
from enplace.placers.latency.search import place_greedily, search_latency
from enplace.placers.max_load.table.caveats import (
    ONE_CHIP,
    about_machine,
    explain_failure,
    simplify,
)
from enplace.placers.max_load.table.contract import find_static_excess
from enplace.placing.incumbents import PROVEN_GAP, Best, Incumbent, report_plan
from enplace.placing.options import PROGRAM_S, SOLVER, PlaceOptions, Progress
from enplace.placing.registry import ANYTIME, HETEROGENEOUS, MEMORY, PROOF, TIES, placer
from enplace.placing.settle import settle
from enplace.placing.small import NO_PLAN_FITS, find_order
from enplace.placing.ties import choose
from enplace.text import finite
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, Problem
from enplace.values.profile import IntArray
from enplace.values.rivals import Rivals

_SOURCE = "Tarnawski et al. (NeurIPS 2020)"

SHARE = 0.5
"""Share of the time limit for trying all plans of a small problem."""

SUBGRAPHS = 2
"""Subgraphs of each accelerator, for placements that need not be contiguous."""

BOTH_PASSES = (
    "a query to a training graph is a forward and a backward pass; in between, activations move to "
    "the host's memory and back"
)
NO_HOST = (
    "the cluster has neither a CPU nor a second GPU, so the cost of a transfer to the host's "
    "memory between the passes is unknown and counted as zero"
)
"""Notes on the latency of training."""


@placer(
    "greedy-latency",
    title="Greedy latency",
    good=(
        "To see what a search gains, and for chains of layers, where there is little to gain: "
        "it takes milliseconds."
    ),
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=(MEMORY,),
)
def greedy_latency(problem: Problem, options: PlaceOptions) -> Plan:
    """Fill one accelerator after another along a topological order.

    Each takes as many ops as fit. What no accelerator can hold goes to the CPUs.
    """
    options.stop.check()
    problem, _, about = _simplify(problem)
    device = place_greedily(problem)
    n_subgraphs = int(find_pass_subgraphs(problem, device).max()) + 1
    found = _settled(problem, Incumbent(device, latency_us(problem, device), 0.0), n_subgraphs)
    plan = _plan(problem, found, "greedy-latency").with_notes(*about, separator="; ")
    options.progress(Progress(options.seconds, "a placement", None, plan, found.objective_us))
    return plan


@placer(
    "latency-ip",
    title="Latency IP, contiguous",
    good=(
        "For a model that one accelerator cannot hold, or whose branches can run on several at "
        "once. Small graphs are proven optimal; large ones often end with a gap."
    ),
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=(MEMORY, HETEROGENEOUS, PROOF, ANYTIME, TIES),
    options=(SOLVER,),
)
def latency_ip(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the contiguous placement with the least latency, by annealing and Fig. 3.

    The better of the greedy placement and the best pipeline along one order is annealed, whole
    layers first. Then the integer program of Fig. 3 takes over, while annealings follow each other
    on another core: as many as three quarters of the time limit are worth on a quiet core.
    """
    return _search_plan(problem, "latency-ip", 1, options)


@placer(
    "latency-ip-q",
    title="Latency IP (two subgraphs), for each accelerator",
    good=(
        "Where it helps that an accelerator works twice on a query, in between waiting for "
        "another. It has more to search than latency-ip; on the paper's inputs, both find the "
        "same latencies."
    ),
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=(MEMORY, HETEROGENEOUS, PROOF, ANYTIME, TIES),
    options=(SOLVER,),
)
def latency_ip_q(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the least latency where accelerators have two subgraphs, by annealing and Fig. 4.

    First the search of ``latency-ip`` runs with all of its annealings, however long they take; its
    answer is where this one begins. Half of the annealings after it allow one subgraph only,
    because good placements of that kind are hard to find among all others.
    """
    return _search_plan(problem, "latency-ip-q", SUBGRAPHS, options)


def _simplify(problem: Problem) -> tuple[Problem, bool, list[str]]:
    """Convert a problem to the paper's machines; return it, whether it is the same, and notes."""
    simpler, about = simplify(problem)
    same, notes = _describe(problem, about)
    return simpler, same, notes


def _describe(problem: Problem, about: str) -> tuple[bool, list[str]]:
    """Say whether the paper's machines, described by a note, are the same; return all notes."""
    notes, same = [about] if about else [], not about
    if ONE_CHIP in about:
        notes.append("so the real latency may be longer")
    if backward_ops(problem).any():
        has_host = problem.cluster.n_devices > 1
        notes.append(BOTH_PASSES if has_host else NO_HOST)
        same = same and has_host
    return same, notes


def _search_plan(problem: Problem, method: str, q: int, options: PlaceOptions) -> Plan:
    """Make a plan from annealing and an integer program, and report each better one on the way."""
    options.stop.check()
    solver = options.solver_or("HiGHS")
    best = _try_all(problem, method, q, options)
    if best is not None:
        return best
    plans = _Plans(problem, method, q, options)
    stop = options.stop.limited(PROGRAM_S)
    found = search_latency(plans.problem, stop, q, options.seed, solver, plans.report)
    return plans.make(found)


def _try_all(problem: Problem, method: str, q: int, options: PlaceOptions) -> Plan | None:
    """Return the best of all plans of a small problem; None if not all could be tried."""
    stop = options.stop.within(SHARE)
    plans = find_best(problem, q, stop)
    if plans is None:
        return None
    if not plans:
        device = place_greedily(_simplify(problem)[0])
        plan = _plan(problem, Incumbent(device, latency_us(problem, device), 0.0), method)
        return replace(plan, nothing_fits=True).with_notes(NO_PLAN_FITS)
    same, about = _describe(problem, about_machine(problem))
    best = replace(
        plans[0], method=method, bound_us=plans[0].value_us, proven=same, rivals=Rivals(q)
    ).with_notes(*about, separator="; ")
    best = choose(simulate(problem, best), plans[1:], stop).plan
    report_plan(options, best, best.value_us or 0.0, best.bound_us)
    return best


class _Plans:
    """The plans for the incumbents of a search.

    Once free ops are settled, an earlier incumbent may have less latency than a later one, so this
    keeps the best placement as well.
    """

    def __init__(self, problem: Problem, method: str, q: int, options: PlaceOptions) -> None:
        self.problem = problem
        self._same, self._about = _describe(problem, about_machine(problem))
        self._method, self._q, self._options = method, q, options
        self._best, self._found = Best[Incumbent](), Best[Incumbent]()

    def make(self, found: Incumbent) -> Plan:
        """Make the best plan so far, with everything known about it by now."""
        best = self._best.kept or _settled(self.problem, found, self._q)
        plan = _plan(self.problem, best, self._method)
        about = list(self._about)
        if not found.fits:
            about.append(explain_failure(self.problem, plan.device))
        bound_us, proven = _prove(found, best.objective_us)
        plan = replace(
            plan,
            bound_us=finite(bound_us) or None,  # 0 proves nothing
            proven=proven and self._same,
            rivals=Rivals(self._q),
        )
        return plan.with_notes(found.why, *about, separator="; ")

    def report(self, found: Incumbent) -> None:
        plan = self.make(found) if self._is_better(found) else None
        us = self._best.kept.objective_us if self._best.kept else np.inf
        report_plan(self._options, plan, us, min(found.bound_us, us))

    def _is_better(self, found: Incumbent) -> bool:
        """Keep the placement of an incumbent, once settled, if it is better."""
        if not self._found.offer(found):
            return False
        return self._best.offer(_settled(self.problem, found, self._q))


def _settled(problem: Problem, found: Incumbent, n_subgraphs: int) -> Incumbent:
    """Move free ops to their consumers if that makes nothing worse.

    The result must respect the pins, need no more memory, have at most ``n_subgraphs`` subgraphs in
    each pass of an accelerator, and be no slower; otherwise the placement stays unchanged.
    """
    device, us = found.device, found.objective_us
    settled = settle(problem, device)
    settled_us = latency_us(problem, settled)
    if np.isinf(us) or not problem.unit_allowed[problem.unit, device].all():
        return replace(found, device=settled, objective_us=settled_us)
    # The cheapest check comes first; the last one simulates a step of each placement.
    as_good = (
        settled_us <= us * (1 + 1e-9)
        and find_pass_subgraphs(problem, settled).max() < n_subgraphs
        and find_static_excess(problem, settled) <= find_static_excess(problem, device)
        and _excess_bytes(problem, settled) <= _excess_bytes(problem, device)
    )
    return replace(found, device=settled, objective_us=settled_us) if as_good else found


def _excess_bytes(problem: Problem, device: IntArray) -> int:
    return find_order(problem, device)[0].excess_bytes


def _prove(found: Incumbent, us: float) -> tuple[float, bool]:
    """Return a bound on the latency, and whether it proves a placement with this latency best."""
    bound_us = min(found.bound_us, us) if found.fits else 0.0
    proven = found.proven and us <= bound_us * (1 + PROVEN_GAP)
    return (us if proven else bound_us), proven


def _plan(problem: Problem, found: Incumbent, method: str) -> Plan:
    """Make the plan of an incumbent."""
    plan = find_order(problem, found.device)[0].plan.under_name(method)
    # Usually the fewest subgraphs have the same latency, and need not be kept.
    us = found.objective_us
    is_split = us < latency_us(problem, found.device) * (1 - 1e-9)
    subgraph = found.subgraph if is_split else None
    return replace(plan, objective=LATENCY, value_us=finite(us), subgraph=subgraph)
