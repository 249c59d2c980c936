"""Schedules as lanes of bars over time, for every view that shows one."""
