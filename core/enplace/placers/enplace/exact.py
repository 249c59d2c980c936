"""The exact part of the search: CP-SAT on small problems (:mod:`enplace.solvers.cp`)."""

from __future__ import annotations

from dataclasses import replace

from enplace.bounds import Proof
from enplace.machine import simulate
from enplace.placers.enplace.phases import POLICIES
from enplace.placing.incumbents import BestSchedule, find_proof
from enplace.placing.options import PlaceOptions, Progress
from enplace.solvers.cp import solve_cp
from enplace.values.problem import Problem

ENGINE = "CP-SAT"
"""The name of this part in reports."""

THREADS = 2


def prove(
    problem: Problem, incumbent: BestSchedule, options: PlaceOptions
) -> tuple[bool, tuple[str, ...]]:
    """Let CP-SAT use the remaining time to search for a better plan and a higher bound.

    Do nothing without a time limit, or if there is nothing left to gain.

    Returns
    -------
    bool
        Whether it is proven that no plan fits in memory.
    tuple of str
        The reason why CP-SAT gave no answer, if it gave none.
    """
    limit_s = options.stop.limit_s
    stop = options.stop.when(lambda: incumbent.is_optimal)
    if limit_s is None or stop():
        return False, ()
    bound_us = find_proof(problem, options).bound_us
    nothing_fits = False
    left_out: list[str] = []
    for found in solve_cp(problem, incumbent.found, bound_us, stop.left_s(), stop, THREADS):
        options.proofs.add(problem, Proof(found.bound_us, ENGINE))
        nothing_fits |= found.status == "infeasible" and not incumbent.found.fits
        if found.why:
            left_out.append(f"{ENGINE} ({found.why})")
        options.progress(
            Progress(
                options.seconds,
                found.why or "looking for a proof",
                fraction=min(1.0, options.seconds / limit_s),
                bound_us=found.bound_us,
                engine=ENGINE,
                bound_by=ENGINE,
            )
        )
        if found.plan is not None:
            for policy, links in POLICIES:
                plan = replace(found.plan, policy=policy, links=links)
                incumbent.offer(simulate(problem, plan), ENGINE)
    return nothing_fits, tuple(left_out)
