"""Solvers of other people's, each in a process of its own."""
