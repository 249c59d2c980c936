"""Two to four plans side by side: their timelines on one axis, and where the time went."""

from enplace_studio.views.view import View

VIEW = View("compare", "Plans side by side", "enplace_studio.views.compare.compare_view")
