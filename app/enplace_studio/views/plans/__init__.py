"""The list of plans, and a comparison of two."""

from PySide6.QtCore import Qt

from enplace_studio.views.view import View

VIEW = View(
    "plans",
    "Plans",
    "enplace_studio.views.plans.plans_view",
    Qt.DockWidgetArea.LeftDockWidgetArea,
    width=262,
)
