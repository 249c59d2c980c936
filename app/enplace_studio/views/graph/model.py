"""The state of the graph pane; its scene is built on first use after a change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PySide6.QtCore import QObject, QTimer, Signal

from enplace.names.group_facts import crossing
from enplace.names.groups import Grouping
from enplace.names.ports import Port
from enplace.pictures import graph_layout as layout
from enplace.values.problem import THROUGHPUT, BoolArray
from enplace.values.profile import IntArray, Profile
from enplace.values.schedule import Schedule
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import call_later
from enplace_studio.model.document import Document
from enplace_studio.model.queries import QueryError, find_ops
from enplace_studio.views.graph.camera import LARGEST_FIT, MARGIN
from enplace_studio.views.graph.colours import BY_DEVICE, BY_STAGE, MODES, Mode
from enplace_studio.views.graph.graph_facts import PlanStages, make_facts, plan_stages
from enplace_studio.views.graph.level import GraphLevel, inner_level, whole_level
from enplace_studio.views.graph.paint import Marks
from enplace_studio.views.graph.scene import Scene, make_scene
from enplace_studio.widgets.theme import theme

LINE_SHARES = (1.25, 1.0, 0.8, 0.65, 0.5)
"""Lengths of lines to try, relative to the width of the canvas at scale 1."""
EASY_TO_READ = 0.68
"""At a smaller scale, rows move closer together."""


def scale_in(bounds: tuple[float, ...], width: float, height: float) -> float:
    """Return the scale at which an arrangement fits into a width and a height."""
    left, top, right, bottom = bounds
    return min(width / max(right - left, 1.0), height / max(bottom - top, 1.0))


class GraphModel(QObject):
    """The opened levels, the positions of their cards, the colour mode and the search."""

    changed = Signal()
    """Something looks different."""
    arranged = Signal()
    """The cards have moved and should be fitted to the canvas again."""
    level_changed = Signal()
    """Another level is open."""

    def __init__(self, document: Document, parent: QObject) -> None:
        super().__init__(parent)
        self.document = document
        self.levels: list[GraphLevel] = []
        self._chosen: Mode | None = None
        self.matches: dict[int, int] | None = None
        self.found: BoolArray | None = None
        self.fault = ""
        self._arrangement: layout.Arrangement | None = None
        self._scene: Scene | None = None
        self._last: Scene | None = None
        self._width, self._height = 800.0, 600.0
        self._query = ""
        self._layout = Background(QObject(self))  # no widget, so no busy cursor
        self._staged: tuple[Profile, IntArray, PlanStages] | None = None
        self._background = Background(self)
        # Runs once after all signals of a change; each would request the stages.
        self._staging = QTimer(self, interval=0, singleShot=True)
        self._staging.timeout.connect(self._find_stages)
        document.opened.connect(self._clear)
        call_later(self, self.reset, document.opened, document.grouping_changed)
        document.current_changed.connect(self._background.forget)
        for signal in (document.problem_changed, document.current_changed):
            signal.connect(lambda: self.find(self._query) if self._query else None)
        for signal in (document.problem_changed, document.current_changed, theme.changed):
            signal.connect(self._forget_scene)
        self.reset()

    # Levels

    @property
    def level(self) -> GraphLevel | None:
        return self.levels[-1] if self.levels else None

    def _clear(self) -> None:
        """Show nothing: the cards are about another model."""
        self.levels = []
        self._enter()

    def reset(self) -> None:
        """Show the whole model."""
        project = self.document.project
        self.levels = []
        if project is not None:
            self.levels = [whole_level(project.problem.profile, project.grouping)]
        self._enter()

    def open(self, node: int) -> bool:
        """Open a group into its parts, or what is behind a port; single ops have no parts."""
        problem, level = self.document.problem, self.level
        if problem is None or level is None:
            return False
        if node >= level.grouping.n_groups:
            return self._leave_through(level.ports.ports[node - level.grouping.n_groups])
        if len(level.grouping.ops(node)) < 2:
            return False
        self.levels.append(inner_level(problem.profile, self.levels, node))
        self._enter()
        return True

    def _leave_through(self, port: Port) -> bool:
        """Go to the level of a port's neighbour, and open it if it is one group."""
        (depth, group), *others = port.places
        self.go_to(depth)
        return self.open(group) if not others else True

    def go_to(self, depth: int) -> None:
        """Leave all levels below a depth."""
        if 0 <= depth < len(self.levels) - 1:
            del self.levels[depth + 1 :]
            self._enter()

    def back(self) -> bool:
        """Leave a level."""
        if len(self.levels) < 2:
            return False
        self.go_to(len(self.levels) - 2)
        return True

    def _enter(self) -> None:
        self._arrangement = self._scene = None
        self.level_changed.emit()
        self.find(self._query)
        self._arrange()

    # Positions of the cards

    def wait(self) -> None:
        """Block until the cards are in their places."""
        self._layout.wait()

    def set_size(self, width: float, height: float) -> None:
        """Arrange the cards for a canvas of another size, in pixels at scale 1."""
        if (width, height) != (self._width, self._height):
            self._width, self._height = width, height
            if self.level is not None and self.level.in_lines:
                self._arrange()

    def _arrange_in_lines(self, level: GraphLevel) -> layout.Arrangement:
        """Arrange the cards for the width at which they are largest once fitted to the canvas."""

        def scale_of(found: layout.Arrangement) -> float:
            return scale_in(found.bounds, self._width, self._height)

        best = self._best_lines(level, layout.ROW_GAP, scale_of)
        if scale_of(best) < EASY_TO_READ:
            best = max(best, self._best_lines(level, layout.LEAST_ROW_GAP, scale_of), key=scale_of)
        left, _, right, _ = best.bounds
        room = (self._width - 2 * MARGIN) / min(scale_of(best), LARGEST_FIT)
        return layout.stretched(best, room / max(right - left, 1.0))

    def _best_lines(
        self, level: GraphLevel, row_gap: float, scale_of: Callable[[layout.Arrangement], float]
    ) -> layout.Arrangement:
        widths = [self._width * share for share in LINE_SHARES]
        made = [layout.arrange(level.grouping, level.edges, px, row_gap) for px in widths]
        return max(made, key=scale_of)

    def _arrange(self) -> None:
        self._layout.forget()
        level = self.level
        if level is None:
            self._show(None)
        elif level.in_lines:
            self._show(self._arrange_in_lines(level))
        else:
            boxes = layout.make_boxes(level.grouping, level.ports, level.of_ops)
            self._layout.start(partial(layout.layered, boxes, level.edges), self._show)

    def _show(self, arrangement: layout.Arrangement | None) -> None:
        self._arrangement = arrangement
        self._forget_scene()
        self.arranged.emit()

    # Appearance

    @property
    def mode(self) -> Mode:
        """The user's choice; by default, stages for a pipeline's plan and devices for others."""
        if self._chosen is not None:
            return self._chosen
        current = self.document.current
        is_pipeline = current is not None and current.plan.objective == THROUGHPUT
        return BY_STAGE if is_pipeline else BY_DEVICE

    def set_mode(self, number: int) -> None:
        """Choose the colour mode: a number in :data:`MODES`."""
        self._chosen = MODES[number]
        if self.mode is BY_STAGE:
            self._find_stages()
        else:
            self._forget_scene()

    def _find_stages(self) -> None:
        """Find the stages of the current plan in a thread, and show them."""
        schedule = self.document.schedule
        self._background.forget()
        if schedule is None or self._stages(schedule) is not None:
            self._forget_scene()
            return

        def show(found: PlanStages) -> None:
            self._staged = (schedule.problem.profile, schedule.plan.device, found)
            self._forget_scene()

        self._background.start(lambda: plan_stages(schedule), show)

    def _stages(self, schedule: Schedule) -> PlanStages | None:
        """Return the stages of a plan, if they have been found; speeds do not change them."""
        if self._staged is None:
            return None
        profile, device, found = self._staged
        known = profile is schedule.problem.profile and device is schedule.plan.device
        return found if known else None

    def _forget_scene(self) -> None:
        self._last, self._scene = self._scene or self._last, None
        self.changed.emit()

    @property
    def painted(self) -> Scene | None:
        """The picture to paint: the one from before an edit, until its turn to be made anew."""
        last, kept = self._last, (self.level, self._arrangement)
        if self._scene is None and last is not None and (last.level, last.arrangement) == kept:
            return last
        return self.scene

    @property
    def scene(self) -> Scene | None:
        """Build or return the picture; None if there is nothing to show or it is being laid out."""
        if self._scene is None:
            self._scene, self._last = self._make_scene(), None
        return self._scene

    def _make_scene(self) -> Scene | None:
        problem, level, arrangement = self.document.problem, self.level, self._arrangement
        if problem is None or level is None or arrangement is None:
            return None
        schedule = self.document.schedule
        cut = np.zeros(len(level.edges.bytes), dtype=bool)
        if schedule is not None:
            device = schedule.plan.device
            cut = crossing(problem.profile, level.grouping, level.edges, device, level.ports)
        wanted, stages = self.mode.title, None
        if self.mode is BY_STAGE and schedule is not None:
            stages = self._stages(schedule)
            if stages is None and not self._background.is_busy:
                self._staging.start()
        facts = make_facts(
            problem,
            level.grouping,
            schedule,
            with_path=wanted == "critical path",
            with_subgraphs=wanted == "contiguity",
            stages=stages,
            reference=self._reference(),
        )
        return make_scene(level, arrangement, facts, self.mode.looks, cut)

    def _reference(self) -> Schedule | None:
        """Return the plan that the current one was edited from, or else the expert's."""
        project = self.document.project
        if project is None or project.baseline is not None:
            return project.baseline if project is not None else None
        return project.expert.schedule if project.expert is not None else None

    # Selection and search

    def marks(self, current: int | None) -> Marks:
        """Find the selected, hovered and found nodes."""
        level = self.level
        if level is None:
            return Marks()
        chosen = _count(level, self.document.selection)
        hovered = _count(level, self.document.hovered)
        whole = (chosen == level.n_ops) & (level.n_ops > 0)
        if whole[: level.grouping.n_groups].all() and len(self.levels) > 1:
            # The opened group is selected: rings around all its parts would be noise.
            chosen = np.zeros_like(chosen)
            whole = chosen > 0
        return Marks(
            selected=frozenset(np.flatnonzero(whole).tolist()),
            partly=frozenset(np.flatnonzero((chosen > 0) & ~whole).tolist()),
            hovered=frozenset(np.flatnonzero(hovered).tolist()),
            # A word half typed finds nothing yet: nothing fades then.
            matches=frozenset(self.matches) if self.matches else None,
            current=current,
            noted=self._noted(level),
        )

    def _noted(self, level: GraphLevel) -> frozenset[int]:
        """Find the nodes with ops that there are notes on."""
        project = self.document.project
        ops = frozenset[int]().union(*(project.noted if project is not None else ()))
        return frozenset(np.flatnonzero(_count(level, ops)).tolist())

    def find(self, query: str) -> None:
        """Highlight the groups with ops that a query finds; an empty one finds none."""
        self._query = query
        project, level = self.document.project, self.level
        self.matches, self.found, self.fault = None, None, ""
        if query and project is not None and level is not None:
            try:
                self.found = find_ops(project, query)
            except QueryError as error:
                self.fault = str(error)
            else:
                self.matches = _groups_with(level.grouping, self.found)
        self.changed.emit()


def _groups_with(grouping: Grouping, ops: BoolArray) -> dict[int, int]:
    """Return the number of these ops in each group that has any."""
    hits = np.bincount(grouping.group[ops & (grouping.group >= 0)], minlength=grouping.n_groups)
    return {group: int(hits[group]) for group in np.flatnonzero(hits).tolist()}


def _count(level: GraphLevel, ops: frozenset[int]) -> IntArray:
    return level.count(np.fromiter(ops, dtype=np.int64, count=len(ops)))
