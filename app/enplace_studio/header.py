"""The bar on top: which model, which cluster, which method, and the button that moves work on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QWidget

from enplace.machine.loads import USUAL, LoadRule
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
"""A header narrower than this has no room for long names of buttons."""
RUN, RUN_SHORT = "Run on this machine", "Run here"
OBJECTIVES = {
    STEP_TIME: "Shortest step",
    THROUGHPUT: "Highest pipeline throughput",
    LATENCY: "Shortest query, in whole pieces",
}
"""What methods aim at, as the menu calls it; those of the first are in the menu itself."""
SHORT_OBJECTIVES = {THROUGHPUT: "pipeline", LATENCY: "query"}
"""What a method is asked for that was made for something else, as its button says it."""
EXPERT = "expert"
FAMILIES = {
    "": "As the names of its ops tell",
    "stacked": "Stacked: whole layers in blocks",
    "branches": "Branches of each cell dealt out",
    "layers": "Layers of each kind dealt out in turn",
}
"""How an expert may place a model; the first is usual."""
MEMORY_RULES = {
    "": "What is there at a time",
    "makers": "That without copies of what is sent there",
    "sums": "All outputs, as if none were freed",
}
"""What Baechi's methods may take memory to hold; the first is usual."""
WISHES = {
    "family": ("Expert’s family", FAMILIES, (EXPERT,)),
    "memory_rule": ("Baechi’s memory", MEMORY_RULES, ("m-etf", "m-sct")),
}
"""Menus of ways in which some methods may work, and those methods."""
LOADS = {
    "transfers": {
        "sum": "Transfers add to the compute time",
        "overlap": "Transfers go on beside it",
        "duplex": "In and out go on beside it, each apart",
    },
    "pipeline": {
        "1f1b": "One forward, one backward: PipeDream",
        "gpipe": "All samples forward first: GPipe",
    },
}
"""How the load of a pipeline's device may count; the first of each is usual."""
LOAD_SWITCHES = {
    "replicate": "Devices may take turns with a stage",
    "two_level": "Networks between machines count, too",
}
CLUSTER_SHARE = 0.24
"""How much of the window's width the cluster's name may take."""


class Header(QWidget):
    """Shows the document and the solver, and asks the window for what is pressed."""

    solve_pressed = Signal()
    compare_pressed = Signal()
    cluster_pressed = Signal()
    run_pressed = Signal()

    def __init__(self, document: Document, solver: Solver) -> None:
        super().__init__()
        self.setObjectName("header")
        self._document, self._solver = document, solver
        self._method, self._objective = "", ""
        self.wishes: dict[str, Any] = {}
        self.rule = USUAL
        self._measuring = False
        self.time_limit_s = USUAL_TIME_LIMIT_S
        self._name, self._size = label("", "heading"), ElidedLabel("dim")
        self.cluster_button = button("", self.cluster_pressed.emit)
        self.method_button = button("")
        self.method_menu = QMenu(self)
        self._method_actions: dict[tuple[str, str], QAction] = {}
        """By method and objective."""
        self._wish_actions: dict[tuple[str, str], QAction] = {}
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
        """What the chosen placer is asked for."""
        return self._solver.aim(self.method, self._objective)

    def set_method(self, name: str, objective: str = "", **wishes: str) -> None:
        """Solve with another method from now on, perhaps in a way of its own.

        ``wishes`` are the expert's ``family``, or the ``memory_rule`` of Baechi's methods.
        """
        self._method, self._objective, self.wishes = name, objective, wishes
        chosen = self._method_actions.get((name, self.objective))
        ways = [self._wish_actions.get((key, wishes.get(key, ""))) for key in WISHES]
        for action in (chosen, *ways):
            if action is not None:
                action.setChecked(True)
        self.refresh()

    def set_rule(self, **changes: Any) -> None:
        """Count the loads of pipelines in another way from now on."""
        self.rule = replace(self.rule, **changes)
        self.refresh()

    def set_time_limit(self, seconds: int) -> None:
        self.time_limit_s = seconds
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        narrow = self.width() < NARROW_PX * theme.scale
        self.run_button.setText(RUN_SHORT if narrow else RUN)
        if self._document.cluster is not None:
            self._show_cluster(self._document.cluster)

    def refresh(self) -> None:
        """Show what is open and what the solver does."""
        problem = self._document.problem
        if problem is None or self._document.grouping is None:
            return
        profile, groups = problem.profile, len(self._document.grouping.names)
        self._name.setText(model_title(profile.name))
        self._name.setToolTip(plain_tip(profile.name))
        self._size.set_text(f"{count(profile.n_ops, 'op')} in {count(groups, 'group')}")
        assert self._document.cluster is not None
        self._show_cluster(self._document.cluster)
        self._show_method()
        self._show_methods(problem)
        self._show_solve(bool(problem.pins))

    def _show_cluster(self, cluster: Cluster) -> None:
        title, most = cluster_title(cluster), round(CLUSTER_SHARE * self.width())
        room = QFontMetrics(self.cluster_button.font())
        shown = room.elidedText(title, Qt.TextElideMode.ElideRight, most)
        self.cluster_button.setText(f"{shown}  ▾")
        self.cluster_button.setToolTip(plain_tip(f"{cluster.name}: {cluster.description}"))

    def _show_method(self) -> None:
        said = [short_title(self._solver.title(self.method))]
        if self.objective != self._solver.aim(self.method):
            said.append(SHORT_OBJECTIVES[self.objective])
        if self._solver.searches(self.method):
            said.append(f"{self.time_limit_s} s")
        said += self.wishes.values()
        if self.objective == THROUGHPUT:
            said.append(rule_text(self.rule))
        self.method_button.setText(f"{', '.join(filter(None, said))}  ▾")
        self.method_button.setEnabled(bool(self._solver.methods))

    def show_run(self, why_not: str, measuring: bool) -> None:
        """Whether the plan can run here, and why not; while something runs, nothing is solved."""
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
        for key, (title, ways, methods) in WISHES.items():
            self._fill_wishes(self.method_menu.addMenu(title), key, ways, methods)
        self._fill_loads(self.method_menu.addMenu("Load of a pipeline"))
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
        """Grey out what cannot solve this problem and say why; else warn of what it leaves out."""
        for (name, _), action in self._method_actions.items():
            method = self._solver.methods[name]
            why_not = why_not_for(method, problem)
            action.setEnabled(not why_not)
            told = filter(None, [method.source, *warnings_for(method, problem)])
            action.setToolTip(plain_tip(why_not or "\n".join(told)))

    def _fill_wishes(
        self, menu: QMenu, key: str, titles: Mapping[str, str], methods: Sequence[str]
    ) -> None:
        """A way that is chosen also chooses such a method, where none is chosen yet."""
        group = QActionGroup(menu)

        def choose(way: str) -> None:
            method = self.method if self.method in methods else methods[0]
            self.set_method(method, **({key: way} if way else {}))

        for way, title in titles.items():
            action = self._choice(menu, group, title, way == self.wishes.get(key, ""))
            self._wish_actions[key, way] = action
            action.triggered.connect(lambda _=False, way=way: choose(way))

    def _fill_loads(self, menu: QMenu) -> None:
        for key, ways in LOADS.items():
            group = QActionGroup(menu)
            for way, title in ways.items():
                action = self._choice(menu, group, title, way == getattr(self.rule, key))
                change = {key: way}
                action.triggered.connect(lambda _=False, c=change: self.set_rule(**c))
            menu.addSeparator()
        for key, title in LOAD_SWITCHES.items():
            action = menu.addAction(title)
            action.setCheckable(True)
            action.setChecked(getattr(self.rule, key))
            action.toggled.connect(lambda on, key=key: self.set_rule(**{key: on}))

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
    """Why a method cannot run, or cannot solve this problem; empty if it can."""
    if method.why_not:
        return method.why_not
    if "splits" in method.capabilities and problem.splits:
        return "The ops of this graph are split already; show a plan without splits first."
    largest = int(problem.cluster.capacity_bytes.max())
    if "one-device" in method.capabilities and problem.profile.persistent_bytes.sum() > largest:
        return "It takes one GPU, and the variables of this model fit no single device."
    return ""


def warnings_for(method: Method, problem: Problem) -> list[str]:
    """What a method leaves out that matters for this problem, a sentence each."""
    cluster, gpus, warnings = problem.cluster, problem.cluster.gpus, []
    knows_speed = {"heterogeneous", "one-device"} & set(method.capabilities)
    if len(set(cluster.speed[gpus].tolist())) > 1 and not knows_speed:
        warnings.append("It takes all GPUs for alike, and yours differ.")
    if (
        "memory" not in method.capabilities
        and _one_gpu_bytes(problem) > cluster.capacity_bytes[gpus].max()
    ):
        warnings.append("It does not look at memory, and one device may not hold this model.")
    return warnings


@lru_cache(maxsize=1)
def _one_gpu_bytes(problem: Problem) -> int:
    """The same for every method, and asked for at each tick of a solver."""
    return one_device_peak_bytes(problem)


_SPELT = {
    "bert": "BERT", "gpt": "GPT", "inception": "Inception", "lstm": "LSTM", "nasnet": "NASNet",
    "nmt": "NMT", "resnet": "ResNet", "rnnlm": "RNNLM", "transformer": "Transformer", "vgg": "VGG",
}  # fmt: skip
"""How the literature writes well-known models."""


def model_title(name: str) -> str:
    """A profile's name as a person reads it: ``rnnlm-2-2048`` is ``RNNLM 2 × 2048``."""
    first, *rest = re.split("[-_]", name)
    if first not in _SPELT:
        return name
    title = _SPELT[first]
    if len(rest) == 1 and rest[0].isdigit():
        return f"{title}-{rest[0]}"
    for before, word in zip([first, *rest], rest, strict=False):
        joint = " × " if before.isdigit() and word.isdigit() else " "
        title += joint + word
    return title


def rule_text(rule: LoadRule) -> str:
    """How loads count, in a few words; empty if as usual."""
    said = [
        rule.transfers if rule.transfers != USUAL.transfers else "",
        "GPipe" if rule.pipeline == "gpipe" else "",
        "replicas" if rule.replicate else "",
        "two levels" if rule.two_level else "",
    ]
    return ", ".join(filter(None, said))


def short_title(title: str) -> str:
    """The name of a method without its remark: ``Expert, by layer`` is ``Expert``."""
    return title.partition(",")[0]
