"""Run a script with a plan, and compare it with the run without."""
