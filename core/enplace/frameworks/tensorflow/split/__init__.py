"""Cut ops along a dimension, or a whole step into micro-batches."""
