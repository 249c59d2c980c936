"""Lower bounds on the step time, each proven."""
