"""Huge and odd problems, opened and placed by the command: time, memory, step time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Report, publish
from benchmarks.synthetic import antichain, chain, random_graph, transformer
from enplace.placers import DEFAULT_METHOD
from enplace.text import count
from enplace.values.profile import Profile
from enplace.writers import write_profile

LIMIT_S, QUICK_S = "10", "2"
"""Time limit of the default method."""

MANY = 64

HEAD = (
    *("problem", "cluster", "method", "solved (s)", "in all (s)", "memory (MiB)"),
    *("step (ms)", "bound (ms)", "note"),
)
RAW = (
    *("problem", "ops", "cluster", "method", "solve_s", "total_s", "peak_mib"),
    *("step_time_us", "bound_us", "note"),
)

Row = tuple[str, int, str, str, float, float, int, float, float, str]
"""What the raw numbers say of a problem and a method; nan where the command failed."""


def main(report: Report) -> None:
    """Report a row for each problem and method."""
    limit_s = report.pick(LIMIT_S, QUICK_S)
    report.text(
        f"Each is read, placed and written by `enplace place`. `{DEFAULT_METHOD}` was given "
        f"{limit_s} s; the other methods run to the end. Memory "
        "is the largest resident memory of the command."
    )
    rows: list[Row] = []

    def shown() -> Iterator[list[str]]:
        for row in _rows(limit_s, report.quick):
            rows.append(row)
            yield _show(row)

    report.table(HEAD, shown())
    report.numbers(RAW, rows)


def _show(row: Row) -> list[str]:
    name, n_ops, cluster, method, solve_s, total_s, peak_mib, step_us, bound_us, note = row
    figures = (f"{solve_s:.1f}", f"{total_s:.1f}", f"{peak_mib:,}")
    times = (f"{us / 1e3:,.2f}" for us in (step_us, bound_us))
    known = ("" if figure == "nan" else figure for figure in (*figures, *times))
    return [f"{name}, {count(n_ops, 'op')}", cluster, f"`{method}`", *known, note]


def _rows(limit_s: str, quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        many = Path(folder, "many.json")
        many.write_text(json.dumps(_cluster(MANY)))
        for make, cluster, methods in (
            (lambda: chain(1), "a100-4-nvlink", (DEFAULT_METHOD,)),
            (lambda: chain(100_000), "a100-4-nvlink", (DEFAULT_METHOD, "m-etf")),
            (lambda: antichain(100_000), "a100-4-nvlink", (DEFAULT_METHOD, "m-etf")),
            (lambda: random_graph(300_000), "a100-4-nvlink", (DEFAULT_METHOD, "m-etf")),
            (lambda: transformer(571, 64), "pcie-4", (DEFAULT_METHOD, "m-etf")),
            (lambda: transformer(38, 64), str(many), (DEFAULT_METHOD, "m-etf")),
            (lambda: random_graph(1_000_000), "a100-4-nvlink", ("m-topo",)),
        )[: 1 if quick else None]:
            profile, path = make(), Path(folder, "profile.enplace")
            write_profile(path, profile)
            for method in methods:
                yield _place(profile, path, cluster, method, limit_s)


def _cluster(n_gpus: int) -> dict[str, object]:
    """Return a cluster of like GPUs, each joined to each, as its file has it."""
    devices = [
        {"name": f"GPU:{i}", "kind": "gpu", "capacity_bytes": 32 << 30} for i in range(n_gpus)
    ]
    return {
        "format": "enplace-cluster/1",
        "name": f"{n_gpus} GPUs",
        "devices": [*devices, {"name": "CPU:0", "kind": "cpu", "capacity_bytes": 256 << 30}],
        "default_links": {
            ends: {"b0_us": 10.0, "b1_us_per_byte": 4e-5}
            for ends in ("gpu-gpu", "gpu-cpu", "cpu-gpu")
        },
    }


def _place(profile: Profile, path: Path, cluster: str, method: str, limit_s: str) -> Row:
    command = [sys.executable, "-m", "enplace", "place", str(path), "--cluster", cluster, "--json"]
    command += ["--method", method, "-o", str(path.with_name("plan.json"))]
    command += ["--time-limit", limit_s] if method == DEFAULT_METHOD else []
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    total_s = time.perf_counter() - started
    what = (profile.name, profile.n_ops, Path(cluster).stem, method)
    peak_mib = used.ru_maxrss >> 10
    if not output:  # the reason is on standard error
        return (*what, math.nan, total_s, peak_mib, math.nan, math.nan, "failed")
    found = json.loads(output)
    times_us = (found["step_time_us"], found["lower_bound"])
    return (*what, found["solve_seconds"], total_s, peak_mib, *times_us, found["note"])


if __name__ == "__main__":
    publish(
        main,
        "extremes",
        "Huge and odd problems",
        "Simulated steps, measured times and memory. One run.",
    )
