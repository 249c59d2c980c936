"""Pictures as SVG: timelines, graphs, memory, clusters, and the colours that all share."""
