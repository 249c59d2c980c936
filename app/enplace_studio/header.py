"""The bar on top: the model, the cluster, the method, and the buttons for the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QFontMetrics, QResizeEvent
from PySide6.QtWidgets import (
    QFileDialog,
    QHBoxLayout,
    QInputDialog,
    QMenu,
    QPushButton,
    QWidget,
)

from enplace.errors import EnplaceError
from enplace.placing.options import FILE, SWITCH, Option, Value
from enplace.text import count
from enplace.values.cluster import Cluster
from enplace.values.memory import one_device_peak_bytes
from enplace.values.problem import LATENCY, STEP_TIME, THROUGHPUT, Problem
from enplace_studio.clusters import cluster_title
from enplace_studio.document import Document
from enplace_studio.jobs import Method, Solver
from enplace_studio.messages import button
from enplace_studio.panel import ElidedLabel, label, plain_tip
from enplace_studio.theme import theme

TIME_LIMITS_S = (2, 5, 10, 30, 60, 300)
USUAL_TIME_LIMIT_S = 10
NARROW_PX = 1180
"""A header narrower than this shows short texts on its buttons."""
RUN, RUN_SHORT = "Run on this machine", "Run here"
OBJECTIVES = {
    STEP_TIME: "Shortest step",
    THROUGHPUT: "Highest pipeline throughput",
    LATENCY: "Shortest query, contiguous subgraphs",
}
"""Menu titles of the objectives; methods for the first are listed in the menu itself."""
SHORT_OBJECTIVES = {THROUGHPUT: "pipeline", LATENCY: "query"}
"""An objective that is not the method's usual one, as the method button shows it."""
EXPERT = "expert"
CLUSTER_SHARE = 0.24
"""Largest share of the window's width that the cluster's name may take."""


class Header(QWidget):
    """Shows the document and the solver; emits a signal for each button pressed."""

    solve_pressed = Signal()
    compare_pressed = Signal()
    cluster_pressed = Signal()
    run_pressed = Signal()
    option_refused = Signal(str)
    """Emitted with the reason when an option's value cannot be used."""

    def __init__(self, document: Document, solver: Solver) -> None:
        super().__init__()
        self.setObjectName("header")
        self._document, self._solver = document, solver
        self._method, self._objective = "", ""
        self.values: dict[str, Value] = {}
        """Options that differ from their default, by name; methods ignore unknown ones."""
        self._measuring = False
        self.time_limit_s = USUAL_TIME_LIMIT_S
        self._name, self._size = label("", "heading"), ElidedLabel("dim")
        self.cluster_button = button("", self.cluster_pressed.emit)
        self.method_button = button("")
        self.method_menu = QMenu(self)
        self._method_actions: dict[tuple[str, str], QAction] = {}
        """Keyed by method and objective."""
        self.option_menu = QMenu("Options of the method", self)
        self.option_actions: dict[tuple[str, Value], QAction] = {}
        """Keyed by option and value."""
        self.method_button.setMenu(self.method_menu)
        self.solve_button = button("Solve", self.solve_pressed.emit, kind="accent")
        self.compare_button = button("Compare", self.compare_pressed.emit)
        self.compare_button.setToolTip("Run the other methods too and add a row for each")
        self.run_button = button(RUN, self.run_pressed.emit)
        self.run_button.setAccessibleName(RUN)
        self.export_button = button("Export  ▾")
        self._lay_out()
        for signal in (document.opened, document.problem_changed, solver.changed):
            signal.connect(self.refresh)
        solver.methods_changed.connect(self._fill_methods)
        self.refresh()

    def _lay_out(self) -> None:
        layout = QHBoxLayout(self)
        layout.setContentsMargins(4, 4, 4, 4)
        layout.setSpacing(8)
        layout.addWidget(self._name)
        layout.addWidget(self._size, 100)
        layout.addWidget(self.cluster_button)
        layout.addStretch(1)
        for widget in self._right:
            layout.addWidget(widget)

    @property
    def _right(self) -> tuple[QPushButton, ...]:
        return (
            self.method_button,
            self.solve_button,
            self.compare_button,
            self.run_button,
            self.export_button,
        )

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

    def set_method(self, name: str, objective: str = "") -> None:
        """Use this method, and optionally this objective, from now on."""
        self._method, self._objective = name, objective
        chosen = self._method_actions.get((name, self.objective))
        if chosen is not None:
            chosen.setChecked(True)
        self._fill_options()
        self.refresh()

    def set_value(self, option: Option, value: Value) -> None:
        """Set an option of the chosen method."""
        if value == option.default:
            self.values.pop(option.name, None)
        else:
            self.values[option.name] = value
        self.refresh()

    def set_time_limit(self, seconds: int) -> None:
        self.time_limit_s = seconds
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        narrow = self.width() < NARROW_PX * theme.scale
        self.run_button.setText(RUN_SHORT if narrow else RUN)
        if self._document.project is not None:
            self._show_cluster(self._document.project.cluster)

    def refresh(self) -> None:
        """Show the open project and the state of the solver."""
        project = self._document.project
        if project is None:
            return
        problem, groups = project.problem, len(project.grouping.names)
        profile = problem.profile
        self._name.setText(model_title(profile.name))
        self._name.setToolTip(plain_tip(profile.name))
        self._size.set_text(f"{count(profile.n_ops, 'op')} in {count(groups, 'group')}")
        self._show_cluster(project.cluster)
        self._show_method()
        self._show_methods(problem)
        self._show_solve(bool(problem.pins))

    def _show_cluster(self, cluster: Cluster) -> None:
        title, most = cluster_title(cluster), round(CLUSTER_SHARE * self.width())
        metrics = QFontMetrics(self.cluster_button.font())
        shown = metrics.elidedText(title, Qt.TextElideMode.ElideRight, most)
        self.cluster_button.setText(f"{shown}  ▾")
        self.cluster_button.setToolTip(plain_tip(f"{cluster.name}: {cluster.description}"))

    def _show_method(self) -> None:
        texts = [short_title(self._solver.title(self.method))]
        if self.objective != self._solver.aim(self.method):
            texts.append(SHORT_OBJECTIVES[self.objective])
        if self._solver.searches(self.method):
            texts.append(f"{self.time_limit_s} s")
        texts.append(
            values_text(self._solver.known_values(self.method, self.objective, self.values))
        )
        self.method_button.setText(f"{', '.join(filter(None, texts))}  ▾")
        self.method_button.setEnabled(bool(self._solver.methods))

    def show_run(self, why_not: str, measuring: bool) -> None:
        """Enable Run unless ``why_not`` gives a reason; block solving during a measurement."""
        self.run_button.setEnabled(not why_not)
        self.run_button.setToolTip(plain_tip(why_not or "Run this plan and measure it"))
        if measuring != self._measuring:
            self._measuring = measuring
            self.refresh()

    def _show_solve(self, pinned: bool) -> None:
        busy = self._solver.is_asked
        self.solve_button.setText(
            "Stop, keep the best" if busy else "Solve around my pins" if pinned else "Solve"
        )
        ready = bool(self._solver.methods) and not self._measuring
        self.solve_button.setEnabled(busy or ready)
        self.solve_button.setToolTip(
            "Solving would disturb the measurement" if self._measuring else ""
        )
        self.compare_button.setEnabled(ready and not busy)

    def _fill_methods(self) -> None:
        self.method_menu.clear()
        self._method_actions = {}
        group = QActionGroup(self.method_menu)
        for objective, title in OBJECTIVES.items():
            menu = self.method_menu
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
        self.method_menu.setToolTipsVisible(True)
        self.method_menu.addMenu(self.option_menu)
        self._fill_options()
        if any(map(self._solver.searches, self._solver.methods)):
            self._fill_limits(self.method_menu.addMenu("Time limit"))
        self.refresh()

    def _add_heading(self, menu: QMenu, title: str) -> None:
        menu.addSeparator()
        menu.addAction(title).setEnabled(False)

    def _add_method(self, menu: QMenu, group: QActionGroup, method: Method, objective: str) -> None:
        name, is_chosen = method.name, (method.name, objective) == (self.method, self.objective)
        action = self._choice(menu, group, method.title, is_chosen)
        self._method_actions[name, objective] = action
        action.triggered.connect(lambda: self.set_method(name, objective=objective))

    def _show_methods(self, problem: Problem) -> None:
        """Grey out methods that cannot solve this problem, with the reason; warn about the rest."""
        for (name, _), action in self._method_actions.items():
            method = self._solver.methods[name]
            why_not = why_not_for(method, problem)
            action.setEnabled(not why_not)
            tips = filter(None, [method.source, *warnings_for(method, problem)])
            action.setToolTip(plain_tip(why_not or "\n".join(tips)))

    def _fill_options(self) -> None:
        """Fill the menu with the options of the chosen method and their values."""
        self.option_menu.clear()
        self.option_actions = {}
        for option in self.options:
            if option.values == SWITCH:
                self._add_switch(option)
            elif option.choices:
                self._add_choices(option)
            else:
                action = self.option_menu.addAction(f"{option_title(option)}…")
                action.triggered.connect(lambda _=False, o=option: self._ask_value(o))
                action.setToolTip(plain_tip(option.help))
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

    def _ask_value(self, option: Option) -> None:
        """Ask for a number or a file; an empty answer restores the default."""
        now = str(self.values.get(option.name, option.default))
        title = option_title(option)
        if option.values == FILE:
            text, _ = QFileDialog.getOpenFileName(self.window(), title, now)
            answered = True
        else:
            text, answered = QInputDialog.getText(self.window(), title, option.help, text=now)
        if not answered:
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
    if "splits" in method.capabilities and problem.splits:
        return "The ops of this graph are already split; show a plan without splits first."
    largest = int(problem.cluster.capacity_bytes.max())
    if "one-device" in method.capabilities and problem.profile.persistent_bytes.sum() > largest:
        return "It uses one GPU, and this model’s variables do not fit on any single device."
    return ""


def warnings_for(method: Method, problem: Problem) -> list[str]:
    """List what a method ignores that matters for this problem, one sentence each."""
    cluster, gpus, warnings = problem.cluster, problem.cluster.gpus, []
    uses_speed = {"heterogeneous", "one-device"} & set(method.capabilities)
    if len(set(cluster.speed[gpus].tolist())) > 1 and not uses_speed:
        warnings.append("It treats all GPUs as identical, and yours differ.")
    if (
        "memory" not in method.capabilities
        and _one_gpu_bytes(problem) > cluster.capacity_bytes[gpus].max()
    ):
        warnings.append("It ignores memory, and this model may not fit on one device.")
    return warnings


@lru_cache(maxsize=1)
def _one_gpu_bytes(problem: Problem) -> int:
    """Find the peak memory on one GPU; cached, because every solver tick asks for it."""
    return one_device_peak_bytes(problem)


_SPELLINGS = {
    "bert": "BERT", "gpt": "GPT", "inception": "Inception", "lstm": "LSTM", "nasnet": "NASNet",
    "nmt": "NMT", "resnet": "ResNet", "rnnlm": "RNNLM", "transformer": "Transformer", "vgg": "VGG",
}  # fmt: skip
"""Names of well-known models as the literature spells them."""


def model_title(name: str) -> str:
    """Return a readable form of a profile's name: ``rnnlm-2-2048`` is ``RNNLM 2 × 2048``."""
    first, *rest = re.split("[-_]", name)
    if first not in _SPELLINGS:
        return name
    title = _SPELLINGS[first]
    if len(rest) == 1 and rest[0].isdigit():
        return f"{title}-{rest[0]}"
    for before, word in zip([first, *rest], rest, strict=False):
        joint = " × " if before.isdigit() and word.isdigit() else " "
        title += joint + word
    return title


def option_title(option: Option) -> str:
    """Return the name of an option as a menu shows it: ``memory-rule`` is ``Memory rule``."""
    return option.name.replace("-", " ").capitalize()


def values_text(values: Mapping[str, Value]) -> str:
    """Summarise option values: a switch or number with its name, a choice by its value only."""
    texts = []
    for name, value in values.items():
        if value is True:
            texts.append(name)
        elif name == "rules":
            texts.append("by rules")
        else:
            texts.append(value if isinstance(value, str) else f"{name} {value}")
    return ", ".join(texts)


def short_title(title: str) -> str:
    """Return the name of a method without its remark: ``Expert, by layer`` is ``Expert``."""
    return title.partition(",")[0]
