"""Partitions whose samples in flight fit in memory."""
