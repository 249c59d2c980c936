"""Searches for partitions that need not be contiguous."""
