"""Run a placer: check the request, keep the incumbents, evaluate the plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from enplace.bounds import Proof, rivals_of
from enplace.errors import CancelledError, EnplaceError
from enplace.machine import simulate
from enplace.machine.check_claims import SAME, check_claims
from enplace.machine.op_passes import backward_ops
from enplace.machine.pipelines.v_shape import IN_A_V, is_in_v
from enplace.names.guessed_passes import backward_hint, may_have_backward
from enplace.option import Value
from enplace.placing.fitting import find_fit
from enplace.placing.incumbents import GIVEN, Best, Incumbent, find_proof, is_better
from enplace.placing.next_moves.search import NextMove, climb
from enplace.placing.obey import known_to_placers, obey
from enplace.placing.options import PlaceOptions, Progress
from enplace.placing.packing import PROVES
from enplace.placing.registry import EXACT, MEMORY, SPLITS, TIES, Placer, find_placer, placers
from enplace.placing.repair import has_time_to_rearrange
from enplace.placing.small import ENGINE, NOTHING_FITS, Exact, find_shortest, is_small
from enplace.placing.ties import SHARE, on_each_alone, settle_ties, stop_of_ties
from enplace.text import as_clause, finite, percent, seconds
from enplace.values.plan import Plan, as_run, check_plan
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem, split_problem
from enplace.values.result import Result
from enplace.values.schedule import Schedule

DISPROVEN = "The solver's bound is above the step time of this plan, so nothing is proven."
SIMULATING = "local-search"
"""A method for pipelines and queries that begins with what fits, and takes little time."""

FOUND_NO_FIT = "This method found nothing that fits in memory; another method may."
REMEMBERED = 16
"""Plans that a placer reported last, which may be taken if they are as good as its best."""

NO_FIT_IN_TIME = "There was too little time to find a plan that fits in memory."

CLIMB_S, CLIMB_SHARE = 10.0, 0.5
"""Where constraints have budgets, the plan to begin from is improved first: with this time limit if
none is set, and for this share of the time that is left."""


def place(problem: Problem, method: str, *, options: PlaceOptions | None = None) -> Result:
    """Solve a problem with one of the registered methods.

    Returns
    -------
    Result
        The plan satisfies the problem's constraints. It holds ``solve_seconds``, ``seed`` and the
        value of the objective, even if the method minimises something else. Its note mentions it if
        nothing better than the plan to begin from was found. It has the splits of the problem's
        graph, or those of the plan to begin from.

    Raises
    ------
    EnplaceError
        If no such method exists, it cannot run on this machine, or it has no such option.
    CancelledError
        If cancelled before there was a plan; if cancelled later, the best so far is returned.
    """
    chosen = find_placer(method)
    options = _checked(chosen, options or PlaceOptions())
    if options.start is not None and not problem.splits:
        problem = split_problem(problem, options.start.splits)
    clock = options.stop.clock.restart()
    options = replace(options, stop=replace(options.stop, clock=clock))

    def report() -> None:
        options.progress(Progress(clock.seconds, "Compiling, once after installation"))

    has_copies = not all(split.is_cut for split in problem.splits)
    with clock.paused_by_compiler(report):
        schedule = _solve(chosen, problem, options.without_bounds if has_copies else options)
    if has_copies and schedule.plan.nothing_fits:  # with other copies, a plan may fit
        plan = replace(schedule.plan, nothing_fits=False, note=FOUND_NO_FIT)
        schedule = replace(schedule, plan=plan)
    return replace(_result(schedule, options), compile_seconds=clock.paused_s)


def place_with_each(
    problem: Problem,
    methods: Mapping[str, Mapping[str, Value]],
    options: PlaceOptions,
    begin: Callable[[str], None] = lambda name: None,
) -> tuple[dict[str, Result], dict[str, EnplaceError]]:
    """Solve a problem with several methods; if one fails, the others still run.

    Parameters
    ----------
    methods : mapping of str to mapping
        The values of each method's own options.
    begin : callable
        Called with each method's name before it runs.

    Returns
    -------
    results : dict of str to Result
        By method, in the given order.
    failures : dict of str to EnplaceError
        Why the other methods have no plan.
    """
    results: dict[str, Result] = {}
    failures: dict[str, EnplaceError] = {}
    for name, values in methods.items():
        begin(name)
        try:
            results[name] = place(problem, name, options=replace(options, values=values))
        except EnplaceError as error:
            failures[name] = error
    return results, failures


def _solve(chosen: Placer, problem: Problem, options: PlaceOptions) -> Schedule:
    """Return the plan's schedule after all the work that counts towards the solving time."""
    given = options.start
    if given is not None and any(kind.is_checked for kind in problem.constraints):
        # Placers know no budgets, and a plan that was moved back to keep them is often worse.
        has_plan = _tell_given(problem, chosen.name, options)
        stop = options.stop.limited(CLIMB_S).within(CLIMB_SHARE)
        start = climb(problem, given, stop, lambda move: _tell(move, chosen.name, options))
        options = replace(options, start=start)
        if options.stop.cancelled() and (has_plan or start is not given):
            note = _fruitless(options) if start is given else ""
            found = replace(start, method=chosen.name, note=note, seed=options.seed)
            return simulate(problem, replace(found, solve_seconds=options.seconds))
    watch = _Watch(problem, options)
    tried = _try_all(problem, chosen, options)
    exact = tried or Exact()
    plan = watch.run(chosen, exact.plan if exact.is_settled else None)
    if given is not None and plan.acts_like(given):
        schedule = simulate(problem, plan.with_notes(_fruitless(options), plan.note))
    else:
        schedule = simulate(problem, plan)
        if exact.schedule is not None and is_better(exact.schedule, schedule):
            schedule = exact.schedule  # the best that it has found, though it is not proven
        if exact.nothing_fits:
            plan = replace(schedule.plan, nothing_fits=True, note=NOTHING_FITS)
            schedule = replace(schedule, plan=plan)
        elif not (schedule.fits or plan.nothing_fits or options.stop.cancelled()) and chosen.can(
            MEMORY
        ):
            fitted = _fit(schedule, watch.found, options, tried)
            if chosen.can(SPLITS) and fitted.plan.nothing_fits:
                # The proof is about this graph, and other rewritten ones may fit.
                plan = plan.with_notes(FOUND_NO_FIT, plan.note)
                fitted = replace(schedule, plan=plan)
            schedule = fitted
        if chosen.can(TIES) and schedule.fits and not options.stop.cancelled():
            stop = stop_of_ties(options.stop, problem.profile.n_ops)
            settled = settle_ties(schedule, watch.found, stop, on_each_alone(problem))
            most_us, us = schedule.value_us, settled.value_us
            if us <= most_us or us <= _given_us(problem, options):
                schedule = settled
    plan = schedule.plan
    if not watch.has_reported:  # a placer need not report its only plan
        step_us = schedule.makespan_us if plan.objective == STEP_TIME else plan.value_us
        options.progress(
            Progress(
                options.seconds,
                "a plan",
                incumbent=plan,
                objective_us=step_us,
                bound_us=exact.bound_us if exact.is_settled and schedule.fits else None,
                engine=ENGINE if exact.is_settled else "",
                fits=schedule.fits,
            )
        )
    plan = as_run(schedule.problem.profile, plan)
    plan = replace(plan, solve_seconds=options.seconds, seed=options.seed)
    return replace(schedule, plan=plan)


def _tell_given(problem: Problem, method: str, options: PlaceOptions) -> bool:
    """Report the plan to begin from if it is a plan for this problem; return whether it is."""
    assert options.start is not None
    before_us, plan = _given_us(problem, options), replace(options.start, method=method)
    is_plan = bool(np.isfinite(before_us))
    if is_plan:
        options.progress(
            Progress(options.seconds, GIVEN, incumbent=plan, objective_us=before_us, engine=GIVEN)
        )
    return is_plan


def _fruitless(options: PlaceOptions) -> str:
    return f"Nothing better than {GIVEN} was found in {seconds(options.seconds)}."


def _given_us(problem: Problem, options: PlaceOptions) -> float:
    """Return what the plan to begin from takes, which the result must not exceed; else infinity."""
    given = options.start
    if (
        given is not None
        and given.objective == options.objective
        and given.splits == problem.splits
    ):
        with suppress(EnplaceError):  # it breaks a constraint
            check_plan(problem, given)
            before = simulate(problem, given)
            return before.value_us if before.fits else np.inf
    return np.inf


def _try_all(problem: Problem, chosen: Placer, options: PlaceOptions) -> Exact | None:
    """Solve a small problem for the step time by trying all plans; None if that is not done."""
    if not chosen.can(EXACT):
        return None
    options.stop.check()
    if options.objective != STEP_TIME or not is_small(problem):
        return None
    return _shortest(problem, chosen.name, options, options.start)


def _shortest(
    problem: Problem, method: str, options: PlaceOptions, start: Plan | None = None
) -> Exact:
    """Find the shortest step of a small problem, and keep the proof if there is one."""
    found = find_shortest(problem, method, start)
    if 0 < found.bound_us < np.inf:
        options.proofs.add(problem, Proof(found.bound_us, ENGINE))
    return found


def _result(schedule: Schedule, options: PlaceOptions) -> Result:
    problem, value_us = schedule.problem, finite(schedule.value_us)
    plan = replace(schedule.plan, noted_us=value_us, noted_for=problem.costs_digest)
    schedule = schedule.under(problem, plan)
    if plan.objective != STEP_TIME:
        hints = _hint_at_passes(schedule, options.objective), _hint_at_v(schedule)
        plan = plan.with_notes(plan.note, *hints, separator="; ")
        return Result(replace(schedule, plan=plan), plan.bound_us)
    proof = find_proof(rivals_of(schedule), options)
    if schedule.fits and proof.bound_us > schedule.makespan_us * (1 + SAME):
        options.proofs.drop(rivals_of(schedule))
        plan = plan.with_notes(plan.note, DISPROVEN)
        return Result(replace(schedule, plan=plan))
    return Result(schedule, proof.bound_us, proof.by)


def _hint_at_passes(schedule: Schedule, objective: str) -> str:
    """Say how a training step tells its passes, if this may be one and is planned as none."""
    problem, profile = schedule.problem, schedule.problem.measured_profile
    if objective != THROUGHPUT or backward_ops(problem).any():
        return ""
    held, room = int(profile.persistent_bytes.sum()), int(problem.cluster.capacity_bytes.sum())
    if not may_have_backward(profile) and (schedule.fits or held > room):
        return ""
    return (
        "planned without a backward pass, so the memory of samples in flight is not counted: "
        f"{backward_hint(profile)}"
    )


def _hint_at_v(schedule: Schedule) -> str:
    """Say that a plan for a pipeline in a V is none, if its method has not said so."""
    problem, plan = schedule.problem, schedule.plan
    is_asked = plan.load_rule is not None and plan.load_rule.pipeline == "zbv"
    if not is_asked or IN_A_V in plan.note or is_in_v(problem, plan):
        return ""
    return f"these are not {IN_A_V}, as zbv needs them: max-load-dp looks for such"


def _fit(
    made: Schedule, found: Iterable[Plan], options: PlaceOptions, tried: Exact | None
) -> Schedule:
    """Return a plan that fits instead of one that exceeds memory; say in its note what is known.

    Searches for throughput and latency add up weights and outputs, as the paper does. A schedule
    also holds copies of tensors, so their best plan may exceed memory, and others that they found
    count, and the plan of a search that simulates. ``tried`` is what is known of a small problem
    already.
    """
    problem, plan = made.problem, made.plan
    exact = tried or Exact()
    if tried is None and is_small(problem) and not options.stop.cancelled():
        exact = _shortest(problem, plan.method, options)
        if exact.nothing_fits:
            return replace(made, plan=replace(plan, nothing_fits=True, note=NOTHING_FITS))
        if exact.plan is not None and plan.objective == STEP_TIME:
            return _instead(made, simulate(problem, _evaluate(problem, exact.plan, options)))
    known = known_to_placers(problem)
    plans = [*found] if plan.objective != STEP_TIME else []
    if plan.objective != STEP_TIME and plan.method != SIMULATING and not options.stop():
        quiet = replace(options, values={}, start=None, progress=lambda _: None)
        with suppress(EnplaceError):  # it has no plan
            plans.append(_Watch(problem, quiet).run(find_placer(SIMULATING)))
    fitted = find_fit(made if known is problem else simulate(known, plan), options, plans)
    if fitted.plan.nothing_fits:
        proven = plan if plan.nothing_fits else _with_first_note(fitted.plan, PROVES)
        return replace(made, plan=proven)
    if known is not problem:
        fitted = simulate(problem, obey(problem, fitted.plan))
    if not fitted.fits and exact.plan is not None:
        fitted = simulate(problem, _evaluate(problem, exact.plan, options))
    if not fitted.fits:
        note = FOUND_NO_FIT if has_time_to_rearrange(problem, options) else NO_FIT_IN_TIME
        return replace(made, plan=_with_first_note(plan, note))
    return _instead(made, fitted)


def _instead(made: Schedule, fitted: Schedule) -> Schedule:
    """Return a schedule that fits instead of one that exceeds memory, with a note."""
    plan = made.plan
    other, moved = fitted.plan, float(np.mean(fitted.plan.device != plan.device))
    what = "the ops were put in another order"
    if moved:
        what = f"{percent(moved)} of the ops were moved"
        other = replace(other, bound_us=None, proven=False, rivals=None)
    other = replace(other, method=plan.method, note=plan.note)
    note = f"This method's own plan exceeds memory; {what} to fit."
    return replace(fitted, plan=_with_first_note(other, note))


def _with_first_note(plan: Plan, note: str) -> Plan:
    """Put a sentence before a plan's note; the notes on pipelines and queries are clauses."""
    if plan.objective == STEP_TIME:
        return plan.with_notes(note, plan.note)
    return plan.with_notes(as_clause(note), plan.note, separator="; ")


def _tell(move: NextMove, method: str, options: PlaceOptions) -> None:
    """Report a move that was made as a better plan."""
    plan = replace(move.plan, method=method)
    options.progress(
        Progress(options.seconds, move.title, incumbent=plan, objective_us=move.after_us)
    )


class _Watch:
    """Runs a placer on the graph that it sees, and keeps the last incumbent that it reports.

    A placer reports only what is better (:class:`~enplace.placing.incumbents.Best`). Repaired for
    constraints that it does not know, its plans may rank otherwise, so they are compared again.
    """

    def __init__(self, problem: Problem, options: PlaceOptions) -> None:
        self.has_reported = False
        self._problem, self._asked = problem, options
        known = known_to_placers(problem)
        self._graph = replace(known, splits=()) if known.splits else known
        self._given: Plan | None = None
        self._last: Plan | None = None
        self.found: deque[Plan] = deque(maxlen=REMEMBERED)
        self._may_change = any(kind.is_checked for kind in problem.constraints)
        self._best = Best[Incumbent]()

    def run(self, chosen: Placer, exact: Plan | None = None) -> Plan:
        """Return the placer's plan for the problem and the objective; if cancelled, its last one.

        Parameters
        ----------
        exact : Plan, optional
            The best plan, if it is known already.

        Raises
        ------
        CancelledError
            If cancelled before there was a plan.
        """
        asked = self._asked
        start = asked.start and replace(asked.start, splits=())
        stop = asked.stop.within(1 - SHARE) if chosen.can(TIES) else asked.stop
        try:
            asked.stop.check()
            exact = exact and replace(exact, splits=())
            options = replace(asked, stop=stop, progress=self._pass_on, start=start, exact=exact)
            plan: object = chosen.run(self._graph, options)
        except CancelledError:
            if self._last is None:
                raise
            return self._last
        if not isinstance(plan, Plan):
            raise EnplaceError(f"method '{chosen.name}' returned {plan!r:.60}, which is not a plan")
        return self._keep(plan)

    def _keep(self, plan: Plan) -> Plan:
        """Convert a placer's plan into one for the problem and the objective, and keep it."""
        splits, proofs = self._problem.splits, self._asked.proofs
        proof = proofs.known(self._graph)
        if proof is not None and self._graph is not self._problem:
            proofs.add(self._problem, proof)  # the same holds for the problem's graph
        if plan is self._given and self._last is not None:
            return self._last
        if splits and plan.splits:
            raise EnplaceError(
                "the ops of this graph are split already; use a method that does not split ops"
            )
        own = replace(plan, splits=splits or plan.splits)
        found = _evaluate(self._problem, own, self._asked)
        self._given = plan
        if not self._may_change or self._best.offer(self._measured(found)):
            self._last = found
            self.found.append(found)
        assert self._last is not None, "the first plan is the best so far"
        return self._last

    def _measured(self, plan: Plan) -> Incumbent:
        """Measure a plan that may have been repaired, to compare it with those before."""
        schedule = simulate(split_problem(self._problem, plan.splits), plan)
        excess_bytes = schedule.excess_bytes
        return Incumbent(plan.device, schedule.value_us, 0.0, excess_bytes=excess_bytes)

    def _pass_on(self, progress: Progress) -> None:
        if progress.incumbent is not None:
            given, best = progress.incumbent, self._keep(progress.incumbent)
            self.has_reported = True
            if best.objective != given.objective:
                progress = replace(progress, objective_us=best.value_us, bound_us=None)
            elif self._may_change:  # it may have been repaired
                progress = replace(progress, objective_us=self._best.found.objective_us)
            progress = replace(progress, incumbent=best)
        self._asked.progress(progress)


def _evaluate(problem: Problem, plan: Plan, options: PlaceOptions) -> Plan:
    """Check a plan and its claims; add the value of the objective if its method has another."""
    problem = split_problem(problem, plan.splits)
    plan = as_run(problem.profile, obey(problem, plan))
    check_plan(problem, plan)
    if plan.objective == options.objective:
        return check_claims(problem, plan)
    rule = options.load_rule if options.objective == THROUGHPUT else None
    # What was proven is about the other objective, even if the two values are equal.
    plan = replace(plan, value_us=None, bound_us=None, proven=False, rivals=None)
    plan = check_claims(problem, replace(plan, objective=options.objective, load_rule=rule))
    if options.objective == STEP_TIME:
        return plan
    name = "the time per sample" if options.objective == THROUGHPUT else "the latency of a query"
    note = f"this is the value of a placement by {plan.method}, which does not minimise {name}"
    return plan.with_notes(plan.note, note, separator="; ")


def _checked(chosen: Placer, options: PlaceOptions) -> PlaceOptions:
    """Fill in the objective and parse the values; refuse those that the method would ignore."""
    if not chosen.installed:
        raise EnplaceError(f"method '{chosen.name}' cannot run here: {chosen.why_not}")
    objective = options.objective or chosen.objectives[0]
    if objective not in chosen.objectives:
        raise EnplaceError(
            f"method '{chosen.name}' does not serve objective '{objective}'; use one of "
            f"{', '.join(placers(objective))}"
        )
    values: dict[str, Value] = {}
    for name, given in options.values.items():
        option = chosen.option(name)
        value = option.parse(given)
        if value == option.default:
            continue
        if option.objective not in ("", objective):
            raise EnplaceError(
                f"option '{name}' is for objective '{option.objective}', not '{objective}'; leave "
                f"it out, or ask for --objective {option.objective}"
            )
        values[name] = value
    return replace(options, objective=objective, values=values)
