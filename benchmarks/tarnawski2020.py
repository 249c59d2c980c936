"""The 2020 workloads: the paper's Tables 1 and 4 beside ours.

Usage: python -m benchmarks.tarnawski2020 [FOLDER with dnn-partitioning inputs] [--seconds S]

S is what each integer program may take; the others end by themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import title
from enplace.cli.answer import table
from enplace.clusters import cluster_from
from enplace.frontends import read_profile
from enplace.latency import Limits as LatencyLimits
from enplace.latency import best_latency, greedy_split, latency_us
from enplace.maxload import (
    Limits,
    best_anywhere,
    max_load_us,
    split_exactly,
    split_in_order,
)
from enplace.problem import Problem

SHARED = Path(__file__).parents[2] / "shared"
HEAD = ["", "paper", "ours", "ratio", "paper took", "ours took", "proof"]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.tarnawski2020")
    parser.add_argument("folder", nargs="?", default=SHARED / "workloads" / "dnn-partitioning")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    tables = SHARED / "reference" / "tarnawski2020_tables.json"
    if not tables.exists():
        sys.exit(f"no {tables}: the comparison needs the paper's tables")
    papers = json.loads(tables.read_text(encoding="utf-8"))
    _show(papers["table1_throughput"], Path(given.folder) / "throughput", _TABLE_1, given.seconds)
    _show(papers["table4_latency"], Path(given.folder) / "latency", _TABLE_4, given.seconds)


def _show(papers: dict[str, Any], folder: Path, table_of: _Table, seconds: float) -> None:
    lacking = []
    for heading, column, solve in table_of:
        title(heading)
        rows, total_s = [HEAD], 0.0
        for name, row in papers.items():
            path = folder / _file_name(row["file"])
            if not path.exists():
                lacking.append(name)
                continue
            paper = row["algorithms"][column]
            problem = _problem(path)
            if len(rows) == 1:
                solve(problem, 1.0)  # compiles
            start = time.perf_counter()
            found_ms, proof = solve(problem, seconds)
            took_s = time.perf_counter() - start
            total_s += took_s
            rows.append(_row(name, paper, found_ms, took_s, proof))
        rows.append(["all of these", "", "", "", "", f"{total_s:.2f} s", ""])
        print(table(rows, "lrrrrrl"), flush=True)
    if lacking:
        print(f"\nNo input here: {', '.join(dict.fromkeys(lacking))}.")


def _row(name: str, paper: dict[str, Any], ours_ms: float, took_s: float, proof: str) -> list[str]:
    value = paper["tps"] if "tps" in paper else paper["latency"]
    paper_took = paper["runtime"]["raw"].partition(" (stated")[0]
    return [
        name,
        f"{value:.2f}",
        f"{ours_ms:.2f}",
        f"{ours_ms / value:.4f}",
        paper_took,
        f"{took_s:.2f} s",
        proof,
    ]


def _contiguous(problem: Problem, _: float) -> tuple[float, str]:
    split = split_exactly(problem)
    _check(split.load_us, max_load_us(problem, split.device))
    return split.load_us / 1e3, f"{split.n_ideals:,} ideals"


def _along_one_order(problem: Problem, _: float) -> tuple[float, str]:
    split = split_in_order(problem)
    _check(split.load_us, max_load_us(problem, split.device))
    return split.load_us / 1e3, ""


def _anywhere(problem: Problem, seconds: float) -> tuple[float, str]:
    found = best_anywhere(problem, Limits(seconds, lambda: False, lambda _: None))
    _check(found.load_us, max_load_us(problem, found.device))
    return found.load_us / 1e3, _proof(found.load_us, found.bound_us)


def _greedy(problem: Problem, _: float) -> tuple[float, str]:
    return latency_us(problem, greedy_split(problem)) / 1e3, ""


def _least_latency(problem: Problem, seconds: float) -> tuple[float, str]:
    found = best_latency(problem, LatencyLimits(seconds, lambda: False, lambda _: None))
    _check(found.latency_us, latency_us(problem, found.device, found.piece))
    return found.latency_us / 1e3, _proof(found.latency_us, found.bound_us)


_Solve = Callable[[Problem, float], tuple[float, str]]
_Table = tuple[tuple[str, str, _Solve], ...]

_TABLE_1: _Table = (
    ("Table 1, time per sample, contiguous: DP (ms)", "dp_contiguous", _contiguous),
    ("Table 1, time per sample, contiguous: DPL (ms)", "dpl", _along_one_order),
    ("Table 1, time per sample, not contiguous: IP (ms)", "ip_noncontiguous", _anywhere),
)
_TABLE_4: _Table = (
    ("Table 4, latency: greedy (ms)", "greedy", _greedy),
    ("Table 4, latency, contiguous: IP (ms)", "ip_contiguous", _least_latency),
)


def _check(said_us: float, evaluated_us: float) -> None:
    """Every solver's value is worked out again by what shares nothing with it."""
    assert abs(evaluated_us - said_us) <= 1e-6 * said_us, f"{said_us} is {evaluated_us}"


def _proof(value_us: float, bound_us: float) -> str:
    gap = 1 - bound_us / value_us
    return "optimal" if gap < 1e-5 else f"gap {gap:.1%}"


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
