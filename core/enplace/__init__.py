"""Decide where every op of a TensorFlow model runs, and in what order, on several GPUs."""

__version__ = "0.1.0"
