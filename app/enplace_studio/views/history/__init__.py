"""The history: every state since the model was opened, and the way back to each."""

from PySide6.QtCore import Qt

from enplace_studio.views.view import View

VIEW = View(
    "history",
    "History",
    "enplace_studio.views.history.history_view",
    Qt.DockWidgetArea.LeftDockWidgetArea,
    height=240,
    is_used=lambda document: document.undo_stack.count() > 0,
)
