"""Two to four plans side by side: their timelines on one axis, and where the time went."""

from enplace_studio.view import View, ViewAction

VIEW = View(
    "compare",
    "Plans side by side",
    "enplace_studio.views.compare.view",
    actions=(
        ViewAction(
            "export-compare",
            "Export plans side by side as PNG…",
            "File",
            (),
            lambda v: v.ask_export(),
            2,
        ),
    ),
)
