"""What a placer is, how one is registered, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from enplace.errors import CancelledError, EnplaceError
from enplace.machine import simulate
from enplace.machine.latency import latency_us
from enplace.machine.loads import USUAL, LoadRule, max_load_us
from enplace.placing.clock import now_s
from enplace.placing.repair import rearranged
from enplace.solvers.milp import SOLVERS, installed
from enplace.text import instead, percent, seconds
from enplace.values.plan import Plan, check_plan
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem, split_problem
from enplace.values.schedule import Schedule

REPLICATION, SOLVER, WARM_START = "replication", "solver", "warm-start"
"""Capabilities that an option needs: stages that several devices take turns with, on one machine or
several (Tarnawski et al. 2020, C.2 and C.3); a choice of solver; a plan to begin from."""


STACKED, BRANCHES, LAYERS = FAMILIES = ("stacked", "branches", "layers")
"""Families of models that an expert places each in its own way; see
:mod:`enplace.placers.expert`."""

MAKERS, SUMS = MEMORY_RULES = ("makers", "sums")
"""What Baechi's own code takes a device's memory to hold: what its ops have made and others still
need, but no copies of what is sent there; or all that its ops ever make and need, as if none of it
were freed."""

MEMORY_RULE = "memory-rule"
"""The capability of going by one of these instead of what a step has there at a time."""

EVERY = (STEP_TIME, THROUGHPUT, LATENCY)
"""Objectives that a baseline can be asked for whatever it goes by, to compare it with others."""


@dataclass(frozen=True)
class Progress:
    """What a running placer reports.

    Attributes
    ----------
    seconds : float
        Since the placer started.
    message : str
        What it is doing, in a person's words.
    fraction : float or None
        How much of the work is done, 0 to 1, where that is known.
    incumbent : Plan or None
        The best plan so far.
    objective_us : float or None
        What the method makes small: step time, time per sample or latency of the best plan.
    bound_us : float or None
        A lower bound that the placer has proven.
    engine, bound_by : str
        Which part of the placer found the plan, and which proved the bound; empty if it has no
        parts, or for the bound that is known before any search.
    """

    seconds: float
    message: str
    fraction: float | None = None
    incumbent: Plan | None = None
    objective_us: float | None = None
    bound_us: float | None = None
    engine: str = ""
    bound_by: str = ""


def _never() -> bool:
    return False


def _ignore(progress: Progress) -> None:
    pass


@dataclass(frozen=True)
class PlaceOptions:
    """How long a placer may work, and whom it tells.

    Attributes
    ----------
    objective : str
        One of those that the method serves; empty for its first.
    time_limit_s : float or None
        A placer that searches stops then; the quick ones end long before.
    seed : int
        Of everything random; equal seeds give equal plans.
    cancelled : callable
        Asked often; once true, the placer stops.
    progress : callable
        Told about every incumbent.
    start : Plan or None
        A plan to begin from, for the methods that can (:data:`WARM_START`).
    rule : LoadRule
        How the time per sample follows from the loads of devices, for :data:`THROUGHPUT`; only
        methods with :data:`REPLICATION` know replicas and machines.
    solver : str
        One of :data:`~enplace.solvers.milp.SOLVERS`, for methods with :data:`SOLVER`; empty for
        the method's own choice.
    family : str
        One of :data:`FAMILIES`, for the expert; empty to have it recognised.
    memory_rule : str
        One of :data:`MEMORY_RULES`, for methods with :data:`MEMORY_RULE`; empty for what a step has
        in memory at a time.
    rules : mapping of int to int
        Device number by op number where a person's rules say so, for the expert.
    """

    objective: str = ""
    time_limit_s: float | None = None
    seed: int = 0
    cancelled: Callable[[], bool] = _never
    progress: Callable[[Progress], None] = _ignore
    start: Plan | None = None
    rule: LoadRule = USUAL
    solver: str = ""
    family: str = ""
    memory_rule: str = ""
    rules: Mapping[int, int] = field(default_factory=dict)
    started: float = field(default_factory=now_s)

    @property
    def seconds(self) -> float:
        """Time since the options were made or the placer was started; compiling takes none."""
        return now_s() - self.started

    @property
    def stopped(self) -> bool:
        """Whether a placer that has a plan should return it now."""
        late = self.time_limit_s is not None and self.seconds > self.time_limit_s
        return late or self.cancelled()

    @property
    def quiet(self) -> PlaceOptions:
        """The same with nobody to tell."""
        return replace(self, progress=_ignore)

    def solver_or(self, usual: str) -> str:
        """The solver that was chosen, or the usual one."""
        return self.solver or usual

    def check_cancelled(self) -> None:
        """Leave a placer that the person stopped.

        Raises
        ------
        CancelledError
            If the person cancelled; :func:`place` then returns the last incumbent, if any.
        """
        if self.cancelled():
            raise CancelledError("stopped before there was a plan")


Run = Callable[[Problem, PlaceOptions], Plan]


@dataclass(frozen=True)
class Placer:
    """A method in the registry.

    Attributes
    ----------
    name, title : str
        What the command line calls it, and what a person reads.
    source : str
        The paper it comes from, or empty.
    run : callable
        Problem and options in, plan out; a pure function, deterministic for a seed.
    objectives, capabilities : tuple of str
        What it can be asked for, its own first, and what it respects beyond device kinds, pins and
        colocation.
    why_not : str
        What is missing on this machine, and the mend; empty if the method can run.
    """

    name: str
    title: str
    source: str
    run: Run
    objectives: tuple[str, ...] = (STEP_TIME,)
    capabilities: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def installed(self) -> bool:
        return not self.why_not

    def can(self, capability: str) -> bool:
        """Whether it has a capability."""
        return capability in self.capabilities


_registry: dict[str, Placer] = {}


def placer(
    name: str,
    *,
    title: str,
    source: str = "",
    objectives: tuple[str, ...] = (STEP_TIME,),
    capabilities: tuple[str, ...] = (),
    why_not: str = "",
) -> Callable[[Run], Run]:
    """Register a function as a method; its module must lie in this package to be found."""

    def register(run: Run) -> Run:
        _registry[name] = Placer(name, title, source, run, objectives, capabilities, why_not)
        return run

    return register


def placers(objective: str | None = None) -> dict[str, Placer]:
    """All methods by name, in alphabetical order, or those that serve an objective."""
    return {
        name: placer
        for name, placer in sorted(_registry.items())
        if objective is None or objective in placer.objectives
    }


def place(problem: Problem, method: str, *, options: PlaceOptions | None = None) -> Plan:
    """Solve a problem with one of the registered methods.

    Returns
    -------
    Plan
        Checked against the problem's constraints; ``facts`` holds ``solve_seconds`` and ``seed``,
        and what the plan comes to under the objective, whether or not its method goes by that. The
        note says so if nothing better than the plan to begin from was found. The plan carries the
        splits that the problem's graph has already, and those of the plan to begin from.

    Raises
    ------
    EnplaceError
        If no such method exists, it cannot run on this machine, or knows not what is asked of it.
    CancelledError
        If the person stopped it before there was any plan; later the best plan so far is returned.
    """
    chosen = _find(method)
    options = options or PlaceOptions()
    objective = options.objective or chosen.objectives[0]
    start = replace(options, objective=objective, started=now_s())
    _check_options(chosen, start)
    if start.start is not None and not problem.splits:
        problem = split_problem(problem, start.start.splits)
    watch = _Watch(start, problem)
    try:
        watch.options.check_cancelled()
        # To a placer a graph is a graph, whether its ops were split or not.
        graph = replace(problem, splits=()) if problem.splits else problem
        plan = watch.finished(chosen.run(graph, watch.options))
    except CancelledError:
        if watch.best is None:
            raise
        plan = watch.best
    check_plan(split_problem(problem, plan.splits), plan)
    solve_s = watch.options.seconds
    facts = {**plan.facts, "solve_seconds": solve_s, "seed": watch.options.seed}
    if watch.options.memory_rule:
        facts["memory_rule"] = watch.options.memory_rule
    if start.start is not None and plan.acts_like(start.start):
        fruitless = f"Nothing better than the plan given was found in {seconds(solve_s)}."
        facts["note"] = " ".join(filter(None, (fruitless, plan.note)))
    elif objective == STEP_TIME and chosen.can("memory"):
        schedule = simulate(problem, plan)
        if not schedule.fits:
            plan, facts["note"] = _rearranged_to_fit(schedule, watch.options)
    return replace(plan, facts=facts)


def _rearranged_to_fit(made: Schedule, options: PlaceOptions) -> tuple[Plan, str]:
    """A plan that lacks memory with ops moved until it fits, if possible, and what to say of it.

    Its own order is tried first, then that of the ranks.
    """
    for ranked in (False, True):
        if options.stopped:
            break
        plan = rearranged(made, ranked, options.seed, lambda: options.stopped)
        if simulate(made.problem, plan).fits:
            moved = percent(float(np.mean(plan.device != made.plan.device)))
            told = f"As made by this method it lacks memory; {moved} of the ops were moved to fit."
            return plan, " ".join(filter(None, (told, plan.note)))
    return made.plan, _too_much(made.plan.note)


def _too_much(note: str) -> str:
    """The note of a plan that does not fit, of a method that looks at memory."""
    if " fits" in note:
        return note  # it says more: that nothing does, or what was tried instead
    told = "It found nothing that fits in memory; compare the methods, another may."
    return " ".join(filter(None, (told, note)))


class _Watch:
    """Keeps the last incumbent that passes by on its way to the person."""

    def __init__(self, options: PlaceOptions, problem: Problem) -> None:
        self.best: Plan | None = None
        self._tell, self._problem = options.progress, problem
        start = options.start and replace(options.start, splits=())
        self.options = replace(options, progress=self._pass_on, start=start)

    def finished(self, plan: Plan) -> Plan:
        """What a placer found, as a plan for the model and for the objective."""
        splits = self._problem.splits
        if splits and plan.splits:
            raise EnplaceError(
                "the ops of this graph are split already; use a method that splits none"
            )
        plan = replace(plan, splits=splits or plan.splits)
        return _evaluated(self._problem, plan, self.options)

    def _pass_on(self, progress: Progress) -> None:
        if progress.incumbent is not None:
            self.best = self.finished(progress.incumbent)
            if self.best.objective != progress.incumbent.objective:
                us = self.best.objective_us
                progress = replace(progress, objective_us=us, bound_us=None)
            progress = replace(progress, incumbent=self.best)
        self._tell(progress)


_LOAD_FACTS = ("time_per_sample_us", "bound_us", "proven", "ideals", "load")
"""What a pipeline's placer says of the load, which is nothing about the latency."""


def _evaluated(problem: Problem, plan: Plan, options: PlaceOptions) -> Plan:
    """The plan with what it comes to under the objective, if its method goes by another one."""
    if options.objective in (STEP_TIME, plan.objective):
        return plan
    problem = split_problem(problem, plan.splits)
    facts = {key: value for key, value in plan.facts.items() if key not in _LOAD_FACTS}
    if options.objective == THROUGHPUT:
        name, facts["load"] = "the time per sample", asdict(options.rule)
        facts["time_per_sample_us"] = max_load_us(problem, plan.device, options.rule)
    else:
        name, facts["latency_us"] = "the latency of a query", latency_us(problem, plan.device)
    note = f"{plan.method} does not go by {name}; that is what its placement comes to"
    return replace(plan, facts={**facts, "note": "; ".join(filter(None, (plan.note, note)))})


def _find(method: str) -> Placer:
    if method not in _registry:
        raise EnplaceError(f"there is no method '{method}'; {instead(method, placers())}")
    found = _registry[method]
    if not found.installed:
        raise EnplaceError(f"method '{method}' cannot run here: {found.why_not}")
    return found


def _check_options(chosen: Placer, options: PlaceOptions) -> None:
    """Refuse what a method would disregard, or what is not installed."""
    if options.objective not in chosen.objectives:
        raise EnplaceError(
            f"method '{chosen.name}' does not serve objective '{options.objective}'; use one of "
            f"{', '.join(placers(options.objective))}"
        )
    if options.rule != USUAL and options.objective != THROUGHPUT:
        raise EnplaceError(
            f"how loads count is of the throughput of a pipeline, not of '{options.objective}'; "
            f"leave out --load, --pipeline, --replicate and --two-level, or ask for --objective "
            f"throughput"
        )
    if options.memory_rule and not chosen.can(MEMORY_RULE):
        raise EnplaceError(
            f"method '{chosen.name}' knows no other memory rule; use "
            f"{', '.join(names_with(MEMORY_RULE))}"
        )
    if (options.rule.replicate or options.rule.two_level) and not chosen.can(REPLICATION):
        raise EnplaceError(
            f"method '{chosen.name}' knows neither replicas nor machines; use "
            f"{', '.join(names_with(REPLICATION))}"
        )
    if not options.solver:
        return
    if not chosen.can(SOLVER):
        raise EnplaceError(
            f"method '{chosen.name}' has no choice of solver; use {', '.join(names_with(SOLVER))}"
        )
    if not installed(options.solver):
        raise EnplaceError(
            f"solver {options.solver} is not installed; use one of "
            f"{', '.join(filter(installed, SOLVERS))}"
        )


def names_with(capability: str) -> list[str]:
    """Names of the methods that can do something."""
    return [name for name, placer in placers().items() if placer.can(capability)]
