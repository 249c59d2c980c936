"""The boxes of the Help menu."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMessageBox, QWidget

import enplace
from enplace.frameworks.source import ADD_TENSORFLOW
from enplace_studio.machine import tensorflow_state


def show_tensorflow(parent: QWidget) -> None:
    """Explain what needs TensorFlow, and how to add it."""
    box = QMessageBox(parent)
    box.setWindowTitle("TensorFlow")
    box.setText(tensorflow_state())
    box.setInformativeText(
        "You need it to open and profile a model, to run a plan, and for a training script that "
        "uses an exported plan. Looking at profiles, solving and exporting work without it.\n\n"
        f"To add it, run:\n{ADD_TENSORFLOW}"
    )
    box.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    box.exec()


def show_about(parent: QWidget) -> None:
    """Show what this program is."""
    QMessageBox.about(
        parent,
        "About Enplace",
        f"<b>Enplace {enplace.__version__}</b><p>Everything in its place: decides where every "
        "op of a model runs, and in what order, on the GPUs you have.</p>"
        "<p>Apache License 2.0</p>",
    )
