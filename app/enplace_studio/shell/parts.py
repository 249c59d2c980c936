"""The parts of a window that actions work on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QSettings, Signal
from PySide6.QtWidgets import QMainWindow, QStackedWidget, QWidget

from enplace_studio.files.exchange import Exchange
from enplace_studio.files.opening import Files
from enplace_studio.files.recovery import Recovery
from enplace_studio.files.saving import Saving
from enplace_studio.files.session import RecentFiles
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.can_run import why_no_run
from enplace_studio.model.document import Document, PlanEntry
from enplace_studio.model.requests import Wanted
from enplace_studio.shell.header import Header
from enplace_studio.shell.panes import Panes
from enplace_studio.solve.chosen_method import ChosenMethod
from enplace_studio.solve.fitting import Fitting
from enplace_studio.solve.solving import Solving
from enplace_studio.widgets.theme import MODES, TEXT_SIZES, theme

if TYPE_CHECKING:
    from enplace_studio.frameworks.measuring import Measuring


_TEXT_SIZE_KEY = "text-size"


def text_size_in(settings: QSettings) -> float:
    """Return the size of texts that settings hold, or else the system's."""
    kept = str(settings.value(_TEXT_SIZE_KEY, ""))
    return next((each for each in TEXT_SIZES if str(each) == kept), 1.0)


class Studio(QObject):
    """The document, and the parts that open, solve, measure and show it.

    Signals ``done`` and ``failed`` carry one line for the user.

    Parameters
    ----------
    window : QMainWindow
        The parent of dialogs and docks.
    middle : QStackedWidget
        Container of the view in the middle.
    settings : QSettings
        Storage of the layout, theme, method and recent files.
    recovery_folder : Path
        Folder with copies of unsaved work, for recovery after a crash.
    """

    done = Signal(str)
    failed = Signal(str)
    changed = Signal()
    """The set of available actions may have changed."""
    palette_wanted = Signal()
    keys_wanted = Signal()
    tour_wanted = Signal()
    """The user asked for the command palette, the list of keys or the tour."""
    measuring_made = Signal(QWidget)
    """Emitted with the strip that shows a measurement, to be put above the views."""

    def __init__(
        self,
        window: QMainWindow,
        middle: QStackedWidget,
        settings: QSettings,
        recovery_folder: Path,
    ) -> None:
        super().__init__(window)
        self.window, self.settings = window, settings
        self.document, self.solver = Document(window), Solver(window)
        self.recent = RecentFiles(settings)
        self.recovery = Recovery(self.document, recovery_folder)
        self.chosen = ChosenMethod(self.solver, self)
        self.header = Header(self.document, self.solver, self.chosen)
        self.saving = Saving(self.document, self.solver, self.recent, self.recovery, window)
        self.exchange = Exchange(self.document, self.saving, window)
        self.files = Files(self.document, self.saving, self.exchange, window)
        self.solving = Solving(self.document, self.solver, self.chosen, window)
        self.fitting = Fitting(self.document, self.files, window)
        self.panes = Panes(window, middle, settings, self.document, self.solver)
        self._measuring: Measuring | None = None
        self._solver_was = (False, False)
        self._connect()
        self._restore()

    def _connect(self) -> None:
        document, solver = self.document, self.solver
        for part in (self.files, self.saving, self.exchange, self.solving, self.fitting):
            part.done.connect(self.done)
            part.failed.connect(self.failed)
        document.failed.connect(self.failed)
        document.requests.compare_plans.connect(self.compare_plans)
        document.requests.list_rows.connect(self.list_rows)
        self.recovery.failed.connect(self.failed)
        for signal in (
            document.opened, document.current_changed, document.selection_changed,
            document.file_changed, solver.idle, solver.methods_changed,
        ):  # fmt: skip
            signal.connect(self.changed)
        solver.changed.connect(self._on_solver_changed)
        self.exchange.cluster_read.connect(self.document.set_cluster)
        self.files.model_named.connect(lambda path: self.measuring.open_model(path))

    def _on_solver_changed(self) -> None:
        """Report that the solver started or ended, but not its progress."""
        now = self.solver.busy, self.solver.is_asked
        if now != self._solver_was:
            self._solver_was = now
            self.changed.emit()

    def compare_plans(self, entries: Sequence[PlanEntry] = ()) -> None:
        """Show plans side by side: these, or those that the view has shown before."""
        view: Any = self.panes.views["compare"]
        if entries:
            view.compare(entries)
        if not self.panes.is_in_middle("compare"):
            self.panes.toggle_in_middle("compare")
        self.changed.emit()

    def list_rows(self, wanted: Wanted) -> None:
        """Show a table in the middle."""
        if not self.panes.is_in_middle("tables"):
            self.panes.toggle_in_middle("tables")
        view: Any = self.panes.views["tables"]
        view.show_wanted(wanted)
        self.changed.emit()

    # Measuring

    @property
    def measuring(self) -> Measuring:
        """The part that profiles and runs models; its code is imported on first use."""
        if self._measuring is None:
            from enplace_studio.frameworks.measuring import Measuring

            self._measuring = made = Measuring(self.document, self.files, self.window)
            made.done.connect(self.done)
            made.failed.connect(self.failed)
            made.changed.connect(self.changed)
            self.measuring_made.emit(made.strip)
        return self._measuring

    @property
    def is_measuring(self) -> bool:
        """Whether a worker is profiling a model or running a plan."""
        return self._measuring is not None and self._measuring.busy

    def why_no_run(self) -> str:
        """Explain why the current plan cannot run on this machine now; empty if it can."""
        if self.is_measuring:
            return "A measurement is running. Wait until it ends, or cancel it."
        if self.solver.busy:
            return "The solver is running and would disturb the measurement. Wait, or stop it."
        return why_no_run(self.document)

    # Settings

    def _restore(self) -> None:
        mode = self.settings.value("theme", "system")
        theme.set_mode(mode if mode in MODES else "system")
        recent = self.settings.value("recent-methods", [])
        limit = str(self.settings.value("time-limit", ""))
        self.chosen.restore(recent if isinstance(recent, list) else [], limit)

    def set_theme(self, mode: str) -> None:
        """Switch to light, dark or the system's theme, and remember it."""
        self.settings.setValue("theme", mode)
        theme.set_mode(mode)
        self.changed.emit()

    @property
    def text_size(self) -> float:
        """The size of texts that the user has chosen, relative to the system's."""
        return text_size_in(self.settings)

    def keep_text_size(self, text_size: float) -> None:
        """Remember a size of texts for the next start."""
        self.settings.setValue(_TEXT_SIZE_KEY, text_size)

    # Closing

    def may_close(self) -> bool:
        """Return whether nothing is unsaved or running, or the user abandons it.

        If the user chooses to save, the window closes once it is saved.
        """
        if not self.saving.may_leave(self.window.close):
            return False
        return self._measuring is None or self._measuring.may_leave()

    def close(self) -> None:
        """Remember the settings, and end every process."""
        self.panes.remember()
        self.settings.setValue("recent-methods", [" ".join(each) for each in self.chosen.recent])
        self.settings.setValue("time-limit", self.chosen.time_limit_s)
        if self._measuring is not None:
            self._measuring.close_job()
        self.solver.close()
        self.recovery.close()
