"""The menu of the method, its options and its time limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QFileDialog, QInputDialog, QMenu, QWidget

from enplace.errors import EnplaceError
from enplace.placing.options import FILE, SWITCH, Option, Value
from enplace.placing.registry import HETEROGENEOUS, MEMORY, ONE_DEVICE, SPLITS
from enplace.values.memory import one_device_peak_bytes
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem
from enplace_studio.jobs import Method, Solver
from enplace_studio.panel import plain_tip
from enplace_studio.titles import option_title, short_title, values_text

TIME_LIMITS_S = (2, 5, 10, 30, 60, 300)
USUAL_TIME_LIMIT_S = 10
OBJECTIVES = {
    STEP_TIME: "Shortest step",
    THROUGHPUT: "Highest pipeline throughput",
    LATENCY: "Shortest query, contiguous subgraphs",
}
"""Menu titles of the objectives; methods for the first are listed in the menu itself."""
SHORT_OBJECTIVES = {THROUGHPUT: "pipeline", LATENCY: "query"}
"""An objective that is not the method's usual one, as the method button shows it."""


class MethodMenu(QMenu):
    """The chosen method, its options and its time limit, and the menu that changes them.

    Attributes
    ----------
    values : dict of str to Value
        Options that differ from their default, by name; methods ignore unknown ones.
    option_actions : dict
        Keyed by option and value.
    """

    changed = Signal()
    """The user chose another method, option or limit, or the methods are now known."""
    option_refused = Signal(str)
    """Emitted with the reason when an option's value cannot be used."""

    def __init__(self, solver: Solver, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._solver = solver
        self._method, self._objective = "", ""
        self.values: dict[str, Value] = {}
        self.time_limit_s = USUAL_TIME_LIMIT_S
        self._method_actions: dict[tuple[str, str], QAction] = {}
        """Keyed by method and objective."""
        self.option_menu = QMenu("Options of the method", self)
        self.option_actions: dict[tuple[str, Value], QAction] = {}
        solver.methods_changed.connect(self._fill_methods)

    @property
    def method(self) -> str:
        """The chosen placer's name."""
        return self._method or self._solver.default_method

    @property
    def objective(self) -> str:
        """The objective that the chosen placer works for."""
        return self._solver.aim(self.method, self._objective)

    @property
    def options(self) -> tuple[Option, ...]:
        """The options of the chosen placer for the chosen objective."""
        method = self._solver.methods.get(self.method)
        return () if method is None else method.options_for(self.objective)

    @property
    def text(self) -> str:
        """The choice as the header's button shows it."""
        texts = [short_title(self._solver.title(self.method))]
        if self.objective != self._solver.aim(self.method):
            texts.append(SHORT_OBJECTIVES[self.objective])
        if self._solver.searches(self.method):
            texts.append(f"{self.time_limit_s} s")
        texts.append(
            values_text(self._solver.known_values(self.method, self.objective, self.values))
        )
        return ", ".join(filter(None, texts))

    def set_method(self, name: str, objective: str = "") -> None:
        """Use this method, and optionally this objective, from now on."""
        self._method, self._objective = name, objective
        chosen = self._method_actions.get((name, self.objective))
        if chosen is not None:
            chosen.setChecked(True)
        self._fill_options()
        self.changed.emit()

    def set_value(self, option: Option, value: Value) -> None:
        """Set an option of the chosen method."""
        if value == option.default:
            self.values.pop(option.name, None)
        else:
            self.values[option.name] = value
        self.changed.emit()

    def set_time_limit(self, seconds: int) -> None:
        """Search for this long from now on."""
        self.time_limit_s = seconds
        self.changed.emit()

    def show_reasons(self, problem: Problem) -> None:
        """Grey out methods that cannot solve this problem, with the reason; warn about the rest."""
        for (name, _), action in self._method_actions.items():
            method = self._solver.methods[name]
            why_not = why_not_for(method, problem)
            action.setEnabled(not why_not)
            tips = filter(None, [method.source, *warnings_for(method, problem)])
            action.setToolTip(plain_tip(why_not or "\n".join(tips)))

    def _fill_methods(self) -> None:
        self.clear()
        self._method_actions = {}
        group = QActionGroup(self)
        for objective, title in OBJECTIVES.items():
            menu: QMenu = self
            if objective != STEP_TIME:
                menu = menu.addMenu(title)
                menu.setToolTipsVisible(True)
            able = [m for m in self._solver.methods.values() if objective in m.objectives]
            own = [method for method in able if method.aim("") == objective]
            for method in own:
                self._add_method(menu, group, method, objective)
            if len(able) > len(own):
                self._add_heading(menu, "Baselines")
            for method in able:
                if method not in own:
                    self._add_method(menu, group, method, objective)
        self.setToolTipsVisible(True)
        self.addMenu(self.option_menu)
        self._fill_options()
        if any(map(self._solver.searches, self._solver.methods)):
            self._fill_limits(self.addMenu("Time limit"))
        self.changed.emit()

    def _add_heading(self, menu: QMenu, title: str) -> None:
        menu.addSeparator()
        menu.addAction(title).setEnabled(False)

    def _add_method(self, menu: QMenu, group: QActionGroup, method: Method, objective: str) -> None:
        name, is_chosen = method.name, (method.name, objective) == (self.method, self.objective)
        action = self._choice(menu, group, method.title, is_chosen)
        self._method_actions[name, objective] = action
        action.triggered.connect(lambda: self.set_method(name, objective=objective))

    def _fill_options(self) -> None:
        """Fill the menu with the options of the chosen method and their values."""
        self.option_menu.clear()
        self.option_actions = {}
        for option in self.options:
            if option.values == SWITCH:
                self._add_switch(option)
            elif option.choices:
                self._add_choices(option)
            elif option.values == FILE:
                self._add_question(option, self._ask_file)
                self._add_removal(option)
            else:
                self._add_question(option, self._ask_number)
        self.option_menu.setToolTipsVisible(True)
        self.option_menu.menuAction().setVisible(bool(self.options))

    def _add_switch(self, option: Option) -> None:
        action = self.option_menu.addAction(option_title(option))
        action.setCheckable(True)
        action.setChecked(bool(self.values.get(option.name, option.default)))
        action.setToolTip(plain_tip(option.help))
        action.toggled.connect(lambda on: self.set_value(option, on))
        self.option_actions[option.name, True] = action

    def _add_choices(self, option: Option) -> None:
        menu = self.option_menu.addMenu(option_title(option))
        menu.menuAction().setToolTip(plain_tip(option.help))
        group, chosen = QActionGroup(menu), self.values.get(option.name, option.default)
        for value in dict.fromkeys([option.default, *option.choices]):
            title = str(value) or "the method’s own choice"
            action = self._choice(menu, group, title, value == chosen)
            action.triggered.connect(lambda _=False, v=value: self.set_value(option, v))
            self.option_actions[option.name, value] = action

    def _add_question(self, option: Option, ask: Callable[[Option], None]) -> None:
        action = self.option_menu.addAction(f"{option_title(option)}…")
        action.triggered.connect(lambda: ask(option))
        action.setToolTip(plain_tip(option.help))

    def _add_removal(self, option: Option) -> None:
        """Add an action that restores the default, because a file dialog has no empty answer."""
        action = self.option_menu.addAction(f"No {option_title(option).lower()}")
        action.triggered.connect(lambda: self.set_value(option, option.default))

    def _ask_file(self, option: Option) -> None:
        now = str(self.values.get(option.name, option.default))
        name, _ = QFileDialog.getOpenFileName(self.window(), option_title(option), now)
        if name:
            self.set_value(option, name)

    def _ask_number(self, option: Option) -> None:
        """Ask for a number; an empty answer restores the default."""
        now = str(self.values.get(option.name, option.default))
        text, accepted = QInputDialog.getText(
            self.window(), option_title(option), option.help, text=now
        )
        if not accepted:
            return
        try:
            self.set_value(option, option.parse(text) if text else option.default)
        except EnplaceError as error:
            self.option_refused.emit(str(error))

    def _fill_limits(self, menu: QMenu) -> None:
        group = QActionGroup(menu)
        for seconds in TIME_LIMITS_S:
            action = self._choice(menu, group, f"{seconds} s", seconds == self.time_limit_s)
            action.triggered.connect(lambda _=False, limit=seconds: self.set_time_limit(limit))

    def _choice(self, menu: QMenu, group: QActionGroup, title: str, on: bool) -> QAction:
        action = menu.addAction(title)
        action.setCheckable(True)
        action.setChecked(on)
        group.addAction(action)
        return action


def why_not_for(method: Method, problem: Problem) -> str:
    """Explain why a method cannot run or cannot solve this problem; empty if it can."""
    if method.why_not:
        return method.why_not
    if SPLITS in method.capabilities and problem.splits:
        return "The ops of this graph are already split; show a plan without splits first."
    largest = int(problem.cluster.capacity_bytes.max())
    if ONE_DEVICE in method.capabilities and problem.profile.persistent_bytes.sum() > largest:
        return "It uses one GPU, and this model’s variables do not fit on any single device."
    return ""


def warnings_for(method: Method, problem: Problem) -> list[str]:
    """List what a method ignores that matters for this problem, one sentence each."""
    cluster, gpus, warnings = problem.cluster, problem.cluster.gpus, []
    uses_speed = {HETEROGENEOUS, ONE_DEVICE} & set(method.capabilities)
    if len(set(cluster.speed[gpus].tolist())) > 1 and not uses_speed:
        warnings.append("It treats all GPUs as identical, and yours differ.")
    if (
        MEMORY not in method.capabilities
        and _one_gpu_bytes(problem) > cluster.capacity_bytes[gpus].max()
    ):
        warnings.append("It ignores memory, and this model may not fit on one device.")
    return warnings


@lru_cache(maxsize=1)
def _one_gpu_bytes(problem: Problem) -> int:
    """Find the peak memory on one GPU; cached, because every solver tick asks for it."""
    return one_device_peak_bytes(problem)
