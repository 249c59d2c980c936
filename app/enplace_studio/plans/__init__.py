"""The list of plans, and two of them compared."""

from PySide6.QtCore import Qt

from enplace_studio.view import View

VIEW = View(
    "plans", "Plans", "enplace_studio.plans.view", Qt.DockWidgetArea.LeftDockWidgetArea, width=262
)
