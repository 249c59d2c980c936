"""The bar on top: the model, the cluster, the method, and the buttons for the next step."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QPushButton, QWidget

from enplace.text import count
from enplace.values.cluster import Cluster
from enplace_studio.explain.cluster_facts import cluster_title
from enplace_studio.explain.titles import model_title
from enplace_studio.jobs.solver import Solver
from enplace_studio.model.constraints import solve_text
from enplace_studio.model.document import Document
from enplace_studio.model.prices import what_if_text
from enplace_studio.solve.chosen_method import ChosenMethod
from enplace_studio.solve.method_menu import MethodMenu
from enplace_studio.widgets.labels import ElidedLabel, plain_tip
from enplace_studio.widgets.layouts import STRETCH, hbox
from enplace_studio.widgets.messages import button
from enplace_studio.widgets.theme import theme

NARROW_PX = 1180
"""A header narrower than this shows short texts on its buttons."""
RUN, RUN_SHORT = "Run on this machine", "Run here"
SPACING, BUTTON_PX, LEAST_PX, LEAST_CLUSTER_PX = 8, 60, 480, 80
CLUSTER_SHARE = 0.24
"""Largest share of the window's width that the cluster's name may take."""


class Header(QWidget):
    """Shows the document and the solver; emits a signal for each button pressed."""

    solve_pressed = Signal()
    compare_pressed = Signal()
    cluster_pressed = Signal()
    run_pressed = Signal()

    def __init__(self, document: Document, solver: Solver, chosen: ChosenMethod) -> None:
        super().__init__()
        self.setObjectName("header")
        self.setMinimumWidth(LEAST_PX)  # no text makes the window wider than its screen
        self._document, self._solver, self._chosen = document, solver, chosen
        self._measuring = False
        self._name, self._size = ElidedLabel("heading"), ElidedLabel("dim")
        self.cluster_button = button("", self.cluster_pressed.emit)
        self.what_if_button = button("", lambda: self._document.set_scale(1.0, 1.0), kind="link")
        self.what_if_button.setToolTip("Every time shown is for these speeds. Click to end it")
        self.method_button = button("")
        self.method_menu = MethodMenu(solver, chosen, self)
        self.method_button.setMenu(self.method_menu)
        self.solve_button = button("Solve", self.solve_pressed.emit, kind="accent")
        self.compare_button = button("Try others", self.compare_pressed.emit)
        self.compare_button.setToolTip("Run the other methods too and add a row for each")
        self.run_button = button(RUN, self.run_pressed.emit)
        self.run_button.setAccessibleName(RUN)
        self.export_button = button("Export  ▾")
        self._lay_out()
        for signal in (
            document.opened,
            document.problem_changed,
            document.grouping_changed,
            solver.changed,
            chosen.changed,
        ):
            signal.connect(self.refresh)
        self.refresh()

    def _lay_out(self) -> None:
        left = (self._name, 3000), (self._size, 100), self.cluster_button, self.what_if_button
        hbox(*left, STRETCH, *self._right, on=self, spacing=SPACING, margins=(4, 4, 4, 4))

    @property
    def _right(self) -> tuple[QPushButton, ...]:
        return (
            self.method_button,
            self.solve_button,
            self.compare_button,
            self.run_button,
            self.export_button,
        )

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
        self._name.ensurePolished()
        self._name.set_text(model_title(profile.name))
        self._name.setToolTip(plain_tip(profile.name))
        times = ", estimated times" if profile.measured.estimated else ""
        passes = ", guessed backward pass" if profile.measured.guessed_backward else ""
        size = f"{count(profile.n_ops, 'op')} in {count(groups, 'group')}"
        self._size.set_text(f"{size}{times}{passes}")
        measured = profile.measured
        about = (measured.about_times, measured.about_passes, *measured.notes)
        self._size.setToolTip(plain_tip(" ".join(filter(None, about))))
        what_if = what_if_text(*project.scale)
        self.what_if_button.setText(f"{what_if[:1].upper()}{what_if[1:]}  ✕")
        self.what_if_button.setVisible(bool(what_if))
        self._show_cluster(project.cluster)
        self.method_button.setText(f"{self._chosen.text}  ▾")
        self.method_button.setEnabled(bool(self._solver.methods))
        self.method_menu.set_problem(problem)
        self._show_solve(solve_text(project))

    @property
    def _is_what_if(self) -> bool:
        project = self._document.project
        return project is not None and project.scale != (1.0, 1.0)

    def _show_cluster(self, cluster: Cluster) -> None:
        title, most = cluster_title(cluster), round(CLUSTER_SHARE * self.width())
        beside = *self._right, *([self.what_if_button] if self._is_what_if else [])
        fixed = sum(each.sizeHint().width() + SPACING for each in beside)
        free = self.width() - fixed - self._name.maximumWidth() - BUTTON_PX
        most = max(min(most, free), LEAST_CLUSTER_PX)
        self._size.setVisible(free - most >= self._size.maximumWidth() + SPACING)
        metrics = QFontMetrics(self.cluster_button.font())
        shown = metrics.elidedText(title, Qt.TextElideMode.ElideRight, most)
        self.cluster_button.setText(f"{shown}  ▾")
        self.cluster_button.setToolTip(plain_tip(f"{cluster.name}: {cluster.description}"))

    def show_run(self, why_not: str, measuring: bool) -> None:
        """Enable Run unless ``why_not`` gives a reason; block solving during a measurement."""
        self.run_button.setEnabled(not why_not)
        self.run_button.setToolTip(plain_tip(why_not or "Run this plan and measure it"))
        if measuring != self._measuring:
            self._measuring = measuring
            self.refresh()

    def _show_solve(self, text: str) -> None:
        busy = self._solver.is_asked
        self.solve_button.setText("Stop, keep the best" if busy else text)
        ready = bool(self._solver.methods) and not self._measuring
        self.solve_button.setEnabled(busy or ready)
        self.solve_button.setToolTip(
            "Solving would disturb the measurement" if self._measuring else ""
        )
        self.compare_button.setEnabled(ready)
