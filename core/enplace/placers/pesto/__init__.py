"""Pesto (Hafeez et al., Middleware 2021): coarsen, then a 0-1 ILP for placement and schedule."""
