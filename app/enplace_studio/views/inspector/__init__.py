"""The inspector: costs of the selected ops, and the devices they may run on."""

from PySide6.QtCore import Qt

from enplace_studio.view import View

VIEW = View(
    "inspector",
    "Inspector",
    "enplace_studio.views.inspector.view",
    Qt.DockWidgetArea.RightDockWidgetArea,
    width=330,
    height=380,
)
