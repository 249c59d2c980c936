"""Two sliders for the speed of compute and links (the sweeps of Pesto's Fig. 8)."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSlider

from enplace.text import factor
from enplace_studio.document import Document
from enplace_studio.jobs import Solver
from enplace_studio.messages import button
from enplace_studio.panel import Panel, label

STEPS = 24
LARGEST = 8.0
SETTLE_MS = 40


def make_view(document: Document, solver: Solver) -> WhatIfView:
    """Make the pane; it needs no solver."""
    return WhatIfView(document)


class WhatIfView(Panel):
    """Scales the document's cluster; all numbers follow."""

    def __init__(self, document: Document) -> None:
        super().__init__("What if")
        self._document = document
        self._drag = 0
        self._compute, self._compute_text = self._row("Compute speed")
        self._links, self._links_text = self._row("Link speed")
        self.reset_button = button("Back to 1 ×", self.reset, kind="link")
        policy = self.reset_button.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # no slider may move under the pointer
        self.reset_button.setSizePolicy(policy)
        self.body.addWidget(self.reset_button, 0, Qt.AlignmentFlag.AlignLeft)
        self.body.addStretch()
        # A drag is faster than the simulation of a large schedule.
        self._settle = QTimer(self, interval=SETTLE_MS, singleShot=True)
        self._settle.timeout.connect(self._apply)
        document.opened.connect(self.refresh)
        document.problem_changed.connect(self.refresh)
        self.refresh()

    def _row(self, title: str) -> tuple[QSlider, QLabel]:
        value = label("", "dim")
        line = QHBoxLayout()
        line.addWidget(label(title))
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
