"""Throughput of the 2020 workloads: the paper's Table 1 beside ours.

Usage: python -m benchmarks.tarnawski2020 [FOLDER with dnn-partitioning inputs]
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

from benchmarks.report import figure, title
from enplace.clusters import cluster_from
from enplace.frontends import read_profile
from enplace.maxload import max_load_us, split_exactly, split_in_order
from enplace.problem import Problem

SHARED = Path(__file__).parents[2] / "shared"


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED / "workloads" / "dnn-partitioning"
    tables = SHARED / "reference" / "tarnawski2020_tables.json"
    if not tables.exists():
        sys.exit(f"no {tables}: the comparison needs the paper's tables")
    rows = json.loads(tables.read_text(encoding="utf-8"))["table1_throughput"]
    title(
        "Time per sample, contiguous: paper / ours, ideals paper / ours, along one order, seconds"
    )
    warm_up, total_s = True, 0.0
    for name, row in rows.items():
        path = folder / "throughput" / _file_name(row["file"])
        if not path.exists():
            figure(name, "no input here")
            continue
        problem = _problem(path)
        if warm_up:
            split_exactly(problem)
            warm_up = False
        start = time.perf_counter()
        split = split_exactly(problem)
        seconds = time.perf_counter() - start
        total_s += seconds
        assert abs(max_load_us(problem, split.device) - split.load_us) <= 1e-6 * split.load_us
        order_ms = split_in_order(problem).load_us / 1e3
        paper = row["algorithms"]["dp_contiguous"]
        figure(
            f"{name} ({row['ideals']:,} / {split.n_ideals:,} ideals)",
            f"{paper['tps']:.2f} / {split.load_us / 1e3:.2f}",
            f"{order_ms:.2f}   {paper['runtime']['raw']} / {seconds:.2f} s",
        )
    figure("all of these", f"{total_s:.2f} s", "under 5 s")


def _problem(path: Path) -> Problem:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profile = read_profile(path)
    return Problem(profile, cluster_from("from-file", profile))


def _file_name(file: str) -> str:
    kind, name = file.split("/")[-2:]
    return f"{kind.removesuffix('Graphs').lower()}_{name.lower()}"


if __name__ == "__main__":
    main()
