"""What is open in the studio: state, selection, undo. Views read it and send requests to it.

No widgets. Every request that changes the state is one step of undo with a title a person reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from PySide6.QtCore import QObject, QThreadPool, QTimer, Signal
from PySide6.QtGui import QUndoCommand, QUndoStack

from enplace.errors import EnplaceError
from enplace.frameworks.measured import MeasuredRun
from enplace.names.groups import Grouping, group_ops, name_ops
from enplace.text import count, device_label, ms
from enplace.values.cluster import Cluster
from enplace.values.plan import Plan
from enplace.values.problem import Problem
from enplace.values.profile import IntArray, Profile
from enplace.values.schedule import Schedule
from enplace_studio import state as edits
from enplace_studio.bounds import Bounds
from enplace_studio.state import PlanEntry, State

__all__ = ["Document", "PlanEntry", "Preview"]

UNDO_LIMIT = 100
PREVIEW_LIMIT = 64
PREVIEW_POLL_MS = 8


@dataclass(frozen=True, eq=False)
class Preview:
    """What placing some ops on a device would come to.

    Attributes
    ----------
    step_us, delta_us : float
        Step time then, and its change; inf where the ops may not run on the device.
    peak_bytes : int array, shape (n_devices,)
    why_not : str
        Why the ops may not run there; empty where they may.
    """

    step_us: float
    delta_us: float
    peak_bytes: IntArray
    fits: bool
    why_not: str = ""


_WorkedOut = tuple[State, tuple[frozenset[int], int], Preview]


class Document(QObject):
    """The open problem with its plans, the selection, and the undo stack."""

    opened = Signal()
    """Another profile is open, or another graph of it, or none: rebuild everything."""
    problem_changed = Signal()
    """The cluster, a pin or a colocation group changed."""
    plans_changed = Signal()
    """The list of plans changed."""
    current_changed = Signal()
    """Another plan is current, or the current one has another schedule."""
    selection_changed = Signal()
    hover_changed = Signal()
    previewed = Signal(object, int)
    """The ops and the device of a :meth:`preview_soon` that can now be had at once."""
    file_changed = Signal()
    """``path``, ``modified`` or what can be undone changed."""
    noticed = Signal(str)
    """Something was done that deserves a line; undo takes it back."""
    failed = Signal(str)
    """A request was refused; the text says why and how to mend it."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._state: State | None = None
        self.grouping: Grouping | None = None
        self.selection: frozenset[int] = frozenset()
        self.hovered: frozenset[int] = frozenset()
        self.path: Path | None = None
        self.view: dict[str, Any] = {}
        """What views want remembered with a project; values that JSON can hold."""
        self.bounds = Bounds(self)
        self.undo_stack = QUndoStack(self)
        self.undo_stack.setUndoLimit(UNDO_LIMIT)
        self.undo_stack.indexChanged.connect(self.file_changed)
        self._saved = True
        self._previews: dict[tuple[frozenset[int], int], Preview] = {}
        # Threads see plain data only: Qt objects neither die nor are called in them.
        self._worked_out: SimpleQueue[_WorkedOut] = SimpleQueue()
        self._n_awaited = 0
        self._awaiting = QTimer(self, interval=PREVIEW_POLL_MS)
        self._awaiting.timeout.connect(self._take_previews)

    # What is open

    @property
    def state(self) -> State | None:
        return self._state

    @property
    def problem(self) -> Problem | None:
        """Profile, cluster as scaled, pins and the other constraints."""
        return self._state.problem if self._state else None

    @property
    def cluster(self) -> Cluster | None:
        """The cluster before scaling."""
        return self._state.cluster if self._state else None

    @property
    def scale(self) -> tuple[float, float]:
        """Factors of compute and link speed."""
        return (self._state.compute_scale, self._state.link_scale) if self._state else (1.0, 1.0)

    @property
    def plans(self) -> list[PlanEntry]:
        return list(self._state.plans) if self._state else []

    @property
    def current(self) -> PlanEntry | None:
        return self._state.current if self._state else None

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the current plan."""
        return self.current.schedule if self.current else None

    @property
    def baseline(self) -> Schedule | None:
        """The schedule before the person's edits, drawn as a ghost."""
        return self.current.origin.schedule if self.current and self.current.origin else None

    @property
    def expert(self) -> PlanEntry | None:
        """What the other plans are compared with."""
        return self._state.expert if self._state else None

    @property
    def modified(self) -> bool:
        """Whether there is anything to save."""
        return self._state is not None and not (self._saved and self.undo_stack.isClean())

    def against_expert(self, schedule: Schedule) -> float | None:
        """Change of step time against the expert plan, as a fraction; −0.2 is 20 % faster.

        None without an expert plan that fits: what cannot run is no reference.
        """
        expert = self.expert.schedule if self.expert else None
        if expert is None or expert.makespan_us == 0 or not expert.fits:
            return None
        return schedule.makespan_us / expert.makespan_us - 1

    def describe(self, ops: Collection[int]) -> str:
        """What a person calls these ops."""
        if self.problem is None or self.grouping is None:
            return count(len(ops), "op")
        return name_ops(self.problem.profile, ops, self.grouping)

    def device_label(self, device: int) -> str:
        """What a person calls a device: ``GPU 0``."""
        assert self.problem is not None
        return device_label(self.problem.cluster.devices[device].name)

    # Opening and saving

    def open(
        self,
        state: State | None,
        path: Path | None = None,
        view: dict[str, Any] | None = None,
        saved: bool = True,
        grouping: Grouping | None = None,
    ) -> None:
        """Show another state, or nothing; forgets undo and selection.

        Parameters
        ----------
        path : Path, optional
            The project file that "Save" writes.
        saved : bool
            False for work that no file holds, such as a recovered project.
        grouping : Grouping, optional
            The groups of its ops, where they are known already.
        """
        self.grouping = grouping or (group_ops(state.problem.profile) if state else None)
        self._state = state
        self.path, self.view, self._saved = path, view or {}, saved
        self.selection = self.hovered = frozenset()
        self._previews.clear()
        self.undo_stack.clear()
        self.opened.emit()
        self.file_changed.emit()

    def begin_with(self, entry: PlanEntry) -> None:
        """Show the first plan of what was just opened; not an edit, so there is nothing to undo."""
        assert self._state is not None
        self._show(edits.with_plan(self._state, entry, choose=True))

    def mark_saved(self, path: Path) -> None:
        """The state is in this file now."""
        self.path, self._saved = path, True
        self.undo_stack.setClean()  # silent where there was nothing to undo
        self.file_changed.emit()

    # Selection

    def select(self, ops: Iterable[int], extend: bool = False) -> None:
        """Select ops; with ``extend`` add them, or take them out where all are selected already."""
        wanted = frozenset(map(int, ops))
        if extend:
            has_all = wanted <= self.selection
            wanted = self.selection - wanted if has_all else self.selection | wanted
        if wanted != self.selection:
            self.selection = wanted
            self.selection_changed.emit()

    def hover(self, ops: Iterable[int]) -> None:
        """Say which ops the pointer is over."""
        hovered = frozenset(map(int, ops))
        if hovered != self.hovered:
            self.hovered = hovered
            self.hover_changed.emit()

    # Requests; each is one step of undo and says whether it was done

    def place(self, ops: Collection[int], device: int, pin: bool = True) -> bool:
        """Run ops on a device; pin them there, or only move them."""
        if not len(ops) or self._state is None:
            return False
        verb = "pin" if pin else "move"
        return self._edit(
            f"{verb} “{self.describe(ops)}” to {self.device_label(device)}",
            lambda state: edits.place(state, ops, device, pin),
            f"{'Pinned' if pin else 'Moved'} {self.describe(ops)} to {self.device_label(device)}",
        )

    def pin_here(self, ops: Collection[int]) -> bool:
        """Pin ops to the devices the current plan gives them."""
        return self._edit_ops("pin “{}”", lambda state: edits.pin_here(state, ops), ops)

    def unpin(self, ops: Collection[int]) -> bool:
        return self._edit_ops("unpin “{}”", lambda state: edits.unpin(state, ops), ops)

    def forbid(self, ops: Collection[int], device: int) -> bool:
        """Keep ops off a device."""
        if self.problem is None:
            return False
        title = f"keep “{{}}” off {self.device_label(device)}"
        return self._edit_ops(title, lambda state: edits.forbid(state, ops, device), ops)

    def allow(self, ops: Collection[int], device: int) -> bool:
        """Take back a :meth:`forbid`."""
        if self.problem is None:
            return False
        title = f"allow “{{}}” on {self.device_label(device)}"
        return self._edit_ops(title, lambda state: edits.allow(state, ops, device), ops)

    def colocate(self, ops: Collection[int]) -> bool:
        """Keep ops on one device from now on."""
        return self._edit_ops("colocate “{}”", lambda state: edits.colocate(state, ops), ops)

    def separate(self, ops: Collection[int]) -> bool:
        """Take ops out of the groups that a person colocated."""
        return self._edit_ops("separate “{}”", lambda state: edits.separate(state, ops), ops)

    def set_cluster(self, cluster: Cluster) -> bool:
        """Go to another cluster; plans it has no device for are left out."""
        compute, links = self.scale
        return self._edit(
            f"use {cluster.name}", lambda state: edits.set_cluster(state, cluster, compute, links)
        )

    def set_scale(self, compute: float, links: float) -> bool:
        """Ask what other speeds of devices and links would come to; a drag is one step of undo."""
        if self.scale == (compute, links):
            return False
        return self._edit(
            "change speeds",
            lambda state: edits.set_cluster(state, state.cluster, compute, links),
            merge=True,
        )

    def take_costs(self, entry: PlanEntry, profile: Profile) -> bool:
        """Go on with the costs that a plan's run measured; all plans are simulated again."""
        title = f"take the measured costs of “{entry.name}”"
        notice = "Took the measured costs"
        return self._edit(title, lambda state: edits.set_profile(state, profile), notice)

    def set_run(self, plan: Plan, run: MeasuredRun) -> bool:
        """Keep what was measured when a plan of the list ran."""
        entry = next((entry for entry in self.plans if entry.plan is plan), None)
        return entry is not None and self._edit(
            f"measure “{entry.name}”",
            lambda state: edits.swap_entry(state, entry, replace(entry, run=run)),
        )

    def add_plan(self, entry: PlanEntry, choose: bool = True) -> bool:
        """Add a plan to the list; show it unless ``choose`` is false."""

        def add(state: State) -> State:
            named = edits.renamed(entry, edits.unused_name(state, entry.name))
            return edits.with_plan(state, named, choose)

        return self._edit(f"add plan “{entry.name}”", add)

    def remove_plan(self, entry: PlanEntry) -> bool:
        return self._edit(
            f"remove plan “{entry.name}”", lambda state: edits.without_plan(state, entry)
        )

    def rename_plan(self, entry: PlanEntry, name: str) -> bool:
        name = name.strip()
        if not name or name == entry.name:
            return False
        return self._edit(
            f"rename plan “{entry.name}”",
            lambda state: edits.swap_entry(state, entry, edits.renamed(entry, name)),
        )

    def choose_plan(self, entry: PlanEntry) -> bool:
        """Show another plan of the list."""
        if entry is self.current:
            return False
        return self._edit(f"show “{entry.name}”", lambda state: edits.choosing(state, entry))

    # What would be

    def preview(self, ops: Collection[int], device: int) -> Preview:
        """Step time and memory if these ops ran on a device; changes nothing."""
        key = (frozenset(ops), device)
        if key not in self._previews:
            assert self._state is not None
            self._keep_preview(self._state, key, _preview_of(self._state, *key))
        return self._previews[key]

    def preview_soon(self, ops: Collection[int], device: int) -> None:
        """Work a preview out beside the window; :attr:`previewed` follows, unless the plan changed.

        The window simulates nothing itself that nobody is waiting for.
        """
        state, key = self._state, (frozenset(ops), device)
        assert state is not None
        if key in self._previews:
            self.previewed.emit(*key)
        else:
            self._n_awaited += 1
            self._awaiting.start()
            results = self._worked_out
            QThreadPool.globalInstance().start(
                lambda: results.put((state, key, _preview_of(state, *key)))
            )

    def _take_previews(self) -> None:
        while not self._worked_out.empty():
            self._n_awaited -= 1
            self._keep_preview(*self._worked_out.get())
        if not self._n_awaited:
            self._awaiting.stop()

    def _keep_preview(
        self, state: State, key: tuple[frozenset[int], int], preview: Preview
    ) -> None:
        if state is self._state:
            if len(self._previews) >= PREVIEW_LIMIT:
                self._previews.clear()
            self._previews[key] = preview
            self.previewed.emit(*key)

    # Undo

    def _edit_ops(self, title: str, change: Callable[[State], State], ops: Collection[int]) -> bool:
        return bool(len(ops)) and self._edit(title.replace("{}", self.describe(ops)), change)

    def _edit(
        self, title: str, change: Callable[[State], State], notice: str = "", merge: bool = False
    ) -> bool:
        old = self._state
        if old is None:
            return False
        try:
            new = change(old)
        except EnplaceError as error:
            self.failed.emit(str(error))
            return False
        if new is old:
            return False
        self.undo_stack.push(_Change(self, old, new, title, merge))
        if notice and old.current and new.current:
            delta_us = new.current.schedule.makespan_us - old.current.schedule.makespan_us
            self.noticed.emit(f"{notice}: {ms(delta_us, signed=True)}")
        return True

    def _show(self, new: State) -> None:
        old, self._state = self._state, new
        assert old is not None
        self._previews.clear()
        if new.problem.splits != old.problem.splits:
            # A graph with other ops: all that is known of single ops is about the old ones.
            self.grouping = group_ops(new.problem.profile)
            self.selection = self.hovered = frozenset()
            self.opened.emit()
        if new.problem is not old.problem:
            self.problem_changed.emit()
        if new.plans != old.plans:
            self.plans_changed.emit()
        if new.current is not old.current:
            self.current_changed.emit()


class _Change(QUndoCommand):
    """From one state to another; both are kept."""

    def __init__(self, document: Document, old: State, new: State, title: str, merge: bool) -> None:
        super().__init__(title)
        self._document, self._old, self._new = document, old, new
        self._id = 1 if merge else -1

    def id(self) -> int:
        return self._id

    def mergeWith(self, other: QUndoCommand) -> bool:
        assert isinstance(other, _Change)
        self._new = other._new
        return True

    def redo(self) -> None:
        self._document._show(self._new)

    def undo(self) -> None:
        self._document._show(self._old)


def _preview_of(state: State, ops: frozenset[int], device: int) -> Preview:
    assert state.current is not None
    before = state.current.schedule
    try:
        after = edits.moved_schedule(state, ops, device)
    except EnplaceError as error:
        return Preview(np.inf, np.inf, before.peak_bytes, False, str(error))
    step_us = after.makespan_us
    return Preview(step_us, step_us - before.makespan_us, after.peak_bytes, after.fits)
