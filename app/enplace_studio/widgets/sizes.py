"""The size that a dialog opens with."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QWidget

from enplace_studio.widgets.theme import theme

FRAME = QSize(12, 40)
"""Room for the frame that the system draws around a window."""


def give_size(window: QWidget, size: tuple[int, int]) -> None:
    """Make a window this large at the usual size of texts, but no larger than its screen."""
    wanted = QSize(*(round(length * theme.scale) for length in size))
    window.resize(wanted.boundedTo(window.screen().availableSize() - FRAME))
