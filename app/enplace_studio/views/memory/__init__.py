"""Memory of each device: the peak against its capacity, and the course over time."""

from PySide6.QtCore import Qt

from enplace_studio.views.view import View

VIEW = View(
    "memory",
    "Memory",
    "enplace_studio.views.memory.memory_view",
    Qt.DockWidgetArea.RightDockWidgetArea,
    height=290,
    is_used=lambda document: document.schedule is not None and not document.schedule.fits,
)
