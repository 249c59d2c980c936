"""The open project as one immutable value. No Qt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from enplace.errors import PlanError
from enplace.frameworks.measured import MeasuredRun
from enplace.names.groups import Grouping, name_ops, open_groups
from enplace.values.arrays import IntArray
from enplace.values.cluster import Cluster
from enplace.values.constraints import Constraints, Pin, Row
from enplace.values.device_scopes import scope_pins
from enplace.values.plan import Plan
from enplace.values.problem import STEP_TIME, Problem
from enplace.values.profile import Profile
from enplace.values.schedule import Schedule
from enplace.values.splits import Split

FileVersion = tuple[int, int, int]
"""What tells one version of a file from another: its inode, time in ns and size.

Not the time of its last change of status: programs that synchronise, label or link files alter that
after each save, and every next save would ask for nothing. A program that rewrites a file in place,
with as many bytes, and sets its time back is not noticed; a backup keeps what it wrote.
"""


MOVED = " moved"
"""The end of the note on a plan that had to stay close to another: ``12 ops moved``."""


@dataclass(frozen=True, eq=False)
class PlanEntry:
    """A row of the list of plans.

    Attributes
    ----------
    name, note : str
        Its title, and a few words on how it was made.
    own : Plan or None
        The plan as it was made, with what was proven of it, if other speeds change its value.
    starred, remark : bool and str
        The user's star, which keeps it on top of the list, and the user's own words about it.
    origin : PlanEntry or None
        The plan this one was edited from; its schedule is drawn as a ghost.
    run : MeasuredRun or None
        The measured run of the plan on this machine.
    made_from : str
        The name of the plan that a search started from, or that this one is a copy of.
    cluster : Cluster or None
        The cluster that the plan is for, before scaling, if it cannot run on the open one.
        Showing the plan switches to that cluster.
    """

    name: str
    plan: Plan
    schedule: Schedule
    note: str = ""
    origin: PlanEntry | None = None
    run: MeasuredRun | None = None
    cluster: Cluster | None = None
    own: Plan | None = None
    starred: bool = False
    remark: str = ""
    made_from: str = ""

    @property
    def parent(self) -> str:
        """The name of the plan that this one was made from; empty for one made from nothing."""
        return self.made_from if self.origin is None else self.origin.name

    def is_edit_of(self, other: PlanEntry) -> bool:
        """Whether one of the two is an edit of the other, or both are one plan or of one origin."""
        family = {id(each) for each in (other, other.origin) if each is not None}
        own = {id(each) for each in (self, self.origin) if each is not None}
        same = self.name == other.name and self.plan.objective == other.plan.objective
        return same or bool(family & own)

    @property
    def is_expert(self) -> bool:
        """Whether it is an expert's unedited plan of a step.

        The others are compared with it, so that it is only ever for the cluster it was made for.
        """
        is_expert = self.plan.method == "expert" and self.plan.objective == STEP_TIME
        return is_expert and self.origin is None


@dataclass(frozen=True, eq=False)
class Arrival:
    """A plan that a job has brought, which is no edit of the user's.

    Attributes
    ----------
    entry : PlanEntry
        The plan as it arrived.
    cluster : Cluster
        The cluster that it was made for, before scaling.
    asked : bool
        Whether the user asked for it. Every state of the history has it then; the reference, which
        comes unasked, belongs to the states with its cluster.
    """

    entry: PlanEntry
    cluster: Cluster
    asked: bool


@dataclass(frozen=True)
class Constraint:
    """A constraint that a person gave, by names.

    Attributes
    ----------
    kind : str
        A key of :data:`enplace.values.constraints.KINDS`.
    rows : tuple of rows
        Its rows, with names for numbers. Of a lock, one row with the device and its ops.
    """

    kind: str
    rows: tuple[Row, ...]

    def __hash__(self) -> int:
        return hash((self.kind, self.rows[:1], len(self.rows)))  # there may be thousands of rows


@dataclass(frozen=True)
class Note:
    """The user's words about some ops, by their names."""

    on: frozenset[str]
    text: str


@dataclass(frozen=True, eq=False)
class OpenProject:
    """A problem and its plans.

    Attributes
    ----------
    problem : Problem
        The problem with the scaled cluster.
    cluster : Cluster
        The cluster before scaling by ``compute_scale`` and ``link_scale``.
    grouping : Grouping
        The groups of ops as shown to the user.
    graphs : mapping
        The problems of the graphs not shown, keyed by their splits: a plan that splits ops has
        its own graph, which is shown with it.
    off : tuple of Constraint
        Constraints that the user has switched off.
    locks : tuple of Constraint
        Which pins belong to the lock of a device; others stay if it is unlocked.
    notes : tuple of Note
        What the user has noted on ops.
    arrived : tuple of Arrival
        What jobs have brought so far; a state of the history that has fewer lacks the others.
    """

    problem: Problem
    cluster: Cluster
    grouping: Grouping
    compute_scale: float = 1.0
    link_scale: float = 1.0
    plans: tuple[PlanEntry, ...] = ()
    current: PlanEntry | None = None
    graphs: Mapping[tuple[Split, ...], Problem] = field(default_factory=dict)
    off: tuple[Constraint, ...] = ()
    locks: tuple[Constraint, ...] = ()
    arrived: tuple[Arrival, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def model(self) -> Problem:
        """The problem of the graph without splits."""
        return self.graphs.get((), self.problem)

    def problem_of(self, entry: PlanEntry) -> Problem:
        """Return the problem of a plan's graph, with the constraints that it has now."""
        if entry.plan.splits == self.problem.splits:
            return self.problem
        return self.graphs.get(entry.plan.splits, entry.schedule.problem)

    @property
    def scale(self) -> tuple[float, float]:
        """Factors of compute and link speed."""
        return self.compute_scale, self.link_scale

    @property
    def baseline(self) -> Schedule | None:
        """The schedule before the user's edits, drawn as a ghost; None if for another cluster."""
        origin = self.current.origin if self.current else None
        return origin.schedule if origin and origin.cluster is None else None

    @property
    def expert(self) -> PlanEntry | None:
        """The expert's plan for this cluster, which the others are compared with."""
        return next((e for e in self.plans if e.is_expert and e.cluster is None), None)

    def against_expert(self, schedule: Schedule) -> float | None:
        """Return the change in step time from the expert plan; −0.2 is 20 % faster.

        None if no expert plan fits: there is no point in comparing with a plan that cannot run.
        """
        expert = self.expert.schedule if self.expert else None
        if expert is None or expert.makespan_us == 0 or not expert.fits:
            return None
        return schedule.makespan_us / expert.makespan_us - 1

    @cached_property
    def noted(self) -> tuple[frozenset[int], ...]:
        """The ops of each note that the open graph has; whole ops are not those of their parts."""
        index = self.problem.profile.index
        return tuple(frozenset(index[op] for op in note.on if op in index) for note in self.notes)

    def plan_to(self, purpose: str) -> PlanEntry:
        """Return the plan on the screen, for some purpose.

        Raises
        ------
        PlanError
            If there is none.
        """
        if self.current is None:
            raise PlanError(f"there is no plan to {purpose} yet; press Solve first")
        return self.current

    def describe(self, ops: Collection[int] | IntArray) -> str:
        """Return a short name for these ops; see :func:`~enplace.names.groups.name_ops`."""
        return name_ops(self.problem.profile, ops, self.grouping)

    def describe_two(self, ops: Collection[int], other: int) -> tuple[str, str]:
        """Name some ops and another one for a sentence about both: by scopes if they look alike."""
        one, two = self.describe(ops), self.describe([other])
        if one != two or len(ops) != 1:
            return one, two
        names = self.problem.profile.op_names
        mine, theirs = (names[op].split("/") for op in (*ops, other))
        longest = max(len(mine), len(theirs))
        apart = next((n for n in range(1, longest) if mine[-n:] != theirs[-n:]), longest)
        return "/".join(mine[-apart:]), "/".join(theirs[-apart:])

    def whole_groups(self, ops: Collection[int]) -> frozenset[int]:
        """Return all ops of the groups that some ops belong to, and these ops."""
        groups = {int(group) for group in self.grouping.group[list(ops)] if group >= 0}
        members = (self.grouping.ops(group).tolist() for group in sorted(groups))
        return frozenset(ops).union(*members)

    def device_label(self, device: int) -> str:
        """Return a readable name for a device: ``GPU 0``."""
        return self.problem.cluster.devices[device].label


def is_same_work(one: OpenProject | None, other: OpenProject | None) -> bool:
    """Return whether a file would keep the same of two projects; it keeps no what-if."""
    if one is other or one is None or other is None:
        return one is other
    return _work_of(one) == _work_of(other) and all(
        mine is theirs or _is_same_plan(mine, theirs)
        for mine, theirs in zip(one.plans, other.plans, strict=True)
    )


def _work_of(project: OpenProject) -> tuple[object, ...]:
    """Return what a file keeps of a project besides the plans themselves."""
    number = {entry: at for at, entry in enumerate(project.plans)}
    rows = [
        (entry.name, entry.note, entry.starred, entry.remark, entry.cluster, id(entry.run))
        for entry in project.plans
    ]
    made = [entry.made_from for entry in project.plans]
    of = [number.get(entry.origin) if entry.origin else None for entry in project.plans]
    shown = number.get(project.current) if project.current else None
    constraints = project.problem.constraints, project.off, project.locks
    graph = id(project.model.measured_profile), project.problem.splits
    return rows, made, of, shown, constraints, graph, project.cluster, project.notes


def _is_same_plan(one: PlanEntry, other: PlanEntry) -> bool:
    """Return whether two rows have one plan, be it priced for different speeds."""
    mine, theirs = one.own or one.plan, other.own or other.plan
    same_aim = (mine.method, mine.objective) == (theirs.method, theirs.objective)
    return mine is theirs or (same_aim and mine.acts_like(theirs))


def start_project(profile: Profile, cluster: Cluster) -> OpenProject:
    """Make a project from a profile, without plans.

    Raises
    ------
    ProblemError
        If the profile cannot run on the cluster.
    """
    pins = Constraints.of({Pin.key: scope_pins(profile, cluster)})
    return OpenProject(Problem(profile, cluster, pins), cluster, open_groups(profile))
