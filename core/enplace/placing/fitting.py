"""What is tried for a plan that exceeds memory: other orders, other placements, a proof.

How much memory a placement needs depends on the order of its ops, also where the objective does
not: a sample or a query is simulated as a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from enplace.machine import simulate
from enplace.machine.check_claims import check_claims
from enplace.machine.layout import build_machine
from enplace.machine.ranks import placed_rank_us
from enplace.placing.depth_first import depth_first_position
from enplace.placing.filling import fillings
from enplace.placing.moves.thrifty import ROOMS, thrifty_start_us
from enplace.placing.options import PlaceOptions
from enplace.placing.packing import pack
from enplace.placing.repair import rearrange
from enplace.placing.settle import (
    by_placed_rank,
    frugal_position,
    natural_position,
    position_by,
)
from enplace.placing.stop import Stop, never
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

PACKING_SHARE, PACKING_S = 0.25, 5.0
"""Share of the time left for filling memory op by op, and for packing units into it, and the
seconds if there is no limit."""

MOST_ORDERED = 5_000
"""Most ops of a graph for which an order that needs little memory is sought."""


def find_fit(made: Schedule, options: PlaceOptions, others: Iterable[Plan] = ()) -> Schedule:
    """Return the best plan found that fits, or else the given one, and what is proven of it.

    If no other order of the placement fits, others count, and what fills memory op by op. If none
    of them fits, units are packed into memory, which may also prove that no plan fits. Placements
    around the given one count too.

    Parameters
    ----------
    made : Schedule
        A plan that exceeds memory.
    others : iterable of Plan
        Plans of the same graph that may fit.
    """
    problem, plan = made.problem, made.plan
    if plan.nothing_fits:
        return made
    over = options.stop.with_grace(problem.profile.n_ops)
    same = best_fit(in_other_orders(made, over))
    if same is not None:
        return same
    alike = (each for each in others if len(each.device) == len(plan.device))
    found = [simulate(problem, each) for each in alike]
    filled = fillings(problem, replace(options, stop=limit_packing(options.stop)))
    found += [_evaluated(replace(each, plan=placed_at(plan, each.plan))) for each in filled]
    if best_fit(found) is None:
        packed = pack(problem, limit_packing(options.stop))
        if packed.is_impossible:
            return replace(made, plan=replace(plan, nothing_fits=True, bound_us=None, proven=False))
        if packed.device is not None:
            placed = simulate(problem, placed_at(plan, replace(plan, device=packed.device)))
            found += map(_evaluated, [placed, *in_other_orders(placed, over)])
    found.append(_evaluated(rearrange(made, options)))
    return best_fit(found) or made


def best_fit(found: Iterable[Schedule]) -> Schedule | None:
    """Return the best of some schedules that fits, if any does."""
    fitting = (each for each in found if each.fits)
    return min(fitting, key=lambda each: each.value_us, default=None)


def limit_packing(stop: Stop) -> Stop:
    """Return when a search for a packing ends."""
    if stop.limit_s is None:
        return stop.until(stop.clock.seconds + PACKING_S)
    return stop.within(PACKING_SHARE)


def in_other_orders(made: Schedule, over: Callable[[], bool] = never) -> Iterator[Schedule]:
    """Yield a placement with other orders of its ops, those that may need less memory, in time."""
    problem, plan = made.problem, made.plan
    orders = [partial(thrifty_position, problem, plan.device, room) for room in ROOMS]
    orders.insert(0, partial(depth_first_position, problem))
    orders += [partial(natural_position, problem), partial(by_placed_rank, problem, plan.device)]
    if problem.profile.n_ops <= MOST_ORDERED:
        orders.append(partial(frugal_position, problem))
    for find_position in orders:
        if over():
            return
        position = find_position()
        for policy in ("strict", "priority"):
            yield simulate(problem, replace(plan, position=position, policy=policy, links="fifo"))


def thrifty_position(problem: Problem, device: IntArray, room: float = 1.0) -> IntArray:
    """Return the position of each op by ranks, where what has room goes first.

    ``room`` is the share of the memory that counts as room.
    """
    machine = build_machine(problem)
    device = device.copy()  # numba would compile anew for a read-only array
    rank_us = placed_rank_us(machine, device)
    return position_by(problem, thrifty_start_us(machine, device, rank_us, room))


def placed_at(plan: Plan, other: Plan) -> Plan:
    """Return a plan with the placement and order of another, of which nothing is known yet."""
    return replace(
        plan,
        device=other.device,
        position=other.position,
        policy=other.policy,
        links=other.links,
        subgraph=None,
        replicas=(),
        recompute=(),
        pace_us=0.0,
        bound_us=None,
        proven=False,
        rivals=None,
    )


def _evaluated(schedule: Schedule) -> Schedule:
    """Return a schedule whose ops were moved, with the value that its plan now has."""
    plan = replace(placed_at(schedule.plan, schedule.plan), value_us=None)
    return replace(schedule, plan=check_claims(schedule.problem, plan))
