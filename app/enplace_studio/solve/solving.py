"""Solving, comparing methods, and switching to another cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from enplace.errors import EnplaceError
from enplace.frameworks.framework import OPS
from enplace.frameworks.registry import at_usual_grain, keep_whole, usual_grain
from enplace.machine.pipelines.pipeline import planned_rule
from enplace.names.rules import read_rules
from enplace.option import Value
from enplace.placers.references import free
from enplace.placing.options import STAGE_OPTIONS, load_values
from enplace.placing.registry import WARM_START
from enplace.placing.relabel import relabel_like
from enplace.text import count, seconds
from enplace.values.constraints import DEVICE, KINDS, OP, StayClose, look_up, same
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, THROUGHPUT, Problem
from enplace.values.splits import whole_names
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.explain.titles import grain_text, short_title, values_text
from enplace_studio.jobs.solver import Job, Solver
from enplace_studio.model import edits
from enplace_studio.model.constraints import find_home
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.method_facts import rank, why_not_for
from enplace_studio.model.open_project import MOVED, OpenProject
from enplace_studio.model.plan_facts import vs_expert, why_stale
from enplace_studio.model.previews import unfit_text
from enplace_studio.model.prices import headline, simulate_priced
from enplace_studio.solve.chosen_method import ChosenMethod
from enplace_studio.widgets.part import Part

EXPERT = "expert"
FIRST_METHOD = EXPERT
"""The method whose plan is shown first and which the others are compared with."""

POLISH_S = 30.0
"""Time limit for improving an existing plan."""

RULES_FILTER = "Rules: lines of REGEX -> DEVICE (*.rules *.txt);;All files (*)"

NOT_COMPARED = ("random", "round-robin")


class Solving(Part):
    """Runs the solver for the window."""

    started = Signal()
    """The user has started a search."""

    def __init__(
        self, document: Document, solver: Solver, methods: ChosenMethod, parent: QWidget
    ) -> None:
        super().__init__(document, parent)
        self._solver, self._methods = solver, methods
        document.opened.connect(self._on_opened)
        document.cluster_changed.connect(self._on_cluster_changed)
        document.requests.renew_plan.connect(self.renew)
        document.requests.polish_plan.connect(self.polish)
        solver.proven.connect(document.bounds.add)
        solver.solved.connect(self._on_solved)
        solver.failed.connect(self._on_failed)
        solver.idle.connect(self._on_idle)
        self._compared: Collection[str] = ()
        self._found: list[str] = []
        """The methods that are compared, and the names of their plans so far."""
        self._n_opened = 0
        self._left: WeakSet[Job] = WeakSet()
        """Jobs for what is no longer open: nobody waits for their plans."""
        self.is_adding = False
        """Whether a plan that was found just now is being added to the list."""

    def wait(self) -> None:
        """Block until every plan found so far is in the list."""
        self.background.wait()

    def solve_or_cancel(self) -> None:
        if self._solver.is_asked:
            self._solver.cancel()
        else:
            self.solve()

    def solve(self) -> None:
        """Run the chosen method on the problem as it is now."""
        chosen = self._methods
        values = {o.name: chosen.values[o.name] for o in chosen.options if o.name in chosen.values}
        start = self._edited_plan(chosen.method, chosen.objective)
        aim = chosen.objective
        self._run([chosen.method], choose=True, objective=aim, values=values, start=start)

    def _edited_plan(self, method: str, objective: str) -> Plan | None:
        """Return the plan shown if the user has worked on it and the method can begin from it."""
        project = self._document.project
        if project is None or project.current is None or method not in self._solver.methods:
            return None
        entry, problem = project.current, project.problem
        if WARM_START not in self._solver.methods[method].capabilities:
            return None
        is_own = entry.origin is not None or bool(problem.constraints)
        is_apt = entry.plan.objective == objective and not why_stale(problem, entry)
        return entry.plan if is_own and is_apt else None

    def choose_method(self) -> None:
        """Show all methods with their options."""
        from enplace_studio.solve.method_dialog import MethodDialog

        problem, chosen = self._document.problem, self._methods
        if problem is None or not self._solver.methods:
            return
        dialog = MethodDialog(
            self._solver, chosen.choice, problem, self._document.plans, self.window()
        )
        if dialog.exec():
            chosen.use(dialog.choice)

    @property
    def _load_values(self) -> dict[str, Value]:
        """The options that define a device's load, if the chosen objective uses them."""
        chosen, names = self._methods, {option.name for option in STAGE_OPTIONS}
        if chosen.objective != THROUGHPUT:
            return {}
        return {name: value for name, value in chosen.values.items() if name in names}

    def ask_rules(self) -> None:
        """Ask for a file of rules and run the expert with them."""
        if path := self.ask_file("Place by rules", RULES_FILTER):
            self.place_by_rules(path)

    def place_by_rules(self, path: Path) -> None:
        """Run the expert with the user's rules, which override its own."""
        problem = self._document.problem
        if problem is not None and self.attempt(lambda: read_rules(str(path), problem)) is not None:
            self._run([EXPERT], choose=True, values={"rules": str(path)})

    def renew(self, entry: PlanEntry) -> None:
        """Run the method of a plan again, on the problem as it is now."""
        method = entry.plan.method
        if method in self._solver.methods:
            objective = self._solver.aim(method, entry.plan.objective)
            values = load_values(planned_rule(entry.plan))
            self._run([method], choose=True, objective=objective, values=values)
        else:
            self.failed.emit(
                f"the method of “{entry.name}” is not available here; press Solve for a new plan"
            )

    def polish(self, plan: Plan) -> None:
        """Search for half a minute for a better plan, starting from this one; pins stay."""
        self._run([self._solver.default_method], choose=True, limit_s=POLISH_S, start=plan)

    def ask_compare(self) -> None:
        """Ask which methods to compare, and run them."""
        from enplace_studio.solve.compare_dialog import CompareDialog

        methods = [self._solver.methods[name] for name in self._missing_methods()]
        if not methods:
            self.compare()
            return
        waiting = len(self._solver.jobs)
        dialog = CompareDialog(methods, self._methods.time_limit_s, self.window(), waiting)
        if dialog.exec():
            self.compare(dialog.chosen)

    def compare(self, chosen: Collection[str] | None = None) -> None:
        """Add a row for each method, or each chosen one, that has no plan of this problem yet."""
        missing = self._missing_methods()
        methods = [name for name in missing if chosen is None or name in chosen]
        if methods:
            aim = self._methods.objective
            values = self._load_values
            if self._run(methods, choose=False, queue=True, objective=aim, values=values):
                self._compared = [*self._compared, *methods]
        else:
            self.done.emit("Every method already has a plan in the list")

    def _missing_methods(self) -> list[str]:
        """List the methods that have no plan for these constraints, and none on its way."""
        problem, aim, solver = self._document.problem, self._methods.objective, self._solver
        done = {
            entry.plan.method
            for entry in self._document.plans
            if entry.schedule.problem is problem
            and entry.plan.objective == aim
            and self._has_same_load_values(entry.plan.method, load_values(planned_rule(entry.plan)))
        }
        coming = {
            job.method
            for job in solver.jobs
            if job.problem is problem
            and solver.aim(job.method, job.objective) == aim
            and self._has_same_load_values(job.method, job.values)
        }
        return self.compared_methods(without=done | coming)

    def _has_same_load_values(self, method: str, values: Mapping[str, Value]) -> bool:
        """Return whether these values define loads as the chosen do, as far as the method can."""
        now = self._load_values
        return values == self._solver.known_values(method, self._methods.objective, now)

    def compared_methods(self, without: Collection[str] = ()) -> list[str]:
        """List the methods to compare: those that can work for the chosen objective."""
        skipped = {*NOT_COMPARED, *without}
        known, problem = self._solver.methods.values(), self._document.problem
        if problem is None:
            return []
        aim = self._methods.objective
        return [
            m.name
            for m in known
            if aim in m.objectives and m.name not in skipped and not why_not_for(m, problem)
        ]

    def _run(
        self,
        methods: list[str],
        choose: bool,
        limit_s: float | None = None,
        queue: bool = False,
        **details: Any,
    ) -> bool:
        """Start jobs, and return whether they could be started.

        Parameters
        ----------
        queue : bool
            Whether they may wait for jobs that run already.
        """
        project = self._document.project
        if project is None:
            return False
        if self._solver.is_asked and not queue:
            self.failed.emit("the solver is running; wait, or stop it first")
            return False
        time_limit_s = limit_s or self._methods.time_limit_s
        problem, cluster = project.problem, project.cluster
        objective = self._solver.aim(methods[0], details.get("objective", ""))
        try:
            details |= self._kept_whole(problem, objective, details.get("start"))
        except EnplaceError as error:
            self.failed.emit(str(error))
            return False
        if details.get("asked", True):
            self.started.emit()
        self._solver.solve(problem, methods, time_limit_s, choose, cluster=cluster, **details)
        return True

    def _kept_whole(self, problem: Problem, objective: str, start: Plan | None) -> dict[str, Any]:
        """Return what a job says of what stays whole.

        A plan to start from may divide anything, so only a grain that was asked for counts then.
        """
        asked, usual = self._methods.choice.grain, usual_grain(problem.measured_profile, objective)
        if asked:
            whole = keep_whole(problem, asked)
        else:
            whole = problem if start is not None else at_usual_grain(problem, objective)
        return {} if whole is problem else {"grain": asked or usual, "whole": whole}

    def _on_opened(self) -> None:
        self._solver.cancel()
        project = self._document.project
        if self._document.n_opened != self._n_opened:  # else another graph of the same model
            self._n_opened = self._document.n_opened
            self._left = WeakSet(self._solver.jobs)
            self._compared, self._found = (), []
            self.background.forget()
            self._methods.forget(None if project is None else project.problem.measured_profile)
        if project is not None and all(entry.cluster is not None for entry in project.plans):
            self._find_reference(project)

    def _on_cluster_changed(self) -> None:
        """Have the expert plan for the cluster that is open now, unless its plan is known."""
        for job in self._solver.jobs:
            if not job.asked:
                self._solver.drop(job)
        project = self._document.project
        if project is not None and project.expert is None:
            self._find_reference(project)

    def _find_reference(self, project: OpenProject) -> None:
        """Have an expert plan who keeps no constraints; that is shown if nothing else is."""
        model, cluster = free(project.model), project.cluster
        self._solver.solve(model, [FIRST_METHOD], choose=False, asked=False, cluster=cluster)

    def _on_solved(self, job: Job, plan: Plan) -> None:
        if not self._is_of_no_use(job) and not self._is_already_listed(job, plan):
            self._start_adding(job, plan)

    def _start_adding(self, job: Job, plan: Plan) -> None:
        """Simulate a plan on the problem as it is now, and add it."""
        project = self._document.project
        assert project is not None
        self.background.start(
            lambda: _simulated(job, plan, project),
            lambda made: self._add(job, plan, made, project),
            self.fail,
        )

    def _named(self, job: Job, entry: PlanEntry) -> PlanEntry:
        """Name a plan, with a note on how it was made."""
        name, _, note = self._solver.title(job.method).partition(", ")
        own, others = entry.schedule.problem, self._document.plans
        plan = entry.plan
        if not job.asked:
            plan = replace(plan, solve_seconds=None)  # how long the reference took tells nothing
        name = ", ".join(filter(None, [name, _asked_grain(job)]))
        name = distinct_name(name, plan, own, others)
        if job.start is not None:
            note = "polished"
        elif job.values:
            note = values_text(job.values)
        if job.grain != OPS and not _asked_grain(job):
            note = ", ".join(filter(None, [note, grain_text(job.grain)]))
        return replace(entry, name=name, note=note)

    def _is_of_no_use(self, job: Job) -> bool:
        """Return whether the graph or its costs have changed since the job started.

        Report it if the user asked for the plan and did not open something else. If only the
        cluster or constraints have changed, it is of use.
        """
        if self._has_its_model(job):
            return False
        if job.asked and job not in self._left:
            title = short_title(self._solver.title(job.method))
            self.done.emit(f"{title} solved an earlier version of the model; its plan is dropped")
        return True

    def _has_its_model(self, job: Job) -> bool:
        """Return whether the model that a job is for is open, with the same costs."""
        project, own = self._document.project, job.problem
        if project is None:
            return False
        now = project.problem
        if now.splits != own.splits:
            now = project.graphs.get(own.splits, now)
        return now.measured_profile is own.measured_profile

    def _is_already_listed(self, job: Job, plan: Plan) -> bool:
        """Return whether polishing gave only a plan that is already listed; report it if so."""
        if job.start is None or not plan.acts_like(job.start):
            return False
        for entry in self._document.plans:
            if plan.acts_like(entry.plan) and not why_stale(job.problem, entry):
                spent = seconds(plan.solve_seconds or 0.0)
                self.done.emit(f"Nothing better than “{entry.name}” was found in {spent}")
                return True
        return False

    def _add(self, job: Job, plan: Plan, made: PlanEntry, seen: OpenProject) -> None:
        """Add a plan, simulated on the problem of a project that may have changed since."""
        if self._is_of_no_use(job):
            return
        project = self._document.project
        assert project is not None
        if project.problem.cluster != seen.problem.cluster:
            self._start_adding(job, plan)
            return
        if not job.asked and (job.cluster != project.cluster or project.expert is not None):
            return  # there is one for this cluster, or another job finds it
        entry = _below_its_origin(job, self._named(job, made), project)
        is_older = entry.cluster is not None or not _asks_the_same(job.problem, project.problem)
        own = job.cluster or job.problem.cluster
        self.is_adding = True
        worse = self._is_worse(project, entry)
        self._document.take_plan(entry, own, job.choose and not is_older and not worse, job.asked)
        self.is_adding = False
        if not job.asked:
            return
        if job.method in self._compared:
            self._found.append(self._document.plans[-1].name)
        if is_older:
            step = headline(entry.plan, entry.schedule)
            self.done.emit(f"{entry.name}: {step}, {_age(entry)}")
        elif job.choose:
            self._report(job, self._document.plans[-1])

    def _is_worse(self, project: OpenProject, entry: PlanEntry) -> bool:
        """Return whether the user's own plan, or one of the same search, is better: it stays."""
        own = project.current
        if own is None or why_stale(project.problem, own):
            return False
        again = own.plan.method == entry.plan.method and self._solver.searches(own.plan.method)
        if own.origin is None and not again:
            return False  # whoever tries another method wants to see its plan
        return own.plan.objective == entry.plan.objective and rank(own) < rank(entry)

    def _report(self, job: Job, entry: PlanEntry) -> None:
        """Report the new plan, compared with the expert's if there is one, and with the best.

        Other plans may divide what the user wanted whole for this one.
        """
        change, project = None, self._document.project
        is_expert = project is not None and entry is project.expert
        if project is not None and entry.plan.value_us is None and not is_expert:
            change = project.against_expert(entry.schedule)
        against = "" if change is None else f", {vs_expert(change)}"
        if unfit := unfit_text(entry.schedule):
            against = f", {unfit}"
        if entry.note.endswith(MOVED):
            against += f", {entry.note} from “{entry.made_from}”"
        other = "" if project is None or _asked_grain(job) else rival_text(project, entry)
        self.done.emit(f"{entry.name}: {headline(entry.plan, entry.schedule)}{against}{other}")

    def _on_idle(self) -> None:
        if self._compared:  # after the last plan is in the list
            self.background.start(lambda: None, lambda _: self._report_comparison())

    def _report_comparison(self) -> None:
        """Report how many methods have been compared, and the best plan among theirs.

        A plan that splits ops counts too, although its graph is another one.
        """
        names, asked = self._found, len(self._compared)
        self._compared, self._found = (), []
        found = [entry for entry in self._document.plans if entry.name in names]
        if found:
            best = min(found, key=lambda entry: (entry.cluster is not None, rank(entry)))
            text = f"{best.name} is best: {headline(best.plan, best.schedule)}"
            of = "" if len(found) == asked else f"{len(found)} of "
            self.done.emit(f"{of}{count(asked, 'method')} tried; {text}")

    def _on_failed(self, job: Job, why: str) -> None:
        if job.problem is self._document.problem or (job.asked and self._has_its_model(job)):
            self.failed.emit(f"{short_title(self._solver.title(job.method))}: {why}")

    # Clusters

    def choose_cluster(self) -> None:
        from enplace_studio.clusters.picker import ClusterChooser

        project = self._document.project
        if project is None:
            return
        chooser = ClusterChooser(project.problem.profile, project.cluster, self.window())
        if chooser.exec() and chooser.chosen is not None:
            self._document.set_cluster(chooser.chosen)

    def edit_cluster(self) -> None:
        from enplace_studio.clusters.editor import ClusterEditor

        project = self._document.project
        if project is None:
            return
        editor = ClusterEditor(project.cluster, self.window())
        if editor.exec():
            self._document.set_cluster(editor.cluster)


def _simulated(job: Job, plan: Plan, project: OpenProject) -> PlanEntry:
    """Simulate a plan, and compute its memory now, so that showing it does not have to.

    If speeds or the cluster have changed since its job started, it is treated as the plans in the
    list were. Otherwise devices that are alike are named as in the plan on the screen.
    """
    schedule = simulate_priced(job.problem, plan)
    now, shown = project.problem, project.current
    is_alike = job.problem.cluster is now.cluster and _asks_the_same(job.problem, now)
    if shown is not None and is_alike and plan.splits == now.splits:
        schedule = relabel_like(schedule, shown.plan)  # so that colours stay
    entry = PlanEntry("", schedule.plan, schedule)
    if job.problem.cluster != project.problem.cluster:
        entry = edits.carry_over(entry, project, job.cluster or job.problem.cluster)
    _ = entry.schedule.peak_bytes
    return entry


def _asked_grain(job: Job) -> str:
    """Say what stays whole, if that is not what is usual."""
    usual = usual_grain(job.problem.measured_profile, job.objective or STEP_TIME)
    return "" if job.grain == usual else grain_text(job.grain)


def _below_its_origin(job: Job, entry: PlanEntry, project: OpenProject) -> PlanEntry:
    """Say of a plan which one it had to stay close to, or else which one its search started from.

    In the list, it is below that plan. Of one that stays close, the note says how many ops moved.
    """
    home = None
    if entry.cluster is None and entry.plan.splits == project.problem.splits:
        home = find_home(project, job.problem.constraints[StayClose.key])
    if home is not None:
        n_moved = int((entry.plan.device != home.plan.device).sum())
        return replace(entry, made_from=home.name, note=count(n_moved, "op") + MOVED)
    start = [each.name for each in project.plans if each.plan is job.start]
    return replace(entry, made_from="".join(start[:1]))


def _asks_the_same(one: Problem, other: Problem) -> bool:
    return one.splits == other.splits and one.constraints == other.constraints


def rival_text(project: OpenProject, entry: PlanEntry) -> str:
    """Say which plan of the list is better than a new one, or that it beats those made more freely.

    A plan made under constraints may also hold without them, and be better than what a search
    found that had to keep none of them.
    """
    problem = entry.schedule.problem
    others = [
        each
        for each in project.plans
        if each is not entry
        and each.cluster is None
        and each.plan.objective == entry.plan.objective
        and each.plan.splits == entry.plan.splits
    ]
    held = [each for each in others if not why_stale(problem, each) and each.schedule.fits]
    best = min(held, key=rank, default=None)
    if best is not None and rank(best) < rank(entry):
        shown = headline(best.plan, best.schedule)
        if entry.schedule.fits and shown == headline(entry.plan, entry.schedule):
            return ""  # nobody calls that better
        return f"; “{best.name}” is better and holds too: {shown}"
    free = [each for each in others if each.origin is None and not each.is_expert]
    free = [each for each in free if _asks_less(each.schedule.problem, problem)]
    best = min(free, key=rank, default=None)
    if best is None or not rank(entry) < rank(best) or not entry.schedule.fits:
        return ""
    if why_stale(best.schedule.problem, entry):
        return ""
    shown = headline(best.plan, best.schedule)
    return f"; it also holds without these constraints, and beats “{best.name}”: {shown}"


def _asks_less(one: Problem, other: Problem) -> bool:
    """Return whether a problem has only constraints that another has, and not all of them."""
    own, all_ = one.constraints, other.constraints
    return own != all_ and all(
        set(rows) <= set(kind.rows(all_[kind.key])) for kind, rows in own.items()
    )


def _age(entry: PlanEntry) -> str:
    """Say what has changed since a plan's job started."""
    if entry.cluster is not None:
        return f"for {cluster_title(entry.cluster)}, as you changed the cluster"
    return "made before you changed the constraints"


SHORTEST_LIMIT_S = 2.0
"""A shorter time is that of a quick method, and depends on the load of the machine."""


def distinct_name(name: str, plan: Plan, problem: Problem, others: Collection[PlanEntry]) -> str:
    """Add to a name what tells the plan from others of that name, and only that."""
    own = _facets(plan, problem)
    namesakes = [each for each in others if each.name == name or each.name.startswith(f"{name}, ")]
    known = [_facets(each.plan, each.schedule.problem) for each in namesakes]
    taken = {each.name for each in others}
    compared = [what for what, (of, _) in own.items() if any(each[what][0] != of for each in known)]
    differs = [text for _, text in map(own.__getitem__, compared) if text]
    longer = ", ".join([name, *differs]) if name in taken else name
    shorter = ", ".join([name, *(text for text in differs if not text.startswith("no "))])
    runs = [f"{longer}, run {number}" for number in range(2, len(taken) + 2)]
    ways = (shorter, longer, *runs) if name in taken else (longer,)
    return next(each for each in ways if each not in taken)


def _facets(plan: Plan, problem: Problem) -> dict[str, tuple[str, str]]:
    """Describe what a plan was made for, by what it may differ in: to compare, and in words.

    What is asked of a split op holds for all of its parts and is no difference, but the words count
    the ops of the plan's own graph, as its panes do. A short time has no words.
    """
    names = whole_names(problem.profile.op_names, problem.splits)
    found = {}
    for key, kind in KINDS.items():
        rows = kind.rows(problem.constraints[key])
        both = kind.all_mapped(rows, look_up(names), same), rows
        if kind.roles == (OP, DEVICE):
            whole, own = ({op for op, _ in each} for each in both)
        else:
            whole = own = set(both[0])
        found[key] = kind.tally(len(whole)), kind.tally(len(own))
    spent_s = plan.solve_seconds or 0.0
    step_s = 5 if spent_s >= 10 else 1  # a search with a limit takes about as long as that
    spent_s = step_s * round(spent_s / step_s)
    time = seconds(spent_s).replace(".0", "") if spent_s >= SHORTEST_LIMIT_S else ""
    cluster = cluster_title(problem.cluster)
    return {**found, "time": (time, time), "cluster": (cluster, cluster)}
