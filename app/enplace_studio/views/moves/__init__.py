"""Next moves: the edits of the plan that shorten it most, each with its price."""

from PySide6.QtCore import Qt

from enplace_studio.views.view import View

VIEW = View(
    "moves",
    "Next moves",
    "enplace_studio.views.moves.moves_view",
    Qt.DockWidgetArea.RightDockWidgetArea,
    height=380,
    is_used=lambda document: False,  # it opens when the user asks for it
)
