"""Choose a method, run it, and take its plan."""
