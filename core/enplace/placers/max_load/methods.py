"""Pipelines with the highest throughput (Tarnawski et al. 2020, section 5).

The load of a device is what it does for one sample: its ops, and the transfers to and from it. In
a full pipeline, the busiest device decides the time per sample. A plan also orders the ops of one
sample. If there is no contiguous partition at all, all ops that can go to the first GPU do so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from enplace.machine.pipelines.loads import max_load_us
from enplace.machine.pipelines.stages import visits_again
from enplace.placers.max_load.improve import MOST_CHOICES, SHARE, UNASKED_S, Goal, improve
from enplace.placers.max_load.memory.fitting import NO_TURNS, NOTHING_FITS, find_fitting
from enplace.placers.max_load.memory.in_a_v import NO_V, NO_V_YET
from enplace.placers.max_load.memory.in_flight import held_by_stages
from enplace.placers.max_load.memory.mending import describe_mend
from enplace.placers.max_load.partition_plan import plan_of_partition
from enplace.placers.max_load.search.throughput_search import DP_SHARE
from enplace.placers.max_load.table.caveats import outputs_decide, simplify
from enplace.placing.options import (
    IN_FLIGHT,
    PROGRAM_S,
    SOLVER,
    STAGE_OPTIONS,
    PlaceOptions,
    Progress,
)
from enplace.placing.registry import ANYTIME, HETEROGENEOUS, MEMORY, PROOF, TIES, placer
from enplace.solvers.milp import quickest_solver
from enplace.values.plan import Plan
from enplace.values.problem import LATENCY, THROUGHPUT, Problem
from enplace.values.rivals import ALL, CONTIGUOUS, STAGED

MAY_MEND = "more GPUs or a smaller batch may mend that"
"""What is said where no mend is known."""

MUCH = 1.5
"""A pace that is longer than the largest load by this factor is mentioned."""

TABLES_SHARE = 0.6
"""Share of the time for the tables of a graph that is too large for programs. The rest is for what
follows, so that all of it ends within the time limit."""

_SOURCE = "Tarnawski et al. (NeurIPS 2020)"


@placer(
    "max-load-dp",
    title="Max-load DP, contiguous",
    good=(
        "The first choice for a pipeline, also on GPUs that differ in speed, memory or links. If "
        "the graph can be cut in few ways, as a chain of layers, it proves within seconds that no "
        "split into consecutive stages is better."
    ),
    source=_SOURCE,
    objectives=(THROUGHPUT, LATENCY),
    capabilities=(MEMORY, HETEROGENEOUS, PROOF, TIES),
    options=STAGE_OPTIONS,
)
def max_load_dp(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the contiguous partition whose busiest device has the least load.

    An ideal is a set of ops that holds all predecessors of each; the ops between two ideals can be
    one stage. The dynamic program fills a table of the best partition of every ideal for every
    number of devices (section 5.1.1). A partition along a few dozen orders bounds it, so most of
    the table is never looked at. If a graph has too many ideals to hold, the best of these orders
    is the answer.

    The paper's accelerators are alike. Here the table counts how many devices of each kind are
    used: those with equal speed, memory and links, and with equal constraints. Pins and forbidden
    devices are thus respected from the start, and hosts have as much memory as they have. If there
    are more than :data:`~enplace.placers.max_load.table.kinds.MOST_CELLS` ways to count them, kinds
    that are most alike are joined, and each of their devices counts as the slowest and smallest.

    If the partition is not proven, or does not fit when it is simulated, other searches continue
    (:mod:`enplace.placers.max_load.improve`): with less memory, over all partitions or placements
    if they are few, by local search where nothing contiguous fits, and, in the time that is left,
    with the integer programs of ``max-load-ip`` and ``max-load-ip-noncontiguous``. Its latency is a
    baseline of section 7.
    """
    if options.objective == LATENCY:
        return _partition_plan(problem, "max-load-dp", options)
    hands_over = options.stop.limit_s is not None and problem.unit_allowed.size <= MOST_CHOICES
    n_tables = 2 if outputs_decide(problem) else 1  # the other one counts the variables alone
    share = SHARE / n_tables if hands_over else TABLES_SHARE
    return _search_plan(problem, "max-load-dp", options, Goal(STAGED, UNASKED_S), share)


@placer(
    "max-load-dpl",
    title="Max-load DPL, along an order",
    good=(
        "For pipelines of graphs with so many branches that max-load-dp would take long. It is "
        "fast on graphs of any size, and on our samples its loads are at most a few per cent "
        "above those of max-load-dp."
    ),
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=(MEMORY, HETEROGENEOUS, TIES),
    options=STAGE_OPTIONS,
)
def max_load_dpl(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the best partition along one depth-first order (DPL).

    Stages are consecutive ops of that order, so the dynamic program has one ideal for each op
    (section 5.1.2). Devices that differ, pins and forbidden devices are treated as by
    ``max-load-dp``.
    """
    plan = _partition_plan(problem, "max-load-dpl", options, along_order=True)
    mend = partial(describe_mend, problem, options.load_rule, options.stop.limited(PROGRAM_S))
    return _with_mend(problem, plan, options, mend)


@placer(
    "max-load-ip",
    title="Max-load IP, contiguous",
    good=(
        "When max-load-dp proves nothing, and two devices may depend on each other both ways. It "
        "begins with the split of max-load-dp, and seldom improves it. With a time limit, "
        "max-load-dp hands over to it."
    ),
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=(MEMORY, HETEROGENEOUS, PROOF, ANYTIME, TIES),
    options=(SOLVER, IN_FLIGHT),
)
def max_load_ip(problem: Problem, options: PlaceOptions) -> Plan:
    """Improve the DP's partition with the integer program of Fig. 6; by default with CP-SAT.

    The program begins with the partition of ``max-load-dp``. Its stages are contiguous in the
    weaker sense of definition 3.1: two devices may depend on each other both ways. It respects pins
    and forbidden devices.
    """
    goal = Goal(CONTIGUOUS, PROGRAM_S, contiguous=options.solver_or(quickest_solver()))
    return _search_plan(problem, "max-load-ip", options, goal)


@placer(
    "max-load-ip-noncontiguous",
    title="Max-load IP (not contiguous)",
    good=(
        "When throughput is all that counts, and a device may work on a sample more than once: "
        "no other method has smaller loads. The stages are more, so each sample takes longer, "
        "as enplace simulate --pipeline shows."
    ),
    source=_SOURCE,
    objectives=(THROUGHPUT,),
    capabilities=(MEMORY, HETEROGENEOUS, PROOF, ANYTIME, TIES),
    options=(SOLVER, IN_FLIGHT),
)
def max_load_ip_noncontiguous(problem: Problem, options: PlaceOptions) -> Plan:
    """Find the placement whose busiest device has the least load, by annealing and Fig. 6.

    It begins with the partition of ``max-load-dp``, and asks the program of ``max-load-ip`` for a
    while. Then HiGHS solves the integer program without its rows for contiguity. Meanwhile,
    annealing moves single ops and, by levels, whole layers; HiGHS takes over what it finds. It
    respects pins and forbidden devices.
    """
    goal = Goal(ALL, PROGRAM_S, anywhere=options.solver_or("HiGHS"))
    return _search_plan(problem, "max-load-ip-noncontiguous", options, goal)


def _partition_plan(
    problem: Problem, method: str, options: PlaceOptions, *, along_order: bool = False
) -> Plan:
    """Make a plan of the result of the dynamic programs."""
    options.stop.check()
    rule = options.load_rule
    problem, about = simplify(problem, rule, held_by_stages(problem, rule))
    stop = options.stop.limited(PROGRAM_S)
    partition = find_fitting(
        problem,
        rule,
        seed=options.seed,
        along_order=along_order,
        stopped=stop,
    )
    plan = plan_of_partition(problem, partition, method, rule, about, stopped=stop())
    value_us, bound_us = plan.value_us, plan.bound_us
    options.progress(Progress(options.seconds, "a partition", None, plan, value_us, bound_us))
    return plan


def _search_plan(
    problem: Problem, method: str, options: PlaceOptions, goal: Goal, share: float = DP_SHARE
) -> Plan:
    """Make a plan from a partition, which gets a share of the time, and from other searches."""
    stop = options.stop.limited(PROGRAM_S)
    plan = _partition_plan(problem, method, replace(options, stop=stop.within(share)))
    mend = cache(partial(describe_mend, problem, options.load_rule, stop))
    if NOTHING_FITS in plan.note or plan.pace_us:  # for the note in the end, while there is time
        mend()
    apart = next((note for note in (NO_V, NO_V_YET, NO_TURNS) if note in plan.note), "")
    if NOTHING_FITS in plan.note or not visits_again(problem, plan):
        plan = improve(problem, plan, options, goal)
        if apart not in plan.note:
            plan = plan.with_notes(plan.note, apart, separator="; ")
    return _with_mend(problem, plan, options, mend)


def _with_mend(
    problem: Problem, plan: Plan, options: PlaceOptions, describe: Callable[[], str]
) -> Plan:
    """Add what would let the pipeline fit, where none does, or only at a much slower pace."""
    if NOTHING_FITS in plan.note:
        mend = describe() or MAY_MEND
        return replace(plan, note=plan.note.replace(NOTHING_FITS, f"{NOTHING_FITS}; {mend}"))
    chosen = plan.device, options.load_rule, plan.replicas, plan.recompute
    if plan.pace_us > MUCH * max_load_us(problem, *chosen):
        mend = describe()
        return plan.with_notes(plan.note, mend and f"at full pace, {mend}", separator="; ")
    return plan
