"""The timeline: when every op and transfer runs."""

from enplace_studio.timeline.view import TimelineView

__all__ = ["TimelineView"]
