"""The timeline: when every op and transfer runs."""

from PySide6.QtCore import Qt

from enplace_studio.view import View

VIEW = View(
    "timeline",
    "Timeline",
    "enplace_studio.views.timeline.view",
    Qt.DockWidgetArea.BottomDockWidgetArea,
    height=216,
)
