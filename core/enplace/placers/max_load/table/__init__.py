"""The dynamic program over ideals."""
