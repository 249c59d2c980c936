"""Pipelines: their stages, loads, memory, and schedules over time."""
