"""The timeline: when every op and transfer runs."""

from PySide6.QtCore import Qt

from enplace_studio.views.view import View

VIEW = View(
    "timeline",
    "Timeline",
    "enplace_studio.views.timeline.timeline_view",
    Qt.DockWidgetArea.BottomDockWidgetArea,
    height=216,
)
