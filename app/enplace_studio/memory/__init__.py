"""Memory: how full each device gets, when, and with what."""

from enplace_studio.memory.view import MemoryView

__all__ = ["MemoryView"]
