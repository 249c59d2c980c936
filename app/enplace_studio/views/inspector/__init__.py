"""The inspector: costs of the selected ops, and the devices they may run on."""

from PySide6.QtCore import Qt

from enplace_studio.views.view import View

VIEW = View(
    "inspector",
    "Selection",
    "enplace_studio.views.inspector.inspector_view",
    Qt.DockWidgetArea.RightDockWidgetArea,
    width=330,
    height=380,
)
