"""Widgets, menus and gestures that several rooms share."""
