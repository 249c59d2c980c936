"""Baechi's methods (Jeon et al., SoCC 2020)."""
