"""Record what a step of PyTorch does: its ops, tensors, FLOPs, traffic and times."""
