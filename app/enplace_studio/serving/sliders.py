"""A slider for a number that grows by factors, such as a context."""

from __future__ import annotations

from bisect import bisect_left

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QSlider, QWidget

from enplace_studio.widgets.labels import label
from enplace_studio.widgets.layouts import STRETCH, hbox, vbox
from enplace_studio.widgets.wheel import scroll_past

PER_OCTAVE = 4
"""Steps in which a number doubles."""


def steps(least: int, most: int) -> list[int]:
    """Return numbers from the least to the most, each larger by a fourth root of two or so."""
    found, at = [], float(least)
    while at < most:
        found.append(round(at / least) * least)
        at *= 2 ** (1 / PER_OCTAVE)
    return [*dict.fromkeys([*(each for each in found if each < most), most])]


class StepSlider(QWidget):
    """A name, a number, a slider that changes it, and a line below.

    Parameters
    ----------
    least, most : int
        The ends of the slider; ``most`` changes with :meth:`set_most`.
    unit : str
        What is counted, in the plural.
    """

    changed = Signal()

    def __init__(self, name: str, unit: str, least: int, most: int, value: int) -> None:
        super().__init__()
        self._unit, self._least = unit, least
        self._steps = steps(least, most)
        self._number, self._note = label("", "strong"), label("", "dim")
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setAccessibleName(name)
        scroll_past(self.slider)
        self.slider.valueChanged.connect(self._on_moved)
        head = hbox(label(name), STRETCH, self._number)
        vbox(head, self.slider, self._note, on=self, spacing=3, margins=(0, 0, 0, 0))
        self._fill(value)

    @property
    def value(self) -> int:
        return self._steps[self.slider.value()]

    def set_most(self, most: int) -> None:
        """Change the end of the slider; the number stays, or becomes the end."""
        if most != self._steps[-1]:
            value = self.value
            self._steps = steps(self._least, most)
            self._fill(value)

    def set_note(self, text: str) -> None:
        """Change the line below."""
        self._note.setText(text)

    def _fill(self, value: int) -> None:
        at = min(bisect_left(self._steps, value), len(self._steps) - 1)
        self.slider.blockSignals(True)
        self.slider.setRange(0, len(self._steps) - 1)
        self.slider.setPageStep(PER_OCTAVE)
        self.slider.setValue(at)
        self.slider.blockSignals(False)
        self._show()

    def _on_moved(self) -> None:
        self._show()
        self.changed.emit()

    def _show(self) -> None:
        self._number.setText(f"{self.value:,} {self._unit}".strip())
