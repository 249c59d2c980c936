"""What would make a model fit: changes of batch, pipeline and machine, each with a plan."""
