"""All that needs TensorFlow: it is imported in worker processes only, never by the studio."""

import os

# oneDNN's kernels are others than the graph names, and fuse ops that a plan orders one by one. A
# person's own process keeps them (:func:`enplace.apply`). TensorFlow reads this on import, and all
# modules of this package import it after this one.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
