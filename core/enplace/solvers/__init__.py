"""Third-party solvers, each in its own process."""
