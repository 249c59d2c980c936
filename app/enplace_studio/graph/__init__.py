"""The graph pane: groups as cards, coloured by the device they run on."""

from enplace_studio.graph.view import GraphView

__all__ = ["GraphView"]
