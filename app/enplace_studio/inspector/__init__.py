"""The inspector: what the selected ops cost, and where they may run."""

from PySide6.QtCore import Qt

from enplace_studio.view import View

VIEW = View(
    "inspector",
    "Inspector",
    "enplace_studio.inspector.view",
    Qt.DockWidgetArea.RightDockWidgetArea,
    width=330,
    height=380,
)
