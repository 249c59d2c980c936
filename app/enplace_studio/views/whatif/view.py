"""Two sliders for the speed of compute and links (the sweeps of Pesto's Fig. 8)."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QSlider

from enplace.text import count, factor
from enplace_studio.background import Background
from enplace_studio.document import Document
from enplace_studio.jobs import Solver
from enplace_studio.messages import button
from enplace_studio.panel import Panel, label
from enplace_studio.project import OpenProject, PlanEntry
from enplace_studio.sweep import Curve, find_curve, swept_plans
from enplace_studio.views.whatif.plot import CurvePlot

STEPS = 24
LARGEST = 8.0
SETTLE_MS, AGAIN_MS = 40, 200


def make_view(document: Document, solver: Solver) -> WhatIfView:
    """Make the pane; it needs no solver."""
    return WhatIfView(document)


class WhatIfView(Panel):
    """Scales the document's cluster; all numbers follow."""

    def __init__(self, document: Document) -> None:
        super().__init__("What if")
        self._document = document
        self._drag = 0
        self.curve_buttons: list[QPushButton] = []
        self._compute, self._compute_text = self._row("Compute speed")
        self._links, self._links_text = self._row("Link speed")
        self.plot = CurvePlot(self)
        self.plot.hide()
        self._swept: int | None = None
        self._sweep = Background(QObject(self))  # nobody waits for it: no busy cursor
        self.reset_button = button("Back to 1 ×", self.reset, kind="link")
        policy = self.reset_button.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # no slider may move under the pointer
        self.reset_button.setSizePolicy(policy)
        self.body.addWidget(self.reset_button, 0, Qt.AlignmentFlag.AlignLeft)
        self.body.addWidget(self.plot, 1)
        self.body.addStretch()
        # A drag is faster than the simulation of a large schedule.
        self._settle = QTimer(self, interval=SETTLE_MS, singleShot=True)
        self._settle.timeout.connect(self._apply)
        document.opened.connect(self.refresh)
        document.problem_changed.connect(self.refresh)
        # Several signals follow one edit; the curves are drawn again once.
        self._again = QTimer(self, interval=AGAIN_MS, singleShot=True)
        self._again.timeout.connect(lambda: self.sweep(self._swept))
        for changed in (
            document.opened,
            document.problem_changed,
            document.plans_changed,
            document.current_changed,
        ):
            changed.connect(self._again.start)
        self.refresh()

    def _row(self, title: str) -> tuple[QSlider, QLabel]:
        value = label("", "dim")
        line = QHBoxLayout()
        line.addWidget(label(title))
        over = len(self.curve_buttons)
        curve = button("Curve", lambda: self.toggle_curve(over), kind="link")
        curve.setToolTip(f"Draw the step time of each plan over the {title.lower()}; no solving")
        self.curve_buttons.append(curve)
        line.addWidget(curve)
        line.addStretch()
        line.addWidget(value)
        slider = QSlider(Qt.Orientation.Horizontal)
        slider.setRange(-STEPS, STEPS)
        slider.setAccessibleName(title)
        slider.setPageStep(STEPS // 3)
        slider.sliderPressed.connect(self._begin_drag)
        slider.valueChanged.connect(lambda: self._on_moved(slider))
        self.body.addLayout(line)
        self.body.addWidget(slider)
        return slider, value

    # Curves

    def toggle_curve(self, over: int) -> None:
        """Draw the curves over a speed; stop or hide them if they are those shown."""
        self.sweep(None if over == self._swept else over)

    def sweep(self, over: int | None) -> None:
        """Simulate all plans over a speed, one after the other in the background; None stops."""
        self._sweep.forget()
        self._swept = over
        self.plot.show_curves((), 1.0)
        project = self._document.project
        if project is None or project.current is None:
            self._swept = None
        self.plot.setVisible(self._swept is not None)
        for number, each in enumerate(self.curve_buttons):
            each.setText("Curve" if number != self._swept else "Hide curve")
            each.setEnabled(project is not None and project.current is not None)
        self.set_legend("")
        if project is not None and self._swept is not None:
            self._sweep_next(project, self._swept, swept_plans(project))

    def _sweep_next(self, project: OpenProject, over: int, entries: list[PlanEntry]) -> None:
        self.set_legend(f"{count(len(entries), 'plan')} to simulate" if entries else "")
        if not entries:
            return

        def show(curve: Curve | None) -> None:
            new = () if curve is None else (curve,)
            self.plot.show_curves((*self.plot.curves, *new), project.scale[over])
            self._sweep_next(project, over, entries[1:])

        self._sweep.start(partial(find_curve, project, entries[0], over), show)

    def reset(self) -> None:
        """Return to the unscaled cluster."""
        self._document.set_scale(1.0, 1.0)

    def refresh(self) -> None:
        """Show the factors of the document."""
        project = self._document.project
        compute, links = project.scale if project is not None else (1.0, 1.0)
        for slider, value in ((self._compute, compute), (self._links, links)):
            slider.blockSignals(True)
            slider.setValue(position_of(value))
            slider.setEnabled(project is not None)
            slider.blockSignals(False)
        self._show_texts()
        self.reset_button.setVisible((compute, links) != (1.0, 1.0))

    def _begin_drag(self) -> None:
        self._drag += 1

    def _on_moved(self, slider: QSlider) -> None:
        if not slider.isSliderDown() and not self._settle.isActive():
            self._begin_drag()  # changed by a key or the wheel
        self._show_texts()
        self._settle.start()

    def _show_texts(self) -> None:
        self._compute_text.setText(factor(value_at(self._compute.value())))
        self._links_text.setText(factor(value_at(self._links.value())))

    def _apply(self) -> None:
        compute, links = value_at(self._compute.value()), value_at(self._links.value())
        self._document.set_scale(compute, links, self._drag)


def value_at(position: int) -> float:
    """Return the factor of a slider position: 1 in the middle, 1/8 and 8 at the ends."""
    return float(f"{LARGEST ** (position / STEPS):.2g}")


def position_of(value: float) -> int:
    """Return the slider position nearest to a factor."""
    return min(range(-STEPS, STEPS + 1), key=lambda position: abs(value_at(position) - value))
