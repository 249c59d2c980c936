"""The open project with its selection and undo. Views read it and send requests to it.

No widgets. Every request that changes the project is one step of undo, with a title. What a job
brings is none: it joins every state of the history, whatever is undone or redone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from PySide6.QtCore import QObject, Signal

from enplace.errors import EnplaceError
from enplace.frameworks.measured import MeasuredRun
from enplace.machine.pipelines.pipeline import PipelineSchedule
from enplace.names.groups import turn_groups
from enplace.placing.next_moves import NextMove
from enplace.text import count, one_line
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import Profile
from enplace.values.schedule import Schedule
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.explain.intervals import Interval
from enplace_studio.explain.reasons import Mark
from enplace_studio.explain.start_times import Gap
from enplace_studio.jobs.call_later import call_later, take_turn
from enplace_studio.model import constraints, edits, notes, ordering
from enplace_studio.model import stamp as stamping
from enplace_studio.model.bounds import Bounds
from enplace_studio.model.history import History, State, schedule_of
from enplace_studio.model.open_project import (
    Arrival,
    Constraint,
    FileVersion,
    OpenProject,
    PlanEntry,
    is_same_work,
)
from enplace_studio.model.ordering import Slot
from enplace_studio.model.previews import Previews, lack
from enplace_studio.model.prices import change_text, what_if_text
from enplace_studio.model.relations import Relation, related
from enplace_studio.model.requests import Requests
from enplace_studio.model.stamp import Stamp

__all__ = ["Document", "PlanEntry"]


class Work(NamedTuple):
    """What a file keeps of the user's work."""

    project: OpenProject | None
    queries: dict[str, str]


class Document(QObject):
    """The open problem with its plans, the selection, and the undo stack."""

    opened = Signal()
    """Another profile, another graph of it, or nothing is open: rebuild everything."""
    problem_changed = Signal()
    """The cluster or a constraint changed."""
    cluster_changed = Signal()
    """Another cluster is open; not if only its speeds are scaled."""
    plans_changed = Signal()
    """The list of plans changed."""
    current_changed = Signal()
    """Another plan is current, or the current one has another schedule."""
    selection_changed = Signal()
    hover_changed = Signal()
    pipeline_changed = Signal()
    """The timeline shows another pipeline, or one step again."""
    span_changed = Signal()
    """Another part of the step is selected, or none."""
    grouping_changed = Signal()
    """Groups of the open graph are shown as the scopes in them, or as one again."""
    notes_changed = Signal()
    """There are other notes on ops."""
    gap_changed = Signal()
    """The user asks about another idle time of a device, or about none."""
    transfer_changed = Signal()
    """The user asks about another transfer, or about none."""
    stamp_changed = Signal()
    """Another :class:`Stamp` is offered, or none."""
    moves_shown_changed = Signal()
    """The pane of next moves has come into sight, or has gone."""
    marks_changed = Signal(bool)
    """Other moments of the step are pointed at; true if they should come into view."""
    why_wanted = Signal()
    """The user asks why the selection runs where and when it does."""
    file_changed = Signal()
    """``path``, ``modified`` or the undo stack changed."""
    noticed = Signal(str)
    """Emitted with a line about an edit that can be undone."""
    failed = Signal(str)
    """Emitted with the reason for a refused request, and the fix."""
    dropped = Signal(str)
    """Emitted with the reason for a refused drop, which was told beside the pointer before."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.requests = Requests(self)
        self.selection: frozenset[int] = frozenset()
        self.hovered: frozenset[int] = frozenset()
        self.gap: Gap | None = None
        """The idle time that the user asks about."""
        self.transfer: int | None = None
        """The transfer of the current plan that the user asks about."""
        self.pipeline: PipelineSchedule | None = None
        """What the timeline shows of the current plan; None while it shows one step."""
        self.span: Interval | None = None
        """The part of the step that is selected in the timeline."""
        self.marks: tuple[Mark, ...] = ()
        """What a reason points at in the timeline."""
        self.are_moves_shown = False
        """Whether the pane of next moves is in sight."""
        self.stamp: Stamp | None = None
        """What is offered to the user; its ops are selected."""
        self.path: Path | None = None
        self.seen: FileVersion | None = None
        """The version of the file that the project was read from, or written to."""
        self.view: dict[str, Any] = {}
        """State that views save with a project; JSON values."""
        self.bounds = Bounds(self)
        self.undo_stack = History(self)
        self.undo_stack.moved.connect(self._show)
        self.undo_stack.indexChanged.connect(self.file_changed)
        self._saved: Work | None = None
        self.n_opened = 0
        """How often something was opened: tells whether something else is open by now."""
        self.previews = Previews(self)
        self._notice: tuple[str, OpenProject | None, OpenProject | None] = ("", None, None)
        self._noticing = call_later(self, self._give_notice)

    # The open project

    @property
    def project(self) -> OpenProject | None:
        """Everything that is open, as one value."""
        return self.undo_stack.now

    @property
    def problem(self) -> Problem | None:
        """Profile, scaled cluster, pins and the other constraints."""
        return self.project.problem if self.project else None

    @property
    def plans(self) -> list[PlanEntry]:
        return list(self.project.plans) if self.project else []

    @property
    def current(self) -> PlanEntry | None:
        return self.project.current if self.project else None

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the current plan."""
        return schedule_of(self.project)

    @property
    def work(self) -> Work:
        """What a file keeps of the user's work, to be remembered as saved."""
        return Work(self.project, self.queries)

    @property
    def modified(self) -> bool:
        """Whether there is anything to save."""
        saved = self._saved
        if self.project is None or saved is None:
            return self.project is not None
        return saved.queries != self.queries or not is_same_work(self.project, saved.project)

    # Opening and saving

    def open(
        self,
        project: OpenProject | None,
        path: Path | None = None,
        view: dict[str, Any] | None = None,
        saved: bool = True,
    ) -> None:
        """Show another project, or nothing; clear undo and selection.

        Parameters
        ----------
        path : Path, optional
            The project file that "Save" writes.
        saved : bool
            False for work that is not in any file, such as a recovered project.
        """
        self.path, self.view = path, view or {}
        self._saved = Work(project, self.queries) if saved else None
        self.n_opened += 1
        self.selection = self.hovered = frozenset()
        self.undo_stack.start(project)
        self.previews.follow(project)
        self._set_stamp(None)
        self._set_gap(None)
        self._set_transfer(None)
        self.select_span(None)
        self.show_pipeline(None)
        take_turn()
        self.opened.emit()
        self.file_changed.emit()

    def mark_saved(self, path: Path, version: FileVersion | None, work: Work) -> None:
        """Remember that this much of the work is saved, in this version of a file."""
        self.path, self.seen, self._saved = path, version, work
        self.file_changed.emit()

    # Saved queries

    @property
    def queries(self) -> dict[str, str]:
        """The queries that the user has saved with the project, by name."""
        known = self.view.get("queries")
        pairs = known.items() if isinstance(known, dict) else ()
        return {name: text for name, text in pairs if isinstance(text, str)}

    def save_query(self, name: str, query: str) -> None:
        """Save a query under a name; an empty one removes it. This is no step of undo."""
        queries = {**self.queries, name: query}
        self.view = {**self.view, "queries": {n: text for n, text in queries.items() if text}}
        self.file_changed.emit()

    # Selection

    def select(
        self,
        ops: Iterable[int],
        extend: bool = False,
        gap: Gap | None = None,
        transfer: int | None = None,
    ) -> None:
        """Select ops; with ``extend``, add them, or deselect them if all are already selected.

        Parameters
        ----------
        gap : Gap, optional
            The idle time of a device that the user asks about.
        transfer : int, optional
            The transfer that the user asks about.
        """
        wanted = frozenset(map(int, ops))
        if extend:
            has_all = wanted <= self.selection
            wanted = self.selection - wanted if has_all else self.selection | wanted
        if wanted != self.selection:
            self.selection = wanted
            self._set_stamp(None)
            self.point_at(())
            self.selection_changed.emit()
            take_turn()
        self._set_gap(gap)
        self._set_transfer(transfer)

    def escape(self) -> None:
        """Cancel what is offered for the selection, or clear that; without one, the span."""
        if not self.selection and self.gap is None:
            self.select_span(None)
        elif not self.drop_stamp():
            self.select([])

    def select_span(self, span: Interval | None) -> None:
        """Select a part of the step, or none."""
        if span != self.span:
            self.span = span
            self.span_changed.emit()

    def select_related(self, relation: Relation) -> bool:
        """Select the ops that are related to those selected."""
        if not self.selection or self.project is None:
            return False
        found = frozenset(
            related(self.project.problem.measured_profile, relation, self.selection).tolist()
        )
        if relation.missing and not found - self.selection:
            self.failed.emit(relation.missing)
            return False
        self.select(found)
        return True

    def turn_groups(self, ops: Collection[int]) -> None:
        """Show the groups of some ops as the scopes in them, or close the one that they are.

        This is no step of undo.
        """
        project = self.project
        if project is None or not len(ops):
            return
        shown = turn_groups(project.problem.profile, project.grouping, ops)
        if shown == tuple(project.grouping.opened):
            self.failed.emit("there are no scopes in this group; Enter shows its ops")
            return
        self.show_groups(shown)
        self.select(edits.with_groups(project, shown).whole_groups(project.whole_groups(ops)))

    def show_groups(self, opened: tuple[str, ...]) -> None:
        """Show these groups as the scopes in them, and no others; no step of undo."""
        self.undo_stack.renew_all(lambda state: edits.with_groups(state, opened))

    def show_pipeline(self, pipeline: PipelineSchedule | None) -> None:
        """Let all views show many samples of the current plan, or one step (None)."""
        if pipeline is not self.pipeline:
            self.pipeline = pipeline
            self.pipeline_changed.emit()

    def point_at(self, marks: tuple[Mark, ...], reveal: bool = False) -> None:
        """Mark moments of the step until the selection or the schedule changes."""
        if marks != self.marks or reveal:
            self.marks = marks
            self.marks_changed.emit(reveal)

    def ask_why(self, ops: Collection[int]) -> None:
        """Select ops, and ask why they run where and when they do."""
        self.select(ops)
        self.why_wanted.emit()

    def hover(self, ops: Iterable[int]) -> None:
        """Set the ops under the pointer."""
        hovered = frozenset(map(int, ops))
        if hovered != self.hovered:
            self.hovered = hovered
            self.hover_changed.emit()

    # Requests; each is one undo step and returns whether it was done

    def place(self, ops: Collection[int], device: int, pin: bool = True) -> bool:
        """Run ops on a device; pin them there, or only move them."""
        return self._edit_ops(
            f"{'pin' if pin else 'move'} “{{ops}}” to {{device}}",
            partial(edits.place, pin=pin),
            ops,
            device,
            notice=f"{'Pinned' if pin else 'Moved'} {{ops}} to {{device}}",
        )

    def make_move(self, move: NextMove) -> bool:
        """Make one of the next moves of the current plan."""
        title = f"next move: {move.title}"
        return self._edit(title, lambda project: edits.make_move(project, move), move.title)

    def pin_here(self, ops: Collection[int]) -> bool:
        """Pin ops to the devices the current plan gives them."""
        return self._edit_ops("pin “{ops}”", edits.pin_here, ops)

    def unpin(self, ops: Collection[int]) -> bool:
        return self._edit_ops("unpin “{ops}”", edits.unpin, ops)

    def forbid(self, ops: Collection[int], device: int) -> bool:
        """Keep ops off a device."""
        return self._edit_ops("keep “{ops}” off {device}", edits.forbid, ops, device)

    def allow(self, ops: Collection[int], device: int) -> bool:
        """Undo a :meth:`forbid`."""
        return self._edit_ops("allow “{ops}” on {device}", edits.allow, ops, device)

    def colocate(self, ops: Collection[int]) -> bool:
        """Keep ops on one device from now on."""
        return self._edit_ops("colocate “{ops}”", edits.colocate, ops)

    def stay_close(self, most: int) -> bool:
        """Let placers move at most so many ops of the current plan from now on."""
        name = self.current.name if self.current is not None else ""
        return self._edit(
            f"stay close to “{name}”, {count(most, 'op')} may move",
            lambda project: edits.stay_close(project, most),
        )

    def keep_whole(self, pattern: str) -> bool:
        """Keep each layer on one device; a regex tells the layers apart."""
        return self._edit(
            "keep layers whole",
            lambda project: edits.keep_whole(project, pattern),
            "Kept layers whole",
        )

    def separate(self, ops: Collection[int]) -> bool:
        """Remove ops from the groups that the user colocated."""
        return self._edit_ops("separate “{ops}”", edits.separate, ops)

    def forget_order(self, ops: Collection[int]) -> bool:
        """Let placers decide again when these ops run."""
        return self._edit_ops("forget the order of “{ops}”", ordering.forget_order, ops)

    def reorder(self, ops: Collection[int], slot: Slot) -> bool:
        """Run ops just before or after another op of their device from now on."""
        if not len(ops) or self.project is None:
            return False
        what, other = self.project.describe_two(ops, slot.anchor)
        where = f"“{what}” {'before' if slot.earlier else 'after'} “{other}”"
        return self._edit(
            f"run {where}",
            lambda project: ordering.reorder(project, ops, slot),
            f"Running {where}",
        )

    def run_next(self, ops: Collection[int], earlier: bool) -> bool:
        """Run ops of one device before the op ahead of them, or after the next one."""
        if not len(ops) or self.schedule is None:
            return False
        try:
            where = ordering.find_range(self.schedule, ops)
        except EnplaceError as error:
            self.failed.emit(str(error))
            return False
        slot = ordering.next_slot(self.schedule, where, earlier)
        if slot is None:
            self.failed.emit(self._why_no_slot(where, earlier))
            return False
        return self.reorder(ops, slot)

    def _why_no_slot(self, where: ordering.Range, earlier: bool) -> str:
        """Say why ops cannot run earlier or later than they do."""
        other = where.needed if earlier else where.needing
        if other is None or self.project is None:
            return f"nothing runs {'before' if earlier else 'after'} it on this device"
        name = self.project.describe([other])
        why = f"it needs {name}" if earlier else f"{name} needs it"
        return f"it cannot run {'earlier' if earlier else 'later'}: {why}"

    def offer_stamp(self, ops: Collection[int]) -> bool:
        """Select all blocks like some ops, and offer to make the same choice for them."""
        if not len(ops) or self.project is None:
            return False
        try:
            stamp = stamping.find_stamp(self.project, ops)
        except EnplaceError as error:
            self.failed.emit(str(error))
            return False
        self.select(stamp.ops)
        self._set_stamp(stamp)
        return True

    def drop_stamp(self) -> bool:
        """Go back to the block that the choice was made for; return whether one was offered."""
        if self.stamp is None:
            return False
        self.select(self.stamp.blocks[0])
        return True

    def apply_stamp(self) -> bool:
        """Make the offered choice for all blocks."""
        if self.stamp is None or self.project is None:
            return False
        blocks = self.stamp.blocks
        what = f"“{self.project.describe(blocks[0])}” to {len(blocks) - 1:,} more"
        return self._edit(
            f"apply {what}", lambda project: stamping.stamp(project, blocks), f"Applied {what}"
        )

    def _set_transfer(self, transfer: int | None) -> None:
        if transfer != self.transfer:
            self.transfer = transfer
            self.transfer_changed.emit()

    def _set_gap(self, gap: Gap | None) -> None:
        if gap != self.gap:
            self.gap = gap
            self.gap_changed.emit()

    def _set_stamp(self, stamp: Stamp | None) -> None:
        if stamp is not self.stamp:
            self.stamp = stamp
            self.stamp_changed.emit()

    def lock(self, device: int) -> bool:
        """Keep a device as it is: pin everything on it."""
        return self._edit_device("lock", constraints.lock, device)

    def unlock(self, device: int) -> bool:
        """Undo a :meth:`lock`."""
        return self._edit_device("unlock", constraints.unlock, device)

    def switch_constraint(self, constraint: Constraint, on: bool) -> bool:
        """Switch a constraint on or off."""
        if self.project is None:
            return False
        change = constraints.switch_on if on else constraints.switch_off
        title = f"switch “{constraints.describe(self.project, constraint)}” {'on' if on else 'off'}"
        return self._edit(title, lambda project: change(project, constraint))

    def remove_constraint(self, constraint: Constraint) -> bool:
        """Remove a constraint, whether it is on or off."""
        if self.project is None:
            return False
        title = f"remove “{constraints.describe(self.project, constraint)}”"
        return self._edit(title, lambda project: constraints.remove(project, constraint))

    def add_constraints(self, constrained: Problem) -> bool:
        """Take over the constraints of another problem of the same graph."""
        title = "import constraints"
        return self._edit(title, lambda project: constraints.adopt(project, constrained))

    def import_plan(self, entry: PlanEntry, constrained: Problem) -> bool:
        """Show a plan from a file, under the constraints of a problem of the plan's graph."""

        def add(project: OpenProject) -> OpenProject:
            if constrained.splits == project.problem.splits:
                project = replace(project, problem=constrained)
            else:
                graphs = {**project.graphs, constrained.splits: constrained}
                project = replace(project, graphs=graphs)
            named = edits.renamed(entry, edits.unused_name(project, entry.name))
            return edits.with_plan(project, named, choose=True)

        return self._edit(f"import plan “{entry.name}”", add)

    def set_cluster(self, cluster: Cluster) -> bool:
        """Switch to another cluster.

        Plans that use devices it does not have stay for theirs; constraints on such are off.
        """

        def switch(project: OpenProject) -> OpenProject:
            there = edits.set_cluster(project, cluster, *project.scale)
            return constraints.keep_lost(project, there)

        is_other = self.project is None or cluster != self.project.cluster
        return is_other and self._switch(f"switch to {cluster_title(cluster)}", switch)

    def _switch(self, title: str, change: Callable[[OpenProject], OpenProject]) -> bool:
        """Make an edit that may lead to another cluster; tell what constraints it switches off."""
        n_off = len(self.project.off) if self.project is not None else 0
        done = self._edit(title, change)
        if done and self.project is not None and (lost := len(self.project.off) - n_off):
            what = count(lost, "constraint")
            self.noticed.emit(f"Switched off {what} on devices that this cluster does not have")
        return done

    def set_scale(self, compute: float, links: float, drag: int | None = None) -> bool:
        """Scale the speeds of devices and links.

        Parameters
        ----------
        drag : int, optional
            Consecutive changes with the same number are one undo step.
        """
        if self.project is None or self.project.scale == (compute, links):
            return False
        title = _speeds_title(compute, links)
        return self._edit(
            title, lambda project: edits.set_scale(project, compute, links), drag=drag
        )

    def show_scaled(self, scaled: OpenProject, drag: int) -> bool:
        """Show what ``edits.set_scale`` made of the project in another thread."""
        return self._edit(_speeds_title(*scaled.scale), lambda project: scaled, drag=drag)

    def take_costs(self, entry: PlanEntry, profile: Profile) -> bool:
        """Use the costs measured in a plan's run; simulate all plans again."""
        title = f"take the measured costs of “{entry.name}”"
        notice = "Took the measured costs"
        return self._edit(title, lambda project: edits.set_profile(project, profile), notice)

    def set_run(self, plan: Plan, run: MeasuredRun) -> bool:
        """Keep the measured run of a plan in the list; no step of undo takes it back."""
        measured = next((entry for entry in self.plans if entry.plan is plan), None)
        if measured is None:
            return False
        ran = replace(measured, run=run)
        self.undo_stack.renew_all(lambda state: edits.with_run(state, ran))
        self.file_changed.emit()
        return True

    def take_proof(self, problem: Problem, plan: Plan) -> None:
        """Say of a plan, and of those alike, that none fits; no step of undo takes it back."""
        self.undo_stack.renew_all(lambda state: edits.with_proof(state, problem, plan))

    def add_plan(self, entry: PlanEntry, choose: bool = True) -> bool:
        """Add a plan to the list; show it unless ``choose`` is false."""
        project = self.project
        name = entry.name if project is None else edits.unused_name(project, entry.name)
        named = edits.renamed(entry, name)
        return self._edit(f"add plan “{name}”", lambda found: edits.with_plan(found, named, choose))

    def take_plan(
        self, entry: PlanEntry, cluster: Cluster, choose: bool = True, asked: bool = True
    ) -> None:
        """Add a plan that a job has brought; no step of undo takes it back.

        Parameters
        ----------
        cluster : Cluster
            The cluster that it was made for, before scaling.
        choose : bool
            Whether to show it at once, even if another plan is shown.
        asked : bool
            False for the reference, which is made again if it is lost: it is no unsaved work.
        """
        old = self.project
        if old is None:
            return
        named = edits.renamed(entry, edits.unused_name(old, entry.name))
        more = replace(old, arrived=(*old.arrived, Arrival(named, cluster, asked)))
        new = edits.with_plan(more, named, choose)
        if not asked and not self.modified:
            self._saved = Work(new, self.queries)
        found = State(f"found “{named.name}”", named.schedule) if asked else None
        self.undo_stack.renew(new, found)
        self.file_changed.emit()

    def duplicate_plan(self, entry: PlanEntry) -> bool:
        """Add a copy of a plan to the list, and show it."""
        listed = self._listed(entry)
        return listed is not None and self.add_plan(
            replace(listed, name=f"{listed.name}, copy", origin=None, made_from=listed.name)
        )

    def remove_plan(self, entry: PlanEntry) -> bool:
        listed = self._listed(entry)
        return listed is not None and self._edit(
            f"remove plan “{entry.name}”", lambda project: edits.without_plan(project, listed)
        )

    def rename_plan(self, entry: PlanEntry, name: str) -> bool:
        """Rename a plan; a name that another plan has gets a number."""
        name, listed = name.strip(), self._listed(entry)
        if self.project is None or listed is None or name in ("", listed.name):
            return False
        name = edits.unused_name(self.project, name)
        return self._change_plan(listed, f"rename plan “{listed.name}”", name=name)

    def star_plan(self, entry: PlanEntry) -> bool:
        """Give a plan a star, or take it away."""
        title = f"{'take the star from' if entry.starred else 'star'} “{entry.name}”"
        return self._change_plan(entry, title, starred=not entry.starred)

    def remark_plan(self, entry: PlanEntry, remark: str) -> bool:
        """Keep the user's own words about a plan; empty words remove them."""
        return self._change_plan(entry, f"note on “{entry.name}”", remark=one_line(remark))

    def write_note(self, ops: Collection[int], text: str) -> bool:
        """Keep the user's own words about ops; empty words remove them."""
        return self._edit_ops("note on “{ops}”", partial(notes.write_note, text=text), ops)

    def _change_plan(self, entry: PlanEntry, title: str, **texts: Any) -> bool:
        """Change what a plan's row says."""
        listed = self._listed(entry)
        if listed is None or all(getattr(listed, key) == value for key, value in texts.items()):
            return False
        new = replace(listed, **texts)
        return self._edit(title, lambda project: edits.swap_entry(project, listed, new))

    def choose_plan(self, entry: PlanEntry) -> bool:
        """Show another plan of the list."""
        listed = self._listed(entry)
        if listed is None or listed is self.current:
            return False

        def show(project: OpenProject) -> OpenProject:
            return constraints.keep_lost(project, edits.choosing(project, listed))

        return self._switch(f"show “{entry.name}”", show)

    def _listed(self, entry: PlanEntry) -> PlanEntry | None:
        """Return a plan as it is now: until its turn, a view shows that from before an edit."""
        plans = self.plans
        return entry if entry in plans else next((e for e in plans if e.name == entry.name), None)

    def show_moves(self, are_shown: bool) -> None:
        """Note whether the pane of next moves is in sight."""
        if are_shown != self.are_moves_shown:
            self.are_moves_shown = are_shown
            self.moves_shown_changed.emit()

    # What all requests come to

    def _edit_ops(
        self,
        title: str,
        change: Callable[..., OpenProject],
        ops: Collection[int],
        *device: int,
        notice: str = "",
    ) -> bool:
        """Change what holds for some ops; the texts name them ``{ops}``, and their ``{device}``."""
        project = self.project
        if not len(ops) or project is None:
            return False
        names = {"ops": project.describe(ops), "device": "".join(map(project.device_label, device))}
        return self._edit(
            title.format(**names),
            lambda project: change(project, ops, *device),
            notice.format(**names),
        )

    def _edit_device(
        self, verb: str, change: Callable[[OpenProject, int], OpenProject], device: int
    ) -> bool:
        where = self.project.device_label(device) if self.project else ""
        return self._edit(f"{verb} {where}", lambda project: change(project, device))

    def _edit(
        self,
        title: str,
        change: Callable[[OpenProject], OpenProject],
        notice: str = "",
        drag: int | None = None,
    ) -> bool:
        old = self.project
        if old is None:
            return False
        try:
            new = change(old)
        except EnplaceError as error:
            self.failed.emit(str(error))
            return False
        if new is old:
            return False
        self.undo_stack.add(new, title, drag)
        if notice:
            # Adding up the memory takes a while, and may wait until the window has shown the edit.
            self._notice = notice, old, new
            self._noticing.start()
        return True

    def _give_notice(self) -> None:
        """Say what an edit has changed, unless it has been undone by now."""
        notice, old, new = self._notice
        if old and new and self.project is new and old.current and new.current:
            change = change_text(old.current.schedule, new.current.schedule)
            lacking = lack(new.current.schedule)
            unfit = f", but it does not fit: {lacking}" if lacking else ""
            self.noticed.emit(f"{notice}: {change}{unfit}")

    def _show(self, old: OpenProject, new: OpenProject) -> None:
        """Tell what is another than before; :mod:`.history` says how an edit comes here."""
        self.previews.follow(new)
        self._set_stamp(None)
        if new.problem.splits != old.problem.splits:
            # The ops differ: selection and other state per op refers to the old graph.
            self.selection = self.hovered = frozenset()
            self.opened.emit()
        elif new.grouping is not old.grouping:
            self.grouping_changed.emit()
        if (
            old is None
            or new.problem is not old.problem
            or (new.off, new.locks) != (old.off, old.locks)
        ):
            self.problem_changed.emit()
        if new.plans != old.plans:
            self.plans_changed.emit()
        if new.notes != old.notes:
            self.notes_changed.emit()
        if schedule_of(old) is not schedule_of(new):
            self.show_pipeline(None)  # it was another plan's
        if new.current is not old.current:
            self._set_gap(None)  # it may be gone
            self._set_transfer(None)
            self.point_at(())
            self.current_changed.emit()
        if new.cluster != old.cluster:
            self.cluster_changed.emit()
        take_turn()


def _speeds_title(compute: float, links: float) -> str:
    return what_if_text(compute, links) or "end the what-if"
