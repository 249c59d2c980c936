"""The inspector: what is selected, what it costs, and where it may go."""

from enplace_studio.inspector.view import InspectorView

__all__ = ["InspectorView"]
