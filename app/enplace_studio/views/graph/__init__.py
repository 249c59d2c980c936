"""The graph: groups as cards, coloured by the device they run on."""

from enplace_studio.views.view import View, ViewAction

VIEW = View(
    "graph",
    "Graph",
    "enplace_studio.views.graph.graph_view",
    actions=(
        ViewAction("search", "Search ops…", "Select", ("Ctrl+F",), lambda v: v.start_search()),
    ),
)
