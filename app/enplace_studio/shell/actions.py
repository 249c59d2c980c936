"""Every action of the studio in one table, for menus, shortcuts, the palette and the `?` sheet."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QInputDialog

from enplace import writers
from enplace.frameworks.registry import exporters, why_no_export
from enplace.names.whole import guess_pattern
from enplace.text import capital
from enplace.values.result import Result
from enplace.values.schedule import Schedule
from enplace_studio.model.document import Document
from enplace_studio.model.notes import note_on
from enplace_studio.model.queries import find_ops
from enplace_studio.model.relations import RELATIONS, Relation
from enplace_studio.model.window_words import in_window_words
from enplace_studio.serving.dialog import ServingDialog
from enplace_studio.shell.about import framework_names, show_about, show_frameworks
from enplace_studio.shell.parts import Studio
from enplace_studio.shell.settings_dialog import SettingsDialog
from enplace_studio.solve.method_menu import STAY_CLOSE
from enplace_studio.views import all_views
from enplace_studio.views.view import DEVICE_KEYS, View, ViewAction
from enplace_studio.widgets.messages import WHAT_MAKES_FIT
from enplace_studio.widgets.panel import SAVE_PICTURE
from enplace_studio.widgets.theme import MODES, theme

MENUS = ("File", "Edit", "Select", "Plan", "View", "Help")
ABOUT_WHOLE = (
    "Ops stay together on one device if their names or scopes have\n"
    "the same match of this regex, such as layers/\\d+:"
)
USUAL_MOVED = 40
ABOUT_CLOSE = (
    "Solve again from this plan, with most ops where they are.\n"
    "The constraint holds until you remove it.\n\nOps that may move, at most:"
)
NOTE_PX = 420
"""Width of the dialog for a note."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")

EXPORTS = {
    name: (f"Export {exporter.title}…", exporter.suffix) for name, exporter in exporters().items()
}
"""Title and suffix of each format that a schedule can be exported to."""

FORMATS = writers.exporters()
"""The formats that are for every model, whatever its framework."""


@dataclass(frozen=True)
class Action:
    """Something the user can do.

    Attributes
    ----------
    menu : str
        One of :data:`MENUS`, or empty if only keys and the palette reach it.
    keys : tuple of str
        Shortcuts as Qt writes them; the first is shown.
    run, enabled : callable
        The function it calls, and whether it is available now.
    group : int
        Actions of one menu with the same number are shown together.
    checked : callable, optional
        For actions that switch something on and off.
    why_not : callable, optional
        For actions that the user may look for: why it is unavailable; empty if it is available.
    """

    id: str
    title: str
    menu: str
    keys: tuple[str, ...]
    run: Callable[[Studio], object]
    enabled: Callable[[Studio], bool] = lambda studio: True
    group: int = 0
    checked: Callable[[Studio], bool] | None = None
    why_not: Callable[[Studio], str] | None = None


def _open(studio: Studio) -> bool:
    return studio.document.problem is not None


def _planned(studio: Studio) -> bool:
    return studio.document.current is not None


def _selected(studio: Studio) -> bool:
    return _planned(studio) and bool(studio.document.selection)


def _selected_ops(studio: Studio) -> bool:
    return _open(studio) and bool(studio.document.selection)


def _ordered(studio: Studio) -> bool:
    problem, selection = studio.document.problem, studio.document.selection
    return problem is not None and any(op in selection for p in problem.before for op in p)


def _constrained(studio: Studio) -> bool:
    problem = studio.document.problem
    return problem is not None and bool(problem.constraints)


def _is_what_if(studio: Studio) -> bool:
    project = studio.document.project
    return project is not None and project.scale != (1.0, 1.0)


def _several(studio: Studio) -> bool:
    return _open(studio) and len(studio.document.selection) > 1


def _solvable(studio: Studio) -> bool:
    idle = not studio.solver.is_asked and not studio.is_measuring
    return _open(studio) and bool(studio.solver.methods) and idle


def _comparable(studio: Studio) -> bool:
    """Return whether methods can be compared; while others run, they wait for these."""
    return _open(studio) and bool(studio.solver.methods) and not studio.is_measuring


def _was_timed(studio: Studio) -> bool:
    current = studio.document.current
    return current is not None and current.run is not None and not current.run.on_labels


def _was_measured(studio: Studio) -> bool:
    problem = studio.document.problem
    if problem is None:
        return False
    measured = problem.profile.measured
    is_timed = measured.step_time_us is not None or measured.evaluation is not None
    return is_timed or bool(measured.estimated or measured.notes)


def _edit(change: Callable[[Document, Collection[int]], bool]) -> Callable[[Studio], bool]:
    """Make an action that edits the selected ops."""
    return lambda studio: change(studio.document, studio.document.selection)


def _device_action(number: int) -> Action:
    def has_device(studio: Studio) -> bool:
        problem = studio.document.problem
        return _selected(studio) and problem is not None and number < problem.cluster.n_devices

    return Action(
        f"place-{number + 1}",
        f"Pin selection to the {ORDINALS[number]} device",
        "",
        (str(number + 1),),
        lambda studio: studio.document.place(studio.document.selection, number),
        has_device,
    )


def _export_action(form: str) -> Action:
    title, suffix = EXPORTS[form]
    return Action(
        f"export-{form}",
        title,
        "File",
        (),
        lambda studio: studio.exchange.ask_export(form, suffix),
        lambda studio: _planned(studio) and not _why_no_export(studio, form),
        2,
        why_not=lambda studio: _why_no_export(studio, form),
    )


def _why_no_export(studio: Studio, form: str) -> str:
    entry = studio.document.current
    return "" if entry is None else _why_not_as(form, entry.schedule)


@lru_cache(maxsize=2 * len(EXPORTS))  # asked again whenever anything changes
def _why_not_as(form: str, schedule: Schedule) -> str:
    result = Result(schedule)
    why = FORMATS[form].why_not(result) if form in FORMATS else why_no_export(form, result)
    return capital(in_window_words(why))


def _mode_action(mode: str) -> Action:
    return Action(
        f"theme-{mode}",
        MODES[mode],
        "View",
        (),
        lambda studio: studio.set_theme(mode),
        group=3,
        checked=lambda studio: theme.mode == mode,
    )


def _view_action(view: View, action: ViewAction) -> Action:
    def run(studio: Studio) -> None:
        action.run(studio.panes.bring(view.id))
        studio.changed.emit()

    return Action(
        action.id,
        action.title,
        action.menu,
        action.keys,
        run,
        _open,
        action.group,
    )


def _select_all(studio: Studio) -> None:
    problem = studio.document.problem
    if problem is not None:
        studio.document.select(range(problem.profile.n_ops))


def _select_critical(studio: Studio) -> None:
    project = studio.document.project
    if project is not None:
        studio.document.select(np.flatnonzero(find_ops(project, "critical")).tolist())


def _select_groups(studio: Studio) -> None:
    project = studio.document.project
    if project is not None:
        studio.document.select(project.whole_groups(studio.document.selection))


def _related_action(relation: Relation) -> Action:
    return Action(
        relation.id,
        relation.title,
        "Select",
        (relation.keys,),
        lambda studio: studio.document.select_related(relation),
        _selected_ops,
        2,
    )


def _rename_plan(studio: Studio) -> None:
    current = studio.document.current
    if current is not None:
        name, accepted = QInputDialog.getText(
            studio.window, "Rename plan", "Name", text=current.name
        )
        if accepted:
            studio.document.rename_plan(current, name)


def _note_selection(studio: Studio) -> None:
    project, ops = studio.document.project, studio.document.selection
    if project is not None:
        dialog = QInputDialog(studio.window)
        dialog.setWindowTitle("Note")
        dialog.setLabelText(f"Your note on {project.describe(ops)}")
        dialog.setTextValue(note_on(project, ops))
        dialog.resize(round(NOTE_PX * theme.scale), dialog.height())
        if dialog.exec():
            studio.document.write_note(ops, dialog.textValue())


def _keep_whole(studio: Studio) -> None:
    project = studio.document.project
    if project is not None:
        pattern, accepted = QInputDialog.getText(
            studio.window,
            "Keep layers whole",
            ABOUT_WHOLE,
            text=guess_pattern(project.problem.profile),
        )
        if accepted and pattern:
            studio.document.keep_whole(pattern)


def _stay_close(studio: Studio) -> None:
    current = studio.document.current
    if current is not None:
        n_ops = len(current.plan.device)
        most, accepted = QInputDialog.getInt(
            studio.window, STAY_CLOSE, ABOUT_CLOSE, min(USUAL_MOVED, n_ops), 1, n_ops
        )
        if accepted and studio.document.stay_close(most):
            studio.solving.solve()


def _remove_plan(studio: Studio) -> None:
    if studio.document.current is not None:
        studio.document.remove_plan(studio.document.current)


def _toggle_side_by_side(studio: Studio) -> None:
    plans: Any = studio.panes.views["plans"]
    if studio.panes.is_in_middle("compare"):
        studio.panes.toggle_in_middle("compare")
        studio.changed.emit()
    else:
        studio.compare_plans(plans.pair)


def _toggle_tables(studio: Studio) -> None:
    studio.panes.toggle_in_middle("tables")
    studio.changed.emit()


def _take_tour(studio: Studio) -> None:
    studio.panes.bring("graph")  # where the tour begins
    studio.tour_wanted.emit()


def _serve(studio: Studio) -> None:
    def open_plan(profile: Path, plan: Path) -> None:
        studio.files.open_path(profile, then=lambda: studio.files.open_path(plan))

    ServingDialog(open_plan, studio.window).exec()


# fmt: off
_ACTIONS: tuple[Action, ...] = (
    Action("open", "Open…", "File", ("Ctrl+O",), lambda s: s.files.ask_open()),
    Action("open-backup", "Open a backup…", "File", (), lambda s: s.files.ask_open_backup()),
    Action("open-model", "Open a model…", "File", ("Ctrl+Shift+O",),
           lambda s: s.measuring.open_model(), lambda s: not s.is_measuring),
    Action("serve", "Serve a model…", "File", (), _serve),
    Action("start", "Start page", "File", (), lambda s: s.files.close_project(), _open),
    Action("save", "Save", "File", ("Ctrl+S",), lambda s: s.saving.save(), _open, 1),
    Action("save-as", "Save as…", "File", ("Ctrl+Shift+S",),
           lambda s: s.saving.save_as(), _open, 1),
    Action("import-plan", "Import plan.json…", "File", (),
           lambda s: s.exchange.ask_import_plan(), _open, 2),
    Action("export-plan", "Export plan.json…", "File", ("Ctrl+E",),
           lambda s: s.exchange.ask_export_plan(), _planned, 2),
    *(_export_action(form) for form in EXPORTS),
    Action("save-picture", SAVE_PICTURE, "File", ("Ctrl+Shift+E",),
           lambda s: s.exchange.ask_save_picture(s.panes.drawing()), _open, 2),
    Action("import-constraints", "Import constraints…", "File", (),
           lambda s: s.exchange.ask_import_constraints(), _open, 3),
    Action("export-constraints", "Export constraints…", "File", (),
           lambda s: s.exchange.ask_export_constraints(), _constrained, 3),
    Action("quit", "Quit", "File", ("Ctrl+Q",), lambda s: s.window.close(), group=4),
    Action("undo", "Undo", "Edit", ("Ctrl+Z",), lambda s: s.document.undo_stack.undo(),
           lambda s: s.document.undo_stack.canUndo()),
    Action("redo", "Redo", "Edit", ("Ctrl+Shift+Z", "Ctrl+Y"),
           lambda s: s.document.undo_stack.redo(), lambda s: s.document.undo_stack.canRedo()),
    Action("pin", "Pin selection where it is", "Edit", ("P",),
           _edit(Document.pin_here), _selected, 1),
    Action("unpin", "Unpin selection", "Edit", ("U",), _edit(Document.unpin), _selected, 1),
    Action("colocate", "Colocate selection", "Edit", ("G",),
           _edit(Document.colocate), _several, 1),
    Action("separate", "Separate selection", "Edit", ("Shift+G",),
           _edit(Document.separate), _selected, 1),
    Action("keep-whole", "Keep layers whole…", "Edit", (), _keep_whole, _open, 1),
    Action("stamp", "Apply to all layers like the selection", "Edit", ("L",),
           _edit(Document.offer_stamp), _selected_ops, 1),
    Action("note", "Note on the selection…", "Edit", ("N",), _note_selection, _selected_ops, 1),
    Action("earlier", "Run selection earlier", "Edit", ("Alt+Left",),
           lambda s: s.document.run_next(s.document.selection, earlier=True), _selected, 1),
    Action("later", "Run selection later", "Edit", ("Alt+Right",),
           lambda s: s.document.run_next(s.document.selection, earlier=False), _selected, 1),
    Action("forget-order", "Forget the order of the selection", "Edit", (),
           _edit(Document.forget_order), _ordered, 1),
    Action("select-all", "Select all", "Select", ("Ctrl+A",), _select_all, _open, 1),
    Action("select-none", "Select nothing", "Select", (),
           lambda s: s.document.select(()), _selected_ops, 1),
    Action("select-critical", "Select the critical path", "Select", (),
           _select_critical, _planned, 1),
    Action("select-group", "Select the whole group", "Select", ("Shift+W",),
           _select_groups, _selected_ops, 2),
    Action("turn-group", "Open or close the groups of the selection", "Select", ("X",),
           lambda s: s.document.turn_groups(s.document.selection), _selected_ops, 2),
    *map(_related_action, RELATIONS),
    Action("why", "Why here?", "Select", ("Y",),
           lambda s: s.document.ask_why(s.document.selection), _selected, 3),
    Action("solve", "Solve", "Plan", ("Ctrl+Return",), lambda s: s.solving.solve(), _solvable),
    Action("cancel", "Stop solving, keep the best", "Plan", ("Ctrl+.",),
           lambda s: s.solver.cancel(), lambda s: s.solver.busy),
    Action("stay-close", f"{STAY_CLOSE}…", "Plan", (), _stay_close,
           lambda s: _planned(s) and _solvable(s)),
    Action("next-moves", "Find the next moves", "Plan", ("M",),
           lambda s: s.panes.open("moves"), _planned),
    Action("methods", "Choose method…", "Plan", ("Ctrl+M",),
           lambda s: s.solving.choose_method(), lambda s: _open(s) and bool(s.solver.methods)),
    Action("compare", "Try other methods…", "Plan", ("Ctrl+Shift+C",),
           lambda s: s.solving.ask_compare(), _comparable),
    Action("rules", "Place by rules…", "Plan", (), lambda s: s.solving.ask_rules(), _solvable),
    Action("make-fit", f"{WHAT_MAKES_FIT}…", "Plan", (),
           lambda s: s.fitting.ask(), lambda s: _open(s) and not s.is_measuring),
    Action("run", "Run on this machine…", "Plan", ("Ctrl+R",),
           lambda s: s.measuring.run_current(), lambda s: not s.why_no_run(), 1,
           why_not=lambda s: s.why_no_run()),
    Action("tune", "Tune on this machine…", "Plan", (),
           lambda s: s.measuring.tune_current(), lambda s: not s.why_no_run(), 1,
           why_not=lambda s: s.why_no_run()),
    Action("cancel-run", "Cancel the measurement", "Plan", (),
           lambda s: s.measuring.cancel(), lambda s: s.is_measuring, 1),
    Action("take-costs", "Take measured costs", "Plan", (),
           lambda s: s.measuring.take_costs(), _was_timed, 1),
    Action("profile-page", "How it was measured…", "Plan", (),
           lambda s: s.measuring.show_profile(), _was_measured, 1),
    Action("cluster", "Choose cluster…", "Plan", ("Ctrl+L",),
           lambda s: s.solving.choose_cluster(), _open, 2),
    Action("edit-cluster", "Edit cluster…", "Plan", (),
           lambda s: s.solving.edit_cluster(), _open, 2),
    Action("end-what-if", "End the what-if, back to 1 ×", "Plan", (),
           lambda s: s.document.set_scale(1.0, 1.0), _is_what_if, 2),
    Action("rename-plan", "Rename plan…", "Plan", ("F2",), _rename_plan, _planned, 3),
    Action("remove-plan", "Remove plan", "Plan", (),
           _remove_plan, _planned, 3),
    Action("fit", "Fit to window", "View", ("0",), lambda s: s.panes.fit(), _open, 1),
    Action("focus", "Go to selection", "View", ("F",),
           lambda s: s.panes.focus_selection(), _selected, 1),
    Action("side-by-side", "Compare plans side by side", "View", ("C",),
           _toggle_side_by_side, _planned, 1, lambda s: s.panes.is_in_middle("compare")),
    Action("tables", "Tables of ops, transfers and memory", "View", ("T",),
           _toggle_tables, _planned, 1, lambda s: s.panes.is_in_middle("tables")),
    Action("reset-layout", "Reset layout", "View", (), lambda s: s.panes.reset(), group=2),
    *map(_mode_action, MODES),
    Action("settings", "Settings…", "View", ("Ctrl+,",),
           lambda s: SettingsDialog(s, s.window).exec(), group=4),
    Action("palette", "Commands…", "Help", ("Ctrl+Shift+P",), lambda s: s.palette_wanted.emit()),
    Action("keys", "All keys", "Help", ("?",), lambda s: s.keys_wanted.emit()),
    Action("tour", "Take the tour", "Help", (), _take_tour, _open),
    Action("frameworks", f"{framework_names()}…", "Help", (),
           lambda s: show_frameworks(s.window), group=1),
    Action("about", "About Enplace", "Help", (), lambda s: show_about(s.window), group=1),
    *(_device_action(number) for number in range(DEVICE_KEYS)),
)
# fmt: on


def all_actions() -> tuple[Action, ...]:
    """List all actions, including those of the views, in menu order.

    Raises
    ------
    ValueError
        If an action has no menu of the window, or two have the same id or shortcut; the message
        is for the developer.
    """
    of_views = [_view_action(view, action) for view in all_views() for action in view.actions]
    _check([*_ACTIONS, *of_views])
    order = (*MENUS, "")
    return tuple(
        sorted((*_ACTIONS, *of_views), key=lambda spec: (order.index(spec.menu), spec.group))
    )


def _check(actions: Collection[Action]) -> None:
    """Refuse an unknown menu, and an id or a shortcut that an earlier action has."""
    ids: set[str] = set()
    owners: dict[str, str] = {}
    for action in actions:
        if action.menu not in (*MENUS, ""):
            raise ValueError(
                f"action '{action.id}': there is no menu '{action.menu}'; use {', '.join(MENUS)}"
            )
        if action.id in ids:
            raise ValueError(f"action '{action.id}': another action has this id; rename it")
        ids.add(action.id)
        for key in map(_portable, action.keys):
            if key in owners:
                raise ValueError(
                    f"action '{action.id}': its shortcut {key} belongs to '{owners[key]}'; choose "
                    f"another one"
                )
            owners[key] = action.id


def _portable(keys: str) -> str:
    """Return the spelling that all spellings of a shortcut share."""
    return QKeySequence(keys).toString(QKeySequence.SequenceFormat.PortableText)


VIEW_KEYS = (
    ("W A S D", "Move and zoom the graph or the timeline under the pointer"),
    ("Ctrl + wheel", "Zoom at the pointer; plans side by side zoom without Ctrl"),
    ("Drag along the axis", "Select a span of time in the timeline"),
    ("I", "Select the time on screen in plans side by side"),
    ("+ or −", "Zoom the graph or the timeline under the pointer"),
    ("Arrows", "Go to the next group, or move the timeline under the pointer"),
    ("Enter", "Open the group alone"),
    ("Backspace", "Back to the groups around it"),
    ("Enter, F3", "In the query: select all that is found, or go to the next group"),
    ("Esc", "Leave the search, an offer, the group, the selection"),
    ("Ctrl + click a plan", "Compare it with the current one"),
    ("Space or Delete", "Switch the chosen constraint on or off, or remove it"),
    ("Ctrl+C", "Copy a table or a list as text: ops, plans, limits, constraints"),
    ("Drag onto a device", "Move and pin; with Shift only move"),
)
"""Keys that views handle themselves; shown with those of the actions."""
