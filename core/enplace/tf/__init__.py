"""All that needs TensorFlow: it is imported in worker processes only, never by the studio."""

import os

# oneDNN's kernels are others than the graph names, and fuse ops that a plan orders one by one.
# TensorFlow reads this when it is imported, which all modules of this package do after this one.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
