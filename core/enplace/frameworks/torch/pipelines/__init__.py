"""Run a script as a pipeline, with a process for each device."""
