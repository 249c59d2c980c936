"""Make a profile of a recorded step."""
