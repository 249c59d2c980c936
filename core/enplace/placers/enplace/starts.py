"""The plans that the search starts from: the plans of the quick methods, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from enplace.errors import CancelledError, DoesNotFitError, EnplaceError
from enplace.machine import simulate
from enplace.placers.enplace.kernels import BLOCKS, BOUND, FILLINGS, SIMULATE, load_kernels
from enplace.placers.enplace.methods import LP_START, SEARCHES, STARTS, run_method
from enplace.placers.expert import stacks
from enplace.placing.candidates import all_on_one, best_of, given_start
from enplace.placing.depth_first import depth_first_position
from enplace.placing.filling import fillings
from enplace.placing.fitting import in_other_orders
from enplace.placing.incumbents import Best, BestSchedule
from enplace.placing.moves.steps import LISTS
from enplace.placing.options import PlaceOptions, Progress
from enplace.placing.repair import place_afresh, rearrange
from enplace.placing.settle import by_placed_rank
from enplace.text import count, seconds
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.schedule import Schedule

SMALL = 300
"""Most ops of a problem that other searches and CP-SAT are tried on."""

LARGE, QUICKEST = 10_000, ("heft", "m-etf")
"""Above this many ops, the methods that are tried first, because there may be no time for others.
The first has the better plans of hubs and heavy tensors, the second often those of huge graphs."""

THREADS = 2
"""How many methods are tried side by side on a large graph: their kernels need no interpreter."""

FEWER = ("dpos", "heft")
"""The methods that are also tried on fewer GPUs."""

OP_S, OP_DEVICE_S = 2.2e-5, 3e-7
"""Seconds that the first of the quickest takes per op, more than twice that for each of a million,
and per op and device."""

UNCHECKED_OP_S = {
    "single": 2e-6,
    "m-topo": 5e-6,
    "expert": 1.5e-5,
    "order-place": 2.5e-5,
    "celeritas": 1e-4,
    "metis": 2e-5,
}
"""Seconds per op that some methods may take before they check whether to stop."""

LAST_OP_S = 6e-6
"""Seconds per op of a large graph that are left at the end of the time limit, when methods are
abandoned: their plans are still to be simulated."""

STARTS_SHARE, LARGE_SHARE = 0.8, 0.4
"""Share of the time limit after which no further method is started; and within which all but the
quickest must end on a large graph, where balances gain more."""

FILLING_SHARE = 0.1
"""Share of the time left for plans that fill memory op by op."""

DEPTH_FIRST_SHARE = 0.1
"""Share of the time left for plans that end what they have begun."""

AFRESH_SHARE, CROWDED = 0.1, 0.5
"""Share of the time limit that placing merged ops may take, and the share of a device's memory that
the best plan must exceed to make both worth the time."""

REPAIRED, REPAIRS_SHARE = 10_000, 0.07
"""Most ops of a problem whose plans that exceed memory are repaired, and the share of the time left
that this may take, unless the problem is small."""

SEARCH_SHARE = 0.05
"""Share of the time limit that each of the other searches gets."""

STACK_OP_S = 4e-5
"""Seconds per op that placing layers in blocks takes."""

FEWER_SHARE, ROOMY = 0.25, 0.8
"""Share of the time limit within which lists for fewer GPUs must end, and the most of the memory of
these GPUs that variables may fill."""

LP_OP_S, LP_SHARE = 2.5e-4, 0.15
"""Seconds per op that the start by a linear program takes, and the share of the time limit that it
may take, with all that comes before it."""


@dataclass(frozen=True, eq=False)
class Start:
    """The plans that the search begins with.

    Attributes
    ----------
    best : Schedule
        The best list schedule, or the plan to begin from.
    plans : tuple of Plan
        All list schedules, for further starts.
    left_out : tuple of str
        The methods that failed, each with the reason.
    n_too_slow : int
        How many methods there was no time for.
    """

    best: Schedule
    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]
    n_too_slow: int


def find_start(problem: Problem, options: PlaceOptions) -> Start:
    """Try the quick methods, and report each plan that is better than all before.

    Raises
    ------
    EnplaceError
        If the time limit is too short for the two quickest methods on a large graph.
    """
    load_kernels(SIMULATE, options)
    _check_limit(problem, options)
    methods = _methods(problem, options)
    plans: list[Plan] = []
    left_out: list[str] = []
    best, is_afresh = given_start(problem, options, "enplace"), False
    for plan in _try_methods(problem, options, methods, left_out, has_plan=best.kept is not None):
        plans.append(plan)
        best.offer(simulate(problem, plan), LISTS)
        if not is_afresh and methods.keys().isdisjoint(QUICKEST):
            is_afresh = True
            _fill_memory(problem, best, plans, options)
            if _is_crowded(best.found):
                for schedule in depth_first_plans(problem, options.stop.within(DEPTH_FIRST_SHARE)):
                    best.offer(schedule, LISTS)
                _place_afresh(best, plans, options)
        # The bound of a large graph takes seconds, so a first good plan comes before it.
        if len(plans) > 1:
            load_kernels(BOUND, options)
            if best.is_enough:
                break
    for plan in _on_fewer_gpus(problem, best, options):
        plans.append(plan)
        best.offer(simulate(problem, plan), LISTS)
    _repair(problem, plans, best, options)
    n_too_slow = 0 if best.is_close else len(methods)
    return Start(best.found, tuple(plans), tuple(left_out), n_too_slow)


def _fill_memory(
    problem: Problem, best: BestSchedule, plans: list[Plan], options: PlaceOptions
) -> None:
    """Fill memory op by op; the best plan found is one more to start from."""
    load_kernels(FILLINGS, options)
    own = Best[Schedule]()
    filling = replace(options, stop=options.stop.within(FILLING_SHARE))
    for schedule in fillings(problem, filling):
        own.offer(schedule)
        best.offer(schedule, LISTS)
    if own.kept is not None:
        plans.append(own.kept.plan)


def _place_afresh(best: BestSchedule, plans: list[Plan], options: PlaceOptions) -> None:
    """Place merged ops; where memory is tight, list schedules of single ops need more of it."""
    limit_s = options.stop.limit_s
    if limit_s is not None:
        until_s = min(options.seconds + AFRESH_SHARE * limit_s, limit_s)
        options = replace(options, stop=options.stop.until(until_s))
    if best.offer(place_afresh(best.found, options), LISTS):
        plans.append(best.found.plan)


def _is_crowded(schedule: Schedule) -> bool:
    capacity = schedule.problem.cluster.capacity_bytes
    return bool((schedule.peak_bytes > CROWDED * capacity).any())


def depth_first_plans(problem: Problem, over: Callable[[], bool]) -> Iterator[Schedule]:
    """Yield plans that end what they have begun: all on one GPU, and layers in blocks, in time.

    They send little and hold little at once, so what fits on fewer of the GPUs is found.
    """
    position = depth_first_position(problem)
    for device in chain(all_on_one(problem), stacks(problem)):
        yield simulate(problem, Plan(device, position, "enplace", policy="strict", links="fifo"))
        if over():
            return


def _quickest_s(problem: Problem) -> float:
    n_ops = problem.profile.n_ops
    return (OP_S * (1 + 1.4e-6 * n_ops) + OP_DEVICE_S * problem.cluster.n_devices) * n_ops


def _check_limit(problem: Problem, options: PlaceOptions) -> None:
    n_ops, least_s = problem.profile.n_ops, _quickest_s(problem)
    if n_ops > LARGE and options.start is None and options.stop.left_s() < least_s:
        raise EnplaceError(
            f"a plan for {count(n_ops, 'op')} takes about {seconds(math.ceil(least_s))}; raise the "
            f"time limit, or choose a method that only places, such as m-topo"
        )


def _try_methods(
    problem: Problem,
    options: PlaceOptions,
    methods: dict[str, PlaceOptions],
    left_out: list[str],
    *,
    has_plan: bool,
) -> Iterator[Plan]:
    """Yield the plans of the quick methods; ``methods`` keeps those that there is no time for.

    Once there is a plan, be it the one to begin from (``has_plan``), a method that is still running
    at the time limit is abandoned with its best plan so far. Only on a large graph under a time
    limit do methods run side by side: then their order, and with it the search, depends on how long
    each takes.
    """
    n_ops = problem.profile.n_ops
    threads = THREADS if n_ops > LARGE and options.stop.limit_s is not None else 1
    plans: dict[str, Plan] = {}  # the best plan of each method so far
    ended = False

    def is_over(name: str) -> bool:
        late = not _has_time_left(name, problem, options)
        return ended or options.stop.cancelled() or (late and (has_plan or bool(plans)))

    def run(name: str) -> bool:
        """Run a method; return whether it came to its end before the time limit."""

        def keep(progress: Progress) -> None:
            if progress.incumbent is not None:
                plans[name] = progress.incumbent

        over, own = partial(is_over, name), methods[name]
        own = replace(own, stop=own.stop.when(over), progress=keep)
        plans[name] = run_method(name, problem, own)
        return not over()

    waiting, running = list(methods), dict[Future[bool], str]()
    with ThreadPoolExecutor(threads) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < threads:
                    name = waiting.pop(0)
                    if _has_time_for(name, problem, options) or not (has_plan or plans or running):
                        load_kernels(name, options)
                        running[pool.submit(run, name)] = name
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(future)
                    try:
                        if future.result():
                            del methods[name]
                    except CancelledError:
                        options.stop.check()
                    except EnplaceError as error:  # the other methods may do better
                        left_out.append(f"{name} ({error})")
                        del methods[name]
                        continue
                    if name in plans:
                        yield plans[name].under_name("enplace")
        finally:
            ended = True


def _has_time_for(name: str, problem: Problem, options: PlaceOptions) -> bool:
    n_ops = problem.profile.n_ops
    if name == LP_START:
        return options.stop.left_s(LP_SHARE) >= LP_OP_S * n_ops
    unchecked_s = UNCHECKED_OP_S.get(name, 0.0) * n_ops
    if n_ops > LARGE and name not in QUICKEST and options.stop.left_s(LARGE_SHARE) < unchecked_s:
        return False
    return options.stop.left_s(STARTS_SHARE) >= 0 and options.stop.left_s() >= unchecked_s


def _has_time_left(method: str, problem: Problem, options: PlaceOptions) -> bool:
    """Whether a method that is running may go on."""
    n_ops = problem.profile.n_ops
    if method == LP_START:  # some programs take far longer than most of their size
        return options.stop.left_s(LP_SHARE) >= 0
    return options.stop.left_s() >= (LAST_OP_S * n_ops if n_ops > LARGE else 0.0)


def _on_fewer_gpus(problem: Problem, best: BestSchedule, options: PlaceOptions) -> Iterator[Plan]:
    """Yield plans that leave some GPUs idle: where links are shared or of two kinds, it pays.

    These are the best plan of layers in contiguous blocks, which people pick by hand, and the plans
    of the quickest methods on a quarter, half and three quarters of the GPUs.
    """
    gpus = problem.cluster.gpus
    if len(gpus) < 2 or best.is_enough:
        return
    n_ops = problem.profile.n_ops
    is_quick = n_ops <= LARGE  # then all blocks take next to no time, even on a busy machine
    if is_quick or options.stop.left_s(STARTS_SHARE) >= STACK_OP_S * n_ops:
        stacked = (
            Plan(device, by_placed_rank(problem, device), "enplace", links="priority")
            for number, device in enumerate(stacks(problem))
            if number == 0 or is_quick or options.stop.left_s(FEWER_SHARE) >= 0
        )
        yield best_of(problem, stacked, options.quiet).plan
    for quarters in (1, 2, 3):
        n_gpus = len(gpus) * quarters // 4
        if n_gpus < 2 or options.stop.left_s(FEWER_SHARE) < _quickest_s(problem):
            continue
        narrowed = _narrow(problem, gpus[:n_gpus], gpus[n_gpus:])
        if narrowed is not None:
            for name in FEWER:
                yield run_method(name, narrowed, options.quiet).under_name("enplace")


def _narrow(problem: Problem, kept: Sequence[int], others: Sequence[int]) -> Problem | None:
    """Forbid some GPUs to all units that may run on the others; None if memory is too small."""
    if problem.unit_persistent_bytes.sum() > ROOMY * problem.cluster.capacity_bytes[kept].sum():
        return None
    first = np.unique(problem.unit, return_index=True)[1]
    movable = first[problem.unit_allowed[:, kept].any(axis=1)].tolist()
    forbidden = {(op, device) for op in movable for device in others}
    try:
        return problem.constrained(forbidden=problem.forbidden | forbidden)
    except DoesNotFitError:  # a unit needs one of the GPUs that are left out
        return None


def _repair(problem: Problem, plans: list[Plan], best: BestSchedule, options: PlaceOptions) -> None:
    """Offer the plans that exceed memory after repair, as their methods would return them.

    The shortest ones come first.
    """
    n_ops = problem.profile.n_ops
    if n_ops > REPAIRED or best.is_enough:
        return
    made = [each for each in (simulate(problem, plan) for plan in plans) if not each.fits]
    if not made:
        return
    if n_ops > SMALL:
        options = replace(options, stop=options.stop.within(REPAIRS_SHARE))
    load_kernels(BLOCKS, options)
    made.sort(key=lambda each: each.makespan_us)
    best_of(problem, _repairs(made, options), options, best, engine=LISTS)


def _repairs(made: Iterable[Schedule], options: PlaceOptions) -> Iterator[Plan]:
    """Yield plans that exceed memory in other orders, and with blocks of ops moved."""
    for schedule in made:
        if not options.stop():
            yield from (each.plan for each in in_other_orders(schedule))
            yield rearrange(schedule, options).plan


def _methods(problem: Problem, options: PlaceOptions) -> dict[str, PlaceOptions]:
    """List the methods to start from, each with its options."""
    limit_s = options.stop.limit_s
    methods = dict.fromkeys((*STARTS, LP_START), options.quiet)
    if problem.profile.n_ops > LARGE:
        methods = {name: methods[name] for name in QUICKEST} | methods
    if problem.profile.n_ops <= SMALL:
        for number, name in enumerate(SEARCHES, 1):
            until_s = None
            if limit_s is not None:
                until_s = options.seconds + number * SEARCH_SHARE * limit_s
            methods[name] = replace(options.quiet, stop=options.stop.until(until_s))
    return methods
