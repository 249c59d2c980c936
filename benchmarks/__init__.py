"""Figures that anyone can measure again: ``python -m benchmarks``, or one by its name."""
