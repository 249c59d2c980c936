"""Run all benchmarks that belong to the page, or those named, each in its own process."""

from __future__ import annotations

import argparse
import subprocess
import sys

ALL = (
    "methods",
    "place",
    "planted",
    "pesto",
    "fastt",
    "celeritas",
    "tarnawski2020",
    "truth",
    "scaling",
    "simulate",
    "annealing",
    "search",
    "serving",
    "startup",
    "repaint",
    "responsiveness",
)
"""Together they take less than an hour on two idle cores."""

BY_NAME = (
    *("gap", "coarse", "extremes", "session", "measured", "verified"),
    *("device_maps", "ranks", "twins", "half_memory"),
)
"""What takes long, or needs TensorFlow or PyTorch, runs only when named."""


def main() -> int:
    """Return how many benchmarks failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"all without one: {', '.join(ALL)}; only by name: {', '.join(BY_NAME)}",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, written to build/")
    given = parser.parse_args()
    if unknown := set(given.names) - {*ALL, *BY_NAME}:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    words = ["--quick"] if given.quick else []
    return sum(
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *words], check=False).returncode
        != 0
        for name in given.names or ALL
    )


if __name__ == "__main__":
    sys.exit(main())
