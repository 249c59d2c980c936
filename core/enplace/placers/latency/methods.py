"""The least latency of one query (Tarnawski et al. 2020, sections 4 and 7).

What :mod:`enplace.placers.latency` finds becomes a plan, which like any other also says in what
order the ops run. The latency is that of the paper's accelerators, which take their ops in whole
pieces; a step that is played through the machine model takes less.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from enplace.machine import simulate
from enplace.machine.loads import backward_ops
from enplace.placers.latency import (
    PROVEN_GAP,
    Found,
    Limits,
    best_latency,
    greedy_split,
    latency_us,
    split_into_pieces,
)
from enplace.placers.max_load.contract import whole_lacking_bytes
from enplace.placers.max_load.dp import ONE_CHIP
from enplace.placers.max_load.methods import nothing_found, simplified
from enplace.placing.candidates import unordered
from enplace.placing.incumbents import excess_bytes
from enplace.placing.options import SOLVER, PlaceOptions, Progress
from enplace.placing.registry import placer
from enplace.placing.settle import settle
from enplace.text import finite
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, Problem
from enplace.values.profile import IntArray

_SOURCE = "Tarnawski et al. (NeurIPS 2020)"

PROGRAM_S = 60.0
"""An integer program takes so long if nobody says how long it may."""

PIECES = 2
"""Pieces of each accelerator, for the placements that need not be contiguous."""

BOTH_PASSES = (
    "a query to a training graph is forward and backward pass; between them activations go to the "
    "host's memory and back"
)
NO_HOST = (
    "the cluster has neither a CPU nor a second GPU, so it does not say what a way to the host's "
    "memory costs between the passes; nothing is counted"
)
"""What a person should know who asks for the latency of training."""


@placer(
    "greedy-latency",
    title="Greedy latency",
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=("memory",),
)
def greedy_latency(problem: Problem, options: PlaceOptions) -> Plan:
    """Fill one accelerator after the other along a topological order."""
    options.check_cancelled()
    problem, _, about = _simplified(problem)
    device = greedy_split(problem)
    pieces = int(split_into_pieces(problem, device).max()) + 1
    device, us = _tidied(problem, device, latency_us(problem, device), pieces)
    plan = _plan(problem, device, "greedy-latency", us).with_notes(*about, separator="; ")
    options.progress(Progress(options.seconds, "a split", None, plan, us))
    return plan


@placer(
    "latency-ip",
    title="Latency IP, contiguous",
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=("memory", "heterogeneous", "proof", "anytime"),
    options=(SOLVER,),
)
def latency_ip(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the contiguous split with the least latency, by annealing and Fig. 3."""
    return _searched(problem, "latency-ip", 1, options)


@placer(
    "latency-ip-q",
    title="Latency IP in pieces, two for each accelerator",
    source=_SOURCE,
    objectives=(LATENCY,),
    capabilities=("memory", "heterogeneous", "proof", "anytime"),
    options=(SOLVER,),
)
def latency_ip_q(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the least latency where accelerators have two pieces, by annealing and Fig. 4."""
    return _searched(problem, "latency-ip-q", PIECES, options)


def _simplified(problem: Problem) -> tuple[Problem, bool, list[str]]:
    """The problem as the paper's machines have it, if it is the same, and what to know of it."""
    simpler, about = simplified(problem)
    notes, same = [about] if about else [], not about
    if ONE_CHIP in about:
        notes.append("the latency takes them so, too, and may be longer")
    if backward_ops(problem).any():
        has_host = problem.cluster.n_devices > 1
        notes.append(BOTH_PASSES if has_host else NO_HOST)
        same = same and has_host
    return simpler, same, notes


def _searched(problem: Problem, method: str, q: int, options: PlaceOptions) -> Plan:
    incumbents = _Incumbents(problem, method, q, options)
    found = best_latency(
        incumbents.problem, incumbents.limits, q, options.seed, options.solver_or("HiGHS")
    )
    return incumbents.plan_of(found)


class _Incumbents:
    """Makes plans of what a search finds, and tells the person of them."""

    def __init__(self, problem: Problem, method: str, q: int, options: PlaceOptions) -> None:
        options.check_cancelled()
        self.problem, self._sure, self._about = _simplified(problem)
        self._method, self._q, self._options = method, q, options
        self._found_us, self._us = np.inf, np.inf
        self._device: IntArray | None = None
        limit_s = PROGRAM_S if options.time_limit_s is None else options.time_limit_s
        self.limits = Limits(limit_s - options.seconds, options.cancelled, self._tell)

    def plan_of(self, found: Found) -> Plan:
        """The best plan so far, with what is known of it by now."""
        device, us = self._device, self._us
        if device is None:
            device, us = _tidied(self.problem, found.device, found.latency_us, self._q)
        about = list(self._about)
        if np.isinf(found.latency_us):
            about.append(nothing_found(self.problem, device))
        bound_us, proven = _proof(found, us)
        plan = replace(
            _plan(self.problem, device, self._method, us),
            bound_us=finite(bound_us),
            proven=proven and self._sure,
            details={"pieces": self._q},
        )
        return plan.with_notes(found.why, *about, separator="; ")

    def _tell(self, found: Found) -> None:
        plan = self.plan_of(found) if self._is_better(found) else None
        message = "a better split" if plan else "a better bound"
        bound_us = min(found.bound_us, self._us)
        self._options.progress(
            Progress(self._options.seconds, message, None, plan, self._us, bound_us)
        )

    def _is_better(self, found: Found) -> bool:
        if found.latency_us >= self._found_us:
            return False
        self._found_us = found.latency_us
        device, us = _tidied(self.problem, found.device, found.latency_us, self._q)
        # Tidied, what was found before may have less than this.
        better = us < self._us
        if better:
            self._device, self._us = device, us
        return better


def _tidied(problem: Problem, device: IntArray, us: float, pieces: int) -> tuple[IntArray, float]:
    """A placement and its latency, with free ops at their consumers unless that breaks something.

    So tidied, it has to honour the pins, to need no more memory, to have so many pieces in each
    pass of an accelerator, and to be no slower; or else it stays as it is.
    """
    tidied = settle(problem, device)
    tidied_us = latency_us(problem, tidied)
    if np.isinf(us) or not problem.unit_allowed[problem.unit, device].all():
        return tidied, tidied_us
    # Cheapest first: the last one plays a step of each.
    as_good = (
        tidied_us <= us * (1 + 1e-9)
        and split_into_pieces(problem, tidied).max() < pieces
        and whole_lacking_bytes(problem, tidied) <= whole_lacking_bytes(problem, device)
        and _step_lacks_bytes(problem, tidied) <= _step_lacks_bytes(problem, device)
    )
    return (tidied, tidied_us) if as_good else (device, us)


def _step_lacks_bytes(problem: Problem, device: IntArray) -> int:
    (plan,) = unordered(problem, device, "")
    return excess_bytes(simulate(problem, plan))


def _proof(found: Found, us: float) -> tuple[float, bool]:
    """A bound on the latency, and whether a placement with this latency is proven best."""
    bound_us = min(found.bound_us, us) if np.isfinite(found.latency_us) else 0.0
    proven = found.proven and us <= bound_us * (1 + PROVEN_GAP)
    return (us if proven else bound_us), proven


def _plan(problem: Problem, device: IntArray, method: str, us: float) -> Plan:
    (plan,) = unordered(problem, device, method)
    return replace(plan, objective=LATENCY, value_us=finite(us))
