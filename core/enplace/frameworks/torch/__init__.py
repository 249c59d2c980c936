"""PyTorch: records a training step of a script as it is; only workers import ``torch``."""
