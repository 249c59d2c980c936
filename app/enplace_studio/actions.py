"""Every action of the studio in one table, for menus, shortcuts, the palette and the `?` sheet."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enplace.frameworks.registry import exporters
from enplace_studio.document import Document

if TYPE_CHECKING:
    from enplace_studio.window import MainWindow

MENUS = ("File", "Edit", "Plan", "View", "Help")
DEVICE_KEYS = 8

EXPORTS = {
    name: (f"Export {exporter.title}…", exporter.suffix) for name, exporter in exporters().items()
}
"""Title and suffix of each format that a schedule can be exported to."""


@dataclass(frozen=True)
class Action:
    """Something a person can do.

    Attributes
    ----------
    menu : str
        One of :data:`MENUS`, or empty for what only keys and the palette reach.
    keys : tuple of str
        Shortcuts as Qt writes them; the first is shown.
    run, enabled : callable
        What it does to the window, and whether it can be done now.
    group : int
        Actions of one menu with the same number stand together.
    checked : callable, optional
        For actions that switch something on and off.
    why_not : callable, optional
        For actions that a person may miss: why it cannot be done now; empty if it can.
    """

    id: str
    title: str
    menu: str
    keys: tuple[str, ...]
    run: Callable[[MainWindow], object]
    enabled: Callable[[MainWindow], bool] = lambda window: True
    group: int = 0
    checked: Callable[[MainWindow], bool] | None = None
    why_not: Callable[[MainWindow], str] | None = None


def _open(window: MainWindow) -> bool:
    return window.document.problem is not None


def _planned(window: MainWindow) -> bool:
    return window.document.current is not None


def _selected(window: MainWindow) -> bool:
    return _planned(window) and bool(window.document.selection)


def _several(window: MainWindow) -> bool:
    return _open(window) and len(window.document.selection) > 1


def _solvable(window: MainWindow) -> bool:
    idle = not window.solver.is_asked and not window.is_measuring
    return _open(window) and bool(window.solver.methods) and idle


def _was_run(window: MainWindow) -> bool:
    current = window.document.current
    return current is not None and current.run is not None


def _was_measured(window: MainWindow) -> bool:
    problem = window.document.problem
    if problem is None:
        return False
    measured = problem.profile.measured
    return measured.step_time_us is not None or measured.evaluation is not None


def _edit(change: Callable[[Document, Collection[int]], bool]) -> Callable[[MainWindow], bool]:
    """An edit of the selected ops."""
    return lambda window: change(window.document, window.document.selection)


def _device_action(number: int) -> Action:
    def has_device(window: MainWindow) -> bool:
        problem = window.document.problem
        return _selected(window) and problem is not None and number < problem.cluster.n_devices

    return Action(
        f"place-{number + 1}",
        f"Pin selection to device {number + 1}",
        "",
        (str(number + 1),),
        lambda window: window.document.place(window.document.selection, number),
        has_device,
    )


def _export_action(form: str) -> Action:
    title, suffix = EXPORTS[form]
    return Action(
        f"export-{form}",
        title,
        "File",
        (),
        lambda window: window.files.ask_export(form, suffix),
        _planned,
        2,
    )


def _mode_action(mode: str, title: str) -> Action:
    return Action(
        f"theme-{mode}",
        title,
        "View",
        (),
        lambda window: window.set_mode(mode),
        group=3,
        checked=lambda window: window.theme_mode == mode,
    )


# fmt: off
ACTIONS: tuple[Action, ...] = (
    Action("open", "Open…", "File", ("Ctrl+O",), lambda w: w.files.ask_open()),
    Action("open-model", "Open a model…", "File", ("Ctrl+Shift+O",),
           lambda w: w.measuring.open_model(), lambda w: not w.is_measuring),
    Action("start", "Start page", "File", (), lambda w: w.files.close(), _open),
    Action("save", "Save", "File", ("Ctrl+S",), lambda w: w.files.save(), _open, 1),
    Action("save-as", "Save as…", "File", ("Ctrl+Shift+S",),
           lambda w: w.files.save_as(), _open, 1),
    Action("import-plan", "Import plan.json…", "File", (),
           lambda w: w.files.ask_import_plan(), _open, 2),
    Action("export-plan", "Export plan.json…", "File", ("Ctrl+E",),
           lambda w: w.files.ask_export_plan(), _planned, 2),
    *(_export_action(form) for form in EXPORTS),
    Action("export-graph", "Export graph as SVG…", "File", (),
           lambda w: w.export_graph(), _open, 2),
    Action("quit", "Quit", "File", ("Ctrl+Q",), lambda w: w.close(), group=3),
    Action("undo", "Undo", "Edit", ("Ctrl+Z",), lambda w: w.document.undo_stack.undo(),
           lambda w: w.document.undo_stack.canUndo()),
    Action("redo", "Redo", "Edit", ("Ctrl+Shift+Z", "Ctrl+Y"),
           lambda w: w.document.undo_stack.redo(), lambda w: w.document.undo_stack.canRedo()),
    Action("pin", "Pin selection where it is", "Edit", ("P",),
           _edit(Document.pin_here), _selected, 1),
    Action("unpin", "Unpin selection", "Edit", ("U",), _edit(Document.unpin), _selected, 1),
    Action("colocate", "Colocate selection", "Edit", ("G",),
           _edit(Document.colocate), _several, 1),
    Action("separate", "Separate selection", "Edit", ("Shift+G",),
           _edit(Document.separate), _selected, 1),
    Action("select-all", "Select all", "Edit", ("Ctrl+A",), lambda w: w.select_all(), _open, 2),
    Action("select-none", "Select nothing", "Edit", (),
           lambda w: w.document.select(()), _selected, 2),
    Action("search", "Search ops…", "Edit", ("Ctrl+F",), lambda w: w.search(), _open, 2),
    Action("solve", "Solve", "Plan", ("Ctrl+Return",), lambda w: w.solving.solve(), _solvable),
    Action("cancel", "Stop solving, keep the best", "Plan", ("Ctrl+.",),
           lambda w: w.solver.cancel(), lambda w: w.solver.busy),
    Action("compare", "Compare methods", "Plan", ("Ctrl+Shift+C",),
           lambda w: w.solving.compare(), _solvable),
    Action("rules", "Place by rules…", "Plan", (), lambda w: w.solving.ask_rules(), _solvable),
    Action("run", "Run on this machine…", "Plan", ("Ctrl+R",),
           lambda w: w.measuring.run_current(), lambda w: not w.why_no_run(), 1,
           why_not=lambda w: w.why_no_run()),
    Action("tune", "Tune on this machine…", "Plan", (),
           lambda w: w.measuring.tune_current(), lambda w: not w.why_no_run(), 1,
           why_not=lambda w: w.why_no_run()),
    Action("cancel-run", "Cancel the measurement", "Plan", (),
           lambda w: w.measuring.cancel(), lambda w: w.is_measuring, 1),
    Action("take-costs", "Take measured costs", "Plan", (),
           lambda w: w.measuring.take_costs(), _was_run, 1),
    Action("profile-page", "How it was measured…", "Plan", (),
           lambda w: w.measuring.show_profile(), _was_measured, 1),
    Action("cluster", "Choose cluster…", "Plan", ("Ctrl+L",),
           lambda w: w.solving.choose_cluster(), _open, 2),
    Action("edit-cluster", "Edit cluster…", "Plan", (),
           lambda w: w.solving.edit_cluster(), _open, 2),
    Action("rename-plan", "Rename plan…", "Plan", ("F2",), lambda w: w.ask_rename(), _planned, 3),
    Action("remove-plan", "Remove plan", "Plan", (),
           lambda w: w.remove_plan(), _planned, 3),
    Action("fit", "Fit to window", "View", ("0",), lambda w: w.call_view("fit"), _open, 1),
    Action("focus", "Go to selection", "View", ("F",),
           lambda w: w.call_view("focus_selection"), _selected, 1),
    Action("reset-layout", "Reset layout", "View", (), lambda w: w.reset_layout(), group=2),
    _mode_action("system", "Light or dark as the system"),
    _mode_action("light", "Light"),
    _mode_action("dark", "Dark"),
    Action("palette", "Commands…", "Help", ("Ctrl+Shift+P",), lambda w: w.show_palette()),
    Action("keys", "Keys", "Help", ("?",), lambda w: w.show_keys()),
    Action("tensorflow", "TensorFlow…", "Help", (), lambda w: w.show_tensorflow(), group=1),
    Action("about", "About Enplace", "Help", (), lambda w: w.show_about(), group=1),
    *(_device_action(number) for number in range(DEVICE_KEYS)),
)
# fmt: on

VIEW_KEYS = (
    ("W A S D", "Move and zoom the graph and the timeline"),
    ("Ctrl + wheel", "Zoom at the pointer"),
    ("+ or −", "Zoom the graph"),
    ("Arrows", "Go to the next group, or move the timeline"),
    ("Enter", "Open the group"),
    ("Backspace", "Back to the groups around it"),
    ("Esc", "Leave the search, the group, the selection"),
    ("Ctrl + click a plan", "Compare it with the current one"),
    ("Drag onto a device", "Move and pin; with Shift only move"),
)
"""What views do themselves; shown beside the actions."""
