"""Pesto: coarsen, solve the ILP (:mod:`~enplace.placers.pesto.program`), expand the result.

Where the paper leaves the choice open, this is what we do:

- In the time that people wait, free solvers do not get beyond some 50 vertices. With Gurobi or
  CPLEX the program has 200 vertices, as in the paper. With HiGHS it has :data:`FREE_TARGET`, which
  is too coarse to place well. Half of the time is therefore spent on the graph of 200 vertices,
  where the default method searches for what the program would find there, and then on finer graphs
  (:data:`FINER`). The best of all results becomes the plan. The same happens if Gurobi or
  CPLEX is installed but finds nothing, usually because there is no licence.
- The program grows with the squares of edges and GPUs. If even the fewest vertices are too many for
  memory (:data:`MOST_ROWS`), only these searches run, and the note says so.
- The paper leaves vertices of hundreds of ops to the framework's scheduling (end of section 3.3).
  We simulate each plan in the order of its vertices, with that order as a priority, and with
  the framework's, and keep the best.

The plan's details hold the ILP's results, and its note describes them; the step time is the
simulator's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from enplace.coarsen import expand, merge_batches
from enplace.machine import simulate
from enplace.placers.enplace.search import enplace
from enplace.placers.heft import heft
from enplace.placers.pesto.program import PestoProgram, most_rows, write_program
from enplace.placing.candidates import given_start
from enplace.placing.incumbents import BestSchedule, best_among
from enplace.placing.moves import Level, make_level
from enplace.placing.moves.steps import nearest
from enplace.placing.options import ROUNDS, SOLVER, PlaceOptions, Progress
from enplace.placing.registry import ANYTIME, CHANNELS, HETEROGENEOUS, MEMORY, WARM_START, placer
from enplace.placing.repair import try_relief
from enplace.solvers.milp import MilpAnswer, installed, keeps_to, solve_milp
from enplace.text import ms
from enplace.values.plan import POLICIES, Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule

TARGET, FREE_TARGET = 200, 40
"""Vertices of the coarse graph with a commercial solver (the paper's number), and with a free one.
"""

FEWEST, MOST_ROWS = 5, 2_000_000
"""Fewest vertices to try, and most rows of the program, which take about 2 GB."""

TOO_LARGE = "too large"
"""Status of a program that was not even written."""

COMMERCIAL = ("Gurobi", "CPLEX")

DEFAULT_S = 60.0
"""Time for the solver if no limit is set; the paper took 24 to 51 minutes."""

FINER = (4, 16)
"""After the search on 200 vertices, the best plan is refined on so many times as many. Each is
within one device of that plan, so vertices at its cuts become small and may move."""

SEARCH_S = 30.0
"""Most of the time that goes to these searches, in equal shares."""


@placer(
    "pesto",
    title="Pesto, integer program",
    good=(
        "To compare with the paper; or if you have Gurobi or CPLEX, which solve programs as "
        "large as the paper's. With free solvers, enplace finds shorter steps in the same time."
    ),
    source="Pesto (Hafeez et al. 2021)",
    capabilities=(MEMORY, HETEROGENEOUS, CHANNELS, ANYTIME, WARM_START),
    options=(SOLVER, ROUNDS),
)
def pesto(problem: Problem, options: PlaceOptions) -> Plan:
    """Coarsen, solve the ILP from the best list schedule, and transfer the result to the ops.

    If there is a plan to begin from, the ILP starts from it, as nearly as the vertices allow, and
    has to beat it. A budget of rounds ends the search on 200 vertices; the ILP has a time limit.
    """
    limit_s = DEFAULT_S if options.stop.limit_s is None else options.stop.limit_s
    usual = next((name for name in COMMERCIAL if installed(name)), "HiGHS")
    solver = options.solver_or(usual)
    best = given_start(problem, options, "pesto")
    note, details = _solve(problem, best, solver, limit_s, options)
    # An installed solver may have no licence, or one too small for 200 vertices.
    failed = details["ilp_step_time_us"] is None and details["solver_status"] != TOO_LARGE
    again = failed and not options.choice(SOLVER) and solver in COMMERCIAL
    if again and not options.stop.until(limit_s)():
        first = note
        note, details = _solve(problem, best, "HiGHS", limit_s, options)
        note = f"{first} {note}"
    return replace(best.found.plan, note=note, details=details)


def _solve(
    problem: Problem, best: BestSchedule, solver: str, limit_s: float, options: PlaceOptions
) -> tuple[str, dict[str, Any]]:
    """Improve the schedule with a solver, then a search if the solver is free; describe it."""
    free = solver not in COMMERCIAL
    vertex, level = _coarsen(problem, FREE_TARGET if free else TARGET)
    coarse = level.problem
    starts = [heft(coarse, options.quiet)]
    if best.kept:
        starts.append(nearest(level, best.kept.plan))
    best.offer(try_relief(_spread(problem, vertex, starts[0]), options))
    details: dict[str, Any] = {"solver": solver, "vertices": coarse.profile.n_ops}
    if _is_small(coarse):
        searches = free and problem.profile.n_ops > coarse.profile.n_ops
        program = write_program(coarse)
        answer = _solve_program(program, starts, solver, limit_s, searches, options)
        note = _note(solver, coarse, answer)
        if answer.values is not None:
            best.offer(_spread(problem, vertex, program.plan(answer.values)), solver)
        details |= _describe(program, answer)
    else:
        searches = True
        note = (
            f"The integer program was left out: even with {coarse.profile.n_ops} vertices, it "
            f"could have over {MOST_ROWS:,} rows."
        )
        details |= {"solver_status": TOO_LARGE, "ilp_step_time_us": None, "ilp_bound_us": None}
    if searches:
        note += _refine(problem, best, limit_s, options)
    return note, details


def _describe(program: PestoProgram, answer: MilpAnswer) -> dict[str, Any]:
    """Return what a plan's details say about the integer program."""
    return {
        "solver_status": answer.status,
        "variables": int(program.model.integral.sum()),
        "rows": program.model.n_rows,
        "ilp_step_time_us": answer.objective if math.isfinite(answer.objective) else None,
        "ilp_bound_us": answer.bound if math.isfinite(answer.bound) else None,
    }


def _coarsen(problem: Problem, target: int) -> tuple[IntArray, Level]:
    """Merge ops into a number of vertices, or fewer if the program would not fit in memory."""
    while True:
        vertex = merge_batches(problem, target)
        level = make_level(problem, vertex)
        if _is_small(level.problem) or target <= FEWEST:
            return vertex, level
        target = max(FEWEST, target // 2)


def _is_small(coarse: Problem) -> bool:
    """Whether the program of some vertices fits in memory."""
    return most_rows(coarse) <= MOST_ROWS


def _solve_program(
    program: PestoProgram,
    starts: list[Plan],
    solver: str,
    limit_s: float,
    searches: bool,
    options: PlaceOptions,
) -> MilpAnswer:
    """Solve the ILP from the best of some plans, in half of the time if a search comes after it."""
    n_vertices = program.problem.profile.n_ops
    # Start from the shortest that fits in the program, which counts memory in its own way.
    values = min(
        map(program.values, starts),
        key=lambda v: (not keeps_to(program.model, v), v[program.longest]),
    )
    left_s = max(0.0, limit_s - options.seconds)
    program_s = max(left_s / 2, left_s - SEARCH_S) if searches else left_s

    def report_answer(answer: MilpAnswer) -> None:
        proven = f", not below {ms(answer.bound)}" if math.isfinite(answer.bound) else ""
        options.progress(
            Progress(
                options.seconds,
                f"{solver} on {n_vertices} vertices: {ms(answer.objective)}{proven}",
                fraction=min(1.0, options.seconds / limit_s),
                engine=solver,
            )
        )

    return solve_milp(
        program.model, values, program_s, options.stop.cancelled, report_answer, solver=solver
    )


def _note(solver: str, coarse: Problem, answer: MilpAnswer) -> str:
    """Describe the result of the integer program for people."""
    note = f"The integer program on {coarse.profile.n_ops} vertices: "
    why = f" ({answer.why})" if answer.why else ""
    if answer.status == "optimal":
        return f"{note}{ms(answer.objective)}, proven optimal by {solver}."
    if answer.values is None:
        in_time = " in its time" if answer.status == "stopped" else ""
        return f"{note}{solver} found nothing{in_time}{why}."
    if not math.isfinite(answer.bound):
        return f"{note}{ms(answer.objective)} by {solver}, without a proof{why}."
    return f"{note}{ms(answer.objective)}, proven not below {ms(answer.bound)} by {solver}{why}."


def _refine(problem: Problem, best: BestSchedule, limit_s: float, options: PlaceOptions) -> str:
    """Search the paper's vertices, then finer ones; return a note."""
    note, until_s = "", min(limit_s, options.seconds + SEARCH_S)
    for step, factor in enumerate((1, *FINER)):
        if options.stop():
            break
        share_s = (until_s - options.seconds) / (1 + len(FINER) - step)
        own_s = None if options.rounds else options.seconds + share_s
        within = best.found.plan.device if factor > 1 else None
        vertex = merge_batches(problem, TARGET * factor, device=within)
        own = replace(options, stop=options.stop.until(own_s))
        note += _search(problem, best, vertex, own)
        if vertex.max() + 1 == problem.profile.n_ops:  # nothing is merged any more
            break
    return note


def _search(problem: Problem, best: BestSchedule, vertex: IntArray, options: PlaceOptions) -> str:
    """Search some vertices with the default method; return a note."""
    level = make_level(problem, vertex)
    coarse = level.problem
    message = f"looking for a plan of {coarse.profile.n_ops} vertices"

    def report_fraction(progress: Progress) -> None:
        options.progress(Progress(options.seconds, message, fraction=progress.fraction))

    start = nearest(level, best.found.plan)
    plan = enplace(coarse, replace(options, progress=report_fraction, start=start))
    found_us = simulate(coarse, plan).makespan_us
    best.offer(_spread(problem, vertex, plan), "search on vertices")
    return f" {coarse.profile.n_ops} vertices, searched without a proof: {ms(found_us)}."


def _spread(problem: Problem, vertex: IntArray, plan: Plan) -> Schedule:
    """Simulate a plan of the vertices on the ops, with the policy that is best there."""
    spread = replace(expand(problem, vertex, plan), method="pesto", links="fifo")
    return best_among(simulate(problem, replace(spread, policy=policy)) for policy in POLICIES)
