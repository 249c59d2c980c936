"""The effect of faster compute or links."""

from PySide6.QtCore import Qt

from enplace_studio.views.view import View

VIEW = View(
    "whatif",
    "What if",
    "enplace_studio.views.whatif.whatif_view",
    Qt.DockWidgetArea.RightDockWidgetArea,
    height=140,
    is_used=lambda document: document.project is not None and document.project.scale != (1.0, 1.0),
)
