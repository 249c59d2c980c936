"""Positions of the graph's cards, computed in a worker."""
