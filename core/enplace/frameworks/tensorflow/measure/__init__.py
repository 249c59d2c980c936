"""Measure a step: its ops, its links, and what data parallelism takes."""
