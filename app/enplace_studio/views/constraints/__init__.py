"""What the user asked for: pins, colocation, devices to avoid, orders."""

from PySide6.QtCore import Qt

from enplace_studio.views.view import View

VIEW = View(
    "constraints",
    "Constraints",
    "enplace_studio.views.constraints.constraints_view",
    Qt.DockWidgetArea.LeftDockWidgetArea,
    height=190,
    is_used=lambda document: document.problem is not None and bool(document.problem.constraints),
)
