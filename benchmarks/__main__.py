"""Run all benchmarks, or those named, each in its own process."""

from __future__ import annotations

import subprocess
import sys

ALL = (
    "simulate",
    "annealing",
    "place",
    "search",
    "gap",
    "planted",
    "pesto",
    "methods",
    "truth",
    "tarnawski2020",
    "extremes",
    "startup",
    "repaint",
    "responsiveness",
)


def main() -> int:
    """Return how many benchmarks failed."""
    names = sys.argv[1:] or ALL
    return sum(
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode != 0
        for name in names
    )


if __name__ == "__main__":
    sys.exit(main())
