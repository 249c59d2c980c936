"""The boxes of the Help menu."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMessageBox, QWidget

import enplace
from enplace.frameworks.registry import frameworks
from enplace.text import listed


def framework_names() -> str:
    """List the frameworks that Enplace supports."""
    return listed([framework.name for framework in frameworks().values()])


def show_frameworks(parent: QWidget) -> None:
    """Explain what needs a framework, and how to add one."""
    box = QMessageBox(parent)
    box.setWindowTitle(framework_names())
    box.setText("\n\n".join(framework.state for framework in frameworks().values()))
    box.setInformativeText(
        "You need it to open and profile a model, to run a plan, and for a training script that "
        "uses an exported plan. Looking at profiles, solving and exporting work without it."
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
