"""Enplace's own methods."""
