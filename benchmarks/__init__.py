"""Benchmarks that anyone can repeat: ``python -m benchmarks``, or one of them by its name."""
