"""The inspector pane."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtWidgets import (
    QApplication,
    QDockWidget,
    QLabel,
    QMenu,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from enplace.bounds import dated_note
from enplace.machine.limits import Limit, find_limits, limited_us, time_if_free
from enplace.machine.plan_words import limits_title
from enplace.pictures.palette import colour_numbers
from enplace.placing.next_moves import Idle
from enplace.text import count, ms, percent, size
from enplace.values.measurement import ESTIMATED
from enplace.values.pins import FREE
from enplace.values.problem import Problem
from enplace.values.profile import IntArray
from enplace.values.schedule import Schedule
from enplace_studio.explain.reasons import Mark, Why, why_here
from enplace_studio.explain.start_times import (
    Gap,
    explain_gap,
    explain_place,
    find_chain,
    idle_text,
    sum_waits,
)
from enplace_studio.jobs.background import Background
from enplace_studio.jobs.call_later import call_later, pause_s
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.document import Document
from enplace_studio.model.notes import Noted, all_notes, notes_about
from enplace_studio.model.open_project import OpenProject
from enplace_studio.model.plan_facts import file_claim
from enplace_studio.model.previews import Preview
from enplace_studio.model.prices import headline, what_if_text
from enplace_studio.model.window_words import in_window_words
from enplace_studio.views.inspector.inspector_facts import (
    SplitFact,
    count_splits,
    largest_outgoing,
    measured_facts,
    op_facts,
    place_sentence,
    split_facts,
    totals,
)
from enplace_studio.views.inspector.splits import SplitTable
from enplace_studio.views.inspector.where import DeviceGrid
from enplace_studio.widgets.fact_widgets import (
    COLUMN_PX,
    USUAL_GAIN,
    USUAL_TIME,
    Columns,
    Line,
    WhyLine,
)
from enplace_studio.widgets.labels import label, paragraph, plain_tip
from enplace_studio.widgets.layouts import vbox
from enplace_studio.widgets.menu import add_action, new_menu, offer_menu
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.move_list import MoveList
from enplace_studio.widgets.panel import Need, ScrollPanel
from enplace_studio.widgets.tables import copy_on_request

RETRY_MS, PRESSED_S = 20, 1.0
LEAST_PX = 200
"""Least height of use; it has the devices of a selection and what to do."""
MOST_SPLITS = 6
_TAKES = {"offloaded op": "fetched in", "recomputed op": "again in"}
"""What the time of an op is that is not split; the heading says the rest."""
MOST_LIMITS = 10
MOST_REASONS = 4
"""Most devices for which the effect of a move is explained; the others have it in their tips."""

ABOUT_GAIN = (
    "if it were free: the same plan simulated again, in the same order, with these ops taking no "
    "time, or this link"
)

NOTHING_FITS = "Nothing that was tried would run here and shorten the step."
ABOUT_MOVES = (
    "The edits of this plan that shorten it most, each with its price and a click to make it"
)

PIN = "Pin here   P", "Keep these ops on their current devices, whatever a solver would choose"
UNPIN = "Unpin   U", "Let a solver decide about these ops again"
COLOCATE = "Colocate   G", "Keep the selected ops together on one device; select two or more"
SEPARATE = "Separate", "Allow these ops to run on different devices again"
"""Texts and tooltips of the buttons that edit the selection."""


def make_view(document: Document, solver: Solver) -> InspectorView:
    """Make the pane."""
    return InspectorView(document, solver)


class InspectorView(ScrollPanel):
    """The selected ops: their costs, devices, allowed devices and outgoing tensors."""

    def __init__(
        self, document: Document, solver: Solver | None = None, parent: QWidget | None = None
    ) -> None:
        super().__init__("Selection", parent=parent)
        self._document, self._solver = document, solver
        self.fitting: MoveList | None = None
        self.where: DeviceGrid | None = None
        self.sentence: QLabel | None = None
        self.why: QLabel | None = None
        self.buttons: dict[str, QPushButton] = {}
        self.reasons: dict[int, str] = {}
        self._refusals: dict[tuple[tuple[str, str, str], ...], QLabel] = {}
        self._way_back: tuple[frozenset[int], frozenset[int]] | None = None
        """The ops that a reason led to, and those it was given for."""
        self._followed: tuple[Mark, ...] = ()
        """The marks of the reason that was followed; shown until the selection changes."""
        self.offer_picture(document.requests.save_picture.emit)
        copy_on_request(self, self.rows, self)
        self._shows = self.column.fill()
        self._asked_about: object = None
        self._claim: str | None = None
        """What the plan's file claims, as shown; None while something else is."""
        self._gains = Background(QObject(self))  # no widget, so no busy cursor
        self._later = call_later(
            self,
            self.rebuild,
            document.opened,
            document.problem_changed,
            document.current_changed,
            document.grouping_changed,
            document.notes_changed,
            document.gap_changed,
            document.moves_shown_changed,
        )
        self._selected = call_later(self, self._show_selection, document.selection_changed)
        document.bounds.changed.connect(self._show_claim)
        document.selection_changed.connect(self._forget_marks)
        document.why_wanted.connect(self._show_why, Qt.ConnectionType.QueuedConnection)
        self.rebuild()

    def need(self) -> Need:
        usual = super().need()
        return replace(usual, least=min(usual.wanted, LEAST_PX))

    def rebuild(self) -> None:
        """Show the selection of the document; a new one has the room that it needs."""
        self._later.stop()
        self._selected.stop()
        self._show()
        about = self._document.selection or self._document.gap
        if bool(about) != self.holds_room or (about and about != self._asked_about):
            self.hold_room(bool(about))
        self._asked_about = about
        self.column.lay_out_now()  # never painted before all lines have their places

    def _show_selection(self) -> None:
        """Show a new selection once the mouse is released: till then a drag would wait for it.

        It does not wait for long: after the press that closes a menu, Qt takes the button for
        pressed until the next one.
        """
        is_pressed = QApplication.mouseButtons() != Qt.MouseButton.NoButton
        waits = is_pressed and pause_s() < PRESSED_S
        self._selected.setInterval(RETRY_MS if waits else 0)
        if waits:
            self._selected.start()
        else:
            self.rebuild()

    def _show(self) -> None:
        self.where, self.sentence, self.why, self.buttons = None, None, None, {}
        self._claim = None
        self._gains.forget()
        if self.fitting is not None:
            self.fitting.forget()
            self.fitting = None
        self._shows = self.column.fill()
        project = self._document.project
        ops = np.array(sorted(self._document.selection), dtype=np.int64)
        if project is not None and len(ops):
            self.set_title(project.describe(ops.tolist()))
            self._add_way_back(project)
            self._add_selection(project, ops)
            return
        if project is not None and project.current is not None and self._document.gap is not None:
            self.set_title(f"Why is {project.device_label(self._document.gap.device)} idle?")
            self._add_gap(project, project.current.schedule, self._document.gap)
            return
        self.set_title("Selection")
        if project is None:
            self._add_text("Open a model, or start from a sample.")
        else:
            self._add_introduction(project)

    def _add_introduction(self, project: OpenProject) -> None:
        """Describe the plan and what the user can do, while nothing is selected."""
        current = project.current
        if current is None:
            self._add_text(
                "There is no plan yet. As soon as there is one, you read here what limits it."
            )
        else:
            schedule = current.schedule
            step = ms(schedule.makespan_us)
            measured = current.schedule.problem.measured_profile.measured
            known = f"an {ESTIMATED} " if measured.estimated else ""
            own, is_step = headline(current.plan, schedule), current.plan.value_us is None
            takes = f"{step} per step" if is_step else f"{own}, one step {step}"
            what_if = what_if_text(*project.scale)
            self._add_text(
                f"“{current.name}” takes {known}{takes}{f' ({what_if})' if what_if else ''}."
            )
            if note := dated_note(schedule, in_window_words(current.plan.note)):
                self._add_text(note)
            self._claim = file_claim(self._document.bounds, schedule)
            if self._claim:
                self._add_text(self._claim)
            if not self._document.undo_stack.count():
                self._add_text(
                    "Select a group in the graph, or ops in the timeline, to see what they cost. "
                    "Drag them to another device, or press its number, and the step time updates "
                    "at once."
                )
            if not self._document.are_moves_shown:
                find = partial(self._document.requests.run_action.emit, "next-moves")
                self.buttons["moves"] = self._add_link("Find the next moves", find, ABOUT_MOVES)
            self._add_limits(project, current.schedule)
            self._add_notes(all_notes(project))
            if current.plan.splits:
                self._add_splits(split_facts(project.model.profile, current.schedule))

    def _show_claim(self) -> None:
        """Show what the plan's file claims if a bound that is now known has changed that."""
        schedule = self._document.schedule
        known = schedule and file_claim(self._document.bounds, schedule)
        if self._claim is not None and known != self._claim:
            self._later.start()

    def _add_notes(self, found: Sequence[Noted]) -> None:
        """Add notes, each with a link to its ops."""
        if found:
            self._add_heading("Notes")
        for note in found:
            select = partial(self._document.select, note.ops)
            self._add_link(note.title, select, "Select these ops")
            self._add_text(note.text)

    def _add_way_back(self, project: OpenProject) -> None:
        """Add a link to the gap, or to the ops with the reason, that led to the selection."""
        gap, selection = self._document.gap, self._document.selection
        if self._way_back is not None and self._way_back[0] == selection:
            asked = self._way_back[1]
            shown = project.describe(asked)
            verb = "are" if shown.partition(" ")[0].isdecimal() else "is"
            text = f"‹  Why {verb} {shown} there?"
            self.buttons["asked"] = self._add_link(text, lambda: self._document.ask_why(asked))
        if gap is not None:
            text = f"‹  Why is {project.device_label(gap.device)} idle?"
            back = partial(self._document.select, [], gap=gap)
            self.buttons["gap"] = self._add_link(text, back)

    def _add_gap(self, project: OpenProject, schedule: Schedule, gap: Gap) -> None:
        """List what a device waits for, the cause first; a click selects the ops of a line."""
        self._add_text(f"{idle_text(schedule, gap)}.")
        steps = find_chain(schedule, project.grouping, gap).steps
        if not steps:
            self._add_text(explain_gap(schedule, gap))
            self._add_fitting(project, schedule, gap)
            return
        waits = sum_waits(gap, steps)
        later = [*waits.long, *([waits.short] if waits.short is not None else [])]
        self._add_heading("What ran as the gap began")
        self._add_wait(waits.cause, later, gap)
        if later:
            then = "Then it waits for" if gap.op is not None else "Then the step waits for"
            self._add_heading(f"{then}, the longest first")
        for limit in later:
            self._add_wait(limit, later, gap)
        self._add_fitting(project, schedule, gap)

    def _add_fitting(self, project: OpenProject, schedule: Schedule, gap: Gap) -> None:
        """List what could run in a gap and would shorten the step; a click moves it there."""
        if self._solver is None:
            return
        self._add_heading("What fits here and makes the plan better")
        self.fitting = MoveList(self._document, self._solver, NOTHING_FITS)
        self._shows.addWidget(self.fitting)
        idle = Idle(gap.device, gap.since_us, gap.until_us)
        self.fitting.ask(project.problem, schedule, idle)

    def _add_wait(self, limit: Limit, among: Sequence[Limit], gap: Gap) -> None:
        time = ms(limit.time_us)
        tip = f"{limit.name}: {time} of the wait; click to select its ops"
        self._add_limit(limit, among, time, tip, gap)

    def _forget_marks(self) -> None:
        self._followed = ()

    def _show_why(self) -> None:
        """Bring the reasons for the place of the selection into view."""
        if self._later.isActive() or self._selected.isActive():
            self.rebuild()
        above = self.parentWidget()
        while above is not None and not isinstance(above, QDockWidget):
            above = above.parentWidget()
        if above is not None:
            above.show()
            above.raise_()
        # The new lines have no places yet.
        QTimer.singleShot(0, self, self._scroll_to_why)

    def _scroll_to_why(self) -> None:
        if self.why is not None:
            bar = self.column.verticalScrollBar()
            bar.setValue(self.why.y())

    def _find_gains(self, schedule: Schedule, waiting: list[tuple[Limit, Line]]) -> None:
        """Simulate the next part of the step for free, and show the gain in its line."""
        if not waiting:
            return
        (limit, line), *others = waiting

        def show(time_us: float) -> None:
            change_us = time_us - limited_us(schedule)
            gain = ms(change_us, signed=True) if change_us else "no gain"
            line.set_right(f"{ms(limit.time_us)}   {gain}", f"{line.tip}\n{gain} {ABOUT_GAIN}")
            self._find_gains(schedule, others)

        self._gains.start(partial(time_if_free, schedule, limit), show)

    def _add_limit(
        self, limit: Limit, among: Sequence[Limit], value: str, tip: str, gap: Gap | None = None
    ) -> Line:
        line = Line(
            limit.what,
            value,
            tip,
            can_click=True,
            among=[each.what for each in among],
            colour=self._colour(limit.device),
            where=limit.where,
            usual=USUAL_GAIN if gap is None else USUAL_TIME,
        )
        line.clicked.connect(partial(self._document.select, limit.ops, gap=gap))
        offer_menu(line, lambda at: self.menu_of(limit, gap))
        self._shows.addWidget(line)
        return line

    def _colour(self, device: int | None) -> int | None:
        problem = self._document.problem
        if device is None or problem is None:
            return None
        return colour_numbers(problem.cluster)[device]

    def menu_of(self, limit: Limit, gap: Gap | None = None) -> QMenu:
        """Make the menu of a part of the step, or of a wait: its ops, then what the pane has."""
        document, menu = self._document, new_menu(self)
        select = partial(document.select, limit.ops, gap=gap)
        add_action(menu, f"Select the {count(len(limit.ops), 'op')}", select)
        add_action(menu, "Why here?", lambda: document.ask_why(limit.ops))
        menu.addSeparator()
        menu.addActions(self.actions())
        return menu

    def rows(self) -> list[tuple[str, str]]:
        """Return every line with a value as texts, such as those that limit the step."""
        contents = self.column.widget()
        lines = contents.findChildren(Line) if contents is not None else []
        return [(line.left, line.right) for line in lines]

    def _add_limits(self, project: OpenProject, schedule: Schedule) -> None:
        """List what takes the time of a step or a sample, and what it would gain without it.

        A click selects the ops. The gains are simulated one after the other in the background.
        """
        self._add_heading(f"{limits_title(schedule)}, and the gain if it were free")
        limits = find_limits(schedule, project.grouping, MOST_LIMITS)
        waiting: list[tuple[Limit, Line]] = []
        for limit in limits:
            time, share = ms(limit.time_us), percent(limit.time_us / limited_us(schedule))
            tip = f"{limit.name}: {time}, {share} of it all; click to select its ops"
            waiting.append((limit, self._add_limit(limit, limits, time, tip)))
        self._find_gains(schedule, waiting)

    def _add_splits(self, found: list[SplitFact]) -> None:
        """Show the longest ops that the plan splits or does not keep, and a button for all."""
        self._add_heading(count_splits(found))
        for fact in found[:MOST_SPLITS]:
            took, end = ms(fact.time_us), Qt.TextElideMode.ElideLeft
            if fact.noun in _TAKES:
                value = f"{_TAKES[fact.noun]} {took}"
                self._shows.addWidget(Line(fact.op, value, f"{fact.op}: {value}", elide=end))
                continue
            value = f"{took}  →  {fact.how}"
            # The end of a name identifies op and layer, so the name has a line of its own.
            self._shows.addWidget(Line(fact.op, "", fact.op, elide=end))
            self._shows.addWidget(Line("", value, f"{fact.op}: {value}"))
        self.buttons["splits"] = self._add_link(
            f"Show all {len(found):,}", lambda: SplitTable(found, self).open()
        )

    def _add_selection(self, project: OpenProject, ops: IntArray) -> None:
        problem, schedule = project.problem, self._document.schedule
        self._add_text(totals(problem, schedule, ops))
        self._add_notes(notes_about(project, ops.tolist()))
        self._add_heading("Where")
        self.where = DeviceGrid(self._document, project, ops)
        self.where.chosen.connect(self._place)
        self._shows.addWidget(self.where)
        self.sentence = self._add_text(place_sentence(problem, schedule, ops))
        self._add_actions(problem, ops)
        if schedule is not None:
            self._add_reasons(project, schedule, ops, self.where)
        if len(ops) == 1:
            self._add_lines("This op", op_facts(problem, schedule, int(ops[0])))
        current = project.current
        if current is not None and current.run is not None:
            facts = measured_facts(current.schedule, current.run, ops)
            on_labels = current.run.on_labels
            self._add_lines("Run on labels" if on_labels else "Measured on this machine", facts)
        tensors = largest_outgoing(problem, project.grouping, ops)
        if tensors:
            self._add_heading("Largest tensors")
        names = [tensor.name for tensor in tensors]
        for tensor in tensors:
            tip = f"{tensor.op_name}\n{size(tensor.bytes)} to {tensor.goes_to}"
            to = f"to {tensor.goes_to}"
            self._shows.addWidget(WhyLine(size(tensor.bytes), tensor.name, to, tip, False, names))

    def _add_reasons(
        self, project: OpenProject, schedule: Schedule, ops: IntArray, where: DeviceGrid
    ) -> None:
        """Explain the place of the selection, and each other place as soon as it is simulated."""
        self.why = self._add_heading("Why here")
        self._add_text(explain_place(schedule, ops))
        self._add_whys(project, self._shows, why_here(schedule, ops))
        self.reasons, self._refusals = {}, {}
        spacing = self._shows.spacing()
        places = {device: vbox(spacing=spacing) for device in where.others[:MOST_REASONS]}
        for place in places.values():
            self._shows.addLayout(place)

        def explain(device: int, preview: Preview) -> None:
            self.reasons[device] = preview.why_not or preview.reason
            if (place := places.pop(device, None)) is not None:
                self._explain_place(project, place, device, preview)
                self.column.lay_out_now()

        where.explained.connect(explain)

    def _explain_place(
        self, project: OpenProject, place: QVBoxLayout, device: int, preview: Preview
    ) -> None:
        """Say what would happen on another device; those refused for the same reason are one."""
        name = project.device_label(device)
        same = tuple((why.kind, why.about, why.figure) for why in preview.whys)
        if preview.why_not and same in self._refusals:
            heading = self._refusals[same]
            heading.setText(f"{heading.text()}, {name}")
            return
        heading = label(
            f"Why not on {name}" if preview.why_not else f"On {name}", "dim", wraps=True
        )
        place.addWidget(heading)
        if preview.why_not and same:
            self._refusals[same] = heading
        if preview.reason:
            place.addWidget(paragraph(preview.reason))
        if preview.why_not and not preview.whys:
            place.addWidget(paragraph(preview.why_not))
        self._add_whys(project, place, preview.whys)

    def _add_whys(self, project: OpenProject, place: QVBoxLayout, whys: Iterable[Why]) -> None:
        groups = np.unique(project.grouping.group[list(self._document.selection)])
        is_one = len(groups) == 1 and groups[0] >= 0
        known = f" of {project.grouping.names[groups[0]]}" if is_one else ""
        for why in whys:
            about = why.about or project.describe(why.ops)
            line = WhyLine(why.kind, about, why.figure, why.tip, bool(why.ops), known=known)
            line.pointed.connect(partial(self._point, why))
            line.clicked.connect(partial(self._follow, why))
            place.addWidget(line)

    def _point(self, why: Why, is_on: bool) -> None:
        self._document.point_at(why.marks if is_on else self._followed)

    def _follow(self, why: Why) -> None:
        """Select what a reason is about, with a way back, and show its marks."""
        document = self._document
        if why.ops:
            asked, chosen = document.selection, frozenset(why.ops)
            document.select(chosen, gap=document.gap)
            self._way_back = (chosen, asked) if chosen != asked else None
            self._followed = why.marks
            document.point_at(why.marks, reveal=True)

    def _add_actions(self, problem: Problem, ops: IntArray) -> None:
        """Add a button for each edit of the selection that may be of use."""
        document, chosen = self._document, frozenset(ops.tolist())
        pinned = int(np.count_nonzero(problem.pinned_to[ops] != FREE))
        together = any(op in chosen for group in problem.together for op in group)
        can_pin = document.current is not None and pinned < len(chosen)
        shown = [
            self._edit_button(PIN, document.pin_here, chosen, can_pin),
            self._edit_button(COLOCATE, document.colocate, chosen, len(chosen) > 1),
        ]
        if pinned:
            shown.append(self._edit_button(UNPIN, document.unpin, chosen))
        if together:
            shown.append(self._edit_button(SEPARATE, document.separate, chosen))
        grid = Columns(COLUMN_PX, 2)
        grid.fill(shown)
        self._shows.addWidget(grid)

    def _edit_button(
        self,
        texts: tuple[str, str],
        edit: Callable[[Collection[int]], bool],
        chosen: frozenset[int],
        enabled: bool = True,
    ) -> QPushButton:
        text, tip = texts
        made = self.buttons[text.partition("   ")[0]] = QPushButton(text)
        made.setToolTip(plain_tip(tip))
        made.setEnabled(enabled)
        made.setMinimumWidth(40)
        made.setMinimumHeight(made.sizeHint().height())
        made.clicked.connect(lambda: edit(chosen))
        return made

    def _place(self, device: int) -> None:
        self._document.place(self._document.selection, device)
        self._later.start()

    # Small parts

    def _add_text(self, text: str) -> QLabel:
        made = paragraph(text)
        made.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._shows.addWidget(made)
        return made

    def _add_heading(self, text: str) -> QLabel:
        made = paragraph(text)
        self._shows.addWidget(made)
        return made

    def _add_link(self, text: str, clicked: Callable[[], object], tip: str = "") -> QPushButton:
        made = button(text, clicked, kind="link", tip=tip)
        made.setProperty("flush", True)
        self._shows.addWidget(made, 0, Qt.AlignmentFlag.AlignLeft)
        return made

    def _add_lines(self, heading: str, facts: list[tuple[str, str]]) -> None:
        self._add_heading(heading)
        for left, right in facts:
            self._shows.addWidget(Line(left, right))
