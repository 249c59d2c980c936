"""The states of the open project, from one to another by undo and redo.

An edit's way to the screen: :meth:`History.add` pushes a step on Qt's stack, which calls ``redo``
of the step, as it calls ``undo`` and ``redo`` later on. They only note the state that they lead
to. When Qt is done, be it with one step or with many, it emits ``indexChanged``, and the history
says with ``moved`` which state is to be shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QUndoCommand, QUndoStack

from enplace.values.schedule import Schedule
from enplace_studio.model import edits
from enplace_studio.model.open_project import OpenProject

FEWEST_STEPS, MOST_STEPS, UNDO_BYTES, STEP_BYTES_PER_OP = 25, 250, 500 << 20, 50
"""Fewest and most edits that can be undone, the memory they may take, and what one keeps for each
op: its device, pin and times, and the transfers."""


@dataclass(frozen=True, eq=False)
class State:
    """A row of the history: an edit or what a job found, and the schedule shown, or found, then.

    What it says stays true, whatever is solved later.

    Attributes
    ----------
    index : int
        The number of steps done then.
    """

    title: str
    schedule: Schedule | None
    index: int = 0


class History(QUndoStack):
    """The undo stack of a project; each step keeps the states before and after it.

    Attributes
    ----------
    now : OpenProject or None
        The state that is open.
    """

    moved = Signal(object, object)
    """Emitted with the :class:`OpenProject` that was open, and the one that is from now on."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.now: OpenProject | None = None
        self.reached: OpenProject | None = None
        """The state that Qt's steps lead to; the open one, but while Qt goes through the steps."""
        self._keeps_shown = True
        """Whether a plan that a job has brought since stays on the screen."""
        self._first: list[State] = []
        self.indexChanged.connect(self._on_index_changed)

    def start(self, project: OpenProject | None) -> None:
        """Forget all steps, and begin with a project as it was opened."""
        self.now = self.reached = project
        self._first = [State("as opened", schedule_of(project))]
        self.clear()  # only an empty stack may get another limit
        self.setUndoLimit(_most_steps(project))

    def add(self, new: OpenProject, title: str, drag: int | None = None) -> None:
        """Make a step from the open state to a new one; steps of one drag become one."""
        oldest = self.command(0) if self.canUndo() else None
        self.push(_Step(self, new, title, drag))
        if oldest is not None and self.command(0) is not oldest:
            self._first = [State("earlier", schedule_of(self._steps()[0].old))]

    def states(self) -> list[State]:
        """Return every state and all that jobs found in it, the oldest first; undone ones too.

        A plan that was found in another state, and is on the screen in this one, has a row too.
        """
        rows = [[*self._first], *([*step.rows] for step in self._steps())]
        here, current = rows[self.index()], self.now.current if self.now else None
        if current is not None and not any(_is_of(row, current.schedule) for row in here):
            here.append(State(f"show “{current.name}”", current.schedule))
        return [replace(row, index=at) for at, each in enumerate(rows) for row in each]

    @property
    def row(self) -> int:
        """The number of the row of :meth:`states` that is open."""
        shown, now = schedule_of(self.now), self.index()
        here = [(n, row) for n, row in enumerate(self.states()) if row.index == now]
        return max(here, key=lambda at: (at[1].schedule is shown, _is_of(at[1], shown), at[0]))[0]

    @property
    def last_change(self) -> str:
        """The title of the last step that a file would keep: a what-if is none."""
        done = reversed(self._steps()[: self.index()])
        return next((step.text() for step in done if step.new.scale == step.old.scale), "")

    def go_to(self, number: int) -> None:
        """Undo or redo until a row of :meth:`states`; it is shown as it was."""
        row = self.states()[number]
        self._keeps_shown = False
        self.setIndex(row.index)
        self._keeps_shown = True
        project, shown = self.now, row.schedule
        if project is None or shown is None or shown is schedule_of(project):
            return
        for entry in project.plans:
            if entry.schedule is shown and entry.cluster is None:
                self.renew(edits.choosing(project, entry))

    def renew(self, new: OpenProject, found: State | None = None) -> None:
        """Put a changed state in the place of the open one; it is no step that can be undone.

        Parameters
        ----------
        found : State, optional
            What a job has found, as a row of its own.
        """
        old = self.now
        if old is None:
            return
        self._swap(old, new)
        done = self._steps()[: self.index()]
        rows = done[-1].rows if done else self._first
        if found is not None:
            rows.append(found)
        elif rows[-1].schedule is None:  # the first plan of a model or a cluster
            rows[-1] = replace(rows[-1], schedule=schedule_of(new))
        self.moved.emit(old, new)

    def renew_all(self, change: Callable[[OpenProject], OpenProject]) -> None:
        """Change every state; it is no step that can be undone."""
        old, both = self.now, ((step.old, step.new) for step in self._steps())
        for state in dict.fromkeys([old, *chain.from_iterable(both)]):
            if state is not None:
                self._swap(state, change(state))
        self.moved.emit(old, self.now)

    def _swap(self, old: OpenProject, new: OpenProject) -> None:
        """Let undo and redo lead to another state than so far."""
        if self.now is old:
            self.now = self.reached = new
        for step in self._steps():
            step.old = new if step.old is old else step.old
            step.new = new if step.new is old else step.new

    def _steps(self) -> list[_Step]:
        steps = map(self.command, range(self.count()))
        return [step for step in steps if isinstance(step, _Step)]

    def _on_index_changed(self) -> None:
        """Show the state reached, with what jobs have brought since it was made."""
        old, new = self.now, self.reached
        if old is None or new is None or new is old:
            return
        if more := old.arrived[len(new.arrived) :]:
            shown = old.current.plan if old.current and self._keeps_shown else None
            caught_up = edits.with_arrivals(new, more, shown)
            self._swap(new, caught_up)
            new = caught_up
        self.now = self.reached = new
        self.moved.emit(old, new)


class _Step(QUndoCommand):
    """A step of undo."""

    def __init__(self, history: History, new: OpenProject, title: str, drag: int | None) -> None:
        super().__init__(title)
        assert history.now is not None
        self.old, self.new = history.now, new
        self._history, self._drag = history, drag
        self.rows = [State(title, schedule_of(new))]

    def id(self) -> int:
        return -1 if self._drag is None else 1  # Qt merges steps of one id that is not −1

    def mergeWith(self, other: QUndoCommand) -> bool:
        if not isinstance(other, _Step) or other._drag != self._drag:
            return False
        self.new, self.rows = other.new, other.rows
        self.setText(other.text())
        return True

    def redo(self) -> None:
        self._history.reached = self.new

    def undo(self) -> None:
        self._history.reached = self.old


def schedule_of(project: OpenProject | None) -> Schedule | None:
    """Return the schedule that is shown of a project."""
    return project.current.schedule if project and project.current else None


def _is_of(row: State, shown: Schedule | None) -> bool:
    """Whether a row is about the plan that is shown."""
    own = row.schedule
    if own is None or shown is None:
        return own is shown
    return own.value_us == shown.value_us and own.plan.acts_like(shown.plan)


def _most_steps(project: OpenProject | None) -> int:
    """Return how many edits can be undone: fewer for a large model, as each keeps a schedule."""
    n_ops = project.problem.profile.n_ops if project else 0
    affordable = UNDO_BYTES // (STEP_BYTES_PER_OP * max(n_ops, 1))
    return min(max(affordable, FEWEST_STEPS), MOST_STEPS)
