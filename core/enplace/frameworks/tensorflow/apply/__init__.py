"""Write a plan into a graph, run it, and check that it ran as planned."""
